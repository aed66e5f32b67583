//! A node with bodies while it is converted: each run of a body becomes its nodes.

use std::rc::Rc;

use super::super::Escaped;
use super::bodies::{Body, Inner};
use super::calls::{MAX_BYTES, MAX_NODES};
use super::file::{File, Head};
use super::flat::{FlatNode, Given, NONE};
use super::flatten::Run;
use super::node::{Node, wrong};
use super::state::State;
use super::{ImportError, NodeError};
use crate::ir::{GraphError, NodeKind, Origin, Value};
use crate::op::{Emit, Formula, OpError, Traits};
use crate::types::{DType, FastSet, Shape, Tensor};

/// Converts a node of a body.
pub(super) type Convert<'c> = &'c dyn Fn(&mut State<'_>, &FlatNode) -> Result<(), ImportError>;

/// A node with bodies while it is converted.
pub(super) struct Control<'c, 's> {
    convert: Convert<'c>,
    state: &'c mut State<'s>,
    node: &'c FlatNode,
    head: &'c Head<'s>,
    attributes: Vec<Given>,
    inputs: Vec<Option<Value>>,
    inner: Rc<Inner<'s>>,
    /// The operators that the node adds to each run of a body.
    beside: usize,
    /// Its full name.
    name: String,
}

impl<'c, 's> Control<'c, 's> {
    /// The node with its attributes that are no graphs, and its operands.
    pub(super) fn new(
        convert: Convert<'c>,
        state: &'c mut State<'s>,
        node: &'c FlatNode,
        head: &'c Head<'s>,
        attributes: Vec<Given>,
        inputs: Vec<Option<Value>>,
    ) -> Result<Self, ImportError> {
        let inner = node.span.and_then(|span| state.layout.inner.get(&span.range().start));
        let unread = || ImportError::Internal("the bodies of a node were not read".to_owned());
        let inner = Rc::clone(inner.ok_or_else(unread)?);
        let name = state.layout.flat.origin(head.name, node).into_owned();
        let beside = 0;
        Ok(Self { convert, state, node, head, attributes, inputs, inner, beside, name })
    }

    /// The error of this node.
    pub(super) fn failed(&self, error: impl Into<NodeError>) -> ImportError {
        self.state.failed(self.node, self.head.op, error.into())
    }

    /// The version of ONNX's operators in which the node is written.
    pub(super) fn opset(&self) -> i64 {
        self.state.layout.flat.scope(self.node.scope).opset
    }

    /// The bodies of these names, which are all.
    pub(super) fn bodies<const K: usize>(
        &self,
        names: [&str; K],
    ) -> Result<[Rc<Body<'s>>; K], ImportError> {
        let all = &self.inner.bodies;
        if let Some((name, _)) = all.iter().find(|(name, _)| !names.contains(name)) {
            return Err(self.failed(wrong(name, "is a graph")));
        }
        let found = names.map(|name| {
            let mut own = all.iter().filter(|(own, _)| *own == name);
            match (own.next(), own.next()) {
                (Some((_, body)), None) => Ok(Rc::clone(body)),
                (None, _) => Err(wrong(name, "is missing")),
                (Some(_), Some(_)) => Err(wrong(name, "is given twice")),
            }
        });
        let found = found.into_iter().collect::<Result<Vec<_>, _>>();
        let found = found.map_err(|error| self.failed(error))?;
        found.try_into().map_err(|_| ImportError::Internal("a body is lost".to_owned()))
    }

    /// Fails unless a body has so many inputs and outputs.
    pub(super) fn check(
        &self,
        name: &str,
        body: &Body<'_>,
        [inputs, outputs]: [usize; 2],
    ) -> Result<(), ImportError> {
        let found =
            [("inputs", body.inputs.len(), inputs), ("outputs", body.outputs.len(), outputs)];
        match found.into_iter().find(|(_, found, expected)| found != expected) {
            None => Ok(()),
            Some((what, found, expected)) => {
                Err(self.failed(wrong(name, format!("has {found} {what}, not {expected}"))))
            }
        }
    }

    /// What `read` reads of the node's attributes and operands; no other attribute may be given.
    pub(super) fn settings<R>(
        &mut self,
        read: impl FnOnce(&mut Node<'_, 's>) -> Result<R, NodeError>,
    ) -> Result<R, ImportError> {
        let (attributes, inputs) = (std::mem::take(&mut self.attributes), self.inputs.clone());
        let node = Node::new(self.state, self.head.op, self.node, attributes, inputs);
        let found = node.and_then(|mut node| {
            let found = read(&mut node)?;
            node.finish()?;
            Ok(found)
        });
        found.map_err(|error| self.failed(error))
    }

    /// The number of operands, those left out included.
    pub(super) fn operands(&self) -> usize {
        self.head.inputs.len()
    }

    /// The number of results.
    pub(super) fn results(&self) -> usize {
        self.head.outputs.len()
    }

    /// The operand at position `i`, where it is given.
    pub(super) fn optional(&self, i: usize) -> Option<Value> {
        self.inputs.get(i).copied().flatten()
    }

    /// The operand at position `i`.
    pub(super) fn operand(&self, i: usize) -> Result<Value, ImportError> {
        self.optional(i).ok_or_else(|| self.failed(NodeError::Missing { operand: i }))
    }

    /// The operands from position `from` on; none may be left out.
    pub(super) fn operands_from(&self, from: usize) -> Result<Vec<Value>, ImportError> {
        (from..self.operands()).map(|i| self.operand(i)).collect()
    }

    /// The shape of a value.
    pub(super) fn shape(&self, value: Value) -> Shape {
        self.state.builder.graph().ty(value).shape.clone()
    }

    /// The element type of a value.
    pub(super) fn dtype(&self, value: Value) -> DType {
        self.state.builder.graph().ty(value).dtype
    }

    /// Whether `value` holds; `what` names it.
    ///
    /// # Errors
    /// If that is not known, or the value is no single element.
    pub(super) fn truth(&self, value: Value, what: &str) -> Result<bool, ImportError> {
        if let Some(truth) = self.state.truth(value) {
            return Ok(truth);
        }
        let ty = self.state.builder.graph().ty(value);
        if ty.shape.elements().as_const() != Some(1) {
            let text = format!("{what} of type {ty}, which is not one element,");
            return Err(self.failed(NodeError::Unsupported(text)));
        }
        let depends = self.state.depends(value);
        let (what, on) = (what.to_owned(), depends.to_string().into());
        let (inputs, alone) = depends.deciding();
        Err(self.failed(NodeError::Undecided { what, on, inputs, alone }))
    }

    /// Whether two values are computed alike from the same values.
    pub(super) fn are_alike(&self, a: Value, b: Value) -> bool {
        let graph = self.state.builder.graph();
        let (mut waiting, mut seen) = (vec![(a, b)], FastSet::default());
        while let Some((a, b)) = waiting.pop() {
            if a == b || !seen.insert((a, b)) {
                continue;
            }
            if let (Some(a), Some(b)) = (self.state.known(a), self.state.known(b)) {
                if a == b {
                    continue;
                }
                return false;
            }
            let (NodeKind::Op(op), NodeKind::Op(other)) =
                (graph.node(a.node).kind(), graph.node(b.node).kind())
            else {
                return false;
            };
            // Numbers that are drawn twice differ.
            let alike = a.output == b.output && op == other && !op.is(Traits::UNREPEATABLE);
            let (left, right) = (graph.operands(a.node), graph.operands(b.node));
            if !alike || left.len() != right.len() {
                return false;
            }
            waiting.extend(left.into_iter().zip(right));
        }
        true
    }

    /// Tells something of the node.
    pub(super) fn note(&mut self, text: &str) {
        let node = self.state.layout.flat.label(self.node);
        self.state.notes.push(format!("{node} ({}): {text}", Escaped(self.head.op)).into());
    }

    /// The file.
    pub(super) fn file(&self) -> &'s File {
        self.state.file
    }

    /// Says that the node adds so many operators to each run of a body.
    pub(super) fn adds(&mut self, operators: usize) {
        self.beside = operators;
    }

    /// Fails if so many runs of a body are more than is unrolled.
    pub(super) fn limit(&self, body: &Body<'_>, runs: i64) -> Result<(), ImportError> {
        // More runs than can be counted are more than the limit.
        let trips = usize::try_from(runs.max(0)).unwrap_or(usize::MAX);
        let nodes = 1 + body.graph.nodes.len() + self.beside;
        let limits = [("nodes", nodes, MAX_NODES), ("bytes", body.bytes, MAX_BYTES)];
        for (what, each, most) in limits {
            if trips.saturating_mul(each) > most {
                let text = format!("{runs} trips of {each} {what}, more than {most} {what},");
                return Err(self.failed(NodeError::Unsupported(text)));
            }
        }
        Ok(())
    }

    /// Runs a body on these values: adds its nodes and gives its outputs.
    pub(super) fn run(
        &mut self,
        body: &Body<'s>,
        part: &str,
        given: &[Value],
    ) -> Result<Vec<Value>, ImportError> {
        let (node, head, state) = (self.node, self.head, &mut *self.state);
        let (inner, beside) = (&self.inner, self.beside);
        let block = state.layout.run(&Run { node, head, inner, body, part, beside })?;
        state.values.resize(state.layout.flat.values(), None);
        for (id, value) in block.inputs.iter().zip(given) {
            state.set(*id, *value);
        }
        state.inner.extend(block.initializers.iter().copied().zip(body.graph.initializers.clone()));
        for node in &block.nodes {
            (self.convert)(state, node)?;
        }
        let outputs = block.outputs.iter().map(|id| match *id {
            NONE => Ok(None),
            id => state.value(id),
        });
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        let undefined = |i: usize| ImportError::Undefined {
            value: body.outputs[i].to_owned(),
            user: "an output of a body".to_owned(),
        };
        (0..).zip(outputs).map(|(i, value)| value.ok_or_else(|| undefined(i))).collect()
    }

    /// Makes a value the node's result `i`.
    pub(super) fn set(&mut self, i: usize, value: Value) {
        // Results at the end may be left out.
        let id = self.node.outputs.get(i).copied().unwrap_or(NONE);
        self.state.set(id, value);
    }

    /// A constant that input `i` of a body takes, without axes, or with one where the body says so.
    pub(super) fn literal(
        &mut self,
        body: &Body<'_>,
        i: usize,
        value: Tensor,
    ) -> Result<Value, ImportError> {
        let span = body.graph.inputs.get(i).copied();
        let info = span.map(|span| self.state.file.value(span)).transpose()?;
        let rank = info.and_then(|info| super::inputs::declared(&info).1);
        let shaped = if rank == Some(1) { value.reshaped(&[1]) } else { Ok(value) };
        let shaped = shaped.map_err(|error| self.failed(OpError::from(error)))?;
        let made = self.emit().literal(shaped.clone());
        let made = self.made(made)?;
        self.state.constants.insert(made, shaped);
        Ok(made)
    }

    /// What takes in operators of the node itself.
    pub(super) fn emit(&mut self) -> impl Emit<Value = Value, Error = GraphError> + '_ {
        let builder = &mut self.state.builder;
        builder.set_origin(Origin::new(&*self.name));
        builder.named(&self.name)
    }

    /// The value of an operator of the node itself.
    pub(super) fn made<V>(&self, made: Result<V, GraphError>) -> Result<V, ImportError> {
        made.map_err(|error| self.failed(error))
    }
}
