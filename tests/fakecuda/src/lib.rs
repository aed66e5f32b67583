//! A fake CUDA driver for tests: it exports the functions of `libcuda` that cudarc calls, runs
//! kernels from the PTX that NVRTC really produces, and checks memory, races and ordering.
//!
//! `README.md` says what is checked, what is not, and how to use it.
#![allow(unsafe_code, reason = "the crate exports C functions and uses vector instructions")]
#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::match_wildcard_for_single_variants,
    reason = "of all types and operands an instruction takes few; the rest is refused"
)]
#![allow(clippy::many_single_char_names, reason = "operands are a, b, c and d, as in the manual")]
#![allow(clippy::float_cmp, reason = "the arithmetic is that of the device, to the bit")]

pub mod decode;
pub mod driver;
pub mod exec;
pub mod ptx;
