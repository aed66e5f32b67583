//! ONNX models: opset 6 to 27, inference.
//!
//! The file is read part by part; its functions are expanded, its nodes put in the order of their
//! operands, and each becomes the operators that mean the same. Operands that say sizes, axes or
//! positions must be known (constants, or computed from sizes); they become attributes. So must
//! what decides a branch or the end of a loop: the branch replaces its node, and the trips of the
//! loop do.
//!
//! The batch is the size of the inputs that the file leaves open (a name, or nothing). Sizes of the
//! same name are one, and so are others if the graph equates them; where that leaves several, it
//! must be said which is the batch, and what the others are. A constant size is no batch, unless
//! [`ImportOptions::free_batch`] says that the file was written at one batch size.

mod bodies;
mod calls;
mod control;
pub(crate) mod data;
mod declared;
mod depends;
mod error;
mod export;
mod external;
mod file;
mod flat;
mod flatten;
mod follow;
mod foreign;
mod free;
mod import;
mod inputs;
mod known;
mod locations;
mod node;
pub(crate) mod ops;
mod options;
mod order;
mod registry;
mod save;
mod state;
mod store;
mod tensor;
mod ways;
pub(crate) mod weights;
mod wire;
mod writer;

/// The messages of an ONNX file, generated from `proto/onnx.proto` of ONNX 1.22 (Apache License
/// 2.0).
///
/// Packed numbers of a tensor (`float_data`, …) stay the bytes of the file, a list of packed runs
/// each.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
mod proto;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::Budget;
use crate::ir::Model;
use crate::types::Tensor;
pub(crate) use data::{DataSets, Kind, input_names};
pub use error::{BatchCandidate, ImportError, NodeError, UnboundDim, UnsupportedOp};
pub use export::{ExportError, export};
pub(crate) use locations::locate;
pub use options::ImportOptions;
pub(crate) use save::initializer_names;
pub(crate) use save::with_initializers;
pub(crate) use weights::initializers;

/// Reads the model at `path`. Its parameters name `path` as their source. Elements of tensors stay
/// in the files where they lie, mapped into memory: these must not be written to while the model
/// lives, only replaced.
///
/// # Errors
/// If the file is no model, or one that cannot be imported as the options say.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Model, ImportError> {
    Reader::open(path, options.max_memory)?.import(options)
}

/// A model file that is read once, and imported for several numbers of its open sizes. What was
/// read stays in memory: a file that takes the place of this one changes nothing.
pub(crate) struct Reader {
    source: String,
    file: file::File,
    tensors: Mutex<state::Tensors>,
}

impl Reader {
    /// Reads the structure of the file at `path`.
    ///
    /// # Errors
    /// If the file is no model.
    pub(crate) fn open(path: &Path, max_memory: u64) -> Result<Self, ImportError> {
        let read = || {
            let budget = Budget::new(max_memory);
            let folder = external::Folder::of(path, store::Store::open(path, &budget)?);
            Self::of(path.display().to_string(), folder, budget)
        };
        read().map_err(|error: ImportError| error.of_path(path))
    }

    fn of(source: String, folder: external::Folder, budget: Budget) -> Result<Self, ImportError> {
        let file = file::File::new(folder.structure())?;
        let tensors = Mutex::new(state::Tensors::new(folder, budget));
        Ok(Self { source, file, tensors })
    }

    /// The model. The memory that it may take is that for which the file was opened.
    ///
    /// # Errors
    /// As [`import`].
    pub(crate) fn import(&self, options: &ImportOptions) -> Result<Model, ImportError> {
        self.import_for(options, &BTreeMap::new())
    }

    /// The model for the values `given` of some inputs, which a run has to give again.
    ///
    /// # Errors
    /// As [`import`].
    pub(crate) fn import_for(
        &self,
        options: &ImportOptions,
        given: &BTreeMap<String, Tensor>,
    ) -> Result<Model, ImportError> {
        // What a panic leaves are tensors that were read to their ends.
        let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        import::run(&self.source, &self.file, &mut tensors, options, given)
            .map_err(|error| error.of_path(Path::new(&self.source)))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Reads the model that `data` holds; its tensors lie in it. Its parameters name `source` as their
/// source.
///
/// # Errors
/// As [`import`].
pub fn import_bytes(
    data: Bytes,
    source: &str,
    options: &ImportOptions,
) -> Result<Model, ImportError> {
    let folder = external::Folder::none(store::Store::of(data)?);
    Reader::of(source.to_owned(), folder, Budget::new(options.max_memory))?.import(options)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use prost::Message;

    use super::proto::type_proto::{Tensor, Value};
    use super::proto::{
        GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
        TypeProto, ValueInfoProto, tensor_shape_proto,
    };
    use super::{ImportOptions, Reader};
    use crate::types::Diagnostic as _;

    /// `y` is `x: f32[N,L]` and `added: f32[size]`; `z` is a large weight.
    fn of(size: i64) -> ModelProto {
        let named = |name: &str| Some(name.to_owned());
        let node = |op: &str, input: &[&str], output: &str| NodeProto {
            op_type: named(op),
            input: input.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        let tensor = |name: &str, size: i64| TensorProto {
            name: named(name),
            dims: vec![size],
            data_type: Some(1),
            raw_data: Some(vec![0; usize::try_from(4 * size).unwrap()].into()),
            ..TensorProto::default()
        };
        let dim = |name: &str| tensor_shape_proto::Dimension {
            value: Some(tensor_shape_proto::dimension::Value::DimParam(name.to_owned())),
            denotation: None,
        };
        let shape = Some(TensorShapeProto { dim: vec![dim("N"), dim("L")] });
        let ty = Value::TensorType(Tensor { elem_type: Some(1), shape });
        let value = |name: &str| ValueInfoProto { name: named(name), ..Default::default() };
        let ty = Some(TypeProto { value: Some(ty), denotation: None });
        let graph = GraphProto {
            node: vec![node("Relu", &["large"], "z"), node("Add", &["x", "added"], "y")],
            initializer: vec![tensor("large", 20_000), tensor("added", size)],
            input: vec![ValueInfoProto { r#type: ty, ..value("x") }],
            output: vec![value("y"), value("z")],
            ..GraphProto::default()
        };
        let opset = OperatorSetIdProto { domain: None, version: Some(18) };
        let (graph, opset_import) = (Some(graph), vec![opset]);
        ModelProto { ir_version: Some(9), graph, opset_import, ..ModelProto::default() }
    }

    #[test]
    fn a_file_that_is_cut_off_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let whole = of(100).encode_to_vec();
        for cut in [10, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = Reader::open(&path, u64::MAX).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("`{}`: not an ONNX", path.display())), "{text}");
            assert!(text.ends_with("the file ends before the field"), "{text}");
            assert_eq!(error.hints().len(), 1);
        }
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_refused_whatever_failed_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let opened = |size: i64| {
            fs::write(&path, of(size).encode_to_vec()).unwrap();
            Reader::open(&path, u64::MAX).unwrap()
        };
        let change = || {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() + Duration::from_secs(100)).unwrap();
        };
        let bound = |steps: i64| ImportOptions {
            dims: [("L".to_owned(), steps)].into(),
            ..ImportOptions::default()
        };
        let reader = opened(100);
        // All tensors are read before the types disagree.
        assert!(reader.import(&bound(7)).unwrap_err().to_string().contains("100"));
        change();
        let error = reader.import(&bound(100)).unwrap_err().to_string();
        assert!(error.ends_with("it was changed while it was read"), "{error}");
        let symbolic = ImportOptions {
            symbols: BTreeMap::from([("L".to_owned(), 100)]),
            batch_axis: BTreeMap::from([("x".to_owned(), 0)]),
            ..ImportOptions::default()
        };
        let reader = opened(1);
        change();
        let error = reader.import(&symbolic).unwrap_err().to_string();
        assert!(error.ends_with("it was changed while it was read"), "{error}");
        // What was read stays.
        let reader = opened(1);
        reader.import(&symbolic).unwrap();
        change();
        reader.import(&bound(7)).unwrap();
    }
}
