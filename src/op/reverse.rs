//! The entries along axes in reverse.

use super::infer::{axes, carried, exactly, result_with_ints};
use super::prelude::*;
use super::{infer, strided};

op! {
    /// Its operand with the entries along every axis of `axes` in reverse.
    pub struct Reverse = "reverse" is PERMUTES | FOLLOWS_BLOCKS {
        /// The axes, negative from the end, each named once.
        pub axes: Vec<i64>,
    }
}

impl OpDef for Reverse {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let axes = axes("axes", &self.axes, x.ty.rank())?;
        let ints = carried(&x).filter(|_| axes.is_empty() || x.ty.rank() == 1);
        let ints = ints.map(|mut ints| {
            if !axes.is_empty() {
                ints.reverse();
            }
            ints
        });
        result_with_ints(x.ty.clone(), ints)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if axes("axes", &self.axes, at.rank()).is_ok_and(|own| !own.contains(&shard.axis)) {
            return at.keep(shard);
        }
        at.refuse(Code::Reorders, "reverses the order of the samples")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let (mut first, mut axes) = (0usize, strided::axes_of(x.dims()));
        for axis in infer::axes("axes", &self.axes, x.rank())? {
            let (size, distance) = axes[axis];
            first += size.saturating_sub(1) * distance.unsigned_abs();
            axes[axis].1 = -distance;
        }
        Ok(vec![strided::taken(x, first, &axes, x.dims())?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        at.give(0, dy.apply(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, indices, random, rng};
    use super::Reverse;
    use crate::types::DType;

    fn reverse(axes: &[i64]) -> Op {
        Reverse { axes: axes.to_vec() }.into()
    }

    #[test]
    fn entries_come_from_the_other_end() {
        let mut rng = rng(1);
        for dtype in DType::ALL.into_iter().cycle().take(100) {
            let rank: usize = rng.random_range(0..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(0..5)).collect();
            let flipped: Vec<bool> = dims.iter().map(|_| rng.random_bool(0.5)).collect();
            let axes: Vec<i64> =
                (0i64..).zip(&flipped).filter(|(_, flip)| **flip).map(|(axis, _)| axis).collect();
            let x = random(&mut rng, dtype, &dims);
            let y = testing::eval(&reverse(&axes), &[&x]);
            let (all, values) = (indices(&dims), x.to_f64());
            let expected = all.iter().map(|index| {
                let from = index.iter().zip(&dims).zip(&flipped);
                let from: Vec<usize> =
                    from.map(|((i, d), flip)| if *flip { d - 1 - i } else { *i }).collect();
                values[all.iter().position(|i| *i == from).unwrap()]
            });
            assert_eq!(y[0].to_f64(), expected.collect::<Vec<_>>(), "{dims:?} {axes:?}");
        }
    }
}
