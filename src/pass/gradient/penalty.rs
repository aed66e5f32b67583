//! L1 and L2 penalties on parameters, which patterns name.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::error::TrainingError;
use super::writer::emit_formula;
use crate::ir::{Builder, Graph, Value};
use crate::op::{Emit, Formula};
use crate::types::{ParseValueError, Quoted};

/// The factor of a penalty and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalty {
    /// The name of a parameter, or a pattern of names, in which `*` stands for any letters and `?`
    /// for one. `None` stands for all trained parameters of two axes or more that no other penalty
    /// of the kind names.
    pub params: Option<String>,
    /// The factor of the sum over all elements.
    pub factor: f64,
}

/// The error for a text that is no penalty.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "{} is not a penalty; write FACTOR or PARAMETER=FACTOR, with a finite number of at least 0",
        Quoted(text)
    ))
}

impl FromStr for Penalty {
    type Err = ParseValueError;

    /// Reads `0.01`, or `fc*=0.01`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let (params, number) = match text.rsplit_once('=') {
            Some((params, number)) => (Some(params.to_owned()), number),
            None => (None, text),
        };
        let factor = number.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
        let factor = factor.ok_or_else(|| wrong(text))?;
        Ok(Self { params, factor })
    }
}

/// True if a pattern matches a name.
///
/// Greedy matching with one backtracking point, the last `*`: quadratic at worst, where recursion
/// over every `*` would be exponential.
pub(crate) fn names(pattern: &str, name: &str) -> bool {
    let (pattern, letters): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last `*`, and the first letter that it does not cover yet.
    let mut star: Option<(usize, usize)> = None;
    while n < letters.len() {
        match (pattern.get(p), star) {
            (Some('*'), _) => {
                star = Some((p, n));
                p += 1;
            }
            (Some(c), _) if *c == '?' || *c == letters[n] => (p, n) = (p + 1, n + 1),
            (_, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The parameters of a model that patterns name; `verb` is the action, for errors.
///
/// # Errors
/// If a pattern names no parameter.
pub(super) fn named(
    model: &Graph,
    patterns: &BTreeSet<String>,
    verb: &'static str,
) -> Result<BTreeSet<String>, TrainingError> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        let all: Vec<String> = model
            .params()
            .iter()
            .map(|p| p.name.to_string())
            .filter(|n| names(pattern, n))
            .collect();
        if all.is_empty() {
            let (name, known) = (pattern.clone(), known(model.params().iter().map(|p| &*p.name)));
            return Err(TrainingError::NoParam { name, known, verb });
        }
        found.extend(all);
    }
    Ok(found)
}

/// The first of some parameters of a model, as a clause.
pub(super) fn known<'n>(all: impl ExactSizeIterator<Item = &'n str>) -> String {
    const SHOWN: usize = 5;
    let more = if all.len() > SHOWN { ", …" } else { "" };
    let shown = all.take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if shown.is_empty() {
        "the model has none".to_owned()
    } else {
        format!("the model has {shown}{more}")
    }
}

/// The factor of a parameter, 0 without a penalty. A pattern wins over a penalty without one, the
/// last of several over those before it.
fn factor(penalties: &[Penalty], name: &str, rank: usize) -> f64 {
    let of = |usual: bool| {
        penalties.iter().rev().find(|penalty| match &penalty.params {
            Some(pattern) => !usual && names(pattern, name),
            None => usual && rank >= 2,
        })
    };
    // Without a penalty nothing is added.
    of(false).or_else(|| of(true)).map_or(0.0, |penalty| penalty.factor)
}

/// The loss with the penalties of trained parameters, which count once.
///
/// # Errors
/// If a pattern matches no trained parameter.
pub(super) fn penalties(
    b: &mut Builder,
    loss: Value,
    trained: &[(String, Value)],
    l1: &[Penalty],
    l2: &[Penalty],
) -> Result<Value, TrainingError> {
    let patterns = l1.iter().chain(l2).filter_map(|p| p.params.as_deref());
    for pattern in patterns {
        if !trained.iter().any(|(name, _)| names(pattern, name)) {
            let known = known(trained.iter().map(|(name, _)| &**name));
            return Err(TrainingError::NoPenalty { pattern: pattern.to_owned(), known });
        }
    }
    let mut loss = loss;
    for (name, value) in trained {
        let rank = b.graph().ty(*value).rank();
        for (kind, squares) in [(l1, false), (l2, true)] {
            let factor = factor(kind, name, rank);
            if factor != 0.0 {
                loss = penalty(b, loss, *value, factor, squares)?;
            }
        }
    }
    Ok(loss)
}

/// Adds `factor * sum(|x|)` to a loss, or `factor * sum(x^2)` with `squares`.
fn penalty(
    b: &mut Builder,
    loss: Value,
    value: Value,
    factor: f64,
    squares: bool,
) -> Result<Value, TrainingError> {
    emit_formula(b, "loss.penalty", "the penalty", |at| {
        let each = if squares { at.square(value)? } else { at.abs(value)? };
        let sum = at.total(each)?;
        let to = at.ty(loss).dtype;
        let sum = at.cast(sum, to)?;
        let sum = at.scale(sum, factor)?;
        at.add(loss, sum)
    })
}

#[cfg(test)]
mod tests {
    use super::{Penalty, factor, names};

    #[test]
    fn patterns_name_parameters() {
        for (pattern, name, expected) in [
            ("fc.weight", "fc.weight", true),
            ("fc.weight", "fc.weights", false),
            ("fc*", "fc", true),
            ("*.weight", "block.1.fc.weight", true),
            ("*.weight", "fc.weight.0", false),
            ("b*c*", "block.1.fc.weight", true),
            ("layer?", "layer1", true),
            ("layer?", "layer10", false),
            ("*a*b*", "xbxa", false),
            ("", "fc", false),
            ("*", "", true),
            ("é?", "éa", true),
            // What stands in a name for itself.
            ("a*b", "a*b", true),
        ] {
            assert_eq!(names(pattern, name), expected, "{pattern} {name}");
        }
        assert!(!names(&"*a".repeat(500), &"a".repeat(499)));
    }

    #[test]
    fn the_last_penalty_that_names_a_parameter_counts() {
        let read = |text: &str| text.parse::<Penalty>().unwrap();
        let all = ["fc*=0.5", "0.25", "*.bias=0.125", "0.0625"].map(read);
        assert_eq!(factor(&all, "fc.weight", 2).to_bits(), 0.5f64.to_bits());
        assert_eq!(factor(&all, "fc.bias", 1).to_bits(), 0.125f64.to_bits());
        assert_eq!(factor(&all, "conv.weight", 4).to_bits(), 0.0625f64.to_bits());
        assert_eq!(factor(&all, "scale", 1).to_bits(), 0f64.to_bits());
        assert_eq!(read("a=b=1").params.as_deref(), Some("a=b"));
        for text in ["", "x", "fc=", "fc=-1", "inf", "fc=NaN"] {
            assert!(text.parse::<Penalty>().is_err(), "{text}");
        }
    }
}
