//! What a model says about its training alone.

use super::infer::{count, result};
use super::prelude::*;
use super::view;

family! {
    /// The first operand. Passes that prepare a model for training leave it in its place; all
    /// others take it as the operand itself.
    pub enum ForTraining is FOLLOWS_BLOCKS | TRAINS {
        /// The operand, at which gradients end.
        StopGradient = "stop_gradient",
        /// The first operand; in training the second one, of the same type, takes its place.
        InTraining = "in_training",
        /// The first operand; training and evaluation add the second one, a float without axes, to
        /// the loss.
        AddLoss = "add_loss",
        /// The first operand; the costs of an output count in training and evaluation where the
        /// second one, truth values of its first axes, is true.
        Counted = "counted",
        /// The first operand; after a step of training the second one, a parameter, is the third,
        /// of the same type.
        Move = "move_variable",
    }
}

/// Fails unless two operands have the same type.
fn alike(operands: &[Operand<'_>], a: usize, b: usize) -> Result<(), OpError> {
    let (first, second) = (operands[a].ty, operands[b].ty);
    if first == second {
        return Ok(());
    }
    Err(OpError::shape(b, second, format!("it must have the type {first}")))
}

impl ForTraining {
    const fn operands(&self) -> usize {
        match self {
            Self::StopGradient => 1,
            Self::InTraining | Self::AddLoss | Self::Counted => 2,
            Self::Move => 3,
        }
    }
}

impl OpDef for ForTraining {
    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
    }

    fn is_running(&self, operand: usize) -> bool {
        matches!(self, Self::Move) && operand == 1
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let expected = self.operands();
        count(operands, expected, expected, ["1", "2", "3"][expected - 1])?;
        let x = operands[0].ty;
        match self {
            Self::StopGradient => {}
            Self::InTraining => alike(operands, 0, 1)?,
            Self::Move => alike(operands, 1, 2)?,
            Self::AddLoss => {
                let loss = operands[1].ty;
                if !loss.dtype.is_float() || loss.rank() != 0 {
                    return Err(OpError::shape(1, loss, "it must be a float without axes"));
                }
            }
            Self::Counted => {
                let mask = operands[1].ty;
                if mask.dtype != DType::Bool || !x.shape.starts_with(&mask.shape) {
                    let form = "it must be truth values of the first axes";
                    return Err(OpError::shape(1, mask, form));
                }
            }
        }
        result(x.clone())
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        at.operands.first().map_or_else(|| at.whole(), |x| at.give(x.claim))
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        self.split(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        Ok(operands.first().map(|x| (*x).clone()).into_iter().collect())
    }

    fn gradient(&self) -> Gradient {
        match self {
            Self::StopGradient => Gradient::Zero("it stops the gradient"),
            Self::InTraining | Self::AddLoss | Self::Counted | Self::Move => Gradient::Defined,
        }
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        if matches!(self, Self::StopGradient) {
            return Ok(());
        }
        view::passed_on(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split};
    use super::super::{OpDef, Operand};
    use super::ForTraining;
    use crate::types::{Claim, DType, Tensor, TensorType};

    #[test]
    fn each_is_its_first_operand_split_as_it_is() {
        let x = testing::random(&mut testing::rng(1), DType::F32, &[5, 2]);
        let other = testing::random(&mut testing::rng(2), DType::F32, &[5, 2]);
        let (loss, rows) = (Tensor::scalar(2.0f32), Claim::rows(0));
        let given = |op: ForTraining, operands: &[(&Tensor, Claim)]| {
            let op = op.into();
            let values: Vec<&Tensor> = operands.iter().map(|(x, _)| *x).collect();
            assert_eq!(testing::eval(&op, &values).remove(0), x);
            assert_eq!(check_split(&op, operands, 5), Ok(vec![operands[0].1]));
        };
        given(ForTraining::StopGradient, &[(&x, rows)]);
        given(ForTraining::StopGradient, &[(&x, Claim::Invariant)]);
        given(ForTraining::InTraining, &[(&x, rows), (&other, rows)]);
        given(ForTraining::AddLoss, &[(&x, rows), (&loss, Claim::Invariant)]);
        let mask = Tensor::from_bytes(DType::Bool, &[5], &[1, 0, 1, 1, 0]).unwrap();
        given(ForTraining::Counted, &[(&x, rows), (&mask, rows)]);
        let u = (&loss, Claim::Invariant);
        given(ForTraining::Move, &[(&x, rows), u, u]);
    }

    fn rejects(op: &ForTraining, operands: &[&Tensor]) {
        let types: Vec<TensorType> = operands.iter().map(|x| x.tensor_type()).collect();
        let given: Vec<Operand<'_>> = types.iter().map(|ty| Operand { ty, ints: None }).collect();
        assert!(op.infer(&given).is_err());
    }

    #[test]
    fn a_loss_is_one_number_and_types_agree() {
        let (x, y) = (Tensor::new(&[2], &[1.0f32; 2]).unwrap(), Tensor::scalar(1.0f32));
        rejects(&ForTraining::AddLoss, &[&x, &x]);
        rejects(&ForTraining::InTraining, &[&x, &y]);
        rejects(&ForTraining::Move, &[&x, &x, &y]);
    }
}
