//! Branches and loops.

use support::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};

use super::models::{
    body, call, calling, case, function, graph, int, model, node, of_kind, raw, value, with, x,
};
use crate::it::hostile::Case;
use support::proto::tensor_proto::DataType;

/// The memory of the most nodes that are unrolled, which a small file may ask for.
const UNROLLED: u64 = 192 << 20;

/// A body: inputs without types.
pub(super) fn inner(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    graph(inputs.iter().map(|name| of_kind(name, None)).collect(), vec![], nodes, outputs)
}

/// A number of 64 bits.
pub(super) fn whole(name: &str, value: i64) -> TensorProto {
    raw(name, DataType::Int64, &[], &value.to_le_bytes())
}

pub(super) fn truth(name: &str) -> TensorProto {
    raw(name, DataType::Bool, &[], &[1])
}

/// An `If` whose condition `yes` holds.
fn branches(then: GraphProto, other: GraphProto, result: &str) -> NodeProto {
    let node = node("If", &["yes"], &[result]);
    with(with(node, body("then_branch", then)), body("else_branch", other))
}

/// A loop of `trips` trips over `from`.
pub(super) fn looping(trips: &str, from: &str, inside: GraphProto, result: &str) -> NodeProto {
    with(node("Loop", &[trips, "yes", from], &[result]), body("body", inside))
}

pub(super) fn of(name: &str, known: Vec<TensorProto>, nodes: Vec<NodeProto>) -> Case {
    let known = [vec![truth("yes")], known].concat();
    case(name, &model(graph(x(), known, nodes, &["y"])))
}

fn relu() -> GraphProto {
    inner(&[], vec![node("Relu", &["x"], &["b"])], &["b"])
}

/// Branches inside branches.
fn deep(depth: usize) -> NodeProto {
    let mut inside = relu();
    for _ in 1..depth {
        inside = inner(&[], vec![branches(inside, relu(), "b")], &["b"]);
    }
    branches(inside, relu(), "y")
}

/// Loops inside loops, each of `trips` trips.
fn loops(depth: usize) -> NodeProto {
    let mut nodes = vec![node("Relu", &["a"], &["b"])];
    for _ in 1..depth {
        let inside = inner(&["i", "c", "a"], nodes, &["c", "b"]);
        nodes = vec![looping("trips", "a", inside, "b")];
    }
    looping("trips", "x", inner(&["i", "c", "a"], nodes, &["c", "b"]), "y")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = endless();
    cases.extend(wrong());
    cases
}

fn endless() -> Vec<Case> {
    let once = |nodes: Vec<NodeProto>, outputs: &[&str]| inner(&["i", "c", "a"], nodes, outputs);
    let flipped = vec![node("Not", &["c"], &["n"]), node("Not", &["n"], &["d"])];
    let own = function("F", &["yes", "x"], &["b"], {
        let again = inner(&[], vec![call("F", &["yes", "x"], &["b"])], &["b"]);
        vec![branches(again, relu(), "b")]
    });
    let mut calls = calling(vec![own], vec![call("F", &["yes", "x"], &["y"])]);
    if let Some(graph) = &mut calls.graph {
        graph.initializer.push(truth("yes"));
    }
    let trips = |count: i64| vec![whole("trips", count)];
    vec![
        of("branches 60 deep", vec![], vec![deep(60)]),
        of("branches 100 deep", vec![], vec![deep(100)]),
        of("loops 5 deep of 1000 trips", trips(1000), vec![loops(5)]).declares(UNROLLED),
        of("a loop of 2^62 trips", trips(1 << 62), vec![loops(1)]),
        of(
            "a loop of 2^62 trips without nodes",
            trips(1 << 62),
            vec![looping("trips", "x", once(vec![], &["c", "a"]), "y")],
        ),
        of(
            "a loop that no trip ends",
            vec![],
            vec![looping("", "x", once(flipped, &["d", "a"]), "y")],
        )
        .declares(UNROLLED),
        case("a function that calls itself in a branch", &calls),
    ]
}

fn wrong() -> Vec<Case> {
    let both = |then: GraphProto, other: GraphProto| vec![branches(then, other, "y")];
    let list = AttributeProto { graphs: vec![relu(), relu()], g: None, ..body("body", relu()) };
    let missing = inner(&[], vec![node("Relu", &["nowhere"], &["b"])], &["b"]);
    let two = inner(&[], vec![node("Relu", &["x"], &["b"])], &["b", "b"]);
    let cycle =
        inner(&[], vec![node("Add", &["b", "x"], &["c"]), node("Relu", &["c"], &["b"])], &["b"]);
    let unknown = inner(&[], vec![node("Erfc", &["x"], &["b"])], &["b"]);
    let one = |inside: GraphProto| vec![looping("", "x", inside, "y")];
    let scan = with(node("Scan", &["x"], &["y"]), int("num_scan_inputs", 9));
    let scan = with(scan, body("body", inner(&["a"], vec![], &["a"])));
    let wide = vec![raw("yes2", DataType::Bool, &[2], &[1, 1])];
    let mut of_two = branches(relu(), relu(), "y");
    of_two.input = vec!["yes2".to_owned()];
    vec![
        of("a branch that is taken", vec![], both(relu(), relu())),
        of("a branch that is not taken and not supported", vec![], both(relu(), unknown.clone())),
        of("a branch that is not supported", vec![], both(unknown, relu())),
        of("a branch that takes a name that is missing", vec![], both(relu(), missing)),
        of("a branch with two results for one", vec![], both(relu(), two)),
        of("a branch with an input", vec![], both(inner(&["a"], vec![], &["a"]), relu())),
        of("a branch with a cycle", vec![], both(cycle, relu())),
        of("a branch without results", vec![], both(inner(&[], vec![], &[""]), relu())),
        of("no branches", vec![], vec![node("If", &["yes"], &["y"])]),
        of("a condition of two elements", wide, vec![of_two]),
        of(
            "two branches of one name",
            vec![],
            vec![with(branches(relu(), relu(), "y"), body("then_branch", relu()))],
        ),
        of(
            "a third branch",
            vec![],
            vec![with(branches(relu(), relu(), "y"), body("third", relu()))],
        ),
        of("a list of bodies", vec![], vec![with(node("Loop", &["", "yes"], &["y"]), list)]),
        of("a body without a condition", vec![], one(inner(&["i", "c", "a"], vec![], &["a"]))),
        of("a body with too few inputs", vec![], one(inner(&["i", "c"], vec![], &["c", "c"]))),
        of(
            "a body of two inputs of one name",
            vec![],
            one(inner(&["i", "c", "c"], vec![], &["c", "c"])),
        ),
        of("a scan of more operands than there are", vec![], vec![scan]),
        of("a name of a megabyte", vec![], {
            let long = "n".repeat(1 << 20);
            let inside = inner(&[], vec![node("Relu", &["x"], &[&long])], &[&long]);
            both(inside, relu())
        }),
        case(
            "a value that decides",
            &model(graph(
                vec![value("x", &["N", "4"]), value("yes", &[])],
                vec![],
                both(relu(), inner(&[], vec![node("Neg", &["x"], &["b"])], &["b"])),
                &["y"],
            )),
        ),
    ]
}
