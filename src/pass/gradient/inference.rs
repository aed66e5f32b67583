//! Inference mode: batch normalisation and dropout of a file in train mode, rewritten.

use std::collections::BTreeSet;

use super::phase::Phase;
use crate::ir::{Builder, Graph, GraphError, NodeId, NodeKind, Origin, Value, Weights};
use crate::op::{BatchNorm, BatchNormTrain, Binary, Compare, Dropout, Logic, Op, Random};
use crate::pass::simplify::remove_identities;
use crate::types::invariant::invariant;

/// A copy of a graph in which batch normalisation in train mode takes its running statistics,
/// dropout in train mode drops nothing, and nothing is left that only training takes.
///
/// # Errors
/// If the graph is damaged.
pub fn inference(graph: &Graph) -> Result<Graph, GraphError> {
    let mut builder = Builder::over(graph.clone(), Weights::default());
    inference_mode(&mut builder)?;
    Phase::enter(&mut builder, false, &BTreeSet::new())?;
    let (mut graph, _) = builder.finish();
    remove_identities(&mut graph, false)?;
    Ok(graph)
}

/// Puts a graph into inference mode. Replaced nodes stay in it, unused.
pub(super) fn inference_mode(builder: &mut Builder) -> Result<(), GraphError> {
    for id in builder.graph().order()? {
        let op = builder.graph().node(id).op();
        if let Some(Op::BatchNormTrain(train)) = op {
            let train = train.clone();
            normalise(builder, id, &train)?;
        } else if let Some(dropped) = DropoutPattern::of(builder.graph(), id) {
            dropped.keep(builder, id)?;
        }
    }
    builder.set_origin(Origin::default());
    Ok(())
}

/// Replaces batch normalisation by its form with running statistics. It stays as it is if a
/// statistic is no parameter, or if its new statistics are used.
fn normalise(builder: &mut Builder, id: NodeId, train: &BatchNormTrain) -> Result<(), GraphError> {
    let (graph, operands) = (builder.graph(), builder.graph().operands(id));
    let [_, _, _, mean, var] = operands[..] else { return Ok(()) };
    let is_param = |v: Value| matches!(graph.node(v.node).kind(), NodeKind::Param(_));
    let moves = (1..3).any(|output| graph.is_used(Value { node: id, output }));
    if moves || !is_param(mean) || !is_param(var) {
        return Ok(());
    }
    let op = BatchNorm { epsilon: train.epsilon, momentum: train.momentum };
    let name = begin(builder, id);
    let new = builder.op(&name, op, &operands)?;
    builder.replace(Value { node: id, output: 0 }, new)
}

/// The name of the replacement of a node; sets the origin for it.
fn begin(builder: &mut Builder, id: NodeId) -> String {
    let node = builder.graph().node(id);
    let name = format!(
        "{}.inference",
        invariant(node.results().first(), "that a replaced node has a result").name
    );
    let origin = Origin::new(node.label());
    builder.set_origin(origin);
    name
}

/// The pattern in which exporters write dropout in train mode: `where(uniform(0, 1) < rate, 0, x /
/// (1 - rate))`.
struct DropoutPattern {
    x: Value,
    rate: f32,
    /// The values that say which elements stay.
    masks: Vec<Value>,
}

impl DropoutPattern {
    /// Matches the pattern at a node. Draws with any other use are not dropout.
    fn of(graph: &Graph, id: NodeId) -> Option<Self> {
        let Some(Op::Where(_)) = graph.node(id).op() else { return None };
        let [below, zero, scaled] = graph.operands(id)[..] else { return None };
        let Some(Op::Compare(Compare::Less)) = graph.node(below.node).op() else { return None };
        let [draws, limit] = graph.operands(below.node)[..] else { return None };
        let Some(Op::Random(Random::Uniform { high, low, .. })) = graph.node(draws.node).op()
        else {
            return None;
        };
        let Some(Op::Binary(Binary::Div)) = graph.node(scaled.node).op() else { return None };
        let [x, rest] = graph.operands(scaled.node)[..] else { return None };
        let (dropped, rest) = (number(graph, limit)?, number(graph, rest)?);
        #[expect(clippy::cast_possible_truncation, reason = "the draws are compared in f32")]
        let rate = dropped as f32;
        let from_0_to_1 = low.to_bits() == 0 && high.to_bits() == 1.0f32.to_bits();
        // `1 - rate` is rounded to the operand's type, as coarse as `bf16`: hence the tolerance.
        let is_rest = (dropped + rest - 1.0).abs() < 0.01 && (0.0..1.0).contains(&rate);
        let shape = &graph.ty(x).shape;
        let shapes = [Value { node: id, output: 0 }, draws].map(|v| graph.ty(v).shape == *shape);
        let is_zero = number(graph, zero)?.abs() <= 0.0;
        let own = graph.users(draws.node).len() == 1 && !graph.is_kept(draws);
        if !from_0_to_1 || !is_rest || !is_zero || !own || shapes != [true; 2] {
            return None;
        }
        Some(Self { x, rate, masks: masks(graph, below, id)? })
    }

    /// Replaces the pattern by `dropout`, an identity in inference.
    fn keep(self, builder: &mut Builder, id: NodeId) -> Result<(), GraphError> {
        let name = begin(builder, id);
        let op = Dropout { mask: !self.masks.is_empty(), rate: self.rate };
        let new = builder.all(&name, op, &[self.x])?;
        builder.replace(Value { node: id, output: 0 }, new[0])?;
        self.masks.into_iter().try_for_each(|mask| builder.replace(mask, new[1]))
    }
}

/// The used negations of the drop mask; `None` if the mask has other uses besides the choice.
fn masks(graph: &Graph, below: Value, choice: NodeId) -> Option<Vec<Value>> {
    let users = graph.users(below.node);
    let others = users.iter().filter(|(user, ..)| *user != choice).map(|(user, ..)| *user);
    let others: Vec<NodeId> = others.collect();
    let is_not = |user: &NodeId| matches!(graph.node(*user).op(), Some(Op::Logic(Logic::Not)));
    if graph.is_kept(below) || users.len() != others.len() + 1 || !others.iter().all(is_not) {
        return None;
    }
    let values = others.into_iter().map(|node| Value { node, output: 0 });
    Some(values.filter(|value| graph.is_used(*value)).collect())
}

/// The value of a scalar constant.
fn number(graph: &Graph, value: Value) -> Option<f64> {
    let value = graph.node(value.node).op()?.known()?;
    if value.rank() == 0 { value.to_f64().first().copied() } else { None }
}
