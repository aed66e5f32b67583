//! The same elements, in the same order, under another shape.

use super::infer::sizes;
use super::prelude::*;
use super::view::View;

op! {
    /// The elements of its operand in row-major order under `shape`, which has as many for every
    /// `N`.
    pub struct Reshape = "reshape" is CHEAP | FOLLOWS_BLOCKS {
        /// The sizes of the result.
        pub shape: Vec<Dim>,
    }
}

impl Reshape {
    /// The shape that `target` asks for in the manner of ONNX: one -1 stands for the size that
    /// keeps the number of elements; a 0 stands for the size of `input` at the same place, or for
    /// itself where `allow_zero`.
    ///
    /// # Errors
    /// If an entry is below -1, -1 stands twice (or beside a 0 under `allow_zero`), a 0 has no
    /// counterpart in `input`, or the number of elements is not provably a multiple of the sizes
    /// given.
    pub(crate) fn resolve(
        input: &Shape,
        target: &[Dim],
        allow_zero: bool,
    ) -> Result<Shape, OpError> {
        let wrong = |reason: String| OpError::attr("shape", reason);
        let mut shape = Shape::scalar();
        let mut free = None;
        for (i, d) in target.iter().enumerate() {
            shape.push(match d.as_const() {
                Some(0) if !allow_zero => match input.get(i) {
                    Some(size) => size.clone(),
                    None => {
                        return Err(wrong(format!("entry {i} is 0 and {input} has no axis {i}")));
                    }
                },
                Some(-1) if free.replace(i).is_some() => {
                    return Err(wrong("-1 stands for more than one size".to_owned()));
                }
                Some(-1) => Dim::ONE,
                Some(c) if c < 0 => return Err(wrong(format!("entry {i} is {c}"))),
                _ => d.clone(),
            });
        }
        if let Some(at) = free {
            let (all, given) = (input.elements(), shape.elements());
            shape[at] = all.exact_div(&given).ok_or_else(|| {
                wrong(format!("no size at entry {at} makes {input} into {}", Shape::from(target)))
            })?;
        }
        Ok(shape)
    }
}

impl View for Reshape {
    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let shape = Shape::from(self.shape.as_slice());
        let (from, to) = (x.shape.elements(), shape.elements());
        if from != to || from.is_overflow() {
            let reason = format!("{shape} has {to} elements, {x} has {from}");
            return Err(OpError::attr("shape", reason));
        }
        // One size that depends on N among positive ones is the quotient of two numbers that are
        // not negative.
        let symbolic = shape.iter().filter(|d| !d.is_const()).count();
        let positive = shape.iter().filter_map(Dim::as_const).all(|c| c > 0);
        if symbolic > 1 || !positive {
            sizes("shape", &shape)?;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {

    use super::Reshape;
    use crate::types::{Dim, Shape};

    fn n(k: i64) -> Dim {
        Dim::n() * k
    }

    #[test]
    fn onnx_targets() {
        let input: Shape = [n(1), 4.into(), 8.into()].into_iter().collect();
        let get = |target: &[Dim], allow_zero| {
            Reshape::resolve(&input, target, allow_zero).map(|s| s.to_string()).ok()
        };
        assert_eq!(get(&[0.into(), (-1).into()], false), Some("[N,32]".to_owned()));
        assert_eq!(get(&[(-1).into(), 8.into()], false), Some("[4*N,8]".to_owned()));
        assert_eq!(get(&[n(1), (-1).into(), 2.into()], false), Some("[N,16,2]".to_owned()));
        assert_eq!(get(&[0.into(), 0.into(), 0.into()], false), Some("[N,4,8]".to_owned()));
        assert_eq!(get(&[(-1).into()], false), Some("[32*N]".to_owned()));
        for target in [[-1i64, -1].as_slice(), &[-2], &[1, 1, 1, 0], &[3, -1]] {
            let target: Vec<Dim> = target.iter().map(|d| Dim::from(*d)).collect();
            assert_eq!(get(&target, false), None, "{target:?}");
        }
        assert_eq!(get(&[0.into(), (-1).into()], true), None);
        assert_eq!(get(&[0.into(), 5.into()], true), Some("[0,5]".to_owned()));
    }
}
