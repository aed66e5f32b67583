//! Topological sort of the nodes of an ONNX model.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ImportError;
use super::flat::{Flat, FlatNode, NONE, ValueId};

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
    fn of(nodes: &[FlatNode], producers: &[Producer]) -> Self {
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

/// Every edge of the graph: the node that uses a value, and the node that produces it.
fn uses<'a>(
    nodes: &'a [FlatNode],
    producers: &'a [Producer],
) -> impl Iterator<Item = (u32, u32)> + 'a {
    (0u32..).zip(nodes).flat_map(move |(i, node)| {
        let given = node.inputs.iter().filter(|id| **id != NONE);
        given.filter_map(move |id| match producers[*id as usize] {
            Producer::Node(n) => Some((i, n)),
            Producer::Undefined | Producer::GraphInput => None,
        })
    })
}

impl Flat<'_> {
    /// Sorts the nodes topologically. A file that is already sorted keeps its order.
    pub(super) fn sort(&mut self) -> Result<(), ImportError> {
        let producers = self.producers()?;
        let given =
            |id: &ValueId| *id == NONE || !matches!(producers[*id as usize], Producer::Undefined);
        for node in &self.nodes {
            if let Some(id) = node.inputs.iter().find(|id| !given(id)) {
                return Err(self.undefined(*id, self.label(node)));
            }
        }
        if let Some(id) = self.outputs.iter().find(|id| !given(id)) {
            return Err(self.undefined(*id, "an output of the model".to_owned()));
        }
        // The usual case takes no memory: ONNX asks writers to sort the nodes.
        if uses(&self.nodes, &producers).all(|(user, producer)| producer < user) {
            return Ok(());
        }
        let mut waiting = vec![0u32; self.nodes.len()];
        uses(&self.nodes, &producers).for_each(|(user, _)| waiting[user as usize] += 1);
        // `waiting` counts the uses of results that are not there yet, not the nodes: a node may
        // use two results of another.
        let order = ready_first(&mut waiting, &Users::of(&self.nodes, &producers));
        if order.len() < self.nodes.len() {
            return Err(self.cycle(&producers, &waiting));
        }
        // Applies the permutation in place, cycle by cycle: nodes are large, and a second list of
        // them would double the memory of the import.
        let mut places = vec![0u32; order.len()];
        (0u32..).zip(&order).for_each(|(place, node)| places[*node as usize] = place);
        for at in 0..places.len() {
            while places[at] as usize != at {
                let to = places[at] as usize;
                self.nodes.swap(at, to);
                places.swap(at, to);
            }
        }
        Ok(())
    }

    /// The error that nodes form a cycle, where some still wait for operands.
    fn cycle(&self, producers: &[Producer], waiting: &[u32]) -> ImportError {
        let stuck = |node: usize| {
            let given = self.nodes[node].inputs.iter().filter(|id| **id != NONE);
            let mut producers = given.filter_map(|id| match producers[*id as usize] {
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
                through.push(self.label(&self.nodes[at]));
            } else {
                more += 1;
            }
        }
        ImportError::Cycle { node: self.label(&self.nodes[first]), through, more }
    }

    fn undefined(&self, value: ValueId, user: String) -> ImportError {
        ImportError::Undefined { value: self.name(value).into_owned(), user }
    }

    /// The producer of each value. An input may have an initializer, which is its default; any
    /// other second definition is an error.
    fn producers(&self) -> Result<Vec<Producer>, ImportError> {
        let lists = [
            ("input", &self.inputs),
            ("initializer", &self.initializers),
            ("output", &self.outputs),
        ];
        for (kind, ids) in lists {
            let mut seen = vec![false; self.values()];
            for id in ids {
                if std::mem::replace(&mut seen[*id as usize], true) {
                    return Err(self.duplicate(*id, format!("an {kind}"), format!("an {kind}")));
                }
            }
        }
        let mut producers = vec![Producer::Undefined; self.values()];
        // An initializer with the name of an input is that input's default.
        for id in self.inputs.iter().chain(&self.initializers) {
            producers[*id as usize] = Producer::GraphInput;
        }
        for (i, node) in (0u32..).zip(&self.nodes) {
            for id in node.outputs.iter().filter(|id| **id != NONE) {
                let first = match producers[*id as usize] {
                    Producer::Undefined => {
                        producers[*id as usize] = Producer::Node(i);
                        continue;
                    }
                    Producer::GraphInput => "an input or initializer".to_owned(),
                    Producer::Node(n) => self.label(&self.nodes[n as usize]),
                };
                return Err(self.duplicate(*id, first, self.label(node)));
            }
        }
        Ok(producers)
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
    use super::Flat;

    #[test]
    fn a_cycle_of_nodes_that_do_not_wait_is_an_internal_error() {
        let opset = OperatorSetIdProto { domain: None, version: Some(18) };
        let graph = Some(GraphProto::default());
        let model = ModelProto { graph, opset_import: vec![opset], ..ModelProto::default() };
        let file = File::new(model.encode_to_vec().into()).unwrap();
        let flat = Flat::new(&file, 18);
        let error = flat.cycle(&[], &[0, 0]).to_string();
        assert_eq!(error, "internal error: where nodes form a cycle, one waits");
    }
}
