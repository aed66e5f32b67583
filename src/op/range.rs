//! Integers at equal distances.

use smallvec::SmallVec;

use super::infer::{MAX_INTS, count, known, result_with_ints};
use super::prelude::*;
use crate::types::invariant::int;

op! {
    /// The integers `start, start + delta, …` before `limit`; none where `limit` is not beyond
    /// `start`.
    pub struct Range = "range" is NONE {
        /// Their distance, not 0; where it is negative they descend.
        pub delta: i64 = 1,
        /// `i64` or `i32`.
        pub dtype: DType = DType::I64,
        /// The end, exclusive.
        pub limit: Dim,
        /// The first.
        pub start: Dim = Dim::ZERO,
    }
}

impl Range {
    /// The number of integers.
    fn length(&self) -> Result<Dim, OpError> {
        let wrong = |attr, reason: String| OpError::attr(attr, reason);
        if self.delta == 0 {
            return Err(wrong("delta", "a distance of 0 never ends".to_owned()));
        }
        let (low, high) =
            if self.delta > 0 { (&self.start, &self.limit) } else { (&self.limit, &self.start) };
        let distance = high.clone() - low.clone();
        // A difference beyond 64 bits is not exact, and would give a wrong length.
        if distance.clone() + low.clone() != *high {
            return Err(wrong("limit", format!("{high} is too far from {low}")));
        }
        let step = Dim::from(self.delta.saturating_abs());
        // `ceil(distance / |delta|)`.
        let length = (distance - 1).floor_div(&step) + 1;
        Ok(if length.is_nonnegative() { length } else { length.maximum(&Dim::ZERO) })
    }

    /// Fails if a known end is outside the element type.
    fn check_ends(&self) -> Result<(), OpError> {
        let fits = |d: &Dim| d.as_const().is_none_or(|c| i32::try_from(c).is_ok());
        let ends = [&self.start, &self.limit];
        if !matches!(self.dtype, DType::I64 | DType::I32) {
            return Err(OpError::attr("dtype", format!("{} is neither i64 nor i32", self.dtype)));
        }
        if self.dtype == DType::I32 && !ends.into_iter().all(fits) {
            let reason = format!("{}..{} is beyond i32", self.start, self.limit);
            return Err(OpError::attr("limit", reason));
        }
        Ok(())
    }
}

impl OpDef for Range {
    fn positions(&self, _: &[PositionOperand<'_>], y: &TensorType) -> Option<Positions> {
        let rows = self.start.is_const() && y.shape[0] == Dim::n();
        rows.then_some(Positions { axis: 0, each: 1, stride: self.delta })
    }

    fn interval(&self, dtype: DType, _: &[Option<Interval>]) -> Option<Interval> {
        let (first, length) = (self.start.as_const()?, self.length().ok()?.as_const()?);
        let (first, steps) = (i128::from(first), i128::from(length.max(1) - 1));
        let last = first + steps * i128::from(self.delta);
        Interval::within(dtype, first.min(last), first.max(last))
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        self.check_ends()?;
        let length = self.length()?;
        let few =
            length.as_const().and_then(|c| usize::try_from(c).ok()).filter(|c| *c <= MAX_INTS);
        let ints = few.map(|few| {
            let all =
                std::iter::successors(Some(self.start.clone()), |i| Some(i.clone() + self.delta));
            all.take(few).collect::<SmallVec<[Dim; 8]>>()
        });
        result_with_ints(TensorType::new(self.dtype, [length].into_iter().collect::<Shape>()), ints)
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        if self.start.depends_on_batch() || self.limit.depends_on_batch() {
            return at.refuse(Code::GlobalIndex, "numbers the samples of the whole batch");
        }
        at.whole()
    }

    /// Its kernel wraps beyond the type, where the evaluation fails.
    fn fails_at(&self, rows: i64) -> Result<(), OpError> {
        let mut at = self.clone();
        at.at_rows(&Dim::from(rows));
        at.check_ends()
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        self.check_ends()?;
        let length = int::<usize>(known("the length", &self.length()?)?);
        let mut next = known("the start", &self.start)?;
        let mut y = Tensor::zeros(self.dtype, &[length])?;
        if self.dtype == DType::I32 {
            for out in y.as_mut_slice::<i32>() {
                *out = int::<i32>(next);
                // The number behind the last may be beyond the type; it is not written.
                next = next.saturating_add(self.delta);
            }
        } else {
            for out in y.as_mut_slice::<i64>() {
                *out = next;
                next = next.saturating_add(self.delta);
            }
        }
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}
