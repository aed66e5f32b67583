//! Sequential models that begin with the results of other models.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use crate::format::keras::config::{Object, Read, kind};
use crate::format::keras::error::Fault;

/// The field of the first layer of a model with the shape of the input.
pub(super) const INPUT: &str = "batch_input_shape";

/// The field of a layer with the models whose results it takes.
const MODELS: &str = "layers";

/// Whether the first layer of a sequential model merges models of its own.
pub(super) fn begins(config: &Object) -> bool {
    let first = config.get("layers").and_then(Json::as_array).and_then(|layers| layers.first());
    first.is_some_and(|layer| {
        let class = layer.get("class_name").and_then(Json::as_str);
        class == Some("Merge") && layer.get("config").is_some_and(|c| c.get(MODELS).is_some())
    })
}

/// Such a model, whose layers are translated, as a graph of calls. The layers of its models are
/// its own, as in files of its weights.
pub(super) fn joined(config: &Object) -> Read<Object> {
    let mut graph = Graph::default();
    let end = graph.sequence(config)?;
    let name = config.get("name").cloned().unwrap_or_else(|| json!("sequential"));
    let Graph { layers, inputs, .. } = graph;
    let fields = [
        ("name", name),
        ("layers", Json::Array(layers)),
        ("input_layers", Json::Array(inputs)),
        ("output_layers", json!([end])),
    ];
    Ok(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The graph so far.
#[derive(Default)]
struct Graph {
    layers: Vec<Json>,
    names: BTreeSet<String>,
    inputs: Vec<Json>,
    /// The ends of the sequential models so far, by their layers: of two that are alike there
    /// is one.
    ends: BTreeMap<String, Json>,
}

impl Graph {
    /// The layers of a sequential model, one after the other: the tensor at their end.
    fn sequence(&mut self, config: &Object) -> Read<Json> {
        let layers = config.get("layers").and_then(Json::as_array);
        let layers = layers.ok_or_else(|| Fault::field("layers", "is missing"))?;
        let mut layers = layers.iter();
        let first = layers.next().ok_or_else(|| Fault::new("a model inside it has no layers"))?;
        let own = fields(first.get("config").unwrap_or(first), "the first layer")?;
        let mut end = if let Some(models) = own.get(MODELS).and_then(Json::as_array)
            && !is_model(first)
        {
            let ends = models.iter().map(|model| self.branch(model)).collect::<Read<Vec<_>>>()?;
            let mut own = own.clone();
            own.remove(MODELS);
            self.add(&with_config(first, own), &ends)?
        } else if class(first) == Some("InputLayer") {
            self.input(name(first)?, own)?
        } else {
            let start = self.start(first, own)?;
            self.add(first, &[start])?
        };
        for layer in layers {
            end = self.add(layer, &[end])?;
        }
        Ok(end)
    }

    /// The result of a model that is merged.
    fn branch(&mut self, model: &Json) -> Read<Json> {
        let config = fields(model.get("config").unwrap_or(model), "a model inside it")?;
        match class(model) {
            Some("Sequential") => {
                let key = config.get("layers").map(Json::to_string);
                if let Some(end) = key.as_ref().and_then(|key| self.ends.get(key)) {
                    return Ok(end.clone());
                }
                let end = self.sequence(config)?;
                self.ends.extend(key.map(|key| (key, end.clone())));
                Ok(end)
            }
            Some("Model" | "Functional") => {
                let list = |name: &str| {
                    let found = config.get(name).and_then(Json::as_array);
                    found.ok_or_else(|| Fault::field(name, "is missing"))
                };
                self.layers.extend(list("layers")?.iter().cloned());
                self.names
                    .extend(list("layers")?.iter().filter_map(|l| Some(name(l).ok()?.into())));
                self.inputs.extend(list("input_layers")?.iter().cloned());
                match list("output_layers")?.as_slice() {
                    [end] => Ok(end.clone()),
                    _ => Err(Fault::new("a model inside it has several outputs")),
                }
            }
            Some("InputLayer") => self.input(name(model)?, config),
            _ => Err(Fault::new("it merges the results of layers that are no models")),
        }
    }

    /// The input that the first layer of a model says it takes.
    fn start(&mut self, first: &Json, config: &Object) -> Read<Json> {
        let shape = config.get(INPUT).cloned();
        let shape =
            shape.ok_or_else(|| Fault::new("the input of a model inside it has no shape"))?;
        let wanted = format!("{}_input", name(first)?);
        let own = fresh(&wanted, &self.names);
        let mut input = Object::new();
        input.insert(INPUT.to_owned(), shape);
        self.input(&own, &input)
    }

    fn input(&mut self, name: &str, config: &Object) -> Read<Json> {
        let mut config = config.clone();
        config.insert("name".to_owned(), json!(name));
        let layer = json!({"class_name": "InputLayer", "name": name, "config": config});
        let tensor = self.add(&layer, &[])?;
        self.inputs.push(tensor.clone());
        Ok(tensor)
    }

    /// Adds a layer that is called with these tensors.
    fn add(&mut self, layer: &Json, operands: &[Json]) -> Read<Json> {
        let own = name(layer)?.to_owned();
        let mut object = fields(layer, "a layer")?.clone();
        let calls = if operands.is_empty() { json!([]) } else { json!([operands]) };
        object.insert("inbound_nodes".to_owned(), calls);
        object.insert("name".to_owned(), json!(own));
        self.layers.push(Json::Object(object));
        let tensor = first_of(&own);
        self.names.insert(own);
        Ok(tensor)
    }
}

fn class(layer: &Json) -> Option<&str> {
    layer.get("class_name").and_then(Json::as_str)
}

fn is_model(layer: &Json) -> bool {
    matches!(class(layer), Some("Sequential" | "Model" | "Functional"))
}

fn name(layer: &Json) -> Read<&str> {
    let name = layer.get("name").or_else(|| layer.get("config")?.get("name"));
    name.and_then(Json::as_str).ok_or_else(|| Fault::new("a layer inside it has no name"))
}

fn with_config(layer: &Json, config: Object) -> Json {
    let mut layer = layer.clone();
    if let Some(fields) = layer.as_object_mut() {
        fields.insert("config".to_owned(), Json::Object(config));
    }
    layer
}

/// The name of a new layer that no other of these has.
fn fresh(wanted: &str, taken: &BTreeSet<String>) -> String {
    let mut numbered = (1..).map(|n: usize| format!("{wanted}_{n}"));
    if !taken.contains(wanted) {
        return wanted.to_owned();
    }
    // The names are fewer than the numbers.
    numbered.find(|name| !taken.contains(name)).unwrap_or_else(|| wanted.to_owned())
}

/// The tensor that the first call of a layer gives, as files name it.
fn first_of(layer: &str) -> Json {
    json!([layer, 0, 0])
}

/// The object that a field of a file must be.
fn fields<'a>(value: &'a Json, what: &str) -> Read<&'a Object> {
    value.as_object().ok_or_else(|| Fault::new(format!("{what} is {}", kind(value))))
}
