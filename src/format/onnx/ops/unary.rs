//! Functions of one operand, element by element.

use super::alike::alike;
use super::{Done, Imports, Node, Writer, Written};
use crate::op::{Binary, Formula, GeluForm, OpError, Unary};
use crate::types::DType;

alike! {
    Unary [others, write_others] {
        "Abs" first 1 => Unary::Abs,
        "Neg" first 1 => Unary::Neg,
        "Sign" first 1 => Unary::Sign,
        "Relu" first 1 => Unary::Relu,
        "Exp" first 1 => Unary::Exp,
        "Log" first 1 => Unary::Log,
        "Sqrt" first 1 => Unary::Sqrt,
        "Reciprocal" first 1 => Unary::Reciprocal,
        "Floor" first 1 => Unary::Floor,
        "Ceil" first 1 => Unary::Ceil,
        "Round" first 1 => Unary::Round,
        "Erf" first 1 => Unary::Erf,
        "Sin" first 1 => Unary::Sin,
        "Cos" first 1 => Unary::Cos,
        "Tan" first 1 => Unary::Tan,
        "Asin" first 1 => Unary::Asin,
        "Acos" first 1 => Unary::Acos,
        "Atan" first 1 => Unary::Atan,
        "Sinh" first 1 => Unary::Sinh,
        "Cosh" first 1 => Unary::Cosh,
        "Tanh" first 1 => Unary::Tanh,
        "Asinh" first 1 => Unary::Asinh,
        "Acosh" first 1 => Unary::Acosh,
        "Atanh" first 1 => Unary::Atanh,
        "Sigmoid" first 1 => Unary::Sigmoid,
        "HardSwish" first 1 => Unary::HardSwish,
        "Mish" first 1 => Unary::Mish,
        "Softplus" first 1 => Unary::Softplus,
        "Softsign" first 1 => Unary::Softsign,
        "HardSigmoid" first 1 => Unary::HardSigmoid { alpha = 0.2, beta = 0.5 },
        "LeakyRelu" first 1 => Unary::LeakyRelu { alpha = 0.01 },
        "ThresholdedRelu" first 1 => Unary::ThresholdedRelu { alpha = 1.0 },
        "Elu" first 1 => Unary::Elu { alpha = 1.0 },
        // The specification prints the defaults of Selu as the decimal expansions of two `f32`:
        // 1.67326319217681884765625 and 1.05070102214813232421875.
        "Selu" first 1 => Unary::Selu { alpha = 1.673_263_2, gamma = 1.050_701 },
        "Shrink" first 1 => Unary::Shrink { bias = 0.0, lambd = 0.5 },
        "Gelu" first 1 => Unary::Gelu { approximate = GeluForm::Exact },
    }
}

/// Functions that are written in another way than they are read.
fn others(all: &mut Imports) {
    all.add("Clip", 3, clip);
    all.add("Swish", 1, |n| {
        let alpha = n.float("alpha", 1.0)?;
        n.of_first(1, Unary::Swish { alpha })
    });
    all.add("Celu", 1, |n| {
        let alpha = n.float("alpha", 1.0)?;
        n.of_first(1, Unary::Celu { alpha })
    });
}

/// Bounds that are constants become attributes, others are operands of a maximum and a minimum.
fn clip(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    // Before opset 11 the bounds are attributes.
    if n.opset < 11 {
        let min = n.opt_float("min")?.map(f64::from);
        let max = n.opt_float("max")?.map(f64::from);
        return n.result(Unary::Clip { min, max }, &[x]);
    }
    let known = |i: usize| n.optional(i).is_none() || n.opt_number(i).is_some();
    if known(1) && known(2) {
        let (min, max) = (n.opt_number(1), n.opt_number(2));
        for i in [1, 2] {
            // An attribute has no type: once the bound is one, nothing else would notice that its
            // type is not the operand's.
            if let Some(bound) = n.optional(i).filter(|bound| n.dtype(*bound) != n.dtype(x)) {
                let (expected, found) = (n.dtype(x).to_string(), n.dtype(bound));
                return Err(OpError::DType { operand: i, expected, found }.into());
            }
        }
        return n.result(Unary::Clip { min, max }, &[x]);
    }
    match (n.optional(1), n.optional(2)) {
        // The specified order: where the bounds cross, every element becomes the upper one.
        (Some(min), Some(max)) => {
            let low = n.max(x, min)?;
            n.result(Binary::Min, &[low, max])
        }
        (Some(min), None) => n.result(Binary::Max, &[x, min]),
        (None, Some(max)) => n.result(Binary::Min, &[x, max]),
        (None, None) => {
            n.last(0).identity(x)?;
            Ok(())
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are of gradients")]
fn write_others(op: &Unary, w: &mut Writer<'_>) -> Written {
    match *op {
        Unary::Clip { min, max } => write_clip(w, min, max),
        Unary::Swish { alpha } => write_swish(w, alpha),
        Unary::Celu { .. } if w.ty(0)?.dtype != DType::F32 => {
            Err("ONNX has it only for f32".into())
        }
        Unary::Celu { alpha } => w.same("Celu", &[("alpha", alpha.into())]),
        _ => Err("it has no name in ONNX".into()),
    }
}

fn write_clip(w: &mut Writer<'_>, min: Option<f64>, max: Option<f64>) -> Written {
    let dtype = w.ty(0)?.dtype;
    let mut operands = w.operands()?;
    // A bound that is left out before one that is not.
    operands.push(min.map_or(Ok(String::new()), |min| w.scalar(dtype, min))?);
    if let Some(max) = max {
        operands.push(w.scalar(dtype, max)?);
    }
    w.done("Clip", operands, &[])
}

/// `x * sigmoid(alpha * x)`: the operator `Swish` came with opset 24, after the one written.
fn write_swish(w: &mut Writer<'_>, alpha: f32) -> Written {
    let (dtype, operands) = (w.ty(0)?.dtype, w.operands()?);
    let x = &operands[0];
    let mut inner = x.clone();
    // A factor of exactly 1 changes no bit.
    if alpha.to_bits() != 1.0f32.to_bits() {
        let alpha = w.scalar(dtype, alpha.into())?;
        inner = w.emit("Mul", &[x, &alpha], &[])?;
    }
    let gate = w.emit("Sigmoid", &[&inner], &[])?;
    w.done("Mul", vec![x.clone(), gate], &[])
}
