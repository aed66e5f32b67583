//! Learning rates over time.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use super::{History, Monitor};
use crate::types::{ParseValueError, Quoted, closest};

/// A schedule of the learning rate: a factor of the optimizer's own rate.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// It does not.
    #[default]
    Constant,
    /// It follows a curve.
    Curve(Curve),
    /// It falls when a number has not improved for some epochs.
    Plateau(Plateau),
}

/// A learning rate that depends on the time alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// Its shape after the warm-up.
    pub shape: Shape,
    /// The time of the rise: before it, the rate rises evenly.
    pub warmup: u64,
    /// The unit of time.
    pub per: Per,
}

/// The form of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Shape {
    /// It stays where it is.
    Constant,
    /// `factor` to the number of whole periods that have passed since the rise.
    Step {
        /// The time of a period.
        every: u64,
        /// The factor of each.
        factor: f64,
    },
    /// `end + (1 - end) * (1 - past)^power`, where `past` is the part of the time after the rise
    /// that is over.
    Polynomial {
        /// The time after which it is `end`, with that of the rise.
        length: u64,
        /// The exponent.
        power: f64,
        /// The part of the rate that is left in the end.
        end: f64,
    },
    /// `end + (1 - end) * (1 + cos(pi * past)) / 2`.
    Cosine {
        /// The time after which it is `end`, with that of the rise.
        length: u64,
        /// The part of the rate that is left in the end.
        end: f64,
    },
}

/// The unit of time of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// Epochs: all batches of one have the same rate.
    #[default]
    Epoch,
    /// Batches, over all epochs.
    Step,
}

/// A learning rate that falls when a number of the epochs has not improved for some time, as Keras'
/// `ReduceLROnPlateau`. It follows from the history alone, so that a training that is resumed goes
/// on with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    /// The number: `val_loss`, `accuracy` …
    pub monitor: String,
    /// True if larger numbers are better.
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
    pub(crate) fn rate(&self, rate: f64, history: &History) -> f64 {
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
    /// The learning rate of the next batch: of epoch `epoch`, from 0, with `done` batches before it
    /// in all epochs, after the epochs of the history; `base` is the optimizer's own.
    pub fn rate(&self, base: f64, epoch: u64, done: u64, history: &History) -> f64 {
        match self {
            Self::Constant => base,
            Self::Curve(curve) => {
                base * curve.factor(if curve.per == Per::Epoch { epoch } else { done })
            }
            Self::Plateau(plateau) => plateau.rate(base, history),
        }
    }
}

impl Curve {
    /// The factor of the learning rate after some time.
    pub fn factor(&self, time: u64) -> f64 {
        let warmup = self.warmup;
        if time < warmup {
            return (time as f64 + 1.0) / (warmup as f64 + 1.0);
        }
        let since = time - warmup;
        let past = |length: u64| {
            let whole = length.saturating_sub(warmup).max(1);
            since.min(whole) as f64 / whole as f64
        };
        match self.shape {
            Shape::Constant => 1.0,
            Shape::Step { every, factor } => factor.powf((since / every.max(1)) as f64),
            Shape::Polynomial { length, power, end } => {
                end + (1.0 - end) * (1.0 - past(length)).powf(power)
            }
            Shape::Cosine { length, end } => {
                end + (1.0 - end) * f64::midpoint(1.0, (PI * past(length)).cos())
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Curve(curve) => curve.fmt(f),
            Self::Plateau(plateau) => plateau.fmt(f),
        }
    }
}

impl Per {
    /// The name of a setting that counts all the time.
    fn length(self) -> &'static str {
        match self {
            Self::Epoch => "epochs",
            Self::Step => "steps",
        }
    }
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, warmup, per } = self;
        let name = per.length();
        let mut more = Vec::new();
        if *warmup > 0 {
            more.push(format!("warmup={warmup}"));
        }
        if *per == Per::Step {
            more.push("per=step".to_owned());
        }
        let before = match shape {
            Shape::Constant => String::new(),
            Shape::Step { every, factor } => format!("every={every},factor={factor}"),
            Shape::Polynomial { length, power, end } => {
                format!("{name}={length},power={power},end={end}")
            }
            Shape::Cosine { length, end } => format!("{name}={length},end={end}"),
        };
        let kind = match shape {
            Shape::Constant => "constant",
            Shape::Step { .. } => "step",
            Shape::Polynomial { .. } => "polynomial",
            Shape::Cosine { .. } => "cosine",
        };
        let settings: Vec<String> =
            std::iter::once(before).filter(|text| !text.is_empty()).chain(more).collect();
        write!(f, "{kind}:{}", settings.join(","))
    }
}

impl fmt::Display for Plateau {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { monitor, factor, patience, min_delta, cooldown, min_rate, .. } = self;
        let mode = if self.largest { "max" } else { "min" };
        write!(
            f,
            "plateau:monitor={monitor},mode={mode},factor={factor},patience={patience},\
             min_delta={min_delta},\
             cooldown={cooldown},min_rate={min_rate}"
        )
    }
}

/// The names of schedules.
const NAMES: [&str; 5] = ["constant", "step", "polynomial", "cosine", "plateau"];

/// The error for a name that is that of no schedule.
fn unknown(name: &str) -> ParseValueError {
    let mut names = NAMES.into_iter();
    let parts = names.find_map(|own| Some((own, name.strip_prefix(own)?.strip_prefix(',')?)));
    let name = Quoted(name);
    if let Some((own, settings)) = parts {
        let text = format!("{own}:{settings}");
        return ParseValueError::new(format!(
            "{name} is not a schedule: write the settings behind a colon, {}",
            Quoted(&text)
        ));
    }
    ParseValueError::new(format!(
        "{name} is not a schedule{}; write constant, step:every=10,factor=0.5, \
         polynomial:epochs=70,power=1, cosine:epochs=50,warmup=5, \
         cosine:steps=9000,warmup=500,per=step or \
         plateau:monitor=val_loss,factor=0.1,patience=10",
        meant(name.0, &NAMES)
    ))
}

/// The name that was meant, as a part of an error.
fn meant(name: &str, known: &[&str]) -> String {
    let closest = closest(name, known.iter().copied());
    closest.map_or(String::new(), |own| format!(" (did you mean `{own}`?)"))
}

/// The settings of a schedule.
struct Settings<'a> {
    /// The name of the schedule.
    name: &'a str,
    /// Those that were not read yet.
    given: Vec<(&'a str, &'a str)>,
    /// The names of those that were looked for.
    known: Vec<&'static str>,
}

impl<'a> Settings<'a> {
    fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.given.iter().position(|(k, _)| *k == key)?;
        Some(self.given.remove(at).1)
    }

    /// A setting that is read by `read`, which takes what `expected` says.
    fn read<T>(
        &mut self,
        key: &'static str,
        or: Option<T>,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ParseValueError> {
        let Some(text) = self.take(key) else {
            return or.ok_or_else(|| self.missing(key, expected));
        };
        read(text).ok_or_else(|| {
            let text = Quoted(text);
            ParseValueError::new(format!("{key} cannot be {text}: write {expected}"))
        })
    }

    fn missing(&self, key: &str, expected: &str) -> ParseValueError {
        let name = self.name;
        let is_length = [Per::Epoch, Per::Step].iter().any(|per| per.length() == key);
        let keys = if is_length { "epochs`, or `steps` with `per=step" } else { key };
        ParseValueError::new(format!("{name} requires `{keys}`: write {expected}"))
    }

    fn whole(
        &mut self,
        key: &'static str,
        least: u64,
        or: Option<u64>,
    ) -> Result<u64, ParseValueError> {
        let expected = format!("a whole number of at least {least}");
        self.read(key, or, &expected, |text| text.parse().ok().filter(|n| *n >= least))
    }

    fn number(&mut self, key: &'static str, most: f64, or: f64) -> Result<f64, ParseValueError> {
        let expected = if most < f64::MAX {
            format!("a number from 0 to {most}")
        } else {
            "a finite number of at least 0".to_owned()
        };
        self.read(key, Some(or), &expected, |text| {
            text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0 && *x <= most)
        })
    }

    fn curve(&mut self) -> Result<Schedule, ParseValueError> {
        let per = self.read("per", Some(Per::Epoch), "epoch or step", |text| match text {
            "epoch" => Some(Per::Epoch),
            "step" => Some(Per::Step),
            _ => None,
        })?;
        let warmup = self.whole("warmup", 0, Some(0))?;
        let length = |settings: &mut Self| settings.whole(per.length(), 1, None);
        let shape = match self.name {
            "constant" if warmup == 0 && per == Per::Epoch => return Ok(Schedule::Constant),
            "constant" => Shape::Constant,
            "step" => Shape::Step {
                every: self.whole("every", 1, None)?,
                factor: self.number("factor", f64::MAX, 0.1)?,
            },
            "polynomial" => Shape::Polynomial {
                length: length(self)?,
                power: self.number("power", f64::MAX, 1.0)?,
                end: self.number("end", 1.0, 0.0)?,
            },
            "cosine" => Shape::Cosine { length: length(self)?, end: self.number("end", 1.0, 0.0)? },
            other => return Err(unknown(other)),
        };
        Ok(Schedule::Curve(Curve { shape, warmup, per }))
    }

    fn plateau(&mut self) -> Result<Plateau, ParseValueError> {
        let usual = Plateau::default();
        let monitor = self.take("monitor").map_or(usual.monitor, str::to_owned);
        let auto = Monitor::new(&*monitor).more;
        let largest = self.read("mode", Some(auto), "auto, max or min", |text| match text {
            "auto" => Some(auto),
            "max" => Some(true),
            "min" => Some(false),
            _ => None,
        })?;
        let factor =
            self.read("factor", Some(usual.factor), "a number from 0 to below 1", |text| {
                text.parse().ok().filter(|x| (0.0..1.0).contains(x))
            })?;
        Ok(Plateau {
            monitor,
            largest,
            factor,
            patience: self.whole("patience", 0, Some(usual.patience))?,
            min_delta: self.number("min_delta", f64::MAX, usual.min_delta)?,
            cooldown: self.whole("cooldown", 0, Some(usual.cooldown))?,
            min_rate: self.number("min_rate", f64::MAX, usual.min_rate)?,
        })
    }

    /// Fails where a setting is left.
    fn end(&self) -> Result<(), ParseValueError> {
        let Self { name, given, known } = self;
        let Some((key, _)) = given.first() else { return Ok(()) };
        if known.contains(key) {
            return Err(ParseValueError::new(format!("{key} is given twice: give it once")));
        }
        Err(ParseValueError::new(format!(
            "{name} has no setting {}{}; it has {}",
            Quoted(key),
            meant(key, known),
            known.join(", ")
        )))
    }
}

impl FromStr for Schedule {
    type Err = ParseValueError;

    /// Reads a name and settings: `polynomial:epochs=70,power=1`,
    /// `plateau:monitor=val_loss,factor=0.5,patience=3`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut given: Vec<(&str, &str)> = Vec::new();
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            // Without a value it is that of no setting.
            given.push(setting.split_once('=').unwrap_or((setting, "")));
        }
        let mut settings = Settings { name, given, known: Vec::new() };
        let schedule = if name == "plateau" {
            Self::Plateau(settings.plateau()?)
        } else {
            settings.curve()?
        };
        settings.end()?;
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Epoch, History, Logs};
    use super::{Curve, Per, Schedule, Shape};

    #[test]
    fn schedules_are_read_as_they_are_written() {
        for text in [
            "constant",
            "step:every=10,factor=0.5",
            "constant:warmup=3",
            "polynomial:epochs=70,power=1,end=0",
            "polynomial:epochs=70,power=2,end=0.1,warmup=4",
            "cosine:epochs=50,end=0,warmup=5",
            "constant:warmup=3,per=step",
            "step:every=10,factor=0.5,per=step",
            "cosine:steps=9000,end=0,warmup=500,per=step",
            "polynomial:steps=70,power=1,end=0,per=step",
            "plateau:monitor=accuracy,mode=max,factor=0.5,patience=3,min_delta=0,cooldown=1,\
             min_rate=0.001",
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
            "plateau:per=step",
            "cosine:epochs=4,per=step",
            "cosine:steps=4",
            "cosine:steps=4,per=row",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn errors_name_the_setting() {
        for (text, said) in [
            ("step:every=0,factor=.5", "every cannot be `0`: write a whole number of at least 1"),
            ("step:every", "every cannot be ``: write a whole number of at least 1"),
            ("step", "step requires `every`: write a whole number of at least 1"),
            (
                "cosine:epochs=50,epoch=3",
                "cosine has no setting `epoch` (did you mean `epochs`?); it has per, warmup, \
                 epochs, end",
            ),
            (
                "cosine:steps=4",
                "cosine requires `epochs`, or `steps` with `per=step`: write a whole number of at \
                 least 1",
            ),
            ("cosine:epochs=5,end=2", "end cannot be `2`: write a number from 0 to 1"),
            ("plateau:factor=1", "factor cannot be `1`: write a number from 0 to below 1"),
            ("plateau:mode=best", "mode cannot be `best`: write auto, max or min"),
            ("step:every=1,every=2", "every is given twice: give it once"),
            (
                "cosine,epochs=5",
                "`cosine,epochs=5` is not a schedule: write the settings behind a colon, \
                 `cosine:epochs=5`",
            ),
        ] {
            assert_eq!(text.parse::<Schedule>().unwrap_err().to_string(), said, "{text}");
        }
        let error = "cosin:epochs=3".parse::<Schedule>().unwrap_err().to_string();
        let said = "`cosin` is not a schedule (did you mean `cosine`?); write constant, step:";
        assert!(error.starts_with(said), "{error}");
    }

    #[test]
    fn rates_by_hand() {
        let curve = |shape, warmup| Curve { shape, warmup, per: Per::Epoch };
        let poly = curve(Shape::Polynomial { length: 70, power: 1.0, end: 0.0 }, 0);
        assert!((poly.factor(35) - 0.5).abs() < 1e-15);
        assert!(
            [poly.factor(0) - 1.0, poly.factor(70), poly.factor(99)]
                .iter()
                .all(|x| x.abs() < 1e-15)
        );
        let step = curve(Shape::Step { every: 2, factor: 0.5 }, 0);
        let known = [(0, 1.0), (1, 1.0), (2, 0.5), (5, 0.25)];
        assert!(known.iter().all(|(epoch, factor)| (step.factor(*epoch) - factor).abs() < 1e-15));
        let cosine = curve(Shape::Cosine { length: 6, end: 0.0 }, 2);
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
            let history = History::default();
            let rates: Vec<f64> = (0..8).map(|i| schedule.rate(1.0, i, 99, &history)).collect();
            assert_eq!(rates[..4], [0.25, 0.5, 0.75, 1.0], "{text}");
            assert!((rates[7] - last).abs() < 1e-15, "{text}: {rates:?}");
            let steps: Schedule =
                format!("{},per=step", text.replace("epochs", "steps")).parse().unwrap();
            let found: Vec<f64> = (0..8).map(|i| steps.rate(1.0, 99, i, &history)).collect();
            assert_eq!(found, rates, "{text} per step");
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
            let found = schedule.rate(1.0, epoch, 0, &history);
            assert!((found - expected).abs() < 1e-15, "epoch {epoch}: {found}");
            let loss = losses.get(history.epochs.len()).copied().unwrap_or(0.0);
            let training = Logs { loss, ..Logs::default() };
            history.epochs.push(Epoch { epoch, training, ..Epoch::default() });
        }
    }
}
