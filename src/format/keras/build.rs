//! From the tree of a configuration to a graph.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value as Json;

use super::activity::Penalty;
use super::at::{At, State, dtype};
use super::config::{Config, Object, Read, int};
use super::error::{Fault, LayerError};
use super::layers::{self, Masks};
use super::naming::snake_case;
use super::options::BuildOptions;
use super::shared::Place;
use super::template::{self, Template};
use super::tree::{Functional, Spec, Tree, sequential};
use super::value::{Arg, Args, Tensor};
use super::variables::Variables;
use crate::ir::{Graph, SizeSymbol, Value, Weights};
use crate::op::Formula;
use crate::op::for_training::ForTraining;
use crate::types::{DType, Dim, Note, Quoted, Shape, Symbol, TensorType};

/// A model without the elements of its variables.
pub(super) struct Built {
    pub(super) graph: Graph,
    pub(super) variables: Variables,
    /// The elements of parameters that are no variables.
    pub(super) constants: Weights,
    pub(super) notes: Vec<Note>,
    pub(super) unapplied: BTreeSet<String>,
}

/// Why a model cannot be built.
pub(super) enum BuildError {
    Layers(Vec<LayerError>),
    /// Sizes of inputs without a number.
    Open(Vec<String>),
}

/// The place of a model or a layer, and the options.
struct Build<'o> {
    state: State,
    options: &'o BuildOptions,
    /// Sizes of inputs without a number.
    open: Vec<String>,
    /// The symbols of sizes, by their name.
    symbols: HashMap<String, Dim>,
}

/// The result of calls: `None` for one whose layer is in error, or whose operand is.
type Results<'c> = Vec<Option<Arg<'c>>>;

/// Builds the model that is the object `spec`; `source` is the file that it comes from.
pub(super) fn build(
    spec: &Spec<'_>,
    source: &str,
    options: &BuildOptions,
) -> Result<Built, BuildError> {
    let state = State::new(spec.name, source, options, object);
    let mut build = Build { state, options, open: Vec::new(), symbols: HashMap::new() };
    let place =
        Place { path: String::new(), store: String::new(), order: Vec::new(), is_trainable: true };
    let fault = build.top(spec, &place, None).err();
    let Build { mut state, open, .. } = build;
    if !open.is_empty() {
        return Err(BuildError::Open(open));
    }
    if let Some(fault) = fault.filter(|_| state.errors.is_empty()) {
        state.errors.push(LayerError::new(spec.name, spec.class, fault));
    }
    if !state.errors.is_empty() {
        return Err(BuildError::Layers(state.errors));
    }
    let (mut graph, constants): (Graph, Weights) = state.builder.finish();
    let symbols = options.symbols.iter().filter_map(|name| {
        options.sizes.get(name).map(|number| SizeSymbol { name: name.clone(), number: *number })
    });
    graph.set_symbols(symbols.collect());
    state.variables.sort();
    let State { variables, notes, unapplied, .. } = state;
    Ok(Built { graph, variables, constants, notes, unapplied })
}

impl Build<'_> {
    /// Builds the model of the file; its outputs have these names, or those of their layers.
    fn top(&mut self, spec: &Spec<'_>, place: &Place, named: Option<&[&str]>) -> Read<()> {
        if !spec.is_model() {
            let way = "save a Sequential or Functional model; a subclass of Model is Python code";
            return Err(Fault::with_way("it is no Sequential or Functional model", way));
        }
        if spec.is_sequential() {
            let layers = sequential(spec.config)?;
            let input = self.sequential_input(spec, &layers)?;
            let Some(input) = input else { return Ok(()) };
            let result = in_sequence(&mut self.state, &layers, place, input)?;
            // A call in error is told of with its layer.
            let Some(result) = result else { return Ok(()) };
            let last = layers.last().map_or(spec.name, |layer| layer.name);
            self.outputs(&result, named.unwrap_or(&[last]));
            return Ok(());
        }
        let model = Functional::read(spec.config)?;
        if let Some(Template { layer, outputs }) = template::find(&model) {
            let template = &model.layers[layer];
            let name = Quoted(template.name);
            let text = format!("the file is of a model of several devices; it is read as {name}");
            self.state.notes.push(text.into());
            let order = [&place.order[..], &[layer]].concat();
            let place = Place { order, ..place.clone() };
            return self.top(template, &place, Some(&outputs));
        }
        let mut inputs = Vec::new();
        model.inputs.each(&mut |of| inputs.push(of.call));
        let mut given = HashMap::new();
        for call in inputs {
            let layer = &model.layers[model.calls[call].layer];
            if let Some(tensor) = self.input(layer)? {
                given.insert(call, tensor.into());
            }
        }
        if !self.open.is_empty() {
            return Ok(());
        }
        let results = calls(&mut self.state, &model, place, given)?;
        let mut names = Vec::new();
        model.outputs.each(&mut |of| names.push(model.layers[model.calls[of.call].layer].name));
        if let Some(result) = ends(&model.outputs, &results)? {
            self.outputs(&result, named.unwrap_or(&names));
        }
        Ok(())
    }

    /// Makes tensors the outputs of the graph. A name that is used twice gets a number, as in
    /// Keras.
    fn outputs(&mut self, result: &Arg<'_>, names: &[&str]) {
        let mut used: HashMap<String, usize> = HashMap::new();
        // A numbered name may be that of another layer: `lstm_1`.
        let mut taken: HashSet<String> = HashSet::new();
        let single = names.len() == 1;
        for (i, tensor) in result.tensors().into_iter().enumerate() {
            let wanted = names.get(if single { 0 } else { i }).copied();
            let wanted = wanted.map_or_else(|| format!("output_{i}"), str::to_owned);
            let count = used.entry(wanted.clone()).or_insert(0);
            let mut name = if *count == 0 { wanted.clone() } else { format!("{wanted}_{count}") };
            while !taken.insert(name.clone()) {
                *count += 1;
                name = format!("{wanted}_{count}");
            }
            *count += 1;
            let value = match Output::value(&mut self.state, tensor) {
                Ok(value) => value,
                Err(fault) => {
                    self.state.errors.push(LayerError::new(&name, "output", fault));
                    continue;
                }
            };
            self.state.builder.output(&name, value);
        }
    }

    /// The input of a sequential model: its first layer may be one, or say what it takes.
    fn sequential_input(&mut self, spec: &Spec<'_>, layers: &[Spec<'_>]) -> Read<Option<Tensor>> {
        let first = layers.first().ok_or_else(|| Fault::new("it has no layers"))?;
        if first.class == "InputLayer" {
            return self.input(first);
        }
        let first_shape = first_shape(first);
        let shape = first_shape.or_else(|| spec.config.get("build_input_shape"));
        let shape = shape.filter(|shape| shape.is_array()).ok_or_else(|| {
            let way = "build the model before it is saved, or begin it with `keras.Input`";
            Fault::with_way("its input has no shape", way)
        })?;
        let dtype = first.config.get("dtype").and_then(Json::as_str).and_then(dtype);
        // An embedding takes numbers of rows, whatever it computes in.
        let dtype = dtype.filter(|d| d.is_float()).unwrap_or(DType::F32);
        let name = format!("{}_input", first.name);
        self.declare(&name, shape, dtype)
    }

    /// Declares the input that an input layer is.
    fn input(&mut self, spec: &Spec<'_>) -> Read<Option<Tensor>> {
        let found = self.input_of(spec);
        found.or_else(|fault| {
            self.state.errors.push(LayerError::new(spec.name, spec.class, fault));
            Ok(None)
        })
    }

    fn input_of(&mut self, spec: &Spec<'_>) -> Read<Option<Tensor>> {
        if spec.class != "InputLayer" {
            return Err(Fault::new("an input of the model is no input layer"));
        }
        let config = Config::new(spec.config);
        for flag in ["sparse", "ragged", "optional"] {
            if config.flag(flag, false)? {
                return Err(Fault::field(flag, "is set"));
            }
        }
        let shape = config.opt("batch_shape").or_else(|| config.opt("batch_input_shape"));
        let shape = shape.ok_or_else(|| Fault::field("batch_shape", "is missing"))?;
        let name = config.text("dtype", "float32")?;
        let found = dtype(name);
        let dtype = found.ok_or_else(|| Fault::field("dtype", format!("is {}", Quoted(name))))?;
        self.declare(spec.name, shape, dtype)
    }

    /// Declares an input; `None` if one of its sizes is open and has no number.
    fn declare(&mut self, name: &str, shape: &Json, dtype: DType) -> Read<Option<Tensor>> {
        let shape = shape.as_array().ok_or_else(|| Fault::field("batch_shape", "is no list"))?;
        if shape.is_empty() {
            return Err(Fault::field("batch_shape", "has no batch"));
        }
        let (mut dims, mut is_open) = (Shape::from_iter([Dim::n()]), false);
        if let Some(rows) = shape[0].as_i64() {
            let text = format!(
                "input {} takes {rows} rows in the file; here it takes any number",
                Quoted(name)
            );
            self.state.notes.push(text.into());
        }
        for (axis, size) in shape.iter().enumerate().skip(1) {
            let size = if size.is_null() {
                let size = self.size(&format!("{name}[{axis}]"));
                is_open |= size.is_none();
                // Nothing is built while a size is open.
                size.unwrap_or(Dim::ONE)
            } else {
                Dim::from(int("batch_shape", size)?)
            };
            if size.as_const().is_some_and(|size| size < 0) {
                return Err(Fault::field("batch_shape", "has a negative size"));
            }
            dims.push(size);
        }
        if is_open {
            return Ok(None);
        }
        let name = self.state.builder.fresh(name);
        let ty = TensorType::new(dtype, dims);
        Ok(Some(self.state.builder.input(&name, ty).into()))
    }

    /// The size of an input that the file leaves open; `None` if no number was given.
    fn size(&mut self, name: &str) -> Option<Dim> {
        if let Some(at) = self.options.symbols.iter().position(|symbol| symbol == name) {
            // The symbol 0 is the batch.
            let symbol = u32::try_from(at + 1).ok()?;
            return Some(
                self.symbols
                    .entry(name.to_owned())
                    .or_insert_with(|| Dim::symbol(Symbol(symbol)))
                    .clone(),
            );
        }
        let number = self.options.sizes.get(name);
        if number.is_none() {
            self.open.push(name.to_owned());
        }
        number.map(|number| Dim::from(*number))
    }
}

/// The calls of a functional model, with those of its inputs given.
fn calls<'c>(
    state: &mut State,
    model: &Functional<'c>,
    place: &Place,
    given: HashMap<usize, Arg<'c>>,
) -> Read<Results<'c>> {
    let places = places(&model.layers, place, false);
    let mut results: Results<'c> = (0..model.calls.len()).map(|_| None).collect();
    for (call, arg) in given {
        results[call] = Some(arg);
    }
    for call in model.order()? {
        let of = &model.calls[call];
        let layer = &model.layers[of.layer];
        if results[call].is_some() || layer.class == "InputLayer" {
            continue;
        }
        let args = of.args.iter().map(|arg| operand(arg, &results)).collect::<Option<Vec<_>>>();
        let kwargs = of.kwargs.iter().map(|(name, arg)| Some((*name, operand(arg, &results)?)));
        let (Some(args), Some(kwargs)) = (args, kwargs.collect::<Option<Vec<_>>>()) else {
            continue;
        };
        state.count_call()?;
        results[call] = recorded(state, layer, &places[of.layer], &Args::new(args, kwargs));
    }
    Ok(results)
}

/// The layers of a sequential model, one after the other; `None` if one is in error.
fn in_sequence<'c>(
    state: &mut State,
    layers: &[Spec<'c>],
    place: &Place,
    input: Tensor,
) -> Read<Option<Arg<'c>>> {
    let places = places(layers, place, true);
    let mut value = Arg::from(input);
    for (layer, place) in layers.iter().zip(&places) {
        if layer.class == "InputLayer" {
            continue;
        }
        state.count_call()?;
        let args = Args::new(vec![value], Vec::new());
        let Some(result) = recorded(state, layer, place, &args) else { return Ok(None) };
        value = result;
    }
    Ok(Some(value))
}

/// The call of a layer or model of a model; one that fails is recorded.
fn recorded<'c>(
    state: &mut State,
    spec: &Spec<'c>,
    place: &Place,
    args: &Args<'c>,
) -> Option<Arg<'c>> {
    let result = if spec.is_model() {
        model(state, spec, place, args)
    } else {
        layer(state, spec, place, args).map(Some)
    };
    result.unwrap_or_else(|fault| {
        let is_known = state.errors.iter().any(|error| error.layer == place.path);
        if !is_known {
            state.errors.push(LayerError::new(&place.path, spec.class, fault));
        }
        None
    })
}

/// The call of a model inside the model; `None` if one of its layers is in error.
fn model<'c>(
    state: &mut State,
    spec: &Spec<'c>,
    place: &Place,
    args: &Args<'c>,
) -> Read<Option<Arg<'c>>> {
    args.ignore(&["training", "mask"]);
    let place = &mut place.clone();
    place.is_trainable &= Config::new(spec.config).flag("trainable", true)?;
    *place = state.shared.place(spec, place.clone(), &mut state.variables)?;
    if spec.is_sequential() {
        return in_sequence(state, &sequential(spec.config)?, place, args.tensor()?);
    }
    let model = Functional::read(spec.config)?;
    let given = bind(&model, args.first()?)?;
    let results = calls(state, &model, place, given)?;
    Ok(ends(&model.outputs, &results)?.map(|arg| match arg {
        Arg::List(mut list) if list.len() == 1 => list.swap_remove(0),
        arg => arg,
    }))
}

/// The call of a layer or model that is an attribute of a layer.
fn object<'c>(state: &mut State, spec: &Spec<'c>, place: &Place, args: &Args<'c>) -> Read<Arg<'c>> {
    state.count_call()?;
    if !spec.is_model() {
        return layer(state, spec, place, args);
    }
    model(state, spec, place, args)?.ok_or_else(|| Fault::new("a layer inside it cannot be read"))
}

/// A value that stands for an output.
struct Output;

impl Output {
    /// A tensor in Keras' order of axes; for training with its mask.
    fn value(state: &mut State, tensor: Tensor) -> Read<Value> {
        let config = Object::new();
        let spec = Spec::plain("output", &config);
        let place = Place {
            path: "output".to_owned(),
            store: String::new(),
            order: Vec::new(),
            is_trainable: false,
        };
        let mut at = At::new(state, &spec, place)?;
        let value = at.natural(tensor)?;
        match tensor.mask.filter(|_| at.state.for_training) {
            Some(mask) => at.op(ForTraining::Counted, &[value, mask]),
            None => Ok(value),
        }
    }
}

/// The call of one layer.
fn layer<'c>(state: &mut State, spec: &Spec<'c>, place: &Place, args: &Args<'c>) -> Read<Arg<'c>> {
    let mut at = At::new(state, spec, place.clone())?;
    at.call(spec, args)
}

impl<'c> At<'_, 'c> {
    /// Makes the operators of a layer, and checks that nothing of its configuration and of its
    /// arguments was left aside.
    fn call(&mut self, spec: &Spec<'c>, args: &Args<'c>) -> Read<Arg<'c>> {
        let layer = layers::find(spec)?;
        // Since Keras 3 what a run is for goes before what the call says.
        let training = args.constant(usize::MAX, "training")?;
        if self.state.is_before_3 && training == Some(Json::Bool(true)) {
            let reason = "it is called with `training=True`, which a run for inference has not";
            return Err(Fault::new(reason));
        }
        let mut result = (layer.call)(self, args)?;
        // It gives the penalty to the layers inside, and has none itself.
        let is_handed_on = layer.class == "MultiHeadAttention";
        let penalty = if self.state.for_training { Penalty::of(self)? } else { None };
        if let Some(penalty) = penalty.filter(|_| !is_handed_on) {
            result = penalty.added(self, result)?;
        }
        self.checked()?;
        if layer.masks != Masks::Own {
            args.ignore(&["mask"]);
        }
        if let Some(name) = args.left().first() {
            return Err(Fault::new(format!("argument {} is not supported", Quoted(name))));
        }
        Ok(match layer.masks {
            Masks::Own => result,
            Masks::Dropped => masked(result, None),
            Masks::Kept => {
                let given = args.opt_tensor(usize::MAX, "mask")?.map(|mask| mask.value);
                let first = args.first()?.tensors().first().and_then(|tensor| tensor.mask);
                masked(result, given.or(first))
            }
        })
    }
}

/// A result with another mask.
fn masked(result: Arg<'_>, mask: Option<Value>) -> Arg<'_> {
    match result {
        Arg::Tensor(tensor) => Arg::Tensor(Tensor { mask, ..tensor }),
        Arg::List(list) => Arg::List(list.into_iter().map(|arg| masked(arg, mask)).collect()),
        Arg::Map(fields) => {
            Arg::Map(fields.into_iter().map(|(name, arg)| (name, masked(arg, mask))).collect())
        }
        constant @ Arg::Constant(_) => constant,
    }
}

/// The results that the arguments of a call name; `None` if one is missing.
fn operand<'c>(tree: &Tree<'c, super::tree::Ref>, results: &Results<'c>) -> Option<Arg<'c>> {
    Some(match tree {
        Tree::Tensor(of) => select(results[of.call].as_ref()?, of.result)?,
        Tree::Constant(value) => Arg::Constant(value),
        Tree::List(list) => {
            Arg::List(list.iter().map(|t| operand(t, results)).collect::<Option<_>>()?)
        }
        Tree::Map(fields) => {
            let field = |(name, t): &(&'c str, _)| Some((*name, operand(t, results)?));
            Arg::Map(fields.iter().map(field).collect::<Option<_>>()?)
        }
    })
}

/// One of the results of a call.
fn select<'c>(result: &Arg<'c>, at: usize) -> Option<Arg<'c>> {
    result.tensors().get(at).map(|tensor| Arg::Tensor(*tensor))
}

/// The outputs of a model; `None` if one is missing because of an error that was recorded.
fn ends<'c>(outputs: &Tree<'c, super::tree::Ref>, results: &Results<'c>) -> Read<Option<Arg<'c>>> {
    let mut wrong = None;
    outputs.each(&mut |of| {
        let count = results[of.call].as_ref().map(|result| result.tensors().len());
        if count.is_some_and(|count| of.result >= count) {
            wrong = Some(of.result);
        }
    });
    match wrong {
        Some(result) => Err(Fault::new(format!("an output names the missing result {result}"))),
        None => Ok(operand(outputs, results)),
    }
}

/// The arguments of a call as the inputs of a model: by their names, or in their order.
fn bind<'c>(model: &Functional<'c>, given: &Arg<'c>) -> Read<HashMap<usize, Arg<'c>>> {
    let mut inputs = Vec::new();
    model.inputs.each(&mut |of| inputs.push(of.call));
    if let (Arg::Map(fields), Tree::Map(_) | Tree::List(_) | Tree::Tensor(_)) =
        (given, &model.inputs)
    {
        let name = |call: usize| model.layers[model.calls[call].layer].name;
        let found = |call: usize| {
            let field = fields.iter().find(|(own, _)| *own == name(call));
            field.map(|(_, arg)| (call, arg.clone()))
        };
        let bound: HashMap<usize, Arg<'c>> = inputs.iter().filter_map(|c| found(*c)).collect();
        if bound.len() == inputs.len() {
            return Ok(bound);
        }
    }
    let tensors = given.tensors();
    if tensors.len() != inputs.len() {
        let reason = format!("it has {} inputs and is called with {}", inputs.len(), tensors.len());
        return Err(Fault::new(reason));
    }
    Ok(inputs.into_iter().zip(tensors.into_iter().map(Arg::Tensor)).collect())
}

/// The shape that the first layer of a sequential model says it takes.
fn first_shape<'c>(layer: &Spec<'c>) -> Option<&'c Json> {
    let own = ["batch_input_shape", "batch_shape"].iter().find_map(|name| layer.config.get(*name));
    own.filter(|shape| shape.is_array())
}

/// The places of the layers of a model.
fn places(layers: &[Spec<'_>], place: &Place, is_sequential: bool) -> Vec<Place> {
    let mut used: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::with_capacity(layers.len());
    for (at, layer) in layers.iter().enumerate() {
        let is_input = is_sequential && layer.class == "InputLayer";
        let is_layer = !layer.is_function && !is_input;
        let mut kind = snake_case(layer.class);
        if is_layer {
            let count = used.entry(kind.clone()).or_insert(0);
            if *count > 0 {
                kind = format!("{kind}_{count}");
            }
            *count += 1;
        }
        let join = |a: &str, b: &str| if a.is_empty() { b.to_owned() } else { format!("{a}/{b}") };
        all.push(Place {
            path: join(&place.path, layer.name),
            store: join(&place.store, &format!("layers/{kind}")),
            order: [&place.order[..], &[at]].concat(),
            is_trainable: place.is_trainable,
        });
    }
    all
}
