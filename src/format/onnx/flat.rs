//! The values and nodes of a model, with the calls of its functions and bodies expanded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use smallvec::SmallVec;

use super::super::Quoted;
use super::ImportError;
use super::file::{File, Head};
use super::proto::AttributeProto;
use super::wire::Span;

/// The bytes of a scope's path, and of one name in it, that are kept.
const MAX_PATH: usize = 128;
const MAX_NAME: usize = 64;

/// What stands before the place of a tensor in the key of a parameter.
pub(super) const PLACE: &str = "@byte";

/// A value of the model by its number; [`NONE`] for an operand or result that is left out.
pub(super) type ValueId = u32;

/// Stands for an operand or result that is left out.
pub(super) const NONE: ValueId = u32::MAX;

/// A node: an operator applied to values.
pub(super) struct FlatNode {
    /// The node in the file; none for the identity by which a function returns its own input.
    pub(super) span: Option<Span>,
    /// The scope that it belongs to.
    pub(super) scope: u32,
    /// Its operands, and behind them the values that its bodies capture.
    pub(super) inputs: SmallVec<[ValueId; 4]>,
    pub(super) outputs: SmallVec<[ValueId; 2]>,
}

/// Nodes that are laid out together: those of the model's own graph, or of one run of a body.
pub(super) struct Block {
    /// The first value that stands in it; those with a smaller number are given.
    pub(super) first: ValueId,
    pub(super) nodes: Vec<FlatNode>,
    pub(super) inputs: Vec<ValueId>,
    pub(super) initializers: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
}

/// The name of a value: as in the file, and the scope in which it stands.
#[derive(Clone, Copy)]
struct Name<'a> {
    scope: u32,
    text: &'a str,
}

/// An attribute as a node has it.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) proto: Rc<AttributeProto>,
    /// Its place in the file.
    pub(super) at: usize,
    /// The bytes that it takes in the file where a call gives it, else 0.
    pub(super) bytes: usize,
}

impl Given {
    /// An attribute of a node itself.
    pub(super) fn own(proto: AttributeProto, span: Span) -> Self {
        Self { proto: Rc::new(proto), at: span.range().start, bytes: 0 }
    }
}

/// The graph of the model (the first scope), one call of a function, or one run of a body.
pub(super) struct Scope {
    /// Stands before the names of its nodes and values.
    pub(super) path: String,
    /// The attributes that the call gives.
    pub(super) attributes: Rc<BTreeMap<String, Given>>,
    /// The version of ONNX's operators.
    pub(super) opset: i64,
    /// The scope around it; its own number for the first.
    pub(super) outer: u32,
    /// The function whose call it is, by its number.
    pub(super) function: Option<usize>,
    /// The call whose attributes its nodes have: its own number, but for a body.
    pub(super) call: u32,
}

impl Scope {
    /// The name of a node or value of the scope, after its path.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{}", self.path, shortened(name))
    }

    /// The path of a call or a body inside this scope.
    pub(super) fn inner(&self, label: &str, part: &str) -> String {
        let (outer, label) = (&self.path, shortened(label));
        let slash = if part.is_empty() { "" } else { "/" };
        if outer.len() + label.len() + part.len() < MAX_PATH {
            format!("{outer}{label}{slash}{part}/")
        } else {
            format!("…/{label}{slash}{part}/")
        }
    }

    /// The attribute with a reference to one of the call's replaced by it; none where the call does
    /// not give it.
    pub(super) fn resolve(&self, attribute: Given) -> Option<Given> {
        let own = &attribute.proto;
        if own.ref_attr_name().is_empty() {
            return Some(attribute);
        }
        let given = self.attributes.get(own.ref_attr_name())?;
        if given.proto.name() == own.name() {
            return Some(given.clone());
        }
        let name = own.name.clone();
        let renamed = AttributeProto { name, ..AttributeProto::clone(&given.proto) };
        Some(Given { proto: Rc::new(renamed), ..given.clone() })
    }
}

/// A name of the file, or its beginning.
pub(super) fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME)]
}

/// The values and scopes of a model.
#[derive(Clone)]
pub(super) struct Flat<'a> {
    file: &'a File,
    /// The names of the values that every copy has.
    common: Rc<Vec<Name<'a>>>,
    /// Those of the values behind them.
    names: Vec<Name<'a>>,
    scopes: Vec<Rc<Scope>>,
}

impl<'a> Flat<'a> {
    /// Nothing but the scope of the model's graph.
    pub(super) fn new(file: &'a File, opset: i64) -> Self {
        let (path, attributes) = (String::new(), Rc::default());
        let model = Scope { path, attributes, opset, outer: 0, function: None, call: 0 };
        Self { file, common: Rc::default(), names: Vec::new(), scopes: vec![Rc::new(model)] }
    }

    /// Makes the values common to all copies that are made from now on, which add others.
    pub(super) fn share(&mut self) {
        if self.common.is_empty() {
            self.common = Rc::new(std::mem::take(&mut self.names));
        }
    }

    fn named(&self, id: ValueId) -> Option<&Name<'a>> {
        let at = id as usize;
        match at.checked_sub(self.common.len()) {
            None => self.common.get(at),
            Some(at) => self.names.get(at),
        }
    }

    /// A further value, inside the scope `scope`.
    pub(super) fn add_value(&mut self, scope: u32, text: &'a str) -> Result<ValueId, ImportError> {
        let id = self.next()?;
        self.names.push(Name { scope, text });
        Ok(id)
    }

    /// A further scope; `make` is given its number.
    pub(super) fn add_scope(
        &mut self,
        make: impl FnOnce(u32) -> Scope,
    ) -> Result<u32, ImportError> {
        let number = number(self.scopes.len(), "scopes")?;
        self.scopes.push(Rc::new(make(number)));
        Ok(number)
    }

    /// A scope by its number.
    pub(super) fn scope(&self, number: u32) -> &Rc<Scope> {
        &self.scopes[number as usize]
    }

    /// The scopes around one, from it outwards, without that of the model's graph.
    pub(super) fn around(&self, scope: u32) -> impl Iterator<Item = &Scope> {
        let inner = |number: &u32| *number != 0;
        let next = move |number: &u32| Some(self.scope(*number).outer).filter(inner);
        let numbers = std::iter::successors(Some(scope).filter(inner), next);
        numbers.map(|number| &**self.scope(number))
    }

    /// The number of values.
    pub(super) fn values(&self) -> usize {
        self.common.len() + self.names.len()
    }

    /// The number of the value that is added next.
    pub(super) fn next(&self) -> Result<ValueId, ImportError> {
        number(self.values(), "values")
    }

    /// The name of a value: as in the file; inside a scope, after its path.
    pub(super) fn name(&self, id: ValueId) -> Cow<'a, str> {
        match self.named(id) {
            None => Cow::Borrowed(""),
            Some(Name { scope: 0, text }) => Cow::Borrowed(text),
            Some(Name { scope, text }) => Cow::Owned(self.scope(*scope).full(text)),
        }
    }

    /// The name in the file of a value, without the path of its scope.
    pub(super) fn text(&self, id: ValueId) -> &'a str {
        // What was made while reading has no name in the file.
        self.named(id).map_or("", |name| name.text)
    }

    /// The name in the file of a value of the model's graph.
    pub(super) fn own_name(&self, id: ValueId) -> Option<&'a str> {
        self.named(id).filter(|name| name.scope == 0).map(|name| name.text)
    }

    /// The name of a value that no other has. Outside the model's graph names are not enough: `at`
    /// is the place of its tensor, by which it is found again.
    pub(super) fn key(&self, id: ValueId, at: Option<usize>) -> Cow<'a, str> {
        match (self.named(id), at) {
            (Some(Name { scope: 1.., .. }), Some(at)) => {
                Cow::Owned(format!("{}{PLACE}{at}", self.name(id)))
            }
            (Some(Name { scope: 1.., .. }), None) => Cow::Owned(format!("{}@{id}", self.name(id))),
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
            name => Cow::Owned(self.scope(node.scope).full(name)),
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
                _ => format!("node {}", Quoted(&self.scope(scope).full(name))),
            };
        }
        match outputs.iter().find(|id| **id != NONE) {
            Some(first) => format!("the node of {}", Quoted(&self.name(*first))),
            None => "a node without results".to_owned(),
        }
    }
}

/// The number of the next of `count` values or scopes; [`NONE`] is none.
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
