//! Gather by elements or index tuples (`gather_elements`, `gather_nd`).

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{bits_type, finish, vector};
use crate::codegen::lines::{define_coordinates, index_tuples, product};
use crate::codegen::strides::LoopNest;
use crate::op::GatherAt;
use crate::types::Dim;
use crate::types::invariant::int;

impl CudaOp for GatherAt {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Index)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, places], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let (shape, own, steps) = (&b.ty(x).shape, &b.ty(places).shape, b.strides(x));
        let elements = b.ty(y).shape.elements();
        let (ty, count) = match *self {
            GatherAt::Elements { axis } => {
                let axis = context.axis(axis, shape.rank())?;
                let step = |a: usize| if a == axis { Dim::ZERO } else { steps[a].clone() };
                let walk = LoopNest::new((0..own.rank()).map(|a| (own[a].clone(), [step(a)])));
                b.flag("ND", false);
                b.list("SIZES", &walk.sizes());
                b.list("STEPS", &walk.strides(0));
                b.size("LENGTH", &shape[axis]);
                b.size("STRIDE", &steps[axis]);
                (bits_type(b.ty(x).dtype), elements)
            }
            GatherAt::Nd { batch_dims } => {
                let batch = int::<usize>(batch_dims);
                let (given, rows) = index_tuples(own);
                let behind = batch + given;
                let block = product(&shape[behind..]);
                let (ty, many) = vector(&b, [x, y], &[&block]);
                let part = |size: &Dim| size.floor_div(&many.into());
                b.flag("ND", true);
                b.size("BLOCK", &part(&block));
                b.size("EACH", &product(&rows[batch..]));
                b.size("BATCH", &part(&product(&shape[batch..])));
                let strides: Vec<Dim> = steps[batch..behind].iter().map(part).collect();
                define_coordinates(&mut b, &shape[batch..behind], &strides);
                (ty, part(&elements))
            }
        };
        b.read_as("x", x, ty);
        b.read("places", places);
        b.write_as("y", y, ty);
        b.report();
        b.define("T", ty);
        b.size("COUNT", &count);
        Ok(finish(b, "gather_at.cu", &count))
    }
}
