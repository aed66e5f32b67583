//! Elementwise operators with general broadcasting.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, finish};
use crate::codegen::function::{Element, apply, may_fail};
use crate::codegen::strides::LoopNest;
use crate::lower::{BufferId, Images};
use crate::op::{Binary, Compare, Logic, Where};
use crate::types::{DType, Dim};

fn broadcasts() -> Support {
    Support { is_step: true, images: Images::Any, ..Support::by(KernelClass::Broadcast) }
}

impl CudaOp for Binary {
    fn supports(&self, types: &Types<'_>) -> Support {
        // A power of two types is computed in `f64` and may be cut to an integer, which a device's
        // `pow` could miss by 1.
        let exact = match (self, types.operands.as_slice()) {
            (Self::Pow, [a, b]) => {
                a.dtype == b.dtype || (a.dtype.is_integer() && b.dtype.is_integer())
            }
            _ => true,
        };
        let own = *self == Self::Pow && types.are(DType::F64);
        broadcasts().with_own_bits(own).when(exact)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        broadcast(context)
    }
}

macro_rules! broadcast {
    ($($op:ident),*) => {
        $(impl CudaOp for $op {
            fn supports(&self, _types: &Types<'_>) -> Support {
                broadcasts()
            }

            fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
                broadcast(context)
            }
        })*
    };
}

broadcast!(Compare, Logic, Where);

/// `broadcast.cu`.
fn broadcast(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(op), [y]) = (&launch.op, launch.results.as_slice()) else {
        return Err(context.unsupported("it does not have one result"));
    };
    let mut b = Builder::new(context.device);
    let shape = &b.ty(*y).shape;
    let steps = |id: BufferId| {
        let (own, steps) = (&b.ty(id).shape, b.strides(id));
        let behind = shape.rank().saturating_sub(own.rank());
        let step = |axis: usize| match axis.checked_sub(behind) {
            // A stride of 0 repeats an axis of size 1; axes that the operand lacks are repeated as
            // well.
            Some(a) if own[a] != Dim::ONE => steps[a].clone(),
            _ => Dim::ZERO,
        };
        (0..shape.rank()).map(step).collect::<Vec<Dim>>()
    };
    let operands = &launch.operands;
    let (Some(a), Some(second), 2..=3) = (operands.first(), operands.get(1), operands.len()) else {
        return Err(context.unsupported("it does not have two or three operands"));
    };
    // Of two operands the second stands twice, which keeps no axes from being merged.
    let all = [*a, *second, *operands.last().unwrap_or(second)].map(steps);
    // A nest of few axes: every axis costs a division per element, and contiguous ones merge only
    // if they are contiguous in all operands.
    let walk = LoopNest::new(
        b.axes(*y)
            .into_iter()
            .map(|axis| (shape[axis].clone(), all.each_ref().map(|steps| steps[axis].clone()))),
    );
    let names = ["a", "b", "c"];
    let term = |(id, name): (&BufferId, &'static str)| Element::new(name, b.ty(*id).dtype);
    let terms: Vec<Element> = operands.iter().zip(names).map(term).collect();
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
        b.list(name, &walk.strides(k));
    }
    b.define("RESULT", result);
    Ok(finish(b, "broadcast.cu", &count))
}
