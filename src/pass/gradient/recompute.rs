//! What the backward part computes again instead of keeping it from the forward part.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use crate::ir::{Builder, GraphError, NodeId, Origin, Value};
use crate::op::Traits;
use crate::types::invariant::{int, invariant};
use crate::types::{Dim, Quoted};

/// Which values gradients compute again, to have less memory in use. The same operators on the same
/// values give the same bits.
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
    /// All but those that alone are alive at some points of the forward part, as many as the root
    /// of the number of such points: about one more forward pass.
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

/// A text that does not say what to compute again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is nothing to compute again; write nothing, cheap or segments", Quoted(.0))]
pub struct ParseRecomputeError(String);

impl FromStr for Recompute {
    type Err = ParseRecomputeError;

    fn from_str(text: &str) -> Result<Self, ParseRecomputeError> {
        match text {
            "nothing" => Ok(Self::Nothing),
            "cheap" => Ok(Self::Cheap),
            "segments" => Ok(Self::Segments),
            _ => Err(ParseRecomputeError(text.to_owned())),
        }
    }
}

/// The forward part of a graph.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    /// Its nodes in their order.
    pub(super) order: &'a [NodeId],
    /// Whether a node depends on what is trained, by index.
    pub(super) reached: &'a [bool],
}

/// The values of the forward part that are computed again, and what has been.
#[derive(Default)]
pub(super) struct Again {
    /// Whether a node of the forward part is written again for the backward part, by index.
    repeated: Vec<bool>,
    /// The place of each node in the order of the forward part, by index.
    places: Vec<usize>,
    /// The values that stand for those of the forward part.
    done: HashMap<Value, Value>,
}

impl Again {
    /// Decides what of a forward part is computed again.
    pub(super) fn new(builder: &Builder, forward: Forward<'_>, what: Recompute) -> Self {
        if what == Recompute::Nothing {
            return Self::default();
        }
        let Forward { order, reached } = forward;
        let graph = builder.graph();
        let mut places = vec![0; graph.id_bound()];
        for (place, id) in order.iter().enumerate() {
            places[id.index()] = place;
        }
        let mut repeated = vec![false; graph.id_bound()];
        let rows = |id: &NodeId| {
            let mut results = graph.node(*id).results().iter();
            results.any(|r| r.ty.shape.iter().any(Dim::depends_on_batch))
        };
        for id in order.iter().filter(|id| reached[id.index()] && rows(id)) {
            repeated[id.index()] = graph.node(*id).op().is_some_and(|op| {
                if what == Recompute::Cheap {
                    op.is(Traits::CHEAP)
                } else {
                    !op.is(Traits::UNREPEATABLE)
                }
            });
        }
        let mut again = Self { repeated, places, done: HashMap::new() };
        if what == Recompute::Segments {
            again.keep_ends(builder, forward);
        }
        again
    }

    /// Keeps the values at the ends of segments, and all behind the last one.
    fn keep_ends(&mut self, builder: &Builder, forward: Forward<'_>) {
        let Forward { order, reached } = forward;
        let graph = builder.graph();
        let place = |id: NodeId| self.places[id.index()];
        // The values that depend on what is trained and are used behind a place, by the place of
        // their last use.
        let mut alive: HashSet<Value> = HashSet::new();
        let mut dies: Vec<Vec<Value>> = vec![Vec::new(); order.len()];
        let mut cuts: Vec<(usize, NodeId)> = Vec::new();
        for (at, id) in order.iter().enumerate() {
            for value in std::mem::take(&mut dies[at]) {
                alive.remove(&value);
            }
            let results = graph.node(*id).results().len();
            let outputs = (0..int::<u32>(results)).filter(|_| reached[id.index()]);
            for value in outputs.map(|output| Value { node: *id, output }) {
                let users = graph.users(*id).into_iter().filter(|user| user.2 == value.output);
                let last = users.map(|(user, ..)| place(user)).max();
                if let (Some(last), true) = (last, graph.node(*id).op().is_some()) {
                    alive.insert(value);
                    dies[last].push(value);
                }
            }
            if let (1, Some(only)) = (alive.len(), alive.iter().next())
                && self.repeated[only.node.index()]
            {
                cuts.push((at, only.node));
            }
        }
        cuts.dedup_by_key(|(_, node)| *node);
        let ends = cuts.len().isqrt();
        let mut last = 0;
        for i in 1..=ends {
            let (at, node) = cuts[i * cuts.len() / (ends + 1)];
            self.repeated[node.index()] = false;
            last = at;
        }
        for id in &order[last..] {
            self.repeated[id.index()] = false;
        }
    }

    /// What stands for a value in the backward part: itself, or what is computed again here.
    pub(super) fn value(
        &mut self,
        builder: &mut Builder,
        value: Value,
    ) -> Result<Value, GraphError> {
        let repeats = |id: NodeId| self.repeated.get(id.index()) == Some(&true);
        if !repeats(value.node) {
            return Ok(value);
        }
        if let Some(done) = self.done.get(&value) {
            return Ok(*done);
        }
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
        nodes.sort_by_key(|id| self.places[id.index()]);
        for id in nodes {
            self.write(builder, id)?;
        }
        Ok(self.done.get(&value).copied().unwrap_or(value))
    }

    /// Writes a node again.
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
