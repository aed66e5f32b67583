//! Chains of elementwise operators, and operators of two operands that are broadcast in any way.

use super::CodegenError;
use super::builder::{Builder, blocks, line};
use super::expression::{binary, expression};
use super::kernel::Call;
use super::launch::Context;
use super::strides::Walk;
use crate::lower::{Access, Chain, ChainStep};
use crate::op::Op;
use crate::types::Dim;

/// Threads of a block.
const THREADS: u32 = 256;

/// The most threads of a block that lie along a row.
const ALONG_ROW: usize = 64;

/// The longest row that is covered by 65,535 blocks, as many as a grid has along y; a longer one is read as a vector that
/// repeats.
const MOST_COLUMNS: i64 = 65_535 * ALONG_ROW as i64;

/// Rows that a thread walks down, for what it computes once for its columns.
const ROWS: i64 = 8;

/// `elementwise.cu`.
pub(super) fn chain(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (own, operands) = launch.split_operands();
    let ([x], [y]) = (own, launch.results.as_slice()) else {
        return Err(context.unsupported("it has not one operand and one result"));
    };
    context.only_f32()?;
    let mut b = Builder::new(context.device);
    let count = b.ty(*y).shape.elements();
    b.read("x", *x);
    b.write("y", *y);
    let columns = columns(&launch.chain).and_then(|c| Some((c, rows(&count, c)?)));
    let aligned = b.is_aligned(*x) && b.is_aligned(*y);
    let vectors = aligned && columns.as_ref().is_none_or(|(c, _)| c % 4 == 0);
    let width: usize = if vectors { 4 } else { 1 };
    b.define("VECTOR", width);
    b.define("COLUMNS", columns.as_ref().map_or(0, |(c, _)| *c));
    let known = columns.as_ref().map(|(c, _)| *c);
    let text = expression(&mut b, &launch.chain, operands, known, vectors);
    let width = i64::try_from(width).unwrap_or(1);
    let Some((columns, rows)) = columns else {
        b.size("COUNT", &count);
        let grid = line(blocks(&count, i64::from(THREADS) * width));
        return Ok(b.finish("elementwise.cu", THREADS, text, grid));
    };
    let along = i64::try_from(columns).unwrap_or(i64::MAX) / width;
    let lanes = usize::try_from(along).unwrap_or(1).next_power_of_two().min(ALONG_ROW);
    let lanes = i64::try_from(lanes).unwrap_or(1);
    b.size("ROWS", &rows);
    b.define("COLUMN_THREADS", lanes);
    let down = i64::from(THREADS) / lanes * ROWS;
    let across = Dim::from((along + lanes - 1) / lanes);
    if across.eval(1) > 65_535 {
        return Err(context.unsupported("its last axis is too long"));
    }
    let grid = [blocks(&rows, down), across, Dim::ONE];
    Ok(b.finish("elementwise.cu", THREADS, text, grid))
}

/// The size of the last axis in memory, where a step reads a vector along it.
fn columns(chain: &Chain) -> Option<usize> {
    chain.steps.iter().find_map(|step| match step {
        ChainStep::Binary { access: Access::Axis { inner: 1, size }, .. }
        | ChainStep::ScaleShift { access: Access::Axis { inner: 1, size }, .. } => Some(*size),
        ChainStep::Unary(_) | ChainStep::Binary { .. } | ChainStep::ScaleShift { .. } => None,
    })
}

fn rows(count: &Dim, columns: usize) -> Option<Dim> {
    let columns = i64::try_from(columns).ok().filter(|c| (1..=MOST_COLUMNS).contains(c))?;
    count.exact_div(&columns.into())
}

/// `broadcast.cu`.
pub(super) fn broadcast(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::Binary(op)), [left, right], [y]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it has not two operands and one result"));
    };
    context.only_f32()?;
    let mut b = Builder::new(context.device);
    let shape = &b.ty(*y).shape;
    let steps = [*left, *right].map(|id| {
        let (own, steps) = (&b.ty(id).shape, b.steps(id));
        let behind = shape.rank().saturating_sub(own.rank());
        let step = |axis: usize| match axis.checked_sub(behind) {
            Some(a) if own[a] != Dim::ONE => steps[a].clone(),
            _ => Dim::ZERO,
        };
        (0..shape.rank()).map(step).collect::<Vec<Dim>>()
    });
    let walk = Walk::new(
        b.axes(*y)
            .into_iter()
            .map(|axis| (shape[axis].clone(), [steps[0][axis].clone(), steps[1][axis].clone()])),
    );
    let count = shape.elements();
    b.read("a", *left);
    b.read("b", *right);
    b.write("y", *y);
    b.size("COUNT", &count);
    b.list("SIZES", &walk.sizes());
    b.list("A_STEPS", &walk.steps(0));
    b.list("B_STEPS", &walk.steps(1));
    b.define("RESULT", binary(op, "a", "b"));
    let grid = line(blocks(&count, i64::from(THREADS)));
    Ok(b.finish("broadcast.cu", THREADS, String::new(), grid))
}
