//! Metrics of Keras, and the same in its form.

use serde_json::{Map, Value as Json, json};

use super::objective::{self, INERT, by_output, object, refused, written};
use crate::pass::{Loss, Metric};
use crate::types::{ParseValueError, Quoted};

/// The settings of metrics that have no counterpart, with their defaults.
const USUAL: [(&str, &str); 9] = [
    ("curve", "ROC"),
    ("summation_method", "interpolation"),
    ("multi_label", "false"),
    ("num_labels", "null"),
    ("label_weights", "null"),
    ("from_logits", "false"),
    ("top_k", "null"),
    ("class_id", "null"),
    ("thresholds", "null"),
];

/// The metrics of each output.
pub(super) fn of(
    found: &Json,
    outputs: &[&str],
    is_before_3: bool,
) -> Result<Vec<Vec<Metric>>, ParseValueError> {
    let list = |found: &Json| match found {
        Json::Null => Ok(Vec::new()),
        Json::Array(all) => {
            all.iter().flat_map(inner).filter(|one| !one.is_null()).map(metric).collect()
        }
        one => Ok(vec![metric(one)?]),
    };
    // A list is of the only output; before Keras 3 a flat one is of each.
    let is_flat = found.as_array().is_some_and(|all| all.iter().all(|one| object(one).is_some()));
    let is_object = found.as_object().is_some_and(|fields| !fields.contains_key("class_name"));
    if !is_object && (outputs.len() == 1 || is_before_3 && is_flat) {
        return Ok(vec![list(found)?; outputs.len()]);
    }
    by_output(found, outputs, "metrics")?.into_iter().map(list).collect()
}

/// The metrics of a list inside a list.
fn inner(found: &Json) -> Vec<&Json> {
    found.as_array().map_or_else(|| vec![found], |all| all.iter().collect())
}

fn metric(found: &Json) -> Result<Metric, ParseValueError> {
    let wrong = || refused(format!("the metric {found}"));
    let (name, config) = object(found).ok_or_else(wrong)?;
    let plain: String = name.to_lowercase().chars().filter(|c| *c != '_').collect();
    let is_class = config.is_some() && found.get("class_name").is_some_and(|c| c == name);
    // The class of this name compares numbers, and that of the cosine has the other sign.
    if plain == "accuracy" && is_class || plain.starts_with("cosine") {
        return Err(refused(format!("the metric {}", Quoted(name))));
    }
    let mut settings = Vec::new();
    for (key, value) in config.into_iter().flatten() {
        if let ("thresholds", Json::Array(all)) = (key.as_str(), value) {
            // Areas have theirs evenly spaced, which their number says.
            match all.as_slice() {
                [one] => settings.push(format!("threshold={one}")),
                _ if plain == "auc" => {}
                _ => return Err(refused(format!("several thresholds of {}", Quoted(name)))),
            }
            continue;
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if let Some((_, usual)) = USUAL.iter().find(|(own, _)| own == key)
            && ["acc", "accuracy", "auc", "precision", "recall"].contains(&plain.as_str())
        {
            if text != *usual && !(key == "thresholds" && value.is_number()) {
                return Err(refused(format!("the setting {key}={text} of {}", Quoted(name))));
            }
            if value.is_number() {
                settings.push(format!("threshold={text}"));
            }
            continue;
        }
        if !INERT.contains(&key.as_str()) && !value.is_null() {
            settings.push(format!("{key}={text}"));
        }
    }
    let known = match plain.as_str() {
        "topkcategoricalaccuracy" | "sparsetopkcategoricalaccuracy" => "top_k_accuracy",
        "auc" | "precision" | "recall" | "accuracy" | "acc" => plain.as_str(),
        "binaryaccuracy" | "categoricalaccuracy" | "sparsecategoricalaccuracy" => name,
        _ => {
            let (loss, axis) = objective::mean(name, config, "metric")?;
            return if axis.is_none() { Ok(Metric::Mean(loss)) } else { Err(wrong()) };
        }
    };
    format!("{known}:{}", settings.join(",")).parse().map_err(|e: ParseValueError| {
        ParseValueError::new(format!("the metric {} is not supported: {e}", Quoted(name)))
    })
}

/// A metric of an output with this loss in the form of Keras.
pub(super) fn write(metric: &Metric, loss: &Loss) -> Json {
    let object = |class: &str, key: &str, value: Json| {
        let mut config = Map::new();
        config.insert(key.to_owned(), value);
        written("keras.metrics", class, config)
    };
    match metric {
        Metric::BinaryAccuracy { threshold } => {
            object("BinaryAccuracy", "threshold", json!(threshold))
        }
        Metric::TopK { k } if loss.takes_classes() => {
            object("SparseTopKCategoricalAccuracy", "k", json!(k))
        }
        Metric::TopK { k } => object("TopKCategoricalAccuracy", "k", json!(k)),
        Metric::Auc { thresholds } => object("AUC", "num_thresholds", json!(thresholds)),
        Metric::Precision { threshold } => object("Precision", "thresholds", json!(threshold)),
        Metric::Recall { threshold } => object("Recall", "thresholds", json!(threshold)),
        Metric::Mean(of) => {
            let mut config = objective::settings(of);
            config.insert("name".to_owned(), json!(of.name()));
            let class = match of {
                Loss::LogCosh => "LogCoshError".to_owned(),
                // It has no class.
                Loss::Huber { .. } => return json!(of.name()),
                _ => objective::class(of.name()),
            };
            written("keras.metrics", &class, config)
        }
        Metric::CategoricalAccuracy | Metric::SparseCategoricalAccuracy => {
            object(&objective::class(&metric.name()), "name", json!(metric.name()))
        }
        other => json!(other.name()),
    }
}
