//! Learning rates over time.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use crate::types::Quoted;

/// How the learning rate changes with the epochs: a factor of the optimizer's own rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// It does not.
    #[default]
    Constant,
    /// `factor` to the number of whole periods of `every` epochs that have passed.
    Step {
        /// The epochs of a period.
        every: u64,
        /// The factor of each.
        factor: f64,
    },
    /// `(1 - epoch / epochs)^power`: the polynomial decay that begins each epoch with a new rate.
    Polynomial {
        /// The epochs after which it is 0.
        epochs: u64,
        /// The exponent.
        power: f64,
    },
    /// `(1 + cos(pi * epoch / epochs)) / 2`, after `warmup` epochs in which it rises evenly.
    Cosine {
        /// The epochs after which it is 0.
        epochs: u64,
        /// The epochs of the rise.
        warmup: u64,
    },
}

impl Schedule {
    /// The factor of the learning rate in an epoch, from 0.
    pub fn factor(self, epoch: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Step { every, factor } => factor.powf((epoch / every.max(1)) as f64),
            Self::Polynomial { epochs, power } => {
                (1.0 - epoch.min(epochs) as f64 / epochs.max(1) as f64).powf(power)
            }
            Self::Cosine { warmup, .. } if epoch < warmup => {
                (epoch + 1) as f64 / (warmup + 1) as f64
            }
            Self::Cosine { epochs, warmup } => {
                let whole = epochs.saturating_sub(warmup).max(1);
                let past = epoch.saturating_sub(warmup).min(whole);
                f64::midpoint(1.0, (PI * past as f64 / whole as f64).cos())
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Step { every, factor } => write!(f, "step:every={every},factor={factor}"),
            Self::Polynomial { epochs, power } => {
                write!(f, "polynomial:epochs={epochs},power={power}")
            }
            Self::Cosine { epochs, warmup } => write!(f, "cosine:epochs={epochs},warmup={warmup}"),
        }
    }
}

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is no schedule; write constant, step:every=10,factor=0.5, polynomial:epochs=70,power=1 or \
     cosine:epochs=50,warmup=5",
    Quoted(.0)
)]
pub struct ParseScheduleError(String);

impl FromStr for Schedule {
    type Err = ParseScheduleError;

    fn from_str(text: &str) -> Result<Self, ParseScheduleError> {
        let wrong = || ParseScheduleError(text.to_owned());
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut given: Vec<(&str, &str)> = Vec::new();
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            given.push(setting.split_once('=').ok_or_else(wrong)?);
        }
        let mut take = |key: &str| {
            let at = given.iter().position(|(k, _)| *k == key)?;
            Some(given.remove(at).1)
        };
        let whole = |text: Option<&str>, least: u64| {
            text.and_then(|t| t.parse::<u64>().ok()).filter(|n| *n >= least).ok_or_else(wrong)
        };
        let number = |text: Option<&str>, default: f64| match text {
            None => Ok(default),
            Some(text) => {
                text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(wrong)
            }
        };
        let schedule = match name {
            "constant" => Self::Constant,
            "step" => {
                Self::Step { every: whole(take("every"), 1)?, factor: number(take("factor"), 0.1)? }
            }
            "polynomial" => Self::Polynomial {
                epochs: whole(take("epochs"), 1)?,
                power: number(take("power"), 1.0)?,
            },
            "cosine" => {
                let warmup = take("warmup").map_or(Ok(0), |text| whole(Some(text), 0))?;
                Self::Cosine { epochs: whole(take("epochs"), 1)?, warmup }
            }
            _ => return Err(wrong()),
        };
        if given.is_empty() { Ok(schedule) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn schedules_are_read_as_they_are_written() {
        for text in [
            "constant",
            "step:every=10,factor=0.5",
            "polynomial:epochs=70,power=1",
            "cosine:epochs=50,warmup=5",
        ] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "linear",
            "step",
            "step:every=0",
            "polynomial:epochs=x",
            "constant:a=1",
            "step:every",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_by_hand() {
        let poly = Schedule::Polynomial { epochs: 70, power: 1.0 };
        assert!((poly.factor(35) - 0.5).abs() < 1e-15);
        assert!(
            [poly.factor(0) - 1.0, poly.factor(70), poly.factor(99)]
                .iter()
                .all(|x| x.abs() < 1e-15)
        );
        let step = Schedule::Step { every: 2, factor: 0.5 };
        let known = [(0, 1.0), (1, 1.0), (2, 0.5), (5, 0.25)];
        assert!(known.iter().all(|(epoch, factor)| (step.factor(*epoch) - factor).abs() < 1e-15));
        let cosine = Schedule::Cosine { epochs: 6, warmup: 2 };
        assert!(
            (cosine.factor(0) - 1.0 / 3.0).abs() < 1e-15 && (cosine.factor(2) - 1.0).abs() < 1e-15
        );
        assert!((cosine.factor(4) - 0.5).abs() < 1e-15 && cosine.factor(6).abs() < 1e-15);
    }
}
