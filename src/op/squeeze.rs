//! Axes of size 1 left out.

use super::declare::op;
use super::infer::axes;
use super::view::View;
use super::{OpError, Traits};
use crate::types::{Dim, Shape, TensorType};

op! {
    /// Its operand without the axes named, which have size 1.
    pub struct Squeeze = "squeeze" {
        /// The axes, negative from the end.
        pub axes: Vec<i64>,
    }
}

impl View for Squeeze {
    const TRAITS: Traits = Traits::CHEAP.union(Traits::FOLLOWS_BLOCKS);

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let mut shape = x.shape.clone();
        for axis in axes("axes", &self.axes, x.rank())?.into_iter().rev() {
            if shape.remove(axis) != Dim::ONE {
                let reason = format!("axis {axis} of {x} has more than one entry");
                return Err(OpError::Attribute { attr: "axes", reason });
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{OpDef, Operand};
    use super::Squeeze;
    use crate::types::{Claim, DType, Dim, Shape, Shard, TensorType};

    #[test]
    fn axes_of_size_one_go() {
        let x = random(&mut rng(1), DType::I64, &[1, 3, 1, 2]);
        for (axes, dims) in
            [(vec![], [1, 3, 1, 2].as_slice()), (vec![2, 0], &[3, 2]), (vec![-2], &[1, 3, 2])]
        {
            let y = testing::eval(&Squeeze { axes }.into(), &[&x]);
            assert_eq!((y[0].dims(), y[0].bytes()), (dims, x.bytes()));
        }
        let ty = TensorType::new(DType::F32, [Dim::n(), Dim::ONE].into_iter().collect::<Shape>());
        for axes in [vec![0], vec![2], vec![1, -1], vec![i64::MIN]] {
            assert!(Squeeze { axes }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_axis_moves_up() {
        let x = random(&mut rng(2), DType::F32, &[1, 10, 1]);
        let squeeze = |axes: &[i64]| Squeeze { axes: axes.to_vec() }.into();
        let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: 2 });
        assert_eq!(check_split(&squeeze(&[0]), &[(&x, claim(1))], 5), Ok(vec![claim(0)]));
        assert_eq!(check_split(&squeeze(&[-1]), &[(&x, claim(1))], 5), Ok(vec![claim(1)]));
    }
}
