//! Functions of one operand, element by element.

use super::{Done, Export, Imports, Node, Writer, Written, name, word};
use crate::op::{Binary, GeluForm, Identity, OpError, Unary};
use crate::types::DType;

/// The functions without settings, in ONNX and here.
const PLAIN: [(&str, Unary); 29] = [
    ("Abs", Unary::Abs),
    ("Neg", Unary::Neg),
    ("Sign", Unary::Sign),
    ("Relu", Unary::Relu),
    ("Exp", Unary::Exp),
    ("Log", Unary::Log),
    ("Sqrt", Unary::Sqrt),
    ("Reciprocal", Unary::Reciprocal),
    ("Floor", Unary::Floor),
    ("Ceil", Unary::Ceil),
    ("Round", Unary::Round),
    ("Erf", Unary::Erf),
    ("Sin", Unary::Sin),
    ("Cos", Unary::Cos),
    ("Tan", Unary::Tan),
    ("Asin", Unary::Asin),
    ("Acos", Unary::Acos),
    ("Atan", Unary::Atan),
    ("Sinh", Unary::Sinh),
    ("Cosh", Unary::Cosh),
    ("Tanh", Unary::Tanh),
    ("Asinh", Unary::Asinh),
    ("Acosh", Unary::Acosh),
    ("Atanh", Unary::Atanh),
    ("Sigmoid", Unary::Sigmoid),
    ("HardSwish", Unary::HardSwish),
    ("Mish", Unary::Mish),
    ("Softplus", Unary::Softplus),
    ("Softsign", Unary::Softsign),
];

const FORMS: [(&str, GeluForm); 2] = [("none", GeluForm::Exact), ("tanh", GeluForm::Tanh)];

/// The functions with settings have ONNX's defaults.
pub(super) fn imports(all: &mut Imports) {
    all.table(&PLAIN, 1, |n| n.of_first(1, n.row(&PLAIN)?));
    all.add("Clip", 3, clip);
    all.add("HardSigmoid", 1, |n| {
        let (alpha, beta) = (n.float("alpha", 0.2)?, n.float("beta", 0.5)?);
        n.of_first(1, Unary::HardSigmoid { alpha, beta })
    });
    all.add("Swish", 1, |n| {
        let alpha = n.float("alpha", 1.0)?;
        n.of_first(1, Unary::Swish { alpha })
    });
    all.add("LeakyRelu", 1, |n| {
        let alpha = n.float("alpha", 0.01)?;
        n.of_first(1, Unary::LeakyRelu { alpha })
    });
    all.add("ThresholdedRelu", 1, |n| {
        let alpha = n.float("alpha", 1.0)?;
        n.of_first(1, Unary::ThresholdedRelu { alpha })
    });
    all.add("Elu", 1, |n| {
        let alpha = n.float("alpha", 1.0)?;
        n.of_first(1, Unary::Elu { alpha })
    });
    all.add("Celu", 1, |n| {
        let alpha = n.float("alpha", 1.0)?;
        n.of_first(1, Unary::Celu { alpha })
    });
    all.add("Selu", 1, |n| {
        let (alpha, gamma) = (n.float("alpha", 1.673_263_2)?, n.float("gamma", 1.050_701)?);
        n.of_first(1, Unary::Selu { alpha, gamma })
    });
    all.add("Shrink", 1, |n| {
        let (bias, lambd) = (n.float("bias", 0.0)?, n.float("lambd", 0.5)?);
        n.of_first(1, Unary::Shrink { bias, lambd })
    });
    all.add("Gelu", 1, |n| {
        let approximate = n.choice("approximate", "none", &FORMS)?;
        n.of_first(1, Unary::Gelu { approximate })
    });
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

impl Export for Unary {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are plain, or of gradients")]
    fn export(&self, w: &mut Writer<'_>) -> Written {
        match *self {
            Self::Clip { min, max } => write_clip(w, min, max),
            Self::HardSigmoid { alpha, beta } => {
                w.same("HardSigmoid", &[("alpha", alpha.into()), ("beta", beta.into())])
            }
            Self::Swish { alpha } => write_swish(w, alpha),
            Self::Gelu { approximate } => {
                let form = word(&FORMS, &approximate)?;
                w.same("Gelu", &[("approximate", form)])
            }
            Self::LeakyRelu { alpha } => w.same("LeakyRelu", &[("alpha", alpha.into())]),
            Self::ThresholdedRelu { alpha } => {
                w.same("ThresholdedRelu", &[("alpha", alpha.into())])
            }
            Self::Shrink { bias, lambd } => {
                w.same("Shrink", &[("bias", bias.into()), ("lambd", lambd.into())])
            }
            Self::Elu { alpha } => w.same("Elu", &[("alpha", alpha.into())]),
            Self::Selu { alpha, gamma } => {
                w.same("Selu", &[("alpha", alpha.into()), ("gamma", gamma.into())])
            }
            Self::Celu { .. } if w.ty(0)?.dtype != DType::F32 => {
                Err("ONNX has it of f32 only".into())
            }
            Self::Celu { alpha } => w.same("Celu", &[("alpha", alpha.into())]),
            _ => {
                let name = name(&PLAIN, self).map_err(|_| "it has no name in ONNX")?;
                w.same(name, &[])
            }
        }
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

fn write_swish(w: &mut Writer<'_>, alpha: f32) -> Written {
    let (dtype, operands) = (w.ty(0)?.dtype, w.operands()?);
    let x = &operands[0];
    let mut inner = x.clone();
    if alpha.to_bits() != 1.0f32.to_bits() {
        let alpha = w.scalar(dtype, alpha.into())?;
        inner = w.emit("Mul", &[x, &alpha], &[])?;
    }
    let gate = w.emit("Sigmoid", &[&inner], &[])?;
    w.done("Mul", vec![x.clone(), gate], &[])
}
