//! A step of training, in the forms of its graph.

use std::collections::HashMap;

use crate::Error;
use crate::cli::args::ModelArgs;
use crate::cli::fit::{ObjectiveArgs, OptimizerArgs};
use crate::cli::replicate::{AvailableDevices, ReplicateArgs, note_sent};
use crate::ir::{self, Graph, Weights};
use crate::pass::{self, TrainingGraph};
use crate::train::keras::Compiled;
use crate::train::{self, Distribution};

/// A step of training.
pub(super) struct Step {
    /// The step on one device.
    template: Graph,
    place: Distribution,
    /// The step on its devices.
    pub(super) graph: Graph,
    pub(super) weights: Weights,
}

/// What a step is made of.
pub(super) struct Parts<'a> {
    pub(super) model: &'a ModelArgs,
    pub(super) objective: &'a ObjectiveArgs,
    pub(super) optimizer: &'a OptimizerArgs,
    pub(super) replicate: &'a ReplicateArgs,
    pub(super) place: AvailableDevices,
}

impl Step {
    /// The step that arguments ask for.
    pub(super) fn of(args: &Parts<'_>) -> anyhow::Result<Self> {
        let limit = args.model.max_memory();
        let file = Compiled::of(&args.model.file()?, limit).map_err(Error::from)?;
        let model = args.model.load_for_training()?;
        let (optimizer, _) = args.optimizer.of_file(file.as_ref())?;
        let mut training = args.objective.training(&model.graph, optimizer, file.as_ref())?;
        args.optimizer.apply(&mut training, &model, 0);
        args.objective.restrict(&mut training, file.as_ref())?;
        let TrainingGraph { graph: template, weights, .. } =
            pass::training(&model.graph, &model.weights, &training).map_err(Error::from)?;
        let place = Distribution {
            replicate: args.replicate.choice(args.place, false)?,
            batch_norm: args.replicate.statistics(),
            ..Distribution::default()
        };
        let changed = template.updates().iter().map(|update| &*template.param(update.param).name);
        note_sent(place.replicate.as_ref(), args.place, &model.graph, changed);
        let graph = train::replicated(&template, &place)?.into_owned();
        // Before anything is written: a file that exists reads back.
        ir::verify(&graph).map_err(Error::from)?;
        Ok(Self { template, place, graph, weights })
    }

    /// The claims of its values, by name.
    pub(super) fn claims(&self) -> anyhow::Result<HashMap<String, String>> {
        Ok(train::claims(&self.template, &self.place)?)
    }
}
