//! Operators of other domains with an assumption of the user: they become `external`.

use super::NodeError;
use super::flat::Given;
use super::known::Size;
use super::node::{Done, Node, wrong};
use super::proto::attribute_proto::AttributeType;
use crate::ir::{MAX_CONSTANT, Value};
use crate::op::attr::AttrValue;
use crate::op::{Assume, Attr, External, infer};
use crate::types::{Dim, Shape, TensorType};

/// Adds the operator `op` with the types that the file declares for its results.
pub(super) fn convert(node: &mut Node<'_, '_>, op: String, assume: Assume) -> Done {
    let operands = node.operands()?;
    let rows = match assume {
        Assume::Rowwise(axis) => rows(node, &operands, axis)?.map(|rows| (axis, rows)),
        Assume::None => None,
    };
    let count = node.result_count();
    let types =
        (0..count).map(|i| result(node, i, rows.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let attrs = attributes(node)?;
    let op = External { attrs, ..External::new(op, types).assuming(assume) };
    node.results(count, op, &operands)
}

/// The rows of the operands on `axis`: those of all operands whose size there is open.
fn rows(node: &Node<'_, '_>, operands: &[Value], axis: usize) -> Result<Option<Dim>, NodeError> {
    let sizes = operands.iter().filter_map(|x| node.shape(*x).get(axis));
    let mut open = sizes.filter(|d| !d.is_const());
    let Some(first) = open.next() else { return Ok(None) };
    for other in open {
        infer::equal("the rows of the operands", first, other)?;
    }
    Ok(Some(first.clone()))
}

/// The declared type of result `i`; `rows` are the axis that is assumed to hold the rows, and their
/// number.
fn result(
    node: &Node<'_, '_>,
    i: usize,
    rows: Option<&(usize, Dim)>,
) -> Result<TensorType, NodeError> {
    let (dtype, sizes) = node.declared(i)?;
    let mut shape = Shape::scalar();
    for (axis, size) in sizes.iter().enumerate() {
        let rows = rows.filter(|(a, _)| *a == axis).map(|(_, rows)| rows);
        let known = match size {
            Size::Class(class) => Some(node.class(*class)),
            Size::Constant(c) if Some(*c) == node.freed() => {
                let rows = rows.cloned().ok_or_else(|| NodeError::Baked {
                    literal: format!("the size {c} of axis {axis} of result {i}"),
                    reason: "it may be the batch, or another size that is the same".to_owned(),
                })?;
                Some(rows)
            }
            Size::Constant(c) => Some(Dim::from(*c)),
            Size::Named(_) | Size::Unnamed => None,
        };
        shape.push(match (known, rows) {
            (Some(size), Some(rows)) => {
                let what = format!("the rows of the operands and axis {axis} of result {i}");
                infer::equal(&what, rows, &size)?;
                size
            }
            (Some(size), None) => size,
            (None, Some(rows)) => rows.clone(),
            (None, None) => {
                let reason = format!("the file leaves the size of axis {axis} open");
                return Err(node.undeclared(i, reason));
            }
        });
    }
    Ok(TensorType { dtype: *dtype, shape })
}

/// All attributes of the node as one text, by name; `None` where there is none.
fn attributes(node: &mut Node<'_, '_>) -> Result<Option<String>, NodeError> {
    let mut given = node.take_all();
    given.sort_by(|a, b| a.proto.name().cmp(b.proto.name()));
    let alike = |pair: &&[Given]| pair[0].proto.name() == pair[1].proto.name();
    if let Some(pair) = given.windows(2).find(alike) {
        return Err(wrong(pair[0].proto.name(), "is given twice"));
    }
    let texts = given.iter().map(|attribute| {
        let value = attribute_text(node, attribute)?;
        Ok(format!("{}={value}", Attr::Name(attribute.proto.name().to_owned())))
    });
    let texts = texts.collect::<Result<Vec<String>, NodeError>>()?;
    Ok((!texts.is_empty()).then(|| texts.join(", ")))
}

/// The value of an attribute as the text form has it.
fn attribute_text(node: &mut Node<'_, '_>, given: &Given) -> Result<String, NodeError> {
    let attribute = &given.proto;
    let name = attribute.name();
    let word = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Attr::Name(text.to_owned())),
        Err(_) => Err(wrong(name, "is not valid text")),
    };
    let kind = attribute.r#type.and_then(|t| AttributeType::try_from(t).ok());
    let attr = match kind {
        Some(AttributeType::Int) => attribute.i().to_attr(),
        Some(AttributeType::Ints) => attribute.ints.to_attr(),
        Some(AttributeType::Float) => attribute.f().to_attr(),
        Some(AttributeType::Floats) => attribute.floats.to_attr(),
        Some(AttributeType::String) => Some(word(attribute.s())?),
        Some(AttributeType::Strings) => {
            let words = attribute.strings.iter().map(|w| Ok(word(w)?.to_string()));
            return Ok(format!("[{}]", words.collect::<Result<Vec<_>, NodeError>>()?.join(", ")));
        }
        Some(AttributeType::Tensor) => {
            let tensor = node.own_tensor(given)?;
            if tensor.len() > MAX_CONSTANT {
                return Err(wrong(name, format!("has more than {MAX_CONSTANT} elements")));
            }
            Some(Attr::Tensor(tensor))
        }
        _ => None,
    };
    let attr = attr.ok_or_else(|| wrong(name, "is of a kind that is not supported"))?;
    Ok(attr.to_string())
}
