//! The loop: batches in, new parameters out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::data::{Data, DataError, Loader, LoaderOptions, Position};
use super::history::{Epoch, History, Logs};
use super::observer::{Observer, TrainState, each};
use super::run::Run;
use super::schedule::Schedule;
use super::targets::weighed;
use super::{Checkpoint, TrainError, Trainer};
use crate::Error;
use crate::backend::stage_each;
use crate::pass::Mode;

/// Options of [`Trainer::fit`]; the defaults are Keras'.
pub struct FitOptions<'a> {
    /// The batches. Batches of validation data have the same size and keep their order.
    pub batches: LoaderOptions,
    /// The number of epochs in all.
    pub epochs: u64,
    /// The validation data of every epoch.
    pub validation: Validation,
    /// The weights of classes in the loss to train with; a class that is not among them has 1. The
    /// loss has to be one of rows with weights
    /// ([`OutputLoss::weighted`](crate::pass::OutputLoss::weighted)).
    pub class_weights: BTreeMap<i64, f64>,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// The checkpoint to resume from.
    pub resume: Option<Checkpoint>,
    /// The observers, in order.
    pub observers: Vec<&'a mut dyn Observer>,
}

impl Default for FitOptions<'_> {
    /// One epoch of shuffled batches of 32 rows, and nothing else.
    fn default() -> Self {
        Self {
            batches: LoaderOptions::default(),
            epochs: 1,
            validation: Validation::None,
            class_weights: BTreeMap::new(),
            schedule: Schedule::default(),
            resume: None,
            observers: Vec::new(),
        }
    }
}

/// The validation data of every epoch.
///
/// Elsewhere: `validation_data` (Keras).
#[derive(Clone, Default)]
pub enum Validation {
    /// Nothing.
    #[default]
    None,
    /// The last fraction of the rows, before any shuffling, which are not trained on.
    Split(f64),
    /// Other data.
    Data(Data),
}

/// The constant settings of a training.
struct Terms {
    data: Arc<Loader>,
    validation: Option<Arc<Loader>>,
    epochs: u64,
    schedule: Schedule,
    /// The terms of a training, as a checkpoint holds them.
    texts: BTreeMap<String, String>,
}

impl Trainer {
    /// Trains for some epochs. Where the optimizer keeps moving averages, the parameters are these
    /// in the end.
    ///
    /// # Errors
    /// If data cannot be read or do not suit the model, those that validate number their classes
    /// otherwise, a step fails, or an observer does; if an epoch has no batch; if the schedule
    /// follows a number that there is not; if the checkpoint is of another model, or has other
    /// [`terms`](Checkpoint::terms).
    pub fn fit(
        &mut self,
        data: impl Into<Data>,
        options: FitOptions<'_>,
    ) -> Result<History, Error> {
        let FitOptions {
            batches,
            epochs,
            validation,
            class_weights,
            schedule,
            resume,
            mut observers,
        } = options;
        let (data, validation) = self.loaders(data.into(), validation, class_weights, batches)?;
        if let Schedule::Plateau(plateau) = &schedule {
            self.check_number(&plateau.monitor, validation.is_some())?;
        }
        let texts = self.texts(&schedule, &data);
        let terms = Terms { data, validation, epochs, schedule, texts };
        let run = match resume {
            Some(checkpoint) => self.resumed(checkpoint, &terms)?,
            None => Run::default(),
        };
        let history = self.epochs(run, &terms, &mut observers)?;
        self.average()?;
        Ok(history)
    }

    /// The batches to train on, and those that evaluate.
    fn loaders(
        &self,
        data: Data,
        validation: Validation,
        weights: BTreeMap<i64, f64>,
        batches: LoaderOptions,
    ) -> Result<(Arc<Loader>, Option<Arc<Loader>>), Error> {
        let (mut data, validation) = match validation {
            Validation::None => (data, None),
            Validation::Split(fraction) => {
                let (first, last) = data.split(fraction)?;
                (first, Some(last))
            }
            Validation::Data(other) => {
                other.check_classes(&data)?;
                (data, Some(other))
            }
        };
        if !weights.is_empty() {
            data = weighed(data, &self.train.loss_targets, weights)?;
        }
        let LoaderOptions { batch, threads, ahead, .. } = batches;
        let in_order =
            LoaderOptions { batch, threads, ahead, shuffle: false, ..LoaderOptions::default() };
        let data = self.train.loader(data, batches)?;
        let validation = validation.map(|other| self.evaluator.stage.loader(other, in_order));
        Ok((data, validation.transpose()?))
    }

    /// The run that a checkpoint is of, whose variables the trainer gets.
    fn resumed(&mut self, checkpoint: Checkpoint, terms: &Terms) -> Result<Run, Error> {
        if let Some([what, before, now]) = checkpoint.contradiction(&terms.texts) {
            return Err(TrainError::Terms { what, before, now }.into());
        }
        self.restore(&checkpoint.variables)?;
        let Checkpoint { at, history, partial, done, rate, .. } = checkpoint;
        Ok(Run { at, done, rate, history, sums: partial })
    }

    fn epochs(
        &mut self,
        mut run: Run,
        terms: &Terms,
        observers: &mut [&mut dyn Observer],
    ) -> Result<History, Error> {
        let Terms { data, epochs, schedule, .. } = terms;
        let names = self.train.names(data.columns())?;
        let mut batches = data.batches(run.at, *epochs)?;
        // Behind its last batch an epoch only has to be ended: what follows are the batches of the
        // next one.
        let mut over = run.at.step > 0 && data.steps() == Some(run.at.step);
        let watch = self.watch(&run, terms);
        let mut go_on = each(observers, |o| o.begin(&watch))?;
        let keeps_finite = observers.iter().any(|o| o.keeps_finite());
        while go_on && run.at.epoch < *epochs {
            let began = Instant::now();
            let base = self.learning_rate();
            let usual = |run: &Run| schedule.rate(base, run.at.epoch, run.done, &run.history);
            let own = if std::mem::take(&mut over) { 0 } else { usize::MAX };
            self.synced = false;
            let train = &self.train;
            // The rate follows from the batches before: it comes when the step begins.
            let feeds = batches.by_ref().take(own).map(|batch| {
                let batch = batch?;
                let inputs = train.inputs(&names.feed(&batch)?, Some(base))?;
                Ok(((batch.at, inputs.clone()), inputs))
            });
            let options = train.step_options(keeps_finite);
            stage_each(&*train.executable, &options, feeds, |(at, inputs), staged| {
                let rate = self.rate(usual(&run), &run, terms, observers)?;
                train.run_staged(staged, rate, &mut run.sums)?;
                run.at = Position { epoch: at.epoch, step: at.step + 1 };
                (run.done, run.rate) = (run.done + 1, Some(rate));
                let watch = TrainState { batch: Some(&inputs), ..self.watch(&run, terms) };
                observers.iter_mut().try_for_each(|o| o.batch(&watch))
            })?;
            if run.at.step == 0 {
                let reason = format!("the data have no row for epoch {}", run.at.epoch + 1);
                return Err(DataError::Setting(reason).into());
            }
            let learning_rate = run.rate.unwrap_or_else(|| usual(&run));
            let validation = self.validate(&run, terms, observers)?;
            end(&mut run, learning_rate, validation, began);
            let watch = self.watch(&run, terms);
            go_on = each(observers, |o| o.epoch(&watch))?;
        }
        Ok(run.history)
    }

    /// The loss and the metrics of the validation data, behind the last batch of an epoch.
    fn validate(
        &mut self,
        run: &Run,
        terms: &Terms,
        observers: &mut [&mut dyn Observer],
    ) -> Result<Option<Logs>, Error> {
        let Some(data) = &terms.validation else { return Ok(None) };
        self.sync()?;
        let watch = self.watch(run, terms);
        let each = || observers.iter_mut().try_for_each(|o| o.validation_batch(&watch));
        Ok(Some(self.evaluator.all(data, each)?))
    }

    /// The learning rate of the next batch.
    fn rate(
        &self,
        usual: f64,
        run: &Run,
        terms: &Terms,
        observers: &mut [&mut dyn Observer],
    ) -> Result<f64, Error> {
        let watch = self.watch(run, terms);
        let rate = observers
            .iter_mut()
            .try_fold(usual, |rate, observer| observer.learning_rate(&watch, rate))?;
        if rate.is_finite() && rate >= 0.0 {
            return Ok(rate);
        }
        let Position { epoch, step } = run.at;
        Err(TrainError::Rate { rate, epoch: epoch + 1, batch: step + 1 }.into())
    }

    fn watch<'t>(&'t self, run: &'t Run, terms: &'t Terms) -> TrainState<'t> {
        TrainState {
            at: run.at,
            done: run.done,
            rate: run.rate,
            steps: terms.data.steps(),
            rows: terms.data.rows(),
            epochs: terms.epochs,
            validated: terms.validation.is_some(),
            batch: None,
            trainer: self,
            terms: &terms.texts,
            run,
        }
    }

    /// The terms of a training, as a checkpoint holds them.
    fn texts(&self, schedule: &Schedule, data: &Loader) -> BTreeMap<String, String> {
        let LoaderOptions { batch, shuffle, seed, drop_last, steps, .. } = data.options();
        let steps = steps.map_or_else(String::new, |steps| format!(",steps={steps}"));
        let batches =
            format!("batch={batch},shuffle={shuffle},seed={seed},drop_last={drop_last}{steps}");
        let Mode { momentum, seed } = self.mode;
        let momentum = momentum.map_or_else(|| "own".to_owned(), |momentum| momentum.to_string());
        let texts = [
            ("optimizer", self.optimizer.to_string()),
            ("schedule", schedule.to_string()),
            ("batches", batches),
            ("mode", format!("seed={seed},momentum={momentum}")),
        ];
        texts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }
}

/// Ends an epoch: its numbers go into the history.
fn end(run: &mut Run, learning_rate: f64, validation: Option<Logs>, began: Instant) {
    let training = std::mem::take(&mut run.sums).logs();
    let (epoch, seconds) = (run.at.epoch, began.elapsed().as_secs_f64());
    run.history.epochs.push(Epoch { epoch, learning_rate, training, validation, seconds });
    run.at = Position { epoch: epoch + 1, step: 0 };
}
