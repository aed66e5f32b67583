//! Elements in another type.

use super::element::{Float, Int, for_dtype};
use super::infer::{exactly, result_with_ints};
use super::interval::{FALSE, truth};
use super::prelude::*;
use super::real::Real;
use super::{Ratio, ints};
use crate::types::Element;

op! {
    /// Its operand in the element type `to`.
    ///
    /// A number becomes the nearest float, the even one of two. A float becomes the integer next to
    /// it on the side of 0, or where that is beyond the type its largest or smallest element; a NaN
    /// becomes 0. Integers wrap. Everything but 0 becomes true, also a NaN; true becomes 1.
    pub struct Cast = "cast" is ELEMENTWISE | CONVERTS | CHEAP | FOLLOWS_BLOCKS {
        /// The element type of the result.
        pub to: DType,
    }
}

impl Cast {
    /// A known element in the type `to`. Formulas in `N` stay where the type holds sizes.
    fn known(&self, x: &Dim) -> Option<Dim> {
        if self.to == DType::Bool {
            return ints::equal(x, &Dim::ZERO).map(|zero| ints::truth(!zero));
        }
        match x.as_const() {
            Some(c) => for_dtype!(
                self.to,
                float _F => None,
                int I => ints::constant(self.to, I::wrap(c.into()).wide()),
                bool => None,
            ),
            None => ints::element(self.to, x.clone()),
        }
    }
}

impl OpDef for Cast {
    fn interval(&self, dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(x)] = *operands else { return None };
        if dtype == DType::Bool {
            return Some(truth(0 < x.low || x.high < 0, x == FALSE));
        }
        Interval::within(dtype, x.low.into(), x.high.into())
    }

    fn ratio(&self, to: DType, operands: &[Ratio]) -> Option<Ratio> {
        let x = operands.first()?;
        // Half floats count no further than 2048.
        if matches!(to, DType::F32 | DType::F64) {
            Some(x.clone())
        } else {
            x.truncated().filter(|_| to.is_integer())
        }
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
    }

    fn positions(&self, operands: &[PositionOperand<'_>], _: &TensorType) -> Option<Positions> {
        operands.first().filter(|x| x.ty.dtype == self.to)?.rows
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let ty = TensorType { dtype: self.to, shape: x.ty.shape.clone() };
        result_with_ints(ty, ints::map(&x, |d| self.known(d)))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        if x.dtype() == self.to {
            return Ok(vec![(*x).clone()]);
        }
        let mut y = Tensor::zeros(self.to, x.dims())?;
        let (floats, mut from) = (x.dtype().is_float(), 0);
        let (mut reals, mut wides) = ([0.0; CHUNK], [0; CHUNK]);
        while from < x.len() {
            let len = CHUNK.min(x.len() - from);
            if floats {
                read_floats(x, from, &mut reals[..len]);
                write_floats(&mut y, from, &reals[..len]);
            } else {
                read_ints(x, from, &mut wides[..len]);
                write_ints(&mut y, from, &wides[..len]);
            }
            from += len;
        }
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        !self.to.is_float()
    }

    fn gradient(&self) -> Gradient {
        if self.to.is_float() {
            Gradient::Defined
        } else {
            Gradient::Zero("its result is not a float")
        }
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, to) = (at.dy()?, at.ty(at.operand(0)?).dtype);
        let dx = at.cast(dy, to)?;
        at.give(0, dx)
    }
}

/// Elements on their way from one type to another: as `f64` from a float, as `i128` from an integer
/// or `bool`.
/// Both hold every element of the types they come from exactly, so that an element is rounded once,
/// and a pair of types needs no loop of its own.
const CHUNK: usize = 256;

fn read<X: Element, T>(x: &Tensor, from: usize, to: &mut [T], f: impl Fn(X) -> T) {
    to.iter_mut().zip(&x.as_slice::<X>()[from..]).for_each(|(to, x)| *to = f(*x));
}

fn write<T: Copy, Y: Element>(y: &mut Tensor, to: usize, from: &[T], f: impl Fn(T) -> Y) {
    y.as_mut_slice::<Y>()[to..].iter_mut().zip(from).for_each(|(y, x)| *y = f(*x));
}

fn read_floats(x: &Tensor, from: usize, to: &mut [f64]) {
    for_dtype!(
        x.dtype(),
        float F => read(x, from, to, |x: F| x.real().to_f64()),
        int _I => {},
        bool => {},
    );
}

fn write_floats(y: &mut Tensor, to: usize, from: &[f64]) {
    for_dtype!(
        y.dtype(),
        float F => write(y, to, from, F::of_f64),
        int I => write(y, to, from, <I as Int>::truncate),
        bool => write(y, to, from, |x| u8::from(x != 0.0)),
    );
}

fn read_ints(x: &Tensor, from: usize, to: &mut [i128]) {
    for_dtype!(
        x.dtype(),
        float _F => {},
        int I => read(x, from, to, |x: I| x.wide()),
        bool => read(x, from, to, |x: u8| (x != 0).into()),
    );
}

fn write_ints(y: &mut Tensor, to: usize, from: &[i128]) {
    for_dtype!(
        y.dtype(),
        float F => write(y, to, from, F::of_int),
        int I => write(y, to, from, I::wrap),
        bool => write(y, to, from, |x| u8::from(x != 0)),
    );
}

#[cfg(test)]
mod tests {

    use super::super::testing::{self, tensor};

    use super::Cast;
    use crate::types::{DType, Tensor};

    fn cast(x: &Tensor, to: DType) -> Tensor {
        testing::eval(&Cast { to }.into(), &[x]).remove(0)
    }

    #[test]
    fn small_numbers_stay_in_every_pair_of_types() {
        let values: Vec<f64> = (0..600).map(|i| f64::from(i % 5)).collect();
        for from in DType::ALL {
            let x = if from == DType::Bool {
                tensor(from, &[600], &values.iter().map(|x| x.min(1.0)).collect::<Vec<_>>())
            } else {
                tensor(from, &[600], &values)
            };
            for to in DType::ALL {
                let expected = if to == DType::Bool {
                    x.to_f64().iter().map(|x| x.min(1.0)).collect()
                } else {
                    x.to_f64()
                };
                assert_eq!(cast(&x, to), tensor(to, &[600], &expected), "{from} to {to}");
            }
        }
    }
}
