//! Chains of elementwise operators, and operators of several operands that are broadcast in any
//! way.

use super::CodegenError;
use super::builder::{Builder, blocks, line};
use super::expression::{Columns, Place, expression};
use super::function::{Term, apply, may_fail};
use super::kernel::Call;
use super::launch::Context;
use super::strides::Walk;
use crate::lower::{Access, BufferId, Chain, ChainStep};
use crate::types::Dim;
use crate::types::invariant::int;

/// Threads of a block.
const THREADS: u32 = 256;

/// The most threads of a block that lie along a row.
const ALONG_ROW: i64 = 64;

/// The longest row that is covered by 65,535 blocks, as many as a grid has along y; a longer one is
/// read as a vector that repeats.
const MOST_COLUMNS: i64 = 65_535 * ALONG_ROW;

/// The longest line behind a column whose places are `int`, with the stride that leads beyond its
/// end.
const MOST_BEHIND: i64 = 1 << 30;

/// Rows that a thread walks down, for what it computes once for its columns.
const ROWS: i64 = 8;

/// `elementwise.cu`.
pub(super) fn chain(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (own, operands) = launch.split_operands();
    let ([x], [y]) = (own, launch.results.as_slice()) else {
        return Err(context.unsupported("it has not one operand and one result"));
    };
    let mut b = Builder::new(context.device);
    let count = b.ty(*y).shape.elements();
    b.read("x", *x);
    b.write("y", *y);
    let columns = columns(&launch.chain).and_then(|c| Some((c, lines(&count, c)?)));
    let aligned = b.is_aligned(*x) && b.is_aligned(*y);
    // Without columns nothing but the addresses keeps four elements apart.
    let along = columns.as_ref().map_or(4, |(c, _)| if c.inner == 1 { c.size } else { c.inner });
    let vectors = aligned && along.is_multiple_of(4);
    let width: usize = if vectors { 4 } else { 1 };
    b.define("VECTOR", width);
    // 0 says that there are no columns; `BEHIND` is not read then.
    b.define("COLUMNS", columns.as_ref().map_or(0, |(c, _)| c.size));
    b.define("BEHIND", columns.as_ref().map_or(1, |(c, _)| c.inner)); // as said above
    let types = [b.ty(*x).dtype, b.ty(*y).dtype];
    let known = columns.as_ref().map(|(c, _)| *c);
    let place = Place { types, operands, columns: known, vectors };
    let text = context.chained(expression(&mut b, &launch.chain, &place))?;
    let width = int::<i64>(width);
    let Some((columns, lines)) = columns else {
        b.size("COUNT", &count);
        let grid = line(blocks(&count, i64::from(THREADS) * width));
        return Ok(b.finish("elementwise.cu", THREADS, text, grid));
    };
    let along = int::<i64>(along) / width;
    let most = if columns.inner == 1 { ALONG_ROW } else { i64::from(THREADS) };
    let lanes = along.clamp(1, most).cast_unsigned().next_power_of_two().cast_signed();
    b.size("LINES", &lines);
    b.define("LINE_THREADS", lanes);
    let at_once = i64::from(THREADS) / lanes;
    if columns.inner > 1 {
        return Ok(b.finish("elementwise.cu", THREADS, text, line(blocks(&lines, at_once))));
    }
    let across = Dim::from((along + lanes - 1) / lanes);
    let grid = [blocks(&lines, at_once * ROWS), across, Dim::ONE];
    Ok(b.finish("elementwise.cu", THREADS, text, grid))
}

/// The axis for whose places a step reads vectors: the last one in memory, or that of the channels
/// of a normalisation, of which only the factors are worth being computed once.
fn columns(chain: &Chain) -> Option<Columns> {
    let last = |access: &Access| matches!(access, Access::Axis { inner: 1, .. });
    let mut accesses = chain.steps.iter().flat_map(ChainStep::accesses);
    let along = accesses.find(last).or_else(|| {
        chain.steps.iter().find_map(|step| match step {
            ChainStep::ScaleShift { access, .. } => Some(*access),
            ChainStep::Unary(_) | ChainStep::Binary { .. } | ChainStep::Mixed { .. } => None,
        })
    });
    match along {
        Some(Access::Axis { inner, size }) => Some(Columns { inner, size }),
        Some(Access::Full | Access::Scalar) | None => None,
    }
}

/// The lines of elements that are computed at once: rows of the last axis, or what lies behind the
/// places of another.
fn lines(count: &Dim, columns: Columns) -> Option<Dim> {
    let Columns { inner, size } = columns;
    let length = i64::try_from(if inner == 1 { size } else { inner }).ok();
    let most = if inner == 1 { MOST_COLUMNS } else { MOST_BEHIND };
    let length = length.filter(|l| (1..=most).contains(l))?;
    count.exact_div(&length.into())
}

/// `broadcast.cu`.
pub(super) fn broadcast(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(op), [y]) = (&launch.op, launch.results.as_slice()) else {
        return Err(context.unsupported("it has not one result"));
    };
    let mut b = Builder::new(context.device);
    let shape = &b.ty(*y).shape;
    let steps = |id: BufferId| {
        let (own, steps) = (&b.ty(id).shape, b.steps(id));
        let behind = shape.rank().saturating_sub(own.rank());
        let step = |axis: usize| match axis.checked_sub(behind) {
            Some(a) if own[a] != Dim::ONE => steps[a].clone(),
            _ => Dim::ZERO,
        };
        (0..shape.rank()).map(step).collect::<Vec<Dim>>()
    };
    let operands = &launch.operands;
    let (Some(a), Some(second), 2..=3) = (operands.first(), operands.get(1), operands.len()) else {
        return Err(context.unsupported("it has not two or three operands"));
    };
    let all = [*a, *second, *operands.last().unwrap_or(second)].map(steps);
    let walk = Walk::new(
        b.axes(*y)
            .into_iter()
            .map(|axis| (shape[axis].clone(), all.each_ref().map(|steps| steps[axis].clone()))),
    );
    let names = ["a", "b", "c"];
    let term = |(id, name): (&BufferId, &'static str)| Term::new(name, b.ty(*id).dtype);
    let terms: Vec<Term> = operands.iter().zip(names).map(term).collect();
    let result = apply(op, &terms, b.ty(*y).dtype);
    let result =
        result.ok_or_else(|| context.unsupported("it takes no elements of these types"))?;
    let count = shape.elements();
    for (id, name) in operands.iter().zip(names) {
        b.read(name, *id);
    }
    b.write("y", *y);
    if may_fail(op, b.ty(*y).dtype) {
        b.report();
    }
    b.size("COUNT", &count);
    b.define("OPERANDS", operands.len());
    b.list("SIZES", &walk.sizes());
    for (k, name) in ["A_STEPS", "B_STEPS", "C_STEPS"].into_iter().enumerate().take(operands.len())
    {
        b.list(name, &walk.steps(k));
    }
    b.define("RESULT", result);
    let grid = line(blocks(&count, i64::from(THREADS)));
    Ok(b.finish("broadcast.cu", THREADS, String::new(), grid))
}
