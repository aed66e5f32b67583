//! Running sums and products along an axis.

use super::Reduce;
use super::element::{Float, Int, for_dtype};
use super::infer::{at_least, axis, count, dtype, result};
use super::narrow::wide_type;
use super::prelude::*;
use super::real::Real;
use super::wide::{LargeSum, Product, Sum, Wide};

family! {
    /// Inclusive or exclusive prefix scan: each element combined with those before it along `axis`.
    ///
    /// With `exclusive` it does not take part itself; with `reverse` those behind it do instead of
    /// those before. A second operand, of size 1 on the axis, is what they begin with, for floats
    /// also with the components of a wide sum or product on an axis before the others; without it
    /// they begin with nothing. Floats are taken one after the other, and each result is rounded
    /// once: sums keep what cancels, products overflow only where they end. Integers wrap.
    pub enum Scan is FOLLOWS_BLOCKS with [
        /// The axis, negative from the end.
        axis: i64,
        /// Whether an element takes no part in its own result.
        exclusive: bool = false,
        /// Whether it begins at the end of the axis.
        reverse: bool = false,
    ] {
        /// The sum; of nothing 0.
        Sum = "cumsum",
        /// The product; of nothing 1.
        Prod = "cumprod",
    }
}

/// What each column begins with.
#[derive(Clone, Copy)]
struct Start<'a> {
    values: &'a Tensor,
    /// Whether they are components of wide numbers.
    is_wide: bool,
}

/// An operand and its result as blocks of lines.
struct Lines<'a, T> {
    /// The elements of the operand.
    x: &'a [T],
    /// Those of the result.
    y: &'a mut [T],
    /// The elements of a line.
    size: usize,
    /// The lines of a block, whose elements alternate.
    inner: usize,
}

impl Scan {
    /// The combiner of elements.
    pub(crate) fn by(&self) -> Combine {
        if matches!(self, Self::Sum { .. }) { Combine::Sum } else { Combine::Prod }
    }

    /// The combiner of the replicas' parts to the carry-in of elements of this type.
    pub(crate) fn parts_by(&self, of: DType) -> Combine {
        match self {
            Self::Sum { .. } if of.is_float() => Combine::WideSum,
            Self::Prod { .. } if of.is_float() => Combine::WideProd,
            Self::Sum { .. } | Self::Prod { .. } => self.by(),
        }
    }

    /// The reduction along the axis whose results over the rows before a replica's are what it
    /// begins with.
    pub(crate) fn total(&self, of: DType) -> Reduce {
        let (axes, keepdims) = (vec![self.axis()], true);
        #[expect(clippy::wildcard_enum_match_arm, reason = "it is one of these")]
        match self.parts_by(of) {
            Combine::WideSum => Reduce::WideSum { axes, keepdims },
            Combine::WideProd => Reduce::WideProd { axes, keepdims },
            Combine::Prod => Reduce::Prod { axes, keepdims },
            _ => Reduce::Sum { axes, keepdims },
        }
    }

    /// The type of a second operand with the components of wide sums or products; `first` is that
    /// without them.
    fn wide_start(&self, first: &TensorType) -> Option<TensorType> {
        let components = self.total(first.dtype).components(first.dtype)?;
        Some(wide_type(components, &first.shape))
    }

    /// Scans floats.
    fn floats<F: Float, W: Wide>(&self, lines: Lines<'_, F>, start: Option<Start<'_>>) {
        let columns = lines.x.len() / lines.size;
        let first: Vec<W> = match start {
            None => vec![W::EMPTY; columns],
            Some(Start { values, is_wide: true }) => {
                let parts = values.as_slice::<f64>();
                (0..columns).map(|i| W::read(|part| parts[part * columns + i])).collect()
            }
            Some(Start { values, is_wide: false }) => {
                values.to_f64().into_iter().map(|s| W::EMPTY.with(s)).collect()
            }
        };
        let join = |a: W, x: F| a.with(x.real().to_f64());
        self.run(lines, &first, join, |a| F::of_f64(a.value()));
    }

    /// Whether it begins at the end of the axis.
    pub(crate) fn is_reverse(&self) -> bool {
        *self.common().2
    }

    /// The axis, negative from the end.
    pub(crate) fn axis(&self) -> i64 {
        *self.common().0
    }

    /// Scans lines, whose sizes are not 0. `first` is what each column of each block begins with.
    fn run<T: Copy, A: Copy>(
        &self,
        lines: Lines<'_, T>,
        first: &[A],
        join: impl Fn(A, T) -> A,
        element: impl Fn(A) -> T,
    ) {
        let (_, &exclusive, &reverse) = self.common();
        let Lines { x, y, size, inner } = lines;
        let blocks = x.chunks_exact(size * inner).zip(y.chunks_exact_mut(size * inner));
        for ((x, y), first) in blocks.zip(first.chunks_exact(inner)) {
            let mut running = first.to_vec();
            for i in 0..size {
                let row = if reverse { size - 1 - i } else { i } * inner;
                let row = row..row + inner;
                for ((a, x), y) in running.iter_mut().zip(&x[row.clone()]).zip(&mut y[row]) {
                    let joined = join(*a, *x);
                    *y = element(if exclusive { *a } else { joined });
                    *a = joined;
                }
            }
        }
    }
}

impl OpDef for Scan {
    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn takes_own(&self, operand: usize) -> bool {
        operand == 1
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 1, 2, "1 or 2")?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let Some((x, start)) = operands.split_first() else { return Ok(Results::new()) };
        let axis = axis("axis", self.axis(), x.ty.rank())?;
        let mut first = x.ty.clone();
        first.shape[axis] = Dim::ONE;
        let wide = self.wide_start(&first);
        let suits = |start: &&Operand<'_>| *start.ty == first || Some(start.ty) == wide.as_ref();
        if let Some(start) = start.first().filter(|start| !suits(start)) {
            let or = wide.as_ref().map_or_else(String::new, |wide| format!(" or {wide}"));
            return Err(OpError::shape(1, start.ty, format!("it is {first}{or}")));
        }
        result(x.ty.clone())
    }

    /// What each replica begins with is the result of an `exclusive_scan` of all elements before
    /// its own: that it is is seen by who sees the graph.
    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let Some((i, shard)) = at.first() else {
            let reason = "begins with what each replica holds of its own";
            return match at.operands.iter().position(|x| x.claim == Claim::Own) {
                Some(i) => at.refuse_at(i, Code::NotPerSample, reason),
                None => at.whole(),
            };
        };
        let along = axis("axis", self.axis(), at.rank()).is_ok_and(|own| own == shard.axis);
        match at.operands {
            [_] if !along => at.keep(shard),
            [_, start] if along && shard.outer == 1 && i == 0 && start.claim == Claim::Own => {
                at.keep(shard)
            }
            [x, start] if !along && x.claim == start.claim && x.ty.rank() == start.ty.rank() => {
                at.keep(shard)
            }
            [_, _] if !along => at.refuse(Code::Misaligned, "begins with the rows of others"),
            _ => at.refuse(Code::AcrossSamples, "runs along the samples of the batch"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x], start) = at_least(operands)?;
        let axis = axis("axis", self.axis(), x.rank())?;
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        if x.is_empty() {
            return Ok(vec![y]);
        }
        let (size, inner) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        let columns = x.len() / size;
        let sum = self.by() == Combine::Sum;
        let start = start.first();
        let start = start.map(|start| Start { values: start, is_wide: start.rank() > x.rank() });
        for_dtype!(
            x.dtype(),
            float F => {
                let lines = Lines { x: x.as_slice::<F>(), y: y.as_mut_slice::<F>(), size, inner };
                if !sum {
                    self.floats::<F, Product>(lines, start);
                } else if x.dtype() == DType::F64 {
                    self.floats::<F, LargeSum>(lines, start);
                } else {
                    self.floats::<F, Sum>(lines, start);
                }
            },
            int I => {
                let lines = Lines { x: x.as_slice::<I>(), y: y.as_mut_slice::<I>(), size, inner };
                let neutral = vec![i128::from(!sum); columns];
                let wide = |t: &Tensor| t.as_slice::<I>().iter().map(|x| x.wide()).collect();
                let first = start.map_or(neutral, |start| wide(start.values));
                let join = |a: i128, x: I| {
                    let x = x.wide();
                    I::wrap(if sum { a.wrapping_add(x) } else { a.wrapping_mul(x) }).wide()
                };
                self.run(lines, &first, join, I::wrap);
            },
            bool => return Err(OpError::not_a_number()),
        );
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (&axis, &exclusive, &reverse) = self.common();
        // For each element the sum over the results that it takes part in.
        let sum = Self::Sum { axis, exclusive, reverse: !reverse };
        let dy = at.dy()?;
        if self.by() == Combine::Prod {
            return self.product_gradients(at, dy, &sum);
        }
        if at.wants(0) {
            at.give(0, dy.apply(sum))?;
        }
        if at.wants(1) {
            at.give_sum(1, dy)?;
        }
        Ok(())
    }
}

impl Scan {
    /// The gradients of running products. That of a factor is the sum of the products it takes part
    /// in, divided by it; that of the first 0 of a line is the sum of the products without it, and
    /// behind it all are 0.
    fn product_gradients(
        &self,
        at: &mut Backward<'_>,
        dy: Term,
        sum: &Self,
    ) -> Result<(), RuleError> {
        let (x, y) = (at.operand(0)?, at.result(0)?);
        let one = at.number(x, 1.0)?;
        if at.wants(1) {
            let ones = at.shape(at.operand(1)?);
            let start = at.expand(one, &ones)?;
            let products = at.op(self.clone(), &[x, start])?;
            at.give_sum(1, dy * products)?;
        }
        if !at.wants(0) {
            return Ok(());
        }
        let is_zero = at.is(x, 0.0)?;
        let count = at.cast(is_zero, DType::I64)?;
        let (&axis, _, &reverse) = self.common();
        let count = at.op(Self::Sum { axis, exclusive: false, reverse }, &[count])?;
        let single = at.is(count, 1.0)?;
        let first = at.and(is_zero, single)?;
        let without = at.choose(first, one, x)?;
        let mut operands = vec![without];
        if at.operands() > 1 {
            operands.push(at.operand(1)?);
        }
        let products = at.op(self.clone(), &operands)?;
        let (with, without) = (at.mul(dy, y)?, at.mul(dy, products)?);
        let (with, without) = (at.op(sum.clone(), &[with])?, at.op(sum.clone(), &[without])?);
        let divisor = at.choose(is_zero, one, x)?;
        let shares = at.div(with, divisor)?;
        let zero = at.number(x, 0.0)?;
        let shares = at.choose(is_zero, zero, shares)?;
        let dx = at.choose(first, without, shares)?;
        at.give(0, dx)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_close, eval, random, rng, tensor, tolerance};
    use super::super::{OpDef, Operand};
    use super::Scan;
    use crate::types::{Combine, DType, TensorType};

    fn both(axis: i64, exclusive: bool, reverse: bool) -> [Scan; 2] {
        [Scan::Sum { axis, exclusive, reverse }, Scan::Prod { axis, exclusive, reverse }]
    }

    #[test]
    fn values_follow_the_formulas() {
        let mut rng = rng(1);
        for round in 0..120usize {
            let dtype = [DType::F64, DType::F32, DType::F16, DType::Bf16, DType::I64, DType::I32]
                [round % 6];
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..7)).collect();
            let axis = rng.random_range(0..rank);
            let (exclusive, reverse) = (round % 4 < 2, round % 8 < 4);
            let x = random(&mut rng, dtype, &dims);
            let inner: usize = dims[axis + 1..].iter().product();
            let input = x.to_f64();
            let listed = i64::try_from(axis).unwrap() - i64::try_from(rank).unwrap();
            for op in both(listed, exclusive, reverse) {
                let expected: Vec<f64> = (0..x.len())
                    .map(|i| {
                        let own = i / inner % dims[axis];
                        let takes = |j: usize| {
                            (j == own && !exclusive) || (j != own && (j > own) == reverse)
                        };
                        let part = (0..dims[axis]).filter(|j| takes(*j));
                        let part = part.map(|j| input[i + j * inner - own * inner]);
                        if matches!(op, Scan::Sum { .. }) { part.sum() } else { part.product() }
                    })
                    .collect();
                let got = eval(&op.into(), &[&x]);
                assert_close(&got[0], &expected, tolerance(dtype) * 8.0);
            }
        }
        let x = tensor(DType::U8, &[3], &[200.0, 100.0, 3.0]);
        let [sum, product] = both(0, false, false);
        assert_eq!(eval(&sum.into(), &[&x])[0].to_i64(), Some(vec![200, 44, 47]));
        assert_eq!(eval(&product.into(), &[&x])[0].to_i64(), Some(vec![200, 32, 96]));
        let x = tensor(DType::F32, &[0, 2], &[]);
        assert!(both(0, true, true).iter().all(|op| eval(&op.clone().into(), &[&x])[0].is_empty()));
    }

    #[test]
    fn a_second_operand_is_what_they_begin_with() {
        let mut rng = rng(3);
        for round in 0..40usize {
            let dtype = [DType::F64, DType::F32, DType::I64, DType::I8][round % 4];
            let (rows, cut) = (rng.random_range(0..7usize), rng.random_range(0..7usize));
            let cut = cut.min(rows);
            let x = random(&mut rng, dtype, &[rows, 3]);
            let values = x.to_f64();
            let (before, behind) = values.split_at(cut * 3);
            for op in both(0, round % 8 < 4, false) {
                let whole = eval(&op.clone().into(), &[&x]);
                let neutral = if op.by() == Combine::Sum { 0.0 } else { 1.0 };
                let mut start = vec![neutral; 3];
                for (i, x) in before.iter().enumerate() {
                    let a = &mut start[i % 3];
                    *a = if op.by() == Combine::Sum { *a + x } else { *a * x };
                }
                let start = tensor(dtype, &[1, 3], &start);
                let behind = tensor(dtype, &[rows - cut, 3], behind);
                let got = eval(&op.into(), &[&behind, &start]);
                assert_close(&got[0], &whole[0].to_f64()[cut * 3..], tolerance(dtype) * 8.0);
            }
        }
        let ty = |dims: &[usize]| TensorType::new(DType::F32, dims);
        let infer = |start: &[usize]| {
            let (x, start) = (ty(&[2, 3]), ty(start));
            let operands = [&x, &start].map(|ty| Operand { ty, ints: None });
            both(0, false, false)[0].infer(&operands).is_ok()
        };
        assert!(infer(&[1, 3]) && !infer(&[2, 3]) && !infer(&[3]));
    }
}
