//! Gradients: operators that compute how a number of the graph changes with values that it depends
//! on.
//!
//! Rules stand with the operators ([`OpDef::backward`](crate::op::OpDef::backward)). Here they are
//! applied against the order of the graph, from the loss to the values asked for; what several
//! users of a value give it is added, the last user first. The result is a graph like any other: a
//! pass that splits the batch finds the gradients of parameters to be sums over it.

mod classes;
mod clip;
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
mod recompute;
mod share;
mod spec;
mod step;
mod trainable;
mod training;
mod update;
mod writer;

pub use classes::class_axis;
pub use differentiate::{differentiate, differentiate_with};
pub use error::{GradientError, TrainingError};
pub use fixed::fixed_parameters;
pub use inference::inference;
pub use loss::{Loss, ParseLossError};
pub use metric::{Metric, ParseMetricError};
pub use mode::Mode;
pub use optimizer::{EpsilonPlace, Optimizer, ParseOptimizerError, Rule};
pub use penalty::{ParsePenaltyError, Penalty};
pub use recompute::{ParseRecomputeError, Recompute};
pub use spec::{OutputLoss, STEP, Target, Training, TrainingGraph, Weighted};
pub use training::{evaluation, training};
