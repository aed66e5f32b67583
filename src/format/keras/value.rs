//! Tensors of a Keras model, and the arguments of calls.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::config::Read;
use super::error::Fault;
use super::tree::Tree;
use crate::ir::Value;
use crate::types::Quoted;

/// A tensor of a Keras model.
///
/// An image `[N, spatial…, C]` may lie in the graph with its channels first: then layers that work
/// on images follow one another without transposes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub(super) value: Value,
    /// Whether the last axis stands behind the batch.
    pub(super) is_first: bool,
    /// The steps that count: truth values, one for each row and step.
    pub(super) mask: Option<Value>,
}

/// An argument or the result of a call.
pub(super) type Arg<'c> = Tree<'c, Tensor>;

impl From<Value> for Tensor {
    fn from(value: Value) -> Self {
        Self { value, is_first: false, mask: None }
    }
}

impl From<Value> for Arg<'_> {
    fn from(value: Value) -> Self {
        Self::Tensor(value.into())
    }
}

impl From<Tensor> for Arg<'_> {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl Arg<'_> {
    /// All tensors, in order.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let mut found = Vec::new();
        self.each(&mut |tensor| found.push(*tensor));
        found
    }
}

/// The arguments of a call, which record what is asked for.
pub(super) struct Args<'c> {
    positional: Vec<Arg<'c>>,
    kwargs: Vec<(&'c str, Arg<'c>)>,
    taken: RefCell<BTreeSet<&'c str>>,
    most: RefCell<usize>,
}

impl<'c> Args<'c> {
    pub(super) fn new(positional: Vec<Arg<'c>>, kwargs: Vec<(&'c str, Arg<'c>)>) -> Self {
        Self { positional, kwargs, taken: RefCell::default(), most: RefCell::new(0) }
    }

    /// The call with one tensor.
    pub(super) fn of(tensor: Tensor) -> Self {
        Self::new(vec![tensor.into()], Vec::new())
    }

    /// The argument with this position or this name.
    pub(super) fn opt(&self, position: usize, name: &str) -> Option<&Arg<'c>> {
        if let Some(arg) = self.positional.get(position) {
            let most = (*self.most.borrow()).max(position + 1);
            *self.most.borrow_mut() = most;
            return Some(arg).filter(|arg| !is_none(arg));
        }
        self.named(name)
    }

    /// The keyword argument of this name.
    pub(super) fn named(&self, name: &str) -> Option<&Arg<'c>> {
        let (name, arg) = self.kwargs.iter().find(|(own, _)| *own == name)?;
        self.taken.borrow_mut().insert(name);
        Some(arg).filter(|arg| !is_none(arg))
    }

    /// The first argument, whatever its name is.
    pub(super) fn first(&self) -> Read<&Arg<'c>> {
        let found = self.opt(0, "inputs").or_else(|| {
            // A function calls its first argument as it likes.
            let (name, arg) = self.kwargs.iter().find(|(_, arg)| !arg.tensors().is_empty())?;
            self.taken.borrow_mut().insert(name);
            Some(arg)
        });
        found.ok_or_else(|| Fault::new("it is called without a tensor"))
    }

    /// The tensor that is the first argument.
    pub(super) fn tensor(&self) -> Read<Tensor> {
        match self.first()? {
            Arg::Tensor(tensor) => Ok(*tensor),
            // Some layers take one tensor or several.
            list => match list.tensors()[..] {
                [tensor] => Ok(tensor),
                ref many => Err(Fault::new(format!("it is called with {} tensors", many.len()))),
            },
        }
    }

    /// The tensor with this position or name, if one is given.
    pub(super) fn opt_tensor(&self, position: usize, name: &str) -> Read<Option<Tensor>> {
        match self.opt(position, name) {
            None => Ok(None),
            Some(Arg::Tensor(tensor)) => Ok(Some(*tensor)),
            Some(_) => Err(Fault::new(format!("argument {} is no tensor", Quoted(name)))),
        }
    }

    /// The constant with this position or name, if one is given.
    pub(super) fn constant(&self, position: usize, name: &str) -> Read<Option<Json>> {
        self.opt(position, name).map(|arg| json(name, arg)).transpose()
    }

    /// All positional arguments.
    pub(super) fn positional(&self) -> &[Arg<'c>] {
        *self.most.borrow_mut() = self.positional.len();
        &self.positional
    }

    /// Takes keyword arguments that change nothing.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.named(name);
        }
    }

    /// The arguments that are given and that nobody asked for.
    pub(super) fn left(&self) -> Vec<String> {
        let taken = self.taken.borrow();
        let is_set = |arg: &Arg<'_>| !matches!(arg, Arg::Constant(Json::Null | Json::Bool(false)));
        let named = self.kwargs.iter().filter(|(name, arg)| !taken.contains(name) && is_set(arg));
        let named = named.map(|(name, _)| (*name).to_owned());
        let more = self.positional.iter().enumerate().skip(*self.most.borrow());
        let more = more.filter(|(_, arg)| is_set(arg)).map(|(i, _)| i.to_string());
        named.chain(more).collect()
    }
}

fn is_none(arg: &Arg<'_>) -> bool {
    matches!(arg, Arg::Constant(Json::Null))
}

/// The constant that an argument without tensors is.
pub(super) fn json(name: &str, arg: &Arg<'_>) -> Read<Json> {
    Ok(match arg {
        Arg::Constant(value) => (*value).clone(),
        Arg::List(list) => {
            Json::Array(list.iter().map(|arg| json(name, arg)).collect::<Read<_>>()?)
        }
        Arg::Map(fields) => {
            let field = |(key, arg): &(&str, _)| Ok(((*key).to_owned(), json(name, arg)?));
            Json::Object(fields.iter().map(field).collect::<Read<_>>()?)
        }
        Arg::Tensor(_) => {
            let reason = format!("argument {} must be known before the run", Quoted(name));
            return Err(Fault::new(reason));
        }
    })
}
