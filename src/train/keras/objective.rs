//! Losses of Keras, and the same in its form.

use serde_json::{Map, Value as Json, json};

use crate::pass::{Loss, OutputLoss};
use crate::types::{ParseValueError, Quoted};

/// Settings of losses and metrics that say nothing of what is computed.
pub(super) const INERT: [&str; 4] = ["name", "dtype", "reduction", "fn"];

/// What Keras calls a setting that has another name here.
const SMOOTHING: &str = "label_smoothing";

pub(super) fn refused(what: impl std::fmt::Display) -> ParseValueError {
    ParseValueError::new(format!("{what} is not supported"))
}

/// A function or an object of Keras: its name and its settings.
pub(super) fn object(found: &Json) -> Option<(&str, Option<&Map<String, Json>>)> {
    if let Some(name) = found.as_str() {
        return Some((name, None));
    }
    let class = found.get("class_name")?.as_str()?;
    let config = found.get("config");
    match (class, config.and_then(Json::as_str)) {
        ("function", Some(name)) => Some((name, None)),
        (_, None) => {
            let config = config.and_then(Json::as_object);
            // Functions of old versions are objects that name them.
            let inner = config.and_then(|config| config.get("fn")).and_then(Json::as_str);
            let is_wrapper = class.ends_with("Wrapper");
            Some((inner.filter(|_| is_wrapper).unwrap_or(class), config))
        }
        _ => None,
    }
}

/// What is of each output, of a list, of an object with their names, or of the single one.
pub(super) fn by_output<'j>(
    found: &'j Json,
    outputs: &[&str],
    what: &str,
) -> Result<Vec<&'j Json>, ParseValueError> {
    let wrong = |reason: String| ParseValueError::new(format!("the {what} of {reason}"));
    match found {
        Json::Array(list) if list.len() == outputs.len() => Ok(list.iter().collect()),
        Json::Array(list) => {
            Err(wrong(format!("the file: {} for {} outputs", list.len(), outputs.len())))
        }
        Json::Object(fields) if !fields.contains_key("class_name") => {
            if let Some(name) = fields.keys().find(|name| !outputs.contains(&name.as_str())) {
                let known = outputs.join(", ");
                let reason = format!("{}: the outputs are {known}", Quoted(name));
                return Err(wrong(reason));
            }
            // An output that is not named has none.
            Ok(outputs.iter().map(|name| fields.get(*name).unwrap_or(&Json::Null)).collect())
        }
        // One is of every output.
        _ => Ok(vec![found; outputs.len()]),
    }
}

/// The losses of the outputs.
pub(super) fn losses(
    found: &Json,
    weights: &Json,
    outputs: &[&str],
) -> Result<Vec<OutputLoss>, ParseValueError> {
    let losses = by_output(found, outputs, "loss")?;
    let weights = by_output(weights, outputs, "loss weight")?;
    let mut all = Vec::new();
    for ((output, found), weight) in outputs.iter().zip(losses).zip(weights) {
        if found.is_null() {
            continue;
        }
        let (loss, class_axis) = loss(found)?;
        let weight = if weight.is_null() { Some(1.0) } else { weight.as_f64() };
        let weight = weight.ok_or_else(|| refused(format!("the loss weight of `{output}`")))?;
        all.push(OutputLoss { class_axis, weight, ..OutputLoss::new(output, loss) });
    }
    Ok(all)
}

/// A loss, and the axis of its classes where one is given.
fn loss(found: &Json) -> Result<(Loss, Option<i64>), ParseValueError> {
    let (name, config) = object(found).ok_or_else(|| refused(format!("the loss {found}")))?;
    let reduction = config.and_then(|config| config.get("reduction")).and_then(Json::as_str);
    match reduction {
        None | Some("sum_over_batch_size" | "mean" | "auto") => {}
        Some(other) => {
            return Err(refused(format!("the reduction {} of {}", Quoted(other), Quoted(name))));
        }
    }
    mean(name, config, "loss")
}

/// The loss of this name with the settings of an object.
pub(super) fn mean(
    name: &str,
    config: Option<&Map<String, Json>>,
    what: &str,
) -> Result<(Loss, Option<i64>), ParseValueError> {
    let mut settings = Vec::new();
    let mut axis = None;
    for (key, value) in config.into_iter().flatten() {
        match (key.as_str(), value) {
            (key, _) if INERT.contains(&key) => {}
            (_, Json::Null) => {}
            ("axis", value) => axis = Some(value.as_i64().ok_or_else(|| refused("an axis"))?),
            (SMOOTHING, value) => settings.push(format!("smoothing={value}")),
            (key, value) => settings.push(format!("{key}={value}")),
        }
    }
    let text = format!("{name}:{}", settings.join(","));
    let loss = text.parse().map_err(|e| {
        ParseValueError::new(format!("the {what} {} is not supported: {e}", Quoted(name)))
    })?;
    Ok((loss, axis.filter(|axis| *axis != -1)))
}

/// A loss in the form of Keras.
pub(super) fn write(loss: &OutputLoss) -> Json {
    let mut config = settings(&loss.loss);
    if let Some(axis) = loss.class_axis {
        config.insert("axis".to_owned(), json!(axis));
    }
    // Keras does not read all names of losses in `.h5` files, and reads all objects.
    config.insert("name".to_owned(), json!(loss.loss.name()));
    config.insert("reduction".to_owned(), json!("sum_over_batch_size"));
    written("keras.losses", &class(loss.loss.name()), config)
}

/// An object in the form of Keras 3.
pub(super) fn written(module: &str, class: &str, config: impl Into<Json>) -> Json {
    let config: Json = config.into();
    json!({ "module": module, "class_name": class, "config": config, "registered_name": null })
}

/// The class of a loss.
pub(super) fn class(name: &str) -> String {
    let camel = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
    };
    let words: Vec<String> = name.split('_').map(camel).collect();
    if name == "kl_divergence" { "KLDivergence".to_owned() } else { words.concat() }
}

/// The settings of a loss that are not its defaults.
pub(super) fn settings(loss: &Loss) -> Map<String, Json> {
    let mut config = Map::new();
    let mut set = |key: &str, value: Json| {
        config.insert(key.to_owned(), value);
    };
    let mut logits = |from_logits: bool, smoothing: f64| {
        if from_logits {
            set("from_logits", json!(true));
        }
        if smoothing > 0.0 {
            set(SMOOTHING, json!(smoothing));
        }
    };
    match *loss {
        Loss::CategoricalCrossentropy { from_logits, smoothing }
        | Loss::BinaryCrossentropy { from_logits, smoothing } => logits(from_logits, smoothing),
        Loss::SparseCategoricalCrossentropy { from_logits, ignore_class } => {
            logits(from_logits, 0.0);
            if let Some(class) = ignore_class {
                set("ignore_class", json!(class));
            }
        }
        Loss::BinaryFocalCrossentropy { from_logits, smoothing, gamma, alpha, balanced } => {
            logits(from_logits, smoothing);
            set("gamma", json!(gamma));
            set("alpha", json!(alpha));
            set("apply_class_balancing", json!(balanced));
        }
        Loss::CategoricalFocalCrossentropy { from_logits, smoothing, gamma, alpha } => {
            logits(from_logits, smoothing);
            set("gamma", json!(gamma));
            set("alpha", json!(alpha));
        }
        Loss::Huber { delta } if (delta - 1.0).abs() > 0.0 => set("delta", json!(delta)),
        _ => {}
    }
    config
}
