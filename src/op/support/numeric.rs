//! Arithmetic that reference evaluations share: `f16` and `bf16` are computed in `f32`, `f64` in
//! itself.

use half::{bf16, f16};

use crate::op::OpError;
use crate::op::real::Real;
use crate::types::{DType, Element, Tensor};

/// A type in which products are summed.
pub(in crate::op) trait Number: Element {
    /// The number 1.
    const ONE: Self;
    /// `self + a * b`, rounded twice; integers wrap.
    #[must_use]
    fn add_product(self, a: Self, b: Self) -> Self;
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
        }
        impl Ordered for $t {
            const LOWEST: Self = Self::NEG_INFINITY;
        }
        impl Wide for $t {}
    )* };
}
reals!(f32, f64);

impl Ordered for i8 {
    const LOWEST: Self = Self::MIN;
}

impl Ordered for u8 {
    const LOWEST: Self = Self::MIN;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Number for $t {
            const ONE: Self = 1;
            #[inline]
            fn add_product(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }
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
    macro_rules! widened {
        ($t:ty) => {{
            let mut y = Tensor::zeros(DType::F32, x.dims())?;
            for (y, x) in y.as_mut_slice::<f32>().iter_mut().zip(x.as_slice::<$t>()) {
                *y = x.to_f32();
            }
            Ok(y)
        }};
    }
    if x.dtype() == DType::F16 {
        widened!(f16)
    } else if x.dtype() == DType::Bf16 {
        widened!(bf16)
    } else {
        Ok(x.clone())
    }
}

/// Rounds a result of `wide(dtype)` to `dtype`.
pub(in crate::op) fn narrow(y: Tensor, dtype: DType) -> Result<Tensor, OpError> {
    macro_rules! narrowed {
        ($t:ty) => {{
            let mut z = Tensor::zeros(dtype, y.dims())?;
            for (z, y) in z.as_mut_slice::<$t>().iter_mut().zip(y.as_slice::<f32>()) {
                *z = <$t>::from_f32(*y);
            }
            Ok(z)
        }};
    }
    if dtype == DType::F16 {
        narrowed!(f16)
    } else if dtype == DType::Bf16 {
        narrowed!(bf16)
    } else {
        Ok(y)
    }
}
