//! The elements that lie in each window of each channel.

use smallvec::{SmallVec, smallvec};

use crate::op::numeric::Ordered;
use crate::op::window::WindowAxis;

/// The taps of one window on one axis that lie in the input.
#[derive(Clone, Copy)]
pub(in crate::op) struct Span {
    /// The offset of the first in a channel.
    first: usize,
    /// The number of taps.
    pub(in crate::op) count: usize,
    /// The number of taps in the input or its padding.
    pub(in crate::op) padded: usize,
}

/// The windows of one channel on one axis, and the distance in a channel between taps.
struct Spans {
    spans: Vec<Span>,
    step: usize,
}

/// The windows of every channel.
pub(in crate::op) struct Planes {
    axes: SmallVec<[Spans; 3]>,
    /// The sizes of the spatial axes of the input.
    sizes: SmallVec<[usize; 3]>,
    /// Elements of a channel of the result.
    output: usize,
}

impl Planes {
    pub(in crate::op) fn new(windows: &[WindowAxis]) -> Self {
        let mut axes = SmallVec::new();
        let mut stride = 1;
        for axis in windows.iter().rev() {
            let span = |o: usize| {
                let taps = axis.taps(o);
                let first = if taps.is_empty() { 0 } else { axis.position(o, taps.start) };
                Span { first: first * stride, count: taps.len(), padded: axis.padded_taps(o) }
            };
            let spans = (0..axis.output).map(span).collect();
            axes.insert(0, Spans { spans, step: axis.dilation * stride });
            stride *= axis.input;
        }
        let sizes = windows.iter().map(|a| a.input).collect();
        Self { axes, sizes, output: windows.iter().map(|a| a.output).product() }
    }

    /// Replaces each element of the result by what `window` gives for the position of its channel
    /// in the input and for its window.
    pub(super) fn fill<T>(
        &self,
        y: &mut [T],
        mut window: impl FnMut(usize, &[(Span, usize)]) -> T,
    ) {
        self.each(y.len(), |i, start, spans| y[i] = window(start, spans));
    }

    /// Calls `window` with the position of each of `count` elements of the result, of its channel
    /// in the input, and with its window.
    pub(in crate::op) fn each(
        &self,
        count: usize,
        mut window: impl FnMut(usize, usize, &[(Span, usize)]),
    ) {
        let input: usize = self.sizes.iter().product();
        let mut index: SmallVec<[usize; 3]> = smallvec![0; self.axes.len()];
        let mut spans: SmallVec<[(Span, usize); 3]> = SmallVec::new();
        for i in 0..count {
            spans.clear();
            spans.extend(self.axes.iter().zip(&index).map(|(a, i)| (a.spans[*i], a.step)));
            window(i, i / self.output * input, &spans);
            for (i, axis) in index.iter_mut().zip(&self.axes).rev() {
                *i += 1;
                if *i < axis.spans.len() {
                    break;
                }
                *i = 0;
            }
        }
    }

    /// The position in a channel, row-major, as the position that counts the first axis fastest.
    pub(super) fn column_major(&self, mut at: usize) -> usize {
        let mut strides: SmallVec<[usize; 3]> = SmallVec::new();
        let mut stride = 1;
        for size in &self.sizes {
            strides.push(stride);
            stride *= size;
        }
        let mut turned = 0;
        for (size, stride) in self.sizes.iter().zip(&strides).rev() {
            turned += at % size * stride;
            at /= size;
        }
        turned
    }
}

/// The greatest element of a window and its position: the first of equal ones, the last NaN; none
/// of a window without elements.
pub(in crate::op) fn greatest<T: Ordered>(
    x: &[T],
    start: usize,
    window: &[(Span, usize)],
) -> (T, Option<usize>) {
    let (mut best, mut at) = (T::LOWEST, None);
    elements(window, start, &mut |i| {
        let is_nan = x[i].partial_cmp(&x[i]).is_none();
        if x[i] > best || is_nan || at.is_none() {
            (best, at) = (x[i], Some(i));
        }
    });
    (best, at)
}

/// The taps of a window that a mean counts.
pub(in crate::op) fn taps(window: &[(Span, usize)], count_include_pad: bool) -> f64 {
    let taps = |(span, _): &(Span, usize)| {
        if count_include_pad { span.padded as f64 } else { span.count as f64 }
    };
    window.iter().map(taps).product()
}

/// Calls `f` with the position of each element of a window, in row-major order.
#[inline]
pub(in crate::op) fn elements(window: &[(Span, usize)], start: usize, f: &mut impl FnMut(usize)) {
    match window {
        [] => f(start),
        [(span, step)] => (0..span.count).for_each(|t| f(start + span.first + t * step)),
        [(span, step), inner @ ..] => {
            for t in 0..span.count {
                elements(inner, start + span.first + t * step, f);
            }
        }
    }
}
