//! Scatter: updates at given indices. One thread writes each element of the result and applies its
//! updates in ascending order, so repeated indices have a defined result without atomics.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{bits_type, c_type, finish};
use crate::codegen::lines::{define_coordinates, index_tuples, product};
use crate::op::{Reduction, Scatter};
use crate::types::{DType, Dim};

/// The entries of a line up to which one thread updates it, and from which on a whole block does.
const SHORT: i64 = 64;
const LONG: i64 = 4096;

impl CudaOp for Scatter {
    fn supports(&self, _types: &Types<'_>) -> Support {
        let (Self::Elements { reduction, .. } | Self::Nd { reduction }) = self;
        Support::by(match reduction {
            Reduction::None => KernelClass::Index,
            Reduction::Add | Reduction::Mul | Reduction::Max | Reduction::Min => KernelClass::Line,
        })
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, places, updates], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let (shape, own) = (&b.ty(x).shape, &b.ty(places).shape);
        let (lines, length, inner, reduction) = match *self {
            Scatter::Elements { axis, reduction } => {
                let axis = context.axis(axis, shape.rank())?;
                let steps = b.strides(places);
                let others: Vec<usize> = (0..shape.rank()).filter(|a| *a != axis).collect();
                let list = |f: &dyn Fn(usize) -> Dim, none: Dim| -> Vec<Dim> {
                    // A vector has no other axis; a kernel has one at least.
                    if others.is_empty() {
                        vec![none]
                    } else {
                        others.iter().map(|a| f(*a)).collect()
                    }
                };
                b.flag("ND", false);
                b.define("AXES", others.len().max(1));
                b.list("SIZES", &list(&|a| shape[a].clone(), Dim::ONE));
                b.list("PLACES", &list(&|a| own[a].clone(), Dim::ONE));
                b.list("STEPS", &list(&|a| steps[a].clone(), Dim::ZERO));
                b.size("STRIDE", &steps[axis]);
                b.size("UPDATES", &own[axis]);
                let lines = others.iter().fold(Dim::ONE, |p, a| p * shape[*a].clone());
                (lines, shape[axis].clone(), product(&shape[axis + 1..]), reduction)
            }
            Scatter::Nd { reduction } => {
                let (given, rows) = index_tuples(own);
                let entries = &shape[..given];
                let strides: Vec<Dim> = (0..given).map(|a| product(&entries[a + 1..])).collect();
                b.flag("ND", true);
                define_coordinates(&mut b, entries, &strides);
                b.size("UPDATES", &product(rows));
                let run = product(&shape[given..]);
                (run.clone(), product(entries), run, reduction)
            }
        };
        let (kind, ty) = combined(reduction, b.ty(x).dtype);
        // Each thread scans all updates of its line for its own entries, so more lanes pay off only
        // for long lines. The number of lanes changes no result: entries are independent.
        let lanes: i64 = match length.as_const() {
            Some(..SHORT) => 1,
            Some(LONG..) => 256,
            _ => 32,
        };
        b.read_as("x", x, ty);
        b.read("places", places);
        b.read_as("updates", updates, ty);
        b.write_as("y", y, ty);
        b.report();
        b.define("T", ty);
        b.define("KIND", kind);
        b.define("LANES", lanes);
        b.flag("ALONG", inner == Dim::ONE);
        b.size("LINES", &lines);
        b.size("LENGTH", &length);
        b.size("INNER", &inner);
        Ok(finish(b, "scatter.cu", &(lines * lanes)))
    }
}

/// The code of a reduction, and the type as which its elements are read.
fn combined(reduction: Reduction, dtype: DType) -> (u8, &'static str) {
    match reduction {
        Reduction::None => (0, bits_type(dtype)),
        Reduction::Add => (1, c_type(dtype)),
        Reduction::Mul => (2, c_type(dtype)),
        Reduction::Max => (3, c_type(dtype)),
        Reduction::Min => (4, c_type(dtype)),
    }
}
