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
mod recurrent;
mod reduce;
mod reshape;
mod resize;
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
mod support;
mod tile;
mod top_k;
mod transpose;
mod trilu;
mod unary;
mod unsqueeze;
mod where_;

use std::sync::Arc;

use smallvec::SmallVec;

pub use binary::Apply2;
pub use blocks::BlockOrder;
pub use custom::{CustomOp, CustomOps, Sharding};
pub use dft::DftSizes;
pub use einsum::Labels;
pub use external::{Assume, Callback, Function, ParseAssumeError, ResultTypes};
pub use grid_sample::GridPadding;
pub use group_norm::GroupSizes;
pub use matmul::MatMulSizes;
pub use pad::PadMode;
pub use recurrent::{
    Activation, Cell, CellKind, CellSettings, Direction, Engine, Part, Sequence,
    Sizes as SequenceSizes, States,
};
pub use resize::{AxisTaps, Coordinates, Nearest, Passes, ResizeMode};
pub use scatter::Reduction;
pub use support::attr::{Attr, AttrError, AttrReader};
pub use support::error::OpError;
pub use support::formula::{Emit, Formula, converted};
pub use support::gradient::{Backward, Gradient, Rule, RuleError, Term};
pub use support::interval::Interval;
pub use support::lookup::Lookup;
pub use support::traits::{Statistics, Traits};
pub use support::{attr, broadcast, element, gradient, infer, ints, real, rules, strided, window};
pub use unary::{Apply, GeluForm};

use crate::types::{Claim, Combine, DType, Dim, Refusal, Tensor, TensorType};
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

/// The name and the attributes of an operator; implemented by the macros that declare one.
pub trait OpText {
    /// The name in the text form.
    fn name(&self) -> &'static str;
    /// The attributes that differ from their defaults, by name.
    fn attrs(&self) -> Vec<(&'static str, Attr)>;
    /// Replaces the batch size by `rows` in every attribute.
    fn at_rows(&mut self, rows: &Dim);
}

/// How an operator is read from the text form; implemented by the macros that declare one.
pub trait OpRead: Sized {
    /// The names it has in the text form: one, or those of a family.
    const NAMES: &'static [&'static str];
    /// Reads the attributes of the operator `name`.
    fn read(name: &'static str, reader: &mut AttrReader) -> Result<Self, AttrError>;
}

/// All that is known of an operator. Who states nothing more is treated as if nothing were known,
/// which is safe but for `jumps` and the facts that warn.
///
/// Elsewhere: opcode (XLA); `ATen` operator (PyTorch); operation (MLIR); `NodeProto` (ONNX); layer
/// (Keras).
pub trait OpDef: OpText {
    /// Facts that passes need, whichever operator it is.
    fn traits(&self) -> Traits;

    /// The types of the results, with every condition on operands and attributes checked, and the
    /// integer values of small results where they follow from those of the operands.
    ///
    /// Never panics, whatever the attributes are. Sizes may depend on `N`; a condition on sizes
    /// holds only if it holds for every `N >= 0`.
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError>;

    /// The split rule: the claims of the results where the operands satisfy theirs.
    ///
    /// `operands` and `results` have the types of the whole batch. The replica runs the operator
    /// with `N` in its attributes replaced by its own rows where a result is split, or is partial
    /// though no operand is.
    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal>;

    /// The split rule where an operand is partial: the results are partial if the operator, applied
    /// to the parts of all replicas, gives parts of its result. By default it needs the whole.
    fn partial(
        &self,
        operands: &[SplitOperand<'_>],
        _results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        Err(rules::needs_whole(operands))
    }

    /// The reference evaluation: the meaning of the operator, on operands that `infer` accepts.
    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError>;

    /// True if a rounding of its floats may change a result by any amount: it compares them, cuts
    /// them to integers, or gives their positions.
    fn jumps(&self) -> bool {
        false
    }

    /// The elements of the results, all of type `dtype`, given those of the operands, where all of
    /// them are integers.
    fn interval(&self, _dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let all = || operands.iter().copied().collect::<Option<Vec<_>>>();
        self.traits().contains(Traits::MOVES).then(all)??.into_iter().reduce(Interval::with)
    }

    /// The operand that the first result equals in every bit, if it has the same type.
    fn same_as(&self, _operands: &[Known<'_>], _result: &TensorType) -> Option<usize> {
        None
    }

    /// Whether it gives back what `before` was given, if it is applied to its result.
    fn undoes(&self, _before: &Op) -> bool {
        false
    }

    /// The operand that this one is multiplied or divided by.
    fn scale_of(&self, _operand: usize) -> Option<usize> {
        None
    }

    /// Its elements, if it is a tensor that is known.
    fn known(&self) -> Option<&Tensor> {
        None
    }

    /// Of what combines floats or integers of all replicas, how it does.
    fn combines(&self) -> Option<Combine> {
        None
    }

    /// The operator that, of the magnitudes of its operands, gives the sum of the magnitudes of the
    /// terms of each element of the result, if these are sums that may cancel or their logarithms.
    fn of_magnitudes(&self) -> Option<Op> {
        None
    }

    /// The operator whose results it rounds, and the one that rounds them: replicas combine what
    /// the first gives, which is not rounded before.
    fn unrounded(&self, _operands: &[&TensorType]) -> Option<(Op, Op)> {
        None
    }

    /// Of what is the product of the first two operands as matrices, plus the third if there is
    /// one, and nothing else: whether the second is transposed.
    fn plain_product(&self) -> Option<bool> {
        None
    }

    /// The error of its evaluation at this number of rows that its attributes alone decide: a
    /// kernel cannot report it.
    fn fails_at(&self, _rows: i64) -> Result<(), OpError> {
        Ok(())
    }

    /// Whether it takes a running statistic as this operand.
    fn is_running(&self, _operand: usize) -> bool {
        false
    }

    /// The part of the elements that training makes it drop.
    fn drop_rate(&self) -> f32 {
        0.0
    }

    /// Of what normalises by statistics of the rows that it is given, of which rows.
    fn statistics(&self) -> Option<Statistics> {
        None
    }

    /// The same operator with the statistics of these rows.
    fn with_statistics(&self, _of: Statistics) -> Option<Op> {
        None
    }

    /// The operand that holds indices or lengths, and which are valid.
    fn lookup(&self, _operands: &[&TensorType]) -> Option<Lookup> {
        None
    }

    /// The axis, negative from the end, if it joins its operands one after the other along one.
    fn joined(&self) -> Option<i64> {
        None
    }

    /// Of what combines parts of replicas, which operands it reads where the batch has `n` rows.
    fn present(&self, _n: i64) -> Option<Vec<bool>> {
        None
    }

    /// Of what takes a number of entries of an axis: the entries of the axis, and those taken. Both
    /// may depend on the batch.
    fn takes(&self, _operands: &[&TensorType]) -> Option<(Dim, Dim)> {
        None
    }

    /// Whether it takes, as this operand, what each replica holds of its own rows.
    fn takes_own(&self, _operand: usize) -> bool {
        false
    }

    /// Whether it has a derivative.
    fn gradient(&self) -> Gradient;

    /// The gradient rule: gives every operand whose gradient is wanted what the gradients of the
    /// results make of it. Operators whose gradient is [`Gradient::Defined`] have one.
    fn backward(&self, _at: &mut Backward<'_>) -> Result<(), RuleError> {
        match self.gradient() {
            Gradient::Defined | Gradient::Zero(_) => Ok(()),
            Gradient::None(reason) => Err(RuleError::Undefined(reason)),
        }
    }
}

/// An operand as inference sees it.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Its type.
    pub ty: &'a TensorType,
    /// Its elements in row-major order, where it is a small tensor of integers (or `bool`) known
    /// before the run.
    pub ints: Option<&'a [Dim]>,
}

/// An operand as a rule for identities sees it.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Its type.
    pub ty: &'a TensorType,
    /// Its elements, where it is a constant.
    pub value: Option<&'a Tensor>,
}

/// The known integer elements of a result.
pub type Ints = Arc<[Dim]>;

/// A result of inference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred {
    /// Its type.
    pub ty: TensorType,
    /// Its elements, where they are known before the run.
    pub ints: Option<Ints>,
}

impl From<TensorType> for Inferred {
    fn from(ty: TensorType) -> Self {
        Self { ty, ints: None }
    }
}

/// The results of inference, one for each result of the operator.
pub type Results = SmallVec<[Inferred; 1]>;

/// The claims of an operator's results.
pub type Claims = SmallVec<[Claim; 1]>;

/// An operand as a split rule sees it.
///
/// Elsewhere: sharding rule (XLA); sharding strategy (PyTorch); sharding interface (MLIR).
#[derive(Clone, Copy, Debug)]
pub struct SplitOperand<'a> {
    /// The relation of the replicas' parts to the whole.
    pub claim: Claim,
    /// The type of the whole.
    pub ty: &'a TensorType,
}
