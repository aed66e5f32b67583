//! Which stream runs next, and the lock around the driver.

use super::code;
use super::config::{Class, Config, Order};
use super::queue::Work;
use super::state::{Call, Context, Driver, Failed, say};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a call waits for before it returns.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// Nothing: it is asynchronous.
    Nothing,
    /// All work of a stream.
    Stream(u64),
    /// A marker.
    Marker(u64),
    /// All work of a context.
    Context(u64),
    /// All work of a context, without the host knowing of it.
    Drain(u64),
    /// All work.
    Everything,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

/// Calls that may have put work into a queue.
static ORDERED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    /// Registers a function for the end of the process.
    safe fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
}

/// The end of the process: reports what was never given back.
extern "C" fn at_exit() {
    let mut guard = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = guard.as_mut() {
        driver.leaks();
        driver.write_stats();
    }
}

type Guard = MutexGuard<'static, Option<Driver>>;

/// Takes the lock, and makes the driver at the first call.
fn lock() -> Call<Guard> {
    let mut guard = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if guard.is_none() {
        say("this is NO GPU: a fake driver runs kernels on the CPU and checks them");
        match Config::read() {
            Ok(config) => *guard = Some(Driver::new(config)),
            Err(text) => {
                say(&text);
                return Err(code::INVALID_VALUE);
            }
        }
        let _ = atexit(at_exit);
    }
    Ok(guard)
}

/// How long a thread whose call was made to fail is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits where a thread was told of an injected failure and has made no call since: it is the first
/// to know, and no other is told of what that did to its context.
fn after_the_first(mut guard: Guard) -> Guard {
    loop {
        let Some(driver) = guard.as_mut() else { return guard };
        let Some((thread, since)) = driver.told else { return guard };
        let left = PATIENCE.saturating_sub(since.elapsed());
        if thread == std::thread::current().id() || left.is_zero() {
            driver.told = None;
            CHANGED.notify_all();
            return guard;
        }
        guard = CHANGED.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// A call of a function of the driver: counts it, makes it, waits for what it waits for.
pub(super) fn call(
    name: &'static str,
    class: Class,
    mut make: impl FnMut(&mut Driver) -> Call<Goal>,
) -> Call<()> {
    let mut guard = after_the_first(lock()?);
    if !matches!(class, Class::Query | Class::Sync) {
        ORDERED.fetch_add(1, Ordering::Relaxed);
    }
    let driver = guard.as_mut().ok_or(code::NOT_INITIALIZED)?;
    driver.gate(name, class).inspect_err(|&code| driver.injected(name, code))?;
    let mut made = make(driver);
    if made.as_ref().err() == Some(&code::OUT_OF_MEMORY) {
        // Memory whose free is still in a queue is given back first.
        guard = advance(guard, &Goal::Everything, usize::MAX)?;
        made = make(guard.as_mut().ok_or(code::NOT_INITIALIZED)?);
    }
    let goal = made?;
    let order = guard.as_ref().map_or(Order::Eager, |d| d.config.order);
    if order == Order::Eager {
        guard = advance(guard, &Goal::Everything, usize::MAX)?;
    } else if order == Order::Random {
        let steps = guard.as_mut().map_or(0, |d| d.choose(3));
        guard = advance(guard, &Goal::Everything, steps)?;
    }
    guard = advance(guard, &goal, usize::MAX)?;
    // Behind a kernel that never ends, this does not either.
    while guard.as_ref().is_some_and(|d| d.waits_for_ever(&goal)) {
        drop(guard);
        std::thread::sleep(Duration::from_millis(100));
        guard = lock()?;
    }
    let driver = guard.as_mut().ok_or(code::NOT_INITIALIZED)?;
    driver.reached(&goal)
}

/// A result as the code that C callers get.
pub(super) fn result(result: Call<()>) -> u32 {
    result.err().unwrap_or(0)
}

/// Runs up to `steps` items of work, until the goal is reached.
fn advance(mut guard: Guard, goal: &Goal, steps: usize) -> Call<Guard> {
    let mut left = steps;
    loop {
        let Some(driver) = guard.as_mut() else { return Err(code::DEINITIALIZED) };
        if left == 0 || driver.is_reached(goal) {
            return Ok(guard);
        }
        left -= 1;
        match driver.next_stream(goal) {
            Some(stream) => {
                if let Some(time) = driver.slow_launch(stream) {
                    guard = outside(guard, stream, || std::thread::sleep(time))?;
                }
                let Some(driver) = guard.as_mut() else { return Err(code::DEINITIALIZED) };
                if let Some(host) = driver.run_one(stream) {
                    // SAFETY: the caller of cuLaunchHostFunc promised that the function may be
                    // called once.
                    let call = || unsafe {
                        (host.function)(std::ptr::with_exposed_provenance_mut(host.data));
                    };
                    guard = outside(guard, stream, call)?;
                }
                if let Some(driver) = guard.as_mut() {
                    driver.retire(stream);
                }
            }
            None if driver.streams.values().any(|s| s.busy) => {
                let waited = CHANGED.wait_timeout(guard, Duration::from_millis(100));
                guard = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            None => return Ok(guard),
        }
    }
}

/// What a stream does without the lock: others may ask and order meanwhile.
fn outside(mut guard: Guard, stream: u64, act: impl FnOnce()) -> Call<Guard> {
    if let Some(of) = guard.as_mut().and_then(|d| d.streams.get_mut(&stream)) {
        of.busy = true;
    }
    drop(guard);
    act();
    let mut guard = lock()?;
    if let Some(of) = guard.as_mut().and_then(|d| d.streams.get_mut(&stream)) {
        of.busy = false;
    }
    CHANGED.notify_all();
    Ok(guard)
}

/// Runs items while the host orders nothing new, so that a host that looks again and again, or
/// waits for its host function, is not left alone.
pub(super) fn background() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            let mut known = 0;
            loop {
                std::thread::sleep(Duration::from_micros(500));
                let ordered = ORDERED.load(Ordering::Relaxed);
                if std::mem::replace(&mut known, ordered) != ordered {
                    continue;
                }
                let Ok(guard) = lock() else { return };
                if advance(guard, &Goal::Everything, 1).is_err() {
                    return;
                }
            }
        });
    });
}

impl Driver {
    /// Whether a stream has nothing left to do.
    pub(super) fn idle(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_none_or(|s| s.queue.is_empty() && !s.busy)
    }

    /// Whether the goal is behind a kernel that was made to hang.
    fn waits_for_ever(&self, goal: &Goal) -> bool {
        self.never_ends && !self.is_reached(goal)
    }

    fn is_reached(&self, goal: &Goal) -> bool {
        match goal {
            Goal::Nothing => true,
            Goal::Stream(id) => self.idle(*id),
            Goal::Marker(id) => self.markers.get(id).is_none_or(|m| m.done),
            Goal::Context(id) | Goal::Drain(id) => {
                self.streams.values().all(|s| s.context != *id || (s.queue.is_empty() && !s.busy))
            }
            Goal::Everything => self.streams.values().all(|s| s.queue.is_empty() && !s.busy),
        }
    }

    /// The host knows what it waited for; the context's error comes to light.
    fn reached(&mut self, goal: &Goal) -> Call<()> {
        let mut contexts = Vec::new();
        match goal {
            Goal::Nothing | Goal::Drain(_) => return Ok(()),
            Goal::Stream(id) => {
                if let Some(stream) = self.streams.get(id) {
                    self.host.join(&stream.clock);
                    contexts.push(stream.context);
                }
            }
            Goal::Marker(id) => {
                if let Some(marker) = self.markers.get(id) {
                    self.host.join(&marker.clock);
                    contexts.extend(self.streams.get(&marker.stream).map(|s| s.context));
                }
            }
            Goal::Context(_) | Goal::Everything => {
                for stream in self.streams.values() {
                    if !matches!(goal, Goal::Context(id) if *id != stream.context) {
                        self.host.join(&stream.clock);
                        contexts.push(stream.context);
                    }
                }
            }
        }
        self.prune();
        let errors = contexts.iter().filter_map(|id| self.contexts.get(id)?.error);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// Whether the first item of a stream can run.
    fn can_run(&self, stream: u64) -> bool {
        let Some(of) = self.streams.get(&stream) else { return false };
        if of.busy {
            return false;
        }
        match of.queue.front().map(|i| &i.work) {
            None => false,
            Some(Work::Wait(marker)) => self.markers.get(marker).is_none_or(|m| m.done),
            Some(_) => true,
        }
    }

    /// The time that the launch at the front of a stream takes at the least, where that is any.
    fn slow_launch(&self, stream: u64) -> Option<Duration> {
        let front = &self.streams.get(&stream)?.queue.front()?.work;
        let time = self.config.launch;
        (matches!(front, Work::Launch { .. }) && !time.is_zero()).then_some(time)
    }

    /// The stream that runs next on the way to a goal.
    fn next_stream(&mut self, goal: &Goal) -> Option<u64> {
        if self.config.order == Order::Late {
            return self.needed(goal);
        }
        let able: Vec<u64> = self.streams.keys().copied().filter(|&id| self.can_run(id)).collect();
        match self.config.order {
            Order::Lifo => able.last().copied(),
            Order::Random => {
                let at = self.choose(able.len());
                able.get(at).copied()
            }
            Order::Eager | Order::Late => able.first().copied(),
        }
    }

    /// A stream whose first item the goal needs, directly or through waits.
    fn needed(&self, goal: &Goal) -> Option<u64> {
        let mut at = match goal {
            Goal::Nothing => return None,
            Goal::Stream(id) => *id,
            Goal::Marker(id) => self.markers.get(id)?.stream,
            Goal::Context(context) | Goal::Drain(context) => {
                let mut ids = self.streams.iter().rev();
                *ids.find(|(_, s)| s.context == *context && !s.queue.is_empty())?.0
            }
            Goal::Everything => *self.streams.iter().rev().find(|(_, s)| !s.queue.is_empty())?.0,
        };
        for _ in 0..=self.streams.len() {
            if self.can_run(at) {
                return Some(at);
            }
            match self.streams.get(&at)?.queue.front()?.work {
                Work::Wait(marker) => at = self.markers.get(&marker)?.stream,
                _ => return None,
            }
        }
        None
    }

    /// Removes a destroyed stream whose work is done.
    pub(super) fn retire(&mut self, stream: u64) {
        if self.idle(stream) && self.streams.get(&stream).is_some_and(|s| s.destroyed) {
            self.streams.remove(&stream);
        }
    }

    /// An injected failure; of one that stays the context, or the device, is lost.
    fn injected(&mut self, name: &'static str, code: u32) {
        let current = super::current::get();
        let device = self.contexts.get(&current).map(|c| c.device);
        let thread = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        let thread = thread.trim_end().to_owned();
        self.stats.failed = Some(Failed { name, device, thread });
        let lost = code == code::ECC_UNCORRECTABLE;
        let ends = [
            code::ILLEGAL_ADDRESS,
            code::LAUNCH_FAILED,
            code::CONTEXT_IS_DESTROYED,
            code::MPS_CLIENT_TERMINATED,
            code::EXTERNAL_DEVICE,
        ];
        if lost || ends.contains(&code) {
            self.told = Some((std::thread::current().id(), Instant::now()));
            let hit = |(id, context): (&u64, &Context)| {
                (*id == current || (lost && Some(context.device) == device)).then_some(*id)
            };
            let hit: Vec<u64> = self.contexts.iter().filter_map(hit).collect();
            for context in hit {
                self.fail(context, code);
            }
            if let Some(device) = device.filter(|_| lost) {
                self.lost.insert(device);
            }
        }
    }

    /// From now on every call in a context gives this error, which tells the host that all work
    /// there is over.
    pub(super) fn fail(&mut self, context: u64, code: u32) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.error = Some(code);
        }
        let over: Vec<usize> =
            self.streams.values().filter(|s| s.context == context).map(|s| s.at).collect();
        self.live.retain(|l| !over.contains(&l.at));
    }
}
