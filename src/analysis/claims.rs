//! May the batch be split? Every value's claim, or the operators that forbid it.
//!
//! One sweep in topological order: the inputs' claims follow from where `N` stands in their types, those of
//! the other values from the operators' split rules. Each rule is a local implication (operands as claimed,
//! hence results as claimed), so by induction every claim of the map holds.

use smallvec::SmallVec;

use crate::ir::{Graph, GraphError, NodeId, NodeKind, Value};
use crate::op::{Claims, SplitOperand, rules};
use crate::types::{Claim, Code, Dim, Refusal, TensorType};

/// The claim of every value of a graph.
#[derive(Clone, Debug)]
pub struct ClaimMap {
    order: Vec<NodeId>,
    claims: Vec<Claims>,
}

impl ClaimMap {
    /// The claim of a value.
    ///
    /// # Panics
    /// If the value is of another graph.
    pub fn get(&self, value: Value) -> Claim {
        self.claims[value.node.index()][value.output as usize]
    }

    /// The nodes in topological order, as they were visited.
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }
}

/// An operator (or an input) that forbids the split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The node.
    pub node: NodeId,
    /// Which rule forbids it and why.
    pub refusal: Refusal,
    /// The values that carry the batch to it, from an input on; the last is its operand.
    pub path: Vec<Value>,
}

/// Why a graph has no claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoClaims {
    /// Everything that forbids the split; what only follows from a refused operator is not judged.
    Refused(Vec<Refused>),
    /// The graph is damaged.
    Graph(GraphError),
}

/// The claims of all values, or why there are none.
pub fn claims(graph: &Graph) -> Result<ClaimMap, NoClaims> {
    let order = graph.order().map_err(NoClaims::Graph)?;
    let mut sweep = Sweep { graph, claims: vec![None; graph.id_bound()], refused: Vec::new() };
    for node in &order {
        sweep.visit(*node);
    }
    let batch = graph.inputs().any(|v| graph.ty(v).shape.iter().any(Dim::depends_on_batch));
    if !batch && let Some(node) = order.first() {
        let reason = "none of the inputs has an axis of size N".to_owned();
        let refusal = Refusal { code: Code::NoBatchAxis, reason, operand: 0 };
        sweep.refused = vec![Refused { node: *node, refusal, path: Vec::new() }];
    }
    if sweep.refused.is_empty() {
        let claims = sweep.claims.into_iter().map(Option::unwrap_or_default).collect();
        Ok(ClaimMap { order, claims })
    } else {
        Err(NoClaims::Refused(sweep.refused))
    }
}

struct Sweep<'g> {
    graph: &'g Graph,
    /// `None` for what was not visited and for what follows from a refused node.
    claims: Vec<Option<Claims>>,
    refused: Vec<Refused>,
}

impl Sweep<'_> {
    fn visit(&mut self, node: NodeId) {
        let claims = match self.graph.node(node).kind() {
            NodeKind::Input => {
                input(&self.graph.node(node).results()[0].ty).map(|c| SmallVec::from_elem(c, 1))
            }
            NodeKind::Param(_) => Ok(rules::invariant(1)),
            NodeKind::Op(_) => match self.operator(node) {
                Some(claims) => claims,
                None => return,
            },
        };
        match claims {
            Ok(claims) => self.claims[node.index()] = Some(claims),
            Err(refusal) => {
                let path = self.path(node, refusal.operand);
                self.refused.push(Refused { node, refusal, path });
            }
        }
    }

    fn claim(&self, value: Value) -> Option<Claim> {
        self.claims[value.node.index()].as_ref().map(|c| c[value.output as usize])
    }

    /// The split rule's answer; `None` where an operand follows from a refused node.
    fn operator(&self, id: NodeId) -> Option<Result<Claims, Refusal>> {
        let node = self.graph.node(id);
        let op = node.op()?;
        let operands = self.graph.operands(id);
        let operands = operands
            .iter()
            .map(|v| self.claim(*v).map(|claim| SplitOperand { claim, ty: self.graph.ty(*v) }))
            .collect::<Option<SmallVec<[SplitOperand<'_>; 4]>>>()?;
        let types: SmallVec<[TensorType; 2]> =
            node.results().iter().map(|r| r.ty.clone()).collect();
        let claims = op.split(&operands, &types);
        Some(claims.and_then(|claims| {
            let fits = claims.iter().zip(&types).all(|(claim, ty)| suits(*claim, ty));
            let operand = rules::first_shard(&operands).map_or(0, |(i, _)| i);
            let reason =
                "gives a value whose size depends on the batch in a way that no replica can follow";
            if fits && claims.len() == types.len() {
                Ok(claims)
            } else {
                Err(rules::refuse(Code::BakedBatch, operand, reason))
            }
        }))
    }

    /// The split values from an input to the operand of `node` at position `operand`.
    fn path(&self, node: NodeId, operand: usize) -> Vec<Value> {
        let mut path = Vec::new();
        let mut next = self.graph.operands(node).get(operand).copied();
        while let Some(value) = next {
            path.push(value);
            let split = |v: &Value| self.claim(*v).is_some_and(|c| c.shard().is_some());
            next = self.graph.operands(value.node).into_iter().find(split);
        }
        path.reverse();
        path
    }
}

/// The claim of an input: split on the axis whose size is `N`.
fn input(ty: &TensorType) -> Result<Claim, Refusal> {
    let mut axes = ty.shape.iter().enumerate().filter(|(_, d)| d.depends_on_batch());
    match (axes.next(), axes.next()) {
        (None, _) => Ok(Claim::Invariant),
        (Some((axis, d)), None) if *d == Dim::n() => Ok(Claim::rows(axis)),
        (Some((axis, d)), None) => {
            let reason = format!(
                "has {d} entries on axis {axis}, which is not one for each row of the batch"
            );
            Err(rules::refuse(Code::BakedBatch, 0, reason))
        }
        (Some((a, _)), Some((b, _))) => {
            let reason = format!("carries the batch on axis {a} and on axis {b}");
            Err(rules::refuse(Code::SampleBySample, 0, reason))
        }
    }
}

/// True if the type has the batch where the claim says, and nowhere else.
fn suits(claim: Claim, ty: &TensorType) -> bool {
    ty.shape.iter().enumerate().all(|(axis, d)| match claim.shard() {
        Some(s) if s.axis == axis => {
            i64::try_from(s.inner).is_ok_and(|inner| *d == Dim::n() * inner)
        }
        _ => !d.depends_on_batch(),
    })
}
