//! Reverse-mode differentiation, and the training graph built on it: losses, metrics, optimizers.
//!
//! Gradient rules stand with the operators ([`OpDef::backward`](crate::op::OpDef::backward)). Here
//! they are applied in reverse topological order, from the loss to the requested values. Gradients
//! from several users of a value are added, the last user first. The result is a graph like any
//! other, so that data parallelism needs no rule of its own: claims find the gradients of
//! parameters to be partial sums over the batch.

mod classes;
mod clip;
mod constraint;
mod cost;
mod cse;
mod differentiate;
mod error;
mod fixed;
mod inference;
mod loss;
mod metric;
mod mode;
mod names;
mod optimizer;
mod penalty;
mod phase;
mod pullback;
mod recompute;
mod spec;
mod step;
mod trainable;
mod training;
mod update;
mod writer;

pub use classes::class_axis;
#[cfg(feature = "cli")]
pub(crate) use classes::softmax_axis;
pub use constraint::{Constraint, ConstraintRule};
pub use differentiate::differentiate;
pub use error::{GradientError, TrainingError};
pub use fixed::fixed_parameters;
pub use inference::inference;
pub use loss::Loss;
pub use metric::Metric;
pub use mode::Mode;
#[cfg(feature = "train")]
pub(crate) use mode::largest_momentum;
pub use optimizer::{EpsilonPlace, Optimizer, Rule};
pub use penalty::Penalty;
#[cfg(feature = "keras")]
pub(crate) use penalty::names;
pub use pullback::pullback;
pub use recompute::Recompute;
pub(crate) use spec::{LossInputs, STEP};
pub use spec::{OutputLoss, Training, TrainingGraph, Weighted};
pub use training::{evaluation, training};
#[cfg(feature = "cli")]
pub(crate) use update::average_of;
