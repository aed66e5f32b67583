//! The nodes of a model in the order of their operands, with the calls of its functions expanded.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::calls::{Callee, Calls, Site};
use super::file::{File, Function, Head, opset};
use super::flat::{Flat, FlatNode, Given, NONE, Scope, ValueId};
use super::{ImportError, UnsupportedOp};
use crate::types::FastMap;

/// The nodes of a model's body.
/// The bound is for hostile files: a node of a few bytes takes far more in memory.
const MAX_NODES: usize = 1 << 20;

/// The operators that are listed as not supported, and the nodes of each: the rest are counted.
const NAMED: usize = 100;

/// Lays out the nodes of a model.
struct Flattener<'a> {
    file: &'a File,
    /// Returns true if the operator of a node is supported.
    supported: &'a dyn Fn(&Head<'_>) -> bool,
    /// The values of the body by name. Names inside a function are local to each of its calls.
    ids: FastMap<&'a str, ValueId>,
    flat: Flat<'a>,
    unsupported: BTreeMap<String, UnsupportedOp>,
    calls: Calls<'a>,
}

/// Lays out the nodes of a model; `supported` says which have a known operator.
pub(super) fn flatten<'a>(
    file: &'a File,
    supported: &'a dyn Fn(&Head<'_>) -> bool,
) -> Result<Flat<'a>, ImportError> {
    let flat = Flat::new(file, opset("the model", &file.opsets)?);
    let mut flattener = Flattener {
        file,
        supported,
        ids: FastMap::with_capacity_and_hasher(
            file.graph.nodes.len(),
            foldhash::fast::RandomState::default(),
        ),
        flat,
        unsupported: BTreeMap::new(),
        calls: Calls::of(file)?,
    };
    flattener.boundary()?;
    flattener.body()?;
    // All of them are collected first, so that one import names everything that is missing.
    if !flattener.unsupported.is_empty() {
        return Err(ImportError::Unsupported(flattener.unsupported.into_values().collect()));
    }
    drop(flattener.ids);
    let mut flat = flattener.flat;
    flat.sort()?;
    Ok(flat)
}

impl<'a> Flattener<'a> {
    fn id(&mut self, name: &'a str) -> Result<ValueId, ImportError> {
        // ONNX's way to leave out an operand before others, or a result.
        if name.is_empty() {
            return Ok(NONE);
        }
        if let Some(id) = self.ids.get(name) {
            return Ok(*id);
        }
        let id = self.flat.add_value(0, name)?;
        self.ids.insert(name, id);
        Ok(id)
    }

    fn boundary(&mut self) -> Result<(), ImportError> {
        let (file, graph) = (self.file, &self.file.graph);
        let named = |name: &'a str, what: &str, position: usize| {
            let unnamed = || ImportError::Unnamed { what: what.to_owned(), position };
            (!name.is_empty()).then_some(name).ok_or_else(unnamed)
        };
        for (i, span) in graph.initializers.iter().enumerate() {
            let id = self.id(named(file.tensor_name(*span)?, "initializer", i)?)?;
            self.flat.initializers.push(id);
        }
        for (i, span) in graph.inputs.iter().enumerate() {
            let id = self.id(named(file.value_name(*span)?, "input", i)?)?;
            self.flat.inputs.push(id);
        }
        for (i, span) in graph.outputs.iter().enumerate() {
            let id = self.id(named(file.value_name(*span)?, "output", i)?)?;
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
            let inputs = head.inputs.iter().map(|n| self.id(n)).collect::<Result<_, _>>()?;
            let outputs = head.outputs.iter().map(|n| self.id(n)).collect::<Result<_, _>>()?;
            self.node(Site { span: *node, head: &head, scope: 0, inputs, outputs })?;
        }
        Ok(())
    }

    /// Adds a node, or the nodes of the function that it calls.
    fn node(&mut self, site: Site<'_, 'a>) -> Result<(), ImportError> {
        if let Some(function) = self.calls.function(site.head) {
            return self.call(function, &site);
        }
        let Site { span, head, scope, inputs, outputs } = site;
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
    /// Expands a call of the function numbered `number`.
    fn call(&mut self, number: usize, site: &Site<'_, 'a>) -> Result<(), ImportError> {
        let file = self.file;
        let function = &file.functions[number];
        let callee = self.calls.callee(file, number)?;
        // Functions that call functions can expand exponentially: each call is charged before its
        // nodes are laid out.
        let objection = self.calls.check(file, number, &callee, site);
        let charge = |()| self.calls.charge(function, site.span.len());
        if let Err(reason) = objection.and_then(charge) {
            let node = self.flat.phrase(site.head.name, site.scope, &site.outputs);
            return Err(ImportError::Call { node, function: function.name.clone(), reason });
        }
        let scope = self.scope(function, &callee, site)?;
        // A call may leave out operands at its end.
        let given = site.inputs.iter().copied().chain(std::iter::repeat(NONE));
        let mut locals: HashMap<&'a str, ValueId> =
            callee.inputs.iter().copied().zip(given).collect();
        let mut returned = Vec::new();
        for (name, id) in callee.outputs.iter().zip(&site.outputs).filter(|(_, id)| **id != NONE) {
            match locals.get(name) {
                // A value that is returned twice, or an input that is returned.
                Some(from) => returned.push((*from, *id)),
                None => {
                    locals.insert(name, *id);
                }
            }
        }
        self.calls.open.push(number);
        for node in &function.nodes {
            let head = file.head(*node)?;
            let mut local = |name: &&'a str| match locals.get(*name) {
                Some(id) => Ok(*id),
                // A function sees its own names only: what is not an input of it is a value of this
                // call.
                None if name.is_empty() => Ok(NONE),
                None => {
                    let id = self.flat.add_value(scope, name)?;
                    locals.insert(name, id);
                    Ok::<_, ImportError>(id)
                }
            };
            let inputs = head.inputs.iter().map(&mut local).collect::<Result<_, _>>()?;
            let outputs = head.outputs.iter().map(&mut local).collect::<Result<_, _>>()?;
            self.node(Site { span: *node, head: &head, scope, inputs, outputs })?;
        }
        self.calls.open.pop();
        for (from, to) in returned {
            let (inputs, outputs) = (SmallVec::from_slice(&[from]), SmallVec::from_slice(&[to]));
            self.flat.nodes.push(FlatNode { span: None, scope, inputs, outputs });
        }
        Ok(())
    }

    /// The scope of a call: its path, and the attributes that the call or the function gives.
    fn scope(
        &mut self,
        function: &Function,
        callee: &Callee<'a>,
        site: &Site<'_, 'a>,
    ) -> Result<u32, ImportError> {
        let mut attributes: BTreeMap<String, Given> = callee.defaults.iter().cloned().collect();
        let caller = &self.flat.scopes[site.scope as usize];
        for given in self.file.attributes(site.span)? {
            let name = given.name().to_owned();
            let known = callee.attributes.binary_search(&name.as_str()).is_ok()
                || attributes.contains_key(&name);
            // A call inside a function may pass on an attribute of its caller by reference.
            if let Some((given, bytes)) = caller.resolve(given).filter(|_| known) {
                attributes.insert(name, (given, bytes.max(site.span.len())));
            }
        }
        let name = site.head.name;
        let path = caller.inner(if name.is_empty() { &function.name } else { name });
        self.flat.add_scope(Scope { path, attributes, opset: callee.opset })
    }
}
