//! Attributes: the settings of an operator, in one form for the text, the JSON and the API.

use crate::types::{DType, Dim, Quoted, QuotedMessage, Tensor};

/// The value of one attribute. Floats are equal where their bits are: a NaN equals itself, 0
/// differs from -0.
///
/// Elsewhere: attribute (MLIR); `AttributeProto` (ONNX).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Attr {
    /// `true` or `false`.
    Bool(bool),
    /// An integer that may depend on the batch size.
    Int(Dim),
    /// A list of integers; the empty list also stands for an empty list of floats.
    Ints(Vec<Dim>),
    /// A number with a fraction or an exponent, or `inf`, `-inf`, `nan`.
    Float(f64),
    /// A list of floats.
    Floats(Vec<f64>),
    /// A mode, an element type or another text.
    Name(String),
    /// A small tensor.
    Tensor(Tensor),
}

impl PartialEq for Attr {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Ints(a), Self::Ints(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Floats(a), Self::Floats(b)) => {
                a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
            }
            (Self::Name(a), Self::Name(b)) => a == b,
            (Self::Tensor(a), Self::Tensor(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Attr {}

/// Error in an operator's name or attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttrError {
    /// No operator has this name.
    #[error("there is no operator {}", Quoted(.0))]
    UnknownOp(String),
    /// An operator of a framework, which is not registered.
    #[error("the custom operator {} is not registered", Quoted(.0))]
    Unregistered(String),
    /// A framework does not make its operator of these attributes.
    #[error("`{op}`: {}", QuotedMessage(.reason))]
    Custom {
        /// The operator.
        op: &'static str,
        /// The reason, as a sentence.
        reason: String,
    },
    /// A required attribute is not given.
    #[error("`{op}` needs the attribute `{attr}`")]
    Missing {
        /// The operator.
        op: &'static str,
        /// The attribute it needs.
        attr: &'static str,
    },
    /// The attribute is given with a value of another kind.
    #[error("`{op}`: the attribute `{attr}` takes {expected}")]
    Kind {
        /// The operator.
        op: &'static str,
        /// The attribute.
        attr: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// The operator has no such attribute.
    #[error("`{op}` has no attribute {}", Quoted(.attr))]
    Unknown {
        /// The operator.
        op: &'static str,
        /// The attribute given.
        attr: String,
    },
}

/// Attributes as they were read; each is taken once, and what remains is an error.
pub struct AttrReader {
    op: &'static str,
    attrs: Vec<(String, Attr)>,
}

impl AttrReader {
    /// The attributes given for the operator `op`.
    pub(crate) fn new(op: &'static str, attrs: Vec<(String, Attr)>) -> Self {
        Self { op, attrs }
    }

    /// Takes the attribute `name`; absent ones are `default`, or an error without one.
    pub fn take<T: AttrValue>(
        &mut self,
        name: &'static str,
        default: Option<T>,
    ) -> Result<T, AttrError> {
        let at = self.attrs.iter().position(|(n, _)| n == name);
        match at.map(|at| self.attrs.swap_remove(at).1) {
            Some(attr) => T::from_attr(&attr).ok_or(AttrError::Kind {
                op: self.op,
                attr: name,
                expected: T::EXPECTED,
            }),
            None => {
                default.or_else(T::absent).ok_or(AttrError::Missing { op: self.op, attr: name })
            }
        }
    }

    /// Fails if one of these attributes is given.
    pub(crate) fn refuse(&self, names: &[&str]) -> Result<(), AttrError> {
        match self.attrs.iter().find(|(name, _)| names.contains(&name.as_str())) {
            None => Ok(()),
            Some((attr, _)) => Err(AttrError::Unknown { op: self.op, attr: attr.clone() }),
        }
    }

    /// Fails if an attribute was not taken.
    pub(crate) fn finish(self) -> Result<(), AttrError> {
        match self.attrs.into_iter().next() {
            None => Ok(()),
            Some((attr, _)) => Err(AttrError::Unknown { op: self.op, attr }),
        }
    }
}

/// A Rust type that is the value of an attribute.
pub trait AttrValue: Sized {
    /// The expected value of the attribute, as a phrase for an error.
    const EXPECTED: &'static str;
    /// The printed form; `None` where nothing is printed.
    fn to_attr(&self) -> Option<Attr>;
    /// Reads the printed form; `None` where it is of another kind or out of range.
    fn from_attr(attr: &Attr) -> Option<Self>;
    /// The value of an absent attribute, where absence means something.
    fn absent() -> Option<Self> {
        None
    }
    /// Replaces the batch size by `rows`.
    fn at_rows(&mut self, _rows: &Dim) {}
    /// True if it depends on the batch size.
    fn depends_on_batch(&self) -> bool {
        false
    }
}

/// Declares the types that an attribute holds as they are, some with how the batch size is replaced
/// in them.
macro_rules! plain_attrs {
    ($($t:ty = $variant:ident, $expected:literal $(, $at_rows:expr, $depends:expr)?;)*) => { $(
        impl AttrValue for $t {
            const EXPECTED: &'static str = $expected;
            fn to_attr(&self) -> Option<Attr> {
                Some(Attr::$variant(self.to_owned()))
            }
            fn from_attr(attr: &Attr) -> Option<Self> {
                if let Attr::$variant(value) = attr { Some(value.to_owned()) } else { None }
            }
            $(fn at_rows(&mut self, rows: &Dim) {
                $at_rows(self, rows);
            }
            fn depends_on_batch(&self) -> bool {
                $depends(self)
            })?
        }
    )* };
}
plain_attrs! {
    bool = Bool, "true or false";
    f64 = Float, "a float";
    String = Name, "a text";
    Tensor = Tensor, "a tensor";
    Dim = Int, "an integer, which may depend on N", |d: &mut Self, rows| {
        *d = Self::at_rows(d, rows);
    }, Self::depends_on_batch;
    Vec<Dim> = Ints, "a list of integers, which may depend on N", |dims: &mut Self, rows| {
        for d in dims {
            *d = Dim::at_rows(d, rows);
        }
    }, |dims: &Self| dims.iter().any(Dim::depends_on_batch);
}

macro_rules! integer_attrs {
    ($($t:ty),*) => { $(
        impl AttrValue for $t {
            const EXPECTED: &'static str = concat!("an integer (", stringify!($t), ")");
            fn to_attr(&self) -> Option<Attr> {
                i64::try_from(*self).ok().map(|i| Attr::Int(i.into()))
            }
            fn from_attr(attr: &Attr) -> Option<Self> {
                if let Attr::Int(d) = attr { Self::try_from(d.as_const()?).ok() } else { None }
            }
        }
        impl AttrValue for Vec<$t> {
            const EXPECTED: &'static str = concat!("a list of integers (", stringify!($t), ")");
            fn to_attr(&self) -> Option<Attr> {
                let ints = self.iter().map(|i| i64::try_from(*i).ok().map(Dim::from));
                ints.collect::<Option<_>>().map(Attr::Ints)
            }
            fn from_attr(attr: &Attr) -> Option<Self> {
                let Attr::Ints(dims) = attr else { return None };
                dims.iter().map(|d| d.as_const().and_then(|c| <$t>::try_from(c).ok())).collect()
            }
        }
    )* };
}
integer_attrs!(i64, u64, usize);

/// The `f64` with the shortest decimal form that rounds to `x`: what is printed for an `f32`.
pub(crate) fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

impl AttrValue for f32 {
    const EXPECTED: &'static str = "a float";
    fn to_attr(&self) -> Option<Attr> {
        Some(Attr::Float(shortest(*self)))
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    fn from_attr(attr: &Attr) -> Option<Self> {
        if let Attr::Float(x) = attr { Some(*x as Self) } else { None }
    }
}

impl AttrValue for Vec<f32> {
    const EXPECTED: &'static str = "a list of floats";
    fn to_attr(&self) -> Option<Attr> {
        let floats: Vec<f64> = self.iter().copied().map(shortest).collect();
        Some(if floats.is_empty() { Attr::Ints(Vec::new()) } else { Attr::Floats(floats) })
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    fn from_attr(attr: &Attr) -> Option<Self> {
        if let Attr::Floats(floats) = attr {
            return Some(floats.iter().map(|x| *x as f32).collect());
        }
        matches!(attr, Attr::Ints(none) if none.is_empty()).then(Self::new)
    }
}

/// Makes attributes of types that are written as one word or text.
macro_rules! written {
    ($($t:ty = $expected:literal),*) => { $(
        impl $crate::op::attr::AttrValue for $t {
            const EXPECTED: &'static str = $expected;
            fn to_attr(&self) -> Option<$crate::op::attr::Attr> {
                Some($crate::op::attr::Attr::Name(self.to_string()))
            }
            fn from_attr(attr: &$crate::op::attr::Attr) -> Option<Self> {
                let $crate::op::attr::Attr::Name(text) = attr else { return None };
                text.parse().ok()
            }
        }
    )* };
}
pub(crate) use written;
written!(DType = "an element type");

impl<T: AttrValue> AttrValue for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    fn to_attr(&self) -> Option<Attr> {
        self.as_ref().and_then(T::to_attr)
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        T::from_attr(attr).map(Some)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
    fn at_rows(&mut self, rows: &Dim) {
        if let Some(value) = self {
            value.at_rows(rows);
        }
    }
    fn depends_on_batch(&self) -> bool {
        self.as_ref().is_some_and(T::depends_on_batch)
    }
}

/// Declares an enum whose values are written as words, and makes it an attribute.
macro_rules! names {
    ($(#[$meta:meta])* pub enum $enum:ident {
        $($(#[$vmeta:meta])* $variant:ident = $name:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum { $($(#[$vmeta])* $variant),* }

        impl $enum {
            /// The word that stands for it.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        impl $crate::op::attr::AttrValue for $enum {
            const EXPECTED: &'static str = concat!("one of", $(" ", $name),*);
            fn to_attr(&self) -> Option<$crate::op::attr::Attr> {
                Some($crate::op::attr::Attr::Name(self.name().to_owned()))
            }
            fn from_attr(attr: &$crate::op::attr::Attr) -> Option<Self> {
                let $crate::op::attr::Attr::Name(name) = attr else { return None };
                match name.as_str() { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
pub(crate) use names;
