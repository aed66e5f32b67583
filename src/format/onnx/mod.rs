//! ONNX models.

/// The messages of an ONNX file, generated from `proto/onnx.proto` of ONNX 1.22 (Apache License 2.0).
///
/// Packed numbers of a tensor (`float_data`, …) stay the bytes of the file, a list of packed runs each.
#[rustfmt::skip]
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
#[path = "generated.rs"]
pub mod proto;
