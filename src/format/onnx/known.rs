//! What is known of inputs before the run: their sizes, and values.

use super::NodeError;
use crate::op::{OpError, converted};
use crate::types::{DType, Tensor};

/// A size as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Constant(i64),
    Named(String),
    Unnamed,
    /// The size of a class.
    Class(usize),
}

/// The value of an input of these sizes: `given` in its element type, if that holds it. One number
/// suits every input of one element, whatever its axes.
pub(super) fn fitted(given: &Tensor, dtype: DType, sizes: &[Size]) -> Result<Tensor, String> {
    let suits = |(size, found): (&Size, &usize)| match size {
        Size::Constant(c) => usize::try_from(*c) == Ok(*found),
        Size::Named(_) | Size::Unnamed | Size::Class(_) => true,
    };
    let ones = vec![1; sizes.len()];
    let fits = |dims: &[usize]| dims.len() == sizes.len() && sizes.iter().zip(dims).all(suits);
    let dims = if fits(given.dims()) {
        given.dims()
    } else if given.len() == 1 && fits(&ones) {
        &ones
    } else {
        let axes = sizes.len();
        return Err(format!("{} does not suit an input of {axes} axes", given.tensor_type()));
    };
    let held = |value: &Tensor| {
        let back = converted(value, given.dtype()).ok()?;
        (back.to_f64() == given.to_f64() && back.to_i64() == given.to_i64()).then_some(())
    };
    let value = converted(given, dtype).map_err(|error| error.to_string())?;
    // A float is rounded as any constant of a model is.
    if !dtype.is_float() && held(&value).is_none() {
        return Err(format!("the element type {dtype} does not hold it"));
    }
    value.reshaped(dims).map_err(|error| error.to_string())
}

/// `x` as an element of a float type.
pub(super) fn float(dtype: DType, x: f64) -> Result<Tensor, NodeError> {
    let number = converted(&Tensor::scalar(x), dtype)?;
    if dtype.is_float() {
        return Ok(number);
    }
    let expected = "a float".to_owned();
    Err(OpError::DType { operand: 0, expected, found: dtype }.into())
}

#[cfg(test)]
mod tests {
    use super::{Size, fitted};
    use crate::types::{DType, Tensor};

    #[test]
    fn a_value_is_that_of_the_inputs_type() {
        let (none, one) = (vec![], vec![Size::Constant(1)]);
        let rate = fitted(&Tensor::scalar(16_000i64), DType::I32, &one).unwrap();
        assert_eq!((rate.dims(), rate.to_i64()), (&[1][..], Some(vec![16_000])));
        let large = Tensor::scalar(i64::MAX);
        assert_eq!(fitted(&large, DType::I64, &none).unwrap().to_i64(), Some(vec![i64::MAX]));
        assert!(fitted(&large, DType::I32, &none).unwrap_err().ends_with("does not hold it"));
        assert!(fitted(&Tensor::scalar(0.5f64), DType::I64, &none).is_err());
        assert!(fitted(&Tensor::scalar(0.1f64), DType::F32, &none).is_ok());
        assert!(fitted(&Tensor::scalar(2i64), DType::Bool, &none).is_err());
        let holds = Tensor::scalar(1u8).reinterpreted(DType::Bool);
        assert!(fitted(&holds, DType::Bool, &none).is_ok());
        let two = Tensor::new(&[2], &[3i64, 4]).unwrap();
        assert!(fitted(&two, DType::I64, &[Size::Unnamed]).is_ok());
        assert!(fitted(&two, DType::I64, &one).is_err());
        assert!(fitted(&two, DType::I64, &none).is_err());
        let many = Tensor::zeros(DType::I64, &[65]).unwrap();
        assert!(fitted(&many, DType::I64, &[Size::Unnamed]).is_ok());
    }
}
