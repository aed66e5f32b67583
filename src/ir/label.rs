//! Exactness labels of the outputs of a replicated graph.

use std::fmt;

use super::{Graph, NodeId, NodeKind, NodeMap, Value};
use crate::op::{Op, Statistics};
use crate::types::{Dim, TensorType};

/// The promise of a merged output of a replicated graph.
///
/// Elsewhere: determinism (XLA, PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// Rows, each with the bits that one device gives.
    RowExact,
    /// Floats that are summed in another order: equal within the rounding of these sums.
    Reassociated,
    /// What follows from a comparison, a cut to integers or a position among such floats: where one
    /// of them lies at a threshold within its rounding, the output may jump.
    Discontinuous,
    /// What depends on statistics that each replica took of its own rows, as was asked for: not
    /// what one device gives.
    LocalStatistics,
    /// A value that has no rows, with the bits that one device gives.
    Invariant,
}

/// The sources of inexactness of a value.
#[derive(Clone, Copy, Default)]
struct Taint {
    /// Floats that replicas combined.
    rounded: bool,
    /// Statistics of a replica's own rows.
    local: bool,
    /// The first operator that jumps where such floats are rounded.
    jump: Option<NodeId>,
}

impl Taint {
    /// The label that follows, if one does.
    fn label(self) -> Option<Label> {
        match self {
            Self { local: true, .. } => Some(Label::LocalStatistics),
            Self { jump: Some(_), .. } => Some(Label::Discontinuous),
            Self { rounded: true, .. } => Some(Label::Reassociated),
            Self { rounded: false, local: false, jump: None } => None,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RowExact => "row-exact",
            Self::Reassociated => "reassociated",
            Self::Discontinuous => "discontinuous",
            Self::LocalStatistics => "local-statistics",
            Self::Invariant => "invariant",
        })
    }
}

impl Graph {
    /// The label of each output; none for a graph without replicas, or with a cycle.
    pub fn labels(&self) -> Vec<Label> {
        match (self.split(), self.order()) {
            (Some(_), Ok(order)) => self.labels_in(&order),
            _ => Vec::new(),
        }
    }

    /// The first operator on the way to each output at which combined floats make it jump, if there
    /// is one: of replicas, or of a graph before it is replicated, with its repairs; none for a
    /// graph with a cycle.
    pub(crate) fn jumps(&self) -> Vec<Option<NodeId>> {
        let Ok(order) = self.order() else { return Vec::new() };
        let taints = self.taints(&order);
        self.outputs().iter().map(|o| taints[o.value.node].jump).collect()
    }

    /// The sources of inexactness of each node.
    fn taints(&self, order: &[NodeId]) -> NodeMap<Taint> {
        let mut taints = self.node_map(Taint::default());
        for id in order {
            let operands = self.operands(*id);
            let mut own = Taint::default();
            for operand in &operands {
                let of = taints[operand.node];
                own.rounded |= of.rounded;
                own.local |= of.local;
                own.jump = own.jump.or(of.jump);
            }
            let rounded = |v: &Value| taints[v.node].rounded && self.ty(*v).dtype.is_float();
            if let Some(op) = self.node(*id).op() {
                if op.jumps() && operands.iter().any(rounded) {
                    own.jump = own.jump.or(Some(*id));
                }
                own.rounded |= self.rounds(*id, op);
                own.local |= op.statistics() == Some(Statistics::OfReplica);
            }
            taints[*id] = own;
        }
        taints
    }

    /// True of an operator that combines floats of replicas, which rounds them.
    fn rounds(&self, id: NodeId, op: &Op) -> bool {
        op.combines().is_some_and(|by| !by.is_exact())
            && self.node(id).results().iter().any(|r| r.ty.dtype.is_float())
    }

    /// The labels of the outputs, given the nodes in topological order.
    pub(super) fn labels_in(&self, order: &[NodeId]) -> Vec<Label> {
        let taints = self.taints(order);
        let label = |value: Value| match (taints[value.node].label(), self.source(value)) {
            (Some(label), _) => label,
            (None, kind) => exact_label(kind, self.ty(value)),
        };
        self.outputs().iter().map(|o| label(o.value)).collect()
    }

    /// What a value is a copy of, or has the elements of in another shape, where it is not of a
    /// replica.
    fn source(&self, mut value: Value) -> &NodeKind {
        loop {
            let node = self.node(value.node);
            let whole = node.place().replica.is_none();
            let moves = matches!(node.op(), Some(Op::CopyOp(_)))
                || (whole && matches!(node.op(), Some(Op::Reshape(_))));
            match *self.operands(value.node) {
                [of] if moves => value = of,
                _ => return node.kind(),
            }
        }
    }
}

/// The label of a value of this source and type, into which no sums over replicas went.
fn exact_label(source: &NodeKind, ty: &TensorType) -> Label {
    match source {
        NodeKind::Op(op) if op.joined().is_some() => Label::RowExact,
        NodeKind::Input if ty.shape.iter().any(Dim::depends_on_batch) => Label::RowExact,
        NodeKind::Op(_) | NodeKind::Input | NodeKind::Param(_) => Label::Invariant,
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn sums_of_floats_are_reassociated_wherever_they_lead() {
        let text = "fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last {
  n = [N/2, N-(N/2)]
  o = [0, N/2]
}
graph @g(%x: f32[N]) -> (rows: f32[N], sum: f32[], later: f32[], most: f32[], x: f32[N], floor: \
f32[], many: f32[N]) {
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %a : f32[n0@dp] = slice(%x) {axes=[0], ends=[N/2], starts=[0], steps=[1]}
    %as : f32[] = reduce_sum(%a) {axes=[0], keepdims=false}
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %b : f32[n1@dp] = slice(%x) {axes=[0], ends=[N], starts=[N/2], steps=[1]}
    %bs : f32[] = reduce_sum(%b) {axes=[0], keepdims=false}
  }
  on cpu:0 {
    %rows : f32[N] = concat(%a, %b) {axis=0}
    %sum : f32[] = all_reduce(%as, %bs) {by=sum, rows=[N/2, N-(N/2)]}
    %later : f32[] = exp(%sum)
    %most : f32[] = all_reduce(%as, %bs) {by=max, rows=[N/2, N-(N/2)]}
    %above : bool[N] = greater(%rows, %sum)
    %many : f32[N] = where(%above, %rows, %most)
    %floor : f32[] = floor(%later)
  }
  return %rows, %sum, %later, %most, %x, %floor, %many
}
";
        let graph = parse(text).unwrap();
        let labels: Vec<String> = graph.labels().iter().map(ToString::to_string).collect();
        let expected = "row-exact, reassociated, reassociated, invariant, row-exact, \
            discontinuous, \
                        discontinuous";
        assert_eq!(labels.join(", "), expected);
        let returned = "return %rows, %sum, %later, %most, %x, %floor, %many";
        assert!(graph.to_string().contains(&format!("{returned}  ; {expected}\n")));
        let jumps: Vec<Option<&str>> =
            graph.jumps().iter().map(|j| j.map(|id| graph.node(id).op().unwrap().name())).collect();
        let none = [None; 5].into_iter();
        assert_eq!(jumps, none.chain([Some("floor"), Some("greater")]).collect::<Vec<_>>());
    }
}
