//! A model: a graph with its weights.

use super::{Graph, Weights};
use crate::types::Note;

/// A graph, the elements of its parameters, and what a reader noted.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// The elements of its parameters.
    pub weights: Weights,
    /// What a reader of the file decided or ignored.
    pub notes: Vec<Note>,
}

/// What a builder finishes, without notes.
impl From<(Graph, Weights)> for Model {
    fn from((graph, weights): (Graph, Weights)) -> Self {
        Self::new(graph, weights)
    }
}

impl Model {
    /// A model without notes.
    pub fn new(graph: Graph, weights: Weights) -> Self {
        Self { graph, weights, notes: Vec::new() }
    }
}
