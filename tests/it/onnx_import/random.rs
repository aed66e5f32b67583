//! Random draws and what is computed from them: dropout and normalisation in training.

use std::collections::BTreeMap;

use super::{float, graph, int, load, model, node, operators, outputs, refusal, value, with};
use fanwise::ir::Model;
use fanwise::ir::NodeKind;
use fanwise::op::Op;
use fanwise::types::Tensor;
use support::proto::attribute_proto::AttributeType;
use support::proto::tensor_proto::DataType;
use support::proto::{AttributeProto, NodeProto, TensorProto};

fn one(node: NodeProto) -> Model {
    load(&model(graph(vec![value("x", &["N", "4"])], vec![], vec![node], &["y"]))).unwrap()
}

fn shape(dims: &[i64]) -> AttributeProto {
    AttributeProto {
        name: Some("shape".to_owned()),
        r#type: Some(AttributeType::Ints as i32),
        ints: dims.to_vec(),
        ..AttributeProto::default()
    }
}

fn training() -> TensorProto {
    TensorProto {
        name: Some("training".to_owned()),
        data_type: Some(DataType::Bool as i32),
        raw_data: Some(vec![1].into()),
        ..TensorProto::default()
    }
}

fn ratio(ratio: f32) -> TensorProto {
    TensorProto { dims: vec![], ..super::floats("ratio", &[], &[ratio]) }
}

/// The results of the outputs for the one input of a graph without parameters.
fn evaluate(model: &Model, x: &Tensor) -> Vec<Tensor> {
    let graph = &model.graph;
    let mut results: BTreeMap<_, Vec<Tensor>> = BTreeMap::new();
    for id in graph.order().unwrap() {
        let made = match graph.node(id).kind() {
            NodeKind::Op(op) => {
                let mut op = Op::clone(op);
                op.at_rows(&x.dims()[0].try_into().map(i64::into).unwrap());
                let operands = graph.operands(id);
                let operands: Vec<&Tensor> =
                    operands.iter().map(|v| &results[&v.node][v.output as usize]).collect();
                op.eval(&operands).unwrap()
            }
            NodeKind::Input | NodeKind::Param(_) => vec![x.clone()],
        };
        results.insert(id, made);
    }
    let outputs = graph.outputs().iter();
    outputs.map(|o| results[&o.value.node][o.value.output as usize].clone()).collect()
}

#[test]
fn draws_take_their_shape_from_the_node_or_from_its_operand() {
    let like = |op: &str| node(op, &["x"], &["y"]);
    assert_eq!(outputs(&one(like("RandomNormalLike"))), "f32[N,4]");
    assert_eq!(outputs(&one(with(like("RandomUniformLike"), int("dtype", 10)))), "f16[N,4]");
    let fixed = node("RandomNormal", &[], &["y"]);
    assert_eq!(outputs(&one(with(fixed.clone(), shape(&[2, 3])))), "f32[2,3]");
    let wide = with(with(node("RandomUniform", &[], &["y"]), shape(&[3])), int("dtype", 11));
    assert_eq!(outputs(&one(wide)), "f64[3]");
    let bernoulli = one(with(like("Bernoulli"), int("dtype", 7)));
    assert_eq!(outputs(&bernoulli), "i64[N,4]");
    assert_eq!(operators(&bernoulli), "random_uniform less cast");
    for wrong in [
        fixed.clone(),
        with(fixed.clone(), shape(&[-1])),
        with(with(fixed.clone(), shape(&[1])), int("dtype", 7)),
        with(with(fixed, shape(&[1])), float("scale", -1.0)),
        with(like("RandomUniformLike"), float("low", 2.0)),
        with(like("Bernoulli"), int("dtype", 99)),
    ] {
        let graph = graph(vec![value("x", &["N", "4"])], vec![], vec![wrong.clone()], &["y"]);
        let error = refusal(load(&model(graph)));
        assert!(error.starts_with("node `the_y` ("), "{wrong:?}: {error}");
    }
}

#[test]
fn seeds_are_given_or_follow_from_the_place() {
    let text = |nodes: Vec<NodeProto>| {
        let graph = graph(vec![value("x", &["N", "4"])], vec![], nodes, &["y", "z"]);
        load(&model(graph)).unwrap().graph.to_string()
    };
    let seeds = |text: &str| {
        let parts = text.split("seed=").skip(1);
        parts.map(|s| s.split([',', '}', ' ']).next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let draws = |name: &str| node("RandomNormalLike", &["x"], &[name]);
    let own = text(vec![draws("y"), draws("z")]);
    assert_eq!(own, text(vec![draws("y"), draws("z")]));
    let own = seeds(&own);
    assert!(own.len() == 2 && own[0] != own[1], "{own:?}");
    let given =
        |x: f32| vec![with(draws("y"), float("seed", x)), with(draws("z"), float("seed", x))];
    assert_eq!(
        seeds(&text(given(2.5))),
        [2.5f32.to_bits().to_string(), 2.5f32.to_bits().to_string()]
    );
}

#[test]
fn probabilities_decide() {
    let model = one(node("Bernoulli", &["x"], &["y"]));
    let p = [0f32, 1.0, 0.25, 0.5];
    let x = Tensor::new(&[2000, 4], &p.repeat(2000)).unwrap();
    let y = evaluate(&model, &x)[0].to_f64();
    for (column, p) in p.iter().enumerate() {
        let mean = y.iter().skip(column).step_by(4).sum::<f64>() / 2000.0;
        let tolerance = [0.0, 0.0, 0.04, 0.04][column];
        assert!((mean - f64::from(*p)).abs() <= tolerance, "{mean} for {p}");
    }
}

#[test]
fn dropout_in_training_drops_and_scales() {
    let dropout = node("Dropout", &["x", "ratio", "training"], &["y", "mask"]);
    let import = |r: f32| {
        let inputs = vec![value("x", &["N", "4"])];
        load(&model(graph(
            inputs,
            vec![ratio(r), training()],
            vec![dropout.clone()],
            &["y", "mask"],
        )))
    };
    let made = import(0.25).unwrap();
    assert_eq!(outputs(&made), "f32[N,4] bool[N,4]");
    assert_eq!(operators(&import(0.0).unwrap()), "dropout");
    let x: Vec<f32> = (1..=4000i16).map(f32::from).collect();
    let x = Tensor::new(&[1000, 4], &x).unwrap();
    let y = evaluate(&made, &x);
    let (kept, mask) = (y[0].as_slice::<f32>(), y[1].bytes());
    for ((x, y), kept) in x.as_slice::<f32>().iter().zip(kept).zip(mask) {
        let expected = if *kept == 1 { x / 0.75 } else { 0.0 };
        assert_eq!(y.to_bits(), expected.to_bits());
    }
    let count: u32 = mask.iter().map(|kept| u32::from(*kept)).sum();
    assert!((2900..3100).contains(&count), "{count}");
    for wrong in [1.0, -0.5, f32::NAN] {
        let error = refusal(import(wrong));
        assert!(error.starts_with("node `the_y` (Dropout): dropout of"), "{error}");
    }
}

#[test]
fn normalisation_in_training_gives_new_statistics() {
    let channel = |name: &str| super::floats(name, &[4], &[1.0, 2.0, 3.0, 4.0]);
    let norm = node("BatchNormalization", &["x", "s", "b", "m", "v"], &["y", "", "var"]);
    let norm = with(norm, int("training_mode", 1));
    let initializers = ["s", "b", "m", "v"].map(channel).to_vec();
    let import = |node: NodeProto, outputs: &[&str]| {
        load(&model(graph(
            vec![value("x", &["N", "4"])],
            initializers.clone(),
            vec![node],
            outputs,
        )))
    };
    let made = import(norm, &["y", "var"]).unwrap();
    assert_eq!(outputs(&made), "f32[N,4] f32[4]");
    assert_eq!(operators(&made), "batch_norm_train");
    let several = node("BatchNormalization", &["x", "s", "b", "m", "v"], &["y", "mean"]);
    let error = refusal(import(several, &["y"]));
    assert!(error.contains("batch normalization with 2 results in opset 18"), "{error}");
    // In inference it is kept for training.
    let plain = node("BatchNormalization", &["x", "s", "b", "m", "v"], &["y"]);
    for (node, momentum) in [(with(plain.clone(), float("momentum", 0.75)), 0.75f64), (plain, 0.9)]
    {
        let made = import(node, &["y"]).unwrap();
        let norms = made.graph.ids().filter_map(|id| match made.graph.node(id).op() {
            Some(Op::BatchNorm(norm)) => Some(norm.momentum.to_bits()),
            _ => None,
        });
        assert_eq!(norms.collect::<Vec<_>>(), [momentum.to_bits()]);
    }
}
