//! ONNX's test data: the folders `test_data_set_0`, … beside a model, in which `input_0.pb`, … and
//! `output_0.pb`, … each hold one tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::mmap::Map;
use super::super::{Budget, FileError, Quoted};
use super::external::Folder;
use super::file::{File, lone_tensor};
use super::store::Store;
use super::{ImportError, tensor};
use crate::types::Tensor;

/// The files of one kind that a data set may have: as many as a node has operands.
const MAX_FILES: usize = 1 << 16;

/// What a file of a data set holds.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Input,
    Output,
}

impl Kind {
    /// The word that the names of files begin with.
    const fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// The data sets of a folder, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct DataSets(Vec<PathBuf>);

impl DataSets {
    /// The data sets of `folder`, which may be one itself.
    pub(crate) fn of(folder: &Path) -> Result<Self, FileError> {
        if number(folder, "test_data_set_", "").is_some() {
            return Ok(Self(vec![folder.to_owned()]));
        }
        let found = numbered(folder, "test_data_set_", "")?.into_iter().map(|(_, path)| path);
        Ok(Self(found.filter(|path| path.is_dir()).collect()))
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[PathBuf] {
        &self.0
    }

    /// The only data set of `folder`.
    pub(crate) fn only(folder: &Path) -> Result<PathBuf, FileError> {
        let Self(found) = Self::of(folder)?;
        if let [one] = &found[..] {
            return Ok(one.clone());
        }
        // Folders that were found have names.
        let names = found.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy());
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let reason = if names.is_empty() {
            "the folder has no data set `test_data_set_0`; name a folder that has one, with a \
             tensor `input_0.pb`"
                .to_owned()
        } else {
            format!("the folder has several data sets; name one of {}", names.join(", "))
        };
        Err(FileError::content(folder, reason))
    }

    /// The tensors of a data set by the position of what they are for: the inputs or outputs of
    /// these names. A file may leave its tensor's name out, or name what no other has.
    pub(crate) fn read(
        set: &Path,
        kind: Kind,
        names: &[String],
        budget: &mut Budget,
    ) -> Result<Vec<Tensor>, ImportError> {
        let files = numbered(set, &format!("{}_", kind.word()), ".pb")?;
        let missing = (0..).zip(&files).find(|(expected, (found, _))| expected != found);
        let count = missing.map_or(files.len(), |(expected, _)| expected);
        let word = kind.word();
        let fault = if count < files.len().max(names.len()) {
            Some(format!("`{word}_{count}.pb` is missing"))
        } else {
            let most = names.len();
            (files.len() > most)
                .then(|| format!("more {word}s than the model has, which is {most}"))
        };
        if let Some(reason) = fault {
            return Err(FileError::content(set, reason).into());
        }
        let others: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let mut tensors = Vec::new();
        for ((_, path), expected) in files.iter().zip(names) {
            let (name, tensor) = one(path, budget)?;
            if name != *expected && others.contains(&*name) {
                let (own, name) = (Quoted(expected), Quoted(&name));
                let reason = format!("by its position it is the {word} {own}, by its name {name}");
                return Err(FileError::content(path, reason).into());
            }
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    /// The tensors of a data set for the inputs of these names.
    pub(crate) fn inputs(
        set: &Path,
        names: &[String],
        budget: &mut Budget,
    ) -> Result<BTreeMap<String, Tensor>, ImportError> {
        let tensors = Self::read(set, Kind::Input, names, budget)?;
        Ok(names.iter().cloned().zip(tensors).collect())
    }
}

/// The number of the file or folder `PREFIX<number>SUFFIX`.
fn number(path: &Path, prefix: &str, suffix: &str) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    // `input_01.pb` is none: another file may have its number.
    let plain = digits == "0" || !digits.starts_with('0');
    let all = plain && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| all)
}

/// What is named `PREFIX<number>SUFFIX` in a folder, by its number.
fn numbered(folder: &Path, prefix: &str, suffix: &str) -> Result<Vec<(usize, PathBuf)>, FileError> {
    let read = |error| FileError::read(folder, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        found.extend(number(&path, prefix, suffix).map(|number| (number, path)));
        if found.len() > MAX_FILES {
            let reason = format!("more than {MAX_FILES} files `{prefix}0{suffix}`, …");
            return Err(FileError::content(folder, reason));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The tensor that is all of a file, with its name.
fn one(path: &Path, budget: &mut Budget) -> Result<(String, Tensor), ImportError> {
    let map = Map::open(path, |size| {
        let mut whole = *budget;
        whole.charge(&path.display().to_string(), size).map_err(ImportError::from)
    })?;
    // Another program may write to the file.
    let data = Bytes::from(map.bytes().to_vec());
    map.check(path)?;
    read_tensor(data, path, budget)
}

/// The tensor that is all of `data`, the file at `path`, with its name.
///
/// # Errors
/// If the bytes are no tensor, or it does not fit in the budget.
pub fn read_tensor(
    data: Bytes,
    path: &Path,
    budget: &mut Budget,
) -> Result<(String, Tensor), ImportError> {
    let proto = lone_tensor(&data).map_err(|error| of_file(path, error))?;
    let mut folder = Folder::of(path, Store::of(data)?);
    // The folder's name is the number of the data set.
    let named: Vec<_> = path.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
    let name = named.into_iter().rev().collect::<Vec<_>>().join("/");
    let tensor = tensor::read(&proto, &name, &mut folder, budget)?;
    folder.check()?;
    Ok((proto.name().to_owned(), tensor))
}

/// The error for bytes that are no tensor.
fn of_file(path: &Path, error: ImportError) -> ImportError {
    if let ImportError::Malformed { at, reason, .. } = error {
        let reason = format!("not a tensor: byte {at}: {reason}; copy or download it again");
        return FileError::content(path, reason).into();
    }
    error
}

/// The names of the inputs of the model at `path`: those without an initializer.
///
/// # Errors
/// If the file is no model.
pub(crate) fn input_names(path: &Path, max_memory: u64) -> Result<Vec<String>, ImportError> {
    let store = Store::open(path, &Budget::new(max_memory))?;
    let file = File::new(Folder::of(path, store).structure())?;
    let defaults = file.graph.initializers.iter().map(|span| file.tensor_name(*span));
    let defaults: BTreeSet<&str> = defaults.collect::<Result<_, _>>()?;
    let mut names = Vec::new();
    for span in &file.graph.inputs {
        let name = file.value_name(*span)?;
        if !defaults.contains(name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use prost::Message;

    use super::{DataSets, Kind};
    use crate::format::Budget;
    use crate::format::onnx::proto::TensorProto;

    /// The bytes of a tensor of two elements.
    fn tensor(name: &str) -> Vec<u8> {
        let raw: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let name = Some(name.to_owned()).filter(|name| !name.is_empty());
        TensorProto {
            name,
            dims: vec![2],
            data_type: Some(1),
            raw_data: Some(raw.into()),
            ..TensorProto::default()
        }
        .encode_to_vec()
    }

    /// What reading inputs `a` and `b` from these files says.
    fn read(files: &[(&str, Vec<u8>)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let names = ["a".to_owned(), "b".to_owned()];
        match DataSets::read(folder.path(), Kind::Input, &names, &mut Budget::new(1 << 20)) {
            Ok(found) => format!("{} tensors", found.len()),
            Err(error) => {
                error.to_string().replace(&*folder.path().to_string_lossy(), "").replace('`', "")
            }
        }
    }

    #[test]
    fn tensors_are_those_of_their_positions_and_names_agree() {
        let two = |a: &str, b: &str| {
            read(&[("input_0.pb", tensor(a)), ("input_1.pb", tensor(b)), ("output_0.pb", vec![9])])
        };
        for (a, b) in [("a", "b"), ("", ""), ("gpu_0/data_0", "other"), ("a", "")] {
            assert_eq!(two(a, b), "2 tensors", "{a} {b}");
        }
        assert!(two("b", "a").ends_with("it is the input a, by its name b"), "{}", two("b", "a"));
    }

    #[test]
    fn what_is_missing_too_much_or_damaged_is_an_error() {
        let good = || tensor("");
        let says = |files: &[(&str, Vec<u8>)], part: &str| {
            let found = read(files);
            assert!(found.contains(part), "{part}: {found}");
        };
        says(&[("input_0.pb", good())], "input_1.pb is missing");
        says(&[("input_0.pb", good()), ("input_01.pb", good())], "input_1.pb is missing");
        says(&[("input_0.pb", good()), ("input_2.pb", good())], "input_1.pb is missing");
        let three = ["input_0.pb", "input_1.pb", "input_2.pb"].map(|name| (name, good()));
        says(&three, "more inputs than the model has, which is 2");
        let whole = tensor("a");
        for end in 1..whole.len() {
            let cut = read(&[("input_0.pb", whole[..end].to_vec()), ("input_1.pb", good())]);
            assert!(!cut.contains("2 tensors"), "{end}: {cut}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            // Either result is right; a panic is not.
            drop(read(&[("input_0.pb", bytes), ("input_1.pb", good())]));
        }
        // 2^60 elements that are not there.
        let large = TensorProto {
            dims: vec![1 << 30, 1 << 30],
            data_type: Some(1),
            ..TensorProto::default()
        };
        says(&[("input_0.pb", large.encode_to_vec()), ("input_1.pb", good())], "but 0 are given");
    }

    #[test]
    fn a_folder_is_a_data_set_or_has_some() {
        let folder = tempfile::tempdir().unwrap();
        let only = |path: &Path| DataSets::only(path).map_err(|error| error.to_string());
        assert!(only(folder.path()).unwrap_err().contains("no data set"));
        for name in ["test_data_set_10", "test_data_set_2", "test_data_set_x"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let several = only(folder.path()).unwrap_err();
        assert!(several.ends_with("`test_data_set_2`, `test_data_set_10`"), "{several}");
        let ten = folder.path().join("test_data_set_10");
        assert_eq!(only(&ten).unwrap(), ten);
    }
}
