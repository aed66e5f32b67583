//! Scores of classical models: their rows, what is made of scores, and the labels of classes.

use super::super::flat::Given;
use super::{Done, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::{Formula, OpError};
use crate::types::{DType, Dim, Tensor};

/// What becomes of the scores of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

/// The words for it.
const TRANSFORMS: [(&str, Transform); 5] = [
    ("NONE", Transform::None),
    ("SOFTMAX", Transform::Softmax),
    ("LOGISTIC", Transform::Logistic),
    ("SOFTMAX_ZERO", Transform::SoftmaxZero),
    ("PROBIT", Transform::Probit),
];

/// The attribute `post_transform`.
pub(super) fn post_transform(n: &mut Node<'_, '_>) -> Result<Transform, NodeError> {
    n.choice("post_transform", "NONE", &TRANSFORMS)
}

/// The attribute `post_transform` where it is a number, which counts the words; ONNX Runtime takes
/// softmax and logistic for each other.
pub(super) fn numbered_transform(n: &mut Node<'_, '_>) -> Result<Transform, NodeError> {
    let number = n.int("post_transform", 0)?;
    let found = usize::try_from(number).ok().and_then(|i| TRANSFORMS.get(i));
    match found {
        Some((_, Transform::Softmax | Transform::Logistic)) => {
            let text = format!(
                "the post transform {number}, for which ONNX Runtime and the standard differ,"
            );
            Err(NodeError::Unsupported(text))
        }
        Some((_, transform)) => Ok(*transform),
        None => Err(wrong("post_transform", format!("is {number}"))),
    }
}

/// The scores of a row, transformed.
pub(super) fn transformed(
    n: &mut Node<'_, '_>,
    scores: Value,
    by: Transform,
) -> Result<Value, NodeError> {
    match by {
        Transform::None => Ok(scores),
        Transform::Softmax => n.softmax(scores, -1),
        Transform::Logistic => n.sigmoid(scores),
        Transform::SoftmaxZero => softmax_zero(n, scores),
        Transform::Probit => probit(n, scores),
    }
}

/// Fails unless a single score stays as it is, or becomes its probit: ONNX Runtime leaves all other
/// transforms out there, which the standard does not say.
pub(super) fn single(by: Transform) -> Done {
    match by {
        Transform::None | Transform::Probit => Ok(()),
        Transform::Softmax | Transform::Logistic | Transform::SoftmaxZero => {
            let text = "a post transform of a single score, which ONNX Runtime leaves out,";
            Err(NodeError::Unsupported(text.to_owned()))
        }
    }
}

/// The softmax of the scores that are not 0; the others stay next to 0.
fn softmax_zero(n: &mut Node<'_, '_>, scores: Value) -> Result<Value, NodeError> {
    let largest = n.reduce_max(scores, vec![-1], true)?;
    let distance = n.sub(scores, largest)?;
    let exp = n.exp(distance)?;
    let minus = n.neg(largest)?;
    let scale = n.exp(minus)?;
    let small = n.mul(scores, scale)?;
    let magnitude = n.abs(scores)?;
    let counts = n.is_above(magnitude, 1e-7)?;
    let counted = n.only(counts, exp)?;
    let sum = n.reduce_sum(counted, vec![-1], true)?;
    let each = n.choose(counts, exp, small)?;
    n.div(each, sum)
}

/// The quantile of the normal distribution, by the formula that ONNX Runtime has for the inverse of
/// the error function.
fn probit(n: &mut Node<'_, '_>, scores: Value) -> Result<Value, NodeError> {
    const A: f64 = 0.147;
    let twice = n.scale(scores, 2.0)?;
    let x = n.shift(twice, -1.0)?;
    let (below, above) = (n.complement(x)?, n.shift(x, 1.0)?);
    let product = n.mul(below, above)?;
    let log = n.log(product)?;
    let half = n.scale(log, 0.5)?;
    let v = n.shift(half, 2.0 / (std::f64::consts::PI * A))?;
    let square = n.square(v)?;
    let other = n.scale(log, 1.0 / A)?;
    let difference = n.sub(square, other)?;
    let root = n.sqrt(difference)?;
    let rest = n.sub(root, v)?;
    let magnitude = n.sqrt(rest)?;
    let scaled = n.scale(magnitude, std::f64::consts::SQRT_2)?;
    let minus = n.neg(scaled)?;
    let negative = n.is_below(x, 0.0)?;
    n.choose(negative, minus, scaled)
}

/// The operand as rows of features; one axis is a single row.
pub(super) fn rows(n: &mut Node<'_, '_>) -> Result<Value, NodeError> {
    let x = n.operand(0)?;
    numeric(n, x)?;
    match n.shape(x).rank() {
        1 => n.unsqueeze(x, vec![0]),
        2 => Ok(x),
        _ => {
            let expected = "it must be rows of features".to_owned();
            let found = n.ty(x).clone();
            Err(OpError::Shape { operand: 0, found, expected }.into())
        }
    }
}

/// The same in `f32`.
pub(super) fn rows_f32(n: &mut Node<'_, '_>) -> Result<Value, NodeError> {
    let x = rows(n)?;
    n.cast(x, DType::F32)
}

/// Fails unless a value has an element type of the domain.
pub(super) fn numeric(n: &Node<'_, '_>, x: Value) -> Done {
    let found = n.dtype(x);
    if matches!(found, DType::F32 | DType::F64 | DType::I64 | DType::I32) {
        return Ok(());
    }
    let expected = "f32, f64, i64 or i32".to_owned();
    Err(OpError::DType { operand: 0, expected, found }.into())
}

/// The number of features of rows, which must be known.
pub(super) fn features(n: &Node<'_, '_>, x: Value) -> Result<usize, NodeError> {
    let size = n.shape(x).last().and_then(Dim::as_const);
    size.and_then(|size| usize::try_from(size).ok()).ok_or_else(|| {
        let expected = "the number of features must be known".to_owned();
        OpError::Shape { operand: 0, found: n.ty(x).clone(), expected }.into()
    })
}

/// The elements of a tensor attribute along one axis.
pub(super) fn flat(n: &mut Node<'_, '_>, given: &Given) -> Result<Tensor, NodeError> {
    let tensor = n.own_tensor(given)?;
    let flat = Tensor::from_bytes(tensor.dtype(), &[tensor.len()], tensor.bytes());
    Ok(flat.map_err(OpError::from)?)
}

/// A matrix of numbers of an attribute, of so many columns.
pub(super) fn matrix(
    name: &str,
    values: &[f32],
    rows: usize,
    columns: usize,
) -> Result<Tensor, NodeError> {
    if rows.checked_mul(columns) != Some(values.len()) {
        let reason = format!("has {} numbers, not {rows} times {columns}", values.len());
        return Err(wrong(name, reason));
    }
    Ok(Tensor::new(&[rows, columns], values).map_err(OpError::from)?)
}

/// The labels of classes.
pub(super) enum Labels {
    Numbers(Vec<i64>),
    /// So many strings.
    Texts(usize),
}

impl Labels {
    /// Those of the attributes `classlabels_strings`, or `ints`.
    pub(super) fn read(n: &mut Node<'_, '_>, ints: &str) -> Result<Self, NodeError> {
        let (texts, numbers) = (n.opt_strings("classlabels_strings")?, n.opt_ints(ints)?);
        match (texts.filter(|t| !t.is_empty()), numbers.filter(|t| !t.is_empty())) {
            (Some(texts), None) => Ok(Self::Texts(texts.len())),
            (None, Some(numbers)) => Ok(Self::Numbers(numbers)),
            (None, None) => Err(wrong(ints, "is missing")),
            (Some(_), Some(_)) => Err(wrong(ints, "is given beside `classlabels_strings`")),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts(count) => *count,
        }
    }

    /// Makes the label of the class at a place the node's first result.
    pub(super) fn at(&self, n: &mut Node<'_, '_>, place: Value) -> Done {
        match self {
            Self::Texts(_) => n.text(0),
            Self::Numbers(numbers) => {
                let labels = Tensor::new(&[numbers.len()], numbers).map_err(OpError::from)?;
                let labels = n.table("labels", labels)?;
                n.last(0).gather(labels, place, 0)?;
            }
        }
        Ok(())
    }

    /// Makes one of two labels the node's first result: the second where `second` holds.
    pub(super) fn one_of_two(&self, n: &mut Node<'_, '_>, second: Value) -> Done {
        let place = n.cast(second, DType::I64)?;
        self.at(n, place)
    }
}
