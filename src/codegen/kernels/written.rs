//! Constants of the graph, and sizes that follow from the batch.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, bits_type, grid_x};
use crate::op::{Constant, Dims};
use crate::types::Dim;

/// Threads of the block, of which one works. As many as others have, so that it runs beside them.
const THREADS: u32 = 256;

/// The most elements that a kernel receives as arguments.
const MAX: usize = 16;

impl CudaOp for Constant {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Index).when((1..=MAX).contains(&self.value.len()))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let width = self.value.dtype().bytes();
        let bits = self.value.bytes().chunks_exact(width.max(1)).map(|element| {
            let mut word = [0; 8];
            word.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
            Dim::from(i64::from_le_bytes(word))
        });
        fill(context, bits.collect())
    }
}

impl CudaOp for Dims {
    fn supports(&self, _types: &Types<'_>) -> Support {
        let known = self.values.iter().all(|value| !value.is_overflow());
        Support::by(KernelClass::Index).when(known && (1..=MAX).contains(&self.values.len()))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        fill(context, self.values.clone())
    }
}

/// `written.cu`.
fn fill(context: &Context<'_>, bits: Vec<Dim>) -> Result<Call, CodegenError> {
    let [y] = context.results()?;
    let mut b = Builder::new(context.device);
    let ty = bits_type(b.ty(y).dtype);
    b.write_as("y", y, ty);
    b.define("ELEMENT", ty);
    b.define("COUNT", bits.len());
    b.arguments("BITS", bits);
    Ok(b.finish("written.cu", THREADS, String::new(), grid_x(Dim::ONE)))
}
