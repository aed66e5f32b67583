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
    /// Decisions of the reader, and ignored parts of the file.
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

/// A finished builder gives a model without notes.
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
