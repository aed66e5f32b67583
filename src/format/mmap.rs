//! Files as memory: mapped, so that elements of tensors are read when they are used and never
//! copied.
//!
//! The only place where files are mapped.
#![allow(unsafe_code, reason = "a file as a slice; each block says why it may")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions, UncheckedAdvice};

use super::FileError;
use super::error::open;

/// Files up to this size are read: a page is the least that a map takes.
const SMALL: u64 = 1 << 16;

/// Parts below this size are not given back one by one.
const PART: usize = 1 << 16;

/// The mappings that are there, by the addresses of their first bytes.
static MAPPINGS: Mutex<BTreeMap<usize, Weak<Mmap>>> = Mutex::new(BTreeMap::new());

/// Lets the system take back the memory of bytes that were copied, if they are of a mapped file;
/// reading them again reads the file.
pub(crate) fn release(part: &[u8]) {
    let mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    // A mapping that is gone has no bytes, and none is where another one lies.
    let before = mappings.range(..=part.as_ptr() as usize).next_back();
    let Some(map) = before.and_then(|(_, map)| map.upgrade()) else { return };
    let from = (part.as_ptr() as usize).wrapping_sub(map.as_ptr() as usize);
    let inside = from.checked_add(part.len()).is_some_and(|end| end <= map.len());
    // Below that, pages hold the elements of other tensors, too.
    if part.len() < PART || !inside {
        return;
    }
    #[cfg(unix)]
    // SAFETY: the range lies in the mapping. Its pages were never written to (the mapping is
    // read-only), so they hold what the file does, and are filled from it again at the next
    // access: no byte changes.
    let released =
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, part.len()) };
    // The memory is only needed more sparingly; without the system's help all is as right.
    drop(released);
}

/// The bytes of a regular file.
pub(super) struct Map {
    bytes: Bytes,
    state: State,
}

/// Metadata that changes if a file is written to.
#[derive(PartialEq, Eq)]
struct State {
    size: u64,
    modified: Option<SystemTime>,
}

impl State {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self { size: meta.len(), modified: meta.modified().ok() }
    }
}

/// The mapping as the owner of shared bytes.
struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Map {
    /// Maps the regular file at `path`, if `allowed` of its size.
    pub(super) fn open<E: From<FileError>>(
        path: &Path,
        allowed: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (file, size) = open(path)?;
        allowed(size)?;
        Self::new(file, size).map_err(|e| FileError::read(path, e).into())
    }

    fn new(mut file: File, size: u64) -> io::Result<Self> {
        let state = State::of(&file.metadata()?);
        if size <= SMALL {
            let mut data = Vec::new();
            Read::by_ref(&mut file).take(size).read_to_end(&mut data)?;
            return Ok(Self { bytes: data.into(), state });
        }
        let len = usize::try_from(size).map_err(io::Error::other)?;
        // SAFETY: the mapping is private and read-only, so nothing here writes to it or to the
        // file. Another program may. What it writes can only show in the elements of tensors,
        // numbers of which every bit pattern is valid: readers copy the structure of a file, its
        // names and sizes, out of the mapping before they use it. If it makes the file shorter, the
        // system ends this process at the next access; no file is half written then, since output
        // gets its name when it is complete. `Map::check` tells of both while a file is read, and a
        // file that is replaced by another is no change: the mapping is that of the old one.
        let map = Arc::new(unsafe { MmapOptions::new().len(len).map_copy_read_only(&file) }?);
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        mappings.retain(|_, map| map.strong_count() > 0);
        mappings.insert(map.as_ptr() as usize, Arc::downgrade(&map));
        Ok(Self { bytes: Bytes::from_owner(Owner(map)), state })
    }

    /// The bytes, which keep the mapping.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Fails if the file at `path` is no longer as it was when it was mapped.
    pub(super) fn check(&self, path: &Path) -> Result<(), FileError> {
        let meta = std::fs::metadata(path).map_err(|e| FileError::read(path, e))?;
        if State::of(&meta) == self.state {
            return Ok(());
        }
        Err(FileError::content(path, "it was changed while it was read"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::FileError;
    use super::{Map, release};

    fn open(path: &std::path::Path) -> Result<Map, FileError> {
        Map::open(path, |_| Ok(()))
    }

    #[test]
    fn files_of_every_size_are_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for size in [0usize, 1, 1 << 16, (1 << 16) + 1, 300_001] {
            let path = folder.path().join(size.to_string());
            let data: Vec<u8> = (0..=250).cycle().take(size).collect();
            std::fs::write(&path, &data).unwrap();
            let map = open(&path).unwrap();
            assert_eq!(map.bytes(), &data);
            release(&map.bytes()[size / 5..]);
            release(&data);
            map.check(&path).unwrap();
            let (bytes, part) = (map.bytes().clone(), map.bytes().slice(size / 3..));
            drop(map);
            assert!(bytes == data && part == data[size / 3..]);
        }
    }

    #[test]
    fn a_file_that_was_changed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let map = open(&path).unwrap();
        std::fs::write(folder.path().join("other"), vec![2; 100_001]).unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        // The mapping is that of the old file, which lives on.
        assert_eq!(map.bytes()[99_999], 1);
        assert!(map.check(&path).unwrap_err().to_string().contains("was changed"));
        std::fs::remove_file(&path).unwrap();
        assert!(map.check(&path).is_err());
        assert!(open(folder.path()).is_err());
    }
}
