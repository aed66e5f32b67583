//! Values without operands from a run, and changes of the element type.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::super::tensor::element;
use super::Line;
use crate::op::{Cast, ConstantOfShape, OpError, Range};
use crate::types::{DType, Dim, Element, MAX_SIZE, Shape, Tensor, TensorType};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "Constant" => (0, constant),
        "ConstantOfShape" => (1, |n| {
            let value = n.tensor("value")?.unwrap_or_else(|| Tensor::scalar(0.0f32));
            let shape = n.sizes(0)?;
            n.result(ConstantOfShape { shape, value }, &[])
        }),
        "Range" => (3, range),
        "Cast" => (1, |n| {
            let to = n.opt_int("to")?.ok_or_else(|| wrong("to", "is missing"))?;
            let to =
                i32::try_from(to).map_err(|_| "is no element type".to_owned()).and_then(element);
            cast(n, to.map_err(|reason| wrong("to", format!(": {reason}")))?)
        }),
        "CastLike" => (2, |n| {
            let like = n.operand(1)?;
            cast(n, n.dtype(like))
        }),
        _ => return None,
    })
}

/// The settings for conversions to 8-bit floats mean nothing for other types.
fn cast(n: &mut Node<'_, '_>, to: DType) -> Done {
    n.int("saturate", 1)?;
    n.string("round_mode", "up")?;
    let x = n.operand(0)?;
    n.result(Cast { to }, &[x])
}

fn constant(n: &mut Node<'_, '_>) -> Done {
    let vector = |count: usize| [count];
    let tensor = if let Some(tensor) = n.tensor("value")? {
        tensor
    } else if let Some(x) = n.opt_float("value_float")? {
        Tensor::scalar(x)
    } else if let Some(x) = n.opt_floats("value_floats")? {
        Tensor::new(&vector(x.len()), &x)?
    } else if let Some(x) = n.opt_int("value_int")? {
        Tensor::scalar(x)
    } else if let Some(x) = n.opt_ints("value_ints")? {
        Tensor::new(&vector(x.len()), &x)?
    } else {
        return Err(NodeError::Unsupported("a constant that is no tensor of numbers".to_owned()));
    };
    n.constant(tensor);
    Ok(())
}

/// A range of integers is an operator, so that its ends may depend on the batch; one of floats is its tensor.
fn range(n: &mut Node<'_, '_>) -> Done {
    let dtype = n.dtype(n.operand(0)?);
    if dtype.is_float() {
        return float_range(n, dtype);
    }
    let one = |i: usize| match &n.sizes(i)?[..] {
        [only] => Ok(only.clone()),
        all => {
            let reason = format!("it has {} elements, not 1", all.len());
            Err(NodeError::from(OpError::Value { operand: i, reason }))
        }
    };
    let (start, limit, delta) = (one(0)?, one(1)?, one(2)?);
    let delta = delta.as_const().ok_or_else(|| n.not_known(2))?;
    n.result(Range { delta, dtype, limit, start }, &[])
}

/// The number of elements is computed in `f64`, each element as `start + i * delta` in its own type.
fn float_range(n: &mut Node<'_, '_>, dtype: DType) -> Done {
    let one = |i: usize| n.number(i).ok_or_else(|| n.not_known(i));
    let (start, limit, delta) = (one(0)?, one(1)?, one(2)?);
    let count = ((limit - start) / delta).ceil();
    if count.is_nan() || count > MAX_SIZE as f64 {
        let reason = format!("{start} to {limit} by {delta} is no range");
        return Err(OpError::Value { operand: 2, reason }.into());
    }
    #[expect(clippy::cast_possible_truncation, reason = "an integer in 0..=MAX_SIZE")]
    let count = count.max(0.0) as i64;
    n.charge(&TensorType::new(dtype, [Dim::from(count)].into_iter().collect::<Shape>()))?;
    let tensor = match dtype {
        DType::F64 => steps(count, |i| start + i * delta)?,
        DType::F32 => steps(count, |i| single(start, i, delta))?,
        DType::F16 => steps(count, |i| half::f16::from_f32(single(start, i, delta)))?,
        DType::Bf16 => steps(count, |i| half::bf16::from_f32(single(start, i, delta)))?,
        DType::I64
        | DType::I32
        | DType::I16
        | DType::I8
        | DType::U64
        | DType::U32
        | DType::U16
        | DType::U8
        | DType::Bool => {
            return Err(NodeError::Unsupported(format!("a range of floats of type {dtype}")));
        }
    };
    n.constant(tensor);
    Ok(())
}

fn steps<T: Element>(count: i64, element: impl Fn(f64) -> T) -> Result<Tensor, NodeError> {
    let mut all = Tensor::zeros(T::DTYPE, &[usize::try_from(count).unwrap_or(usize::MAX)])?;
    let elements = all.as_mut_slice::<T>().iter_mut();
    elements.zip(0..count).for_each(|(x, i)| *x = element(i as f64));
    Ok(all)
}

/// Element `i` of a range, computed in `f32`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
fn single(start: f64, i: f64, delta: f64) -> f32 {
    start as f32 + i as f32 * delta as f32
}
