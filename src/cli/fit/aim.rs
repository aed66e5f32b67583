//! What the run of a checkpoint minimises, for its evaluation.

use anyhow::Context;
use clap::{Args as _, Command, FromArgMatches};

use super::objective::{ObjectiveArgs, OptimizerArgs};
use crate::cli::kept;
use crate::cli::report::quoted;

/// Options that say what a run minimises, and what it tells of it.
const AIMS: &[&str] =
    &["loss", "loss_weight", "class_axis", "metrics", "weighted_metrics", "l2", "l1"];

/// Options that say which parameters penalties are of.
const TRAINED: &[&str] = &["freeze", "train"];

/// The name that a parser wants in front of options.
const PROGRAM: &str = "fit";

/// What the run of a checkpoint minimises, for its evaluation.
pub(super) struct Aim {
    pub(super) objective: ObjectiveArgs,
    pub(super) optimizer: OptimizerArgs,
    /// The options of the run, as a command line has them.
    pub(super) options: String,
}

/// What the run of a checkpoint minimises, where a MODEL argument names one and no loss is given:
/// what is given counts, and the rest is that of the run.
pub(super) fn of_run(given: &ObjectiveArgs, spec: &str) -> anyhow::Result<Option<Aim>> {
    let Some(checkpoint) = kept::state(spec)? else { return Ok(None) };
    let own = given.given();
    let is_given = |name: &str| own.iter().any(|(own, is_given)| *is_given && *own == name);
    if is_given("--loss") {
        return Ok(None);
    }
    let command = OptimizerArgs::augment_args(ObjectiveArgs::augment_args(Command::new(PROGRAM)));
    let (mut line, mut options) = (vec![PROGRAM.to_owned()], Vec::new());
    for id in [AIMS, TRAINED].concat() {
        let name = format!("--{}", id.replace('_', "-"));
        let values = checkpoint.settings.get(id).filter(|_| !is_given(&name));
        let Some(values) = values.filter(|values| !values.is_empty()) else { continue };
        line.extend(values.iter().map(|value| format!("{name}={value}")));
        if AIMS.contains(&id) {
            options.push(format!("{name} {}", quoted(&values.join(","))));
        }
    }
    let wrong = || format!("the settings of the checkpoint in {spec} are damaged");
    let matches = command.try_get_matches_from(line).with_context(wrong)?;
    let mut objective = given.clone();
    objective.update_from_arg_matches(&matches).with_context(wrong)?;
    let optimizer = OptimizerArgs::from_arg_matches(&matches).with_context(wrong)?;
    Ok(Some(Aim { objective, optimizer, options: options.join(" ") }))
}
