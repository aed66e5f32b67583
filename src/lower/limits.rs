//! Which operators are within the sizes that a target's kernels take.

use smallvec::SmallVec;

use crate::ir::{Graph, NodeId};
use crate::op::window::{WindowAxis, Windows};
use crate::op::{Arg, Op, Resize};
use crate::types::{Dim, Limits, Target, TensorType};

/// True if the sizes of a node with this operator are within those that the target's kernels take.
pub(super) fn is_within(graph: &Graph, id: NodeId, op: &Op, target: &Target) -> bool {
    let limits = &target.limits;
    if *limits == Limits::NONE {
        return true;
    }
    let operands: SmallVec<[&TensorType; 4]> =
        graph.operands(id).into_iter().map(|v| graph.ty(v)).collect();
    let results: SmallVec<[&TensorType; 2]> =
        graph.node(id).results().iter().map(|r| &r.ty).collect();
    let size = |axis: i64| {
        let x = operands.first()?;
        let axis = if axis < 0 { axis.saturating_add(i64::try_from(x.rank()).ok()?) } else { axis };
        x.shape.get(usize::try_from(axis).ok()?)?.as_const()
    };
    match (op, operands.as_slice(), results.as_slice()) {
        (Op::Concat(_) | Op::AllGather(_) | Op::SplitOp(_), _, _) => {
            operands.len().max(results.len()) <= limits.parts
        }
        (Op::Resize(op), [x], [y]) => places(op, x, y, limits.places),
        (Op::Conv(op), [x, w, ..], [y]) => {
            op.windows(x, w).is_ok_and(|windows| positions(&windows, [x, w, y], limits.positions))
        }
        (Op::ConvTranspose(op), [x, w, ..], [y]) => {
            op.windows(x, w).is_ok_and(|windows| positions(&windows, [x, w, y], limits.positions))
        }
        (Op::ConvWeightGrad(op), [x, y, ..], [w]) => {
            op.windows(x).is_ok_and(|windows| positions(&windows, [x, w, y], limits.positions))
        }
        (Op::PoolGrad(op), [first, ..], _) => {
            let windows = op.sizes(first).and_then(|sizes| op.windows(&sizes));
            windows.is_ok_and(|windows| pooled(&windows, limits.windows))
        }
        (Op::Pool(op), [x], _) => {
            op.windows(x).is_ok_and(|windows| pooled(&windows, limits.windows))
        }
        (Op::Constant(op), _, _) => (1..=limits.written).contains(&op.value.len()),
        (Op::Dims(op), _, _) => {
            let known = op.values.iter().all(|value| !value.is_overflow());
            known && (1..=limits.written).contains(&op.values.len())
        }
        (Op::Sort(op), _, _) => size(op.axis).is_some_and(|size| size <= limits.ranked),
        (Op::TopK(op), _, _) => size(op.axis).is_some_and(|size| size <= limits.ranked),
        // Of no entries there is no extreme, which a kernel cannot say.
        (Op::Arg(Arg::Max { axis, .. } | Arg::Min { axis, .. }), _, _) => size(*axis).is_some(),
        (Op::SegmentSum(op), _, _) => op.segments <= limits.segments,
        _ => true,
    }
}

/// True if the places of all resized axes are at most `most`.
fn places(op: &Resize, x: &TensorType, y: &TensorType, most: usize) -> bool {
    let known = |ty: &TensorType, axis: usize| {
        ty.shape.get(axis)?.as_const().and_then(|d| usize::try_from(d).ok()).filter(|d| *d <= most)
    };
    let mut all = 0usize;
    for (i, axis) in op.axes.iter().enumerate() {
        let (Some(length), Some(_)) = (known(x, *axis), known(y, *axis)) else { return false };
        all = all.saturating_add(op.axis(i, length).places.len());
    }
    all <= most
}

/// The elements of a tensor behind its first axis, if they are known.
fn behind_first(ty: &TensorType) -> Option<usize> {
    let mut sizes = ty.shape.iter().skip(1).map(|d| usize::try_from(d.as_const()?).ok());
    sizes.try_fold(1usize, |product, d| Some(product.saturating_mul(d?)))
}

/// True if a convolution's samples, its kernel and the positions that its windows reach are fewer
/// than `most`.
fn positions(windows: &Windows, [x, w, y]: [&TensorType; 3], most: usize) -> bool {
    /// What a kernel looks at beyond the weights.
    const BEYOND: usize = 8;
    let reach = |a: &WindowAxis| {
        let windows = a.output.saturating_mul(a.stride);
        windows.saturating_add(a.kernel.saturating_mul(a.dilation)).saturating_add(a.before)
    };
    let outer = w.shape.first().and_then(Dim::as_const).and_then(|d| usize::try_from(d).ok());
    let weights = behind_first(w).zip(outer).map(|(behind, outer)| behind.saturating_mul(outer));
    let sizes = [behind_first(x), behind_first(y), weights.map(|w| w.saturating_add(BEYOND))];
    sizes.iter().all(|size| size.is_some_and(|size| size < most))
        && windows.iter().all(|a| reach(a) < most)
}

/// True if the elements of a pool's channels and the positions that its windows reach are at most
/// `most`.
fn pooled(windows: &Windows, most: usize) -> bool {
    let product =
        |f: fn(&WindowAxis) -> usize| windows.iter().map(f).fold(1usize, usize::saturating_mul);
    let reach = windows.iter().flat_map(|a| {
        let taps = a.kernel.saturating_mul(a.dilation);
        [a.output.saturating_mul(a.stride), taps, a.before, a.after, a.stride, a.dilation]
    });
    let all = [product(|a| a.input), product(|a| a.output), product(|a| a.kernel)];
    reach.chain(all).all(|size| size <= most)
}
