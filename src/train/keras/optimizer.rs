//! Optimizers of Keras, and the same in its form.

use serde_json::{Map, Value as Json, json};

use super::decay::Decay;
use crate::pass::Optimizer;
use crate::types::{ParseValueError, Quoted};

/// The classes of optimizers, in the order of [`Optimizer::NAMES`].
const CLASSES: [&str; 11] = [
    "Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lamb", "Lion", "Nadam", "RMSprop",
    "SGD",
];

/// Settings that say nothing of the steps.
const INERT: [&str; 6] =
    ["name", "jit_compile", "is_legacy_optimizer", "learning_rate", "lr", "decay"];

/// The settings that count only beside `use_ema`.
const AVERAGES: [&str; 2] = ["ema_momentum", "ema_overwrite_frequency"];

fn refused(what: &str) -> ParseValueError {
    ParseValueError::new(format!("{what} is not supported"))
}

/// The optimizer of an object of `keras.optimizers` or a name, and its schedule.
pub(super) fn read(
    found: &Json,
    is_before_3: bool,
) -> Result<(Optimizer, Option<Decay>), ParseValueError> {
    let class = found.get("class_name").and_then(Json::as_str).or_else(|| found.as_str());
    let class = class.ok_or_else(|| refused("an optimizer of no class"))?;
    // So tf.keras registers its own.
    let class = class.strip_prefix("Custom>").filter(|_| is_before_3).unwrap_or(class);
    let known = CLASSES.iter().position(|own| own.eq_ignore_ascii_case(class));
    let name = known.map(|at| Optimizer::NAMES[at]);
    let name = name.ok_or_else(|| refused(&format!("the optimizer {}", Quoted(class))))?;
    let none = Map::new();
    let config = found.get("config").and_then(Json::as_object).unwrap_or(&none);
    let is_legacy = is_before_3 && !config.contains_key("use_ema") && !config.is_empty();
    // Its formula is another, with a product of factors that few files have.
    if is_before_3 && name == "nadam" {
        let of =
            format!("the optimizer {} of Keras before 3, whose formula differs,", Quoted(class));
        return Err(refused(&of));
    }
    let mut settings = settings(name, config)?;
    // Without weight decay it is the same rule.
    let has_decay = config.get("weight_decay").and_then(Json::as_f64).is_some_and(|x| x > 0.0);
    let name = if name == "adamw" && !has_decay && !config.is_empty() { "adam" } else { name };
    let has_momentum = config.get("momentum").and_then(Json::as_f64).is_some_and(|x| x > 0.0);
    if is_legacy && (name == "adagrad" || name == "rmsprop" && !has_momentum) {
        settings.push("epsilon=outside".to_owned());
    }
    // Before tf.keras the sums begin with nothing, and files do not say so.
    let initial = "initial_accumulator_value";
    if is_legacy && name == "adagrad" && !config.contains_key(initial) {
        settings.push(format!("{initial}=0"));
    }
    let mut optimizer: Optimizer = format!("{name}:{}", settings.join(",")).parse()?;
    let rate = config.get("learning_rate").or_else(|| config.get("lr"));
    let mut decay = None;
    match rate {
        None => {}
        Some(rate @ Json::Object(_)) => decay = Some(Decay::read(rate)?),
        Some(rate) => {
            let number = rate.as_f64().filter(|x| x.is_finite() && *x >= 0.0);
            optimizer.learning_rate =
                number.ok_or_else(|| refused(&format!("the learning rate {rate}")))?;
        }
    }
    let falls = config.get("decay").and_then(Json::as_f64).filter(|x| *x > 0.0);
    if let Some(falls) = falls {
        decay = Some(Decay::inverse(optimizer.learning_rate, falls));
    }
    if let Some(decay) = &decay {
        optimizer.learning_rate = decay.initial;
    }
    Ok((optimizer, decay))
}

/// The settings that say something of the steps, as an optimizer reads them.
fn settings(name: &str, config: &Map<String, Json>) -> Result<Vec<String>, ParseValueError> {
    let averages = config.get("use_ema") == Some(&json!(true));
    let mut settings = Vec::new();
    for (key, value) in config {
        let is_unset = value.is_null() || value == &json!(false) || value == &json!(0.0);
        let skipped = !averages && AVERAGES.contains(&key.as_str());
        if INERT.contains(&key.as_str()) || skipped || is_unset && !sets_by_zero(key) {
            continue;
        }
        settings.push(match value {
            Json::Bool(_) | Json::Number(_) => format!("{key}={value}"),
            _ => return Err(refused(&format!("the setting `{key}={value}` of {name}"))),
        });
    }
    Ok(settings)
}

/// Whether 0 and `false` are not what a setting is without being set.
fn sets_by_zero(key: &str) -> bool {
    key.starts_with("beta")
        || ["rho", "epsilon", "momentum", "initial_accumulator_value", "learning_rate_power"]
            .contains(&key)
}

/// An optimizer in the form of Keras, or `None` if Keras has none such.
pub(super) fn write(optimizer: &Optimizer, is_before_3: bool) -> Option<Json> {
    let text = optimizer.to_string();
    let (name, settings) = text.split_once(':')?;
    let class = CLASSES[Optimizer::NAMES.iter().position(|own| *own == name)?];
    let mut config = Map::new();
    for key in ["clipnorm", "clipvalue", "global_clipnorm", "weight_decay"] {
        config.insert(key.to_owned(), Json::Null);
    }
    config.insert("name".to_owned(), json!(label(name)));
    for (key, value) in settings.split(',').filter_map(|setting| setting.split_once('=')) {
        let value = match (key, value.parse::<bool>(), value.parse::<f64>()) {
            ("gradient_accumulation_steps" | "ema_overwrite_frequency", ..) => {
                json!(value.parse::<u32>().ok()?)
            }
            (_, Ok(flag), _) => json!(flag),
            (_, _, Ok(number)) => json!(number),
            _ => return None,
        };
        config.insert(key.to_owned(), value);
    }
    let mut object = Map::new();
    object.insert("class_name".to_owned(), json!(class));
    object.insert("config".to_owned(), Json::Object(config));
    if !is_before_3 {
        object.insert("module".to_owned(), json!("keras.optimizers"));
        object.insert("registered_name".to_owned(), Json::Null);
    }
    Some(Json::Object(object))
}

/// The name that Keras gives an optimizer.
pub(super) fn label(name: &str) -> &str {
    if name == "rmsprop" { "rm_sprop" } else { name }
}
