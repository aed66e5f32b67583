//! Programs on GPUs: readied by the backend, planned for a batch size, and run by a worker for each
//! device.

pub(super) mod backend;
pub(super) mod executor;
mod gpu;
mod health;
mod host;
mod intake;
mod job;
mod parts;
mod pinned;
mod plan;
mod report;
mod slot;
mod slots;
pub(super) mod trace;
mod variables;
