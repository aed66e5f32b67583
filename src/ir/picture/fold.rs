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
    /// How many nodes a node stands for, itself included.
    pub(crate) count: NodeMap<usize>,
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

    /// The name of a result of a node: without the number of a device, if the node stands for what
    /// several devices compute beside their replicas.
    pub(crate) fn name<'a>(&self, graph: &Graph, id: NodeId, name: &'a str) -> &'a str {
        let is_one = self.count[id] < 2 || graph.node(id).place().replica.is_some();
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let stem = stem.strip_suffix(".d").filter(|_| !is_one && stem.len() < name.len());
        // Other names have no number.
        stem.unwrap_or(name)
    }
}

/// Groups the replicas of a graph; each is alone in its group unless they are folded. What devices
/// compute beside their replicas, as each does of its own copy of a parameter, is folded with them
/// where it is equal on all devices of a group.
pub(crate) fn fold(graph: &Graph, order: &[NodeId], folds: bool) -> Folding {
    let replica = |id: NodeId| graph.node(id).place().replica;
    let mut places = Places::of(graph, order, replica);
    let mut replicas: Vec<u32> = places.nodes.keys().copied().collect();
    replicas.sort_unstable();
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let mut known: HashMap<Vec<Signature<'_>>, usize> = HashMap::new();
    for replica in replicas {
        let signatures = places.signatures(graph, replica);
        if let Some(at) = known.get(&signatures).filter(|_| folds) {
            groups[*at].push(replica);
        } else {
            known.insert(signatures, groups.len());
            groups.push(vec![replica]);
        }
    }
    let mut folding = Folding::unfolded(graph, order, groups);
    folding.fold(&places, |_| true);
    // A graph that is not split has no replicas.
    let devices = graph.split().map_or(&[][..], Split::devices);
    places.add(order, |id| {
        let node = graph.node(id);
        let is_param = matches!(node.kind(), NodeKind::Param(_));
        let place = node.place();
        let mut owners = (0u32..).zip(devices).filter(|(_, device)| **device == place.device);
        let (owner, other) = (owners.next(), owners.next());
        let is_beside = !is_param && place.replica.is_none() && other.is_none();
        owner.filter(|_| is_beside).map(|(owner, _)| owner)
    });
    folding.fold(&places, |group| {
        let first = places.signatures(graph, group[0]);
        group[1..].iter().all(|replica| places.signatures(graph, *replica) == first)
    });
    folding
}

impl Folding {
    fn unfolded(graph: &Graph, order: &[NodeId], groups: Vec<Vec<u32>>) -> Self {
        // Every node of the order gets its own entry below; a graph without nodes has none.
        let mut shown = graph.node_map(order.first().copied().unwrap_or(NodeId(0)));
        for id in order {
            shown[*id] = *id;
        }
        Self { groups, shown, count: graph.node_map(1) }
    }

    /// Lets the first replica stand for the others, in groups that are equal.
    fn fold(&mut self, places: &Places, is_equal: impl Fn(&[u32]) -> bool) {
        for group in self.groups.iter().filter(|group| group.len() > 1 && is_equal(group)) {
            let Some((first, others)) = group.split_first() else { continue };
            for at in 0..places.nodes[first].len() {
                let stands = places.nodes[first][at];
                self.count[stands] = group.len();
                for other in others {
                    self.shown[places.nodes[other][at]] = stands;
                }
            }
        }
    }
}

/// The nodes of each replica, in order.
struct Places {
    nodes: HashMap<u32, Vec<NodeId>>,
    /// The replica of a node, and its position among the nodes of it.
    own: NodeMap<Option<(u32, usize)>>,
}

impl Places {
    fn of(graph: &Graph, order: &[NodeId], owner: impl Fn(NodeId) -> Option<u32>) -> Self {
        let mut places = Self { nodes: HashMap::new(), own: graph.node_map(None) };
        places.add(order, owner);
        places
    }

    fn add(&mut self, order: &[NodeId], owner: impl Fn(NodeId) -> Option<u32>) {
        for id in order {
            if let Some(replica) = owner(*id) {
                let nodes = self.nodes.entry(replica).or_default();
                self.own[*id] = Some((replica, nodes.len()));
                nodes.push(*id);
            }
        }
    }

    fn signatures<'a>(&self, graph: &'a Graph, replica: u32) -> Vec<Signature<'a>> {
        let nodes = self.nodes[&replica].iter();
        nodes.map(|id| signature(graph, *id, replica, &self.own)).collect()
    }
}

fn signature<'a>(
    graph: &'a Graph,
    id: NodeId,
    replica: u32,
    own: &NodeMap<Option<(u32, usize)>>,
) -> Signature<'a> {
    let node = graph.node(id);
    let device = node.place().device;
    // Without a split nothing is owned.
    let devices = graph.split().map_or(&[][..], Split::devices);
    let is_own = devices.get(replica as usize) == Some(&device);
    let operand = |value: &crate::ir::Value| {
        let from = graph.node(value.node);
        match (from.kind(), own[value.node]) {
            (NodeKind::Param(param), _) => From::Param(graph.param(*param).name.to_string()),
            (_, Some((other, at))) if other == replica => From::Own(at, value.output),
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
