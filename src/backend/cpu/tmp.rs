//! Temporary.
use crate::lower::{Kernels, Support, Types};
use crate::op::{Binary, Op};
use crate::types::{DType, KernelClass as K, Target};
/// Kernels of the CPU.
#[derive(Debug)]
pub struct CpuKernels;
/// Kernels of the CPU.
pub static CPU: CpuKernels = CpuKernels;
const TARGET: Target = Target {
    name: "cpu",
    alignment: 64,
    keeps_params: false,
    updates: true,
    updates_together: false,
    collectives: false,
    channels_last: false,
};
impl Kernels for CpuKernels {
    fn target(&self) -> &Target {
        &TARGET
    }
    fn supports(&self, op: &Op, types: &Types<'_>) -> Support {
        let class = op.kernel();
        if !types.are(DType::F32)
            || (matches!(op, Op::Binary(Binary::Pow))
                && types.operands[0].dtype != types.operands[1].dtype)
        {
            return Support::default();
        }
        let is_step = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::BatchNorm(_));
        let kernel = match (class, op) {
            (K::Elementwise, Op::Binary(_) | Op::Compare(_) | Op::Logic(_) | Op::Where(_)) => {
                Some(K::Broadcast)
            }
            (
                K::Conv
                | K::MatMul
                | K::Pool
                | K::Reduce
                | K::Softmax
                | K::Norm
                | K::Move
                | K::Copy
                | K::Recurrent
                | K::Training,
                _,
            ) => Some(class),
            _ => None,
        };
        Support {
            kernel,
            is_step,
            ends_in_chain: matches!(class, K::Conv | K::MatMul),
            ..Support::default()
        }
    }
}
