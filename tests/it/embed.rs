//! Operators of other frameworks: the example of embedding, and files that have them.

use std::fs;
use std::process::{Command, Output};

use fanwise::format::onnx::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use fanwise::format::onnx::proto::type_proto::{Tensor as TensorKind, Value as Kind};
use fanwise::format::onnx::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
};
use prost::Message;

#[path = "../../examples/embed.rs"]
#[allow(clippy::print_stdout, reason = "an example prints")]
mod example;

#[test]
fn the_example_runs() {
    example::main().unwrap();
}

/// A value `f32[batch,4]`.
fn value(name: &str) -> ValueInfoProto {
    let batch = Size::DimParam("batch".to_owned());
    let dim = [batch, Size::DimValue(4)].map(|d| Dimension { value: Some(d), denotation: None });
    let shape = Some(TensorShapeProto { dim: dim.to_vec() });
    let tensor = Kind::TensorType(TensorKind { elem_type: Some(1), shape });
    let ty = TypeProto { value: Some(tensor), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..ValueInfoProto::default() }
}

fn node(domain: &str, op: &str, from: &str, to: &str) -> NodeProto {
    NodeProto {
        domain: Some(domain.to_owned()),
        op_type: Some(op.to_owned()),
        input: vec![from.to_owned()],
        output: vec![to.to_owned()],
        ..NodeProto::default()
    }
}

/// `y = softmax(gate(x))` as an ONNX file.
fn model() -> Vec<u8> {
    let opset = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
    };
    let graph = GraphProto {
        name: Some("gated".to_owned()),
        node: vec![node("com.acme", "Gate", "x", "g"), node("", "Softmax", "g", "y")],
        input: vec![value("x")],
        output: vec![value("y")],
        value_info: vec![value("g")],
        ..GraphProto::default()
    };
    let opset_import = vec![opset("", 18), opset("com.acme", 1)];
    let model =
        ModelProto { ir_version: Some(9), opset_import, graph: Some(graph), ..Default::default() };
    model.encode_to_vec()
}

fn fanwise(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fanwise")).args(args).output().unwrap()
}

#[test]
fn a_model_with_a_foreign_operator_is_rewritten_and_proved() {
    let folder = tempfile::tempdir().unwrap();
    let [onnx, fan] = ["m.onnx", "m.fan"].map(|n| folder.path().join(n).display().to_string());
    fs::write(&onnx, model()).unwrap();
    let stderr = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let refused = |args: &[&str], reason: &str| {
        let output = fanwise(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(reason), "{args:?}: {}", stderr(&output));
    };
    let good = |args: &[&str]| {
        let output = fanwise(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    };
    let assume = "com.acme.Gate=rowwise(0)";
    refused(&["summary", &onnx], "--assume 'com.acme.Gate=rowwise(0)'");
    refused(&["summary", &onnx, "--assume", "com.acme.Gate"], "write OP=rowwise(AXIS)");
    refused(&["summary", &onnx, "--assume", "com.acme.Gate=rows"], "`rows` is no assumption");
    good(&["summary", &onnx, "--assume", "com.acme.Gate=none"]);
    let emit = format!("graph={fan}");
    let compile = ["compile", &onnx, "--gpus", "3", "--emit", &emit, "--assume"];
    refused(&[&compile[..], &["com.acme.Gate=none"]].concat(), "error[R0199]");
    good(&[&compile[..], &[assume]].concat());
    let text = fs::read_to_string(&fan).unwrap();
    assert_eq!(text.matches(" = external(").count(), 3, "{text}");
    good(&["verify", &fan, "--template", &onnx, "--assume", assume]);
    let no_callback = "the foreign operator `com.acme.Gate` has no callback";
    refused(&["run", &fan], no_callback);
    refused(&["check", &onnx, "--gpus", "3", "--assume", assume], no_callback);
}
