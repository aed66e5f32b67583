//! What turns a graph into a better one, or into one for many devices.
//!
//! [`simplify`] runs first, on the template; [`replicate`] last: nothing rewrites the replicas
//! after it.

mod error;
mod explain;
mod gradient;
mod info;
mod refusal;
mod repair;
mod replicate;
mod report;
mod simplify;
mod stages;

pub use error::{DeviceError, PassError};
pub use explain::{explain, headline};
pub use gradient::{
    EpsilonPlace, GradientError, Loss, Metric, Mode, Optimizer, OutputLoss, ParseLossError,
    ParseMetricError, ParseOptimizerError, ParsePenaltyError, ParseRecomputeError, Penalty,
    Recompute, Rule, STEP, Target, Training, TrainingError, TrainingGraph, Weighted, class_axis,
    differentiate, differentiate_with, evaluation, fixed_parameters, inference, training,
};
pub use info::PassInfo;
pub use refusal::SplitRefused;
pub use repair::{
    Action, AppliedRepair, BatchStatistics, ParseBatchStatisticsError, Repair, RepairOptions,
    grouped,
};
pub use replicate::{Gpus, Merge, Replicate, WeightPlacement};
pub use report::{claims_text, report};
pub use simplify::{SimplifyOptions, simplify};
pub use stages::{Proven, Repaired, repair, replicate};

/// All passes, in the order in which they run.
pub fn passes() -> impl Iterator<Item = PassInfo> {
    simplify::PASSES.iter().map(|p| p.info).chain([repair::INFO, replicate::INFO])
}
