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

/// The settings of a schedule.
struct Settings<'j> {
    class: &'j str,
    config: &'j Json,
}

impl Settings<'_> {
    fn wrong(&self) -> ParseValueError {
        let class = Quoted(self.class);
        ParseValueError::new(format!("the schedule {class} of the learning rate is not supported"))
    }

    fn opt(&self, name: &str) -> Option<f64> {
        self.config.get(name).and_then(Json::as_f64)
    }

    fn number(&self, name: &str) -> Result<f64, ParseValueError> {
        self.opt(name).ok_or_else(|| self.wrong())
    }

    fn positive(&self, name: &str) -> Result<f64, ParseValueError> {
        self.opt(name).filter(|x| *x > 0.0).ok_or_else(|| self.wrong())
    }

    /// A truth value, which is false where it is not stated, as in Keras.
    fn flag(&self, name: &str) -> bool {
        self.config.get(name) == Some(&Json::Bool(true))
    }

    fn list(&self, name: &str) -> Result<Vec<f64>, ParseValueError> {
        let all = self.config.get(name).and_then(Json::as_array).ok_or_else(|| self.wrong())?;
        all.iter().map(|x| x.as_f64().ok_or_else(|| self.wrong())).collect()
    }
}

impl Kind {
    fn read(of: &Settings<'_>) -> Result<Self, ParseValueError> {
        // Keras' own default.
        let alpha = of.opt("alpha").unwrap_or(0.0);
        Ok(match of.class {
            "ExponentialDecay" => {
                let (steps, rate) = (of.positive("decay_steps")?, of.number("decay_rate")?);
                Self::Exponential { steps, rate, staircase: of.flag("staircase") }
            }
            "InverseTimeDecay" => {
                let (steps, rate) = (of.positive("decay_steps")?, of.number("decay_rate")?);
                Self::Inverse { steps, rate, staircase: of.flag("staircase") }
            }
            "PolynomialDecay" => {
                let (end, power) = (of.number("end_learning_rate")?, of.number("power")?);
                let steps = of.positive("decay_steps")?;
                Self::Polynomial { steps, end, power, cycle: of.flag("cycle") }
            }
            "PiecewiseConstantDecay" => {
                let (bounds, values) = (of.list("boundaries")?, of.list("values")?);
                if values.len() != bounds.len() + 1 {
                    return Err(of.wrong());
                }
                Self::Pieces { bounds, values }
            }
            "CosineDecay" => {
                let steps = of.positive("decay_steps")?;
                let rise = of.opt("warmup_target").zip(of.opt("warmup_steps"));
                Self::Cosine { steps, alpha, warmup: rise.filter(|(_, steps)| *steps > 0.0) }
            }
            "CosineDecayRestarts" => {
                let steps = of.positive("first_decay_steps")?;
                let (t, m) = (of.positive("t_mul")?, of.number("m_mul")?);
                Self::Restarts { steps, t, m, alpha }
            }
            _ => return Err(of.wrong()),
        })
    }
}

impl Decay {
    /// The schedule of an object of `keras.optimizers.schedules`.
    pub(super) fn read(object: &Json) -> Result<Self, ParseValueError> {
        let unnamed =
            || ParseValueError::new("a schedule of the learning rate has no class".to_owned());
        let class = object.get("class_name").and_then(Json::as_str).ok_or_else(unnamed)?;
        let of = Settings { class, config: &object["config"] };
        let kind = Kind::read(&of)?;
        let initial = match &kind {
            Kind::Pieces { values, .. } => values[0],
            _ => of.number("initial_learning_rate")?,
        };
        let sound = initial.is_finite() && initial >= 0.0;
        sound.then_some(Self { initial, kind }).ok_or_else(|| of.wrong())
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
