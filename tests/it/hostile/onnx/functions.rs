//! Functions of the model.

use support::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};

use super::models::{body, call, calling, case, float, function, ints, node, with};
use crate::it::hostile::Case;

/// The case of a model that calls `F` once.
fn calls(name: &str, functions: Vec<FunctionProto>) -> Case {
    case(name, &calling(functions, vec![call("F", &["x"], &["y"])]))
}

fn relu() -> FunctionProto {
    function("F", &["a"], &["b"], vec![node("Relu", &["a"], &["b"])])
}

/// Functions `F`, `F1` … of which each calls the next `times` times, one after another.
fn nested(depth: usize, times: usize) -> Vec<FunctionProto> {
    let name = |i: usize| if i == 0 { "F".to_owned() } else { format!("F{i}") };
    let chain = |i: usize| {
        let value = |k: usize| if k == times { "b".to_owned() } else { format!("v{k}") };
        let node = |k: usize| {
            let from = if k == 0 { "a".to_owned() } else { value(k) };
            let (inputs, outputs) = ([&*from], [&*value(k + 1)]);
            if i == depth {
                node("Relu", &inputs, &outputs)
            } else {
                call(&name(i + 1), &inputs, &outputs)
            }
        };
        function(&name(i), &["a"], &["b"], (0..times).map(node).collect())
    };
    (0..=depth).map(chain).collect()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = endless();
    cases.extend(wrong());
    cases.extend(large());
    cases
}

fn endless() -> Vec<Case> {
    let to =
        |name: &str, next: &str| function(name, &["a"], &["b"], vec![call(next, &["a"], &["b"])]);
    vec![
        calls("a function that calls itself", vec![to("F", "F")]),
        calls(
            "three functions that call each other",
            vec![to("F", "G"), to("G", "H"), to("H", "F")],
        ),
        calls("a cycle of functions with names of a megabyte", {
            let long = "f".repeat(1 << 20);
            vec![to("F", &long), to(&long, &long)]
        }),
        calls("calls 100 deep", nested(100, 1)),
        calls("calls 60 deep", nested(60, 1)),
        calls("calls that double 30 times", nested(30, 2)),
        calls("calls that double 15 times", nested(15, 2)),
        calls("calls of 300 calls of 300 calls", nested(2, 300)),
    ]
}

fn wrong() -> Vec<Case> {
    let of = |name: &str, function: FunctionProto, node: NodeProto| {
        case(name, &calling(vec![function], vec![node]))
    };
    let graph = body("g", GraphProto::default());
    vec![
        calls("a function", vec![relu()]),
        calls("two functions of one name", vec![relu(), relu()]),
        calls(
            "two functions of two overloads",
            vec![relu(), FunctionProto { overload: Some("2".to_owned()), ..relu() }],
        ),
        calls("no such function", vec![function("G", &["a"], &["b"], vec![])]),
        calls("a function without nodes", vec![function("F", &["a"], &["b"], vec![])]),
        calls("a function that gives its input", vec![function("F", &["a"], &["a"], vec![])]),
        calls(
            "two inputs of a function have one name",
            vec![function("F", &["a", "a"], &["b"], vec![])],
        ),
        calls(
            "a function without an opset",
            vec![FunctionProto { opset_import: vec![], ..relu() }],
        ),
        calls(
            "a function with an operator that is not supported",
            vec![function("F", &["a"], &["b"], vec![node("Erfc", &["a"], &["b"])])],
        ),
        calls(
            "a function with a cycle",
            vec![function(
                "F",
                &["a"],
                &["b"],
                vec![node("Add", &["a", "b"], &["c"]), node("Relu", &["c"], &["b"])],
            )],
        ),
        calls("an attribute of the call that it does not give", {
            let from = AttributeProto {
                ref_attr_name: Some("slope".to_owned()),
                f: None,
                ..float("alpha", 0.0)
            };
            vec![function("F", &["a"], &["b"], vec![with(node("LeakyRelu", &["a"], &["b"]), from)])]
        }),
        of("a call with too many operands", relu(), call("F", &["x", "x"], &["y"])),
        of("a call with too many results", relu(), call("F", &["x"], &["y", "z"])),
        of("a call with a graph", relu(), with(call("F", &["x"], &["y"]), graph)),
    ]
}

fn large() -> Vec<Case> {
    let long = "n".repeat(1 << 19);
    let mut named = relu();
    named.node = vec![
        NodeProto { name: Some(long.clone()), ..node("Relu", &["a"], &[&long]) },
        node("Relu", &[&long], &["b"]),
    ];
    let mut twenty = nested(0, 20);
    for node in &mut twenty[0].node {
        node.name = Some(long[..10_000].to_owned());
    }
    let value = |i: usize| if i == 0 { "x".to_owned() } else { format!("v{i}") };
    let calls_of = |count: usize, attribute: Option<AttributeProto>| {
        let one = |i: usize| {
            let to = if i + 1 == count { "y".to_owned() } else { value(i + 1) };
            let mut call = call("F", &[&value(i)], &[&to]);
            call.attribute.extend(attribute.clone());
            call
        };
        (0..count).map(one).collect::<Vec<NodeProto>>()
    };
    let inputs: Vec<String> = (0..20_000).map(|i| format!("a{i}")).collect();
    let mut wide = relu();
    wide.input.extend(inputs);
    let mut listed = relu();
    listed.attribute = vec!["list".to_owned()];
    let reference = AttributeProto { ref_attr_name: Some("list".to_owned()), ..ints("axes", &[]) };
    let squeeze = |i: usize| with(node("Squeeze", &["a"], &[&format!("s{i}")]), reference.clone());
    listed.node.extend((0..200).map(squeeze));
    vec![
        calls("names of a megabyte in a function", vec![named]),
        case("200 calls of 20 nodes with long names", &calling(twenty, calls_of(200, None))),
        case(
            "5000 calls of a function with 20000 inputs",
            &calling(vec![wide], calls_of(5000, None)),
        ),
        case(
            "10000 attributes that are lists",
            &calling(vec![listed], calls_of(20, Some(ints("list", &vec![1; 50_000])))),
        ),
        case(
            "30000 functions",
            &calling(
                {
                    let empty = |i: usize| FunctionProto {
                        name: Some(format!("F{i}")),
                        ..FunctionProto::default()
                    };
                    (0..30_000).map(empty).collect()
                },
                vec![node("Relu", &["x"], &["y"])],
            ),
        ),
    ]
}
