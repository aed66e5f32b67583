//! Passes: transformations of graphs, among them the one to many devices.
//!
//! [`simplify`] runs first, on the template, so that every replica gains from it at the price of
//! one. [`replicate`] runs last: the proof relates its replicas to the template, and nothing
//! rewrites them after it.

mod alike;
mod error;
pub(crate) mod explain;
#[cfg(feature = "gradients")]
pub(crate) mod gradient;
mod info;
mod refusal;
pub(crate) mod repair;
mod replicate;
pub(crate) mod report;
mod simplify;
mod stages;

pub use error::{DeviceError, PassError};
pub use explain::explain;
pub(crate) use explain::headline;
#[cfg(feature = "train")]
pub(crate) use gradient::largest_momentum;
#[cfg(feature = "gradients")]
pub use gradient::{
    Constraint, ConstraintRule, EpsilonPlace, GradientError, Loss, Metric, Mode, Optimizer,
    OutputLoss, Penalty, Recompute, Rule, Training, TrainingError, TrainingGraph, Weighted,
    differentiate, evaluation, inference, training,
};
#[cfg(feature = "gradients")]
pub(crate) use gradient::{LossInputs, STEP, class_axis};
#[cfg(feature = "cli")]
pub(crate) use gradient::{average_of, softmax_axis};
pub(crate) use info::PassInfo;
pub use refusal::SplitRefused;
pub(crate) use repair::grouped;
pub use repair::{Action, AppliedRepair, BatchStatistics, Repair, RepairOptions};
pub use replicate::{Gpus, Merge, Replicate, WeightPlacement};
pub use report::report;
pub(crate) use report::{claims_by_name, claims_text};
pub(crate) use simplify::without_training;
pub use simplify::{SimplifyOptions, simplify};
pub(crate) use stages::repair_for;
pub use stages::{Proven, Repaired, repair, replicate};

/// The names of the simplifications, which can be left out.
pub(crate) fn simplifications() -> Vec<&'static str> {
    simplify::PASSES.iter().map(|p| p.info.name).collect()
}

/// All passes, in the order in which they run.
pub(crate) fn passes() -> impl Iterator<Item = PassInfo> {
    simplify::PASSES.iter().map(|p| p.info).chain([repair::INFO, replicate::INFO])
}
