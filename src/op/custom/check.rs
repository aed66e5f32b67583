//! The split rule of a framework's operator, executed.

use std::ops::Range;

use super::{Custom, Sharding};
use crate::op::prelude::*;
use crate::op::{AllReduce, Slice};
use crate::types::invariant::{int, invariant};

/// The replicas among which the batch is divided, at most.
const REPLICAS: usize = 5;

impl Custom {
    /// Executes the split rule on operands of which replicas have this: from its own rows every
    /// replica must compute, in every bit, its rows of the whole results and what is whole; parts
    /// must combine to the whole, within rounding. The batch has as many rows as the axes on which
    /// operands are split have entries; it is divided among 1 to 5 replicas.
    ///
    /// A test of a framework calls it with some random operands of each kind that it uses.
    ///
    /// # Errors
    /// A sentence that says for which rows the rule is wrong. Or the operator does not take the
    /// operands, the rule refuses them, none is split, or one is partial.
    pub fn check_split(&self, operands: &[(&Tensor, Sharding)]) -> Result<(), String> {
        let n = rows(operands)?;
        let claims = self.claims_of(operands, n)?;
        let whole = self.on(operands, 0..n)?;
        for replicas in 1..=REPLICAS {
            let bounds: Vec<usize> = (0..=replicas).map(|i| n * i / replicas).collect();
            let cuts = bounds.windows(2).map(|ends| ends[0]..ends[1]);
            let cuts: Vec<Range<usize>> = cuts.filter(|rows| !rows.is_empty()).collect();
            let held = cuts.iter().map(|rows| self.on(operands, rows.clone()));
            let held = held.collect::<Result<Vec<_>, String>>()?;
            for (i, (claim, whole)) in claims.iter().zip(&whole).enumerate() {
                let parts: Vec<&Tensor> =
                    held.iter().filter_map(|results| results.get(i)).collect();
                if !holds(*claim, whole, &cuts, &parts)? {
                    return Err(format!(
                        "the split rule of `{}` says {claim} of result {i}; {replicas} replicas of \
                         {n} rows give something else",
                        self.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// The claims that the rule gives for the results of a batch of `n` rows.
    fn claims_of(&self, operands: &[(&Tensor, Sharding)], n: usize) -> Result<Vec<Claim>, String> {
        let mut types: Vec<TensorType> = Vec::new();
        let mut claims = Vec::new();
        for (tensor, sharding) in operands {
            let mut ty = tensor.tensor_type();
            claims.push(match *sharding {
                Sharding::Rows { axis } => {
                    ty.shape[axis] = Dim::n();
                    Claim::rows(axis)
                }
                Sharding::Whole | Sharding::Partial(_) => Claim::Invariant,
            });
            types.push(ty);
        }
        let op = Op::from(self.clone());
        let known: Vec<_> = types.iter().map(|ty| Operand { ty, ints: None }).collect();
        let results = op.infer(&known).map_err(|e| e.to_string())?;
        let results: Vec<TensorType> = results.into_iter().map(|result| result.ty).collect();
        let whole: Vec<TensorType> = operands.iter().map(|(x, _)| x.tensor_type()).collect();
        let whole = self.types(&whole).map_err(|e| e.to_string())?;
        let rows = Dim::from(int::<i64>(n));
        if results.iter().map(|ty| ty.at_rows(&rows)).ne(whole) {
            return Err(format!("`{}` infers other types of {n} rows than of N", self.name));
        }
        let split: Vec<_> =
            types.iter().zip(claims).map(|(ty, claim)| SplitOperand { claim, ty }).collect();
        let found = op.split(&split, &results).map_err(|refusal| refusal.to_string())?;
        Ok(found.into_vec())
    }

    /// The results of the operator on a range of rows.
    fn on(
        &self,
        operands: &[(&Tensor, Sharding)],
        rows: Range<usize>,
    ) -> Result<Vec<Tensor>, String> {
        let part = |(tensor, sharding): &(&Tensor, Sharding)| match *sharding {
            Sharding::Rows { axis } => take(tensor, axis, rows.clone(), 1),
            Sharding::Whole | Sharding::Partial(_) => Ok((*tensor).clone()),
        };
        let parts = operands.iter().map(part).collect::<Result<Vec<Tensor>, String>>()?;
        self.eval(&parts.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())
    }
}

/// The rows of the batch.
fn rows(operands: &[(&Tensor, Sharding)]) -> Result<usize, String> {
    let mut rows = None;
    for (i, (tensor, sharding)) in operands.iter().enumerate() {
        match *sharding {
            Sharding::Whole => {}
            Sharding::Partial(_) => return Err(format!("operand {i} is partial")),
            Sharding::Rows { axis } => {
                let size = tensor.dims().get(axis).copied();
                let size = size.ok_or_else(|| format!("operand {i} has no axis {axis}"))?;
                if *rows.get_or_insert(size) != size {
                    return Err(format!("operand {i} has {size} rows"));
                }
            }
        }
    }
    rows.ok_or_else(|| "no operand is split".to_owned())
}

/// Whether the replicas, which have these rows, hold what the claim says of a whole result.
fn holds(
    claim: Claim,
    whole: &Tensor,
    cuts: &[Range<usize>],
    parts: &[&Tensor],
) -> Result<bool, String> {
    match claim {
        Claim::Partial(by) => combine(by, whole, cuts, parts),
        Claim::Shard(shard) => {
            let expected =
                cuts.iter().map(|rows| take(whole, shard.axis, rows.clone(), shard.inner));
            let expected = expected.collect::<Result<Vec<_>, String>>()?;
            Ok(parts.iter().copied().eq(&expected))
        }
        Claim::Invariant | Claim::Own | Claim::Mixed => Ok(parts.iter().all(|part| *part == whole)),
    }
}

/// The entries of an axis that belong to some rows, `inner` to each.
fn take(tensor: &Tensor, axis: usize, rows: Range<usize>, inner: u64) -> Result<Tensor, String> {
    let [from, to] =
        [rows.start, rows.end].map(|row| Dim::from(int::<i64>(row)) * int::<i64>(inner));
    let found = Slice::rows(axis, from, to).eval(&[tensor]).map_err(|e| e.to_string())?;
    Ok(invariant(found.into_iter().next(), "that a slice has a result"))
}

/// Whether parts combine to the whole, within rounding.
fn combine(
    by: Combine,
    whole: &Tensor,
    cuts: &[Range<usize>],
    parts: &[&Tensor],
) -> Result<bool, String> {
    if parts.is_empty() {
        return Ok(true);
    }
    let rows = cuts.iter().map(|rows| Dim::from(int::<i64>(rows.len()))).collect();
    let found = AllReduce { by, rows }.eval(parts).map_err(|e| e.to_string())?;
    let found: Vec<f64> = found.iter().flat_map(Tensor::to_f64).collect();
    let wanted = whole.to_f64();
    // Parts may cancel.
    let held = parts.iter().flat_map(|part| part.to_f64()).chain(wanted.iter().copied());
    let finite = held.filter(|x| x.is_finite());
    let most = finite.fold(0.0f64, |most, x| most.max(x.abs()));
    let slack = most * rounding(whole.dtype());
    let near = |(a, b): (&f64, &f64)| {
        (a - b).abs() <= slack || a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    };
    Ok(found.len() == wanted.len() && found.iter().zip(&wanted).all(near))
}

/// Tolerance for the rounding of combined values, relative to the largest.
fn rounding(dtype: DType) -> f64 {
    match dtype.bytes() {
        _ if !dtype.is_float() => 0.0,
        8 => 1e-11,
        4 => 1e-4,
        _ => 3e-2,
    }
}
