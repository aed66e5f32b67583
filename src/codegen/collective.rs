//! What replicas have, combined in their order.

use super::CodegenError;
use super::builder::{Builder, blocks, c_type, line};
use super::kernel::Call;
use super::launch::Context;
use crate::lower::BufferId;
use crate::op::{MergeTopK, Op};
use crate::types::invariant::{int, invariant};
use crate::types::{Combine, DType, Dim};

const THREADS: u32 = 256;

/// Parts that one kernel combines.
const MOST_PARTS: usize = 64;

/// Whichever file combines as the operator says.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let all = launch.operands.iter().chain(&launch.results).map(|id| context.device.buffer(*id));
    if let Some(half) = all.clone().find(|b| matches!(b.ty.dtype, DType::F16 | DType::Bf16)) {
        return Err(context.unsupported(format!("`{}` is {}", half.name, half.ty.dtype)));
    }
    if launch.operands.len() > 2 * MOST_PARTS {
        return Err(context.unsupported(format!("{} values", launch.operands.len())));
    }
    match (&launch.op, launch.results.as_slice()) {
        (Some(Op::AllReduce(op)), [y]) => combine(context, op.by, &op.rows, *y, false),
        (Some(Op::ExclusiveScan(op)), [y]) => combine(context, op.by, &op.rows, *y, true),
        (Some(Op::MergeTopK(op)), [y, places]) => merge(context, op, [*y, *places]),
        _ => Err(context.unsupported("it combines in another way")),
    }
}

/// `all_reduce.cu`.
fn combine(
    context: &Context<'_>,
    by: Combine,
    rows: &[Dim],
    y: BufferId,
    scans: bool,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let parts = context.launch.operands.as_slice();
    let order = context.device.buffer(y).order;
    let differs = |id: &BufferId| {
        let part = context.device.buffer(*id);
        part.order != order || part.ty != *b.ty(y)
    };
    if parts.len() != rows.len() || parts.iter().any(differs) {
        return Err(context.unsupported("its parts differ"));
    }
    let dtype = b.ty(y).dtype;
    let names: Vec<String> = (0..parts.len()).map(|i| format!("part{i}")).collect();
    for (name, id) in names.iter().zip(parts) {
        b.read(name, *id);
    }
    b.write("y", y);
    b.define("T", c_type(dtype));
    b.flag("FLOAT", dtype.is_float());
    b.flag("FLAGS", dtype == DType::Bool);
    b.flag("SCAN", scans);
    b.define(
        "BY",
        match by {
            Combine::Sum => 0,
            Combine::Prod => 1,
            Combine::Max => 2,
            Combine::Min => 3,
            Combine::Lse => 4,
            Combine::L2 => 5,
            Combine::Mean => 6,
            Combine::WideSum => 7,
            Combine::WideProd => 8,
        },
    );
    let first = b.ty(y).shape.first().and_then(Dim::as_const);
    let wide = || invariant(first, "that wide numbers have a known number of components");
    b.define("COMPONENTS", if by.is_wide() { wide() } else { 0 });
    b.define("NEUTRAL", neutral(by, dtype));
    b.define("PARTS", parts.len());
    if !parts.is_empty() {
        b.numbers("POINTERS", names.iter().map(|name| format!("p.{name}")));
        b.list("ROWS", rows);
    }
    let count = b.ty(y).shape.elements();
    b.size("COUNT", &count);
    let grid = line(blocks(&count, i64::from(THREADS)));
    Ok(b.finish("all_reduce.cu", THREADS, String::new(), grid))
}

/// The element that changes no other, as text.
fn neutral(by: Combine, dtype: DType) -> String {
    let (least, most) = match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => {
            ("-(T)infinity()".to_owned(), "(T)infinity()".to_owned())
        }
        DType::I64 => ("(-9223372036854775807ll - 1)".to_owned(), format!("{}ll", i64::MAX)),
        DType::U64 => ("0".to_owned(), format!("{}ull", u64::MAX)),
        DType::I32 => ("(-2147483647 - 1)".to_owned(), i32::MAX.to_string()),
        DType::U32 => ("0".to_owned(), format!("{}u", u32::MAX)),
        DType::I16 => (i16::MIN.to_string(), i16::MAX.to_string()),
        DType::U16 => ("0".to_owned(), u16::MAX.to_string()),
        DType::I8 => (i8::MIN.to_string(), i8::MAX.to_string()),
        DType::U8 => ("0".to_owned(), u8::MAX.to_string()),
        DType::Bool => ("0".to_owned(), "1".to_owned()),
    };
    match by {
        Combine::Prod | Combine::WideProd => "1".to_owned(),
        Combine::Max => least,
        Combine::Min => most,
        Combine::Sum | Combine::WideSum | Combine::Lse | Combine::L2 | Combine::Mean => {
            "0".to_owned()
        }
    }
}

/// `merge_top_k.cu`.
fn merge(
    context: &Context<'_>,
    op: &MergeTopK,
    [y, places]: [BufferId; 2],
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let operands = context.launch.operands.as_slice();
    let parts = operands.len() / 2;
    let rank = int::<i64>(b.ty(y).rank());
    let axis = if op.axis < 0 { op.axis + rank } else { op.axis };
    let shape = &b.ty(y).shape;
    let axis = usize::try_from(axis).ok().filter(|axis| *axis < shape.rank());
    let row_major = operands.iter().chain([&y, &places]).all(|id| b.is_row_major(*id));
    let (Some(axis), true) = (axis, row_major && parts > 0 && parts == op.entries.len()) else {
        return Err(context.unsupported("its candidates are not in rows"));
    };
    let dtype = b.ty(y).dtype;
    for (i, pair) in operands.chunks_exact(2).enumerate() {
        b.read(&format!("values{i}"), pair[0]);
        b.read(&format!("places{i}"), pair[1]);
    }
    b.write("y", y);
    b.write("places", places);
    b.define("T", c_type(dtype));
    b.flag("FLOAT", dtype.is_float());
    b.flag("LARGEST", op.largest);
    b.define("PARTS", parts);
    b.numbers("VALUES", (0..parts).map(|i| format!("p.values{i}")));
    b.numbers("POSITIONS", (0..parts).map(|i| format!("p.places{i}")));
    let counts: Vec<Dim> =
        operands.iter().step_by(2).map(|id| b.ty(*id).shape[axis].clone()).collect();
    let next = |from: &mut Dim, entries: &Dim| {
        let own = from.clone();
        *from = own.clone() + entries.clone();
        Some(own)
    };
    let from: Vec<Dim> = op.entries.iter().scan(Dim::ZERO, next).collect();
    b.list("COUNTS", &counts);
    b.list("FROM", &from);
    b.list("ENTRIES", &op.entries);
    let product = |dims: &[Dim]| dims.iter().fold(Dim::ONE, |p, d| p * d.clone());
    let (blocks_before, inner) = (product(&shape[..axis]), product(&shape[axis + 1..]));
    b.size("BLOCKS", &blocks_before);
    b.size("INNER", &inner);
    b.size("K", &op.k);
    let most = counts.iter().fold(Dim::ZERO, |most, count| most.maximum(count));
    let candidates = most * blocks_before * inner;
    let parts = int::<i64>(parts);
    let grid = [blocks(&candidates, i64::from(THREADS)), parts.into(), Dim::ONE];
    Ok(b.finish("merge_top_k.cu", THREADS, String::new(), grid))
}
