//! Memory on its way back to the driver.
//!
//! To free memory waits for all that a device computes, which may never end. So a thread of each
//! context frees, and who gives memory back waits for it no longer than a device may make no
//! progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::backend::host::lock;

/// What frees memory, and what is dropped when that is done.
type Order = (Box<dyn FnOnce() + Send>, mpsc::Sender<()>);

/// Where the memory of a context goes when it is no longer used.
#[derive(Debug)]
pub(crate) struct Frees {
    limit: Duration,
    /// To the thread, once there was something to free.
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    is_late: Arc<AtomicBool>,
}

impl Frees {
    /// For a device that may make no progress for so long.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, orders: Mutex::default(), is_late: Arc::default() }
    }

    /// How long a device may make no progress.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// True while memory that was given back is not freed, though it was waited for as long as may
    /// be.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// Says that a device is at work for longer than may be.
    pub(crate) fn set_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Frees memory. When this returns it is freed, or on its way where the device is late.
    pub(crate) fn free(&self, free: impl FnOnce() + Send + 'static) {
        let (done, freed) = mpsc::channel();
        if let Err((free, _)) = self.order((Box::new(free), done)) {
            free();
        } else if !self.is_late() {
            let late = freed.recv_timeout(self.limit) == Err(mpsc::RecvTimeoutError::Timeout);
            self.is_late.fetch_or(late, Ordering::Relaxed);
        }
    }

    /// Gives an order to the thread; gives it back where there is none.
    fn order(&self, order: Order) -> Result<(), Order> {
        let mut orders = lock(&self.orders);
        if orders.is_none() {
            *orders = start(self.is_late.clone());
        }
        match &*orders {
            Some(sender) => sender.send(order).map_err(|error| error.0),
            None => Err(order),
        }
    }
}

/// Starts a thread that frees in order, until the sender is gone.
fn start(is_late: Arc<AtomicBool>) -> Option<mpsc::Sender<Order>> {
    let (sender, orders) = mpsc::channel::<Order>();
    let work = move || {
        for (free, done) in orders {
            free();
            is_late.store(false, Ordering::Relaxed);
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

    use super::Frees;

    #[test]
    fn who_gives_memory_back_waits_no_longer_than_allowed() {
        let frees = Frees::new(Duration::from_millis(20));
        let (told, heard) = mpsc::channel();
        let tell = |number: u32| {
            let told = told.clone();
            move || told.send(number).unwrap()
        };
        frees.free(tell(1));
        assert_eq!((heard.try_recv(), frees.is_late()), (Ok(1), false));
        let (resume, halt) = mpsc::channel::<()>();
        frees.free(move || assert!(halt.recv().is_err()));
        assert!(frees.is_late());
        frees.free(tell(2));
        assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(resume);
        assert_eq!(heard.recv(), Ok(2));
        frees.free(tell(3));
        assert_eq!(heard.recv(), Ok(3));
        while frees.is_late() {
            std::thread::yield_now();
        }
    }
}
