//! Which size is the batch, what is said where that is not clear, and where what is refused stands
//! in its file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fanwise::format::npz;
use fanwise::types::Tensor;
use prost::Message;
use support::proto::attribute_proto::AttributeType;
use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use support::proto::type_proto::{Tensor as TensorKind, Value as Kind};
use support::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};
use support::snap;
use tempfile::TempDir;

/// A value of `f32`: sizes are numbers or names, `?` for an open one without a name.
fn value(name: &str, sizes: &str) -> ValueInfoProto {
    let size = |s: &str| match s.parse() {
        Ok(number) => Some(Size::DimValue(number)),
        Err(_) if s == "?" => None,
        Err(_) => Some(Size::DimParam(s.to_owned())),
    };
    let dim = |s| Dimension { value: size(s), denotation: None };
    let shape = Some(TensorShapeProto { dim: sizes.split_whitespace().map(dim).collect() });
    let kind = Kind::TensorType(TensorKind { elem_type: Some(1), shape });
    let ty = TypeProto { value: Some(kind), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// A node from `name: Op(operands) -> result {attribute=1}`.
fn node(line: &str) -> NodeProto {
    let (name, rest) = line.split_once(": ").unwrap();
    let (op, rest) = rest.split_once('(').unwrap();
    let (operands, rest) = rest.split_once(") -> ").unwrap();
    let (result, attribute) = rest.split_once(" {").unwrap_or((rest, ""));
    let attribute =
        attribute.trim_end_matches('}').split_once('=').map(|(name, i)| AttributeProto {
            name: Some(name.to_owned()),
            r#type: Some(AttributeType::Int as i32),
            i: Some(i.parse().unwrap()),
            ..AttributeProto::default()
        });
    NodeProto {
        name: Some(name.to_owned()),
        op_type: Some(op.to_owned()),
        input: operands.split(", ").map(str::to_owned).collect(),
        output: vec![result.to_owned()],
        attribute: attribute.into_iter().collect(),
        ..NodeProto::default()
    }
}

/// The bytes of a model.
fn onnx(inputs: &[(&str, &str)], nodes: &[&str], outputs: &[&str]) -> Vec<u8> {
    let output = |name: &&str| ValueInfoProto {
        name: Some((*name).to_owned()),
        ..ValueInfoProto::default()
    };
    let graph = GraphProto {
        name: Some("g".to_owned()),
        node: nodes.iter().map(|line| node(line)).collect(),
        input: inputs.iter().map(|(name, sizes)| value(name, sizes)).collect(),
        output: outputs.iter().map(output).collect(),
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(18) };
    let model = ModelProto {
        ir_version: Some(9),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    model.encode_to_vec()
}

/// A folder with the models of these tests.
fn models() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let words = [("x", "batch words 4")];
    let along = "attend: Softmax(x) -> y {axis=1}";
    put("attention.onnx", &onnx(&words, &[along], &["y"]));
    put("words.onnx", &onnx(&words, &["act: Relu(x) -> y"], &["y"]));
    put("steps.onnx", &onnx(&[("x", "4 ? ?")], &[along], &["y"]));
    let towers = [("user", "users 4"), ("item", "items 4")];
    put("towers.onnx", &onnx(&towers, &["u: Relu(user) -> y", "i: Relu(item) -> z"], &["y", "z"]));
    let masked = [("x", "b words"), ("mask", "c steps")];
    put(
        "masked.onnx",
        &onnx(&masked, &["m: Mul(x, mask) -> p", "s: Softmax(p) -> y {axis=1}"], &["y"]),
    );
    put(
        "mixing.onnx",
        &onnx(&words, &["a: Softmax(x) -> p {axis=0}", "b: Softmax(p) -> y {axis=1}"], &["y"]),
    );
    put(
        "square.onnx",
        &onnx(&[("x", "n 4"), ("near", "n n")], &["/net/mix/MatMul: MatMul(near, x) -> y"], &["y"]),
    );
    let layers = [
        "/stem/Relu: Relu(x) -> a",
        "/layer1/0/norm/Softmax: Softmax(a) -> b {axis=0}",
        "model/dense/Add: Add(b, x) -> c",
        "/head/Softmax: Softmax(x) -> d {axis=0}",
    ];
    put("layers.onnx", &onnx(&[("x", "batch 4")], &layers, &["c", "d"]));
    put("layers.fan", include_bytes!("discovery/layers.fan"));
    put("two.fan", include_bytes!("discovery/two.fan"));
    folder
}

fn fanwise(folder: &Path, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.current_dir(folder).env_remove("RUST_BACKTRACE").args(args.split_whitespace());
    command.output().unwrap()
}

/// What these commands print, and with which exit code they end.
fn transcript(commands: &[&str]) -> String {
    let folder = models();
    let mut text = String::new();
    for args in commands {
        let output = fanwise(folder.path(), args);
        let said = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap();
        writeln!(text, "$ fanwise {args}\n{}\n=> {code}\n", said.trim_end()).unwrap();
    }
    text
}

#[test]
fn the_batch_is_found_or_the_candidates_are_listed() {
    let text = transcript(&[
        // The batch alone: the words are normalised.
        "check attention.onnx --gpus 2",
        "check attention.onnx --gpus 2 --dim words=5",
        "check attention.onnx --gpus 2 --dim batch=5",
        "check attention.onnx --gpus 2 --batch-axis x=0 --dim words=5",
        // Either of them.
        "check words.onnx --gpus 2",
        "check words.onnx --gpus 2 --dim words=5",
        "check words.onnx --gpus 2 --dim batch=5",
        "check words.onnx --gpus 2 --batch-axis x=1",
        "check words.onnx --gpus 2 --batch-axis x=1 --dim batch=5",
        // Sizes without names, none of them first.
        "check steps.onnx --gpus 2",
        "check steps.onnx --gpus 2 --dim x[1]=5",
        // Nothing says that the two are one.
        "check towers.onnx --gpus 2",
        "check towers.onnx --gpus 2 --batch-axis user=0 --batch-axis item=0",
        "check towers.onnx --gpus 2 --batch-axis user=0 --dim items=3",
        // Two pairs of names that the graph equates.
        "check masked.onnx --gpus 2",
        "check masked.onnx --gpus 2 --dim words=3 --dim steps=3",
        // None of them: the first one, and then what forbids it.
        "check mixing.onnx --gpus 2",
        "check mixing.onnx --gpus 2 --dim words=3",
        // A value whose two axes are the batch is whole on every replica.
        "check square.onnx --gpus 2",
        "check square.onnx --gpus 2 --repair comm",
        "check zoo:mlp --gpus 2 --dim n=3 --free-batch",
    ]);
    snap::assert("cli", "batch_axis", &text);
}

#[test]
fn refusals_tell_the_place_in_the_users_file() {
    let text = transcript(&[
        "check layers.onnx --gpus 2",
        "check layers.fan --gpus 2",
        "check layers.fan --gpus 2 --repair none",
        "compile layers.fan --gpus 2 --emit graph",
    ]);
    snap::assert("cli", "places", &text);
}

#[test]
fn inputs_that_disagree_about_the_batch_are_refused_before_anything_runs() {
    let folder = models();
    let at = |name: &str| folder.path().join(name);
    let zeros = |dims: &[usize]| Tensor::new(dims, &vec![0.0f32; dims.iter().product()]).unwrap();
    let write = |a: &[usize], b: &[usize]| {
        let named = BTreeMap::from([("a".to_owned(), zeros(a)), ("b".to_owned(), zeros(b))]);
        npz::write(&at("in.npz"), &named).unwrap();
    };
    for (a, b, reason) in [
        ([3, 4], [4, 4], "the inputs disagree about the batch: `a` has 3 rows, `b` has 4"),
        ([3, 4], [0, 4], "the inputs disagree about the batch: `a` has 3 rows, `b` has 0"),
        ([3, 5], [3, 4], "the input `a` is f32[3,5]; it must be f32[N,4]"),
    ] {
        write(&a, &b);
        for gpus in ["", "--gpus 2", "--gpus 2 --shards balanced"] {
            let args = format!("run two.fan --inputs in.npz --outputs out.npz {gpus}");
            let output = fanwise(folder.path(), &args);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(&format!("error[E0501]: {reason}")), "{said}");
            assert!(!at("out.npz").exists(), "{args}");
        }
    }
    write(&[3, 4], &[3, 4]);
    let output = fanwise(folder.path(), "run two.fan --inputs in.npz --outputs out.npz --gpus 2");
    assert_eq!(output.status.code(), Some(0));
    assert!(at("out.npz").exists());
}

#[test]
fn devices_without_rows_are_noted() {
    let folder = models();
    let said = |args: &str| {
        let output = fanwise(folder.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args}");
        String::from_utf8(output.stderr).unwrap()
    };
    let few = "note[R0112]: 2 rows on 3 devices: gpu:0, gpu:1 have none and are skipped; see \
        `fanwise explain R0112`";
    assert!(said("run two.fan --gpus 3 --batch 2").contains(few));
    assert!(said("check two.fan --gpus 3 --batch 2").contains(few));
    assert!(said("compile two.fan --gpus 3 --batch 2 --emit memory").contains(few));
    let balanced = said("run two.fan --gpus 3 --batch 2 --shards balanced");
    assert!(balanced.contains("2 rows on 3 devices: gpu:0 have none"), "{balanced}");
    assert!(said("run two.fan --gpus 12 --batch 0").contains("gpu:7 and 4 more have none"));
    assert!(!said("run two.fan --gpus 3 --batch 3").contains("R0112"));
    assert!(!said("run two.fan --batch 0").contains("R0112"));
}
