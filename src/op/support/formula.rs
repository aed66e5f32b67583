//! Formulas written as operators: the one way in which gradient rules, passes and importers add
//! operators to a graph.

use std::ops::{Add, Div, Mul, Neg, Sub};

use smallvec::SmallVec;

use crate::op::{
    Arg, Binary, Cast, Classify, Compare, Concat, Constant, ConstantOfShape, Dims, Expand, Flatten,
    Gather, GatherAt, Identity, Logic, MatMul, OneHot, Op, OpDef, OpError, Pad, PadMode, Quantize,
    Range, Reduce, Reduction, Reshape, Scan, Scatter, SegmentSum, Slice, Softmax, SplitOp, Squeeze,
    Term, Transpose, Trilu, Unary, Unsqueeze, Where,
};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

/// Builder that operators are emitted into: a graph under construction.
pub trait Emit {
    /// Handle of a value.
    type Value: Copy;
    /// Error of an operator that the builder rejects.
    type Error: From<OpError>;

    /// The type of a value.
    fn ty(&self, value: Self::Value) -> &TensorType;

    /// Adds an operator, and returns its results.
    fn emit(
        &mut self,
        op: Op,
        operands: &[Self::Value],
    ) -> Result<SmallVec<[Self::Value; 2]>, Self::Error>;
}

/// The value that a builder makes.
pub(crate) type Made<B> = Result<<B as Emit>::Value, <B as Emit>::Error>;

/// The values that a builder makes.
pub(crate) type AllMade<B> = Result<SmallVec<[<B as Emit>::Value; 2]>, <B as Emit>::Error>;

/// Methods that add one operator each, named after it.
macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident($($x:ident),+ $(; $($arg:ident: $ty:ty),+)?) = $op:expr;)*) => {
        $(
            $(#[$doc])*
            fn $name(
                &mut self,
                $($x: Self::Value,)+
                $($($arg: $ty,)+)?
            ) -> Made<Self> {
                self.op($op, &[$($x),+])
            }
        )*
    };
}

/// Methods that add an operator of a value and of a number of its element type.
macro_rules! with_numbers {
    ($($(#[$doc:meta])* $name:ident(a, $number:ident) = $op:ident;)*) => {
        $(
            $(#[$doc])*
            fn $name(&mut self, a: Self::Value, $number: f64) -> Made<Self> {
                let number = self.number(a, $number)?;
                self.$op(a, number)
            }
        )*
    };
}

/// Formulas: methods that emit operators into a builder.
pub(crate) trait Formula: Emit {
    /// The shape of a value.
    fn shape(&self, a: Self::Value) -> Shape {
        self.ty(a).shape.clone()
    }

    /// The only result of an operator.
    fn op(&mut self, op: impl Into<Op>, operands: &[Self::Value]) -> Made<Self> {
        let results = self.ops(op, operands)?;
        Ok(*invariant(results.first(), "that an operator of a formula has a result"))
    }

    /// All results of an operator.
    fn ops(&mut self, op: impl Into<Op>, operands: &[Self::Value]) -> AllMade<Self> {
        self.emit(op.into(), operands)
    }

    /// A constant.
    fn literal(&mut self, value: Tensor) -> Made<Self> {
        self.op(Constant { value }, &[])
    }

    /// A constant in the element type of `like`.
    fn constant(&mut self, like: Self::Value, wide: Tensor) -> Made<Self> {
        let value = converted(&wide, self.ty(like).dtype)?;
        self.literal(value)
    }

    /// A number of the element type of `like`, without axes.
    fn number(&mut self, like: Self::Value, value: f64) -> Made<Self> {
        self.constant(like, Tensor::scalar(value))
    }

    /// A formula of the batch size, without axes.
    fn dim(&mut self, value: Dim) -> Made<Self> {
        self.op(Dims { scalar: true, values: vec![value] }, &[])
    }

    /// Formulas of the batch size, along one axis.
    fn dims(&mut self, values: Vec<Dim>) -> Made<Self> {
        self.op(Dims { scalar: false, values }, &[])
    }

    /// The value of a formula of the batch size, as a number of the element type of `like`.
    fn size(&mut self, like: Self::Value, value: Dim) -> Made<Self> {
        if let Some(value) = value.as_const() {
            return self.number(like, value as f64);
        }
        let size = self.dim(value)?;
        let to = self.ty(like).dtype;
        self.convert(size, to)
    }

    /// The numbers from 0 up to one below `limit`.
    fn count_to(&mut self, limit: Dim, dtype: DType) -> Made<Self> {
        self.op(Range { delta: 1, dtype, limit, start: Dim::ZERO }, &[])
    }

    /// Zeros of the element type of `like`.
    fn zeros(&mut self, like: Self::Value, shape: &Shape) -> Made<Self> {
        let zero = self.number(like, 0.0)?;
        self.expand(zero, shape)
    }

    /// A tensor filled with one element.
    fn filled(&mut self, shape: Vec<Dim>, value: Tensor) -> Made<Self> {
        self.op(ConstantOfShape { shape, value }, &[])
    }

    operators! {
        /// `a + b`.
        add(a, b) = Binary::Add;
        /// `a - b`.
        sub(a, b) = Binary::Sub;
        /// `a * b`.
        mul(a, b) = Binary::Mul;
        /// `a / b`.
        div(a, b) = Binary::Div;
        /// `a` to the power of `b`.
        pow(a, b) = Binary::Pow;
        /// The rest of `a / b`, with the sign of `b`.
        rem(a, b) = Binary::Mod { fmod: false };
        /// The larger one.
        max(a, b) = Binary::Max;
        /// `dy` where the result `y` of a `relu` is above 0, else 0.
        relu_grad(y, dy) = Binary::ReluGrad;
        /// `-a`.
        neg(a) = Unary::Neg;
        /// The magnitude.
        abs(a) = Unary::Abs;
        /// -1, 0 or 1.
        sign(a) = Unary::Sign;
        /// The square root.
        sqrt(a) = Unary::Sqrt;
        /// `e` to the power of `a`.
        exp(a) = Unary::Exp;
        /// The natural logarithm.
        log(a) = Unary::Log;
        /// The hyperbolic tangent.
        tanh(a) = Unary::Tanh;
        /// `1 / (1 + e^-a)`.
        sigmoid(a) = Unary::Sigmoid;
        /// Whether `a` is no number.
        is_nan(a) = Classify::IsNan;
        /// `ln(1 + e^a)`.
        softplus(a) = Unary::Softplus;
        /// `a` where it is above 0, else 0.
        relu(a) = Unary::Relu;
        /// The next integral number from `a` up.
        ceil(a) = Unary::Ceil;
        /// The next integral number from `a` down.
        floor(a) = Unary::Floor;
        /// The nearest number between two bounds.
        clip(a; min: f64, max: f64) = Unary::Clip { min: Some(min), max: Some(max) };
        /// `a == b`.
        equal(a, b) = Compare::Equal;
        /// `a < b`.
        less(a, b) = Compare::Less;
        /// `a <= b`.
        less_or_equal(a, b) = Compare::LessOrEqual;
        /// `a > b`.
        greater(a, b) = Compare::Greater;
        /// `a >= b`.
        greater_or_equal(a, b) = Compare::GreaterOrEqual;
        /// Logical and.
        and(a, b) = Logic::And;
        /// Logical or.
        or(a, b) = Logic::Or;
        /// Logical not.
        not(a) = Logic::Not;
        /// `a` where `condition` holds, else `b`.
        choose(condition, a, b) = Where {};
        /// `a` in the element type `to`, by an operator where it has that already, too.
        convert(a; to: DType) = Cast { to };
        /// `a` itself.
        identity(a) = Identity {};
        /// `a` under another shape, by an operator where it has that already, too.
        view(a; shape: Vec<Dim>) = Reshape { shape };
        /// `a` broadcast to a shape, by an operator where it has that already, too.
        broadcast(a; shape: Vec<Dim>) = Expand { shape };
        /// `a` with axes of size 1, at these places of the result.
        unsqueeze(a; axes: Vec<i64>) = Unsqueeze { axes };
        /// `a` without axes of size 1.
        squeeze(a; axes: Vec<i64>) = Squeeze { axes };
        /// `a` with its axes in another order.
        transpose(a; perm: Vec<usize>) = Transpose { perm };
        /// `a` as a matrix with the axes before this one as its rows.
        flatten(a; axis: i64) = Flatten { axis };
        /// The entries `from..to` of an axis.
        rows(a; axis: usize, from: Dim, to: Dim) = Slice::rows(axis, from, to);
        /// The entries of an axis at these places.
        gather(a, places; axis: i64) = Gather { axis };
        /// For each place the entry of an axis with its other coordinates.
        gather_elements(a, places; axis: i64) = GatherAt::Elements { axis };
        /// The blocks of `a` at these coordinates, which stand behind leading axes that both share.
        gather_blocks(a, coordinates; shared: i64) = GatherAt::Nd { batch_dims: shared };
        /// `a` with this value around it, or without what negative numbers take away.
        pad(a; pads: Vec<i64>, value: f64) = Pad { mode: PadMode::Constant, pads, value };
        /// One triangle of the matrices, and 0 in the other.
        triangle(a; k: i64, upper: bool) = Trilu { k, upper };
        /// The matrix product.
        matmul(a, b) = MatMul {};
        /// `a` with these entries of an axis at these places.
        scatter(a, places, entries; axis: i64) =
            Scatter::Elements { axis, reduction: Reduction::None };
        /// `a` with these entries of an axis added at these places.
        scatter_add(a, places, entries; axis: i64) =
            Scatter::Elements { axis, reduction: Reduction::Add };
        /// `a` with these blocks added at these coordinates.
        scatter_add_blocks(a, coordinates, blocks) = Scatter::Nd { reduction: Reduction::Add };
        /// The nearest integers of a type to `a / scale`, plus the zero point.
        quantize(a, scale, zero; axis: i64, to: DType) = Quantize::Quantize { axis, block: 0, to };
        /// The inclusive prefix sum along an axis.
        running_sum(a; axis: i64) = Scan::Sum { axis, exclusive: false, reverse: false };
        /// For each number a vector on a new last axis, which has the second of `ends` at its place
        /// and the first elsewhere.
        one_hot(numbers, ends; depth: Dim) = OneHot { axis: -1, depth };
        /// The sums of the entries of the first axis that have the same number.
        segment_sum(a, numbers; segments: i64) = SegmentSum { segments, wide: false };
        /// The sum over axes.
        reduce_sum(a; axes: Vec<i64>, keepdims: bool) = Reduce::Sum { axes, keepdims };
        /// The sum of squares over axes.
        reduce_sum_square(a; axes: Vec<i64>, keepdims: bool) = Reduce::SumSquare { axes, keepdims };
        /// The mean over axes.
        reduce_mean(a; axes: Vec<i64>, keepdims: bool) = Reduce::Mean { axes, keepdims };
        /// The largest element over axes.
        reduce_max(a; axes: Vec<i64>, keepdims: bool) = Reduce::Max { axes, keepdims };
        /// The smallest element over axes.
        reduce_min(a; axes: Vec<i64>, keepdims: bool) = Reduce::Min { axes, keepdims };
        /// The place of the first of the largest elements of an axis.
        arg_max(a; axis: i64) = Arg::Max { axis, keepdims: false, select_last_index: false };
        /// The softmax along an axis.
        softmax(a; axis: i64) = Softmax::Softmax { axis };
        /// Its logarithm.
        log_softmax(a; axis: i64) = Softmax::LogSoftmax { axis };
    }

    /// Values joined along an axis.
    fn concat(&mut self, parts: &[Self::Value], axis: i64) -> Made<Self> {
        self.op(Concat { axis }, parts)
    }

    /// The parts of these sizes along an axis.
    fn split(&mut self, a: Self::Value, axis: i64, sizes: Vec<Dim>) -> AllMade<Self> {
        self.ops(SplitOp { axis, sizes }, &[a])
    }

    /// The vector of 0 and 1, in `f64`.
    fn zero_and_one(&mut self) -> Made<Self> {
        self.literal(Tensor::new(&[2], &[0.0f64, 1.0]).map_err(OpError::from)?)
    }

    /// The entries of a range of an axis, every `step`-th.
    fn every(
        &mut self,
        a: Self::Value,
        axis: usize,
        range: std::ops::Range<i64>,
        step: i64,
    ) -> Made<Self> {
        let (starts, ends) = (vec![range.start.into()], vec![range.end.into()]);
        self.op(Slice { axes: vec![axis], starts, ends, steps: vec![step] }, &[a])
    }

    with_numbers! {
        /// `a * factor`.
        scale(a, factor) = mul;
        /// `a + addend`.
        shift(a, addend) = add;
        /// `a == with`.
        is(a, with) = equal;
        /// `a > bound`.
        is_above(a, bound) = greater;
        /// `a < bound`.
        is_below(a, bound) = less;
        /// `a <= most`.
        is_at_most(a, most) = less_or_equal;
        /// `a >= least`.
        is_at_least(a, least) = greater_or_equal;
    }

    /// `a * a`.
    fn square(&mut self, a: Self::Value) -> Made<Self> {
        self.mul(a, a)
    }

    /// `1 - a`.
    fn complement(&mut self, a: Self::Value) -> Made<Self> {
        let minus = self.neg(a)?;
        self.shift(minus, 1.0)
    }

    /// `a` where `condition` holds, else 0.
    fn only(&mut self, condition: Self::Value, a: Self::Value) -> Made<Self> {
        let zero = self.number(a, 0.0)?;
        self.choose(condition, a, zero)
    }

    /// `a` in the element type `to`.
    fn cast(&mut self, a: Self::Value, to: DType) -> Made<Self> {
        if self.ty(a).dtype == to { Ok(a) } else { self.convert(a, to) }
    }

    /// `a` under another shape.
    fn reshape(&mut self, a: Self::Value, shape: &Shape) -> Made<Self> {
        if self.ty(a).shape == *shape { Ok(a) } else { self.view(a, shape.to_vec()) }
    }

    /// `a` broadcast to a shape.
    fn expand(&mut self, a: Self::Value, shape: &Shape) -> Made<Self> {
        if self.ty(a).shape == *shape { Ok(a) } else { self.broadcast(a, shape.to_vec()) }
    }

    /// The sum over axes, which stay with size 1.
    fn sum(&mut self, a: Self::Value, axes: &[usize]) -> Made<Self> {
        if axes.is_empty() { Ok(a) } else { self.reduce_sum(a, named(axes), true) }
    }

    /// The sum of all elements, without axes.
    fn total(&mut self, a: Self::Value) -> Made<Self> {
        let axes: Vec<usize> = (0..self.ty(a).rank()).collect();
        self.reduce_sum(a, named(&axes), false)
    }

    /// The last two axes exchanged.
    fn transposed(&mut self, a: Self::Value) -> Made<Self> {
        let rank = self.ty(a).rank();
        if rank < 2 {
            return Ok(a);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 1, rank - 2);
        self.transpose(a, perm)
    }
}

impl<E: Emit + ?Sized> Formula for E {}

/// A formula of terms, as operators of Rust and the methods of `Formed` make it; `Backward::make`
/// writes it.
///
/// Operands are written before their operator, from left to right; of a choice first the value
/// that is taken otherwise, then the other one, then the condition.
pub enum Expr {
    /// A term.
    Term(Term),
    /// A number, in the element type of what it meets.
    Number(f64),
    /// An operator on its operands.
    Op(Op, Vec<Expr>),
    /// A formula times itself.
    Square(Box<Expr>),
    /// A condition, the value where it holds, and the value otherwise.
    Choice(Box<[Expr; 3]>),
}

impl From<Term> for Expr {
    fn from(term: Term) -> Self {
        Self::Term(term)
    }
}

impl From<f64> for Expr {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

/// Methods that apply one function each.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $op:expr;)*) => {
        $(
            $(#[$doc])*
            fn $name(self) -> Expr {
                self.apply($op)
            }
        )*
    };
}

/// What formulas are made of.
pub(crate) trait Formed: Into<Expr> {
    /// An operator on this.
    fn apply(self, op: impl Into<Op>) -> Expr {
        Expr::Op(op.into(), vec![self.into()])
    }

    /// An operator on this and another operand.
    fn with(self, op: impl Into<Op>, other: impl Into<Expr>) -> Expr {
        Expr::Op(op.into(), vec![self.into(), other.into()])
    }

    functions! {
        /// The magnitude.
        abs = Unary::Abs;
        /// -1, 0 or 1.
        sign = Unary::Sign;
        /// The square root.
        sqrt = Unary::Sqrt;
        /// One divided by it.
        reciprocal = Unary::Reciprocal;
        /// `e` to the power of it.
        exp = Unary::Exp;
        /// The natural logarithm.
        ln = Unary::Log;
    }

    /// This to the power of a number.
    fn to_power(self, exponent: f64) -> Expr {
        self.with(Binary::Pow, exponent)
    }

    /// This times itself.
    fn squared(self) -> Expr {
        Expr::Square(Box::new(self.into()))
    }

    /// Whether this is above a number.
    fn above(self, bound: f64) -> Expr {
        self.with(Compare::Greater, bound)
    }

    /// Whether this is at least a number.
    fn at_least(self, bound: f64) -> Expr {
        self.with(Compare::GreaterOrEqual, bound)
    }

    /// Whether this is at most a number.
    fn at_most(self, bound: f64) -> Expr {
        self.with(Compare::LessOrEqual, bound)
    }

    /// This where the condition holds, else `other`.
    fn where_else(self, condition: impl Into<Expr>, other: impl Into<Expr>) -> Expr {
        Expr::Choice(Box::new([condition.into(), self.into(), other.into()]))
    }

    /// This where the condition holds, else 0.
    fn only(self, condition: impl Into<Expr>) -> Expr {
        self.where_else(condition, 0.0)
    }

    /// The sum over axes, which stay with size 1.
    fn sum(self, axes: &[usize]) -> Expr {
        let sum = Reduce::Sum { axes: named(axes), keepdims: true };
        if axes.is_empty() { self.into() } else { self.apply(sum) }
    }

    /// The mean over axes, which stay with size 1.
    fn mean(self, axes: &[usize]) -> Expr {
        self.apply(Reduce::Mean { axes: named(axes), keepdims: true })
    }
}

macro_rules! formed {
    ($($t:ty),*) => { $(
        impl Formed for $t {}
        formed!(@ $t: Add add, Sub sub, Mul mul, Div div);
        impl Neg for $t {
            type Output = Expr;
            fn neg(self) -> Expr {
                self.apply(Unary::Neg)
            }
        }
    )* };
    (@ $t:ty: $($op:ident $method:ident),*) => { $(
        impl<B: Into<Expr>> $op<B> for $t {
            type Output = Expr;
            fn $method(self, other: B) -> Expr {
                self.with(Binary::$op, other)
            }
        }
    )* };
}
formed!(Term, Expr);

/// Axes as operators name them.
fn named(axes: &[usize]) -> Vec<i64> {
    axes.iter().copied().map(int).collect()
}

/// A tensor in another element type.
pub fn converted(tensor: &Tensor, to: DType) -> Result<Tensor, OpError> {
    let results = Cast { to }.eval(&[tensor])?;
    Ok(invariant(results.into_iter().next(), "that a cast has a result"))
}
