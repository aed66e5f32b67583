//! A model: a graph with its weights.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Graph, Weights};
use crate::Error;
use crate::types::{Hint, Note, Quoted, Setting, Tensor};

/// A graph, the elements of its parameters, and what a reader noted.
///
/// A file may leave sizes open that are not the batch, such as the length of a sequence. The graph
/// is the one for certain numbers of them; a [`Session`](crate::Session) makes those for the sizes
/// of other inputs.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// The elements of its parameters.
    pub weights: Weights,
    /// What a reader of the file decided or ignored.
    pub notes: Vec<Note>,
    /// The graphs for other numbers of the open sizes; `None` if no size but the batch is open.
    pub(crate) open: Option<Arc<dyn Specialize>>,
}

/// The graphs of a model whose file leaves sizes open that are not the batch.
pub(crate) trait Specialize: fmt::Debug + Send + Sync {
    /// The open sizes.
    fn sizes(&self) -> &[OpenSize];

    /// The numbers for which [`Model::graph`] was made, in the order of the sizes.
    fn stated(&self) -> &[i64];

    /// The model for these numbers, in the order of the sizes.
    ///
    /// # Errors
    /// If its types do not agree at these sizes, or the file changed.
    fn at(&self, numbers: &[i64]) -> Result<Model, Error>;

    /// The model in which the sizes that are `kept`, by their order, are symbols; the others are as
    /// stated.
    ///
    /// # Errors
    /// If an operator needs the number of a size.
    fn symbolic(&self, kept: &[bool]) -> Result<Model, Error>;
}

/// An open size of the inputs that is not the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenSize {
    /// Its name in the file, or `INPUT[AXIS]` where it has none.
    pub(crate) name: String,
    /// An input on which it stands.
    pub(crate) input: String,
    /// The axis on which it stands there.
    pub(crate) axis: usize,
}

/// An open size that a graph for people keeps as a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SizeSymbol {
    /// Its name in the file, or `INPUT[AXIS]` where it has none.
    pub(crate) name: String,
    /// The number that it is where the graph is run.
    pub(crate) number: i64,
}

/// The most open sizes of which each is tried as the only one that needs a number.
const MOST_TRIED: usize = 8;

/// The lines that say what the symbols of a graph are.
pub(crate) fn declared(symbols: &[SizeSymbol]) -> impl Iterator<Item = String> + '_ {
    let line = |(order, size): (usize, &SizeSymbol)| {
        format!("S{order} = {}  ; {}", size.number, Quoted(&size.name))
    };
    (1..).zip(symbols).map(line)
}

/// What a builder finishes, without notes.
impl From<(Graph, Weights)> for Model {
    fn from((graph, weights): (Graph, Weights)) -> Self {
        Self::new(graph, weights)
    }
}

impl Model {
    /// A model without notes or open sizes.
    pub fn new(graph: Graph, weights: Weights) -> Self {
        Self { graph, weights, notes: Vec::new(), open: None }
    }

    /// The names of the sizes that each run may choose, beside the batch.
    pub fn open_sizes(&self) -> impl Iterator<Item = &str> {
        self.open.iter().flat_map(|open| open.sizes()).map(|size| size.name.as_str())
    }

    /// The remarks that open sizes have numbers in the graph.
    pub(crate) fn stated(&self) -> Vec<Note> {
        let sizes = self.open.iter().flat_map(|open| open.sizes().iter().zip(open.stated()));
        let note = |(OpenSize { name, input, axis }, number): (&OpenSize, &i64)| {
            let (shown, input) = (Quoted(name), Quoted(input));
            let text = format!("the open size {shown} (axis {axis} of {input}) is {number} here");
            let set =
                Hint::set(Setting::Dim, [format!("{name}={number}")], "set it to choose another");
            Note::from(text).with_hint(set)
        };
        sizes.map(note).collect()
    }

    /// The model in which open sizes are symbols, for people to read, as many as `usable` accepts and
    /// the algebra of sizes holds; and the remarks why others are numbers. `None` if all of them are.
    pub(crate) fn symbolic(
        &self,
        usable: &dyn Fn(&Graph) -> Result<(), String>,
    ) -> (Option<Self>, Vec<Note>) {
        let Some(open) = &self.open else { return (None, Vec::new()) };
        let count = open.sizes().len();
        let tried = |kept: &[bool]| {
            let model = open.symbolic(kept).map_err(|error| error.to_string())?;
            usable(&model.graph).map(|()| model)
        };
        let reason = match tried(&vec![true; count]) {
            Ok(model) => return (Some(model), Vec::new()),
            Err(reason) => reason,
        };
        // One of several sizes may be all that needs a number.
        let others = |i: usize| (0..count).map(|j| j != i).collect::<Vec<bool>>();
        let alone = || (0..count).find_map(|i| Some((i, tried(&others(i)).ok()?)));
        let one = if (2..=MOST_TRIED).contains(&count) { alone() } else { None };
        let numbers = one.as_ref().map_or(0..count, |(i, _)| *i..i + 1);
        let note = |i: usize| {
            let (name, number) = (Quoted(&open.sizes()[i].name), open.stated()[i]);
            format!("the open size {name} (S{}) is printed as {number}: {reason}", i + 1).into()
        };
        let notes = numbers.map(note).collect();
        (one.map(|(_, model)| model), notes)
    }

    /// The model for the open sizes that these inputs have.
    pub(crate) fn for_inputs(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Cow<'_, Self>, Error> {
        let Some(open) = &self.open else { return Ok(Cow::Borrowed(self)) };
        let numbers = numbers(&**open, inputs);
        if numbers == open.stated() {
            return Ok(Cow::Borrowed(self));
        }
        Ok(Cow::Owned(open.at(&numbers)?))
    }
}

/// The open sizes that these inputs have. One that an input does not show, because it is missing or
/// has fewer axes, is as stated; the run then names the input.
pub(crate) fn numbers(open: &dyn Specialize, inputs: &BTreeMap<String, Tensor>) -> Vec<i64> {
    let shown = |size: &OpenSize| {
        let number = *inputs.get(&size.input)?.dims().get(size.axis)?;
        i64::try_from(number).ok()
    };
    let sizes = open.sizes().iter().zip(open.stated());
    sizes.map(|(size, stated)| shown(size).unwrap_or(*stated)).collect()
}
