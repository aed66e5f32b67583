//! The machine form of a graph: JSON of format `fanwise-graph`, version 1.
//!
//! It says what the text form says, in the same order. A size is a number, or a string with a
//! formula of `N`; a float is a string, so that every bit and the infinities stay; a tensor's
//! elements are the hexadecimal digits of their little-endian bytes. Unknown fields are errors.

mod attr;
mod form;
mod read;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use read::{JsonError, from_json, from_json_with};
pub use write::to_json;
