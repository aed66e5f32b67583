//! CUDA text of a fused chain: the epilogue that is applied to each element before it is stored.

use std::fmt::Write as _;

use super::builder::{Builder, c_type, number};
use super::function::{Element, apply, binary, fails, may_fail, rounded, unary, wide};
use crate::lower::{Access, BufferId, Chain, ChainStep};
use crate::types::DType;

/// The state of writing a chain.
struct Writer {
    /// The axis whose vectors are loaded once for each of its positions.
    columns: Option<Columns>,
    /// The element types of the operands.
    types: Vec<DType>,
    /// The members of `Column`, and the statements that compute them.
    members: String,
    column: String,
    /// The operands with the full shape.
    full_operands: Vec<usize>,
    /// The running element, and the number of temporaries so far: a change of type needs a new one.
    running: Element,
    temporaries: usize,
    /// The statements of the steps.
    body: String,
}

/// An axis with `size` positions and `inner` elements behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) inner: usize,
    pub(super) size: usize,
}

impl Columns {
    /// The innermost axis in memory.
    pub(super) fn last(size: usize) -> Self {
        Self { inner: 1, size }
    }
}

/// The context of a chain: the kernel that includes it.
pub(super) struct ExpressionContext<'a> {
    /// The types of the running element before the first step and after the last.
    pub(super) types: [DType; 2],
    /// The operands.
    pub(super) operands: &'a [BufferId],
    /// The axis along which a thread knows its position, so that it can load vectors once.
    pub(super) columns: Option<Columns>,
    /// True if `i` is a multiple of 4 wherever `expression4` is called, as vector loads require.
    pub(super) vectors: bool,
}

impl<'a> ExpressionContext<'a> {
    /// The context of a kernel that computes in `f32` and stores to `y`.
    pub(super) fn behind_f32(
        b: &Builder<'_>,
        y: BufferId,
        operands: &'a [BufferId],
        columns: Option<Columns>,
        vectors: bool,
    ) -> Self {
        Self { types: [DType::F32, b.ty(y).dtype], operands, columns, vectors }
    }
}

/// Adds the chain's operands to the call and returns the text of `expression.cuh`; `None` if a step
/// does not support these types:
///
/// - `Column` holds the values that depend only on the position along
///   [`ExpressionContext::columns`]; `column(p, c)` computes it.
/// - `expression(p, x, i, k)` is the result for the running element `x` that is element `i`, with
///   its column `k`; `expression4(p, x, i, k)` for four from `i` on with the columns from `k` on.
pub(super) fn expression(
    b: &mut Builder<'_>,
    chain: &Chain,
    place: &ExpressionContext<'_>,
) -> Option<String> {
    for (i, id) in place.operands.iter().enumerate() {
        b.read(&format!("c{i}"), *id);
    }
    let mut writer = Writer {
        columns: place.columns,
        types: place.operands.iter().map(|id| b.ty(*id).dtype).collect(),
        members: String::new(),
        column: String::new(),
        full_operands: Vec::new(),
        running: Element::new("x", place.types[0]),
        temporaries: 0,
        body: String::new(),
    };
    // Steps are written first: they collect the operands and the members of `Column` that the text
    // declares ahead of them.
    let mut reports = false;
    for step in &chain.steps {
        writer.step(step)?;
        let to = writer.running.dtype;
        reports |= match step {
            ChainStep::Binary { op, .. } => to.is_integer() && fails(op),
            ChainStep::Mixed { op, to, .. } => may_fail(op, *to),
            ChainStep::Unary(_) | ChainStep::BatchNorm { .. } | ChainStep::ScaleShift { .. } => {
                false
            }
        };
    }
    if reports {
        b.report();
    }
    let aligned =
        |i: &usize| place.vectors && place.operands.get(*i).is_some_and(|id| b.is_aligned(*id));
    let loads: Vec<(usize, bool)> = writer.full_operands.iter().map(|i| (*i, aligned(i))).collect();
    // The chain must end in the type that the kernel stores.
    (writer.running.dtype == place.types[1]).then(|| writer.text(place.types[0], &loads))
}

/// The expression of a step for the running element `x`, and its type; `operand` returns the
/// element of an operand. `None` if the step does not support these types, or is a normalisation.
pub(super) fn step_expression(
    step: &ChainStep,
    x: &Element,
    operand: &mut dyn FnMut(usize, Access) -> Option<Element>,
) -> Option<(String, DType)> {
    match step {
        ChainStep::Unary(op) => Some((unary(op, x)?, x.dtype)),
        ChainStep::Binary { op, operand: of, access, swapped } => {
            let other = operand(*of, *access)?;
            let (a, b) = if *swapped { (&other, x) } else { (x, &other) };
            Some((binary(op, a, b)?, x.dtype))
        }
        ChainStep::BatchNorm { .. } | ChainStep::ScaleShift { .. } => None,
        ChainStep::Mixed { op, slot, operands, accesses, to } => {
            let mut terms = Vec::with_capacity(operands.len() + 1);
            for (of, access) in operands.iter().zip(accesses) {
                terms.push(operand(*of, *access)?);
            }
            // The running element takes its position among the operands of the operator again.
            terms.insert((*slot).min(terms.len()), x.clone());
            Some((apply(op, &terms, *to)?, *to))
        }
    }
}

/// The expression of the element `x` of an operand that is read through a unary step, all `f32`.
pub(super) fn through(step: &ChainStep) -> Option<String> {
    let x = Element::new("x", DType::F32);
    step_expression(step, &x, &mut |_, _| None).map(|(text, _)| text)
}

impl Writer {
    /// The index expression of the operand's element for element `i`.
    fn index(access: Access) -> String {
        match access {
            Access::Full => "i".to_owned(),
            Access::Scalar => "0".to_owned(),
            Access::Axis { inner: 1, size } => format!("i % {size}"),
            Access::Axis { inner, size } => format!("i / {inner} % {size}"),
        }
    }

    fn is_column(&self, access: Access) -> bool {
        matches!(access, Access::Axis { inner, size }
            if Some(Columns { inner, size }) == self.columns)
    }

    fn step(&mut self, step: &ChainStep) -> Option<()> {
        let x = self.running.clone();
        let (text, to) = match step {
            ChainStep::BatchNorm { op, operands, access } => {
                let epsilon = number(op.epsilon, wide(x.dtype));
                let factors = |parts: &str| format!("scale_shift({parts}, {epsilon})");
                (self.scale_shift(operands, *access, factors)?, x.dtype)
            }
            ChainStep::ScaleShift { operands, access } => {
                let ty = c_type(wide(x.dtype));
                let factors = |parts: &str| format!("make_{ty}2({parts})");
                (self.scale_shift(operands, *access, factors)?, x.dtype)
            }
            ChainStep::Unary(_) | ChainStep::Binary { .. } | ChainStep::Mixed { .. } => {
                step_expression(step, &x, &mut |operand, access| self.operand(operand, access))?
            }
        };
        // A variable of C has one type: the running element is overwritten while its type stays,
        // and continues in a new variable when a step changes it.
        let line = if to == x.dtype {
            format!("    {} = {text};\n", x.text)
        } else {
            self.temporaries += 1;
            self.running = Element::new(format!("x{}", self.temporaries), to);
            format!("    {} {} = {text};\n", c_type(to), self.running.text)
        };
        self.body += &line;
        Some(())
    }

    /// `x * s + t` with the two numbers that `factors` makes of the elements of these operands.
    fn scale_shift(
        &mut self,
        at: &[usize],
        access: Access,
        factors: impl Fn(&str) -> String,
    ) -> Option<String> {
        let (x, is_column) = (self.running.clone(), self.is_column(access));
        let ty = wide(x.dtype);
        let place = if is_column { "c".to_owned() } else { Self::index(access) };
        let mut parts = Vec::with_capacity(at.len());
        for i in at {
            parts.push(Element::new(format!("p.c{i}[{place}]"), *self.types.get(*i)?).cast(ty));
        }
        // As a member of `Column` they are made once per channel and thread instead of once per
        // element: those of a batch norm take a division and a root.
        let factors = factors(&parts.join(", "));
        let (pair, name) = (format!("{}2", c_type(ty)), format!("f{}", at[0]));
        let of = if is_column {
            self.member(&pair, &name, &factors);
            "k."
        } else {
            let line = format!("    const {pair} {name} = {factors};\n");
            self.body += &line;
            ""
        };
        Some(rounded(x.dtype, format!("{} * {of}{name}.x + {of}{name}.y", x.real())))
    }

    fn member(&mut self, ty: &str, name: &str, value: &str) {
        let (member, line) = (format!("    {ty} {name};\n"), format!("    k.{name} = {value};\n"));
        self.members += &member;
        self.column += &line;
    }

    /// The element of an operand for the running element.
    fn operand(&mut self, operand: usize, access: Access) -> Option<Element> {
        let dtype = *self.types.get(operand)?;
        // Full operands become arguments of `steps`, so that `expression4` can load them as
        // vectors; vectors along the column axis become members of `Column`; all others are indexed
        // in place.
        let text = if access == Access::Full {
            self.full_operands.push(operand);
            format!("w{operand}")
        } else if self.is_column(access) {
            let name = format!("c{operand}");
            self.member(c_type(dtype), &name, &format!("p.c{operand}[c]"));
            format!("k.{name}")
        } else {
            format!("p.c{operand}[{}]", Self::index(access))
        };
        Some(Element::new(text, dtype))
    }

    /// The text for a running element of type `from`; `loads` are the operands with the full shape,
    /// and whether four of their elements are loaded as a vector.
    fn text(&self, from: DType, loads: &[(usize, bool)]) -> String {
        let mut out = format!("struct Column {{\n{}}};\n", self.members);
        // Writing to a string does not fail.
        let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").unwrap_or(());
        let inline = "__device__ __forceinline__";
        let (x, y) = (c_type(from), c_type(self.running.dtype));
        let (x4, y4) = (four(from), four(self.running.dtype));
        let ty = |i: &usize| self.types[*i];
        let each = |text: &dyn Fn(&usize) -> String| -> String {
            loads.iter().map(|(i, _)| text(i)).collect()
        };
        line(format_args!("{inline} Column column(const Params& p, i64 c) {{"));
        line(format_args!("    Column k;\n{}    return k;\n}}", self.column));
        let wanted = each(&|i| format!(", {} w{i}", c_type(ty(i))));
        line(format_args!(
            "{inline} {y} steps(const Params& p, {x} x, i64 i, const Column& k{wanted}) {{\n{}    \
             return {};\n}}",
            self.body, self.running.text
        ));
        let given = each(&|i| format!(", p.c{i}[i]"));
        line(format_args!(
            "{inline} {y} expression(const Params& p, {x} x, i64 i, const Column& k) {{"
        ));
        line(format_args!("    return steps(p, x, i, k{given});\n}}"));
        line(format_args!(
            "{inline} {y4} expression4(const Params& p, {x4} x, i64 i, const Column* k) {{"
        ));
        for (i, at_once) in loads {
            let parts = format!("p.c{i}[i], p.c{i}[i + 1], p.c{i}[i + 2], p.c{i}[i + 3]");
            let load = if *at_once { format!("load4(p.c{i} + i)") } else { format!("{{{parts}}}") };
            line(format_args!("    const {} w{i} = {load};", four(ty(i))));
        }
        let result = if x4 == y4 { "x" } else { "y" };
        if result == "y" {
            line(format_args!("    {y4} y;"));
        }
        for (at, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let given = each(&|i| format!(", w{i}.{part}"));
            line(format_args!(
                "    {result}.{part} = steps(p, x.{part}, i + {at}, k[{at}]{given});"
            ));
        }
        line(format_args!("    return {result};\n}}"));
        out
    }
}

/// The vector type of four adjacent elements.
fn four(dtype: DType) -> String {
    if dtype == DType::F32 { "float4".to_owned() } else { format!("Four<{}>", c_type(dtype)) }
}
