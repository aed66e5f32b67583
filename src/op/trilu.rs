//! The upper or the lower triangle of matrices.

use super::infer::{exactly, result};
use super::prelude::*;

op! {
    /// The matrices of the last two axes with zeros below a diagonal, or above it where not
    /// `upper`. Diagonal 0 is the main one, diagonal `k` begins at column `k` of row 0.
    pub struct Trilu = "trilu" is FOLLOWS_BLOCKS {
        /// The diagonal.
        pub k: i64 = 0,
        /// Whether what is on the diagonal and above stays; otherwise what is on it and below.
        pub upper: bool = true,
    }
}

impl OpDef for Trilu {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        if x.ty.rank() < 2 {
            return Err(OpError::shape(0, x.ty, "it must have two axes at least"));
        }
        result(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        // Matrices lie on the last two axes: rows before them are matrices as a whole.
        if shard.axis + 2 < at.rank() {
            return at.keep(shard);
        }
        let reason = "keeps elements by the numbers of the samples in the batch";
        at.refuse(Code::GlobalIndex, reason)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let [.., rows, columns] = *x.dims() else {
            return Err(OpError::shape(0, &x.tensor_type(), "it must have two axes at least"));
        };
        let mut y = (*x).clone();
        let width = x.dtype().bytes();
        if x.is_empty() {
            return Ok(vec![y]);
        }
        for (i, row) in y.bytes_mut().chunks_exact_mut(columns * width).enumerate() {
            let row_number = i64::try_from(i % rows).unwrap_or(i64::MAX);
            // The first column on the diagonal, and the first one behind it.
            let on = row_number.saturating_add(self.k);
            let inside = |c: i64| usize::try_from(c.max(0)).unwrap_or(columns).min(columns);
            if self.upper {
                row[..inside(on) * width].fill(0);
            } else {
                row[inside(on.saturating_add(1)) * width..].fill(0);
            }
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        // Elements that became zeros have no gradient: the same triangle stays.
        at.give(0, dy.apply(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{eval, random, rng};

    use super::Trilu;
    use crate::types::DType;

    #[test]
    fn elements_stay_by_their_places() {
        let mut rng = rng(1);
        for _ in 0..100 {
            let rank = rng.random_range(2..5);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(0..5)).collect();
            let dtype = [DType::F32, DType::I64, DType::Bool, DType::F16][rng.random_range(0..4)];
            let x = random(&mut rng, dtype, &dims);
            let (rows, columns) = (dims[rank - 2], dims[rank - 1]);
            let k = [rng.random_range(-5..6), i64::MAX, i64::MIN]
                [[0, 0, 0, 1, 2][rng.random_range(0..5)]];
            for upper in [false, true] {
                let expected = x.to_f64().into_iter().enumerate().map(|(i, x)| {
                    let (row, column) = (i / columns % rows, i % columns);
                    let diagonal = (column as i128) - (row as i128);
                    let stays = if upper { diagonal >= k.into() } else { diagonal <= k.into() };
                    if stays { x } else { 0.0 }
                });
                let got = eval(&Trilu { k, upper }.into(), &[&x]);
                assert_eq!(got[0].to_f64(), expected.collect::<Vec<_>>(), "{dims:?} {k}");
            }
        }
    }
}
