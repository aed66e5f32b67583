//! Strided loop nests over the elements of buffers.

use crate::types::Dim;

/// A loop nest over axes, the last one innermost, with the stride of each axis in `K` buffers. It
/// has as few axes as possible, but at least one.
pub(super) struct LoopNest<const K: usize> {
    axes: Vec<(Dim, [Dim; K])>,
}

impl<const K: usize> LoopNest<K> {
    /// Builds the nest from axes, outermost first. Axes of size 1 are dropped, and an axis that is
    /// contiguous with the next one in all buffers is merged with it: each axis costs a division
    /// per element in the kernel.
    pub(super) fn new(all: impl IntoIterator<Item = (Dim, [Dim; K])>) -> Self {
        let mut axes: Vec<(Dim, [Dim; K])> = Vec::new();
        for (size, steps) in all.into_iter().filter(|(size, _)| *size != Dim::ONE) {
            let is_contiguous = |last: &(Dim, [Dim; K])| {
                let next = steps.iter().map(|step| step.clone() * size.clone());
                last.1
                    .iter()
                    .zip(next)
                    // An overflowed formula has no value that could be compared.
                    .all(|(outer, inner)| !inner.is_overflow() && *outer == inner)
            };
            match axes.last_mut() {
                Some(last) if is_contiguous(last) => *last = (last.0.clone() * size, steps),
                _ => axes.push((size, steps)),
            }
        }
        if axes.is_empty() {
            axes.push((Dim::ONE, std::array::from_fn(|_| Dim::ZERO)));
        }
        Self { axes }
    }

    pub(super) fn sizes(&self) -> Vec<Dim> {
        self.axes.iter().map(|(size, _)| size.clone()).collect()
    }

    /// The strides in buffer `k`.
    pub(super) fn strides(&self, k: usize) -> Vec<Dim> {
        self.axes.iter().map(|(_, steps)| steps[k].clone()).collect()
    }

    pub(super) fn axes(&self) -> &[(Dim, [Dim; K])] {
        &self.axes
    }
}
