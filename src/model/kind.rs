//! What a file is that is no model of ours, by its first bytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The bytes of a zip archive's end in which names of its files are looked for.
const DIRECTORY: u64 = 1 << 16;

/// How a Keras model becomes an ONNX file.
const KERAS: &str = "write it as ONNX: `model.export(\"model.onnx\", format=\"onnx\")` in Keras 3, \
    or `python -m tf2onnx.convert`";

/// How a PyTorch model becomes an ONNX file.
const TORCH: &str =
    "write it as ONNX: `torch.onnx.export(model, inputs, \"model.onnx\", dynamic_axes=…)`";

/// How a TensorFlow model becomes an ONNX file.
const TENSORFLOW: &str = "write it as ONNX: `python -m tf2onnx.convert --saved-model FOLDER \
    --output model.onnx`, for TensorFlow Lite `--tflite FILE`";

/// What can be done with an archive.
const UNPACK: &str = "unpack it, and name the model in it";

/// What a folder is, and what to do, where it is a model of another kind.
pub(super) fn of_folder(path: &Path) -> Option<(&'static str, &'static str)> {
    path.join("saved_model.pb")
        .is_file()
        .then_some(("a TensorFlow SavedModel", TENSORFLOW))
        .or_else(|| {
            let data = path.join("data.pkl").is_file();
            data.then_some(("an unpacked PyTorch file", TORCH))
        })
}

/// What a file is, and what to do, where its first bytes are none of an ONNX file.
pub(super) fn of_file(path: &Path, head: &[u8]) -> Option<(&'static str, &'static str)> {
    if head.is_empty() {
        return Some(("an empty file", "it was perhaps not written to its end: make it anew"));
    }
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Some(of_archive(path));
    }
    let at =
        |from: usize, magic: &[u8]| head.get(from..).is_some_and(|rest| rest.starts_with(magic));
    let known: [(bool, &str, &str); 14] = [
        (at(0, b"\x89HDF\r\n\x1a\n"), "an HDF5 file, as Keras writes (.h5)", KERAS),
        (at(4, b"TFL3"), "a TensorFlow Lite model", TENSORFLOW),
        (
            at(0, b"ptrt") || at(0, b"ftrt"),
            "a TensorRT engine",
            "name the ONNX file that it was built from",
        ),
        (
            at(0, b"\x80\x02") || at(0, b"\x80\x04") || at(0, b"\x80\x05"),
            "a Python pickle, as old PyTorch files are",
            TORCH,
        ),
        (at(0, b"\x1f\x8b"), "a gzip archive", UNPACK),
        (at(0, b"7z\xbc\xaf\x27\x1c"), "a 7z archive", UNPACK),
        (at(0, b"\xfd7zXZ\0"), "an xz archive", UNPACK),
        (at(0, b"\x28\xb5\x2f\xfd"), "a Zstandard archive", UNPACK),
        (at(0, b"BZh"), "a bzip2 archive", UNPACK),
        (
            at(0, b"version https://git-lfs"),
            "a pointer of Git LFS, not the file itself",
            "fetch the file: `git lfs pull`",
        ),
        (
            at(0, b"\x93NUMPY"),
            "an array of NumPy",
            "name a model; data go to `--data` or `--inputs`",
        ),
        (
            at(0, b"\x89PNG") || at(0, b"\xff\xd8\xff"),
            "an image",
            "name a model; images go to `--data`",
        ),
        (
            at(0, b"GGUF"),
            "a GGUF file, which holds weights without a graph",
            "export the model as ONNX",
        ),
        (
            is_safetensors(head),
            "a .safetensors file, which holds weights without a graph",
            "name the model, and this file by `--params FILE`",
        ),
    ];
    let found = known.iter().find(|(is, ..)| *is).map(|(_, what, way)| (*what, *way));
    found.or_else(|| tar(path))
}

/// Eight bytes of a length, then JSON.
fn is_safetensors(head: &[u8]) -> bool {
    head.get(8) == Some(&b'{') && head.get(4..8) == Some(&[0; 4])
}

/// A zip archive by the names in its directory.
fn of_archive(path: &Path) -> (&'static str, &'static str) {
    let names = tail(path).unwrap_or_default();
    let has = |name: &[u8]| names.windows(name.len()).any(|own| own == name);
    if has(b"model.weights.h5") || has(b"config.json") && has(b"metadata.json") {
        ("a Keras model (.keras)", KERAS)
    } else if has(b"constants.pkl") {
        ("a TorchScript file", TORCH)
    } else if has(b"data.pkl") {
        ("a PyTorch file (.pt)", TORCH)
    } else if has(b".npy") {
        (
            "a .npz archive of arrays",
            "name a model; arrays go to `--data`, `--inputs` or `--params`",
        )
    } else {
        ("a zip archive", UNPACK)
    }
}

/// The end of a file.
fn tail(path: &Path) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(DIRECTORY))).ok()?;
    let mut bytes = Vec::new();
    file.take(DIRECTORY).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A tar archive, whose magic stands far behind its beginning.
fn tar(path: &Path) -> Option<(&'static str, &'static str)> {
    let mut magic = [0; 5];
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(257)).ok()?;
    file.read_exact(&mut magic).ok()?;
    (&magic == b"ustar").then_some(("a tar archive", UNPACK))
}

/// Text, of a file that could not be read as an ONNX file.
pub(super) fn of_text(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let printable = |b: &u8| (b' '..0x7f).contains(b) || b"\t\r\n".contains(b);
    if !head.iter().all(printable) {
        return None;
    }
    let begins = |words: &[&str]| {
        let text = String::from_utf8_lossy(head);
        words.iter().any(|word| text.trim_start().starts_with(word))
    };
    Some(if begins(&["<!DOCTYPE", "<html", "<HTML"]) {
        (
            "a page of HTML",
            "it is perhaps what a server answered instead of the file: fetch it anew",
        )
    } else if begins(&["#!", "import ", "from ", "#", "def ", "class ", "\"\"\""]) {
        ("a script", "name the file that it writes: an ONNX file")
    } else {
        (
            "a text that begins with neither `fanwise` nor `{`",
            "name an ONNX file, a graph that `--emit graph` wrote, or `zoo:NAME`",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// What a file with these bytes is said to be.
    fn kind(bytes: &[u8]) -> Option<&'static str> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, bytes).unwrap();
        let head = &bytes[..bytes.len().min(64)];
        super::of_file(&path, head).or_else(|| super::of_text(head)).map(|(what, _)| what)
    }

    #[test]
    fn files_of_others_are_known_by_their_content() {
        let zip = |name: &str| [b"PK\x03\x04", name.as_bytes()].concat();
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let safetensors = [&[40, 0, 0, 0, 0, 0, 0, 0][..], b"{\"a\":{}}"].concat();
        for (bytes, what) in [
            (Vec::new(), "empty"),
            (b"\x89HDF\r\n\x1a\nrest".to_vec(), "HDF5"),
            (zip("model.weights.h5"), "Keras"),
            (zip("archive/data.pkl"), "PyTorch"),
            (zip("archive/constants.pkl archive/data.pkl"), "TorchScript"),
            (zip("x.npy"), ".npz"),
            (zip("readme"), "zip"),
            (b"\x1c\0\0\0TFL3".to_vec(), "Lite"),
            (b"ptrt\0".to_vec(), "TensorRT"),
            (b"\x80\x02\x8a".to_vec(), "pickle"),
            (b"\x1f\x8b\x08".to_vec(), "gzip"),
            (tar, "tar"),
            (safetensors, "safetensors"),
            (b"#!/usr/bin/env python3\nimport torch\n".to_vec(), "script"),
            (b"<!DOCTYPE html><html>".to_vec(), "HTML"),
            (b"hello".to_vec(), "text"),
            (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "Git LFS"),
        ] {
            let found = kind(&bytes);
            assert!(found.is_some_and(|found| found.contains(what)), "{what}: {found:?}");
        }
        // The beginning of an ONNX file, and what may be one.
        assert_eq!(kind(b"\x08\x09\x12\x07pytorch"), None);
        assert_eq!(kind(b"\x3a\x05abcde"), None);
        assert_eq!(kind(b"\x08"), None);
    }

    #[test]
    fn folders_of_others_are_known_by_what_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(super::of_folder(folder.path()), None);
        assert_eq!(super::of_folder(Path::new("")), None);
        std::fs::write(folder.path().join("saved_model.pb"), b"").unwrap();
        assert!(super::of_folder(folder.path()).unwrap().0.contains("SavedModel"));
    }
}
