//! CUDA expressions of elementwise operators, for elements of any type.
//!
//! Floats are computed in `float` (`f16` and `bf16` too) or `double` and rounded to their type
//! after every operator, as the reference evaluation does; integers wrap.

use super::builder::{c_type, number};
use crate::op::{Binary, Classify, Compare, GeluForm, Logic, Op, Unary};
use crate::types::DType;
use crate::types::invariant::int;

/// An element: a CUDA expression and its element type.
#[derive(Clone, Debug)]
pub(super) struct Element {
    /// The expression.
    pub(super) text: String,
    /// The element type.
    pub(super) dtype: DType,
}

impl Element {
    pub(super) fn new(text: impl Into<String>, dtype: DType) -> Self {
        Self { text: text.into(), dtype }
    }

    /// The expression converted to the type of computation.
    pub(super) fn real(&self) -> String {
        if is_half(self.dtype) { format!("real({})", self.text) } else { self.text.clone() }
    }

    /// The expression converted to another element type.
    pub(super) fn cast(&self, to: DType) -> String {
        match (self.dtype == to, to) {
            (true, _) => self.text.clone(),
            (false, DType::Bool) => format!("truth({})", self.text),
            (false, _) => format!("cast<{}>({})", c_type(to), self.text),
        }
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// The type in which a float type is computed.
pub(super) fn wide(dtype: DType) -> DType {
    if is_half(dtype) { DType::F32 } else { dtype }
}

/// The expression of a computed number, rounded to an element type.
pub(super) fn rounded(dtype: DType, number: String) -> String {
    if is_half(dtype) { format!("rounded<{}>({number})", c_type(dtype)) } else { number }
}

/// The expression of an operator on elements; `None` if it is not elementwise or does not support
/// these types.
pub(super) fn apply(op: &Op, operands: &[Element], to: DType) -> Option<String> {
    match (op, operands) {
        (Op::Unary(op), [x]) => unary(op, x),
        (Op::Binary(op), [a, b]) => binary(op, a, b),
        (Op::Compare(op), [a, b]) => Some(compare(op, a, b)),
        (Op::Logic(op), [x]) => Some(logic(op, x, x)),
        (Op::Logic(op), [a, b]) => Some(logic(op, a, b)),
        (Op::Classify(op), [x]) => Some(classify(op, x)),
        (Op::Where(_), [c, a, b]) => Some(format!("{} != 0 ? {} : {}", c.text, a.text, b.text)),
        (Op::Cast(_), [x]) => Some(x.cast(to)),
        _ => None,
    }
}

/// The expression of a unary function.
pub(super) fn unary(op: &Unary, x: &Element) -> Option<String> {
    let dtype = x.dtype;
    if dtype == DType::Bool {
        None
    } else if dtype.is_float() {
        Some(rounded(dtype, of_float(op, &x.real(), wide(dtype))))
    } else {
        of_int(op, x)
    }
}

/// The expression of a unary function of an integer; `None` if it is defined for floats only.
#[expect(clippy::wildcard_enum_match_arm, reason = "all others take floats only")]
fn of_int(op: &Unary, x: &Element) -> Option<String> {
    let Element { text, dtype } = x;
    Some(match op {
        Unary::Abs => format!("wrapped_absolute({text})"),
        Unary::Neg => format!("wrapped_negative({text})"),
        Unary::Sign => format!("sign_of({text})"),
        Unary::Relu => format!("relu({text})"),
        Unary::Clip { min, max } => int_clip(text, *dtype, *min, *max),
        _ => return None,
    })
}

/// The expression of `clip` of an integer. A bound outside the range of the type has no effect on
/// its own side; on the other side it leaves the extreme of the type as the only result.
fn int_clip(text: &str, dtype: DType, min: Option<f64>, max: Option<f64>) -> String {
    let bits = 8 * int::<u32>(dtype.bytes()) - u32::from(dtype.is_signed());
    let most = (1i128 << bits) - 1;
    let least = if dtype.is_signed() { -most - 1 } else { 0 };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "bounds beyond an i128 are beyond the type"
    )]
    let bound = |bound: Option<f64>, none: i128| bound.map_or(none, |b| b as i128);
    // In `i128`, because a bound may lie outside the type, and `i64` cannot hold every `u64`.
    let (low, high) = (bound(min, least), bound(max, most));
    let ty = c_type(dtype);
    // The low 64 bits, which the cast to the type truncates.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the low bits are meant"
    )]
    let literal = |x: i128| format!("({ty}){}ull", x as u64);
    if low > most || high < least {
        return literal(low.min(high));
    }
    format!("clip({text}, {}, {})", literal(low.max(least)), literal(high.min(most)))
}

/// The expression of a unary function of type `float` or `double`.
pub(super) fn of_float(op: &Unary, x: &str, ty: DType) -> String {
    let suffix = if ty == DType::F64 { "" } else { "f" };
    let call = |name: &str| format!("{name}({x})");
    // A function of the CUDA math library.
    let library = |name: &str| format!("{name}{suffix}({x})");
    let literal = |x: f64| number(x, ty);
    let with = |name: &str, parameters: &[f32]| {
        let text = parameters.iter().map(|f| format!(", {}", literal((*f).into())));
        format!("{name}({x}{})", text.collect::<String>())
    };
    match op {
        Unary::Abs => library("fabs"),
        Unary::Neg => format!("-{x}"),
        Unary::Sign => call("sign_of"),
        Unary::Relu => call("relu"),
        Unary::Clip { min, max } => {
            // A missing bound is infinite.
            let (low, high) = (min.unwrap_or(f64::NEG_INFINITY), max.unwrap_or(f64::INFINITY));
            format!("clip({x}, {}, {})", literal(low), literal(high))
        }
        Unary::Exp => call("exp_of"),
        Unary::Log => call("log_of"),
        Unary::Sqrt => library("sqrt"),
        Unary::Reciprocal => format!("{} / {x}", literal(1.0)),
        Unary::Floor => library("floor"),
        Unary::Ceil => library("ceil"),
        // Half to even, which ONNX asks for; `round` goes away from 0.
        Unary::Round => library("rint"),
        Unary::Erf => call("erf_of"),
        Unary::Sin => call("sin_of"),
        Unary::Cos => call("cos_of"),
        Unary::Tan => call("tan_of"),
        Unary::Asin => call("asin_of"),
        Unary::Acos => call("acos_of"),
        Unary::Atan => call("atan_of"),
        Unary::Sinh => call("sinh_of"),
        Unary::Cosh => call("cosh_of"),
        Unary::Tanh => call("tanh_of"),
        Unary::Asinh => call("asinh_of"),
        Unary::Acosh => call("acosh_of"),
        Unary::Atanh => call("atanh_of"),
        Unary::Sigmoid => call("sigmoid"),
        Unary::HardSigmoid { alpha, beta } => with("hard_sigmoid", &[*alpha, *beta]),
        Unary::Swish { alpha } => with("swish", &[*alpha]),
        Unary::HardSwish => call("hard_swish"),
        Unary::Mish => call("mish"),
        Unary::Gelu { approximate: GeluForm::Exact } => call("gelu"),
        Unary::Gelu { approximate: GeluForm::Tanh } => call("gelu_tanh"),
        Unary::Softplus => call("softplus"),
        Unary::Softsign => call("softsign"),
        Unary::LeakyRelu { alpha } => with("leaky_relu", &[*alpha]),
        Unary::ThresholdedRelu { alpha } => with("thresholded_relu", &[*alpha]),
        Unary::Shrink { bias, lambd } => with("shrink", &[*lambd, *bias]),
        Unary::Elu { alpha } => with("elu", &[*alpha]),
        Unary::Selu { alpha, gamma } => with("selu", &[*alpha, *gamma]),
        Unary::Celu { alpha } => with("celu", &[*alpha]),
    }
}

/// The expression of a binary function of one type, or of an integer power; `None` for other types.
pub(super) fn binary(op: &Binary, a: &Element, b: &Element) -> Option<String> {
    if a.dtype.is_float() && a.dtype == b.dtype {
        return Some(rounded(a.dtype, of_floats(op, &a.real(), &b.real(), wide(a.dtype))));
    }
    let integers = a.dtype.is_integer() && b.dtype.is_integer();
    if !integers || (a.dtype != b.dtype && *op != Binary::Pow) {
        return None;
    }
    // Signed overflow is undefined in C++, so integers go through functions that compute in
    // unsigned types and wrap.
    let name = match op {
        Binary::Add => "sum_of",
        Binary::Sub => "wrapped_difference",
        Binary::Mul => "product_of",
        Binary::Div => "whole_quotient",
        Binary::Pow => "whole_power",
        Binary::Mod { fmod: true } => "whole_remainder",
        Binary::Mod { fmod: false } => "whole_floored_remainder",
        Binary::Max => "larger_of",
        Binary::Min => "smaller_of",
        Binary::Prelu => "prelu",
        Binary::ReluGrad => "relu_grad",
    };
    let reporting = if fails(op) { ", p.word, STEP" } else { "" };
    Some(format!("{name}({}, {}{reporting})", a.text, b.text))
}

/// True if an operator with a result of this type is undefined for some elements (such as division
/// by 0); its expression then reports them.
pub(super) fn may_fail(op: &Op, to: DType) -> bool {
    matches!(op, Op::Binary(op) if fails(op) && to.is_integer())
}

/// True for functions that are undefined for some integers.
pub(super) fn fails(op: &Binary) -> bool {
    matches!(op, Binary::Div | Binary::Mod { .. } | Binary::Pow)
}

fn of_floats(op: &Binary, a: &str, b: &str, ty: DType) -> String {
    let suffix = if ty == DType::F64 { "" } else { "f" };
    match op {
        Binary::Add => format!("{a} + {b}"),
        Binary::Sub => format!("{a} - {b}"),
        Binary::Mul => format!("{a} * {b}"),
        Binary::Div => format!("{a} / {b}"),
        Binary::Pow => format!("pow_of({a}, {b})"),
        // Type inference admits floats only with the sign of the dividend (`fmod`).
        Binary::Mod { .. } => format!("fmod{suffix}({a}, {b})"),
        Binary::Max => format!("larger_of({a}, {b})"),
        Binary::Min => format!("smaller_of({a}, {b})"),
        Binary::Prelu => format!("prelu({a}, {b})"),
        Binary::ReluGrad => format!("relu_grad({a}, {b})"),
    }
}

fn compare(op: &Compare, a: &Element, b: &Element) -> String {
    let relation = match op {
        Compare::Equal => "==",
        Compare::Less => "<",
        Compare::LessOrEqual => "<=",
        Compare::Greater => ">",
        Compare::GreaterOrEqual => ">=",
    };
    // A truth value is a byte in memory.
    format!("(u8)({} {relation} {})", a.real(), b.real())
}

fn logic(op: &Logic, a: &Element, b: &Element) -> String {
    let ty = c_type(a.dtype);
    let (a, b) = (&a.text, &b.text);
    match op {
        Logic::Not => format!("(u8)({a} == 0)"),
        // A truth value is a byte that is 0 or 1: on those the operators of bits are those of
        // logic.
        Logic::And | Logic::BitwiseAnd => format!("({ty})({a} & {b})"),
        Logic::Or | Logic::BitwiseOr => format!("({ty})({a} | {b})"),
        Logic::Xor | Logic::BitwiseXor => format!("({ty})({a} ^ {b})"),
        Logic::BitwiseNot => format!("({ty})~{a}"),
        Logic::BitShift { left: true } => format!("shifted_left({a}, {b})"),
        Logic::BitShift { left: false } => format!("shifted_right({a}, {b})"),
    }
}

fn classify(op: &Classify, x: &Element) -> String {
    let x = x.real();
    match op {
        Classify::IsNan => format!("(u8)({x} != {x})"),
        Classify::IsInf { negative, positive } => {
            let up = positive.then(|| format!("{x} == infinity()"));
            let down = negative.then(|| format!("{x} == -infinity()"));
            let either = up.into_iter().chain(down).collect::<Vec<_>>().join(" || ");
            if either.is_empty() { "(u8)0".to_owned() } else { format!("(u8)({either})") }
        }
    }
}
