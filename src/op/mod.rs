//! The operators: what each takes and gives, what it means, and how a split batch passes through
//! it.
//!
//! An operator is one file (an elementwise family one file, a large one a folder) and one line in
//! the list below; its file says everything about it. Its name is the same everywhere: the file,
//! the text form, its cases, its kernel. `grad` has the operators that gradients are made of,
//! `support` what operators share.

mod all_gather;
mod all_reduce;
mod arg;
mod batch_norm;
mod batch_norm_train;
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
mod copy;
mod custom;
pub(crate) mod def;
mod dft;
mod dims;
mod dropout;
mod dropout_train;
mod dynamic_quantize;
mod einsum;
mod exclusive_scan;
mod expand;
mod external;
mod first;
mod flatten;
mod gather;
mod gather_at;
mod gemm;
mod grad;
mod grid_sample;
mod group_norm;
mod identity;
mod layer_norm;
mod logic;
mod lp_norm;
mod lrn;
mod matmul;
mod max_unpool;
mod merge_top_k;
mod narrow;
mod one_hot;
mod own_rows;
mod pad;
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
mod scan;
mod scatter;
mod segment_sum;
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
mod trilu;
pub(crate) mod unary;
mod unsqueeze;
mod where_;

pub(crate) use binary::Apply2;
pub use blocks::BlockOrder;
pub use custom::{CustomOp, CustomOps, GradientBuilder, Sharding};
pub(crate) use def::{
    Claims, Inferred, Ints, Known, OpDef, OpRead, OpText, Operand, Results, SplitOperand,
};
pub(crate) use dft::DftSizes;
pub(crate) use einsum::Labels;
pub use external::{Assume, Callback, Function, ResultTypes};
pub use grid_sample::GridPadding;
pub(crate) use group_norm::GroupSizes;
pub(crate) use matmul::MatMulSizes;
pub use pad::PadMode;
pub use recurrent::{Activation, CellKind, CellSettings, Direction};
pub(crate) use recurrent::{Cell, Engine, Part, Sequence, Sizes as SequenceSizes, States};
pub(crate) use resize::Passes;
pub use resize::{Coordinates, Nearest, ResizeMode};
pub use scatter::Reduction;
pub use support::attr::{Attr, AttrError, AttrReader};
pub use support::error::OpError;
pub(crate) use support::formula::{Emit, Formula, converted};
pub(crate) use support::gradient::{Backward, Gradient};
pub use support::gradient::{RuleError, Term};
pub(crate) use support::interval::Interval;
pub(crate) use support::lookup::Lookup;
pub(crate) use support::positions::{PositionOperand, Positions};
pub(crate) use support::traits::{Statistics, Traits};
pub(crate) use support::{
    attr, broadcast, element, gradient, infer, ints, real, rules, strided, window,
};
pub(crate) use unary::Apply;
pub use unary::GeluForm;

use crate::types::{Refusal, TensorType};
use grad::{batch_norm_grad, conv_weight_grad, grid_sample_grad, pool_grad, recurrent_grad};
use support::declare::ops;
#[cfg(test)]
pub(crate) use support::testing;
use support::{declare, index, interval, numeric, ranked, rows, view, wide};

ops! {
    batch_norm::BatchNorm,
    batch_norm_train::BatchNormTrain,
    batch_norm_grad::BatchNormGrad,
    conv::Conv,
    conv_transpose::ConvTranspose,
    conv_weight_grad::ConvWeightGrad,
    gemm::Gemm,
    lrn::Lrn,
    matmul::MatMul,
    pool::Pool,
    pool_grad::PoolGrad,
    blocks::Blocks,
    resize::Resize,
    grid_sample::GridSample,
    grid_sample_grad::GridSampleGrad,
    col2im::Col2Im,
    max_unpool::MaxUnpool,
    unary::Unary,
    binary::Binary,
    compare::Compare,
    logic::Logic,
    classify::Classify,
    where_::Where,
    cast::Cast,
    bit_cast::BitCast,
    quantize::Quantize,
    dynamic_quantize::DynamicQuantize,
    reduce::Reduce,
    narrow::Narrow,
    arg::Arg,
    softmax::Softmax,
    concat::Concat,
    slice::Slice,
    reshape::Reshape,
    copy::CopyOp,
    identity::Identity,
    dropout::Dropout,
    dropout_train::DropoutTrain,
    first::First,
    all_reduce::AllReduce,
    all_gather::AllGather,
    exclusive_scan::ExclusiveScan,
    own_rows::OwnRows,
    dims::Dims,
    constant::Constant,
    flatten::Flatten,
    squeeze::Squeeze,
    unsqueeze::Unsqueeze,
    transpose::Transpose,
    expand::Expand,
    tile::Tile,
    gather::Gather,
    gather_at::GatherAt,
    scatter::Scatter,
    segment_sum::SegmentSum,
    top_k::TopK,
    merge_top_k::MergeTopK,
    sort::Sort,
    reverse::Reverse,
    one_hot::OneHot,
    shape::ShapeOp,
    size::SizeOp,
    constant_of_shape::ConstantOfShape,
    range::Range,
    random::Random,
    split::SplitOp,
    pad::Pad,
    layer_norm::LayerNorm,
    group_norm::GroupNorm,
    lp_norm::LpNorm,
    scan::Scan,
    dft::Dft,
    trilu::Trilu,
    einsum::Einsum,
    reverse_sequence::ReverseSequence,
    recurrent::Recurrent,
    recurrent_grad::RecurrentGrad,
    external::External,
    custom::Custom,
}

/// The operator of a framework, as it is given to a builder or a gradient rule.
impl<T: CustomOp> From<T> for Op {
    fn from(op: T) -> Self {
        Self::Custom(Custom::new(op))
    }
}
