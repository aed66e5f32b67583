//! Common parts of the text form: names, strings, numbers and attributes.

use std::fmt::{self, Write as _};

use crate::op::Attr;
use crate::types::{DType, Dim, Tensor, TensorType, is_bare};
use half::{bf16, f16};

/// The name under which the text form refers to a graph's split.
pub(super) const SPLIT: &str = "dp";

/// The most attributes of an operator that are read; no operator has as many.
pub(super) const MAX_ATTRS: usize = 64;

/// The most elements of a list that is read: sizes, numbers, operands, results, devices.
pub(super) const MAX_LIST: usize = 1 << 16;

/// Appends a name, quoted where it must be.
pub(super) fn push_name(out: &mut String, name: &str) {
    if is_bare(name) {
        out.push_str(name);
    } else {
        out.push('"');
        push_escaped(out, name, &[]);
        out.push('"');
    }
}

/// Appends what stands between the quotes of a string; `hidden` characters are written by their
/// code.
pub(super) fn push_escaped(out: &mut String, text: &str, hidden: &[char]) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || hidden.contains(&c) => {
                push(out, format_args!("\\u{{{:x}}}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
}

/// Appends formatted text.
pub(super) fn push(out: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = out.write_fmt(text);
}

/// Appends a size.
pub(super) fn push_dim(out: &mut String, dim: &Dim) {
    push(out, format_args!("{dim}"));
}

/// Appends a type; a size equal to `rows` is written as the rows of that replica, `n0@dp`.
pub(super) fn push_type(out: &mut String, ty: &TensorType, rows: Option<&(Dim, u32)>) {
    out.push_str(ty.dtype.name());
    out.push('[');
    for (i, dim) in ty.shape.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        match rows {
            Some((rows, replica)) if rows == dim => push(out, format_args!("n{replica}@{SPLIT}")),
            _ => push_dim(out, dim),
        }
    }
    out.push(']');
}

/// Appends a list in brackets.
pub(super) fn push_list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    out.push('[');
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        each(out, item);
    }
    out.push(']');
}

/// Appends a float in its shortest form that reads back, with a `.` or an exponent.
pub(super) fn push_float(out: &mut String, x: f64) {
    if x.is_nan() {
        out.push_str("nan");
    } else {
        push(out, format_args!("{x:?}"));
    }
}

/// Appends the value of an attribute.
pub(super) fn push_attr(out: &mut String, attr: &Attr) {
    match attr {
        Attr::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Attr::Int(d) => push_dim(out, d),
        Attr::Ints(dims) => push_list(out, dims, push_dim),
        Attr::Float(x) => push_float(out, *x),
        Attr::Floats(xs) => push_list(out, xs, |out, x| push_float(out, *x)),
        Attr::Name(name) => push_word(out, name),
        Attr::Tensor(tensor) => push_tensor(out, tensor),
    }
}

impl fmt::Display for Attr {
    /// The attribute as the text form has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        push_attr(&mut text, self);
        f.write_str(&text)
    }
}

/// The words that mean something else where an attribute's value stands.
pub(super) const RESERVED: [&str; 4] = ["true", "false", "inf", "nan"];

fn push_word(out: &mut String, word: &str) {
    let lower = word.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if lower && !RESERVED.contains(&word) {
        out.push_str(word);
    } else {
        out.push('"');
        push_escaped(out, word, &[]);
        out.push('"');
    }
}

/// Appends a tensor: its type and all its elements. A NaN that is not the usual one shows its bits.
fn push_tensor(out: &mut String, tensor: &Tensor) {
    push_type(out, &tensor.tensor_type(), None);
    out.push(' ');
    macro_rules! ints {
        ($t:ty) => {
            push_list(out, tensor.as_slice::<$t>(), |out, x| push(out, format_args!("{x}")))
        };
    }
    macro_rules! floats {
        ($t:ty, $wide:ty) => {
            push_list(out, tensor.as_slice::<$t>(), |out, x| {
                if !x.is_nan() {
                    push(out, format_args!("{:?}", <$wide>::from(*x)));
                } else if x.to_bits() == <$t>::NAN.to_bits() {
                    out.push_str("nan");
                } else {
                    push(out, format_args!("nan({:x})", x.to_bits()));
                }
            })
        };
    }
    match tensor.dtype() {
        DType::F64 => floats!(f64, f64),
        DType::F32 => floats!(f32, f32),
        DType::F16 => floats!(f16, f32),
        DType::Bf16 => floats!(bf16, f32),
        DType::I64 => ints!(i64),
        DType::I32 => ints!(i32),
        DType::I16 => ints!(i16),
        DType::I8 => ints!(i8),
        DType::U64 => ints!(u64),
        DType::U32 => ints!(u32),
        DType::U16 => ints!(u16),
        DType::U8 => ints!(u8),
        DType::Bool => push_list(out, tensor.as_slice::<u8>(), |out, x| {
            out.push_str(if *x == 0 { "false" } else { "true" });
        }),
    }
}
