//! Recurrent cells and their gradients, each in two launches.

use super::CodegenError;
use super::builder::{Builder, ceil_div, float};
use super::function::of_float;
use super::kernel::Call;
use super::launch::Context;
use super::matmul::{self, by_four};
use crate::lower::{BufferId, MOST_HIDDEN};
use crate::op::{Activation, Direction, Op, Recurrent, Unary};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim};

/// Threads of a block.
const THREADS: u32 = 256;

/// The most sequences that a block takes through the steps together.
const MOST_TOGETHER: i64 = 4;

/// The product of the elements of all steps and their weights.
pub(super) fn products(context: &Context<'_>) -> Result<Call, CodegenError> {
    let ([x, w], [y]) = (context.launch.operands.as_slice(), context.launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no first launch of a recurrent cell"));
    };
    context.only_f32()?;
    let shapes = [*x, *y].map(|id| &context.device.buffer(id).ty.shape);
    let ([.., terms], [height, width]) = (&shapes[0][..], &shapes[1][..]) else {
        return Err(context.unsupported("its products are no matrix"));
    };
    let sizes = [height.clone(), width.clone(), terms.clone()];
    matmul::of_rows(context, [*x, *w, *y], sizes)
}

/// What the attributes say.
#[expect(clippy::struct_excessive_bools, reason = "each is an attribute")]
struct Cell<'a> {
    kind: u8,
    bias: bool,
    lengths: bool,
    initial: bool,
    peepholes: bool,
    coupled: bool,
    reset_first: bool,
    clip: Option<f32>,
    /// The functions of the gates, of the candidate and of the state that is given out.
    functions: [Option<&'a Activation>; 3],
}

impl<'a> Cell<'a> {
    fn new(op: &'a Recurrent) -> Self {
        let none = Self {
            kind: 2,

            bias: false,
            lengths: false,
            initial: false,
            peepholes: false,
            coupled: false,
            reset_first: false,
            clip: None,
            functions: [None; 3],
        };
        match op {
            Recurrent::Lstm {
                bias,
                lengths,
                initial,
                peepholes,
                coupled,
                clip,
                gate,
                candidate,
                hidden,
                ..
            } => Self {
                kind: 0,
                bias: *bias,
                lengths: *lengths,
                initial: *initial,
                peepholes: *peepholes,
                coupled: *coupled,
                clip: *clip,
                functions: [Some(gate), Some(candidate), Some(hidden)],
                ..none
            },
            Recurrent::Gru {
                bias, lengths, initial, reset_after, clip, gate, candidate, ..
            } => Self {
                kind: 1,
                bias: *bias,
                lengths: *lengths,
                initial: *initial,
                reset_first: !reset_after,
                clip: *clip,
                functions: [Some(gate), Some(candidate), None],
                ..none
            },
            Recurrent::Rnn { bias, lengths, initial, clip, candidate, .. } => Self {
                bias: *bias,
                lengths: *lengths,
                initial: *initial,
                clip: *clip,
                functions: [None, Some(candidate), None],
                ..none
            },
        }
    }

    /// Says the attributes to the kernel.
    fn define(&self, b: &mut Builder<'_>) {
        b.define("KIND", self.kind);
        b.flag("BIAS", self.bias);
        b.flag("LENGTHS", self.lengths);
        b.flag("INITIAL", self.initial);
        b.flag("PEEPHOLES", self.peepholes);
        b.flag("COUPLED", self.coupled);
        b.flag("RESET_FIRST", self.reset_first);
        b.flag("CLIPPED", self.clip.is_some());
        // Not read where nothing is clipped.
        b.define("BOUND", float(self.clip.unwrap_or(0.0)));
    }

    /// The functions, as text.
    fn expression(&self) -> String {
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

    /// Their derivatives, as text; `None` where one is not offered.
    fn slopes(&self) -> Option<String> {
        self.each(|name, op| {
            Some(function(&format!("{name}_slope(float x, float y)"), &slope(op)?))
        })
    }

    /// A text for each function.
    fn each(&self, text: impl Fn(&str, &Activation) -> Option<String>) -> Option<String> {
        let functions = ["gate", "candidate", "state"].into_iter().zip(self.functions);
        functions.filter_map(|(name, op)| Some(text(name, op?))).collect()
    }

    /// The operands behind the first three, by their names in the kernel.
    fn read(&self, b: &mut Builder<'_>, operands: &[BufferId], gradient: bool) {
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
            ("gates", true),
        ];
        let names = all.iter().filter(|(_, given)| *given).map(|(name, _)| *name);
        names.zip(operands).for_each(|(name, id)| b.read(name, *id));
    }

    /// The results of the gradient, by their names in the kernel.
    fn write(&self, b: &mut Builder<'_>, results: &[BufferId]) {
        let lstm = self.kind == 0;
        let all = [
            ("sums", true),
            ("states", true),
            ("kept", self.kind < 2),
            ("products", self.peepholes),
            ("initial_grad", self.initial),
            ("initial_cell_grad", self.initial && lstm),
        ];
        let names = all.iter().filter(|(_, given)| *given).map(|(name, _)| *name);
        names.zip(results).for_each(|(name, id)| b.write(name, *id));
    }
}

/// The sequences of a block: their states stay in 48 KiB of shared memory, three numbers for each
/// element of the padded state.
fn together(hidden: i64) -> i64 {
    let padded = (hidden.max(1) + 3) / 4 * 4;
    (MOST_HIDDEN / padded).clamp(1, MOST_TOGETHER)
}

/// A function of a kernel.
fn function(head: &str, body: &str) -> String {
    format!("__device__ __forceinline__ float {head} {{ return {body}; }}\n")
}

/// The derivative of a function at `x`, where it is `y`, as that of the operator; `None` where that
/// has none.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are no functions of cells")]
fn slope(op: &Activation) -> Option<String> {
    let step = |bound: f32, above: f32, below: &str| {
        format!("x > {} ? {} : {below}", float(bound), float(above))
    };
    Some(match op {
        Activation::Affine(a, _) => float(*a),
        Activation::ScaledTanh(a, b) => {
            format!("scaled_tanh_slope(x, {}, {})", float(*a), float(*b))
        }
        Activation::Unary(op) => match *op {
            Unary::Relu => step(0.0, 1.0, "0.0f"),
            Unary::Tanh => "1.0f - y * y".to_owned(),
            Unary::Sigmoid => "y * (1.0f - y)".to_owned(),
            Unary::Softsign => "1.0f / ((1.0f + fabsf(x)) * (1.0f + fabsf(x)))".to_owned(),
            Unary::Softplus => "sigmoid(x)".to_owned(),
            Unary::LeakyRelu { alpha } => step(0.0, 1.0, &float(alpha)),
            Unary::ThresholdedRelu { alpha } => step(alpha, 1.0, "0.0f"),
            Unary::Elu { alpha } => step(0.0, 1.0, &format!("y + {}", float(alpha))),
            Unary::HardSigmoid { alpha, .. } => {
                format!("y > 0.0f && y < 1.0f ? {} : 0.0f", float(alpha))
            }
            _ => return None,
        },
    })
}

/// What both kernels know of a cell: its attributes, sizes and weights. Gives the blocks and
/// directions, too.
fn define<'a>(
    context: &Context<'a>,
    op: &Recurrent,
    cell: &Cell<'_>,
) -> Result<(Builder<'a>, [Dim; 3]), CodegenError> {
    let ([x, _, r, ..], [y, ..]) =
        (context.launch.operands.as_slice(), context.launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no recurrent cell"));
    };
    let mut b = Builder::new(context.device);
    let (x, weights) = (&b.ty(*x).shape, &b.ty(*r).shape);
    let (Some(hidden), 3) = (weights.get(2).and_then(Dim::as_const), x.rank()) else {
        return Err(context.unsupported("its state has no known size"));
    };
    if !(1..=MOST_HIDDEN).contains(&hidden) || b.ty(*y).dtype != DType::F32 {
        return Err(context.unsupported("its state does not fit into a block"));
    }
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

/// `recurrent.cu`.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::Recurrent(op)), [_, _, _, rest @ ..], results) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no recurrent cell"));
    };
    let cell = Cell::new(op);
    let (mut b, grid) = define(context, op, &cell)?;
    cell.read(&mut b, rest, false);
    let names = ["y", "last", "last_cell"];
    names.into_iter().zip(results).for_each(|(name, id)| b.write(name, *id));
    Ok(b.finish("recurrent.cu", THREADS, cell.expression(), grid))
}

/// `recurrent_grad.cu`.
pub(super) fn gradient(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::RecurrentGrad(op)), [_, _, r, rest @ ..], results) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no gradient of a recurrent cell"));
    };
    let op = op.forward();
    let cell = Cell::new(&op);
    let (mut b, grid) = define(context, &op, &cell)?;
    let quads = by_four(&b.ty(*r).shape[2]) && results.iter().all(|id| b.is_aligned(*id));
    b.flag("GRADIENT_VECTORS", quads);
    cell.read(&mut b, rest, true);
    cell.write(&mut b, results);
    let slopes = cell.slopes();
    let slopes = slopes.ok_or_else(|| context.unsupported("one of its functions has no slope"))?;
    Ok(b.finish("recurrent_grad.cu", THREADS, cell.expression() + &slopes, grid))
}
