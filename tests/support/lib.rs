//! What the unit tests, the tests of the whole crate, the cases and the device tests share.
//!
//! It does not use fanwise, so that the unit tests do not wait for a build of the library.

pub mod damage;
pub mod data_set;
pub mod deep;
pub mod exported;
pub mod snap;
pub mod turn;

use std::path::PathBuf;

/// A path of the repository, given from its root.
pub fn root(path: &str) -> PathBuf {
    // Two folders up from this package.
    [env!("CARGO_MANIFEST_DIR"), "..", "..", path].iter().collect()
}

/// The messages of ONNX files, as the library reads them.
#[path = "../../src/format/onnx/proto.rs"]
#[allow(clippy::pedantic, missing_docs, reason = "generated")]
pub mod proto;
