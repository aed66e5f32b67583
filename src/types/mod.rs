//! The vocabulary every other layer speaks: element types, symbolic sizes, tensors, devices,
//! splits, claims.
//!
//! A leaf of the crate: nothing here imports another module of fanwise.

mod claim;
mod device;
mod dim;
mod dtype;
pub(crate) mod hint;
pub(crate) mod invariant;
mod quoted;
mod shape;
mod spelling;
mod split;
mod table;
mod target;
mod tensor;
mod tensor_type;

pub use claim::{Claim, Code, Combine, ParseCodeError, Refusal, Shard};
pub use device::{Device, DeviceKind, ParseDeviceError};
pub use dim::{Dim, MAX_SIZE, ParseDimError, Symbol};
pub use dtype::{DType, ParseDTypeError};
pub use hint::{Diagnostic, Hint, Note, Setting};
#[cfg(feature = "onnx")]
pub(crate) use quoted::Escaped;
pub(crate) use quoted::{Quoted, Said, is_unseen};
pub(crate) use shape::MAX_RANK;
pub use shape::Shape;
pub(crate) use spelling::{alike, closest, is_bare};
pub use split::{ParseShardRuleError, ShardRule, Split, SplitError};
pub(crate) use table::{Keys, Table};
pub use target::{KernelClass, Order, Target};
pub use tensor::{Element, Tensor, TensorError};
pub use tensor_type::{ParseTypeError, TensorType};
