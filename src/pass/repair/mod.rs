//! Repairs of what may not be split: an equal graph that may.
//!
//! Replicas are not written here. What a replica lacks is brought to it by operators that change
//! nothing on one device: `own_rows` takes the rows of a value that is whole everywhere,
//! `all_reduce` combines the parts of a partial value, `all_gather` joins rows. Some operators are
//! first written as several, whose parts need less of the batch.

mod action;
mod bring;
mod bucket;
mod formulas;
mod tails;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

pub use action::{
    Action, AppliedRepair, BatchStatistics, ParseBatchStatisticsError, Repair, RepairOptions,
};

pub(super) use self::tails::seen;
use self::tails::{Tail, tails};
use super::{PassError, PassInfo};
use crate::analysis::{Refused, judge, survey};
use crate::ir::{Graph, GraphError, Node, NodeId, NodeKind, Origin, Place, ResultInfo, Value};
use crate::op::{Claims, Dims, Inferred, Op, OpError, Operand, Statistics, Traits, rules};
use crate::types::invariant::invariant;
use crate::types::{Claim, Code, Combine, DType, Dim, Refusal, Shard, TensorType};

pub(super) const INFO: PassInfo = PassInfo {
    name: "repair",
    about: "rewrites what may not be split so that it may: rows of whole values, sums over \
        replicas, gathered rows",
};

/// A repaired graph and what was done to it.
pub(super) type Outcome<'g> = (Cow<'g, Graph>, Vec<AppliedRepair>);

/// Repairs a graph; operators that no allowed repair helps stay as they are. Local statistics and
/// those of groups change what is computed.
pub(super) fn repair(template: &Graph, options: RepairOptions) -> Result<Outcome<'_>, GraphError> {
    let survey = survey(template)?;
    let fatal = |r: &Refused| {
        matches!(r.refusal.code, Code::NoBatchAxis)
            || matches!(template.node(r.node).kind(), NodeKind::Input)
    };
    let none = (options.allowed, options.batch_norm) == (Repair::None, None);
    let idle = (survey.refused().is_empty() && !changes_statistics(template, options)) || none;
    let seen = seen(template, survey.order());
    let rounds = survey.order().iter().any(|id| {
        let (value, seen) = (Value { node: *id, output: 0 }, seen[id.index()]);
        let op = template.node(*id).op();
        let operands = template.operands(*id);
        let rounds = |op| {
            let unrounded = unrounded(template, op, &operands).is_some();
            rounds(op, unrounded, survey.get(value), template.ty(value), seen)
        };
        op.is_some_and(rounds) && !is_combined(template, *id)
    });
    if (idle && !rounds) || survey.refused().iter().any(fatal) {
        return Ok((Cow::Borrowed(template), Vec::new()));
    }
    let mut writer = Writer::new(template, survey.order(), seen, options);
    for id in survey.order() {
        let results = (0u32..).zip(template.node(*id).results());
        let claims = results.map(|(output, _)| survey.get(Value { node: *id, output }));
        writer.node(*id, claims.collect())?;
    }
    for output in template.outputs() {
        let value = writer.output(output.value)?;
        writer.out.add_output(output.name.clone(), value);
    }
    for update in template.updates() {
        let values = update.values.iter().map(|value| writer.update(update.param, *value));
        let values: SmallVec<[Value; 1]> = values.collect::<Result<_, _>>()?;
        writer.out.add_update(update.param, values);
    }
    if writer.left {
        writer.out.remove_unused();
    }
    Ok((Cow::Owned(bucket::bucket(writer.out, options.bucket)?), writer.done))
}

/// What one device computes where batch normalisation takes the statistics of `groups` groups of
/// rows: the graph itself if it has none.
///
/// # Errors
/// If a batch normalisation cannot be split into groups of rows.
pub fn grouped(template: &Graph, groups: NonZeroU32) -> Result<Cow<'_, Graph>, PassError> {
    if ungrouped(template).is_none() {
        return Ok(Cow::Borrowed(template));
    }
    let batch_norm = Some(BatchStatistics::Ghost(groups));
    let mut left = String::new();
    // The rows behind an operator that mixes samples are known once it is repaired, and only then.
    for allowed in [Repair::None, Repair::Comm] {
        let (graph, _) = repair(template, RepairOptions { allowed, batch_norm, bucket: 0 })?;
        match ungrouped(&graph) {
            None => return Ok(graph),
            Some(name) => left = name,
        }
    }
    Err(PassError::NoGroups(left))
}

/// The name of a batch normalisation that takes its statistics of the whole batch.
fn ungrouped(graph: &Graph) -> Option<String> {
    let rows = |id: NodeId| {
        graph.operands(id).iter().any(|v| graph.ty(*v).shape.iter().any(Dim::depends_on_batch))
    };
    let trains = |id: &NodeId| graph.node(*id).op().is_some_and(|op| op.statistics().is_some());
    let left = graph.ids().find(|id| trains(id) && rows(*id))?;
    Some(graph.node(left).label().to_owned())
}

/// True if batch normalisation that takes local statistics by itself is to take others.
fn changes_statistics(template: &Graph, options: RepairOptions) -> bool {
    let of = |id| template.node(id).op().and_then(|op| op.statistics());
    let local = |id| of(id) == Some(Statistics::OfReplica);
    options.batch_norm.is_some_and(|b| b != BatchStatistics::Local) && template.ids().any(local)
}

/// True if what a node gives is combined by the graph itself: it was repaired before.
fn is_combined(graph: &Graph, id: NodeId) -> bool {
    let users = graph.users(id);
    let combines = |user: &NodeId| graph.node(*user).op().is_some_and(|op| op.combines().is_some());
    !users.is_empty() && users.iter().all(|(user, ..)| combines(user))
}

/// True of an operator with a partial result whose parts would be rounded before they are combined.
/// Products of which no output is made are gradients, summed in `f32` on one device, too.
fn rounds(op: &Op, unrounded: bool, claim: Claim, ty: &TensorType, seen: bool) -> bool {
    let half = matches!(ty.dtype, DType::F16 | DType::Bf16);
    let single = half || ty.dtype == DType::F32;
    let rounds = (seen && unrounded)
        || (op.is(Traits::REDUCES) && single)
        || (op.is(Traits::SUMS_NARROW) && (half || (seen && single)));
    rounds && claim.partial().is_some_and(|by| !by.is_exact())
}

/// What gives the parts of an operator before they are rounded, and what rounds them.
fn unrounded(graph: &Graph, op: &Op, operands: &[Value]) -> Option<(Op, Op)> {
    let types: SmallVec<[&TensorType; 4]> = operands.iter().map(|v| graph.ty(*v)).collect();
    op.unrounded(&types)
}

/// Where a new node belongs and what it came from.
#[derive(Clone)]
struct At {
    place: Place,
    origin: Origin,
    label: String,
}

/// What a repair is made for.
#[derive(Clone, Copy)]
struct Cause<'a> {
    /// Why the operator may not be split.
    refusal: &'a Refusal,
    /// The operator.
    op: &'a Op,
    /// Where it belongs.
    at: &'a At,
}

/// Why an operator was not written.
enum Failure {
    Refused,
    /// It depends on what was refused.
    Mixed,
    Graph(GraphError),
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}

impl From<OpError> for Failure {
    fn from(_: OpError) -> Self {
        Self::Refused
    }
}

struct Writer<'g> {
    template: &'g Graph,
    options: RepairOptions,
    out: Graph,
    /// The new node of each of the template's.
    nodes: Vec<Option<NodeId>>,
    /// Where the results of the template's node are those of several new nodes.
    values: HashMap<Value, Value>,
    /// The claims of the new graph's values, by node.
    claims: Vec<Claims>,
    names: HashSet<Arc<str>>,
    /// The operators that bring values to replicas, by what they bring.
    brought: HashMap<(Value, &'static str, u64), Value>,
    /// Whether something may be left that nothing needs any more.
    left: bool,
    /// What becomes of the results of the template's nodes, and of those of the operator that is
    /// written.
    tails: Vec<Tail>,
    tail: Tail,
    /// Of which of the template's nodes an output is made, and whether one is of what is written.
    seen: Vec<bool>,
    visible: bool,
    /// Whether what is written is a step of a formula, or is combined already.
    inside: bool,
    done: Vec<AppliedRepair>,
}

impl<'g> Writer<'g> {
    fn new(template: &'g Graph, order: &[NodeId], seen: Vec<bool>, options: RepairOptions) -> Self {
        let mut out = Graph::new(template.name());
        for param in template.params() {
            out.add_param(param.clone());
        }
        let results = template.ids().flat_map(|id| template.node(id).results());
        Self {
            template,
            options,
            out,
            nodes: vec![None; template.id_bound()],
            values: HashMap::new(),
            claims: Vec::new(),
            names: results.map(|r| r.name.clone()).collect(),
            brought: HashMap::new(),
            left: false,
            tails: tails(template, order),
            tail: Tail::Used,
            seen,
            visible: true,
            inside: false,
            done: Vec::new(),
        }
    }

    fn new_value(&self, old: Value) -> Value {
        self.values.get(&old).copied().unwrap_or_else(|| {
            let node = self.nodes[old.node.index()];
            let what = "that a node is written after those that it takes values of";
            Value { node: invariant(node, what), output: old.output }
        })
    }

    fn claim(&self, value: Value) -> Claim {
        self.claims
            .get(value.node.index())
            .and_then(|c| c.get(value.output as usize))
            .copied()
            // Nothing is known of it, and `Mixed` promises nothing.
            .unwrap_or(Claim::Mixed)
    }

    fn set_claims(&mut self, node: NodeId, claims: Claims) {
        if self.claims.len() <= node.index() {
            self.claims.resize(node.index() + 1, Claims::new());
        }
        self.claims[node.index()] = claims;
    }

    /// Writes the new form of a node of the template; `known` are its claims there.
    fn node(&mut self, id: NodeId, known: Claims) -> Result<(), GraphError> {
        let node: &Node = self.template.node(id);
        let value = match node.kind() {
            NodeKind::Input => {
                let info = self.template.info(Value { node: id, output: 0 });
                self.out.add_input(info.name.clone(), info.ty.clone())
            }
            NodeKind::Param(param) => self.out.add_param_node(*param, node.place().device),
            NodeKind::Op(op) => return self.operator(id, node, op),
        };
        self.nodes[id.index()] = Some(value.node);
        self.set_claims(value.node, known);
        Ok(())
    }

    fn operator(&mut self, id: NodeId, node: &Node, op: &Op) -> Result<(), GraphError> {
        let operands: SmallVec<[Value; 4]> =
            self.template.operands(id).into_iter().map(|v| self.new_value(v)).collect();
        let at = At {
            place: node.place(),
            origin: node.origin().clone(),
            label: node.label().to_owned(),
        };
        self.tail = self.tails[id.index()];
        self.visible = self.seen[id.index()];
        self.inside = is_combined(self.template, id);
        let statistics = self.options.batch_norm.filter(|_| op.statistics().is_some());
        let written = match statistics {
            Some(BatchStatistics::Ghost(groups)) => {
                formulas::ghost(self, op, groups.get(), &operands, node.results(), &at)
            }
            Some(BatchStatistics::Local) => {
                self.batch_norm(op, Statistics::OfReplica, &operands, node.results(), &at)
            }
            Some(BatchStatistics::Sync) => {
                self.batch_norm(op, Statistics::OfBatch, &operands, node.results(), &at)
            }
            None => self.write(op, &operands, node.results(), &at),
        };
        match written {
            Ok(values) => {
                for (output, value) in (0u32..).zip(values) {
                    self.values.insert(Value { node: id, output }, value);
                }
            }
            Err(Failure::Graph(error)) => return Err(error),
            Err(Failure::Refused | Failure::Mixed) => {
                let new = self.add(op.clone(), &operands, node.results(), &at);
                self.set_claims(new, SmallVec::from_elem(Claim::Mixed, node.results().len()));
                self.nodes[id.index()] = Some(new);
            }
        }
        Ok(())
    }

    /// Batch normalisation with the statistics of replicas or of the batch, whatever else is
    /// allowed.
    fn batch_norm(
        &mut self,
        op: &Op,
        statistics: Statistics,
        operands: &[Value],
        results: &[ResultInfo],
        at: &At,
    ) -> Result<SmallVec<[Value; 2]>, Failure> {
        let new = op.with_statistics(statistics);
        let new = invariant(new, "that statistics can be those of other rows");
        // What moves running statistics is told once, its gradients are not.
        let moves = (0..operands.len()).any(|i| op.is_running(i));
        if statistics == Statistics::OfReplica && moves {
            let reason = "uses statistics of the whole batch";
            let refusal = rules::refuse(Code::BatchStatistics, 0, reason);
            let cause = Cause { refusal: &refusal, op: &new, at };
            self.note(cause, Action::LocalStatistics, operands.first().copied());
            return self.write(&new, operands, results, at);
        }
        self.allowed(Repair::Comm, |writer| writer.write(&new, operands, results, at))
    }

    /// What `write` does where these repairs are allowed.
    fn allowed<T>(&mut self, repairs: Repair, write: impl FnOnce(&mut Self) -> T) -> T {
        let allowed = std::mem::replace(&mut self.options.allowed, repairs);
        let written = write(self);
        self.options.allowed = allowed;
        written
    }

    fn add(&mut self, op: Op, operands: &[Value], results: &[ResultInfo], at: &At) -> NodeId {
        self.out.add_typed(
            op,
            operands,
            results.iter().cloned().collect(),
            at.place,
            at.origin.clone(),
        )
    }

    /// The split rule's answer for operands with these claims.
    fn judge(
        &self,
        op: &Op,
        operands: &[Value],
        claims: &[Claim],
        results: &[ResultInfo],
    ) -> Result<Claims, Option<Refusal>> {
        let types: SmallVec<[TensorType; 2]> = results.iter().map(|r| r.ty.clone()).collect();
        judge(&self.out, op, operands, claims, &types)
    }

    /// Writes an operator, repaired where it has to be; its results have these names and types.
    fn write(
        &mut self,
        op: &Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &At,
    ) -> Result<SmallVec<[Value; 2]>, Failure> {
        // What was combined for another operator need not be combined again behind this one.
        let operands: SmallVec<[Value; 4]> = operands
            .iter()
            .map(|v| self.brought.get(&(*v, "all_reduce", 1)).copied().unwrap_or(*v))
            .collect();
        let operands = &*operands;
        let claims: SmallVec<[Claim; 4]> = operands.iter().map(|v| self.claim(*v)).collect();
        let refusal = match self.judge(op, operands, &claims, results) {
            Ok(claims) => return self.accepted(op, operands, results, at, claims),
            Err(None) => return Err(Failure::Mixed),
            Err(Some(refusal)) if refusal.code == Code::NoRule => return Err(Failure::Refused),
            Err(Some(refusal)) => refusal,
        };
        let cause = Cause { refusal: &refusal, op, at };
        if let Some(sizes) = sizes(results).filter(|_| self.options.allowed != Repair::None) {
            self.note(cause, Action::Sizes, operands.first().copied());
            return Ok(self.finish(&sizes, &[], results, at, rules::invariant(1)));
        }
        let blocks = claims.iter().filter_map(|c| c.shard()).find(|s| s.outer > 1);
        for plan in plans(self.options.allowed) {
            if *plan == Plan::Formula {
                if let Some(values) = formulas::write(self, op, operands, results, at)? {
                    self.note(cause, Action::Formula, operands.first().copied());
                    return Ok(values);
                }
                continue;
            }
            let wanted: SmallVec<[Claim; 4]> = operands
                .iter()
                .zip(&claims)
                .map(|(v, claim)| {
                    let filled = self.filled(*v, *claim, blocks).filter(|_| plan.takes_rows());
                    filled.unwrap_or_else(|| plan.claim(*claim, self.out.ty(*v), blocks))
                })
                .collect();
            if wanted == claims {
                continue;
            }
            if let Ok(judged) = self.judge(op, operands, &wanted, results) {
                let mut brought: SmallVec<[Value; 4]> = operands.into();
                for (value, (from, to)) in brought.iter_mut().zip(claims.iter().zip(&wanted)) {
                    if from != to {
                        *value = self.bring(*value, *from, *to, cause)?;
                    }
                }
                return Ok(self.finish(op, &brought, results, at, judged));
            }
        }
        Err(Failure::Refused)
    }

    /// Writes an operator that may be split; the parts of its result are combined where they would
    /// be rounded else, or where what follows needs the whole and nothing but an output is made of
    /// it.
    fn accepted(
        &mut self,
        op: &Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &At,
        claims: Claims,
    ) -> Result<SmallVec<[Value; 2]>, Failure> {
        let ([result], [claim]) = (results, &*claims) else {
            return Ok(self.finish(op, operands, results, at, claims));
        };
        let comm = self.options.allowed == Repair::Comm;
        let scaled = self.tail == Tail::Scaled && self.options.allowed != Repair::None;
        let free = scaled || comm || self.tail == Tail::Views;
        // A formula says itself what is computed in `f64`.
        let own = self.inside && result.ty.dtype == DType::F64;
        let unrounded = unrounded(&self.out, op, operands).is_some();
        if free && !own && rounds(op, unrounded, *claim, &result.ty, self.visible) {
            return formulas::combined(self, op, operands, result, at, self.visible);
        }
        let claim = *claim;
        let part = claim.partial().is_some_and(|by| matches!(by, Combine::Sum | Combine::Mean));
        let written = self.finish(op, operands, results, at, claims);
        if scaled && !comm && part && result.ty.dtype.is_float() {
            return formulas::whole(self, op, &written, claim, at);
        }
        Ok(written)
    }

    /// The only result of an operator.
    fn infer(&self, op: &Op, operands: &[Value]) -> Result<Inferred, GraphError> {
        let infos = operands.iter().map(|v| self.out.info(*v));
        let operands: SmallVec<[Operand<'_>; 4]> =
            infos.map(|info| Operand { ty: &info.ty, ints: info.ints.as_deref() }).collect();
        let wrong = |error| GraphError::Op {
            label: op.name().to_owned(),
            op: op.name(),
            error: Box::new(error),
        };
        let results = op.infer(&operands).map_err(wrong)?;
        let found = results.len();
        let one = results.into_iter().next().filter(|_| found == 1);
        one.ok_or(GraphError::ResultCount { op: op.name(), results: found, names: 1 })
    }

    fn finish(
        &mut self,
        op: &Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &At,
        claims: Claims,
    ) -> SmallVec<[Value; 2]> {
        let node = self.add(op.clone(), operands, results, at);
        self.set_claims(node, claims);
        (0u32..).zip(results).map(|(output, _)| Value { node, output }).collect()
    }

    fn note(&mut self, cause: Cause<'_>, action: Action, value: Option<Value>) {
        let Cause { refusal, op, at } = cause;
        let bytes = match (action, value) {
            (
                Action::AllReduce(_)
                | Action::ExclusiveScan(_)
                | Action::MergeTopK
                | Action::AllGather,
                Some(v),
            ) => {
                let results = self.out.node(v.node).results().iter();
                let all = results.fold(Dim::ZERO, |sum, r| sum + r.ty.bytes());
                if action == Action::MergeTopK { all } else { self.out.ty(v).bytes() }
            }
            _ => Dim::ZERO,
        };
        let done = AppliedRepair {
            code: refusal.code,
            label: at.label.clone(),
            op: op.name(),
            action,
            value: value.map_or_else(String::new, |v| self.out.info(v).name.to_string()),
            bytes,
        };
        if !self.done.iter().rev().take(4).any(|d| *d == done) {
            self.done.push(done);
        }
    }
}

/// What gives the only result, where its elements are known to be these formulas of the batch size.
fn sizes(results: &[ResultInfo]) -> Option<Op> {
    let [result] = results else { return None };
    let (rank, values) = (result.ty.rank(), result.ints.as_ref()?.to_vec());
    let one = rank <= 1 && result.ty.dtype == DType::I64;
    one.then(|| Dims { scalar: rank == 0, values }.into())
}

/// What is tried, in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Own rows of what is whole.
    Rows,
    /// Partial operands are combined.
    Reduce,
    /// Both.
    ReduceAndRows,
    /// The operator as several.
    Formula,
    /// All operands whole.
    Gather,
}

fn plans(allowed: Repair) -> &'static [Plan] {
    match allowed {
        Repair::None => &[],
        Repair::Local => &[Plan::Rows],
        Repair::Comm => {
            &[Plan::Rows, Plan::Reduce, Plan::ReduceAndRows, Plan::Formula, Plan::Gather]
        }
    }
}

impl Plan {
    /// True of a plan that gives operands other rows.
    fn takes_rows(self) -> bool {
        matches!(self, Self::Rows | Self::ReduceAndRows)
    }

    /// The claim that the plan gives an operand; `blocks` are those of the rows that it meets, if
    /// there are several.
    fn claim(self, claim: Claim, ty: &TensorType, blocks: Option<Shard>) -> Claim {
        let rows = || {
            let own = rules::batch_axis(ty, 0).ok().flatten();
            // What has no rows is the same everywhere.
            own.map_or(Claim::Invariant, |own| match blocks {
                Some(met) if met.size() == own.size() => {
                    Claim::Shard(Shard { axis: own.axis, ..met })
                }
                _ => Claim::Shard(own),
            })
        };
        match (self, claim) {
            (_, Claim::Invariant) if self.takes_rows() => rows(),
            (Self::Reduce | Self::ReduceAndRows | Self::Gather, Claim::Partial(_))
            | (Self::Gather, Claim::Shard(_)) => Claim::Invariant,
            _ => claim,
        }
    }
}
