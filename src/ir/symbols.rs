//! The open sizes that a graph for people keeps as symbols.

use crate::types::Quoted;

/// An open size that a graph for people keeps as a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SizeSymbol {
    /// Its name in the file, or `INPUT[AXIS]` where it has none.
    pub(crate) name: String,
    /// The number that it is where the graph is run.
    pub(crate) number: i64,
}

/// The lines that say what the symbols of a graph are.
pub(crate) fn declared(symbols: &[SizeSymbol]) -> impl Iterator<Item = String> + '_ {
    let line = |(order, size): (usize, &SizeSymbol)| {
        format!("S{order} = {}  ; {}", size.number, Quoted(&size.name))
    };
    (1..).zip(symbols).map(line)
}
