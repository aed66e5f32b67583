//! Claims: the sharding of every value over replicas, and the operators that forbid a split.
//!
//! One sweep in topological order. The claim of an input follows from the axis that has size `N`,
//! the claims of all other values from the split rules of the operators. Each rule is a local
//! implication (operands as claimed, hence results as claimed), so by induction every claim of the
//! map holds. A result that no rule allows is mixed: nothing is claimed of it. Operands that are
//! all whole on every replica give whole results, whatever the rule says.

use smallvec::SmallVec;

use crate::ir::{Graph, GraphError, NodeId, NodeKind, NodeMap, Value};
use crate::op::{self, Claims, Op, SplitOperand, Traits, rules};
use crate::types::{Claim, Code, Dim, Refusal, TensorType};

/// The claim of every value of a graph.
#[derive(Clone, Debug)]
pub struct ClaimMap {
    order: Vec<NodeId>,
    claims: NodeMap<Claims>,
    refused: Vec<Refused>,
}

impl ClaimMap {
    /// The claim of a value.
    ///
    /// # Panics
    /// If the value is of another graph.
    pub fn get(&self, value: Value) -> Claim {
        self.claims[value.node][value.output as usize]
    }

    /// The nodes in topological order, as they were visited.
    pub(crate) fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// All refusals of the split. Operators behind a refused one are not judged.
    pub(crate) fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The values with rows from an input to the operand of `node` at position `operand`.
    fn path(&self, graph: &Graph, node: NodeId, operand: usize) -> Vec<Value> {
        let mut path = Vec::new();
        let mut next = graph.operands(node).get(operand).copied();
        while let Some(value) = next {
            path.push(value);
            // The first such operand is enough: the path explains one way of the batch, not all.
            let split = |v: &Value| !matches!(self.get(*v), Claim::Invariant);
            next = graph.operands(value.node).into_iter().find(split);
        }
        path.reverse();
        path
    }

    /// True if each replica runs the node's operator on its own rows, with `N` in the attributes
    /// replaced by their number.
    pub(crate) fn is_local(&self, graph: &Graph, node: NodeId) -> bool {
        let operands = graph.operand_list(node);
        is_local(&self.claims[node], operands.iter().map(|v| self.get(*v)))
    }
}

/// True if replicas compute results with these claims for their own rows alone.
///
/// A partial result is local only where no operand is partial: an operator on parts (a scale, a
/// reshape) sees sizes of the whole value, and its attributes must keep them.
pub(crate) fn is_local(results: &[Claim], mut operands: impl Iterator<Item = Claim>) -> bool {
    let part = |c: &Claim| matches!(c, Claim::Partial(_) | Claim::Own);
    results.iter().any(|c| c.shard().is_some())
        || (results.iter().any(part) && !operands.any(|c| part(&c)))
}

/// An operator or an input that forbids the split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The node.
    pub node: NodeId,
    /// The rule that forbids it, and the reason.
    pub refusal: Refusal,
    /// The values that carry the batch to the node, from an input to the operand. [`claims`] fills
    /// it in for the first 64 refusals.
    pub path: Vec<Value>,
}

/// The reason for a graph without claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoClaims {
    /// All refusals of the split. Operators behind a refused one are not judged.
    Refused(Vec<Refused>),
    /// The graph is damaged.
    Graph(GraphError),
}

/// The claims of all values of a graph that may be split.
///
/// # Errors
/// If an operator or an input forbids the split, or the graph is damaged.
///
/// Elsewhere: sharding propagation (XLA, PyTorch).
pub fn claims(graph: &Graph) -> Result<ClaimMap, NoClaims> {
    const SHOWN: usize = 64;
    let mut map = survey(graph).map_err(NoClaims::Graph)?;
    if map.refused.is_empty() {
        return Ok(map);
    }
    let mut refused = std::mem::take(&mut map.refused);
    // A path may be as long as the graph, so that paths of all refusals would take quadratic time.
    for refused in refused.iter_mut().take(SHOWN) {
        refused.path = map.path(graph, refused.node, refused.refusal.operand);
    }
    Err(NoClaims::Refused(refused))
}

/// The claims for so many replicas. A single one has all rows: what may not be split is whole then,
/// with all of the graph, unless repairs have put exchanges between replicas into it.
///
/// # Errors
/// As [`claims`].
pub(crate) fn claims_over(graph: &Graph, replicas: usize) -> Result<ClaimMap, NoClaims> {
    let exchanges = |id: NodeId| {
        let op = graph.node(id).op();
        op.is_some_and(|op| op.is(Traits::COLLECTIVE) || matches!(op, Op::OwnRows(_)))
    };
    match claims(graph) {
        Err(NoClaims::Refused(_)) if replicas == 1 && !graph.ids().any(exchanges) => {
            let mut claims = graph.node_map(Claims::new());
            for node in graph.ids() {
                claims[node] = rules::invariant(graph.node(node).results().len());
            }
            let order = graph.order().map_err(NoClaims::Graph)?;
            Ok(ClaimMap { order, claims, refused: Vec::new() })
        }
        found => found,
    }
}

/// The claims of all values. Results of refused operators, and all values behind them, are mixed.
pub(crate) fn survey(graph: &Graph) -> Result<ClaimMap, GraphError> {
    let order = graph.order()?;
    let mut sweep = Sweep { graph, claims: graph.node_map(Claims::new()), refused: Vec::new() };
    for node in &order {
        sweep.visit(*node);
    }
    sweep.outputs();
    let Sweep { claims, mut refused, .. } = sweep;
    // A merged output is one value of the whole batch; entries of replicas have no such merge.
    for output in graph.outputs() {
        let Value { node, output } = output.value;
        if claims[node].get(output as usize) == Some(&Claim::Own) {
            let reason = "gives each replica a different value, which is not the value of the \
                whole batch";
            let refusal = rules::refuse(Code::NotPerSample, 0, reason);
            refused.push(Refused { node, refusal, path: Vec::new() });
        }
    }
    refused.extend(graph.updates().iter().flat_map(|update| {
        let name = &graph.param(update.param).name;
        update.values.iter().filter_map(|value| not_whole(graph, &claims, *value, name))
    }));
    // Without a batch axis every other refusal is a consequence: report the inputs instead.
    if !graph.inputs().any(|v| input(graph.ty(v)).shard().is_some()) {
        let of = |node, refusal| Refused { node, refusal, path: Vec::new() };
        let inputs = graph.inputs();
        refused = inputs.filter_map(|v| Some(of(v.node, no_rows(graph.ty(v))?))).collect();
        if refused.is_empty() {
            let reason = "none of the inputs has an axis of size N".to_owned();
            let refusal = Refusal { code: Code::NoBatchAxis, reason, operand: 0, hint: None };
            refused.extend(order.first().map(|node| of(*node, refusal)));
        }
    }
    Ok(ClaimMap { order, claims, refused })
}

/// The refusal of an update whose value is not whole on every replica.
fn not_whole(graph: &Graph, claims: &NodeMap<Claims>, value: Value, name: &str) -> Option<Refused> {
    let claim = |v: Value| claims.get(v.node).and_then(|c| c.get(v.output as usize));
    let has = match claim(value)? {
        Claim::Invariant | Claim::Mixed => return None,
        Claim::Partial(_) => "a part",
        Claim::Shard(_) => "its own rows",
        Claim::Own => "another value",
    };
    let operands = graph.operands(value.node);
    let carries = operands.iter().position(|v| claim(*v).is_some_and(|c| *c != Claim::Invariant));
    let reason = format!("gives each replica {has} of what the parameter `{name}` is to hold");
    // An input has no operand to point at, and the operand is then not shown.
    let refusal = rules::refuse(Code::NotPerSample, carries.unwrap_or(0), reason);
    Some(Refused { node: value.node, refusal, path: Vec::new() })
}

/// State of the sweep: the claims so far, by node.
struct Sweep<'g> {
    graph: &'g Graph,
    claims: NodeMap<Claims>,
    refused: Vec<Refused>,
}

impl Sweep<'_> {
    /// Sets the claims of a node whose operands have theirs.
    fn visit(&mut self, node: NodeId) {
        let results = self.graph.node(node).results();
        let claims = match self.graph.node(node).kind() {
            NodeKind::Input => Ok(results.iter().map(|r| input(&r.ty)).collect()),
            NodeKind::Param(_) => Ok(rules::invariant(1)),
            NodeKind::Op(op) => self.operator(node, op),
        };
        let mixed = SmallVec::from_elem(Claim::Mixed, results.len());
        self.claims[node] = match claims {
            Ok(claims) => claims,
            Err(None) => mixed,
            Err(Some(refusal)) => {
                self.refused.push(Refused { node, refusal, path: Vec::new() });
                mixed
            }
        };
    }

    /// Refuses outputs whose rows are in several blocks: concatenation of the replicas' rows would
    /// reorder them.
    fn outputs(&mut self) {
        let mut last = None;
        for output in self.graph.outputs() {
            let node = output.value.node;
            if let Some(shard) = self.claim(output.value).shard().filter(|s| s.outer > 1)
                && last != Some(node)
            {
                let operands = self.graph.operands(node);
                let carries = operands.iter().position(|v| self.claim(*v).shard().is_some());
                // An input has no operand to point at, and the operand is then not shown.
                let refusal = rules::in_blocks(carries.unwrap_or(0), shard);
                self.refused.push(Refused { node, refusal, path: Vec::new() });
                last = Some(node);
            }
        }
    }

    fn claim(&self, value: Value) -> Claim {
        self.claims[value.node][value.output as usize]
    }

    /// The claims by the split rule; `Err(None)` where an operand is mixed, which was refused
    /// before.
    fn operator(&self, id: NodeId, op: &Op) -> Result<Claims, Option<Refusal>> {
        let values = self.graph.operand_list(id);
        let claims: SmallVec<[Claim; 4]> = values.iter().map(|v| self.claim(*v)).collect();
        let types: SmallVec<[TensorType; 2]> =
            self.graph.node(id).results().iter().map(|r| r.ty.clone()).collect();
        judge(self.graph, op, values, &claims, &types)
    }
}

/// The claims of an operator's results by its split rule, for operands with these claims.
///
/// The rule is not trusted: its claims must fit the types of the results, and the invariants below
/// that hold for every operator are checked here rather than in each rule.
///
/// # Errors
/// The refusal; `None` where an operand is mixed.
pub(crate) fn judge(
    graph: &Graph,
    op: &Op,
    values: &[Value],
    claims: &[Claim],
    results: &[TensorType],
) -> Result<Claims, Option<Refusal>> {
    if claims.contains(&Claim::Mixed) {
        return Err(None);
    }
    let operands = values.iter().zip(claims);
    let operands: SmallVec<[SplitOperand<'_>; 4]> =
        operands.map(|(v, claim)| SplitOperand { claim: *claim, ty: graph.ty(*v) }).collect();
    if let Some(i) = claims.iter().position(|c| *c == Claim::Own)
        && !is_for(graph, op, values)
    {
        let reason = "takes what each replica holds of other rows";
        return Err(Some(rules::refuse(Code::NotPerSample, i, reason)));
    }
    let operands = &*operands;
    let claims = match op.split(operands, results) {
        // All operands are whole, so that every replica computes the whole result from the same
        // operands with the same attributes. No rule is needed for that.
        Err(_) if operands.iter().all(|x| x.claim == Claim::Invariant) => {
            rules::invariant(results.len())
        }
        claims => claims.map_err(Some)?,
    };
    let local = is_local(&claims, operands.iter().map(|x| x.claim));
    let global = |x: &SplitOperand<'_>| {
        x.claim == Claim::Invariant && x.ty.shape.iter().any(Dim::depends_on_batch)
    };
    // A replica that computes on its own rows must not meet the rows of the whole batch: sizes and
    // positions would not match. Exempt is what looks up in a whole table beside its rows, or cuts
    // its rows out of a whole value.
    if local
        && !op.is(Traits::MEETS_WHOLE)
        && let Some(i) = operands.iter().position(global)
    {
        let reason =
            format!("meets {}, which every replica holds for the whole batch", operands[i].ty);
        return Err(Some(rules::refuse(Code::GlobalIndex, i, reason)));
    }
    let fits = claims.iter().zip(results).all(|(claim, ty)| suits(*claim, ty, local));
    if fits && claims.len() == results.len() {
        return Ok(claims);
    }
    // Partial values alone have no rows: the first operand stands for all of them.
    let operand = rules::first_shard(operands).map_or(0, |(i, _)| i);
    let reason =
        "gives a value whose size depends on the batch in a way that no replica can follow";
    Err(Some(rules::refuse(Code::BakedBatch, operand, reason)))
}

/// True if the replica-local operands were computed for this operator, from the same rows.
///
/// [`Claim::Own`] says only that replicas hold different values. Two operators make sense of such
/// values: a scan of the total of the rows before, and a merge of the candidates of each replica.
fn is_for(graph: &Graph, op: &Op, operands: &[Value]) -> bool {
    let source = |v: &Value| (graph.node(v.node).op(), graph.operands(v.node));
    match (op, operands) {
        (Op::Scan(scan), [x, start]) => {
            let (Some(Op::ExclusiveScan(before)), totals) = source(start) else { return false };
            let [total] = *totals else { return false };
            let (Some(Op::Reduce(reduce)), of) = source(&total) else { return false };
            let ty = graph.ty(*x);
            let by = [scan.by(), scan.parts_by(ty.dtype)].contains(&before.by);
            by && before.reverse == scan.is_reverse()
                && *of == [*x]
                && reduce.is_total(before.by, scan.axis(), ty.rank())
        }
        (Op::MergeTopK(merge), [values, places]) => {
            let (Some(Op::TopK(top)), of) = source(values) else { return false };
            let [x] = *of else { return false };
            let both = *places == Value { output: 1, ..*values } && values.output == 0;
            let shape = &graph.ty(x).shape;
            let on = |axis| op::infer::axis("axis", axis, shape.len()).ok();
            let Some(size) = on(top.axis).and_then(|axis| shape.get(axis)) else { return false };
            both && on(top.axis) == on(merge.axis)
                && top.largest == merge.largest
                && merge.k.minimum(size) == top.k
                && *merge.entries == [size.clone()]
        }
        _ => false,
    }
}

/// The claim of an input: sharded on the axis whose size is `N` or a multiple of it; invariant
/// without such an axis, and where other sizes depend on `N` too.
fn input(ty: &TensorType) -> Claim {
    // Any value may be whole on every replica.
    rules::batch_axis(ty, 0).ok().flatten().map_or(Claim::Invariant, Claim::Shard)
}

/// The refusal of an input whose sizes depend on `N` but that has no rows.
fn no_rows(ty: &TensorType) -> Option<Refusal> {
    let mut axes = ty.shape.iter().enumerate().filter(|(_, d)| d.depends_on_batch());
    match (axes.next(), axes.next()) {
        (None, _) => None,
        (Some((axis, d)), None) => {
            let reason = format!(
                "has {d} entries on axis {axis}, which is not one for each row of the batch"
            );
            Some(rules::refuse(Code::BakedBatch, 0, reason))
        }
        (Some((a, _)), Some((b, _))) => {
            let reason = format!("carries the batch on axis {a} and on axis {b}");
            Some(rules::refuse(Code::SampleBySample, 0, reason))
        }
    }
}

/// True if the type has the batch on the axis of the claim. A value that replicas compute for their
/// own rows (`local`) has it on no other axis; any other value has the sizes of the whole batch.
fn suits(claim: Claim, ty: &TensorType, local: bool) -> bool {
    ty.shape.iter().enumerate().all(|(axis, d)| match claim.shard() {
        Some(s) if s.axis == axis => s.is_size(d),
        Some(_) => !d.depends_on_batch(),
        None => !local || claim == Claim::Own || !d.depends_on_batch(),
    })
}
