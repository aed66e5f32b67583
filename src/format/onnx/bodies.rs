//! The bodies of nodes: graphs inside attributes, which see the names of what stands around them.

use std::rc::Rc;

use super::file::{File, Graph, Head};
use super::wire::Span;

/// The bytes that a value takes in each run of a body: an input, an initializer, an output, or one
/// that it, or a body in it, takes from around it.
pub(super) const VALUE_BYTES: usize = 128;

/// The operators that have bodies.
const CONTROL: [&str; 3] = ["If", "Loop", "Scan"];

/// Whether a node decides which of its bodies is run, or how often.
pub(super) fn is_control(head: &Head<'_>) -> bool {
    head.domain().is_empty() && CONTROL.contains(&head.op)
}

/// The bodies of a node.
pub(super) struct Inner<'a> {
    /// Each by the name of its attribute.
    pub(super) bodies: Vec<(&'a str, Rc<Body<'a>>)>,
    /// The names that they take from around the node, ascending.
    pub(super) captured: Vec<&'a str>,
}

/// A body: a graph with inputs and outputs of its own.
pub(super) struct Body<'a> {
    pub(super) graph: Graph,
    pub(super) inputs: Vec<&'a str>,
    pub(super) initializers: Vec<&'a str>,
    pub(super) outputs: Vec<&'a str>,
    /// The names that it takes from around the node, ascending.
    pub(super) captured: Vec<&'a str>,
    /// The bytes of what each run of it makes anew: its nodes, and its values.
    pub(super) bytes: usize,
}

impl Body<'_> {
    /// Whether an output is an input and no more, or its identity.
    pub(super) fn hands_on(&self, file: &File, [input, output]: [usize; 2]) -> bool {
        let (Some(from), Some(to)) = (self.inputs.get(input), self.outputs.get(output)) else {
            return false;
        };
        let hands = |span: &Span| {
            let head = file.head(*span);
            head.is_ok_and(|head| {
                let alone = head.op == "Identity" && head.domain().is_empty();
                alone && head.inputs[..] == [*from] && head.outputs[..] == [*to]
            })
        };
        from == to || self.graph.nodes.iter().any(hands)
    }
}
