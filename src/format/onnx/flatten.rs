//! The nodes of a model in the order of their operands, with the calls of its functions expanded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use super::file::{File, Function, Head, Opsets};
use super::proto::AttributeProto;
use super::wire::Span;
use super::{ImportError, UnsupportedOp};

/// The nodes of a model after its functions are expanded.
const MAX_NODES: usize = 1 << 20;

/// Calls of functions inside functions.
const MAX_DEPTH: usize = 64;

/// Calls of functions that are expanded.
const MAX_CALLS: usize = 1 << 16;

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

/// The body of the model (the first scope) or one call of a function.
pub(super) struct Scope {
    /// Stands before the names of its nodes and values.
    pub(super) path: String,
    /// The attributes that the call gives.
    pub(super) attributes: BTreeMap<String, AttributeProto>,
    /// The version of ONNX's operators.
    pub(super) opset: i64,
}

/// A model whose nodes stand in the order of their operands.
pub(super) struct Flat {
    pub(super) names: Vec<Arc<str>>,
    pub(super) nodes: Vec<FlatNode>,
    pub(super) scopes: Vec<Scope>,
    pub(super) inputs: Vec<ValueId>,
    pub(super) initializers: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
}

/// The opsets that are supported.
const OPSETS: std::ops::RangeInclusive<i64> = 6..=27;

struct Flattener<'a> {
    file: &'a File,
    /// Whether ONNX's own operator of this name is supported.
    supported: &'a dyn Fn(&str) -> bool,
    functions: BTreeMap<(&'a str, &'a str, &'a str), usize>,
    ids: HashMap<Arc<str>, ValueId>,
    flat: Flat,
    unsupported: BTreeMap<String, Vec<String>>,
    calls: Vec<usize>,
    count: usize,
}

/// Lays out the nodes of a model; `supported` says which of ONNX's own operators are known.
pub(super) fn flatten(file: &File, supported: &dyn Fn(&str) -> bool) -> Result<Flat, ImportError> {
    let functions = file.functions.iter().enumerate();
    let functions = functions.map(|(i, f)| ((&*f.domain, &*f.name, &*f.overload), i)).collect();
    let scope = Scope { path: String::new(), attributes: BTreeMap::new(), opset: 0 };
    let flat = Flat {
        names: Vec::new(),
        nodes: Vec::with_capacity(file.graph.nodes.len()),
        scopes: vec![scope],
        inputs: Vec::new(),
        initializers: Vec::new(),
        outputs: Vec::new(),
    };
    let mut flattener = Flattener {
        file,
        supported,
        functions,
        ids: HashMap::new(),
        flat,
        unsupported: BTreeMap::new(),
        calls: Vec::new(),
        count: 0,
    };
    flattener.boundary()?;
    flattener.body()?;
    if !flattener.unsupported.is_empty() {
        let list = flattener.unsupported.into_iter();
        let list = list.map(|(op, nodes)| UnsupportedOp { op, nodes });
        return Err(ImportError::Unsupported(list.collect()));
    }
    let mut flat = flattener.flat;
    flat.sort(file)?;
    Ok(flat)
}

impl<'a> Flattener<'a> {
    fn id(&mut self, name: &str) -> ValueId {
        if name.is_empty() {
            return NONE;
        }
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.new_id(name);
        self.ids.insert(self.flat.names[id as usize].clone(), id);
        id
    }

    fn new_id(&mut self, name: &str) -> ValueId {
        self.flat.names.push(name.into());
        u32::try_from(self.flat.names.len() - 1).unwrap_or(NONE)
    }

    /// A value inside a call. Those of the model's body have their numbers by then.
    fn inner_id(&mut self, name: String) -> ValueId {
        let mut unique = name;
        while self.ids.contains_key(&*unique) {
            unique.push('\'');
        }
        self.id(&unique)
    }

    fn boundary(&mut self) -> Result<(), ImportError> {
        let graph = &self.file.graph;
        for span in &graph.initializers {
            let name = self.file.tensor_name(*span)?;
            let id = self.id(name);
            self.flat.initializers.push(id);
        }
        for span in &graph.inputs {
            let name = self.file.value_name(*span)?;
            let id = self.id(name);
            self.flat.inputs.push(id);
        }
        for span in &graph.outputs {
            let name = self.file.value_name(*span)?;
            let id = self.id(name);
            self.flat.outputs.push(id);
        }
        Ok(())
    }

    fn body(&mut self) -> Result<(), ImportError> {
        if self.file.graph.nodes.len() > MAX_NODES {
            return Err(ImportError::TooManyNodes { limit: MAX_NODES });
        }
        self.flat.scopes[0].opset = opset("the model", &self.file.opsets)?;
        if !self.functions.is_empty() {
            for node in &self.file.graph.nodes {
                for name in self.file.head(*node)?.outputs {
                    self.id(name);
                }
            }
        }
        for node in &self.file.graph.nodes {
            let head = self.file.head(*node)?;
            let inputs = head.inputs.iter().map(|n| self.id(n)).collect();
            let outputs = head.outputs.iter().map(|n| self.id(n)).collect();
            self.node(*node, &head, 0, inputs, outputs)?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        span: Span,
        head: &Head<'a>,
        scope: u32,
        inputs: SmallVec<[ValueId; 4]>,
        outputs: SmallVec<[ValueId; 2]>,
    ) -> Result<(), ImportError> {
        self.count += 1;
        if self.count > MAX_NODES {
            return Err(ImportError::TooManyNodes { limit: MAX_NODES });
        }
        let key = (head.domain(), head.op, head.overload);
        if let Some(function) = self.functions.get(&key).copied() {
            return self.call(function, span, head, scope, (&inputs, &outputs));
        }
        let known = head.domain().is_empty() && (self.supported)(head.op);
        if known && !head.has_graph {
            self.flat.nodes.push(FlatNode { span: Some(span), scope, inputs, outputs });
        } else {
            let op = match head.domain() {
                "" => head.op.to_owned(),
                domain => format!("{domain}::{}", head.op),
            };
            let label = self.label(head, scope, &outputs);
            self.unsupported.entry(op).or_default().push(label);
        }
        Ok(())
    }

    /// The node as a phrase.
    fn label(&self, head: &Head<'_>, scope: u32, outputs: &[ValueId]) -> String {
        let path = &self.flat.scopes[scope as usize].path;
        if !head.name.is_empty() {
            return format!("node `{path}{}`", head.name);
        }
        let first = outputs.iter().find(|id| **id != NONE);
        let name = first.and_then(|id| self.flat.names.get(*id as usize));
        name.map_or_else(|| "a node without results".to_owned(), |n| format!("the node of `{n}`"))
    }

    /// Expands a call of the function numbered `number`.
    fn call(
        &mut self,
        number: usize,
        span: Span,
        head: &Head<'a>,
        scope: u32,
        (inputs, outputs): (&[ValueId], &[ValueId]),
    ) -> Result<(), ImportError> {
        let file = self.file;
        let function = &file.functions[number];
        if let Some(reason) = self.objection(number, head, inputs.len(), outputs.len())? {
            let (node, function) = (self.label(head, scope, outputs), function.name.clone());
            return Err(ImportError::Call { node, function, reason });
        }
        let inner = self.scope(function, span, head, scope)?;
        let given = inputs.iter().copied().chain(std::iter::repeat(NONE));
        let mut locals: HashMap<&'a str, ValueId> =
            file.texts(&function.inputs)?.into_iter().zip(given).collect();
        let mut returned = Vec::new();
        let results = file.texts(&function.outputs)?.into_iter().zip(outputs);
        for (name, id) in results.filter(|(_, id)| **id != NONE) {
            match locals.get(name) {
                // A value that is returned twice, or an input that is returned.
                Some(from) => returned.push((*from, *id)),
                None => {
                    locals.insert(name, *id);
                }
            }
        }
        self.calls.push(number);
        for node in &function.nodes {
            let inner_head = file.head(*node)?;
            let mut local = |name: &&'a str| match locals.get(*name) {
                Some(id) => *id,
                None if name.is_empty() => NONE,
                None => {
                    let full = format!("{}{name}", self.flat.scopes[inner as usize].path);
                    let id = self.inner_id(full);
                    locals.insert(name, id);
                    id
                }
            };
            let inputs = inner_head.inputs.iter().map(&mut local).collect();
            let outputs = inner_head.outputs.iter().map(&mut local).collect();
            self.node(*node, &inner_head, inner, inputs, outputs)?;
        }
        self.calls.pop();
        for (from, to) in returned {
            let (inputs, outputs) = (SmallVec::from_slice(&[from]), SmallVec::from_slice(&[to]));
            self.flat.nodes.push(FlatNode { span: None, scope: inner, inputs, outputs });
        }
        Ok(())
    }

    /// Why the function numbered `number` cannot be called so, if it cannot.
    fn objection(
        &self,
        number: usize,
        head: &Head<'_>,
        operands: usize,
        results: usize,
    ) -> Result<Option<String>, ImportError> {
        let Function { inputs, outputs, .. } = &self.file.functions[number];
        let mut names = self.file.texts(inputs)?;
        names.sort_unstable();
        Ok(if self.calls.contains(&number) {
            Some("the function calls itself".to_owned())
        } else if self.flat.scopes.len() > MAX_CALLS {
            Some(format!("more than {MAX_CALLS} calls are expanded"))
        } else if self.calls.len() >= MAX_DEPTH {
            Some(format!("calls nest deeper than {MAX_DEPTH}"))
        } else if operands > inputs.len() {
            Some(format!("it has {operands} operands, the function {}", inputs.len()))
        } else if results > outputs.len() {
            Some(format!("it has {results} results, the function {}", outputs.len()))
        } else if names.windows(2).any(|pair| pair[0] == pair[1]) {
            Some("two inputs of the function have one name".to_owned())
        } else if head.has_graph {
            Some("an attribute that is a graph is not supported".to_owned())
        } else {
            None
        })
    }

    /// The scope of a call: its path, and the attributes that the call or the function gives.
    fn scope(
        &mut self,
        function: &Function,
        span: Span,
        head: &Head<'_>,
        outer: u32,
    ) -> Result<u32, ImportError> {
        let place = format!("the function `{}`", function.name);
        let opset = opset(&place, &function.opsets)?;
        let mut attributes = BTreeMap::new();
        for default in &function.defaults {
            let attribute = self.file.attribute(*default)?;
            attributes.insert(attribute.name().to_owned(), attribute);
        }
        let caller = &self.flat.scopes[outer as usize];
        let taken = self.file.texts(&function.attributes)?;
        for given in self.file.node(span)?.attribute {
            let name = given.name().to_owned();
            let known = taken.contains(&name.as_str()) || attributes.contains_key(&name);
            if let Some(given) = caller.resolve(given).filter(|_| known) {
                attributes.insert(name, given);
            }
        }
        let label = if head.name.is_empty() { &function.name } else { head.name };
        let path = format!("{}{label}/", caller.path);
        self.flat.scopes.push(Scope { path, attributes, opset });
        Ok(u32::try_from(self.flat.scopes.len() - 1).unwrap_or(NONE))
    }
}

/// The version of ONNX's operators among `opsets`. Where there is none, only other domains are used.
fn opset(place: &str, opsets: &Opsets) -> Result<i64, ImportError> {
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

impl Scope {
    /// The attribute with a reference to one of the call's replaced by it; none where the call does not give it.
    pub(super) fn resolve(&self, attribute: AttributeProto) -> Option<AttributeProto> {
        if attribute.ref_attr_name().is_empty() {
            return Some(attribute);
        }
        let given = self.attributes.get(attribute.ref_attr_name())?;
        Some(AttributeProto { name: attribute.name, ..given.clone() })
    }
}

impl Flat {
    /// The name of a value.
    pub(super) fn name(&self, id: ValueId) -> &str {
        self.names.get(id as usize).map_or("", |n| n)
    }

    /// A node as a phrase.
    pub(super) fn label(&self, file: &File, node: &FlatNode) -> String {
        let path = &self.scopes[node.scope as usize].path;
        match node.span.and_then(|s| file.head(s).ok()).filter(|h| !h.name.is_empty()) {
            Some(head) => format!("node `{path}{}`", head.name),
            None => match node.outputs.iter().find(|id| **id != NONE) {
                Some(first) => format!("the node of `{}`", self.name(*first)),
                None => "a node without results".to_owned(),
            },
        }
    }

    /// Puts the nodes in the order of their operands: as in the file where that is one.
    fn sort(&mut self, file: &File) -> Result<(), ImportError> {
        let givers = self.givers(file)?;
        let mut waiting = vec![0u32; self.nodes.len()];
        let mut users: Vec<Vec<u32>> = Vec::new();
        let mut sorted = true;
        for (i, node) in self.nodes.iter().enumerate() {
            for id in node.inputs.iter().filter(|id| **id != NONE) {
                match givers[*id as usize] {
                    Giver::Nothing => return Err(self.undefined(*id, self.label(file, node))),
                    Giver::Boundary => {}
                    Giver::Node(n) => sorted &= (n as usize) < i,
                }
            }
        }
        for id in self.outputs.iter().filter(|id| **id != NONE) {
            if matches!(givers[*id as usize], Giver::Nothing) {
                return Err(self.undefined(*id, "an output of the model".to_owned()));
            }
        }
        if sorted {
            return Ok(());
        }
        users.resize(self.nodes.len(), Vec::new());
        for (i, node) in (0u32..).zip(&self.nodes) {
            for id in node.inputs.iter().filter(|id| **id != NONE) {
                if let Giver::Node(n) = givers[*id as usize] {
                    users[n as usize].push(i);
                    waiting[i as usize] += 1;
                }
            }
        }
        let order = ready_first(&mut waiting, &users);
        if let Some(stuck) = waiting.iter().position(|w| *w > 0) {
            return Err(ImportError::Cycle { node: self.label(file, &self.nodes[stuck]) });
        }
        let mut nodes: Vec<Option<FlatNode>> = self.nodes.drain(..).map(Some).collect();
        self.nodes = order.into_iter().filter_map(|i| nodes[i as usize].take()).collect();
        Ok(())
    }

    fn undefined(&self, value: ValueId, user: String) -> ImportError {
        ImportError::Undefined { value: self.name(value).to_owned(), user }
    }

    /// What gives each value. An input may have an initializer, which is its default; nothing else is given twice.
    fn givers(&self, file: &File) -> Result<Vec<Giver>, ImportError> {
        let mut givers = vec![Giver::Nothing; self.names.len()];
        for (kind, ids) in [("input", &self.inputs), ("initializer", &self.initializers)] {
            let mut seen = vec![false; self.names.len()];
            for id in ids {
                let Some(seen) = seen.get_mut(*id as usize) else {
                    let value = String::new();
                    return Err(ImportError::Undefined { value, user: format!("an {kind}") });
                };
                if std::mem::replace(seen, true) {
                    return Err(self.duplicate(*id, format!("an {kind}"), format!("an {kind}")));
                }
                givers[*id as usize] = Giver::Boundary;
            }
        }
        for (i, node) in (0u32..).zip(&self.nodes) {
            for id in node.outputs.iter().filter(|id| **id != NONE) {
                let first = match givers[*id as usize] {
                    Giver::Nothing => {
                        givers[*id as usize] = Giver::Node(i);
                        continue;
                    }
                    Giver::Boundary => "an input or initializer".to_owned(),
                    Giver::Node(n) => self.label(file, &self.nodes[n as usize]),
                };
                return Err(self.duplicate(*id, first, self.label(file, node)));
            }
        }
        Ok(givers)
    }

    fn duplicate(&self, value: ValueId, first: String, second: String) -> ImportError {
        ImportError::Duplicate { value: self.name(value).to_owned(), first, second }
    }
}

#[derive(Clone, Copy)]
enum Giver {
    Nothing,
    Boundary,
    Node(u32),
}

/// The nodes in the order of their operands, of those that are ready the first in the file first. Those that
/// never are keep a count in `waiting`.
fn ready_first(waiting: &mut [u32], users: &[Vec<u32>]) -> Vec<u32> {
    let ready = (0u32..).zip(waiting.iter()).filter(|(_, w)| **w == 0).map(|(i, _)| Reverse(i));
    let mut ready: BinaryHeap<Reverse<u32>> = ready.collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for user in &users[i as usize] {
            waiting[*user as usize] -= 1;
            if waiting[*user as usize] == 0 {
                ready.push(Reverse(*user));
            }
        }
    }
    order
}
