//! Reports of kernels on elements that an operator cannot take: a word of a device, as
//! `kernels/include/report.cuh` writes it.

use std::sync::Arc;

use crate::backend::DriverError;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::memory::{Global, Pinned};
use crate::backend::cuda::driver::stream::Stream;
use crate::types::invariant::{int, invariant};

/// Bytes of the word.
const BYTES: usize = 8;

/// Bytes of pinned memory that go with it.
pub(super) const PINNED: usize = 2 * BYTES;

/// The number that a kernel gives for a step: the earlier the larger, so that the largest word is
/// that of the first step.
pub(super) fn number(step: usize) -> i64 {
    i64::from(u32::MAX - int::<u32>(step))
}

/// The step and the position of the element that a word names; 0 names none.
fn decode(word: u64) -> Option<(usize, u64)> {
    let most = u64::from(u32::MAX);
    let step = usize::try_from(most - (word >> 32)).ok()?;
    (word != 0).then_some((step, most - (word & most)))
}

/// The word of a GPU, with memory of the host to clear it from and to copy it to.
#[derive(Debug)]
pub(super) struct Report {
    word: Global,
    host: Arc<Pinned>,
}

impl Report {
    /// A word with anything in it.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let mut host = Pinned::new(context, PINNED)?;
        let is_filled = host.write(0..PINNED, &[0; PINNED]);
        invariant(is_filled.then_some(()), "that a block has the bytes that were asked for");
        Ok(Self { word: Global::new(context, BYTES)?, host: Arc::new(host) })
    }

    /// Its address in the device's memory.
    pub(super) fn address(&self) -> u64 {
        self.word.address()
    }

    /// Lets it be 0 for the work that is put on the stream from now on.
    pub(super) fn clear(&self, stream: &Stream) -> Result<(), DriverError> {
        stream.upload(&self.host, 0, self.address(), BYTES)
    }

    /// Lets it be copied to the host behind the work on the stream.
    pub(super) fn fetch(&self, stream: &Stream) -> Result<(), DriverError> {
        stream.download(self.address(), &self.host, BYTES, BYTES)
    }

    /// The step that met an element that names no entry, the first of several, and the element's
    /// position in its operand: of the first such element, and at most `u32::MAX`. The copy must be
    /// done.
    pub(super) fn first(&self) -> Option<(usize, u64)> {
        let bytes = self.host.read(BYTES..2 * BYTES)?;
        decode(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, number};

    #[test]
    fn the_largest_word_is_of_the_first_step_and_element() {
        let word = |step: usize, position: u32| {
            number(step).cast_unsigned() << 32 | u64::from(u32::MAX - position)
        };
        assert_eq!(decode(0), None);
        assert_eq!(decode(word(7, 3)), Some((7, 3)));
        assert_eq!(decode(word(0, u32::MAX)), Some((0, u64::from(u32::MAX))));
        assert!(word(2, 9) > word(3, 0) && word(2, 0) > word(2, 1));
    }
}
