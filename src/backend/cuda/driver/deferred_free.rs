//! Deferred frees of device memory.
//!
//! To free memory waits for all that a device computes, which may never end. So a thread of each
//! context frees, and who gives memory back waits for it no longer than a device may make no
//! progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::captures::heed_no_captures;
use super::waited::receive;
use crate::backend::host::lock;

/// The call that frees memory, and the sender that is dropped when it has returned.
type Order = (Box<dyn FnOnce() + Send>, mpsc::Sender<()>);

/// The orders that were given, which are done one after the other.
#[derive(Debug, Default)]
struct Orders {
    /// To the thread, once there was something to free.
    sender: Option<mpsc::Sender<Order>>,
    count: u64,
}

/// The queue of a context for memory that is no longer used.
#[derive(Debug)]
pub(crate) struct DeferredFree {
    limit: Duration,
    orders: Mutex<Orders>,
    /// The number of orders that are done.
    done: Arc<AtomicU64>,
    /// The number of the last order that was waited for as long as may be.
    late: AtomicU64,
    /// True where the device is at work for ever.
    never_ends: AtomicBool,
}

impl DeferredFree {
    /// For a device that may make no progress for so long.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            orders: Mutex::default(),
            done: Arc::default(),
            late: AtomicU64::new(0),
            never_ends: AtomicBool::new(false),
        }
    }

    /// The time for which a device may make no progress.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// True while memory that was given back is not freed, though it was waited for as long as may
    /// be.
    pub(crate) fn is_late(&self) -> bool {
        let is_late = self.late.load(Ordering::Relaxed) > self.done.load(Ordering::Relaxed);
        is_late || self.never_ends.load(Ordering::Relaxed)
    }

    /// Says that a device is at work for ever: memory that is given back is never waited for again.
    pub(super) fn give_up(&self) {
        self.never_ends.store(true, Ordering::Relaxed);
    }

    /// Says that a device is at work for longer than may be, until an order is done.
    pub(crate) fn set_late(&self) {
        self.late.fetch_max(self.done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Frees memory. When this returns it is freed, or on its way where the device is late.
    pub(crate) fn free(&self, free: impl FnOnce() + Send + 'static) {
        let (done, freed) = mpsc::channel();
        match self.order((Box::new(free), done)) {
            // No thread could be started: a call that may block is better than leaked memory.
            Err((free, _)) => free(),
            Ok(number) if !self.is_late() => {
                if receive(&freed, self.limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                    self.late.fetch_max(number, Ordering::Relaxed);
                }
            }
            Ok(_) => {}
        }
    }

    /// Gives an order to the thread, and returns its number; gives it back where there is none.
    fn order(&self, order: Order) -> Result<u64, Order> {
        let mut orders = lock(&self.orders);
        if orders.sender.is_none() {
            orders.sender = start(self.done.clone());
        }
        let Some(sender) = &orders.sender else { return Err(order) };
        sender.send(order).map_err(|error| error.0)?;
        orders.count += 1;
        Ok(orders.count)
    }
}

/// Starts a thread that frees in order, until the sender is gone, and counts.
fn start(count: Arc<AtomicU64>) -> Option<mpsc::Sender<Order>> {
    let (sender, orders) = mpsc::channel::<Order>();
    let work = move || {
        heed_no_captures();
        for (free, done) in orders {
            free();
            count.fetch_add(1, Ordering::Relaxed);
            drop(done);
        }
    };
    let thread = thread::Builder::new().name("fanwise-frees".to_owned());
    thread.spawn(work).ok().map(|_| sender)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::DeferredFree;

    #[test]
    fn who_gives_memory_back_waits_no_longer_than_allowed() {
        let deferred_free = DeferredFree::new(Duration::from_millis(20));
        let (told, heard) = mpsc::channel();
        let tell = |number: u32| {
            let told = told.clone();
            move || told.send(number).unwrap()
        };
        deferred_free.free(tell(1));
        assert_eq!((heard.try_recv(), deferred_free.is_late()), (Ok(1), false));
        let (resume, halt) = mpsc::channel::<()>();
        deferred_free.free(move || assert!(halt.recv().is_err()));
        assert!(deferred_free.is_late());
        deferred_free.free(tell(2));
        assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(resume);
        assert_eq!(heard.recv(), Ok(2));
        deferred_free.free(tell(3));
        assert_eq!(heard.recv(), Ok(3));
        while deferred_free.is_late() {
            std::thread::yield_now();
        }
        deferred_free.give_up();
        deferred_free.free(tell(4));
        assert_eq!(heard.recv(), Ok(4));
        assert!(deferred_free.is_late());
    }
}
