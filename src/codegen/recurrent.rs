//! Recurrent cells, in two launches.

use super::CodegenError;
use super::builder::{Builder, ceil_div, float};
use super::function::of_float;
use super::kernel::Call;
use super::launch::Context;
use super::matmul;
use crate::lower::{BufferId, MOST_HIDDEN};
use crate::op::{Activation, Direction, Op, Recurrent};
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
        b.define("BOUND", float(self.clip.unwrap_or(0.0)));
    }

    /// The functions, as text.
    fn expression(&self) -> String {
        let names = ["gate_of", "candidate_of", "state_of"];
        names.into_iter().zip(self.functions).fold(String::new(), |text, (name, function)| {
            let Some(function) = function else { return text };
            let body = match function {
                Activation::Unary(op) => of_float(op, "x", DType::F32),
                Activation::Affine(a, b) => format!("{} * x + {}", float(*a), float(*b)),
                Activation::ScaledTanh(a, b) => {
                    format!("{} * tanh_of({} * x)", float(*a), float(*b))
                }
            };
            text + &format!(
                "__device__ __forceinline__ float {name}(float x) {{ return {body}; }}\n"
            )
        })
    }

    /// The operands behind the first three, by their names in the kernel.
    fn read(&self, b: &mut Builder<'_>, mut operands: &[BufferId]) {
        let lstm = self.kind == 0;
        for (name, given) in [
            ("bias", self.bias),
            ("lengths", self.lengths),
            ("initial", self.initial),
            ("initial_cell", self.initial && lstm),
            ("peepholes", self.peepholes),
            ("gates", true),
        ] {
            if given && let [first, rest @ ..] = operands {
                b.read(name, *first);
                operands = rest;
            }
        }
    }
}

/// The sequences of a block: their states stay in 48 KiB of shared memory, three numbers for each element of the padded
/// state.
fn together(hidden: i64) -> i64 {
    let padded = (hidden.max(1) + 3) / 4 * 4;
    (MOST_HIDDEN / padded).clamp(1, MOST_TOGETHER)
}

/// `recurrent.cu`.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::Recurrent(op)), [x, _, r, rest @ ..], [y, last, cell_state @ ..]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
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
    let cell = Cell::new(op);
    cell.define(&mut b);
    b.define("HIDDEN", hidden);
    b.define("DIRECTIONS", direction.count());
    b.flag("REVERSE", direction == Direction::Reverse);
    b.flag("BATCH_FIRST", batch_first);
    let sequences = together(hidden);
    b.define("TOGETHER", sequences);
    b.flag("R_VECTORS", b.is_aligned(*r) && hidden % 4 == 0);
    b.read("r", *r);
    cell.read(&mut b, rest);
    b.write("y", *y);
    b.write("last", *last);
    if let Some(state) = cell_state.first() {
        b.write("last_cell", *state);
    }
    if cell.lengths {
        b.report();
    }
    b.size("ROWS", &rows);
    b.size("STEPS", &steps);
    let directions = i64::try_from(direction.count()).unwrap_or(1);
    let grid = [ceil_div(&rows, sequences), directions.into(), Dim::ONE];
    Ok(b.finish("recurrent.cu", THREADS, cell.expression(), grid))
}
