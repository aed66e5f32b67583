//! What each of ONNX's operators becomes.

mod attention;
mod einsum;
mod elementwise;
mod grid;
mod index;
mod layers;
mod normal;
mod normalise;
mod parts;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod shape;
mod spatial;
mod values;

use super::NodeError;
use super::node::Node;

/// How nodes of an operator are converted.
pub(super) struct Converter {
    /// The most operands it takes.
    pub(super) operands: usize,
    /// Adds the operators that mean the same.
    pub(super) convert: fn(&mut Node<'_, '_>) -> Result<(), NodeError>,
}

/// An operator that takes any number of operands.
const ANY: usize = usize::MAX;

/// How nodes of ONNX's operator `op` are converted, where it is supported.
pub(super) fn find(op: &str) -> Option<Converter> {
    let tables = [
        elementwise::find,
        layers::find,
        spatial::find,
        grid::find,
        normal::find,
        reduce::find,
        shape::find,
        parts::find,
        values::find,
        normalise::find,
        einsum::find,
        attention::find,
        recurrent::find,
        index::find,
        quantize::find,
        random::find,
    ];
    let (operands, convert) = tables.into_iter().find_map(|find| find(op))?;
    Some(Converter { operands, convert })
}

/// A line of a table: the most operands, and the conversion.
type Line = (usize, fn(&mut Node<'_, '_>) -> Result<(), NodeError>);
