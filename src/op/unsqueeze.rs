//! Axes of size 1 put in.

use super::declare::op;
use super::infer::axes;
use super::view::View;
use super::{OpError, Traits};
use crate::types::{Dim, Shape, TensorType};

op! {
    /// Its operand with further axes of size 1.
    pub struct Unsqueeze = "unsqueeze" {
        /// Where they are in the result, negative from its end.
        pub axes: Vec<i64>,
    }
}

impl View for Unsqueeze {
    const TRAITS: Traits = Traits::CHEAP.union(Traits::FOLLOWS_BLOCKS);

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let mut shape = x.shape.clone();
        for axis in axes("axes", &self.axes, x.rank().saturating_add(self.axes.len()))? {
            shape.insert(axis, Dim::ONE);
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{OpDef, Operand};
    use super::Unsqueeze;
    use crate::types::{Claim, DType, Shard, TensorType};

    #[test]
    fn axes_of_size_one_come() {
        let x = random(&mut rng(1), DType::I64, &[3, 2]);
        for (axes, dims) in [
            (vec![], [3, 2].as_slice()),
            (vec![3, 0], &[1, 3, 2, 1]),
            (vec![-1], &[3, 2, 1]),
            (vec![-2, 0], &[1, 3, 1, 2]),
        ] {
            let y = testing::eval(&Unsqueeze { axes }.into(), &[&x]);
            assert_eq!((y[0].dims(), y[0].bytes()), (dims, x.bytes()));
        }
        let ty = TensorType::new(DType::F32, [4]);
        for axes in [vec![2], vec![-3], vec![1, -2], vec![i64::MAX]] {
            assert!(Unsqueeze { axes }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_axis_moves_down() {
        let x = random(&mut rng(2), DType::F32, &[10, 3]);
        let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: 2 });
        let op = |axes: &[i64]| Unsqueeze { axes: axes.to_vec() }.into();
        assert_eq!(check_split(&op(&[0, 2]), &[(&x, claim(0))], 5), Ok(vec![claim(1)]));
        assert_eq!(check_split(&op(&[1]), &[(&x, claim(0))], 5), Ok(vec![claim(0)]));
    }
}
