//! Bytes that are no model, and what is in a model's place.

use std::fs;
use std::path::Path;
use std::process::Command;

use prost::Message;

use super::models::{bytes, case, graph, int, model, node, opset, value, vector, with, x, zeros};
use crate::it::hostile::Case;

/// A model with sizes computed from shapes and tensors.
fn sample() -> Vec<u8> {
    let nodes = vec![
        node("Shape", &["x"], &["sizes"]),
        node("Gather", &["sizes", "zero"], &["rows"]),
        with(node("Concat", &["rows", "rest"], &["target"]), int("axis", 0)),
        node("Reshape", &["x", "target"], &["flat"]),
        node("MatMul", &["flat", "m"], &["y"]),
    ];
    let tensors = vec![zeros("m", &[12, 5]), vector("zero", &[0]), vector("rest", &[-1])];
    model(graph(vec![value("x", &["N", "3", "4"])], tensors, nodes, &["y"])).encode_to_vec()
}

/// A field that holds `content`.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut all);
    prost::encoding::encode_varint(content.len() as u64, &mut all);
    all.extend_from_slice(content);
    all
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = damaged();
    cases.extend(wire());
    cases.extend(nested());
    cases.extend(texts());
    cases.extend(opsets());
    cases.extend(places());
    cases
}

fn damaged() -> Vec<Case> {
    let whole = sample();
    let mut cases = vec![bytes("a whole model", whole.clone()), bytes("an empty file", vec![])];
    for percent in [1, 10, 30, 50, 60, 70, 80, 90, 95, 99] {
        let cut = whole[..whole.len() * percent / 100].to_vec();
        cases.push(bytes(&format!("cut at {percent} %"), cut));
    }
    for at in (7..whole.len()).step_by(23) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        cases.push(bytes(&format!("bit 4 of byte {at} flipped"), flipped));
    }
    cases.push(bytes("twice the same file", [whole.clone(), whole.clone()].concat()));
    cases.push(bytes("zeros", vec![0; 1 << 20]));
    cases.push(bytes("ones", vec![0xff; 1 << 20]));
    cases.push(bytes("text", b"this is no model".to_vec()));
    cases
}

fn wire() -> Vec<Case> {
    let whole = sample();
    let after = |tail: &[u8]| [&whole[..], tail].concat();
    vec![
        bytes("a group begins", after(&[0x9b, 0x06])),
        bytes("a group ends", after(&[0x9c, 0x06])),
        bytes("wire type 6", after(&[0x9e, 0x06])),
        bytes("wire type 7", after(&[0x9f, 0x06])),
        bytes("a field with the number 0", after(&[0x00, 0x00])),
        bytes("a number of eleven bytes", after(&[0x80; 11])),
        bytes(
            "a length of 2^64-1",
            after(&[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ),
        bytes("a length one too long", after(&[0x3a, 0x02, 0x00])),
        bytes("fields that nobody knows", after(&field(1000, b"what?"))),
        bytes("no graph", field(8, &[0x10, 18])),
        bytes("two graphs", [field(7, &[]), field(7, &[])].concat()),
        bytes("the graph is a number", vec![0x38, 0x01]),
    ]
}

/// A model with this graph.
fn inside(graph: &[u8]) -> Vec<u8> {
    [field(7, graph), field(8, &[0x10, 18])].concat()
}

/// A model with an input of this type, which is the output.
fn input(ty: &[u8]) -> Vec<u8> {
    let input = [field(1, b"x"), field(2, ty)].concat();
    inside(&[field(11, &input), field(12, &field(1, b"x"))].concat())
}

fn nested() -> Vec<Case> {
    let deep =
        |levels: u32, number: u32| (0..levels).fold(vec![], |inner, _| field(number, &inner));
    let empty = |number: u8| [number << 3 | 2, 0x00].repeat(1_000_000);
    let sizes = field(1, &[&[0x08, 0x01][..], &field(2, &empty(1))].concat());
    let branch = field(5, &[field(1, b"then_branch"), deep(5000, 6)].concat());
    vec![
        bytes("an empty node", inside(&field(1, &[]))),
        bytes("a million nodes of nothing", inside(&[0x0a, 0x02, 0x22, 0x00].repeat(1_000_000))),
        bytes("a million empty nodes", inside(&empty(1))),
        bytes("a million empty attributes", inside(&field(1, &empty(5)))),
        bytes("a million sizes", input(&sizes)),
        bytes(
            "subgraphs 5000 deep",
            inside(&field(1, &[field(4, b"If"), field(2, b"y"), branch].concat())),
        ),
        bytes("types 5000 deep", input(&deep(5000, 4))),
    ]
}

fn texts() -> Vec<Case> {
    let wrong = [0xc3u8, 0x28];
    let node =
        |number: u32| inside(&field(1, &[field(4, b"Relu"), field(number, &wrong)].concat()));
    vec![
        bytes("a node's name is not valid text", node(3)),
        bytes("an operator is not valid text", node(4)),
        bytes("an operand is not valid text", node(1)),
        bytes(
            "an attribute's name is not valid text",
            inside(&field(
                1,
                &[field(4, b"Relu"), field(1, b"x"), field(2, b"y"), field(5, &field(1, &wrong))]
                    .concat(),
            )),
        ),
        bytes("an input's name is not valid text", inside(&field(11, &field(1, &wrong)))),
        bytes("the graph's name is not valid text", inside(&field(2, &wrong))),
    ]
}

fn opsets() -> Vec<Case> {
    let of = |name: &str, opsets: &[(&str, i64)]| {
        let mut model = model(graph(x(), vec![], vec![node("Relu", &["x"], &["y"])], &["y"]));
        model.opset_import = opsets.iter().map(|(d, v)| opset(d, *v)).collect();
        case(name, &model)
    };
    let many: Vec<String> = (0..2000).map(|i| format!("domain{i}")).collect();
    let many: Vec<(&str, i64)> = many.iter().map(|d| (&**d, 1)).collect();
    vec![
        of("no opset", &[]),
        of("opset 0", &[("", 0)]),
        of("opset -1", &[("", -1)]),
        of("opset 5", &[("", 5)]),
        of("opset 28", &[("", 28)]),
        of("opset 2^63-1", &[("", i64::MAX)]),
        of("two opsets", &[("", 18), ("", 17)]),
        of("two names of one opset", &[("", 18), ("ai.onnx", 13)]),
        of("the same opset twice", &[("", 18), ("ai.onnx", 18)]),
        of("2000 opsets", &many),
        of("a domain of control characters", &[("\u{1b}[2J\n", 3), ("\u{1b}[2J\n", 4)]),
    ]
}

/// What stands where a model should.
fn places() -> Vec<Case> {
    let place = |name: &str, make: fn(&Path)| Case::of(name, "m.onnx", make);
    let device = |name: &str, path: &str| Case::of(name, path, |_| ());
    vec![
        place("nothing", |_| ()),
        place("a folder", |f| fs::create_dir(f.join("m.onnx")).expect("made")),
        place("a pipe", |f| pipe(&f.join("m.onnx"))),
        device("a device without end", "/dev/zero"),
        device("an empty device", "/dev/null"),
        place("a link to nothing", |f| link("nowhere", &f.join("m.onnx"))),
        place("a link to itself", |f| link("m.onnx", &f.join("m.onnx"))),
        place("a link to a model", |f| {
            fs::write(f.join("real.onnx"), sample()).expect("written");
            link("real.onnx", &f.join("m.onnx"));
        }),
        place("2 GB of nothing", |f| sparse(&f.join("m.onnx"), (1 << 31) - 1)),
        place("1 TB of nothing", |f| sparse(&f.join("m.onnx"), 1 << 40)),
        place("beyond the memory allowed", |f| sparse(&f.join("m.onnx"), 1 << 21))
            .args(&["--max-memory", "1M"]),
    ]
}

pub(super) fn pipe(path: &Path) {
    let status = Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(status.success());
}

pub(super) fn link(to: &str, path: &Path) {
    #[cfg(unix)]
    std::os::unix::fs::symlink(to, path).expect("linked");
}

/// A file of zeros that takes no room.
fn sparse(path: &Path, size: u64) {
    fs::File::create(path).and_then(|f| f.set_len(size)).expect("made");
}
