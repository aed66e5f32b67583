use std::fmt::Write as _;

use super::super::testing::{plain, replicated, variables};
use super::super::{Builder, Graph, Placement};
use super::{from_json, to_json};
use crate::op::{Constant, Unary};
use crate::snap;
use crate::types::{DType, Device, Tensor};

#[track_caller]
fn reads_back(graph: &Graph) {
    let text = to_json(graph);
    let read = from_json(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(to_json(&read), text);
    assert_eq!(&read, graph, "{text}");
    assert_eq!(read.to_string(), graph.to_string());
}

#[test]
fn written_graphs_read_back() {
    snap::assert("json", "plain", &to_json(&plain()));
    snap::assert("json", "replicated", &to_json(&replicated(Placement::Mirrored)));
    reads_back(&plain());
    reads_back(&replicated(Placement::Shared(Device::gpu(1))));
    reads_back(&replicated(Placement::Mirrored));
    let updated = variables(Some(Placement::Mirrored));
    snap::assert("json", "variables", &to_json(&updated));
    reads_back(&updated);
    reads_back(&variables(None));
    reads_back(&variables(Some(Placement::Shared(Device::gpu(0)))));
    for dtype in DType::ALL {
        let mut b = Builder::new("g");
        let bytes: Vec<u8> = (0..6 * dtype.bytes()).map(|i| u8::from(i % 3 == 0)).collect();
        let value = Tensor::from_bytes(dtype, &[2, 3], &bytes).unwrap();
        b.op("a", Constant { value }, &[]).unwrap();
        reads_back(&b.finish().0);
    }
    for alpha in [0.1f32, f32::MAX, 1e-40, f32::INFINITY, f32::NEG_INFINITY] {
        let mut b = Builder::new("g");
        let x = b.input("x", super::super::testing::rows(8));
        b.op("y", Unary::LeakyRelu { alpha }, &[x]).unwrap();
        reads_back(&b.finish().0);
    }
}

/// A piece of a good text, and what is written in its place.
const WRONG: &[(&str, &str)] = &[
    ("\"version\": 1", "\"version\": 2"),
    ("fanwise-graph", "other"),
    ("\"name\": \"two_head\"", "\"name\": \"two_head\", \"extra\": 1"),
    ("\"op\":\"relu\"", "\"op\":\"Relu\""),
    ("\"op\":\"relu\"", "\"op\":\"relu\",\"attrs\":{\"axes\":{\"ints\":[1]}}"),
    ("{\"axis\":{\"int\":1}}", "{\"axis\":{\"int\":1},\"axis\":{\"int\":1}}"),
    ("{\"axis\":{\"int\":1}}", "{\"axis\":{\"int\":\"M\"}}"),
    ("{\"axis\":{\"int\":1}}", "{\"axis\":{\"float\":\"1e999\"}}"),
    (
        "{\"axis\":{\"int\":1}}",
        "{\"axis\":{\"tensor\":{\"dtype\":\"u8\",\"dims\":[2],\"data\":\"00\"}}}",
    ),
    (
        "{\"axis\":{\"int\":1}}",
        "{\"axis\":{\"tensor\":{\"dtype\":\"u8\",\"dims\":[1],\"data\":\"0x\"}}}",
    ),
    ("{\"value\":\"h\"}", "{\"value\":\"later\"}"),
    ("{\"value\":\"h\"}", "{\"value\":\"h\",\"param\":\"w\"}"),
    ("\"name\":\"joined\",\"dtype\":\"f32\"", "\"name\":\"joined\",\"dtype\":\"f16\""),
    ("\"name\":\"joined\"", "\"name\":\"h\""),
    ("\"blake3\":\"3", "\"blake3\":\"x"),
];

#[test]
fn wrong_texts_are_refused() {
    let good = to_json(&plain());
    let mut out = String::new();
    for (piece, wrong) in WRONG {
        assert!(good.contains(piece), "{piece}");
        let error = from_json(&good.replacen(piece, wrong, 1)).map(|g| g.to_string()).unwrap_err();
        writeln!(out, "{error}").unwrap();
    }
    let good = to_json(&variables(None));
    for (piece, wrong) in [
        ("{\"param\":\"w\",\"values\"", "{\"param\":\"v\",\"values\""),
        ("{\"param\":\"last w\",\"values\"", "{\"param\":\"w\",\"values\""),
        ("\"values\":[{\"value\":", "\"values\":[{\"value\":\"x\",\"param\":"),
        ("\"values\"", "\"value\""),
    ] {
        assert!(good.contains(piece), "{piece}");
        let wrong = good.replacen(piece, wrong, 1);
        let error = from_json(&wrong).map(|g| g.to_string()).unwrap_err();
        writeln!(out, "{error}").unwrap();
    }
    assert!(from_json(&"[".repeat(100_000)).is_err());
    snap::assert("json", "errors", &out);
}
