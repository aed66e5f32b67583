//! Steps on the host, shared by all backends: memory and disjoint views of it, the threads that
//! compute, and the steps themselves over the kernels of another room.

pub(crate) mod crew;
mod each;
mod lock;
mod memory;
pub(crate) mod profile;
mod span;
mod step;
pub(crate) mod trace;

pub(super) use crew::Crew;
pub(super) use each::Each;
pub(super) use lock::lock;
pub(super) use memory::{Block, DeviceMemory, Few, Views};
pub(super) use step::{Code, HostSteps, Source, StepError, Unsuited, touched};
