//! Operators of TensorFlow inside models of Keras 2: arithmetic and functions of single numbers.

use super::activation::apply_named;
use super::entry::layers;
use super::functions::{divided, pair};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, text};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::op::Formula;
use crate::types::Quoted;

layers! {
    "TFOpLambda" Dropped => operator;
}

fn operator<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    args.ignore(&["name"]);
    let function = text("function", at.config.needed("function")?)?;
    let activation = match function {
        "nn.relu" | "nn.relu6" | "nn.elu" | "nn.selu" | "nn.silu" | "nn.swish" | "nn.gelu" => {
            function.strip_prefix("nn.")
        }
        "nn.sigmoid" | "math.sigmoid" => Some("sigmoid"),
        "nn.tanh" | "math.tanh" => Some("tanh"),
        "math.softplus" | "nn.softplus" => Some("softplus"),
        _ => None,
    };
    if let Some(name) = activation {
        let x = args.tensor()?;
        return Ok(apply_named(at, name, x)?.into());
    }
    match function.rsplit_once('.').map_or(function, |(_, name)| name) {
        "add" => pair(at, args, |at, a, b| at.add(a, b)),
        "subtract" | "sub" => pair(at, args, |at, a, b| at.sub(a, b)),
        "multiply" | "mul" => pair(at, args, |at, a, b| at.mul(a, b)),
        "truediv" | "divide" => pair(at, args, divided),
        "maximum" => pair(at, args, |at, a, b| at.max(a, b)),
        "pow" => pair(at, args, |at, a, b| at.pow(a, b)),
        _ => Err(Fault::new(format!("the operator {} is not supported", Quoted(function)))),
    }
}
