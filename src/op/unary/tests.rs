use super::super::testing::{self, tensor};
use super::super::{Op, OpRead};
use super::{GeluForm, Unary};
use crate::types::DType;

/// Every function, with attributes that are not the defaults.
fn all() -> Vec<Unary> {
    let attrs = |name: &str| -> Vec<(String, super::super::Attr)> {
        let alpha = ("alpha".to_owned(), super::super::Attr::Float(0.75));
        match name {
            "leaky_relu" | "thresholded_relu" | "elu" | "celu" | "swish" => vec![alpha],
            "selu" => vec![alpha, ("gamma".to_owned(), super::super::Attr::Float(1.25))],
            "shrink" => vec![("bias".to_owned(), super::super::Attr::Float(0.5))],
            "hard_sigmoid" => vec![alpha, ("beta".to_owned(), super::super::Attr::Float(0.25))],
            "clip" => vec![
                ("min".to_owned(), super::super::Attr::Float(-1.0)),
                ("max".to_owned(), super::super::Attr::Float(1.0)),
            ],
            "gelu" => vec![("approximate".to_owned(), super::super::Attr::Name("tanh".to_owned()))],
            _ => Vec::new(),
        }
    };
    let read = |name: &&str| {
        let Op::Unary(op) = Op::read(name, attrs(name)).unwrap() else { panic!("{name}") };
        op
    };
    Unary::NAMES.iter().map(read).collect()
}

/// The Gaussian error linear unit, in either form.
fn gelu(form: GeluForm, x: f64) -> f64 {
    let inner = match form {
        GeluForm::Exact => libm::erf(x / 2f64.sqrt()),
        GeluForm::Tanh => {
            ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()
        }
    };
    0.5 * x * (1.0 + inner)
}

/// The functions by their formulas, in `f64`.
fn formula(op: &Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let wide = |a: f32| f64::from(a);
    match *op {
        Unary::Abs => x.abs(),
        Unary::Neg => -x,
        Unary::Sign => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        Unary::Relu => x.max(0.0),
        Unary::Clip { min, max } => x.max(min.unwrap()).min(max.unwrap()),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Erf => libm::erf(x),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => x.acosh(),
        Unary::Atanh => x.atanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::HardSigmoid { alpha, beta } => (wide(alpha) * x + wide(beta)).clamp(0.0, 1.0),
        Unary::Swish { alpha } => x * sigmoid(wide(alpha) * x),
        Unary::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Unary::Mish => x * x.exp().ln_1p().tanh(),
        Unary::Gelu { approximate } => gelu(approximate, x),
        Unary::Softplus => x.exp().ln_1p(),
        Unary::Softsign => x / (1.0 + x.abs()),
        Unary::LeakyRelu { alpha } => x.max(0.0) + wide(alpha) * x.min(0.0),
        Unary::ThresholdedRelu { alpha } if x > wide(alpha) => x,
        Unary::ThresholdedRelu { .. } => 0.0,
        Unary::Shrink { bias, lambd } => match x {
            _ if x < -wide(lambd) => x + wide(bias),
            _ if x > wide(lambd) => x - wide(bias),
            _ => 0.0,
        },
        Unary::Elu { alpha } => x.max(0.0) + wide(alpha) * x.min(0.0).exp_m1(),
        Unary::Selu { alpha, gamma } => {
            wide(gamma) * (x.max(0.0) + wide(alpha) * x.min(0.0).exp_m1())
        }
        Unary::Celu { alpha } => {
            x.max(0.0) + (wide(alpha) * ((x / wide(alpha)).exp() - 1.0)).min(0.0)
        }
    }
}

/// The formula of some libraries, `ln(2x - 1 / (x + sqrt(x^2 - 1)))`, cancels to something finite
/// below -1.
#[test]
fn acosh_is_defined_from_1_on() {
    let points: Vec<f64> = (1..2000).map(|i| 1.0 - f64::from(i) * 0.37).collect();
    for dtype in [DType::F64, DType::F32] {
        let x = tensor(dtype, &[points.len()], &points);
        let y = testing::eval(&Unary::Acosh.into(), &[&x]).remove(0).to_f64();
        assert!(y.iter().all(|y| y.is_nan()), "{dtype}");
    }
}

#[test]
#[expect(clippy::float_cmp, reason = "infinities are equal or not")]
fn values_follow_the_formulas_in_every_float() {
    let points: Vec<f64> = (-48..=48).map(|i| f64::from(i) / 8.0).collect();
    let mut ops = all();
    ops.push(Unary::Gelu { approximate: GeluForm::Exact });
    for op in ops {
        for (dtype, tolerance) in
            [(DType::F64, 1e-14), (DType::F32, 4e-7), (DType::F16, 1.1e-3), (DType::Bf16, 8.5e-3)]
        {
            let x = tensor(dtype, &[points.len()], &points);
            let y = testing::eval(&op.clone().into(), &[&x]).remove(0).to_f64();
            for (x, y) in points.iter().zip(y) {
                let exact = formula(&op, *x);
                let overflow = dtype == DType::F16 && exact.abs() > 65504.0;
                let close = (y - exact).abs() <= tolerance * exact.abs().max(1.0);
                let same = y == exact || (y.is_nan() && exact.is_nan());
                assert!(close || same || overflow, "{op:?}({x}) in {dtype} is {y}, not {exact}");
            }
        }
    }
}
