//! The layers of Keras 1: their classes, fields and values in Keras 2.

use serde_json::{Value as Json, json};

use crate::format::keras::config::{Object, Read, text};
use crate::format::keras::error::Fault;
use crate::types::Quoted;

/// The classes with another name.
const CLASSES: [(&str, &str); 7] = [
    ("Convolution1D", "Conv1D"),
    ("AtrousConvolution1D", "Conv1D"),
    ("Convolution2D", "Conv2D"),
    ("AtrousConvolution2D", "Conv2D"),
    ("SeparableConvolution2D", "SeparableConv2D"),
    ("Convolution3D", "Conv3D"),
    ("TimeDistributedDense", "Dense"),
];

/// The fields with another name.
const FIELDS: [(&str, &str); 26] = [
    ("nb_filter", "filters"),
    ("filter_length", "kernel_size"),
    ("subsample", "strides"),
    ("subsample_length", "strides"),
    ("stride", "strides"),
    ("atrous_rate", "dilation_rate"),
    ("pool_length", "pool_size"),
    ("length", "size"),
    ("border_mode", "padding"),
    ("dim_ordering", "data_format"),
    ("output_dim", "units"),
    ("bias", "use_bias"),
    ("inner_activation", "recurrent_activation"),
    ("consume_less", "implementation"),
    ("p", "rate"),
    ("sigma", "stddev"),
    ("dropout_W", "dropout"),
    ("dropout_U", "recurrent_dropout"),
    ("W_regularizer", "kernel_regularizer"),
    ("U_regularizer", "recurrent_regularizer"),
    ("b_regularizer", "bias_regularizer"),
    ("W_constraint", "kernel_constraint"),
    ("U_constraint", "recurrent_constraint"),
    ("b_constraint", "bias_constraint"),
    ("input_dtype", "dtype"),
    ("concat_axis", "axis"),
];

/// Those of embeddings, where they differ.
const EMBEDDING: [(&str, &str); 4] = [
    ("output_dim", "output_dim"),
    ("input_dim", "input_dim"),
    ("W_regularizer", "embeddings_regularizer"),
    ("W_constraint", "embeddings_constraint"),
];

/// Fields that only matter where variables are made, or that the shape of the input says.
const LEFT_OUT: [&str; 10] = [
    "init",
    "inner_init",
    "forget_bias_init",
    "gamma_init",
    "beta_init",
    "alpha_init",
    "depthwise_init",
    "pointwise_init",
    "input_dim",
    "input_length",
];

/// Fields of several sizes that are one.
const SIZES: [&[&str]; 2] = [&["nb_row", "nb_col"], &["kernel_dim1", "kernel_dim2", "kernel_dim3"]];

/// Layers that work on the axes of images and do not state their order.
const UNSTATED: [&str; 8] = [
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "Cropping2D",
    "Cropping3D",
    "SpatialDropout2D",
    "SpatialDropout3D",
];

/// The order of the axes of images that the layers of a file state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordering {
    /// No layer does.
    None,
    One(&'static str),
    Both,
}

impl Ordering {
    /// That of all layers inside.
    pub(super) fn of(value: &Json) -> Self {
        match value {
            Json::Array(list) => list.iter().map(Self::of).fold(Self::None, Self::and),
            Json::Object(fields) => {
                let own = fields.get("dim_ordering").and_then(Json::as_str).and_then(order);
                // Layers that state none leave it to the others.
                let own = own.map_or(Self::None, Self::One);
                fields.values().map(Self::of).fold(own, Self::and)
            }
            _ => Self::None,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, one) | (one, Self::None) => one,
            (a, b) if a == b => a,
            _ => Self::Both,
        }
    }

    /// The order where a layer does not state it.
    fn unstated(self) -> Read<Json> {
        let reason = match self {
            Self::One(order) => return Ok(json!(order)),
            Self::None => "is not in the file, and no other layer states one",
            Self::Both => "is not in the file, and the other layers state both",
        };
        Err(Fault::field("dim_ordering", reason))
    }
}

/// An order of axes in Keras 2.
fn order(old: &str) -> Option<&'static str> {
    match old {
        "th" => Some("channels_first"),
        "tf" => Some("channels_last"),
        _ => None,
    }
}

/// A layer in the form of Keras 2: its class and its configuration.
pub(super) fn translated(
    class: &str,
    config: Object,
    ordering: Ordering,
) -> Read<(String, Object)> {
    if class == "Merge" {
        return merge(config);
    }
    let known = CLASSES.iter().find(|(old, _)| *old == class);
    let new = known.map_or(class, |(_, new)| new);
    let mut fields = Object::new();
    for (name, value) in joined(config)? {
        if let Some((name, value)) = field(new, &name, value, ordering)? {
            fields.insert(name, value);
        }
    }
    if UNSTATED.contains(&new) && !fields.contains_key("data_format") {
        fields.insert("data_format".to_owned(), ordering.unstated()?);
    }
    if new == "ActivityRegularization" {
        return Ok(penalty(fields));
    }
    Ok((new.to_owned(), fields))
}

/// The fields of a configuration, with sizes that are one.
fn joined(mut config: Object) -> Read<Object> {
    for names in SIZES {
        if !names.iter().any(|name| config.contains_key(*name)) {
            continue;
        }
        let sizes = names
            .iter()
            .map(|name| config.remove(*name).ok_or_else(|| Fault::field(name, "is missing")));
        let sizes = sizes.collect::<Read<Vec<Json>>>()?;
        config.insert("kernel_size".to_owned(), Json::Array(sizes));
    }
    Ok(config)
}

/// A field in Keras 2; `None` if it has no counterpart and changes nothing.
fn field(class: &str, name: &str, value: Json, ordering: Ordering) -> Read<Option<(String, Json)>> {
    let own = EMBEDDING.iter().filter(|_| class == "Embedding");
    let known = own.chain(&FIELDS).find(|(old, _)| *old == name);
    if known.is_none() && LEFT_OUT.contains(&name) {
        return Ok(None);
    }
    let new = known.map_or(name, |(_, new)| new);
    let value = match name {
        "dim_ordering" => match text(name, &value)? {
            "default" => ordering.unstated()?,
            old => json!(order(old).ok_or_else(|| is(name, old))?),
        },
        "consume_less" => match text(name, &value)? {
            "cpu" | "mem" => json!(1),
            "gpu" => json!(2),
            old => return Err(is(name, old)),
        },
        // Only the type of the input layer is that of its input.
        "input_dtype" if class != "InputLayer" => return Ok(None),
        "mode" if class == "BatchNormalization" => match value.as_i64() {
            Some(0) => return Ok(None),
            _ => return Err(Fault::field(name, format!("is {value}, and not 0"))),
        },
        // Since Keras 2 such layers do not drop words: the old name is refused.
        "dropout" if class == "Embedding" && value.as_f64() == Some(0.0) => return Ok(None),
        "padding" if class.starts_with("ZeroPadding") => padding(class, value),
        "activity_regularizer" => activity(value),
        name if name.ends_with("_regularizer") => regularizer(value),
        name if name.ends_with("_constraint") => constraint(class, value),
        _ => value,
    };
    Ok(Some((new.to_owned(), value)))
}

fn is(name: &str, value: &str) -> Fault {
    Fault::field(name, format!("is {}", Quoted(value)))
}

/// Zeros around an image: a number or a pair for each axis.
fn padding(class: &str, value: Json) -> Json {
    let sides = |names: [&str; 2]| names.map(|name| value.get(name).cloned().unwrap_or(json!(0)));
    let (rows, columns) = (["top_pad", "bottom_pad"], ["left_pad", "right_pad"]);
    match &value {
        Json::Object(_) if class == "ZeroPadding1D" => json!(sides(columns)),
        Json::Object(_) => json!([sides(rows), sides(columns)]),
        Json::Array(list) => match list.as_slice() {
            [top, bottom, left, right] => json!([[top, bottom], [left, right]]),
            _ => value,
        },
        _ => value,
    }
}

/// The name of an object, and its other fields.
fn object(value: &Json) -> Option<(String, Object)> {
    let mut fields = value.as_object()?.clone();
    let Json::String(name) = fields.remove("name")? else { return None };
    Some((name, fields))
}

/// A regularizer; one that is not known keeps its name, and training refuses it.
fn regularizer(value: Json) -> Json {
    let Some((name, fields)) = object(&value) else { return value };
    let is_known = matches!(&*name, "L1L2Regularizer" | "WeightRegularizer");
    json!({"class_name": if is_known { "L1L2" } else { &*name }, "config": fields})
}

/// A regularizer of results: before Keras 2 the sum is not divided by the batch, so that it keeps
/// its name, and training refuses it.
fn activity(value: Json) -> Json {
    match object(&value) {
        Some((name, fields)) => json!({"class_name": name, "config": fields}),
        None => value,
    }
}

/// A layer that only adds to the loss.
fn penalty(mut fields: Object) -> (String, Object) {
    let [l1, l2] = ["l1", "l2"].map(|name| fields.remove(name));
    let penalty = json!({"class_name": "ActivityRegularization", "config": {"l1": l1, "l2": l2}});
    fields.insert("activity_regularizer".to_owned(), penalty);
    fields.insert("activation".to_owned(), json!("linear"));
    ("Activation".to_owned(), fields)
}

/// A constraint. The axes of one over the kernel of a convolution are those of another layout: it
/// gets a name that training refuses.
fn constraint(class: &str, value: Json) -> Json {
    let Some((name, fields)) = object(&value) else { return value };
    let new = |old: &str| match old {
        "low" => "min_value".to_owned(),
        "m" | "high" => "max_value".to_owned(),
        old => old.to_owned(),
    };
    let is_turned = class.contains("Conv") || class.contains("conv");
    let name = if is_turned && name != "NonNeg" { format!("{name} of Keras 1") } else { name };
    let fields: Object = fields.into_iter().map(|(name, value)| (new(&name), value)).collect();
    json!({"class_name": name, "config": fields})
}

/// A layer of several tensors: since Keras 2 each mode is a class.
fn merge(mut config: Object) -> Read<(String, Object)> {
    if config.get("mode_type").is_some_and(|value| value != "raw") {
        return Err(Fault::new("it holds Python code, which is not run"));
    }
    let mode = config.remove("mode").unwrap_or(json!("sum"));
    let mode = text("mode", &mode)?;
    let mut fields = Object::new();
    for name in ["name", "trainable", "layers"] {
        fields.extend(config.remove(name).map(|value| (name.to_owned(), value)));
    }
    let mut set = |name: &str, value: Option<Json>, absent: Json| {
        fields.insert(name.to_owned(), value.filter(|v| !v.is_null()).unwrap_or(absent));
    };
    let class = match mode {
        "sum" => "Add",
        "mul" => "Multiply",
        "ave" => "Average",
        "max" => "Maximum",
        "concat" => {
            set("axis", config.remove("concat_axis"), json!(-1));
            "Concatenate"
        }
        "dot" => {
            set("axes", config.remove("dot_axes"), json!(-1));
            "Dot"
        }
        "cos" => {
            set("axes", config.remove("dot_axes"), json!(-1));
            "Merge"
        }
        mode => return Err(is("mode", mode)),
    };
    Ok((class.to_owned(), fields))
}
