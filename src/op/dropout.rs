//! Dropout as inference sees it.

use super::dropout_train::DropoutTrain;
use super::infer::{exactly, results};
use super::prelude::*;
use super::view;

op! {
    /// Its operand, of which nothing is dropped; where `mask` is set, also the mask of what is
    /// kept: `true` for every element. In training `dropout_train` takes its place.
    pub struct Dropout = "dropout" is FOLLOWS_BLOCKS {
        /// Whether the mask is a second result.
        pub mask: bool = false,
        /// The part of the elements that training drops, at least 0 and below 1.
        pub rate: f32 = 0.0,
    }
}

/// Fails unless it is a part that may be dropped.
pub(super) fn check_rate(rate: f32) -> Result<(), OpError> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(OpError::attr("rate", format!("{rate} is out of range; it must be at least 0 and below 1")))
}

impl OpDef for Dropout {
    fn traits(&self) -> Traits {
        let moves = if self.mask { Traits::empty() } else { Traits::VIEW };
        let trains = if self.rate > 0.0 { Traits::TRAINS } else { Traits::empty() };
        self.facts() | moves | trains
    }

    fn drawn(&self, seed: i64) -> Option<Op> {
        (self.rate > 0.0).then(|| DropoutTrain { rate: self.rate, seed }.into())
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        check_rate(self.rate)?;
        // A model that uses the mask at inference gets one that keeps everything.
        let mask = self.mask.then(|| TensorType::new(DType::Bool, x.ty.shape.clone()));
        results(std::iter::once(x.ty.clone()).chain(mask))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        at.keep(shard)
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let mut claims = rules::moved(at)?;
        // The mask is all true.
        claims.iter_mut().skip(1).for_each(|claim| *claim = Claim::Invariant);
        Ok(claims)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let mut results = view::unchanged(operands)?;
        if self.mask {
            let mut mask = Tensor::zeros(DType::Bool, results[0].dims())?;
            mask.bytes_mut().fill(1);
            results.push(mask);
        }
        Ok(results)
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        view::passed_on(at)
    }
}
