//! Graphs of a million nodes, and of a tenth of that in the forms that take longer to read.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use support::proto::NodeProto;

use super::onnx::models::{graph, model, value};
use super::watch_binary;

/// The processor time after which a run counts as one that hangs.
const HANGS: Duration = Duration::from_secs(100);

/// A chain of so many nodes, as bytes of a file.
type Form = fn(usize) -> Vec<u8>;

fn text(nodes: usize) -> Vec<u8> {
    let mut text =
        "fanwise 1\nsymbol N >= 0\ngraph @g(%h0: f32[N,8]) -> (y: f32[N,8]) {\n".to_owned();
    for i in 0..nodes {
        writeln!(text, "  %h{} : f32[N,8] = relu(%h{i})", i + 1).expect("written");
    }
    write!(text, "  return %h{nodes}\n}}\n").expect("written");
    text.into_bytes()
}

fn json(nodes: usize) -> Vec<u8> {
    let mut text =
        "{\"format\":\"fanwise-graph\",\"version\":1,\"name\":\"g\",\"params\":[],\"inputs\":[\
        {\"name\":\"h0\",\"dtype\":\"f32\",\"shape\":[\"N\",8]}],\"nodes\":["
            .to_owned();
    for i in 0..nodes {
        let comma = if i > 0 { ",\n" } else { "" };
        let results =
            format!("[{{\"name\":\"h{}\",\"dtype\":\"f32\",\"shape\":[\"N\",8]}}]", i + 1);
        write!(
            text,
            "{comma}{{\"op\":\"relu\",\"operands\":[{{\"value\":\"h{i}\"}}],\"results\":{results},\"device\":\"cpu:0\"}}"
        )
        .expect("written");
    }
    let output = format!("{{\"name\":\"y\",\"value\":{{\"value\":\"h{nodes}\"}}}}");
    writeln!(text, "],\"outputs\":[{output}]}}").expect("written");
    text.into_bytes()
}

fn onnx(nodes: usize) -> Vec<u8> {
    let node = |i: usize| NodeProto {
        op_type: Some("Relu".to_owned()),
        input: vec![format!("h{i}")],
        output: vec![format!("h{}", i + 1)],
        ..NodeProto::default()
    };
    let all = (0..nodes).map(node).collect();
    model(graph(vec![value("h0", &["N", "8"])], vec![], all, &[&format!("h{nodes}")]))
        .encode_to_vec()
}

#[test]
#[ignore = "needs the command line: cargo xtask test"]
fn a_million_nodes_are_read_split_and_written() {
    let binary: PathBuf = std::env::var_os("FANWISE_BIN").expect("run `cargo xtask test`").into();
    let binary = fs::canonicalize(binary).expect("the binary");
    let forms =
        [("m.fan", 1_000_000, text as Form), ("m.json", 100_000, json), ("m.onnx", 100_000, onnx)];
    for (file, nodes, make) in forms {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(file), make(nodes)).expect("written");
        let args = ["compile", file, "--gpus", "2", "--emit", "graph=out.fan"].map(str::to_owned);
        let end = watch_binary(&binary, folder.path(), &args, HANGS).expect("it ends");
        assert_eq!(end.code, Some(0), "{file}: {}", end.stderr);
    }
}
