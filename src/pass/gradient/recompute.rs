//! Rematerialization: forward values that the backward pass computes again to save memory.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use crate::ir::{Builder, GraphError, NodeId, NodeMap, Origin, Value};
use crate::op::Traits;
use crate::types::invariant::{int, invariant};
use crate::types::{Dim, ParseValueError, Quoted};

/// The forward values that gradients compute again, to save memory. The same operators on the same
/// operands give the same bits, so that gradients do not change.
///
/// Elsewhere: rematerialization (XLA); activation checkpointing (PyTorch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// None.
    #[default]
    Nothing,
    /// The results of operators that cost little more than reading their operands: elementwise
    /// ones, activations, normalisations, masks of dropout, broadcasts, other shapes.
    Cheap,
    /// All but the values at about `sqrt(c)` checkpoints, of the `c` points of the forward pass at
    /// which a single value is alive: about one more forward pass of time.
    Segments,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Cheap => "cheap",
            Self::Segments => "segments",
        })
    }
}

/// The error for a text that is no mode.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "{} is not a recomputation mode; write nothing, cheap or segments",
        Quoted(text)
    ))
}

impl FromStr for Recompute {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        match text {
            "nothing" => Ok(Self::Nothing),
            "cheap" => Ok(Self::Cheap),
            "segments" => Ok(Self::Segments),
            _ => Err(wrong(text)),
        }
    }
}

/// The forward pass of a graph.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    /// Its nodes in topological order.
    pub(super) order: &'a [NodeId],
    /// By index: whether a node depends on trained values.
    pub(super) reached: &'a NodeMap<bool>,
}

/// The choice of forward nodes to compute again, and those already written.
#[derive(Default)]
pub(super) struct Recomputation {
    /// By index: whether the backward pass computes the node again.
    repeated: NodeMap<bool>,
    /// By index: the position of each node in the order of the forward pass.
    places: NodeMap<usize>,
    /// The recomputed values, by forward value.
    done: HashMap<Value, Value>,
}

impl Recomputation {
    /// Chooses the nodes of a forward pass to compute again.
    pub(super) fn new(builder: &Builder, forward: Forward<'_>, what: Recompute) -> Self {
        if what == Recompute::Nothing {
            return Self::default();
        }
        let Forward { order, reached } = forward;
        let graph = builder.graph();
        let mut places = graph.node_map(0);
        for (place, id) in order.iter().enumerate() {
            places[*id] = place;
        }
        let mut repeated = graph.node_map(false);
        // Only values with rows grow with the batch; the others are not worth computing twice.
        let rows = |id: &NodeId| {
            let mut results = graph.node(*id).results().iter();
            results.any(|r| r.ty.shape.iter().any(Dim::depends_on_batch))
        };
        for id in order.iter().filter(|id| reached[**id] && rows(id)) {
            repeated[*id] = graph.node(*id).op().is_some_and(|op| {
                if what == Recompute::Cheap {
                    op.is(Traits::CHEAP)
                } else {
                    !op.is(Traits::UNREPEATABLE)
                }
            });
        }
        let mut recomputation = Self { repeated, places, done: HashMap::new() };
        if what == Recompute::Segments {
            recomputation.keep_ends(builder, forward);
        }
        recomputation
    }

    /// Keeps the values at the ends of segments, and all values behind the last one: the backward
    /// pass begins there, so that computing them again would save nothing.
    fn keep_ends(&mut self, builder: &Builder, forward: Forward<'_>) {
        let Forward { order, reached } = forward;
        let graph = builder.graph();
        let place = |id: NodeId| self.places[id];
        // Liveness: values that depend on trained ones and have a use ahead, by their last use.
        let mut alive: HashSet<Value> = HashSet::new();
        let mut dies: Vec<Vec<Value>> = vec![Vec::new(); order.len()];
        let mut cuts: Vec<(usize, NodeId)> = Vec::new();
        for (at, id) in order.iter().enumerate() {
            for value in std::mem::take(&mut dies[at]) {
                alive.remove(&value);
            }
            let results = graph.node(*id).results().len();
            let outputs = (0..int::<u32>(results)).filter(|_| reached[*id]);
            for value in outputs.map(|output| Value { node: *id, output }) {
                let users = graph.users(*id).into_iter().filter(|user| user.2 == value.output);
                let last = users.map(|(user, ..)| place(user)).max();
                if let (Some(last), true) = (last, graph.node(*id).op().is_some()) {
                    alive.insert(value);
                    dies[last].push(value);
                }
            }
            // A single live value is a cut of the graph: everything behind it follows from it
            // alone.
            if let (1, Some(only)) = (alive.len(), alive.iter().next())
                && self.repeated[only.node]
            {
                cuts.push((at, only.node));
            }
        }
        cuts.dedup_by_key(|(_, node)| *node);
        // With `sqrt(c)` segments of `sqrt(c)` cuts each, the values at the ends and the values of
        // one segment take least memory together (Chen et al., sublinear memory cost).
        let ends = cuts.len().isqrt();
        let mut last = 0;
        for i in 1..=ends {
            let (at, node) = cuts[i * cuts.len() / (ends + 1)];
            self.repeated[node] = false;
            last = at;
        }
        for id in &order[last..] {
            self.repeated[*id] = false;
        }
    }

    /// The value to use in the backward pass: itself, or its recomputation, written at first use.
    pub(super) fn value(
        &mut self,
        builder: &mut Builder,
        value: Value,
    ) -> Result<Value, GraphError> {
        let repeats = |id: NodeId| self.repeated.get(id) == Some(&true);
        if !repeats(value.node) {
            return Ok(value);
        }
        if let Some(done) = self.done.get(&value) {
            return Ok(*done);
        }
        // All nodes to repeat are collected before any is written: a walk without recursion, as
        // chains may be as long as the model.
        let mut nodes = vec![value.node];
        let mut seen: HashSet<NodeId> = nodes.iter().copied().collect();
        let mut next = 0;
        while let Some(id) = nodes.get(next).copied() {
            next += 1;
            for operand in builder.graph().operands(id) {
                let open = repeats(operand.node) && !self.done.contains_key(&operand);
                if open && seen.insert(operand.node) {
                    nodes.push(operand.node);
                }
            }
        }
        nodes.sort_by_key(|id| self.places[*id]);
        for id in nodes {
            self.write(builder, id)?;
        }
        Ok(self.done.get(&value).copied().unwrap_or(value))
    }

    /// Writes the recomputation of one node, on recomputed operands where there are some.
    fn write(&mut self, builder: &mut Builder, id: NodeId) -> Result<(), GraphError> {
        let graph = builder.graph();
        let node = graph.node(id);
        let Some(op) = node.op().cloned() else { return Ok(()) };
        let operands = graph.operands(id).into_iter();
        let operands: Vec<Value> =
            operands.map(|v| self.done.get(&v).copied().unwrap_or(v)).collect();
        let name = format!(
            "{}.again",
            invariant(node.results().first(), "that a repeated node has a result").name
        );
        let origin = Origin::new(node.label());
        builder.set_origin(origin);
        for (output, new) in (0u32..).zip(builder.all(&name, op, &operands)?) {
            self.done.insert(Value { node: id, output }, new);
        }
        Ok(())
    }
}
