//! Keras files: against Keras itself, and what is said of those that cannot be read.

use std::collections::BTreeMap;
use std::path::Path;

use fanwise::internal::keras_architecture;
use fanwise::types::Diagnostic;
use support::root;

use crate::python::{python, set};

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn layers_compute_what_keras_does() {
    python("keras_layers.py", &[&set("FANWISE_BIN")]);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn keras_goes_on_with_what_is_written() {
    python("keras_written.py", &[&set("FANWISE_BIN")]);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn what_only_training_does_is_that_of_keras() {
    python("keras_drawn.py", &[&set("FANWISE_BIN")]);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn training_goes_on_in_both_directions() {
    python("keras_continued.py", &[&set("FANWISE_BIN")]);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn files_of_keras_1_compute_what_keras_3_does() {
    python("keras1.py", &[&set("FANWISE_BIN")]);
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
    let built = keras_architecture(text, "m.json", BTreeMap::new());
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
fn a_model_of_several_devices_is_read_as_its_template() {
    let lambda = |i: usize| {
        format!(
            r#"{{"name": "lambda_{i}", "class_name": "Lambda", "config": {{"name": "lambda_{i}",
            "trainable": true, "function": ["4wIAAAACAAAA", null, null],
            "function_type": "lambda", "output_shape": [4],
            "arguments": {{"i": {i}, "parts": 2}}}}, "inbound_nodes": [[["x", 0, 0, {{}}]]]}}"#
        )
    };
    let text = format!(
        r#"{{"class_name": "Model", "keras_version": "2.2.4", "config": {{"name": "model_2",
        "layers": [{{"name": "x", "class_name": "InputLayer", "config": {{"name": "x",
        "batch_input_shape": [null, 4], "dtype": "float32"}}, "inbound_nodes": []}}, {}, {},
        {{"name": "template", "class_name": "Model", "config": {{"name": "template", "layers": [
        {{"name": "x", "class_name": "InputLayer", "config": {{"name": "x",
        "batch_input_shape": [null, 4], "dtype": "float32"}}, "inbound_nodes": []}},
        {{"name": "d", "class_name": "Dense", "config": {{"name": "d", "trainable": true,
        "units": 3, "activation": "relu", "use_bias": true}},
        "inbound_nodes": [[["x", 0, 0, {{}}]]]}}],
        "input_layers": [["x", 0, 0]], "output_layers": [["d", 0, 0]]}},
        "inbound_nodes": [[["lambda_0", 0, 0, {{}}]], [["lambda_1", 0, 0, {{}}]]]}},
        {{"name": "y", "class_name": "Concatenate", "config": {{"name": "y", "trainable": true,
        "axis": 0}}, "inbound_nodes": [[["template", 1, 0, {{}}], ["template", 2, 0, {{}}]]]}}],
        "input_layers": [["x", 0, 0]], "output_layers": [["y", 0, 0]]}}}}"#,
        lambda(0),
        lambda(1)
    );
    let built = keras_architecture(&text, "m.json", BTreeMap::new()).unwrap();
    assert!(built.notes[0].to_string().contains("read as `template`"), "{:?}", built.notes);
    let graph = built.graph;
    assert_eq!(&*graph.outputs()[0].name, "y");
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[N,3]");
    let names: Vec<&str> = graph.params().iter().map(|param| &*param.name).collect();
    assert_eq!(names, ["d/kernel", "d/bias"]);
    // With one slice of another kind it is what it is: a model with code.
    let other = text.replace(r#""parts": 2"#, r#""parts": 3"#);
    assert!(error(&other).contains("it holds Python code, which is not run"));
}

#[test]
fn parameters_are_named_by_their_layers_and_keep_the_layout_of_keras() {
    let corpus = root("tests/fuzz/corpus/keras");
    let names = |file: &str| {
        let text = std::fs::read_to_string(Path::new(&corpus).join(file)).unwrap();
        let built = keras_architecture(&text, file, BTreeMap::new()).unwrap();
        let names = built.graph.params().iter().map(|p| format!("{} {}", p.name, p.ty));
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
