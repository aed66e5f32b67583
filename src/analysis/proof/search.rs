//! Progress of the search among operators with the same operands.

use std::collections::HashMap;

/// Progress of the search among operators with the same operands.
#[derive(Default)]
pub(super) struct Search {
    /// The position after the last operator that was found.
    pub(super) next: usize,
    /// The positions of all by their printed form; filled at the first search out of order.
    pub(super) forms: HashMap<String, Vec<usize>>,
}
