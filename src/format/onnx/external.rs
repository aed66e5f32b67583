//! Elements of tensors that lie in other files of the model's folder.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use super::super::error::open;
use super::proto::StringStringEntryProto;

/// The folder of a model; its files hold elements of tensors.
pub(super) struct Folder {
    /// The folder without links; none where the model was not read from a file.
    path: Option<PathBuf>,
    /// The file that was read last.
    last: Option<(PathBuf, File, u64)>,
}

/// A range of bytes of a file.
pub(super) struct Part<'a> {
    file: &'a File,
    offset: u64,
    location: &'a str,
}

impl Folder {
    /// The folder of the model at `path`; without it no tensor may lie elsewhere.
    pub(super) fn of(path: Option<&Path>) -> Self {
        let parent = path.and_then(Path::parent);
        let parent = parent.map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
        Self { path: parent.and_then(|p| p.canonicalize().ok()), last: None }
    }

    /// The range that `entries` name: it lies inside a file inside the folder and has `bytes` bytes.
    pub(super) fn find<'a>(
        &'a mut self,
        entries: &'a [StringStringEntryProto],
        bytes: u64,
    ) -> Result<Part<'a>, String> {
        let entry = |key: &str| {
            let found = entries.iter().find(|e| e.key.as_deref() == Some(key));
            found.map(|e| e.value.as_deref().unwrap_or_default())
        };
        let number = |key: &str| match entry(key) {
            Some(text) => {
                text.parse::<u64>().map(Some).map_err(|_| format!("the {key} is `{text}`"))
            }
            None => Ok(None),
        };
        let location =
            entry("location").ok_or("its elements lie in another file without a name")?;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        if length.is_some_and(|l| l != bytes) {
            let length = length.unwrap_or(0);
            return Err(format!("it takes {bytes} bytes, but {length} are given in `{location}`"));
        }
        let path = self.resolve(location)?;
        if self.last.as_ref().is_none_or(|last| last.0 != path) {
            let (file, size) = open(&path).map_err(|e| e.to_string())?;
            self.last = Some((path, file, size));
        }
        let (_, file, size) = self.last.as_ref().ok_or("its file is closed")?;
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > *size) {
            return Err(format!(
                "bytes {offset} to {offset}+{bytes} are beyond the {size} bytes of `{location}`"
            ));
        }
        Ok(Part { file, offset, location })
    }

    /// The file that `location` names, which lies inside the folder, also after links are followed.
    fn resolve(&self, location: &str) -> Result<PathBuf, String> {
        let Some(folder) = &self.path else {
            return Err(format!("its elements lie in `{location}`, and the model has no folder"));
        };
        let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        let relative = Path::new(location);
        if location.is_empty() || !relative.components().all(inside) {
            return Err(format!("`{location}` is no path inside the model's folder"));
        }
        let path = folder.join(relative);
        let path = path.canonicalize().map_err(|e| format!("cannot read `{location}`: {e}"))?;
        if !path.starts_with(folder) {
            return Err(format!("`{location}` is a link to a file outside the model's folder"));
        }
        Ok(path)
    }
}

impl Part<'_> {
    /// Reads the range from its start.
    pub(super) fn read(mut self, into: &mut [u8]) -> Result<(), String> {
        let seek = self.file.seek(SeekFrom::Start(self.offset));
        seek.and_then(|_| self.file.read_exact(into))
            .map_err(|e| format!("cannot read `{}`: {e}", self.location))
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::StringStringEntryProto;
    use super::Folder;

    fn entries(pairs: &[(&str, &str)]) -> Vec<StringStringEntryProto> {
        let entry = |(k, v): &(&str, &str)| StringStringEntryProto {
            key: Some((*k).to_owned()),
            value: Some((*v).to_owned()),
        };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn ranges_inside_the_folder_are_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("model");
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        std::fs::write(folder.join("sub/w.bin"), b"0123456789").unwrap();
        std::fs::write(root.path().join("secret"), b"secret").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
        let mut files = Folder::of(Some(&folder.join("m.onnx")));
        let good = entries(&[("location", "sub/w.bin"), ("offset", "3"), ("length", "4")]);
        let mut bytes = [0; 4];
        files.find(&good, 4).unwrap().read(&mut bytes).unwrap();
        assert_eq!(&bytes, b"3456");
        for (pairs, reason) in [
            (&[("location", "sub/w.bin"), ("offset", "7")][..], "beyond the 10 bytes"),
            (&[("location", "sub/w.bin"), ("offset", "18446744073709551615")], "beyond"),
            (&[("location", "sub/w.bin"), ("offset", "-1")], "the offset is `-1`"),
            (&[("location", "sub/w.bin"), ("length", "5")], "5 are given"),
            (&[("location", "../secret")], "no path inside"),
            (&[("location", "/etc/passwd")], "no path inside"),
            (&[("location", "")], "no path inside"),
            (&[("location", "link")], "outside the model's folder"),
            (&[("location", "sub")], "not a regular file"),
            (&[("location", "none")], "cannot read"),
            (&[("offset", "0")], "without a name"),
        ] {
            let given = entries(pairs);
            let error = files.find(&given, 4).err().unwrap_or_default();
            assert!(error.contains(reason), "{pairs:?}: {error}");
        }
        let error = Folder::of(None).find(&good, 4).err().unwrap_or_default();
        assert!(error.contains("has no folder"), "{error}");
    }
}
