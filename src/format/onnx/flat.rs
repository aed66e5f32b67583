//! The values and nodes of a model, with the calls of its functions expanded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use smallvec::SmallVec;

use super::super::Quoted;
use super::ImportError;
use super::file::{File, Head};
use super::proto::AttributeProto;
use super::wire::Span;

/// The bytes of a call's path, and of one name in it, that are kept.
const MAX_PATH: usize = 128;
const MAX_NAME: usize = 64;

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

/// An attribute that a call gives, and the bytes it takes in the file.
pub(super) type Given = (Rc<AttributeProto>, usize);

/// The body of the model (the first scope) or one call of a function.
pub(super) struct Scope {
    /// Stands before the names of its nodes and values.
    pub(super) path: String,
    /// The attributes that the call gives.
    pub(super) attributes: BTreeMap<String, Given>,
    /// The version of ONNX's operators.
    pub(super) opset: i64,
}

impl Scope {
    /// The name of a node or value of a call, after the call's path.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{}", self.path, shortened(name))
    }

    /// The path of a call inside this scope.
    pub(super) fn inner(&self, label: &str) -> String {
        let (outer, label) = (&self.path, shortened(label));
        if outer.len() + label.len() < MAX_PATH {
            format!("{outer}{label}/")
        } else {
            format!("…/{label}/")
        }
    }

    /// The attribute with a reference to one of the call's replaced by it; none where the call does
    /// not give it. The size is 0 where nothing was replaced.
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

impl<'a> Flat<'a> {
    /// Nothing but the scope of the model's body.
    pub(super) fn new(file: &'a File, opset: i64) -> Self {
        Self {
            file,
            names: Vec::new(),
            nodes: Vec::with_capacity(file.graph.nodes.len()),
            scopes: vec![Scope { path: String::new(), attributes: BTreeMap::new(), opset }],
            inputs: Vec::new(),
            initializers: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// A further value, inside the call `scope`.
    pub(super) fn add_value(&mut self, scope: u32, text: &'a str) -> Result<ValueId, ImportError> {
        let id = number(self.names.len(), "values")?;
        self.names.push(Name { scope, text });
        Ok(id)
    }

    /// A further call.
    pub(super) fn add_scope(&mut self, scope: Scope) -> Result<u32, ImportError> {
        let number = number(self.scopes.len(), "calls")?;
        self.scopes.push(scope);
        Ok(number)
    }

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
        // The result of an expanded function has no node in the file, but a name.
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

/// The number of the next of `count` values or calls; [`NONE`] is none.
fn number(count: usize, what: &str) -> Result<u32, ImportError> {
    let next = u32::try_from(count).ok().filter(|next| *next != NONE);
    next.ok_or_else(|| ImportError::Internal(format!("a file has less than {NONE} {what}")))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn no_value_has_the_number_of_an_absent_one() {
        assert_eq!(number(0xffff_fffe, "values").unwrap(), 0xffff_fffe);
        let error = number(0xffff_ffff, "values").unwrap_err().to_string();
        assert_eq!(error, "internal error: a file has less than 4294967295 values");
        assert!(number(1 << 32, "values").is_err());
    }
}
