//! The repair pass: rewrites a graph that may not be split into an equal one that may.
//!
//! No replicas are written here. Values are redistributed by operators that are identities on one
//! device: `own_rows` takes the rows of a whole value, `all_reduce` combines the parts of a partial
//! value, `all_gather` joins rows. Some operators are first decomposed into several that need less
//! of the batch.
//!
//! The result is again a template, so that split rules, claims and the proof apply to it like to
//! any graph, and a test can run it on one device beside the original.

mod action;
mod bucket;
mod context;
mod formulas;
mod output_use;
mod plan;
mod redistribute;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

pub use action::{Action, AppliedRepair, BatchStatistics, Repair, RepairOptions};

use self::context::{Cause, Failure, InsertionPoint};
pub(super) use self::output_use::reaches_output;
use self::output_use::{OutputUse, output_uses};
use self::plan::{Plan, plans};
use super::{PassError, PassInfo};
use crate::analysis::{ClaimMap, Refused, judge, survey};
use crate::ir::{Graph, GraphError, Node, NodeId, NodeKind, NodeMap, ResultInfo, Value};
use crate::op::{Claims, Dims, Inferred, Op, Operand, Statistics, Traits, rules};
use crate::types::invariant::invariant;
use crate::types::{Claim, Code, Combine, DType, Dim, FastMap, Refusal, TensorType};

pub(super) const INFO: PassInfo = PassInfo {
    name: "repair",
    about: "rewrites what may not be split so that it may: rows of whole values, sums over \
        replicas, gathered rows",
};

/// A repaired graph, the repairs applied to it, and its claims where they are known.
pub(super) struct Outcome<'g> {
    pub(super) graph: Cow<'g, Graph>,
    pub(super) done: Vec<AppliedRepair>,
    pub(super) claims: Option<ClaimMap>,
}

/// Repairs a graph; operators that no allowed repair helps stay as they are. Local and ghost
/// statistics change the result of batch normalisation.
pub(super) fn repair(template: &Graph, options: RepairOptions) -> Result<Outcome<'_>, GraphError> {
    let survey = survey(template)?;
    // Without a batch on the inputs nothing can be split, whatever operators become.
    let fatal = |r: &Refused| {
        matches!(r.refusal.code, Code::NoBatchAxis)
            || matches!(template.node(r.node).kind(), NodeKind::Input)
    };
    // A graph that may be split still needs this pass where partial sums would be rounded before
    // they are combined: replicas would then differ from one device by more than the order of a
    // sum.
    let none = (options.allowed, options.batch_norm) == (Repair::None, None);
    let idle = (survey.refused().is_empty() && !changes_statistics(template, options)) || none;
    let visible = reaches_output(template, survey.order());
    let rounds = survey.order().iter().any(|id| {
        let (value, visible) = (Value { node: *id, output: 0 }, visible[*id]);
        let Some(op) = template.node(*id).op().filter(|_| may_round(survey.get(value))) else {
            return false;
        };
        let operands = template.operands(*id);
        let unrounded = unrounded(template, op, &operands).is_some();
        rounds(op, unrounded, survey.get(value), template.ty(value), visible)
            && !is_combined(template, *id)
    });
    if (idle && !rounds) || survey.refused().iter().any(fatal) {
        let claims = Some(survey).filter(|claims| claims.refused().is_empty());
        return Ok(Outcome { graph: Cow::Borrowed(template), done: Vec::new(), claims });
    }
    let mut writer = Writer::new(template, survey.order(), visible, options);
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
    if writer.has_dead_nodes {
        writer.out.remove_unused();
    }
    let graph = Cow::Owned(bucket::bucket(writer.out, options.bucket)?);
    Ok(Outcome { graph, done: writer.done, claims: None })
}

/// The graph in which batch normalisation takes the statistics of `groups` groups of rows, for one
/// device; the graph itself if it has no batch normalisation in training.
///
/// # Errors
/// If a batch normalisation cannot be split into groups of rows.
pub(crate) fn grouped(template: &Graph, groups: NonZeroU32) -> Result<Cow<'_, Graph>, PassError> {
    if ungrouped(template).is_none() {
        return Ok(Cow::Borrowed(template));
    }
    let batch_norm = Some(BatchStatistics::Ghost(groups));
    let mut left = String::new();
    // The rows behind an operator that mixes samples are known only once it is repaired, so a
    // second attempt allows all repairs.
    for allowed in [Repair::None, Repair::Comm] {
        let options = RepairOptions { allowed, batch_norm, bucket: 0 };
        let graph = repair(template, options)?.graph;
        match ungrouped(&graph) {
            None => return Ok(graph),
            Some(name) => left = name,
        }
    }
    Err(PassError::NoGroups(left))
}

/// The label of a batch normalisation that takes its statistics over the whole batch.
fn ungrouped(graph: &Graph) -> Option<String> {
    let rows = |id: NodeId| {
        graph.operands(id).iter().any(|v| graph.ty(*v).shape.iter().any(Dim::depends_on_batch))
    };
    let trains = |id: &NodeId| graph.node(*id).op().is_some_and(|op| op.statistics().is_some());
    let left = graph.ids().find(|id| trains(id) && rows(*id))?;
    Some(graph.node(left).label().to_owned())
}

/// True if the options replace local statistics that the graph itself asks for.
fn changes_statistics(template: &Graph, options: RepairOptions) -> bool {
    let of = |id| template.node(id).op().and_then(|op| op.statistics());
    let local = |id| of(id) == Some(Statistics::OfReplica);
    options.batch_norm.is_some_and(|b| b != BatchStatistics::Local) && template.ids().any(local)
}

/// True if only collectives take a node's results: an earlier repair combines them already.
fn is_combined(graph: &Graph, id: NodeId) -> bool {
    let users = graph.users(id);
    let combines = |user: &NodeId| graph.node(*user).op().is_some_and(|op| op.combines().is_some());
    !users.is_empty() && users.iter().all(|(user, ..)| combines(user))
}

/// True for an operator with a partial result whose parts would be rounded before they are
/// combined. Products that reach no output are gradients, which one device sums in `f32` too.
fn rounds(op: &Op, unrounded: bool, claim: Claim, ty: &TensorType, visible: bool) -> bool {
    let half = matches!(ty.dtype, DType::F16 | DType::Bf16);
    let single = half || ty.dtype == DType::F32;
    let rounds = (visible && unrounded)
        || (op.is(Traits::REDUCES) && single)
        || (op.is(Traits::SUMS_NARROW) && (half || (visible && single)));
    rounds && may_round(claim)
}

/// True for parts that are rounded where their type is too narrow.
fn may_round(claim: Claim) -> bool {
    claim.partial().is_some_and(|by| !by.is_exact())
}

/// The operator that computes an operator's parts before rounding, and the one that rounds them.
fn unrounded(graph: &Graph, op: &Op, operands: &[Value]) -> Option<(Op, Op)> {
    let types: SmallVec<[&TensorType; 4]> = operands.iter().map(|v| graph.ty(*v)).collect();
    op.unrounded(&types)
}

/// Writes the repaired graph, node by node in the order of the template.
struct Writer<'g> {
    template: &'g Graph,
    options: RepairOptions,
    out: Graph,
    /// The new node of each node of the template, where there is exactly one.
    nodes: NodeMap<Option<NodeId>>,
    /// The new values of results that repairs wrote, which several nodes may hold.
    values: HashMap<Value, Value>,
    /// The claims of the new graph's values, by node.
    claims: FastMap<NodeId, Claims>,
    /// All names in use.
    names: HashSet<Arc<str>>,
    /// The redistributed forms of values, by value, operator and number of blocks: each value is
    /// exchanged once, however many users need it.
    redistributed: HashMap<(Value, &'static str, u64), Value>,
    /// The numbers that steps of formulas share, by their bits; and whether these numbers of
    /// elements are above 0.
    numbers: HashMap<u64, Value>,
    any: Vec<(Dim, Value)>,
    /// True if a rewrite may have left nodes without users.
    has_dead_nodes: bool,
    /// The use of each node's results by outputs, by node of the template; and that of the operator
    /// being written.
    output_uses: NodeMap<OutputUse>,
    output_use: OutputUse,
    /// The nodes of the template that an output depends on; and whether the operator being written
    /// is one of them.
    reaches_output: NodeMap<bool>,
    visible: bool,
    /// True while writing steps of a formula, or an operator that the graph combines itself.
    inside: bool,
    /// The repairs so far.
    done: Vec<AppliedRepair>,
}

impl<'g> Writer<'g> {
    fn new(
        template: &'g Graph,
        order: &[NodeId],
        reaches_output: NodeMap<bool>,
        options: RepairOptions,
    ) -> Self {
        let mut out = Graph::new(template.name());
        out.set_symbols(template.symbols().to_vec());
        for param in template.params() {
            out.add_param(param.clone());
        }
        let results = template.ids().flat_map(|id| template.node(id).results());
        Self {
            template,
            options,
            out,
            nodes: template.node_map(None),
            values: HashMap::new(),
            claims: FastMap::default(),
            names: results.map(|r| r.name.clone()).collect(),
            redistributed: HashMap::new(),
            numbers: HashMap::new(),
            any: Vec::new(),
            has_dead_nodes: false,
            output_uses: output_uses(template, order),
            output_use: OutputUse::Other,
            reaches_output,
            visible: true,
            inside: false,
            done: Vec::new(),
        }
    }

    /// The new value of a value of the template.
    fn new_value(&self, old: Value) -> Value {
        self.values.get(&old).copied().unwrap_or_else(|| {
            let node = self.nodes[old.node];
            let what = "that a node is written after those that it takes values of";
            Value { node: invariant(node, what), output: old.output }
        })
    }

    /// The claim of a new value.
    fn claim(&self, value: Value) -> Claim {
        self.claims
            .get(&value.node)
            .and_then(|c| c.get(value.output as usize))
            .copied()
            // Nothing is known of a value without claims, and `Mixed` promises nothing.
            .unwrap_or(Claim::Mixed)
    }

    fn set_claims(&mut self, node: NodeId, claims: Claims) {
        self.claims.insert(node, claims);
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
        self.nodes[id] = Some(value.node);
        self.set_claims(value.node, known);
        Ok(())
    }

    /// Writes the new form of an operator. A refused one is copied as it is, with mixed results.
    fn operator(&mut self, id: NodeId, node: &Node, op: &Op) -> Result<(), GraphError> {
        let operands: SmallVec<[Value; 4]> =
            self.template.operands(id).into_iter().map(|v| self.new_value(v)).collect();
        let at = InsertionPoint {
            place: node.place(),
            origin: node.origin().clone(),
            label: node.label().to_owned(),
        };
        self.output_use = self.output_uses[id];
        self.visible = self.reaches_output[id];
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
                self.nodes[id] = Some(new);
            }
        }
        Ok(())
    }

    /// Writes batch normalisation with the statistics of replicas or of the batch: the choice of
    /// statistics allows the exchange that it needs.
    fn batch_norm(
        &mut self,
        op: &Op,
        statistics: Statistics,
        operands: &[Value],
        results: &[ResultInfo],
        at: &InsertionPoint,
    ) -> Result<SmallVec<[Value; 2]>, Failure> {
        let new = op.with_statistics(statistics);
        let new = invariant(new, "that statistics can be those of other rows");
        // Only the forward operator moves running statistics; its gradient is not reported again.
        let moves = (0..operands.len()).any(|i| op.is_running(i));
        if statistics == Statistics::OfReplica && moves {
            let reason = "uses statistics of the whole batch";
            let refusal = rules::refuse(Code::BatchStatistics, 0, reason);
            let cause = Cause { refusal: &refusal, op: &new, at };
            self.record(cause, Action::LocalStatistics, operands.first().copied());
            return self.write(&new, operands, results, at);
        }
        self.allowed(Repair::Comm, |writer| writer.write(&new, operands, results, at))
    }

    /// Runs `write` with these repairs allowed.
    fn allowed<T>(&mut self, repairs: Repair, write: impl FnOnce(&mut Self) -> T) -> T {
        let allowed = std::mem::replace(&mut self.options.allowed, repairs);
        let written = write(self);
        self.options.allowed = allowed;
        written
    }

    /// Adds an operator with these results at an insertion point.
    fn add(
        &mut self,
        op: Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &InsertionPoint,
    ) -> NodeId {
        self.out.add_typed(
            op,
            operands,
            results.iter().cloned().collect(),
            at.place,
            at.origin.clone(),
        )
    }

    /// The claims by the split rule for operands with these claims.
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

    /// Writes an operator, with the first plan that its split rule accepts if it is refused as it
    /// is. Its results have these names and types.
    fn write(
        &mut self,
        op: &Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &InsertionPoint,
    ) -> Result<SmallVec<[Value; 2]>, Failure> {
        // A value that was all-reduced for an earlier user is taken combined: further partial
        // results behind this operator would need an exchange of their own.
        let operands: SmallVec<[Value; 4]> = operands
            .iter()
            .map(|v| self.redistributed.get(&(*v, "all_reduce", 1)).copied().unwrap_or(*v))
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
        // Sizes are formulas of N: no exchange is needed to know them on every replica.
        if let Some(sizes) = sizes(results).filter(|_| self.options.allowed != Repair::None) {
            self.record(cause, Action::Sizes, operands.first().copied());
            return Ok(self.finish(&sizes, &[], results, at, rules::invariant(1)));
        }
        let blocks = claims.iter().filter_map(|c| c.shard()).find(|s| s.outer > 1);
        for plan in plans(self.options.allowed) {
            if *plan == Plan::Formula {
                if let Some(values) = formulas::write(self, op, operands, results, at)? {
                    self.record(cause, Action::Formula, operands.first().copied());
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
            // The plan changes nothing, and the rule refused exactly these claims.
            if wanted == claims {
                continue;
            }
            if let Ok(judged) = self.judge(op, operands, &wanted, results) {
                let operands = self.redistribute_all(operands, &claims, &wanted, cause)?;
                return Ok(self.finish(op, &operands, results, at, judged));
            }
        }
        Err(Failure::Refused)
    }

    /// The operands with the wanted claims.
    fn redistribute_all(
        &mut self,
        operands: &[Value],
        claims: &[Claim],
        wanted: &[Claim],
        cause: Cause<'_>,
    ) -> Result<SmallVec<[Value; 4]>, GraphError> {
        let changes = operands.iter().zip(claims.iter().zip(wanted));
        changes
            .map(
                |(value, (from, to))| {
                    if from == to {
                        Ok(*value)
                    } else {
                        self.redistribute(*value, *from, *to, cause)
                    }
                },
            )
            .collect()
    }

    /// Writes an operator that may be split.
    ///
    /// The parts of its result are combined at once where they would be rounded otherwise, or where
    /// the users need the whole and lead to outputs only, which are merged in any case.
    fn accepted(
        &mut self,
        op: &Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &InsertionPoint,
        claims: Claims,
    ) -> Result<SmallVec<[Value; 2]>, Failure> {
        let ([result], [claim]) = (results, &*claims) else {
            return Ok(self.finish(op, operands, results, at, claims));
        };
        let comm = self.options.allowed == Repair::Comm;
        let scaled = self.output_use == OutputUse::Scaled && self.options.allowed != Repair::None;
        // The options allow the exchange, or outputs make it in any case.
        let free = scaled || comm || self.output_use == OutputUse::ViewOnly;
        // A formula chooses its own `f64` steps, which have digits to spare.
        let own = self.inside && result.ty.dtype == DType::F64;
        let unrounded = unrounded(&self.out, op, operands).is_some();
        if free && !own && rounds(op, unrounded, *claim, &result.ty, self.visible) {
            return formulas::combined(self, op, operands, result, at, self.visible);
        }
        let claim = *claim;
        let part = claim.partial().is_some_and(|by| matches!(by, Combine::Sum | Combine::Mean));
        let written = self.finish(op, operands, results, at, claims);
        if scaled && !comm && part && result.ty.dtype.is_float() {
            return formulas::all_reduced(self, op, &written, claim, at);
        }
        Ok(written)
    }

    /// Infers the result of an operator with exactly one.
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

    /// Adds an operator with known claims; returns its results.
    fn finish(
        &mut self,
        op: &Op,
        operands: &[Value],
        results: &[ResultInfo],
        at: &InsertionPoint,
        claims: Claims,
    ) -> SmallVec<[Value; 2]> {
        let node = self.add(op.clone(), operands, results, at);
        self.set_claims(node, claims);
        (0u32..).zip(results).map(|(output, _)| Value { node, output }).collect()
    }

    /// Records a repair, with the bytes of the value it exchanges.
    fn record(&mut self, cause: Cause<'_>, action: Action, value: Option<Value>) {
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
        // The operands of one operator often share a value: the same repair is listed once.
        if !self.done.iter().rev().take(4).any(|d| *d == done) {
            self.done.push(done);
        }
    }
}

/// The `dims` operator in place of one whose result is known as formulas of the batch size.
fn sizes(results: &[ResultInfo]) -> Option<Op> {
    let [result] = results else { return None };
    let (rank, values) = (result.ty.rank(), result.ints.as_ref()?.to_vec());
    let one = rank <= 1 && result.ty.dtype == DType::I64;
    one.then(|| Dims { scalar: rank == 0, values }.into())
}
