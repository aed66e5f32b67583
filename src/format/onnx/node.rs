//! One node while it is converted: its attributes and operands, and the operators it becomes.

use std::borrow::Cow;
use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use super::NodeError;
use super::flat::{FlatNode, Given, NONE, ValueId, shortened};
use super::follow::Followed;
use super::known::{Size, float};
use super::proto::AttributeProto;
use super::proto::attribute_proto::AttributeType;
use super::state::State;
use super::tensor::element;
use crate::ir::Value;
use crate::op::infer::MAX_INTS;
use crate::op::{Emit, Formula, Op, OpError};
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

/// Attributes that say nothing about the meaning of a node: buffers, how often a node of a tree was
/// reached in training, how the classes of a linear model were trained.
const MEANINGLESS: [&str; 4] =
    ["consumed_inputs", "multi_class", "nodes_hitrates", "nodes_hitrates_as_tensor"];

/// The bytes of attributes of calls that nodes inside them may use, each use counted.
const MAX_REFERRED: usize = 1 << 26;

/// Result of importing a node.
pub(super) type Done = Result<(), NodeError>;

/// A node while it is converted.
pub(super) struct Node<'r, 'a> {
    state: &'r mut State<'a>,
    op: &'r str,
    /// The version of ONNX's operators in which the node is written.
    pub(super) opset: i64,
    attributes: Vec<Given>,
    inputs: Vec<Option<Value>>,
    input_ids: &'r [ValueId],
    outputs: &'r [ValueId],
    /// The name of the first result that is named, or its beginning: before the names of values of
    /// the node's own.
    base: String,
}

impl<'r, 'a> Node<'r, 'a> {
    /// The node with its attributes as its scope resolves them.
    ///
    /// # Errors
    /// If the attributes that calls give are used too often.
    pub(super) fn new(
        state: &'r mut State<'a>,
        op: &'r str,
        node: &'r FlatNode,
        given: Vec<Given>,
        inputs: Vec<Option<Value>>,
    ) -> Result<Self, NodeError> {
        let scope = Rc::clone(state.layout.flat.scope(node.scope));
        let mut attributes = Vec::with_capacity(given.len());
        let refers = |given: &&Given| !given.proto.ref_attr_name().is_empty();
        if let Some(lost) = given.iter().find(|given| scope.call == 0 && refers(given)) {
            let reason = "refers to an attribute of a function, but is not in a function";
            return Err(wrong(lost.proto.name(), reason));
        }
        for attribute in given.into_iter().filter_map(|a| scope.resolve(a)) {
            state.referred = state.referred.saturating_add(attribute.bytes);
            attributes.push(attribute);
        }
        if state.referred > MAX_REFERRED {
            let text =
                format!("attributes of calls that are used for more than {MAX_REFERRED} bytes");
            return Err(NodeError::Unsupported(text));
        }
        let opset = scope.opset;
        let (input_ids, outputs) = (&node.inputs, &node.outputs);
        let base = String::new();
        let mut node = Self { state, op, opset, attributes, inputs, input_ids, outputs, base };
        node.base = shortened(&node.state.layout.flat.name(node.first_named())).to_owned();
        Ok(node)
    }

    /// The operator's name in ONNX.
    pub(super) fn op_type(&self) -> &str {
        self.op
    }

    /// The entry of this operator in a table.
    pub(super) fn row<T: Clone>(&self, rows: &[(&str, T)]) -> Result<T, NodeError> {
        let found = rows.iter().find(|(name, _)| *name == self.op).map(|(_, row)| row.clone());
        found.ok_or_else(|| NodeError::Unsupported(self.op.to_owned()))
    }

    /// Fails if an attribute was not asked for: its meaning would be lost.
    pub(super) fn finish(self) -> Done {
        let mut rest = self.attributes.iter().map(|a| a.proto.name());
        match rest.find(|name| !MEANINGLESS.contains(name)) {
            None => Ok(()),
            Some(name) => Err(wrong(name, format!("is not known for {} {}", self.op, self.opset))),
        }
    }

    /// The batch size of the file, where it was freed.
    pub(super) fn freed(&self) -> Option<i64> {
        self.state.freed
    }

    /// All attributes that were not asked for.
    pub(super) fn take_all(&mut self) -> Vec<Given> {
        std::mem::take(&mut self.attributes)
    }

    fn take(
        &mut self,
        name: &str,
        ty: AttributeType,
    ) -> Result<Option<Rc<AttributeProto>>, NodeError> {
        Ok(self.take_given(name, ty)?.map(|given| given.proto))
    }

    fn take_given(&mut self, name: &str, ty: AttributeType) -> Result<Option<Given>, NodeError> {
        let Some(at) = self.attributes.iter().position(|a| a.proto.name() == name) else {
            return Ok(None);
        };
        let found = self.attributes.remove(at);
        if self.attributes.iter().any(|a| a.proto.name() == name) {
            return Err(wrong(name, "is given twice"));
        }
        let kind = found.proto.r#type;
        // Old files do not write the kind.
        if kind.is_some_and(|t| t != ty as i32 && t != AttributeType::Undefined as i32) {
            return Err(wrong(name, format!("must be of the kind {}", ty.as_str_name())));
        }
        Ok(Some(found))
    }

    /// An integer attribute.
    pub(super) fn opt_int(&mut self, name: &str) -> Result<Option<i64>, NodeError> {
        Ok(self.take(name, AttributeType::Int)?.map(|a| a.i()))
    }

    /// An integer attribute that must be there.
    pub(super) fn needed_int(&mut self, name: &str) -> Result<i64, NodeError> {
        self.opt_int(name)?.ok_or_else(|| wrong(name, "is missing"))
    }

    /// An integer attribute that may be absent.
    pub(super) fn int(&mut self, name: &str, default: i64) -> Result<i64, NodeError> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    /// An integer attribute that is 0 or 1.
    pub(super) fn opt_flag(&mut self, name: &str) -> Result<Option<bool>, NodeError> {
        match self.opt_int(name)? {
            None => Ok(None),
            Some(flag @ (0 | 1)) => Ok(Some(flag == 1)),
            Some(other) => Err(wrong(name, format!("is {other}; it must be 0 or 1"))),
        }
    }

    /// An integer attribute that is 0 or 1 and may be absent.
    pub(super) fn flag(&mut self, name: &str, default: bool) -> Result<bool, NodeError> {
        Ok(self.opt_flag(name)?.unwrap_or(default))
    }

    /// A list of integers.
    pub(super) fn opt_ints(&mut self, name: &str) -> Result<Option<Vec<i64>>, NodeError> {
        Ok(self.take(name, AttributeType::Ints)?.map(|a| a.ints.clone()))
    }

    /// A list of integers that must be there.
    pub(super) fn needed_ints(&mut self, name: &str) -> Result<Vec<i64>, NodeError> {
        self.opt_ints(name)?.ok_or_else(|| wrong(name, "is missing"))
    }

    /// A list of integers, empty where it is absent.
    pub(super) fn ints(&mut self, name: &str) -> Result<Vec<i64>, NodeError> {
        // No operator tells an absent list from an empty one here.
        Ok(self.opt_ints(name)?.unwrap_or_default())
    }

    /// A number.
    pub(super) fn opt_float(&mut self, name: &str) -> Result<Option<f32>, NodeError> {
        Ok(self.take(name, AttributeType::Float)?.map(|a| a.f()))
    }

    /// A number that may be absent.
    pub(super) fn float(&mut self, name: &str, default: f32) -> Result<f32, NodeError> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    /// A list of numbers.
    pub(super) fn opt_floats(&mut self, name: &str) -> Result<Option<Vec<f32>>, NodeError> {
        Ok(self.take(name, AttributeType::Floats)?.map(|a| a.floats.clone()))
    }

    /// A word.
    pub(super) fn opt_string(&mut self, name: &str) -> Result<Option<String>, NodeError> {
        let word = self.take(name, AttributeType::String)?.map(|a| a.s().to_vec());
        word.map(String::from_utf8).transpose().map_err(|_| wrong(name, "is not valid text"))
    }

    /// A word that may be absent.
    pub(super) fn string(&mut self, name: &str, default: &str) -> Result<String, NodeError> {
        Ok(self.opt_string(name)?.unwrap_or_else(|| default.to_owned()))
    }

    /// The meaning of a string attribute, looked up in a table.
    pub(super) fn opt_choice<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, NodeError> {
        self.opt_string(name)?.map(|given| meaning(name, &given, words)).transpose()
    }

    /// The meaning of an optional string attribute, looked up in a table.
    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &str,
        default: &str,
        words: &[(&str, T)],
    ) -> Result<T, NodeError> {
        meaning(name, &self.string(name, default)?, words)
    }

    /// An element type, by ONNX's number.
    pub(super) fn opt_dtype(&mut self, name: &str) -> Result<Option<DType>, NodeError> {
        let dtype = self.opt_int(name)?.map(element).transpose();
        dtype.map_err(|reason| wrong(name, format!(": {reason}")))
    }

    /// A list of words.
    pub(super) fn opt_strings(&mut self, name: &str) -> Result<Option<Vec<String>>, NodeError> {
        let Some(a) = self.take(name, AttributeType::Strings)? else { return Ok(None) };
        let words = a.strings.iter().map(|word| String::from_utf8(word.to_vec()));
        words.collect::<Result<_, _>>().map(Some).map_err(|_| wrong(name, "is not valid text"))
    }

    /// A tensor, as the file gives it.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Option<Tensor>, NodeError> {
        let Some(found) = self.take_given(name, AttributeType::Tensor)? else { return Ok(None) };
        let id = self.first_named();
        self.state.attribute_tensor(id, &found).map(Some)
    }

    /// A tensor attribute that is not decoded yet, for [`Self::own_tensor`].
    pub(super) fn opt_given(&mut self, name: &str) -> Result<Option<Given>, NodeError> {
        self.take_given(name, AttributeType::Tensor)
    }

    /// The tensor of an attribute that gives no value.
    pub(super) fn own_tensor(&mut self, given: &Given) -> Result<Tensor, NodeError> {
        self.state.attribute_tensor(NONE, given)
    }

    /// A seed that the name and the number of the node's first named result decide.
    pub(super) fn own_seed(&self) -> i64 {
        let id = self.first_named();
        let mut hash = blake3::Hasher::new();
        hash.update(&id.to_le_bytes()).update(self.state.layout.flat.name(id).as_bytes());
        let mut seed = [0; 8];
        hash.finalize_xof().fill(&mut seed);
        i64::from_le_bytes(seed)
    }

    /// The first result that is named; where none is, the tensor or the seed has no name.
    fn first_named(&self) -> ValueId {
        // A node may name no result.
        self.outputs.iter().copied().find(|id| *id != NONE).unwrap_or(NONE)
    }

    /// Result `i`; those at the end may be left out.
    fn output(&self, i: usize) -> ValueId {
        // A result that is left out at the end is as one without a name.
        self.outputs.get(i).copied().unwrap_or(NONE)
    }

    /// The number of operands, without those left out at the end.
    pub(super) fn arity(&self) -> usize {
        self.inputs.len()
    }

    /// The operand at position `i`, where it is given.
    pub(super) fn optional(&self, i: usize) -> Option<Value> {
        self.inputs.get(i).copied().flatten()
    }

    /// The operand at position `i`.
    pub(super) fn operand(&self, i: usize) -> Result<Value, NodeError> {
        self.optional(i).ok_or(NodeError::Missing { operand: i })
    }

    /// All operands; none may be left out.
    pub(super) fn operands(&self) -> Result<SmallVec<[Value; 4]>, NodeError> {
        (0..self.arity()).map(|i| self.operand(i)).collect()
    }

    /// The type of a value.
    pub(super) fn ty(&self, value: Value) -> &TensorType {
        self.state.builder.graph().ty(value)
    }

    /// The shape of a value.
    pub(super) fn shape(&self, value: Value) -> &Shape {
        &self.ty(value).shape
    }

    /// The element type of a value.
    pub(super) fn dtype(&self, value: Value) -> DType {
        self.ty(value).dtype
    }

    /// The error that operand `i` is not known before the run.
    pub(super) fn not_known(&self, i: usize) -> NodeError {
        let name = self.input_ids.get(i).map(|id| self.state.layout.flat.name(*id));
        let depends = self.optional(i).map(|value| self.state.depends(value).deciding());
        // An operand that is left out depends on no input.
        let (inputs, alone) = depends.unwrap_or_default();
        NodeError::NotKnown {
            operand: i,
            // It has no name either; the message then gives its number alone.
            value: name.unwrap_or_default().into_owned(),
            inputs,
            alone,
        }
    }

    /// The elements of the integer operand `i`, which may depend on the batch size; none where it
    /// is left out.
    pub(super) fn opt_sizes(&self, i: usize) -> Result<Option<Vec<Dim>>, NodeError> {
        let Some(value) = self.optional(i) else { return Ok(None) };
        let info = self.state.builder.graph().info(value);
        match &info.ints {
            Some(ints) => Ok(Some(ints.to_vec())),
            None => Err(self.not_known(i)),
        }
    }

    /// The elements of the integer operand `i`, which may depend on the batch size.
    pub(super) fn sizes(&self, i: usize) -> Result<Vec<Dim>, NodeError> {
        self.opt_sizes(i)?.ok_or(NodeError::Missing { operand: i })
    }

    /// The elements of the integer operand `i`, which are constants; none where it is left out.
    pub(super) fn opt_numbers(&self, i: usize) -> Result<Option<Vec<i64>>, NodeError> {
        let Some(sizes) = self.opt_sizes(i)? else { return Ok(None) };
        let numbers = sizes.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
        numbers.map(Some).ok_or_else(|| self.not_known(i))
    }

    /// The elements of the integer operand `i`, which are constants.
    pub(super) fn numbers(&self, i: usize) -> Result<Vec<i64>, NodeError> {
        self.opt_numbers(i)?.ok_or(NodeError::Missing { operand: i })
    }

    /// The one element of the integer operand `i`, which may depend on the batch size.
    pub(super) fn one_size(&self, i: usize) -> Result<Dim, NodeError> {
        only(i, self.sizes(i)?)
    }

    /// The one integer that operand `i` is; none where it is left out.
    pub(super) fn opt_single(&self, i: usize) -> Result<Option<i64>, NodeError> {
        self.opt_numbers(i)?.map(|all| only(i, all)).transpose()
    }

    /// The list `name`: an attribute before opset `since`, from then on the operand `i`; none where
    /// it is absent.
    pub(super) fn list(
        &mut self,
        name: &str,
        since: i64,
        i: usize,
    ) -> Result<Option<Vec<i64>>, NodeError> {
        if self.opset < since { self.opt_ints(name) } else { self.opt_numbers(i) }
    }

    /// The tensor that operand `i` is, where it is a constant of the file.
    pub(super) fn known(&self, i: usize) -> Option<&Tensor> {
        self.state.known(self.optional(i)?)
    }

    /// The only element of a float, where it is a known integer, which may depend on the batch.
    pub(super) fn whole_number(&self, value: Value) -> Option<Dim> {
        self.state.whole_number(value)
    }

    /// The single element of operand `i`, where it is a constant of the file and a float can hold
    /// it.
    pub(super) fn opt_number(&self, i: usize) -> Option<f64> {
        let tensor = self.known(i).filter(|t| t.len() == 1)?;
        let number = tensor.to_f64().first().copied()?;
        let exact = |int: i64| int.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS;
        match tensor.to_i64() {
            Some(ints) if !ints.iter().copied().all(exact) => None,
            _ => Some(number),
        }
    }

    /// The number of results that the node names; those left out before the last count.
    pub(super) fn result_count(&self) -> usize {
        // A node may name no result.
        self.outputs.iter().rposition(|id| *id != NONE).map_or(0, |last| last + 1)
    }

    /// Returns true if the node names its result `i`.
    pub(super) fn wants(&self, i: usize) -> bool {
        self.output(i) != NONE
    }

    /// The type that the file declares for result `i`.
    pub(super) fn declared(&self, i: usize) -> Result<&(DType, Vec<Size>), NodeError> {
        self.state.declared.get(self.output(i)).map_err(|reason| self.undeclared(i, reason))
    }

    /// The error that the type of result `i` is not known.
    pub(super) fn undeclared(&self, i: usize, reason: String) -> NodeError {
        NodeError::Undeclared { value: self.result_name(i).into_owned(), reason }
    }

    /// The size of a class of the inputs' sizes.
    pub(super) fn class(&self, class: usize) -> Dim {
        self.state.classes[class].clone()
    }

    fn result_name(&self, i: usize) -> Cow<'a, str> {
        match self.output(i) {
            id if id != NONE => self.state.layout.flat.name(id),
            _ if self.base.is_empty() => Cow::Borrowed("unused"),
            _ => Cow::Owned(format!("{}.{i}", self.base)),
        }
    }

    /// Adds a constant of one element of a float type.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> Result<Value, NodeError> {
        let value = float(dtype, x)?;
        self.literal(value)
    }

    /// Adds an operator of the node's operands, whose result is the node's first.
    pub(super) fn of_all(&mut self, op: impl Into<Op>) -> Done {
        self.of_first(self.arity(), op)
    }

    /// Adds an operator of the node's first `count` operands, whose result is the node's first.
    pub(super) fn of_first(&mut self, count: usize, op: impl Into<Op>) -> Done {
        let operands = (0..count).map(|i| self.operand(i));
        let operands = operands.collect::<Result<SmallVec<[Value; 4]>, _>>()?;
        self.result(op, &operands)
    }

    /// Adds an operator whose result is the node's first.
    pub(super) fn result(&mut self, op: impl Into<Op>, operands: &[Value]) -> Done {
        self.result_at(0, op, operands)
    }

    /// Takes in the operator that gives the node's result `i`.
    pub(super) fn last(&mut self, i: usize) -> Last<'_, 'r, 'a> {
        Last { node: self, result: i }
    }

    /// Adds an operator whose result is the node's result `i`.
    pub(super) fn result_at(&mut self, i: usize, op: impl Into<Op>, operands: &[Value]) -> Done {
        self.last(i).op(op, operands)?;
        Ok(())
    }

    /// Adds an operator whose `count` results are the node's first.
    pub(super) fn results(&mut self, count: usize, op: impl Into<Op>, operands: &[Value]) -> Done {
        let names: Vec<Cow<'_, str>> = (0..count).map(|i| self.result_name(i)).collect();
        let names: Vec<&str> = names.iter().map(|n| &**n).collect();
        let values = self.state.builder.ops(&names, op, operands)?;
        for (i, value) in values.into_iter().enumerate() {
            self.set(i, value);
        }
        Ok(())
    }

    fn set(&mut self, i: usize, value: Value) {
        self.state.set(self.output(i), value);
    }

    /// Makes a tensor the node's first result.
    pub(super) fn constant(&mut self, tensor: Tensor) {
        let id = self.output(0);
        if id != NONE {
            let value = self.state.constant(id, tensor);
            self.state.set(id, value);
        }
    }

    /// Adds a tensor that the node's attributes make: a constant where it is small, else a
    /// parameter.
    pub(super) fn table(&mut self, name: &str, tensor: Tensor) -> Result<Value, NodeError> {
        if tensor.len() <= MAX_INTS {
            return self.literal(tensor);
        }
        self.charge(&tensor.tensor_type())?;
        let name = format!("{}.{name}", self.base);
        Ok(self.state.table(&name, tensor))
    }

    /// Says that result `i` holds strings: what follows from it is left out.
    pub(super) fn text(&mut self, i: usize) {
        self.state.leave_out([self.output(i)]);
    }

    /// Tells whoever reads the model how the node was read.
    pub(super) fn note(&mut self, text: String) {
        self.state.notes.push(text.into());
    }

    /// Charges the memory of a tensor that the node is about to make.
    pub(super) fn charge(&mut self, ty: &TensorType) -> Done {
        self.state.charge(ty)
    }
}

/// Takes in operators whose results are only used by others of this node.
impl Emit for Node<'_, '_> {
    type Value = Value;
    type Error = NodeError;

    fn ty(&self, value: Value) -> &TensorType {
        self.ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, NodeError> {
        let followed = match self.state.follow(&op, operands) {
            None => None,
            Some(Followed::Floats(elements)) => Some(elements),
            Some(Followed::Integers(known)) => return known.emit(self),
        };
        let name = format!("{}.{}", self.base, op.name());
        let values = self.state.builder.all(&name, op, operands)?;
        if let (Some(elements), [value]) = (followed, &values[..]) {
            self.state.note(*value, elements);
        }
        Ok(values.into())
    }
}

/// Takes in the operator that gives one of a node's results.
pub(super) struct Last<'n, 'r, 'a> {
    node: &'n mut Node<'r, 'a>,
    result: usize,
}

impl Emit for Last<'_, '_, '_> {
    type Value = Value;
    type Error = NodeError;

    fn ty(&self, value: Value) -> &TensorType {
        self.node.ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, NodeError> {
        let followed = match self.node.state.follow(&op, operands) {
            None => None,
            Some(Followed::Floats(elements)) => Some(elements),
            Some(Followed::Integers(known)) => return known.emit(self),
        };
        let name = self.node.result_name(self.result);
        let value = self.node.state.builder.op(&name, op, operands)?;
        if let Some(elements) = followed {
            self.node.state.note(value, elements);
        }
        self.node.set(self.result, value);
        Ok(smallvec![value])
    }
}

/// The error that an attribute is wrong.
pub(super) fn wrong(name: &str, reason: impl Into<String>) -> NodeError {
    NodeError::Attribute { name: name.to_owned(), reason: reason.into() }
}

/// The meaning of a string attribute, looked up in a table.
pub(super) fn meaning<T: Copy>(
    name: &str,
    given: &str,
    words: &[(&str, T)],
) -> Result<T, NodeError> {
    let known = words.iter().find(|(word, _)| *word == given);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| wrong(name, format!("is `{given}`")))
}

/// The one element of operand `i`.
fn only<T>(i: usize, all: Vec<T>) -> Result<T, NodeError> {
    <[T; 1]>::try_from(all).map(|[one]| one).map_err(|all| {
        let reason = format!("it has {} elements, not 1", all.len());
        OpError::Value { operand: i, reason }.into()
    })
}
