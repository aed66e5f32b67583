//! Constraints on parameters, which hold after every step of the optimizer.
//!
//! Formulas and defaults are those of Keras 3.

use std::fmt;
use std::str::FromStr;

use super::error::TrainingError;
use super::names::{self, DidYouMean};
use super::penalty::{known, names as matches};
use super::writer::{Writer, emit_formula};
use crate::ir::{Builder, Value};
use crate::op::{Formula, RuleError};
use crate::types::{ParseValueError, Quoted};

/// The summand that keeps divisors above 0 (Keras' `epsilon`).
const EPSILON: f64 = 1e-7;

/// A constraint and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    /// The name of a parameter, or a pattern of names, in which `*` stands for any letters and `?`
    /// for one.
    pub params: String,
    /// The rule.
    pub rule: ConstraintRule,
}

/// The rule of a constraint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ConstraintRule {
    /// Negative elements become 0.
    NonNegative,
    /// Vectors are scaled such that their norms are in a range: `w * (rate * clip(norm, min, max) +
    /// (1 - rate) * norm) / (norm + epsilon)`.
    Norm {
        /// The least norm.
        min: f64,
        /// The largest norm.
        max: f64,
        /// The part of the way to the range that one step goes.
        rate: f64,
        /// The axes of a vector, from the end if negative.
        axes: Vec<i64>,
    },
}

impl ConstraintRule {
    /// The names, in alphabetical order.
    const NAMES: [&'static str; 4] = ["max_norm", "min_max_norm", "non_neg", "unit_norm"];

    /// The rule of this name with Keras' defaults.
    fn with_defaults(name: &str) -> Option<Self> {
        let aliases: [&[&str]; 4] = [&[], &[], &["non_negative"], &[]];
        let table = Self::NAMES.into_iter().zip(aliases).map(|(own, others)| (own, own, others));
        let (min, max) = match names::find(name, table)? {
            "max_norm" => (0.0, 2.0),
            "min_max_norm" => (0.0, 1.0),
            "unit_norm" => (1.0, 1.0),
            _ => return Some(Self::NonNegative),
        };
        Some(Self::Norm { min, max, rate: 1.0, axes: vec![0] })
    }

    /// Sets one setting from text.
    fn set(&mut self, name: &str, key: &str, text: &str) -> Result<(), ParseValueError> {
        let known: &[&str] = match name {
            "max_norm" => &["max_value", "axis"],
            "min_max_norm" => &["min_value", "max_value", "rate", "axis"],
            "unit_norm" => &["axis"],
            _ => &[],
        };
        let wrong = |expected: &str| {
            ParseValueError::new(format!("{key} cannot be {}: {expected}", Quoted(text)))
        };
        let (Self::Norm { min, max, rate, axes }, true) = (self, known.contains(&key)) else {
            return Err(ParseValueError::new(format!(
                "{name} has no setting {}{}",
                Quoted(key),
                DidYouMean(key, known)
            )));
        };
        if key == "axis" {
            let all: Result<Vec<i64>, _> = text.split('+').map(str::parse).collect();
            *axes = all.map_err(|_| wrong("write axes with `+` between them, such as `0+1`"))?;
            return Ok(());
        }
        let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
        let number = number.ok_or_else(|| wrong("write a finite number that is not negative"))?;
        match key {
            "min_value" => *min = number,
            "max_value" => *max = number,
            _ if number <= 1.0 => *rate = number,
            _ => return Err(wrong("write a number from 0 to 1")),
        }
        Ok(())
    }

    /// The value of a parameter under this constraint.
    fn write(&self, at: &mut Writer<'_>, w: Value) -> Result<Value, RuleError> {
        let Self::Norm { min, max, rate, axes } = self else { return at.relu(w) };
        let squares = at.reduce_sum_square(w, axes.clone(), true)?;
        let norm = at.sqrt(squares)?;
        let mut wanted = at.clip(norm, *min, *max)?;
        if *rate < 1.0 {
            let (moved, kept) = (at.scale(wanted, *rate)?, at.scale(norm, 1.0 - rate)?);
            wanted = at.add(moved, kept)?;
        }
        let below = at.shift(norm, EPSILON)?;
        let factor = at.div(wanted, below)?;
        at.mul(w, factor)
    }
}

impl FromStr for Constraint {
    type Err = ParseValueError;

    /// Reads `PARAMETERS=RULE`, with settings after a colon: `fc*=max_norm:max_value=3,axis=0+1`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let (head, settings) = text.split_once(':').unwrap_or((text, ""));
        let (params, name) = head.rsplit_once('=').ok_or_else(|| {
            let such = "write PARAMETER=RULE, such as `fc*=non_neg`";
            ParseValueError::new(format!("{} is not a constraint; {such}", Quoted(text)))
        })?;
        let mut rule = ConstraintRule::with_defaults(name).ok_or_else(|| {
            let known = ConstraintRule::NAMES;
            let (meant, all) = (DidYouMean(name, &known), known.join(", "));
            let reason = format!("{} is not a constraint{meant}", Quoted(name));
            ParseValueError::new(format!("{reason}; the constraints are {all}"))
        })?;
        let table = ConstraintRule::NAMES.map(|own| (own, own, &[] as &[&str]));
        // Only `non_neg`, which has no settings, has an alias.
        let name = names::find(name, table).unwrap_or("non_neg");
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            rule.set(name, key, value)?;
        }
        if let ConstraintRule::Norm { min, max, .. } = &rule
            && min > max
        {
            return Err(ParseValueError::new("min_value is above max_value".to_owned()));
        }
        Ok(Self { params: params.to_owned(), rule })
    }
}

impl fmt::Display for Constraint {
    /// Writes the form that parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConstraintRule::Norm { min, max, rate, axes } = &self.rule else {
            return write!(f, "{}=non_neg", self.params);
        };
        let axes: Vec<String> = axes.iter().map(i64::to_string).collect();
        write!(f, "{}=min_max_norm:min_value={min},max_value={max},", self.params)?;
        write!(f, "rate={rate},axis={}", axes.join("+"))
    }
}

/// Fails unless each constraint names one of the trained parameters.
pub(super) fn assert_used(
    constraints: &[Constraint],
    trained: &[&str],
) -> Result<(), TrainingError> {
    let unused = |c: &&Constraint| !trained.iter().any(|name| matches(&c.params, name));
    let Some(unused) = constraints.iter().find(unused) else { return Ok(()) };
    let known = known(trained.iter().copied());
    Err(TrainingError::NoConstraint { pattern: unused.params.clone(), known })
}

/// The last constraint that names a parameter.
pub(super) fn of<'c>(constraints: &'c [Constraint], name: &str) -> Option<&'c Constraint> {
    constraints.iter().rev().find(|constraint| matches(&constraint.params, name))
}

/// The new value of a parameter under its constraint, if it has one.
pub(super) fn constrained(
    b: &mut Builder,
    constraints: &[Constraint],
    name: &str,
    new: Value,
) -> Result<Value, TrainingError> {
    let Some(constraint) = of(constraints, name) else { return Ok(new) };
    let what = format!("the constraint of `{name}`");
    let name = format!("{name}.constrained");
    emit_formula(b, &name, &what, |at| constraint.rule.write(at, new))
}

#[cfg(test)]
mod tests {
    use super::{Constraint, ConstraintRule, of};

    fn norm(min: f64, max: f64, rate: f64, axes: &[i64]) -> ConstraintRule {
        ConstraintRule::Norm { min, max, rate, axes: axes.to_vec() }
    }

    #[test]
    fn texts_are_read_and_written() {
        for (text, params, rule) in [
            ("a=non_neg", "a", ConstraintRule::NonNegative),
            ("a=NonNegative", "a", ConstraintRule::NonNegative),
            ("a=b=max_norm", "a=b", norm(0.0, 2.0, 1.0, &[0])),
            ("fc*=MaxNorm:max_value=3,axis=0+1", "fc*", norm(0.0, 3.0, 1.0, &[0, 1])),
            ("*=unit_norm:axis=-1", "*", norm(1.0, 1.0, 1.0, &[-1])),
            ("a=min_max_norm:rate=0.5,min_value=0.5", "a", norm(0.5, 1.0, 0.5, &[0])),
        ] {
            let read: Constraint = text.parse().unwrap();
            assert_eq!(read, Constraint { params: params.to_owned(), rule }, "{text}");
            assert_eq!(read.to_string().parse::<Constraint>().unwrap(), read, "{text}");
        }
    }

    #[test]
    fn wrong_texts_are_refused() {
        for (text, reason) in [
            ("non_neg", "write PARAMETER=RULE"),
            ("a=max_nrm", "did you mean `max_norm`?"),
            ("a=unit_norm:max_value=2", "unit_norm has no setting `max_value`"),
            ("a=non_neg:axis=0", "non_neg has no setting `axis`"),
            ("a=max_norm:max_value=-1", "not negative"),
            ("a=max_norm:axis=0 1", "write axes with `+`"),
            ("a=min_max_norm:rate=2", "from 0 to 1"),
            ("a=min_max_norm:min_value=2", "min_value is above max_value"),
        ] {
            let error = text.parse::<Constraint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_last_constraint_that_names_a_parameter_counts() {
        let all = ["fc*=non_neg", "fc.w=unit_norm"].map(|text| text.parse().unwrap());
        assert_eq!(of(&all, "fc.w"), Some(&all[1]));
        assert_eq!(of(&all, "fc.b"), Some(&all[0]));
        assert_eq!(of(&all, "conv"), None);
    }
}
