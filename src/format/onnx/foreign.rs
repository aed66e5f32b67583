//! Operators that are not ONNX's own, of which the user says what to assume: they become `external`.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{File, Head};
use super::flatten::{Flat, NONE, ValueId};
use super::inputs::{Inputs, Size};
use super::node::{Node, wrong};
use super::proto::AttributeProto;
use super::proto::attribute_proto::AttributeType;
use super::{ImportError, NodeError, ops};
use crate::ir::{MAX_CONSTANT, Value};
use crate::op::attr::AttrValue;
use crate::op::{Assume, Attr, External, infer};
use crate::types::{DType, Dim, Shape, Table, TensorType};

/// What is assumed of operators, by name.
pub(super) type Assumptions = BTreeMap<String, Assume>;

/// The name of an operator, after its domain where that is not ONNX's own.
pub(super) fn name(head: &Head<'_>) -> String {
    match head.domain() {
        "" => head.op.to_owned(),
        domain => format!("{domain}.{}", head.op),
    }
}

/// The types that a file declares for results of foreign operators.
#[derive(Default)]
pub(super) struct Declared(Table<ValueId, Result<(DType, Vec<Size>), String>>);

impl Declared {
    /// Reads the types of all results of operators in `assume`.
    ///
    /// # Errors
    /// If the file is damaged, an operator in `assume` is known, or the model has no such operator.
    pub(super) fn read(
        file: &File,
        flat: &Flat<'_>,
        inputs: &Inputs,
        assume: &Assumptions,
    ) -> Result<Self, ImportError> {
        let mut found = Table::default();
        if assume.is_empty() {
            return Ok(Self(found));
        }
        let mut unused: BTreeSet<&str> = assume.keys().map(String::as_str).collect();
        let mut wanted: Table<&str, ValueId> = Table::default();
        for node in &flat.nodes {
            let Some(head) = node.span.map(|span| file.head(span)).transpose()? else { continue };
            let name = name(&head);
            if head.domain().is_empty() && ops::find(head.op).is_some() {
                continue;
            }
            unused.remove(name.as_str());
            for id in node.outputs.iter().filter(|id| **id != NONE) {
                wanted.extend(flat.own_name(*id).map(|text| (text, *id)));
            }
        }
        if let Some(name) = unused.first() {
            let reason = if ops::find(name).is_some() {
                "the operator is known, and nothing needs to be assumed of it"
            } else {
                "the model has no such operator"
            };
            let option = format!("--assume {name}");
            return Err(ImportError::Option { option, reason: reason.to_owned() });
        }
        for span in file.declared_values()? {
            let Some(id) = wanted.get(file.value_name(span)?) else { continue };
            let better = !matches!(found.get(id), Some(Ok(_)));
            if better {
                found.insert(*id, inputs.declared(&file.value(span)?));
            }
        }
        Ok(Self(found))
    }

    /// What the file declares for the value `id`.
    pub(super) fn get(&self, id: ValueId) -> Result<&(DType, Vec<Size>), String> {
        match self.0.get(&id) {
            Some(Ok(declared)) => Ok(declared),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("the file does not declare it (`value_info`)".to_owned()),
        }
    }
}

/// Adds the operator `op` with the types that the file declares for its results.
pub(super) fn convert(
    node: &mut Node<'_, '_>,
    op: String,
    assume: Assume,
) -> Result<(), NodeError> {
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

/// The declared type of result `i`; `rows` are the axis that is assumed to hold the rows, and their number.
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
    given.sort_by(|a, b| a.name().cmp(b.name()));
    if let Some(pair) = given.windows(2).find(|pair| pair[0].name() == pair[1].name()) {
        return Err(wrong(pair[0].name(), "is given twice"));
    }
    let texts = given.iter().map(|attribute| {
        let value = attribute_text(node, attribute)?;
        Ok(format!("{}={value}", Attr::Name(attribute.name().to_owned())))
    });
    let texts = texts.collect::<Result<Vec<String>, NodeError>>()?;
    Ok((!texts.is_empty()).then(|| texts.join(", ")))
}

/// The value of an attribute as the text form has it.
fn attribute_text(
    node: &mut Node<'_, '_>,
    attribute: &AttributeProto,
) -> Result<String, NodeError> {
    let name = attribute.name();
    let word = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Attr::Name(text.to_owned())),
        Err(_) => Err(wrong(name, "is no text")),
    };
    let kind = attribute.r#type.and_then(|t| AttributeType::try_from(t).ok());
    let attr = match kind {
        Some(AttributeType::Int) => attribute.i.unwrap_or(0).to_attr(),
        Some(AttributeType::Ints) => attribute.ints.to_attr(),
        Some(AttributeType::Float) => attribute.f.unwrap_or(0.0).to_attr(),
        Some(AttributeType::Floats) => attribute.floats.to_attr(),
        Some(AttributeType::String) => Some(word(&attribute.s.clone().unwrap_or_default())?),
        Some(AttributeType::Strings) => {
            let words = attribute.strings.iter().map(|w| Ok(word(w)?.to_string()));
            return Ok(format!("[{}]", words.collect::<Result<Vec<_>, NodeError>>()?.join(", ")));
        }
        Some(AttributeType::Tensor) => {
            let proto = attribute.t.as_ref().ok_or_else(|| wrong(name, "holds no tensor"))?;
            let tensor = node.own_tensor(name, proto)?;
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
