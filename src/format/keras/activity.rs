//! What the results of layers add to the loss in training.

use serde_json::Value as Json;

use super::at::At;
use super::config::{Read, number};
use super::error::Fault;
use super::value::{Arg, Tensor};
use crate::op::Formula;
use crate::op::for_training::ForTraining;
use crate::types::{DType, Dim, ParseValueError, Quoted};

/// The field of a layer for its results.
const ACTIVITY: &str = "activity_regularizer";

/// The factors of the sums of magnitudes and of squares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Penalty {
    pub(crate) l1: f64,
    pub(crate) l2: f64,
}

impl Penalty {
    /// The field of a layer for its results; `None` if it is not set.
    pub(super) fn of(at: &At<'_, '_>) -> Read<Option<Self>> {
        at.config.opt(ACTIVITY).map(|value| Self::read(ACTIVITY, value)).transpose()
    }

    /// The factors of the regularizer of a variable.
    pub(crate) fn of_variable(found: &Json) -> Result<Self, ParseValueError> {
        Ok(Self::read("regularizer", found)?)
    }

    /// The factors of the regularizer that is the value of this field.
    fn read(name: &str, value: &Json) -> Read<Self> {
        let (class, fields) = match value {
            Json::String(class) => (class.as_str(), None),
            value => {
                let class = value.get("class_name").and_then(Json::as_str);
                let class = class.ok_or_else(|| Fault::field(name, "has no class"))?;
                (class, value.get("config"))
            }
        };
        // The defaults of Keras: those of a class of one factor, of one of two, of its text.
        let (l1, l2) = match class {
            "L1" | "l1" => (0.01, 0.0),
            "L2" | "l2" => (0.0, 0.01),
            "l1_l2" => (0.01, 0.01),
            "L1L2" => (0.0, 0.0),
            class => {
                let reason = format!("is {}, which is not supported in training", Quoted(class));
                return Err(Fault::field(name, reason));
            }
        };
        let factor = |field, absent| {
            let value = fields.and_then(|fields| fields.get(field));
            match value.filter(|value| !value.is_null()) {
                Some(value) => number(field, value).and_then(|factor| {
                    let wrong = || Fault::field(field, "is below 0");
                    (factor >= 0.0).then_some(factor).ok_or_else(wrong)
                }),
                None => Ok(absent),
            }
        };
        Ok(Self { l1: factor("l1", l1)?, l2: factor("l2", l2)? })
    }

    /// Adds to the loss the penalties of all tensors of a result, divided by their batch.
    pub(super) fn added<'c>(self, at: &mut At<'_, 'c>, result: Arg<'c>) -> Read<Arg<'c>> {
        Ok(match result {
            Arg::Tensor(tensor) => self.one(at, tensor)?.into(),
            Arg::List(list) => {
                let list = list.into_iter().map(|arg| self.added(at, arg));
                Arg::List(list.collect::<Read<_>>()?)
            }
            other => other,
        })
    }

    /// Adds to the loss the penalty of a tensor, divided by its batch.
    pub(super) fn one(self, at: &mut At<'_, '_>, tensor: Tensor) -> Read<Tensor> {
        let (x, dtype) = (tensor.value, at.ty_of(tensor.value));
        if self.l1 == 0.0 && self.l2 == 0.0 {
            return Ok(tensor);
        }
        if !dtype.is_float() {
            return Err(Fault::new(format!("its result is {dtype}, which has no penalty")));
        }
        let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
        let elements = at.cast(x, wide)?;
        let mut sums = Vec::new();
        if self.l1 != 0.0 {
            let sizes = at.abs(elements)?;
            let sum = at.total(sizes)?;
            sums.push(at.scale(sum, self.l1)?);
        }
        if self.l2 != 0.0 {
            let squares = at.square(elements)?;
            let sum = at.total(squares)?;
            sums.push(at.scale(sum, self.l2)?);
        }
        let mut sum = sums[0];
        for other in &sums[1..] {
            sum = at.add(sum, *other)?;
        }
        // An empty batch adds nothing.
        let batch = at.shape(x).first().map_or(Dim::ONE, |rows| rows.clone().maximum(&Dim::ONE));
        let batch = at.size(sum, batch)?;
        let mut loss = at.div(sum, batch)?;
        if at.state.steps != 1 {
            // Keras divides the sum of each step by the batch, which is the rows of one step.
            loss = at.scale(loss, at.state.steps as f64)?;
        }
        let value = at.op(ForTraining::AddLoss, &[x, loss])?;
        Ok(Tensor { value, ..tensor })
    }
}
