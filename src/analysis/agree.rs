//! Results beside those of another implementation, which rounds in other places.

use std::cmp::Ordering;

use crate::types::{DType, Tensor};

/// The largest difference of floats by default, relative to the largest expected magnitude.
const TOLERANCES: [(DType, f64); 4] =
    [(DType::F64, 1e-7), (DType::F32, 1e-5), (DType::F16, 2e-3), (DType::Bf16, 1e-2)];

/// Compares by `max |a - b| <= tolerance * max |b|`, where `b` is expected and finite; a NaN is a
/// NaN, and an infinity itself. Without a tolerance that of the element type counts; integers and
/// truth values are equal.
///
/// # Errors
/// What differs first.
pub fn agree(found: &Tensor, expected: &Tensor, tolerance: Option<f64>) -> Result<(), String> {
    let (ty, wanted) = (found.tensor_type(), expected.tensor_type());
    if ty != wanted {
        return Err(format!("{ty} where {wanted} is expected"));
    }
    if found == expected {
        return Ok(());
    }
    let own = TOLERANCES.iter().find(|(dtype, _)| *dtype == found.dtype());
    let (a, b) = (found.to_f64(), expected.to_f64());
    let differing = match own {
        None => {
            let width = found.dtype().bytes();
            let elements = found.bytes().chunks(width).zip(expected.bytes().chunks(width));
            elements.into_iter().position(|(x, y)| x != y)
        }
        Some((_, own)) => {
            let finite = b.iter().filter(|x| x.is_finite());
            let scale = finite.fold(0.0f64, |most, x| most.max(x.abs()));
            let most = tolerance.unwrap_or(*own) * scale;
            let close = |x: f64, y: f64| {
                x.partial_cmp(&y) == Some(Ordering::Equal)
                    || (x.is_nan() && y.is_nan())
                    || (x - y).abs() <= most
            };
            a.iter().zip(&b).position(|(x, y)| !close(*x, *y))
        }
    };
    match differing {
        None => Ok(()),
        Some(i) => Err(format!("element {i} is {}, not {}", a[i], b[i])),
    }
}

#[cfg(test)]
mod tests {
    use super::agree;
    use crate::types::Tensor;

    #[test]
    fn floats_agree_within_the_tolerance_of_their_type_and_integers_exactly() {
        let floats = |x: [f32; 3]| Tensor::new(&[3], &x).unwrap();
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let good = |a, b, tolerance| agree(&floats(a), &floats(b), tolerance).is_ok();
        assert!(good([1000.0, 0.005, 1.0], [1000.0, 0.0, 1.0], None));
        assert!(!good([1000.0, 0.02, 1.0], [1000.0, 0.0, 1.0], None));
        assert!(good([1000.0, 0.02, 1.0], [1000.0, 0.0, 1.0], Some(1e-4)));
        assert!(good([inf, nan, 1.0], [inf, nan, 1.0], None));
        assert!(!good([-inf, nan, 1.0], [inf, nan, 1.0], Some(1.0)));
        assert!(!good([1.0, nan, 1.0], [1.0, 1.0, 1.0], Some(1.0)));
        assert!(!good([1.0, 1.0, 1.0], [1.0, nan, 1.0], Some(1.0)));
        assert!(!good([1.0, inf, 1.0], [1.0, 1.0, 1.0], Some(1.0)));
        // Both are 2^53 as `f64`.
        let wide = |x: i64| Tensor::new(&[1], &[x]).unwrap();
        let error = agree(&wide((1 << 53) + 1), &wide(1 << 53), Some(1.0)).unwrap_err();
        assert!(error.contains("element 0"), "{error}");
        assert!(agree(&wide(1), &floats([1.0; 3]), None).unwrap_err().contains("is expected"));
    }
}
