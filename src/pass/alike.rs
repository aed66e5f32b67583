//! Operators that compute the same.

use std::hash::{DefaultHasher, Hash, Hasher};

use smallvec::SmallVec;

use crate::ir::{Graph, NodeId, Value};
use crate::op::{Attr, Op, Traits};
use crate::types::FastMap;

/// The first operators of each kind with their attributes and operands.
#[derive(Default)]
pub(super) struct Alike(FastMap<(u64, SmallVec<[Value; 4]>), NodeId>);

impl Alike {
    /// An operator asked for before that computes what this one does.
    ///
    /// None for draws and other unrepeatable operators, which differ from run to run though they
    /// are equal, nor for what training gives another meaning, such as two dropouts of one value.
    pub(super) fn earlier(&mut self, graph: &Graph, id: NodeId) -> Option<NodeId> {
        let node = graph.node(id);
        let op = node.op()?;
        if op.is(Traits::UNREPEATABLE) || op.is(Traits::TRAINS) {
            return None;
        }
        let first = *self.0.entry((number(op), graph.operands(id))).or_insert(id);
        let other = graph.node(first);
        let types = |node: NodeId| graph.node(node).results().iter().map(|result| &result.ty);
        // Operators are compared as well: different ones may have one number.
        let is_same = first != id
            && other.op() == Some(op)
            && other.place() == node.place()
            && types(first).eq(types(id));
        is_same.then_some(first)
    }
}

/// A number that equal operators share.
fn number(op: &Op) -> u64 {
    let mut hasher = DefaultHasher::new();
    // The debug form of a tensor shows some of its elements, and those rounded.
    format!("{op:?}").hash(&mut hasher);
    for (_, attr) in op.attrs() {
        if let Attr::Tensor(elements) = attr {
            elements.bytes().hash(&mut hasher);
        }
    }
    hasher.finish()
}
