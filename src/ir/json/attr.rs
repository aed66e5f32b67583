//! Attributes in the machine form: each value is tagged with its kind.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::super::text::{MAX_ATTRS, MAX_LIST};
use super::super::verify::MAX_CONSTANT;
use super::value::{Size, Text, at_most, sizes};
use crate::op::Attr;
use crate::types::{DType, MAX_RANK, Quoted, Tensor};

/// A float as a string.
///
/// JSON has no infinities and no NaN, and its readers differ in the last bit of long numbers; the
/// shortest digits that read back as the same float need a string.
struct Float(f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.is_nan() {
            s.serialize_str("nan")
        } else {
            s.collect_str(&format_args!("{:?}", self.0))
        }
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(d)?;
        // The parser of floats also takes words such as `infinity` and `+NaN`, which no writer
        // gives: one value has one spelling.
        let plain = text.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
        let special = matches!(&*text, "inf" | "-inf" | "nan");
        let x: Option<f64> = if plain || special { text.parse().ok() } else { None };
        x.filter(|x| special || x.is_finite())
            .map(Self)
            .ok_or_else(|| de::Error::custom(format_args!("{} is not a float", Quoted(&text))))
    }
}

/// The attributes of an operator by name.
#[derive(Default)]
pub(super) struct Attrs(pub(super) Vec<(String, Attr)>);

impl Attrs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Attrs {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for (name, attr) in &self.0 {
            map.serialize_entry(name, &AttrOut(attr))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Attrs {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Attrs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("attributes by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attrs, A::Error> {
                let mut attrs = Vec::<(String, Attr)>::new();
                while let Some(name) = map.next_key::<String>()? {
                    if attrs.len() == MAX_ATTRS {
                        let message =
                            format_args!("an operator has at most {MAX_ATTRS} attributes");
                        return Err(de::Error::custom(message));
                    }
                    // A map would keep the last of two without a word.
                    if attrs.iter().any(|(other, _)| *other == name) {
                        let message =
                            format_args!("the attribute {} is given twice", Quoted(&name));
                        return Err(de::Error::custom(message));
                    }
                    attrs.push((name, map.next_value::<AttrIn>()?.into()));
                }
                Ok(Attrs(attrs))
            }
        }
        d.deserialize_map(Read)
    }
}

/// The value of an attribute, tagged with its kind.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum AttrIn {
    Bool(bool),
    Int(Size),
    #[serde(deserialize_with = "at_most::<MAX_LIST, _, _>")]
    Ints(Vec<Size>),
    Float(Float),
    #[serde(deserialize_with = "at_most::<MAX_LIST, _, _>")]
    Floats(Vec<Float>),
    Name(String),
    Tensor(TensorIn),
}

// Reading and writing have a type each: what is read owns its parts, what is written borrows them.
impl From<AttrIn> for Attr {
    fn from(attr: AttrIn) -> Self {
        match attr {
            AttrIn::Bool(b) => Self::Bool(b),
            AttrIn::Int(d) => Self::Int(d.0),
            AttrIn::Ints(dims) => Self::Ints(dims.into_iter().map(|d| d.0).collect()),
            AttrIn::Float(x) => Self::Float(x.0),
            AttrIn::Floats(xs) => Self::Floats(xs.into_iter().map(|x| x.0).collect()),
            AttrIn::Name(name) => Self::Name(name),
            AttrIn::Tensor(tensor) => Self::Tensor(tensor.0),
        }
    }
}

/// The value of an attribute as it is written.
struct AttrOut<'a>(&'a Attr);

impl Serialize for AttrOut<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(1))?;
        match self.0 {
            Attr::Bool(b) => map.serialize_entry("bool", b),
            Attr::Int(d) => map.serialize_entry("int", &Size(d.clone())),
            Attr::Ints(dims) => map.serialize_entry("ints", &sizes(dims)),
            Attr::Float(x) => map.serialize_entry("float", &Float(*x)),
            Attr::Floats(xs) => {
                let floats: Vec<Float> = xs.iter().copied().map(Float).collect();
                map.serialize_entry("floats", &floats)
            }
            Attr::Name(name) => map.serialize_entry("name", name),
            Attr::Tensor(tensor) => map.serialize_entry("tensor", &TensorForm::of(tensor)),
        }?;
        map.end()
    }
}

/// A tensor: the elements are the digits of their little-endian bytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorForm<'a> {
    dtype: Text<DType>,
    #[serde(deserialize_with = "at_most::<MAX_RANK, _, _>")]
    dims: Vec<usize>,
    #[serde(borrow)]
    data: Cow<'a, str>,
}

impl TensorForm<'_> {
    /// The fields of a tensor. One above [`MAX_CONSTANT`], which no verified graph has, is written
    /// without its elements.
    fn of(tensor: &Tensor) -> Self {
        let mut data = String::new();
        if tensor.len() <= MAX_CONSTANT {
            for byte in little_endian(tensor.dtype(), tensor.bytes()) {
                // Writing to a `String` cannot fail.
                let _ = write!(data, "{byte:02x}");
            }
        }
        Self { dtype: Text(tensor.dtype()), dims: tensor.dims().to_vec(), data: data.into() }
    }
}

/// The bytes of elements in little-endian order from those in native order, or the other way round.
fn little_endian(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if cfg!(target_endian = "big") {
        bytes.chunks_mut(dtype.bytes()).for_each(<[u8]>::reverse);
    }
    bytes
}

/// A tensor that was read; its elements are as many as its sizes say.
struct TensorIn(Tensor);

impl<'de> Deserialize<'de> for TensorIn {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let TensorForm { dtype: Text(dtype), dims, data } = TensorForm::deserialize(d)?;
        // Before the digits are decoded: two for each byte of the largest constant.
        if data.len() > 2 * MAX_CONSTANT * dtype.bytes() {
            let message = format_args!("a constant has at most {MAX_CONSTANT} elements");
            return Err(de::Error::custom(message));
        }
        let digit = |b: &u8| char::from(*b).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = data.as_bytes().chunks(2).map(byte).collect();
        let bytes =
            bytes.ok_or_else(|| de::Error::custom("`data` holds pairs of hexadecimal digits"))?;
        // Kernels read a `bool` as a byte that is 0 or 1; another would be neither true nor false.
        if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            return Err(de::Error::custom("a `bool` is 00 or 01"));
        }
        let tensor = Tensor::from_bytes(dtype, &dims, &little_endian(dtype, &bytes));
        tensor.map(Self).map_err(de::Error::custom)
    }
}
