//! Arithmetic that reference evaluations share: `f16` and `bf16` are computed in `f32`, `f64` in
//! itself.

use half::{bf16, f16};

use crate::op::OpError;
use crate::op::element::{Float, reals};
use crate::op::real::Real;
use crate::types::{DType, Element, Tensor};

/// A setting of an operator as it is computed with for elements of this type: only `f64` has all of
/// its digits, all others those of `f32`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
pub(crate) fn setting_in(setting: f64, dtype: DType) -> f64 {
    if dtype == DType::F64 { setting } else { f64::from(setting as f32) }
}

/// A type in which products are summed.
pub(in crate::op) trait Number: Element {
    /// The number 1.
    const ONE: Self;
    /// `self + a * b`, rounded twice; integers wrap.
    #[must_use]
    fn add_product(self, a: Self, b: Self) -> Self;
    /// `self + a * b`, rounded once: a link of the chain that a product's element is; integers
    /// wrap.
    #[must_use]
    fn link(self, a: Self, b: Self) -> Self;
    /// The sum at the end of a chain: a zero is positive, so that terms of zeros change nothing.
    #[must_use]
    fn end(self) -> Self;
}

/// A type with a value that no other is less than.
pub(in crate::op) trait Ordered: Element + PartialOrd {
    /// The value.
    const LOWEST: Self;
}

/// A type in which floating-point operators compute: `f32` or `f64`.
pub(in crate::op) trait Wide: Number + Ordered + Real {}

macro_rules! reals {
    ($($t:ty),*) => { $(
        impl Number for $t {
            const ONE: Self = 1.0;
            #[inline]
            fn add_product(self, a: Self, b: Self) -> Self {
                self + a * b
            }
            #[inline]
            fn link(self, a: Self, b: Self) -> Self {
                a.mul_add(b, self)
            }
            #[inline]
            fn end(self) -> Self {
                self + 0.0
            }
        }
        impl Ordered for $t {
            const LOWEST: Self = Self::NEG_INFINITY;
        }
        impl Wide for $t {}
    )* };
}
reals!(f32, f64);

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Number for $t {
            const ONE: Self = 1;
            #[inline]
            fn add_product(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }
            #[inline]
            fn link(self, a: Self, b: Self) -> Self {
                self.add_product(a, b)
            }
            #[inline]
            fn end(self) -> Self {
                self
            }
        }
        impl Ordered for $t {
            const LOWEST: Self = Self::MIN;
        }
    )* };
}
integers!(i64, i32, i16, i8, u64, u32, u16, u8);

/// The type in which a floating-point type is computed.
pub(in crate::op) fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::Bf16) { DType::F32 } else { dtype }
}

/// The tensor in the type in which it is computed.
pub(in crate::op) fn widen(x: &Tensor) -> Result<Tensor, OpError> {
    if x.dtype() == DType::F16 {
        Ok(Tensor::new(x.dims(), &reals(x.as_slice::<f16>()))?)
    } else if x.dtype() == DType::Bf16 {
        Ok(Tensor::new(x.dims(), &reals(x.as_slice::<bf16>()))?)
    } else {
        Ok(x.clone())
    }
}

/// All tensors in the types in which they are computed.
pub(in crate::op) fn widen_all(x: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
    x.iter().map(|x| widen(x)).collect()
}

/// Rounds a result of `wide(dtype)` to `dtype`.
pub(in crate::op) fn narrow(y: Tensor, dtype: DType) -> Result<Tensor, OpError> {
    fn rounded<F: Float<Real = f32>>(y: &Tensor) -> Result<Tensor, OpError> {
        let elements: Vec<F> = y.as_slice().iter().map(|y| F::round(*y)).collect();
        Ok(Tensor::new(y.dims(), &elements)?)
    }
    if dtype == DType::F16 {
        rounded::<f16>(&y)
    } else if dtype == DType::Bf16 {
        rounded::<bf16>(&y)
    } else {
        Ok(y)
    }
}

/// The result, with these sizes, of a function that is computed in wide types: `f` changes zeros,
/// given the operands, if there are elements.
pub(in crate::op) fn computed_wide(
    operands: &[&Tensor],
    dims: &[usize],
    f: impl FnOnce(&mut Tensor, &[Tensor]) -> Result<(), OpError>,
) -> Result<Vec<Tensor>, OpError> {
    let x = operands.first().ok_or(OpError::Operands { expected: "at least 1", found: 0 })?;
    let mut y = Tensor::zeros(wide(x.dtype()), dims)?;
    if !y.is_empty() {
        f(&mut y, &widen_all(operands)?)?;
    }
    Ok(vec![narrow(y, x.dtype())?])
}
