//! Concatenation along an axis, and its inverse.

use std::fmt::Write as _;

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, bits_type, block_count, divisible_by_four};
use crate::codegen::expression::through;
use crate::lower::{BufferId, Images, Through};
use crate::op::{AllGather, Concat, SplitOp};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim};

const THREADS: u32 = 256;

/// The most operands of a concatenation, or results of a split: each is a pointer in the argument.
const MAX: usize = 160;

fn supported(types: &Types<'_>) -> Support {
    let values = types.operands.len().max(types.results.len());
    Support::by(KernelClass::Move).when((1..=MAX).contains(&values))
}

/// The axis, counted from the first; negative ones count from the end.
fn from_first(axis: i64, rank: usize) -> i64 {
    if axis < 0 { axis + int::<i64>(rank) } else { axis }
}

/// True if an axis is one of those behind the first.
fn is_behind_rows(axis: i64, rank: usize) -> bool {
    (1..int::<i64>(rank)).contains(&from_first(axis, rank))
}

impl CudaOp for Concat {
    fn supports(&self, types: &Types<'_>) -> Support {
        let behind = types.operands.first().is_some_and(|x| is_behind_rows(self.axis, x.rank()));
        let images = if behind { Images::All } else { Images::RowMajor };
        let support = supported(types);
        let reads_through = Through::All.when(types.are(DType::F32));
        Support { images, reads_through, ..support.clone() }.when(support.kernel.is_some())
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y] = context.results()?;
        concat_or_split(context, self.axis, &context.launch.operands, y, false)
    }
}

impl CudaOp for AllGather {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y] = context.results()?;
        concat_or_split(context, self.axis, &context.launch.operands, y, false)
    }
}

impl CudaOp for SplitOp {
    fn supports(&self, types: &Types<'_>) -> Support {
        let behind = types.operands.first().is_some_and(|x| is_behind_rows(self.axis, x.rank()));
        let images = if behind { Images::First } else { Images::RowMajor };
        let support = supported(types);
        Support { images, ..support.clone() }.when(support.kernel.is_some())
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [x] = context.operands()?;
        concat_or_split(context, self.axis, &context.launch.results, x, true)
    }
}

/// A concatenated value as rows, each the concatenation of one row of every part.
struct Rows {
    count: Dim,
    /// Elements of a row.
    row: Dim,
    /// The elements of each part's row, and its offset in the row.
    sizes: Vec<Dim>,
    starts: Vec<Dim>,
}

impl Rows {
    fn new(b: &Builder<'_>, axis: usize, parts: &[BufferId], whole: BufferId) -> Self {
        // In memory order: what lies behind the joined axis there belongs to one run of a row.
        let (order, shape) = (b.axes(whole), &b.ty(whole).shape);
        let at = order.iter().position(|a| *a == axis);
        let at = invariant(at, "that rows are joined along an axis of the result");
        let product = |axes: &[usize]| axes.iter().fold(Dim::ONE, |p, a| p * shape[*a].clone());
        let (rows, inner) = (product(&order[..at]), product(&order[at + 1..]));
        let size = |id: &BufferId| b.ty(*id).shape[axis].clone() * inner.clone();
        let sizes: Vec<Dim> = parts.iter().map(size).collect();
        let next = |start: &mut Dim, size: &Dim| {
            let own = start.clone();
            *start = own.clone() + size.clone();
            Some(own)
        };
        let starts = sizes.iter().scan(Dim::ZERO, next).collect();
        Self { count: rows, row: shape[axis].clone() * inner.clone(), sizes, starts }
    }
}

/// `join.cu`: concatenates parts into `whole` along an axis (negative from the end), or splits it.
fn concat_or_split(
    context: &Context<'_>,
    axis: i64,
    parts: &[BufferId],
    whole: BufferId,
    is_split: bool,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let axis = int::<usize>(from_first(axis, b.ty(whole).rank()));
    let lies = |id: &BufferId| {
        (b.is_row_major(whole) && b.is_row_major(*id))
            || (b.is_channels_last(whole) && b.is_channels_last(*id))
    };
    if !parts.iter().all(lies) {
        return Err(context.unsupported("its values differ in the order of their elements"));
    }
    let Rows { count: rows, mut row, mut sizes, mut starts } = Rows::new(&b, axis, parts, whole);
    let aligned = parts.iter().chain([&whole]).all(|id| b.is_aligned(*id));
    // Vectors of four elements need every run and its offset in units of four; offsets are sums of
    // runs.
    let wide = aligned
        && b.ty(whole).dtype.bytes() == 4
        && divisible_by_four(&row)
        && sizes.iter().all(divisible_by_four);
    if wide {
        let all = sizes.iter_mut().chain(&mut starts).chain([&mut row]);
        all.for_each(|size| *size = size.floor_div(&4.into()));
    }
    // Elements are copied as bits: one kernel serves all types of a width, and no NaN changes.
    let ty = if wide { "uint4" } else { bits_type(b.ty(whole).dtype) };
    let names: Vec<String> = (0..parts.len()).map(|i| format!("part{i}")).collect();
    for (name, id) in names.iter().zip(parts) {
        if is_split {
            b.write_as(name, *id, ty);
        } else {
            b.read_as(name, *id, ty);
        }
    }
    let whole_as = if is_split { Builder::read_as } else { Builder::write_as };
    whole_as(&mut b, if is_split { "x" } else { "y" }, whole, ty);
    b.define("T", ty);
    b.flag("CUT", is_split);
    b.define("PARTS", parts.len());
    b.numbers("POINTERS", names.iter().map(|name| format!("p.{name}")));
    b.flag("THROUGH", !context.launch.prologue.is_empty());
    let text = taken(context)?;
    b.size("ROWS", &rows);
    b.size("ROW", &row);
    b.list("SIZES", &sizes);
    b.list("STARTS", &starts);
    let most = sizes.iter().fold(Dim::ZERO, |most, size| most.maximum(size)) * rows;
    // The grid has a row of blocks for each part, as long as the largest part needs; blocks beyond
    // the end of a smaller part do nothing.
    let count = int::<i64>(parts.len());
    let grid = [block_count(&most, i64::from(THREADS)), count.into(), Dim::ONE];
    Ok(b.finish("join.cu", THREADS, text, grid))
}

/// The function through which parts of floats are read, by their numbers; empty if none is.
fn taken(context: &Context<'_>) -> Result<String, CodegenError> {
    let mut cases = String::new();
    for (k, step) in &context.launch.prologue {
        let value = context.chained(through(step))?;
        // Writing to a string does not fail.
        writeln!(cases, "    if (k == {k}) return {value};").unwrap_or(());
    }
    if cases.is_empty() {
        return Ok(cases);
    }
    let head = "__device__ __forceinline__ float taken(int k, float x)";
    Ok(format!("{head} {{\n{cases}    return x;\n}}\n"))
}
