//! Gradients: operators that compute how a number of the graph changes with values that it depends
//! on.
//!
//! Rules stand with the operators ([`OpDef::backward`](crate::op::OpDef::backward)). Here they are
//! applied against the order of the graph, from the loss to the values asked for; what several
//! users of a value give it is added, the last user first. The result is a graph like any other: a
//! pass that splits the batch finds the gradients of parameters to be sums over it.

mod classes;
mod clip;
mod fixed;
mod inference;
mod loss;
mod metric;
mod mode;
mod names;
mod optimizer;
mod penalty;
mod recompute;
mod share;
mod step;
mod trainable;
mod training;
mod update;

use std::collections::HashMap;

use smallvec::SmallVec;

pub use classes::class_axis;
pub use fixed::fixed_parameters;
pub use inference::inference;
pub use loss::{Loss, ParseLossError};
pub use metric::{Metric, ParseMetricError};
pub use mode::{Mode, train_mode};
pub use optimizer::{EpsilonPlace, Optimizer, ParseOptimizerError, Rule};
pub use penalty::{ParsePenaltyError, Penalty};
pub use recompute::{ParseRecomputeError, Recompute};
pub use training::{
    OutputLoss, STEP, Target, Training, TrainingError, TrainingGraph, Weighted, evaluation,
    training,
};

use self::recompute::{Again, Forward};
use crate::ir::{Builder, GraphError, NodeId, Origin, Value};
use crate::op::{
    Backward, Binary, Cast, Constant, Emit, Gradient, Op, OpDef, OpError, RuleError, Term,
};
use crate::types::invariant::{int, invariant};
use crate::types::{Tensor, TensorType};

/// Why there is no gradient.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// What is differentiated is not one floating-point number.
    #[error("the loss is {0}; it must be one float, without axes")]
    Loss(Box<TensorType>),
    /// An operator between the values and the loss has none.
    #[error("`{label}` ({op}) has no gradient: {error}")]
    Operator {
        /// The node's label.
        label: String,
        /// The operator.
        op: &'static str,
        /// Why.
        error: RuleError,
    },
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Adds to a graph the gradients of `loss` with respect to the values `of`; `None` for a value on
/// which it does not depend, or only through operators that are constant between their steps.
pub fn differentiate(
    builder: &mut Builder,
    loss: Value,
    of: &[Value],
) -> Result<Vec<Option<Value>>, GradientError> {
    differentiate_with(builder, loss, of, Recompute::Nothing)
}

/// As [`differentiate`]; the gradients compute some values again that they would otherwise keep.
pub fn differentiate_with(
    builder: &mut Builder,
    loss: Value,
    of: &[Value],
    again: Recompute,
) -> Result<Vec<Option<Value>>, GradientError> {
    let ty = builder.graph().ty(loss).clone();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        return Err(GradientError::Loss(Box::new(ty)));
    }
    let order = builder.graph().order()?;
    let reached = reached(builder, &order, of);
    let forward = Forward { order: &order, reached: &reached };
    let again = Again::new(builder, forward, again);
    let mut sums = Sums { builder, gradients: HashMap::new(), again };
    sums.begin(loss)?;
    for id in order.iter().rev().filter(|id| reached[id.index()]) {
        sums.node(*id, &reached, of)?;
    }
    sums.builder.set_origin(Origin::default());
    Ok(of.iter().map(|v| sums.gradients.get(v).copied()).collect())
}

/// The nodes whose results depend on the values, by index.
fn reached(builder: &Builder, order: &[NodeId], of: &[Value]) -> Vec<bool> {
    let graph = builder.graph();
    let mut reached = vec![false; graph.id_bound()];
    for v in of {
        reached[v.node.index()] = true;
    }
    for id in order {
        let Some(op) = graph.node(*id).op() else { continue };
        if !reached[id.index()] && !matches!(op.gradient(), Gradient::Zero(_)) {
            reached[id.index()] = graph.operands(*id).iter().any(|v| reached[v.node.index()]);
        }
    }
    reached
}

/// The gradients found so far.
struct Sums<'b> {
    builder: &'b mut Builder,
    gradients: HashMap<Value, Value>,
    again: Again,
}

impl Sums<'_> {
    /// The loss changes with itself one to one.
    fn begin(&mut self, loss: Value) -> Result<(), GradientError> {
        let dtype = self.builder.graph().ty(loss).dtype;
        let wrong = |error| GradientError::Operator {
            label: String::new(),
            op: "constant",
            error: RuleError::from(error),
        };
        let one = Cast { to: dtype }.eval(&[&Tensor::scalar(1.0f64)]).map_err(wrong)?;
        let value = one.into_iter().next().unwrap_or_else(|| Tensor::scalar(1.0f64));
        let name = format!("{}.grad", self.builder.graph().info(loss).name);
        let one = self.builder.op(&name, Constant { value }, &[])?;
        self.gradients.insert(loss, one);
        Ok(())
    }

    fn node(&mut self, id: NodeId, reached: &[bool], of: &[Value]) -> Result<(), GradientError> {
        let graph = self.builder.graph();
        let node = graph.node(id);
        let Some(op) = node.op().cloned() else { return Ok(()) };
        let (label, results) = (node.label().to_owned(), node.results().len());
        let name = format!(
            "{}.grad",
            invariant(node.results().first(), "that what has a gradient has a result").name
        );
        let results: Vec<Value> =
            (0..int::<u32>(results)).map(|output| Value { node: id, output }).collect();
        let gradients: Vec<Option<Value>> =
            results.iter().map(|v| self.gradients.get(v).copied()).collect();
        let operands = graph.operands(id);
        let wanted: Vec<bool> = operands
            .iter()
            .map(|v| reached[v.node.index()] && graph.ty(*v).dtype.is_float())
            .collect();
        // A value asked for may be the result of an operator; what lies before it may not be of
        // interest.
        let asked = results.iter().any(|v| of.contains(v)) && !wanted.contains(&true);
        if gradients.iter().all(Option::is_none) || asked || !wanted.contains(&true) {
            return Ok(());
        }
        if let Gradient::None(reason) = op.gradient() {
            let error = RuleError::Undefined(reason);
            return Err(GradientError::Operator { label, op: op.name(), error });
        }
        self.builder.set_origin(Origin::new(&*label));
        let mut writer = Writer::new(&mut *self.builder, name);
        writer.again = Some((&mut self.again, Origin::new(&*label)));
        let terms = |writer: &mut Writer<'_>, values: &[Value]| -> Vec<Term> {
            values.iter().map(|v| writer.term(*v)).collect()
        };
        let (xs, ys) = (terms(&mut writer, &operands), terms(&mut writer, &results));
        let dys: Vec<Option<Term>> = gradients.iter().map(|g| g.map(|g| writer.term(g))).collect();
        let mut at = Backward::new(&mut writer, &xs, &ys, &dys, &wanted);
        let written = op.backward(&mut at);
        let given = at.finish();
        written.map_err(|error| GradientError::Operator { label, op: op.name(), error })?;
        let given: Vec<Option<Value>> = given.iter().map(|g| g.map(|g| writer.value(g))).collect();
        for ((operand, given), wanted) in operands.iter().zip(given).zip(wanted) {
            if let (Some(given), true) = (given, wanted) {
                self.add(*operand, given)?;
            }
        }
        Ok(())
    }

    /// Adds to the gradient of a value.
    fn add(&mut self, value: Value, gradient: Value) -> Result<(), GradientError> {
        let sum = match self.gradients.get(&value) {
            None => gradient,
            Some(sum) => {
                let name = format!("{}.grad.sum", self.builder.graph().info(value).name);
                self.builder.op(&name, Binary::Add, &[*sum, gradient])?
            }
        };
        self.gradients.insert(value, sum);
        Ok(())
    }
}

/// What takes in the operators of a rule.
struct Writer<'b> {
    builder: &'b mut Builder,
    /// The values that terms stand for.
    values: Vec<Value>,
    /// What new values are named after.
    name: String,
    /// The values that are computed again where they are used, and what else is written comes from.
    again: Option<(&'b mut Again, Origin)>,
}

impl<'b> Writer<'b> {
    fn new(builder: &'b mut Builder, name: impl Into<String>) -> Self {
        Self { builder, values: Vec::new(), name: name.into(), again: None }
    }

    fn term(&mut self, value: Value) -> Term {
        self.values.push(value);
        Term(int::<u32>(self.values.len() - 1))
    }

    fn value(&self, term: Term) -> Value {
        self.values[term.0 as usize]
    }
}

impl Emit for Writer<'_> {
    fn ty(&self, term: Term) -> &TensorType {
        self.builder.graph().ty(self.value(term))
    }

    fn emit(&mut self, op: Op, operands: &[Term]) -> Result<SmallVec<[Term; 2]>, OpError> {
        let plain = |error| {
            if let GraphError::Op { error, .. } = error {
                *error
            } else {
                OpError::Unsupported(error.to_string())
            }
        };
        let mut operands: Vec<Value> = operands.iter().map(|t| self.value(*t)).collect();
        if let Some((again, origin)) = &mut self.again {
            for operand in &mut operands {
                *operand = again.value(self.builder, *operand).map_err(plain)?;
            }
            self.builder.set_origin(origin.clone());
        }
        let values = self.builder.all(&self.name, op, &operands).map_err(plain)?;
        Ok(values.into_iter().map(|v| self.term(v)).collect())
    }
}
