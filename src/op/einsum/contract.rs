//! Sums of products, two operands at a time.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use smallvec::{SmallVec, smallvec};

use super::Labels;
use crate::op::numeric::Number;
use crate::op::strided::{self, Walk, distances};
use crate::types::{Tensor, TensorError};

/// An axis that is left of a value: its label, its size and the distance of its elements.
type Axis = (u8, usize, usize);

/// A value without axes of size 1, each label once.
struct View {
    tensor: Tensor,
    axes: SmallVec<[Axis; 8]>,
}

impl View {
    fn new(tensor: Tensor, labels: &[u8]) -> Self {
        let mut axes: SmallVec<[Axis; 8]> = SmallVec::new();
        let strides = distances(tensor.dims());
        for ((label, size), stride) in labels.iter().zip(tensor.dims()).zip(strides) {
            // An axis of size 1 broadcasts: `stride` gives 0 for a label that is absent.
            if *size == 1 {
                continue;
            }
            let stride = stride.unsigned_abs();
            match axes.iter_mut().find(|(own, ..)| own == label) {
                // One step along a diagonal is one step along both axes, so the strides add up.
                Some((_, _, diagonal)) => *diagonal += stride,
                None => axes.push((*label, *size, stride)),
            }
        }
        Self { tensor, axes }
    }

    fn labels(&self) -> impl Iterator<Item = u8> {
        self.axes.iter().map(|(label, ..)| *label)
    }

    fn stride(&self, label: u8) -> usize {
        self.axes.iter().find(|(own, ..)| *own == label).map_or(0, |(_, _, stride)| *stride)
    }
}

/// The arithmetic of one element type. Everything else is compiled once for all types.
#[derive(Clone, Copy)]
pub(super) struct Arithmetic {
    one: fn() -> Tensor,
    sum: fn(&mut Tensor, &Tensor, Option<&Tensor>, &Terms),
}

impl Arithmetic {
    /// The arithmetic of `T`.
    pub(super) fn of<T: Number>() -> Self {
        Self { one: || Tensor::scalar(T::ONE), sum: sum::<T> }
    }
}

/// All operands joined, as `labels` say; every tensor has the type of `by`.
pub(super) fn all(
    labels: &Labels,
    operands: &[Tensor],
    by: Arithmetic,
) -> Result<Tensor, TensorError> {
    let mut views: Vec<View> = operands
        .iter()
        .zip(&labels.operands)
        .map(|(tensor, labels)| View::new(tensor.clone(), labels))
        .collect();
    let mut dims: SmallVec<[usize; 8]> = smallvec![1; labels.result.len()];
    for (label, size) in views.iter().flat_map(|v| v.axes.iter().map(|(l, s, _)| (*l, *s))) {
        if let Some(at) = labels.result.iter().position(|own| *own == label) {
            dims[at] = size;
        }
    }
    // A label of a single operand is summed before products are formed: by distributivity it
    // is the same sum, with fewer products by the size of the label.
    if views.len() > 1 {
        for i in 0..views.len() {
            let elsewhere = |label: u8| {
                labels.result.contains(&label)
                    || views
                        .iter()
                        .enumerate()
                        .any(|(j, v)| j != i && v.labels().any(|l| l == label))
            };
            let kept: SmallVec<[u8; 8]> = views[i].labels().filter(|l| elsewhere(*l)).collect();
            if kept.len() < views[i].axes.len() {
                views[i] = join(&views[i], None, &kept, by)?;
            }
        }
    }
    let mut rest = views.into_iter();
    let mut joined = rest.next().unwrap_or_else(|| View::new((by.one)(), &[]));
    let later: Vec<View> = rest.collect();
    for (i, next) in later.iter().enumerate() {
        let needed = |label: u8| {
            labels.result.contains(&label)
                || later[i + 1..].iter().any(|v| v.labels().any(|l| l == label))
        };
        let new = next.labels().filter(|l| joined.axes.iter().all(|(own, ..)| own != l));
        let kept: SmallVec<[u8; 8]> = joined.labels().chain(new).filter(|l| needed(*l)).collect();
        joined = join(&joined, Some(next), &kept, by)?;
    }
    // The last join has one operand: it brings the axes into the order of the result.
    let order: SmallVec<[u8; 8]> =
        labels.result.iter().copied().filter(|l| joined.labels().any(|own| own == *l)).collect();
    join(&joined, None, &order, by)?.tensor.reshaped(&dims)
}

/// The products of the elements of `a` and `b`, summed over the labels that are not in `kept`;
/// those are the axes of the result.
fn join(a: &View, b: Option<&View>, kept: &[u8], by: Arithmetic) -> Result<View, TensorError> {
    let size = |label: u8| {
        let axes = a.axes.iter().chain(b.iter().flat_map(|b| &b.axes));
        axes.clone().find(|(own, ..)| *own == label).map_or(1, |(_, size, _)| *size)
    };
    let mut summed: SmallVec<[u8; 8]> = a.labels().filter(|l| !kept.contains(l)).collect();
    for label in b.iter().flat_map(|b| b.labels()) {
        if !kept.contains(&label) && !summed.contains(&label) {
            summed.push(label);
        }
    }
    let dims: SmallVec<[usize; 8]> = kept.iter().map(|l| size(*l)).collect();
    let mut y = Tensor::zeros(a.tensor.dtype(), &dims)?;
    let (last, inner) = summed.split_last().map_or((None, &[][..]), |(last, l)| (Some(*last), l));
    let axes = |labels: &[u8], of: Option<&View>| -> Axes {
        let stride = |l: u8| of.map_or(0, |view| view.stride(l)).cast_signed();
        labels.iter().map(|l| (size(*l), stride(*l))).collect()
    };
    let terms = Terms {
        outer: [axes(kept, Some(a)), axes(kept, b)],
        inner: [axes(inner, Some(a)), axes(inner, b)],
        turns: inner.iter().map(|l| size(*l)).product(),
        run: last.map_or(1, size),
        steps: [last.map_or(0, |l| a.stride(l)), last.zip(b).map_or(0, |(l, b)| b.stride(l))],
    };
    (by.sum)(&mut y, &a.tensor, b.map(|b| &b.tensor), &terms);
    Ok(View::new(y, kept))
}

/// The axes of one operand.
type Axes = SmallVec<[strided::Axis; 6]>;

/// Where the terms of the sums of products lie in both operands.
struct Terms {
    /// From sum to sum.
    outer: [Axes; 2],
    /// From run to run of a sum.
    inner: [Axes; 2],
    /// The runs of a sum.
    turns: usize,
    /// The terms of a run, along the last summed axis; without one there is one term.
    run: usize,
    /// From term to term of a run.
    steps: [usize; 2],
}

/// Adds the products of `a` and `b` to the sums `y`. The terms keep their ascending order, on which
/// the rounding of the result depends. A run is a plain loop, without the bookkeeping of `Walk` for
/// each term.
fn sum<T: Number>(y: &mut Tensor, a: &Tensor, b: Option<&Tensor>, terms: &Terms) {
    if terms.run == 0 || terms.turns == 0 {
        return;
    }
    let (left, right) = (a.as_slice::<T>(), b.map(Tensor::as_slice::<T>));
    let [mut rows_a, mut rows_b] = terms.outer.each_ref().map(|axes| Walk::new(0, axes));
    for y in y.as_mut_slice::<T>() {
        let mut terms_a = Walk::new(rows_a.next(), &terms.inner[0]);
        let mut terms_b = Walk::new(rows_b.next(), &terms.inner[1]);
        for _ in 0..terms.turns {
            let (mut i, mut j) = (terms_a.next(), terms_b.next());
            for _ in 0..terms.run {
                *y = y.add_product(left[i], right.map_or(T::ONE, |b| b[j]));
                (i, j) = (i + terms.steps[0], j + terms.steps[1]);
            }
        }
    }
}
