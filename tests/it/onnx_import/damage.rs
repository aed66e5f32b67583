//! Damaged files: whatever the bytes are, the answer is a model or an error, and soon.

use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::foreign::gate;
use super::{graph, int, ints, load_with, model, node, nodes_of, value, with, zeros};
use fanwise::format::onnx::{ImportOptions, import_bytes};
use fanwise::op::Assume;
use support::proto::{FunctionProto, ModelProto};

/// A model with some of everything: functions, sizes computed from shapes, tensors of several
/// forms, an operator that is not known.
fn sample() -> ModelProto {
    let function = FunctionProto {
        name: Some("Block".to_owned()),
        domain: Some("own".to_owned()),
        input: vec!["a".to_owned(), "w".to_owned()],
        output: vec!["b".to_owned()],
        node: nodes_of("t = Conv a w; b = Relu t"),
        opset_import: vec![super::opset("", 18)],
        ..FunctionProto::default()
    };
    let mut call = node("Block", &["x", "w"], &["c"]);
    call.domain = Some("own".to_owned());
    let nodes = vec![
        call,
        node("Shape", &["c"], &["sizes"]),
        node("Gather", &["sizes", "zero"], &["rows"]),
        with(node("Concat", &["rows", "rest"], &["target"]), int("axis", 0)),
        node("Reshape", &["c", "target"], &["flat"]),
        node("Gemm", &["flat", "m", "bias"], &["z"]),
        with(gate(&["z"], &["g"]), int("k", 3)),
        with(node("Softmax", &["g"], &["y"]), int("axis", -1)),
    ];
    let tensors = vec![
        zeros("w", &[2, 3, 1, 1]),
        zeros("m", &[32, 5]),
        zeros("bias", &[5]),
        ints("zero", &[0]),
        ints("rest", &[-1]),
    ];
    let mut graph = graph(vec![value("x", &["N", "3", "4", "4"])], tensors, nodes, &["y"]);
    graph.value_info = vec![value("g", &["?", "5"])];
    let mut model = model(graph);
    model.functions = vec![function];
    model.opset_import.push(super::opset("own", 1));
    model
}

#[test]
fn flipped_and_cut_files_are_models_or_errors() {
    let assume = [("com.acme.Gate".to_owned(), Assume::Rowwise(0))].into();
    let options = ImportOptions { max_memory: 1 << 24, assume, ..ImportOptions::default() };
    load_with(&sample(), &options).unwrap();
    let whole = sample().encode_to_vec();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for i in 0..1000 {
        let mut bytes = whole.clone();
        match i % 4 {
            0 => bytes.truncate(rng.random_range(0..whole.len())),
            1 => bytes.extend_from_within(..rng.random_range(0..whole.len())),
            _ => {
                for _ in 0..rng.random_range(1..8) {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = rng.random();
                }
            }
        }
        // Either result is right; a panic or a hang is not.
        drop(import_bytes(bytes.into(), "damaged", &options).map_err(|e| e.to_string()));
    }
}

#[test]
fn many_small_messages_do_not_take_many_times_their_size() {
    // A million empty messages of each kind in 2 MB.
    for (tag, what) in [(0x0a, "a node"), (0x2a, "an initializer"), (0x5a, "an input")] {
        let empty: Vec<u8> = [tag, 0x00].repeat(1_000_000);
        let mut bytes = Vec::new();
        prost::encoding::encode_key(7, prost::encoding::WireType::LengthDelimited, &mut bytes);
        prost::encoding::encode_varint(empty.len() as u64, &mut bytes);
        bytes.extend(empty);
        let error = import_bytes(bytes.into(), "m", &ImportOptions::default()).unwrap_err();
        assert!(error.to_string().contains(&format!("{what} is empty")), "{error}");
    }
    let functions = [&[0x3a, 0x00][..], &[0xca, 0x01, 0x00].repeat(1_000_000)].concat();
    let error = import_bytes(functions.into(), "m", &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("a function is empty"), "{error}");
    // A node with a million empty attributes.
    let mut node = node("Relu", &["x"], &["y"]).encode_to_vec();
    node.extend([0x2a, 0x00].repeat(1_000_000));
    let mut graph = Vec::new();
    prost::encoding::encode_key(1, prost::encoding::WireType::LengthDelimited, &mut graph);
    prost::encoding::encode_varint(node.len() as u64, &mut graph);
    graph.extend(node);
    graph.extend(super::graph(vec![value("x", &["N"])], vec![], vec![], &["y"]).encode_to_vec());
    let mut bytes =
        ModelProto { opset_import: vec![super::opset("", 18)], ..ModelProto::default() }
            .encode_to_vec();
    prost::encoding::encode_key(7, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(graph.len() as u64, &mut bytes);
    bytes.extend(graph);
    let error = import_bytes(bytes.into(), "m", &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("would take up to"), "{error}");
}
