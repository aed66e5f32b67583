//! The text of a chain: what is done with each element before it is stored.

use std::fmt::Write as _;

use super::builder::{Builder, float};
use crate::lower::{Access, BufferId, Chain, ChainStep};
use crate::op::{Binary, GeluForm, Unary};

/// How a chain's steps see the operands.
struct Writer {
    /// The size of the axis that is last in memory, if vectors along it are read once for a column.
    columns: Option<usize>,
    /// Members of `Column`, and how they are computed.
    members: String,
    column: String,
    /// The operands of the running element's shape.
    whole: Vec<usize>,
    /// The steps.
    body: String,
}

/// Adds the chain's operands to the call and gives the text of `expression.cuh`:
///
/// - `Column` holds what depends on the column alone, an element's place on the axis of size `columns` that is last in
///   memory; `column(p, c)` computes it.
/// - `expression(p, x, i, k)` is the result for the running element `x` that is element `i`, with its column `k`;
///   `expression4(p, x, i, k)` for four from `i` on with the columns from `k` on.
///
/// `vectors` says that `i` is a multiple of 4 wherever `expression4` is called.
pub(super) fn expression(
    b: &mut Builder<'_>,
    chain: &Chain,
    operands: &[BufferId],
    columns: Option<usize>,
    vectors: bool,
) -> String {
    for (i, id) in operands.iter().enumerate() {
        b.read(&format!("c{i}"), *id);
    }
    let mut writer = Writer {
        columns,
        members: String::new(),
        column: String::new(),
        whole: Vec::new(),
        body: String::new(),
    };
    for step in &chain.steps {
        writer.step(step);
    }
    let aligned = |i: &usize| vectors && operands.get(*i).is_some_and(|id| b.is_aligned(*id));
    let loads: Vec<(usize, bool)> = writer.whole.iter().map(|i| (*i, aligned(i))).collect();
    writer.text(&loads)
}

impl Writer {
    /// The place in a vector of the element that meets element `i`.
    fn place(access: Access) -> String {
        match access {
            Access::Full => "i".to_owned(),
            Access::Scalar => "0".to_owned(),
            Access::Axis { inner: 1, size } => format!("i % {size}"),
            Access::Axis { inner, size } => format!("i / {inner} % {size}"),
        }
    }

    fn is_column(&self, access: Access) -> bool {
        matches!(access, Access::Axis { inner: 1, size } if Some(size) == self.columns)
    }

    fn step(&mut self, step: &ChainStep) {
        let text = match step {
            ChainStep::Unary(op) => unary(op),
            ChainStep::Binary { op, operand, access, swapped } => {
                let other = self.operand(*operand, *access);
                if *swapped { binary(op, &other, "x") } else { binary(op, "x", &other) }
            }
            ChainStep::ScaleShift { op, operands: at, access } => {
                let is_column = self.is_column(*access);
                let place = if is_column { "c".to_owned() } else { Self::place(*access) };
                let parts: Vec<String> = at.iter().map(|i| format!("p.c{i}[{place}]")).collect();
                let factors = format!("scale_shift({}, {})", parts.join(", "), float(op.epsilon));
                let name = format!("f{}", at[0]);
                if is_column {
                    self.member("float2", &name, &factors);
                    format!("x * k.{name}.x + k.{name}.y")
                } else {
                    let line = format!("    const float2 {name} = {factors};\n");
                    self.body += &line;
                    format!("x * {name}.x + {name}.y")
                }
            }
        };
        let line = format!("    x = {text};\n");
        self.body += &line;
    }

    fn member(&mut self, ty: &str, name: &str, value: &str) {
        let (member, line) = (format!("    {ty} {name};\n"), format!("    k.{name} = {value};\n"));
        self.members += &member;
        self.column += &line;
    }

    /// The element of an operand that meets the running one.
    fn operand(&mut self, operand: usize, access: Access) -> String {
        if access == Access::Full {
            self.whole.push(operand);
            return format!("w{operand}");
        }
        if self.is_column(access) {
            let name = format!("c{operand}");
            self.member("float", &name, &format!("p.c{operand}[c]"));
            return format!("k.{name}");
        }
        format!("p.c{operand}[{}]", Self::place(access))
    }

    /// The whole text; `loads` are the operands of the running element's shape, and whether four of their elements
    /// are read at once.
    fn text(&self, loads: &[(usize, bool)]) -> String {
        let mut out = format!("struct Column {{\n{}}};\n", self.members);
        // Writing to a string does not fail.
        let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").unwrap_or(());
        let inline = "__device__ __forceinline__";
        line(format_args!("{inline} Column column(const Params& p, i64 c) {{"));
        line(format_args!("    Column k;\n{}    return k;\n}}", self.column));
        let wanted: String =
            loads.iter().fold(String::new(), |t, (i, _)| t + &format!(", float w{i}"));
        line(format_args!(
            "{inline} float steps(const Params& p, float x, i64 i, const Column& k{wanted}) {{\n{}    return x;\n}}",
            self.body
        ));
        let given: String =
            loads.iter().fold(String::new(), |t, (i, _)| t + &format!(", p.c{i}[i]"));
        line(format_args!(
            "{inline} float expression(const Params& p, float x, i64 i, const Column& k) {{"
        ));
        line(format_args!("    return steps(p, x, i, k{given});\n}}"));
        line(format_args!(
            "{inline} float4 expression4(const Params& p, float4 x, i64 i, const Column* k) {{"
        ));
        for (i, at_once) in loads {
            let four =
                format!("make_float4(p.c{i}[i], p.c{i}[i + 1], p.c{i}[i + 2], p.c{i}[i + 3])");
            let load = if *at_once { format!("load4(p.c{i} + i)") } else { four };
            line(format_args!("    const float4 w{i} = {load};"));
        }
        for (at, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let given = loads.iter().fold(String::new(), |t, (i, _)| t + &format!(", w{i}.{part}"));
            line(format_args!("    x.{part} = steps(p, x.{part}, i + {at}, k[{at}]{given});"));
        }
        line(format_args!("    return x;\n}}"));
        out
    }
}

/// The function of the running element `x`.
pub(super) fn unary(op: &Unary) -> String {
    let call = |name: &str| format!("{name}(x)");
    let with = |name: &str, parameters: &[f32]| {
        parameters.iter().fold(format!("{name}(x"), |text, f| text + ", " + &float(*f)) + ")"
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the bound is rounded as the reference rounds it"
    )]
    let bound = |bound: Option<f64>, none: f32| bound.map_or(none, |b| b as f32);
    match op {
        Unary::Abs => call("fabsf"),
        Unary::Neg => "-x".to_owned(),
        Unary::Sign => call("sign_of"),
        Unary::Relu => call("relu"),
        Unary::Clip { min, max } => {
            with("clip", &[bound(*min, f32::NEG_INFINITY), bound(*max, f32::INFINITY)])
        }
        Unary::Exp => call("exp_of"),
        Unary::Log => call("logf"),
        Unary::Sqrt => call("sqrtf"),
        Unary::Reciprocal => "1.0f / x".to_owned(),
        Unary::Floor => call("floorf"),
        Unary::Ceil => call("ceilf"),
        Unary::Round => call("rintf"),
        Unary::Erf => call("erf_of"),
        Unary::Sin => call("sinf"),
        Unary::Cos => call("cosf"),
        Unary::Tan => call("tanf"),
        Unary::Asin => call("asinf"),
        Unary::Acos => call("acosf"),
        Unary::Atan => call("atanf"),
        Unary::Sinh => call("sinhf"),
        Unary::Cosh => call("coshf"),
        Unary::Tanh => call("tanh_of"),
        Unary::Asinh => call("asinhf"),
        Unary::Acosh => call("acoshf"),
        Unary::Atanh => call("atanhf"),
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

/// The function of two elements.
pub(super) fn binary(op: &Binary, a: &str, b: &str) -> String {
    match op {
        Binary::Add => format!("{a} + {b}"),
        Binary::Sub => format!("{a} - {b}"),
        Binary::Mul => format!("{a} * {b}"),
        Binary::Div => format!("{a} / {b}"),
        Binary::Pow => format!("powf({a}, {b})"),
        Binary::Mod { fmod: true } => format!("fmodf({a}, {b})"),
        Binary::Mod { fmod: false } => format!("floored_remainder({a}, {b})"),
        Binary::Max => format!("maximum({a}, {b})"),
        Binary::Min => format!("minimum({a}, {b})"),
        Binary::Prelu => format!("prelu({a}, {b})"),
    }
}
