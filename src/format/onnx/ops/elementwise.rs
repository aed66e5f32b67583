//! Functions of single elements, with their operands broadcast.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::{ANY, Line};
use crate::ir::Value;
use crate::op::{
    Binary, Cast, Classify, Compare, Constant, GeluForm, Identity, Logic, Op, OpError, Unary,
    Unsqueeze, Where,
};
use crate::types::{Dim, Tensor};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    if plain(op).is_some() {
        return Some((1, |n| {
            let op = plain(n.op_type());
            let op = op.ok_or_else(|| NodeError::Unsupported(n.op_type().to_owned()))?;
            let x = n.operand(0)?;
            n.result(op, &[x])
        }));
    }
    Some(match op {
        "HardSigmoid" | "Swish" | "Gelu" | "LeakyRelu" | "ThresholdedRelu" | "Elu" | "Selu"
        | "Celu" | "Shrink" | "IsInf" => (1, with_settings),
        "Add" => (2, |n| binary(n, Binary::Add)),
        "Sub" => (2, |n| binary(n, Binary::Sub)),
        "Mul" => (2, |n| binary(n, Binary::Mul)),
        "Div" => (2, |n| binary(n, Binary::Div)),
        "Pow" => (2, |n| binary(n, Binary::Pow)),
        "Mod" => (2, |n| {
            let fmod = n.flag("fmod", false)?;
            binary(n, Binary::Mod { fmod })
        }),
        "And" => (2, |n| binary(n, Logic::And)),
        "Or" => (2, |n| binary(n, Logic::Or)),
        "Xor" => (2, |n| binary(n, Logic::Xor)),
        "BitwiseAnd" => (2, |n| binary(n, Logic::BitwiseAnd)),
        "BitwiseOr" => (2, |n| binary(n, Logic::BitwiseOr)),
        "BitwiseXor" => (2, |n| binary(n, Logic::BitwiseXor)),
        "BitShift" => (2, bit_shift),
        "Equal" => (2, |n| binary(n, Compare::Equal)),
        "Less" => (2, |n| binary(n, Compare::Less)),
        "LessOrEqual" => (2, |n| binary(n, Compare::LessOrEqual)),
        "Greater" => (2, |n| binary(n, Compare::Greater)),
        "GreaterOrEqual" => (2, |n| binary(n, Compare::GreaterOrEqual)),
        "PRelu" => (2, prelu),
        "Sum" => (ANY, |n| chain(n, Binary::Add)),
        "Max" => (ANY, |n| chain(n, Binary::Max)),
        "Min" => (ANY, |n| chain(n, Binary::Min)),
        "Mean" => (ANY, mean),
        "Clip" => (3, clip),
        "Where" => (3, |n| {
            let operands = [n.operand(0)?, n.operand(1)?, n.operand(2)?];
            n.result(Where {}, &operands)
        }),
        _ => return None,
    })
}

/// The functions of one operand without settings.
fn plain(op: &str) -> Option<Op> {
    Some(match op {
        "Relu" => Unary::Relu.into(),
        "Neg" => Unary::Neg.into(),
        "Abs" => Unary::Abs.into(),
        "Sign" => Unary::Sign.into(),
        "Exp" => Unary::Exp.into(),
        "Log" => Unary::Log.into(),
        "Sqrt" => Unary::Sqrt.into(),
        "Reciprocal" => Unary::Reciprocal.into(),
        "Floor" => Unary::Floor.into(),
        "Ceil" => Unary::Ceil.into(),
        "Round" => Unary::Round.into(),
        "Erf" => Unary::Erf.into(),
        "Sin" => Unary::Sin.into(),
        "Cos" => Unary::Cos.into(),
        "Tan" => Unary::Tan.into(),
        "Asin" => Unary::Asin.into(),
        "Acos" => Unary::Acos.into(),
        "Atan" => Unary::Atan.into(),
        "Sinh" => Unary::Sinh.into(),
        "Cosh" => Unary::Cosh.into(),
        "Tanh" => Unary::Tanh.into(),
        "Asinh" => Unary::Asinh.into(),
        "Acosh" => Unary::Acosh.into(),
        "Atanh" => Unary::Atanh.into(),
        "Sigmoid" => Unary::Sigmoid.into(),
        "HardSwish" => Unary::HardSwish.into(),
        "Mish" => Unary::Mish.into(),
        "Softplus" => Unary::Softplus.into(),
        "Softsign" => Unary::Softsign.into(),
        "Identity" => Identity {}.into(),
        "Not" => Logic::Not.into(),
        "BitwiseNot" => Logic::BitwiseNot.into(),
        "IsNaN" => Classify::IsNan.into(),
        _ => return None,
    })
}

/// The functions of one operand with settings, which have ONNX's defaults.
fn with_settings(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let op: Op = match n.op_type() {
        "HardSigmoid" => {
            let (alpha, beta) = (n.float("alpha", 0.2)?, n.float("beta", 0.5)?);
            Unary::HardSigmoid { alpha, beta }.into()
        }
        "Swish" => Unary::Swish { alpha: n.float("alpha", 1.0)? }.into(),
        "LeakyRelu" => Unary::LeakyRelu { alpha: n.float("alpha", 0.01)? }.into(),
        "ThresholdedRelu" => Unary::ThresholdedRelu { alpha: n.float("alpha", 1.0)? }.into(),
        "Elu" => Unary::Elu { alpha: n.float("alpha", 1.0)? }.into(),
        "Celu" => Unary::Celu { alpha: n.float("alpha", 1.0)? }.into(),
        "Shrink" => {
            Unary::Shrink { bias: n.float("bias", 0.0)?, lambd: n.float("lambd", 0.5)? }.into()
        }
        "Selu" => {
            let alpha = n.float("alpha", 1.673_263_2)?;
            Unary::Selu { alpha, gamma: n.float("gamma", 1.050_701)? }.into()
        }
        "Gelu" => match n.string("approximate", "none")?.as_str() {
            "none" => Unary::Gelu { approximate: GeluForm::Exact }.into(),
            "tanh" => Unary::Gelu { approximate: GeluForm::Tanh }.into(),
            other => return Err(wrong("approximate", format!("is `{other}`"))),
        },
        _ => {
            let negative = n.flag("detect_negative", true)?;
            Classify::IsInf { negative, positive: n.flag("detect_positive", true)? }.into()
        }
    };
    n.result(op, &[x])
}

/// A function of two operands. Before opset 7 they broadcast only where `broadcast` says so, and the second then
/// begins at `axis` of the first.
fn binary(n: &mut Node<'_, '_>, op: impl Into<Op>) -> Done {
    let (a, mut b) = (n.operand(0)?, n.operand(1)?);
    let limited = !matches!(n.op_type(), "Mod" | "BitShift") && n.opset < 7;
    if limited {
        let (broadcast, axis) = (n.flag("broadcast", false)?, n.opt_int("axis")?);
        if broadcast {
            b = begin_at(n, a, b, axis)?;
        } else if n.shape(a) != n.shape(b) {
            let (left, right) = (n.ty(a), n.ty(b));
            let text = format!("{left} with {right} without the attribute `broadcast`");
            return Err(NodeError::Unsupported(text));
        }
    }
    n.result(op, &[a, b])
}

/// `b` with axes of size 1 behind its own, so that its first is axis `axis` of `a`.
fn begin_at(
    n: &mut Node<'_, '_>,
    a: Value,
    b: Value,
    axis: Option<i64>,
) -> Result<Value, NodeError> {
    let (to, own) = (n.shape(a).rank(), n.shape(b).rank());
    let Some(axis) = axis.filter(|axis| *axis != -1) else { return Ok(b) };
    let start = usize::try_from(axis).ok().filter(|start| start.saturating_add(own) <= to);
    let Some(start) = start else {
        let (left, right) = (n.ty(a), n.ty(b));
        return Err(wrong("axis", format!("is {axis}: {right} does not fit there into {left}")));
    };
    let behind = to - start - own;
    if behind == 0 {
        return Ok(b);
    }
    let axes = (own..own + behind).map(|x| i64::try_from(x).unwrap_or(i64::MAX)).collect();
    n.emit(Unsqueeze { axes }, &[b])
}

/// Before opset 7 a slope with one axis has an entry for each channel, axis 1.
fn prelu(n: &mut Node<'_, '_>) -> Done {
    let (x, mut slope) = (n.operand(0)?, n.operand(1)?);
    if n.opset < 7 && n.shape(slope).rank() == 1 && n.shape(slope).first() != Some(&Dim::ONE) {
        slope = begin_at(n, x, slope, Some(1))?;
    }
    n.result(Binary::Prelu, &[x, slope])
}

fn bit_shift(n: &mut Node<'_, '_>) -> Done {
    let left = match n.string("direction", "")?.as_str() {
        "LEFT" => true,
        "RIGHT" => false,
        other => return Err(wrong("direction", format!("is `{other}`"))),
    };
    binary(n, Logic::BitShift { left })
}

/// The operands joined pair by pair from the left.
fn chain(n: &mut Node<'_, '_>, op: Binary) -> Done {
    match &n.operands()?[..] {
        [] => Err(NodeError::Missing { operand: 0 }),
        [x] => n.result(Identity {}, &[*x]),
        [first, middle @ .., last] => {
            let mut sum = *first;
            for x in middle {
                sum = n.emit(op.clone(), &[sum, *x])?;
            }
            n.result(op, &[sum, *last])
        }
    }
}

fn mean(n: &mut Node<'_, '_>) -> Done {
    let operands = n.operands()?;
    let Some((first, rest)) = operands.split_first() else {
        return Err(NodeError::Missing { operand: 0 });
    };
    let mut sum = *first;
    for x in rest {
        sum = n.emit(Binary::Add, &[sum, *x])?;
    }
    let to = n.dtype(sum);
    let count = Op::from(Cast { to }).eval(&[&Tensor::scalar(operands.len() as f64)])?;
    let Some(value) = count.into_iter().next().filter(|_| to.is_float()) else {
        let expected = "a float".to_owned();
        return Err(OpError::DType { operand: 0, expected, found: to }.into());
    };
    let count = n.emit(Constant { value }, &[])?;
    n.result(Binary::Div, &[sum, count])
}

/// Bounds that are constants become attributes, others are operands of a maximum and a minimum.
fn clip(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    if n.opset < 11 {
        let min = n.opt_float("min")?.map(f64::from);
        let max = n.opt_float("max")?.map(f64::from);
        return n.result(Unary::Clip { min, max }, &[x]);
    }
    let known = |i: usize| n.optional(i).is_none() || n.number(i).is_some();
    if known(1) && known(2) {
        let (min, max) = (n.number(1), n.number(2));
        for i in [1, 2] {
            if let Some(bound) = n.optional(i).filter(|bound| n.dtype(*bound) != n.dtype(x)) {
                let (expected, found) = (n.dtype(x).to_string(), n.dtype(bound));
                return Err(OpError::DType { operand: i, expected, found }.into());
            }
        }
        return n.result(Unary::Clip { min, max }, &[x]);
    }
    match (n.optional(1), n.optional(2)) {
        (Some(min), Some(max)) => {
            let low = n.emit(Binary::Max, &[x, min])?;
            n.result(Binary::Min, &[low, max])
        }
        (Some(min), None) => n.result(Binary::Max, &[x, min]),
        (None, Some(max)) => n.result(Binary::Min, &[x, max]),
        (None, None) => n.result(Identity {}, &[x]),
    }
}
