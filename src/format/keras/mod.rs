//! Models of Keras: `.keras` archives, `.h5` files, and architectures as JSON.
//!
//! The configuration of a model is a tree of layers. Each call of a layer becomes operators that
//! mean the same; nothing of a configuration is skipped that might change them. The variables of
//! Keras are parameters of the graph, in Keras' own layout: what an operator wants otherwise is
//! transposed by operators, which simplification evaluates once.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "of the forms that JSON, HDF5 and arguments have, each place takes a few"
)]

mod activity;
mod at;
mod build;
mod config;
mod error;
mod file;
mod hdf5;
mod keras1;
mod layers;
mod naming;
mod options;
mod read;
mod shared;
mod slots;
mod state;
mod stored;
mod template;
mod tree;
mod value;
mod variables;
mod weights;
mod write;

pub(crate) use activity::Penalty;
pub(crate) use error::KerasError;
pub(crate) use file::is_keras;
pub use layers::supported;
pub(crate) use options::BuildOptions;
pub(crate) use read::{Architecture, Reader, WeightsFile, architecture_of};
pub(crate) use slots::{Learned, Slots};
