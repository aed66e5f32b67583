//! Recurrent cells (LSTM, GRU, RNN) in two launches: one matrix product for the inputs of all
//! steps, then the recurrence, whose states stay in shared memory.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types, matmul};
use crate::codegen::builder::{Builder, ceil_div, float};
use crate::codegen::function::of_float;
use crate::lower::{BufferId, Partials};
use crate::op::{Activation, CellKind, CellSettings, Direction, Recurrent};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape, TensorType};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// The most elements of a cell's state: the states of a block's sequences stay in shared memory.
const MAX_HIDDEN: i64 = 4096;

/// The most sequences that a block processes together; each weight is loaded once for all of them.
const MAX_TOGETHER: i64 = 4;

/// The product of the elements of all steps and their weights.
pub(super) fn products(context: &Context<'_>) -> Result<Call, CodegenError> {
    let ([x, w], [y]) = (context.launch.operands.as_slice(), context.launch.results.as_slice())
    else {
        return Err(context.unsupported("it is not a first launch of a recurrent cell"));
    };
    let shapes = [*x, *y].map(|id| &context.device.buffer(id).ty.shape);
    let ([.., terms], [height, width]) = (&shapes[0][..], &shapes[1][..]) else {
        return Err(context.unsupported("its products are not a matrix"));
    };
    let sizes = [height.clone(), width.clone(), terms.clone()];
    matmul::row_product(context, [*x, *w, *y], sizes)
}

/// The attributes of a cell, as its kernels need them.
#[expect(clippy::struct_excessive_bools, reason = "each is an attribute")]
pub(super) struct Cell<'a> {
    pub(super) kind: u8,
    bias: bool,
    lengths: bool,
    pub(super) initial: bool,
    pub(super) peepholes: bool,
    coupled: bool,
    reset_first: bool,
    clip: Option<f32>,
    /// The activations of the gates, of the candidate and of the output state.
    functions: [Option<&'a Activation>; 3],
}

impl<'a> Cell<'a> {
    pub(super) fn new(op: &'a Recurrent) -> Self {
        let CellSettings { gate, candidate, hidden, .. } = &op.settings;
        let (kind, functions) = match op.kind {
            CellKind::Lstm => (0, [Some(gate), Some(candidate), Some(hidden)]),
            CellKind::Gru => (1, [Some(gate), Some(candidate), None]),
            CellKind::Rnn => (2, [None, Some(candidate), None]),
        };
        let CellSettings { bias, lengths, initial, peepholes, coupled, reset_after, clip, .. } =
            op.settings;
        let reset_first = op.kind == CellKind::Gru && !reset_after;
        Self { kind, bias, lengths, initial, peepholes, coupled, reset_first, clip, functions }
    }

    /// Defines the macros of the attributes.
    fn define(&self, b: &mut Builder<'_>) {
        b.define("KIND", self.kind);
        b.flag("BIAS", self.bias);
        b.flag("LENGTHS", self.lengths);
        b.flag("INITIAL", self.initial);
        b.flag("PEEPHOLES", self.peepholes);
        b.flag("COUPLED", self.coupled);
        b.flag("RESET_FIRST", self.reset_first);
        b.flag("CLIPPED", self.clip.is_some());
        // Unused without clipping.
        b.define("BOUND", float(self.clip.unwrap_or(0.0)));
    }

    /// The functions, as text.
    pub(super) fn expression(&self) -> String {
        let text = |op: &Activation| match op {
            Activation::Unary(op) => of_float(op, "x", DType::F32),
            Activation::Affine(a, b) => format!("{} * x + {}", float(*a), float(*b)),
            Activation::ScaledTanh(a, b) => format!("{} * tanh_of({} * x)", float(*a), float(*b)),
        };
        let functions = self.each(|name, op| {
            let text = text(op);
            Some(function(&format!("{name}_of(float x)"), &text))
        });
        invariant(functions, "that every activation has a text")
    }

    /// A text for each function.
    pub(super) fn each(
        &self,
        text: impl Fn(&str, &Activation) -> Option<String>,
    ) -> Option<String> {
        let functions = ["gate", "candidate", "state"].into_iter().zip(self.functions);
        functions.filter_map(|(name, op)| Some(text(name, op?))).collect()
    }

    /// Adds the operands behind the first three, by their names in the kernel.
    pub(super) fn read(&self, b: &mut Builder<'_>, operands: &[BufferId], gradient: bool) {
        let lstm = self.kind == 0;
        let all = [
            ("bias", self.bias),
            ("lengths", self.lengths),
            ("initial", self.initial),
            ("initial_cell", self.initial && lstm),
            ("peepholes", self.peepholes),
            ("dy", gradient),
            ("dlast", gradient),
            ("dlast_cell", gradient && lstm),
            // The partial results of the first launch come behind the operator's own operands.
            ("gates", true),
        ];
        // The operator lists its operands in this order, without those that its attributes do not
        // announce.
        let names = all.iter().filter(|(_, given)| *given).map(|(name, _)| *name);
        names.zip(operands).for_each(|(name, id)| b.read(name, *id));
    }
}

/// The sequences of a block: their states stay in 48 KiB of shared memory, three numbers for each
/// element of the padded state.
/// 48 KiB is what every architecture gives a block without a request for more; `MAX_HIDDEN`
/// elements of 4 bytes, three times, fill it.
fn together(hidden: i64) -> i64 {
    // Padded to a multiple of four for vector loads of the states.
    let padded = (hidden.max(1) + 3) / 4 * 4;
    (MAX_HIDDEN / padded).clamp(1, MAX_TOGETHER)
}

/// A function of a kernel.
pub(super) fn function(head: &str, body: &str) -> String {
    format!("__device__ __forceinline__ float {head} {{ return {body}; }}\n")
}

/// Defines what both kernels share: attributes, sizes and weights. Also returns the grid, blocks by
/// directions.
pub(super) fn define<'a>(
    context: &Context<'a>,
    op: &Recurrent,
    cell: &Cell<'_>,
) -> Result<(Builder<'a>, [Dim; 3]), CodegenError> {
    let [x, _, r, ..] = context.launch.operands.as_slice() else {
        return Err(context.unsupported("it is not a recurrent cell"));
    };
    let mut b = Builder::new(context.device);
    let (x, weights) = (&b.ty(*x).shape, &b.ty(*r).shape);
    let (Some(hidden), 3) = (weights.get(2).and_then(Dim::as_const), x.rank()) else {
        return Err(context.unsupported("its state has no known size"));
    };
    let (direction, batch_first) = op.order();
    let (steps, rows) =
        if batch_first { (x[1].clone(), x[0].clone()) } else { (x[0].clone(), x[1].clone()) };
    cell.define(&mut b);
    b.define("HIDDEN", hidden);
    b.define("DIRECTIONS", direction.count());
    b.flag("REVERSE", direction == Direction::Reverse);
    b.flag("BATCH_FIRST", batch_first);
    let sequences = together(hidden);
    b.define("TOGETHER", sequences);
    b.flag("R_VECTORS", b.is_aligned(*r) && hidden % 4 == 0);
    b.read("r", *r);
    if cell.lengths {
        b.report();
    }
    b.size("ROWS", &rows);
    b.size("STEPS", &steps);
    let directions = int::<i64>(direction.count());
    Ok((b, [ceil_div(&rows, sequences), directions.into(), Dim::ONE]))
}

/// Support in two launches, the first of which multiplies all inputs with their weights; requires
/// `f32` for all operands but the lengths, and states that fit into shared memory.
pub(super) fn supported(op: &Recurrent, types: &Types<'_>) -> Support {
    let [x, w, r, ..] = types.operands.as_slice() else { return Support::default() };
    let hidden = r.shape.get(2).and_then(Dim::as_const);
    let known = w.shape.last().and_then(Dim::as_const).is_some();
    let all = types.operands.iter().chain(&types.results).enumerate();
    let mut floats = all.filter(|(i, _)| Some(*i) != op.lengths_operand());
    let fits = hidden.is_some_and(|hidden| (1..=MAX_HIDDEN).contains(&hidden)) && known;
    let support = Support { parts: parts(x, r), ..Support::by(KernelClass::Recurrent) };
    support.when(fits && floats.all(|(_, ty)| ty.dtype == DType::F32))
}

/// The products of all elements with their weights: `[steps * rows, directions * gates * H]`.
fn parts(x: &TensorType, r: &TensorType) -> Option<Partials> {
    let ([a, b, _], [directions, width, _]) = (&x.shape[..], &r.shape[..]) else { return None };
    let sizes = [a.clone() * b.clone(), directions.clone() * width.clone()];
    let ty = TensorType::new(DType::F32, sizes.into_iter().collect::<Shape>());
    Some(Partials { ty, reads: 2, product: false })
}

impl CudaOp for Recurrent {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(self, types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [_, _, _, rest @ ..] = context.launch.operands.as_slice() else {
            return Err(context.unsupported("it is not a recurrent cell"));
        };
        let cell = Cell::new(self);
        let (mut b, grid) = define(context, self, &cell)?;
        cell.read(&mut b, rest, false);
        let names = ["y", "last", "last_cell"];
        names.into_iter().zip(&context.launch.results).for_each(|(name, id)| b.write(name, *id));
        Ok(b.finish("recurrent.cu", THREADS, cell.expression(), grid))
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        products(context)
    }
}
