//! The operators: what each takes and gives, what it means, and how a split batch passes through
//! it.
//!
//! An operator is one file (an elementwise family one file, a large one a folder) and two lines
//! below: its module, and its place in the list. The file says everything about it. Its name is
//! the same everywhere: the file, the text form, its cases, its kernel. `grad` has the operators
//! that gradients are made of, `support` what operators share.

pub(crate) mod all_gather;
pub(crate) mod all_reduce;
mod arg;
mod batch_moments;
mod batch_norm;
mod batch_norm_apply;
pub(crate) mod batch_norm_train;
mod binary;
mod bit_cast;
mod blocks;
mod cast;
mod classify;
mod col2im;
mod compare;
mod concat;
mod constant;
mod constant_of_shape;
mod conv;
mod conv_transpose;
pub(crate) mod copy;
mod custom;
pub(crate) mod def;
mod dft;
pub(crate) mod dims;
mod dropout;
pub(crate) mod dropout_train;
mod dynamic_quantize;
mod einsum;
pub(crate) mod exclusive_scan;
mod expand;
mod external;
pub(crate) mod first;
mod flatten;
pub(crate) mod for_training;
mod gather;
mod gather_at;
mod gemm;
pub(crate) mod grad;
mod grid_sample;
mod group_norm;
mod identity;
mod layer_norm;
mod logic;
mod lp_norm;
mod lrn;
mod matmul;
mod max_unpool;
pub(crate) mod merge_top_k;
pub(crate) mod narrow;
mod one_hot;
pub(crate) mod own_rows;
mod pad;
pub(crate) mod pair_probabilities;
mod pool;
mod quantize;
mod random;
mod range;
pub(crate) mod recurrent;
mod reduce;
mod reshape;
pub(crate) mod resize;
mod reverse;
mod reverse_sequence;
pub(crate) mod row_noise;
mod scan;
mod scatter;
pub(crate) mod segment_sum;
mod shape;
mod size;
mod slice;
mod softmax;
mod sort;
mod split;
mod squeeze;
pub(crate) mod support;
mod tile;
mod top_k;
mod transpose;
pub(crate) mod tree_ensemble;
mod trilu;
pub(crate) mod unary;
mod unsqueeze;
mod where_;

pub(crate) use binary::Apply2;
pub use blocks::BlockOrder;
pub use custom::{CustomOp, CustomOps, GradientBuilder, Sharding};
pub(crate) use def::{
    Border, Claims, Inferred, Ints, Known, OpDef, OpRead, OpText, Operand, Results, SplitOperand,
    Splitting,
};
pub(crate) use dft::DftSizes;
pub(crate) use einsum::Labels;
pub use external::Assume;
pub(crate) use grad::recurrent_grad::sequence_gradients;
pub use grid_sample::GridPadding;
pub(crate) use group_norm::GroupSizes;
pub(crate) use matmul::MatMulSizes;
pub use pad::PadMode;
pub use recurrent::{Activation, CellKind, CellSettings, Direction};
pub(crate) use recurrent::{Cell, Engine, Part, Sequence, Sizes as SequenceSizes, States, cut};
pub(crate) use resize::{AxisTaps, Passes};
pub use resize::{Coordinates, Nearest, ResizeMode};
pub use scatter::Reduction;
pub(crate) use support::attr::shortest;
pub use support::attr::{Attr, AttrError, AttrReader};
pub use support::error::OpError;
pub(crate) use support::formula::{Emit, Expr, Formed, Formula, converted};
pub(crate) use support::gradient::{Backward, Gradient};
pub use support::gradient::{RuleError, Term};
pub(crate) use support::interval::Interval;
pub(crate) use support::lookup::Lookup;
pub(crate) use support::numeric::setting_in;
pub(crate) use support::positions::{PositionOperand, Positions};
pub(crate) use support::ratio::{MOST as MOST_FOLLOWED, Ratio};
pub(crate) use support::traits::{Statistics, Traits};
pub(crate) use support::{
    attr, broadcast, element, functions, gradient, infer, ints, real, rules, strided, window,
};
pub(crate) use unary::Apply;
pub use unary::GeluForm;

use crate::types::{Refusal, TensorType};
use grad::{
    batch_norm_apply_grad, batch_norm_grad, batch_norm_sums, conv_weight_grad, grid_sample_grad,
    pool_grad, recurrent_grad,
};
use support::declare::ops;
pub(crate) use support::rows;
#[cfg(test)]
pub(crate) use support::testing;
use support::{declare, index, interval, numeric, prelude, ranked, row_hash, view, wide};

ops! {
    // Layers with weights, and what their gradients are made of.
    pub batch_norm::BatchNorm,
    pub(crate) batch_norm_train::BatchNormTrain,
    pub(crate) batch_norm_grad::BatchNormGrad,
    pub(crate) batch_moments::BatchMoments,
    pub(crate) batch_norm_apply::BatchNormApply,
    pub(crate) batch_norm_sums::BatchNormSums,
    pub(crate) batch_norm_apply_grad::BatchNormApplyGrad,
    pub conv::Conv,
    pub conv_transpose::ConvTranspose,
    pub(crate) conv_weight_grad::ConvWeightGrad,
    pub gemm::Gemm,
    pub lrn::Lrn,
    pub matmul::MatMul,
    pub pool::Pool,
    pub(crate) pool_grad::PoolGrad,
    pub blocks::Blocks,
    pub resize::Resize,
    pub grid_sample::GridSample,
    pub(crate) grid_sample_grad::GridSampleGrad,
    pub col2im::Col2Im,
    pub max_unpool::MaxUnpool,
    // Element by element.
    pub unary::Unary,
    pub binary::Binary,
    pub compare::Compare,
    pub logic::Logic,
    pub classify::Classify,
    pub where_::Where,
    pub cast::Cast,
    pub bit_cast::BitCast,
    pub quantize::Quantize,
    pub dynamic_quantize::DynamicQuantize,
    // Over axes.
    pub reduce::Reduce,
    pub(crate) narrow::Narrow,
    pub arg::Arg,
    pub(crate) tree_ensemble::TreeEnsemble,
    pub(crate) pair_probabilities::PairProbabilities,
    pub softmax::Softmax,
    // Elements moved or seen otherwise; the collectives of a replicated graph.
    pub concat::Concat,
    pub slice::Slice,
    pub reshape::Reshape,
    pub(crate) copy::CopyOp,
    pub identity::Identity,
    pub dropout::Dropout,
    pub(crate) dropout_train::DropoutTrain,
    pub(crate) row_noise::RowNoise,
    pub(crate) for_training::ForTraining,
    pub(crate) first::First,
    pub(crate) all_reduce::AllReduce,
    pub(crate) all_gather::AllGather,
    pub(crate) exclusive_scan::ExclusiveScan,
    pub(crate) own_rows::OwnRows,
    pub(crate) dims::Dims,
    pub constant::Constant,
    // Shapes.
    pub flatten::Flatten,
    pub squeeze::Squeeze,
    pub unsqueeze::Unsqueeze,
    pub transpose::Transpose,
    pub expand::Expand,
    pub tile::Tile,
    // Elements chosen by numbers that are computed.
    pub gather::Gather,
    pub gather_at::GatherAt,
    pub scatter::Scatter,
    pub(crate) segment_sum::SegmentSum,
    pub top_k::TopK,
    pub(crate) merge_top_k::MergeTopK,
    pub sort::Sort,
    pub reverse::Reverse,
    pub one_hot::OneHot,
    // Sizes as numbers, and tensors that depend on them alone.
    pub shape::ShapeOp,
    pub size::SizeOp,
    pub constant_of_shape::ConstantOfShape,
    pub range::Range,
    pub random::Random,
    // Parts of a tensor, norms, transforms, sequences.
    pub split::SplitOp,
    pub pad::Pad,
    pub layer_norm::LayerNorm,
    pub group_norm::GroupNorm,
    pub lp_norm::LpNorm,
    pub scan::Scan,
    pub dft::Dft,
    pub trilu::Trilu,
    pub einsum::Einsum,
    pub reverse_sequence::ReverseSequence,
    pub recurrent::Recurrent,
    pub(crate) recurrent_grad::RecurrentGrad,
    // Operators that only others can run.
    pub external::External,
    pub custom::Custom,
}

/// The operator of a framework, as it is given to a builder or a gradient rule.
impl<T: CustomOp> From<T> for Op {
    fn from(op: T) -> Self {
        Self::Custom(Custom::new(op))
    }
}
