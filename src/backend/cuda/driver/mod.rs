//! The driver: opened at run time, its contexts, memory, streams and modules, and the devices that
//! it shows.

pub(crate) mod captures;
mod codes;
pub(crate) mod context;
pub(crate) mod contexts;
mod deferred_free;
pub(crate) mod devices;
pub(crate) mod error;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod peers;
pub(crate) mod probe;
pub(crate) mod rates;
pub(crate) mod stream;
pub(crate) mod sys;
pub(crate) mod waited;
