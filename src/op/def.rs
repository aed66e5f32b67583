//! The trait of every operator, and the arguments of its methods.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Attr, AttrError, AttrReader, Backward, Gradient, Interval, Lookup, Op, OpError,
    PositionOperand, Positions, Ratio, RuleError, Statistics, Traits, rules,
};
use crate::types::{Claim, Code, Combine, DType, Dim, Refusal, Shard, Tensor, TensorType};

/// The name and the attributes of an operator; implemented by the macros that declare one.
pub trait OpText {
    /// The name in the text form.
    fn name(&self) -> &'static str;
    /// The attributes that differ from their defaults, by name.
    fn attrs(&self) -> Vec<(&'static str, Attr)>;
    /// Replaces the batch size by `rows` in every attribute.
    fn at_rows(&mut self, rows: &Dim);
    /// True if an attribute depends on the batch size, so that `at_rows` may change it.
    fn depends_on_batch(&self) -> bool;
    /// The facts that the declaration states, [`Traits::NONE`] at least.
    fn facts(&self) -> Traits;
}

/// Reader of an operator's text form; implemented by the macros that declare one.
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
    /// Facts that passes need, whichever operator it is: those of the declaration, and those that
    /// hold of some attributes only.
    fn traits(&self) -> Traits {
        self.facts()
    }

    /// The types of the results, with every condition on operands and attributes checked, and the
    /// integer values of small results where they follow from those of the operands.
    ///
    /// Never panics, whatever the attributes are. Sizes may depend on `N`; a condition on sizes
    /// holds only if it holds for every `N >= 0`.
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError>;

    /// The split rule: the claims of the results where the operands satisfy theirs. By default they
    /// are whole on every replica where no operand is split, and otherwise [`Self::rows`] says.
    ///
    /// The replica runs the operator with `N` in its attributes replaced by its own rows where a
    /// result is split, or is partial though no operand is.
    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        at.first().map_or_else(|| at.whole(), |(_, shard)| self.rows(at, shard))
    }

    /// The split rule where operands are split, the first of them as `shard` says. By default only
    /// what works element by element has one.
    fn rows(&self, at: &Splitting<'_>, _shard: Shard) -> Result<Claims, Refusal> {
        if self.traits().contains(Traits::ELEMENTWISE) {
            return rules::elementwise(at);
        }
        at.refuse(Code::NoRule, "has no split rule")
    }

    /// The split rule where an operand is partial: the results are partial if the operator, applied
    /// to the parts of all replicas, gives parts of its result. By default it needs the whole.
    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        at.needs_whole()
    }

    /// The reference evaluation: the meaning of the operator, on operands that `infer` accepts.
    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError>;

    /// True if a rounding of its floats may change a result by any amount: it compares them, cuts
    /// them to integers, or gives their positions.
    fn jumps(&self) -> bool {
        self.traits().contains(Traits::JUMPS)
    }

    /// The elements of the results, all of type `dtype`, given those of the operands, where all of
    /// them are integers.
    fn interval(&self, _dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let all = || operands.iter().copied().collect::<Option<Vec<_>>>();
        self.traits().contains(Traits::MOVES).then(all)??.into_iter().reduce(Interval::with)
    }

    /// The numbers of rows in the result, where operands have some, or the operator makes them.
    /// Only asked for results of type `i64`.
    fn positions(&self, _operands: &[PositionOperand<'_>], _y: &TensorType) -> Option<Positions> {
        None
    }

    /// The axis of the first operand whose entries the elements of this result number.
    fn places(&self, _result: usize) -> Option<i64> {
        None
    }

    /// The element of a result of type `dtype` where those of the operands are these, of what works
    /// element by element. Floats are followed as if they did not round sizes.
    fn ratio(&self, _dtype: DType, _operands: &[Ratio]) -> Option<Ratio> {
        None
    }

    /// The operand that the first result equals in every bit, if it has the same type.
    fn same_as(&self, _operands: &[Known<'_>], _result: &TensorType) -> Option<usize> {
        None
    }

    /// Whether it gives back what `before` was given, if it is applied to its result.
    fn undoes(&self, _before: &Op) -> bool {
        false
    }

    /// Whether no element of the results, if they are floats, is below 0, where that holds of the
    /// operands of which it is known; an element may be a NaN.
    fn is_nonnegative(&self, known: &[bool]) -> bool {
        self.traits().contains(Traits::MOVES) && known.iter().all(|known| *known)
    }

    /// What it puts around its operand, if that is all it does.
    fn border(&self) -> Option<Border> {
        None
    }

    /// The operator that gives the same of its first operand without a border, if it can put it
    /// there by itself; `nonnegative` says that no element of that operand is below 0.
    fn bordered(&self, _border: &Border, _nonnegative: bool) -> Option<Op> {
        None
    }

    /// The operand that this one is multiplied or divided by.
    fn scale_of(&self, _operand: usize) -> Option<usize> {
        None
    }

    /// Its elements, if it is a tensor that is known.
    fn known(&self) -> Option<&Tensor> {
        None
    }

    /// The combiner of an operator that combines floats or integers of all replicas.
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

    /// What takes its place in training and draws by row with this seed; its operands are that of
    /// the operator, the numbers of rows, and the step.
    fn drawn(&self, _seed: i64) -> Option<Op> {
        None
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

    /// Of what writes updates at coordinates: the operator that writes each to an entry of axis 1
    /// in its own row.
    fn by_entries(&self) -> Option<Op> {
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

    /// Whether it has a derivative; who says nothing has a rule.
    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    /// The gradient rule: gives every operand whose gradient is wanted what the gradients of the
    /// results make of it. Operators whose gradient is [`Gradient::Defined`] have one.
    fn backward(&self, _at: &mut Backward<'_>) -> Result<(), RuleError> {
        match self.gradient() {
            Gradient::Zero(_) => Ok(()),
            Gradient::None(reason) => Err(RuleError::Undefined(reason)),
            Gradient::Defined => Err(RuleError::Undefined("it states no rule")),
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

/// Entries of one value around the spatial axes of a value `[N, C, spatial…]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Border {
    /// The number of entries before each spatial axis, then that after each.
    pub pads: Vec<i64>,
    /// The entries.
    pub value: f64,
}

impl Border {
    /// The pads of windows over what is inside of the border, that have `pads` over the whole:
    /// those before each spatial axis, then those after each, empty for none.
    pub(crate) fn pads_of(&self, pads: &[i64]) -> Option<Vec<i64>> {
        if pads.is_empty() {
            return Some(self.pads.clone());
        }
        let both = pads.iter().zip(&self.pads).map(|(a, b)| a.checked_add(*b));
        both.collect::<Option<Vec<i64>>>().filter(|both| both.len() == self.pads.len())
    }
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
pub(crate) type Claims = SmallVec<[Claim; 1]>;

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

/// The operands and the results of an operator as its split rule sees them, with the types of the
/// whole batch.
#[derive(Clone, Copy, Debug)]
pub struct Splitting<'a> {
    /// The operands.
    pub operands: &'a [SplitOperand<'a>],
    /// The types of the results.
    pub results: &'a [TensorType],
}
