//! Programs on GPUs: prepared by the backend, planned for a batch size, and run by a worker for
//! each device.

pub(crate) mod backend;
mod events;
pub(crate) mod executor;
mod gpu;
mod graphs;
mod health;
mod host;
#[cfg(feature = "cli")]
pub(crate) mod in_flight;
mod job;
mod parts;
mod pinned;
mod plan;
mod report;
mod slot;
mod slots;
mod staging;
mod variables;
