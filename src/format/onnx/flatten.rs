//! The nodes of a model in the order of their operands, with the calls of its functions expanded.

use std::borrow::Cow;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::super::Quoted;
use super::calls::{Calls, Scope};
use super::file::{File, Head, Opsets};
use super::wire::Span;
use super::{ImportError, UnsupportedOp};
use crate::types::Table;

/// The nodes of a model's body.
const MAX_NODES: usize = 1 << 20;

/// The nodes that are named for each operator that is not supported, and the operators: the rest are counted.
pub(super) const NAMED: usize = 100;

/// A value of the model by its number; [`NONE`] for an operand or result that is left out.
pub(super) type ValueId = u32;

/// Stands for an operand or result that is left out.
pub(super) const NONE: ValueId = u32::MAX;

/// A node: an operator applied to values.
pub(super) struct FlatNode {
    /// The node in the file; none for the identity by which a function returns its own input.
    pub(super) span: Option<Span>,
    /// The call that it belongs to.
    pub(super) scope: u32,
    pub(super) inputs: SmallVec<[ValueId; 4]>,
    pub(super) outputs: SmallVec<[ValueId; 2]>,
}

/// The name of a value: as in the file, and the call inside which it stands.
#[derive(Clone, Copy)]
struct Name<'a> {
    scope: u32,
    text: &'a str,
}

/// A model whose nodes stand in the order of their operands.
pub(super) struct Flat<'a> {
    file: &'a File,
    names: Vec<Name<'a>>,
    pub(super) nodes: Vec<FlatNode>,
    /// The body of the model, and the calls of functions.
    pub(super) scopes: Vec<Scope>,
    pub(super) inputs: Vec<ValueId>,
    pub(super) initializers: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
}

/// The opsets that are supported.
const OPSETS: std::ops::RangeInclusive<i64> = 6..=27;

/// Lays out the nodes of a model.
pub(super) struct Flattener<'a> {
    pub(super) file: &'a File,
    /// Whether the operator of a node is supported.
    supported: &'a dyn Fn(&Head<'_>) -> bool,
    ids: Table<&'a str, ValueId>,
    pub(super) flat: Flat<'a>,
    unsupported: BTreeMap<String, UnsupportedOp>,
    pub(super) calls: Calls<'a>,
}

/// Lays out the nodes of a model; `supported` says which have a known operator.
pub(super) fn flatten<'a>(
    file: &'a File,
    supported: &'a dyn Fn(&Head<'_>) -> bool,
) -> Result<Flat<'a>, ImportError> {
    let flat = Flat {
        file,
        names: Vec::new(),
        nodes: Vec::with_capacity(file.graph.nodes.len()),
        scopes: vec![Scope::body(opset("the model", &file.opsets)?)],
        inputs: Vec::new(),
        initializers: Vec::new(),
        outputs: Vec::new(),
    };
    let mut flattener = Flattener {
        file,
        supported,
        ids: Table::with_capacity_and_hasher(
            file.graph.nodes.len(),
            foldhash::fast::RandomState::default(),
        ),
        flat,
        unsupported: BTreeMap::new(),
        calls: Calls::of(file)?,
    };
    flattener.boundary()?;
    flattener.body()?;
    if !flattener.unsupported.is_empty() {
        return Err(ImportError::Unsupported(flattener.unsupported.into_values().collect()));
    }
    drop(flattener.ids);
    let mut flat = flattener.flat;
    flat.sort()?;
    Ok(flat)
}

impl<'a> Flattener<'a> {
    fn id(&mut self, name: &'a str) -> ValueId {
        if name.is_empty() {
            return NONE;
        }
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.new_id(0, name);
        self.ids.insert(name, id);
        id
    }

    /// A further value, inside the call `scope`.
    pub(super) fn new_id(&mut self, scope: u32, text: &'a str) -> ValueId {
        self.flat.names.push(Name { scope, text });
        u32::try_from(self.flat.names.len() - 1).unwrap_or(NONE)
    }

    fn boundary(&mut self) -> Result<(), ImportError> {
        let (file, graph) = (self.file, &self.file.graph);
        let named = |name: &'a str, what: &str, position: usize| {
            let unnamed = || ImportError::Unnamed { what: what.to_owned(), position };
            (!name.is_empty()).then_some(name).ok_or_else(unnamed)
        };
        for (i, span) in graph.initializers.iter().enumerate() {
            let id = self.id(named(file.tensor_name(*span)?, "initializer", i)?);
            self.flat.initializers.push(id);
        }
        for (i, span) in graph.inputs.iter().enumerate() {
            let id = self.id(named(file.value_name(*span)?, "input", i)?);
            self.flat.inputs.push(id);
        }
        for (i, span) in graph.outputs.iter().enumerate() {
            let id = self.id(named(file.value_name(*span)?, "output", i)?);
            self.flat.outputs.push(id);
        }
        Ok(())
    }

    fn body(&mut self) -> Result<(), ImportError> {
        if self.file.graph.nodes.len() > MAX_NODES {
            return Err(ImportError::TooManyNodes { limit: MAX_NODES });
        }
        for node in &self.file.graph.nodes {
            let head = self.file.head(*node)?;
            let inputs = head.inputs.iter().map(|n| self.id(n)).collect();
            let outputs = head.outputs.iter().map(|n| self.id(n)).collect();
            self.node(*node, &head, 0, inputs, outputs)?;
        }
        Ok(())
    }

    /// Adds a node, or the nodes of the function that it calls.
    pub(super) fn node(
        &mut self,
        span: Span,
        head: &Head<'a>,
        scope: u32,
        inputs: SmallVec<[ValueId; 4]>,
        outputs: SmallVec<[ValueId; 2]>,
    ) -> Result<(), ImportError> {
        if let Some(function) = self.calls.function(head) {
            return self.call(function, span, head, scope, (&inputs, &outputs));
        }
        if !head.has_graph && (self.supported)(head) {
            self.flat.nodes.push(FlatNode { span: Some(span), scope, inputs, outputs });
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
}

/// The version of ONNX's operators among `opsets`. Where there is none, only other domains are used.
pub(super) fn opset(place: &str, opsets: &Opsets) -> Result<i64, ImportError> {
    let (oldest, newest) = (*OPSETS.start(), *OPSETS.end());
    match opsets.get("") {
        Some(version) if OPSETS.contains(version) => Ok(*version),
        None if opsets.keys().any(|d| !d.is_empty()) => Ok(newest),
        found => Err(ImportError::Opset {
            place: place.to_owned(),
            // A file without a version is of the time before there were versions.
            version: found.copied().unwrap_or(1),
            oldest,
            newest,
        }),
    }
}

impl<'a> Flat<'a> {
    /// The number of values.
    pub(super) fn values(&self) -> usize {
        self.names.len()
    }

    /// The name of a value: as in the file; inside a call, after the call's path.
    pub(super) fn name(&self, id: ValueId) -> Cow<'a, str> {
        match self.names.get(id as usize) {
            None => Cow::Borrowed(""),
            Some(Name { scope: 0, text }) => Cow::Borrowed(text),
            Some(Name { scope, text }) => Cow::Owned(self.scopes[*scope as usize].full(text)),
        }
    }

    /// The name in the file of a value of the model's body.
    pub(super) fn own_name(&self, id: ValueId) -> Option<&'a str> {
        self.names.get(id as usize).filter(|name| name.scope == 0).map(|name| name.text)
    }

    /// The name of a value that no other has.
    pub(super) fn key(&self, id: ValueId) -> Cow<'a, str> {
        match self.names.get(id as usize) {
            Some(Name { scope: 1.., .. }) => Cow::Owned(format!("{}@{id}", self.name(id))),
            _ => self.name(id),
        }
    }

    /// The full name of a node by its own `name`, or that of its first result.
    pub(super) fn origin(&self, name: &'a str, node: &FlatNode) -> Cow<'a, str> {
        match name {
            "" => node
                .outputs
                .iter()
                .find(|id| **id != NONE)
                .map_or_else(Cow::default, |id| self.name(*id)),
            name if node.scope == 0 => Cow::Borrowed(name),
            name => Cow::Owned(self.scopes[node.scope as usize].full(name)),
        }
    }

    fn head(&self, node: &FlatNode) -> Option<Head<'a>> {
        node.span.and_then(|span| self.file.head(span).ok())
    }

    /// A node as a phrase.
    pub(super) fn label(&self, node: &FlatNode) -> String {
        let name = self.head(node).map_or("", |head| head.name);
        self.phrase(name, node.scope, &node.outputs)
    }

    /// The node with this name and these results, as a phrase.
    pub(super) fn phrase(&self, name: &str, scope: u32, outputs: &[ValueId]) -> String {
        if !name.is_empty() {
            return match scope {
                0 => format!("node {}", Quoted(name)),
                _ => format!("node {}", Quoted(&self.scopes[scope as usize].full(name))),
            };
        }
        match outputs.iter().find(|id| **id != NONE) {
            Some(first) => format!("the node of {}", Quoted(&self.name(*first))),
            None => "a node without results".to_owned(),
        }
    }
}
