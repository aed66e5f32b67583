//! The types of inputs.

use support::proto::type_proto::{Map, Optional, Sequence, SparseTensor, Tensor, Value as Kind};
use support::proto::{TypeProto, ValueInfoProto};

use super::models::{case, graph, model};
use super::models::{inputs, node, of_kind, typed, value};
use crate::it::hostile::Case;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = sizes();
    cases.extend(kinds());
    cases.extend(open());
    cases
}

fn sizes() -> Vec<Case> {
    let of = |name: &str, sizes: &[&str]| inputs(name, vec![value("x", sizes)]);
    vec![
        of("a size of 2^63-1", &["N", "9223372036854775807"]),
        of("a size of -2^63", &["N", "-9223372036854775808"]),
        of("a size of -5", &["N", "-5"]),
        of("a size of -1", &["-1", "4"]),
        of("2^32 times 2^32 elements", &["N", "4294967296", "4294967296"]),
        of("2^16 to the fourth elements", &["65536", "65536", "65536", "65536"]),
        of("no elements of size 0", &["N", "0", "4294967296"]),
        of("70 axes", &["1"; 70]),
        of("64 axes", &["1"; 64]),
        of("2^40 elements for each row", &["N", "1099511627776"]),
    ]
}

fn kinds() -> Vec<Case> {
    let kind = |name: &str, kind: Option<Kind>| inputs(name, vec![of_kind("x", kind)]);
    let ty = || Some(Box::new(TypeProto { value: None, denotation: None }));
    let number =
        |name: &str, elem_type: i32| inputs(name, vec![typed("x", elem_type, &["N", "4"])]);
    vec![
        number("element type 0", 0),
        number("element type 99", 99),
        number("element type -1", -1),
        number("elements that are texts", 8),
        number("elements that are complex", 14),
        number("elements of four bits", 21),
        kind("no type", None),
        inputs(
            "no type at all",
            vec![ValueInfoProto { name: Some("x".to_owned()), ..Default::default() }],
        ),
        kind("no shape", Some(Kind::TensorType(Tensor { elem_type: Some(1), shape: None }))),
        kind("a sparse tensor", Some(Kind::SparseTensorType(SparseTensor::default()))),
        kind("a sequence", Some(Kind::SequenceType(Box::new(Sequence { elem_type: ty() })))),
        kind("a map", Some(Kind::MapType(Box::new(Map { key_type: Some(7), value_type: ty() })))),
        kind("an optional", Some(Kind::OptionalType(Box::new(Optional { elem_type: ty() })))),
        inputs("a scalar", vec![value("x", &[])]),
    ]
}

fn open() -> Vec<Case> {
    let sizes = |name: &str, prefix: &str, count: usize, fixed: bool| {
        let size = |i: usize| format!("{prefix}{i}");
        let input = |i: usize| {
            let sizes = if fixed { ["N".to_owned(), size(i)] } else { [size(i), "4".to_owned()] };
            value(&format!("x{i}"), &[&sizes[0], &sizes[1]])
        };
        let all: Vec<ValueInfoProto> = (0..count).map(input).collect();
        let names: Vec<String> = (0..count).map(|i| format!("x{i}")).collect();
        let names: Vec<&str> = names.iter().map(|n| &**n).collect();
        case(name, &model(graph(all, vec![], vec![node("Sum", &names, &["y"])], &["y"])))
    };
    let long = "d".repeat(1 << 20);
    vec![
        sizes("three names of the batch", "n", 3, false),
        sizes("65 names of the batch", "n", 65, false),
        sizes("2000 open sizes", "d", 2000, true),
        sizes("an open size with a name of a megabyte", &long, 1, true),
        sizes("an open size of control characters", "\u{7}\n", 1, true),
    ]
}
