//! Reductions over axes: `reduce_sum`, `reduce_mean`, `reduce_max`, …

mod fold;
mod gradient;
#[cfg(test)]
mod tests;

use smallvec::{SmallVec, smallvec};

pub(super) use fold::{larger, smaller};

use super::binary::Binary;
use super::element::{for_dtype, for_float};
use super::infer::{axis, dtype, exactly, result, result_with_ints};
use super::ints;
use super::narrow::{Narrow, wide_type};
use super::prelude::*;
use super::wide::{LargeSum, Product, Sum, Wide};

family! {
    /// One number for all elements that differ only in their positions along `axes`.
    ///
    /// The axes are listed, each once, negative ones from the end; with an empty list every element
    /// is reduced on its own. They keep the size 1 with `keepdims`, else they vanish.
    ///
    /// Floats are summed and multiplied in `f64` or wider, in an order that the number of elements
    /// fixes, and the result is rounded; integers are taken without loss before the result wraps.
    /// Roots, logarithms and means of integers are cut to their integral part. A NaN among the
    /// elements gives a NaN.
    pub enum Reduce is FOLLOWS_BLOCKS | REDUCES with [
        /// The axes to reduce.
        axes: Vec<i64>,
        /// Whether the reduced axes stay, with size 1.
        keepdims: bool,
    ] {
        /// The sum; of nothing 0.
        Sum = "reduce_sum",
        /// The sum divided by the number of elements; of no integers an error.
        Mean = "reduce_mean",
        /// The largest element, of `bool` too; of nothing minus infinity or the smallest element of
        /// the type.
        Max = "reduce_max",
        /// The smallest element, of `bool` too; of nothing infinity or the largest element of the
        /// type.
        Min = "reduce_min",
        /// The product; of nothing 1.
        Prod = "reduce_prod",
        /// The sum of magnitudes.
        L1 = "reduce_l1",
        /// The square root of the sum of squares.
        L2 = "reduce_l2",
        /// The natural logarithm of the sum.
        LogSum = "reduce_log_sum",
        /// The natural logarithm of the sum of exponentials, without overflow in between.
        LogSumExp = "reduce_log_sum_exp",
        /// The sum of squares.
        SumSquare = "reduce_sum_square",
        /// The sum of floats before it is rounded, for `narrow`: `f64`, with an axis before the
        /// others for its components, 4 of `f64` and 2 of other types.
        WideSum = "reduce_wide_sum",
        /// The product of floats before it is rounded, for `narrow`: `f64`, with an axis before the
        /// others for its digits and its power of 2.
        WideProd = "reduce_wide_prod",
    }
}

impl Reduce {
    /// True if it gives one number, the sum or the product, for all elements along `axis` alone,
    /// which stays.
    pub(crate) fn is_total(&self, by: Combine, along: i64, rank: usize) -> bool {
        let ((Self::Sum { axes, keepdims }, Combine::Sum)
        | (Self::Prod { axes, keepdims }, Combine::Prod)
        | (Self::WideSum { axes, keepdims }, Combine::WideSum)
        | (Self::WideProd { axes, keepdims }, Combine::WideProd)) = (self, by)
        else {
            return false;
        };
        let known = |on| axis("axis", on, rank).ok();
        matches!(**axes, [on] if *keepdims && known(on).is_some() && known(on) == known(along))
    }

    /// The combiner of partial reductions, if there is one.
    fn parts_combine(&self, float: bool) -> Option<Combine> {
        match self {
            Self::Sum { .. } | Self::L1 { .. } | Self::SumSquare { .. } => Some(Combine::Sum),
            Self::Max { .. } => Some(Combine::Max),
            Self::Min { .. } => Some(Combine::Min),
            Self::Prod { .. } => Some(Combine::Prod),
            Self::Mean { .. } if float => Some(Combine::Mean),
            Self::L2 { .. } if float => Some(Combine::L2),
            Self::LogSumExp { .. } if float => Some(Combine::Lse),
            Self::WideSum { .. } => Some(Combine::WideSum),
            Self::WideProd { .. } => Some(Combine::WideProd),
            // Of integers they are cut to their integral part.
            Self::Mean { .. } | Self::L2 { .. } | Self::LogSumExp { .. } | Self::LogSum { .. } => {
                None
            }
        }
    }

    /// The listed axes, and whether they stay.
    pub(crate) fn parts(&self) -> (&[i64], bool) {
        let (axes, keepdims) = self.common();
        (axes, *keepdims)
    }

    /// The reduction of `x` whose result this one rounds, and what rounds it; `None` if there is
    /// none.
    pub(crate) fn wide(&self, x: &TensorType) -> Option<(Self, Narrow)> {
        let (axes, keepdims) = (self.parts().0.to_vec(), self.parts().1);
        let reduced = self.reduced(x.rank()).ok()?;
        let sum = Narrow { by: Combine::WideSum, count: Dim::ONE, log: false };
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others round on the way")]
        let narrow = match self {
            Self::Sum { .. } => sum,
            Self::LogSum { .. } => Narrow { log: true, ..sum },
            Self::Mean { .. } => {
                let sizes = x.shape.iter().zip(&reduced).filter(|(_, r)| **r);
                Narrow { count: sizes.fold(Dim::ONE, |n, (d, _)| n * d.clone()), ..sum }
            }
            Self::Prod { .. } => Narrow { by: Combine::WideProd, ..sum },
            _ => return None,
        };
        let wide = if narrow.by == Combine::WideProd {
            Self::WideProd { axes, keepdims }
        } else {
            Self::WideSum { axes, keepdims }
        };
        x.dtype.is_float().then_some((wide, narrow))
    }

    /// The components of the wide number in which elements of this type accumulate, if they do in
    /// one.
    pub(crate) fn accumulator(&self, of: DType) -> Option<usize> {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others do not cancel")]
        match self {
            _ if !of.is_float() => None,
            Self::Prod { .. } | Self::WideProd { .. } => Some(Product::WIDTH),
            Self::Sum { .. } | Self::Mean { .. } | Self::LogSum { .. } | Self::WideSum { .. } => {
                Some(if of == DType::F64 { LargeSum::WIDTH } else { Sum::WIDTH })
            }
            _ => None,
        }
    }

    /// The components of each number that it gives of elements of this type, where they lie on an
    /// axis of their own.
    pub(crate) fn components(&self, of: DType) -> Option<usize> {
        let wide = matches!(self, Self::WideSum { .. } | Self::WideProd { .. });
        self.accumulator(of).filter(|_| wide)
    }

    /// Marks the reduced ones of `rank` axes.
    pub(crate) fn reduced(&self, rank: usize) -> Result<SmallVec<[bool; 4]>, OpError> {
        let mut reduced: SmallVec<[bool; 4]> = smallvec![false; rank];
        for a in self.parts().0 {
            let at = axis("axes", *a, rank)?;
            if reduced[at] {
                return Err(OpError::attr("axes", format!("axis {at} is listed twice")));
            }
            reduced[at] = true;
        }
        Ok(reduced)
    }

    /// The sizes of the result, from those of the operand.
    fn sizes<D: Clone>(&self, dims: &[D], reduced: &[bool], one: &D) -> SmallVec<[D; 4]> {
        let kept = |(d, reduced): (&D, &bool)| match (reduced, self.parts().1) {
            (false, _) => Some(d.clone()),
            (true, true) => Some(one.clone()),
            (true, false) => None,
        };
        dims.iter().zip(reduced).filter_map(kept).collect()
    }

    /// The known elements of the result, for the reductions whose formulas are followed.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other reduction is followed")]
    fn known(&self, x: &Operand<'_>, reduced: &[bool]) -> Option<ints::Known> {
        let join = match self {
            Self::Sum { .. } => Binary::Add,
            Self::Prod { .. } => Binary::Mul,
            Self::Max { .. } => Binary::Max,
            Self::Min { .. } => Binary::Min,
            _ => return None,
        };
        let (known, dtype) = (ints::of(x)?, x.ty.dtype);
        let plan = fold::plan(&x.ty.shape.as_const()?, reduced);
        let mut result: Vec<Option<Dim>> = Vec::new();
        let mut certain = true;
        plan.elements(|from, [to]| {
            if result.len() <= to {
                result.resize(to + 1, None);
            }
            let value = match (known.get(from), &result[to]) {
                (Some(d), None) => Some(d.clone()),
                (Some(d), Some(so_far)) => join.known(dtype, so_far, d),
                (None, _) => None,
            };
            certain &= value.is_some();
            result[to] = value;
        });
        if certain { result.into_iter().collect() } else { None }
    }
}

impl Reduce {
    /// The same reduction along other axes.
    #[must_use]
    pub fn with_axes(&self, axes: Vec<i64>, keepdims: bool) -> Self {
        let mut other = self.clone();
        let (own, stay) = other.common_mut();
        (*own, *stay) = (axes, keepdims);
        other
    }

    /// True if exactly these axes of an operand with `rank` axes are reduced.
    pub(crate) fn is_over(&self, rank: usize, axes: std::ops::Range<usize>) -> bool {
        self.reduced(rank).is_ok_and(|r| r.iter().enumerate().all(|(i, r)| *r == axes.contains(&i)))
    }

    /// True if none of these axes of an operand with `rank` axes is reduced.
    pub(crate) fn keeps(&self, rank: usize, axes: std::ops::Range<usize>) -> bool {
        self.reduced(rank).is_ok_and(|r| r.get(axes).is_some_and(|r| !r.contains(&true)))
    }

    /// True if all axes but this one of an operand with `rank` axes are reduced.
    pub(crate) fn is_over_all_but(&self, rank: usize, axis: usize) -> bool {
        self.reduced(rank).is_ok_and(|r| r.iter().enumerate().all(|(i, r)| *r == (i != axis)))
    }

    /// The number of leading axes that are not reduced, of `rank` in all; `None` if the axes do
    /// not suit.
    pub(crate) fn kept(&self, rank: usize) -> Option<usize> {
        let reduced = self.reduced(rank).ok()?;
        Some(reduced.iter().position(|r| *r).unwrap_or(rank))
    }

    /// Reduces an operand with the sizes `dims`, which the operator admits.
    ///
    /// # Panics
    /// If a slice has not the size that follows from `dims`: a bug in the caller.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    pub(crate) fn reduce(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let Ok(reduced) = self.reduced(dims.len()) else { return };
        let plan = fold::plan(dims, &reduced);
        let sizes = dims.iter().zip(&reduced).filter(|(_, r)| **r).map(|(d, _)| *d);
        let count = sizes.fold(1usize, usize::saturating_mul);
        fold::floats(self, &plan, count, x, y);
    }
}

impl OpDef for Reduce {
    fn traits(&self) -> Traits {
        let logs = matches!(self, Self::LogSumExp { .. });
        self.facts() | if logs { Traits::SUMS_NARROW } else { Traits::empty() }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are no sums of their terms")]
    fn of_magnitudes(&self) -> Option<Op> {
        match self {
            Self::Sum { .. } | Self::Mean { .. } => Some(self.clone().into()),
            Self::LogSum { axes, keepdims } => {
                Some(Self::Sum { axes: axes.clone(), keepdims: *keepdims }.into())
            }
            _ => None,
        }
    }

    fn unrounded(&self, operands: &[&TensorType]) -> Option<(Op, Op)> {
        let (wide, narrow) = self.wide(operands.first()?)?;
        Some((wide.into(), narrow.into()))
    }

    // No integers have no mean; no floats have one, which is no number.
    fn takes(&self, operands: &[&TensorType]) -> Option<(Dim, Dim)> {
        let (Self::Mean { .. }, [x]) = (self, operands) else { return None };
        if x.dtype.is_float() {
            return None;
        }
        let reduced = self.reduced(x.rank()).ok()?;
        let sizes = |of: bool| x.shape.iter().zip(&reduced).filter(move |(_, r)| **r == of);
        let entries = sizes(true).fold(Dim::ONE, |product, (d, _)| product * d.clone());
        let results = sizes(false).all(|(d, _)| d.as_const().is_some_and(|d| d > 0));
        (results && entries.depends_on_batch()).then_some((entries, Dim::ONE))
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let bools = matches!(self, Self::Max { .. } | Self::Min { .. });
        dtype(operands, 0, |t| bools || t != DType::Bool, "a number")?;
        let reduced = self.reduced(x.ty.rank())?;
        let shape: Shape = self.sizes(&x.ty.shape, &reduced, &Dim::ONE).into_iter().collect();
        if matches!(self, Self::WideSum { .. } | Self::WideProd { .. }) {
            dtype(operands, 0, DType::is_float, "a float")?;
        }
        if let Some(components) = self.components(x.ty.dtype) {
            return result(wide_type(components, &shape));
        }
        let known = self.known(&x, &reduced);
        result_with_ints(TensorType { dtype: x.ty.dtype, shape }, known)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let axis = shard.axis;
        let reduced = at.checked(self.reduced(at.rank()))?;
        if reduced.get(axis) != Some(&false) {
            let float = at.operands.first().is_some_and(|x| x.ty.dtype.is_float());
            let reason = "gives for all samples what its parts do not give together";
            return match self.parts_combine(float) {
                Some(by) => at.give(Claim::Partial(by)),
                None => at.refuse(Code::NotPerSample, reason),
            };
        }
        let gone = if self.parts().1 { 0 } else { reduced[..axis].iter().filter(|r| **r).count() };
        let before = usize::from(matches!(self, Self::WideSum { .. } | Self::WideProd { .. }));
        at.keep(Shard { axis: axis - gone + before, ..shard })
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let by = rules::first_partial(at.operands).map(|(_, by)| by);
        let exact = at.operands.iter().all(|x| !x.ty.dtype.is_float());
        match (self, by) {
            (Self::Sum { .. }, Some(by @ Combine::Sum))
            | (Self::Prod { .. }, Some(by @ Combine::Prod))
                if exact =>
            {
                at.give(Claim::Partial(by))
            }
            (Self::Max { .. }, Some(by @ Combine::Max))
            | (Self::Min { .. }, Some(by @ Combine::Min)) => at.give(Claim::Partial(by)),
            _ => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let reduced = self.reduced(x.rank())?;
        let plan = fold::plan(x.dims(), &reduced);
        let dims = self.sizes(x.dims(), &reduced, &1);
        if let Some(components) = self.components(x.dtype()) {
            let dims: SmallVec<[usize; 4]> = std::iter::once(components).chain(dims).collect();
            let mut y = Tensor::zeros(DType::F64, &dims)?;
            for_float!(
                x.dtype(),
                F => fold::wide::<F>(self, &plan, x.as_slice(), y.as_mut_slice()),
            );
            return Ok(vec![y]);
        }
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        let sizes = x.dims().iter().zip(&reduced).filter(|(_, r)| **r).map(|(d, _)| *d);
        let count = sizes.fold(1usize, usize::saturating_mul);
        for_dtype!(
            x.dtype(),
            float F => fold::floats::<F>(self, &plan, count, x.as_slice(), y.as_mut_slice()),
            int I => {
                let bounds = I::MIN.into()..=I::MAX.into();
                fold::ints::<I>(self, &plan, count, bounds, x.as_slice(), y.as_mut_slice())?;
            },
            bool => fold::ints::<u8>(self, &plan, count, 0..=1, x.as_slice(), y.as_mut_slice())?,
        );
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        if matches!(self, Self::WideSum { .. } | Self::WideProd { .. }) {
            return Gradient::None("it is a part of a result; gradients are taken before");
        }
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        self.gradients(at)
    }
}
