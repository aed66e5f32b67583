//! Detection of constants that stand for a batch size fixed at export.
//!
//! A number is freed only at a place to which the batch axis provably flows; everything else that
//! may stand for the batch is refused by its place.

use super::NodeError;
use crate::op::Reshape;
use crate::types::{Dim, Shape, Symbol};

/// The batch axis of a shape: its position, the symbol, and how many entries each row has.
struct BatchAxis {
    at: usize,
    symbol: Symbol,
    inner: i64,
}

/// The symbol that a size depends on, if it is one only.
fn symbol(dim: &Dim) -> Option<Symbol> {
    let mut found: Vec<Symbol> = Vec::new();
    dim.symbols(&mut |s| found.push(s));
    found.dedup();
    if let [one] = found[..] { Some(one) } else { None }
}

/// The axis of a shape whose size is a multiple of the batch, if there is one and no other open
/// size.
fn batch_axis(shape: &Shape) -> Option<BatchAxis> {
    let mut open = shape.iter().enumerate().filter(|(_, d)| !d.is_const());
    let (at, dim) = open.next()?;
    if open.next().is_some() {
        return None;
    }
    let symbol = symbol(dim)?;
    let inner = dim.exact_div(&Dim::symbol(symbol))?.as_const()?;
    Some(BatchAxis { at, symbol, inner })
}

/// True if the size of the axis depends on the batch.
pub(super) fn is_open(shape: &Shape, axis: usize) -> bool {
    shape.get(axis).is_some_and(|d| !d.is_const())
}

/// The target of a reshape of `input`, where the file was written at a batch of `size`: the entry
/// to which the batch axis flows becomes the batch. As many elements lie before that entry as
/// before the batch axis, and it is a multiple of the batch size (for a batch of 1, it is 1).
pub(super) fn reshape(
    size: i64,
    input: &Shape,
    target: Vec<Dim>,
    allow_zero: bool,
) -> Result<Vec<Dim>, NodeError> {
    let Some(batch) = batch_axis(input) else { return Ok(target) };
    let copied = !allow_zero && target.get(batch.at) == Some(&Dim::ZERO);
    if copied || target.iter().any(|d| !d.is_const()) {
        return Ok(target);
    }
    let at_size: Shape = input.iter().map(|d| d.substitute(&mut |_| Dim::from(size))).collect();
    // A target that does not fit at the file's own batch size is refused when the node is added.
    let Ok(resolved) = Reshape::resolve(&at_size, &target, allow_zero) else { return Ok(target) };
    let before = |shape: &Shape, axis: usize| {
        shape.iter().take(axis).fold(Dim::ONE, |product, d| product * d.clone())
    };
    let lead = before(&at_size, batch.at);
    let rows = |axis: usize| {
        let entry = resolved.get(axis)?.as_const()?;
        let literal = target.get(axis).and_then(Dim::as_const).is_some_and(|c| c > 0);
        let multiple = if size == 1 { entry == 1 } else { entry > 0 && entry % size == 0 };
        (literal && multiple && before(&resolved, axis) == lead).then(|| (axis, entry / size))
    };
    let places: Vec<(usize, i64)> = (0..target.len()).filter_map(rows).collect();
    let inferred = target.iter().any(|d| *d == Dim::from(-1));
    let literal = format!("the target {}", Shape::from(target.as_slice()));
    match places[..] {
        [(axis, rows)] => {
            let mut target = target;
            target[axis] = Dim::symbol(batch.symbol) * rows;
            Ok(target)
        }
        [] if inferred => Ok(target),
        [] => {
            let rows = if batch.inner == 1 { "rows" } else { "parts of rows" };
            let reason = format!("no entry holds the {rows} of axis {} of {input}", batch.at);
            Err(NodeError::Baked { literal, reason })
        }
        _ => {
            let axes =
                places.iter().map(|(axis, _)| axis.to_string()).collect::<Vec<_>>().join(" and ");
            let reason = format!("entries {axes} may both stand for the batch size {size}");
            Err(NodeError::Baked { literal, reason })
        }
    }
}

/// The shape to which `input` is expanded, where the file was written at a batch of `size`: an
/// entry on the batch axis becomes the batch.
pub(super) fn expand(size: i64, input: &Shape, mut target: Vec<Dim>) -> Vec<Dim> {
    for (entry, own) in target.iter_mut().rev().zip(input.iter().rev()) {
        let at_size = own.substitute(&mut |_| Dim::from(size));
        if !own.is_const() && entry.is_const() && *entry == at_size {
            *entry = own.clone();
        }
    }
    target
}

/// From this number on a bound means the end of an axis, and from its negative on its begin, where
/// the size depends on the batch. ONNX recommends the largest number of 32 bits; exporters also
/// write a billion.
pub(super) const FAR: i64 = 1_000_000_000;

/// Refuses a range of the batch axis with fixed ends: they may stand for the batch.
pub(super) fn slice(axis: usize, start: &Dim, end: &Dim, step: i64) -> Result<(), NodeError> {
    let (first, last) = (start.as_const(), end.as_const());
    let whole = match step {
        1 => first == Some(0) && last.is_none_or(|e| e >= FAR),
        -1 => first == Some(-1) && last.is_none_or(|e| e <= -FAR),
        _ => false,
    };
    if whole || (first.is_none() && last.is_none()) {
        return Ok(());
    }
    Err(NodeError::Baked {
        literal: format!("the range {start}..{end} by {step} of axis {axis}"),
        reason: "it selects rows of the batch by fixed numbers".to_owned(),
    })
}

/// Refuses fixed positions on the batch axis.
pub(super) fn gather(axis: usize) -> NodeError {
    NodeError::Baked {
        literal: format!("the positions on axis {axis}"),
        reason: "they select rows of the batch by fixed numbers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Dim, NodeError, Shape, expand, reshape, slice};

    fn shape(dims: &[&str]) -> Shape {
        dims.iter().map(|d| d.parse::<Dim>().unwrap()).collect()
    }

    fn reshaped(size: i64, input: &[&str], target: &[i64]) -> Result<String, String> {
        let target = target.iter().map(|d| Dim::from(*d)).collect();
        match reshape(size, &shape(input), target, false) {
            Ok(target) => Ok(Shape::from(target.as_slice()).to_string()),
            Err(NodeError::Baked { reason, .. }) => Err(reason),
            Err(other) => Err(other.to_string()),
        }
    }

    #[test]
    fn the_entry_to_which_the_batch_flows_is_freed() {
        for (size, input, target, freed) in [
            (1, &["N", "64", "7", "7"][..], &[1, 3136][..], "[N,3136]"),
            (1, &["N", "64", "7", "7"], &[1, -1], "[N,-1]"),
            (1, &["N", "64", "7", "7"], &[-1, 3136], "[-1,3136]"),
            (1, &["N", "64", "7", "7"], &[0, -1], "[0,-1]"),
            (1, &["N", "64", "1", "1"], &[1, 64], "[N,64]"),
            (1, &["N", "64"], &[1, 64, 1, 1], "[N,64,1,1]"),
            (4, &["N", "64", "7", "7"], &[4, 3136], "[N,3136]"),
            (4, &["N", "4", "2"], &[4, 8], "[N,8]"),
            (4, &["4", "N", "2"], &[4, 4, 2], "[4,N,2]"),
            (4, &["N", "49", "10"], &[196, 10], "[49*N,10]"),
            (4, &["N*49", "10"], &[4, 49, 10], "[N,49,10]"),
            (2, &["N", "2", "3"], &[1, 2, 6], "[1,N,6]"),
            (1, &["3", "5"], &[1, 15], "[1,15]"),
        ] {
            let found = reshaped(size, input, target);
            assert_eq!(found.as_deref(), Ok(freed), "{input:?} to {target:?} at {size}");
        }
    }

    #[test]
    fn unclear_entries_are_refused() {
        for (size, input, target, reason) in [
            (1, &["N", "784"][..], &[1, 1, 28, 28][..], "entries 0 and 1 may both"),
            (1, &["N", "1000"], &[1000], "no entry holds the rows"),
            (1, &["49*N", "10"], &[49, 10], "no entry holds the parts of rows"),
            (4, &["N", "4"], &[2, 2, 4], "no entry holds the rows of axis 0"),
            (4, &["64", "N"], &[4, 64], "no entry holds the rows of axis 1"),
        ] {
            let found = reshaped(size, input, target);
            assert!(found.as_ref().is_err_and(|e| e.starts_with(reason)), "{target:?}: {found:?}");
        }
    }

    #[test]
    fn expansion_and_ranges() {
        let to = |size, target: [i64; 2]| {
            let target = target.iter().map(|d| Dim::from(*d)).collect();
            Shape::from(expand(size, &shape(&["N", "1"]), target).as_slice()).to_string()
        };
        assert_eq!(to(4, [4, 3]), "[N,3]");
        assert_eq!(to(1, [1, 3]), "[N,3]");
        assert_eq!(to(4, [2, 4]), "[2,4]");
        let range = |start: i64, end: i64, step| slice(0, &start.into(), &end.into(), step).is_ok();
        assert!(range(0, i64::MAX, 1) && range(0, 2_147_483_647, 1) && range(-1, i64::MIN, -1));
        assert!(!range(0, 1, 1) && !range(1, i64::MAX, 1) && !range(0, i64::MAX, 2));
        assert!(slice(0, &Dim::ZERO, &Dim::n(), 1).is_ok());
    }
}
