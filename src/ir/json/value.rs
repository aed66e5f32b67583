//! The values of fields: lists, texts and sizes.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::types::Dim;

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

/// A value that is serialized as it is displayed.
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

pub(super) fn sizes(dims: &[Dim]) -> Vec<Size> {
    dims.iter().cloned().map(Size).collect()
}
