//! Names, and how nodes hang together.

use support::proto::{NodeProto, TensorProto, ValueInfoProto};

use super::models::{
    case, graph, inputs, int, model, node, nodes, one, owned, value, with, x, zeros,
};
use crate::it::hostile::Case;

const CONTROL: &str = "a\u{0}\u{1b}[31m\nerror: b`\u{202e}";

fn long() -> String {
    "long".repeat(1 << 18)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = odd_names();
    cases.extend(doubled());
    cases.extend(absent());
    cases.extend(cycles());
    cases.extend(many());
    cases
}

fn odd_names() -> Vec<Case> {
    let named = |name: &str, value_name: &str| {
        let mut relu = node("Relu", &["x"], &[value_name]);
        relu.name = Some(name.to_owned());
        let nodes = vec![relu, node("Exp", &[value_name], &["y"])];
        model(graph(x(), vec![], nodes, &["y"]))
    };
    let unknown = |name: &str| {
        let node = NodeProto { name: Some(name.to_owned()), ..node("Relu", &["x"], &["y"]) };
        one(
            &format!("attribute unknown in a node of {} bytes", name.len()),
            with(node, int(name, 1)),
        )
    };
    let io = |name: &str, io: &str| {
        let node = node("Relu", &[io], &["y"]);
        case(name, &model(graph(vec![value(io, &["N", "4"])], vec![], vec![node], &["y"])))
    };
    let long = &*long();
    vec![
        case("nodes without names", &named("", "h")),
        case("names of control characters", &named(CONTROL, CONTROL)),
        case("names of a megabyte", &named(long, long)),
        unknown(CONTROL),
        unknown(long),
        io("an input of control characters", CONTROL),
        io("an input of a megabyte", long),
        one(
            "an operand of control characters that nothing gives",
            node("Relu", &[CONTROL], &["y"]),
        ),
        one("an operand of a megabyte that nothing gives", node("Relu", &[long], &["y"])),
        one("an operator without a name", NodeProto { op_type: None, ..node("", &["x"], &["y"]) }),
        one("an operator of control characters", node(CONTROL, &["x"], &["y"])),
        one("an operator of a megabyte", node(long, &["x"], &["y"])),
        one(
            "a domain of a megabyte",
            NodeProto { domain: Some(long.to_owned()), ..node("Relu", &["x"], &["y"]) },
        ),
    ]
}

fn doubled() -> Vec<Case> {
    let io =
        |name: &str,
         inputs: Vec<ValueInfoProto>,
         tensors: Vec<TensorProto>,
         nodes: Vec<NodeProto>,
         outputs: &[&str]| { case(name, &model(graph(inputs, tensors, nodes, outputs))) };
    let relu = |from: &str, to: &str| node("Relu", &[from], &[to]);
    let named = |from, to| NodeProto { name: Some("n".to_owned()), ..relu(from, to) };
    vec![
        io("two inputs of one name", [x(), x()].concat(), vec![], vec![relu("x", "y")], &["y"]),
        io(
            "two initializers of one name",
            x(),
            vec![zeros("w", &[4]), zeros("w", &[4])],
            vec![relu("x", "y")],
            &["y"],
        ),
        io(
            "an input with an initializer",
            [x(), vec![value("w", &["4"])]].concat(),
            vec![zeros("w", &[4])],
            vec![node("Add", &["x", "w"], &["y"])],
            &["y"],
        ),
        io(
            "an initializer that a node gives too",
            x(),
            vec![zeros("w", &[4])],
            vec![relu("x", "w"), relu("w", "y")],
            &["y"],
        ),
        io(
            "an input that a node gives too",
            x(),
            vec![],
            vec![relu("x", "x"), relu("x", "y")],
            &["y"],
        ),
        io(
            "two nodes that give one value",
            x(),
            vec![],
            vec![relu("x", "y"), relu("x", "y")],
            &["y"],
        ),
        one("a node that gives one value twice", node("Split", &["x"], &["y", "y"])),
        io("one output twice", x(), vec![], vec![relu("x", "y")], &["y", "y"]),
        io("an input that is an output", x(), vec![], vec![relu("x", "y")], &["y", "x"]),
        io(
            "an initializer that is an output",
            x(),
            vec![zeros("w", &[4])],
            vec![relu("x", "y")],
            &["y", "w"],
        ),
        one("an operand used twice", node("Add", &["x", "x"], &["y"])),
        nodes("two nodes of one name", vec![], vec![named("x", "h"), named("h", "y")]),
    ]
}

fn absent() -> Vec<Case> {
    let relu = || vec![node("Relu", &["x"], &["y"])];
    let unnamed = |name: &str, inputs, tensors, outputs: &[&str]| {
        case(name, &model(graph(inputs, tensors, relu(), outputs)))
    };
    vec![
        unnamed("an input without a name", [x(), vec![value("", &["N"])]].concat(), vec![], &["y"]),
        unnamed("an initializer without a name", x(), vec![zeros("", &[1])], &["y"]),
        unnamed("an output without a name", x(), vec![], &["y", ""]),
        unnamed("an output that nothing gives", x(), vec![], &["z"]),
        unnamed("no outputs", x(), vec![], &[]),
        case("no nodes", &model(graph(x(), vec![], vec![], &["x"]))),
        case("an empty graph", &model(graph(vec![], vec![], vec![], &[]))),
        case(
            "no inputs",
            &model(graph(
                vec![],
                vec![zeros("w", &[4])],
                vec![node("Relu", &["w"], &["y"])],
                &["y"],
            )),
        ),
        one("an operand that nothing gives", node("Relu", &["z"], &["y"])),
        one("a required operand left out", node("Add", &["x", ""], &["y"])),
        one("no operands", node("Add", &[], &["y"])),
        one("too many operands", node("Relu", &["x", "x", "x"], &["y"])),
        one("too many results", node("Relu", &["x"], &["y", "z"])),
        nodes("a node without results", vec![], [relu(), vec![node("Relu", &["x"], &[])]].concat()),
        nodes(
            "a result that the operator does not give",
            vec![],
            vec![node("Relu", &["x"], &["a", "b"]), node("Add", &["a", "b"], &["y"])],
        ),
    ]
}

fn cycles() -> Vec<Case> {
    let ring = |count: usize| {
        let name = |i: usize| format!("v{}", i % count);
        let node = |i: usize| node("Add", &["x", &name(i)], &[&name(i + 1)]);
        let nodes: Vec<NodeProto> = (0..count).map(node).collect();
        case(&format!("a cycle of {count} nodes"), &model(graph(x(), vec![], nodes, &["v0"])))
    };
    let named = |name: &str| {
        let nodes = vec![
            NodeProto { name: Some(name.to_owned()), ..node("Add", &["x", "y"], &["h"]) },
            NodeProto { name: Some(String::new()), ..node("Relu", &["h"], &["y"]) },
        ];
        nodes_of(&format!("a cycle with a name of {} bytes", name.len()), nodes)
    };
    vec![ring(1), ring(2), ring(3), ring(20), ring(20_000), named(CONTROL), named(&long())]
}

fn nodes_of(name: &str, all: Vec<NodeProto>) -> Case {
    nodes(name, vec![], all)
}

fn many() -> Vec<Case> {
    let link = |i: usize| node("Relu", &[&format!("v{i}")], &[&format!("v{}", i + 1)]);
    let chain = |count: usize| -> Vec<NodeProto> { (0..count).map(link).collect() };
    let of = |name: &str, nodes: Vec<NodeProto>, last: &str| {
        case(name, &model(graph(vec![value("v0", &["N", "4"])], vec![], nodes, &[last])))
    };
    let mut backwards = chain(20_000);
    backwards.reverse();
    let fan = |count: usize| owned(&vec!["x"; count]);
    let wide = |count: usize| NodeProto {
        input: fan(count),
        ..with(node("Concat", &[], &["y"]), int("axis", 1))
    };
    let named = |i: usize| format!("part{i}");
    let results = |count: usize, last: bool| {
        let output = (0..count)
            .map(|i| if last && i + 1 < count { String::new() } else { named(i) })
            .collect();
        let split = NodeProto { output, ..with(node("Split", &["x"], &[]), int("axis", 1)) };
        let sum = node("Relu", &[&named(count - 1)], &["y"]);
        let graph =
            graph(vec![value("x", &["N", &count.to_string()])], vec![], vec![split, sum], &["y"]);
        let kind = if last { " of which one has a name" } else { "" };
        case(&format!("{count} results{kind}"), &model(graph))
    };
    let mut unused = model(graph(x(), vec![], vec![node("Relu", &["x"], &["y"])], &["y"]));
    let tail = chain(20_000);
    let many_inputs: Vec<ValueInfoProto> =
        (0..20_000).map(|i| value(&format!("x{i}"), &["N", "1"])).collect();
    if let Some(graph) = &mut unused.graph {
        graph.node.extend(tail);
        graph.input.push(value("v0", &["N", "1"]));
    }
    vec![
        of("20000 nodes in the order of use", chain(20_000), "v20000"),
        of("20000 nodes backwards", backwards, "v20000"),
        case("20000 nodes that nothing uses", &unused),
        inputs("20000 inputs", many_inputs),
        one("60000 operands", wide(60_000)),
        one("70000 operands", wide(70_000)),
        results(30_000, false),
        results(30_000, true),
        results(70_000, false),
    ]
}
