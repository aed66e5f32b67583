//! The tree of a configuration: models, their layers, and the calls of layers.

use std::collections::{HashMap, VecDeque};

use serde_json::Value as Json;

use super::config::{Object, Read, kind, text};
use super::error::Fault;
use crate::types::Quoted;

/// The field that numbers an object which stands at several places of a file.
pub(super) const NUMBER: &str = "shared_object_id";

/// Classes that have two names, of which paths of weights have the second.
const ALIASES: [(&str, &str); 3] = [
    ("GroupQueryAttention", "GroupedQueryAttention"),
    ("Convolution1D", "Conv1D"),
    ("Convolution2D", "Conv2D"),
];

/// An object of a configuration: a layer, a model, or a function of `keras.ops`.
#[derive(Clone, Debug)]
pub(super) struct Spec<'c> {
    pub(super) class: &'c str,
    pub(super) name: &'c str,
    pub(super) config: &'c Object,
    /// Whether it is a function of `keras.ops`, which has no weights and is no layer of the model.
    pub(super) is_function: bool,
    /// Whether the file says so; else it only looks like one.
    pub(super) is_named: bool,
    /// The package of a class that is not Keras' own.
    pub(super) package: Option<&'c str>,
    /// The number of an object that stands at several places of the file.
    pub(super) shared: Option<u64>,
    pub(super) inbound: Option<&'c Json>,
}

/// An argument of a call: tensors, and constants beside them.
#[derive(Clone, Debug)]
pub(super) enum Tree<'c, T> {
    Tensor(T),
    List(Vec<Tree<'c, T>>),
    Map(Vec<(&'c str, Tree<'c, T>)>),
    Constant(&'c Json),
}

/// A tensor by the call that gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ref {
    pub(super) call: usize,
    pub(super) result: usize,
}

/// A tensor as the file names it: a layer, the number of one of its calls, and that of a result.
#[derive(Clone, Copy, Debug)]
struct Named<'c> {
    layer: &'c str,
    call: i64,
    result: i64,
}

/// One call of a layer.
#[derive(Debug)]
pub(super) struct Call<'c> {
    pub(super) layer: usize,
    pub(super) args: Vec<Tree<'c, Ref>>,
    pub(super) kwargs: Vec<(&'c str, Tree<'c, Ref>)>,
}

/// A model as a graph of calls.
#[derive(Debug)]
pub(super) struct Functional<'c> {
    pub(super) layers: Vec<Spec<'c>>,
    /// In the order of their operands.
    pub(super) calls: Vec<Call<'c>>,
    pub(super) inputs: Tree<'c, Ref>,
    pub(super) outputs: Tree<'c, Ref>,
}

impl<'c> Spec<'c> {
    /// The object that a JSON value is.
    pub(super) fn read(value: &'c Json) -> Read<Self> {
        let fields = value.as_object();
        let fields = fields.ok_or_else(|| Fault::new(format!("{}, not a layer", kind(value))))?;
        let class =
            fields.get("class_name").ok_or_else(|| Fault::field("class_name", "is missing"))?;
        // Old files name the module, too: `keras.layers>Dense`.
        let class = text("class_name", class)?;
        let class = class.rsplit_once('>').map_or(class, |(_, class)| class);
        let alias = ALIASES.iter().find(|(alias, _)| *alias == class);
        let class = alias.map_or(class, |(_, class)| class);
        let config = fields.get("config").and_then(Json::as_object);
        let config = config.ok_or_else(|| Fault::field("config", "is missing"))?;
        let own = fields.get("name").or_else(|| config.get("name")).and_then(Json::as_str);
        let module = fields.get("module").and_then(Json::as_str);
        let inbound = fields.get("inbound_nodes");
        // Layers say whether they are trainable; functions do not, and old files name no module.
        let is_function = match module {
            Some(module) => module.starts_with("keras.src.ops") || module.starts_with("keras.ops"),
            None => !config.contains_key("trainable") && inbound.is_some_and(has_arguments),
        };
        let registered = fields.get("registered_name").and_then(Json::as_str);
        let package = registered.and_then(|name| name.split_once('>')).map(|(package, _)| package);
        let first = |module: &'c str| module.split('.').next();
        let is_keras = |module| matches!(first(module), None | Some("keras" | "tf_keras" | ""));
        let foreign = module.filter(|module| !is_keras(module));
        // An object without a name is one of its class.
        let name = own.unwrap_or(class);
        let is_named = module.is_some();
        let package = package.or(foreign);
        let shared = fields.get(NUMBER).and_then(Json::as_u64);
        Ok(Self { class, name, config, is_function, is_named, package, shared, inbound })
    }

    /// An object of Keras' own with this configuration.
    pub(super) fn plain(name: &'c str, config: &'c Object) -> Self {
        let (package, shared, inbound) = (None, None, None);
        let (is_function, is_named) = (false, true);
        Self { class: name, name, config, is_function, is_named, package, shared, inbound }
    }

    /// A function of `keras.ops` with this configuration.
    pub(super) fn function(class: &'c str, config: &'c Object) -> Self {
        Self { is_function: true, ..Self::plain(class, config) }
    }

    /// Whether it is a model of other layers.
    pub(super) fn is_model(&self) -> bool {
        self.package.is_none() && (self.is_sequential() || self.is_functional())
    }

    pub(super) fn is_sequential(&self) -> bool {
        self.class == "Sequential"
    }

    fn is_functional(&self) -> bool {
        matches!(self.class, "Functional" | "Model") && self.config.contains_key("layers")
    }
}

/// Whether the calls of a layer name arguments, as those of Keras 3 do.
fn has_arguments(inbound: &Json) -> bool {
    inbound.as_array().and_then(|calls| calls.first()).is_some_and(Json::is_object)
}

/// The layers of a sequential model.
pub(super) fn sequential(config: &Object) -> Read<Vec<Spec<'_>>> {
    let layers = config.get("layers").and_then(Json::as_array);
    let layers = layers.ok_or_else(|| Fault::field("layers", "is missing"))?;
    layers.iter().map(Spec::read).collect()
}

impl<'c> Functional<'c> {
    /// The model of a configuration.
    pub(super) fn read(config: &'c Object) -> Read<Self> {
        let layers = sequential(config)?;
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (i, layer) in layers.iter().enumerate() {
            if numbers.insert(layer.name, i).is_some() {
                return Err(Fault::new(format!("two layers are named {}", Quoted(layer.name))));
            }
        }
        let mut calls = Calls { numbers, layers: &layers, first: Vec::new(), base: Vec::new() };
        let mut given = Vec::new();
        for (i, layer) in layers.iter().enumerate() {
            calls.first.push(given.len());
            given.extend(calls_of(i, layer)?);
        }
        calls.first.push(given.len());
        let ends = ["input_layers", "output_layers"].map(|name| {
            let value = config.get(name).ok_or_else(|| Fault::field(name, "is missing"))?;
            leaves(value)
        });
        let [inputs, outputs] = ends;
        let (inputs, outputs) = (inputs?, outputs?);
        calls.find_bases(&given, &outputs);
        let inputs = calls.resolve(&inputs, true)?;
        let outputs = calls.resolve(&outputs, true)?;
        let calls = given
            .iter()
            .map(|call| {
                let args = call.args.iter().map(|arg| calls.resolve(arg, false));
                let kwargs =
                    call.kwargs.iter().map(|(name, arg)| Ok((*name, calls.resolve(arg, false)?)));
                Ok(Call {
                    layer: call.layer,
                    args: args.collect::<Read<_>>()?,
                    kwargs: kwargs.collect::<Read<_>>()?,
                })
            })
            .collect::<Read<Vec<_>>>()?;
        Ok(Self { layers, calls, inputs, outputs })
    }

    /// The calls in an order in which each comes after those that give its operands.
    pub(super) fn order(&self) -> Read<Vec<usize>> {
        let mut missing = vec![0usize; self.calls.len()];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.calls.len()];
        for (i, call) in self.calls.iter().enumerate() {
            let mut visit = |of: &Ref| {
                missing[i] += 1;
                users[of.call].push(i);
            };
            call.args.iter().for_each(|arg| arg.each(&mut visit));
            call.kwargs.iter().for_each(|(_, arg)| arg.each(&mut visit));
        }
        let ready = missing.iter().enumerate().filter(|(_, n)| **n == 0).map(|(i, _)| i);
        let mut queue: VecDeque<usize> = ready.collect();
        let mut order = Vec::with_capacity(self.calls.len());
        while let Some(call) = queue.pop_front() {
            order.push(call);
            for user in &users[call] {
                missing[*user] -= 1;
                if missing[*user] == 0 {
                    queue.push_back(*user);
                }
            }
        }
        match missing.iter().position(|n| *n > 0) {
            None => Ok(order),
            Some(call) => {
                let name = self.layers[self.calls[call].layer].name;
                Err(Fault::new(format!("layer {} needs its own result", Quoted(name))))
            }
        }
    }
}

impl<T> Tree<'_, T> {
    /// Visits all tensors, in order.
    pub(super) fn each(&self, visit: &mut impl FnMut(&T)) {
        match self {
            Self::Tensor(tensor) => visit(tensor),
            Self::List(list) => list.iter().for_each(|tree| tree.each(visit)),
            Self::Map(fields) => fields.iter().for_each(|(_, tree)| tree.each(visit)),
            Self::Constant(_) => {}
        }
    }
}

/// A call whose tensors are named as the file does.
struct Given<'c> {
    layer: usize,
    args: Vec<Tree<'c, Named<'c>>>,
    kwargs: Vec<(&'c str, Tree<'c, Named<'c>>)>,
    /// Whether the call names its arguments, as those of Keras 3 do.
    is_new: bool,
}

/// What turns the names of a file into calls.
struct Calls<'a, 'c> {
    numbers: HashMap<&'c str, usize>,
    layers: &'a [Spec<'c>],
    /// The first call of each layer, and their number.
    first: Vec<usize>,
    /// The number that the file gives the first call of each layer.
    base: Vec<i64>,
}

impl<'c> Calls<'_, 'c> {
    /// Finds the number of the first call of each layer. In files before Keras 3, those of models
    /// with inputs of their own are counted from 1, and all calls are named by others.
    fn find_bases(&mut self, given: &[Given<'c>], outputs: &Tree<'c, Named<'c>>) {
        let mut least: Vec<Option<i64>> = vec![None; self.layers.len()];
        if given.iter().all(|call| !call.is_new) {
            let mut visit = |of: &Named<'_>| {
                if let Some(layer) = self.numbers.get(of.layer) {
                    // The first one found is the least so far.
                    least[*layer] = Some(least[*layer].unwrap_or(of.call).min(of.call));
                }
            };
            for call in given {
                call.args.iter().for_each(|arg| arg.each(&mut visit));
                call.kwargs.iter().for_each(|(_, arg)| arg.each(&mut visit));
            }
            outputs.each(&mut visit);
        }
        let base = |(layer, least): (&Spec<'_>, Option<i64>)| {
            // A layer that nobody names has no call whose number matters.
            if layer.is_model() { least.unwrap_or(0) } else { 0 }
        };
        self.base = self.layers.iter().zip(least).map(base).collect();
    }

    fn find(&self, named: &Named<'c>, is_end: bool) -> Read<Ref> {
        let Named { layer, call, result } = *named;
        let wrong = |what: &str| Fault::new(format!("{what} of layer {}", Quoted(layer)));
        let number = *self.numbers.get(layer).ok_or_else(|| wrong("there is no input"))?;
        let (first, end) = (self.first[number], self.first[number + 1]);
        // Keras 3 counts the outputs of models, and only these, from 1.
        let is_new = self.base[number] == 0 && self.layers[number].is_functional();
        let shift = self.base[number] + i64::from(is_end && is_new && call > 0);
        let call = usize::try_from(call - shift).ok().and_then(|call| first.checked_add(call));
        let call = call.filter(|call| *call < end).ok_or_else(|| wrong("there is no such call"))?;
        let result = usize::try_from(result).map_err(|_| wrong("there is no such result"))?;
        Ok(Ref { call, result })
    }

    fn resolve(&self, tree: &Tree<'c, Named<'c>>, is_end: bool) -> Read<Tree<'c, Ref>> {
        Ok(match tree {
            Tree::Tensor(named) => Tree::Tensor(self.find(named, is_end)?),
            Tree::Constant(value) => Tree::Constant(value),
            Tree::List(list) => {
                Tree::List(list.iter().map(|t| self.resolve(t, is_end)).collect::<Read<_>>()?)
            }
            Tree::Map(fields) => {
                let field = |(name, t): &(&'c str, _)| Ok((*name, self.resolve(t, is_end)?));
                Tree::Map(fields.iter().map(field).collect::<Read<_>>()?)
            }
        })
    }
}

/// The calls of a layer.
fn calls_of<'c>(layer: usize, spec: &Spec<'c>) -> Read<Vec<Given<'c>>> {
    let own = Given { layer, args: Vec::new(), kwargs: Vec::new(), is_new: false };
    if spec.class == "InputLayer" {
        return Ok(vec![own]);
    }
    let Some(calls) = spec.inbound.and_then(Json::as_array) else { return Ok(Vec::new()) };
    calls
        .iter()
        .map(|call| match call {
            Json::Object(fields) => {
                let args = fields.get("args").map(tree).transpose()?;
                let args = match args {
                    Some(Tree::List(args)) => args,
                    _ => Vec::new(),
                };
                let kwargs = fields.get("kwargs").and_then(Json::as_object);
                let kwargs = kwargs.into_iter().flatten();
                let kwargs = kwargs.map(|(name, value)| Ok((name.as_str(), tree(value)?)));
                let kwargs = kwargs.collect::<Read<_>>()?;
                Ok(Given { layer, args, kwargs, is_new: true })
            }
            call => {
                let mut kwargs = Vec::new();
                let args = vec![unwrapped(legacy(call, &mut kwargs)?)];
                Ok(Given { layer, args, kwargs, is_new: false })
            }
        })
        .collect()
}

/// An argument of a call in Keras 3.
fn tree<'c>(value: &'c Json) -> Read<Tree<'c, Named<'c>>> {
    Ok(match value {
        Json::Array(list) => Tree::List(list.iter().map(tree).collect::<Read<_>>()?),
        Json::Object(fields) => match fields.get("class_name").and_then(Json::as_str) {
            Some("__keras_tensor__") => {
                let history = value.pointer("/config/keras_history");
                let named = history.and_then(named);
                Tree::Tensor(named.ok_or_else(|| Fault::field("keras_history", "is damaged"))?)
            }
            Some("__tuple__") => {
                let items = value.pointer("/config/value").and_then(Json::as_array);
                let items = items.into_iter().flatten().map(tree).collect::<Read<_>>()?;
                Tree::List(items)
            }
            Some(_) => Tree::Constant(value),
            None => {
                let field = |(name, value): (&'c String, _)| Ok((name.as_str(), tree(value)?));
                Tree::Map(fields.iter().map(field).collect::<Read<_>>()?)
            }
        },
        value => Tree::Constant(value),
    })
}

/// A tensor as `[layer, call, result]`.
fn named(value: &Json) -> Option<Named<'_>> {
    let [layer, call, result, ..] = value.as_array()?.as_slice() else { return None };
    Some(Named { layer: layer.as_str()?, call: call.as_i64()?, result: result.as_i64()? })
}

/// The number that stands where a tensor would: `["_CONSTANT_VALUE", -1, 0.5, …]`.
fn constant(value: &Json) -> Option<&Json> {
    let [Json::String(name), _, constant, ..] = value.as_array()?.as_slice() else { return None };
    (name == "_CONSTANT_VALUE").then_some(constant)
}

/// An argument of a call before Keras 3: each tensor may bring keyword arguments, of which those of
/// the first one count.
fn legacy<'c>(
    value: &'c Json,
    kwargs: &mut Vec<(&'c str, Tree<'c, Named<'c>>)>,
) -> Read<Tree<'c, Named<'c>>> {
    if let Some(list) = value.as_array()
        && list.first().is_some_and(Json::is_string)
    {
        if let Some(fields) = list.get(3).and_then(Json::as_object).filter(|_| kwargs.is_empty()) {
            for (name, value) in fields {
                kwargs.push((name.as_str(), legacy_keyword(value)?));
            }
        }
        let leaf = constant(value).map(Tree::Constant);
        let leaf = leaf.or_else(|| named(value).map(Tree::Tensor));
        return leaf.ok_or_else(|| Fault::field("inbound_nodes", "is damaged"));
    }
    Ok(match value {
        Json::Array(list) => {
            Tree::List(list.iter().map(|v| legacy(v, kwargs)).collect::<Read<_>>()?)
        }
        Json::Object(fields) => {
            let mut all = Vec::new();
            for (name, value) in fields {
                all.push((name.as_str(), legacy(value, kwargs)?));
            }
            Tree::Map(all)
        }
        value => Tree::Constant(value),
    })
}

/// A keyword argument of a call before Keras 3, in which a tensor is told by its form.
fn legacy_keyword(value: &Json) -> Read<Tree<'_, Named<'_>>> {
    if let Some(value) = constant(value) {
        return Ok(Tree::Constant(value));
    }
    if let Some(leaf) = named(value) {
        return Ok(Tree::Tensor(leaf));
    }
    Ok(match value {
        Json::Array(list) if list.iter().any(|v| named(v).is_some()) => {
            Tree::List(list.iter().map(legacy_keyword).collect::<Read<_>>()?)
        }
        value => Tree::Constant(value),
    })
}

/// A list of one tensor is that tensor: calls before Keras 3 are lists in any case.
fn unwrapped<T>(tree: Tree<'_, T>) -> Tree<'_, T> {
    match tree {
        Tree::List(mut list) if list.len() == 1 => match list.pop() {
            Some(one) => one,
            None => Tree::List(list),
        },
        tree => tree,
    }
}

/// The inputs or outputs of a model: one tensor, or a list or map of them.
fn leaves<'c>(value: &'c Json) -> Read<Tree<'c, Named<'c>>> {
    if let Some(leaf) = named(value) {
        return Ok(Tree::Tensor(leaf));
    }
    Ok(match value {
        Json::Array(list) => Tree::List(list.iter().map(leaves).collect::<Read<_>>()?),
        Json::Object(fields) => {
            let field = |(name, value): (&'c String, _)| Ok((name.as_str(), leaves(value)?));
            Tree::Map(fields.iter().map(field).collect::<Read<_>>()?)
        }
        value => return Err(Fault::new(format!("{} is no tensor of the model", kind(value)))),
    })
}
