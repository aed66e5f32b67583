//! Configurations of Keras objects: JSON objects of which every field must be understood.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};

use super::error::Fault;

/// The fields of objects.
pub(super) type Object = Map<String, Json>;

/// Fields that do not change what a layer computes.
const INERT: &[&str] = &[
    "autocast",
    "batch_input_shape",
    "batch_shape",
    "build_config",
    "dtype",
    "input_shape",
    "name",
    "seed",
    "trainable",
];

/// The ends of fields that only matter where variables are made or learned.
const LEARNING: [&str; 3] = ["initializer", "regularizer", "constraint"];

/// The largest size, and the largest magnitude of an integer: products of two still fit.
pub(super) const MOST: i64 = 1 << 31;

/// The kind of a JSON value, with its article.
pub(super) fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a truth value",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// The configuration of an object, which records the fields that are asked for.
pub(super) struct Config<'c> {
    fields: &'c Object,
    taken: RefCell<BTreeSet<&'c str>>,
}

/// The result of reading a field.
pub(super) type Read<T> = Result<T, Fault>;

impl<'c> Config<'c> {
    pub(super) fn new(fields: &'c Object) -> Self {
        Self { fields, taken: RefCell::default() }
    }

    /// All fields.
    pub(super) fn fields(&self) -> &'c Object {
        self.fields
    }

    /// The value of a field; `None` if it is absent or null.
    pub(super) fn opt(&self, name: &str) -> Option<&'c Json> {
        let (name, value) = self.fields.get_key_value(name)?;
        self.taken.borrow_mut().insert(name);
        (!value.is_null()).then_some(value)
    }

    /// The value of a field that must be there.
    pub(super) fn needed(&self, name: &str) -> Read<&'c Json> {
        self.opt(name).ok_or_else(|| Fault::field(name, "is missing"))
    }

    /// Takes fields that do not change what the layer computes.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.opt(name);
        }
    }

    /// Fails if a field is set that nobody asked for: null, false and what is empty set nothing.
    pub(super) fn check(&self) -> Read<()> {
        self.ignore(INERT);
        let taken = self.taken.borrow();
        let is_set = |value: &Json| match value {
            Json::Null | Json::Bool(false) => false,
            Json::Array(list) => !list.is_empty(),
            Json::Object(fields) => !fields.is_empty(),
            Json::Bool(true) | Json::Number(_) | Json::String(_) => true,
        };
        let is_left = |name: &str, value: &Json| {
            let is_learning = LEARNING.iter().any(|end| name.ends_with(end));
            !taken.contains(name) && !is_learning && is_set(value)
        };
        match self.fields.iter().find(|(name, value)| is_left(name, value)) {
            None => Ok(()),
            Some((name, _)) => Err(Fault::field(name, "is not supported")),
        }
    }

    /// The regularizer or constraint, the `kind`, of a variable: that of `recurrent_kernel` is in
    /// the field `recurrent_regularizer`.
    pub(super) fn restriction(&self, variable: &str, kind: &str) -> Option<&'c Json> {
        let last = variable.rsplit_once('/').map_or(variable, |(_, last)| last);
        let stem = last.strip_suffix("_kernel").unwrap_or(last);
        let own = self.opt(&format!("{stem}_{kind}"));
        // The kernel of a depthwise convolution has a field by that name.
        own.or_else(|| self.opt(&format!("depthwise_{kind}")).filter(|_| stem == "kernel"))
    }

    /// The fields that restrict how variables are learned, are set, and belong to no variable.
    pub(super) fn restrictions(&self) -> impl Iterator<Item = &'c str> {
        // That of activities is a part of the loss of the model.
        let is_one = |name: &str| {
            (name.ends_with("regularizer") && name != "activity_regularizer")
                || name.ends_with("constraint")
        };
        let taken = self.taken.borrow().clone();
        let set = self.fields.iter().filter(|(_, value)| !value.is_null());
        set.map(|(name, _)| &**name).filter(move |name| is_one(name) && !taken.contains(name))
    }

    pub(super) fn flag(&self, name: &str, absent: bool) -> Read<bool> {
        match self.opt(name) {
            None => Ok(absent),
            // Old files have 0 and 1.
            Some(value) => {
                value.as_bool().or_else(|| value.as_i64().map(|x| x != 0)).ok_or_else(|| {
                    Fault::field(name, format!("is {}, not a truth value", kind(value)))
                })
            }
        }
    }

    pub(super) fn text(&self, name: &str, absent: &'static str) -> Read<&'c str> {
        Ok(self.opt_text(name)?.unwrap_or(absent))
    }

    pub(super) fn opt_text(&self, name: &str) -> Read<Option<&'c str>> {
        self.opt(name).map(|value| text(name, value)).transpose()
    }

    /// The meaning of a word, looked up in a table.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        absent: &'static str,
        words: &[(&str, T)],
    ) -> Read<T> {
        let given = self.text(name, absent)?;
        let found = words.iter().find(|(word, _)| *word == given).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| Fault::field(name, format!("is {}", crate::types::Quoted(given))))
    }

    pub(super) fn number(&self, name: &str, absent: f64) -> Read<f64> {
        Ok(self.opt_number(name)?.unwrap_or(absent))
    }

    pub(super) fn opt_number(&self, name: &str) -> Read<Option<f64>> {
        self.opt(name).map(|value| number(name, value)).transpose()
    }

    pub(super) fn int(&self, name: &str, absent: i64) -> Read<i64> {
        Ok(self.opt_int(name)?.unwrap_or(absent))
    }

    /// The axis of a function, which may work along all axes and so along the batch: `null`.
    pub(super) fn axis(&self) -> Read<i64> {
        match self.fields.get("axis") {
            Some(Json::Null) => {
                Err(Fault::field("axis", "is `None`: it joins the rows of the batch"))
            }
            _ => self.int("axis", -1),
        }
    }

    pub(super) fn opt_int(&self, name: &str) -> Read<Option<i64>> {
        self.opt(name).map(|value| int(name, value)).transpose()
    }

    /// A positive number of things.
    pub(super) fn count(&self, name: &str) -> Read<i64> {
        let count = int(name, self.needed(name)?)?;
        if count > 0 { Ok(count) } else { Err(Fault::field(name, format!("is {count}"))) }
    }

    /// A list of integers; one integer stands for a list of it, `length` long.
    pub(super) fn ints(&self, name: &str, length: usize) -> Read<Option<Vec<i64>>> {
        let Some(value) = self.opt(name) else { return Ok(None) };
        let list = match value {
            Json::Array(list) => list.iter().map(|v| int(name, v)).collect::<Read<Vec<_>>>()?,
            value => vec![int(name, value)?; length],
        };
        if list.len() == length {
            return Ok(Some(list));
        }
        Err(Fault::field(name, format!("has {} numbers, not {length}", list.len())))
    }

    /// A list of integers of any length.
    pub(super) fn opt_list(&self, name: &str) -> Read<Option<Vec<i64>>> {
        let Some(value) = self.opt(name) else { return Ok(None) };
        let list = value.as_array();
        let list =
            list.ok_or_else(|| Fault::field(name, format!("is {}, not a list", kind(value))))?;
        list.iter().map(|v| int(name, v)).collect::<Read<_>>().map(Some)
    }

    /// Sizes, of which null ones are open; one alone is a list of it.
    pub(super) fn one_or_open(&self, name: &str) -> Read<Vec<Option<i64>>> {
        match self.needed(name)? {
            Json::Array(list) => list
                .iter()
                .map(|v| if v.is_null() { Ok(None) } else { int(name, v).map(Some) })
                .collect(),
            value => Ok(vec![Some(int(name, value)?)]),
        }
    }

    /// Integers, of which one alone is a list of it.
    pub(super) fn one_or_more(&self, name: &str) -> Read<Option<Vec<i64>>> {
        match self.opt(name) {
            Some(Json::Number(_)) => Ok(self.opt_int(name)?.map(|one| vec![one])),
            _ => self.opt_list(name),
        }
    }

    /// Integers that must be there, of which one alone is a list of it.
    pub(super) fn one_at_least(&self, name: &str) -> Read<Vec<i64>> {
        self.one_or_more(name)?.ok_or_else(|| Fault::field(name, "is missing"))
    }
}

/// The text that a field is.
pub(super) fn text<'c>(name: &str, value: &'c Json) -> Read<&'c str> {
    value.as_str().ok_or_else(|| Fault::field(name, format!("is {}, not text", kind(value))))
}

/// The integer that a field is.
pub(super) fn int(name: &str, value: &Json) -> Read<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "a whole number that fits")]
    // Python writes some integers as floats.
    let whole = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 1e15).map(|x| x as i64);
    let found = value.as_i64().or_else(whole);
    let found =
        found.ok_or_else(|| Fault::field(name, format!("is {}, not an integer", kind(value))))?;
    if found.unsigned_abs() > MOST.unsigned_abs() {
        return Err(Fault::field(name, format!("is {found}, beyond {MOST}")));
    }
    Ok(found)
}

/// The number that a field is.
pub(super) fn number(name: &str, value: &Json) -> Read<f64> {
    value.as_f64().ok_or_else(|| Fault::field(name, format!("is {}, not a number", kind(value))))
}
