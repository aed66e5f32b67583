//! The first bytes of files that are no archives of arrays, and what these are.

use std::io::{self, Read, Seek, SeekFrom};

pub(crate) const BZIP2: &[u8] = b"BZh";
pub(crate) const GGUF: &[u8] = b"GGUF";
pub(crate) const GIT_LFS: &[u8] = b"version https://git-lfs";
pub(crate) const GZIP: &[u8] = b"\x1f\x8b";
pub(crate) const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";
pub(crate) const JPEG: &[u8] = b"\xff\xd8\xff";
pub(crate) const NUMPY: &[u8] = b"\x93NUMPY";
pub(crate) const PNG: &[u8] = b"\x89PNG";
pub(crate) const SEVEN_ZIP: &[u8] = b"7z\xbc\xaf\x27\x1c";
pub(crate) const XZ: &[u8] = b"\xfd7zXZ\0";
pub(crate) const ZIP: &[u8] = b"PK\x03\x04";
pub(crate) const ZIP_EMPTY: &[u8] = b"PK\x05\x06";
pub(crate) const ZSTANDARD: &[u8] = b"\x28\xb5\x2f\xfd";

/// The bytes that tell what a file is.
const LENGTH: u64 = 64;

/// The first bytes of a file, which is then at its beginning.
pub(super) fn of(file: &mut (impl Read + Seek)) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.by_ref().take(LENGTH).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(head)
}

/// Eight bytes of a length, then JSON.
pub(crate) fn is_safetensors(head: &[u8]) -> bool {
    head.get(8) == Some(&b'{') && head.get(4..8) == Some(&[0; 4])
}

/// True if all bytes are printable ASCII.
pub(crate) fn is_text(head: &[u8]) -> bool {
    head.iter().all(|b: &u8| (b' '..0x7f).contains(b) || b"\t\r\n".contains(b))
}

/// What a file is that is no zip archive, with its article, and how its arrays become one; `None`
/// for a zip archive and for what is not known.
pub(super) fn no_archive(head: &[u8]) -> Option<[&'static str; 2]> {
    const SAVE: &str = "write its array with `numpy.savez`";
    const WRITE: &str = "write its numbers as arrays with `numpy.savez`";
    const UNPACK: &str = "name the file that is packed in it";
    if head.is_empty() {
        return Some(["empty", "write or copy it again"]);
    }
    let known = [
        (NUMPY, ["one array (.npy)", SAVE]),
        (PNG, ["an image", WRITE]),
        (JPEG, ["an image", WRITE]),
        (HDF5, ["an HDF5 file", WRITE]),
        (GZIP, ["a gzip archive", UNPACK]),
        (SEVEN_ZIP, ["a 7z archive", UNPACK]),
        (XZ, ["an xz archive", UNPACK]),
        (ZSTANDARD, ["a Zstandard archive", UNPACK]),
        (BZIP2, ["a bzip2 archive", UNPACK]),
        (GIT_LFS, ["a pointer of Git LFS", "give the file itself: `git lfs pull`"]),
        (GGUF, ["a GGUF file", WRITE]),
    ];
    let found = known.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what);
    let tensors = || is_safetensors(head).then_some(["a .safetensors file", WRITE]);
    let text = || is_text(head).then_some(["a text, such as CSV", WRITE]);
    found.or_else(tensors).or_else(text)
}

#[cfg(test)]
mod tests {
    use super::no_archive;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        for (head, what) in [
            (&b"\x93NUMPY\x01\x00v"[..], "one array (.npy)"),
            (b"\x89PNG\r\n\x1a\n", "an image"),
            (b"\xff\xd8\xff\xe0", "an image"),
            (b"a,b,y\n1,2,0\n", "a text, such as CSV"),
            (b"", "empty"),
        ] {
            assert_eq!(no_archive(head).map(|[what, _]| what), Some(what));
        }
        assert_eq!(no_archive(b"PK\x03\x04rest"), None);
        assert_eq!(no_archive(b"\x00\x01\x02"), None);
    }
}
