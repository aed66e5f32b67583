//! Tensors of the file.

use bytes::Bytes;
use support::proto::tensor_proto::{DataType, Segment};
use support::proto::{ModelProto, SparseTensorProto, TensorProto};

use super::models::{
    case, graph, model, node, nodes, one, raw, string, tensor_attribute, vector, with, x, zeros,
};
use crate::it::hostile::Case;

/// A model that adds `w`.
fn adding(tensor: TensorProto) -> ModelProto {
    model(graph(x(), vec![tensor], vec![node("Add", &["x", "w"], &["y"])], &["y"]))
}

fn tensor(name: &str, tensor: TensorProto) -> Case {
    case(name, &adding(TensorProto { name: Some("w".to_owned()), ..tensor }))
}

fn f32s(dims: &[i64], data: &[u8]) -> TensorProto {
    raw("w", DataType::Float, dims, data)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = lengths();
    cases.extend(kinds());
    cases.extend(typed());
    cases.extend(places());
    cases
}

fn lengths() -> Vec<Case> {
    let of = |name: &str, dims: &[i64], bytes: usize| tensor(name, f32s(dims, &vec![0; bytes]));
    vec![
        of("elements of the right length", &[4], 16),
        of("elements one byte short", &[4], 15),
        of("elements one byte long", &[4], 17),
        of("no elements", &[4], 0),
        tensor("no elements of any kind", TensorProto { raw_data: None, ..f32s(&[4], &[]) }),
        of("a tensor size of -1", &[-1], 4),
        of("a tensor size of 2^63-1", &[i64::MAX], 4),
        of("a tensor size of -2^63", &[i64::MIN], 4),
        of("tensor sizes whose product is 2^64", &[1 << 32, 1 << 32], 0),
        of("tensor sizes whose product is 2^64 and 0", &[1 << 32, 1 << 32, 0], 0),
        of("a tensor of 65 axes", &[1; 65], 4),
        of("a tensor of a million axes", &vec![1; 1_000_000], 4),
        tensor("a terabyte declared", TensorProto { raw_data: None, ..f32s(&[1 << 38], &[]) }),
        tensor("more than the memory allowed", f32s(&[1 << 18], &vec![0; 1 << 20]))
            .args(&["--max-memory", "1M"]),
    ]
}

fn kinds() -> Vec<Case> {
    let kind = |name: &str, kind: i32| {
        tensor(name, TensorProto { data_type: Some(kind), ..f32s(&[4], &[0; 16]) })
    };
    vec![
        kind("a tensor of type 0", 0),
        kind("a tensor of type 99", 99),
        kind("a tensor of type -1", -1),
        kind("a tensor of texts", 8),
        kind("a tensor of four-bit numbers", 21),
        kind("a tensor of the wrong type", 7),
    ]
}

fn typed() -> Vec<Case> {
    let run = |data: &[u8]| vec![Bytes::from(data.to_vec())];
    let plain = |dtype: DataType| TensorProto {
        data_type: Some(dtype as i32),
        raw_data: None,
        ..f32s(&[4], &[])
    };
    vec![
        tensor(
            "raw and typed elements",
            TensorProto { float_data: run(&[0; 16]), ..f32s(&[4], &[0; 16]) },
        ),
        tensor(
            "floats given as integers",
            TensorProto { int32_data: run(&[0; 4]), ..plain(DataType::Float) },
        ),
        tensor(
            "integers given as floats",
            TensorProto { float_data: run(&[0; 16]), ..plain(DataType::Int32) },
        ),
        tensor(
            "floats of three and a half numbers",
            TensorProto { float_data: run(&[0; 14]), ..plain(DataType::Float) },
        ),
        tensor(
            "integers that are cut",
            TensorProto { int64_data: run(&[1, 2, 3, 0x80]), ..plain(DataType::Int64) },
        ),
        tensor(
            "an integer of eleven bytes",
            TensorProto { int64_data: run(&[0xff; 11]), ..plain(DataType::Int64) },
        ),
        tensor(
            "300 as an 8-bit integer",
            TensorProto { int32_data: run(&[0xac, 2, 1, 1, 1]), ..plain(DataType::Int8) },
        ),
        tensor(
            "-1 as an unsigned integer",
            TensorProto {
                int32_data: run(&[
                    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 1, 1,
                ]),
                ..plain(DataType::Uint8)
            },
        ),
        tensor(
            "a truth value of 7",
            TensorProto { dims: vec![1], int32_data: run(&[7]), ..plain(DataType::Bool) },
        ),
        tensor(
            "a tensor in segments",
            TensorProto {
                segment: Some(Segment { begin: Some(0), end: Some(4) }),
                ..f32s(&[4], &[0; 16])
            },
        ),
    ]
}

fn places() -> Vec<Case> {
    let constant =
        |t: TensorProto| with(node("Constant", &[], &["c"]), tensor_attribute("value", t));
    let add = || node("Add", &["x", "c"], &["y"]);
    let with_constant = |name: &str, t: TensorProto| nodes(name, vec![], vec![constant(t), add()]);
    let mut sparse = adding(zeros("w", &[4]));
    if let Some(graph) = &mut sparse.graph {
        graph
            .sparse_initializer
            .push(SparseTensorProto { values: Some(zeros("w", &[1])), ..Default::default() });
    }
    let mut both = constant(zeros("", &[4]));
    both.attribute.push(super::models::float("value_float", 1.0));
    vec![
        case("sparse initializers", &sparse),
        with_constant("a constant", zeros("", &[4])),
        with_constant("a constant that is too short", raw("", DataType::Float, &[4], &[0; 3])),
        with_constant("a constant of size -1", raw("", DataType::Float, &[-1], &[])),
        nodes("a constant without a value", vec![], vec![node("Constant", &[], &["c"]), add()]),
        nodes("a constant with two values", vec![], vec![both, add()]),
        nodes(
            "a constant that is a text",
            vec![],
            vec![with(node("Constant", &[], &["c"]), string("value_string", "c")), add()],
        ),
        nodes(
            "a constant that is not a tensor",
            vec![],
            vec![with(node("Constant", &[], &["c"]), string("value", "c")), add()],
        ),
        one(
            "a tensor for an operator without one",
            with(node("Relu", &["x"], &["y"]), tensor_attribute("value", zeros("", &[4]))),
        ),
        nodes(
            "a weight of integers",
            vec![vector("w", &[1, 2, 3, 4])],
            vec![node("Add", &["x", "w"], &["y"])],
        ),
        nodes(
            "a weight of the wrong shape",
            vec![zeros("w", &[3])],
            vec![node("Add", &["x", "w"], &["y"])],
        ),
    ]
}
