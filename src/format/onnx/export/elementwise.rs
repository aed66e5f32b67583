//! What is computed element by element, and reductions.

use super::Refused;
use super::writer::{Attribute, Writer};
use crate::op::{
    Arg, Binary, Classify, Compare, GeluForm, Logic, Op, Reduce, Scan, Softmax, Unary,
};
use crate::types::{DType, Tensor};

type Done = Option<Result<(), Refused>>;

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are in other files")]
pub(super) fn write(w: &mut Writer<'_>, op: &Op) -> Done {
    Some(match op {
        Op::Unary(op) => unary(w, op),
        Op::Binary(op) => return binary(w, op),
        Op::Compare(op) => w.same(
            match op {
                Compare::Equal => "Equal",
                Compare::Less => "Less",
                Compare::LessOrEqual => "LessOrEqual",
                Compare::Greater => "Greater",
                Compare::GreaterOrEqual => "GreaterOrEqual",
            },
            &[],
        ),
        Op::Logic(op) => logic(w, op),
        Op::Classify(Classify::IsNan) => w.same("IsNaN", &[]),
        Op::Classify(Classify::IsInf { negative, positive }) => w.same(
            "IsInf",
            &[
                ("detect_negative", Attribute::Int((*negative).into())),
                ("detect_positive", Attribute::Int((*positive).into())),
            ],
        ),
        Op::Where(_) => w.same("Where", &[]),
        Op::Reduce(op) => reduce(w, op),
        Op::Arg(op) => {
            let (name, axis, keepdims, last) = match op {
                Arg::Max { axis, keepdims, select_last_index } => {
                    ("ArgMax", axis, keepdims, select_last_index)
                }
                Arg::Min { axis, keepdims, select_last_index } => {
                    ("ArgMin", axis, keepdims, select_last_index)
                }
            };
            w.same(
                name,
                &[
                    ("axis", Attribute::Int(*axis)),
                    ("keepdims", Attribute::Int((*keepdims).into())),
                    ("select_last_index", Attribute::Int((*last).into())),
                ],
            )
        }
        Op::Softmax(op) => {
            let (name, axis) = match op {
                Softmax::Softmax { axis } => ("Softmax", axis),
                Softmax::LogSoftmax { axis } => ("LogSoftmax", axis),
                Softmax::Hardmax { axis } => ("Hardmax", axis),
            };
            w.same(name, &[("axis", Attribute::Int(*axis))])
        }
        Op::Scan(Scan::Sum { axis, exclusive, reverse }) => scan(w, *axis, *exclusive, *reverse),
        _ => return None,
    })
}

/// The name of a function without attributes.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others have attributes")]
fn plain(op: &Unary) -> Option<&'static str> {
    Some(match op {
        Unary::Abs => "Abs",
        Unary::Neg => "Neg",
        Unary::Sign => "Sign",
        Unary::Relu => "Relu",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sqrt => "Sqrt",
        Unary::Reciprocal => "Reciprocal",
        Unary::Floor => "Floor",
        Unary::Ceil => "Ceil",
        Unary::Round => "Round",
        Unary::Erf => "Erf",
        Unary::Sin => "Sin",
        Unary::Cos => "Cos",
        Unary::Tan => "Tan",
        Unary::Asin => "Asin",
        Unary::Acos => "Acos",
        Unary::Atan => "Atan",
        Unary::Sinh => "Sinh",
        Unary::Cosh => "Cosh",
        Unary::Tanh => "Tanh",
        Unary::Asinh => "Asinh",
        Unary::Acosh => "Acosh",
        Unary::Atanh => "Atanh",
        Unary::Sigmoid => "Sigmoid",
        Unary::HardSwish => "HardSwish",
        Unary::Mish => "Mish",
        Unary::Softplus => "Softplus",
        Unary::Softsign => "Softsign",
        _ => return None,
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are plain")]
fn unary(w: &mut Writer<'_>, op: &Unary) -> Result<(), Refused> {
    let float = Attribute::Float;
    if let Some(name) = plain(op) {
        return w.same(name, &[]);
    }
    match *op {
        Unary::Clip { min, max } => clip(w, min, max),
        Unary::HardSigmoid { alpha, beta } => {
            w.same("HardSigmoid", &[("alpha", float(alpha)), ("beta", float(beta))])
        }
        Unary::Swish { alpha } => swish(w, alpha),
        Unary::Gelu { approximate } => {
            let form = match approximate {
                GeluForm::Exact => "none",
                GeluForm::Tanh => "tanh",
            };
            w.same("Gelu", &[("approximate", Attribute::Text(form))])
        }
        Unary::LeakyRelu { alpha } => w.same("LeakyRelu", &[("alpha", float(alpha))]),
        Unary::ThresholdedRelu { alpha } => w.same("ThresholdedRelu", &[("alpha", float(alpha))]),
        Unary::Shrink { bias, lambd } => {
            w.same("Shrink", &[("bias", float(bias)), ("lambd", float(lambd))])
        }
        Unary::Elu { alpha } => w.same("Elu", &[("alpha", float(alpha))]),
        Unary::Selu { alpha, gamma } => {
            w.same("Selu", &[("alpha", float(alpha)), ("gamma", float(gamma))])
        }
        Unary::Celu { alpha } => {
            if w.ty(0)?.dtype != DType::F32 {
                return Err("ONNX has it of f32 only".to_owned());
            }
            w.same("Celu", &[("alpha", float(alpha))])
        }
        _ => Err("it has no name in ONNX".to_owned()),
    }
}

fn clip(w: &mut Writer<'_>, min: Option<f64>, max: Option<f64>) -> Result<(), Refused> {
    let dtype = w.ty(0)?.dtype;
    let mut operands = w.operands();
    operands.push(match min {
        Some(min) => w.scalar(dtype, min)?,
        None => String::new(),
    });
    if let Some(max) = max {
        operands.push(w.scalar(dtype, max)?);
    }
    w.done("Clip", operands, &[])
}

fn swish(w: &mut Writer<'_>, alpha: f32) -> Result<(), Refused> {
    let (dtype, operands) = (w.ty(0)?.dtype, w.operands());
    let x = &operands[0];
    let mut inner = x.clone();
    if alpha.to_bits() != 1.0f32.to_bits() {
        let alpha = w.scalar(dtype, alpha.into())?;
        inner = w.emit("Mul", &[x, &alpha], &[]);
    }
    let gate = w.emit("Sigmoid", &[&inner], &[]);
    w.done("Mul", vec![x.clone(), gate], &[])
}

fn binary(w: &mut Writer<'_>, op: &Binary) -> Done {
    let name = match op {
        Binary::Add => "Add",
        Binary::Sub => "Sub",
        Binary::Mul => "Mul",
        Binary::Div => "Div",
        Binary::Pow => "Pow",
        Binary::Max => "Max",
        Binary::Min => "Min",
        Binary::Prelu => "PRelu",
        Binary::Mod { fmod } => {
            return Some(w.same("Mod", &[("fmod", Attribute::Int((*fmod).into()))]));
        }
        Binary::ReluGrad => return None,
    };
    Some(w.same(name, &[]))
}

fn logic(w: &mut Writer<'_>, op: &Logic) -> Result<(), Refused> {
    let name = match op {
        Logic::Not => "Not",
        Logic::And => "And",
        Logic::Or => "Or",
        Logic::Xor => "Xor",
        Logic::BitwiseNot => "BitwiseNot",
        Logic::BitwiseAnd => "BitwiseAnd",
        Logic::BitwiseOr => "BitwiseOr",
        Logic::BitwiseXor => "BitwiseXor",
        Logic::BitShift { left } => {
            let direction = if *left { "LEFT" } else { "RIGHT" };
            return w.same("BitShift", &[("direction", Attribute::Text(direction))]);
        }
    };
    w.same(name, &[])
}

fn reduce(w: &mut Writer<'_>, op: &Reduce) -> Result<(), Refused> {
    let (name, axes, keepdims) = match op {
        Reduce::Sum { axes, keepdims } => ("ReduceSum", axes, keepdims),
        Reduce::Mean { axes, keepdims } => ("ReduceMean", axes, keepdims),
        Reduce::Max { axes, keepdims } => ("ReduceMax", axes, keepdims),
        Reduce::Min { axes, keepdims } => ("ReduceMin", axes, keepdims),
        Reduce::Prod { axes, keepdims } => ("ReduceProd", axes, keepdims),
        Reduce::L1 { axes, keepdims } => ("ReduceL1", axes, keepdims),
        Reduce::L2 { axes, keepdims } => ("ReduceL2", axes, keepdims),
        Reduce::LogSum { axes, keepdims } => ("ReduceLogSum", axes, keepdims),
        Reduce::LogSumExp { axes, keepdims } => ("ReduceLogSumExp", axes, keepdims),
        Reduce::SumSquare { axes, keepdims } => ("ReduceSumSquare", axes, keepdims),
        Reduce::WideSum { .. } | Reduce::WideProd { .. } => {
            return Err("ONNX has no sums before they are rounded".to_owned());
        }
    };
    if axes.is_empty() {
        return alone(w, op);
    }
    let mut operands = w.operands();
    operands.push(w.ints(axes)?);
    w.done(name, operands, &[("keepdims", Attribute::Int((*keepdims).into()))])
}

/// The reduction of every element alone.
fn alone(w: &mut Writer<'_>, op: &Reduce) -> Result<(), Refused> {
    match op {
        Reduce::L1 { .. } | Reduce::L2 { .. } => w.same("Abs", &[]),
        Reduce::LogSum { .. } => w.same("Log", &[]),
        Reduce::SumSquare { .. } => {
            let operands = w.operands();
            w.done("Mul", [operands.clone(), operands].concat(), &[])
        }
        Reduce::Sum { .. }
        | Reduce::Mean { .. }
        | Reduce::Max { .. }
        | Reduce::Min { .. }
        | Reduce::Prod { .. }
        | Reduce::WideSum { .. }
        | Reduce::WideProd { .. }
        | Reduce::LogSumExp { .. } => w.same("Identity", &[]),
    }
}

fn scan(w: &mut Writer<'_>, axis: i64, exclusive: bool, reverse: bool) -> Result<(), Refused> {
    let mut operands = w.operands();
    let axis = Tensor::scalar(axis);
    operands.push(w.tensor(&axis));
    w.done(
        "CumSum",
        operands,
        &[
            ("exclusive", Attribute::Int(exclusive.into())),
            ("reverse", Attribute::Int(reverse.into())),
        ],
    )
}
