//! Objects that stand at several places of a file: Keras makes each of them once.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::config::{Object, Read};
use super::error::Fault;
use super::tree::{NUMBER, Spec};
use super::variables::Variables;

/// Where a layer stands in the model.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Its name, behind those of the models around it.
    pub(super) path: String,
    /// The path of its variables in the files of Keras 3.
    pub(super) store: String,
    /// Its position among the layers of each model around it.
    pub(super) order: Vec<usize>,
    /// Whether its variables are learned.
    pub(super) is_trainable: bool,
}

/// The objects so far that stand at several places, by their numbers in the file.
#[derive(Default)]
pub(super) struct Shared {
    all: HashMap<u64, First>,
}

/// The first place of an object.
struct First {
    class: String,
    config: Object,
    place: Place,
    /// The paths of its other places.
    others: Vec<String>,
}

/// The most places of one object.
const MOST: usize = 1 << 10;

impl Shared {
    /// The place whose variables an object has: that at which it was found first.
    pub(super) fn place(
        &mut self,
        spec: &Spec<'_>,
        place: Place,
        variables: &mut Variables,
    ) -> Read<Place> {
        let Some(id) = spec.shared.filter(|_| !spec.is_function) else { return Ok(place) };
        let Some(first) = self.all.get_mut(&id) else {
            let (class, config) = (spec.class.to_owned(), spec.config.clone());
            self.all.insert(id, First { class, config, place: place.clone(), others: Vec::new() });
            return Ok(place);
        };
        let is_known = place.store == first.place.store || first.others.contains(&place.store);
        if !is_known {
            if first.class != spec.class || !is_same(&first.config, spec.config) {
                let path = &first.place.path;
                let reason = format!("it shares the number {id} with `{path}`, which is another");
                return Err(Fault::new(reason));
            }
            if first.others.len() == MOST {
                return Err(Fault::new(format!("it stands at more than {MOST} places")));
            }
            variables.set_other(&first.place.store, &place.store);
            first.others.push(place.store);
        }
        Ok(first.place.clone())
    }
}

/// Whether two configurations are those of one object. Only the first one of what is inside may
/// lack its number, and a layer in a wrapper adds nothing to the loss.
fn is_same(a: &Object, b: &Object) -> bool {
    let counts = |(name, value): &(&String, &Json)| {
        *name != NUMBER && *name != "activity_regularizer" && !value.is_null()
    };
    let is_alike = |(name, value): (&String, &Json)| {
        b.get(name).is_some_and(|other| is_same_value(value, other))
    };
    a.iter().filter(counts).count() == b.iter().filter(counts).count()
        && a.iter().filter(counts).all(is_alike)
}

fn is_same_value(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Object(a), Json::Object(b)) => is_same(a, b),
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a, b))
        }
        (a, b) => a == b,
    }
}
