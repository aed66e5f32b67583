//! Loops whose items the members of a crew share.
//!
//! Parallel iterators of rayon say what the items are and how they are cut; its pools have no part
//! in it.

use std::sync::Mutex;

use rayon::iter::IndexedParallelIterator;
use rayon::iter::plumbing::{Producer, ProducerCallback};
use smallvec::SmallVec;

use super::crew;
use super::lock::lock;

/// Loops over items by the members of the crew in which they are called, where some are idle.
pub(crate) trait Each: IndexedParallelIterator {
    /// Does it with each item. Members begin with their own part of the items, which is the same
    /// from one loop to the next, so that they find in their caches what they wrote.
    ///
    /// # Panics
    /// If `f` does; items of the same piece may be left out then.
    fn each(self, f: impl Fn(Self::Item) + Sync) {
        let items = self.len();
        self.with_producer(Loop { items, f });
    }
}

impl<I: IndexedParallelIterator> Each for I {}

/// A loop of so many items.
struct Loop<F> {
    items: usize,
    f: F,
}

/// The items of a part that nobody has taken yet.
struct Part<P> {
    producer: Option<P>,
    items: usize,
}

impl<P: Producer> Part<P> {
    /// Takes half of the items that are left, but not fewer than `least`.
    fn take(&mut self, least: usize) -> Option<P> {
        let producer = self.producer.take()?;
        if self.items < 2 * least {
            return Some(producer);
        }
        let (piece, rest) = producer.split_at(self.items.div_ceil(2));
        self.items /= 2;
        self.producer = Some(rest);
        Some(piece)
    }
}

impl<T, F: Fn(T) + Sync> ProducerCallback<T> for Loop<F> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, producer: P) {
        let Self { items, f } = self;
        let least = producer.min_len().max(1);
        let most = items / least;
        // Where there is one part, it is not asked who else would be there.
        let count = if most < 2 { most } else { crew::sharing().min(most) };
        if count < 2 {
            return producer.into_iter().for_each(f);
        }
        let mut parts = SmallVec::<[Mutex<Part<P>>; 8]>::new();
        let mut rest = producer;
        for part in 1..count {
            let length = items * part / count - items * (part - 1) / count;
            let (own, others) = rest.split_at(length);
            parts.push(Mutex::new(Part { producer: Some(own), items: length }));
            rest = others;
        }
        let length = items - items * (count - 1) / count;
        parts.push(Mutex::new(Part { producer: Some(rest), items: length }));
        crew::together(&|| {
            let own = crew::number() % count;
            let mut found = false;
            for part in parts[own..].iter().chain(&parts[..own]) {
                let take = || lock(part).take(least);
                while let Some(piece) = take() {
                    found = true;
                    piece.into_iter().for_each(&f);
                }
            }
            found
        });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use rayon::prelude::*;

    use super::Each;
    use crate::backend::host::Crew;
    use crate::backend::host::crew::{number, sharing};

    fn crew(threads: usize) -> Crew {
        Crew::new(threads, None, |_| None).unwrap()
    }

    /// Adds 1 to each item.
    fn count(counts: &mut [u32], least: usize) {
        counts.par_iter_mut().with_min_len(least).each(|count| *count += 1);
    }

    #[test]
    fn every_item_has_its_turn_once() {
        for threads in 1..=5 {
            let crew = crew(threads);
            for least in [0, 1, 2, 3, 7, 40] {
                for items in 0..100 {
                    let mut counts = vec![0; items];
                    crew.enter(|| count(&mut counts, least));
                    assert_eq!(counts, vec![1; items], "{threads} threads, {least} at least");
                }
            }
        }
        let mut alone = [0; 9];
        count(&mut alone, 1);
        assert_eq!(alone, [1; 9]);
    }

    #[test]
    fn pieces_have_the_length_that_is_worth_it() {
        let crew = crew(4);
        for (items, least) in [(10, 3), (100, 7), (41, 40), (80, 40)] {
            let mut all: Vec<usize> = (0..items).collect();
            let pieces: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            crew.enter(|| {
                all.par_iter_mut().with_min_len(least).each(|item| {
                    pieces[*item].store(number() + 1, Ordering::Relaxed);
                });
            });
            let by: Vec<usize> = pieces.iter().map(|by| by.load(Ordering::Relaxed)).collect();
            assert!(by.chunk_by(|a, b| a == b).all(|run| run.len() >= least), "{by:?}");
        }
    }

    #[test]
    fn loops_inside_loops_are_shared_as_well() {
        for threads in 1..=4 {
            let crew = crew(threads);
            let mut counts = [[[0; 7]; 5]; 6];
            for _ in 0..50 {
                crew.enter(|| {
                    counts.par_iter_mut().each(|planes| {
                        planes.par_iter_mut().each(|row| {
                            count(row, 1);
                        });
                    });
                });
            }
            assert_eq!(counts, [[[50; 7]; 5]; 6]);
        }
    }

    #[test]
    fn a_loop_inside_has_the_help_of_those_that_wait() {
        let crew = crew(2);
        for busy in [0, 1] {
            crew.enter(|| {
                let begun = Barrier::new(2);
                (0..2).into_par_iter().each(|_| {
                    begun.wait();
                    // One of both has nothing else to do; it may be who began the outer loop.
                    if number() == busy {
                        // A loop is offered to those that have come to their end.
                        while sharing() < 2 {
                            thread::yield_now();
                        }
                        let met = Barrier::new(2);
                        (0..2).into_par_iter().each(|_| {
                            (0..4).into_par_iter().each(|_| {});
                            met.wait();
                        });
                    }
                });
            });
        }
    }

    #[test]
    fn callers_share_a_crew() {
        for threads in 1..=3 {
            let crew = crew(threads);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let mut counts = [[0; 8]; 9];
                        for _ in 0..100 {
                            crew.enter(|| counts.par_iter_mut().each(|row| count(row, 1)));
                        }
                        assert_eq!(counts, [[100; 8]; 9]);
                    });
                }
            });
        }
    }

    /// The panic of a loop in which the thread of this number has one.
    fn panic_of(crew: &Crew, culprit: usize) -> String {
        let met = Barrier::new(2);
        let panics = || {
            crew.enter(|| {
                (0..2).into_par_iter().each(|_| {
                    met.wait();
                    assert_ne!(number(), culprit, "as the test wants");
                });
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn a_panic_ends_its_loop_and_no_more() {
        let crew = crew(2);
        for culprit in [0, 1, 0, 1] {
            assert!(panic_of(&crew, culprit).contains("as the test wants"));
            let mut counts = [0; 50];
            crew.enter(|| count(&mut counts, 1));
            assert_eq!(counts, [1; 50]);
        }
        // Both panic: one of them is the loop's. One thread alone panics as any loop does.
        let all_panic = |crew: &Crew, items: usize| {
            let all = || {
                crew.enter(|| (0..items).into_par_iter().each(|_| panic!("in an item")));
            };
            let panic = catch_unwind(AssertUnwindSafe(all)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"in an item"));
            assert_eq!(sharing(), 1);
        };
        all_panic(&crew, 100);
        all_panic(&Crew::new(1, None, |_| None).unwrap(), 3);
        crew.enter(|| {
            let inner = || (0..9).into_par_iter().each(|_| panic!("inside"));
            let outer = || (0..9).into_par_iter().each(|_| inner());
            assert!(catch_unwind(outer).is_err());
        });
    }

    #[test]
    fn every_item_is_given_back_after_a_panic() {
        struct Item<'a>(&'a AtomicUsize);
        impl Drop for Item<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (dropped, crew) = (AtomicUsize::new(0), crew(2));
        let items: Vec<Item<'_>> = (0..40).map(|_| Item(&dropped)).collect();
        let panics = || crew.enter(|| items.into_par_iter().each(|_| panic!("in an item")));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(dropped.load(Ordering::Relaxed), 40);
    }
}
