use std::sync::Arc;

use smallvec::SmallVec;

use super::super::assemble::{Assembly, Declared};
use super::super::{Graph, Origin, Param, Place, Placement, Source, Value};
use super::form::{GraphForm, HeadForm, NodeForm, OperandForm, SplitForm, tensor_type};
use super::{FORMAT, VERSION};
use crate::op::Op;
use crate::types::{Device, Quoted, Said, Split, TensorType};

/// Why a JSON text is no graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is no JSON, or a field is missing, unknown or of another kind.
    #[error("the JSON cannot be read: {}", Said(&.0.to_string()))]
    Syntax(#[from] serde_json::Error),
    /// It is JSON of another kind.
    #[error("this is no graph: `format` is not `fanwise-graph`")]
    Format,
    /// It has another version.
    #[error("this graph has version {0}; version {VERSION} can be read")]
    Version(u32),
    /// The fields contradict each other.
    #[error("{place}: {message}")]
    Graph {
        /// The field, as `nodes[3]`.
        place: String,
        /// What is wrong.
        message: String,
    },
}

/// Reads a graph. It is typed, but not checked further: [`verify`](super::super::verify) does that.
pub fn from_json(text: &str) -> Result<Graph, JsonError> {
    let head: HeadForm<'_> = serde_json::from_str(text)?;
    match (head.format.as_deref(), head.version) {
        (Some(FORMAT), Some(VERSION)) => {}
        (Some(FORMAT), Some(version)) => return Err(JsonError::Version(version)),
        _ => return Err(JsonError::Format),
    }
    let form: GraphForm<'_> = serde_json::from_str(text)?;
    let mut made = Assembly::new();
    made.graph.set_name(&*form.name);
    if let Some(form) = form.split {
        let split = split(form).map_err(|e| wrong("split", None, e))?;
        made.graph.set_split(Some(split));
    }
    for (i, form) in form.params.into_iter().enumerate() {
        let hash = form
            .blake3
            .parse()
            .map_err(|()| wrong("params", Some(i), "a hash has sixteen hexadecimal digits"))?;
        let placement =
            form.device.map_or(Placement::Mirrored, |device| Placement::Shared(device.0));
        let source = Source { file: form.file.into(), key: form.key.into() };
        let ty = tensor_type(form.dtype.0, form.shape);
        let param = Param { name: form.name.into(), ty, source, hash, placement };
        made.param(param).map_err(|e| wrong("params", Some(i), e))?;
    }
    for (i, form) in form.inputs.into_iter().enumerate() {
        let ty = tensor_type(form.dtype.0, form.shape);
        made.input(form.name.into(), ty).map_err(|e| wrong("inputs", Some(i), e))?;
    }
    for (i, form) in form.nodes.into_iter().enumerate() {
        node(&mut made, form).map_err(|e| wrong("nodes", Some(i), e))?;
    }
    for (i, form) in form.outputs.into_iter().enumerate() {
        operand(&mut made, &form.value, Device::HOST)
            .map(|value| made.graph.add_output(&*form.name, value))
            .map_err(|e| wrong("outputs", Some(i), e))?;
    }
    Ok(made.graph)
}

fn wrong(list: &str, at: Option<usize>, message: impl Into<String>) -> JsonError {
    let place = at.map_or_else(|| list.to_owned(), |i| format!("{list}[{i}]"));
    JsonError::Graph { place, message: message.into() }
}

fn split(form: SplitForm) -> Result<Split, String> {
    let devices = form.devices.into_iter().map(|device| device.0).collect();
    let offsets = form.offsets.into_iter().map(|offset| offset.0).collect();
    Split::with_offsets(devices, form.rule.0, offsets).map_err(|e| e.to_string())
}

fn node(made: &mut Assembly, form: NodeForm<'_>) -> Result<(), String> {
    let place = Place { device: form.device.0, replica: form.replica };
    let operands = form.operands.iter().map(|x| operand(made, x, place.device));
    let operands: SmallVec<[Value; 4]> = operands.collect::<Result<_, _>>()?;
    let op = Op::read(&form.op, form.attrs.0).map_err(|e| e.to_string())?;
    let results = form.results.into_iter();
    let results: SmallVec<[(Arc<str>, TensorType); 1]> =
        results.map(|r| (r.name.into(), tensor_type(r.dtype.0, r.shape))).collect();
    let declared = results.iter().map(|(name, ty)| Declared { name, ty });
    let origin = Origin(form.origin.map(Into::into));
    made.op(op, &operands, declared, place, origin).map(|_| ()).map_err(|wrong| match wrong.help {
        Some(help) => format!("{}; {help}", wrong.message),
        None => wrong.message,
    })
}

fn operand(made: &mut Assembly, form: &OperandForm<'_>, user: Device) -> Result<Value, String> {
    let device = form.device.as_ref().map(|device| device.0);
    match (&form.value, &form.param, device) {
        (Some(name), None, None) => made
            .value(name)
            .ok_or_else(|| format!("no node before this one gives a value {}", Quoted(name))),
        (None, Some(name), home) => made.held(name, home, user),
        _ => Err("an operand has a `value`, or a `param` and its `device`".to_owned()),
    }
}
