//! The meaning of every value of a replicated graph, in terms of the template.
//!
//! One pass in topological order: each node gets a [`Meaning`] from those of its operands. By
//! induction a value holds the elements that its meaning names. A node without a meaning breaks a
//! rule once; the nodes that depend on it are skipped.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::rule::{Proof, ProofError, ProofRule, Violation};
use super::search::Search;
use super::template::{Redistribution, Template};
use crate::ir::{Graph, Id, Node, NodeId, NodeKind, NodeMap, Param, Value};
use crate::op::{Op, Random, Slice};
use crate::types::invariant::{int, invariant};
use crate::types::{Claim, Dim, FastMap, Split};

/// The meaning of a value of the replicated graph: a value of the template, or one replica's
/// part of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Meaning {
    /// A value of the template.
    pub(super) value: Value,
    /// The replica whose part it is; `None` if it is the whole.
    pub(super) replica: Option<u32>,
}

/// The meanings of all results of a node.
#[derive(Clone, Copy)]
pub(super) enum Results {
    /// This, of a node with one result.
    One(Meaning),
    /// A replica's parts of all results of a node of the template.
    Parts(NodeId, u32),
    /// The whole of all results of a node of the template.
    Whole(NodeId),
    /// Of one result of a node of the template the part of each replica, in order.
    Each(NodeId),
}

/// The meanings of operands.
type Meanings = SmallVec<[Meaning; 4]>;

/// The relation between a replicated graph and its template, as far as it is established.
pub(super) struct Relation<'a, 'g> {
    pub(super) template: &'a Template<'g>,
    pub(super) graph: &'g Graph,
    pub(super) split: &'g Split,
    /// The meanings by node; `None` where a rule is broken, or an operand has no meaning.
    results: NodeMap<Option<Results>>,
    /// By parameter: the template's node of the one with its name.
    params: Vec<Option<NodeId>>,
    /// The template's inputs by name.
    inputs: HashMap<&'g str, Value>,
    /// The state of the searches among operators with the same operands, by replica.
    pub(super) searches: FastMap<(u32, u32), Search>,
    /// By replica: the position, among the template's operators, after the one that was found last.
    pub(super) next: Vec<usize>,
    /// By the rows of replicas and by the position of an operator: a clone that was found, whose
    /// types are the template's at these rows.
    pub(super) found: Vec<Option<NodeId>>,
    /// The second meaning of slices that have two, and of their copies.
    second_meanings: FastMap<Value, Meaning>,
    pub(super) proof: Proof,
    violations: Vec<Violation>,
}

impl<'a, 'g> Relation<'a, 'g> {
    pub(super) fn new(template: &'a Template<'g>, graph: &'g Graph, split: &'g Split) -> Self {
        let whole = template.graph;
        let param = |id: NodeId| match whole.node(id).kind() {
            NodeKind::Param(p) => Some((&*whole.param(*p).name, id)),
            NodeKind::Input | NodeKind::Op(_) => None,
        };
        let params: FastMap<&str, NodeId> = whole.ids().filter_map(param).collect();
        let named = |param: &Param| params.get(&*param.name).copied();
        Self {
            template,
            graph,
            split,
            results: graph.node_map(None),
            params: graph.params().iter().map(named).collect(),
            inputs: whole.inputs().map(|v| (&*whole.info(v).name, v)).collect(),
            searches: FastMap::default(),
            next: vec![0; split.replicas()],
            found: vec![None; template.kinds_of_rows() * template.operators().len()],
            second_meanings: FastMap::default(),
            proof: Proof { replicas: split.replicas(), ..Proof::default() },
            violations: Vec::new(),
        }
    }

    /// The counts of the proof.
    ///
    /// # Errors
    /// If any rule is broken: all violations.
    pub(super) fn finish(self) -> Result<Proof, ProofError> {
        if self.violations.is_empty() {
            Ok(self.proof)
        } else {
            Err(ProofError::Violations(self.violations))
        }
    }

    /// Records a violation.
    fn broken(&mut self, rule: ProofRule, node: Option<NodeId>, message: impl Into<String>) {
        self.violations.push(Violation { rule, message: message.into(), node });
    }

    /// Rules P1 to P3, on the graph as a whole: inputs and outputs, split, parameters.
    pub(super) fn boundary(&mut self) {
        let (whole, graph) = (self.template.graph, self.graph);
        let inputs = |g: &'g Graph| g.inputs().map(|v| g.info(v)).map(|i| (&*i.name, &i.ty));
        if !inputs(whole).eq(inputs(graph)) {
            self.broken(ProofRule::P1, None, "the inputs are not those of the template");
        }
        let outputs = |g: &'g Graph| g.outputs().iter().map(|o| (&*o.name, g.ty(o.value)));
        if !outputs(whole).eq(outputs(graph)) {
            self.broken(ProofRule::P1, None, "the outputs are not those of the template");
        }
        let offsets = self.split.offsets();
        // Offsets that begin at 0, end at N and never decrease cover each row exactly once, for
        // every N.
        let ends = offsets.first() == Some(&Dim::ZERO) && offsets.last() == Some(&Dim::n());
        let ordered = offsets.windows(2).all(|o| match o {
            [from, to] => (to.clone() - from.clone()).is_nonnegative(),
            _ => false,
        });
        if !ends || !ordered || offsets.len() != self.split.replicas() + 1 {
            self.broken(ProofRule::P2, None, "the shards do not cover the batch once and in order");
        }
        let known: FastMap<&str, &Param> = whole.params().iter().map(|p| (&*p.name, p)).collect();
        for param in graph.params() {
            let known = known.get(&*param.name);
            if !known.is_some_and(|known| known.ty == param.ty && known.hash == param.hash) {
                let message = format!("the template has no parameter `{}`", param.name);
                self.broken(ProofRule::P3, None, message);
            }
        }
    }

    /// Gives every node its meaning; `order` is topological.
    pub(super) fn nodes(&mut self, order: &[NodeId]) {
        for id in order {
            let node = self.graph.node(*id);
            let meaning = match node.kind() {
                NodeKind::Input => self.inputs.get(&*node.results()[0].name).copied(),
                NodeKind::Param(p) => {
                    let node = self.params[p.index()];
                    if node.is_none() {
                        let name = &self.graph.param(*p).name;
                        let message = format!("the template takes no parameter `{name}`");
                        self.broken(ProofRule::P3, Some(*id), message);
                    }
                    node.map(|node| Value { node, output: 0 })
                }
                NodeKind::Op(op) => {
                    self.results[*id] = self.operator(*id, node, op);
                    continue;
                }
            };
            let whole = meaning.map(|value| Meaning { value, replica: None });
            self.results[*id] = whole.map(Results::One);
        }
    }

    /// The meaning of a value, if its node has one.
    pub(super) fn meaning(&self, value: Value) -> Option<Meaning> {
        Some(match self.results[value.node]? {
            Results::One(meaning) => meaning,
            Results::Parts(node, replica) => {
                Meaning { value: Value { node, output: value.output }, replica: Some(replica) }
            }
            Results::Whole(node) => {
                Meaning { value: Value { node, output: value.output }, replica: None }
            }
            Results::Each(node) => {
                Meaning { value: Value { node, output: 0 }, replica: Some(value.output) }
            }
        })
    }

    /// The results of an operator in the replicated graph; records the violation if it has no
    /// meaning.
    ///
    /// A slice of a replica's rows can mean two things: the rows that the pass takes, and a clone
    /// of a slice that the template itself has. The operator is read with the first meaning of its
    /// operands, and if that breaks a rule with the second one; a copy keeps both.
    fn operator(&mut self, id: NodeId, node: &'g Node, op: &Arc<Op>) -> Option<Results> {
        let values = self.graph.operand_list(id);
        if let Some(results) = self.next_clone(id, op, values) {
            return Some(results);
        }
        let operands: Meanings = values.iter().map(|v| self.meaning(*v)).collect::<Option<_>>()?;
        let mut result = self.interpret(id, op, &operands);
        if let Ok(Results::One(_)) = &result {
            self.record_second_meaning(id, op, &operands);
        }
        let of_own_rows = values.iter().any(|v| self.second_meanings.contains_key(v));
        if of_own_rows {
            let other =
                |(v, m): (&Value, &Meaning)| self.second_meanings.get(v).copied().unwrap_or(*m);
            let others: Meanings = values.iter().zip(&operands).map(other).collect();
            if result.is_err() {
                result = self.interpret(id, op, &others).or(result);
            } else if let (Op::CopyOp(_), Ok(Results::One(m))) =
                (&**op, self.interpret(id, op, &others))
            {
                self.second_meanings.insert(Value { node: id, output: 0 }, m);
            }
        }
        match result {
            Ok(meaning) => Some(meaning),
            Err((rule, reason)) => {
                let name = &node.results()[0].name;
                self.broken(rule, Some(id), format!("%{name}: {reason}"));
                None
            }
        }
    }

    /// The meanings of an operator's results, given those of its operands.
    fn interpret(
        &mut self,
        id: NodeId,
        op: &Arc<Op>,
        operands: &[Meaning],
    ) -> Result<Results, Broken> {
        match (self.graph.node(id).place().replica, &**op, operands) {
            (replica, Op::CopyOp(_), [of]) => self.copy(*of, replica).map(Results::One),
            (Some(replica), Op::Slice(slice), [of]) => match self.slice(slice, *of, replica)? {
                Some(meaning) => Ok(Results::One(meaning)),
                None => self.clone_of(id, op, operands, replica),
            },
            (Some(replica), Op::Random(draw), []) => match self.drawn_rows(draw, replica) {
                Some(meaning) => Ok(Results::One(meaning)),
                None => self.clone_of(id, op, operands, replica),
            },
            (Some(replica), _, operands) => self.clone_of(id, op, operands, replica),
            (None, Op::First(_), parts) => self.first(parts).map(Results::One),
            (None, Op::AllReduce(reduce), parts) => {
                self.all_reduce(reduce, parts).map(Results::One)
            }
            (None, Op::MergeTopK(merge), parts) => self.merge_top_k(merge, parts),
            (None, Op::ExclusiveScan(scan), parts) => self.exclusive_scan(scan, parts),
            (None, _, parts)
                if op.joined().is_some() && parts.iter().any(|part| part.replica.is_some()) =>
            {
                let axis = invariant(op.joined(), "that what joins has an axis");
                self.concat(axis, parts).map(Results::One)
            }
            (None, _, wholes) => self.once(id, op, wholes),
        }
    }

    /// Records the second meaning of a slice or a draw: a clone of the template's own operator.
    fn record_second_meaning(&mut self, id: NodeId, op: &Arc<Op>, operands: &[Meaning]) {
        let replica = self.graph.node(id).place().replica;
        if let Some(replica) = replica.filter(|_| is_cut(op))
            && let Ok(Results::Parts(found, replica)) = self.clone_of(id, op, operands, replica)
        {
            // `clone_of` counted it, but the node is read with its first meaning and counts once.
            self.proof.clones -= 1;
            let meaning =
                Meaning { value: Value { node: found, output: 0 }, replica: Some(replica) };
            self.second_meanings.insert(Value { node: id, output: 0 }, meaning);
        }
    }

    /// True for all rows of a value that carries the batch.
    fn is_whole_rows(&self, of: Meaning) -> bool {
        of.replica.is_none() && self.template.shard(of.value).is_some()
    }

    /// The template's value that a replica may use in place of `of`; `None` where it may not.
    pub(super) fn seen_by_replica(&self, of: Meaning) -> Option<Value> {
        if of.replica.is_some() {
            return Some(of.value);
        }
        match self.template.claim(of.value) {
            Claim::Invariant => Some(of.value),
            // All rows, or the whole of what has parts: only what the template brings to every
            // replica.
            Claim::Shard(_) | Claim::Partial(_) => {
                self.template.redistributed(of.value, Redistribution::Whole)
            }
            Claim::Own | Claim::Mixed => None,
        }
    }

    /// The meaning of a copy (rule P6). A part stays with its replica, and a whole value reaches a
    /// replica only if the template redistributes it.
    fn copy(&mut self, of: Meaning, replica: Option<u32>) -> Result<Meaning, Broken> {
        let broken = |reason: &str| Err((ProofRule::P6, reason.to_owned()));
        let value = match (of.replica, replica) {
            (None, None) => of.value,
            (None, Some(_)) => match self.seen_by_replica(of) {
                Some(value) => value,
                None => return broken("brings all rows to a replica that works on its own rows"),
            },
            (Some(own), Some(replica)) if own == replica => of.value,
            (Some(_), _) => return broken("moves a part of one replica to another, or to none"),
        };
        self.proof.copies += 1;
        Ok(Meaning { value, replica })
    }

    /// The meaning of a slice that takes a replica's rows (rule P4): of all rows, or of a value
    /// that the replica holds whole. `None` for any other slice, which must be a clone.
    fn slice(
        &mut self,
        slice: &Slice,
        of: Meaning,
        replica: u32,
    ) -> Result<Option<Meaning>, Broken> {
        let value = if self.is_whole_rows(of) {
            of.value
        } else {
            let own = of.replica.is_none_or(|own| own == replica);
            let rows = self.seen_by_replica(of).filter(|_| own);
            match rows.and_then(|v| self.template.redistributed(v, Redistribution::OwnRows)) {
                Some(value) => value,
                None => return Ok(None),
            }
        };
        let range = self.split.range(replica as usize);
        let (Some(shard), Some((from, to))) = (self.template.shard(value), range) else {
            return Err((ProofRule::P4, "has no rows to take".to_owned()));
        };
        // No single slice has rows that stand in several blocks.
        if shard.outer > 1 {
            return Ok(None);
        }
        let inner = int::<i64>(shard.inner);
        let rows = Slice::rows(shard.axis, from.clone() * inner, to.clone() * inner);
        if rows != *slice {
            // A slice of the template itself, on rows that it gathers to every replica.
            if !self.is_whole_rows(of) || self.seen_by_replica(of).is_some() {
                return Ok(None);
            }
            let axis = shard.axis;
            let reason = format!("does not take the rows {from}..{to} of axis {axis}");
            return Err((ProofRule::P4, reason));
        }
        self.proof.slices += 1;
        Ok(Some(Meaning { value, replica: Some(replica) }))
    }

    /// The meaning of random numbers that a replica draws for its own rows (rule P4): the template
    /// draws the whole and takes `own_rows` of it. An element is a function of the seed and of its
    /// position in the whole, so that a part has the elements of the whole draw.
    fn drawn_rows(&mut self, draw: &Random, replica: u32) -> Option<Meaning> {
        let (from, to) = self.split.range(replica as usize)?;
        let template = self.template;
        let value = template.with_operands(&[]).iter().find_map(|id| {
            let Op::Random(whole) = template.graph.node(*id).op()? else { return None };
            let value =
                template.redistributed(Value { node: *id, output: 0 }, Redistribution::OwnRows)?;
            let shard = template.shard(value).filter(|shard| shard.outer == 1)?;
            let inner = int::<i64>(shard.inner);
            let (from, to) = (from.clone() * inner, to.clone() * inner);
            (whole.rows(shard.axis, &from, &to)? == *draw).then_some(value)
        })?;
        self.proof.slices += 1;
        Some(Meaning { value, replica: Some(replica) })
    }

    /// Rule P12: every update gives every device that holds the parameter the template's new value.
    pub(super) fn updates(&mut self) {
        let (whole, graph) = (self.template.graph, self.graph);
        let names = |g: &'g Graph| g.updates().iter().map(|u| &*g.param(u.param).name);
        if !names(whole).eq(names(graph)) {
            let message = "the updated parameters are not those of the template";
            return self.broken(ProofRule::P12, None, message);
        }
        for (own, of) in graph.updates().iter().zip(whole.updates()) {
            let wanted = of.values.first().map(|value| self.template.undistributed(*value));
            for value in &own.values {
                let Some(meaning) = self.meaning(*value) else { continue };
                let found = self.template.undistributed(meaning.value);
                if meaning.replica.is_some() || Some(found) != wanted {
                    let name = &graph.param(own.param).name;
                    let message = format!("the update of `{name}` is another value");
                    self.broken(ProofRule::P12, Some(value.node), message);
                }
            }
        }
    }

    /// Rule P8: every output means the template's output.
    pub(super) fn outputs(&mut self) {
        for (own, whole) in self.graph.outputs().iter().zip(self.template.graph.outputs()) {
            let Some(meaning) = self.meaning(own.value) else { continue };
            let value = self.template.undistributed(meaning.value);
            if meaning.replica.is_some() || value != self.template.undistributed(whole.value) {
                let message = format!("the output `{}` is another value", own.name);
                self.broken(ProofRule::P8, Some(own.value.node), message);
            }
        }
    }
}

/// True for a copy, which rule P6 reads.
pub(super) fn is_moved(op: &Op) -> bool {
    matches!(op, Op::CopyOp(_))
}

/// True for what may take a replica's rows, which rule P4 reads before rule P5.
pub(super) fn is_cut(op: &Op) -> bool {
    matches!(op, Op::Slice(_) | Op::Random(_))
}

/// A broken rule and the reason.
pub(super) type Broken = (ProofRule, String);
