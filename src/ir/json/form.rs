//! The fields of the machine form.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::text::MAX_LIST;
use super::attr::Attrs;
use super::value::{Size, Text, at_most, sizes};
use crate::types::{DType, Device, MAX_RANK, ShardRule, TensorType};

/// The name of the format.
pub(super) const FORMAT: &str = "fanwise-graph";
/// The version that is written and read.
pub(super) const VERSION: u32 = 1;

/// The head, which is read first: another version may differ in the rest.
#[derive(Deserialize)]
pub(super) struct HeadForm<'a> {
    #[serde(borrow)]
    pub(super) format: Option<Cow<'a, str>>,
    pub(super) version: Option<u32>,
}

/// The fields of a graph. Its lists are read one element after the other, so that none is in memory
/// as a whole.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphForm<'a> {
    #[serde(rename = "format", borrow)]
    pub(super) _format: Cow<'a, str>,
    #[serde(rename = "version")]
    pub(super) _version: u32,
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(default)]
    pub(super) split: Option<SplitForm>,
    #[serde(borrow)]
    pub(super) params: &'a RawValue,
    #[serde(borrow)]
    pub(super) inputs: &'a RawValue,
    #[serde(borrow)]
    pub(super) nodes: &'a RawValue,
    /// Absent where no parameter has one.
    #[serde(borrow, default)]
    pub(super) updates: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) outputs: &'a RawValue,
}

/// The split: one offset more than there are devices, the first `0`, the last `N`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SplitForm {
    #[serde(deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) devices: Vec<Text<Device>>,
    pub(super) rule: Text<ShardRule>,
    #[serde(deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) offsets: Vec<Size>,
}

/// A parameter: its type, and where its weights are.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParamForm<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    pub(super) dtype: Text<DType>,
    #[serde(deserialize_with = "at_most::<MAX_RANK, _, _>")]
    pub(super) shape: Vec<Size>,
    #[serde(borrow)]
    pub(super) file: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) key: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) blake3: Cow<'a, str>,
    /// The device that holds it; absent where every device of the split does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<Text<Device>>,
}

/// A name and a type.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValueForm<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    pub(super) dtype: Text<DType>,
    #[serde(deserialize_with = "at_most::<MAX_RANK, _, _>")]
    pub(super) shape: Vec<Size>,
}

/// A node: operator, operands by name, attributes, and its place.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeForm<'a> {
    #[serde(borrow)]
    pub(super) op: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) operands: Vec<OperandForm<'a>>,
    #[serde(default, skip_serializing_if = "Attrs::is_empty")]
    pub(super) attrs: Attrs,
    #[serde(borrow, deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) results: Vec<ValueForm<'a>>,
    pub(super) device: Text<Device>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replica: Option<u32>,
    /// The name in the source, where it is not that of the first result.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<Cow<'a, str>>,
}

/// An output: the name that callers use, and the value that it shows.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputForm<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) value: OperandForm<'a>,
}

/// The new value of a parameter after a run, on each device that holds it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateForm<'a> {
    #[serde(borrow)]
    pub(super) param: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) values: Vec<OperandForm<'a>>,
}

/// A value: `{"value": NAME}`, or `{"param": NAME, "device": DEVICE}`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperandForm<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) param: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<Text<Device>>,
}

impl<'a> ValueForm<'a> {
    pub(super) fn new(name: &'a str, ty: &TensorType) -> Self {
        Self { name: name.into(), dtype: Text(ty.dtype), shape: sizes(&ty.shape) }
    }
}

pub(super) fn tensor_type(dtype: DType, shape: Vec<Size>) -> TensorType {
    TensorType { dtype, shape: shape.into_iter().map(|size| size.0).collect() }
}
