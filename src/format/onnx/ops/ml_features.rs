//! Features made of features.

use super::ml_scores::{features, numeric};
use super::{ANY, Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::{Formula, LpNorm, OpError};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add_ml("Scaler", 1, scaler);
    all.add_ml("Normalizer", 1, normalizer);
    all.add_ml("Binarizer", 1, binarizer);
    all.add_ml("Imputer", 1, imputer);
    all.add_ml("FeatureVectorizer", ANY, feature_vectorizer);
    all.add_ml("ArrayFeatureExtractor", 2, array_feature_extractor);
    all.add_ml("OneHotEncoder", 1, one_hot_encoder);
}

/// Numbers of an attribute, one for all features or one for each, in the type of `x`.
fn per_feature(
    n: &mut Node<'_, '_>,
    name: &str,
    values: &[f32],
    x: Value,
) -> Result<Value, NodeError> {
    let count = features(n, x)?;
    if values.len() != 1 && values.len() != count {
        let reason = format!("has {} numbers for {count} features", values.len());
        return Err(wrong(name, reason));
    }
    let tensor = Tensor::new(&[values.len()], values).map_err(OpError::from)?;
    let tensor = crate::op::converted(&tensor, n.dtype(x))?;
    n.table(name, tensor)
}

/// The operand, in `f32` unless it is a float.
fn float(n: &mut Node<'_, '_>) -> Result<Value, NodeError> {
    let x = n.operand(0)?;
    numeric(n, x)?;
    if n.dtype(x).is_float() { Ok(x) } else { n.convert(x, DType::F32) }
}

/// `(x - offset) * scale`.
fn scaler(n: &mut Node<'_, '_>) -> Done {
    let (offset, scale) = (n.opt_floats("offset")?, n.opt_floats("scale")?);
    let mut y = float(n)?;
    if let Some(offset) = offset {
        let offset = per_feature(n, "offset", &offset, y)?;
        y = n.sub(y, offset)?;
    }
    if let Some(scale) = scale {
        let scale = per_feature(n, "scale", &scale, y)?;
        y = n.mul(y, scale)?;
    }
    let y = n.cast(y, DType::F32)?;
    n.last(0).identity(y)?;
    Ok(())
}

/// Rows divided by their norm, or as they are where that is 0. The greatest one is that of the
/// elements, not of their magnitudes, as in ONNX Runtime.
fn normalizer(n: &mut Node<'_, '_>) -> Done {
    let norm = n.choice("norm", "MAX", &[("MAX", 0), ("L1", 1), ("L2", 2)])?;
    let x = n.operand(0)?;
    numeric(n, x)?;
    if !matches!(n.shape(x).rank(), 1 | 2) {
        let expected = "it must be rows of features".to_owned();
        return Err(OpError::Shape { operand: 0, found: n.ty(x).clone(), expected }.into());
    }
    let x = n.cast(x, DType::F32)?;
    if norm > 0 {
        return n.result(LpNorm { axis: -1, p: norm }, &[x]);
    }
    let lowest = n.number(x, f64::from(f32::MIN))?;
    let missing = n.is_nan(x)?;
    let known = n.choose(missing, lowest, x)?;
    let largest = n.reduce_max(known, vec![-1], true)?;
    let largest = n.max(largest, lowest)?;
    let none = n.is(largest, 0.0)?;
    let one = n.number(x, 1.0)?;
    let divisor = n.choose(none, one, largest)?;
    n.last(0).div(x, divisor)?;
    Ok(())
}

/// 1 above the threshold, else 0.
fn binarizer(n: &mut Node<'_, '_>) -> Done {
    let threshold = n.float("threshold", 0.0)?;
    let x = n.operand(0)?;
    numeric(n, x)?;
    let dtype = n.dtype(x);
    let number = float(n)?;
    let above = n.is_above(number, f64::from(threshold))?;
    n.last(0).convert(above, dtype)?;
    Ok(())
}

/// Elements that equal a number, or are NaN, replaced by one number or by that of their feature.
fn imputer(n: &mut Node<'_, '_>) -> Done {
    let (floats, ints) =
        (n.opt_floats("imputed_value_floats")?, n.opt_ints("imputed_value_int64s")?);
    let (float, int) = (n.float("replaced_value_float", 0.0)?, n.int("replaced_value_int64", 0)?);
    let x = n.operand(0)?;
    numeric(n, x)?;
    let (name, tensor, missing) = if n.dtype(x).is_float() {
        let missing = if float.is_nan() { n.is_nan(x)? } else { n.is(x, float.into())? };
        let tensor = floats.map(|values| Tensor::new(&[values.len()], &values));
        ("imputed_value_floats", tensor, missing)
    } else {
        let same = Formula::constant(n, x, Tensor::scalar(int))?;
        let tensor = ints.map(|values| Tensor::new(&[values.len()], &values));
        ("imputed_value_int64s", tensor, n.equal(x, same)?)
    };
    let count = features(n, x)?;
    let tensor = tensor.ok_or_else(|| wrong(name, "is missing"))?.map_err(OpError::from)?;
    if tensor.len() != 1 && tensor.len() != count {
        return Err(wrong(name, format!("has {} numbers for {count} features", tensor.len())));
    }
    let tensor = crate::op::converted(&tensor, n.dtype(x))?;
    let imputed = n.table("imputed", tensor)?;
    n.last(0).choose(missing, imputed, x)?;
    Ok(())
}

/// The features of all operands, one after the other, each cut or filled with zeros to its number.
fn feature_vectorizer(n: &mut Node<'_, '_>) -> Done {
    let sizes = n.needed_ints("inputdimensions")?;
    if sizes.len() != n.arity() {
        let reason = format!("has {} numbers for {} operands", sizes.len(), n.arity());
        return Err(wrong("inputdimensions", reason));
    }
    let mut parts = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let x = n.operand(i)?;
        numeric(n, x)?;
        let mut x = n.cast(x, DType::F32)?;
        x = match n.shape(x).rank() {
            1 => n.unsqueeze(x, vec![0])?,
            2 => x,
            _ => n.flatten(x, 1)?,
        };
        let found = n.shape(x).last().and_then(Dim::as_const);
        let found = found.filter(|_| size > 0).ok_or_else(|| {
            wrong("inputdimensions", "needs sizes above 0, of operands whose sizes are known")
        })?;
        if found > size {
            x = n.rows(x, 1, Dim::ZERO, Dim::from(size))?;
        } else if found < size {
            x = n.pad(x, vec![0, 0, 0, size - found], 0.0)?;
        }
        parts.push(x);
    }
    let all = n.concat(&parts, 1)?;
    n.last(0).identity(all)?;
    Ok(())
}

/// The entries of the last axis at these places.
fn array_feature_extractor(n: &mut Node<'_, '_>) -> Done {
    let (x, places) = (n.operand(0)?, n.operand(1)?);
    let places = if n.shape(places).rank() == 1 {
        places
    } else {
        let all = n.shape(places).elements();
        n.view(places, vec![all])?
    };
    if n.shape(x).rank() == 1 {
        let picked = n.gather(x, places, 0)?;
        n.last(0).unsqueeze(picked, vec![0])?;
    } else {
        n.last(0).gather(x, places, -1)?;
    }
    Ok(())
}

/// A vector for each element, with a 1 at its category.
fn one_hot_encoder(n: &mut Node<'_, '_>) -> Done {
    if n.opt_strings("cats_strings")?.is_some_and(|cats| !cats.is_empty()) {
        return Err(NodeError::Unsupported("a category that is a string".to_owned()));
    }
    let (cats, zeros) = (n.needed_ints("cats_int64s")?, n.flag("zeros", true)?);
    let mut sorted = cats.clone();
    sorted.sort_unstable();
    if let Some([twice, _]) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong("cats_int64s", format!("has {twice} twice")));
    }
    if !zeros {
        let text = "a category that is not known gives zeros, where ONNX says that it is an error";
        n.note(text.to_owned());
    }
    let x = n.operand(0)?;
    numeric(n, x)?;
    let rank = int(n.shape(x).rank());
    let each = n.unsqueeze(x, vec![rank])?;
    let number = n.cast(each, DType::I64)?;
    let cats = Tensor::new(&[cats.len()], &cats).map_err(OpError::from)?;
    let cats = n.table("categories", cats)?;
    let mut hot = n.equal(number, cats)?;
    if n.dtype(x).is_float() {
        // A cast makes it 0, which may be a category.
        let missing = n.is_nan(each)?;
        let known = n.not(missing)?;
        hot = n.and(hot, known)?;
    }
    n.last(0).convert(hot, DType::F32)?;
    Ok(())
}
