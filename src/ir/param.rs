use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::Id;
use crate::types::{Device, Tensor, TensorType};

/// A parameter of a graph, by its position in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

impl Id for ParamId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The first eight bytes of the BLAKE3 hash of a parameter's type and elements (little-endian).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; 8]);

impl ContentHash {
    /// The hash of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(tensor.tensor_type().to_string().as_bytes());
        match tensor.unread() {
            // They are not kept for it.
            Some(elements) => elements.blocks(tensor.byte_len(), &mut |block| {
                hasher.update(block);
            }),
            #[cfg(feature = "cpu")]
            None => {
                hasher.update_rayon(tensor.bytes());
            }
            #[cfg(not(feature = "cpu"))]
            None => {
                hasher.update(tensor.bytes());
            }
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Self(first)
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentHash {
    type Err = ();

    /// Reads sixteen hexadecimal digits.
    fn from_str(s: &str) -> Result<Self, ()> {
        let digits = s.len() == 16 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let value = u64::from_str_radix(s, 16).ok().filter(|_| digits).ok_or(())?;
        Ok(Self(value.to_be_bytes()))
    }
}

/// Where the elements of a parameter come from: a file (or `zoo:NAME`) and the name of a tensor in
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The path of the file as it was given, or `zoo:NAME`.
    pub file: Arc<str>,
    /// The tensor's name there.
    pub key: Arc<str>,
}

/// How the key of a parameter begins that was computed from others.
const FOLDED: &str = "folded:";

impl Source {
    /// Where what was computed from the parameters of `file` comes from: it is computed again.
    pub(crate) fn folded(file: Arc<str>, name: &str) -> Self {
        Self { file, key: format!("{FOLDED}{name}").into() }
    }

    /// True for what was computed from other parameters.
    pub(crate) fn is_folded(&self) -> bool {
        self.key.starts_with(FOLDED)
    }
}

/// The devices that hold a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One device does; others copy it from there in each run.
    Shared(Device),
    /// Every device of the graph's split does.
    Mirrored,
}

impl Placement {
    /// The device that holds the parameter as an operator on `device` sees it.
    pub(crate) fn seen_from(self, device: Device) -> Device {
        match self {
            Self::Shared(home) => home,
            Self::Mirrored => device,
        }
    }
}

/// A parameter: its elements stay outside the graph, named by source and content.
///
/// Elsewhere: Parameter (PyTorch); initializer (ONNX); weight (Keras).
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name, unique among the parameters.
    pub name: Arc<str>,
    /// Its type; the sizes are constants.
    pub ty: TensorType,
    /// The source of its elements.
    pub source: Source,
    /// Their hash.
    pub hash: ContentHash,
    /// The devices that hold it.
    pub placement: Placement,
}

/// The elements of a graph's parameters, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights(BTreeMap<Arc<str>, Tensor>);

impl Weights {
    /// The elements of the parameter `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Sets the elements of a parameter; returns those it had.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, tensor: Tensor) -> Option<Tensor> {
        self.0.insert(name.into(), tensor)
    }

    /// Forgets the parameters for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// All parameters, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Tensor)> {
        self.0.iter()
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
