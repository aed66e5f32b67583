//! The steps of a formula: operators, each repaired as it needs to be.

use smallvec::{SmallVec, smallvec};

use super::super::{At, Cause, Failure, Writer};
use crate::ir::{ResultInfo, Value};
use crate::op::{Emit, Formula, Op, SplitOperand, rules};
use crate::types::{Claim, DType, TensorType};

/// Results, or `None` where the operator has no formula here.
pub(super) type Written = Result<Option<SmallVec<[Value; 2]>>, Failure>;

/// The steps that an operator is written as.
pub(super) struct Steps<'w, 'g> {
    pub(super) writer: &'w mut Writer<'g>,
    pub(super) at: &'w At,
    pub(super) result: &'w ResultInfo,
}

/// Takes in the next step.
pub(super) struct Step<'s, 'w, 'g> {
    steps: &'s mut Steps<'w, 'g>,
    gives: Gives<'s>,
}

/// What a step gives.
enum Gives<'s> {
    /// A value on the way, named after the result with this behind.
    Named(&'s str),
    /// A result.
    Result(&'s ResultInfo),
    /// The result, but for a cast to its type.
    Rounded,
}

impl Emit for Step<'_, '_, '_> {
    type Value = Value;
    type Error = Failure;

    fn ty(&self, value: Value) -> &TensorType {
        self.steps.writer.out.ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, Failure> {
        let steps = &mut *self.steps;
        let info = match self.gives {
            Gives::Named(suffix) => {
                let inferred = steps.writer.infer(&op, operands)?;
                let name = steps.writer.fresh(&steps.result.name, suffix);
                ResultInfo { name, ty: inferred.ty, ints: inferred.ints }
            }
            Gives::Result(result) => result.clone(),
            Gives::Rounded => {
                let to = steps.result.ty.dtype;
                if steps.writer.infer(&op, operands)?.ty.dtype == to {
                    return steps.last().emit(op, operands);
                }
                let value = steps.step(".whole").op(op, operands)?;
                return Ok(smallvec![steps.last().convert(value, to)?]);
            }
        };
        // Steps in `f64` have digits to spare, but where elements are `f64` themselves.
        let spare = steps.result.ty.dtype != DType::F64;
        let outer = std::mem::replace(&mut steps.writer.inside, spare);
        let written = steps.writer.write(&op, operands, &[info], steps.at);
        steps.writer.inside = outer;
        written
    }
}

impl<'w, 'g> Steps<'w, 'g> {
    /// A step on the way, named after the result.
    pub(super) fn step<'s>(&'s mut self, suffix: &'s str) -> Step<'s, 'w, 'g> {
        Step { steps: self, gives: Gives::Named(suffix) }
    }

    /// The step that gives one of the results.
    pub(super) fn result<'s>(&'s mut self, result: &'s ResultInfo) -> Step<'s, 'w, 'g> {
        Step { steps: self, gives: Gives::Result(result) }
    }

    /// The last step, which gives the result.
    pub(super) fn last(&mut self) -> Step<'_, 'w, 'g> {
        let result = self.result;
        Step { steps: self, gives: Gives::Result(result) }
    }

    /// The last step but for a cast to the result's type.
    pub(super) fn rounded(&mut self) -> Step<'_, 'w, 'g> {
        Step { steps: self, gives: Gives::Rounded }
    }

    /// The value as a float that is no half.
    pub(super) fn single(&mut self, x: Value) -> Result<Value, Failure> {
        if matches!(self.writer.out.ty(x).dtype, DType::F16 | DType::Bf16) {
            return self.step(".single").convert(x, DType::F32);
        }
        Ok(x)
    }

    /// The parts of all replicas, combined.
    pub(super) fn whole(&mut self, part: Value, op: &Op) -> Result<Value, Failure> {
        let claim = self.writer.claim(part);
        let refusal = rules::needs_whole(&[SplitOperand { claim, ty: &self.result.ty }]);
        let cause = Cause { refusal: &refusal, op, at: self.at };
        Ok(self.writer.bring(part, claim, Claim::Invariant, cause)?)
    }
}
