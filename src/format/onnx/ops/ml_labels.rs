//! Labels of classes.

use super::super::proto::tensor_proto::DataType;
use super::ml_scores::{flat, numeric};
use super::{Done, Imports, Node, NodeError, wrong};
use crate::op::{Formula, OpError, converted};
use crate::types::invariant::int;
use crate::types::{DType, Quoted, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add_ml("LabelEncoder", 1, label_encoder);
    all.add_ml("ZipMap", 1, zip_map);
}

/// The class labels that a note lists.
const LISTED: usize = 10;

/// One list of a mapping: of numbers, or of so many strings.
enum List {
    Numbers(Tensor),
    Texts,
}

/// The list that the attributes of one side give: one of several kinds.
fn list(n: &mut Node<'_, '_>, side: &str) -> Result<List, NodeError> {
    let mut found = Vec::new();
    if let Some(ints) = n.opt_ints(&format!("{side}_int64s"))? {
        found.push(List::Numbers(Tensor::new(&[ints.len()], &ints).map_err(OpError::from)?));
    }
    if let Some(floats) = n.opt_floats(&format!("{side}_floats"))? {
        found.push(List::Numbers(Tensor::new(&[floats.len()], &floats).map_err(OpError::from)?));
    }
    let text = n.opt_strings(&format!("{side}_strings"))?;
    found.extend(text.map(|_| List::Texts));
    found.extend(tensor(n, &format!("{side}_tensor"))?);
    match found.len() {
        1 => Ok(found.swap_remove(0)),
        count => Err(wrong(&format!("{side}_…"), format!("is given {count} times"))),
    }
}

/// The list that a tensor attribute holds.
fn tensor(n: &mut Node<'_, '_>, name: &str) -> Result<Option<List>, NodeError> {
    let Some(given) = n.opt_given(name)? else { return Ok(None) };
    if given.proto.t.as_ref().is_some_and(|t| t.data_type() == DataType::String as i32) {
        return Ok(Some(List::Texts));
    }
    flat(n, &given).map(|tensor| Some(List::Numbers(tensor)))
}

/// For each element the value beside the first key that it equals, or the default.
fn label_encoder(n: &mut Node<'_, '_>) -> Done {
    if n.opt_strings("classes_strings")?.is_some() {
        return Err(NodeError::Unsupported("a mapping of strings".to_owned()));
    }
    let (keys, values) = (list(n, "keys")?, list(n, "values")?);
    let (int, float) = (n.int("default_int64", -1)?, n.float("default_float", -0.0)?);
    n.opt_string("default_string")?;
    let default = tensor(n, "default_tensor")?;
    let List::Numbers(keys) = keys else {
        return Err(NodeError::Unsupported("a key that is a string".to_owned()));
    };
    let List::Numbers(values) = values else {
        n.text(0);
        return Ok(());
    };
    if keys.len() != values.len() || keys.is_empty() {
        let reason = format!("gives {} values for {} keys", values.len(), keys.len());
        return Err(wrong("values_…", reason));
    }
    let default = match default {
        Some(List::Numbers(one)) if one.len() == 1 && one.dtype() == values.dtype() => {
            Tensor::from_bytes(one.dtype(), &[], one.bytes()).map_err(OpError::from)?
        }
        Some(_) => return Err(wrong("default_tensor", "must be one element as the values are")),
        None if values.dtype().is_float() => converted(&Tensor::scalar(float), values.dtype())?,
        None => converted(&Tensor::scalar(int), values.dtype())?,
    };
    mapped(n, keys, values, default)
}

fn mapped(n: &mut Node<'_, '_>, keys: Tensor, values: Tensor, default: Tensor) -> Done {
    let x = n.operand(0)?;
    numeric(n, x)?;
    if n.dtype(x) != keys.dtype() {
        let (expected, found) = (format!("{}, as the keys are", keys.dtype()), n.dtype(x));
        return Err(OpError::DType { operand: 0, expected, found }.into());
    }
    let missing: Vec<u8> = keys.to_f64().into_iter().map(|key| u8::from(key.is_nan())).collect();
    let rank = int(n.shape(x).rank());
    let each = n.unsqueeze(x, vec![rank])?;
    let keys = n.table("keys", keys)?;
    let mut same = n.equal(each, keys)?;
    if missing.contains(&1) {
        let nan = n.is_nan(each)?;
        let missing = Tensor::new(&[missing.len()], &missing).map_err(OpError::from)?;
        let missing = n.table("missing", missing.reinterpreted(DType::Bool))?;
        let both = n.and(nan, missing)?;
        same = n.or(same, both)?;
    }
    let same = n.convert(same, DType::I32)?;
    let place = n.arg_max(same, -1)?;
    let found = n.reduce_max(same, vec![-1], false)?;
    let found = n.convert(found, DType::Bool)?;
    let (values, default) = (n.table("values", values)?, n.literal(default)?);
    let value = n.gather(values, place, 0)?;
    n.last(0).choose(found, value, default)?;
    Ok(())
}

/// The matrix of scores stands for the maps that it is made into.
fn zip_map(n: &mut Node<'_, '_>) -> Done {
    let (texts, numbers) =
        (n.opt_strings("classlabels_strings")?, n.opt_ints("classlabels_int64s")?);
    let labels: Vec<String> = match (texts, numbers) {
        (Some(texts), None) => texts.iter().map(|t| Quoted(t).to_string()).collect(),
        (None, Some(numbers)) => numbers.iter().map(i64::to_string).collect(),
        _ => return Err(wrong("classlabels_int64s", "or `classlabels_strings` must be given")),
    };
    let more = if labels.len() > LISTED { ", …" } else { "" };
    let listed = labels.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    let text = format!(
        "`ZipMap` is left out: its result is the matrix of scores, whose columns are the classes \
         {listed}{more}"
    );
    n.note(text);
    let x = n.operand(0)?;
    n.last(0).identity(x)?;
    Ok(())
}
