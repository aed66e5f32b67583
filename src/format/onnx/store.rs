//! The bytes of a model file: its structure in memory, large elements of tensors where they lie in
//! the file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::mmap::{Map, release};
use super::super::{Budget, FileError};
use super::ImportError;
use super::wire::{Content, Fields, Span, WireError};

/// The longest file that is read: the limit of protocol buffers.
const MAX_FILE: u64 = (1 << 31) - 1;

/// Raw elements from this number of bytes stay where they are; smaller ones are part of the
/// structure.
const LARGE: usize = 1 << 16;

/// The bytes of a model.
pub(super) struct Store {
    /// The file with the large elements of tensors left out: there are zeros that take no memory
    /// until they are read.
    pub(super) structure: Bytes,
    /// The file, where the large elements lie; none where `structure` is whole.
    file: Option<(PathBuf, Map)>,
}

impl Store {
    /// The bytes in memory.
    pub(super) fn of(data: Bytes) -> Result<Self, ImportError> {
        if data.len() as u64 > MAX_FILE {
            return Err(too_long(Path::new("the model"), data.len() as u64).into());
        }
        Ok(Self { structure: data, file: None })
    }

    /// The file at `path`, which alone must fit in `budget`; its tensors are charged when they are
    /// read.
    pub(super) fn open(path: &Path, budget: &Budget) -> Result<Self, ImportError> {
        let map = Map::open(path, |size| {
            if size > MAX_FILE {
                return Err(ImportError::from(too_long(path, size)));
            }
            let mut whole = *budget;
            Ok(whole.charge(&path.display().to_string(), size)?)
        })?;
        let data = map.bytes();
        let large = large_elements(data)?;
        if large.is_empty() {
            return Ok(Self { structure: Bytes::from(data.to_vec()), file: None });
        }
        let mut structure = vec![0; data.len()];
        let mut at = 0;
        for part in large.iter().chain([&(data.len()..data.len())]) {
            structure[at..part.start].copy_from_slice(&data[at..part.start]);
            at = part.end;
        }
        release(data);
        Ok(Self { structure: structure.into(), file: Some((path.to_owned(), map)) })
    }

    /// All bytes of the file, at the places that they have in the structure.
    pub(super) fn whole(&self) -> Bytes {
        self.file.as_ref().map_or_else(|| self.structure.clone(), |(_, map)| map.bytes().clone())
    }

    /// The raw elements of a tensor that was decoded from the structure.
    pub(super) fn elements(&self, raw: &Bytes) -> Bytes {
        let from = (raw.as_ptr() as usize).wrapping_sub(self.structure.as_ptr() as usize);
        let inside = from.checked_add(raw.len()).filter(|end| *end <= self.structure.len());
        match (&self.file, inside) {
            (Some((_, map)), Some(end)) if raw.len() >= LARGE => map.bytes().slice(from..end),
            _ => raw.clone(),
        }
    }

    /// Fails if the file was changed while its elements were read.
    pub(super) fn check(&self) -> Result<(), FileError> {
        // Bytes that were given have no file that could change.
        self.file.as_ref().map_or(Ok(()), |(path, map)| map.check(path))
    }
}

fn too_long(path: &Path, size: u64) -> FileError {
    let reason = format!("{size} bytes are too many: an ONNX file has at most {MAX_FILE}");
    FileError::content(path, reason)
}

/// Byte ranges of large raw elements, in order: those of the graph's initializers and of the
/// attributes of its nodes.
fn large_elements(data: &[u8]) -> Result<Vec<Range<usize>>, WireError> {
    let mut found = Vec::new();
    if data.len() < LARGE {
        return Ok(found);
    }
    let mut take = |raw: Span| {
        found.push(raw.range());
        Ok(())
    };
    large(data, Span::new(0..data.len())?, &[&[7]], &mut |graph| {
        large(data, graph, &[&[5, 9], &[1, 5, 5, 9]], &mut take)
    })?;
    Ok(found)
}

/// Calls `take` with every large part that one of `paths`, lists of field numbers, leads to.
fn large(
    data: &[u8],
    span: Span,
    paths: &[&[u64]],
    take: &mut dyn FnMut(Span) -> Result<(), WireError>,
) -> Result<(), WireError> {
    for field in Fields::of(data, span) {
        let (number, Content::Part(part)) = field? else { continue };
        for path in paths.iter().filter(|path| path[0] == number && part.len() >= LARGE) {
            if path.len() == 1 {
                take(part)?;
            } else {
                large(data, part, &[&path[1..]], take)?;
            }
        }
    }
    Ok(())
}
