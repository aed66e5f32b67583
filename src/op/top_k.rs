//! The largest or smallest entries along an axis.

use super::infer::{axis, dtype, exactly, known_sizes, sizes};
use super::prelude::*;
use super::ranked::{Entry, Part, Ranking, back_to_positions, ranked, types};

op! {
    /// The `k` largest entries along `axis`, the largest first, and as a second result their
    /// positions, `i64`. Of equal entries the one at the lower position comes first. A NaN is
    /// larger than all numbers.
    pub struct TopK = "top_k" is FOLLOWS_BLOCKS | JUMPS {
        /// The axis, negative from the end.
        pub axis: i64 = -1,
        /// The number of entries, at most the size of the axis.
        pub k: Dim,
        /// The largest; otherwise the smallest, the smallest first.
        pub largest: bool = true,
        /// Whether each replica is to rank its own rows alone: candidates, of which `merge_top_k`
        /// takes the best. On one device it changes nothing.
        pub local: bool = false,
    }
}

/// The first `k` entries, the largest first or the smallest.
pub(super) struct Best {
    pub(super) k: usize,
    pub(super) largest: bool,
}

impl Ranking for Best {
    fn rank(&self, line: &mut Vec<Entry>) {
        let before = |a: &Entry, b: &Entry| {
            let values = a.key.cmp(&b.key);
            let values = if self.largest { values.reverse() } else { values };
            values.then(a.position.cmp(&b.position))
        };
        if self.k < line.len() {
            if let Some(last) = self.k.checked_sub(1) {
                line.select_nth_unstable_by(last, before);
            }
            line.truncate(self.k);
        }
        line.sort_unstable_by(before);
    }
}

/// True if an axis of `size` entries has at least `k`, for every batch or, of a number that does
/// not depend on the batch, for every large one: that the batch is large enough is then seen when
/// it is known.
pub(super) fn has_entries(size: &Dim, k: &Dim) -> bool {
    const MANY: i64 = 1 << 40;
    let grows = !k.depends_on_batch() && size.depends_on_batch();
    k.minimum(size) == *k
        || (size.clone() - k.clone()).is_nonnegative()
        || (grows && size.eval(MANY) >= k.eval(MANY))
}

impl TopK {
    /// True if each replica ranks its own rows, and takes all where there are less than what is
    /// asked for.
    fn candidates(&self, size: &Dim) -> bool {
        let most = Dim::from(self.k.eval(1 << 40));
        self.local && most.minimum(size) == self.k
    }
}

impl OpDef for TopK {
    fn takes(&self, operands: &[&TensorType]) -> Option<(Dim, Dim)> {
        let [x] = operands else { return None };
        let axis = axis("axis", self.axis, x.rank()).ok()?;
        Some((x.shape.get(axis)?.clone(), self.k.clone()))
    }

    fn places(&self, result: usize) -> Option<i64> {
        (result == 1).then_some(self.axis)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let axis = axis("axis", self.axis, x.ty.rank())?;
        sizes("k", std::slice::from_ref(&self.k))?;
        let size = &x.ty.shape[axis];
        if !has_entries(size, &self.k) {
            let reason = format!("{} is more than the {size} entries of axis {axis}", self.k);
            return Err(OpError::attr("k", reason));
        }
        let mut ty = x.ty.clone();
        ty.shape[axis] = self.k.clone();
        types(ty)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let shape = at.operands.first().map(|x| &x.ty.shape);
        if axis("axis", self.axis, at.rank()).is_ok_and(|own| own == shard.axis) {
            if shard.outer == 1 && shape.is_some_and(|shape| self.candidates(&shape[shard.axis])) {
                return at.give(Claim::Own);
            }
            return at.refuse(Code::GlobalIndex, "ranks all samples of the batch");
        }
        if self.k.depends_on_batch() {
            let reason = format!("takes {} entries of each sample", self.k);
            return at.refuse(Code::BakedBatch, reason);
        }
        at.keep(shard)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", self.axis, x.rank())?;
        let k = known_sizes("the number", std::slice::from_ref(&self.k))?[0];
        let size = x.dims()[axis];
        if k > size {
            let reason = format!("{k} is more than the {size} entries of axis {axis}");
            return Err(OpError::attr("k", reason));
        }
        let part = Part { values: x, places: None, from: 0 };
        ranked(x, axis, &[part], k, &Best { k, largest: self.largest })
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        back_to_positions(at, self.axis)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, random, rng};
    use super::TopK;
    use crate::types::DType;

    fn top(axis: i64, k: i64, largest: bool) -> Op {
        TopK { axis, k: k.into(), largest, local: false }.into()
    }

    #[test]
    fn entries_come_in_order_and_equal_ones_by_position() {
        let mut rng = rng(1);
        for case in 0..200 {
            let dtype = [DType::F32, DType::I8, DType::Bf16, DType::U16][case % 4];
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(0..7)).collect();
            let axis = rng.random_range(0..rank);
            let (size, largest) = (dims[axis], rng.random_bool(0.5));
            let k = rng.random_range(0..=size);
            let x = random(&mut rng, dtype, &dims);
            let (listed, wanted) = (i64::try_from(axis).unwrap(), i64::try_from(k).unwrap());
            let y = testing::eval(&top(listed, wanted, largest), &[&x]);
            let inner: usize = dims[axis + 1..].iter().product();
            let (all, values, places) = (x.to_f64(), y[0].to_f64(), y[1].to_i64().unwrap());
            for column in 0..all.len() / size.max(1) {
                let first = column / inner * size * inner + column % inner;
                let mut list: Vec<(f64, i64)> = (0i64..)
                    .zip((0..size).map(|s| all[first + s * inner]))
                    .map(|(s, x)| (x, s))
                    .collect();
                let sign = if largest { -1.0 } else { 1.0 };
                list.sort_by(|a, b| (sign * a.0).total_cmp(&(sign * b.0)).then(a.1.cmp(&b.1)));
                for (row, (value, place)) in list.into_iter().take(k).enumerate() {
                    let at = (column / inner * k + row) * inner + column % inner;
                    // -0 and 0 are equal.
                    assert!(
                        (values[at] - value).abs() == 0.0 && places[at] == place,
                        "{dims:?} {axis}"
                    );
                }
            }
        }
    }
}
