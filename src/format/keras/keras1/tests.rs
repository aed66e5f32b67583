#![expect(clippy::needless_pass_by_value, reason = "values are written where they are given")]

use serde_json::{Value as Json, json};

use super::translated;

/// A sequential model of Keras 1 with these layers, translated: its layers.
fn layers(list: Json) -> Vec<Json> {
    let config = json!({"class_name": "Sequential", "config": list, "keras_version": "1.2.2"});
    let config = translated(config, true).expect("translated");
    config["config"]["layers"].as_array().expect("layers").clone()
}

fn faults(config: Json) -> Vec<String> {
    let errors = translated(config, true).expect_err("refused");
    errors.iter().map(ToString::to_string).collect()
}

fn layer(class: &str, config: Json) -> Json {
    json!({"class_name": class, "config": config})
}

#[test]
fn a_convolution_has_the_fields_of_keras_2() {
    let config = json!({
        "name": "c", "trainable": true, "batch_input_shape": [null, 3, 8, 8],
        "input_dtype": "float32", "nb_filter": 4, "nb_row": 3, "nb_col": 2, "subsample": [2, 1],
        "border_mode": "same", "dim_ordering": "th", "init": "glorot_uniform", "bias": false,
        "activation": "relu", "atrous_rate": [1, 1], "b_constraint": null,
        "W_regularizer": {"name": "L1L2Regularizer", "l1": 0.0, "l2": 0.5},
        "W_constraint": {"name": "MaxNorm", "m": 2, "axis": 0}
    });
    let found = layers(json!([layer("AtrousConvolution2D", config)]));
    let expected = json!({
        "name": "c", "trainable": true, "batch_input_shape": [null, 3, 8, 8], "filters": 4,
        "kernel_size": [3, 2], "strides": [2, 1], "padding": "same", "use_bias": false,
        "data_format": "channels_first", "activation": "relu", "dilation_rate": [1, 1],
        "bias_constraint": null,
        "kernel_regularizer": {"class_name": "L1L2", "config": {"l1": 0.0, "l2": 0.5}},
        "kernel_constraint":
            {"class_name": "MaxNorm of Keras 1", "config": {"max_value": 2, "axis": 0}}
    });
    assert_eq!(found, [layer("Conv2D", expected)]);
}

#[test]
fn the_order_of_axes_is_that_of_the_other_layers() {
    let pad = layer("ZeroPadding2D", json!({"name": "p", "padding": [1, 2, 3, 4]}));
    let pool =
        |order: &str| layer("GlobalMaxPooling2D", json!({"name": "g", "dim_ordering": order}));
    let found = layers(json!([pad, pool("th")]));
    let expected =
        json!({"name": "p", "padding": [[1, 2], [3, 4]], "data_format": "channels_first"});
    assert_eq!(found[0], layer("ZeroPadding2D", expected));
    let model = |list: Json| json!({"class_name": "Sequential", "config": list});
    let why = "layer `p` (`ZeroPadding2D`): field `dim_ordering` is not in the file, and";
    assert_eq!(faults(model(json!([pad]))), [format!("{why} no other layer states one")]);
    let both = json!([pad, pool("th"), pool("tf")]);
    assert_eq!(faults(model(both)), [format!("{why} the other layers state both")]);
}

#[test]
fn what_has_no_counterpart_is_refused_by_name() {
    let list = json!([
        layer("BatchNormalization", json!({"name": "n", "mode": 1, "axis": -1})),
        layer("LSTM", json!({"name": "l", "consume_less": "all"})),
        layer("Convolution2D", json!({"name": "c", "nb_row": 3})),
        layer("Merge", json!({"name": "m", "mode": "join", "mode_type": "raw"})),
        layer("Merge", json!({"name": "f", "mode": "bytes", "mode_type": "lambda"})),
        layer(
            "TimeDistributed",
            json!({"name": "t", "layer":
            layer("MaxPooling2D", json!({"name": "i", "dim_ordering": "xy"}))})
        ),
    ]);
    let expected = [
        "layer `n` (`BatchNormalization`): field `mode` is 1, and not 0",
        "layer `l` (`LSTM`): field `consume_less` is `all`",
        "layer `c` (`Convolution2D`): field `nb_col` is missing",
        "layer `m` (`Merge`): field `mode` is `join`",
        "layer `f` (`Merge`): it holds Python code, which is not run",
        "layer `t/i` (`MaxPooling2D`): field `dim_ordering` is `xy`",
    ];
    assert_eq!(faults(json!({"class_name": "Sequential", "config": list})), expected);
}

#[test]
fn models_that_are_merged_first_become_a_graph() {
    let dense = |name: &str, shape: Json| {
        layer("Dense", json!({"name": name, "output_dim": 2, "batch_input_shape": shape}))
    };
    let branch = |list: Json| json!({"class_name": "Sequential", "config": list});
    let twice = branch(json!([dense("a", json!([null, 3])), dense("b", Json::Null)]));
    let branches = json!([twice, branch(json!([dense("c", json!([null, 4]))])), twice]);
    let merge = json!({"name": "m", "mode": "concat", "concat_axis": 1, "mode_type": "raw",
        "layers": branches});
    let list = json!([layer("Merge", merge), dense("d", Json::Null)]);
    let config = json!({"class_name": "Sequential", "config": list});
    let found = translated(config, true).expect("translated");
    assert_eq!(found["class_name"], "Functional");
    let config = &found["config"];
    assert_eq!(config["input_layers"], json!([["a_input", 0, 0], ["c_input", 0, 0]]));
    assert_eq!(config["output_layers"], json!([["d", 0, 0]]));
    let calls = config["layers"].as_array().expect("layers").iter();
    let calls: Vec<Json> = calls.map(|l| json!([l["name"], l["inbound_nodes"]])).collect();
    let call = |name: &str, of: &[&str]| {
        let of: Vec<Json> = of.iter().map(|name| json!([name, 0, 0])).collect();
        json!([name, if of.is_empty() { json!([]) } else { json!([of]) }])
    };
    let expected = [
        call("a_input", &[]),
        call("a", &["a_input"]),
        call("b", &["a"]),
        call("c_input", &[]),
        call("c", &["c_input"]),
        call("m", &["b", "c", "b"]),
        call("d", &["m"]),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn the_list_of_a_sequential_model_of_keras_2_is_kept() {
    let inner = layer("Dense", json!({"name": "d", "units": 2, "p": 1}));
    let list = json!([{"class_name": "Sequential", "config": [inner]}]);
    let config = json!({"class_name": "Sequential", "config": list});
    let found = translated(config, false).expect("as it is");
    let inner = json!({"name": "sequential_2", "layers": [inner]});
    let outer = json!({"name": "sequential_1", "layers": [layer("Sequential", inner)]});
    assert_eq!(found, layer("Sequential", outer));
}
