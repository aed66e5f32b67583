//! Learning rates of Keras that follow the number of batches.

use std::f64::consts::PI;

use serde_json::Value as Json;

use crate::types::{ParseValueError, Quoted};

/// A schedule of Keras: the learning rate of each batch. Formulas are those of Keras 3.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decay {
    /// The rate at the beginning.
    pub(super) initial: f64,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Exponential { steps: f64, rate: f64, staircase: bool },
    Inverse { steps: f64, rate: f64, staircase: bool },
    Polynomial { steps: f64, end: f64, power: f64, cycle: bool },
    Pieces { bounds: Vec<f64>, values: Vec<f64> },
    Cosine { steps: f64, alpha: f64, warmup: Option<(f64, f64)> },
    Restarts { steps: f64, t: f64, m: f64, alpha: f64 },
}

impl Decay {
    /// The schedule of an object of `keras.optimizers.schedules`.
    pub(super) fn read(object: &Json) -> Result<Self, ParseValueError> {
        let unnamed =
            || ParseValueError::new("a schedule of the learning rate has no class".to_owned());
        let class = object.get("class_name").and_then(Json::as_str).ok_or_else(unnamed)?;
        let wrong = || {
            ParseValueError::new(format!(
                "the schedule {} of the learning rate is not supported",
                Quoted(class)
            ))
        };
        let config = object.get("config").ok_or_else(wrong)?;
        let number = |name: &str| config.get(name).and_then(Json::as_f64);
        let some = |name: &str| number(name).ok_or_else(wrong);
        let positive = |name: &str| number(name).filter(|x| *x > 0.0).ok_or_else(wrong);
        // Keras' own default.
        let alpha = number("alpha").unwrap_or(0.0);
        let flag = |name: &str| config.get(name).and_then(Json::as_bool).unwrap_or(false);
        let list = |name: &str| {
            let all = config.get(name).and_then(Json::as_array).ok_or_else(wrong)?;
            all.iter().map(|x| x.as_f64().ok_or_else(wrong)).collect::<Result<Vec<f64>, _>>()
        };
        let kind = match class {
            "ExponentialDecay" => {
                let (steps, rate) = (positive("decay_steps")?, some("decay_rate")?);
                Kind::Exponential { steps, rate, staircase: flag("staircase") }
            }
            "InverseTimeDecay" => {
                let (steps, rate) = (positive("decay_steps")?, some("decay_rate")?);
                Kind::Inverse { steps, rate, staircase: flag("staircase") }
            }
            "PolynomialDecay" => {
                let (end, power) = (some("end_learning_rate")?, some("power")?);
                let steps = positive("decay_steps")?;
                Kind::Polynomial { steps, end, power, cycle: flag("cycle") }
            }
            "PiecewiseConstantDecay" => {
                let (bounds, values) = (list("boundaries")?, list("values")?);
                if values.len() != bounds.len() + 1 {
                    return Err(wrong());
                }
                Kind::Pieces { bounds, values }
            }
            "CosineDecay" => {
                let steps = positive("decay_steps")?;
                let rise = number("warmup_target").zip(number("warmup_steps"));
                Kind::Cosine { steps, alpha, warmup: rise.filter(|(_, steps)| *steps > 0.0) }
            }
            "CosineDecayRestarts" => {
                let steps = positive("first_decay_steps")?;
                let (t, m) = (positive("t_mul")?, some("m_mul")?);
                Kind::Restarts { steps, t, m, alpha }
            }
            _ => return Err(wrong()),
        };
        let initial = match &kind {
            Kind::Pieces { values, .. } => values[0],
            _ => some("initial_learning_rate")?,
        };
        let sound = initial.is_finite() && initial >= 0.0;
        sound.then_some(Self { initial, kind }).ok_or_else(wrong)
    }

    /// `initial / (1 + decay * batches)`, the `decay` of old optimizers.
    pub(super) const fn inverse(initial: f64, rate: f64) -> Self {
        Self { initial, kind: Kind::Inverse { steps: 1.0, rate, staircase: false } }
    }

    /// The learning rate after this number of batches.
    pub(crate) fn rate(&self, batches: u64) -> f64 {
        let (at, initial) = (batches as f64, self.initial);
        let past = |steps: f64, staircase: bool| {
            let past = at / steps;
            if staircase { past.floor() } else { past }
        };
        match &self.kind {
            Kind::Exponential { steps, rate, staircase } => {
                initial * rate.powf(past(*steps, *staircase))
            }
            Kind::Inverse { steps, rate, staircase } => {
                initial / (1.0 + rate * past(*steps, *staircase))
            }
            Kind::Polynomial { steps, end, power, cycle } => {
                let times = if *cycle && at > 0.0 { (at / steps).ceil() } else { 1.0 };
                let steps = steps * times;
                let at = if *cycle { at } else { at.min(steps) };
                (initial - end) * (1.0 - at / steps).powf(*power) + end
            }
            Kind::Pieces { bounds, values } => {
                values[bounds.iter().take_while(|bound| at > **bound).count()]
            }
            Kind::Cosine { steps, alpha, warmup } => match warmup {
                Some((target, rise)) if at < *rise => initial + (target - initial) * at / rise,
                _ => {
                    let (top, before) = warmup.unwrap_or((initial, 0.0));
                    let past = (at - before).min(*steps) / steps;
                    top * ((1.0 - alpha) * f64::midpoint(1.0, (PI * past).cos()) + alpha)
                }
            },
            Kind::Restarts { steps, t, m, alpha } => {
                let (mut past, mut times) = (at / steps, (at / steps).floor());
                if (t - 1.0).abs() < f64::EPSILON {
                    past -= times;
                } else {
                    times = ((1.0 - past * (1.0 - t)).ln() / t.ln()).floor();
                    past = (past - (1.0 - t.powf(times)) / (1.0 - t)) / t.powf(times);
                }
                let part = 0.5 * m.powf(times) * (1.0 + (PI * past).cos());
                initial * ((1.0 - alpha) * part + alpha)
            }
        }
    }
}
