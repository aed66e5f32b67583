//! A graph while it is built from a file: its values, and the tensors they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{Budget, FileError, Quoted};
use super::declared::Declared;
use super::external::Folder;
use super::file::File;
use super::flat::{FlatNode, Given, NONE, ValueId};
use super::flatten::Layout;
use super::follow::{Element, Followed, KnownOperand, follow, numbers};
use super::proto::TensorProto;
use super::wire::Span;
use super::{ImportError, NodeError, tensor};
use crate::ir::{Builder, ContentHash, ResultInfo, Source, Value};
use crate::op::{self, Op, Operand};
use crate::types::{Dim, FastMap, FastSet, Note, Tensor, TensorType};

/// Tensors of integers up to this number of elements stand in the graph, where their values can be
/// followed.
const INLINE_INTS: usize = op::infer::MAX_INTS;

/// Float tensors of `Constant` nodes up to this number of elements stand in the graph.
const INLINE_FLOATS: usize = 64;

/// The tensors of the file that were read, by their place in it: each is read and charged once.
pub(super) struct Tensors {
    read: FastMap<usize, Tensor>,
    /// The hashes of those that are parameters: a model that is imported again has them.
    hashes: FastMap<usize, ContentHash>,
    folder: Folder,
    budget: Budget,
    /// The bytes that were charged for tensors that nodes make.
    made: u64,
    /// Whether some were read since the files were compared with those that were opened.
    unchecked: bool,
}

impl Tensors {
    /// None of the folder's tensors.
    pub(super) fn new(folder: Folder, budget: Budget) -> Self {
        let (read, hashes) = (FastMap::default(), FastMap::default());
        Self { read, hashes, folder, budget, made: 0, unchecked: false }
    }

    /// Begins an import, to which what nodes of earlier ones made is not charged. Who keeps models
    /// of several imports limits what they take together.
    pub(super) fn begin(&mut self) {
        self.budget.release(std::mem::take(&mut self.made));
    }

    /// Fails if a file was changed while its tensors were read.
    pub(super) fn check(&mut self) -> Result<(), FileError> {
        // What is in memory stays as it is when another file takes the place of this one.
        if self.unchecked {
            self.folder.check()?;
            self.unchecked = false;
        }
        Ok(())
    }

    /// The hash of the tensor that was read at a place; `None` is the place of what a node makes.
    fn hash(&mut self, at: Option<usize>, tensor: &Tensor) -> ContentHash {
        match at {
            Some(at) => *self.hashes.entry(at).or_insert_with(|| ContentHash::of(tensor)),
            None => ContentHash::of(tensor),
        }
    }

    /// The tensor at the place `at` of the file, read from what `proto` gives unless it was before.
    fn get(
        &mut self,
        at: usize,
        name: &str,
        proto: impl FnOnce() -> Result<TensorProto, ImportError>,
    ) -> Result<Tensor, ImportError> {
        if let Some(tensor) = self.read.get(&at) {
            return Ok(tensor.clone());
        }
        self.unchecked = true;
        let tensor = tensor::read(&proto()?, name, &mut self.folder, &mut self.budget)?;
        self.read.insert(at, tensor.clone());
        Ok(tensor)
    }
}

/// A graph while the nodes are converted.
pub(super) struct State<'a> {
    pub(super) file: &'a File,
    pub(super) layout: Layout<'a>,
    pub(super) builder: Builder,
    /// The batch size of the file, where it was freed.
    pub(super) freed: Option<i64>,
    /// The sizes of the classes of the inputs' sizes.
    pub(super) classes: Vec<Dim>,
    /// The types that the file declares for results of foreign operators.
    pub(super) declared: &'a Declared,
    pub(super) tensors: &'a mut Tensors,
    pub(super) initializers: &'a FastMap<ValueId, Span>,
    /// Those of bodies.
    pub(super) inner: FastMap<ValueId, Span>,
    /// The places in the file of the tensors that values are.
    pub(super) placed: FastMap<ValueId, usize>,
    /// The tensors that every run of a body has alike, by their place in the file and the call
    /// that they belong to.
    pub(super) shared: FastMap<(usize, u32), Value>,
    pub(super) values: Vec<Option<Value>>,
    /// The tensors of values that do not depend on a run.
    pub(super) constants: BTreeMap<Value, Tensor>,
    /// The elements of float results that depend on the batch alone.
    pub(super) followed: BTreeMap<Value, Vec<Element>>,
    /// The file by the name it was given.
    pub(super) source: Arc<str>,
    /// Whether only types are read, not elements.
    pub(super) dry: bool,
    /// The bytes of attributes of calls that nodes used.
    pub(super) referred: usize,
    /// The values that hold strings, or follow from some.
    pub(super) texts: FastSet<ValueId>,
    /// What nodes have to say of how they were read.
    pub(super) notes: Vec<Note>,
}

impl State<'_> {
    /// The error of a node.
    pub(super) fn failed(&self, node: &FlatNode, op: &str, error: NodeError) -> ImportError {
        let error = if self.freed.is_some() { error.after_freeing() } else { error };
        ImportError::Node { node: self.layout.flat.label(node), op: op.to_owned(), error }
    }

    /// The first `count` operands of a node, without those left out at the end.
    pub(super) fn operands(
        &mut self,
        node: &FlatNode,
        op: &str,
        count: usize,
    ) -> Result<Vec<Option<Value>>, ImportError> {
        let mut inputs = Vec::with_capacity(count);
        for (i, id) in node.inputs[..count].iter().enumerate() {
            inputs.push(match *id {
                NONE => None,
                id => Some(self.value(id)?.ok_or_else(|| {
                    let name = self.layout.flat.name(id);
                    let text = format!("operand {i}, the result {},", Quoted(&name));
                    self.failed(node, op, NodeError::Unsupported(text))
                })?),
            });
        }
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        Ok(inputs)
    }

    /// The value that an operand names, where the node that gives it does so.
    pub(super) fn value(&mut self, id: ValueId) -> Result<Option<Value>, ImportError> {
        if let Some(value) = self.values.get(id as usize).copied().flatten() {
            return Ok(Some(value));
        }
        let span = self.initializers.get(&id).or_else(|| self.inner.get(&id)).copied();
        let Some(span) = span else { return Ok(None) };
        let (name, file, at) = (self.layout.flat.name(id), self.file, span.range().start);
        // Each run of a body names its initializers anew.
        if let Some(value) = self.shared.get(&(at, 0)) {
            return Ok(Some(*value));
        }
        self.placed.insert(id, at);
        let tensor = self.tensors.get(at, &name, || file.tensor(span))?;
        let small = match tensor.dtype() {
            t if t.is_float() => tensor.rank() == 0,
            _ => tensor.len() <= INLINE_INTS,
        };
        let value = self.tensor_value(id, tensor, small);
        self.shared.insert((at, 0), value);
        self.values[id as usize] = Some(value);
        Ok(Some(value))
    }

    /// The tensor that a node makes, as a value.
    pub(super) fn constant(&mut self, id: ValueId, tensor: Tensor) -> Value {
        let few = if tensor.dtype().is_float() { INLINE_FLOATS } else { INLINE_INTS };
        let small = tensor.len() <= few;
        self.tensor_value(id, tensor, small)
    }

    /// The tensor that an input is known to be, as a value. No file has it, so it stands in the
    /// graph.
    pub(super) fn inline(&mut self, id: ValueId, tensor: Tensor) -> Value {
        self.tensor_value(id, tensor, true)
    }

    /// Marks values that hold strings, or follow from some.
    pub(super) fn leave_out(&mut self, ids: impl IntoIterator<Item = ValueId>) {
        self.texts.extend(ids.into_iter().filter(|id| *id != NONE));
    }

    /// A tensor that an importer made of attributes, as a parameter: it is made again from the
    /// model.
    pub(super) fn table(&mut self, name: &str, tensor: Tensor) -> Value {
        let name = self.builder.fresh(name);
        if self.dry {
            return self.builder.input(&name, tensor.tensor_type());
        }
        let source = Source::folded(self.source.clone(), &name);
        self.builder.param_from(&name, source, tensor)
    }

    /// A tensor of the file as a value: an operator where it is `small`, else a parameter.
    fn tensor_value(&mut self, id: ValueId, tensor: Tensor, small: bool) -> Value {
        let name = self.layout.flat.name(id);
        let inline = op::Constant { value: tensor.clone() };
        let value = match small.then(|| self.builder.op(&name, inline, &[])) {
            Some(Ok(value)) => value,
            // Types do not need the elements, nor their hash.
            _ if self.dry => self.builder.input(&name, tensor.tensor_type()),
            _ => {
                let at = self.placed.get(&id).copied();
                let key = self.layout.flat.key(id, at);
                let source = Source { file: self.source.clone(), key: key.into() };
                let name = self.builder.fresh(&name);
                let hash = self.tensors.hash(at, &tensor);
                self.builder.param_of(&name, source, tensor.clone(), hash)
            }
        };
        self.constants.insert(value, tensor);
        value
    }

    /// Known elements of the result of an operator before it is added.
    pub(super) fn follow(&self, op: &Op, operands: &[Value]) -> Option<Followed> {
        let known = operands.iter().map(|value| {
            let ResultInfo { ty, ints, .. } = self.builder.graph().info(*value);
            let operand = Operand { ty, ints: ints.as_deref() };
            Some(KnownOperand { operand, elements: self.elements(*value)? })
        });
        follow(op, &known.collect::<Option<Vec<_>>>()?)
    }

    /// Notes the elements of a float.
    pub(super) fn note(&mut self, value: Value, elements: Vec<Element>) {
        match numbers(&elements, self.builder.graph().ty(value)) {
            Some(tensor) => drop(self.constants.insert(value, tensor)),
            None => drop(self.followed.insert(value, elements)),
        }
    }

    /// The elements of a value, where they are known and few.
    fn elements(&self, value: Value) -> Option<Vec<Element>> {
        if let Some(ints) = &self.builder.graph().info(value).ints {
            return ints.iter().map(Element::integer).collect();
        }
        if let Some(followed) = self.followed.get(&value) {
            return Some(followed.clone());
        }
        let tensor = self.known(value).filter(|t| t.dtype().is_float())?;
        // Sizes are short lists; weights are not followed.
        let few = tensor.len() <= op::infer::MAX_INTS;
        few.then(|| tensor.to_f64().into_iter().map(Element::Number).collect())
    }

    /// Whether a value of one element is other than 0, where that is known.
    pub(super) fn truth(&self, value: Value) -> Option<bool> {
        let [element] = &self.elements(value)?[..] else { return None };
        Some(element.number()? != 0.0)
    }

    /// The only element of a value, where it is a known integer.
    pub(super) fn whole_number(&self, value: Value) -> Option<Dim> {
        let [element] = &self.elements(value)?[..] else { return None };
        element.size()
    }

    /// The tensor of a value that is one of the file's.
    pub(super) fn known(&self, value: Value) -> Option<&Tensor> {
        self.constants.get(&value)
    }

    /// Reads the tensor of an attribute, which gives the value `id`.
    pub(super) fn attribute_tensor(
        &mut self,
        id: ValueId,
        given: &Given,
    ) -> Result<Tensor, NodeError> {
        let attribute = given.proto.name();
        self.placed.insert(id, given.at);
        let proto = given.proto.t.as_ref().ok_or_else(|| NodeError::Attribute {
            name: attribute.to_owned(),
            reason: "holds no tensor".to_owned(),
        })?;
        let unread = |error: ImportError| {
            if let ImportError::Memory(over) = error {
                return NodeError::Memory(over);
            }
            NodeError::Tensor { name: attribute.to_owned(), reason: error.to_string() }
        };
        let name = self.layout.flat.name(id);
        self.tensors.get(given.at, &name, || Ok(proto.clone())).map_err(unread)
    }

    /// Charges a tensor that a node makes.
    pub(super) fn charge(&mut self, ty: &TensorType) -> Result<(), NodeError> {
        // A size that is not known, or too large to be one, is beyond every budget.
        let bytes = ty.bytes().as_const().and_then(|b| u64::try_from(b).ok()).unwrap_or(u64::MAX);
        // A dry build makes no tensors.
        let mut budget = self.tensors.budget;
        budget.charge(&ty.to_string(), bytes).map_err(NodeError::Memory)?;
        if !self.dry {
            self.tensors.budget = budget;
            self.tensors.made += bytes;
        }
        Ok(())
    }

    /// Sets the value that a node's result names, unless it is left out.
    pub(super) fn set(&mut self, id: ValueId, value: Value) {
        if id != NONE {
            self.values[id as usize] = Some(value);
        }
    }
}
