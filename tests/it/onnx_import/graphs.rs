//! Nodes, names and what is refused.

use super::{
    float, graph, int, ints, load, model, node, nodes_of, operators, opset, outputs, refusal,
    value, with, zeros,
};
use fanwise::format::onnx::ImportError;
use support::proto::attribute_proto::AttributeType;
use support::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};

fn x() -> Vec<ValueInfoProto> {
    vec![value("x", &["N", "4"])]
}

fn chain(nodes: Vec<NodeProto>) -> String {
    refusal(load(&model(graph(x(), vec![], nodes, &["y"]))))
}

#[test]
fn all_unsupported_operators_are_listed() {
    let body = AttributeProto {
        name: Some("then_branch".to_owned()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(GraphProto::default()),
        ..AttributeProto::default()
    };
    let nodes = vec![
        node("Looped", &["x"], &["a"]),
        node("Relu", &["a"], &["b"]),
        with(node("When", &["b"], &["c"]), body),
        NodeProto { domain: Some("com.x".to_owned()), ..node("Relu", &["c"], &["d"]) },
        NodeProto { name: None, ..node("Looped", &["d"], &["y"]) },
    ];
    let error = load(&model(graph(x(), vec![], nodes, &["y"]))).unwrap_err();
    let ImportError::Unsupported(ops) = &error else { panic!("{error}") };
    let found: Vec<(&str, usize)> = ops.iter().map(|o| (o.op.as_str(), o.count)).collect();
    assert_eq!(found, [("Looped", 2), ("When", 1), ("com.x::Relu", 1)]);
    assert_eq!(ops[0].nodes, ["node `the_a`", "the node of `y`"]);
}

#[test]
fn nodes_may_stand_in_any_order_but_not_in_a_cycle() {
    let nodes = nodes_of("y = Add a b; b = Exp a; a = Relu x");
    let sorted = load(&model(graph(x(), vec![], nodes, &["y"]))).unwrap();
    assert_eq!(operators(&sorted), "relu exp add");
    let error = chain(nodes_of("a = Add x y; y = Relu a"));
    assert_eq!(error, "node `the_a` depends on its own result, by way of node `the_y`");
}

#[test]
fn names_must_be_given_once() {
    let error = chain(nodes_of("y = Relu z"));
    assert_eq!(error, "node `the_y` uses `z`, which is not defined");
    let error = chain(nodes_of("y = Relu x; y = Exp x"));
    assert_eq!(error, "`y` is given twice: node `the_y`, and node `the_y`");
    let error = chain(nodes_of("x = Relu x"));
    assert_eq!(error, "`x` is given twice: an input or initializer, and node `the_x`");
    let error = chain(vec![]);
    assert_eq!(error, "an output of the model uses `y`, which is not defined");
    let double = vec![value("x", &["N", "4"]), value("x", &["N", "4"])];
    let nodes = nodes_of("y = Relu x");
    let error = refusal(load(&model(graph(double, vec![], nodes.clone(), &["y"]))));
    assert_eq!(error, "`x` is given twice: an input, and an input");
    let error = refusal(load(&model(graph(x(), vec![], nodes, &["y", "y"]))));
    assert_eq!(error, "`y` is given twice: an output, and an output");
}

#[test]
fn what_is_not_understood_is_not_left_out() {
    let error = chain(vec![with(node("Relu", &["x"], &["y"]), int("alpha", 1))]);
    assert_eq!(error, "node `the_y` (Relu): attribute `alpha` is not known for Relu 18");
    let error = chain(vec![with(node("Softmax", &["x"], &["y"]), float("axis", 1.0))]);
    assert!(error.ends_with("attribute `axis` must be of the kind INT"), "{error}");
    let twice = with(with(node("Softmax", &["x"], &["y"]), int("axis", 1)), int("axis", 0));
    assert!(chain(vec![twice]).ends_with("attribute `axis` is given twice"));
    let error = chain(nodes_of("y = Relu x x"));
    assert!(error.contains("2 operands where there are at most 1"), "{error}");
    let error = chain(nodes_of("y = MatMul x"));
    assert!(error.contains("operand 1 is missing"), "{error}");
    let error = chain(nodes_of("y = Reshape x s; s = Exp x"));
    assert!(error.contains("operand 1 (`s`) must be known before the run"), "{error}");
    let nodes = nodes_of("a b = Relu x; y = Exp b");
    let error = chain(nodes);
    assert!(error.contains("operand 0, the result `b`, is not supported"), "{error}");
}

#[test]
fn old_and_unknown_versions_are_refused() {
    for (version, supported) in [(5, false), (6, true), (27, true), (28, false), (-1, false)] {
        let mut model = model(graph(x(), vec![], nodes_of("y = Relu x"), &["y"]));
        model.opset_import = vec![opset("ai.onnx", version)];
        match load(&model) {
            Ok(_) => assert!(supported, "{version}"),
            Err(e) => assert!(!supported && e.to_string().contains("opset"), "{version}: {e}"),
        }
    }
}

#[test]
fn initializers_are_shared_and_may_be_inputs() {
    let nodes = nodes_of("a = MatMul x w; b = MatMul a w; y = Reshape b s");
    let inputs = vec![value("x", &["N", "4"]), value("w", &["4", "4"])];
    let tensors = vec![zeros("w", &[4, 4]), ints("s", &[-1, 2, 2]), zeros("unused", &[9])];
    let model = load(&model(graph(inputs, tensors, nodes, &["y"]))).unwrap();
    assert_eq!(outputs(&model), "f32[N,2,2]");
    let params: Vec<&str> = model.graph.params().iter().map(|p| &*p.name).collect();
    assert_eq!(params, ["w"]);
    assert_eq!(&*model.graph.params()[0].source.file, "m.onnx");
    assert_eq!(model.weights.len(), 1);
    assert_eq!(operators(&model), "matmul matmul reshape");
    assert_eq!(model.graph.inputs().len(), 1);
}

#[test]
fn outputs_keep_their_names_and_wrong_declarations_are_noted() {
    let mut declared = graph(x(), vec![], nodes_of("y = Relu x"), &["y", "x"]);
    declared.output[0] = value("y", &["1", "2", "3"]);
    let model = load(&model(declared)).unwrap();
    let names: Vec<&str> = model.graph.outputs().iter().map(|o| &*o.name).collect();
    assert_eq!(names, ["y", "x"]);
    let note = "the file declares output `y` as f32 with 3 axes; it is f32[N,4]";
    assert_eq!(super::notes(&model), [note]);
}

#[test]
fn old_forms_of_operators_are_understood() {
    let bias = |op: &str| {
        let add = with(with(node(op, &["x", "b"], &["y"]), int("broadcast", 1)), int("axis", 1));
        let inputs = vec![value("x", &["N", "3", "5"])];
        let mut model = model(graph(inputs, vec![zeros("b", &[3])], vec![add], &["y"]));
        model.opset_import = vec![opset("", 6)];
        model
    };
    let old = load(&bias("Add")).unwrap();
    assert_eq!((operators(&old).as_str(), outputs(&old).as_str()), ("unsqueeze add", "f32[N,3,5]"));
    let mut wrong = bias("Add");
    if let Some(graph) = &mut wrong.graph {
        graph.node[0].attribute.clear();
    }
    let error = refusal(load(&wrong));
    assert!(error.contains("without the attribute `broadcast`"), "{error}");
    // Before opset 13 a softmax takes all axes from its own on together.
    let soft = with(node("Softmax", &["x"], &["y"]), int("axis", 1));
    let mut model = model(graph(vec![value("x", &["N", "3", "5"])], vec![], vec![soft], &["y"]));
    model.opset_import = vec![opset("", 9)];
    assert_eq!(operators(&load(&model).unwrap()), "flatten softmax reshape");
    model.opset_import = vec![opset("", 13)];
    assert_eq!(operators(&load(&model).unwrap()), "softmax");
}
