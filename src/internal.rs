//! Parts that the tests and benches of fanwise reach into. Nothing here is stable.

pub use crate::analysis::agree::agree;
pub use crate::analysis::random::random_inputs;
pub use crate::analysis::sums::{Sums, Unexplained};
#[cfg(feature = "lower")]
pub use crate::backend::ahead::run_each;
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::conv::{ConvOperands, ConvPlan};
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::elementwise::Epilogue;
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::matmul::gemm;
#[cfg(feature = "cpu")]
pub use crate::backend::cpu::products::View;
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
pub use crate::backend::cuda::driver::devices::{count, devices};
#[cfg(feature = "cuda")]
pub use crate::backend::cuda::driver::probe::driver;
#[cfg(feature = "cuda")]
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
#[cfg(feature = "keras")]
pub use crate::format::keras::supported as keras_layers;
#[cfg(feature = "onnx")]
pub use crate::format::onnx::data::read_tensor;
#[cfg(feature = "onnx")]
pub use crate::format::onnx::ops::supported;
#[cfg(feature = "onnx")]
pub use crate::format::onnx::weights::initializers;
pub use crate::ir::param::ContentHash;
pub use crate::ir::print::Printer;
#[cfg(feature = "lower")]
pub use crate::lower::chain::{Chain, ChainStep};
#[cfg(feature = "lower")]
pub use crate::lower::check::check;
#[cfg(feature = "lower")]
pub use crate::lower::work::work;
#[cfg(feature = "keras")]
pub use crate::model::keras::{keras_architecture, live};
#[cfg(feature = "onnx")]
pub use crate::model::traced::traced;
pub use crate::op::all_gather::AllGather;
pub use crate::op::all_reduce::AllReduce;
pub use crate::op::batch_norm_train::BatchNormTrain;
pub use crate::op::copy::CopyOp;
pub use crate::op::def::{Inferred, Ints, Known, OpDef, OpRead, Operand, Results, SplitOperand};
pub use crate::op::dropout_train::DropoutTrain;
pub use crate::op::exclusive_scan::ExclusiveScan;
pub use crate::op::first::First;
pub use crate::op::grad::batch_norm_grad::BatchNormGrad;
pub use crate::op::grad::conv_weight_grad::ConvWeightGrad;
pub use crate::op::grad::grid_sample_grad::GridSampleGrad;
pub use crate::op::grad::pool_grad::PoolGrad;
pub use crate::op::grad::recurrent_grad::RecurrentGrad;
pub use crate::op::merge_top_k::MergeTopK;
pub use crate::op::narrow::Narrow;
pub use crate::op::segment_sum::SegmentSum;
pub use crate::op::support::formula::{Emit, converted};
pub use crate::op::support::gradient::{Backward, Gradient, RuleError, Term};
pub use crate::op::support::interval::Interval;
pub use crate::op::support::traits::Traits;
pub use crate::op::tree_ensemble::TreeEnsemble;
pub use crate::pass::explain::headline;
#[cfg(feature = "gradients")]
pub use crate::pass::gradient::class_axis;
#[cfg(feature = "gradients")]
pub use crate::pass::gradient::fixed_parameters;
#[cfg(feature = "gradients")]
pub use crate::pass::gradient::pullback;
pub use crate::pass::report::claims_text;
#[cfg(feature = "train")]
pub use crate::train::data::change::Change;
#[cfg(feature = "train")]
pub use crate::train::data::cifar::Cifar;
#[cfg(feature = "images")]
pub use crate::train::data::decode::decode_image;
#[cfg(feature = "images")]
pub use crate::train::data::folder::Folder;
#[cfg(feature = "train")]
pub use crate::train::data::labels::SAMPLE_WEIGHT;
#[cfg(feature = "train")]
pub use crate::train::data::source::row;
#[cfg(feature = "train")]
pub use crate::train::data::table::Table;
#[cfg(feature = "train")]
pub use crate::train::stage::replicated;
pub use crate::types::dim::MAX_SIZE;
