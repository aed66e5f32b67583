//! Errors of the library as exceptions of Python.

use fanwise::backend::RunError;
use fanwise::format::onnx::{ImportError, NodeError};
use fanwise::model::ModelError;
use fanwise::pass::{GradientError, PassError, SplitRefused, TrainingError};
use fanwise::types::Diagnostic;
use fanwise::{Error, types::Hint};
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception for an error: `RefusedError` for a graph that may not be split, `OSError` for
/// files, `MemoryError` for memory, else `fanwise.Error`, which is a `ValueError`.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are one exception")]
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Pass(PassError::Refused(list))
        | Error::Model(ModelError::Pass(PassError::Refused(list))) => refused(py, error, list),
        Error::Model(ModelError::Io { error: io, .. }) => match io.raw_os_error() {
            Some(number) => PyOSError::new_err((number, error.to_string())),
            None => PyOSError::new_err(error.to_string()),
        },
        Error::Model(ModelError::Onnx(ImportError::Unsupported(ops))) => {
            lacking(py, error, ops.first().map_or("", |op| &op.op), "")
        }
        Error::Model(ModelError::Onnx(ImportError::Node {
            node,
            op,
            error: NodeError::Unsupported(_),
        })) => lacking(py, error, op, node),
        Error::Training(TrainingError::Gradient(GradientError::Operator { label, op, .. })) => {
            lacking(py, error, op, label)
        }
        Error::Run(
            RunError::Memory { .. } | RunError::InputMemory { .. } | RunError::OutOfMemory { .. },
        ) => PyMemoryError::new_err(error.worded(&word)),
        Error::Model(ModelError::Keras(of_file)) => match of_file.layers().next() {
            Some((layer, class)) => lacking(py, error, class, layer),
            None => made(py, "Error", error, &error.hints(), &[]).unwrap_or_else(|e| e),
        },
        _ => made(py, "Error", error, &error.hints(), &[]).unwrap_or_else(|e| e),
    }
}

/// The refusal of a part that fanwise does not compute.
fn lacking(py: Python<'_>, error: &Error, operator: &str, layer: &str) -> PyErr {
    let fields = [("operator", operator.to_owned()), ("layer", layer.to_owned())];
    made(py, "RefusedError", error, &error.hints(), &fields).unwrap_or_else(|e| e)
}

/// A hint without the names of the library's settings, which Python does not have.
fn word(hint: &Hint) -> String {
    hint.worded(|setting, values| {
        let name = format!("{setting:?}");
        let mut text = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !text.is_empty() {
                text.push('_');
            }
            text.extend(c.to_lowercase());
        }
        match values {
            [] => text,
            values => format!("{text}={}", values.join(",")),
        }
    })
}

fn refused(py: Python<'_>, error: &Error, list: &[SplitRefused]) -> PyErr {
    let first = list.first();
    let text = |of: fn(&SplitRefused) -> &str| first.map_or("", of).to_owned();
    let fields = [("operator", text(|r| &r.op)), ("layer", text(|r| &r.label))];
    let hints = first.map_or_else(Vec::new, SplitRefused::hints);
    made(py, "RefusedError", error, &hints, &fields).unwrap_or_else(|e| e)
}

/// An exception of the package, with the code, the hints and other fields of an error.
fn made(
    py: Python<'_>,
    class: &str,
    error: &Error,
    hints: &[Hint],
    fields: &[(&str, String)],
) -> PyResult<PyErr> {
    let class = py.import("fanwise._errors")?.getattr(class)?;
    let given = PyDict::new(py);
    given.set_item("code", error.code())?;
    given.set_item("hints", hints.iter().map(word).collect::<Vec<_>>())?;
    for (name, value) in fields {
        given.set_item(name, value)?;
    }
    Ok(PyErr::from_value(class.call((error.worded(&word),), Some(&given))?))
}

/// The result with the error as an exception.
pub(crate) trait Raise<T> {
    /// Does that.
    fn raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Error>> Raise<T> for Result<T, E> {
    fn raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error.into()))
    }
}
