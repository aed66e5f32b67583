//! Parts that the tests and benches of fanwise reach into. Nothing here is stable.

pub use crate::analysis::random::random_inputs;
pub use crate::analysis::sums::{Sums, Unexplained};
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
pub use crate::backend::cuda::driver::rates::copy_rates;
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::run::executor::CudaExecutable;
#[cfg(feature = "cuda")]
pub use crate::codegen::kernel::{Arg, Call, Kernel, ParamDecl};
#[cfg(feature = "cuda")]
pub use crate::codegen::kernels::calls;
#[cfg(feature = "cuda")]
pub use crate::codegen::key::key;
#[cfg(feature = "cuda")]
pub use crate::codegen::program::kernels;
#[cfg(feature = "cuda")]
pub use crate::codegen::unit::{Unit, entry_name, units};
pub use crate::ir::param::ContentHash;
pub use crate::ir::print::Printer;
#[cfg(feature = "cpu")]
pub use crate::lower::chain::{Chain, ChainStep};
pub use crate::lower::check::check;
pub use crate::op::def::{
    Claims, Inferred, Ints, Known, OpDef, OpRead, OpText, Operand, Results, SplitOperand,
};
pub use crate::op::support::formula::{Emit, converted};
pub use crate::op::support::gradient::{Backward, Gradient, RuleError, Term};
pub use crate::op::support::interval::Interval;
pub use crate::op::support::traits::Traits;
pub use crate::pass::explain::headline;
pub use crate::pass::gradient::class_axis;
pub use crate::pass::gradient::fixed_parameters;
pub use crate::pass::report::claims_text;
pub use crate::train::data::change::Change;
#[cfg(feature = "train")]
pub use crate::train::data::cifar::Cifar;
#[cfg(feature = "images")]
pub use crate::train::data::decode::decode_image;
#[cfg(feature = "train")]
pub use crate::train::data::folder::Folder;
pub use crate::train::data::labels::SAMPLE_MASK;
pub use crate::train::data::labels::SAMPLE_WEIGHT;
#[cfg(feature = "train")]
pub use crate::train::data::source::row;
#[cfg(feature = "train")]
pub use crate::train::data::table::Table;
pub use crate::types::dim::MAX_SIZE;
