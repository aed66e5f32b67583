use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use super::super::assemble::{Assembly, Declared};
use super::super::{DevicePlacement, Graph, Origin, Param, Placement, Source, Value};
use super::form::{
    FORMAT, GraphForm, HeadForm, NodeForm, OperandForm, OutputForm, ParamForm, SplitForm,
    UpdateForm, VERSION, ValueForm, tensor_type,
};
use crate::op::CustomOps;
use crate::types::invariant::invariant;
use crate::types::{Device, Quoted, QuotedMessage, Split, TensorType};

/// The error of reading a graph from JSON.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// The text is not JSON, or a field is missing, unknown or of another type.
    #[error("the JSON cannot be read: {}", QuotedMessage(.0))]
    Syntax(String),
    /// The JSON has another format.
    #[error("this is not a graph: `format` is not `fanwise-graph`")]
    Format,
    /// It has another version.
    #[error("this graph has version {0}; version {VERSION} can be read")]
    Version(u32),
    /// The fields contradict each other.
    #[error("{place}: {message}")]
    Graph {
        /// The field, as `nodes[3]`.
        place: String,
        /// The fault.
        message: String,
    },
}

/// Reads a graph. It is typed, but not checked further: [`verify`](super::super::verify) does that.
pub fn from_json(text: &str) -> Result<Graph, JsonError> {
    from_json_with(text, &CustomOps::default())
}

/// As [`from_json`]; the operators of a framework are those in `ops`.
pub fn from_json_with(text: &str, ops: &CustomOps) -> Result<Graph, JsonError> {
    // Format and version are read alone, so that a text of a later version is named as such and not
    // by its first unknown field.
    let head: HeadForm<'_> =
        serde_json::from_str(text).map_err(|e| JsonError::Syntax(e.to_string()))?;
    match (head.format.as_deref(), head.version) {
        (Some(FORMAT), Some(VERSION)) => {}
        (Some(FORMAT), Some(version)) => return Err(JsonError::Version(version)),
        _ => return Err(JsonError::Format),
    }
    let form: GraphForm<'_> =
        serde_json::from_str(text).map_err(|e| JsonError::Syntax(e.to_string()))?;
    let mut assembly = Assembly::new();
    assembly.graph.set_name(&*form.name);
    if let Some(form) = form.split {
        let split = split(form).map_err(|e| wrong("split", None, e))?;
        assembly.graph.set_split(Some(split));
    }
    list(text, form.params, |i, form| {
        param(&mut assembly, form).map_err(|e| wrong("params", Some(i), e))
    })?;
    list(text, form.inputs, |i, form: ValueForm<'_>| {
        let ty = tensor_type(form.dtype.0, form.shape);
        assembly.input(form.name.into(), ty).map_err(|e| wrong("inputs", Some(i), e))
    })?;
    list(text, form.nodes, |i, form| {
        node(&mut assembly, form, ops).map_err(|e| wrong("nodes", Some(i), e))
    })?;
    if let Some(updates) = form.updates {
        list(text, updates, |i, form| {
            update(&mut assembly, &form).map_err(|e| wrong("updates", Some(i), e))
        })?;
    }
    list(text, form.outputs, |i, form: OutputForm<'_>| {
        operand(&mut assembly, &form.value, Device::HOST)
            .map(|value| assembly.graph.add_output(&*form.name, value))
            .map_err(|e| wrong("outputs", Some(i), e))
    })?;
    Ok(assembly.graph)
}

/// The error at an element of a list, or at the whole of it.
fn wrong(list: &str, at: Option<usize>, message: impl Into<String>) -> JsonError {
    let place = at.map_or_else(|| list.to_owned(), |i| format!("{list}[{i}]"));
    JsonError::Graph { place, message: message.into() }
}

/// Calls `each` with every element of a list that is a part of `text`, and its position in the
/// list.
fn list<'a, T: Deserialize<'a>>(
    text: &'a str,
    list: &'a RawValue,
    each: impl FnMut(usize, T) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    // serde's errors carry only a text; the error of an element is kept beside the visitor, which
    // stops by an error of no meaning.
    let mut failed = None;
    let read = serde_json::Deserializer::from_str(list.get()).deserialize_seq(Elements {
        each,
        failed: &mut failed,
        of: PhantomData,
    });
    match failed {
        Some(error) => Err(error),
        None => read.map_err(|e| JsonError::Syntax(in_text(text, list.get(), &e))),
    }
}

/// The message of an error in `part`, with its position in the whole `text`.
fn in_text(text: &str, part: &str, error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let said = error.to_string();
    // serde_json counts from the beginning of the part that it was given.
    let said = said.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&said);
    // A raw value borrows from the text, so that its place is the distance of the two pointers.
    let start = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let before = invariant(text.get(..start), "that a part borrows from its text");
    let lines = before.bytes().filter(|b| *b == b'\n').count();
    let shift =
        // The first line begins with the text.
        if line == 1 { before.len() - before.rfind('\n').map_or(0, |at| at + 1) } else { 0 };
    format!("{said} at line {} column {}", lines + line, shift + column)
}

/// The visitor of a list, which hands each element on before the next is read.
struct Elements<'f, F, T> {
    each: F,
    failed: &'f mut Option<JsonError>,
    of: PhantomData<T>,
}

impl<'de, T, F> Visitor<'de> for Elements<'_, F, T>
where
    T: Deserialize<'de>,
    F: FnMut(usize, T) -> Result<(), JsonError>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut i = 0;
        while let Some(element) = list.next_element()? {
            if let Err(error) = (self.each)(i, element) {
                *self.failed = Some(error);
                return Err(de::Error::custom("stopped"));
            }
            i += 1;
        }
        Ok(())
    }
}

/// Declares a parameter; `blake3` of its bytes is in hexadecimal digits, and is compared when its
/// weights are read.
fn param(assembly: &mut Assembly, form: ParamForm<'_>) -> Result<(), String> {
    let hash = form.blake3.parse();
    let hash = hash.map_err(|()| "a hash has sixteen hexadecimal digits".to_owned())?;
    // Mirrored parameters have no `device`.
    let placement = form.device.map_or(Placement::Mirrored, |device| Placement::Shared(device.0));
    let source = Source { file: form.file.into(), key: form.key.into() };
    let ty = tensor_type(form.dtype.0, form.shape);
    assembly.param(Param { name: form.name.into(), ty, source, hash, placement })
}

/// The split: offsets are checked to rise from 0 to `N` by the type itself.
fn split(form: SplitForm) -> Result<Split, String> {
    let devices = form.devices.into_iter().map(|device| device.0).collect();
    let offsets = form.offsets.into_iter().map(|offset| offset.0).collect();
    Split::with_offsets(devices, form.rule.0, offsets).map_err(|e| e.to_string())
}

/// Adds a node. Its results are typed again from the operands, and must have the types that are
/// written.
fn node(assembly: &mut Assembly, form: NodeForm<'_>, ops: &CustomOps) -> Result<(), String> {
    // A replica that the split has not would only be found by the verifier, which no longer knows
    // the node's place in the text.
    let replicas = assembly.graph.split().map_or(0, Split::replicas);
    match form.replica {
        Some(_) if replicas == 0 => return Err("no split is declared".to_owned()),
        Some(i) if i as usize >= replicas => {
            return Err(format!("the split has {replicas} replicas; there is no replica {i}"));
        }
        _ => {}
    }
    let place = DevicePlacement { device: form.device.0, replica: form.replica };
    let operands = form.operands.iter().map(|x| operand(assembly, x, place.device));
    let operands: SmallVec<[Value; 4]> = operands.collect::<Result<_, _>>()?;
    let op = ops.read(&form.op, form.attrs.0).map_err(|e| e.to_string())?;
    let results = form.results.into_iter();
    let results: SmallVec<[(Arc<str>, TensorType); 1]> =
        results.map(|r| (r.name.into(), tensor_type(r.dtype.0, r.shape))).collect();
    let declared = results.iter().map(|(name, ty)| Declared { name, ty });
    let origin = Origin(form.origin.map(Into::into));
    assembly.op(op, &operands, declared, place, origin).map(|_| ()).map_err(|wrong| {
        match wrong.help {
            Some(help) => format!("{}; {help}", wrong.message),
            None => wrong.message,
        }
    })
}

/// Adds the update of a parameter: a value for each device that holds it.
fn update(assembly: &mut Assembly, form: &UpdateForm<'_>) -> Result<(), String> {
    let param = assembly.param_id(&form.param)?;
    let values = form.values.iter().enumerate().map(|(i, value)| {
        // A parameter is named as seen from the device that will hold the new value.
        let home = assembly.home(param, i);
        operand(assembly, value, home)
    });
    let values = values.collect::<Result<_, _>>()?;
    assembly.update(param, values)
}

/// The value that an operand names, as a node on `user` sees it.
fn operand(assembly: &mut Assembly, form: &OperandForm<'_>, user: Device) -> Result<Value, String> {
    let device = form.device.as_ref().map(|device| device.0);
    match (&form.value, &form.param, device) {
        (Some(name), None, None) => assembly
            .value(name)
            .ok_or_else(|| format!("no earlier node defines the value {}", Quoted(name))),
        (None, Some(name), home) => assembly.held(name, home, user),
        _ => Err("an operand has a `value`, or a `param` and its `device`".to_owned()),
    }
}
