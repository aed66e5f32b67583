//! Replicas that are equal but for their device and rows.

use std::collections::HashMap;

use crate::ir::{Graph, NodeId, NodeKind, NodeMap};
use crate::types::{Device, Split};

/// Replicas that are drawn as one, and the node that stands for each node.
pub(crate) struct Folding {
    /// The replicas of each group, ascending; the first stands for all.
    pub(crate) groups: Vec<Vec<u32>>,
    /// The node that stands for a node.
    pub(crate) shown: NodeMap<NodeId>,
}

/// Where an operand comes from, as a replica sees it.
#[derive(PartialEq, Eq, Hash)]
enum From {
    Own(usize, u32),
    Param(String),
    Other(NodeId),
}

/// What a replica's node is, but for its device and rows.
#[derive(PartialEq, Eq, Hash)]
struct Signature<'a> {
    kind: &'a str,
    place: Option<Device>,
    origin: Option<&'a str>,
    types: Vec<(String, Vec<Option<i64>>)>,
    operands: Vec<From>,
    kept: bool,
}

impl Folding {
    /// The group of a replica.
    pub(crate) fn group(&self, replica: u32) -> Option<usize> {
        self.groups.iter().position(|group| group.contains(&replica))
    }
}

/// Groups the replicas of a graph; each is alone in its group unless they are folded.
pub(crate) fn fold(graph: &Graph, order: &[NodeId], folds: bool) -> Folding {
    // Every node of the order gets its own entry below; a graph without nodes has none.
    let mut shown = graph.node_map(order.first().copied().unwrap_or(NodeId(0)));
    let mut own: HashMap<u32, Vec<NodeId>> = HashMap::new();
    let mut position = graph.node_map(0usize);
    for id in order {
        shown[*id] = *id;
        if let Some(replica) = graph.node(*id).place().replica {
            let nodes = own.entry(replica).or_default();
            position[*id] = nodes.len();
            nodes.push(*id);
        }
    }
    let mut replicas: Vec<u32> = own.keys().copied().collect();
    replicas.sort_unstable();
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let mut known: HashMap<Vec<Signature<'_>>, usize> = HashMap::new();
    for replica in replicas {
        let nodes = &own[&replica];
        let signatures: Vec<_> =
            nodes.iter().map(|id| signature(graph, *id, replica, &position)).collect();
        if let Some(at) = known.get(&signatures).filter(|_| folds) {
            let first = &own[&groups[*at][0]];
            for (id, stands) in nodes.iter().zip(first) {
                shown[*id] = *stands;
            }
            groups[*at].push(replica);
        } else {
            known.insert(signatures, groups.len());
            groups.push(vec![replica]);
        }
    }
    Folding { groups, shown }
}

fn signature<'a>(
    graph: &'a Graph,
    id: NodeId,
    replica: u32,
    position: &NodeMap<usize>,
) -> Signature<'a> {
    let node = graph.node(id);
    let device = node.place().device;
    // Without a split nothing is owned.
    let devices = graph.split().map_or(&[][..], Split::devices);
    let is_own = devices.get(replica as usize) == Some(&device);
    let operand = |value: &crate::ir::Value| {
        let from = graph.node(value.node);
        match (from.kind(), from.place().replica) {
            (NodeKind::Param(param), _) => From::Param(graph.param(*param).name.to_string()),
            (_, Some(other)) if other == replica => From::Own(position[value.node], value.output),
            (NodeKind::Input | NodeKind::Op(_), _) => From::Other(value.node),
        }
    };
    let types = node.results().iter().map(|result| {
        let sizes = result.ty.shape.iter().map(crate::types::Dim::as_const).collect();
        (result.ty.dtype.to_string(), sizes)
    });
    let mut values = (0u32..).take(node.results().len());
    Signature {
        // An input has no operator.
        kind: node.op().map_or("", |op| op.name()),
        place: (!is_own).then_some(device),
        origin: node.origin().0.as_deref(),
        types: types.collect(),
        operands: graph.operand_list(id).iter().map(operand).collect(),
        kept: values.any(|output| graph.is_kept(crate::ir::Value { node: id, output })),
    }
}
