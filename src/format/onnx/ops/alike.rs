//! Operators that ONNX has with the same attributes: tables that are read both ways.

use super::{Attribute, Node, NodeError, Refused, word, wrong};
use crate::op::{GeluForm, Reduction};

/// An attribute that means in ONNX what it does here.
pub(super) trait Setting: Sized {
    /// Reads it, where it is given.
    fn read(n: &mut Node<'_, '_>, name: &str) -> Result<Option<Self>, NodeError>;

    /// Reads it; one without a default must be given.
    fn or(n: &mut Node<'_, '_>, name: &str, default: Option<Self>) -> Result<Self, NodeError> {
        Self::read(n, name)?.or(default).ok_or_else(|| wrong(name, "is missing"))
    }

    /// What is written for it.
    fn write(&self) -> Result<Attribute<'static>, Refused>;
}

/// Settings by the way a node reads them, and those that are words by their tables.
macro_rules! settings {
    ($($ty:ident: $read:ident;)* $([$words:ident]: [$($word:literal $meaning:ident),*];)*) => {
        $(impl Setting for $ty {
            fn read(n: &mut Node<'_, '_>, name: &str) -> Result<Option<Self>, NodeError> {
                n.$read(name)
            }

            fn write(&self) -> Result<Attribute<'static>, Refused> {
                Ok((*self).into())
            }
        })*
        $(impl Setting for $words {
            fn read(n: &mut Node<'_, '_>, name: &str) -> Result<Option<Self>, NodeError> {
                n.opt_choice(name, &[$(($word, Self::$meaning)),*])
            }

            fn write(&self) -> Result<Attribute<'static>, Refused> {
                word(&[$(($word, Self::$meaning)),*], self)
            }
        })*
    };
}

settings! {
    i64: opt_int;
    f32: opt_float;
    bool: opt_flag;
    [GeluForm]: ["none" Exact, "tanh" Tanh];
    [Reduction]: ["none" None, "add" Add, "mul" Mul, "max" Max, "min" Min];
}

/// A table of types, for each ONNX's names with the operands (the `first` so many, `all` of at most
/// so many, or two to `broadcast`), the operator, and its attributes with ONNX's defaults.
/// Functions for what else is read and written may stand behind the type.
macro_rules! alike {
    (@attribute $field:ident) => { stringify!($field) };
    (@attribute $field:ident $name:literal) => { $name };
    (@default) => { None };
    (@default $default:expr) => { Some($default) };
    (@read $n:ident first $count:expr, $op:expr) => { $n.of_first($count, $op) };
    (@read $n:ident all $count:expr, $op:expr) => { $n.of_all($op) };
    (@read $n:ident broadcast $count:expr, $op:expr) => { super::broadcast::broadcast($n, $op) };
    (@else $op:ident $w:ident) => { Err(super::Refused::unknown()) };
    (@else $op:ident $w:ident $write:ident) => { $write($op, $w) };
    ($($ty:ident $([$imports:ident, $write:ident])? {
        $($name:literal $which:ident $count:tt => $($path:ident)::+ $({
            $($field:ident $(as $attribute:literal)? $(= $default:expr)?),*
        })?,)+
    })+) => {
        pub(super) fn imports(all: &mut super::Imports) {
            $($($imports(all);)?)+
            $($(all.add($name, $count, |n| {
                $($(let $field = super::alike::Setting::or(
                    n,
                    alike!(@attribute $field $($attribute)?),
                    alike!(@default $($default)?),
                )?;)*)?
                alike!(@read n $which $count, $($path)::+ { $($($field),*)? })
            });)+)+
        }

        $(impl super::Export for $ty {
            fn export(&self, w: &mut super::Writer<'_>) -> super::Written {
                #[allow(unused_imports, reason = "some have no attributes")]
                use super::alike::Setting as _;
                let op = self;
                #[allow(unreachable_patterns, reason = "all are there, or one has two names")]
                match op {
                    $($($path)::+ { $($($field),*)? } => w.same($name, &[$($(
                        (alike!(@attribute $field $($attribute)?), $field.write()?)
                    ),*)?]),)+
                    _ => alike!(@else op w $($write)?),
                }
            }
        })+
    };
}
pub(super) use alike;
