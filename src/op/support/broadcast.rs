//! Loops over operands that are broadcast to one shape.

use smallvec::{SmallVec, smallvec};

/// Broadcast plan of `K` operands to a result: the axes of the result, as few as possible,
/// and each operand's stride along each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broadcast<const K: usize> {
    axes: SmallVec<[(usize, [usize; K]); 4]>,
}

/// A run of consecutive elements of the result: where it begins there and in each operand, how many
/// elements it has, and how far each operand advances for one of them, 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<const K: usize> {
    /// The position of the first element in the result.
    pub out: usize,
    /// The number of elements.
    pub len: usize,
    /// The position of the first element in each operand.
    pub starts: [usize; K],
    /// The distance between elements in each operand.
    pub steps: [usize; K],
}

impl<const K: usize> Broadcast<K> {
    /// The loops over operands with these sizes, and the sizes of the result; inference admits the
    /// operands.
    pub(crate) fn of(operands: [&[usize]; K]) -> (Self, SmallVec<[usize; 4]>) {
        let rank = operands.iter().map(|dims| dims.len()).max().unwrap_or(0);
        let mut out: SmallVec<[usize; 4]> = smallvec![1; rank];
        for dims in operands {
            for (slot, d) in out.iter_mut().rev().zip(dims.iter().rev()) {
                if *slot == 1 {
                    *slot = *d;
                }
            }
        }
        (Self::new(&out, operands), out)
    }

    /// The loops over a result with the sizes `out` whose operands have these sizes, aligned at the
    /// right; each size is that of the result or 1.
    pub(crate) fn new(out: &[usize], operands: [&[usize]; K]) -> Self {
        let mut axes: SmallVec<[(usize, [usize; K]); 4]> = SmallVec::new();
        if out.contains(&0) {
            axes.push((0, [0; K]));
            return Self { axes };
        }
        let mut pitch = [1usize; K];
        for (from_right, size) in out.iter().rev().enumerate() {
            let mut strides = [0; K];
            for ((stride, pitch), dims) in strides.iter_mut().zip(&mut pitch).zip(operands) {
                let own = dims.len().checked_sub(from_right + 1).map_or(1, |axis| dims[axis]);
                if own != 1 {
                    *stride = *pitch;
                }
                *pitch *= own;
            }
            if *size == 1 {
                continue;
            }
            match axes.last_mut() {
                // The axis continues its right neighbour in every operand.
                Some((inner, below))
                    if (0..K).all(|k| strides[k] == below[k].saturating_mul(*inner)) =>
                {
                    *inner = inner.saturating_mul(*size);
                }
                _ => axes.push((*size, strides)),
            }
        }
        if axes.is_empty() {
            axes.push((1, [0; K]));
        }
        axes.reverse();
        Self { axes }
    }

    /// The axes of the result that are left when neighbours are joined, outermost first: the size
    /// of each and the operands' strides along it.
    pub(crate) fn axes(&self) -> &[(usize, [usize; K])] {
        &self.axes
    }

    /// The number of elements of the result; saturates.
    pub(crate) fn len(&self) -> usize {
        self.axes.iter().fold(1, |n, (size, _)| n.saturating_mul(*size))
    }

    /// The positions of the operands where the run of this number begins, as [`Self::runs`] counts
    /// them.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]
    pub(crate) fn starts(&self, mut run: usize) -> [usize; K] {
        let mut starts = [0; K];
        for (size, strides) in self.axes.iter().rev().skip(1) {
            for (start, stride) in starts.iter_mut().zip(strides) {
                *start += run % size * stride;
            }
            run /= size;
        }
        starts
    }

    /// Calls `f` with the runs that make up the result, in order.
    pub(crate) fn runs(&self, mut f: impl FnMut(Run<K>)) {
        self.each(&mut f);
    }

    /// [`Self::runs`], compiled once for all functions of a run.
    fn each(&self, f: &mut dyn FnMut(Run<K>)) {
        let Some(((len, steps), outer)) = self.axes.split_last() else { return };
        if *len == 0 {
            return;
        }
        let count: usize = outer.iter().map(|(size, _)| size).product();
        let mut index: SmallVec<[usize; 4]> = smallvec![0; outer.len()];
        let mut starts = [0; K];
        for i in 0..count {
            f(Run { out: i * len, len: *len, starts, steps: *steps });
            for ((size, strides), at) in outer.iter().zip(&mut index).rev() {
                *at += 1;
                let back = if *at == *size { *size } else { 0 };
                for (start, stride) in starts.iter_mut().zip(strides) {
                    *start = *start + stride - back * stride;
                }
                if back == 0 {
                    break;
                }
                *at = 0;
            }
        }
    }

    /// Calls `f` with the position of each element of the result and of its operands, in order.
    pub(crate) fn elements(&self, mut f: impl FnMut(usize, [usize; K])) {
        self.runs(|run| {
            for i in 0..run.len {
                f(run.out + i, std::array::from_fn(|k| run.starts[k] + i * run.steps[k]));
            }
        });
    }
}

impl Broadcast<2> {
    /// Sets each element of `y` to `f` of its operands.
    pub(crate) fn zip<A: Copy, B: Copy, Y>(
        &self,
        a: &[A],
        b: &[B],
        y: &mut [Y],
        f: impl Fn(A, B) -> Y,
    ) {
        self.runs(|Run { out, len, starts: [i, j], steps: [s, t] }| {
            let y = &mut y[out..out + len];
            if (s, t) == (1, 1) {
                let operands = a[i..i + len].iter().zip(&b[j..j + len]);
                y.iter_mut().zip(operands).for_each(|(y, (a, b))| *y = f(*a, *b));
            } else {
                for (k, y) in y.iter_mut().enumerate() {
                    *y = f(a[i + k * s], b[j + k * t]);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Broadcast, Run};

    #[test]
    fn axes_join_where_the_strides_allow() {
        let same = Broadcast::new(&[2, 3, 4], [&[2, 3, 4], &[2, 3, 4]]);
        assert_eq!(same.axes.as_slice(), [(24, [1, 1])]);
        let scalar = Broadcast::new(&[2, 3], [&[2, 3], &[]]);
        assert_eq!(scalar.axes.as_slice(), [(6, [1, 0])]);
        let bias = Broadcast::new(&[2, 3, 4, 5], [&[2, 3, 4, 5], &[3, 1, 1]]);
        assert_eq!(bias.axes.as_slice(), [(2, [60, 0]), (3, [20, 1]), (20, [1, 0])]);
        assert_eq!(Broadcast::new(&[], [&[]]).len(), 1);
        assert!(Broadcast::new(&[0, 3], [&[0, 3], &[1, 3]]).len() == 0);
    }

    #[test]
    fn elements_meet_as_the_indices_say() {
        let mut at = 0;
        Broadcast::new(&[2, 3, 2], [&[2, 1, 2], &[3, 1]]).elements(|out, starts| {
            let index = [at / 6, at / 2 % 3, at % 2];
            assert_eq!((out, starts), (at, [index[0] * 2 + index[2], index[1]]));
            at += 1;
        });
        assert_eq!(at, 12);
    }

    #[test]
    fn a_run_covers_the_result_of_a_scalar() {
        let mut runs = Vec::new();
        Broadcast::new(&[1, 1], [&[1], &[1, 1]]).runs(|r| runs.push(r));
        assert_eq!(runs, [Run { out: 0, len: 1, starts: [0, 0], steps: [0, 0] }]);
    }
}
