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
use std::path::Path;

use bytes::Bytes;

use super::Budget;
use crate::ir::Model;
use crate::types::Tensor;
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
    import_for(path, options, &BTreeMap::new())
}

/// Reads the model at `path` for the values `given` of some inputs, which a run has to give again.
///
/// # Errors
/// As [`import`].
pub(crate) fn import_for(
    path: &Path,
    options: &ImportOptions,
    given: &BTreeMap<String, Tensor>,
) -> Result<Model, ImportError> {
    let budget = Budget::new(options.max_memory);
    let folder = external::Folder::of(path, store::Store::open(path, &budget)?);
    import::run(&path.display().to_string(), folder, budget, options, given)
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
    import::run(source, folder, Budget::new(options.max_memory), options, &BTreeMap::new())
}
