//! Steps of a decomposition: emitters whose operators are repaired like those of the template.

use smallvec::{SmallVec, smallvec};

use super::super::{Cause, Failure, InsertionPoint, Writer};
use crate::ir::{ResultInfo, Value};
use crate::op::{Emit, Formula, Op, SplitOperand, rules};
use crate::types::{Claim, DType, TensorType};

/// The results of a decomposition; `None` where the operator has none.
pub(super) type Written = Result<Option<SmallVec<[Value; 2]>>, Failure>;

/// The decomposition of one operator, as far as it is written.
pub(super) struct Steps<'w, 'g> {
    pub(super) writer: &'w mut Writer<'g>,
    pub(super) at: &'w InsertionPoint,
    pub(super) result: &'w ResultInfo,
}

/// Emitter of the next step.
pub(super) struct Step<'s, 'w, 'g> {
    steps: &'s mut Steps<'w, 'g>,
    output: StepOutput<'s>,
}

/// The form of a step's result.
enum StepOutput<'s> {
    /// An intermediate value, named after the result with this suffix.
    Named(&'s str),
    /// A result of the decomposed operator.
    Result(&'s ResultInfo),
    /// The first result, cast to its type.
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
        let info = match self.output {
            StepOutput::Named(suffix) => {
                let inferred = steps.writer.infer(&op, operands)?;
                let name = steps.writer.fresh(&steps.result.name, suffix);
                ResultInfo { name, ty: inferred.ty, ints: inferred.ints }
            }
            StepOutput::Result(result) => result.clone(),
            StepOutput::Rounded => {
                let to = steps.result.ty.dtype;
                if steps.writer.infer(&op, operands)?.ty.dtype == to {
                    return steps.last().emit(op, operands);
                }
                let value = steps.step(".whole").op(op, operands)?;
                return Ok(smallvec![steps.last().convert(value, to)?]);
            }
        };
        // Steps in `f64` have digits to spare and are not widened again, unless the elements are
        // `f64` themselves.
        let spare = steps.result.ty.dtype != DType::F64;
        let outer = std::mem::replace(&mut steps.writer.inside, spare);
        let written = steps.writer.write(&op, operands, &[info], steps.at);
        steps.writer.inside = outer;
        written
    }
}

impl<'w, 'g> Steps<'w, 'g> {
    /// The next intermediate step, named after the result.
    pub(super) fn step<'s>(&'s mut self, suffix: &'s str) -> Step<'s, 'w, 'g> {
        Step { steps: self, output: StepOutput::Named(suffix) }
    }

    /// The step that computes one of the results.
    pub(super) fn result<'s>(&'s mut self, result: &'s ResultInfo) -> Step<'s, 'w, 'g> {
        Step { steps: self, output: StepOutput::Result(result) }
    }

    /// The last step, which computes the first result.
    pub(super) fn last(&mut self) -> Step<'_, 'w, 'g> {
        let result = self.result;
        Step { steps: self, output: StepOutput::Result(result) }
    }

    /// The last step, followed by a cast to the result's type where it has another.
    pub(super) fn rounded(&mut self) -> Step<'_, 'w, 'g> {
        Step { steps: self, output: StepOutput::Rounded }
    }

    /// The value, cast to `f32` from half precision.
    pub(super) fn widen_half(&mut self, x: Value) -> Result<Value, Failure> {
        if matches!(self.writer.out.ty(x).dtype, DType::F16 | DType::Bf16) {
            return self.step(".single").convert(x, DType::F32);
        }
        Ok(x)
    }

    /// The all-reduced value of a partial one.
    pub(super) fn all_reduced(&mut self, part: Value, op: &Op) -> Result<Value, Failure> {
        let claim = self.writer.claim(part);
        let refusal = rules::needs_whole(&[SplitOperand { claim, ty: &self.result.ty }]);
        let cause = Cause { refusal: &refusal, op, at: self.at };
        Ok(self.writer.redistribute(part, claim, Claim::Invariant, cause)?)
    }
}
