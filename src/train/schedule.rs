//! Learning rates over time.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use super::{History, Monitor};
use crate::types::Quoted;

/// How the learning rate changes with the epochs: a factor of the optimizer's own rate. In `warmup` epochs before, it
/// rises evenly.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// It does not.
    #[default]
    Constant,
    /// It does not once it has risen.
    Warmup {
        /// The epochs of the rise.
        warmup: u64,
    },
    /// `factor` to the number of whole periods of `every` epochs that have passed since the rise.
    Step {
        /// The epochs of a period.
        every: u64,
        /// The factor of each.
        factor: f64,
        /// The epochs of the rise.
        warmup: u64,
    },
    /// `end + (1 - end) * (1 - past)^power`, where `past` is the part of the epochs after the rise that is over: the
    /// polynomial decay that begins each epoch with a new rate.
    Polynomial {
        /// The epochs after which it is `end`, with those of the rise.
        epochs: u64,
        /// The exponent.
        power: f64,
        /// The part of the rate that is left in the end.
        end: f64,
        /// The epochs of the rise.
        warmup: u64,
    },
    /// `end + (1 - end) * (1 + cos(pi * past)) / 2`.
    Cosine {
        /// The epochs after which it is `end`, with those of the rise.
        epochs: u64,
        /// The part of the rate that is left in the end.
        end: f64,
        /// The epochs of the rise.
        warmup: u64,
    },
    /// It falls when a number has not improved for some epochs.
    Plateau(Plateau),
}

/// A learning rate that falls when a number of the epochs has not improved for some time, as Keras'
/// `ReduceLROnPlateau`. It follows from the history alone, so that a training that is resumed goes on with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    /// The number: `val_loss`, `accuracy` …
    pub monitor: String,
    /// Whether larger numbers are better.
    pub largest: bool,
    /// By what the rate is multiplied.
    pub factor: f64,
    /// The epochs without improvement before it falls.
    pub patience: u64,
    /// The least change that is an improvement.
    pub min_delta: f64,
    /// The epochs after a fall that are not counted.
    pub cooldown: u64,
    /// The rate below which it does not fall.
    pub min_rate: f64,
}

impl Default for Plateau {
    /// Keras' settings.
    fn default() -> Self {
        Self {
            monitor: "val_loss".to_owned(),
            largest: false,
            factor: 0.1,
            patience: 10,
            min_delta: 1e-4,
            cooldown: 0,
            min_rate: 0.0,
        }
    }
}

impl Plateau {
    /// The rate after these epochs, of which the first had `rate`.
    pub fn rate(&self, rate: f64, history: &History) -> f64 {
        let (mut rate, mut best) = (rate, None);
        let (mut wait, mut cooling) = (0, 0);
        for now in history.epochs.iter().filter_map(|epoch| epoch.get(&self.monitor)) {
            if cooling > 0 {
                (cooling, wait) = (cooling - 1, 0);
            }
            let better = |best: f64| {
                if self.largest { now - self.min_delta > best } else { now + self.min_delta < best }
            };
            let improved = !now.is_nan() && best.is_none_or(better);
            if improved {
                (best, wait) = (Some(now), 0);
            } else if cooling == 0 {
                wait += 1;
                if wait >= self.patience && rate > self.min_rate {
                    rate = (rate * self.factor).max(self.min_rate);
                    (cooling, wait) = (self.cooldown, 0);
                }
            }
        }
        rate
    }
}

impl Schedule {
    /// The learning rate of an epoch, from 0, after those of the history; `base` is the optimizer's own.
    pub fn rate(&self, base: f64, epoch: u64, history: &History) -> f64 {
        if let Self::Plateau(plateau) = self {
            plateau.rate(base, history)
        } else {
            base * self.factor(epoch)
        }
    }

    /// The epochs of the rise.
    fn warmup(&self) -> u64 {
        match self {
            Self::Warmup { warmup }
            | Self::Step { warmup, .. }
            | Self::Polynomial { warmup, .. }
            | Self::Cosine { warmup, .. } => *warmup,
            Self::Constant | Self::Plateau(_) => 0,
        }
    }

    /// The factor of the learning rate in an epoch, from 0, where it depends on nothing else.
    pub fn factor(&self, epoch: u64) -> f64 {
        let warmup = self.warmup();
        if epoch < warmup {
            return (epoch as f64 + 1.0) / (warmup as f64 + 1.0);
        }
        let since = epoch - warmup;
        let past = |epochs: u64| {
            let whole = epochs.saturating_sub(warmup).max(1);
            since.min(whole) as f64 / whole as f64
        };
        match *self {
            Self::Constant | Self::Warmup { .. } | Self::Plateau(_) => 1.0,
            Self::Step { every, factor, .. } => factor.powf((since / every.max(1)) as f64),
            Self::Polynomial { epochs, power, end, .. } => {
                end + (1.0 - end) * (1.0 - past(epochs)).powf(power)
            }
            Self::Cosine { epochs, end, .. } => {
                end + (1.0 - end) * f64::midpoint(1.0, (PI * past(epochs)).cos())
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant")?,
            Self::Warmup { warmup } => return write!(f, "constant:warmup={warmup}"),
            Self::Step { every, factor, .. } => write!(f, "step:every={every},factor={factor}")?,
            Self::Polynomial { epochs, power, end, .. } => {
                write!(f, "polynomial:epochs={epochs},power={power},end={end}")?;
            }
            Self::Cosine { epochs, end, .. } => write!(f, "cosine:epochs={epochs},end={end}")?,
            Self::Plateau(plateau) => return plateau.fmt(f),
        }
        match self.warmup() {
            0 => Ok(()),
            warmup => write!(f, ",warmup={warmup}"),
        }
    }
}

impl fmt::Display for Plateau {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { monitor, factor, patience, min_delta, cooldown, min_rate, .. } = self;
        let mode = if self.largest { "max" } else { "min" };
        write!(
            f,
            "plateau:monitor={monitor},mode={mode},factor={factor},patience={patience},min_delta={min_delta},\
             cooldown={cooldown},min_rate={min_rate}"
        )
    }
}

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is no schedule; write constant, step:every=10,factor=0.5, polynomial:epochs=70,power=1, \
     cosine:epochs=50,warmup=5 or plateau:monitor=val_loss,factor=0.1,patience=10",
    Quoted(.0)
)]
pub struct ParseScheduleError(String);

/// The settings of a schedule that were not read yet.
struct Settings<'a> {
    text: &'a str,
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    fn wrong(&self) -> ParseScheduleError {
        ParseScheduleError(self.text.to_owned())
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.given.iter().position(|(k, _)| *k == key)?;
        Some(self.given.remove(at).1)
    }

    fn whole(&mut self, key: &str, least: u64, or: Option<u64>) -> Result<u64, ParseScheduleError> {
        let read = |text: &str| text.parse().ok().filter(|n| *n >= least);
        self.take(key).map_or(or, read).ok_or_else(|| self.wrong())
    }

    fn number(&mut self, key: &str, most: f64, or: f64) -> Result<f64, ParseScheduleError> {
        let read = |text: &str| {
            text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0 && *x <= most)
        };
        self.take(key).map_or(Some(or), read).ok_or_else(|| self.wrong())
    }

    fn plateau(&mut self) -> Result<Plateau, ParseScheduleError> {
        let usual = Plateau::default();
        let monitor = self.take("monitor").map_or(usual.monitor, str::to_owned);
        let largest = match self.take("mode") {
            None | Some("auto") => Monitor::new(&*monitor).more,
            Some("max") => true,
            Some("min") => false,
            Some(_) => return Err(self.wrong()),
        };
        let factor = self.number("factor", 1.0, usual.factor)?;
        Ok(Plateau {
            monitor,
            largest,
            factor: if factor < 1.0 { factor } else { return Err(self.wrong()) },
            patience: self.whole("patience", 0, Some(usual.patience))?,
            min_delta: self.number("min_delta", f64::MAX, usual.min_delta)?,
            cooldown: self.whole("cooldown", 0, Some(usual.cooldown))?,
            min_rate: self.number("min_rate", f64::MAX, usual.min_rate)?,
        })
    }
}

impl FromStr for Schedule {
    type Err = ParseScheduleError;

    /// Reads a name and settings: `polynomial:epochs=70,power=1`, `plateau:monitor=val_loss,factor=0.5,patience=3`.
    fn from_str(text: &str) -> Result<Self, ParseScheduleError> {
        let wrong = || ParseScheduleError(text.to_owned());
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut given: Vec<(&str, &str)> = Vec::new();
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            given.push(setting.split_once('=').ok_or_else(wrong)?);
        }
        let mut settings = Settings { text, given };
        let schedule = if name == "plateau" {
            Self::Plateau(settings.plateau()?)
        } else {
            let warmup = settings.whole("warmup", 0, Some(0))?;
            match name {
                "constant" if warmup == 0 => Self::Constant,
                "constant" => Self::Warmup { warmup },
                "step" => Self::Step {
                    every: settings.whole("every", 1, None)?,
                    factor: settings.number("factor", f64::MAX, 0.1)?,
                    warmup,
                },
                "polynomial" => Self::Polynomial {
                    epochs: settings.whole("epochs", 1, None)?,
                    power: settings.number("power", f64::MAX, 1.0)?,
                    end: settings.number("end", 1.0, 0.0)?,
                    warmup,
                },
                "cosine" => Self::Cosine {
                    epochs: settings.whole("epochs", 1, None)?,
                    end: settings.number("end", 1.0, 0.0)?,
                    warmup,
                },
                _ => return Err(wrong()),
            }
        };
        if settings.given.is_empty() { Ok(schedule) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Epoch, History, Logs};
    use super::Schedule;

    #[test]
    fn schedules_are_read_as_they_are_written() {
        for text in [
            "constant",
            "step:every=10,factor=0.5",
            "constant:warmup=3",
            "polynomial:epochs=70,power=1,end=0",
            "polynomial:epochs=70,power=2,end=0.1,warmup=4",
            "cosine:epochs=50,end=0,warmup=5",
            "plateau:monitor=accuracy,mode=max,factor=0.5,patience=3,min_delta=0,cooldown=1,min_rate=0.001",
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
            "cosine:epochs=5,end=2",
            "plateau:factor=1",
            "plateau:mode=best",
            "plateau:epochs=4",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_by_hand() {
        let poly = Schedule::Polynomial { epochs: 70, power: 1.0, end: 0.0, warmup: 0 };
        assert!((poly.factor(35) - 0.5).abs() < 1e-15);
        assert!(
            [poly.factor(0) - 1.0, poly.factor(70), poly.factor(99)]
                .iter()
                .all(|x| x.abs() < 1e-15)
        );
        let step = Schedule::Step { every: 2, factor: 0.5, warmup: 0 };
        let known = [(0, 1.0), (1, 1.0), (2, 0.5), (5, 0.25)];
        assert!(known.iter().all(|(epoch, factor)| (step.factor(*epoch) - factor).abs() < 1e-15));
        let cosine = Schedule::Cosine { epochs: 6, end: 0.0, warmup: 2 };
        assert!(
            (cosine.factor(0) - 1.0 / 3.0).abs() < 1e-15 && (cosine.factor(2) - 1.0).abs() < 1e-15
        );
        assert!((cosine.factor(4) - 0.5).abs() < 1e-15 && cosine.factor(6).abs() < 1e-15);
    }

    #[test]
    fn rates_rise_and_end() {
        let texts = [
            "step:every=2,factor=0.5,warmup=3",
            "polynomial:epochs=7,end=0.2,warmup=3",
            "constant:warmup=3",
        ];
        for (text, last) in texts.into_iter().zip([0.25, 0.2, 1.0]) {
            let schedule: Schedule = text.parse().unwrap();
            let rates: Vec<f64> = (0..8).map(|epoch| schedule.factor(epoch)).collect();
            assert_eq!(rates[..4], [0.25, 0.5, 0.75, 1.0], "{text}");
            assert!((rates[7] - last).abs() < 1e-15, "{text}: {rates:?}");
        }
    }

    #[test]
    fn a_plateau_falls_after_its_patience_and_not_below_its_least_rate() {
        let schedule: Schedule =
            "plateau:monitor=loss,factor=0.5,patience=2,cooldown=1,min_rate=0.3,min_delta=0.1"
                .parse()
                .unwrap();
        // The best one is 1, to which 0.95 is too near; one epoch cools down after each fall.
        let losses = [2.0, 1.0, 0.95, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5];
        let rates = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3];
        let mut history = History::default();
        for (epoch, expected) in (0..).zip(rates) {
            let found = schedule.rate(1.0, epoch, &history);
            assert!((found - expected).abs() < 1e-15, "epoch {epoch}: {found}");
            let loss = losses.get(history.epochs.len()).copied().unwrap_or(0.0);
            let training = Logs { loss, ..Logs::default() };
            history.epochs.push(Epoch { epoch, training, ..Epoch::default() });
        }
    }
}
