//! Keras files: archives, HDF5, configurations.

use std::io::{Cursor, Read, Write};

use support::snap;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::{Case, table};

/// A file of the corpus.
fn corpus(name: &str) -> Vec<u8> {
    std::fs::read(support::root("tests/fuzz/corpus/keras_file").join(name)).expect("a file")
}

/// The entries of an archive.
fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = ZipArchive::new(Cursor::new(archive)).expect("an archive");
    let count = archive.len();
    let entry = |at| {
        let mut entry = archive.by_index(at).expect("an entry");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        (entry.name().to_owned(), bytes)
    };
    (0..count).map(entry).collect()
}

/// The model of the corpus as an archive in which `change` changes the entries.
fn changed(change: impl FnOnce(&mut Vec<(String, Vec<u8>)>)) -> Vec<u8> {
    let mut all = entries(&corpus("mlp.keras"));
    change(&mut all);
    archive(&all, CompressionMethod::Stored)
}

fn archive(entries: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(name.as_str(), options).expect("an entry");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("finished").into_inner()
}

/// The archive whose configuration has `to` in place of `from`.
fn replaced(from: &str, to: &str) -> Vec<u8> {
    changed(|all| {
        for (name, bytes) in all.iter_mut().filter(|(name, _)| name == "config.json") {
            let text = String::from_utf8(bytes.clone()).expect("text");
            assert!(text.contains(from), "{name} has {from}");
            *bytes = text.replace(from, to).into_bytes();
        }
    })
}

/// The archive with other bytes of an entry.
fn with_entry(name: &str, bytes: &[u8]) -> Vec<u8> {
    changed(|all| {
        for entry in all.iter_mut().filter(|entry| entry.0 == name) {
            entry.1 = bytes.to_vec();
        }
    })
}

/// A sequential model of one layer.
fn architecture(layer: &str) -> Vec<u8> {
    let input =
        r#"{"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [null, 4]}}"#;
    let layers = format!("[{input}, {layer}]");
    format!(r#"{{"class_name": "Sequential", "config": {{"name": "m", "layers": {layers}}}}}"#)
        .into_bytes()
}

/// Models inside one another, to this depth.
fn deep(depth: usize) -> Vec<u8> {
    let open = r#"{"class_name": "Sequential", "config": {"name": "s", "layers": ["#;
    let (open, close) = (open.repeat(depth), "]}}".repeat(depth));
    let inner = r#"{"class_name": "ReLU", "config": {"name": "r"}}"#;
    architecture(&format!("{open}{inner}{close}"))
}

/// Models inside models, each of which is called twice: `2^depth` calls of the innermost layer.
fn doubling(depth: usize) -> Vec<u8> {
    let tensor = |layer: &str, call: usize| {
        format!(
            r#"{{"class_name": "__keras_tensor__", "config": {{"shape": [null, 4],
            "dtype": "float32", "keras_history": ["{layer}", {call}, 0]}}}}"#
        )
    };
    let node = |of: &str| format!(r#"{{"args": [{of}], "kwargs": {{}}}}"#);
    let input = r#"{"module": "keras.layers", "class_name": "InputLayer", "name": "x",
        "config": {"batch_shape": [null, 4], "dtype": "float32", "name": "x"},
        "inbound_nodes": []}"#;
    let twice = format!("{}, {}", node(&tensor("x", 0)), node(&tensor("f", 0)));
    let mut model = r#"{"module": "keras.layers", "class_name": "ReLU",
        "config": {"name": "f", "trainable": true}"#
        .to_owned();
    for _ in 0..depth {
        model = format!(
            r#"{{"module": "keras", "class_name": "Functional", "config": {{"name": "f",
            "layers": [{input}, {model}, "name": "f", "inbound_nodes": [{twice}]}}],
            "input_layers": ["x", 0, 0], "output_layers": ["f", 1, 0]}}"#
        );
    }
    format!("{model}}}").into_bytes()
}

/// A functional model of one function of an input of this shape, which takes `arguments`, where
/// `X` is the input.
fn function(class: &str, shape: &str, config: &str, arguments: &str) -> Vec<u8> {
    let tensor = format!(
        r#"{{"class_name": "__keras_tensor__", "config": {{"shape": {shape}, "dtype": "float32",
        "keras_history": ["x", 0, 0]}}}}"#
    );
    let arguments = arguments.replace('X', &tensor);
    format!(
        r#"{{"module": "keras", "class_name": "Functional", "config": {{"name": "m", "layers": [
        {{"module": "keras.layers", "class_name": "InputLayer", "name": "x", "inbound_nodes": [],
        "config": {{"batch_shape": {shape}, "dtype": "float32", "name": "x"}}}},
        {{"module": "keras.src.ops", "class_name": "{class}", "name": "f",
        "config": {{"name": "f"{config}}},
        "inbound_nodes": [{{"args": [{arguments}], "kwargs": {{}}}}]}}],
        "input_layers": ["x", 0, 0], "output_layers": ["f", 0, 0]}}}}"#
    )
    .into_bytes()
}

/// Functions whose numbers are too large, too small or too many.
fn functions() -> Vec<Case> {
    let least = i64::MIN;
    let new = |name: &str, bytes| Case::new(name, "m.json", bytes);
    let fold = format!(r#", "output_size": 8, "kernel_size": {least}"#);
    vec![
        new("the least window", function("Fold", "[null, 4, 9]", &fold, "X")),
        new("a large spectrum", function("IRFFT", "[null, 2000000000]", "", "[X, X]")),
        new(
            "a large spectrum of a short period",
            function("IRFFT", "[null, 2000000000]", r#", "fft_length": 4"#, "[X, X]"),
        ),
        new(
            "parts of a signal that overlap too much",
            function(
                "STFT",
                "[null, 16777216]",
                r#", "sequence_length": 4096, "sequence_stride": 1, "fft_length": 4096"#,
                "X",
            ),
        ),
        new("an update of no axis", function("SliceUpdate", "[null, 4]", "", "X, [], X")),
        new(
            "sums over less than no axis",
            function("Tensordot", "[null, 4]", r#", "axes": -1"#, "X, X"),
        ),
        new(
            "a window of no element",
            function("GaussianBlur", "[null, 4, 4, 1]", r#", "kernel_size": [0, 3]"#, "X"),
        ),
    ]
}

/// Damaged archives.
fn archives() -> Vec<Case> {
    let whole = corpus("mlp.keras");
    let new = |name: &str, bytes| Case::new(name, "m.keras", bytes);
    let mut cut = whole.clone();
    cut.truncate(whole.len() / 2);
    let mut flipped = whole.clone();
    let at = flipped.len() / 3;
    flipped[at] ^= 0x40;
    let bomb = |name: &str, size: usize| {
        let mut all = entries(&whole);
        for entry in all.iter_mut().filter(|entry| entry.0 == name) {
            entry.1 = vec![b' '; size];
        }
        archive(&all, CompressionMethod::Deflated)
    };
    vec![
        new("whole", whole.clone()),
        new("cut off", cut),
        new("a flipped bit", flipped),
        new("no configuration", changed(|all| all.retain(|entry| entry.0 != "config.json"))),
        new("no weights", changed(|all| all.retain(|entry| entry.0 != "model.weights.h5"))),
        new("no JSON", with_entry("config.json", b"{\"class_name\"")),
        new("a list as configuration", with_entry("config.json", b"[]")),
        new("weights that are no HDF5", with_entry("model.weights.h5", &[7; 4096])),
        new("empty weights", with_entry("model.weights.h5", &[])),
        new("a bomb of a configuration", bomb("config.json", 64 << 20)),
        new("a bomb of weights", bomb("model.weights.h5", 64 << 20)),
        new("a path upwards", changed(|all| all.push(("../../evil".to_owned(), b"x".to_vec())))),
        new("other units", replaced("\"units\": 2", "\"units\": 3")),
        new("too many units", replaced("\"units\": 2", "\"units\": 4611686018427387904")),
        new("no units", replaced("\"units\": 2", "\"units\": -2")),
        new("units that are text", replaced("\"units\": 2", "\"units\": \"many\"")),
        new("an unknown field", replaced("\"units\": 2", "\"units\": 2, \"rank\": 4")),
        new("an unknown function", replaced("\"relu\"", "\"../../relu\\u0007\"")),
        new("an unknown class", replaced("\"Dense\"", "\"__import__('os')\"")),
    ]
}

/// Damaged HDF5 files.
fn hdf5() -> Vec<Case> {
    let whole = corpus("mlp.h5");
    let new = |name: &str, bytes| Case::new(name, "m.h5", bytes);
    let mut cut = whole.clone();
    cut.truncate(whole.len() / 2);
    let mut head = whole.clone();
    head.truncate(64);
    let zeroed = |range: std::ops::Range<usize>| {
        let mut bytes = whole.clone();
        bytes[range].fill(0xff);
        bytes
    };
    vec![
        new("HDF5", whole.clone()),
        new("HDF5, cut off", cut),
        new("HDF5, its head alone", head),
        new("HDF5, a damaged head", zeroed(16..48)),
        new("HDF5, a damaged group", zeroed(96..512)),
        new("HDF5, damaged further on", zeroed(2048..4096)),
    ]
}

/// Configurations that grow, or have no end.
fn configurations() -> Vec<Case> {
    let json = |name: &str, bytes| Case::new(name, "m.json", bytes);
    vec![
        json("models to a depth of 20", deep(20)),
        json("models to a depth of 10000", deep(10_000)),
        json("2^8 calls", doubling(8)),
        json("2^25 calls", doubling(25)),
        json(
            "a large repetition",
            architecture(
                r#"{"class_name": "RepeatVector", "config": {"name": "r", "n": 9000000000000000000}}"#,
            ),
        ),
        json(
            "a layer of code",
            architecture(
                r#"{"class_name": "Lambda", "config": {"name": "l", "function": ["4wEAAAA=", null]}}"#,
            ),
        ),
    ]
}

/// Files of Keras 1: one of a convolution and an LSTM, with other words of as many letters, and
/// architectures.
fn first_version() -> Vec<Case> {
    let whole = corpus("keras1.h5");
    let other = |name: &str, from: &str, to: &str| {
        let mut bytes = whole.clone();
        let at = bytes.windows(from.len()).position(|own| own == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("the file has {from}"));
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        Case::new(name, "m.h5", bytes)
    };
    let json = |name: &str, layers: &str| {
        let text = format!(
            r#"{{"class_name": "Sequential", "keras_version": "1.2.2", "config": [{layers}]}}"#
        );
        Case::new(name, "m.json", text.into_bytes())
    };
    let mut merges =
        r#"{"class_name": "Dense", "config": {"name": "d", "output_dim": 1}}"#.to_owned();
    for _ in 0..16 {
        merges = format!(
            r#"{{"class_name": "Merge", "config": {{"name": "m", "mode": "sum", "layers": [
            {{"class_name": "Sequential", "config": [{merges}]}}]}}}}"#
        );
    }
    vec![
        Case::new("Keras 1", "m.h5", whole.clone()),
        other("Keras 1, other units", "\"output_dim\": 2", "\"output_dim\": 3"),
        other("Keras 1, other taps", "\"filter_length\": 3", "\"filter_length\": 2"),
        other("Keras 1, units that are text", "\"output_dim\": 2", "\"output_dim\":\"\""),
        other("Keras 1, an unknown field", "\"inner_init\"", "\"outer_init\""),
        other("Keras 1, a missing gate", "lstm_1_U_f:0", "lstm_1_U_q:0"),
        json("Keras 1, no layers", ""),
        json("Keras 1, layers that are none", r#"1, [], {"class_name": 1}, {"config": {}}"#),
        json(
            "Keras 1, a merging of nothing",
            r#"{"class_name": "Merge", "config": {"layers": []}}"#,
        ),
        json(
            "Keras 1, a merging of a list",
            r#"{"class_name": "Merge", "config": {"name": "m", "layers": [[1]], "mode": "sum"}}"#,
        ),
        json("Keras 1, mergings in mergings", &merges),
        json(
            "Keras 1, numbers beyond all bounds",
            r#"{"class_name": "Deconvolution2D", "config": {"name": "c", "nb_filter": 1e300,
            "nb_row": -1, "nb_col": 9000000000000000000, "dim_ordering": "tf",
            "output_shape": [null, 9e99], "batch_input_shape": [null, 2, 2, 2]}}"#,
        ),
    ]
}

#[test]
fn keras_files_are_refused_by_place() {
    let cases = archives().into_iter().chain(hdf5()).chain(configurations()).chain(functions());
    let cases: Vec<Case> = cases.chain(first_version()).collect();
    snap::assert("hostile", "keras", &table(&cases));
}
