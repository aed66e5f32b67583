//! The kind of a file that is not a supported model, by its first bytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::format::head as magic;

/// The bytes of a zip archive's end in which names of its files are looked for.
const DIRECTORY: u64 = 1 << 16;

/// How a Keras model becomes an ONNX file.
const KERAS: &str = "export it as ONNX: `model.export(\"model.onnx\", format=\"onnx\")` in \
    Keras 3, or `python -m tf2onnx.convert`";

/// What an archive of Keras is that the reader of Keras files does not take: one that is damaged.
#[cfg(feature = "keras")]
const KERAS_ARCHIVE: Kind =
    kind("a damaged Keras model (.keras)", "save it again: it may be incomplete");

/// What an archive of Keras is where there is no reader of Keras files.
#[cfg(not(feature = "keras"))]
const KERAS_ARCHIVE: Kind = kind("a Keras model (.keras)", KERAS);

/// How a PyTorch model becomes an ONNX file.
const TORCH: &str =
    "export it as ONNX: `torch.onnx.export(model, inputs, \"model.onnx\", dynamic_axes=…)`";

/// How a TensorFlow model becomes an ONNX file.
const TENSORFLOW: &str = "export it as ONNX with tf2onnx: `python -m tf2onnx.convert`";

/// What can be done with a file of data.
const DATA: &str = "name a model; data and inputs are separate arguments";

/// What can be done with a file of weights that may be damaged.
const WEIGHTS: &str = "name the model that has them; weights are a separate argument";

/// What can be done with an archive.
const UNPACK: &str = "unpack it, and name the model in it";

/// A kind of file or folder that is not a supported model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// What it is, with its article.
    pub(super) what: &'static str,
    /// What to do.
    pub(super) way: &'static str,
    /// Whether it holds weights that a model can be given.
    pub(super) weights: bool,
}

/// A kind without weights that a model can be given.
const fn kind(what: &'static str, way: &'static str) -> Kind {
    Kind { what, way, weights: false }
}

/// The kind of a folder that is a model of another kind.
pub(super) fn of_folder(path: &Path) -> Option<Kind> {
    let has = |name| path.join(name).is_file();
    if has("saved_model.pb") {
        Some(kind("a TensorFlow SavedModel", TENSORFLOW))
    } else {
        has("data.pkl").then(|| kind("an unpacked PyTorch file", TORCH))
    }
}

/// The kind of a file whose first bytes are not those of an ONNX file.
pub(super) fn of_file(path: &Path, head: &[u8]) -> Option<Kind> {
    if head.is_empty() {
        let way = "write it again: it may be incomplete";
        return Some(kind("an empty file", way));
    }
    if head.starts_with(magic::ZIP) || head.starts_with(magic::ZIP_EMPTY) {
        return Some(of_archive(path));
    }
    let at =
        |from: usize, magic: &[u8]| head.get(from..).is_some_and(|rest| rest.starts_with(magic));
    let pickle = at(0, b"\x80\x02") || at(0, b"\x80\x04") || at(0, b"\x80\x05");
    let engine = "name the ONNX file that it was built from";
    let pointer = "a pointer of Git LFS, not the file itself";
    let gguf = "a GGUF file, which holds weights without a graph";
    let known = [
        (at(0, magic::HDF5), kind("an HDF5 file, as Keras writes (.h5)", KERAS)),
        (at(4, b"TFL3"), kind("a TensorFlow Lite model", TENSORFLOW)),
        (at(0, b"ptrt") || at(0, b"ftrt"), kind("a TensorRT engine", engine)),
        (pickle, kind("a Python pickle, as old PyTorch files are", TORCH)),
        (at(0, magic::GZIP), kind("a gzip archive", UNPACK)),
        (at(0, magic::SEVEN_ZIP), kind("a 7z archive", UNPACK)),
        (at(0, magic::XZ), kind("an xz archive", UNPACK)),
        (at(0, magic::ZSTANDARD), kind("a Zstandard archive", UNPACK)),
        (at(0, magic::BZIP2), kind("a bzip2 archive", UNPACK)),
        (at(0, magic::GIT_LFS), kind(pointer, "fetch the file: `git lfs pull`")),
        (at(0, magic::NUMPY), kind("a NumPy array", DATA)),
        (at(0, magic::PNG) || at(0, magic::JPEG), kind("an image", DATA)),
        (at(0, magic::GGUF), kind(gguf, "export the model as ONNX")),
        (
            magic::is_safetensors(head),
            Kind {
                what: "a .safetensors file, which holds weights without a graph",
                way: "name the model",
                weights: true,
            },
        ),
    ];
    let found = known.iter().find(|(is, _)| *is).map(|(_, kind)| *kind);
    found.or_else(|| tar(path))
}

/// The kind of a file by the ending of its name, where its content says nothing, or is not there.
pub(super) fn of_name(path: &Path) -> Option<Kind> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match &*ending {
        "tflite" => kind("no ONNX file; by its name it is a TensorFlow Lite model", TENSORFLOW),
        "pb" => kind("no ONNX file; by its name it may be a TensorFlow graph", TENSORFLOW),
        "pt" | "pth" => kind("no ONNX file; by its name it is a PyTorch file", TORCH),
        "safetensors" => kind("no ONNX file; by its name it has weights without a graph", WEIGHTS),
        _ => return None,
    })
}

/// A zip archive by the names in its directory.
fn of_archive(path: &Path) -> Kind {
    // A directory that cannot be read names nothing: the file is some archive.
    let names = tail(path).unwrap_or_default();
    let has = |name: &[u8]| names.windows(name.len()).any(|own| own == name);
    if has(b"model.weights.h5") || has(b"config.json") && has(b"metadata.json") {
        KERAS_ARCHIVE
    } else if has(b"constants.pkl") {
        kind("a TorchScript file", TORCH)
    } else if has(b"data.pkl") {
        kind("a PyTorch file (.pt)", TORCH)
    } else if has(b".npy") {
        Kind { weights: true, ..kind("a .npz archive of arrays", DATA) }
    } else {
        kind("a zip archive", UNPACK)
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
fn tar(path: &Path) -> Option<Kind> {
    let mut magic = [0; 5];
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(257)).ok()?;
    file.read_exact(&mut magic).ok()?;
    (&magic == b"ustar").then(|| kind("a tar archive", UNPACK))
}

/// The kind of a text that could not be read as an ONNX file.
pub(super) fn of_text(head: &[u8]) -> Option<Kind> {
    if !magic::is_text(head) {
        return None;
    }
    let begins = |words: &[&str]| {
        let text = String::from_utf8_lossy(head);
        words.iter().any(|word| text.trim_start().starts_with(word))
    };
    Some(if begins(&["<!DOCTYPE", "<html", "<HTML"]) {
        kind("an HTML page", "download the file again: the server may have returned a web page")
    } else if begins(&["#!", "import ", "from ", "#", "def ", "class ", "\"\"\""]) {
        kind("a script", "name the ONNX file that it writes")
    } else {
        let what = "a text that begins with neither `fanwise` nor `{`";
        kind(what, "name an ONNX file, a graph that fanwise wrote, or `zoo:NAME`")
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
        super::of_file(&path, head).or_else(|| super::of_text(head)).map(|kind| kind.what)
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
    fn what_cannot_be_read_is_known_by_its_name() {
        let way = |name: &str| super::of_name(Path::new(name)).map(|kind| kind.way);
        assert_eq!(way("m.PTH"), Some(super::TORCH));
        assert_eq!(way("a/m.tflite"), Some(super::TENSORFLOW));
        assert_eq!((way("m.onnx"), way("pt")), (None, None));
    }

    #[test]
    fn folders_of_others_are_known_by_what_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(super::of_folder(folder.path()), None);
        assert_eq!(super::of_folder(Path::new("")), None);
        std::fs::write(folder.path().join("saved_model.pb"), b"").unwrap();
        assert!(super::of_folder(folder.path()).unwrap().what.contains("SavedModel"));
    }
}
