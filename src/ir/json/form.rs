//! The fields of the machine form.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::text::MAX_LIST;
use super::attr::Attrs;
use crate::types::{DType, Device, Dim, MAX_RANK, ShardRule, TensorType};

/// The name of the format.
pub(super) const FORMAT: &str = "fanwise-graph";
/// The version that is written and read.
pub(super) const VERSION: u32 = 1;

/// The longest formula that is read: a bound on the work that a hostile text can ask for.
const MAX_FORMULA: usize = 2048;

/// A list of at most `MAX` elements.
pub(super) fn at_most<'de, const MAX: usize, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Read<const MAX: usize, T>(PhantomData<T>);
    impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for Read<MAX, T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = list.next_element()? {
                if items.len() == MAX {
                    let message = format_args!("the list has more than {MAX} elements");
                    return Err(de::Error::custom(message));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    d.deserialize_seq(Read::<MAX, T>(PhantomData))
}

/// What is read first: the rest of a text of another version may look different.
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SplitForm {
    #[serde(deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) devices: Vec<Text<Device>>,
    pub(super) rule: Text<ShardRule>,
    #[serde(deserialize_with = "at_most::<MAX_LIST, _, _>")]
    pub(super) offsets: Vec<Size>,
}

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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputForm<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) value: OperandForm<'a>,
}

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

pub(super) fn sizes(dims: &[Dim]) -> Vec<Size> {
    dims.iter().cloned().map(Size).collect()
}

pub(super) fn tensor_type(dtype: DType, shape: Vec<Size>) -> TensorType {
    TensorType { dtype, shape: shape.into_iter().map(|size| size.0).collect() }
}

/// What is written as it is displayed.
pub(super) struct Text<T>(pub(super) T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(d)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

/// A size: a number, or a formula of `N`.
pub(super) struct Size(pub(super) Dim);

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.as_const() {
            Some(c) => s.serialize_i64(c),
            None => s.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer, or a formula of N as a string")
            }
            fn visit_i64<E: de::Error>(self, c: i64) -> Result<Size, E> {
                Ok(Size(Dim::from(c)))
            }
            fn visit_u64<E: de::Error>(self, c: u64) -> Result<Size, E> {
                i64::try_from(c).map(|c| Size(c.into())).map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                if text.len() > MAX_FORMULA {
                    return Err(E::custom("the formula is too long"));
                }
                text.parse().map(Size).map_err(E::custom)
            }
        }
        d.deserialize_any(Read)
    }
}
