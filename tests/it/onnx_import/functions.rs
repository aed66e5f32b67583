//! Functions of the model are expanded where they are called.

use super::{
    float, graph, load, model, node, nodes_of, operators, opset, outputs, refusal, value, with,
};
use support::proto::{AttributeProto, FunctionProto, ModelProto, NodeProto};

pub(super) fn function(
    name: &str,
    inputs: &[&str],
    outputs: &[&str],
    nodes: Vec<NodeProto>,
) -> FunctionProto {
    let own = |names: &[&str]| names.iter().map(|s| (*s).to_owned()).collect();
    FunctionProto {
        name: Some(name.to_owned()),
        domain: Some("own".to_owned()),
        input: own(inputs),
        output: own(outputs),
        node: nodes,
        opset_import: vec![opset("", 18), opset("own", 1)],
        ..FunctionProto::default()
    }
}

fn call(name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("own".to_owned()), ..node(name, inputs, outputs) }
}

fn calling(functions: Vec<FunctionProto>, nodes: Vec<NodeProto>) -> ModelProto {
    let mut model = model(graph(vec![value("x", &["N", "4"])], vec![], nodes, &["y"]));
    model.opset_import.push(opset("own", 1));
    model.functions = functions;
    model
}

/// An attribute that takes the value of the call's attribute `from`.
fn reference(name: &str, from: &str) -> AttributeProto {
    AttributeProto { ref_attr_name: Some(from.to_owned()), i: None, f: None, ..float(name, 0.0) }
}

#[test]
fn calls_inside_calls_are_expanded() {
    let inner = function("Inner", &["a"], &["b"], nodes_of("t = Exp a; b = Neg t"));
    let outer = function(
        "Outer",
        &["p", "q"],
        &["r", "unused"],
        vec![
            call("Inner", &["p"], &["t"]),
            node("Add", &["t", "q"], &["r"]),
            node("Relu", &["r"], &["unused"]),
        ],
    );
    let nodes = vec![
        call("Inner", &["x"], &["t"]),
        call("Outer", &["t", "x"], &["u"]),
        node("Tanh", &["u"], &["y"]),
    ];
    let model = load(&calling(vec![outer, inner], nodes)).unwrap();
    assert_eq!(operators(&model), "exp neg exp neg add tanh");
    let labels: Vec<&str> = model.graph.ids().map(|n| model.graph.node(n).label()).collect();
    assert!(labels.contains(&"the_u/the_t/the_b"), "{labels:?}");
    assert!(labels.contains(&"the_t/the_t"), "{labels:?}");
}

#[test]
fn attributes_are_given_by_the_call_or_the_function() {
    let mut scaled = function(
        "Scaled",
        &["a"],
        &["b"],
        vec![
            with(node("LeakyRelu", &["a"], &["t"]), reference("alpha", "slope")),
            with(node("Elu", &["t"], &["u"]), reference("alpha", "curve")),
            with(node("Celu", &["u"], &["b"]), reference("alpha", "other")),
        ],
    );
    scaled.attribute = vec!["slope".to_owned(), "other".to_owned()];
    scaled.attribute_proto = vec![float("curve", 0.25)];
    let nodes = vec![with(call("Scaled", &["x"], &["y"]), float("slope", 0.5))];
    let model = load(&calling(vec![scaled], nodes)).unwrap();
    let ops = model.graph.ids().filter_map(|n| model.graph.node(n).op());
    let attributes: Vec<String> = ops.map(|op| format!("{:?}", op.attrs())).collect();
    assert_eq!(
        attributes,
        [
            r#"[("alpha", Float(0.5))]"#,
            r#"[("alpha", Float(0.25))]"#,
            // The call does not give it: ONNX's own default.
            "[]",
        ]
    );
}

#[test]
fn a_function_may_return_its_input_and_leave_operands_out() {
    let passing =
        function("Passing", &["a", "b"], &["a", "c", "c2"], nodes_of("c = Relu a; c2 = Relu c"));
    let nodes = vec![call("Passing", &["x"], &["p", "q", ""]), node("Add", &["p", "q"], &["y"])];
    let model = load(&calling(vec![passing], nodes)).unwrap();
    assert_eq!(operators(&model), "relu identity add");
    let clamp = function("Bound", &["a", "low", "high"], &["b"], nodes_of("b = Clip a low high"));
    let model = load(&calling(vec![clamp], vec![call("Bound", &["x"], &["y"])])).unwrap();
    assert_eq!(operators(&model), "clip");
}

#[test]
fn endless_and_too_many_calls_are_refused() {
    let a = function("A", &["a"], &["b"], vec![call("B", &["a"], &["b"])]);
    let b = function("B", &["a"], &["b"], vec![call("A", &["a"], &["b"])]);
    let error = refusal(load(&calling(vec![a, b], vec![call("A", &["x"], &["y"])])));
    assert!(error.contains("the function calls itself: `A` calls `B` calls `A`"), "{error}");
    // Each calls the next twice.
    let twice = |i: usize| {
        let next = format!("F{}", i + 1);
        function(
            &format!("F{i}"),
            &["a"],
            &["c"],
            vec![call(&next, &["a"], &["b"]), call(&next, &["b"], &["c"])],
        )
    };
    let mut functions: Vec<FunctionProto> = (0..40).map(twice).collect();
    functions.push(function("F40", &["a"], &["c"], nodes_of("c = Relu a")));
    let error = refusal(load(&calling(functions, vec![call("F0", &["x"], &["y"])])));
    assert!(error.contains("the calls expand to more than 131072 nodes"), "{error}");
    let chain = |i: usize| {
        let next = format!("F{}", i + 1);
        function(&format!("F{i}"), &["a"], &["b"], vec![call(&next, &["a"], &["b"])])
    };
    let functions = (0..1000).map(chain).collect();
    let error = refusal(load(&calling(functions, vec![call("F0", &["x"], &["y"])])));
    assert!(error.contains("deeper than 64"), "{error}");
}

#[test]
fn names_inside_a_call_do_not_meet_others() {
    let f = function("F", &["a"], &["b"], nodes_of("t = Exp a; b = Neg t"));
    // The model has a value of the name that the function's `t` gets.
    let nodes = vec![
        call("F", &["x"], &["p"]),
        node("Relu", &["p"], &["the_p/t"]),
        node("Add", &["the_p/t", "p"], &["y"]),
    ];
    let model = load(&calling(vec![f], nodes)).unwrap();
    assert_eq!(
        (operators(&model).as_str(), outputs(&model).as_str()),
        ("exp neg relu add", "f32[N,4]")
    );
}

#[test]
fn wrong_calls_are_refused() {
    let f = || function("F", &["a"], &["b"], nodes_of("b = Exp a"));
    let error = refusal(load(&calling(vec![f()], vec![call("F", &["x", "x"], &["y"])])));
    assert!(error.contains("it has 2 operands, the function 1"), "{error}");
    let broken = function("F", &["a"], &["b"], nodes_of("b = Exp c"));
    let error = refusal(load(&calling(vec![broken], vec![call("F", &["x"], &["y"])])));
    assert!(error.contains("uses `the_y/c`, which is not defined"), "{error}");
}
