//! Elements of tensors that lie in other files of the model's folder.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;

use super::super::mmap::Map;
use super::super::{FileError, Quoted};
use super::proto::StringStringEntryProto;
use super::store::Store;

/// The folder of a model; its files hold elements of tensors.
pub(super) struct Folder {
    model: Store,
    /// The folder without links; none where the model was not read from a file.
    path: Option<PathBuf>,
    /// The files that were read, by their path without links.
    files: BTreeMap<PathBuf, Map>,
}

impl Folder {
    /// The folder of the model at `path`.
    pub(super) fn of(path: &Path, model: Store) -> Self {
        let parent = path.parent();
        let parent = parent.map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
        let path = parent.and_then(|p| p.canonicalize().ok());
        Self { path, ..Self::none(model) }
    }

    /// No folder: no tensor may lie elsewhere than in the model.
    pub(super) fn none(model: Store) -> Self {
        Self { model, path: None, files: BTreeMap::new() }
    }

    /// The structure of the model's file.
    pub(super) fn structure(&self) -> Bytes {
        self.model.structure.clone()
    }

    /// All bytes of the model's file.
    pub(super) fn whole(&self) -> Bytes {
        self.model.whole()
    }

    /// The elements that lie in the model's file, where they do.
    pub(super) fn elements(&self, raw: &Bytes) -> Bytes {
        self.model.elements(raw)
    }

    /// Fails if a file was changed while it was read.
    pub(super) fn check(&self) -> Result<(), FileError> {
        self.model.check()?;
        self.files.iter().try_for_each(|(path, file)| file.check(path))
    }

    /// The range that `entries` name: it lies inside a file inside the folder and has `bytes`
    /// bytes.
    pub(super) fn find(
        &mut self,
        entries: &[StringStringEntryProto],
        bytes: u64,
    ) -> Result<Bytes, String> {
        for key in ["location", "offset", "length"] {
            // Which of them a reader takes is not specified.
            if entries.iter().filter(|e| e.key.as_deref() == Some(key)).count() > 1 {
                return Err(format!("the {key} of its elements is given twice"));
            }
        }
        let entry = |key: &str| {
            let found = entries.iter().find(|e| e.key.as_deref() == Some(key));
            found.map(StringStringEntryProto::value)
        };
        let number = |key: &str| match entry(key) {
            Some(text) => {
                text.parse::<u64>().map(Some).map_err(|_| format!("the {key} is {}", Quoted(text)))
            }
            None => Ok(None),
        };
        let location = entry("location").ok_or("the external file of its elements has no name")?;
        // Without an offset they begin the file.
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        let shown = Quoted(location);
        if let Some(length) = length.filter(|length| *length != bytes) {
            return Err(format!("it takes {bytes} bytes, but {length} are given in {shown}"));
        }
        let path = self.resolve(location)?;
        if !self.files.contains_key(&path) {
            let map = Map::open(&path, |_| Ok::<(), FileError>(())).map_err(|e| {
                if let FileError::Content { reason, .. } = e {
                    return format!("{shown}: {reason}");
                }
                e.to_string()
            })?;
            self.files.insert(path.clone(), map);
        }
        let data = self.files.get(&path).map(Map::bytes).ok_or("its file is closed")?;
        let beyond = || {
            let size = data.len();
            format!("bytes {offset} to {offset}+{bytes} are beyond the {size} bytes of {shown}")
        };
        // Both numbers are the file's: the sum may overflow.
        let end = offset.checked_add(bytes).filter(|end| *end <= data.len() as u64);
        let (Ok(from), Some(Ok(to))) = (usize::try_from(offset), end.map(usize::try_from)) else {
            return Err(beyond());
        };
        Ok(data.slice(from..to))
    }

    /// The file that `location` names, which lies inside the folder, also after links are followed.
    fn resolve(&self, location: &str) -> Result<PathBuf, String> {
        let shown = Quoted(location);
        let Some(folder) = &self.path else {
            return Err(format!("its elements lie in {shown}, and the model has no folder"));
        };
        let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        let relative = Path::new(location);
        if location.is_empty() || !relative.components().all(inside) {
            return Err(format!("{shown} is not a path inside the model's folder"));
        }
        let path = folder.join(relative);
        // The components were checked as they are written; links in them are only known now.
        let path = path.canonicalize().map_err(|e| format!("cannot read {shown}: {e}"))?;
        if !path.starts_with(folder) {
            return Err(format!("{shown} is a link to a file outside the model's folder"));
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::StringStringEntryProto;
    use super::super::store::Store;
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
        let none = || Store::of(Vec::new().into()).unwrap();
        let mut files = Folder::of(&folder.join("m.onnx"), none());
        let good = entries(&[("location", "sub/w.bin"), ("offset", "3"), ("length", "4")]);
        assert_eq!(files.find(&good, 4).unwrap(), &b"3456"[..]);
        for (pairs, reason) in [
            (&[("location", "sub/w.bin"), ("offset", "7")][..], "beyond the 10 bytes"),
            (&[("location", "sub/w.bin"), ("offset", "18446744073709551615")], "beyond"),
            (&[("location", "sub/w.bin"), ("offset", "-1")], "the offset is `-1`"),
            (&[("location", "sub/w.bin"), ("length", "5")], "5 are given"),
            (&[("location", "../secret")], "not a path inside"),
            (&[("location", "/etc/passwd")], "not a path inside"),
            (&[("location", "")], "not a path inside"),
            (&[("location", "link")], "outside the model's folder"),
            (&[("location", "sub")], "not a regular file"),
            (&[("location", "none")], "cannot read"),
            (&[("offset", "0")], "has no name"),
        ] {
            let given = entries(pairs);
            let error = files.find(&given, 4).err().unwrap_or_default();
            assert!(error.contains(reason), "{pairs:?}: {error}");
        }
        let error = Folder::none(none()).find(&good, 4).err().unwrap_or_default();
        assert!(error.contains("has no folder"), "{error}");
    }
}
