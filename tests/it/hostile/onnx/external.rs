//! Tensors whose elements lie in other files.

use std::fs;
use std::path::Path;

use prost::Message;
use support::proto::tensor_proto::{DataLocation, DataType};
use support::proto::{StringStringEntryProto, TensorProto};

use super::damage::{link, pipe};
use super::models::{graph, model, node, raw, x};
use crate::it::hostile::Case;

/// Four zeros of which the file says so.
fn elsewhere(entries: &[(&str, &str)]) -> TensorProto {
    let entry = |(k, v): &(&str, &str)| StringStringEntryProto {
        key: Some((*k).to_owned()),
        value: Some((*v).to_owned()),
    };
    TensorProto {
        raw_data: None,
        data_location: Some(DataLocation::External as i32),
        external_data: entries.iter().map(entry).collect(),
        ..raw("w", DataType::Float, &[4], &[])
    }
}

/// The case of a model in the folder `in` beside the file `out`, after `make` put something into
/// its folder.
fn case(name: &str, entries: &[(&str, &str)], make: fn(&Path)) -> Case {
    let add = node("Add", &["x", "w"], &["y"]);
    let model = model(graph(x(), vec![elsewhere(entries)], vec![add], &["y"])).encode_to_vec();
    Case::of(name, "in/m.onnx", move |folder| {
        let inside = folder.join("in");
        fs::create_dir(&inside).expect("made");
        fs::write(inside.join("m.onnx"), &model).expect("written");
        fs::write(inside.join("w.bin"), [0; 32]).expect("written");
        fs::write(folder.join("out"), [0; 32]).expect("written");
        make(&inside);
    })
}

/// The case of a location.
fn at(name: &str, location: &str, make: fn(&Path)) -> Case {
    case(name, &[("location", location)], make)
}

/// The case of a range of `w.bin`.
fn range(name: &str, offset: &str, length: &str) -> Case {
    case(name, &[("location", "w.bin"), ("offset", offset), ("length", length)], |_| ())
}

pub(super) fn cases() -> Vec<Case> {
    let long = "deep/".repeat(1 << 18);
    let mut cases = vec![
        at("elements beside the model", "w.bin", |_| ()),
        at("elements in a folder inside", "./sub/w", |f| {
            fs::create_dir(f.join("sub")).expect("made");
            fs::write(f.join("sub/w"), [0; 16]).expect("written");
        }),
        at("a file above the model's folder", "../out", |_| ()),
        at("a file above by a way inside", "sub/../../out", |f| {
            fs::create_dir(f.join("sub")).expect("made");
        }),
        at("an absolute path", "/etc/passwd", |_| ()),
        at("an empty path", "", |_| ()),
        at("a path of a megabyte", &long, |_| ()),
        at("a path with a zero byte", "w\u{0}.bin", |_| ()),
        at("a path of control characters", "\u{1b}[2J", |_| ()),
        at("a missing file", "none.bin", |_| ()),
        at("a folder of elements", "sub", |f| fs::create_dir(f.join("sub")).expect("made")),
        at("a pipe of elements", "p", |f| pipe(&f.join("p"))),
        at("a link inside", "link", |f| link("w.bin", &f.join("link"))),
        at("a link outside", "link", |f| link("../out", &f.join("link"))),
        at("a link to a folder outside", "link/out", |f| link("..", &f.join("link"))),
        at("a link to a device", "zero", |f| link("/dev/zero", &f.join("zero"))),
        at("a link to the elements of a link to itself", "link", |f| link("link", &f.join("link"))),
        at("the model as its own elements", "m.onnx", |_| ()),
        at("a file that is too short", "short", |f| {
            fs::write(f.join("short"), [0; 15]).expect("written");
        }),
        at("an empty file of elements", "empty", |f| {
            fs::write(f.join("empty"), []).expect("written");
        }),
        case("no location", &[("offset", "0")], |_| ()),
        case("no entries", &[], |_| ()),
        case("two locations", &[("location", "w.bin"), ("location", "../out")], |_| ()),
        case("a key that nobody knows", &[("location", "w.bin"), ("what", "?")], |_| ()),
        case("a checksum", &[("location", "w.bin"), ("checksum", "0")], |_| ()),
    ];
    cases.extend([
        range("a range inside", "16", "16"),
        range("a range that is not aligned", "3", "16"),
        range("a range to beyond the end", "17", "16"),
        range("a range behind the end", "1000", "16"),
        range("an offset of 2^64-1", "18446744073709551615", "16"),
        range("an offset of 2^64", "18446744073709551616", "16"),
        range("a negative offset", "-1", "16"),
        range("an offset that is not a number", "0x10", "16"),
        range("an empty offset", "", "16"),
        range("a length that is too short", "0", "15"),
        range("a length that is too long", "0", "17"),
        range("a negative length", "0", "-16"),
        range("a length of a megabyte of digits", "0", &"9".repeat(1 << 20)),
    ]);
    cases
}
