//! Steps on the host, shared by all backends: events between control threads,
//! memory and disjoint views of it, and the steps themselves over the kernels of another room.

mod events;
mod lock;
mod memory;
mod step;

pub(super) use events::{Events, Stopped};
pub(super) use lock::lock;
#[cfg(feature = "cuda")]
pub(super) use memory::Block;
pub(super) use memory::DeviceMemory;
pub(super) use step::{Code, HostSteps, Slices, StepError, Unsuited, highest};
