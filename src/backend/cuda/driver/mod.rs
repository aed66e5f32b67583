//! The driver: opened at run time, its contexts, memory, streams and modules, and the devices that
//! it shows.

pub(super) mod context;
pub(super) mod contexts;
pub(super) mod devices;
pub(super) mod error;
mod frees;
pub(super) mod memory;
pub(super) mod module;
pub mod probe;
pub(super) mod rates;
pub(super) mod stream;
pub(super) mod sys;
