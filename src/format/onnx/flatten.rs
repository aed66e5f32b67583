//! The nodes of a model in the order of their operands, with the calls of its functions expanded;
//! and those of its bodies, each time that one is run.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use smallvec::SmallVec;

use super::super::Quoted;
use super::bodies::{Body, Inner, VALUE_BYTES, is_control};
use super::calls::{Callee, Calls, MAX_DEPTH, Site};
use super::file::{File, Function, Head, opset};
use super::flat::{Block, Flat, FlatNode, Given, NONE, Scope, ValueId};
use super::wire::Span;
use super::{ImportError, NodeError, UnsupportedOp};
use crate::types::FastMap;

/// The nodes of a model's graph.
/// The bound is for hostile files: a node of a few bytes takes far more in memory.
const MAX_NODES: usize = 1 << 20;

/// The operators that are listed as not supported, and the nodes of each: the rest are counted.
const NAMED: usize = 100;

/// Lays out the nodes of a model.
#[derive(Clone)]
pub(super) struct Layout<'a> {
    pub(super) file: &'a File,
    /// Returns true if the operator of a node is supported.
    supported: &'a dyn Fn(&Head<'_>) -> bool,
    pub(super) flat: Flat<'a>,
    unsupported: BTreeMap<String, UnsupportedOp>,
    calls: Calls<'a>,
    /// The bodies of nodes, by the place of the node.
    pub(super) inner: FastMap<usize, Rc<Inner<'a>>>,
}

/// The values that nodes may name.
struct Names<'a> {
    /// The scope in which values stand that are not named yet.
    scope: u32,
    ids: FastMap<&'a str, ValueId>,
}

/// A run of a body of a node.
pub(super) struct Run<'r, 'a> {
    pub(super) node: &'r FlatNode,
    pub(super) head: &'r Head<'a>,
    pub(super) inner: &'r Inner<'a>,
    pub(super) body: &'r Body<'a>,
    /// What tells it from the other runs of the node's bodies.
    pub(super) part: &'r str,
    /// The operators that its node adds to it.
    pub(super) beside: usize,
}

/// Lays out the nodes of a model; `supported` says which have a known operator.
pub(super) fn flatten<'a>(
    file: &'a File,
    supported: &'a dyn Fn(&Head<'_>) -> bool,
) -> Result<(Layout<'a>, Block), ImportError> {
    let mut layout = Layout {
        file,
        supported,
        flat: Flat::new(file, opset("the model", &file.opsets)?),
        unsupported: BTreeMap::new(),
        calls: Calls::of(file)?,
        inner: FastMap::default(),
    };
    let block = layout.model()?;
    layout.flat.share();
    Ok((layout, block))
}

impl<'a> Layout<'a> {
    /// The value of this name, which is a further one where none has it.
    fn id(&mut self, names: &mut Names<'a>, name: &'a str) -> Result<ValueId, ImportError> {
        // ONNX's way to leave out an operand before others, or a result.
        if name.is_empty() {
            return Ok(NONE);
        }
        if let Some(id) = names.ids.get(name) {
            return Ok(*id);
        }
        let id = self.flat.add_value(names.scope, name)?;
        names.ids.insert(name, id);
        Ok(id)
    }

    fn all(
        &mut self,
        names: &mut Names<'a>,
        wanted: &[&'a str],
    ) -> Result<Vec<ValueId>, ImportError> {
        wanted.iter().map(|name| self.id(names, name)).collect()
    }

    fn model(&mut self) -> Result<Block, ImportError> {
        let (file, graph) = (self.file, &self.file.graph);
        if graph.nodes.len() > MAX_NODES {
            return Err(ImportError::TooManyNodes { limit: MAX_NODES });
        }
        let random = foldhash::fast::RandomState::default();
        let ids = FastMap::with_capacity_and_hasher(graph.nodes.len(), random);
        let mut names = Names { scope: 0, ids };
        let initializers = named(file.tensor_names(&graph.initializers)?, "initializer")?;
        let initializers = self.all(&mut names, &initializers)?;
        let inputs = named(file.value_names(&graph.inputs)?, "input")?;
        let inputs = self.all(&mut names, &inputs)?;
        let outputs = named(file.value_names(&graph.outputs)?, "output")?;
        let outputs = self.all(&mut names, &outputs)?;
        let mut nodes = Vec::with_capacity(graph.nodes.len());
        self.nodes(&graph.nodes, &mut names, &mut nodes)?;
        self.check()?;
        drop(names);
        let mut block = Block { first: 0, nodes, inputs, initializers, outputs };
        self.flat.sort(&mut block, "the model")?;
        Ok(block)
    }

    /// Fails if an operator is not supported. All of them are collected first, so that one import
    /// names everything that is missing.
    fn check(&mut self) -> Result<(), ImportError> {
        if self.unsupported.is_empty() {
            return Ok(());
        }
        let unsupported = std::mem::take(&mut self.unsupported);
        Err(ImportError::Unsupported(unsupported.into_values().collect()))
    }

    /// Adds nodes of a graph or a function.
    fn nodes(
        &mut self,
        nodes: &[Span],
        names: &mut Names<'a>,
        to: &mut Vec<FlatNode>,
    ) -> Result<(), ImportError> {
        let file = self.file;
        for span in nodes {
            let head = file.head(*span)?;
            let mut inputs: SmallVec<[ValueId; 4]> = self.all(names, &head.inputs)?.into();
            let outputs = self.all(names, &head.outputs)?.into();
            // A function is no operator, and a call gives it no graph.
            if is_control(&head) && self.calls.function(&head).is_none() {
                let inner = self.inner(*span, &head, 0)?;
                inputs.extend(self.all(names, &inner.captured)?);
            }
            let site = Site { span: *span, head: &head, scope: names.scope, inputs, outputs };
            self.node(site, to)?;
        }
        Ok(())
    }

    /// Adds a node, or the nodes of the function that it calls.
    fn node(&mut self, site: Site<'_, 'a>, to: &mut Vec<FlatNode>) -> Result<(), ImportError> {
        if let Some(function) = self.calls.function(site.head) {
            return self.call(function, &site, to);
        }
        let Site { span, head, scope, inputs, outputs } = site;
        if (!head.has_graph || is_control(head)) && (self.supported)(head) {
            to.push(FlatNode { span: Some(span), scope, inputs, outputs });
        } else {
            self.refuse(head, scope, &outputs);
        }
        Ok(())
    }

    /// Notes a node of an operator that is not supported.
    fn refuse(&mut self, head: &Head<'_>, scope: u32, outputs: &[ValueId]) {
        let op = match head.domain() {
            "" => head.op.to_owned(),
            domain => format!("{domain}::{}", head.op),
        };
        if self.unsupported.len() >= NAMED && !self.unsupported.contains_key(&op) {
            return;
        }
        let label = self.flat.phrase(head.name, scope, outputs);
        let new = || UnsupportedOp { op: op.clone(), nodes: Vec::new(), count: 0 };
        let found = self.unsupported.entry(op.clone()).or_insert_with(new);
        found.count += 1;
        if found.nodes.len() < NAMED {
            found.nodes.push(label);
        }
    }

    /// Expands a call of the function numbered `number`.
    fn call(
        &mut self,
        number: usize,
        site: &Site<'_, 'a>,
        to: &mut Vec<FlatNode>,
    ) -> Result<(), ImportError> {
        let file = self.file;
        let function = &file.functions[number];
        let callee = self.calls.callee(file, number)?;
        // Functions that call functions can expand exponentially: each call is charged before its
        // nodes are laid out.
        let objection = Calls::check(&self.flat, file, number, &callee, site);
        let bytes = function.span.len().saturating_add(site.span.len());
        let charged = objection.and_then(|()| {
            let charged = self.calls.charge(function.nodes.len(), bytes);
            charged.map_err(|error| format!("the calls expand to {error}"))
        });
        if let Err(reason) = charged {
            let node = self.flat.phrase(site.head.name, site.scope, &site.outputs);
            return Err(ImportError::Call { node, function: function.name.clone(), reason });
        }
        let scope = self.scope(number, &callee, site)?;
        // A call may leave out operands at its end.
        let given = site.inputs.iter().copied().chain(std::iter::repeat(NONE));
        // A function sees its own names only: what is not an input of it is a value of this call.
        let mut locals = Names { scope, ids: callee.inputs.iter().copied().zip(given).collect() };
        let mut returned = Vec::new();
        for (name, id) in callee.outputs.iter().zip(&site.outputs).filter(|(_, id)| **id != NONE) {
            match locals.ids.get(name) {
                // A value that is returned twice, or an input that is returned.
                Some(from) => returned.push((*from, *id)),
                None => {
                    locals.ids.insert(name, *id);
                }
            }
        }
        self.nodes(&function.nodes, &mut locals, to)?;
        for (from, result) in returned {
            let inputs = SmallVec::from_slice(&[from]);
            let outputs = SmallVec::from_slice(&[result]);
            to.push(FlatNode { span: None, scope, inputs, outputs });
        }
        Ok(())
    }

    /// The scope of a call: its path, and the attributes that the call or the function gives.
    fn scope(
        &mut self,
        number: usize,
        callee: &Callee<'a>,
        site: &Site<'_, 'a>,
    ) -> Result<u32, ImportError> {
        let mut attributes: BTreeMap<String, Given> = callee.defaults.iter().cloned().collect();
        let caller = Rc::clone(self.flat.scope(site.scope));
        for (attribute, span) in self.file.attributes(site.span)? {
            let name = attribute.name().to_owned();
            let known = callee.attributes.binary_search(&name.as_str()).is_ok()
                || attributes.contains_key(&name);
            // A call inside a function may pass on an attribute of its caller by reference.
            if let Some(given) = caller.resolve(Given::own(attribute, span)).filter(|_| known) {
                let bytes = given.bytes.max(site.span.len());
                attributes.insert(name, Given { bytes, ..given });
            }
        }
        let function: &Function = &self.file.functions[number];
        let name = site.head.name;
        let path = caller.inner(if name.is_empty() { &function.name } else { name }, "");
        let attributes = Rc::new(attributes);
        let (opset, outer, function) = (callee.opset, site.scope, Some(number));
        self.flat.add_scope(|call| Scope { path, attributes, opset, outer, function, call })
    }

    /// What calls and bodies expanded to so far, in nodes.
    pub(super) fn expanded(&self) -> usize {
        self.calls.nodes()
    }

    /// Lays out a run of a body.
    pub(super) fn run(&mut self, run: &Run<'_, 'a>) -> Result<Block, ImportError> {
        let Run { node, head, inner, body, part, beside } = *run;
        let refused = |flat: &Flat<'_>, what: String| ImportError::Node {
            node: flat.label(node),
            op: head.op.to_owned(),
            error: NodeError::Unsupported(what),
        };
        if self.flat.around(node.scope).count() >= MAX_DEPTH {
            let what = format!("a body inside more than {MAX_DEPTH} others");
            return Err(refused(&self.flat, what));
        }
        // Bodies inside bodies multiply: each run is charged before its nodes are laid out.
        if let Err(error) = self.calls.charge(body.graph.nodes.len() + beside, body.bytes) {
            let what = format!("what its bodies expand to, {error} with all others up to {part},");
            return Err(refused(&self.flat, what));
        }
        let label = match (head.name, node.outputs.iter().find(|id| **id != NONE)) {
            ("", Some(first)) => self.flat.text(*first),
            (name, _) => name,
        };
        let around = Rc::clone(self.flat.scope(node.scope));
        let (path, attributes) = (around.inner(label, part), Rc::clone(&around.attributes));
        let Scope { opset, call, .. } = *around;
        let (outer, function) = (node.scope, None);
        let scope =
            self.flat.add_scope(|_| Scope { path, attributes, opset, outer, function, call })?;
        let first = self.flat.next()?;
        let captured = inner.captured.iter().zip(&node.inputs[head.inputs.len()..]);
        let own = captured.filter(|(name, _)| body.captured.binary_search(name).is_ok());
        let mut names = Names { scope, ids: own.map(|(name, id)| (*name, *id)).collect() };
        let initializers = self.all(&mut names, &body.initializers)?;
        let inputs = self.all(&mut names, &body.inputs)?;
        let mut nodes = Vec::with_capacity(body.graph.nodes.len());
        self.nodes(&body.graph.nodes, &mut names, &mut nodes)?;
        self.check()?;
        let outputs = self.all(&mut names, &body.outputs)?;
        let mut block = Block { first, nodes, inputs, initializers, outputs };
        self.flat.sort(&mut block, "a body")?;
        Ok(block)
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
                // A node without a name and results has none to tell.
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
        let mut values = inputs.len() + initializers.len() + outputs.len();
        let (mut used, mut bytes) = (outputs.clone(), 0usize);
        for node in &graph.nodes {
            let head = file.head(*node)?;
            own.extend(head.outputs.iter().copied());
            used.extend(head.inputs.iter().filter(|name| !name.is_empty()));
            bytes = bytes.saturating_add(file.light_bytes(*node)?);
            if is_control(&head) {
                let inner = self.inner(*node, &head, depth + 1)?;
                values = values.saturating_add(inner.captured.len());
                used.extend(&inner.captured);
            }
        }
        used.retain(|name| !own.contains(name));
        used.sort_unstable();
        used.dedup();
        values = values.saturating_add(used.len());
        bytes = bytes.saturating_add(values.saturating_mul(VALUE_BYTES));
        Ok(Body { graph, inputs, initializers, outputs, captured: used, bytes })
    }
}

/// Names of which none may be empty.
fn named<'n>(names: Vec<&'n str>, what: &str) -> Result<Vec<&'n str>, ImportError> {
    match names.iter().position(|name| name.is_empty()) {
        None => Ok(names),
        Some(position) => Err(ImportError::Unnamed { what: what.to_owned(), position }),
    }
}
