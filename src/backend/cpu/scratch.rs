//! Working memory of kernels, kept by each thread from one call to the next.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytemuck::{Pod, Zeroable};

/// The floats of a cache line.
pub(super) const LINE: usize = 16;

/// A thread keeps at most this many floats in each of its buffers; what a kernel takes beyond
/// is given back.
const KEPT: usize = 4 << 20;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

thread_local! {
    static SHARED: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static OWN: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static PANELS: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static WEIGHTS: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static PHASES: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static MULTIPLES: RefCell<Vec<(usize, Rc<[usize]>)>> = const { RefCell::new(Vec::new()) };
}

/// The numbers whose multiples a thread keeps: models have few distances between rows.
const NUMBERS: usize = 64;

/// The multiples of a number from 0 on, at least so many: where rows at that distance begin.
pub(super) fn multiples(of: usize, count: usize) -> Rc<[usize]> {
    MULTIPLES.with_borrow_mut(|all| {
        let known = all.iter().position(|(number, _)| *number == of);
        if let Some(at) = known {
            if all[at].1.len() >= count {
                return all[at].1.clone();
            }
            all.remove(at);
        } else if all.len() == NUMBERS {
            all.remove(0);
        }
        // What is beyond the rows is of any value.
        let count = count.next_power_of_two().max(LINE);
        let multiples: Rc<[usize]> = (0..count).map(|i| i.wrapping_mul(of)).collect();
        all.push((of, multiples.clone()));
        multiples
    })
}

/// Calls `f` with `len` floats of any value, aligned to a cache line, for the use of one task that
/// does not wait for others.
pub(super) fn own<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    OWN.with(|buffer| lend(buffer, len, f))
}

/// Calls `f` with `len` floats of any value, aligned to a cache line, for the operands of a product
/// inside a task.
pub(super) fn panels<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    PANELS.with(|buffer| lend(buffer, len, f))
}

/// Calls `f` with `len` floats of any value, aligned to a cache line, which the tasks that `f`
/// starts share.
pub(super) fn shared<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    SHARED.with(|buffer| lend(buffer, len, f))
}

/// As [`shared`], for weights in the order of a kernel.
pub(super) fn weights<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    WEIGHTS.with(|buffer| lend(buffer, len, f))
}

/// As [`shared`], for the results of a phase or of tasks.
pub(super) fn phases<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    PHASES.with(|buffer| lend(buffer, len, f))
}

/// The buffer is away while `f` runs: a call inside `f` gets another one.
fn lend<R>(buffer: &Cell<Vec<Line>>, len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut lines = buffer.take();
    let count = len.div_ceil(LINE);
    if lines.len() < count {
        // Pages come from the system when a task first writes them.
        lines = bytemuck::zeroed_vec(count);
    }
    let result = f(&mut bytemuck::cast_slice_mut(&mut lines)[..len]);
    if lines.len() <= KEPT / LINE {
        buffer.set(lines);
    }
    result
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "elements are moved")]
mod tests {
    use super::{KEPT, NUMBERS, multiples, own, shared};

    #[test]
    fn multiples_are_kept() {
        for (of, count) in [(3, 5), (7, 0), (3, 40), (usize::MAX, 2)] {
            let own = multiples(of, count);
            assert!((0..count).all(|i| own[i] == i.wrapping_mul(of)), "{count} of {of}");
            assert!(std::rc::Rc::ptr_eq(&own, &multiples(of, count)));
        }
        let first = multiples(3, 40);
        (100..100 + NUMBERS).for_each(|of| drop(multiples(of, 1)));
        assert!(!std::rc::Rc::ptr_eq(&first, &multiples(3, 40)));
    }

    #[test]
    fn calls_inside_calls_get_memory_of_their_own() {
        own(100, |a| {
            a.fill(1.0);
            own(50, |b| b.fill(2.0));
            shared(50, |b| b.fill(3.0));
            assert!(a.iter().all(|x| *x == 1.0));
            assert_eq!(a.as_ptr().align_offset(64), 0);
        });
        own(KEPT + 1, |a| assert_eq!(a.len(), KEPT + 1));
    }
}
