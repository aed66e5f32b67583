//! The largest or smallest of the candidates of all replicas.

use super::infer::{axis, dtype, known_all, known_sizes, results, sizes};
use super::prelude::*;
use super::ranked::{Part, ranked};
use super::top_k::{Best, has_entries};

op! {
    /// The `k` largest of the entries that several parts of an axis have, and their positions on
    /// the whole axis.
    ///
    /// Operands are the results of `top_k` of each part, entries and positions, one part after the
    /// other: of a part with fewer than `k` entries all of them. Positions count from the part's
    /// first entry on. The order is that of `top_k`, and so is the result: of equal entries the one
    /// at the lower position comes first. Of one part it is the identity.
    pub struct MergeTopK = "merge_top_k" is COLLECTIVE | JUMPS {
        /// The axis, negative from the end.
        pub axis: i64 = -1,
        /// The entries of the axis that each part is of.
        pub entries: Vec<Dim>,
        /// The number of entries wanted, at most that of all parts.
        pub k: Dim,
        /// The largest; otherwise the smallest, the smallest first.
        pub largest: bool = true,
    }
}

impl MergeTopK {
    /// The entries of the whole axis.
    pub(crate) fn size(&self) -> Dim {
        self.entries.iter().fold(Dim::ZERO, |sum, d| sum + d.clone())
    }

    /// The parts that have entries.
    fn parts<'a>(operands: &[&'a Tensor], entries: &[i64]) -> Vec<Part<'a>> {
        let mut from = 0;
        let mut parts = Vec::with_capacity(entries.len());
        for (pair, entries) in operands.chunks_exact(2).zip(entries) {
            if let ([values, places], true) = (pair, *entries > 0) {
                parts.push(Part { values, places: Some(places), from });
            }
            from += entries;
        }
        parts
    }
}

impl OpDef for MergeTopK {
    fn present(&self, n: i64) -> Option<Vec<bool>> {
        Some(self.entries.iter().flat_map(|entries| [entries.eval(n) > 0; 2]).collect())
    }

    fn takes(&self, _: &[&TensorType]) -> Option<(Dim, Dim)> {
        Some((self.size(), self.k.clone()))
    }

    fn takes_own(&self, _: usize) -> bool {
        true
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let wrong = |attr, reason| Err(OpError::attr(attr, reason));
        let Some(first) = operands.first().filter(|_| operands.len() == 2 * self.entries.len())
        else {
            let parts = self.entries.len();
            return wrong("entries", format!("{parts} numbers for {} operands", operands.len()));
        };
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let axis = axis("axis", self.axis, first.ty.rank())?;
        sizes("k", std::slice::from_ref(&self.k))?;
        sizes("entries", &self.entries)?;
        if self.k.depends_on_batch() {
            return wrong("k", "depends on the batch".to_owned());
        }
        if !has_entries(&self.size(), &self.k) {
            return wrong("k", format!("{} is more than {} entries", self.k, self.size()));
        }
        for (i, x) in operands.iter().enumerate() {
            let mut shape = first.ty.shape.clone();
            shape[axis] = self.k.minimum(&self.entries[i / 2]);
            let dtype = if i % 2 == 0 { first.ty.dtype } else { DType::I64 };
            let wanted = TensorType { dtype, shape };
            if *x.ty != wanted {
                return Err(OpError::shape(i, x.ty, format!("it is {wanted}")));
            }
        }
        let mut shape = first.ty.shape.clone();
        shape[axis] = self.k.clone();
        let places = TensorType { dtype: DType::I64, shape: shape.clone() };
        results([TensorType { dtype: first.ty.dtype, shape }, places])
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let all = |claim| at.operands.iter().all(|x| x.claim == claim);
        if all(Claim::Invariant) || (at.operands.len() == 2 && all(Claim::Own)) {
            return at.whole();
        }
        let split = |x: &SplitOperand<'_>| x.claim != Claim::Invariant;
        let i = at.operands.iter().position(split).unwrap_or(0);
        at.refuse_at(i, Code::GlobalIndex, "merges candidates that replicas do not have")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let Some(first) = operands.first() else { return Ok(Vec::new()) };
        let axis = axis("axis", self.axis, first.rank())?;
        let k = known_sizes("the number", std::slice::from_ref(&self.k))?[0];
        let entries = known_all("the entries", &self.entries)?;
        let all = entries.iter().fold(0i64, |sum, n| sum.saturating_add((*n).max(0)));
        if i64::try_from(k).is_ok_and(|k| k > all) {
            return Err(OpError::attr("k", format!("{k} is more than {all} entries")));
        }
        let parts = Self::parts(operands, &entries);
        ranked(first, axis, &parts, k, &Best { k, largest: self.largest })
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it joins the values of replicas; gradients are taken before")
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, random, rng};
    use super::super::{Op, TopK};
    use super::MergeTopK;
    use crate::types::{DType, Dim, Tensor};

    /// The rows `from..to` of a tensor of two axes.
    fn rows(x: &Tensor, from: usize, to: usize) -> Tensor {
        let width = x.dims()[1] * x.dtype().bytes();
        let bytes = &x.bytes()[from * width..to * width];
        Tensor::from_bytes(x.dtype(), &[to - from, x.dims()[1]], bytes).unwrap()
    }

    #[test]
    fn candidates_of_parts_give_what_the_whole_gives() {
        let mut rng = rng(1);
        for case in 0..300usize {
            // Integers of a small range have ties; floats have a NaN now and then.
            let dtype = [DType::F32, DType::I8, DType::I64, DType::F64][case % 4];
            let n = rng.random_range(1..12usize);
            let mut x = random(&mut rng, dtype, &[n, 3]);
            if dtype == DType::F32 {
                x.as_mut_slice::<f32>()[rng.random_range(0..n * 3)] = f32::NAN;
                x.as_mut_slice::<f32>()[rng.random_range(0..n * 3)] = -0.0;
            }
            let (k, largest) = (rng.random_range(0..=n), rng.random_bool(0.5));
            let mut cuts: Vec<usize> = (0..3).map(|_| rng.random_range(0..=n)).collect();
            cuts.sort_unstable();
            let cuts = [vec![0], cuts, vec![n]].concat();
            let count = |k: usize| Dim::from(i64::try_from(k).unwrap());
            let top = |x: &Tensor, k: usize| {
                testing::eval(&TopK { axis: 0, k: count(k), largest, local: false }.into(), &[x])
            };
            let parts: Vec<Tensor> = cuts
                .windows(2)
                .flat_map(|c| top(&rows(&x, c[0], c[1]), k.min(c[1] - c[0])))
                .collect();
            let entries = cuts.windows(2).map(|c| count(c[1] - c[0])).collect();
            let merge: Op = MergeTopK { axis: 0, entries, k: count(k), largest }.into();
            let merged = testing::eval(&merge, &parts.iter().collect::<Vec<_>>());
            let whole = top(&x, k);
            assert!(merged[0].bytes() == whole[0].bytes() && merged[1] == whole[1], "{cuts:?} {k}");
        }
    }
}
