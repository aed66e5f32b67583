//! Which parameters of a model are trained.

use std::fmt::Write as _;
use std::path::Path;

use fanwise::internal::fixed_parameters;
use fanwise::ir::{Builder, Graph, Value, Weights};
use fanwise::model::{LoadOptions, load};
use fanwise::op::{Binary, Concat, MatMul, Reshape, Transpose, Unary};
use fanwise::pass::{Training, TrainingError, training};
use fanwise::types::{DType, Dim, Tensor};
use support::snap;

use crate::fit::rows;

/// What is not learned of every model that an exporter wrote, and of the zoo.
#[test]
fn tables_and_constants_of_models_are_told_from_weights() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/exported");
    let mut files: Vec<_> = folder
        .read_dir()
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .collect();
    files.sort();
    let zoo = fanwise::zoo::names().map(|name| (name.to_owned(), format!("zoo:{name}")));
    let exported = files.iter().map(|path| {
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), path.to_str().unwrap().to_owned())
    });
    let options = LoadOptions { for_training: true, ..LoadOptions::default() };
    let mut text = String::new();
    for (name, spec) in exported.chain(zoo) {
        let Ok(model) = load(&spec, &options) else { continue };
        let fixed = fixed_parameters(&model.graph, &model.weights).unwrap();
        for (param, what) in fixed {
            let ty = &model.graph.params().iter().find(|p| *p.name == *param).unwrap().ty;
            writeln!(text, "{name}: {param}, {ty}: {what}").unwrap();
        }
    }
    snap::assert("training", "fixed_parameters", &text);
}

/// The model that `write` makes of its input `x: [N,4,2,6]`, which is multiplied with a weight in
/// the end.
fn model(write: impl FnOnce(&mut Builder, Value) -> Value) -> (Graph, Weights) {
    let mut b = Builder::new("m");
    let x = b.input("x", rows(DType::F64, &[4, 2, 6]));
    let w = b.param("w", filled(&[6, 1], 0.5));
    let h = write(&mut b, x);
    let flat = b.op("flat", Reshape { shape: vec![Dim::n() * 8, 6.into()] }, &[h]).unwrap();
    let product = b.op("product", MatMul {}, &[flat, w]).unwrap();
    let rows = b.op("rows", Reshape { shape: vec![Dim::n(), 8.into()] }, &[product]).unwrap();
    b.output("y", rows);
    b.finish()
}

fn filled(dims: &[usize], x: f64) -> Tensor {
    Tensor::new(dims, &vec![x; dims.iter().product()]).unwrap()
}

/// Elements that differ and are of no form.
fn any(dims: &[usize]) -> Tensor {
    let elements: Vec<f64> = (0..dims.iter().product::<usize>()).map(|i| 2.5 - i as f64).collect();
    Tensor::new(dims, &elements).unwrap()
}

fn what((graph, weights): &(Graph, Weights)) -> Vec<(String, &'static str)> {
    fixed_parameters(graph, weights).unwrap().into_iter().collect()
}

fn only(what: &'static str) -> Vec<(String, &'static str)> {
    vec![("p".to_owned(), what)]
}

/// The model in which `p` meets a value that is no input as given.
fn met(op: Binary, p: Tensor) -> Vec<(String, &'static str)> {
    what(&model(|b, x| {
        let h = b.op("h", Unary::Tanh, &[x]).unwrap();
        let p = b.param("p", p);
        b.op("met", op, &[h, p]).unwrap()
    }))
}

#[test]
fn a_table_has_an_entry_for_each_element_of_a_sample() {
    let table = "it is a table of positional embeddings";
    assert_eq!(met(Binary::Add, any(&[4, 2, 6])), only(table));
    assert_eq!(met(Binary::Add, any(&[1, 4, 2, 6])), only(table));
    // Biases of channels, of heads and their features.
    for dims in [&[6][..], &[1], &[4, 1, 1], &[2, 6], &[4, 1, 6]] {
        assert_eq!(met(Binary::Add, any(dims)), [], "{dims:?}");
    }
    // A part of a table, its sum with another and its product with a learned scale are tables; the
    // scale is none.
    let parts = model(|b, x| {
        let h = b.op("h", Unary::Tanh, &[x]).unwrap();
        let (long, p) = (b.param("long", any(&[6, 2, 9])), b.param("p", any(&[4, 2, 6])));
        let scale = b.param("scale", any(&[1]));
        let turned = b.op("turned", Transpose { perm: vec![2, 1, 0] }, &[long]).unwrap();
        let part =
            b.op("part", fanwise::op::Slice::rows(0, 0.into(), 4.into()), &[turned]).unwrap();
        let sum = b.op("sum", Binary::Add, &[part, p]).unwrap();
        let scaled = b.op("scaled", Binary::Mul, &[sum, scale]).unwrap();
        b.op("met", Binary::Add, &[scaled, h]).unwrap()
    });
    assert_eq!(what(&parts), [("long".to_owned(), table), ("p".to_owned(), table)]);
    // What is multiplied in between is a weight, also where all of it is a table in the end.
    let projected = model(|b, x| {
        let h = b.op("h", Unary::Tanh, &[x]).unwrap();
        let (p, v) = (b.param("p", any(&[4, 2, 6])), b.param("v", any(&[6, 6])));
        let learned = b.op("learned", MatMul {}, &[p, v]).unwrap();
        b.op("met", Binary::Add, &[h, learned]).unwrap()
    });
    assert_eq!(what(&projected), []);
}

#[test]
fn masks_and_rotations_are_told_by_their_elements() {
    let mut causal = vec![0.0f64; 12];
    causal[1] = -1e9;
    let mask = |elements: &[f64]| Tensor::new(&[2, 6], elements).unwrap();
    assert_eq!(met(Binary::Add, mask(&causal)), only("it is a mask"));
    causal[1] = 1.0;
    assert_eq!(met(Binary::Mul, mask(&causal)), only("it is a mask"));
    causal[1] = -3.0;
    assert_eq!(met(Binary::Add, mask(&causal)), []);
    let angles = |f: fn(f64) -> f64| {
        let all: Vec<f64> = (0..48).map(|i| f(f64::from(i / 12) * f64::from(i % 6 + 1))).collect();
        Tensor::new(&[4, 2, 6], &all).unwrap()
    };
    assert_eq!(met(Binary::Mul, angles(f64::sin)), only("it is a rotary table"));
    assert_eq!(met(Binary::Mul, angles(f64::cos)), only("it is a rotary table"));
    // The scale of a normalisation over all axes, as it begins and later.
    assert_eq!(met(Binary::Mul, filled(&[4, 2, 6], 1.0)), []);
    assert_eq!(met(Binary::Mul, any(&[4, 2, 6])), []);
}

#[test]
fn constants_shift_and_scale_inputs_or_are_single_numbers() {
    let constant = "it is a non-trainable constant";
    let named = |names: &[&str]| -> Vec<_> {
        names.iter().map(|name| ((*name).to_owned(), constant)).collect()
    };
    let normalised = model(|b, x| {
        let (mean, var) = (b.param("mean", any(&[6])), b.param("var", any(&[6])));
        let turned = b.op("turned", Transpose { perm: vec![0, 2, 1, 3] }, &[x]).unwrap();
        let centred = b.op("centred", Binary::Sub, &[turned, mean]).unwrap();
        let std = b.op("std", Unary::Sqrt, &[var]).unwrap();
        let scaled = b.op("scaled", Binary::Div, &[centred, std]).unwrap();
        let h = b.op("h", Unary::Relu, &[scaled]).unwrap();
        let bias = b.param("bias", any(&[6]));
        b.op("met", Binary::Sub, &[h, bias]).unwrap()
    });
    assert_eq!(what(&normalised), named(&["mean", "var"]));
    let rescaled = model(|b, x| {
        let (by, less) = (b.param("by", filled(&[1], 2.0)), b.param("less", filled(&[1, 1], 1.0)));
        let scaled = b.op("scaled", Binary::Mul, &[by, x]).unwrap();
        b.op("met", Binary::Add, &[scaled, less]).unwrap()
    });
    assert_eq!(what(&rescaled), named(&["by", "less"]));
    // A layer that scales its input by what it learned begins with a product.
    let learned = model(|b, x| {
        let (by, bias) = (b.param("by", any(&[6])), b.param("bias", any(&[6])));
        let scaled = b.op("scaled", Binary::Mul, &[x, by]).unwrap();
        b.op("met", Binary::Add, &[scaled, bias]).unwrap()
    });
    assert_eq!(what(&learned), []);
    // Centres, to which there are more differences than inputs, and a bias that is taken off first
    // and added at the end.
    let tied = model(|b, x| {
        let (centres, bias) = (b.param("centres", any(&[4, 1, 6])), b.param("bias", any(&[6])));
        let part = b.op("part", fanwise::op::Slice::rows(1, 0.into(), 1.into()), &[x]).unwrap();
        let far = b.op("far", Binary::Sub, &[part, centres]).unwrap();
        let off = b.op("off", Binary::Sub, &[x, bias]).unwrap();
        let h = b.op("h", Binary::Mul, &[far, off]).unwrap();
        b.op("met", Binary::Add, &[h, bias]).unwrap()
    });
    assert_eq!(what(&tied), []);
    for op in [Binary::Div, Binary::Sub, Binary::Pow] {
        assert_eq!(met(op, filled(&[1], 8.0)), only(constant));
    }
    assert_eq!(met(Binary::Mul, filled(&[1], 8.0)), []);
    assert_eq!(met(Binary::Mul, Tensor::scalar(8.0f64)), only(constant));
    let waves = model(|b, x| {
        let (p, at) = (b.param("p", any(&[6])), b.param("at", any(&[4, 1, 1])));
        let angles = b.op("angles", Binary::Mul, &[at, p]).unwrap();
        let halves = [b.op("sin", Unary::Sin, &[angles]), b.op("cos", Unary::Cos, &[angles])];
        let halves = halves.map(Result::unwrap);
        let table = b.op("table", Concat { axis: 1 }, &halves).unwrap();
        b.op("met", Binary::Add, &[x, table]).unwrap()
    });
    let frequencies = "it holds frequencies";
    assert_eq!(what(&waves), [("at".to_owned(), frequencies), ("p".to_owned(), frequencies)]);
}

#[test]
fn a_table_is_trained_where_it_is_asked_for() {
    let (graph, weights) = model(|b, x| {
        let h = b.op("h", Unary::Tanh, &[x]).unwrap();
        let p = b.param("p", any(&[4, 2, 6]));
        b.op("met", Binary::Add, &[h, p]).unwrap()
    });
    let terms = Training::new("y", "mse".parse().unwrap(), "sgd".parse().unwrap());
    let made = training(&graph, &weights, &terms).unwrap();
    assert_eq!(made.trained, ["w"]);
    assert_eq!(made.untrained, [("p".to_owned(), "it is a table of positional embeddings")]);
    let learned = Training { learned: ["p".to_owned()].into(), ..terms.clone() };
    let made = training(&graph, &weights, &learned).unwrap();
    assert_eq!((made.trained.len(), made.untrained.len()), (2, 0));
    let text = |terms: Training| training(&graph, &weights, &terms).unwrap_err().to_string();
    let both = Training { frozen: ["p".to_owned()].into(), ..learned.clone() };
    assert_eq!(text(both), "`p`: it is both frozen and trained");
    let unknown = Training { learned: ["q".to_owned()].into(), ..terms.clone() };
    assert_eq!(text(unknown), "there is no parameter `q` to train; the model has `w`, `p`");
    let frozen = Training { frozen: ["w".to_owned()].into(), ..terms };
    let error = training(&graph, &weights, &frozen).unwrap_err();
    assert!(matches!(error, TrainingError::Nothing(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "the loss depends on no trained parameter; `w` is not: it is frozen; `p` is not: \
         it is a table of positional embeddings; train one at least"
    );
}

#[test]
fn outputs_of_the_model_stay_where_they_are_asked_for() {
    let (graph, weights) = model(|b, x| b.op("h", Unary::Tanh, &[x]).unwrap());
    let terms = Training::new("y", "mse".parse().unwrap(), "sgd".parse().unwrap());
    let names = |terms: &Training| -> Vec<String> {
        let made = training(&graph, &weights, terms).unwrap();
        made.graph.outputs().iter().map(|output| output.name.to_string()).collect()
    };
    assert_eq!(names(&terms), ["loss"]);
    let kept = Training { outputs: ["y".to_owned()].into(), ..terms.clone() };
    assert_eq!(names(&kept), ["loss", "y.predicted"]);
    let unknown = Training { outputs: ["z".to_owned()].into(), ..terms };
    let error = training(&graph, &weights, &unknown).unwrap_err();
    assert!(matches!(error, TrainingError::Output { .. }), "{error}");
}
