//! All-reduce and exclusive scan: the parts of the replicas are combined in replica order, whatever
//! the device, so every device computes the same bits.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, c_type, finish};
use crate::op::{AllReduce, ExclusiveScan};
use crate::types::invariant::invariant;
use crate::types::{Combine, DType, Dim};

/// The most values that a kernel combines.
const MAX: usize = 128;

/// Support for combining up to [`MAX`] values of any type except half-precision floats.
pub(super) fn combines(types: &Types<'_>) -> Support {
    let mut all = types.operands.iter().chain(&types.results);
    let halves = all.any(|ty| matches!(ty.dtype, DType::F16 | DType::Bf16));
    Support::by(KernelClass::Collective).when(types.operands.len() <= MAX && !halves)
}

impl CudaOp for AllReduce {
    fn supports(&self, types: &Types<'_>) -> Support {
        combines(types).with_own_bits(self.by == Combine::Lse)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        combine(context, self.by, &self.rows, false)
    }
}

impl CudaOp for ExclusiveScan {
    fn supports(&self, types: &Types<'_>) -> Support {
        combines(types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        combine(context, self.by, &self.rows, true)
    }
}

/// `all_reduce.cu`.
fn combine(
    context: &Context<'_>,
    by: Combine,
    rows: &[Dim],
    scans: bool,
) -> Result<Call, CodegenError> {
    let [y] = context.results()?;
    let mut b = Builder::new(context.device);
    let parts = context.launch.operands.as_slice();
    let order = context.device.buffer(y).order;
    let differs = |id: &crate::lower::BufferId| {
        let part = context.device.buffer(*id);
        part.order != order || part.ty != *b.ty(y)
    };
    // The kernel indexes all parts and the result with one flat index, so they must agree in type
    // and memory order. `rows` tells it at run time which replicas have rows; the parts of the
    // others are not read.
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
    // The numbers are those of `all_reduce.cu`.
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
            Combine::Moments => 9,
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
    Ok(finish(b, "all_reduce.cu", &count))
}

/// The neutral element, as text.
fn neutral(by: Combine, dtype: DType) -> String {
    let (least, most) = match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => {
            ("-(T)infinity()".to_owned(), "(T)infinity()".to_owned())
        }
        // C++ has no negative literals: the minus is applied to a number that would not fit.
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
        Combine::Sum
        | Combine::WideSum
        | Combine::Lse
        | Combine::L2
        | Combine::Mean
        | Combine::Moments => "0".to_owned(),
    }
}
