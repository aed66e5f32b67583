//! What the boxes of a picture stand for: one operator each, or the layers of a chain.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

use super::fold::Folding;
use crate::ir::{Graph, NodeId, NodeKind, NodeMap, Value};
use crate::op::Traits;
use crate::types::Device;
use crate::types::invariant::invariant;

/// What a box shows, which its colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    Input,
    Output,
    Compute,
    Slice,
    Copy,
    Collective,
    Merge,
}

/// The parts of a picture, from its top to its bottom. No edge leads upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Band {
    /// Inputs, and what the host computes of all rows.
    Given,
    /// What the host prepares for each replica.
    Divided,
    /// The devices.
    Devices,
    /// What the host takes from each replica.
    Returned,
    /// Merges and outputs.
    Merged,
}

/// The lane of a box among the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Across all of them.
    All,
    Device(Device),
    /// A group of replicas.
    Group(usize),
}

/// A box.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The nodes that it stands for, in order; an output has none.
    pub(crate) nodes: Vec<NodeId>,
    /// Its layers, or the name of its value.
    pub(crate) names: Vec<String>,
    pub(crate) role: Role,
    pub(crate) band: Band,
    pub(crate) lane: Lane,
    /// True of gradients: values go upwards, beside what they are of.
    pub(crate) up: bool,
    /// The parameters that it updates.
    pub(crate) updates: usize,
}

/// The boxes of a lane whose values go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) lane: Lane,
    pub(crate) up: bool,
}

impl Block {
    pub(crate) fn flow(&self) -> Flow {
        Flow { lane: self.lane, up: self.up }
    }
}

/// Boxes in an order in which every edge leads to a later one, and the edges.
#[derive(Clone)]
pub(crate) struct Blocks {
    pub(crate) blocks: Vec<Block>,
    pub(crate) edges: BTreeSet<(usize, usize)>,
}

/// The operators and outputs of a graph as boxes.
pub(crate) fn operators(graph: &Graph, order: &[NodeId], folding: &Folding) -> Blocks {
    let hidden = hidden(graph, order);
    let mut blocks = Vec::new();
    let mut at = graph.node_map(usize::MAX);
    for id in order.iter().filter(|id| folding.shown[**id] == **id && !hidden[**id]) {
        at[*id] = blocks.len();
        let updates = graph.updates().iter().flat_map(|update| &update.values);
        let label = graph.node(*id).label();
        let is_layer = graph.node(*id).origin().0.is_some();
        let name = if is_layer { label } else { folding.name(graph, *id, label) };
        blocks.push(Block {
            nodes: vec![*id],
            names: vec![name.to_owned()],
            role: role(graph, *id),
            band: Band::Given,
            lane: lane(graph, *id, folding),
            up: false,
            updates: updates.filter(|value| value.node == *id).count(),
        });
    }
    let mut edges = BTreeSet::new();
    for id in order.iter().filter(|id| !hidden[**id]) {
        let to = at[folding.shown[*id]];
        for value in graph.operand_list(*id).iter().filter(|value| !hidden[value.node]) {
            edges.insert((at[folding.shown[value.node]], to));
        }
    }
    for output in graph.outputs().iter().filter(|output| graph.get(output.value).is_some()) {
        edges.insert((at[folding.shown[output.value.node]], blocks.len()));
        blocks.push(Block {
            nodes: Vec::new(),
            names: vec![output.name.to_string()],
            role: Role::Output,
            band: Band::Merged,
            lane: Lane::All,
            up: false,
            updates: 0,
        });
    }
    edges.retain(|(from, to)| from != to && *from != usize::MAX);
    let mut made = sorted(Blocks { blocks, edges });
    made.place(graph);
    made.turn(graph);
    made
}

/// The nodes that are not drawn: parameters, and what is made of nothing else.
fn hidden(graph: &Graph, order: &[NodeId]) -> NodeMap<bool> {
    let mut hidden = graph.node_map(false);
    for id in order {
        let node = graph.node(*id);
        let of_params = graph.operand_list(*id).iter().all(|value| hidden[value.node]);
        let mut values =
            (0u32..).take(node.results().len()).map(|output| Value { node: *id, output });
        let is_kept = values.any(|value| graph.is_kept(value));
        hidden[*id] = match node.kind() {
            NodeKind::Input => false,
            NodeKind::Param(_) | NodeKind::Op(_) => of_params && !is_kept,
        };
    }
    hidden
}

pub(super) fn role(graph: &Graph, id: NodeId) -> Role {
    let node = graph.node(id);
    let Some(op) = node.op() else { return Role::Input };
    let place = node.place();
    let on_host = place.device == Device::HOST && graph.split().is_some();
    if op.traits().contains(Traits::COLLECTIVE) {
        return Role::Collective;
    }
    match (op.name(), place.replica) {
        ("copy", _) => Role::Copy,
        ("slice", Some(_)) if on_host => Role::Slice,
        ("concat" | "first", None) if takes_of_replicas(graph, id) => Role::Merge,
        _ => Role::Compute,
    }
}

fn takes_of_replicas(graph: &Graph, id: NodeId) -> bool {
    graph.operand_list(id).iter().any(|value| graph.node(value.node).place().replica.is_some())
}

pub(super) fn lane(graph: &Graph, id: NodeId, folding: &Folding) -> Lane {
    let place = graph.node(id).place();
    let owner = graph.split().and_then(|split| {
        let owner = split.devices().iter().position(|device| *device == place.device);
        owner.and_then(|owner| u32::try_from(owner).ok())
    });
    let group = place.replica.or(owner).and_then(|replica| folding.group(replica));
    group.map_or(Lane::Device(place.device), Lane::Group)
}

/// The boxes in an order in which every edge leads to a later one, else as before.
fn sorted(made: Blocks) -> Blocks {
    let Blocks { blocks, edges } = made;
    let mut waiting = vec![0usize; blocks.len()];
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for (from, to) in &edges {
        waiting[*to] += 1;
        after[*from].push(*to);
    }
    let mut ready: BTreeSet<usize> = (0..blocks.len()).filter(|at| waiting[*at] == 0).collect();
    let mut position = vec![0; blocks.len()];
    let mut order = Vec::with_capacity(blocks.len());
    while let Some(at) = ready.pop_first() {
        position[at] = order.len();
        order.push(at);
        for to in &after[at] {
            waiting[*to] -= 1;
            if waiting[*to] == 0 {
                ready.insert(*to);
            }
        }
    }
    if order.len() < blocks.len() {
        return Blocks { blocks, edges };
    }
    let edges = edges.into_iter().map(|(from, to)| (position[from], position[to])).collect();
    let mut blocks: Vec<Option<Block>> = blocks.into_iter().map(Some).collect();
    Blocks { blocks: order.iter().filter_map(|at| blocks[*at].take()).collect(), edges }
}

impl Blocks {
    /// The boxes that each takes values of.
    pub(crate) fn before(&self) -> Vec<Vec<usize>> {
        let mut before = vec![Vec::new(); self.blocks.len()];
        for (from, to) in &self.edges {
            before[*to].push(*from);
        }
        before
    }

    /// The boxes that take values of each.
    pub(super) fn after(&self) -> Vec<Vec<usize>> {
        let mut after = vec![Vec::new(); self.blocks.len()];
        for (from, to) in &self.edges {
            after[*from].push(*to);
        }
        after
    }

    /// Of two boxes that an edge joins, the upper one and the lower one.
    pub(super) fn ends(&self, from: usize, to: usize) -> (usize, usize) {
        if self.blocks[from].up && self.blocks[to].up { (to, from) } else { (from, to) }
    }

    /// Finds the band of each box.
    fn place(&mut self, graph: &Graph) {
        let before = self.before();
        let is_split = graph.split().is_some();
        let on_host: Vec<bool> = self
            .blocks
            .iter()
            .map(|block| match block.nodes.first() {
                Some(id) => graph.node(*id).place().device == Device::HOST,
                None => true,
            })
            .collect();
        let (mut above, mut below) = (vec![false; before.len()], vec![false; before.len()]);
        for at in 0..before.len() {
            above[at] = before[at].iter().any(|from| above[*from] || !on_host[*from]);
        }
        for at in (0..before.len()).rev() {
            for from in &before[at] {
                below[*from] |= below[at] || !on_host[at];
            }
        }
        for at in 0..before.len() {
            let owned = self.blocks[at].lane != Lane::Device(Device::HOST)
                && self.blocks[at].lane != Lane::All;
            let own = match self.blocks[at].role {
                Role::Input => Band::Given,
                Role::Output => Band::Merged,
                _ if !is_split || !on_host[at] || (above[at] && below[at]) => Band::Devices,
                _ if above[at] && owned => Band::Returned,
                _ if above[at] => Band::Merged,
                _ if owned => Band::Divided,
                Role::Compute | Role::Slice | Role::Copy | Role::Collective | Role::Merge => {
                    Band::Given
                }
            };
            let least = before[at].iter().map(|from| self.blocks[*from].band).max();
            // A box that takes nothing may be anywhere.
            let mut band = own.max(least.unwrap_or(Band::Given));
            if band == Band::Divided && !owned {
                band = Band::Devices;
            }
            if band == Band::Returned && !owned {
                band = Band::Merged;
            }
            let block = &mut self.blocks[at];
            block.band = band;
            if matches!(band, Band::Given | Band::Merged) {
                block.lane = Lane::All;
            }
        }
    }

    /// The layers: nodes of one origin become one box, and chains of layers that belong together.
    pub(crate) fn layers(mut self, graph: &Graph) -> Self {
        if !graph.updates().is_empty() {
            // The values of an optimizer are named after the parameter that they renew.
            for block in self.blocks.iter_mut().filter(|block| layer(block).contains(".new")) {
                block.names = vec!["optimizer".to_owned()];
            }
        }
        let mut keys: HashMap<(Band, Lane, Role, bool, String), usize> = HashMap::new();
        let mut group = Vec::with_capacity(self.blocks.len());
        for (at, block) in self.blocks.iter().enumerate() {
            let own = match block.role {
                Role::Compute | Role::Copy | Role::Slice => false,
                Role::Input | Role::Output | Role::Collective | Role::Merge => true,
            };
            if own {
                group.push(at);
                continue;
            }
            let back = block.up || backward(graph, block);
            let key = (block.band, block.lane, block.role, back, layer(block));
            group.push(*keys.entry(key).or_insert(at));
        }
        let group = self.without_loops(group);
        let made = self.merged(&group);
        if graph.updates().is_empty() {
            made.chained(graph)
        } else {
            made.exchanges(graph).chained(graph).gradients().renewals()
        }
    }

    /// The groups without those that would take values of themselves by way of others.
    pub(super) fn without_loops(&self, mut group: Vec<usize>) -> Vec<usize> {
        while let Some(loops) = self.loops(&group) {
            for (at, of) in group.iter_mut().enumerate() {
                if loops.contains(of) {
                    *of = at;
                }
            }
        }
        group
    }

    /// The groups that would take values of themselves by way of others.
    fn loops(&self, group: &[usize]) -> Option<BTreeSet<usize>> {
        let mut graph = DiGraph::<usize, ()>::new();
        let nodes: Vec<_> = (0..group.len()).map(|at| graph.add_node(at)).collect();
        for (from, to) in &self.edges {
            if group[*from] != group[*to] {
                graph.add_edge(nodes[group[*from]], nodes[group[*to]], ());
            }
        }
        let loops = tarjan_scc(&graph).into_iter().filter(|part| part.len() > 1);
        let loops: BTreeSet<usize> = loops.flatten().map(|node| graph[node]).collect();
        (!loops.is_empty()).then_some(loops)
    }

    /// The boxes of each group as one box, which is what the box is that gives the group its
    /// number.
    pub(super) fn merged(self, group: &[usize]) -> Self {
        let first = |of: usize| {
            let Block { role, band, lane, up, .. } = self.blocks[of];
            (role, band, lane, up, layer(&self.blocks[of]))
        };
        let firsts: BTreeMap<usize, _> = group.iter().map(|of| (*of, first(*of))).collect();
        let mut parts: BTreeMap<usize, Block> = BTreeMap::new();
        for (at, block) in self.blocks.into_iter().enumerate() {
            match parts.get_mut(&group[at]) {
                None => {
                    parts.insert(group[at], block);
                }
                Some(part) => {
                    part.updates += block.updates;
                    part.nodes.extend(block.nodes);
                    let new: Vec<_> =
                        block.names.into_iter().filter(|n| !part.names.contains(n)).collect();
                    part.names.extend(new);
                }
            }
        }
        for (of, (role, band, lane, up, name)) in firsts {
            let Some(part) = parts.get_mut(&of) else { continue };
            (part.role, part.band, part.lane, part.up) = (role, band, lane, up);
            if let Some(at) = part.names.iter().position(|own| *own == name) {
                part.names.swap(0, at);
            }
        }
        let index: HashMap<usize, usize> =
            parts.keys().enumerate().map(|(new, old)| (*old, new)).collect();
        let edges = self.edges.iter().map(|(from, to)| (index[&group[*from]], index[&group[*to]]));
        let edges = edges.filter(|(from, to)| from != to).collect();
        sorted(Self { blocks: parts.into_values().collect(), edges })
    }

    /// Chains of layers with one stem, or that only finish the layer before, as one box.
    fn chained(self, graph: &Graph) -> Self {
        let before = self.before();
        let mut users = vec![0usize; before.len()];
        for (from, _) in &self.edges {
            users[*from] += 1;
        }
        let mut group: Vec<usize> = (0..before.len()).collect();
        for at in 0..before.len() {
            let [from] = before[at][..] else { continue };
            let (first, next) = (&self.blocks[from], &self.blocks[at]);
            let alike = first.role == Role::Compute
                && next.role == Role::Compute
                && (first.band, first.flow()) == (next.band, next.flow())
                && backward(graph, first) == backward(graph, next);
            let joined = stem(&self.blocks[group[from]].names[0]) == stem(&next.names[0])
                || finishes(graph, next);
            if users[from] == 1 && alike && joined {
                group[at] = group[from];
            }
        }
        self.merged(&group)
    }
}

/// The layer that a box belongs to.
fn layer(block: &Block) -> String {
    invariant(block.names.first(), "that every box has a name").clone()
}

/// True for what computes gradients.
pub(super) fn backward(graph: &Graph, block: &Block) -> bool {
    let first = block.nodes.first().and_then(|id| graph.node(*id).results().first());
    first.is_some_and(|result| result.name.contains(".grad"))
}

/// What is between the words of a name.
pub(super) const SEPARATORS: [char; 4] = ['_', '.', '/', ':'];

/// What the names of layers that belong together begin with.
fn stem(name: &str) -> &str {
    name.split(SEPARATORS).find(|part| !part.is_empty()).unwrap_or(name)
}

/// True for a layer whose operators change elements where they are, as an activation does.
fn finishes(graph: &Graph, block: &Block) -> bool {
    block.nodes.iter().all(|id| {
        let operands = graph.operand_list(*id).iter();
        let is_one = operands.filter(|value| !is_weight(graph, value.node)).count() < 2;
        let op = graph.node(*id).op();
        is_one
            && op.is_some_and(|op| {
                op.traits().intersects(Traits::ELEMENTWISE | Traits::VIEW)
                    || op.name() == "batch_norm"
            })
    })
}

/// True for a parameter, and for one that was copied to another device.
fn is_weight(graph: &Graph, id: NodeId) -> bool {
    let is_param = |id: NodeId| matches!(graph.node(id).kind(), NodeKind::Param(_));
    let is_copy = graph.node(id).op().is_some_and(|op| op.name() == "copy");
    is_param(id) || is_copy && graph.operand_list(id).iter().all(|value| is_param(value.node))
}
