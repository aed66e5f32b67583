//! Walks over elements in an order of memory.

use crate::types::Dim;

/// Axes that are walked, the last fastest, with the distance between neighbours along each in `K`
/// buffers. There are as few as possible, but at least one.
pub(super) struct Walk<const K: usize> {
    axes: Vec<(Dim, [Dim; K])>,
}

impl<const K: usize> Walk<K> {
    /// The walk over axes given outermost first. Axes of size 1 go, and an axis that goes on where
    /// the next one ends is joined with it.
    pub(super) fn new(all: impl IntoIterator<Item = (Dim, [Dim; K])>) -> Self {
        let mut axes: Vec<(Dim, [Dim; K])> = Vec::new();
        for (size, steps) in all.into_iter().filter(|(size, _)| *size != Dim::ONE) {
            let goes_on = |last: &(Dim, [Dim; K])| {
                let next = steps.iter().map(|step| step.clone() * size.clone());
                last.1
                    .iter()
                    .zip(next)
                    .all(|(outer, inner)| !inner.is_overflow() && *outer == inner)
            };
            match axes.last_mut() {
                Some(last) if goes_on(last) => *last = (last.0.clone() * size, steps),
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

    /// The distances in buffer `k`.
    pub(super) fn steps(&self, k: usize) -> Vec<Dim> {
        self.axes.iter().map(|(_, steps)| steps[k].clone()).collect()
    }

    pub(super) fn axes(&self) -> &[(Dim, [Dim; K])] {
        &self.axes
    }
}
