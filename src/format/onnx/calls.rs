//! The functions of a model, and their calls.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use smallvec::SmallVec;

use super::super::Quoted;
use super::ImportError;
use super::file::{File, Function, Head};
use super::flatten::{FlatNode, Flattener, NONE, ValueId, opset};
use super::proto::AttributeProto;
use super::wire::Span;

/// Calls of functions inside functions.
const MAX_DEPTH: usize = 64;

/// The nodes that calls expand to, the calls included.
const MAX_NODES: usize = 1 << 17;

/// The bytes of the functions that calls expand to: what they would take in a file without functions.
const MAX_BYTES: usize = 1 << 26;

/// The bytes of a call's path, and of one name in it, that are kept.
const MAX_PATH: usize = 128;
const MAX_NAME: usize = 64;

/// An attribute that a call gives, and the bytes it takes in the file.
pub(super) type Given = (Rc<AttributeProto>, usize);

/// The body of the model (the first scope) or one call of a function.
pub(super) struct Scope {
    /// Stands before the names of its nodes and values.
    path: String,
    /// The attributes that the call gives.
    attributes: BTreeMap<String, Given>,
    /// The version of ONNX's operators.
    pub(super) opset: i64,
}

impl Scope {
    /// The body of the model.
    pub(super) fn body(opset: i64) -> Self {
        Self { path: String::new(), attributes: BTreeMap::new(), opset }
    }

    /// The name of a node or value of a call, after the call's path.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{}", self.path, shortened(name))
    }

    /// The path of a call inside this scope.
    fn inner(&self, label: &str) -> String {
        let (outer, label) = (&self.path, shortened(label));
        if outer.len() + label.len() < MAX_PATH {
            format!("{outer}{label}/")
        } else {
            format!("…/{label}/")
        }
    }

    /// The attribute with a reference to one of the call's replaced by it; none where the call does not give it. The
    /// size is 0 where nothing was replaced.
    pub(super) fn resolve(&self, attribute: AttributeProto) -> Option<Given> {
        if attribute.ref_attr_name().is_empty() {
            return Some((Rc::new(attribute), 0));
        }
        let (given, bytes) = self.attributes.get(attribute.ref_attr_name())?;
        if given.name() == attribute.name() {
            return Some((given.clone(), *bytes));
        }
        let renamed = AttributeProto { name: attribute.name, ..AttributeProto::clone(given) };
        Some((Rc::new(renamed), *bytes))
    }
}

/// A name of the file, or its beginning.
pub(super) fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME)]
}

/// A function as its calls see it.
struct Callee<'a> {
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
    /// The names of attributes that a call may give.
    attributes: Vec<&'a str>,
    /// Attributes with the value they have where a call does not give them.
    defaults: Vec<(String, Given)>,
    opset: i64,
}

/// The functions of a model, and what their calls took.
pub(super) struct Calls<'a> {
    numbers: BTreeMap<(&'a str, &'a str, &'a str), usize>,
    callees: Vec<Option<Rc<Callee<'a>>>>,
    /// The functions whose calls are being expanded.
    open: Vec<usize>,
    nodes: usize,
    bytes: usize,
}

impl<'a> Calls<'a> {
    /// The functions of the model; each is there once.
    pub(super) fn of(file: &'a File) -> Result<Self, ImportError> {
        let mut numbers = BTreeMap::new();
        for (i, f) in file.functions.iter().enumerate() {
            if numbers.insert((&*f.domain, &*f.name, &*f.overload), i).is_some() {
                let (value, function) = (full_name(f), || "a function".to_owned());
                return Err(ImportError::Duplicate {
                    value,
                    first: function(),
                    second: function(),
                });
            }
        }
        let callees = vec![None; file.functions.len()];
        Ok(Self { numbers, callees, open: Vec::new(), nodes: 0, bytes: 0 })
    }

    /// The number of the function that a node calls.
    pub(super) fn function(&self, head: &Head<'_>) -> Option<usize> {
        if self.numbers.is_empty() {
            return None;
        }
        self.numbers.get(&(head.domain(), head.op, head.overload)).copied()
    }

    /// The function numbered `number`, read once.
    fn callee(&mut self, file: &'a File, number: usize) -> Result<Rc<Callee<'a>>, ImportError> {
        if let Some(callee) = &self.callees[number] {
            return Ok(callee.clone());
        }
        let function = &file.functions[number];
        let default = |span: &Span| {
            let attribute = file.attribute(*span)?;
            Ok((attribute.name().to_owned(), (Rc::new(attribute), span.len())))
        };
        let defaults = function.defaults.iter().map(default);
        let mut attributes = file.texts(&function.attributes)?;
        attributes.sort_unstable();
        let callee = Rc::new(Callee {
            inputs: file.texts(&function.inputs)?,
            outputs: file.texts(&function.outputs)?,
            attributes,
            defaults: defaults.collect::<Result<_, ImportError>>()?,
            opset: opset(&format!("the function {}", Quoted(&function.name)), &function.opsets)?,
        });
        self.callees[number] = Some(callee.clone());
        Ok(callee)
    }

    /// Counts what a call of `function` takes, the call's own `bytes` included.
    fn charge(&mut self, function: &Function, bytes: usize) -> Result<(), String> {
        self.nodes = self.nodes.saturating_add(1).saturating_add(function.nodes.len());
        self.bytes = self.bytes.saturating_add(function.span.len()).saturating_add(bytes);
        if self.nodes > MAX_NODES {
            return Err(format!("the calls expand to more than {MAX_NODES} nodes"));
        }
        if self.bytes > MAX_BYTES {
            return Err(format!("the calls expand to more than {MAX_BYTES} bytes"));
        }
        Ok(())
    }
}

fn full_name(function: &Function) -> String {
    match &*function.domain {
        "" => function.name.clone(),
        domain => format!("{domain}::{}", function.name),
    }
}

impl<'a> Flattener<'a> {
    /// Expands a call of the function numbered `number`.
    pub(super) fn call(
        &mut self,
        number: usize,
        span: Span,
        head: &Head<'a>,
        scope: u32,
        (inputs, outputs): (&[ValueId], &[ValueId]),
    ) -> Result<(), ImportError> {
        let file = self.file;
        let function = &file.functions[number];
        let callee = self.calls.callee(file, number)?;
        let counts = (inputs.len(), outputs.len());
        let objection = self.objection(number, &callee, head, counts);
        if let Err(reason) = objection.and_then(|()| self.calls.charge(function, span.len())) {
            let node = self.flat.phrase(head.name, scope, outputs);
            return Err(ImportError::Call { node, function: function.name.clone(), reason });
        }
        let inner = self.scope(function, &callee, span, head, scope)?;
        let given = inputs.iter().copied().chain(std::iter::repeat(NONE));
        let mut locals: HashMap<&'a str, ValueId> =
            callee.inputs.iter().copied().zip(given).collect();
        let mut returned = Vec::new();
        for (name, id) in callee.outputs.iter().zip(outputs).filter(|(_, id)| **id != NONE) {
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
            let inner_head = file.head(*node)?;
            let mut local = |name: &&'a str| match locals.get(*name) {
                Some(id) => *id,
                None if name.is_empty() => NONE,
                None => {
                    let id = self.new_id(inner, name);
                    locals.insert(name, id);
                    id
                }
            };
            let inputs = inner_head.inputs.iter().map(&mut local).collect();
            let outputs = inner_head.outputs.iter().map(&mut local).collect();
            self.node(*node, &inner_head, inner, inputs, outputs)?;
        }
        self.calls.open.pop();
        for (from, to) in returned {
            let (inputs, outputs) = (SmallVec::from_slice(&[from]), SmallVec::from_slice(&[to]));
            self.flat.nodes.push(FlatNode { span: None, scope: inner, inputs, outputs });
        }
        Ok(())
    }

    /// Fails if the function numbered `number` cannot be called so.
    fn objection(
        &self,
        number: usize,
        callee: &Callee<'_>,
        head: &Head<'_>,
        (operands, results): (usize, usize),
    ) -> Result<(), String> {
        let mut names = callee.inputs.clone();
        names.sort_unstable();
        let open = &self.calls.open;
        Err(if let Some(first) = open.iter().position(|n| *n == number) {
            let shown = |n: &usize| Quoted(&self.file.functions[*n].name).to_string();
            let cycle: Vec<String> = open[first..].iter().chain([&number]).map(shown).collect();
            format!("the function calls itself: {}", cycle.join(" calls "))
        } else if open.len() >= MAX_DEPTH {
            format!("calls nest deeper than {MAX_DEPTH}")
        } else if operands > callee.inputs.len() {
            format!("it has {operands} operands, the function {}", callee.inputs.len())
        } else if results > callee.outputs.len() {
            format!("it has {results} results, the function {}", callee.outputs.len())
        } else if names.windows(2).any(|pair| pair[0] == pair[1]) {
            "two inputs of the function have one name".to_owned()
        } else if head.has_graph {
            "an attribute that is a graph is not supported".to_owned()
        } else {
            return Ok(());
        })
    }

    /// The scope of a call: its path, and the attributes that the call or the function gives.
    fn scope(
        &mut self,
        function: &Function,
        callee: &Callee<'a>,
        span: Span,
        head: &Head<'a>,
        outer: u32,
    ) -> Result<u32, ImportError> {
        let mut attributes: BTreeMap<String, Given> = callee.defaults.iter().cloned().collect();
        let caller = &self.flat.scopes[outer as usize];
        for given in self.file.attributes(span)? {
            let name = given.name().to_owned();
            let known = callee.attributes.binary_search(&name.as_str()).is_ok()
                || attributes.contains_key(&name);
            if let Some((given, bytes)) = caller.resolve(given).filter(|_| known) {
                attributes.insert(name, (given, bytes.max(span.len())));
            }
        }
        let label = if head.name.is_empty() { &function.name } else { head.name };
        let path = caller.inner(label);
        self.flat.scopes.push(Scope { path, attributes, opset: callee.opset });
        Ok(u32::try_from(self.flat.scopes.len() - 1).unwrap_or(NONE))
    }
}
