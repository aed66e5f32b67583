//! The nodes of a graph, and the values that flow between them.
//!
//! Nodes and the uses of their results are petgraph's. All operands are in one list beside it,
//! those of a node next to each other in the order of their positions: what reads a graph asks for
//! the operands of every node, and finds them without a walk.

use petgraph::Direction::Outgoing;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;

use super::{Id, Node, NodeId, Value};
use crate::types::invariant::{int, invariant};

/// A node, and where its operands are in the list of all.
#[derive(Clone)]
struct Slot {
    node: Node,
    first: u32,
    count: u32,
}

/// The use of a value as an operand.
#[derive(Clone, Copy)]
struct Use {
    /// The place of the operand in the list of all.
    place: u32,
    /// Whether another value has taken its place. To remove an edge takes as long as the lists of
    /// its ends are, which for a node of many operands is too long for each of them.
    replaced: bool,
}

/// Nodes by id, with operands and uses.
#[derive(Clone, Default)]
pub(super) struct Flow {
    graph: StableDiGraph<Slot, Use>,
    operands: Vec<Value>,
    /// Whether a node may have an operand with a larger id.
    is_mixed: bool,
}

impl Flow {
    /// Makes room for as many more nodes and operands.
    pub(super) fn reserve(&mut self, nodes: usize, operands: usize) {
        self.graph.reserve_nodes(nodes);
        self.graph.reserve_edges(operands);
        self.operands.reserve(operands);
    }

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        self.graph.node_count()
    }

    /// One more than the largest index of a node.
    pub(super) fn bound(&self) -> usize {
        // An empty graph has no ids.
        self.graph.node_indices().next_back().map_or(0, |i| i.index() + 1)
    }

    /// The ids of all nodes, ascending, if every operand has a smaller id than its user.
    pub(super) fn in_order(&self) -> Option<Vec<NodeId>> {
        if self.is_mixed {
            return None;
        }
        let bound = self.bound();
        // Without gaps there is nothing to look for.
        let all = || (0u32..).map(NodeId).take(bound).collect();
        Some(if bound == self.len() { all() } else { self.ids().collect() })
    }

    /// The ids of all nodes, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node_indices().map(id)
    }

    /// The nodes, by ascending id.
    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.graph.node_weights_mut().map(|slot| &mut slot.node)
    }

    fn slot(&self, id: NodeId) -> &Slot {
        invariant(self.graph.node_weight(index(id)), "that an id is of a node of the graph")
    }

    /// The node with this id, if there is one.
    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.graph.node_weight(index(id)).map(|slot| &slot.node)
    }

    /// The node with this id.
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.slot(id).node
    }

    /// The node with this id, to be changed.
    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.graph[index(id)].node
    }

    /// The operands of a node, in order.
    pub(super) fn operands(&self, id: NodeId) -> &[Value] {
        let slot = self.slot(id);
        let (first, count) = (slot.first as usize, slot.count as usize);
        &self.operands[first..first + count]
    }

    /// The uses of a node's results: the user, the operand's position there, and which result it
    /// is.
    pub(super) fn users(&self, node: NodeId) -> impl Iterator<Item = (NodeId, usize, u32)> + '_ {
        let edges = self.graph.edges_directed(index(node), Outgoing);
        edges.filter(|edge| !edge.weight().replaced).map(|edge| {
            let (user, place) = (id(edge.target()), edge.weight().place);
            let position = place - self.slot(user).first;
            (user, position as usize, self.operands[place as usize].output)
        })
    }

    /// Adds a node with operands that the graph has.
    pub(super) fn add(&mut self, node: Node, operands: &[Value]) -> NodeId {
        let (first, count) = (int::<u32>(self.operands.len()), int::<u32>(operands.len()));
        let node = self.graph.add_node(Slot { node, first, count });
        self.operands.extend_from_slice(operands);
        for (place, value) in (first..).zip(operands) {
            self.is_mixed |= value.node >= id(node);
            self.graph.add_edge(index(value.node), node, Use { place, replaced: false });
        }
        id(node)
    }

    /// Makes every user of `old` take `new` instead.
    pub(super) fn replace(&mut self, old: Value, new: Value) {
        let uses = self.graph.edges_directed(index(old.node), Outgoing);
        let uses = uses.filter(|edge| {
            let Use { place, replaced } = edge.weight();
            !replaced && self.operands[*place as usize] == old
        });
        let uses: Vec<_> = uses.map(|edge| (edge.id(), edge.target(), *edge.weight())).collect();
        for (at, user, edge) in uses {
            self.graph[at].replaced = true;
            self.is_mixed |= new.node >= id(user);
            self.operands[edge.place as usize] = new;
            self.graph.add_edge(index(new.node), user, edge);
        }
    }

    /// Removes the nodes that are not `live`, by index. No node that stays takes a value of them.
    /// No edge is taken out of the lists of its ends, which may be long.
    pub(super) fn retain(&mut self, live: &[bool]) {
        self.graph.clear_edges();
        self.graph.retain_nodes(|_, i| live[i.index()]);
        let operands = std::mem::take(&mut self.operands);
        for node in self.graph.node_indices().collect::<Vec<_>>() {
            let slot = &mut self.graph[node];
            let (from, count) = (slot.first as usize, slot.count as usize);
            slot.first = int::<u32>(self.operands.len());
            let kept = &operands[from..from + count];
            for (place, value) in (slot.first..).zip(kept) {
                self.graph.add_edge(index(value.node), node, Use { place, replaced: false });
            }
            self.operands.extend_from_slice(kept);
        }
    }
}

fn index(id: NodeId) -> NodeIndex {
    NodeIndex::new(id.index())
}

fn id(index: NodeIndex) -> NodeId {
    NodeId(int::<u32>(index.index()))
}
