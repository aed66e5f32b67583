//! The meaning of every value of a replicated graph, in terms of the template.
//!
//! One pass in topological order: each node gets a [`Meaning`] from those of its operands. By
//! induction a value holds the elements that its meaning names. A node without a meaning breaks a
//! rule once; the nodes that depend on it are skipped.

use std::collections::HashMap;

use super::rule::{Proof, ProofError, ProofRule, Violation};
use super::template::{Bring, Operands, Template, form};
use crate::ir::{Graph, Node, NodeId, NodeKind, Param, Value};
use crate::op::{AllReduce, ExclusiveScan, MergeTopK, Op, Random, Slice};
use crate::types::invariant::{int, invariant};
use crate::types::{Claim, Dim, Split, Table};

/// The meaning of a value of the replicated graph: a value of the template, or one replica's
/// part of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Meaning {
    /// A value of the template.
    value: Value,
    /// The replica whose part it is; `None` if it is the whole.
    replica: Option<u32>,
}

/// The meanings of all results of a node.
#[derive(Clone, Copy)]
enum Results {
    /// This, of a node with one result.
    One(Meaning),
    /// A replica's parts of all results of a node of the template.
    Parts(NodeId, u32),
    /// The whole of all results of a node of the template.
    Whole(NodeId),
    /// Of one result of a node of the template the part of each replica, in order.
    Each(NodeId),
}

/// A search among operators with the same operands.
#[derive(Default)]
struct Search {
    /// The one after the last that was found.
    next: usize,
    /// The places of all by their form, once they were asked for out of order.
    forms: HashMap<String, Vec<usize>>,
}

/// The number of operators that are tried one after the other before the rest are looked up by
/// their form. Clones come in the order of the template, so the next candidate is nearly always
/// the right one, and making the forms of all candidates would cost more than a few comparisons.
const LEFT_OUT: usize = 8;

pub(super) struct Relation<'a, 'g> {
    template: &'a Template<'g>,
    graph: &'g Graph,
    split: &'g Split,
    /// By node; `None` where a rule is broken, or what it takes has no meaning.
    results: Vec<Option<Results>>,
    /// The template's nodes by the name of their parameter.
    params: HashMap<&'g str, NodeId>,
    /// The template's inputs by name.
    inputs: HashMap<&'g str, Value>,
    /// The state of the searches among operators with the same operands, by replica.
    searches: HashMap<(u32, Operands), Search>,
    /// The second meaning of slices that have two, and of their copies.
    others: HashMap<Value, Meaning>,
    proof: Proof,
    violations: Vec<Violation>,
}

impl<'a, 'g> Relation<'a, 'g> {
    pub(super) fn new(template: &'a Template<'g>, graph: &'g Graph, split: &'g Split) -> Self {
        let whole = template.graph;
        let param = |id: NodeId| match whole.node(id).kind() {
            NodeKind::Param(p) => Some((&*whole.param(*p).name, id)),
            NodeKind::Input | NodeKind::Op(_) => None,
        };
        Self {
            template,
            graph,
            split,
            results: vec![None; graph.id_bound()],
            params: whole.ids().filter_map(param).collect(),
            inputs: whole.inputs().map(|v| (&*whole.info(v).name, v)).collect(),
            searches: HashMap::new(),
            others: HashMap::new(),
            proof: Proof { replicas: split.replicas(), ..Proof::default() },
            violations: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Result<Proof, ProofError> {
        if self.violations.is_empty() {
            Ok(self.proof)
        } else {
            Err(ProofError::Violations(self.violations))
        }
    }

    fn broken(&mut self, rule: ProofRule, node: Option<NodeId>, message: impl Into<String>) {
        self.violations.push(Violation { rule, message: message.into(), node });
    }

    /// The graph as a whole: its inputs and outputs, its split, its parameters.
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
        let ends = offsets.first() == Some(&Dim::ZERO) && offsets.last() == Some(&Dim::n());
        let ordered = offsets.windows(2).all(|o| match o {
            [from, to] => (to.clone() - from.clone()).is_nonnegative(),
            _ => false,
        });
        if !ends || !ordered || offsets.len() != self.split.replicas() + 1 {
            self.broken(ProofRule::P2, None, "the shards do not cover the batch once and in order");
        }
        let known: Table<&str, &Param> = whole.params().iter().map(|p| (&*p.name, p)).collect();
        for param in graph.params() {
            let known = known.get(&*param.name);
            if !known.is_some_and(|known| known.ty == param.ty && known.hash == param.hash) {
                let message = format!("the parameter `{}` is none of the template's", param.name);
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
                    let name = &self.graph.param(*p).name;
                    let node = self.params.get(&**name).copied();
                    if node.is_none() {
                        let message = format!("the template takes no parameter `{name}`");
                        self.broken(ProofRule::P3, Some(*id), message);
                    }
                    node.map(|node| Value { node, output: 0 })
                }
                NodeKind::Op(op) => {
                    self.results[id.index()] = self.operator(*id, node, op);
                    continue;
                }
            };
            let whole = meaning.map(|value| Meaning { value, replica: None });
            self.results[id.index()] = whole.map(Results::One);
        }
    }

    fn meaning(&self, value: Value) -> Option<Meaning> {
        Some(match self.results[value.node.index()]? {
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
    /// meaning. A slice of a replica's rows can mean two things: the rows that the pass takes,
    /// and a clone of a slice that the template itself has. The operator is read with the first
    /// meaning. If that breaks a rule, it is read with the second one; a copy keeps both.
    fn operator(&mut self, id: NodeId, node: &'g Node, op: &Op) -> Option<Results> {
        let values = self.graph.operands(id);
        let operands = values.iter().map(|v| self.meaning(*v)).collect::<Option<Vec<_>>>()?;
        let mut result = self.interpret(node, op, &operands);
        if let Ok(Results::One(_)) = &result {
            self.note_other(id, node, op, &operands);
        }
        let of_own_rows = values.iter().any(|v| self.others.contains_key(v));
        if of_own_rows {
            let other = |(v, m): (&Value, &Meaning)| self.others.get(v).copied().unwrap_or(*m);
            let others: Vec<Meaning> = values.iter().zip(&operands).map(other).collect();
            if result.is_err() {
                result = self.interpret(node, op, &others).or(result);
            } else if let (Op::CopyOp(_), Ok(Results::One(m))) =
                (op, self.interpret(node, op, &others))
            {
                self.others.insert(Value { node: id, output: 0 }, m);
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
        node: &'g Node,
        op: &Op,
        operands: &[Meaning],
    ) -> Result<Results, Broken> {
        match (node.place().replica, op, operands) {
            (replica, Op::CopyOp(_), [of]) => self.copy(*of, replica).map(Results::One),
            (Some(replica), Op::Slice(slice), [of]) => match self.slice(slice, *of, replica)? {
                Some(meaning) => Ok(Results::One(meaning)),
                None => self.clone_of(op, operands, replica, node),
            },
            (Some(replica), Op::Random(draw), []) => match self.drawn_rows(draw, replica) {
                Some(meaning) => Ok(Results::One(meaning)),
                None => self.clone_of(op, operands, replica, node),
            },
            (Some(replica), op, operands) => self.clone_of(op, operands, replica, node),
            (None, Op::First(_), parts) => self.first(parts).map(Results::One),
            (None, Op::AllReduce(reduce), parts) => {
                self.all_reduce(reduce, parts).map(Results::One)
            }
            (None, Op::MergeTopK(merge), parts) => self.merge_top_k(merge, parts),
            (None, Op::ExclusiveScan(scan), parts) => self.exclusive_scan(scan, parts),
            (None, op, parts)
                if op.joined().is_some() && parts.iter().any(|part| part.replica.is_some()) =>
            {
                let axis = invariant(op.joined(), "that what joins has an axis");
                self.concat(axis, parts).map(Results::One)
            }
            (None, op, wholes) => self.once(op, wholes),
        }
    }

    fn note_other(&mut self, id: NodeId, node: &'g Node, op: &Op, operands: &[Meaning]) {
        if let (Op::Slice(_) | Op::Random(_), Some(replica)) = (op, node.place().replica)
            && let Ok(Results::Parts(found, replica)) = self.clone_of(op, operands, replica, node)
        {
            self.proof.clones -= 1;
            let meaning =
                Meaning { value: Value { node: found, output: 0 }, replica: Some(replica) };
            self.others.insert(Value { node: id, output: 0 }, meaning);
        }
    }

    /// True if it is all rows of a value.
    fn is_whole_rows(&self, of: Meaning) -> bool {
        of.replica.is_none() && self.template.shard(of.value).is_some()
    }

    /// The value of the template that a replica sees in `of`.
    fn seen(&self, of: Meaning) -> Option<Value> {
        if of.replica.is_some() {
            return Some(of.value);
        }
        match self.template.claim(of.value) {
            Claim::Invariant => Some(of.value),
            // All rows, or the whole of what has parts: only what the template brings to every
            // replica.
            Claim::Shard(_) | Claim::Partial(_) => self.template.brought(of.value, Bring::Whole),
            Claim::Own | Claim::Mixed => None,
        }
    }

    /// The meaning of a copy (rule P6). A part stays with its replica, and a whole value reaches
    /// a replica only if the template brings it there.
    fn copy(&mut self, of: Meaning, replica: Option<u32>) -> Result<Meaning, Broken> {
        let broken = |reason: &str| Err((ProofRule::P6, reason.to_owned()));
        let value = match (of.replica, replica) {
            (None, None) => of.value,
            (None, Some(_)) => match self.seen(of) {
                Some(value) => value,
                None => return broken("brings all rows to a replica that works on its own"),
            },
            (Some(own), Some(replica)) if own == replica => of.value,
            (Some(_), _) => return broken("takes a part of one replica to another, or to none"),
        };
        self.proof.copies += 1;
        Ok(Meaning { value, replica })
    }

    /// The rows of a replica, if the slice is to take them: of all rows, or of a value that the
    /// replica holds whole.
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
            let rows = self.seen(of).filter(|_| own);
            match rows.and_then(|v| self.template.brought(v, Bring::Rows)) {
                Some(value) => value,
                None => return Ok(None),
            }
        };
        let range = self.split.range(replica as usize);
        let (Some(shard), Some((from, to))) = (self.template.shard(value), range) else {
            return Err((ProofRule::P4, "has no rows to take".to_owned()));
        };
        if shard.outer > 1 {
            return Ok(None);
        }
        let inner = int::<i64>(shard.inner);
        let rows = Slice::rows(shard.axis, from.clone() * inner, to.clone() * inner);
        if rows != *slice {
            // A slice of the template, of rows that it brings whole to every replica.
            if !self.is_whole_rows(of) || self.seen(of).is_some() {
                return Ok(None);
            }
            let axis = shard.axis;
            let reason = format!("does not take the rows {from}..{to} of axis {axis}");
            return Err((ProofRule::P4, reason));
        }
        self.proof.slices += 1;
        Ok(Some(Meaning { value, replica: Some(replica) }))
    }

    /// The rows of a replica, if it draws them of what the template draws whole, and takes own rows
    /// of.
    fn drawn_rows(&mut self, draw: &Random, replica: u32) -> Option<Meaning> {
        let (from, to) = self.split.range(replica as usize)?;
        let template = self.template;
        let value = template.on(&Operands::new()).iter().find_map(|id| {
            let Op::Random(whole) = template.graph.node(*id).op()? else { return None };
            let value = template.brought(Value { node: *id, output: 0 }, Bring::Rows)?;
            let shard = template.shard(value).filter(|shard| shard.outer == 1)?;
            let inner = int::<i64>(shard.inner);
            let (from, to) = (from.clone() * inner, to.clone() * inner);
            (whole.rows(shard.axis, &from, &to)? == *draw).then_some(value)
        })?;
        self.proof.slices += 1;
        Some(Meaning { value, replica: Some(replica) })
    }

    /// The template's operator of which this is the replica's clone.
    fn clone_of(
        &mut self,
        op: &Op,
        operands: &[Meaning],
        replica: u32,
        node: &Node,
    ) -> Result<Results, Broken> {
        let broken = |reason: String| Err((ProofRule::P5, reason));
        let mut values = Operands::new();
        for (i, operand) in operands.iter().enumerate() {
            let own = operand.replica.is_none_or(|own| own == replica);
            match self.seen(*operand).filter(|_| own) {
                Some(value) => values.push(self.template.same(value)),
                None => return broken(format!("operand {i} is no part of replica {replica}")),
            }
        }
        let found = self.candidate(op, values, replica);
        let Some(found) = found else {
            return broken(format!(
                "the template has no such `{}` on these operands{}",
                op.name(),
                origin(node)
            ));
        };
        self.proof.clones += 1;
        Ok(Results::Parts(found, replica))
    }

    /// The template's operator on these operands that `replica` runs as `op`.
    fn candidate(&mut self, op: &Op, operands: Operands, replica: u32) -> Option<NodeId> {
        let template = self.template;
        match template.on(&operands) {
            [] => None,
            [only] => Some(*only).filter(|only| template.is_clone(*only, op, replica)),
            several => {
                let search = self.searches.entry((replica, operands)).or_default();
                // They come in the template's order, mostly, but for some that replicas leave out;
                // else they are looked up by their form.
                let rest = several.get(search.next..).unwrap_or_default();
                let ahead = rest.iter().take(LEFT_OUT);
                if let Some((i, found)) =
                    ahead.enumerate().find(|(_, id)| template.is_clone(**id, op, replica))
                {
                    search.next += i + 1;
                    return Some(*found);
                }
                if search.forms.is_empty() {
                    let operands = several.first().map(|id| template.operands(*id));
                    search.forms = template.forms(&operands.unwrap_or_default(), replica);
                }
                // Of equal ones first the one behind those that were found.
                let alike = search.forms.get(&form(op))?;
                let is_clone = |at: &&usize| {
                    several.get(**at).is_some_and(|id| template.is_clone(*id, op, replica))
                };
                let behind = alike.iter().filter(|at| **at >= search.next).find(is_clone);
                let at = *behind.or_else(|| alike.iter().find(is_clone))?;
                search.next = search.next.max(at + 1);
                several.get(at).copied()
            }
        }
    }

    /// The value whose parts of all replicas these are, in order.
    fn all_parts(&self, parts: &[Meaning]) -> Result<Value, Broken> {
        let broken = |reason: String| Err((ProofRule::P7, reason));
        let Some(value) = parts.first().map(|m| self.template.same(m.value)) else {
            return broken("merges nothing".to_owned());
        };
        if parts.len() != self.split.replicas() {
            let (parts, replicas) = (parts.len(), self.split.replicas());
            return broken(format!("merges {parts} parts of {replicas} replicas"));
        }
        for (i, part) in (0u32..).zip(parts) {
            if self.template.same(part.value) != value {
                return broken(format!("part {i} is of another value than part 0"));
            }
            let own = part.replica.is_none() && self.template.claim(part.value) == Claim::Invariant;
            if part.replica != Some(i) && !own {
                return broken(format!("part {i} is not that of replica {i}"));
            }
        }
        Ok(value)
    }

    fn concat(&mut self, joined: i64, parts: &[Meaning]) -> Result<Meaning, Broken> {
        let value = self.all_parts(parts)?;
        match self.template.shard(value) {
            Some(shard) if shard.outer > 1 => {
                let reason = format!("joins rows of {} blocks as if they were one", shard.outer);
                return Err((ProofRule::P7, reason));
            }
            Some(shard) if i64::try_from(shard.axis) == Ok(joined) => {}
            Some(shard) => {
                let reason =
                    format!("joins rows on axis {joined}; the batch is on axis {}", shard.axis);
                return Err((ProofRule::P7, reason));
            }
            None => {
                let reason = "joins copies of a value that has no rows".to_owned();
                return Err((ProofRule::P7, reason));
            }
        }
        Ok(self.whole(value))
    }

    /// The template's operator on whole values: what it gives on one device.
    fn once(&mut self, op: &Op, operands: &[Meaning]) -> Result<Results, Broken> {
        // There is no such replica: the operator is the template's as it is there.
        const ONE_DEVICE: u32 = u32::MAX;
        let whole = |of: &Meaning| {
            let value = self.seen(*of).filter(|_| of.replica.is_none())?;
            Some(self.template.same(value))
        };
        let on: Option<Operands> = operands.iter().map(whole).collect();
        let found = on.and_then(|on| self.candidate(op, on, ONE_DEVICE));
        let invariant = |node: &NodeId| {
            let results = self.template.graph.node(*node).results().len();
            (0u32..).take(results).all(|output| {
                self.template.claim(Value { node: *node, output }) == Claim::Invariant
            })
        };
        found.filter(invariant).map(Results::Whole).ok_or_else(|| {
            let name = op.name();
            let reason = format!(
                "`{name}` belongs to no replica, is no merge, and not what the template does with \
                 whole values"
            );
            (ProofRule::P5, reason)
        })
    }

    fn first(&mut self, parts: &[Meaning]) -> Result<Meaning, Broken> {
        let value = self.all_parts(parts)?;
        if self.template.claim(value) != Claim::Invariant {
            return Err((ProofRule::P7, "takes what one replica holds for the whole".to_owned()));
        }
        Ok(self.whole(value))
    }

    fn all_reduce(&mut self, reduce: &AllReduce, parts: &[Meaning]) -> Result<Meaning, Broken> {
        let value = self.all_parts(parts)?;
        let broken = |reason: String| Err((ProofRule::P9, reason));
        match self.template.claim(value) {
            Claim::Partial(by) if by == reduce.by => {}
            claim @ (Claim::Invariant
            | Claim::Shard(_)
            | Claim::Partial(_)
            | Claim::Own
            | Claim::Mixed) => {
                let by = reduce.by.name();
                return broken(format!("combines by {by} the parts of a value that is {claim}"));
            }
        }
        if reduce.rows != self.template.rows() {
            return broken("weighs the parts by other rows than those of the replicas".to_owned());
        }
        Ok(self.whole(value))
    }

    /// What the rows before those of each replica give, where the template takes it.
    fn exclusive_scan(
        &mut self,
        scan: &ExclusiveScan,
        parts: &[Meaning],
    ) -> Result<Results, Broken> {
        let value = self.all_parts(parts)?;
        let known = self.template.on(&Operands::from_slice(&[value])).iter().find(|id| {
            let op = self.template.graph.node(**id).op();
            matches!(op, Some(Op::ExclusiveScan(known))
                if (known.by, known.reverse) == (scan.by, scan.reverse))
        });
        let broken = |reason: &str| Err((ProofRule::P10, reason.to_owned()));
        let Some(known) = known.copied() else {
            return broken("scans what the template does not scan so");
        };
        if self.template.claim(Value { node: known, output: 0 }) != Claim::Own {
            return broken("scans what every replica holds whole");
        }
        if scan.rows != self.template.rows() {
            return broken("takes other rows than those of the replicas");
        }
        self.proof.merges += 1;
        Ok(Results::Each(known))
    }

    /// The best of all replicas' candidates, where the template takes them.
    fn merge_top_k(&mut self, merge: &MergeTopK, parts: &[Meaning]) -> Result<Results, Broken> {
        let every = |of: usize| parts.iter().skip(of).step_by(2).copied().collect::<Vec<_>>();
        let (values, places) = (self.all_parts(&every(0))?, self.all_parts(&every(1))?);
        let graph = self.template.graph;
        let known = self.template.on(&Operands::from_slice(&[values, places])).iter().find(|id| {
            let Some(Op::MergeTopK(known)) = graph.node(**id).op() else { return false };
            let [entries] = &*known.entries else { return false };
            let own = self.template.rows().iter().map(|rows| entries.at_rows(rows));
            let parts = MergeTopK { entries: own.collect(), ..known.clone() };
            parts == *merge
        });
        let known = known.copied().filter(|_| self.template.claim(values) == Claim::Own);
        let Some(known) = known else {
            let reason = "merges what the template does not merge so";
            return Err((ProofRule::P11, reason.to_owned()));
        };
        self.proof.merges += 1;
        Ok(Results::Whole(known))
    }

    /// The whole of a value whose parts were merged.
    fn whole(&mut self, value: Value) -> Meaning {
        self.proof.merges += 1;
        Meaning { value: self.template.plain(value), replica: None }
    }

    /// Every update gives every device that holds the parameter the template's new value.
    pub(super) fn updates(&mut self) {
        let (whole, graph) = (self.template.graph, self.graph);
        let names = |g: &'g Graph| g.updates().iter().map(|u| &*g.param(u.param).name);
        if !names(whole).eq(names(graph)) {
            let message = "the updated parameters are not those of the template";
            return self.broken(ProofRule::P12, None, message);
        }
        for (own, of) in graph.updates().iter().zip(whole.updates()) {
            let wanted = of.values.first().map(|value| self.template.plain(*value));
            for value in &own.values {
                let Some(meaning) = self.meaning(*value) else { continue };
                let found = self.template.plain(meaning.value);
                if meaning.replica.is_some() || Some(found) != wanted {
                    let name = &graph.param(own.param).name;
                    let message = format!("the update of `{name}` is another value");
                    self.broken(ProofRule::P12, Some(value.node), message);
                }
            }
        }
    }

    /// The outputs mean the template's.
    pub(super) fn outputs(&mut self) {
        for (own, whole) in self.graph.outputs().iter().zip(self.template.graph.outputs()) {
            let Some(meaning) = self.meaning(own.value) else { continue };
            let value = self.template.plain(meaning.value);
            if meaning.replica.is_some() || value != self.template.plain(whole.value) {
                let message = format!("the output `{}` is another value", own.name);
                self.broken(ProofRule::P8, Some(own.value.node), message);
            }
        }
    }
}

/// A rule that is broken, and how.
type Broken = (ProofRule, String);

/// The origin of a node, for a message.
fn origin(node: &Node) -> String {
    node.origin().0.as_ref().map_or_else(String::new, |name| format!(" (it came from `{name}`)"))
}
