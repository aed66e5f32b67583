//! The class axis of outputs, and logits in place of probabilities.

use super::error::TrainingError;
use super::loss::Link;
use super::loss::Loss;
use super::spec::OutputLoss;
use crate::ir::{Builder, Graph, GraphError, Output, Value};
use crate::op::{Formula, Op, RuleError, Softmax, Traits, Unary};
use crate::types::{DType, Dim, Shape, TensorType};

/// The outputs of the model; those of shape `[N]` that have a loss as `[N,1]`, so that every loss
/// finds an axis to reduce.
pub(super) fn columns(
    b: &mut Builder,
    losses: &[OutputLoss],
) -> Result<Vec<Output>, TrainingError> {
    let mut outputs = b.take_outputs();
    for output in &mut outputs {
        let costs = losses.iter().any(|loss| *loss.output == *output.name);
        let shape = b.graph().ty(output.value).shape.to_vec();
        if costs && shape == [Dim::n()] {
            let name = format!("{}.column", output.name);
            output.value = b.named(&name).view(output.value, vec![Dim::n(), Dim::ONE])?;
        }
    }
    Ok(outputs)
}

/// The class axis of an output of rank 2 or more.
#[derive(Clone, Copy)]
pub(super) struct ClassAxis {
    axis: usize,
    rank: usize,
}

impl ClassAxis {
    /// The class axis of an output with a loss.
    ///
    /// # Errors
    /// If the loss cannot be taken of the output.
    pub(super) fn of(
        graph: &Graph,
        of: &OutputLoss,
        output: &Output,
    ) -> Result<Self, TrainingError> {
        let ty = graph.ty(output.value);
        let wrong = |reason| {
            let what = format!("{} of `{}`, {ty}", of.loss, output.name);
            TrainingError::Rule { what, error: RuleError::Undefined(reason) }
        };
        if !matches!(ty.dtype, DType::F32 | DType::F64) {
            return Err(wrong("training takes outputs of f32 and f64"));
        }
        let rank = ty.rank();
        if rank < 2 {
            return Err(wrong("the output has no axis behind its rows"));
        }
        let of_softmax = of.loss.link().filter(|link| *link == Link::Softmax);
        let axis = of.class_axis.or(of_softmax.and_then(|_| softmax_axis(graph, output.value)));
        // The last axis by default.
        let axis = resolved(axis.unwrap_or(-1), rank)
            .ok_or_else(|| wrong("the output has no such axis of classes"))?;
        if ty.shape[axis].depends_on_batch() {
            return Err(wrong("its classes are on the axis of its rows"));
        }
        Ok(Self { axis, rank })
    }

    /// The output's type without the class axis: one element for all classes together.
    pub(super) fn each(self, ty: &TensorType, dtype: DType) -> TensorType {
        let others = ty.shape.iter().enumerate().filter(|(axis, _)| *axis != self.axis);
        TensorType { dtype, shape: others.map(|(_, size)| size.clone()).collect::<Shape>() }
    }

    /// A value of the output's shape, transposed so that the classes are on the last axis.
    pub(super) fn last(
        self,
        b: &mut Builder,
        name: &str,
        value: Value,
    ) -> Result<Value, GraphError> {
        if self.axis + 1 == self.rank {
            return Ok(value);
        }
        let others = (0..self.rank).filter(|axis| *axis != self.axis);
        let perm = others.chain([self.axis]).collect();
        b.named(&format!("{name}.classes_last")).transpose(value, perm)
    }

    /// The loss of logits with the logits, where a softmax or sigmoid computes the output; else the
    /// loss and the output as they are.
    ///
    /// The logarithm of a probability loses precision near 0 and 1, which the fused form on logits
    /// does not.
    pub(super) fn linked(
        self,
        b: &mut Builder,
        loss: Loss,
        output: Value,
    ) -> Result<(Loss, Value), GraphError> {
        let graph = b.graph();
        let from = before_views(graph, output);
        let Some(link) = loss.link() else { return Ok((loss, output)) };
        let is_link = match graph.node(from.node).op() {
            Some(Op::Softmax(Softmax::Softmax { axis })) if link == Link::Softmax => {
                let (given, own) = (&graph.ty(from).shape, &graph.ty(output).shape);
                let axis = resolved(*axis, given.len());
                axis.is_some_and(|axis| alike(given, axis, own, self.axis))
            }
            // A sigmoid is elementwise, so that views between it and the output do not matter.
            Some(Op::Unary(Unary::Sigmoid)) => link == Link::Sigmoid,
            _ => false,
        };
        let logits = graph.operands(from.node).first().copied().filter(|_| is_link);
        let Some(logits) = logits else { return Ok((loss, output)) };
        if from == output {
            return Ok((loss.of_logits(), logits));
        }
        let shape = graph.ty(output).shape.to_vec();
        let name = format!("{}.logits", graph.info(output).name);
        Ok((loss.of_logits(), b.named(&name).view(logits, shape)?))
    }
}

/// The value at the beginning of a chain of views that ends with this one.
fn before_views(graph: &Graph, value: Value) -> Value {
    let mut from = value;
    while graph.node(from.node).op().is_some_and(|op| op.is(Traits::VIEW))
        && let Some(before) = graph.operands(from.node).first()
    {
        from = *before;
    }
    from
}

/// True if an axis of one shape is the same axis in another shape of the same elements: equal size,
/// and as many elements behind it.
fn alike(one: &Shape, axis: usize, other: &Shape, own: usize) -> bool {
    let behind = |shape: &Shape, axis: usize| {
        shape.iter().skip(axis + 1).cloned().collect::<Shape>().elements()
    };
    one.get(axis) == other.get(own) && behind(one, axis) == behind(other, own)
}

/// The class axis of an output for a loss; `None` if the loss does not suit the output.
pub fn class_axis(graph: &Graph, of: &OutputLoss) -> Option<usize> {
    let output = graph.outputs().iter().find(|output| *output.name == *of.output)?;
    ClassAxis::of(graph, of, output).ok().map(|classes| classes.axis)
}

/// The axis of a value along which a softmax computed it, if views left that axis intact.
pub(crate) fn softmax_axis(graph: &Graph, value: Value) -> Option<i64> {
    let mut from = before_views(graph, value);
    // What the model says about its training has the axes of what it says it of.
    while graph.node(from.node).op().is_some_and(|op| op.is(Traits::TRAINS))
        && let Some(before) = graph.operands(from.node).first()
    {
        from = before_views(graph, *before);
    }
    let Some(Op::Softmax(Softmax::Softmax { axis })) = graph.node(from.node).op() else {
        return None;
    };
    if from == value {
        return Some(*axis);
    }
    let (given, own) = (&graph.ty(from).shape, &graph.ty(value).shape);
    let axis = resolved(*axis, given.len())?;
    let found = (0..own.len()).rfind(|at| alike(given, axis, own, *at));
    i64::try_from(found?).ok()
}

/// The axis from 0, where negative numbers count from the end; `None` if it is out of range.
fn resolved(axis: i64, rank: usize) -> Option<usize> {
    let behind = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(behind)? } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}
