//! A matrix of all elements.

use super::declare::op;
use super::view::View;
use super::{OpError, Traits};
use crate::types::{Dim, Shape, TensorType};

op! {
    /// The elements of its operand as a matrix: the axes before `axis` are its rows, the others its
    /// columns.
    pub struct Flatten = "flatten" {
        /// The first axis of the columns, from minus the number of axes to that number.
        pub axis: i64 = 1,
    }
}

impl Flatten {
    /// The number of axes that make the rows.
    fn rows(&self, rank: usize) -> Result<usize, OpError> {
        let rank_i = i64::try_from(rank).unwrap_or(i64::MAX);
        let at = if self.axis < 0 { self.axis.saturating_add(rank_i) } else { self.axis };
        usize::try_from(at).ok().filter(|at| *at <= rank).ok_or_else(|| OpError::Attribute {
            attr: "axis",
            reason: format!("{} divides no value with {rank} axes", self.axis),
        })
    }
}

impl View for Flatten {
    const TRAITS: Traits = Traits::CHEAP.union(Traits::FOLLOWS_BLOCKS);

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let (rows, columns) = x.shape.split_at(self.rows(x.rank())?);
        let product = |sizes: &[Dim]| sizes.iter().fold(Dim::ONE, |product, d| product * d.clone());
        Ok([product(rows), product(columns)].into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{Op, OpDef, Operand};
    use super::Flatten;
    use crate::types::{Claim, DType, Shard, TensorType};

    fn flatten(axis: i64) -> Op {
        Flatten { axis }.into()
    }

    #[test]
    fn values() {
        let x = random(&mut rng(1), DType::F32, &[2, 3, 4]);
        for (axis, dims) in [(0, [1, 24]), (1, [2, 12]), (3, [24, 1]), (-1, [6, 4]), (-3, [1, 24])]
        {
            let y = testing::eval(&flatten(axis), &[&x]);
            assert_eq!((y[0].dims(), y[0].bytes()), (dims.as_slice(), x.bytes()));
        }
        let scalar = random(&mut rng(2), DType::I64, &[]);
        assert_eq!(testing::eval(&flatten(0), &[&scalar])[0].dims(), [1, 1]);
        let ty = TensorType::new(DType::F32, [2, 3]);
        for axis in [3, -3, i64::MIN, i64::MAX] {
            assert!(Flatten { axis }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_stays_the_same_digit() {
        let folded = |axis, inner| Claim::Shard(Shard { axis, outer: 1, inner });
        let x = random(&mut rng(3), DType::F32, &[5, 2, 3]);
        let rows = Claim::rows(0);
        for (axis, expected) in [(0, folded(1, 6)), (1, rows), (2, folded(0, 2)), (3, folded(0, 6))]
        {
            assert_eq!(check_split(&flatten(axis), &[(&x, rows)], 5), Ok(vec![expected]));
        }
        let x = random(&mut rng(4), DType::F32, &[2, 10, 3]);
        let claim = folded(1, 2);
        assert_eq!(check_split(&flatten(1), &[(&x, claim)], 5), Ok(vec![folded(1, 6)]));
        let blocks = Claim::Shard(Shard { axis: 0, outer: 2, inner: 2 });
        assert_eq!(check_split(&flatten(2), &[(&x, claim)], 5), Ok(vec![blocks]));
        let x = random(&mut rng(5), DType::F32, &[1, 10, 3]);
        assert_eq!(check_split(&flatten(1), &[(&x, claim)], 5), Ok(vec![folded(1, 6)]));
        assert_eq!(check_split(&flatten(-1), &[(&x, claim)], 5), Ok(vec![folded(0, 2)]));
    }
}
