//! Tests of the crate as a whole.

#![allow(clippy::unwrap_used, reason = "tests")]

mod layering;
mod onnx_proto;
mod snap;
mod source;
mod text;
