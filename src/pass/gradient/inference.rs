//! Inference mode: what a file has in train mode becomes what inference has in its place.

use crate::ir::{Builder, Graph, GraphError, NodeId, NodeKind, Origin, Value, Weights};
use crate::op::{BatchNorm, BatchNormTrain, Binary, Compare, Dropout, Logic, Op, Random};
use crate::types::invariant::invariant;

/// A graph whose batch normalisation takes its running statistics and whose dropout drops nothing,
/// where a file has them in train mode, and the others as they are.
///
/// # Errors
/// If the graph is damaged.
pub fn inference(graph: &Graph) -> Result<Graph, GraphError> {
    let mut builder = Builder::over(graph.clone(), Weights::default());
    inference_mode(&mut builder)?;
    let (mut graph, _) = builder.finish();
    graph.remove_unused();
    Ok(graph)
}

/// Brings a graph into this mode. What is replaced stays, unused.
pub(super) fn inference_mode(builder: &mut Builder) -> Result<(), GraphError> {
    for id in builder.graph().order()? {
        let op = builder.graph().node(id).op();
        if let Some(Op::BatchNormTrain(train)) = op {
            let train = train.clone();
            normalise(builder, id, &train)?;
        } else if let Some(dropped) = Dropped::of(builder.graph(), id) {
            dropped.keep(builder, id)?;
        }
    }
    builder.set_origin(Origin::default());
    Ok(())
}

/// Makes batch normalisation take its running statistics; where one is no parameter, or what
/// follows from the batch is used, it stays as it is.
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

/// The name of what takes the place of a node, which is written next.
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

/// Dropout in train mode: 0 where a number drawn from 0 to 1 for each element is below the rate,
/// else the operand divided by the rest.
struct Dropped {
    x: Value,
    rate: f32,
    /// What says which elements stay.
    masks: Vec<Value>,
}

impl Dropped {
    /// That whose first result a node gives. What takes the draws for anything else is none.
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
        // The rest is rounded to the type of the operand.
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

    /// Drops nothing.
    fn keep(self, builder: &mut Builder, id: NodeId) -> Result<(), GraphError> {
        let name = begin(builder, id);
        let op = Dropout { mask: !self.masks.is_empty(), rate: self.rate };
        let new = builder.all(&name, op, &[self.x])?;
        builder.replace(Value { node: id, output: 0 }, new[0])?;
        self.masks.into_iter().try_for_each(|mask| builder.replace(mask, new[1]))
    }
}

/// What is used of what says which elements are dropped, besides the choice itself; `None` if that
/// is more than its opposite.
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

/// A constant without axes.
fn number(graph: &Graph, value: Value) -> Option<f64> {
    let value = graph.node(value.node).op()?.known()?;
    if value.rank() == 0 { value.to_f64().first().copied() } else { None }
}
