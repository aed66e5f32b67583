//! A value on another device.

use super::declare::op;
use super::view::View;
use super::{OpError, Traits};
use crate::types::{KernelClass, Shape, TensorType};

op! {
    /// Its operand, bit for bit, on the device of this operation, wherever the operand lives.
    pub struct CopyOp = "copy" {}
}

impl View for CopyOp {
    const TRAITS: Traits = Traits::FOLLOWS_BLOCKS.union(Traits::WIDE_PARTS);
    const KERNEL: KernelClass = KernelClass::Copy;
    // It says where its result is.
    const IS_OPERAND: bool = false;

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        Ok(x.shape.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::CopyOp;
    use crate::types::{Claim, DType, Shard};

    #[test]
    fn every_value_and_every_claim_stays() {
        let op = CopyOp {}.into();
        for dtype in DType::ALL {
            let x = random(&mut rng(1), dtype, &[6, 2]);
            assert_eq!(testing::eval(&op, &[&x])[0], x);
        }
        let x = random(&mut rng(2), DType::F32, &[2, 6]);
        for claim in
            [Claim::Invariant, Claim::rows(1), Claim::Shard(Shard { axis: 1, outer: 1, inner: 2 })]
        {
            let rows = if claim == Claim::rows(1) { 6 } else { 3 };
            assert_eq!(check_split(&op, &[(&x, claim)], rows), Ok(vec![claim]));
        }
    }
}
