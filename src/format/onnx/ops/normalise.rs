//! Normalisation by statistics of the values themselves.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::super::tensor::element;
use super::Line;
use super::attention::scalar;
use crate::ir::Value;
use crate::op::infer::axis as named_axis;
use crate::op::{
    Binary, Cast, Expand, GroupNorm, Identity, LayerNorm, LpNorm, Reduce, Reshape, Unary, Unsqueeze,
};
use crate::types::{DType, Dim};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "LayerNormalization" => (3, layer_norm),
        "RMSNormalization" => (2, rms_norm),
        "InstanceNormalization" => (3, |n| {
            let epsilon = n.float("epsilon", 1e-5)?;
            let operands = [n.operand(0)?, n.operand(1)?, n.operand(2)?];
            n.result(GroupNorm::Instance { epsilon }, &operands)
        }),
        "GroupNormalization" => (3, group_norm),
        "LpNormalization" => (1, |n| {
            let (axis, p, x) = (n.int("axis", -1)?, n.int("p", 2)?, n.operand(0)?);
            n.result(LpNorm { axis, p }, &[x])
        }),
        "MeanVarianceNormalization" => (1, mean_variance),
        _ => return None,
    })
}

/// The type that `stash_type` names, and the type in which the statistics of `x` are computed: its own one, which
/// computes in `f32` at least, unless a wider one is asked for.
fn stash(n: &mut Node<'_, '_>, x: Value) -> Result<(DType, DType), NodeError> {
    let number = n.int("stash_type", 1)?;
    let stash = i32::try_from(number).map_err(|_| "is no element type".to_owned());
    let stash = stash.and_then(element).map_err(|r| wrong("stash_type", format!(": {r}")))?;
    if !stash.is_float() {
        return Err(wrong("stash_type", format!("is {stash}, which is no float")));
    }
    Ok((stash, if stash == DType::F64 { DType::F64 } else { n.dtype(x) }))
}

fn cast(n: &mut Node<'_, '_>, x: Value, to: DType) -> Result<Value, NodeError> {
    if n.dtype(x) == to { Ok(x) } else { n.emit(Cast { to }, &[x]) }
}

/// True of a scale or shift with the shape of a row of `x`.
fn is_row(n: &Node<'_, '_>, x: Value, axis: usize, other: Value) -> bool {
    n.shape(x).get(axis..) == Some(&n.shape(other)[..])
}

/// Multiplies `y` by a scale and adds a shift that broadcast to it, and makes that the node's first result.
fn scale_shift(
    n: &mut Node<'_, '_>,
    y: Value,
    to: DType,
    scale: Option<Value>,
    shift: Option<Value>,
) -> Done {
    let shape = n.shape(y).clone();
    let y = cast(n, y, to)?;
    match (scale, shift) {
        (None, None) => n.result(Identity {}, &[y])?,
        (Some(scale), None) => n.result(Binary::Mul, &[y, scale])?,
        (None, Some(shift)) => n.result(Binary::Add, &[y, shift])?,
        (Some(scale), Some(shift)) => {
            let scaled = n.emit(Binary::Mul, &[y, scale])?;
            n.result(Binary::Add, &[scaled, shift])?;
        }
    }
    let fits = |other: Option<Value>| other.is_none_or(|v| n.shape(v).rank() <= shape.rank());
    if fits(scale) && fits(shift) {
        return Ok(());
    }
    Err(NodeError::Unsupported("a scale or shift with more axes than the operand".to_owned()))
}

fn layer_norm(n: &mut Node<'_, '_>) -> Done {
    let (x, scale, shift) = (n.operand(0)?, n.operand(1)?, n.optional(2));
    let (axis, epsilon) = (n.int("axis", -1)?, n.float("epsilon", 1e-5)?);
    let (stash, compute) = stash(n, x)?;
    let first = named_axis("axis", axis, n.shape(x).rank())?;
    let statistics = n.wants(1) || n.wants(2);
    let op = LayerNorm::Layer { axis, epsilon, statistics };
    let own = n.dtype(x);
    let direct = compute == own
        && is_row(n, x, first, scale)
        && shift.is_none_or(|shift| is_row(n, x, first, shift));
    let operands: Vec<Value> = [x, scale].into_iter().chain(shift).collect();
    if direct && !statistics {
        return n.result(op, &operands);
    }
    let results = if direct {
        let results = n.emit_all(3, op, &operands)?;
        n.result(Identity {}, &results[..1])?;
        results
    } else {
        let x = cast(n, x, compute)?;
        let results = n.emit_all(if statistics { 3 } else { 1 }, op, &[x])?;
        scale_shift(n, results[0], own, Some(scale), shift)?;
        results
    };
    for (i, result) in results.iter().enumerate().skip(1) {
        if n.wants(i) {
            n.result_at(i, Cast { to: stash }, &[*result])?;
        }
    }
    Ok(())
}

fn rms_norm(n: &mut Node<'_, '_>) -> Done {
    let (x, scale) = (n.operand(0)?, n.operand(1)?);
    let (axis, epsilon) = (n.int("axis", -1)?, n.float("epsilon", 1e-5)?);
    let (_, compute) = stash(n, x)?;
    let first = named_axis("axis", axis, n.shape(x).rank())?;
    let op = LayerNorm::Rms { axis, epsilon };
    let own = n.dtype(scale);
    if compute == own && n.dtype(x) == own && is_row(n, x, first, scale) {
        return n.result(op, &[x, scale]);
    }
    let x = cast(n, x, compute)?;
    let y = n.emit(op, &[x])?;
    scale_shift(n, y, own, Some(scale), None)
}

/// Before opset 21 scale and bias have one element for each group.
fn group_norm(n: &mut Node<'_, '_>) -> Done {
    let (x, mut scale, mut bias) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let epsilon = n.float("epsilon", 1e-5)?;
    let groups = n.opt_int("num_groups")?.ok_or_else(|| wrong("num_groups", "is missing"))?;
    let own = n.dtype(x);
    let compute = if n.opset < 21 { own } else { stash(n, x)?.1 };
    if n.opset < 21 {
        let channels = n.shape(x).get(1).and_then(Dim::as_const);
        let each = channels.filter(|_| groups > 0).map(|c| c / groups);
        let Some(each) = each.filter(|each| *each > 0) else {
            return Err(wrong("num_groups", format!("is {groups} for {}", n.ty(x))));
        };
        let spread = |n: &mut Node<'_, '_>, v: Value| {
            let column = n.emit(Unsqueeze { axes: vec![1] }, &[v])?;
            let shape = vec![Dim::from(groups), Dim::from(each)];
            let matrix = n.emit(Expand { shape }, &[column])?;
            let shape = vec![Dim::from(groups) * Dim::from(each)];
            n.emit(Reshape { shape }, &[matrix])
        };
        scale = spread(n, scale)?;
        bias = spread(n, bias)?;
    }
    let op = GroupNorm::Group { epsilon, groups };
    if compute == own {
        return n.result(op, &[x, scale, bias]);
    }
    let mut operands = Vec::new();
    for operand in [x, scale, bias] {
        operands.push(cast(n, operand, compute)?);
    }
    let y = n.emit(op, &operands)?;
    n.result(Cast { to: own }, &[y])
}

/// `(x - mean) / (deviation + 1e-9)`.
fn mean_variance(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axes = n.opt_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let mean = n.emit(Reduce::Mean { axes: axes.clone(), keepdims: true }, &[x])?;
    let distance = n.emit(Binary::Sub, &[x, mean])?;
    let square = n.emit(Binary::Mul, &[distance, distance])?;
    let variance = n.emit(Reduce::Mean { axes, keepdims: true }, &[square])?;
    let deviation = n.emit(Unary::Sqrt, &[variance])?;
    let least = scalar(n, n.dtype(x), 1e-9)?;
    let divisor = n.emit(Binary::Add, &[deviation, least])?;
    n.result(Binary::Div, &[distance, divisor])
}
