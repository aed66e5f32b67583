//! Operators of TensorFlow inside models of Keras 2: each is a function of `keras.ops`, whose
//! parameters are arguments of the call under TensorFlow's names.

use serde_json::{Value as Json, json};

use super::entry::layers;
use super::slicing::items;
use super::{activation::apply_named, find};
use crate::format::keras::at::At;
use crate::format::keras::config::{Object, Read, text};
use crate::format::keras::error::Fault;
use crate::format::keras::tree::Spec;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::types::Quoted;

layers! {
    "TFOpLambda" Dropped => operator;
    "SlicingOpLambda" Dropped => slicing;
}

/// The activations: the operator and the function of Keras.
const ACTIVATIONS: &[(&str, &str)] = &[
    ("nn.relu", "relu"),
    ("nn.relu6", "relu6"),
    ("nn.elu", "elu"),
    ("nn.selu", "selu"),
    ("nn.silu", "silu"),
    ("nn.swish", "silu"),
    ("nn.gelu", "gelu"),
    ("nn.sigmoid", "sigmoid"),
    ("math.sigmoid", "sigmoid"),
    ("nn.tanh", "tanh"),
    ("math.tanh", "tanh"),
    ("nn.softplus", "softplus"),
    ("math.softplus", "softplus"),
    ("nn.softsign", "softsign"),
];

/// The modules whose functions these are; others have functions of the same names.
const MODULES: [&str; 5] = ["", "math", "nn", "linalg", "__operators__"];

/// The functions: the last word of the operator's name, the class in `keras.ops`, the number of
/// tensors, and the parameters behind them, each with its name in Keras and its default.
type Entry = (&'static str, &'static str, usize, &'static [Parameter]);

/// The name of a parameter in TensorFlow and in Keras, and its value where a call leaves it out.
type Parameter = (&'static str, &'static str, Absent);

/// The value of a parameter that a call leaves out.
#[derive(Clone, Copy)]
enum Absent {
    /// That of Keras' function.
    Same,
    Int(i64),
}

use Absent::{Int, Same};

/// The axes and the flag of a reduction.
const REDUCES: &[Parameter] = &[("axis", "axis", Same), ("keepdims", "keepdims", Same)];

const OPERATORS: &[Entry] = &[
    ("add", "Add", 2, &[]),
    ("subtract", "Subtract", 2, &[]),
    ("sub", "Subtract", 2, &[]),
    ("multiply", "Multiply", 2, &[]),
    ("mul", "Multiply", 2, &[]),
    ("truediv", "TrueDivide", 2, &[]),
    ("divide", "TrueDivide", 2, &[]),
    ("floordiv", "FloorDivide", 2, &[]),
    ("floormod", "Mod", 2, &[]),
    ("mod", "Mod", 2, &[]),
    ("divide_no_nan", "DivideNoNan", 2, &[]),
    ("maximum", "Maximum", 2, &[]),
    ("minimum", "Minimum", 2, &[]),
    ("pow", "Power", 2, &[]),
    ("atan2", "Arctan2", 2, &[]),
    ("equal", "Equal", 2, &[]),
    ("not_equal", "NotEqual", 2, &[]),
    ("greater", "Greater", 2, &[]),
    ("greater_equal", "GreaterEqual", 2, &[]),
    ("less", "Less", 2, &[]),
    ("less_equal", "LessEqual", 2, &[]),
    ("logical_and", "LogicalAnd", 2, &[]),
    ("logical_or", "LogicalOr", 2, &[]),
    ("logical_xor", "LogicalXor", 2, &[]),
    ("logical_not", "LogicalNot", 1, &[]),
    ("matmul", "Matmul", 2, &[]),
    ("abs", "Absolute", 1, &[]),
    ("negative", "Negative", 1, &[]),
    ("sign", "Sign", 1, &[]),
    ("square", "Square", 1, &[]),
    ("sqrt", "Sqrt", 1, &[]),
    ("rsqrt", "Rsqrt", 1, &[]),
    ("reciprocal", "Reciprocal", 1, &[]),
    ("exp", "Exp", 1, &[]),
    ("expm1", "Expm1", 1, &[]),
    ("log", "Log", 1, &[]),
    ("log1p", "Log1p", 1, &[]),
    ("erf", "Erf", 1, &[]),
    ("sin", "Sin", 1, &[]),
    ("cos", "Cos", 1, &[]),
    ("tan", "Tan", 1, &[]),
    ("asin", "Arcsin", 1, &[]),
    ("acos", "Arccos", 1, &[]),
    ("atan", "Arctan", 1, &[]),
    ("sinh", "Sinh", 1, &[]),
    ("cosh", "Cosh", 1, &[]),
    ("floor", "Floor", 1, &[]),
    ("ceil", "Ceil", 1, &[]),
    ("round", "Round", 1, &[]),
    ("is_nan", "Isnan", 1, &[]),
    ("is_inf", "Isinf", 1, &[]),
    ("is_finite", "Isfinite", 1, &[]),
    ("identity", "Identity", 1, &[]),
    ("zeros_like", "ZerosLike", 1, &[]),
    ("ones_like", "OnesLike", 1, &[]),
    ("stop_gradient", "StopGradient", 1, &[]),
    ("softmax", "Softmax", 1, &[("axis", "axis", Same)]),
    ("log_softmax", "LogSoftmax", 1, &[("axis", "axis", Same)]),
    ("leaky_relu", "LeakyRelu", 1, &[("alpha", "negative_slope", Same)]),
    (
        "clip_by_value",
        "Clip",
        1,
        &[("clip_value_min", "x_min", Same), ("clip_value_max", "x_max", Same)],
    ),
    ("cast", "Cast", 1, &[("dtype", "dtype", Same)]),
    ("reshape", "Reshape", 1, &[("shape", "newshape", Same)]),
    ("transpose", "Transpose", 1, &[("perm", "axes", Same)]),
    ("expand_dims", "ExpandDims", 1, &[("axis", "axis", Same)]),
    ("squeeze", "Squeeze", 1, &[("axis", "axis", Same)]),
    ("concat", "Concatenate", 1, &[("axis", "axis", Same)]),
    ("stack", "Stack", 1, &[("axis", "axis", Int(0))]),
    ("unstack", "Unstack", 1, &[("num", "num", Same), ("axis", "axis", Int(0))]),
    (
        "split",
        "Split",
        1,
        &[("num_or_size_splits", "indices_or_sections", Same), ("axis", "axis", Int(0))],
    ),
    ("tile", "Tile", 1, &[("multiples", "repeats", Same)]),
    ("repeat", "Repeat", 1, &[("repeats", "repeats", Same), ("axis", "axis", Same)]),
    ("roll", "Roll", 1, &[("shift", "shift", Same), ("axis", "axis", Same)]),
    ("reverse", "Flip", 1, &[("axis", "axis", Same)]),
    ("pad", "Pad", 1, &[("paddings", "pad_width", Same)]),
    ("one_hot", "OneHot", 1, &[("depth", "num_classes", Same)]),
    ("cumsum", "Cumsum", 1, &[("axis", "axis", Int(0))]),
    ("reduce_sum", "Sum", 1, REDUCES),
    ("reduce_mean", "Mean", 1, REDUCES),
    ("reduce_max", "Max", 1, REDUCES),
    ("reduce_min", "Min", 1, REDUCES),
    ("reduce_prod", "Prod", 1, REDUCES),
    ("reduce_any", "Any", 1, REDUCES),
    ("reduce_all", "All", 1, REDUCES),
    ("reduce_variance", "Var", 1, REDUCES),
    ("reduce_std", "Std", 1, REDUCES),
    ("reduce_logsumexp", "Logsumexp", 1, REDUCES),
];

/// The functions that give floats in Keras, and in TensorFlow another type for integers.
const FLOATS: [&str; 5] = ["Mean", "Var", "Std", "Logsumexp", "TrueDivide"];

/// The names that TensorFlow gives tensors, in their order.
const OPERANDS: [&[&str]; 2] = [
    &["x", "a", "input", "input_tensor", "tensor", "value", "values", "features", "logits", "t"],
    &["y", "b"],
];

fn operator<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    args.ignore(&["name"]);
    let function = text("function", at.config.needed("function")?)?;
    if let Some((_, name)) = ACTIVATIONS.iter().find(|(own, _)| *own == function) {
        let x = args.tensor()?;
        return Ok(apply_named(at, name, x)?.into());
    }
    let short = function.strip_prefix("compat.v1.").unwrap_or(function);
    let (module, word) = short.rsplit_once('.').unwrap_or(("", short));
    let (_, class, count, parameters) = OPERATORS
        .iter()
        .find(|(own, ..)| *own == word && MODULES.contains(&module))
        .ok_or_else(|| Fault::new(format!("the operator {} is not supported", Quoted(function))))?;
    let mut tensors = Vec::new();
    for (position, names) in OPERANDS.iter().enumerate().take(*count) {
        let found = names.iter().find_map(|name| args.opt(position, name));
        let found = found.ok_or_else(|| Fault::new("it is called with too few tensors"))?;
        tensors.push(found.clone());
    }
    let given: Vec<Tensor> = tensors.iter().flat_map(Arg::tensors).collect();
    let has_float = given.iter().any(|tensor| at.ty_of(tensor.value).is_float());
    if FLOATS.contains(class) && !has_float {
        return Err(Fault::new(format!("{} of integers is not supported", Quoted(function))));
    }
    let mut config = Object::new();
    for (position, (own, name, absent)) in (*count..).zip(*parameters) {
        let value = match (args.constant(position, own)?, absent) {
            (Some(value), _) => value,
            (None, Int(value)) => json!(value),
            (None, Same) => continue,
        };
        config.insert((*name).to_owned(), value);
    }
    sizes_to_ends(class, &mut config)?;
    call(at, class, &config, &tensors)
}

/// TensorFlow splits into parts of these sizes, Keras at these places.
fn sizes_to_ends(class: &str, config: &mut Object) -> Read<()> {
    let Some(Json::Array(list)) = config.get_mut("indices_or_sections") else { return Ok(()) };
    if class == "Split" {
        list.pop();
        let mut end = 0_i64;
        for size in list {
            let wrong = || Fault::field("num_or_size_splits", "has a size that is not stated");
            let known = size.as_i64().filter(|size| *size >= 0).ok_or_else(wrong)?;
            end = end.checked_add(known).ok_or_else(wrong)?;
            *size = json!(end);
        }
    }
    Ok(())
}

/// The call of a function of `keras.ops` with this configuration.
fn call<'c>(
    at: &mut At<'_, 'c>,
    class: &str,
    config: &Object,
    tensors: &[Arg<'c>],
) -> Read<Arg<'c>> {
    let spec = Spec::function(class, config);
    let entry = find(&spec)?;
    at.with("function", &spec, |at| {
        let args = Args::new(tensors.to_vec(), Vec::new());
        let result = (entry.call)(at, &args)?;
        at.checked()?;
        Ok(match result {
            Arg::Tensor(tensor) => Arg::Tensor(tensor),
            many => Arg::List(many.tensors().into_iter().map(Arg::Tensor).collect()),
        })
    })
}

/// The entries of a tensor by numbers and ranges.
fn slicing<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    args.ignore(&["name"]);
    at.config.ignore(&["function"]);
    let x = args.tensor()?;
    let keys = args.constant(usize::MAX, "slice_spec")?;
    items(at, x, keys.ok_or_else(|| Fault::new("it names no entries"))?)
}
