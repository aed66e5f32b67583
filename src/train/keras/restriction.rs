//! Regularizers and constraints of Keras, as a training has them.

use serde_json::{Map, Value as Json};

use super::objective::object;
use crate::pass::{Constraint, Penalty};
use crate::types::{ParseValueError, Quoted};

/// The factor of Keras' regularizers that are named without one.
const FACTOR: f64 = 0.01;

fn refused(what: &str, name: &str, variable: &str) -> ParseValueError {
    ParseValueError::new(format!("the {what} {} of `{variable}` is not supported", Quoted(name)))
}

/// The penalties of a variable: of the magnitudes of its elements, and of their squares.
pub(super) fn penalties(
    found: &Json,
    variable: &str,
) -> Result<[Option<Penalty>; 2], ParseValueError> {
    let wrong = |name: &str| refused("regularizer", name, variable);
    let (name, config) = object(found).ok_or_else(|| wrong(&found.to_string()))?;
    let kinds: &[&str] = match &*name.to_lowercase() {
        "l1" => &["l1"],
        "l2" => &["l2"],
        "l1l2" | "l1_l2" => &["l1", "l2"],
        _ => return Err(wrong(name)),
    };
    let of = |kind: &str| {
        let stated = config.and_then(|config| config.get(kind));
        let factor = match stated.filter(|_| kinds.contains(&kind)) {
            Some(stated) => stated.as_f64().filter(|x| x.is_finite() && *x >= 0.0),
            None if kinds.contains(&kind) => Some(if config.is_some() { 0.0 } else { FACTOR }),
            None => Some(0.0),
        };
        let factor = factor.ok_or_else(|| wrong(name))?;
        let params = Some(variable.to_owned());
        Ok((factor > 0.0).then_some(Penalty { params, factor }))
    };
    Ok([of("l1")?, of("l2")?])
}

/// The constraint of a variable.
pub(super) fn constraint(found: &Json, variable: &str) -> Result<Constraint, ParseValueError> {
    let wrong = |name: &str| refused("constraint", name, variable);
    let (name, config) = object(found).ok_or_else(|| wrong(&found.to_string()))?;
    let none = Map::new();
    let mut settings = Vec::new();
    for (key, value) in config.unwrap_or(&none) {
        let text = match value {
            Json::Array(axes) => axes.iter().map(Json::to_string).collect::<Vec<_>>().join("+"),
            value => value.to_string(),
        };
        settings.push(format!("{key}={text}"));
    }
    format!("{variable}={name}:{}", settings.join(",")).parse().map_err(|_| wrong(name))
}
