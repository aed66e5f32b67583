//! Optimizers: their rules, settings and text form.
//!
//! Formulas and defaults are those of Keras 3, but for the two conventions of `rmsprop`: the
//! epsilon is added to the root (`outside`, Keras before 3) or under it (`inside`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::names::{self, DidYouMean};
use crate::types::{ParseValueError, Quoted};

/// The position of epsilon in a root mean square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EpsilonPlace {
    /// Under the root.
    #[default]
    Inside,
    /// Added to the root.
    Outside,
}

/// The update rule of an optimizer, with `lr` for the learning rate and `g` for the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// `v = momentum * v - lr * g; p += v`, with `nesterov` `p += momentum * v - lr * g`.
    Sgd {
        /// The part of the velocity that stays.
        momentum: f64,
        /// Whether momentum looks one step ahead (Nesterov).
        nesterov: bool,
    },
    /// `a = rho * a + (1 - rho) * g^2; p -= lr * g / root(a)`.
    RmsProp {
        /// The part of the mean square that stays.
        rho: f64,
        /// The part of the velocity that stays.
        momentum: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
        /// The position of epsilon.
        place: EpsilonPlace,
        /// Whether the mean square is reduced to the variance.
        centered: bool,
    },
    /// Adam, with `amsgrad` its variant that keeps the largest mean square.
    Adam {
        /// The part of the mean that stays.
        beta_1: f64,
        /// The part of the mean square that stays.
        beta_2: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
        /// Whether the largest mean square counts.
        amsgrad: bool,
    },
    /// `a += g^2; p -= lr * g / sqrt(a + epsilon)`.
    Adagrad {
        /// The sum at the beginning.
        initial: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
        /// Where it is added.
        place: EpsilonPlace,
    },
    /// Adadelta.
    Adadelta {
        /// The part of the mean squares that stays.
        rho: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
    },
    /// Adam with the largest magnitude in place of the root mean square.
    Adamax {
        /// The part of the mean that stays.
        beta_1: f64,
        /// The part of the largest magnitude that stays.
        beta_2: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
    },
    /// Adam with Nesterov's momentum.
    Nadam {
        /// The part of the mean that stays.
        beta_1: f64,
        /// The part of the mean square that stays.
        beta_2: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
    },
    /// The sign of a mean of gradients.
    Lion {
        /// The part of the mean in the sign.
        beta_1: f64,
        /// The part of the mean that stays.
        beta_2: f64,
    },
    /// FTRL: the variable is the minimum of the sum of its past gradients, as planes, and of
    /// penalties.
    Ftrl {
        /// The power of the sum of squares in the learning rate, at most 0.
        power: f64,
        /// The sum of squares at the beginning.
        initial: f64,
        /// The factor of the sum of magnitudes.
        l1: f64,
        /// The factor of the sum of squares.
        l2: f64,
        /// The factor of the sum of squares in the gradient.
        shrinkage: f64,
        /// A constant that adds `beta / (2 * lr)` to `l2`.
        beta: f64,
    },
    /// Adam with a step as long as the variable itself (LAMB).
    Lamb {
        /// The part of the mean that stays.
        beta_1: f64,
        /// The part of the mean square that stays.
        beta_2: f64,
        /// A small constant that keeps the divisor from 0.
        epsilon: f64,
    },
}

/// An optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The update rule.
    pub rule: Rule,
    /// The learning rate before any schedule.
    pub learning_rate: f64,
    /// Decoupled weight decay: each step subtracts `lr * weight_decay` times the variable.
    pub weight_decay: f64,
    /// The largest magnitude of an element of a gradient.
    pub clipvalue: Option<f64>,
    /// The largest norm of the gradient of one variable.
    pub clipnorm: Option<f64>,
    /// The largest norm of the gradients of all variables together.
    pub global_clipnorm: Option<f64>,
    /// The batches whose gradients' mean makes one step.
    pub gradient_accumulation_steps: u32,
    /// Whether moving averages of the trained parameters are kept; they take their place when
    /// training ends.
    pub ema: bool,
    /// The part of the averages that stays in each batch.
    pub ema_momentum: f64,
    /// The steps after which the parameters become their averages each time.
    pub ema_overwrite_frequency: Option<u32>,
}

impl Default for Optimizer {
    /// Keras' default: `rmsprop`.
    fn default() -> Self {
        let (place, epsilon) = (EpsilonPlace::Inside, 1e-7);
        Self::of(Rule::RmsProp { rho: 0.9, momentum: 0.0, epsilon, place, centered: false }, 0.001)
    }
}

impl Optimizer {
    /// All names, in alphabetical order.
    pub const NAMES: [&'static str; 11] = [
        "adadelta", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "nadam",
        "rmsprop", "sgd",
    ];

    /// The optimizer of this name with its default settings.
    fn with_defaults(name: &str) -> Option<Self> {
        let (beta_1, beta_2, epsilon) = (0.9, 0.999, 1e-7);
        let adam = Rule::Adam { beta_1, beta_2, epsilon, amsgrad: false };
        let name = names::find(name, Self::NAMES.map(|own| (own, own, &[] as &[&str])))?;
        let place = EpsilonPlace::Inside;
        Some(match name {
            "adadelta" => Self::of(Rule::Adadelta { rho: 0.95, epsilon }, 0.001),
            "adagrad" => Self::of(Rule::Adagrad { initial: 0.1, epsilon, place }, 0.001),
            "adam" => Self::of(adam, 0.001),
            "adamax" => Self::of(Rule::Adamax { beta_1, beta_2, epsilon }, 0.001),
            "adamw" => Self { weight_decay: 0.004, ..Self::of(adam, 0.001) },
            "ftrl" => {
                let (l1, l2, shrinkage, beta) = (0.0, 0.0, 0.0, 0.0);
                let rule = Rule::Ftrl { power: -0.5, initial: 0.1, l1, l2, shrinkage, beta };
                Self::of(rule, 0.001)
            }
            "lamb" => Self::of(Rule::Lamb { beta_1, beta_2, epsilon }, 0.001),
            "lion" => Self::of(Rule::Lion { beta_1, beta_2: 0.99 }, 0.001),
            "nadam" => Self::of(Rule::Nadam { beta_1, beta_2, epsilon }, 0.001),
            "rmsprop" => {
                let (rho, momentum, centered) = (0.9, 0.0, false);
                Self::of(Rule::RmsProp { rho, momentum, epsilon, place, centered }, 0.001)
            }
            "sgd" => Self::of(Rule::Sgd { momentum: 0.0, nesterov: false }, 0.01),
            _ => return None,
        })
    }

    /// An optimizer with this rule and no clipping, decay, accumulation or averages.
    fn of(rule: Rule, learning_rate: f64) -> Self {
        Self {
            rule,
            learning_rate,
            weight_decay: 0.0,
            clipvalue: None,
            clipnorm: None,
            global_clipnorm: None,
            gradient_accumulation_steps: 1,
            ema: false,
            ema_momentum: 0.99,
            ema_overwrite_frequency: None,
        }
    }

    /// The names and initial elements of the slots of each variable.
    pub(crate) fn slots(&self) -> Vec<(&'static str, f64)> {
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => Vec::new(),
            Rule::RmsProp { momentum, centered, .. } => {
                let mut slots = vec![("velocity", 0.0)];
                if momentum > 0.0 {
                    slots.push(("momentum", 0.0));
                }
                if centered {
                    slots.push(("average_gradient", 0.0));
                }
                slots
            }
            Rule::Nadam { .. } | Rule::Lamb { .. } | Rule::Adam { amsgrad: false, .. } => {
                vec![("momentum", 0.0), ("velocity", 0.0)]
            }
            Rule::Adam { amsgrad: true, .. } => {
                vec![("momentum", 0.0), ("velocity", 0.0), ("velocity_hat", 0.0)]
            }
            Rule::Adagrad { initial, .. } => vec![("accumulator", initial)],
            Rule::Adadelta { .. } => vec![("accumulated_grad", 0.0), ("accumulated_delta", 0.0)],
            Rule::Adamax { .. } => vec![("m", 0.0), ("u", 0.0)],
            Rule::Ftrl { initial, .. } => vec![("accumulator", initial), ("linear", 0.0)],
            Rule::Sgd { .. } | Rule::Lion { .. } => vec![("momentum", 0.0)],
        }
    }

    /// The name; Adam with weight decay is `adamw`.
    pub(crate) fn name(&self) -> &'static str {
        match self.rule {
            Rule::Sgd { .. } => "sgd",
            Rule::RmsProp { .. } => "rmsprop",
            Rule::Adam { .. } if self.weight_decay > 0.0 => "adamw",
            Rule::Adam { .. } => "adam",
            Rule::Adagrad { .. } => "adagrad",
            Rule::Adadelta { .. } => "adadelta",
            Rule::Adamax { .. } => "adamax",
            Rule::Nadam { .. } => "nadam",
            Rule::Lion { .. } => "lion",
            Rule::Ftrl { .. } => "ftrl",
            Rule::Lamb { .. } => "lamb",
        }
    }
}

impl fmt::Display for Optimizer {
    /// Writes the name and all settings, in the form that parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:learning_rate={}", self.name(), self.learning_rate)?;
        let mut rule = self.rule;
        for key in Rule::NUMBERS {
            if let Some(number) = rule.number(key) {
                write!(f, ",{key}={number}")?;
            }
        }
        for key in Rule::FLAGS {
            if let Some(flag) = rule.flag(key) {
                write!(f, ",{key}={flag}")?;
            }
        }
        if let Rule::RmsProp { place: EpsilonPlace::Outside, .. }
        | Rule::Adagrad { place: EpsilonPlace::Outside, .. } = rule
        {
            f.write_str(",epsilon=outside")?;
        }
        if self.weight_decay > 0.0 {
            write!(f, ",weight_decay={}", self.weight_decay)?;
        }
        let clips = [
            ("clipvalue", self.clipvalue),
            ("clipnorm", self.clipnorm),
            ("global_clipnorm", self.global_clipnorm),
        ];
        for (key, limit) in clips {
            // Only limits that are set.
            limit.map_or(Ok(()), |limit| write!(f, ",{key}={limit}"))?;
        }
        if self.gradient_accumulation_steps > 1 {
            write!(f, ",gradient_accumulation_steps={}", self.gradient_accumulation_steps)?;
        }
        if self.ema {
            write!(f, ",use_ema=true,ema_momentum={}", self.ema_momentum)?;
            let every = self.ema_overwrite_frequency;
            // Only if averages ever overwrite parameters.
            every.map_or(Ok(()), |every| write!(f, ",ema_overwrite_frequency={every}"))?;
        }
        Ok(())
    }
}

impl FromStr for Optimizer {
    type Err = ParseValueError;

    /// Reads a name and settings: `sgd:momentum=0.9,nesterov=true`,
    /// `rmsprop:rho=0.9,epsilon=outside`. Names are read without regard to case, `_` and `-`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut optimizer = Self::with_defaults(name).ok_or_else(|| {
            let parts = name.split_once(',').filter(|(own, _)| Self::with_defaults(own).is_some());
            if let Some((own, settings)) = parts {
                let written = format!("{own}:{settings}");
                return ParseValueError::new(format!(
                    "{} is not an optimizer: write the settings behind a colon, {}",
                    Quoted(name),
                    Quoted(&written)
                ));
            }
            ParseValueError::new(format!(
                "{} is not an optimizer{}; the optimizers are {}",
                Quoted(name),
                DidYouMean(name, &Self::NAMES),
                Self::NAMES.join(", ")
            ))
        })?;
        let mut given = BTreeSet::new();
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            let key = names::setting(key);
            // `epsilon` has a value and a place, which are two settings.
            if !given.insert((key, value.parse::<f64>().is_ok())) {
                return Err(ParseValueError::new(format!("{key} is given twice")));
            }
            optimizer.set(key, value)?;
        }
        Ok(optimizer)
    }
}

impl Optimizer {
    /// The settings that all optimizers have.
    const COMMON: [&'static str; 9] = [
        "learning_rate",
        "weight_decay",
        "clipvalue",
        "clipnorm",
        "global_clipnorm",
        "gradient_accumulation_steps",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
    ];

    /// The names of its settings.
    fn settings(&self) -> Vec<&'static str> {
        let mut rule = self.rule;
        let own = Rule::NUMBERS.into_iter().filter(|key| rule.number(key).is_some());
        let mut all: Vec<&str> = own.collect();
        all.extend(Rule::FLAGS.into_iter().filter(|key| rule.flag(key).is_some()));
        all.extend(Self::COMMON);
        all
    }

    /// Sets one setting from text.
    fn set(&mut self, key: &str, value: &str) -> Result<(), ParseValueError> {
        let wrong = |expected: &str| {
            ParseValueError::new(format!("{key} cannot be {}: {expected}", Quoted(value)))
        };
        let number = || value.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        let positive =
            || number().ok_or_else(|| wrong("write a finite number that is not negative"));
        let count = || {
            let count = value.parse::<u32>().ok().filter(|n| *n >= 1);
            count.ok_or_else(|| wrong("write an integer of at least 1"))
        };
        match key {
            "learning_rate" => self.learning_rate = positive()?,
            "weight_decay" => self.weight_decay = positive()?,
            "clipvalue" | "clipnorm" | "global_clipnorm" => {
                let limit = number().filter(|x| *x > 0.0);
                let limit = limit.ok_or_else(|| wrong("write a finite number above 0"))?;
                // Two limits would depend on the order in which they apply.
                let [None, None, None] = [self.clipvalue, self.clipnorm, self.global_clipnorm]
                else {
                    return Err(wrong("gradients are clipped in one way only"));
                };
                match key {
                    "clipvalue" => self.clipvalue = Some(limit),
                    "clipnorm" => self.clipnorm = Some(limit),
                    _ => self.global_clipnorm = Some(limit),
                }
            }
            "use_ema" => self.ema = value.parse().map_err(|_| wrong("write true or false"))?,
            "ema_momentum" => {
                let part = number().filter(|x| *x <= 1.0);
                self.ema_momentum = part.ok_or_else(|| wrong("write a number from 0 to 1"))?;
            }
            "ema_overwrite_frequency" => self.ema_overwrite_frequency = Some(count()?),
            "gradient_accumulation_steps" => self.gradient_accumulation_steps = count()?,
            _ => {
                if let Some(flag) = self.rule.flag(key) {
                    *flag = value.parse().map_err(|_| wrong("write true or false"))?;
                } else if let (Some(place), "epsilon", "inside" | "outside") =
                    (self.rule.place(), key, value)
                {
                    let inside = value == "inside";
                    *place = if inside { EpsilonPlace::Inside } else { EpsilonPlace::Outside };
                } else if let (Rule::Ftrl { power, .. }, "learning_rate_power") =
                    (&mut self.rule, key)
                {
                    let found = value.parse().ok().filter(|x: &f64| x.is_finite() && *x <= 0.0);
                    *power = found.ok_or_else(|| wrong("write a finite number of at most 0"))?;
                } else if let Some(size) = self.rule.size(key) {
                    *size = positive()?;
                } else if let Some(part) = self.rule.part(key) {
                    let found = number().filter(|x| *x < 1.0);
                    *part = found.ok_or_else(|| wrong("write a number from 0 to below 1"))?;
                } else {
                    return Err(self.no_setting(key));
                }
            }
        }
        Ok(())
    }

    fn no_setting(&self, key: &str) -> ParseValueError {
        let (name, known) = (self.name(), self.settings());
        ParseValueError::new(format!(
            "{name} has no setting {}{}; it has {}",
            Quoted(key),
            DidYouMean(key, &known),
            known.join(", ")
        ))
    }
}

impl Rule {
    /// The names of numeric settings; [`Self::FLAGS`] are those that are true or false.
    const NUMBERS: [&'static str; 11] = [
        "momentum",
        "rho",
        "beta_1",
        "beta_2",
        "epsilon",
        "initial_accumulator_value",
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    ];
    const FLAGS: [&'static str; 3] = ["nesterov", "centered", "amsgrad"];

    /// The numeric setting of this name.
    fn number(&mut self, key: &str) -> Option<f64> {
        if let (Self::Ftrl { power, .. }, "learning_rate_power") = (&*self, key) {
            return Some(*power);
        }
        let size = self.size(key).map(|size| *size);
        size.or_else(|| self.part(key).map(|part| *part))
    }

    /// Where the constant of a divisor is added, if that is a setting.
    fn place(&mut self) -> Option<&mut EpsilonPlace> {
        match self {
            Self::RmsProp { place, .. } | Self::Adagrad { place, .. } => Some(place),
            Self::Sgd { .. }
            | Self::Adam { .. }
            | Self::Adadelta { .. }
            | Self::Adamax { .. }
            | Self::Nadam { .. }
            | Self::Lion { .. }
            | Self::Ftrl { .. }
            | Self::Lamb { .. } => None,
        }
    }

    /// The boolean setting of this name.
    fn flag(&mut self, key: &str) -> Option<&mut bool> {
        match (self, key) {
            (Self::Sgd { nesterov, .. }, "nesterov") => Some(nesterov),
            (Self::RmsProp { centered, .. }, "centered") => Some(centered),
            (Self::Adam { amsgrad, .. }, "amsgrad") => Some(amsgrad),
            _ => None,
        }
    }

    /// The setting of this name that takes any number from 0 on.
    fn size(&mut self, key: &str) -> Option<&mut f64> {
        match (self, key) {
            (
                Self::Adagrad { initial, .. } | Self::Ftrl { initial, .. },
                "initial_accumulator_value",
            ) => Some(initial),
            (Self::Ftrl { l1, .. }, "l1_regularization_strength") => Some(l1),
            (Self::Ftrl { l2, .. }, "l2_regularization_strength") => Some(l2),
            (Self::Ftrl { shrinkage, .. }, "l2_shrinkage_regularization_strength") => {
                Some(shrinkage)
            }
            (Self::Ftrl { beta, .. }, "beta") => Some(beta),
            (
                Self::RmsProp { epsilon, .. }
                | Self::Adam { epsilon, .. }
                | Self::Adagrad { epsilon, .. }
                | Self::Adadelta { epsilon, .. }
                | Self::Adamax { epsilon, .. }
                | Self::Lamb { epsilon, .. }
                | Self::Nadam { epsilon, .. },
                "epsilon",
            ) => Some(epsilon),
            _ => None,
        }
    }

    /// The setting of this name that takes a fraction, from 0 to below 1.
    fn part(&mut self, key: &str) -> Option<&mut f64> {
        match (self, key) {
            (Self::Sgd { momentum, .. } | Self::RmsProp { momentum, .. }, "momentum") => {
                Some(momentum)
            }
            (Self::RmsProp { rho, .. } | Self::Adadelta { rho, .. }, "rho") => Some(rho),
            (
                Self::Adam { beta_1, .. }
                | Self::Adamax { beta_1, .. }
                | Self::Lamb { beta_1, .. }
                | Self::Nadam { beta_1, .. }
                | Self::Lion { beta_1, .. },
                "beta_1",
            ) => Some(beta_1),
            (
                Self::Adam { beta_2, .. }
                | Self::Adamax { beta_2, .. }
                | Self::Lamb { beta_2, .. }
                | Self::Nadam { beta_2, .. }
                | Self::Lion { beta_2, .. },
                "beta_2",
            ) => Some(beta_2),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Optimizer;

    #[test]
    fn an_optimizer_is_read_as_it_is_printed() {
        for name in Optimizer::NAMES {
            let optimizer: Optimizer = name.parse().unwrap();
            assert_eq!(optimizer.to_string().parse(), Ok(optimizer), "{name}");
        }
        for text in [
            "sgd:learning_rate=0.5,momentum=0.9,nesterov=true,clipvalue=2",
            "rmsprop:learning_rate=0.001,momentum=0.25,rho=0.75,epsilon=0.01,centered=true,\
             epsilon=outside",
            "adam:learning_rate=0.001,beta_1=0.5,beta_2=0.75,epsilon=1,amsgrad=true,clipnorm=1",
            "adamw:learning_rate=0.001,beta_1=0.5,beta_2=0.75,epsilon=1,amsgrad=false,\
             weight_decay=0.1,global_clipnorm=3",
            "adagrad:learning_rate=0.1,epsilon=0.5,initial_accumulator_value=0,\
             gradient_accumulation_steps=4",
            "ftrl:learning_rate=0.1,initial_accumulator_value=0.5,learning_rate_power=-0.25,\
             l1_regularization_strength=1,l2_regularization_strength=2,\
             l2_shrinkage_regularization_strength=3,beta=4",
            "lamb:learning_rate=0.1,beta_1=0.5,beta_2=0.25,epsilon=0.5,weight_decay=0.5",
            "lion:learning_rate=0.1,beta_1=0.5,beta_2=0.25,use_ema=true,ema_momentum=0.5,\
             ema_overwrite_frequency=3",
        ] {
            assert_eq!(text.parse::<Optimizer>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn optimizers_have_the_names_that_users_know() {
        let read = |text: &str| text.parse::<Optimizer>();
        for (text, same) in [
            ("RMSprop:eps=outside", "rmsprop:epsilon=outside"),
            ("AdamW:LR=0.5,beta1=0.5", "adamw:learning_rate=0.5,beta_1=0.5"),
            ("SGD", "sgd"),
        ] {
            assert_eq!(read(text), read(same));
            assert!(read(text).is_ok(), "{text}");
        }
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert!(error("adm").starts_with(
            "`adm` is not an optimizer (did you mean `adam`?); the optimizers are adadelta"
        ));
        assert!(error("sgd:momentm=1").starts_with(
            "sgd has no setting `momentm` (did you mean \
            `momentum`?); it has momentum, nesterov, learning_rate"
        ));
    }
}
