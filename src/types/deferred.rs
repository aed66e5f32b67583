//! Elements that are computed when they are first read.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};

use super::lines::Lines;

/// What computes the elements of a tensor, the same at each call, as bytes in native order.
/// Tensors cross threads and caught panics, and so does this.
pub(crate) trait Elements: Send + Sync + RefUnwindSafe + UnwindSafe {
    /// Writes all of them.
    fn write(&self, to: &mut [u8]);

    /// Gives all of them, which take `bytes` bytes, in order and block by block, and keeps none.
    fn blocks(&self, bytes: usize, each: &mut dyn FnMut(&[u8]));
}

/// Elements that are computed when they are first read, and kept from then on.
pub(super) struct Deferred {
    elements: Box<dyn Elements>,
    kept: OnceLock<Arc<Lines>>,
}

impl Deferred {
    pub(super) fn new(elements: impl Elements + 'static) -> Self {
        Self { elements: Box::new(elements), kept: OnceLock::new() }
    }

    /// What computes them, as long as nobody has read them.
    pub(super) fn unread(&self) -> Option<&dyn Elements> {
        if self.kept.get().is_some() { None } else { Some(&*self.elements) }
    }

    /// The elements, which take `bytes` bytes.
    pub(super) fn lines(&self, bytes: usize) -> &Arc<Lines> {
        if let Some(lines) = self.kept.get() {
            return lines;
        }
        // No lock is held meanwhile, for which a thread that helps could wait. Two that begin at
        // once both compute them, and the first that is done keeps its own.
        let mut lines = Lines::new(bytes);
        self.elements.write(lines.bytes_mut());
        self.kept.get_or_init(|| Arc::new(lines))
    }
}
