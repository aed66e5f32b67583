//! Discrete Fourier transforms.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written, wrong};
use crate::ir::Value;
use crate::op::infer::axis as named_axis;
use crate::op::{Dft, Formula, OpError, Slice};
use crate::types::invariant::int;
use crate::types::{Dim, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add("DFT", 3, dft);
}

/// The axis is an attribute before opset 20.
fn dft(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (inverse, one_sided) = (n.flag("inverse", false)?, n.flag("onesided", false)?);
    // The axis before the last, which holds the parts of complex numbers, is ONNX's default.
    let axis = if n.opset < 20 { n.int("axis", 1)? } else { n.opt_single(2)?.unwrap_or(-2) };
    let at = named_axis("axis", axis, n.shape(x).rank())?;
    // An inverse of a one-sided spectrum is real: `length / 2 + 1` entries stand for `length`.
    let mirrored = inverse && one_sided;
    let length = match (n.opt_single(1)?, n.shape(x)[at].as_const()) {
        (Some(length), _) => length,
        (None, Some(entries)) if mirrored => 2 * (entries - 1),
        (None, Some(entries)) => entries,
        (None, None) => {
            let text = "a transform along an axis of unknown size".to_owned();
            return Err(NodeError::Unsupported(text));
        }
    };
    if length < 1 {
        return Err(wrong("dft_length", format!("{length} is out of range; it must be positive")));
    }
    let count = if one_sided && !inverse { length / 2 + 1 } else { length };
    let x = if mirrored { unfolded(n, at, length)? } else { x };
    n.result(Dft { axis, length, count, inverse, real: mirrored }, &[x])
}

/// A spectrum that is given up to its middle, for the sum over all of it: entries that have a
/// mirror image, which the real result takes together, are doubled.
fn unfolded(n: &mut Node<'_, '_>, axis: usize, length: i64) -> Result<Value, NodeError> {
    let mut x = n.operand(0)?;
    let middle = length / 2 + 1;
    if n.shape(x)[axis].as_const().is_none_or(|entries| entries > middle) {
        x = n.op(Slice::rows(axis, Dim::ZERO, middle.into()), &[x])?;
    }
    let entries = n.shape(x)[axis].as_const().ok_or_else(|| n.not_known(0))?;
    // `X[length - k]` is the conjugate of `X[k]`: together they give twice the real part. Entry 0
    // and, where the length is even, the middle one are their own mirror images.
    let single = |k: i64| k == 0 || 2 * k == length;
    let factors: Vec<f32> = (0..entries).map(|k| if single(k) { 1.0 } else { 2.0 }).collect();
    let mut dims = vec![factors.len()];
    dims.resize(n.shape(x).rank() - axis, 1);
    let factors = Formula::constant(n, x, Tensor::new(&dims, &factors).map_err(OpError::from)?)?;
    n.mul(x, factors)
}

impl Export for Dft {
    /// All entries are written, those that are wanted are taken of them.
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let axis = self.axis(w.ty(0)?.rank()).map_err(|e| e.to_string())?;
        let last = w.ty(0)?.rank() - 1;
        let mut operands = w.operands()?;
        for number in [self.length, axis.try_into().map_err(|_| "the axis is not a number")?] {
            operands.push(w.tensor(&Tensor::scalar(number))?);
        }
        let inverse = [("inverse", self.inverse.into())];
        if self.count == self.length && !self.real {
            return w.done("DFT", operands, &inverse);
        }
        let all: Vec<&str> = operands.iter().map(String::as_str).collect();
        let all = w.emit("DFT", &all, &inverse)?;
        let (axes, ends) =
            ([axis, last].map(int::<i64>), [self.count, if self.real { 1 } else { 2 }]);
        let bounds = [w.ints(&[0, 0])?, w.ints(&ends)?, w.ints(&axes)?];
        let operands = std::iter::once(all).chain(bounds).collect();
        w.done("Slice", operands, &[])
    }
}
