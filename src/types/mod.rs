//! The vocabulary every other layer speaks: element types, symbolic sizes, tensors, devices,
//! splits, claims.
//!
//! A leaf of the crate: nothing here imports another module of fanwise.

mod claim;
mod deferred;
mod device;
pub(crate) mod dim;
mod dtype;
mod fast_map;
pub(crate) mod hint;
pub(crate) mod invariant;
mod lines;
mod parse_error;
mod quoted;
mod shape;
mod spelling;
mod split;
pub(crate) mod subnormals;
mod target;
mod tensor;
mod tensor_type;

pub use claim::{Claim, Code, Combine, Refusal, Shard};
#[cfg(feature = "zoo")]
pub(crate) use deferred::Elements;
pub use device::{Device, DeviceKind};
pub use dim::Dim;
pub(crate) use dim::MAX_SIZE;
pub(crate) use dim::Symbol;
pub use dtype::DType;
pub(crate) use fast_map::{FastMap, FastSet};
pub use hint::{Diagnostic, Hint, Note, Setting};
pub use parse_error::ParseValueError;
#[cfg(feature = "onnx")]
pub(crate) use quoted::Escaped;
pub(crate) use quoted::{Quoted, QuotedMessage, is_unseen};
pub(crate) use shape::MAX_RANK;
pub use shape::Shape;
pub(crate) use spelling::{alike, closest, is_bare};
pub use split::{ShardRule, Split, SplitError};
pub use target::{KernelClass, Order, Target};
pub use tensor::{Element, Tensor, TensorError};
pub use tensor_type::TensorType;
