//! The gradients of reductions.

use super::Reduce;
use crate::op::Scan;
use crate::op::infer::axes;
use crate::op::prelude::*;

impl Reduce {
    /// Gives the operand its gradient.
    pub(super) fn gradients(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, y, dy) = (at.operand(0)?, at.result(0)?, at.dy()?);
        let shape = at.shape(x);
        let axes = axes("axes", self.parts().0, shape.len())?;
        // The result with the reduced axes, of size 1.
        let kept: Shape = shape
            .iter()
            .enumerate()
            .map(|(i, d)| if axes.contains(&i) { Dim::ONE } else { d.clone() })
            .collect();
        let (y, dy) = (at.reshape(y, &kept)?, at.reshape(dy, &kept)?);
        let dx = match self {
            Self::Sum { .. } | Self::WideSum { .. } => at.expand(dy, &shape)?.into(),
            // `1 / count` and `1 / sum of x` for every element.
            Self::Mean { .. } | Self::LogSum { .. } => {
                let count = || axes.iter().fold(Dim::ONE, |n, axis| n * shape[*axis].clone());
                let log = matches!(self, Self::LogSum { .. });
                let total = if log { at.sum(x, &axes)? } else { at.size(dy, count())? };
                let share = at.div(dy, total)?;
                at.expand(share, &shape)?.into()
            }
            Self::Max { .. } | Self::Min { .. } => {
                // Equal elements share.
                let chosen = at.equal(x, y)?;
                let to = at.ty(dy).dtype;
                let chosen = at.cast(chosen, to)?;
                let share = at.make(dy / chosen.sum(&axes))?;
                chosen * share
            }
            // The product of the others, not `y / x`: an element may be 0.
            Self::Prod { .. } | Self::WideProd { .. } => others(at, x, &axes)? * dy,
            Self::L1 { .. } => x.sign() * dy,
            // `x / y`; at the origin, where there is no slope, 0.
            Self::L2 { .. } => {
                let some = at.is_above(y, 0.0)?;
                let share = at.make((dy / y).only(some))?;
                x * share
            }
            // The softmax: `e^(x - y)`, whose exponent is at most 0.
            Self::LogSumExp { .. } => (x - y).exp() * dy,
            Self::SumSquare { .. } => x * 2.0 * dy,
        };
        at.give(0, dx)
    }
}

/// The product of the other elements over the axes, for each element: of those before it and of
/// those behind it.
fn others(at: &mut Backward<'_>, x: Term, axes: &[usize]) -> Result<Term, RuleError> {
    let shape = at.shape(x);
    let perm: Vec<usize> =
        (0..shape.len()).filter(|a| !axes.contains(a)).chain(axes.iter().copied()).collect();
    let moved: Shape = perm.iter().map(|a| shape[*a].clone()).collect();
    let count = axes.iter().fold(Dim::ONE, |n, axis| n * shape[*axis].clone());
    let rows: Shape = moved.iter().take(shape.len() - axes.len()).cloned().chain([count]).collect();
    let behind = at.transpose(x, perm.clone())?;
    // Several reduced axes become one line, over which both scans run.
    let line = at.reshape(behind, &rows)?;
    let scan = |reverse| Scan::Prod { axis: -1, exclusive: true, reverse };
    let (before, behind) = (at.op(scan(false), &[line])?, at.op(scan(true), &[line])?);
    let product = at.mul(before, behind)?;
    let product = at.reshape(product, &moved)?;
    let mut back = vec![0; perm.len()];
    for (to, from) in perm.iter().enumerate() {
        back[*from] = to;
    }
    at.transpose(product, back)
}
