//! From the parts of a model file to a graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::{Budget, Model, Quoted};
use super::external::Folder;
use super::file::{File, Head};
use super::flatten::{Flat, FlatNode, NONE, ValueId, flatten};
use super::foreign::{self, Assumptions, Declared};
use super::inputs::{Inputs, declared};
use super::node::Node;
use super::proto::TensorProto;
use super::wire::Span;
use super::{BatchCandidate, ImportError, ImportOptions, NodeError, ops, tensor};
use crate::ir::{Builder, Origin, Source, Value};
use crate::op::{self, OpError};
use crate::types::{DType, Dim, Symbol, Table, Tensor, TensorType};

/// Tensors of integers up to this number of elements stand in the graph, where their values can be followed.
const INLINE_INTS: usize = op::infer::MAX_INTS;

/// Float tensors of `Constant` nodes up to this number of elements stand in the graph.
const INLINE_FLOATS: usize = 64;

/// Sizes of different names of which the graph may prove that they are one: each takes a pass over it.
const MAX_CLASSES: usize = 64;

/// The tensors of the file that were read, by the value they give: each is read and charged once.
pub(super) struct Tensors {
    read: Table<ValueId, Tensor>,
    folder: Folder,
    budget: Budget,
}

/// One pass over the nodes, which builds a graph.
pub(super) struct Importer<'a> {
    pub(super) file: &'a File,
    pub(super) flat: &'a Flat<'a>,
    pub(super) builder: Builder,
    /// The batch size of the file, where it was freed.
    pub(super) freed: Option<i64>,
    /// The sizes of the classes of the inputs' sizes.
    pub(super) classes: Vec<Dim>,
    /// The types that the file declares for results of foreign operators.
    pub(super) declared: &'a Declared,
    assume: &'a Assumptions,
    tensors: &'a mut Tensors,
    initializers: &'a Table<ValueId, Span>,
    values: Vec<Option<Value>>,
    /// The tensors of values that do not depend on a run.
    constants: BTreeMap<Value, Tensor>,
    /// The file by the name it was given.
    source: Arc<str>,
    /// Whether only the types are of interest.
    dry: bool,
    /// The bytes of attributes of calls that nodes used.
    pub(super) referred: usize,
}

/// Builds the model that `folder` holds.
pub(super) fn run(
    source: &str,
    folder: Folder,
    budget: Budget,
    options: &ImportOptions,
) -> Result<Model, ImportError> {
    let file = File::new(folder.structure())?;
    let own = |head: &Head<'_>| head.domain().is_empty() && ops::find(head.op).is_some();
    let assume = &options.assume;
    let assumed = |head: &Head<'_>| !assume.is_empty() && assume.contains_key(&foreign::name(head));
    let supported = |head: &Head<'_>| own(head) || assumed(head);
    let flat = flatten(&file, &supported)?;
    let mut inputs = Inputs::read(&file, &flat, options)?;
    let initializers: Table<ValueId, Span> =
        flat.initializers.iter().copied().zip(file.graph.initializers.iter().copied()).collect();
    let mut tensors = Tensors { read: Table::default(), folder, budget };
    let declared = Declared::read(&file, &flat, &inputs, assume)?;
    let parts = Parts {
        file: &file,
        flat: &flat,
        initializers: &initializers,
        declared: &declared,
        assume,
        source,
    };
    if inputs.classes.len() > 1 {
        parts.unify(&mut inputs, &mut tensors)?;
    }
    inputs.note();
    let model = parts.build(&inputs, &mut tensors, &|_| Dim::n(), false)?;
    tensors.folder.check()?;
    Ok(model)
}

/// What every pass over the nodes reads.
struct Parts<'a> {
    file: &'a File,
    flat: &'a Flat<'a>,
    initializers: &'a Table<ValueId, Span>,
    declared: &'a Declared,
    assume: &'a Assumptions,
    source: &'a str,
}

impl Parts<'_> {
    /// Proves that the sizes that may be the batch are one: each is a symbol of its own until types agree only if two
    /// are the same.
    fn unify(&self, inputs: &mut Inputs, tensors: &mut Tensors) -> Result<(), ImportError> {
        let found = inputs.classes.len();
        if found > MAX_CLASSES {
            let option = "--batch-axis".to_owned();
            let reason = format!(
                "the inputs have {found} open sizes of different names; name those that are the batch"
            );
            return Err(ImportError::Option { option, reason });
        }
        let mut class: Vec<u32> = (1u32..).take(found).collect();
        loop {
            let size = |i: usize| Dim::symbol(Symbol(class.get(i).copied().unwrap_or(0)));
            let failed = self.build(inputs, tensors, &size, true).err();
            let equated = match &failed {
                Some(ImportError::Node { error, .. }) => equated(error),
                _ => None,
            };
            match (failed, equated) {
                (_, Some((a, b))) if a != b => {
                    class.iter_mut().filter(|c| **c == b).for_each(|c| *c = a);
                }
                (None, _) => break,
                (Some(_), _) => {
                    // Where all of them may be one, what fails with one batch as well is the error to report.
                    if inputs.classes.iter().all(|c| c.sizes.iter().any(|s| s.axis == 0)) {
                        self.build(inputs, tensors, &|_| Dim::n(), true)?;
                    }
                    break;
                }
            }
        }
        let mut merged: BTreeMap<u32, BatchCandidate> = BTreeMap::new();
        for (class, found) in class.iter().zip(&inputs.classes) {
            merged.entry(*class).or_default().sizes.extend(found.sizes.iter().cloned());
        }
        let merged: Vec<BatchCandidate> = merged.into_values().collect();
        if merged.len() > 1 {
            return Err(ImportError::Batches(merged));
        }
        inputs.one(merged);
        Ok(())
    }

    /// Builds the graph with the size `size(i)` for class `i` of the inputs' sizes. A `dry` build is
    /// for its types only.
    fn build(
        &self,
        inputs: &Inputs,
        tensors: &mut Tensors,
        size: &dyn Fn(usize) -> Dim,
        dry: bool,
    ) -> Result<Model, ImportError> {
        let Self { file, flat, initializers, declared, assume, source } = *self;
        let name = if file.graph.name.is_empty() { "model" } else { &file.graph.name };
        let builder = Builder::new(name);
        let mut importer = Importer {
            file,
            flat,
            builder,
            freed: inputs.freed,
            classes: (0..inputs.classes.len()).map(size).collect(),
            declared,
            assume,
            tensors,
            initializers,
            values: vec![None; flat.values()],
            constants: BTreeMap::new(),
            source: source.into(),
            dry,
            referred: 0,
        };
        for (id, name, ty) in inputs.types(size) {
            importer.values[id as usize] = Some(importer.builder.input(name, ty));
        }
        for node in &flat.nodes {
            importer.node(node)?;
        }
        let mut notes = inputs.notes.clone();
        importer.outputs(&mut notes)?;
        let (mut graph, mut weights) = importer.builder.finish();
        graph.remove_unused();
        let used: BTreeSet<&str> = graph.params().iter().map(|p| &*p.name).collect();
        weights.retain(|name| used.contains(name));
        Ok(Model { graph, weights, notes })
    }
}

/// The two symbols of which sizes agree if they are the same.
fn equated(error: &NodeError) -> Option<(u32, u32)> {
    let (NodeError::Op(error) | NodeError::Freed { error }) = error else { return None };
    let OpError::SizesDiffer { left, right, .. } = &**error else { return None };
    let only = |dim: &Dim| {
        let mut found: Vec<Symbol> = Vec::new();
        dim.symbols(&mut |s| found.push(s));
        found.dedup();
        if let [one] = found[..] { Some(one) } else { None }
    };
    let (a, b) = (only(left)?, only(right)?);
    (left.substitute(&mut |_| Dim::symbol(b)) == *right).then_some((a.0, b.0))
}

impl Importer<'_> {
    fn node(&mut self, node: &FlatNode) -> Result<(), ImportError> {
        let flat = self.flat;
        let (head, attributes) = match node.span {
            Some(span) => (self.file.head(span)?, self.file.attributes(span)?),
            None => (Head::own("Identity"), Vec::new()),
        };
        self.builder.set_origin(Origin::new(flat.origin(head.name, node)));
        let freed = self.freed.is_some();
        let failed = |error: NodeError| {
            let error = if freed { error.after_freeing() } else { error };
            ImportError::Node { node: flat.label(node), op: head.op.to_owned(), error }
        };
        let inputs = self.operands(node, &failed)?;
        let found = if head.domain().is_empty() { ops::find(head.op) } else { None };
        if let Some(most) = found.as_ref().map(|f| f.operands).filter(|m| inputs.len() > *m) {
            let text = format!("{} operands where there are at most {most}", inputs.len());
            return Err(failed(NodeError::Unsupported(text)));
        }
        let assume = self.assume;
        let node = Node::new(self, head.op, node, attributes, inputs);
        node.and_then(|mut node| {
            if let Some(found) = found {
                (found.convert)(&mut node)?;
                return node.finish();
            }
            let name = foreign::name(&head);
            let assumed = assume.get(&name).copied();
            let unknown = || NodeError::Unsupported("the operator".to_owned());
            foreign::convert(&mut node, name, assumed.ok_or_else(unknown)?)
        })
        .map_err(failed)
    }

    /// The operands of a node, without those left out at the end.
    fn operands(
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
    fn value(&mut self, id: ValueId) -> Result<Option<Value>, ImportError> {
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
        let name = self.flat.name(id);
        self.tensors.get(id, &name, || Ok(proto.clone())).map_err(wrong)
    }

    /// Charges a tensor that a node makes.
    pub(super) fn charge(&mut self, ty: &TensorType) -> Result<(), NodeError> {
        let bytes = ty.bytes().as_const().and_then(|b| u64::try_from(b).ok()).unwrap_or(u64::MAX);
        self.tensors.budget.charge(&ty.to_string(), bytes).map_err(NodeError::Memory)
    }

    /// Sets the value that a node's result names.
    pub(super) fn set(&mut self, id: ValueId, value: Value) {
        if let Some(slot) = self.values.get_mut(id as usize) {
            *slot = Some(value);
        }
    }

    /// Adds the outputs; a declared type that contradicts the inferred one is noted.
    fn outputs(&mut self, notes: &mut Vec<String>) -> Result<(), ImportError> {
        for (id, span) in self.flat.outputs.iter().zip(&self.file.graph.outputs) {
            let name = self.flat.name(*id);
            let value = match *id {
                NONE => None,
                id => self.value(id)?,
            };
            let value = value.ok_or_else(|| ImportError::Undefined {
                value: name.clone().into_owned(),
                user: "an output of the model".to_owned(),
            })?;
            let ty = self.builder.graph().ty(value);
            let info = self.file.value(*span)?;
            let (dtype, rank): (Option<DType>, Option<usize>) = declared(&info);
            if dtype.is_some_and(|t| t != ty.dtype) || rank.is_some_and(|r| r != ty.rank()) {
                let declared_type = dtype.map_or("?", DType::name);
                let shown = Quoted(&name);
                let axes = rank.map_or_else(|| "?".to_owned(), |r| r.to_string());
                notes.push(format!(
                    "the file declares output {shown} as {declared_type} with {axes} axes; it is {ty}"
                ));
            }
            self.builder.output(&name, value);
        }
        Ok(())
    }
}

impl Tensors {
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
