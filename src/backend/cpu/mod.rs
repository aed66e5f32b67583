//! The CPU: virtual devices on the host and the kernels that they run.
//!
//! A kernel is a function on slices. It uses the threads of the rayon pool in which it is called, and the bits of
//! each output row depend on that row's inputs alone: not on the batch size, the number of threads, the tile in which
//! the row is computed or the alignment of the memory.

pub mod gemm;
