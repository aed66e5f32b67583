//! The functions of a model, their calls, and what calls and bodies expand to.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use smallvec::SmallVec;

use super::super::Quoted;
use super::ImportError;
use super::file::{File, Function, Head, opset};
use super::flat::{Flat, Given, ValueId};
use super::wire::Span;

/// Calls and bodies inside each other.
/// A bound on the recursion of the expansion.
pub(super) const MAX_DEPTH: usize = 64;

/// The nodes that calls and bodies expand to, the calls and the runs of bodies included.
pub(super) const MAX_NODES: usize = 1 << 17;

/// The bytes of what calls and bodies expand to: what they would take in a file without functions
/// and bodies.
pub(super) const MAX_BYTES: usize = 1 << 26;

/// A node of the model's graph, of a function that is called or of a body that is run.
pub(super) struct Site<'s, 'a> {
    pub(super) span: Span,
    pub(super) head: &'s Head<'a>,
    /// The scope that it belongs to.
    pub(super) scope: u32,
    pub(super) inputs: SmallVec<[ValueId; 4]>,
    pub(super) outputs: SmallVec<[ValueId; 2]>,
}

/// A function as its calls see it.
pub(super) struct Callee<'a> {
    pub(super) inputs: Vec<&'a str>,
    pub(super) outputs: Vec<&'a str>,
    /// The names of attributes that a call may give.
    pub(super) attributes: Vec<&'a str>,
    /// Attributes with the value they have where a call does not give them.
    pub(super) defaults: Vec<(String, Given)>,
    pub(super) opset: i64,
}

/// The functions of a model, and what calls and bodies took.
#[derive(Clone)]
pub(super) struct Calls<'a> {
    numbers: Rc<BTreeMap<(&'a str, &'a str, &'a str), usize>>,
    callees: Vec<Option<Rc<Callee<'a>>>>,
    nodes: usize,
    bytes: usize,
}

/// What calls and bodies expand to is too large.
pub(super) enum TooLarge {
    Nodes,
    Bytes,
}

/// As a clause about what expands.
impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes => write!(f, "more than {MAX_NODES} nodes"),
            Self::Bytes => write!(f, "more than {MAX_BYTES} bytes"),
        }
    }
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
        Ok(Self { numbers: Rc::new(numbers), callees, nodes: 0, bytes: 0 })
    }

    /// The number of the function that a node calls.
    pub(super) fn function(&self, head: &Head<'_>) -> Option<usize> {
        if self.numbers.is_empty() {
            return None;
        }
        self.numbers.get(&(head.domain(), head.op, head.overload)).copied()
    }

    /// The function numbered `number`, read once.
    pub(super) fn callee(
        &mut self,
        file: &'a File,
        number: usize,
    ) -> Result<Rc<Callee<'a>>, ImportError> {
        if let Some(callee) = &self.callees[number] {
            return Ok(callee.clone());
        }
        let function = &file.functions[number];
        let default = |span: &Span| {
            let given = Given::own(file.attribute(*span)?, *span);
            Ok((given.proto.name().to_owned(), Given { bytes: span.len(), ..given }))
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

    /// Fails if the function numbered `number` cannot be called so.
    pub(super) fn check(
        flat: &Flat<'_>,
        file: &File,
        number: usize,
        callee: &Callee<'_>,
        site: &Site<'_, '_>,
    ) -> Result<(), String> {
        let (operands, results) = (site.inputs.len(), site.outputs.len());
        let mut names = callee.inputs.clone();
        names.sort_unstable();
        let mut open: Vec<usize> = flat.around(site.scope).filter_map(|s| s.function).collect();
        open.reverse();
        // ONNX forbids recursion; the functions that are open are the way here, which names the
        // cycle.
        Err(if let Some(first) = open.iter().position(|n| *n == number) {
            let shown = |n: &usize| Quoted(&file.functions[*n].name).to_string();
            let cycle: Vec<String> = open[first..].iter().chain([&number]).map(shown).collect();
            format!("the function calls itself: {}", cycle.join(" calls "))
        } else if flat.around(site.scope).count() >= MAX_DEPTH {
            format!("calls nest deeper than {MAX_DEPTH}")
        } else if operands > callee.inputs.len() {
            format!("it has {operands} operands, the function {}", callee.inputs.len())
        } else if results > callee.outputs.len() {
            format!("it has {results} results, the function {}", callee.outputs.len())
        } else if names.windows(2).any(|pair| pair[0] == pair[1]) {
            "two inputs of the function have the same name".to_owned()
        } else if site.head.has_graph {
            "an attribute that is a graph is not supported".to_owned()
        } else {
            return Ok(());
        })
    }

    /// The nodes that calls and bodies took so far.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Counts what a call or the run of a body takes.
    pub(super) fn charge(&mut self, nodes: usize, bytes: usize) -> Result<(), TooLarge> {
        self.nodes = self.nodes.saturating_add(1).saturating_add(nodes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.nodes > MAX_NODES {
            return Err(TooLarge::Nodes);
        }
        if self.bytes > MAX_BYTES { Err(TooLarge::Bytes) } else { Ok(()) }
    }
}

fn full_name(function: &Function) -> String {
    match &*function.domain {
        "" => function.name.clone(),
        domain => format!("{domain}::{}", function.name),
    }
}
