//! The entries along an axis in order.

use super::infer::{axis, dtype, exactly};
use super::prelude::*;
use super::ranked::{Entry, Part, Ranking, back_to_positions, ranked, types};

op! {
    /// The entries along `axis` in ascending order, and as a second result the positions they had,
    /// `i64`. Equal entries stay in the order they had; every NaN is behind all numbers, whatever
    /// the order.
    pub struct Sort = "sort" is FOLLOWS_BLOCKS | JUMPS {
        /// The axis, negative from the end.
        pub axis: i64 = -1,
        /// The order is descending.
        pub descending: bool = false,
    }
}

impl Ranking for Sort {
    fn rank(&self, line: &mut Vec<Entry>) {
        // A NaN stays behind every number in both directions.
        line.sort_by_key(|entry| (entry.nan, if self.descending { !entry.key } else { entry.key }));
    }
}

impl OpDef for Sort {
    fn places(&self, result: usize) -> Option<i64> {
        (result == 1).then_some(self.axis)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        axis("axis", self.axis, x.ty.rank())?;
        types(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        at.keep_beside(self.axis, shard, Code::Reorders, "orders all samples of the batch")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", self.axis, x.rank())?;
        let part = Part { values: x, places: None, from: 0 };
        ranked(x, axis, &[part], x.dims()[axis], self)
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        back_to_positions(at, self.axis)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, random, rng};
    use super::Sort;
    use crate::types::{DType, Tensor};

    fn sort(axis: i64, descending: bool) -> Op {
        Sort { axis, descending }.into()
    }

    #[test]
    fn entries_come_in_order_and_equal_ones_as_they_stood() {
        let mut rng = rng(1);
        for case in 0..200 {
            let dtype = [DType::F32, DType::I8, DType::Bf16, DType::U16][case % 4];
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(0..7)).collect();
            let axis = rng.random_range(0..rank);
            let (size, descending) = (dims[axis], rng.random_bool(0.5));
            let x = random(&mut rng, dtype, &dims);
            let y = testing::eval(&sort(i64::try_from(axis).unwrap(), descending), &[&x]);
            let inner: usize = dims[axis + 1..].iter().product();
            let (all, values, places) = (x.to_f64(), y[0].to_f64(), y[1].to_i64().unwrap());
            for column in 0..all.len() / size.max(1) {
                let first = column / inner * size * inner + column % inner;
                let mut list: Vec<(f64, i64)> = (0i64..)
                    .zip((0..size).map(|s| all[first + s * inner]))
                    .map(|(s, x)| (x, s))
                    .collect();
                let sign = if descending { -1.0 } else { 1.0 };
                list.sort_by(|a, b| (sign * a.0).total_cmp(&(sign * b.0)).then(a.1.cmp(&b.1)));
                for (row, (value, place)) in list.into_iter().enumerate() {
                    let at = first + row * inner;
                    // -0 and 0 are equal.
                    assert!(
                        (values[at] - value).abs() == 0.0 && places[at] == place,
                        "{dims:?} {axis}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_ends_of_a_type_are_below_a_nan_alone() {
        let places =
            |x: Tensor, descending| testing::eval(&sort(0, descending), &[&x])[1].to_i64().unwrap();
        let signed = || Tensor::new(&[3], &[i64::MIN, i64::MAX, 0]).unwrap();
        assert_eq!(places(signed(), false), [0, 2, 1]);
        assert_eq!(places(signed(), true), [1, 2, 0]);
        let unsigned = || Tensor::new(&[3], &[0, u64::MAX, 1 << 63]).unwrap();
        assert_eq!(places(unsigned(), false), [0, 2, 1]);
        assert_eq!(places(unsigned(), true), [1, 2, 0]);
        let infinite = f64::INFINITY;
        let floats = || Tensor::new(&[6], &[f64::NAN, 0.0, infinite, -0.0, -infinite, 5e-324]);
        assert_eq!(places(floats().unwrap(), false), [4, 1, 3, 5, 2, 0]);
        assert_eq!(places(floats().unwrap(), true), [2, 5, 1, 3, 4, 0]);
    }
}
