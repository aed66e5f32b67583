//! The memory of a device in a run, and the devices that wait for it.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::backend::host::{DeviceMemory, lock};

/// The memory that a device writes to in a run.
pub(super) type Memory<'a> = DeviceMemory<&'a mut [u8]>;

/// The memory of one device, and the devices that wait until it is free.
///
/// Only the device's own launches hold it for long: other devices never block, so that the member
/// that would wait computes meanwhile. Nor does a member that holds it take steps of other devices
/// before it gives it back: while it waits for others in a launch it only turns round.
pub(super) struct Place<'a> {
    /// Whoever held it calls [`Place::left`] afterwards.
    pub(super) memory: Mutex<Memory<'a>>,
    waiting: Mutex<Vec<usize>>,
}

impl<'a> Place<'a> {
    pub(super) fn new(memory: Memory<'a>) -> Self {
        Self { memory: Mutex::new(memory), waiting: Mutex::default() }
    }

    /// The memory, for a copy of this device, if it is free; else the device waits for it.
    pub(super) fn take(&self, device: usize) -> Option<MutexGuard<'_, Memory<'a>>> {
        // Nobody looks for waiting devices in between: who holds the memory now does so afterwards.
        let mut waiting = lock(&self.waiting);
        match self.memory.try_lock() {
            Ok(memory) => Some(memory),
            Err(TryLockError::Poisoned(memory)) => Some(memory.into_inner()),
            Err(TryLockError::WouldBlock) => {
                waiting.push(device);
                None
            }
        }
    }

    /// The memory was given back: the devices to start again.
    pub(super) fn left(&self) -> Vec<usize> {
        std::mem::take(&mut *lock(&self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::Place;
    use crate::backend::host::{DeviceMemory, lock};
    #[test]
    fn devices_that_find_the_memory_held_are_started_when_it_is_left() {
        let (mut arena, outputs, updates) = ([0; 1], Vec::new(), Vec::new());
        let place = Place::new(DeviceMemory { arena: &mut arena, outputs, updates });
        let launch = lock(&place.memory);
        assert!(place.take(2).is_none() && place.take(0).is_none());
        drop(launch);
        assert_eq!(place.left(), [2, 0]);
        assert!(place.take(1).is_some());
        assert_eq!(place.left(), [0; 0]);
    }
}
