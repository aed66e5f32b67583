//! Values repeated along axes.

use super::{Done, Export, Imports, Node, Writer, Written, longs};
use crate::op::{OpError, Tile};

pub(super) fn imports(all: &mut Imports) {
    all.add("Tile", 2, tile);
}

fn tile(n: &mut Node<'_, '_>) -> Done {
    let count = |r: i64| {
        let reason = || format!("{r} repeats are not possible");
        usize::try_from(r).map_err(|_| OpError::Value { operand: 1, reason: reason() })
    };
    let repeats = n.numbers(1)?.into_iter().map(count).collect::<Result<_, _>>()?;
    n.of_first(1, Tile { repeats })
}

impl Export for Tile {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let repeats = w.ints(&longs(&self.repeats)?)?;
        w.with("Tile", [repeats], &[])
    }
}
