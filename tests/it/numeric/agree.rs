//! What the label of an output promises, as one function.

use std::fmt::Write as _;

use fanwise::ir::Label;
use fanwise::types::Tensor;

/// Whether an output on many devices is what its label promises, given what one device gave; else
/// what is wrong.
///
/// For every label but that of statistics of replicas the same elements are NaN, infinity and minus
/// infinity. A reassociated or discontinuous output that does not agree may still follow from the
/// rounding of sums.
pub(super) fn agrees(label: Label, one: &Tensor, many: &Tensor) -> Result<(), String> {
    if one.tensor_type() != many.tensor_type() {
        return Err(format!("{} and {}", one.tensor_type(), many.tensor_type()));
    }
    let tolerance = match label {
        Label::LocalStatistics => return Ok(()),
        Label::RowExact | Label::Invariant | Label::Discontinuous => None,
        Label::Reassociated => Some(one.dtype().rounding() * largest(one)),
    };
    let [ours, theirs] = [bits(one), bits(many)];
    let (x, y) = (one.to_f64(), many.to_f64());
    let mut worst: Option<(f64, usize)> = None;
    for i in 0..ours.len() {
        let same = ours[i] == theirs[i] || (x[i].is_nan() && y[i].is_nan());
        let near =
            |tolerance| x[i].is_finite() && y[i].is_finite() && (x[i] - y[i]).abs() <= tolerance;
        if same || tolerance.is_some_and(near) {
            continue;
        }
        let apart = (x[i] - y[i]).abs();
        let apart = if apart.is_nan() { f64::INFINITY } else { apart };
        if worst.is_none_or(|(most, _)| apart > most) {
            worst = Some((apart, i));
        }
    }
    let Some((apart, i)) = worst else { return Ok(()) };
    let mut told =
        format!("{label}: element {i} is {:e} on one device and {:e} on many", x[i], y[i]);
    if let Some(tolerance) = tolerance {
        let _ = write!(told, ", apart by {apart:.1e} of {tolerance:.1e}");
    }
    Err(told)
}

/// The bits of each element.
fn bits(tensor: &Tensor) -> Vec<&[u8]> {
    tensor.bytes().chunks_exact(tensor.dtype().bytes()).collect()
}

/// The largest finite magnitude.
pub(super) fn largest(tensor: &Tensor) -> f64 {
    tensor.to_f64().into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}
