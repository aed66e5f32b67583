use std::cell::Cell;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rayon::prelude::*;

use super::{AWAKE, Crew, MEMBER, lock, number, sharing};
use crate::backend::host::Each;
use crate::types::subnormals;

thread_local! {
    static CHOSEN: Cell<Option<pulp::Arch>> = const { Cell::new(None) };
}

fn crew(threads: usize) -> Crew {
    Crew::new(threads, Some(pulp::Arch::Scalar), |arch| CHOSEN.replace(arch)).unwrap()
}

/// The threads of the crew in which this is called.
fn threads() -> usize {
    // A thread outside of crews is alone.
    MEMBER.with_borrow(|member| member.as_ref().map_or(1, |member| member.shared.threads))
}

/// The bits of half of the smallest normal number, and whether instructions are chosen.
#[inline(never)]
fn mode() -> (u32, bool) {
    let half = black_box(f32::MIN_POSITIVE) * black_box(0.5);
    (half.to_bits(), CHOSEN.get().is_some())
}

/// What each of two threads finds in a loop of two items, of which each has one.
fn on_both<T: Default + Send>(f: impl Fn() -> T + Sync) -> [T; 2] {
    let both = Barrier::new(2);
    let mut found = [T::default(), T::default()];
    found.par_iter_mut().each(|found| {
        both.wait();
        *found = f();
    });
    found
}

#[test]
fn members_keep_subnormals_and_have_their_instructions() {
    const HALF: u32 = f32::MIN_POSITIVE.to_bits() / 2;
    let crew = crew(2);
    subnormals::flushed(|| {
        let before = mode();
        assert_eq!(crew.enter(|| on_both(mode)), [(HALF, true); 2]);
        assert_eq!((mode(), threads()), (before, 1));
        let panics = || crew.enter(|| assert_eq!(mode(), (0, false)));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!((mode(), threads()), (before, 1));
        assert!(!before.1);
    });
}

#[test]
fn a_member_of_one_crew_may_enter_another() {
    let (two, three) = (crew(2), crew(3));
    let inside = |found: [(usize, usize, usize); 2]| {
        for (before, other, after) in found {
            assert_eq!((before, other, after), (2, 3, 2));
        }
    };
    inside(two.enter(|| {
        on_both(|| (threads(), three.enter(|| two.enter(|| three.enter(threads))), threads()))
    }));
    assert_eq!(two.enter(|| two.enter(|| (threads(), number()))), (2, 0));
    assert_eq!((threads(), number()), (1, 0));
}

#[test]
fn a_loop_is_shared_with_those_that_have_no_work() {
    let (crew, both) = (crew(2), Barrier::new(2));
    crew.enter(|| {
        for _ in 0..50 {
            assert_eq!(sharing(), 2);
            let busy = on_both(|| {
                let now = sharing();
                both.wait();
                now
            });
            assert_eq!(busy, [1, 1]);
            // The first to go on leaves the other one alone.
            let left = std::sync::Mutex::new(true);
            on_both(|| {
                let is_first = std::mem::replace(&mut *lock(&left), false);
                while !is_first && sharing() < 2 {
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(sharing(), 1);
}

#[test]
fn workers_that_sleep_are_woken() {
    let crew = crew(3);
    for pause in [Duration::ZERO, AWAKE / 2, AWAKE * 3, AWAKE * 20] {
        for _ in 0..4 {
            thread::sleep(pause);
            let mut numbers = crew.enter(|| on_both(number));
            numbers.sort_unstable();
            assert!(numbers[0] != numbers[1] && numbers[1] < 3);
        }
    }
    // A worker that did not sleep would turn round for ever, and this too.
    while !lock(&crew.shared.state).asleep {
        thread::sleep(AWAKE);
    }
}

#[test]
fn what_is_in_a_region_may_come_later() {
    let crew = crew(2);
    let (given, taken) = (std::sync::Mutex::new(0), std::sync::Mutex::new(0));
    let work = || {
        let mut given = lock(&given);
        let some = *given > 0;
        *given -= u32::from(some);
        *lock(&taken) += u32::from(some);
        some
    };
    crew.enter(|| {
        crew.offer(&work, |offered| {
            for pause in [Duration::ZERO, AWAKE * 5, AWAKE / 4] {
                thread::sleep(pause);
                *lock(&given) += 2;
                crew.stir();
            }
            while *lock(&taken) < 6 {
                assert!(!offered.help());
                thread::yield_now();
            }
        });
    });
    assert!(lock(&crew.shared.state).open.is_empty());
    assert!(!crew.shared.help(None));
}

#[test]
fn a_crew_ends_whatever_its_workers_do() {
    for pause in [Duration::ZERO, AWAKE / 2, AWAKE * 5] {
        let crew = crew(4);
        crew.enter(|| (0..100).into_par_iter().each(|_| {}));
        thread::sleep(pause);
        drop(crew);
    }
    drop(crew(3));
    drop(crew(1));
    assert_eq!(crew(0).threads(), 1);
}
