//! Numbers in equal steps.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written};
use crate::op::{Cast, Formula, OpError, Range};
use crate::types::{DType, Dim, Element, MAX_SIZE, Shape, Tensor, TensorType};

pub(super) fn imports(all: &mut Imports) {
    all.add("Range", 3, range);
}

/// A range of integers is an operator, so that its ends may depend on the batch; one of floats is
/// its tensor.
fn range(n: &mut Node<'_, '_>) -> Done {
    let dtype = n.dtype(n.operand(0)?);
    if dtype.is_float() {
        return float_range(n, dtype);
    }
    let (start, limit, delta) = (n.one_size(0)?, n.one_size(1)?, n.one_size(2)?);
    let delta = delta.as_const().ok_or_else(|| n.not_known(2))?;
    n.result(Range { delta, dtype, limit, start }, &[])
}

/// The number of elements is computed in `f64`, each element as `start + i * delta` in its own
/// type.
fn float_range(n: &mut Node<'_, '_>, dtype: DType) -> Done {
    if let Some([start, limit, delta]) = whole(n)? {
        let dims = [&start, &limit].into_iter().any(Dim::depends_on_batch);
        if let Some(delta) = delta.as_const().filter(|_| dims) {
            let numbers = n.op(Range { delta, dtype: DType::I64, limit, start }, &[])?;
            return n.result(Cast { to: dtype }, &[numbers]);
        }
    }
    let one = |i: usize| n.opt_number(i).ok_or_else(|| n.not_known(i));
    let (start, limit, delta) = (one(0)?, one(1)?, one(2)?);
    let count = ((limit - start) / delta).ceil();
    if count.is_nan() || count > MAX_SIZE as f64 {
        let reason = format!("{start} to {limit} by {delta} is not a range");
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

/// Start, limit and distance, where they are known integers.
fn whole(n: &Node<'_, '_>) -> Result<Option<[Dim; 3]>, NodeError> {
    let [start, limit, delta] = [n.operand(0)?, n.operand(1)?, n.operand(2)?];
    let of = |value| n.whole_number(value);
    Ok(of(start).zip(of(limit)).zip(of(delta)).map(|((start, limit), delta)| [start, limit, delta]))
}

fn steps<T: Element>(count: i64, element: impl Fn(f64) -> T) -> Result<Tensor, NodeError> {
    let size = usize::try_from(count).map_err(|_| OpError::Value {
        operand: 2,
        reason: format!("{count} elements are too many"),
    })?;
    let mut all = Tensor::zeros(T::DTYPE, &[size])?;
    let elements = all.as_mut_slice::<T>().iter_mut();
    elements.zip(0..count).for_each(|(x, i)| *x = element(i as f64));
    Ok(all)
}

/// Element `i` of a range, computed in `f32`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
fn single(start: f64, i: f64, delta: f64) -> f32 {
    start as f32 + i as f32 * delta as f32
}

impl Export for Range {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let none = w.ints(&[])?;
        let mut operands = Vec::new();
        for size in [&self.start, &self.limit, &Dim::from(self.delta)] {
            let one = w.size(size)?;
            operands.push(w.emit("Reshape", &[&one, &none], &[])?);
        }
        if self.dtype == DType::I64 {
            return w.done("Range", operands, &[]);
        }
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let numbers = w.emit("Range", &operands, &[])?;
        w.done("Cast", vec![numbers], &[("to", self.dtype.into())])
    }
}
