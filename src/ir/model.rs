//! A model: a graph with its weights.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::{Graph, Weights};
use crate::Error;
use crate::types::{Hint, Note, Quoted, Setting, Tensor, TensorError, TensorType};

/// A graph, the elements of its parameters, and what a reader noted.
///
/// A file may leave sizes open that are not the batch, such as the length of a sequence, and an
/// input of one number may decide sizes or which branch of the file is taken. The graph is the one
/// for certain numbers of them; a [`Session`](crate::Session) makes those for other inputs.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// The elements of its parameters.
    pub weights: Weights,
    /// Decisions of the reader, and ignored parts of the file.
    pub notes: Vec<Note>,
    /// The parameters that the file says are not learned.
    pub(crate) frozen: BTreeSet<String>,
    /// The graphs for other numbers of what is open; `None` if only the batch is.
    pub(crate) open: Option<Arc<dyn Specialize>>,
}

/// The graphs of a model whose file leaves more open than the batch.
pub(crate) trait Specialize: fmt::Debug + Send + Sync {
    /// What is open.
    fn open(&self) -> &[Open];

    /// The numbers for which [`Model::graph`] was made, in the order of what is open.
    fn stated(&self) -> &[i64];

    /// The model for these numbers, in the order of what is open.
    ///
    /// # Errors
    /// If its types do not agree at these sizes, or the file changed.
    fn at(&self, numbers: &[i64]) -> Result<Model, Error>;

    /// The model in which the sizes that are `kept`, by their order among what is open, are
    /// symbols; all else is as stated.
    ///
    /// # Errors
    /// If an operator needs the number of a size.
    fn symbolic(&self, kept: &[bool]) -> Result<Model, Error>;

    /// The bytes that the models may take, those that are kept all together.
    fn max_memory(&self) -> u64;

    /// The error where no inputs are given: the value of an input decides what the graph computes,
    /// and the stated number says nothing about it.
    fn undecided(&self) -> Option<Error>;
}

/// What a file leaves open beside the batch; a run says which number it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// A size of the inputs.
    Size {
        /// Its name in the file, or `INPUT[AXIS]` where it has none.
        name: String,
        /// An input on which it stands.
        input: String,
        /// The axis on which it stands there.
        axis: usize,
    },
    /// The value of an input of one element, which decides sizes or branches. Its number has the
    /// bytes of the element.
    Value {
        /// The input.
        input: String,
        /// Its type.
        ty: TensorType,
    },
}

impl Open {
    /// The number that these inputs give it, if they show it.
    fn shown(&self, inputs: &BTreeMap<String, Tensor>) -> Option<i64> {
        match self {
            Self::Size { input, axis, .. } => {
                i64::try_from(*inputs.get(input)?.dims().get(*axis)?).ok()
            }
            Self::Value { input, ty } => {
                let value = inputs.get(input).filter(|value| value.tensor_type() == *ty)?;
                Some(number(value))
            }
        }
    }
}

/// The value of this type, which has one element, that a number stands for.
pub(crate) fn element(ty: &TensorType, number: i64) -> Result<Tensor, TensorError> {
    let bytes = number.to_le_bytes();
    Tensor::from_bytes(ty.dtype, &vec![1; ty.rank()], &bytes[..ty.dtype.bytes()])
}

/// The bytes of an element as a number.
pub(crate) fn number(value: &Tensor) -> i64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(value.bytes()) {
        *to = *from;
    }
    i64::from_le_bytes(bytes)
}

/// The most open sizes of which each is tried as the only one that needs a number.
const MOST_TRIED: usize = 8;

/// A finished builder gives a model without notes.
impl From<(Graph, Weights)> for Model {
    fn from((graph, weights): (Graph, Weights)) -> Self {
        Self::new(graph, weights)
    }
}

impl Model {
    /// A model without notes or open sizes.
    pub fn new(graph: Graph, weights: Weights) -> Self {
        Self { graph, weights, notes: Vec::new(), frozen: BTreeSet::new(), open: None }
    }

    /// The names of the sizes that each run may choose, beside the batch.
    pub fn open_sizes(&self) -> impl Iterator<Item = &str> {
        self.open.iter().flat_map(|open| open.open()).filter_map(|open| match open {
            Open::Size { name, .. } => Some(name.as_str()),
            Open::Value { .. } => None,
        })
    }

    /// The error where no inputs are given, and one would decide what the graph computes.
    pub(crate) fn undecided(&self) -> Option<Error> {
        self.open.as_ref().and_then(|open| open.undecided())
    }

    /// The remarks that open sizes have numbers in the graph.
    pub(crate) fn stated(&self) -> Vec<Note> {
        let all = self.open.iter().flat_map(|open| open.open().iter().zip(open.stated()));
        let note = |(open, number): (&Open, &i64)| {
            let Open::Size { name, input, axis } = open else { return None };
            let (shown, input) = (Quoted(name), Quoted(input));
            let text = format!("the open size {shown} (axis {axis} of {input}) is {number} here");
            let set =
                Hint::set(Setting::Dim, [format!("{name}={number}")], "set it to choose another");
            Some(Note::from(text).with_hint(set))
        };
        all.filter_map(note).collect()
    }

    /// The model in which open sizes are symbols, for people to read: as many as `usable` accepts
    /// and the algebra of sizes holds, `None` if it holds none; and the remark why others are
    /// numbers.
    pub(crate) fn symbolic(
        &self,
        usable: &dyn Fn(&Graph) -> Result<(), String>,
    ) -> (Option<Self>, Vec<Note>) {
        let Some(open) = &self.open else { return (None, Vec::new()) };
        let names = |open: &Open| match open {
            Open::Size { name, .. } => Some(Quoted(name).to_string()),
            Open::Value { .. } => None,
        };
        let names: Vec<Option<String>> = open.open().iter().map(names).collect();
        let sizes: Vec<usize> = (0..names.len()).filter(|i| names[*i].is_some()).collect();
        if sizes.is_empty() {
            return (None, Vec::new());
        }
        let tried = |number: Option<usize>| {
            let kept: Vec<bool> =
                (0..).zip(&names).map(|(i, name)| name.is_some() && number != Some(i)).collect();
            let model = open.symbolic(&kept).map_err(|error| error.to_string())?;
            if model.graph.symbols().is_empty() {
                return Err("no axis of an input is the batch by itself".to_owned());
            }
            usable(&model.graph).map(|()| model)
        };
        let reason = match tried(None) {
            Ok(model) => return (Some(model), Vec::new()),
            Err(reason) => reason,
        };
        // One of several sizes may be all that needs a number.
        let alone = || sizes.iter().find_map(|i| Some((*i, tried(Some(*i)).ok()?)));
        let one = if (2..=MOST_TRIED).contains(&sizes.len()) { alone() } else { None };
        let is_number = |i: &&usize| one.as_ref().is_none_or(|(number, _)| *i == number);
        // `sizes` are those that have a name.
        let name = |i: usize| names[i].as_deref().unwrap_or_default();
        let number = |i: &usize| format!("{} is printed as {}", name(*i), open.stated()[*i]);
        let numbers: Vec<String> = sizes.iter().filter(is_number).map(number).collect();
        let symbol = |(order, i): (usize, &usize)| format!("S{order} is {}", name(*i));
        let symbols: Vec<String> = (1..).zip(&sizes).map(symbol).collect();
        let notes =
            vec![format!("{}: {reason} ({})", numbers.join(", "), symbols.join(", ")).into()];
        (one.map(|(_, model)| model), notes)
    }

    /// The model for the numbers that these inputs give what is open.
    pub(crate) fn for_inputs(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Cow<'_, Self>, Error> {
        let Some(open) = &self.open else { return Ok(Cow::Borrowed(self)) };
        self.at(&**open, &numbers(&**open, inputs))
    }

    /// The model for inputs of these sizes, by name; it is as stated in what these do not show.
    pub(crate) fn for_sizes(
        &self,
        sizes: &BTreeMap<String, Vec<usize>>,
    ) -> Result<Cow<'_, Self>, Error> {
        let Some(open) = &self.open else { return Ok(Cow::Borrowed(self)) };
        let all = open.open().iter().zip(open.stated());
        let number = |(open, stated): (&Open, &i64)| match open {
            Open::Size { input, axis, .. } => {
                let size = sizes.get(input).and_then(|sizes| sizes.get(*axis));
                size.and_then(|size| i64::try_from(*size).ok()).unwrap_or(*stated)
            }
            Open::Value { .. } => *stated,
        };
        self.at(&**open, &all.map(number).collect::<Vec<i64>>())
    }

    fn at(&self, open: &dyn Specialize, numbers: &[i64]) -> Result<Cow<'_, Self>, Error> {
        if numbers == open.stated() {
            return Ok(Cow::Borrowed(self));
        }
        Ok(Cow::Owned(open.at(numbers)?))
    }
}

/// The numbers that these inputs give what is open. One that an input does not show, because it is
/// missing or of another type, is as stated; the run then names the input.
pub(crate) fn numbers(open: &dyn Specialize, inputs: &BTreeMap<String, Tensor>) -> Vec<i64> {
    let all = open.open().iter().zip(open.stated());
    all.map(|(open, stated)| open.shown(inputs).unwrap_or(*stated)).collect()
}
