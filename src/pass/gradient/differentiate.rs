//! Reverse-mode differentiation of a graph.

use std::collections::HashMap;

use super::error::GradientError;
use super::recompute::{Forward, Recomputation, Recompute};
use super::writer::{Terms, Writer};
use crate::ir::{Builder, GraphError, NodeId, NodeMap, Origin, Value};
use crate::op::{Backward, Formula, Gradient, RuleError, Term};
use crate::types::invariant::{int, invariant};

/// Adds the gradients of `loss` with respect to the values `of` to a graph. `None` for a value that
/// the loss does not depend on, or only through operators that are piecewise constant.
///
/// Elsewhere: vector-Jacobian product (PyTorch); `GradientTape` (Keras).
pub fn differentiate(
    builder: &mut Builder,
    loss: Value,
    of: &[Value],
) -> Result<Vec<Option<Value>>, GradientError> {
    differentiate_with(builder, loss, of, Recompute::Nothing)
}

/// Differentiates as [`differentiate`], with recomputation of forward values instead of keeping
/// them in memory.
pub(crate) fn differentiate_with(
    builder: &mut Builder,
    loss: Value,
    of: &[Value],
    recompute: Recompute,
) -> Result<Vec<Option<Value>>, GradientError> {
    let ty = builder.graph().ty(loss).clone();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        return Err(GradientError::Loss(Box::new(ty)));
    }
    let name = format!("{}.grad", builder.graph().info(loss).name);
    let seed = |b: &mut Builder| Ok(vec![(loss, b.named(&name).number(loss, 1.0)?)]);
    pulled_back(builder, seed, of, recompute)
}

/// Differentiates as [`differentiate_with`], from the gradients that `seeds` writes: values, each
/// with the gradient of what depends on it.
pub(super) fn pulled_back(
    builder: &mut Builder,
    seeds: impl FnOnce(&mut Builder) -> Result<Vec<(Value, Value)>, GraphError>,
    of: &[Value],
    recompute: Recompute,
) -> Result<Vec<Option<Value>>, GradientError> {
    let order = builder.graph().order()?;
    let reached = reached(builder, &order, of);
    let forward = Forward { order: &order, reached: &reached };
    let recomputation = Recomputation::new(builder, forward, recompute);
    let seeds = seeds(builder)?;
    let mut found = Gradients { builder, adjoints: HashMap::new(), recomputation };
    for (value, gradient) in seeds {
        found.add(value, gradient)?;
    }
    for id in order.iter().rev().filter(|id| reached[**id]) {
        found.node(*id, &reached, of)?;
    }
    found.builder.set_origin(Origin::default());
    Ok(of.iter().map(|v| found.adjoints.get(v).copied()).collect())
}

/// The nodes whose results depend differentiably on the values, by index.
fn reached(builder: &Builder, order: &[NodeId], of: &[Value]) -> NodeMap<bool> {
    let graph = builder.graph();
    let mut reached = graph.node_map(false);
    for v in of {
        reached[v.node] = true;
    }
    for id in order {
        let Some(op) = graph.node(*id).op() else { continue };
        // Nothing flows back through an operator whose gradient is 0 everywhere.
        if !reached[*id] && !matches!(op.gradient(), Gradient::Zero(_)) {
            reached[*id] = graph.operands(*id).iter().any(|v| reached[v.node]);
        }
    }
    reached
}

/// The gradients written so far: for each value the sum over the users already visited.
struct Gradients<'b> {
    builder: &'b mut Builder,
    adjoints: HashMap<Value, Value>,
    recomputation: Recomputation,
}

impl Gradients<'_> {
    /// Applies the gradient rule of one node and adds its results to the gradients of the operands.
    ///
    /// All users of the node were visited before, so that the gradients of its results are
    /// complete.
    fn node(
        &mut self,
        id: NodeId,
        reached: &NodeMap<bool>,
        of: &[Value],
    ) -> Result<(), GradientError> {
        let graph = self.builder.graph();
        let node = graph.node(id);
        let Some(op) = node.op().cloned() else { return Ok(()) };
        let (label, results) = (node.label().to_owned(), node.results().len());
        let result = invariant(node.results().first(), "that what has a gradient has a result");
        let name = format!("{}.grad", result.name);
        let results: Vec<Value> =
            (0..int::<u32>(results)).map(|output| Value { node: id, output }).collect();
        let gradients: Vec<Option<Value>> =
            results.iter().map(|v| self.adjoints.get(v).copied()).collect();
        let operands = graph.operands(id);
        let wanted: Vec<bool> =
            operands.iter().map(|v| reached[v.node] && graph.ty(*v).dtype.is_float()).collect();
        // A requested value may be the result of an operator whose operands nobody requested: its
        // gradient is known, and nothing has to flow further back.
        let asked = results.iter().any(|v| of.contains(v)) && !wanted.contains(&true);
        if gradients.iter().all(Option::is_none) || asked || !wanted.contains(&true) {
            return Ok(());
        }
        if let Gradient::None(reason) = op.gradient() {
            let error = RuleError::Undefined(reason);
            return Err(GradientError::Operator { label, op: op.name(), error });
        }
        // A rule may write nothing, but the additions below need the origin as well.
        self.builder.set_origin(Origin::new(&*label));
        let writer = Writer::new(&mut *self.builder, &name);
        let mut terms = Terms::new(writer, &mut self.recomputation, Origin::new(&*label));
        let xs: Vec<Term> = operands.iter().map(|v| terms.term(*v)).collect();
        let ys: Vec<Term> = results.iter().map(|v| terms.term(*v)).collect();
        let dys: Vec<Option<Term>> = gradients.iter().map(|g| g.map(|g| terms.term(g))).collect();
        let mut at = Backward::new(&mut terms, &xs, &ys, &dys, &wanted);
        let written = op.backward(&mut at);
        let given = at.finish();
        written.map_err(|error| GradientError::Operator { label, op: op.name(), error })?;
        let given: Vec<Option<Value>> = given.iter().map(|g| g.map(|g| terms.value(g))).collect();
        for ((operand, given), wanted) in operands.iter().zip(given).zip(wanted) {
            if let (Some(given), true) = (given, wanted) {
                self.add(*operand, given)?;
            }
        }
        Ok(())
    }

    /// Adds a user's contribution to the gradient of a value.
    fn add(&mut self, value: Value, gradient: Value) -> Result<(), GradientError> {
        let sum = match self.adjoints.get(&value) {
            None => gradient,
            Some(sum) => {
                let name = format!("{}.grad.sum", self.builder.graph().info(value).name);
                self.builder.named(&name).add(*sum, gradient)?
            }
        };
        self.adjoints.insert(value, sum);
        Ok(())
    }
}
