//! What may be read of a zip archive to find its entries.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};

/// The bytes that are read to find the entries of an archive: those of its list of entries, and
/// where that is looked for.
pub(super) const MAX_LIST: u64 = 4 << 20;

/// A reader with a byte limit: a hostile archive can declare a list of entries of any length, and
/// the library reads all of it before it returns.
pub(super) struct Limited<'a, R> {
    pub(super) file: R,
    pub(super) left: &'a Cell<u64>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 && !bytes.is_empty() {
            let message = format!("its list of entries is not within {MAX_LIST} bytes");
            return Err(io::Error::other(message));
        }
        // What is left may be more than a `usize`; what is asked for is not.
        let most = usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(bytes.len());
        let read = self.file.read(&mut bytes[..most])?;
        self.left.set(self.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

impl<R: Seek> Seek for Limited<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
