//! The gradients of recurrent cells over sequences.

mod steps;

use super::declare::op;
use super::element::Float;
use super::infer::results;
use super::numeric::{narrow, wide, widen};
use super::real::Real;
use super::recurrent::{Activation, CellKind, Direction, Recurrent, Sizes};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, rules};
use crate::types::{Claim, Code, Combine, DType, KernelClass, Refusal, Tensor, TensorType};
use steps::Sums;

op! {
    /// The gradients of the floating-point operands of `lstm`, `gru` or `rnn`, in their order and of their shapes: the
    /// operands are those of the cell, then the gradients of all its results.
    ///
    /// Attributes are those of the cell. The states are computed once more; then the gradients of states run from the
    /// last step of each sequence to its first. Where two slopes of a function meet, its slope is that of the side
    /// below; a bound counts as within it.
    ///
    /// Steps are computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`; what sequences and steps give
    /// weights, biases and peepholes is summed in `f64`, sequences ascending and of each the last step first, and
    /// rounded once.
    pub struct RecurrentGrad = "recurrent_grad" {
        /// Which cell it is.
        pub cell: CellKind,
        /// The order of the steps.
        pub direction: Direction = Direction::Forward,
        /// Whether the batch is the first axis.
        pub batch_first: bool = false,
        /// Whether there is a bias.
        pub bias: bool = false,
        /// Whether there are lengths.
        pub lengths: bool = false,
        /// Whether states at the beginning are given.
        pub initial: bool = false,
        /// Whether the gates of `lstm` see the cell state.
        pub peepholes: bool = false,
        /// Whether the forget gate of `lstm` is 1 minus its input gate.
        pub coupled: bool = false,
        /// Whether the reset gate of `gru` is applied after the product.
        pub reset_after: bool = false,
        /// The bound of what functions of gates are applied to.
        pub clip: Option<f32>,
        /// The function of the gates.
        pub gate: Activation = Activation::SIGMOID,
        /// The function of the candidate.
        pub candidate: Activation = Activation::TANH,
        /// The function of the cell state.
        pub hidden: Activation = Activation::TANH,
    }
}

impl RecurrentGrad {
    /// The gradients of `op`.
    pub(super) fn of(op: &Recurrent) -> Self {
        let (sigmoid, tanh) = (Activation::SIGMOID, Activation::TANH);
        match op.clone() {
            Recurrent::Lstm {
                direction, batch_first, bias, lengths, initial, peepholes, coupled, clip, gate, candidate, hidden
            } => Self {
                cell: CellKind::Lstm,
                direction, batch_first, bias, lengths, initial, peepholes, coupled, clip, gate, candidate, hidden,
                reset_after: false,
            },
            Recurrent::Gru {
                direction, batch_first, bias, lengths, initial, reset_after, clip, gate, candidate
            } => Self {
                cell: CellKind::Gru,
                direction, batch_first, bias, lengths, initial, reset_after, clip, gate, candidate,
                peepholes: false, coupled: false, hidden: tanh,
            },
            Recurrent::Rnn { direction, batch_first, bias, lengths, initial, clip, candidate } => Self {
                cell: CellKind::Rnn,
                direction, batch_first, bias, lengths, initial, clip, candidate,
                peepholes: false, coupled: false, reset_after: false, gate: sigmoid, hidden: tanh,
            },
        }
    }

    /// The cell.
    fn forward(&self) -> Recurrent {
        let Self { cell, direction, batch_first, bias, lengths, initial, peepholes, coupled, reset_after, clip, .. } =
            *self;
        let Self { gate, candidate, hidden, .. } = self.clone();
        match cell {
            CellKind::Lstm => Recurrent::Lstm {
                direction, batch_first, bias, lengths, initial, peepholes, coupled, clip, gate, candidate, hidden
            },
            CellKind::Gru => Recurrent::Gru {
                direction, batch_first, bias, lengths, initial, reset_after, clip, gate, candidate
            },
            CellKind::Rnn => Recurrent::Rnn { direction, batch_first, bias, lengths, initial, clip, candidate },
        }
    }

    /// Fails where an attribute says something that the cell has not.
    fn check(&self) -> Result<(), OpError> {
        let lstm = self.cell == CellKind::Lstm;
        let odd = [
            ("peepholes", self.peepholes && !lstm),
            ("coupled", self.coupled && !lstm),
            ("reset_after", self.reset_after && self.cell != CellKind::Gru),
        ];
        if let Some((attr, _)) = odd.into_iter().find(|(_, odd)| *odd) {
            let reason = format!("{} has none", self.cell.name());
            return Err(OpError::Attribute { attr, reason });
        }
        let functions = [("gate", &self.gate), ("candidate", &self.candidate), ("hidden", &self.hidden)];
        for (attr, function) in functions {
            if function.slope(0.0f64, 0.0).is_none() {
                let reason = format!("the gradient of {function} in a cell is not offered");
                return Err(OpError::Attribute { attr, reason });
            }
        }
        Ok(())
    }

    fn compute<R: Real + Float<Real = R>>(
        &self,
        operands: &[&Tensor],
        sizes: Sizes,
    ) -> Result<Vec<Tensor>, OpError> {
        let forward = self.forward();
        let places = forward.places();
        let (own, dys) = operands.split_at(places.count);
        let lengths = forward.lengths(own, sizes.steps)?;
        let floats: Vec<&[R]> = own
            .iter()
            .enumerate()
            .map(|(i, t)| if Some(i) == places.lengths { &[][..] } else { t.as_slice::<R>() })
            .collect();
        let dys: Vec<&[R]> = dys.iter().map(|t| t.as_slice::<R>()).collect();
        let mut sums = Sums::new(floats.iter().map(|x| x.len()));
        let cell = forward.cell();
        for d in 0..sizes.directions {
            let sequence = forward.sequence(&cell, sizes, d, &floats, &lengths);
            for row in 0..sizes.rows {
                sums.add(&sequence, places, row, &dys);
            }
        }
        let whole = own.iter().zip(sums.operands).enumerate();
        whole
            .filter(|(i, _)| Some(*i) != places.lengths)
            .map(|(_, (t, sums))| {
                let sums: Vec<R> = sums.into_iter().map(R::of).collect();
                Ok(Tensor::new(t.dims(), &sums)?)
            })
            .collect()
    }
}

impl OpDef for RecurrentGrad {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        self.check()?;
        let forward = self.forward();
        let places = forward.places();
        let states = forward.result_count();
        if operands.len() != places.count + states {
            let expected = "those of the cell and the gradient of each of its results";
            return Err(OpError::Operands { expected, found: operands.len() });
        }
        let (own, dys) = operands.split_at(places.count);
        for (i, (dy, y)) in dys.iter().zip(forward.infer(own)?).enumerate() {
            if *dy.ty != y.ty {
                let expected = format!("it is {}, as result {i} of the cell is", y.ty);
                return Err(OpError::Shape { operand: places.count + i, found: dy.ty.clone(), expected });
            }
        }
        let floats = own.iter().enumerate().filter(|(i, _)| Some(*i) != places.lengths);
        results(floats.map(|(_, x)| x.ty.clone()))
    }

    fn split(&self, operands: &[SplitOperand<'_>], results: &[TensorType]) -> Result<Claims, Refusal> {
        let forward = self.forward();
        let places = forward.places();
        let (own, dys) = operands.split_at(places.count.min(operands.len()));
        let states: Vec<TensorType> = dys.iter().map(|x| x.ty.clone()).collect();
        let claims = forward.split(own, &states)?;
        for (i, (dy, claim)) in dys.iter().zip(claims).enumerate() {
            if dy.claim != claim {
                let reason = "pairs rows with those of others";
                return Err(rules::refuse(Code::Misaligned, places.count + i, reason));
            }
        }
        if rules::first_shard(own).is_none() {
            return Ok(rules::invariant(results.len()));
        }
        let floats = own.iter().enumerate().filter(|(i, _)| Some(*i) != places.lengths);
        // What all sequences share gets a sum over them.
        let claim = |x: &SplitOperand<'_>| {
            x.claim.shard().map_or(Claim::Partial(Combine::Sum), Claim::Shard)
        };
        Ok(floats.map(|(_, x)| claim(x)).collect())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let missing = || OpError::Operands { expected: "those of the cell", found: operands.len() };
        let (x, r) = (operands.first().ok_or_else(missing)?, operands.get(2).ok_or_else(missing)?);
        let forward = self.forward();
        let sizes = forward.sizes(x.dims(), r.dims()).ok_or_else(missing)?;
        let (own, lengths) = (x.dtype(), forward.lengths_operand());
        let computed = operands.iter().enumerate().map(|(i, t)| {
            if Some(i) == lengths { Ok((*t).clone()) } else { widen(t) }
        });
        let computed = computed.collect::<Result<Vec<Tensor>, _>>()?;
        let computed: Vec<&Tensor> = computed.iter().collect();
        let results = if wide(own) == DType::F64 {
            self.compute::<f64>(&computed, sizes)?
        } else {
            self.compute::<f32>(&computed, sizes)?
        };
        results.into_iter().map(|dx| narrow(dx, own)).collect()
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Reference
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}
