//! The header of a `.safetensors` file: JSON that names tensors and says where their elements are.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::types::{MAX_RANK, Quoted};

/// Header entry of one tensor.
pub(super) struct Entry<'a> {
    pub(super) dtype: Cow<'a, str>,
    pub(super) dims: SmallVec<[usize; 4]>,
    /// The first byte of its elements behind the header, and the one after its last.
    pub(super) bytes: (u64, u64),
}

/// Why a header was not read to its end.
pub(super) enum Stop<E> {
    /// It is no header.
    Syntax(serde_json::Error),
    /// `each` failed.
    Each(E),
}

/// Calls `each` with the name and the entry of every tensor, in the order of the header. None is
/// kept.
pub(super) fn each<E>(
    text: &[u8],
    each: impl FnMut(&str, Entry<'_>) -> Result<(), E>,
) -> Result<(), Stop<E>> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut failed = None;
    let read = reader.deserialize_map(Entries { each, failed: &mut failed });
    let read = read.and_then(|()| reader.end());
    match failed {
        Some(error) => Err(Stop::Each(error)),
        None => read.map_err(Stop::Syntax),
    }
}

struct Entries<'f, F, E> {
    each: F,
    failed: &'f mut Option<E>,
}

impl<'de, E, F: FnMut(&str, Entry<'_>) -> Result<(), E>> Visitor<'de> for Entries<'_, F, E> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            // Texts of the writer, by specification; no tensor can have this name.
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry = map.next_value::<Entry<'de>>()?;
            if let Err(error) = (self.each)(&name, entry) {
                *self.failed = Some(error);
                // Serde's own error ends the reading; that of the caller is kept beside it.
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// A string that is part of the header, unless it has escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            // A name with escapes is decoded, and so is not a part of the header as it lies in the
            // file.
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        d.deserialize_str(Read)
    }
}

impl<'de> Deserialize<'de> for Entry<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Entry<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tensor's dtype, shape and data_offsets")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry<'de>, A::Error> {
                let (mut dtype, mut dims, mut bytes) = (None, None, None);
                while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
                    // JSON does not say which of two equal fields counts: two readers could see two
                    // tensors.
                    let twice = match &*key {
                        "dtype" => dtype.replace(map.next_value::<Text<'de>>()?.0).is_some(),
                        "shape" => dims.replace(map.next_value::<Sizes>()?.0).is_some(),
                        "data_offsets" => bytes.replace(map.next_value()?).is_some(),
                        _ => {
                            let message = format_args!("a tensor has no field {}", Quoted(&key));
                            return Err(de::Error::custom(message));
                        }
                    };
                    if twice {
                        let message = format_args!("the field `{key}` is given twice");
                        return Err(de::Error::custom(message));
                    }
                }
                Ok(Entry {
                    dtype: dtype.ok_or_else(|| de::Error::missing_field("dtype"))?,
                    dims: dims.ok_or_else(|| de::Error::missing_field("shape"))?,
                    bytes: bytes.ok_or_else(|| de::Error::missing_field("data_offsets"))?,
                })
            }
        }
        d.deserialize_map(Read)
    }
}

/// The sizes of a tensor.
struct Sizes(SmallVec<[usize; 4]>);

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Sizes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
                let mut sizes = SmallVec::new();
                while let Some(size) = list.next_element()? {
                    // Checked while the list is read, before it grows.
                    if sizes.len() == MAX_RANK {
                        let message = format_args!("a tensor has at most {MAX_RANK} axes");
                        return Err(de::Error::custom(message));
                    }
                    sizes.push(size);
                }
                Ok(Sizes(sizes))
            }
        }
        d.deserialize_seq(Read)
    }
}
