//! Regularizers and constraints of Keras, as a training has them.

use serde_json::{Map, Value as Json};

use super::objective::object;
use crate::format::keras::Penalty as Factors;
use crate::pass::{Constraint, Penalty};
use crate::types::{ParseValueError, Quoted};

/// The penalties of a variable: of the magnitudes of its elements, and of their squares.
pub(super) fn penalties(
    found: &Json,
    variable: &str,
) -> Result<[Option<Penalty>; 2], ParseValueError> {
    let wrong = |error| ParseValueError::new(format!("`{variable}`: {error}"));
    let factors = Factors::of_variable(found).map_err(wrong)?;
    let of = |factor: f64| {
        let params = Some(variable.to_owned());
        (factor > 0.0).then_some(Penalty { params, factor })
    };
    Ok([of(factors.l1), of(factors.l2)])
}

/// The constraint of a variable.
pub(super) fn constraint(found: &Json, variable: &str) -> Result<Constraint, ParseValueError> {
    let wrong = |name: &str| {
        let name = Quoted(name);
        ParseValueError::new(format!("the constraint {name} of `{variable}` is not supported"))
    };
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
