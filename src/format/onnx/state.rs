//! A graph while it is built from a file: its values, and the tensors they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{Budget, FileError, Quoted};
use super::declared::Declared;
use super::external::Folder;
use super::file::File;
use super::flat::{Flat, FlatNode, NONE, ValueId};
use super::follow::{Element, Followed, KnownOperand, follow, numbers};
use super::proto::TensorProto;
use super::wire::Span;
use super::{ImportError, NodeError, tensor};
use crate::ir::{Builder, ResultInfo, Source, Value};
use crate::op::{self, Op, Operand};
use crate::types::{Dim, FastMap, FastSet, Note, Tensor, TensorType};

/// Tensors of integers up to this number of elements stand in the graph, where their values can be
/// followed.
const INLINE_INTS: usize = op::infer::MAX_INTS;

/// Float tensors of `Constant` nodes up to this number of elements stand in the graph.
const INLINE_FLOATS: usize = 64;

/// The tensors of the file that were read, by the value they give: each is read and charged once.
pub(super) struct Tensors {
    read: FastMap<ValueId, Tensor>,
    folder: Folder,
    budget: Budget,
}

impl Tensors {
    /// None of the folder's tensors.
    pub(super) fn new(folder: Folder, budget: Budget) -> Self {
        Self { read: FastMap::default(), folder, budget }
    }

    /// Fails if a file was changed while it was read.
    pub(super) fn check(&self) -> Result<(), FileError> {
        self.folder.check()
    }

    /// The tensor that gives the value `id`, read from what `proto` gives unless it was before.
    fn get(
        &mut self,
        id: ValueId,
        name: &str,
        proto: impl FnOnce() -> Result<TensorProto, ImportError>,
    ) -> Result<Tensor, ImportError> {
        if let Some(tensor) = self.read.get(&id).filter(|_| id != NONE) {
            return Ok(tensor.clone());
        }
        let tensor = tensor::read(&proto()?, name, &mut self.folder, &mut self.budget)?;
        self.read.insert(id, tensor.clone());
        Ok(tensor)
    }
}

/// A graph while the nodes are converted.
pub(super) struct State<'a> {
    pub(super) file: &'a File,
    pub(super) flat: &'a Flat<'a>,
    pub(super) builder: Builder,
    /// The batch size of the file, where it was freed.
    pub(super) freed: Option<i64>,
    /// The sizes of the classes of the inputs' sizes.
    pub(super) classes: Vec<Dim>,
    /// The types that the file declares for results of foreign operators.
    pub(super) declared: &'a Declared,
    pub(super) tensors: &'a mut Tensors,
    pub(super) initializers: &'a FastMap<ValueId, Span>,
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
    /// The operands of a node, without those left out at the end.
    pub(super) fn operands(
        &mut self,
        node: &FlatNode,
        failed: &dyn Fn(NodeError) -> ImportError,
    ) -> Result<Vec<Option<Value>>, ImportError> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (i, id) in node.inputs.iter().enumerate() {
            inputs.push(match *id {
                NONE => None,
                id => Some(self.value(id)?.ok_or_else(|| {
                    let name = self.flat.name(id);
                    let value = Quoted(&name);
                    failed(NodeError::Unsupported(format!("operand {i}, the result {value},")))
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
        if let Some(value) = self.values[id as usize] {
            return Ok(Some(value));
        }
        let Some(span) = self.initializers.get(&id).copied() else { return Ok(None) };
        let name = self.flat.name(id);
        let tensor = self.tensors.get(id, &name, || self.file.tensor(span))?;
        let small = match tensor.dtype() {
            t if t.is_float() => tensor.rank() == 0,
            _ => tensor.len() <= INLINE_INTS,
        };
        let value = self.tensor_value(id, tensor, small);
        self.values[id as usize] = Some(value);
        Ok(Some(value))
    }

    /// The tensor that a node makes, as a value.
    pub(super) fn constant(&mut self, id: ValueId, tensor: Tensor) -> Value {
        let few = if tensor.dtype().is_float() { INLINE_FLOATS } else { INLINE_INTS };
        let small = tensor.len() <= few;
        self.tensor_value(id, tensor, small)
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
        let source = Source { file: self.source.clone(), key: format!("folded:{name}").into() };
        self.builder.param_from(&name, source, tensor)
    }

    /// A tensor of the file as a value: an operator where it is `small`, else a parameter.
    fn tensor_value(&mut self, id: ValueId, tensor: Tensor, small: bool) -> Value {
        let name = self.flat.name(id);
        let inline = op::Constant { value: tensor.clone() };
        let value = match small.then(|| self.builder.op(&name, inline, &[])) {
            Some(Ok(value)) => value,
            // Types do not need the elements, nor their hash.
            _ if self.dry => self.builder.input(&name, tensor.tensor_type()),
            _ => {
                let source = Source { file: self.source.clone(), key: self.flat.key(id).into() };
                let name = self.builder.fresh(&name);
                self.builder.param_from(&name, source, tensor.clone())
            }
        };
        self.constants.insert(value, tensor);
        value
    }

    /// What is known of the result of an operator before it is added.
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

    /// The only element of a value, where it is a known integer.
    pub(super) fn whole_number(&self, value: Value) -> Option<Dim> {
        let [element] = &self.elements(value)?[..] else { return None };
        element.size()
    }

    /// The tensor of a value that is one of the file's.
    pub(super) fn known(&self, value: Value) -> Option<&Tensor> {
        self.constants.get(&value)
    }

    /// Reads a tensor of an attribute, which gives the value `id`.
    pub(super) fn attribute_tensor(
        &mut self,
        id: ValueId,
        attribute: &str,
        proto: &TensorProto,
    ) -> Result<Tensor, NodeError> {
        let wrong = |error: ImportError| {
            if let ImportError::Memory(over) = error {
                return NodeError::Memory(over);
            }
            NodeError::Tensor { name: attribute.to_owned(), reason: error.to_string() }
        };
        let (name, before) = (self.flat.name(id), self.tensors.budget);
        let tensor = self.tensors.get(id, &name, || Ok(proto.clone())).map_err(wrong);
        // What gives no value is read anew in every build, of which one makes tensors.
        if self.dry && id == NONE {
            self.tensors.budget = before;
        }
        tensor
    }

    /// Charges a tensor that a node makes.
    pub(super) fn charge(&mut self, ty: &TensorType) -> Result<(), NodeError> {
        // A size that is not known, or too large to be one, is beyond every budget.
        let bytes = ty.bytes().as_const().and_then(|b| u64::try_from(b).ok()).unwrap_or(u64::MAX);
        // A dry build makes no tensors.
        let mut unchanged = self.tensors.budget;
        let budget = if self.dry { &mut unchanged } else { &mut self.tensors.budget };
        budget.charge(&ty.to_string(), bytes).map_err(NodeError::Memory)
    }

    /// Sets the value that a node's result names, unless it is left out.
    pub(super) fn set(&mut self, id: ValueId, value: Value) {
        if id != NONE {
            self.values[id as usize] = Some(value);
        }
    }
}
