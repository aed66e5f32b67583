//! Operators that ONNX has with the same attributes: tables that are read both ways.

use super::{Attribute, Node, NodeError, Refused, Writer, Written, word, wrong};
use crate::op::{GeluForm, GridPadding, Reduction, ResizeMode, shortest};
use crate::types::DType;

/// An attribute that means in ONNX what it does here.
pub(super) trait Setting: Sized {
    /// Reads it, where it is given.
    fn read(n: &mut Node<'_, '_>, name: &str) -> Result<Option<Self>, NodeError>;

    /// Reads it; one without a default must be given.
    fn or(n: &mut Node<'_, '_>, name: &str, default: Option<Self>) -> Result<Self, NodeError> {
        Self::read(n, name)?.or(default).ok_or_else(|| wrong(name, "is missing"))
    }

    /// The value that is written; `None` if it is omitted.
    fn write(&self) -> Result<Option<Attribute<'_>>, Refused>;
}

/// Settings by the way a node reads them and what is written, then those that are words.
macro_rules! settings {
    ($($ty:ty: |$n:ident, $name:ident| $read:expr, |$x:ident| $write:expr;)*
     $(# $words:ident: [$($word:literal $meaning:ident),*];)*) => {
        $(impl Setting for $ty {
            fn read($n: &mut Node<'_, '_>, $name: &str) -> Result<Option<Self>, NodeError> {
                $read
            }

            fn write(&self) -> Result<Option<Attribute<'_>>, Refused> {
                let $x = self;
                Ok($write)
            }
        })*
        $(impl Setting for $words {
            fn read(n: &mut Node<'_, '_>, name: &str) -> Result<Option<Self>, NodeError> {
                n.opt_choice(name, &[$(($word, Self::$meaning)),*])
            }

            fn write(&self) -> Result<Option<Attribute<'_>>, Refused> {
                word(&[$(($word, Self::$meaning)),*], self).map(Some)
            }
        })*
    };
}

/// A number for computations with elements of a type. ONNX has it in `f32`: `f64` takes that as it
/// is; others compute in `f32`, where its shortest decimal is the same number.
fn opt_setting(n: &mut Node<'_, '_>, name: &str, to: DType) -> Result<Option<f64>, NodeError> {
    let found = n.opt_float(name)?;
    Ok(found.map(|x| if to == DType::F64 { f64::from(x) } else { shortest(x) }))
}

/// A number for computations with elements of a type, or this one.
pub(super) fn setting(
    n: &mut Node<'_, '_>,
    name: &str,
    default: f64,
    to: DType,
) -> Result<f64, NodeError> {
    Ok(opt_setting(n, name, to)?.unwrap_or(default))
}

/// A number in the type that ONNX writes it in.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
pub(super) fn float<'a>(x: f64) -> Attribute<'a> {
    (x as f32).into()
}

settings! {
    i64: |n, name| n.opt_int(name), |x| Some((*x).into());
    f32: |n, name| n.opt_float(name), |x| Some((*x).into());
    f64: |n, name| {
        let own = n.operand(0)?;
        let own = n.dtype(own);
        opt_setting(n, name, own)
    }, |x| Some(float(*x));
    bool: |n, name| n.opt_flag(name), |x| Some((*x).into());
    DType: |n, name| n.opt_dtype(name), |x| Some((*x).into());
    String: |n, name| n.opt_string(name), |x| Some(x.as_str().into());
    Option<i64>: |n, name| Ok(n.opt_int(name)?.map(Some)), |x| x.map(Into::into);
    Vec<i64>: |n, name| n.opt_ints(name), |x| (!x.is_empty()).then(|| x.as_slice().into());
    // GridSample renamed its modes in opset 20. Both spellings are read, the first of a meaning is
    // written.
    #GeluForm: ["none" Exact, "tanh" Tanh];
    #GridPadding: ["zeros" Zeros, "border" Border, "reflection" Reflection];
    #Reduction: ["none" None, "add" Add, "mul" Mul, "max" Max, "min" Min];
    #ResizeMode: [
        "nearest" Nearest, "linear" Linear, "cubic" Cubic, "bilinear" Linear, "bicubic" Cubic
    ];
}

/// Writes the present node as one of the same operands, with the attributes that are given.
pub(super) fn same(
    w: &mut Writer<'_>,
    op: &str,
    attributes: Vec<(&str, Option<Attribute<'_>>)>,
) -> Written {
    let given = attributes.into_iter().filter_map(|(name, value)| Some((name, value?)));
    w.same(op, &given.collect::<Vec<_>>())
}

/// A table of types, for each ONNX's names with the operands (the `first` so many, `all` of at most
/// so many, two to `broadcast`, or a function that reads the node and the most operands), the
/// operator, and its attributes with ONNX's defaults. Functions for what else is read and written
/// may stand behind the type.
macro_rules! alike {
    (@attribute $field:ident) => { stringify!($field) };
    (@attribute $field:ident $name:literal) => { $name };
    (@default) => { None };
    (@default $default:expr) => { Some($default) };
    (@op $n:ident [$($path:ident)::+] [$(
        $field:ident $(as $attribute:literal)? $(= $default:expr)?
    ),*]) => {
        $($path)::+ { $($field: super::alike::Setting::or(
            $n,
            alike!(@attribute $field $($attribute)?),
            alike!(@default $($default)?),
        )?),* }
    };
    (@read first $count:tt $path:tt $fields:tt) => {
        |n| {
            let op = alike!(@op n $path $fields);
            n.of_first($count, op)
        }
    };
    (@read all $count:tt $path:tt $fields:tt) => {
        |n| {
            let op = alike!(@op n $path $fields);
            n.of_all(op)
        }
    };
    (@read broadcast 2 $path:tt $fields:tt) => {
        |n| super::broadcast::broadcast(n, alike!(@op n $path $fields))
    };
    (@read $function:ident $count:tt $path:tt $fields:tt) => { $function };
    (@else $op:ident $w:ident) => { Err(super::Refused::unknown()) };
    (@else $op:ident $w:ident $write:ident) => { $write($op, $w) };
    ($($ty:ident $([$imports:ident $(, $write:ident)?])? {
        $($name:literal $which:ident $count:tt => $($path:ident)::+ $({
            $($field:ident $(as $attribute:literal)? $(= $default:expr)?),*
        })?,)+
    })+) => {
        pub(super) fn imports(all: &mut super::Imports) {
            $($($imports(all);)?)+
            $($(all.add($name, $count, alike!(@read $which $count [$($path)::+] [
                $($($field $(as $attribute)? $(= $default)?),*)?
            ]));)+)+
        }

        $(impl super::Export for $ty {
            fn export(&self, w: &mut super::Writer<'_>) -> super::Written {
                #[allow(unused_imports, reason = "some have no attributes")]
                use super::alike::Setting as _;
                let op = self;
                #[allow(unreachable_patterns, reason = "all are there, or one has two names")]
                // A meaning that the table has under two names is written by the first arm that
                // matches.
                match op {
                    $($($path)::+ { $($($field,)*)? .. } => super::alike::same(w, $name, vec![$($(
                        (alike!(@attribute $field $($attribute)?), $field.write()?)
                    ),*)?]),)+
                    _ => alike!(@else op w $($($write)?)?),
                }
            }
        })+
    };
}
pub(super) use alike;
