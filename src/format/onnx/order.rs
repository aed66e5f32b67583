//! The order of a model's nodes: each after those that give its operands.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ImportError;
use super::flat::{Flat, FlatNode, NONE, ValueId};

/// The nodes of a cycle that an error names.
const CYCLE_NAMED: usize = 8;

/// What gives a value.
#[derive(Clone, Copy)]
enum Giver {
    Nothing,
    Boundary,
    Node(u32),
}

/// The nodes that use the results of each node, once for each use.
struct Users {
    /// Where the users of each node begin, and at the end those of the last one end.
    starts: Vec<u32>,
    users: Vec<u32>,
}

impl Users {
    fn of(nodes: &[FlatNode], givers: &[Giver]) -> Self {
        let mut starts = vec![0u32; nodes.len() + 1];
        for (_, giver) in uses(nodes, givers) {
            starts[giver as usize] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        // Each start is that of the next node by now, and moves back by one with every user.
        let mut users = vec![0u32; sum as usize];
        for (user, giver) in uses(nodes, givers) {
            starts[giver as usize] -= 1;
            users[starts[giver as usize] as usize] = user;
        }
        Self { starts, users }
    }

    fn of_node(&self, node: u32) -> &[u32] {
        let at = node as usize;
        &self.users[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// Every operand that another node gives: its user and its giver.
fn uses<'a>(nodes: &'a [FlatNode], givers: &'a [Giver]) -> impl Iterator<Item = (u32, u32)> + 'a {
    (0u32..).zip(nodes).flat_map(move |(i, node)| {
        let given = node.inputs.iter().filter(|id| **id != NONE);
        given.filter_map(move |id| match givers[*id as usize] {
            Giver::Node(n) => Some((i, n)),
            Giver::Nothing | Giver::Boundary => None,
        })
    })
}

impl Flat<'_> {
    /// Puts the nodes in the order of their operands: as in the file where that is one.
    pub(super) fn sort(&mut self) -> Result<(), ImportError> {
        let givers = self.givers()?;
        let given = |id: &ValueId| *id == NONE || !matches!(givers[*id as usize], Giver::Nothing);
        for node in &self.nodes {
            if let Some(id) = node.inputs.iter().find(|id| !given(id)) {
                return Err(self.undefined(*id, self.label(node)));
            }
        }
        if let Some(id) = self.outputs.iter().find(|id| !given(id)) {
            return Err(self.undefined(*id, "an output of the model".to_owned()));
        }
        if uses(&self.nodes, &givers).all(|(user, giver)| giver < user) {
            return Ok(());
        }
        let mut waiting = vec![0u32; self.nodes.len()];
        uses(&self.nodes, &givers).for_each(|(user, _)| waiting[user as usize] += 1);
        let order = ready_first(&mut waiting, &Users::of(&self.nodes, &givers));
        if order.len() < self.nodes.len() {
            return Err(self.cycle(&givers, &waiting));
        }
        // Each node moves to the place that its position in the order is.
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
    fn cycle(&self, givers: &[Giver], waiting: &[u32]) -> ImportError {
        let stuck = |node: usize| {
            let given = self.nodes[node].inputs.iter().filter(|id| **id != NONE);
            let mut givers = given.filter_map(|id| match givers[*id as usize] {
                Giver::Node(n) if waiting[n as usize] > 0 => Some(n as usize),
                Giver::Node(_) | Giver::Nothing | Giver::Boundary => None,
            });
            givers.next()
        };
        // Every node that waits has an operand of another that does: against the flow one is met
        // twice.
        let Some(mut at) = waiting.iter().position(|w| *w > 0) else {
            return ImportError::Internal("where nodes form a cycle, one waits".to_owned());
        };
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

    /// What gives each value. An input may have an initializer, which is its default; nothing else
    /// is given twice.
    fn givers(&self) -> Result<Vec<Giver>, ImportError> {
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
        let mut givers = vec![Giver::Nothing; self.values()];
        for id in self.inputs.iter().chain(&self.initializers) {
            givers[*id as usize] = Giver::Boundary;
        }
        for (i, node) in (0u32..).zip(&self.nodes) {
            for id in node.outputs.iter().filter(|id| **id != NONE) {
                let first = match givers[*id as usize] {
                    Giver::Nothing => {
                        givers[*id as usize] = Giver::Node(i);
                        continue;
                    }
                    Giver::Boundary => "an input or initializer".to_owned(),
                    Giver::Node(n) => self.label(&self.nodes[n as usize]),
                };
                return Err(self.duplicate(*id, first, self.label(node)));
            }
        }
        Ok(givers)
    }

    fn duplicate(&self, value: ValueId, first: String, second: String) -> ImportError {
        ImportError::Duplicate { value: self.name(value).into_owned(), first, second }
    }
}

/// The nodes in the order of their operands, of those that are ready the first in the file first.
/// Those that never are keep a count in `waiting`.
fn ready_first(waiting: &mut [u32], users: &Users) -> Vec<u32> {
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
