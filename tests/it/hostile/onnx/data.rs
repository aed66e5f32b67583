//! Folders of ONNX's test data.

use std::fs;
use std::path::Path;

use prost::Message;
use support::proto::TensorProto;
use support::proto::tensor_proto::DataType;

use super::damage::{link, pipe};
use super::models::raw;
use crate::it::hostile::Case;

/// The case of a run on the data set that `make` makes, of a model whose one input is `x`.
fn case(name: &str, make: impl Fn(&Path) + Send + Sync + 'static) -> Case {
    let args = ["run", "zoo:nested:narrow=8", "--inputs", "case"];
    Case::of(name, "", move |folder| {
        let set = folder.join("case/test_data_set_0");
        fs::create_dir_all(&set).expect("made");
        make(&set);
    })
    .command(&args)
}

/// The case of a data set whose one file has these bytes.
fn file(name: &str, bytes: Vec<u8>) -> Case {
    case(name, move |set| fs::write(set.join("input_0.pb"), &bytes).expect("written"))
}

/// A tensor of no elements with these sizes.
fn empty(dims: &[i64]) -> TensorProto {
    TensorProto { dims: dims.to_vec(), ..raw("x", DataType::Float, &[0], &[]) }
}

/// Elements of a type, in a field that only some types use, as often as there are bytes.
fn packed(field: u8, bytes: usize) -> Vec<u8> {
    let mut length = Vec::new();
    prost::encoding::encode_varint(bytes as u64, &mut length);
    let header = [&[0x10, DataType::Int64 as u8, field << 3 | 2][..], &length].concat();
    [header, vec![0; bytes]].concat()
}

pub(super) fn cases() -> Vec<Case> {
    let text = vec![b'#'; 1 << 10];
    let dims: Vec<u8> = [0x08, 0x01].repeat(1 << 20);
    let many = |set: &Path| {
        for i in 0..1000 {
            fs::write(set.join(format!("input_{i}.pb")), []).expect("written");
        }
    };
    vec![
        case("data: none", |_| {}),
        case("data: many files", many),
        case("data: a folder", |set| fs::create_dir(set.join("input_0.pb")).expect("made")),
        case("data: a pipe", |set| pipe(&set.join("input_0.pb"))),
        case("data: a link to itself", |set| link("input_0.pb", &set.join("input_0.pb"))),
        case("data: a gap", |set| fs::write(set.join("input_1.pb"), []).expect("written")),
        file("data: an empty file", Vec::new()),
        file("data: a text", text),
        file("data: a million axes", dims),
        file("data: huge sizes", empty(&[1 << 40, 1 << 40]).encode_to_vec()),
        file("data: a size below 0", empty(&[-1]).encode_to_vec()),
        file("data: elements that are not there", empty(&[1 << 30]).encode_to_vec()),
        file("data: strings", raw("x", DataType::String, &[0], &[]).encode_to_vec()),
        file("data: another type", raw("x", DataType::Double, &[0], &[]).encode_to_vec()),
        file("data: many integers without sizes", packed(7, 1 << 20)),
        file(
            "data: a name for another input",
            raw("y", DataType::Float, &[0], &[]).encode_to_vec(),
        ),
    ]
}
