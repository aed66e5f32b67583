//! Operators of other frameworks: the example of embedding, and files that have them.

use std::fs;
use std::process::{Command, Output};

use fanwise::backend::{Backend, Cpu, RunOptions};
use fanwise::ir::{self, Builder, Weights};
use fanwise::op::{Assume, External};
use fanwise::types::{Device, Tensor};
use fanwise::{lower, pass};
use prost::Message;
use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use support::proto::type_proto::{Tensor as TensorKind, Value as Kind};
use support::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
};

// The examples are programs of one file each; the test runs what they run.
#[path = "../../examples/embed.rs"]
mod example;

#[path = "../../examples/operator.rs"]
mod operator;

#[path = "../../examples/train.rs"]
mod training;

#[test]
fn the_examples_run() {
    example::main().unwrap();
    operator::main().unwrap();
    training::main().unwrap();
}

/// The output of a graph of one foreign operator over 5 rows, on as many devices, or the error of
/// the run.
fn outcome(
    devices: u32,
    call: impl Fn(&[&Tensor]) -> Result<Vec<Tensor>, String> + Send + Sync + 'static,
) -> Result<Vec<f32>, String> {
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N]".parse().unwrap());
    let op = External::new("com.acme.Gate", ["f32[N]".parse().unwrap()]);
    let op = op.assuming(Assume::Rowwise(0)).calling(call);
    let y = b.op("y", op, &[x]).unwrap();
    b.output("y", y);
    let (mut graph, _) = b.finish();
    if devices > 1 {
        let options = pass::Replicate::over((0..devices).map(Device::gpu).collect());
        graph = pass::replicate(&graph, &options).unwrap();
    }
    let cpu = Cpu::new(2).unwrap();
    let program = lower::lower(&ir::verify(&graph).unwrap(), cpu.kernels()).unwrap();
    let executable = cpu.compile(program, &Weights::default()).unwrap();
    let x = Tensor::new(&[5], &[1.0f32, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let run = executable.run(&[("x".to_owned(), x)].into(), &RunOptions::default());
    run.map(|run| run.outputs[0].1.as_slice::<f32>().to_vec()).map_err(|e| e.to_string())
}

#[test]
fn what_a_callback_does_wrong_ends_the_run_or_shows() {
    for devices in [1, 3] {
        let error = outcome(devices, |_| Err("no licence".to_owned())).unwrap_err();
        assert!(
            error.contains("the foreign operator `com.acme.Gate` failed: no licence"),
            "{error}"
        );
        let error = outcome(devices, |_| Ok(vec![Tensor::scalar(1.0f32)])).unwrap_err();
        assert!(error.contains("gave f32[] as result 0, which is declared as f32["), "{error}");
        let error = outcome(devices, |_| panic!("a bug of the framework")).unwrap_err();
        assert!(error.contains("a bug of the framework"), "{error}");
    }
    // A sum over the rows so far is not row by row, whatever is assumed.
    let scan = |operands: &[&Tensor]| {
        let mut y = operands[0].clone();
        let mut sum = 0.0;
        y.as_mut_slice::<f32>().iter_mut().for_each(|v| {
            sum += *v;
            *v = sum;
        });
        Ok(vec![y])
    };
    assert_eq!(outcome(1, scan).unwrap(), [1.0, 3.0, 6.0, 10.0, 15.0]);
    assert_eq!(outcome(3, scan).unwrap(), [1.0, 2.0, 3.0, 7.0, 12.0]);
}

#[test]
fn what_is_whole_beside_rows_is_cut_to_the_rows_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fan = folder.path().join("g.fan").display().to_string();
    let external =
        "external(%x, %t) {assume=\"rowwise(0)\", op=\"com.acme.Gate\", results=\"f32[N]\"}";
    let text = format!(
        "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N]) -> (y: f32[N]) {{\n  \
         %r : i64[N] = range() {{limit=N}}\n  %t : f32[N] = cast(%r) {{to=f32}}\n  \
         %y : f32[N] = {external}\n  return %y\n}}\n"
    );
    fs::write(&fan, text).unwrap();
    let compile = ["compile", &fan, "--gpus", "2", "--emit", "graph"];
    let output = fanwise(&[&compile[..], &["--repair", "none"]].concat());
    assert!(String::from_utf8(output.stderr).unwrap().contains("error[R0106]"));
    let text = String::from_utf8(fanwise(&compile).stdout).unwrap();
    assert_eq!(text.matches(" = external(").count(), 2, "{text}");
    assert_eq!(text.matches(" = slice(%r.r").count(), 2, "{text}");
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
pub(crate) fn model() -> Vec<u8> {
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
    refused(&["summary", &onnx, "--assume", "com.acme.Gate"], "expected OP=rowwise(AXIS)");
    refused(&["summary", &onnx, "--assume", "com.acme.Gate=rows"], "`rows` is not an assumption");
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
