//! What bodies take beside their nodes, and how long it takes to go through what they become.

use support::proto::{GraphProto, NodeProto};

use super::control::{inner, looping, of, truth, whole};
use super::models::{body, case, graph, int, model, node, number, value, vector, with, zeros};
use crate::it::hostile::Case;

/// The memory of what a loop of the most trips becomes.
const UNROLLED: u64 = 192 << 20;

/// The memory of a graph of as many nodes as the joins of a file have.
const JOINED: u64 = 384 << 20;

pub(super) fn cases() -> Vec<Case> {
    vec![
        stacking(2000),
        scanning(2000),
        of("a body of 500 initializers", vec![whole("trips", 100_000)], {
            let weights = (0..500).map(|i| zeros(&format!("w{i}"), &[1])).collect();
            let inside =
                GraphProto { initializer: weights, ..inner(&["i", "c", "a"], vec![], &["c", "a"]) };
            vec![looping("trips", "x", inside, "y")]
        }),
        of(
            "a body in a body that takes 1000 values from around",
            vec![whole("trips", 60_000)],
            taking(1000),
        ),
        of("a loop of 60000 trips that stacks one result", vec![whole("trips", 60_000)], {
            let inside = inner(&["i", "c", "a"], vec![], &["c", "a", "i"]);
            let mut node = looping("trips", "x", inside, "last");
            node.output.push("numbers".to_owned());
            vec![node, casting("numbers", "y")]
        })
        .declares(UNROLLED),
        joining(4),
        tried(30),
    ]
}

fn casting(from: &str, to: &str) -> NodeProto {
    with(node("Cast", &[from], &[to]), int("to", 1))
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

/// A loop that stacks many results.
fn stacking(count: usize) -> Case {
    let outputs = [vec!["c", "a"], vec!["a"; count]].concat();
    let mut node = looping("trips", "x", inner(&["i", "c", "a"], vec![], &outputs), "y");
    node.output.extend(names("s", count));
    let name = format!("a loop that stacks {count} results");
    of(&name, vec![whole("trips", 100_000)], vec![node])
}

/// A scan along many operands.
fn scanning(count: usize) -> Case {
    let inputs = names("a", count);
    let inputs: Vec<&str> = inputs.iter().map(|name| &**name).collect();
    let scan = with(node("Scan", &vec!["x"; count], &["y"]), int("num_scan_inputs", 2000));
    let scan = with(scan, body("body", inner(&inputs, vec![], &["a0"])));
    let inputs = vec![value("x", &["60000", "N", "4"])];
    case(
        &format!("a scan along {count} operands"),
        &model(graph(inputs, vec![], vec![scan], &["y"])),
    )
}

/// A branch in a loop, where one that is not taken uses many values from around.
fn taking(count: usize) -> Vec<NodeProto> {
    let around = names("v", count);
    let mut nodes: Vec<NodeProto> =
        around.iter().map(|name| node("Relu", &["x"], &[name])).collect();
    let around: Vec<&str> = around.iter().map(|name| &**name).collect();
    let yes = inner(&[], vec![node("Relu", &["a"], &["b"])], &["b"]);
    let no = inner(&[], vec![node("Sum", &around, &["b"])], &["b"]);
    let branch = node("If", &["yes"], &["b"]);
    let branch = with(with(branch, body("then_branch", yes)), body("else_branch", no));
    let inside = inner(&["i", "c", "a"], vec![branch], &["c", "b"]);
    nodes.push(looping("trips", "x", inside, "y"));
    nodes
}

/// Joins of very many numbers, each of which becomes another.
fn joining(joins: usize) -> Case {
    let (mut nodes, outputs) = (Vec::new(), names("y", joins));
    for (i, output) in outputs.iter().enumerate() {
        let parts = names(&format!("p{i}_"), 65_536);
        let parts: Vec<&str> = parts.iter().map(|name| &**name).collect();
        nodes.extend(parts.iter().map(|part| node("Mul", &["three", "three"], &[part])));
        nodes.push(with(node("Concat", &parts, &[output]), int("axis", 0)));
    }
    let outputs: Vec<&str> = outputs.iter().map(|name| &**name).collect();
    let (inputs, known) = (vec![value("x", &["N", "4"])], vec![vector("three", &[3])]);
    case(&format!("{joins} joins of 65536 numbers"), &model(graph(inputs, known, nodes, &outputs)))
        .declares(JOINED)
}

/// Sizes that equal the batch by chance, which are tried one by one behind loops in loops.
fn tried(count: usize) -> Case {
    let relu = inner(&["i", "c", "a"], vec![node("Relu", &["a"], &["b"])], &["c", "b"]);
    let twice = inner(&["i", "c", "a"], vec![looping("trips", "a", relu, "b")], &["c", "b"]);
    let mut nodes = vec![looping("trips", "x", twice, "y")];
    let others = names("z", count);
    nodes.extend(others.iter().map(|z| node("Reshape", &[z, "shape"], &[&format!("r_{z}")])));
    let fixed = |name: &str| value(name, &["4", "4"]);
    let inputs = std::iter::once("x").chain(others.iter().map(|name| &**name)).map(fixed);
    let known = vec![truth("yes"), number("trips", 250), vector("shape", &[2, 8])];
    case(
        &format!("{count} inputs behind loops in loops"),
        &model(graph(inputs.collect(), known, nodes, &["y"])),
    )
    .declares(UNROLLED)
    .args(&["--free-batch"])
}
