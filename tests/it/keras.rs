//! Keras files: against Keras itself, and what is said of those that cannot be read.

use std::path::Path;

use fanwise::internal::{BuildOptions, architecture_of};
use fanwise::types::Diagnostic;
use support::root;

use crate::python::{python, set};

#[test]
#[ignore = "needs Python and the command line"]
fn layers_compute_what_keras_does() {
    python("keras_layers.py", &[&set("FANWISE_BIN")]);
}

#[test]
#[ignore = "needs Python and the command line"]
fn keras_goes_on_with_what_is_written() {
    python("keras_written.py", &[&set("FANWISE_BIN")]);
}

/// The architecture of a sequential model of these layers, each its class and its fields.
fn sequential(layers: &[(&str, &str)]) -> String {
    let layers: Vec<String> = layers
        .iter()
        .enumerate()
        .map(|(i, (class, fields))| {
            format!(r#"{{"class_name": "{class}", "config": {{"name": "l{i}"{fields}}}}}"#)
        })
        .collect();
    let input =
        r#"{"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [null, 4]}}"#;
    format!(
        r#"{{"class_name": "Sequential", "config": {{"name": "m", "layers": [{input}, {}]}}}}"#,
        layers.join(", ")
    )
}

fn error(text: &str) -> String {
    let built = architecture_of(text, "m.json", &BuildOptions::default());
    let error = built.expect_err("an error");
    error.worded(&|hint| hint.to_string())
}

#[test]
fn what_does_not_map_is_refused_all_at_once() {
    let said = error(&sequential(&[
        ("Dense", r#", "units": 3, "lora_rank": 4"#),
        ("Dense", r#", "units": 3"#),
    ]));
    assert!(said.contains("layer `l0` (`Dense`): field `lora_rank` is not supported"), "{said}");
    // A functional model goes on behind none of both.
    let node = |of: &str| {
        format!(
            r#"[{{"args": [{{"class_name": "__keras_tensor__", "config": {{"shape": [null, 4],
            "dtype": "float32", "keras_history": ["{of}", 0, 0]}}}}], "kwargs": {{}}}}]"#
        )
    };
    let layer = |name: &str, class: &str, of: &str| {
        format!(
            r#"{{"module": "keras.layers", "class_name": "{class}", "name": "{name}",
            "config": {{"name": "{name}", "trainable": true}}, "inbound_nodes": {}}}"#,
            node(of)
        )
    };
    let input = r#"{"module": "keras.layers", "class_name": "InputLayer", "name": "x",
        "config": {"batch_shape": [null, 4], "dtype": "float32", "name": "x"},
        "inbound_nodes": []}"#;
    let layers = [layer("a", "Hashing", "x"), layer("b", "Lambda", "x"), layer("c", "ReLU", "a")];
    let text = format!(
        r#"{{"class_name": "Functional", "config": {{"name": "m", "layers": [{input}, {}],
        "input_layers": ["x", 0, 0], "output_layers": [["b", 0, 0], ["c", 0, 0]]}}}}"#,
        layers.join(", ")
    );
    let said = error(&text);
    for line in [
        "2 layers cannot be read",
        "layer `a` (`Hashing`): the class is not supported",
        "layer `b` (`Lambda`): it holds Python code, which is not run",
        "= help: replace the layer",
    ] {
        assert!(said.contains(line), "{said}");
    }
    // A layer that needs its own result.
    let text = text.replace(&node("a"), &node("c"));
    assert!(error(&text).contains("layer `c` needs its own result"), "{}", error(&text));
}

#[test]
fn models_inside_models_cannot_grow_without_bound() {
    // Each model calls the one inside it twice.
    let mut inner = r#"{"class_name": "ReLU", "config": {"name": "r"}}"#.to_owned();
    for depth in 0..24 {
        inner = format!(
            r#"{{"class_name": "Sequential", "config": {{"name": "s{depth}", "layers": [{inner},
            {inner}]}}}}"#,
        );
        if inner.len() > 1 << 16 {
            break;
        }
    }
    let text = sequential(&[]).replace(", ]", &format!(", {inner}]"));
    // The text doubles, too: what is small is built.
    let built = architecture_of(&text, "m.json", &BuildOptions::default());
    assert!(built.is_ok(), "{:?}", built.err());
}

#[test]
fn parameters_are_named_by_their_layers_and_keep_the_layout_of_keras() {
    let corpus = root("tests/fuzz/corpus/keras");
    let names = |file: &str| {
        let text = std::fs::read_to_string(Path::new(&corpus).join(file)).unwrap();
        let built = architecture_of(&text, file, &BuildOptions::default()).unwrap();
        let names = built.variables.iter().map(|v| format!("{} {}", v.name, v.ty));
        names.collect::<Vec<String>>()
    };
    assert_eq!(
        names("text.json"),
        [
            "embedding/embeddings f32[5,3]",
            "bidirectional/forward_lstm/lstm_cell/kernel f32[3,8]",
            "bidirectional/forward_lstm/lstm_cell/recurrent_kernel f32[2,8]",
            "bidirectional/forward_lstm/lstm_cell/bias f32[8]",
            "bidirectional/backward_lstm/lstm_cell/kernel f32[3,8]",
            "bidirectional/backward_lstm/lstm_cell/recurrent_kernel f32[2,8]",
            "bidirectional/backward_lstm/lstm_cell/bias f32[8]",
            "gru/gru_cell/kernel f32[4,6]",
            "gru/gru_cell/recurrent_kernel f32[2,6]",
            "gru/gru_cell/bias f32[2,6]",
        ]
    );
    assert_eq!(names("shared.json")[..2], ["mlp/dense/kernel f32[3,2]", "mlp/dense/bias f32[2]"]);
    let legacy = names("legacy_sequential.json");
    assert_eq!(legacy, ["d/kernel f32[3,2]", "d/bias f32[2]"]);
}
