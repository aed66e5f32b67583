//! A value under another name.

use super::declare::op;
use super::view::View;
use super::{OpError, Traits};
use crate::types::{Shape, TensorType};

op! {
    /// Its operand.
    pub struct Identity = "identity" {}
}

impl View for Identity {
    const TRAITS: Traits = Traits::CHEAP.union(Traits::FOLLOWS_BLOCKS);

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        Ok(x.shape.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::Identity;
    use crate::types::{Claim, DType, Shard};

    #[test]
    fn the_value_and_its_claim_stay() {
        let op = Identity {}.into();
        let x = random(&mut rng(1), DType::Bf16, &[2, 6]);
        assert_eq!(testing::eval(&op, &[&x])[0], x);
        let folded = Claim::Shard(Shard { axis: 1, outer: 1, inner: 2 });
        assert_eq!(check_split(&op, &[(&x, folded)], 3), Ok(vec![folded]));
    }
}
