//! Topological sort of the nodes of an ONNX model.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::Quoted;
use super::ImportError;
use super::flat::{Block, Flat, FlatNode, NONE, ValueId};

/// The nodes of a cycle that an error names.
const CYCLE_NAMED: usize = 8;

/// The producer of a value.
#[derive(Clone, Copy)]
enum Producer {
    Undefined,
    GraphInput,
    Node(u32),
}

/// The nodes that use the results of each node, once for each use.
struct Users {
    /// Offsets into `users`, one per node and a last one: compressed sparse rows, so that a model
    /// of a million nodes needs two allocations instead of a list for each node.
    starts: Vec<u32>,
    users: Vec<u32>,
}

impl Users {
    fn of(nodes: &[FlatNode], producers: &Producers) -> Self {
        let mut starts = vec![0u32; nodes.len() + 1];
        for (_, producer) in uses(nodes, producers) {
            starts[producer as usize] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        // Each start is that of the next node by now, and moves back by one with every user.
        let mut users = vec![0u32; sum as usize];
        for (user, producer) in uses(nodes, producers) {
            starts[producer as usize] -= 1;
            users[starts[producer as usize] as usize] = user;
        }
        Self { starts, users }
    }

    fn of_node(&self, node: u32) -> &[u32] {
        let at = node as usize;
        &self.users[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// The producers of the values of a block.
struct Producers {
    /// The first value that stands in it; those with a smaller number are given.
    first: ValueId,
    of: Vec<Producer>,
}

impl Producers {
    fn get(&self, id: ValueId) -> Producer {
        // What stands around a block is given, as its inputs are.
        id.checked_sub(self.first).map_or(Producer::GraphInput, |at| self.of[at as usize])
    }

    fn is_given(&self, id: ValueId) -> bool {
        id == NONE || !matches!(self.get(id), Producer::Undefined)
    }
}

/// Every edge of the graph: the node that uses a value, and the node that produces it.
fn uses<'a>(
    nodes: &'a [FlatNode],
    producers: &'a Producers,
) -> impl Iterator<Item = (u32, u32)> + 'a {
    (0u32..).zip(nodes).flat_map(move |(i, node)| {
        let given = node.inputs.iter().filter(|id| **id != NONE);
        given.filter_map(move |id| match producers.get(*id) {
            Producer::Node(n) => Some((i, n)),
            Producer::Undefined | Producer::GraphInput => None,
        })
    })
}

impl Flat<'_> {
    /// Sorts the nodes of a block of `what` topologically. A file that is already sorted keeps its
    /// order.
    pub(super) fn sort(&self, block: &mut Block, what: &str) -> Result<(), ImportError> {
        let producers = self.producers(block)?;
        for node in &block.nodes {
            if let Some(id) = node.inputs.iter().find(|id| !producers.is_given(**id)) {
                return Err(self.undefined(*id, self.label(node)));
            }
        }
        if let Some(id) = block.outputs.iter().find(|id| !producers.is_given(**id)) {
            return Err(self.undefined(*id, format!("an output of {what}")));
        }
        let nodes = &mut block.nodes;
        // The usual case takes no memory: ONNX asks writers to sort the nodes.
        if uses(nodes, &producers).all(|(user, producer)| producer < user) {
            return Ok(());
        }
        let mut waiting = vec![0u32; nodes.len()];
        uses(nodes, &producers).for_each(|(user, _)| waiting[user as usize] += 1);
        // `waiting` counts the uses of results that are not there yet, not the nodes: a node may
        // use two results of another.
        let order = ready_first(&mut waiting, &Users::of(nodes, &producers));
        if order.len() < nodes.len() {
            return Err(self.cycle(nodes, &producers, &waiting));
        }
        // Applies the permutation in place, cycle by cycle: nodes are large, and a second list of
        // them would double the memory of the import.
        let mut places = vec![0u32; order.len()];
        (0u32..).zip(&order).for_each(|(place, node)| places[*node as usize] = place);
        for at in 0..places.len() {
            while places[at] as usize != at {
                let to = places[at] as usize;
                nodes.swap(at, to);
                places.swap(at, to);
            }
        }
        Ok(())
    }

    /// The error that nodes form a cycle, where some still wait for operands.
    fn cycle(&self, nodes: &[FlatNode], producers: &Producers, waiting: &[u32]) -> ImportError {
        let stuck = |node: usize| {
            let given = nodes[node].inputs.iter().filter(|id| **id != NONE);
            let mut producers = given.filter_map(|id| match producers.get(*id) {
                Producer::Node(n) if waiting[n as usize] > 0 => Some(n as usize),
                Producer::Node(_) | Producer::Undefined | Producer::GraphInput => None,
            });
            producers.next()
        };
        // Every node that waits has an operand of another that does: against the flow one is met
        // twice.
        let Some(mut at) = waiting.iter().position(|w| *w > 0) else {
            return ImportError::Internal("where nodes form a cycle, one waits".to_owned());
        };
        // First upstream until a node is met twice, which lies on a cycle; then once around it.
        let mut seen = vec![false; waiting.len()];
        while let Some(before) = stuck(at).filter(|_| !std::mem::replace(&mut seen[at], true)) {
            at = before;
        }
        let mut through = Vec::new();
        let (first, mut more) = (at, 0);
        while let Some(before) = stuck(at).filter(|before| *before != first) {
            at = before;
            if through.len() < CYCLE_NAMED {
                through.push(self.label(&nodes[at]));
            } else {
                more += 1;
            }
        }
        ImportError::Cycle { node: self.label(&nodes[first]), through, more }
    }

    fn undefined(&self, value: ValueId, user: String) -> ImportError {
        ImportError::Undefined { value: self.name(value).into_owned(), user }
    }

    /// The producer of each value. An input may have an initializer, which is its default; any
    /// other second definition is an error.
    fn producers(&self, block: &Block) -> Result<Producers, ImportError> {
        let Block { first, nodes, inputs, initializers, outputs } = block;
        let count = self.values() - *first as usize;
        let own = |id: &ValueId| id.checked_sub(*first).map(|at| at as usize);
        for (kind, ids) in [("input", inputs), ("initializer", initializers), ("output", outputs)] {
            let mut seen = vec![false; count];
            for id in ids {
                // A body may give a value of what is around it as two outputs, or one of its own.
                let twice = own(id).is_some_and(|at| std::mem::replace(&mut seen[at], true));
                if twice && (*first == 0 || kind != "output") {
                    return Err(self.duplicate(*id, format!("an {kind}"), format!("an {kind}")));
                }
            }
        }
        let mut producers = vec![Producer::Undefined; count];
        // An initializer with the name of an input is that input's default.
        for at in inputs.iter().chain(initializers).filter_map(own) {
            producers[at] = Producer::GraphInput;
        }
        for (i, node) in (0u32..).zip(nodes) {
            for id in node.outputs.iter().filter(|id| **id != NONE) {
                // A node names no result of what is around its body: that is a name of its own.
                let Some(at) = own(id) else {
                    let text = format!("{} is a result of a block", Quoted(&self.name(*id)));
                    return Err(ImportError::Internal(text));
                };
                let before = match producers[at] {
                    Producer::Undefined => {
                        producers[at] = Producer::Node(i);
                        continue;
                    }
                    Producer::GraphInput => "an input or initializer".to_owned(),
                    Producer::Node(n) => self.label(&nodes[n as usize]),
                };
                return Err(self.duplicate(*id, before, self.label(node)));
            }
        }
        Ok(Producers { first: *first, of: producers })
    }

    fn duplicate(&self, value: ValueId, first: String, second: String) -> ImportError {
        ImportError::Duplicate { value: self.name(value).into_owned(), first, second }
    }
}

/// The nodes in the order of their operands, of those that are ready the first in the file first.
/// Those that never are keep a count in `waiting`.
fn ready_first(waiting: &mut [u32], users: &Users) -> Vec<u32> {
    // A heap and not a queue: among ready nodes the first in the file wins, so that the order
    // depends on the file alone and stays close to it in diagnostics.
    let ready = (0u32..).zip(waiting.iter()).filter(|(_, w)| **w == 0).map(|(i, _)| Reverse(i));
    let mut ready: BinaryHeap<Reverse<u32>> = ready.collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for user in users.of_node(i) {
            waiting[*user as usize] -= 1;
            if waiting[*user as usize] == 0 {
                ready.push(Reverse(*user));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::file::File;
    use super::super::proto::{GraphProto, ModelProto, OperatorSetIdProto};
    use super::{Flat, Producers};

    #[test]
    fn a_cycle_of_nodes_that_do_not_wait_is_an_internal_error() {
        let opset = OperatorSetIdProto { domain: None, version: Some(18) };
        let graph = Some(GraphProto::default());
        let model = ModelProto { graph, opset_import: vec![opset], ..ModelProto::default() };
        let file = File::new(model.encode_to_vec().into()).unwrap();
        let flat = Flat::new(&file, 18);
        let producers = Producers { first: 0, of: Vec::new() };
        let error = flat.cycle(&[], &producers, &[0, 0]).to_string();
        assert_eq!(error, "internal error: where nodes form a cycle, one waits");
    }
}
