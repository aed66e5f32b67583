//! Elements and blocks written one by one: `scatter_elements`, `scatter_nd`.

use super::attr::names;
use super::element::{Float, Int, for_dtype};
use super::index::{Named, row_length};
use super::infer::{axis, dtype, exactly, has_sizes, result};
use super::prelude::*;
use super::{Apply2, Binary, GatherAt};

names! {
    /// Combination of an update with the element at its index.
    pub enum Reduction {
        /// It takes its place.
        None = "none",
        /// It is added.
        Add = "add",
        /// They are multiplied.
        Mul = "mul",
        /// The larger one stays.
        Max = "max",
        /// The smaller one stays.
        Min = "min",
    }
}

impl Reduction {
    const fn function(self) -> Option<Binary> {
        match self {
            Self::None => None,
            Self::Add => Some(Binary::Add),
            Self::Mul => Some(Binary::Mul),
            Self::Max => Some(Binary::Max),
            Self::Min => Some(Binary::Min),
        }
    }
}

family! {
    /// The first operand with the elements that the second one, `i64` or `i32`, names replaced by
    /// those of the third, of the same type. Negative numbers count from the end of their axis.
    /// Updates of one element are taken in row-major order of the indices, each result rounded.
    pub enum Scatter is FOLLOWS_BLOCKS with [
        /// The combination with the existing element.
        reduction: Reduction = Reduction::None,
    ] {
        /// Each update goes where its own coordinates say but for `axis`, where the index says.
        /// Indices and updates have the same shape, with at most as many entries as the data on the
        /// other axes.
        Elements = "scatter_elements" {
            /// The axis that indices run along, negative from the end.
            axis: i64 = 0,
        },
        /// Each row of indices, along their last axis, gives the first coordinates of a block.
        /// Updates have the axes of the indices but the last, then those of a block.
        Nd = "scatter_nd",
    }
}

/// Updates of runs of elements at places of `data`.
struct Updates<'a, T> {
    data: &'a mut [T],
    places: &'a [usize],
    run: usize,
    values: &'a [T],
}

impl<T: Copy> Updates<'_, T> {
    fn each<E>(self, mut f: impl FnMut(T, T) -> Result<T, E>) -> Result<(), E> {
        for (at, updates) in self.places.iter().zip(self.values.chunks_exact(self.run)) {
            for (old, new) in self.data[*at..at + self.run].iter_mut().zip(updates) {
                *old = f(*old, *new)?;
            }
        }
        Ok(())
    }
}

impl<F: Float> Apply2<F::Real> for Updates<'_, F> {
    type Output = ();

    fn apply(self, f: impl Fn(F::Real, F::Real) -> F::Real) {
        let Ok(()) =
            self.each(|a, b| Ok::<F, std::convert::Infallible>(F::round(f(a.real(), b.real()))));
    }
}

impl Scatter {
    /// What the indices name.
    const fn named(&self) -> Named {
        match *self {
            Self::Elements { axis, .. } => Named::Along(axis),
            Self::Nd { .. } => Named::Blocks(0),
        }
    }

    /// How an update and the element in its place become one.
    const fn reduction(&self) -> Reduction {
        *self.common().0
    }

    /// Writes the updates into `y`: update `i` is the `run` elements from `places[i]` on. They are
    /// applied in their order, so that floats have the same sum on every device.
    fn update(
        &self,
        y: &mut Tensor,
        places: &[usize],
        run: usize,
        updates: &Tensor,
    ) -> Result<(), OpError> {
        if run == 0 {
            return Ok(());
        }
        // Without a function the bytes are copied, whatever their type.
        let Some(function) = self.reduction().function() else {
            let width = y.dtype().bytes() * run;
            let element = y.dtype().bytes();
            for (at, new) in places.iter().zip(updates.bytes().chunks_exact(width)) {
                y.bytes_mut()[at * element..at * element + width].copy_from_slice(new);
            }
            return Ok(());
        };
        for_dtype!(
            y.dtype(),
            float F => {
                let (data, values) = (y.as_mut_slice(), updates.as_slice());
                let updates = Updates::<F> { data, places, run, values };
                function.visit::<<F as Float>::Real, _>(updates);
                Ok(())
            },
            int I => {
                let (data, values) = (y.as_mut_slice(), updates.as_slice());
                let updates = Updates::<I> { data, places, run, values };
                let f = |a: I, b: I| function.int(a.wide(), b.wide()).map(<I as Int>::wrap);
                let wrong = |reason: &str| OpError::value(2, reason.to_owned());
                updates.each(f).map_err(wrong)
            },
            bool => Err(OpError::not_a_number()),
        )
    }
}

impl Scatter {
    /// The gradients where the largest or smallest of an element and its updates stays: those that
    /// equal it share.
    fn shared(&self, at: &mut Backward<'_>, gather: &GatherAt) -> Result<(), RuleError> {
        let (data, indices, updates) = (at.operand(0)?, at.operand(1)?, at.operand(2)?);
        let (y, dy) = (at.result(0)?, at.dy()?);
        let to = at.ty(dy).dtype;
        // Equality is exact: the result is one of the numbers, not computed from them.
        let stays = at.equal(data, y)?;
        let read = at.op(gather.clone(), &[y, indices])?;
        let chosen = at.equal(updates, read)?;
        let (own, others) = (at.cast(stays, to)?, at.cast(chosen, to)?);
        let count = at.op(self.with(Reduction::Add), &[own, indices, others])?;
        // Each result counts the element itself and all updates that equal it.
        let share = at.div(dy, count)?;
        at.give(0, share.only(stays))?;
        if at.wants(2) {
            let share = at.op(gather.clone(), &[share, indices])?;
            at.give(2, share.only(chosen))?;
        }
        Ok(())
    }

    /// The gradients where an element and its updates are multiplied: each has the product of the
    /// others, which is 0 beside another 0.
    fn products(&self, at: &mut Backward<'_>, gather: GatherAt) -> Result<(), RuleError> {
        let (data, indices, updates) = (at.operand(0)?, at.operand(1)?, at.operand(2)?);
        let dy = at.dy()?;
        let to = at.ty(dy).dtype;
        if at.wants(0) {
            let shape = at.shape(data);
            let one = at.number(data, 1.0)?;
            let ones = at.expand(one, &shape)?;
            // The product of the updates alone, in the element's place.
            let factor = at.op(self.clone(), &[ones, indices, updates])?;
            at.give(0, dy * factor)?;
        }
        if !at.wants(2) {
            return Ok(());
        }
        // The product of what is not 0, and how often 0 is among the factors.
        let one = at.number(data, 1.0)?;
        let none = at.is(data, 0.0)?;
        let no_update = at.is(updates, 0.0)?;
        let some = at.choose(none, one, data)?;
        let divisor = at.choose(no_update, one, updates)?;
        let product = at.op(self.clone(), &[some, indices, divisor])?;
        let (own, others) = (at.cast(none, to)?, at.cast(no_update, to)?);
        let zeros = at.op(self.with(Reduction::Add), &[own, indices, others])?;
        let product = at.mul(dy, product)?;
        let product = at.op(gather.clone(), &[product, indices])?;
        let zeros = at.op(gather, &[zeros, indices])?;
        // The factors that are 0, without this one: it has a slope only where no other is.
        let beside = at.sub(zeros, others)?;
        let alone = at.is(beside, 0.0)?;
        at.give(2, (product / divisor).only(alone))
    }

    /// The same places with another reduction.
    fn with(&self, reduction: Reduction) -> Self {
        let mut other = self.clone();
        *other.common_mut().0 = reduction;
        other
    }
}

impl OpDef for Scatter {
    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        self.named().lookup(operands)
    }

    fn by_entries(&self) -> Option<Op> {
        match *self {
            Self::Elements { .. } => None,
            Self::Nd { reduction } => Some(Self::Elements { axis: 1, reduction }.into()),
        }
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [data, indices, _] = &exactly(operands)?;
        if self.reduction() != Reduction::None {
            dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        }
        dtype(operands, 1, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        dtype(operands, 2, |t| t == data.ty.dtype, &format!("{}, as operand 0 is", data.ty.dtype))?;
        let shape = self.named().shape(data, indices)?;
        let expected = || format!("it must have the shape {shape}");
        has_sizes(operands, 2, &shape, "sizes of the updates", expected)?;
        result(data.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [data, indices, updates] = at.operands else { return at.whole() };
        // Updates of split rows into a tensor that all devices hold: each would hold its own only.
        let Some(s) = data.claim.shard() else {
            let reason = "writes what several samples give into one value";
            return at.refuse(Code::NotPerSample, reason);
        };
        let (index, update) = (indices.claim.shard(), updates.claim.shard());
        let (written, same) = match *self {
            Self::Elements { axis: listed, .. } => {
                let own = at.checked(axis("axis", listed, data.ty.rank()))?;
                (s.axis == own, index == Some(s) && update == Some(s))
            }
            Self::Nd { .. } => {
                let reason = "takes the coordinates of an element from several samples";
                let Some(count) = row_length(indices.ty) else {
                    return at.refuse_at(1, Code::NotPerSample, reason);
                };
                let rows = indices.ty.rank().saturating_sub(1);
                // The axes behind the coordinates move along: a batch there is the same in the data
                // and in the updates.
                let beside = |u: Shard| {
                    (u.outer, u.inner) == (s.outer, s.inner) && u.axis + count == s.axis + rows
                };
                (s.axis < count, index.is_none() && update.is_some_and(beside))
            }
        };
        if written {
            at.refuse_at(0, Code::Reorders, "writes to samples of the batch by number")
        } else if same {
            at.keep(s)
        } else {
            let reason = "writes into rows what does not come from the same rows";
            at.refuse_at(0, Code::Misaligned, reason)
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [data, indices, updates] = exactly(operands)?;
        let mut y = (*data).clone();
        let (_, places, run) = self.named().places(data, indices)?;
        self.update(&mut y, &places, run, updates)?;
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (data, indices, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let (reduction, gather) = match *self {
            Self::Elements { axis, reduction } => (reduction, GatherAt::Elements { axis }),
            Self::Nd { reduction } => (reduction, GatherAt::Nd { batch_dims: 0 }),
        };
        match reduction {
            Reduction::Add => {
                // A sum passes its gradient on to every term.
                let own = at.op(gather, &[dy, indices])?;
                at.give(0, dy)?;
                at.give(2, own)?;
                Ok(())
            }
            Reduction::None => {
                let updates = at.operand(2)?;
                let shape = at.shape(updates);
                let nothing = at.zeros(updates, &shape)?;
                // An element that is overwritten does not reach the result.
                let kept = at.op(self.clone(), &[dy, indices, nothing])?;
                at.give(0, kept)?;
                if at.wants(2) {
                    // Of several updates of one element the last one stays: the one whose number is
                    // read back.
                    let count = shape.elements();
                    let numbers = at.count_to(count, DType::I64)?;
                    let numbers = at.reshape(numbers, &shape)?;
                    let to = at.shape(data);
                    let blank = at.zeros(numbers, &to)?;
                    let placed = at.op(self.clone(), &[blank, indices, numbers])?;
                    let read = at.op(gather.clone(), &[placed, indices])?;
                    let last = at.equal(read, numbers)?;
                    let own = at.op(gather, &[dy, indices])?;
                    at.give(2, own.only(last))?;
                }
                Ok(())
            }
            Reduction::Min | Reduction::Max => self.shared(at, &gather),
            Reduction::Mul => self.products(at, gather),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, indices, random, rng};

    use super::{Reduction, Scatter};
    use crate::types::{DType, Tensor};

    const ALL: [Reduction; 5] =
        [Reduction::None, Reduction::Add, Reduction::Mul, Reduction::Max, Reduction::Min];

    fn int(size: usize) -> i64 {
        i64::try_from(size).unwrap()
    }

    fn numbers(rng: &mut impl Rng, dims: &[usize], size: usize) -> Tensor {
        let size = int(size);
        let values: Vec<i64> =
            (0..dims.iter().product()).map(|_| rng.random_range(-size..size)).collect();
        Tensor::new(dims, &values).unwrap()
    }

    fn combined(reduction: Reduction, old: f64, new: f64) -> f64 {
        match reduction {
            Reduction::None => new,
            Reduction::Add => old + new,
            Reduction::Mul => old * new,
            Reduction::Max => old.max(new),
            Reduction::Min => old.min(new),
        }
    }

    /// The position of these coordinates, negative ones from the end.
    fn position(dims: &[usize], coordinates: &[i64]) -> usize {
        coordinates.iter().zip(dims).fold(0, |at, (c, d)| {
            let c = if *c < 0 { c + int(*d) } else { *c };
            at * d + usize::try_from(c).unwrap()
        })
    }

    #[test]
    fn updates_go_where_the_indices_say() {
        let mut rng = rng(1);
        for case in 0..300 {
            let (dtype, reduction) = ([DType::F64, DType::I64][case % 2], ALL[case % 5]);
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            let axis = rng.random_range(0..rank);
            let mut own: Vec<usize> = dims.iter().map(|d| rng.random_range(0..=*d)).collect();
            own[axis] = rng.random_range(0..5);
            let (x, updates) = (random(&mut rng, dtype, &dims), random(&mut rng, dtype, &own));
            let i = numbers(&mut rng, &own, dims[axis]);
            let op = Scatter::Elements { axis: int(axis) - int(rank), reduction };
            let y = testing::eval(&op.into(), &[&x, &i, &updates]).remove(0);
            let mut expected = x.to_f64();
            let named = i.to_i64().unwrap().into_iter().zip(updates.to_f64());
            for (at, (index, new)) in indices(&own).into_iter().zip(named) {
                let mut at: Vec<i64> = at.into_iter().map(int).collect();
                at[axis] = index;
                let old = &mut expected[position(&dims, &at)];
                *old = combined(reduction, *old, new);
            }
            assert_eq!(y.to_f64(), expected, "{reduction:?}");
        }
    }

    #[test]
    fn blocks_go_where_the_rows_say() {
        let mut rng = rng(2);
        for case in 0..300 {
            let (dtype, reduction) = ([DType::F64, DType::I32][case % 2], ALL[case % 5]);
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            let count = rng.random_range(1..=rank);
            let rows: Vec<usize> =
                (0..rng.random_range(0..3)).map(|_| rng.random_range(0..4)).collect();
            let smallest = dims[..count].iter().copied().min().unwrap();
            let i = numbers(&mut rng, &[&rows[..], &[count]].concat(), smallest);
            let x = random(&mut rng, dtype, &dims);
            let updates = random(&mut rng, dtype, &[&rows[..], &dims[count..]].concat());
            let y = testing::eval(&Scatter::Nd { reduction }.into(), &[&x, &i, &updates]).remove(0);
            let mut expected = x.to_f64();
            let block: usize = dims[count..].iter().product();
            let values = updates.to_f64();
            for (row, tuple) in i.to_i64().unwrap().chunks_exact(count).enumerate() {
                let at = position(&dims[..count], tuple) * block;
                for (k, new) in values[row * block..(row + 1) * block].iter().enumerate() {
                    expected[at + k] = combined(reduction, expected[at + k], *new);
                }
            }
            assert_eq!(y.to_f64(), expected, "{reduction:?}");
        }
    }
}
