//! A fake CUDA driver for tests: it exports the functions of `libcuda` that cudarc calls, runs
//! kernels from the PTX that NVRTC really produces, and checks memory, races and ordering.
//!
//! `README.md` says what is checked, what is not, and how to use it.
#![allow(unsafe_code, reason = "the crate exports C functions and uses vector instructions")]

pub mod decode;
pub mod driver;
pub mod exec;
pub mod ptx;
