//! Our own runs of a model: inference, or steps of training.

use std::collections::BTreeMap;
use std::time::Instant;

use super::report::Measured;
use crate::Error;
use crate::backend::{Executable, operations};
use crate::cli::args::ModelArgs;
use crate::cli::exec;
use crate::cli::replicate::{ReplicateArgs, note_sent};
use crate::cli::target::Runner;
use crate::ir::Model;
use crate::pass::{Loss, OutputLoss, Training};
use crate::train::data::Feed;
use crate::train::{Distribution, Trainer, TrainerOptions};
use crate::types::Tensor;

/// The seed of inputs.
const SEED: u64 = 1;

/// How a model is run.
pub(super) struct Setting<'a> {
    /// The loss of steps of training, if they are measured.
    pub(super) train: Option<Loss>,
    pub(super) optimizer: &'a str,
    pub(super) replicate: &'a ReplicateArgs,
    pub(super) runner: &'a Runner,
    pub(super) of: &'a ModelArgs,
    pub(super) model: &'a Model,
    /// On the devices of `--gpus`, else on one.
    pub(super) on_many: bool,
}

/// A model that is ready to run.
pub(super) struct Own {
    rows: u32,
    limit: u64,
    /// The devices that hold its weights, if not the host alone.
    holders: u64,
    work: Work,
}

enum Work {
    Inference { executable: Box<dyn Executable>, inputs: BTreeMap<String, Tensor> },
    Training { trainer: Box<Trainer>, feed: Feed },
}

impl Own {
    /// The model, for a batch of one row.
    pub(super) fn new(setting: &Setting<'_>) -> anyhow::Result<Self> {
        let Setting { train, replicate: how, runner, of, model, on_many, .. } = *setting;
        let place = runner.place();
        let work = if let Some(loss) = train {
            Work::Training { trainer: Box::new(trainer(setting, loss)?), feed: Feed::default() }
        } else {
            let replicated = if on_many {
                how.apply(of, &model.graph, place)?
            } else {
                how.single(of, &model.graph, place)?
            };
            let executable = runner.prepare(&replicated.graph, &model.weights)?;
            Work::Inference { executable, inputs: BTreeMap::new() }
        };
        let mut own = Self { rows: 1, limit: of.max_memory(), holders: 1, work };
        if place.cuda {
            own.holders = own.devices() as u64;
        }
        Ok(own)
    }

    fn executable(&self) -> &dyn Executable {
        match &self.work {
            Work::Inference { executable, .. } => &**executable,
            Work::Training { trainer, .. } => trainer.step(),
        }
    }

    /// The devices that compute.
    fn devices(&self) -> usize {
        self.executable().program().rows.len().max(1)
    }

    /// Its name among what is measured.
    pub(super) fn name(&self) -> String {
        match self.devices() {
            1 => "fanwise".to_owned(),
            devices => format!("fanwise, {devices} devices"),
        }
    }

    /// Readies it for random batches of so many rows; the multiplications and additions of one.
    pub(super) fn set_rows(&mut self, model: &Model, rows: u32) -> anyhow::Result<f64> {
        self.rows = rows;
        match &mut self.work {
            Work::Inference { inputs, .. } => {
                *inputs = exec::random_inputs(&model.graph, rows, SEED, self.limit)?;
            }
            Work::Training { trainer, feed } => {
                *feed = trainer.random_feed(i64::from(rows), SEED)?;
            }
        }
        Ok(operations(self.executable().program(), i64::from(rows)))
    }

    /// Runs it so many times.
    pub(super) fn run(&mut self, times: u32) -> anyhow::Result<Measured> {
        let seconds = match &mut self.work {
            Work::Inference { executable, inputs } => {
                let (_, times) = exec::run(&**executable, inputs, times, self.limit)?;
                times.iter().map(std::time::Duration::as_secs_f64).collect()
            }
            Work::Training { trainer, feed } => {
                let step = |_| {
                    let begin = Instant::now();
                    // Nothing is learned, so that all steps compute with like numbers.
                    trainer.train_on_batch(feed, 0.0)?;
                    Ok(begin.elapsed().as_secs_f64())
                };
                (0..times).map(step).collect::<anyhow::Result<Vec<f64>>>()?
            }
        };
        Ok(Measured { seconds, memory: Some(self.memory()?) })
    }

    /// The bytes of its arenas and weights.
    fn memory(&self) -> anyhow::Result<u64> {
        let executable = self.executable();
        let rows = i64::from(self.rows);
        let bound = executable.bind(rows).map_err(Error::from)?;
        let arenas: usize = bound.devices.iter().map(|device| device.planned).sum();
        let params = executable.program().params.iter().map(|port| port.ty.bytes().eval(rows));
        Ok(arenas as u64 + params.sum::<i64>().unsigned_abs() * self.holders)
    }
}

/// The steps of a model by a loss of each output that is a float.
fn trainer(setting: &Setting<'_>, loss: Loss) -> anyhow::Result<Trainer> {
    let Setting { optimizer, replicate: how, runner, of, model, on_many, .. } = *setting;
    let (graph, place) = (&model.graph, runner.place());
    let floats = graph.outputs().iter().filter(|o| graph.ty(o.value).dtype.is_float());
    let losses: Vec<OutputLoss> = floats.map(|o| OutputLoss::new(&o.name, loss)).collect();
    let optimizer = optimizer.parse()?;
    let training = Training { losses, ..Training::new("", loss, optimizer) };
    let replicate = if on_many { how.choice(place, false)? } else { how.choice_of_one(place) };
    let distribution = Distribution {
        replicate,
        batch_norm: how.statistics(),
        max_memory: Some(of.max_memory()),
        ..Distribution::default()
    };
    let options = TrainerOptions { training, distribution };
    let trainer = Trainer::new(model.clone(), &options, runner.backend())?;
    if on_many {
        let replicate = options.distribution.replicate.as_ref();
        note_sent(replicate, place, graph, trainer.changed());
    }
    Ok(trainer)
}
