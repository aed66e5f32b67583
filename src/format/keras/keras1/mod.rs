//! Configurations of Keras 1 in the form of Keras 2.
//!
//! Layers get the classes, the fields and the values that they have since Keras 2, as Keras 2.3
//! translates them. What it would leave out although it changes results keeps its old name, and is
//! refused by that.

mod branches;
mod layer;
#[cfg(test)]
mod tests;

use serde_json::Value as Json;

use self::branches::INPUT;
use self::layer::Ordering;
use super::config::{Object, Read};
use super::error::LayerError;

/// A model before Keras 3 in the one form that is read: the layers of a sequential model in an
/// object with its name, and where `is_1` says so everything in the form of Keras 2.
///
/// # Errors
/// If layers have no such form: all of them.
pub(super) fn translated(config: Json, is_1: bool) -> Result<Json, Vec<LayerError>> {
    let ordering = if is_1 { Ordering::of(&config) } else { Ordering::None };
    let mut translation = Translation { is_1, ordering, unnamed: 0, errors: Vec::new() };
    let result = translation.object(config, None);
    if translation.errors.is_empty() { Ok(result) } else { Err(translation.errors) }
}

/// What is known of a file on the way through its models.
struct Translation {
    is_1: bool,
    /// The order of axes that its layers state.
    ordering: Ordering,
    /// The models so far that have no name.
    unnamed: usize,
    errors: Vec<LayerError>,
}

impl Translation {
    /// A layer or model. What is damaged stays as it is, for the reader to tell.
    fn object(&mut self, mut object: Json, around: Option<&str>) -> Json {
        let Some(fields) = object.as_object_mut() else { return object };
        let class = fields.get("class_name").and_then(Json::as_str).map(str::to_owned);
        let (Some(class), Some(config)) = (class, fields.remove("config")) else { return object };
        let named = fields.get("name").or_else(|| config.get("name")).and_then(Json::as_str);
        let name = named.map(str::to_owned);
        let label = name.as_deref().unwrap_or(&class);
        // The model of the file is no part of the paths of its layers.
        let path = match around {
            None => String::new(),
            Some("") => label.to_owned(),
            Some(around) => format!("{around}/{label}"),
        };
        let (class, config) = match (&*class, config) {
            ("Sequential", config) => self.sequential(config, name, &path),
            ("Model" | "Functional", Json::Object(mut config)) => {
                self.layers(&mut config, &path);
                (class, Json::Object(config))
            }
            (_, Json::Object(config)) if self.is_1 => {
                let layer = self.layer(&class, config, &path);
                layer.unwrap_or_else(|fault| {
                    self.errors.push(LayerError::new(&path, &class, fault));
                    (class, Json::Null)
                })
            }
            (_, config) => (class, config),
        };
        fields.insert("class_name".to_owned(), Json::String(class));
        fields.insert("config".to_owned(), config);
        object
    }

    /// The layers of a model.
    fn layers(&mut self, config: &mut Object, path: &str) {
        if let Some(layers) = config.get_mut("layers").and_then(Json::as_array_mut) {
            for layer in layers {
                *layer = self.object(layer.take(), Some(path));
            }
        }
    }

    /// A sequential model, whose configuration may be the list of its layers. One that begins with
    /// the results of other models is no sequence.
    fn sequential(&mut self, config: Json, name: Option<String>, path: &str) -> (String, Json) {
        let class = "Sequential".to_owned();
        let mut config = match config {
            Json::Array(layers) => {
                let name = name.unwrap_or_else(|| {
                    self.unnamed += 1;
                    format!("sequential_{}", self.unnamed)
                });
                let mut config = Object::new();
                config.insert("name".to_owned(), Json::String(name));
                config.insert("layers".to_owned(), Json::Array(layers));
                config
            }
            Json::Object(config) => config,
            other => return (class, other),
        };
        let is_joined = self.is_1 && branches::begins(&config);
        self.layers(&mut config, path);
        if let Some(shape) = first_input(&config).filter(|_| !config.contains_key(INPUT)).cloned() {
            config.insert(INPUT.to_owned(), shape);
        }
        if !is_joined || !self.errors.is_empty() {
            return (class, Json::Object(config));
        }
        match branches::joined(&config) {
            Ok(config) => ("Functional".to_owned(), Json::Object(config)),
            Err(fault) => {
                let name = config.get("name").and_then(Json::as_str);
                self.errors.push(LayerError::new(name.unwrap_or(&class), &class, fault));
                (class, Json::Object(config))
            }
        }
    }

    /// A layer of Keras 1.
    fn layer(&mut self, class: &str, mut config: Object, path: &str) -> Read<(String, Json)> {
        for inner in ["layer", "backward_layer"] {
            if let Some(layer) = config.get_mut(inner) {
                *layer = self.object(layer.take(), Some(path));
            }
        }
        if class == "Merge" {
            // The models whose results a sequential model begins with.
            self.layers(&mut config, path);
        }
        let (class, config) = layer::translated(class, config, self.ordering)?;
        Ok((class, Json::Object(config)))
    }
}

/// The shape that the first layer of a model says it takes; where it is a model, its first layer.
fn first_input(config: &Object) -> Option<&Json> {
    let first = config.get("layers")?.get(0)?.get("config")?;
    first.get(INPUT).filter(|shape| shape.is_array())
}
