//! The bodies of nodes: graphs inside attributes, which see the names of what stands around them.

use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use super::super::Quoted;
use super::calls::MAX_DEPTH;
use super::file::{File, Graph, Head};
use super::flatten::{Layout, named};
use super::wire::Span;
use super::{ImportError, NodeError};

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
    /// The bytes of what each run of it makes anew.
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

impl<'a> Layout<'a> {
    /// The bodies of a node, read once; `depth` are around it in its own body.
    pub(super) fn inner(
        &mut self,
        node: Span,
        head: &Head<'a>,
        depth: usize,
    ) -> Result<Rc<Inner<'a>>, ImportError> {
        let place = node.range().start;
        if let Some(inner) = self.inner.get(&place) {
            return Ok(Rc::clone(inner));
        }
        let refused = |text: String| {
            let name = if head.name.is_empty() {
                head.outputs.first().copied().unwrap_or_default()
            } else {
                head.name
            };
            let (node, error) = (format!("node {}", Quoted(name)), NodeError::Unsupported(text));
            ImportError::Node { node, op: head.op.to_owned(), error }
        };
        if depth >= MAX_DEPTH {
            return Err(refused(format!("a body inside more than {MAX_DEPTH} others")));
        }
        let found = self.file.bodies(node)?;
        let found = found.ok_or_else(|| refused("an attribute of several graphs".to_owned()))?;
        let mut bodies: Vec<(&'a str, Rc<Body<'a>>)> = Vec::with_capacity(found.len());
        for (name, span) in found {
            bodies.push((name, Rc::new(self.body(span, depth)?)));
        }
        let captured: BTreeSet<&'a str> =
            bodies.iter().flat_map(|(_, body)| body.captured.iter().copied()).collect();
        let inner = Rc::new(Inner { bodies, captured: captured.into_iter().collect() });
        self.inner.insert(place, Rc::clone(&inner));
        Ok(inner)
    }

    /// The body at `span`.
    fn body(&mut self, span: Span, depth: usize) -> Result<Body<'a>, ImportError> {
        let file = self.file;
        let graph = file.graph(span)?;
        let inputs = named(file.value_names(&graph.inputs)?, "input of a body")?;
        let initializers = named(file.tensor_names(&graph.initializers)?, "initializer of a body")?;
        let outputs = named(file.value_names(&graph.outputs)?, "output of a body")?;
        let mut own: HashSet<&str> = inputs.iter().chain(&initializers).copied().collect();
        let (mut used, mut bytes) = (outputs.clone(), 0usize);
        for node in &graph.nodes {
            let head = file.head(*node)?;
            own.extend(head.outputs.iter().copied());
            used.extend(head.inputs.iter().filter(|name| !name.is_empty()));
            bytes = bytes.saturating_add(file.light_bytes(*node)?);
            if is_control(&head) {
                used.extend(&self.inner(*node, &head, depth + 1)?.captured);
            }
        }
        used.retain(|name| !own.contains(name));
        used.sort_unstable();
        used.dedup();
        Ok(Body { graph, inputs, initializers, outputs, captured: used, bytes })
    }
}
