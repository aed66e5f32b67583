//! Threads that compute together: a few workers, and whoever calls, while the call lasts.
//!
//! What there is to do stands in a list of regions. The member that opens one works on it until
//! nothing is left, takes it from the list and waits for those that are inside at that moment, and
//! for nobody else. Only a member without work goes into any region; one that waits goes into those
//! that were opened inside the region that it waits for. So a wait is always for what lies further
//! inside, and no two members wait for each other.
//!
//! Between two regions workers turn round for a moment: to wake a thread takes longer than most
//! kernels of small models.
#![allow(unsafe_code, reason = "a list holds what lives as long as it stands there")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, hint, io, mem};

use super::lock::lock;
use crate::types::invariant::invariant;
use crate::types::subnormals::{self, Kept};

/// How long a member without work turns round before it sleeps: longer than what a caller does
/// between two runs, and twenty times what waking it takes.
const AWAKE: Duration = Duration::from_millis(1);

/// The turns until another thread may have the processor: about ten microseconds.
const TURNS: u32 = 200;

/// Where it takes longer than this to have the processor again, others want it: who has no work
/// sleeps, and is awake sooner than one that queues for a processor on which to turn round.
const WANTED: Duration = Duration::from_micros(100);

/// Makes kernels on this thread use these instructions, and returns those that they used before.
pub(crate) type Choose = fn(Option<pulp::Arch>) -> Option<pulp::Arch>;

/// Threads that compute together.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    instructions: Instructions,
    workers: Vec<JoinHandle<()>>,
}

/// The instructions of all members.
#[derive(Clone, Copy)]
struct Instructions {
    arch: Option<pulp::Arch>,
    choose: Choose,
}

/// What all members see.
struct Shared {
    threads: usize,
    /// Another number whenever there is more to do. It changes while the state is locked.
    generation: Apart<AtomicUsize>,
    /// The members that have nothing to do: workers that are in no region, and whoever waits for
    /// others.
    idle: Apart<AtomicUsize>,
    ended: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

/// A value with cache lines of its own: members read it again and again.
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Default)]
struct State {
    /// The newest is the last.
    open: Vec<Open>,
    /// Counts of regions to come.
    spare: Vec<Arc<AtomicUsize>>,
    /// Whether anybody may sleep.
    asleep: bool,
}

/// A region that stands in the list.
#[derive(Clone)]
struct Open {
    /// The generation that began with it.
    number: usize,
    /// That of the region inside which it was opened.
    parent: Option<usize>,
    /// Valid while this stands in the list, and while a member is inside.
    region: &'static Region<'static>,
    /// The members that are inside, beside the one that opened it.
    inside: Arc<AtomicUsize>,
}

/// Something that members do together.
struct Region<'a> {
    /// Does some of the work; false if there was none.
    work: &'a (dyn Fn() -> bool + Sync),
    /// The first panic in it.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl State {
    /// Whether a region was opened inside the one of this number.
    fn is_inside(&self, open: &Open, number: usize) -> bool {
        let parent = |open: &Open| open.parent;
        let above = |of: &usize| self.open.iter().find(|open| open.number == *of).and_then(parent);
        std::iter::successors(open.parent, above).any(|of| of == number)
    }
}

impl Region<'_> {
    /// Does some of the work, and keeps a panic; false if there was none.
    fn attempt(&self, number: Option<usize>) -> bool {
        let before = INSIDE.replace(number);
        let found = catch_unwind(AssertUnwindSafe(self.work)).unwrap_or_else(|panic| {
            lock(&self.panic).get_or_insert(panic);
            true
        });
        INSIDE.set(before);
        found
    }
}

/// Whoever holds this is inside a region.
struct Inside(Open);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

/// The entry of a region in the list. Dropped, it takes the region away and waits for those inside.
struct Entry<'a> {
    shared: &'a Shared,
    number: usize,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        let at = state.open.iter().rposition(|open| open.number == self.number);
        let at = invariant(at, "that a region stands in the list until its entry is dropped");
        let Open { inside, .. } = state.open.remove(at);
        if inside.load(Ordering::Acquire) > 0 {
            drop(state);
            let mut turns = 0;
            while inside.load(Ordering::Acquire) > 0 {
                let seen = self.shared.generation();
                self.shared.help(Some(self.number));
                self.shared.idle.0.fetch_add(1, Ordering::Relaxed);
                while inside.load(Ordering::Acquire) > 0 && self.shared.generation() == seen {
                    turn(&mut turns);
                }
                self.shared.idle.0.fetch_sub(1, Ordering::Relaxed);
            }
            state = lock(&self.shared.state);
        }
        state.spare.push(inside);
    }
}

/// Waits for a moment, and lets another thread have the processor now and then.
fn turn(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(TURNS) {
        thread::yield_now();
    } else {
        hint::spin_loop();
    }
}

/// What is offered, for the one that offers it.
#[derive(Clone, Copy)]
pub(crate) struct Offered<'a> {
    region: &'a Region<'a>,
    /// None where there are no others.
    entry: Option<&'a Entry<'a>>,
}

impl Offered<'_> {
    /// Does some of the work; false if there was none.
    pub(crate) fn work(self) -> bool {
        self.region.attempt(self.entry.map(|entry| entry.number))
    }

    /// Does some of what others offer inside the work; false if there was nothing.
    pub(crate) fn help(self) -> bool {
        self.entry.is_some_and(|entry| entry.shared.help(Some(entry.number)))
    }
}

impl Shared {
    fn generation(&self) -> usize {
        self.generation.0.load(Ordering::Acquire)
    }

    /// Makes members look for work.
    fn stir(&self, mut state: MutexGuard<'_, State>) {
        self.generation.0.fetch_add(1, Ordering::Release);
        let asleep = mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.wake.notify_all();
        }
    }

    /// Puts a region into the list.
    fn open<'a>(&'a self, region: &'a Region<'_>) -> Entry<'a> {
        // SAFETY: the lifetime is erased, nothing else. Members find the region in the list alone
        // and count themselves in while they hold its lock; the entry, which the region outlives
        // and only this file has, takes it from the list and waits until nobody is inside.
        let region = unsafe { mem::transmute::<&'a Region<'_>, &'static Region<'static>>(region) };
        let mut state = lock(&self.state);
        // The first regions make what later ones take.
        let inside = state.spare.pop().unwrap_or_default();
        let number = self.generation().wrapping_add(1);
        state.open.push(Open { number, parent: INSIDE.get(), region, inside });
        self.stir(state);
        Entry { shared: self, number }
    }

    /// Runs `body` while other members may do the work.
    ///
    /// # Panics
    /// As the work does, on whichever thread; the first panic, after the end of the region.
    fn offer(&self, work: &(dyn Fn() -> bool + Sync), body: impl FnOnce(Offered<'_>)) {
        let region = Region { work, panic: Mutex::default() };
        let entry = (self.threads > 1).then(|| self.open(&region));
        body(Offered { region: &region, entry: entry.as_ref() });
        drop(entry);
        if let Some(panic) = region.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Does some of the work of a region, the newest first, which was opened inside this one if
    /// there is one; false if no region had any.
    fn help(&self, within: Option<usize>) -> bool {
        let mut seen = None;
        loop {
            let entered = {
                let state = lock(&self.state);
                // What was opened meanwhile is a change of the generation.
                let suits = |open: &&Open| {
                    seen.is_none_or(|seen| open.number < seen)
                        && within.is_none_or(|within| state.is_inside(open, within))
                };
                state.open.iter().rev().find(suits).cloned().inspect(|open| {
                    open.inside.fetch_add(1, Ordering::Relaxed);
                })
            };
            let Some(inside) = entered.map(Inside) else { return false };
            seen = Some(inside.0.number);
            // A worker is idle again before it counts itself out: whoever waits for it sees that.
            let is_worker = usize::from(within.is_none());
            self.idle.0.fetch_sub(is_worker, Ordering::Relaxed);
            let found = inside.0.region.attempt(seen);
            self.idle.0.fetch_add(is_worker, Ordering::Relaxed);
            if found {
                return true;
            }
        }
    }

    /// Waits until the generation is another one than was seen before looking for work.
    fn wait(&self, seen: usize) {
        let (mut turns, mut begin) = (0u32, None);
        while self.generation() == seen {
            let is_last = (turns + 1).is_multiple_of(TURNS);
            let before = is_last.then(Instant::now);
            turn(&mut turns);
            let Some(before) = before else { continue };
            let begin: Instant = *begin.get_or_insert(before);
            if before.elapsed() > WANTED || begin.elapsed() > AWAKE {
                return self.sleep(seen);
            }
        }
    }

    fn sleep(&self, seen: usize) {
        let mut state = lock(&self.state);
        // The generation changes under the same lock: no change is missed.
        while self.generation() == seen {
            state.asleep = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What a worker does.
    fn serve(&self) {
        loop {
            let seen = self.generation();
            if self.help(None) {
                continue;
            }
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            self.wait(seen);
        }
    }
}

/// A thread as one of a crew.
#[derive(Clone)]
struct Member {
    shared: Arc<Shared>,
    /// Callers are 0, workers the others.
    number: usize,
}

thread_local! {
    /// The member that this thread is, inside a crew.
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
    /// The number of the innermost region that this thread works on.
    static INSIDE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The threads that share a loop which begins here: one alone where it stands in a region and
/// everybody else has work. To offer it to nobody would cost more than small loops take.
pub(crate) fn sharing() -> usize {
    let all = |member: &Member| {
        let is_idle = || member.shared.idle.0.load(Ordering::Relaxed) > 0;
        if INSIDE.get().is_none() || is_idle() { member.shared.threads } else { 1 }
    };
    // A thread outside of crews is alone.
    MEMBER.with_borrow(|member| member.as_ref().map_or(1, all))
}

/// The number of this thread in its crew.
pub(crate) fn number() -> usize {
    // Outside of a crew as that of a caller: there is nobody else.
    MEMBER.with_borrow(|member| member.as_ref().map_or(0, |member| member.number))
}

/// Does work together with idle members of the crew in which this is called, until none is left:
/// `work` does some of it and returns false if there was none.
///
/// # Panics
/// As the work does, on whichever thread; the first panic, when nobody is at work any more.
pub(super) fn together(work: &(dyn Fn() -> bool + Sync)) {
    match MEMBER.with_borrow(Clone::clone) {
        Some(member) => member.shared.offer(work, |offered| while offered.work() {}),
        None => while work() {},
    }
}

/// While this lives, its thread is a member of a crew.
struct Joined {
    before: Option<Member>,
    inside: Option<usize>,
    choose: Choose,
    arch: Option<pulp::Arch>,
    /// Dropped after the rest.
    _kept: Kept,
}

impl Drop for Joined {
    fn drop(&mut self) {
        (self.choose)(self.arch);
        INSIDE.set(self.inside);
        let _was = MEMBER.replace(self.before.take());
    }
}

/// Nothing moves out of `f` to where subnormal numbers may be lost, nor into it.
#[inline(never)]
fn apart<R>(f: impl FnOnce() -> R) -> R {
    f()
}

impl Crew {
    /// A crew with so many threads, its caller among them, whose kernels use these instructions.
    pub(crate) fn new(
        threads: usize,
        arch: Option<pulp::Arch>,
        choose: Choose,
    ) -> io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            threads,
            generation: Apart(AtomicUsize::new(0)),
            idle: Apart(AtomicUsize::new(threads - 1)),
            ended: AtomicBool::new(false),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let workers = Vec::with_capacity(threads - 1);
        let mut crew = Self { shared, instructions: Instructions { arch, choose }, workers };
        for number in 1..threads {
            let member = Member { shared: crew.shared.clone(), number };
            let work = move || {
                subnormals::keep();
                choose(arch);
                let shared = member.shared.clone();
                MEMBER.set(Some(member));
                shared.serve();
            };
            let thread = thread::Builder::new().name(format!("fanwise-{number}"));
            crew.workers.push(thread.spawn(work)?);
        }
        Ok(crew)
    }

    /// The threads, a caller among them.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `f` as a member: kernels in it are computed by all.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let is_own = |member: &Member| Arc::ptr_eq(&member.shared, &self.shared);
        if MEMBER.with_borrow(|member| member.as_ref().is_some_and(is_own)) {
            return f();
        }
        let Instructions { arch, choose } = self.instructions;
        let kept = subnormals::kept();
        let member = Member { shared: self.shared.clone(), number: 0 };
        let before = MEMBER.replace(Some(member));
        let (inside, arch) = (INSIDE.take(), choose(arch));
        let _joined = Joined { before, inside, choose, arch, _kept: kept };
        apart(f)
    }

    /// Runs `body` while idle members may do the work; see [`together`].
    pub(crate) fn offer(&self, work: &(dyn Fn() -> bool + Sync), body: impl FnOnce(Offered<'_>)) {
        self.shared.offer(work, body);
    }

    /// A number that is another one after there is more to do.
    pub(crate) fn generation(&self) -> usize {
        self.shared.generation()
    }

    /// There is more to do in an open region.
    pub(crate) fn stir(&self) {
        if self.shared.threads > 1 {
            self.shared.stir(lock(&self.shared.state));
        }
    }

    /// Waits until there is more to do than there was at the generation that was seen before
    /// looking.
    pub(crate) fn wait(&self, seen: usize) {
        self.shared.idle.0.fetch_add(1, Ordering::Relaxed);
        self.shared.wait(seen);
        self.shared.idle.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.stir(lock(&self.shared.state));
        for worker in self.workers.drain(..) {
            // What panics in a region is given to whoever opened it.
            invariant(worker.join().ok(), "that a worker does not panic");
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("threads", &self.shared.threads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
