//! The call of one layer: its configuration, its variables, and the operators that it becomes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value as Json;
use smallvec::SmallVec;

use super::config::{Config, MOST as MOST_SIZE, Object, Read};
use super::error::{Fault, LayerError};
use super::options::BuildOptions;
use super::shared::{Place, Shared};
use super::tree::Spec;
use super::value::{Arg, Args, Tensor};
use super::variables::{Variable, Variables};
use crate::ir::{Builder, MAX_CONSTANT, Origin, Value};
use crate::op::{Constant, Emit, Formula, Op};
use crate::types::{DType, Dim, Note, Quoted, Shape, TensorType};

/// The most nodes of a graph, and calls of layers: models inside models may be called many times.
const MOST: usize = 1 << 17;

/// The graph under construction.
pub(super) struct State {
    pub(super) builder: Builder,
    pub(super) variables: Variables,
    pub(super) shared: Shared,
    pub(super) errors: Vec<LayerError>,
    pub(super) notes: Vec<Note>,
    /// For training: the regularizers and constraints of the file, each behind its layer.
    pub(super) unapplied: BTreeSet<String>,
    pub(super) for_training: bool,
    /// How often Keras calls what is built now: once for each step.
    pub(super) steps: i64,
    /// Whether the file is of a version before 3, in which some defaults were others.
    pub(super) is_before_3: bool,
    /// Values with the last axis behind the batch, by those in Keras' order, and the reverse.
    turned: HashMap<(Value, bool), Value>,
    calls: usize,
    /// The constants so far that are parameters, because they are large.
    constants: usize,
    call: Caller,
}

/// The call of a layer or model.
pub(super) type Caller = for<'c> fn(&mut State, &Spec<'c>, &Place, &Args<'c>) -> Read<Arg<'c>>;

/// The order of the axes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    ChannelsLast,
    ChannelsFirst,
}

/// The call of one layer.
pub(super) struct At<'s, 'c> {
    pub(super) state: &'s mut State,
    pub(super) config: Config<'c>,
    pub(super) place: Place,
    /// The class of the layer, and whether its images have their channels first.
    layer: (Arc<str>, bool),
    /// The element type that the layer computes in.
    pub(super) dtype: DType,
    /// The element type of its variables.
    variable: DType,
    /// The variables so far.
    count: usize,
    /// The objects inside it so far.
    inner: usize,
}

impl State {
    pub(super) fn new(name: &str, source: &str, options: &BuildOptions, call: Caller) -> Self {
        let mut builder = Builder::new(name);
        builder.set_source(source);
        Self {
            builder,
            variables: Variables::default(),
            shared: Shared::default(),
            errors: Vec::new(),
            notes: Vec::new(),
            unapplied: BTreeSet::new(),
            for_training: options.for_training,
            steps: 1,
            is_before_3: options.is_before_3,
            turned: HashMap::new(),
            calls: 0,
            constants: 0,
            call,
        }
    }

    /// Counts a call of a layer.
    pub(super) fn count_call(&mut self) -> Read<()> {
        self.calls += 1;
        if self.calls <= MOST {
            return Ok(());
        }
        Err(Fault::new(format!("the model has more than {MOST} calls of layers")))
    }
}

/// The element types of a policy: that of variables, and that of results.
fn policy(value: Option<&Json>) -> Read<(DType, DType)> {
    let name = match value {
        None => "float32",
        Some(Json::String(name)) => name,
        Some(value) => {
            let class = value.get("class_name").and_then(Json::as_str);
            let name = value.pointer("/config/name").and_then(Json::as_str);
            match (class, name) {
                (Some("DTypePolicy" | "Policy" | "PolicyV1" | "FloatDTypePolicy"), Some(name)) => {
                    name
                }
                _ => return Err(Fault::field("dtype", "names a policy that is not supported")),
            }
        }
    };
    match name {
        "mixed_float16" => Ok((DType::F32, DType::F16)),
        "mixed_bfloat16" => Ok((DType::F32, DType::Bf16)),
        name => {
            let found = dtype(name);
            let dtype =
                found.ok_or_else(|| Fault::field("dtype", format!("is {}", Quoted(name))))?;
            Ok((dtype, dtype))
        }
    }
}

/// The element type with this name in Keras.
pub(super) fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float64" => DType::F64,
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "int64" => DType::I64,
        "int32" => DType::I32,
        "int16" => DType::I16,
        "int8" => DType::I8,
        "uint64" => DType::U64,
        "uint32" => DType::U32,
        "uint16" => DType::U16,
        "uint8" => DType::U8,
        "bool" => DType::Bool,
        _ => return None,
    })
}

impl<'s, 'c> At<'s, 'c> {
    /// The call of the layer `spec`.
    pub(super) fn new(state: &'s mut State, spec: &Spec<'c>, mut place: Place) -> Read<Self> {
        let config = Config::new(spec.config);
        let (variable, dtype) = policy(config.opt("dtype"))?;
        place.is_trainable &= config.flag("trainable", true)?;
        let order = spec.config.get("data_format").and_then(Json::as_str);
        let layer = (spec.class.into(), order == Some("channels_first"));
        let place = state.shared.place(spec, place, &mut state.variables)?;
        let mut at = Self { state, config, place, layer, dtype, variable, count: 0, inner: 0 };
        at.enter();
        Ok(at)
    }

    /// Makes the layer the origin of the nodes to come.
    fn enter(&mut self) {
        self.state.builder.set_origin(Origin::new(self.place.path.as_str()));
    }

    /// The tensors of the call of a layer or model that is an attribute of this layer.
    pub(super) fn inside<'i>(
        &mut self,
        attribute: &str,
        spec: &Spec<'i>,
        args: &Args<'i>,
    ) -> Read<Vec<Tensor>> {
        let place = self.child(attribute, spec.name);
        let call = self.state.call;
        let result = call(self.state, spec, &place, args)?;
        self.enter();
        Ok(result.tensors())
    }

    /// The call of the layers of the field `layers`, one after the other.
    pub(super) fn in_sequence(&mut self, x: Tensor) -> Read<Arg<'c>> {
        self.config.ignore(&["layers"]);
        let fields = self.config.fields();
        let spec = Spec { class: "Sequential", ..Spec::plain("", fields) };
        let call = self.state.call;
        let result = call(self.state, &spec, &self.place, &Args::of(x));
        self.enter();
        result
    }

    /// Runs `inside` as an object that is an attribute of this layer, with a configuration of its
    /// own.
    pub(super) fn with<'i, T>(
        &mut self,
        attribute: &str,
        spec: &Spec<'i>,
        inside: impl FnOnce(&mut At<'_, 'i>) -> Read<T>,
    ) -> Read<T> {
        let place = self.child(attribute, spec.name);
        let mut at = At::new(self.state, spec, place)?;
        let result = inside(&mut at);
        self.enter();
        result
    }

    /// The place of a layer that is an attribute of this one.
    pub(super) fn child(&mut self, attribute: &str, name: &str) -> Place {
        self.inner += 1;
        Place {
            path: format!("{}/{name}", self.place.path),
            store: format!("{}/{attribute}", self.place.store),
            // Behind the layer's own variables, which have no further position.
            order: [&self.place.order[..], &[self.inner]].concat(),
            is_trainable: self.place.is_trainable,
        }
    }

    /// Runs `inside` as a part of this layer that has variables of its own and the layer's
    /// configuration.
    pub(super) fn part<T>(
        &mut self,
        attribute: &str,
        name: &str,
        inside: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<T> {
        let place = self.child(attribute, name);
        let outer = std::mem::replace(&mut self.place, place);
        let count = std::mem::take(&mut self.count);
        self.enter();
        let result = inside(self);
        (self.place, self.count) = (outer, count);
        self.enter();
        result
    }

    /// A variable that is learned, in the element type that the layer computes in.
    pub(super) fn weight(&mut self, name: &str, shape: &[i64]) -> Read<Value> {
        let value = self.variable(name, shape, true)?;
        let to = self.dtype;
        self.cast(value, to)
    }

    /// A variable that is not learned, in the element type of variables.
    pub(super) fn fixed(&mut self, name: &str, shape: &[i64]) -> Read<Value> {
        self.variable(name, shape, false)
    }

    /// Fails if a field of the configuration is set that nobody asked for.
    pub(super) fn checked(&mut self) -> Read<()> {
        self.config.check()?;
        if self.state.for_training {
            let own = self.config.restrictions();
            let own = own.map(|field| format!("{} of {}", Quoted(field), Quoted(&self.place.path)));
            self.state.unapplied.extend(own);
        }
        Ok(())
    }

    /// Gives the place of this layer's next variable to one that a layer inside has as well.
    pub(super) fn share(&mut self, name: &str) {
        let order = [&self.place.order[..], &[0, self.count]].concat();
        self.state.variables.set_order(name, order);
        self.count += 1;
    }

    /// A variable that counts: one integer, which the model does not use.
    pub(super) fn counter(&mut self, name: &str) -> Read<()> {
        let variable = std::mem::replace(&mut self.variable, DType::I32);
        let result = self.fixed(name, &[]);
        self.variable = variable;
        result.map(drop)
    }

    /// A statistic that follows the batches in training, unless the layer is frozen.
    pub(super) fn statistic(&mut self, name: &str, shape: &[i64]) -> Read<Value> {
        let value = self.fixed(name, shape)?;
        if self.place.is_trainable {
            let path = format!("{}/{name}", self.place.path);
            self.state.variables.set_running(&path);
        }
        Ok(value)
    }

    /// A variable in its own element type.
    pub(super) fn variable(&mut self, name: &str, shape: &[i64], is_learned: bool) -> Read<Value> {
        let path = format!("{}/{name}", self.place.path);
        let at = self.count;
        self.count += 1;
        let kinds = ["regularizer", "constraint"];
        let [regularizer, constraint] =
            kinds.map(|kind| self.config.restriction(name, kind).filter(|_| is_learned).cloned());
        if let Some(value) = self.state.variables.value(&path) {
            return Ok(value);
        }
        if let Some(size) = shape.iter().find(|size| **size < 1) {
            return Err(Fault::new(format!("variable {} has a size of {size}", Quoted(name))));
        }
        let shape: Shape = shape.iter().map(|size| Dim::from(*size)).collect();
        let ty = TensorType::new(self.variable, shape);
        let path: Arc<str> = path.into();
        let value = self.state.builder.param_unfilled(&path, ty.clone());
        self.state.variables.add(Variable {
            name: path,
            store: format!("{}/vars/{at}", self.place.store),
            layer: self.layer.clone(),
            order: [&self.place.order[..], &[0, at]].concat(),
            is_trainable: is_learned && self.place.is_trainable,
            is_running: false,
            regularizer,
            constraint,
            ty,
            value,
        });
        Ok(value)
    }

    /// The rank of a value.
    pub(super) fn rank(&self, value: Value) -> usize {
        self.ty(value).rank()
    }

    /// The size of an axis, which must be known.
    pub(super) fn extent(&self, value: Value, axis: usize) -> Read<i64> {
        let size = self.ty(value).shape.get(axis).cloned();
        let size =
            size.ok_or_else(|| Fault::new(format!("{} has no axis {axis}", self.ty(value))))?;
        let known = || Fault::new(format!("it needs the size {size} of axis {axis} to be known"));
        let size = size.as_const().ok_or_else(known)?;
        if size > MOST_SIZE {
            let reason = format!("axis {axis} has {size} elements, more than {MOST_SIZE}");
            return Err(Fault::new(reason));
        }
        Ok(size)
    }

    /// The sizes of the axes from `from` on, which must be known.
    pub(super) fn sizes(&self, value: Value, from: usize) -> Read<Vec<i64>> {
        (from..self.rank(value)).map(|axis| self.extent(value, axis)).collect()
    }

    /// The sizes of the axes from `from` on, which must be known but for those that are `open`;
    /// these are given as 1.
    pub(super) fn sizes_or_one(&self, value: Value, from: usize, open: &[i64]) -> Read<Vec<i64>> {
        let open = open.iter().map(|axis| self.axis(value, *axis)).collect::<Read<Vec<usize>>>()?;
        let size = |axis| if open.contains(&axis) { Ok(1) } else { self.extent(value, axis) };
        (from..self.rank(value)).map(size).collect()
    }

    /// The element type of variables.
    pub(super) fn variable_type(&self) -> DType {
        self.variable
    }

    /// The type of a value.
    pub(super) fn ty_of_value(&self, value: Value) -> &TensorType {
        self.ty(value)
    }

    /// The element type of a value.
    pub(super) fn ty_of(&self, value: Value) -> DType {
        self.ty(value).dtype
    }

    /// The axis that a number names; negative ones count from the end.
    pub(super) fn axis(&self, value: Value, axis: i64) -> Read<usize> {
        let rank = self.rank(value);
        let from_end = if axis < 0 { usize::try_from(axis.unsigned_abs()).ok() } else { None };
        let found = match from_end {
            Some(back) => rank.checked_sub(back),
            None => usize::try_from(axis).ok().filter(|axis| *axis < rank),
        };
        found.ok_or_else(|| Fault::new(format!("{} has no axis {axis}", self.ty(value))))
    }

    /// A tensor in Keras' order of axes.
    pub(super) fn natural(&mut self, tensor: Tensor) -> Read<Value> {
        if tensor.is_first { self.turn(tensor.value, false) } else { Ok(tensor.value) }
    }

    /// A tensor in Keras' order of axes; floats in the element type that the layer computes in.
    pub(super) fn input(&mut self, tensor: Tensor) -> Read<Value> {
        let value = self.natural(tensor)?;
        self.computed(value)
    }

    /// Floats in the element type that the layer computes in; others as they are.
    fn computed(&mut self, value: Value) -> Read<Value> {
        let to = self.dtype;
        if self.ty(value).dtype.is_float() && to.is_float() {
            self.cast(value, to)
        } else {
            Ok(value)
        }
    }

    /// A tensor in Keras' order of axes, in the element type that the layer computes in.
    pub(super) fn floats(&mut self, tensor: Tensor) -> Read<Value> {
        let value = self.natural(tensor)?;
        let to = self.dtype;
        self.cast(value, to)
    }

    /// A tensor with its axes as they are in the graph; floats in the layer's element type.
    pub(super) fn as_is(&mut self, tensor: Tensor) -> Read<Tensor> {
        let value = self.computed(tensor.value)?;
        Ok(Tensor { value, ..tensor })
    }

    /// The order of axes that the configuration names.
    pub(super) fn format(&self) -> Read<Format> {
        const FORMATS: [(&str, Format); 2] =
            [("channels_last", Format::ChannelsLast), ("channels_first", Format::ChannelsFirst)];
        self.config.choice("data_format", "channels_last", &FORMATS)
    }

    /// An image with its channels behind the batch, in the element type that the layer computes in.
    pub(super) fn image(&mut self, tensor: Tensor, format: Format) -> Read<Value> {
        let value = self.image_as_is(tensor, format)?;
        let to = self.dtype;
        self.cast(value, to)
    }

    /// An image with its channels behind the batch; floats in the layer's element type.
    pub(super) fn image_as_is(&mut self, tensor: Tensor, format: Format) -> Read<Value> {
        let value = match format {
            Format::ChannelsFirst => self.natural(tensor)?,
            Format::ChannelsLast => self.like(tensor, true)?,
        };
        self.computed(value)
    }

    /// The result of a layer that has its channels behind the batch.
    pub(super) fn pictured(&self, value: Value, format: Format) -> Tensor {
        let is_first = format == Format::ChannelsLast && self.rank(value) > 2;
        Tensor { value, is_first, mask: None }
    }

    /// A value with its last axis behind the batch, or such a value with its second axis last.
    pub(super) fn turn(&mut self, value: Value, is_first: bool) -> Read<Value> {
        let rank = self.rank(value);
        if rank < 3 {
            return Ok(value);
        }
        if let Some(turned) = self.state.turned.get(&(value, is_first)) {
            return Ok(*turned);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        if is_first {
            perm[1..].rotate_right(1);
        } else {
            perm[1..].rotate_left(1);
        }
        let turned = self.transpose(value, perm)?;
        self.state.turned.insert((value, is_first), turned);
        self.state.turned.insert((turned, !is_first), value);
        Ok(turned)
    }

    /// A tensor with its last axis behind the batch where that of another one is.
    pub(super) fn like(&mut self, tensor: Tensor, is_first: bool) -> Read<Value> {
        match (tensor.is_first, is_first) {
            (false, true) => self.turn(tensor.value, true),
            (true, false) => self.turn(tensor.value, false),
            (true, true) | (false, false) => Ok(tensor.value),
        }
    }

    /// The axis of a tensor in the graph that a number names in Keras' order.
    pub(super) fn axis_of(&self, tensor: Tensor, axis: i64) -> Read<usize> {
        let axis = self.axis(tensor.value, axis)?;
        let rank = self.rank(tensor.value);
        Ok(match axis {
            0 => 0,
            axis if !tensor.is_first => axis,
            axis if axis == rank - 1 => 1,
            axis => axis + 1,
        })
    }

    /// Adds to a value a variable along its last axis.
    pub(super) fn add_bias(&mut self, value: Value, shape: &[i64]) -> Read<Value> {
        let bias = self.weight("bias", shape)?;
        self.add(value, bias)
    }
}

impl Emit for At<'_, '_> {
    type Value = Value;
    type Error = Fault;

    fn ty(&self, value: Value) -> &TensorType {
        self.state.builder.graph().ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, Fault> {
        if self.state.builder.graph().len() > MOST {
            return Err(Fault::new(format!("the model has more than {MOST} operators")));
        }
        let name = format!("{}.{}", self.place.path, op.name());
        if let Op::Constant(Constant { value }) = &op
            && value.len() > MAX_CONSTANT
        {
            self.state.constants += 1;
            let name = format!("{name}_{}", self.state.constants);
            return Ok(SmallVec::from_iter([self.state.builder.param(&name, value.clone())]));
        }
        Ok(self.state.builder.all(&name, op, operands)?.into())
    }
}

/// An object inside a configuration, as a layer.
pub(super) fn object<'c>(fields: &'c Object, name: &str) -> Read<Spec<'c>> {
    let value = fields.get(name).ok_or_else(|| Fault::field(name, "is missing"))?;
    Spec::read(value)
}
