//! Parts that the tests and benches of fanwise reach into. Nothing here is stable.

#[cfg(feature = "cpu")]
pub use crate::backend::cpu::conv::{ConvPlan, conv};
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::elementwise::Epilogue;
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::matmul::{View, gemm};
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::rows::{
    LayerNormPlan, ReducePlan, SoftmaxPlan, layer_norm, reduce, softmax,
};
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::strides::{BroadcastPlan, StridedPlan, broadcast, strided};
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::compiler::cache::{Cache, DEFAULT_LIMIT, decode};
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::compiler::compile::Compiler;
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::compiler::resources::{Resources, parse as parse_resources};
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::driver::probe::driver;
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::run::executor::CudaExecutable;
#[cfg(feature = "cuda")]
pub use crate::codegen::{
    Arg, Call, Kernel, ParamDecl, Unit, calls, entry_name, kernels, key, units,
};
pub use crate::op::support::formula::{Emit, converted};
pub use crate::op::support::gradient::{Backward, Gradient, RuleError, Term};
pub use crate::op::support::interval::Interval;
pub use crate::op::support::traits::Traits;
