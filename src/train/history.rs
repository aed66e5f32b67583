//! Training history: losses and metrics of epochs.

use serde::{Deserialize, Serialize};

/// The loss and the metrics of some rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logs {
    /// The rows.
    pub rows: u64,
    /// The mean loss.
    #[serde(with = "any_number")]
    pub loss: f64,
    /// The metrics with their names.
    #[serde(with = "named_numbers")]
    pub metrics: Vec<(String, f64)>,
}

/// A number in a file, which JSON holds as a text where it is not finite.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Number {
    /// A finite one.
    Finite(f64),
    /// Another as it is printed.
    Other(String),
}

impl From<f64> for Number {
    fn from(x: f64) -> Self {
        if x.is_finite() { Self::Finite(x) } else { Self::Other(x.to_string()) }
    }
}

impl TryFrom<Number> for f64 {
    type Error = std::num::ParseFloatError;
    fn try_from(number: Number) -> Result<Self, Self::Error> {
        match number {
            Number::Finite(x) => Ok(x),
            Number::Other(text) => text.parse(),
        }
    }
}

mod any_number {
    use super::Number;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    pub(super) fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        Number::from(*x).serialize(serializer)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<f64, D::Error> {
        Number::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

mod named_numbers {
    use super::Number;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        all: &[(String, f64)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(all.iter().map(|(name, x)| (name, Number::from(*x))))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Vec<(String, f64)>, D::Error> {
        let read = |(name, x): (String, Number)| x.try_into().map(|x| (name, x));
        let all = Vec::<(String, Number)>::deserialize(deserializer)?;
        all.into_iter().map(read).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

/// Sums from which logs are made: those of batches add up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// The rows.
    pub(super) rows: u64,
    /// The loss times rows.
    pub(super) loss: f64,
    /// The metrics, each with what it sums and what divides it.
    pub(super) metrics: Vec<(String, Vec<f64>, Vec<f64>)>,
}

impl Sums {
    /// Adds a batch: its rows, its mean loss, and of each metric the sum and what divides it, or
    /// the weights of positive targets and of the others between thresholds.
    pub(super) fn add(&mut self, rows: u64, loss: f64, metrics: &[(String, Vec<f64>, Vec<f64>)]) {
        self.rows = self.rows.saturating_add(rows);
        self.loss += loss * rows as f64;
        if self.metrics.is_empty() {
            self.metrics = metrics.to_vec();
            return;
        }
        let plus = |sums: &mut [f64], more: &[f64]| {
            sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        };
        for (sum, (_, totals, counts)) in self.metrics.iter_mut().zip(metrics) {
            plus(&mut sum.1, totals);
            plus(&mut sum.2, counts);
        }
    }

    /// The losses and metrics of the sums.
    pub(super) fn logs(&self) -> Logs {
        Logs {
            rows: self.rows,
            loss: share(self.loss, self.rows as f64),
            metrics: self.metrics.iter().map(|(n, t, c)| (n.clone(), told(t, c))).collect(),
        }
    }
}

/// `total / count`, of nothing 0.
fn share(total: f64, count: f64) -> f64 {
    if count == 0.0 { 0.0 } else { total / count }
}

/// What a metric says: the ratio of its sums, or the area under the curve of weights between
/// thresholds.
fn told(totals: &[f64], counts: &[f64]) -> f64 {
    match (totals, counts) {
        ([total], [count]) => share(*total, *count),
        _ => area(totals, counts),
    }
}

/// The area under the curve of the part of positive targets above a threshold over that of the
/// others, from the weights of both between one threshold and the next: a sum of trapezia, as Keras
/// has it.
fn area(yes: &[f64], no: &[f64]) -> f64 {
    let (all_yes, all_no): (f64, f64) = (yes.iter().sum(), no.iter().sum());
    let (mut area, mut above) = (0.0, (0.0, 0.0));
    let mut last = (0.0, 0.0);
    for (yes, no) in yes.iter().zip(no).rev() {
        above = (above.0 + yes, above.1 + no);
        let next = (share(above.0, all_yes), share(above.1, all_no));
        area += (next.1 - last.1) * f64::midpoint(next.0, last.0);
        last = next;
    }
    area
}

/// One epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number, from 0.
    pub epoch: u64,
    /// The learning rate of its steps.
    pub learning_rate: f64,
    /// The training logs, each batch evaluated before its step.
    pub training: Logs,
    /// The logs of the validation data after it.
    pub validation: Option<Logs>,
    /// Its duration in seconds.
    pub seconds: f64,
}

impl Epoch {
    /// The names and numbers that it tells, in order: those of validation begin with `val_`.
    pub(crate) fn numbers(&self) -> Vec<(String, f64)> {
        let of = |logs: &Logs, before: &str| {
            let metrics = logs.metrics.iter().map(|(name, x)| (format!("{before}{name}"), *x));
            std::iter::once((format!("{before}loss"), logs.loss)).chain(metrics).collect::<Vec<_>>()
        };
        let mut all = of(&self.training, "");
        all.extend(self.validation.iter().flat_map(|logs| of(logs, "val_")));
        all.push(("learning_rate".to_owned(), self.learning_rate));
        all
    }

    /// The number of this name.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.numbers().into_iter().find(|(own, _)| own == name).map(|(_, x)| x)
    }
}

/// The epochs of a training, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The epochs.
    pub epochs: Vec<Epoch>,
}

impl History {
    /// A table with a line for each epoch, numbered from 1: comma-separated, with a head. A number
    /// that an epoch lacks is an empty cell.
    pub fn csv(&self) -> String {
        let most = self.epochs.iter().max_by_key(|epoch| epoch.numbers().len());
        let Some(most) = most else { return String::new() };
        let names: Vec<String> = most.numbers().into_iter().map(|(name, _)| name).collect();
        let head = format!("epoch,{}\n", names.join(","));
        let lines = self.epochs.iter().map(|epoch| {
            let cell = |name: &String| epoch.get(name).map_or_else(String::new, |x| x.to_string());
            let cells: Vec<String> = names.iter().map(cell).collect();
            format!("{},{}\n", epoch.epoch + 1, cells.join(","))
        });
        std::iter::once(head).chain(lines).collect()
    }
}
