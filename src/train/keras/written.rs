//! How a model was trained, in the form of Keras.

use serde_json::{Map, Value as Json, json};

use super::slots::{self, Entry};
use super::{Compiled, metric, objective, optimizer};
use crate::format::keras::{Learned, Slots};
use crate::ir::Weights;
use crate::model::ModelError;
use crate::op::converted;
use crate::pass::{EpsilonPlace, Metric, OutputLoss, Rule, Training};
use crate::types::invariant::invariant;
use crate::types::{DType, ParseValueError, Tensor};

/// What a training took from the file, and what it was told instead.
pub(crate) struct Written<'a> {
    /// The training.
    pub(crate) training: &'a Training,
    /// Whether the losses are those of the file.
    pub(crate) own_loss: bool,
    /// Whether the metrics are, and those that weigh rows.
    pub(crate) own_metrics: [bool; 2],
    /// Whether the optimizer is.
    pub(crate) own_optimizer: bool,
    /// The learning rate; `None` if the schedule of the file gives it.
    pub(crate) rate: Option<f64>,
}

impl Written<'_> {
    /// Fails if Keras has no such optimizer.
    ///
    /// # Errors
    /// Then.
    pub(crate) fn check(&self) -> Result<(), ParseValueError> {
        let outside = matches!(
            self.training.optimizer.rule,
            Rule::RmsProp { place: EpsilonPlace::Outside, .. }
                | Rule::Adagrad { place: EpsilonPlace::Outside, .. }
        );
        if outside && !self.own_optimizer {
            let name = self.training.optimizer.name();
            let reason = format!("Keras 3 has no {name} whose epsilon lies outside of the root");
            return Err(ParseValueError::new(reason));
        }
        Ok(())
    }
}

impl Compiled {
    /// The bytes of the file after a training with these weights, and these variables of the
    /// optimizer.
    ///
    /// # Errors
    /// If the file is damaged, or has no weights.
    pub(crate) fn written(
        &self,
        new: &Written<'_>,
        weights: &Weights,
        variables: &Weights,
    ) -> Result<Vec<u8>, ModelError> {
        let compiled = self.config(new);
        let optimizer = &compiled["optimizer"]["config"]["name"];
        let usual = optimizer::label(new.training.optimizer.name());
        let name = optimizer.as_str().unwrap_or(usual).to_owned();
        let slots = self.new_slots(new, weights, variables)?;
        let learned = Learned { name, compiled, slots };
        self.file.file(weights, Some(&learned), self.max_memory)
    }

    fn config(&self, new: &Written<'_>) -> Json {
        let Training { losses, optimizer, .. } = new.training;
        let reader = self.file.reader();
        let mut config = reader.compiled().as_object().cloned().unwrap_or_else(|| {
            let empty =
                ["loss_weights", "metrics", "weighted_metrics"].map(|key| (key, Json::Null));
            let usual = [("run_eagerly", json!(false)), ("steps_per_execution", json!(1))];
            let all = empty.into_iter().chain(usual).chain([("jit_compile", json!("auto"))]);
            all.map(|(key, value)| (key.to_owned(), value)).collect()
        });
        let mut set = |key: &str, value: Json| {
            config.insert(key.to_owned(), value);
        };
        if !new.own_loss {
            set("loss", each(losses, objective::write));
            let is_weighted = losses.iter().any(|loss| (loss.weight - 1.0).abs() > 0.0);
            let weights = each(losses, |loss| json!(loss.weight));
            let weights = if losses.len() == 1 { json!([losses[0].weight]) } else { weights };
            set("loss_weights", if is_weighted { weights } else { Json::Null });
        }
        let lists = [("metrics", false), ("weighted_metrics", true)];
        for ((key, weighted), _) in lists.into_iter().zip(new.own_metrics).filter(|(_, own)| !own) {
            let of = |loss: &OutputLoss| {
                let (own, all) = if weighted {
                    (&loss.weighted_metrics, &new.training.weighted_metrics)
                } else {
                    (&loss.metrics, &new.training.metrics)
                };
                let write = |found: &Metric| metric::write(found, &loss.loss);
                Json::from(all.iter().chain(own).map(write).collect::<Vec<_>>())
            };
            set(key, each(losses, of));
        }
        if !new.own_optimizer {
            let written = optimizer::write(optimizer, reader.is_before_3());
            set("optimizer", invariant(written, "that Keras has an optimizer that was checked"));
        }
        if let Some(rate) = new.rate
            && let Some(settings) = config
                .get_mut("optimizer")
                .and_then(|found| found.get_mut("config"))
                .and_then(Json::as_object_mut)
        {
            // Versions before tf.keras know the old name only.
            let is_old = settings.remove("lr").is_some() && !settings.contains_key("learning_rate");
            let name = if is_old { "lr" } else { "learning_rate" };
            settings.insert(name.to_owned(), json!(rate));
            settings.remove("decay");
        }
        Json::Object(config)
    }

    /// The variables of the optimizer in Keras' order.
    fn new_slots(
        &self,
        new: &Written<'_>,
        weights: &Weights,
        variables: &Weights,
    ) -> Result<Slots, ModelError> {
        let (optimizer, has_decay) = (&new.training.optimizer, new.rate.is_none());
        let names = self.names();
        let old = if new.own_optimizer { self.slots()? } else { Slots::default() };
        let scheduled = self.optimizer().ok().flatten().is_some_and(|(_, decay)| decay.is_some());
        let same = if scheduled == has_decay {
            slots::assigned(&old, optimizer, &names, has_decay)
        } else {
            None
        };
        let kept = same.is_some();
        let entries = same.unwrap_or_else(|| slots::order(optimizer, &names, has_decay));
        let mut tensors = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let before = old.tensors.get(at).filter(|_| kept);
            let now = match entry {
                Entry::Rate => new.rate.map(single),
                // The average of a weight that was not trained is that weight.
                Entry::Variable(name) => variables.get(name).cloned().or_else(|| {
                    let of = name.strip_prefix("optimizer.average.")?;
                    weights.get(of).filter(|_| before.is_none()).cloned()
                }),
                Entry::Other => None,
            };
            let tensor = match (now, before) {
                (Some(now), Some(before)) => converted(&now, before.dtype()).unwrap_or(now),
                (Some(now), None) if now.dtype() == DType::F64 && now.dims().is_empty() => {
                    converted(&now, DType::F32).unwrap_or(now)
                }
                (Some(now), None) => now,
                (None, Some(before)) => before.clone(),
                (None, None) => self.initial(entry, new),
            };
            tensors.push(tensor);
        }
        Ok(Slots { names: old.names.filter(|_| kept), tensors })
    }

    /// What a variable of the optimizer is before the first batch.
    fn initial(&self, entry: &Entry, new: &Written<'_>) -> Tensor {
        let Entry::Variable(variable) = entry else { return Tensor::scalar(0.0f32) };
        let slots = new.training.optimizer.slots();
        let part = variable.strip_prefix("optimizer.");
        let part = invariant(part, "that variables of optimizers have their prefix");
        let of = |slot: &str| part.strip_prefix(slot).and_then(|rest| rest.strip_prefix('.'));
        let kinds = slots.into_iter().chain([("average", 0.0), ("gradient_accumulator", 0.0)]);
        let found =
            kinds.filter_map(|(slot, first)| Some((of(slot)?, first))).find_map(|(name, first)| {
                let (_, ty) = self.trained.iter().find(|(own, _)| **own == *name)?;
                Tensor::zeros(ty.dtype, &ty.shape.as_const()?).ok().map(|zero| (zero, first))
            });
        let Some((mut zero, first)) = found else { return Tensor::scalar(0i64) };
        if first != 0.0 && zero.dtype() == DType::F32 {
            zero.as_mut_slice::<f32>().fill(rounded(first));
        }
        zero
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to the type of the variable")]
const fn rounded(number: f64) -> f32 {
    number as f32
}

fn single(number: f64) -> Tensor {
    Tensor::scalar(rounded(number))
}

/// What is of each output by its name, or of the only one alone.
fn each(losses: &[OutputLoss], of: impl Fn(&OutputLoss) -> Json) -> Json {
    if let [one] = losses {
        return of(one);
    }
    let all: Map<String, Json> =
        losses.iter().map(|loss| (loss.output.clone(), of(loss))).collect();
    Json::Object(all)
}
