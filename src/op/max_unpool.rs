//! Elements put back to where a pool found them.

use super::infer::{dtype, equal, exactly, known_sizes, result, sizes};
use super::prelude::*;

op! {
    /// Zeros `[N, C, sizes…]` with the elements of `x: [N, C, …]` at the positions that the second
    /// operand gives for each: row-major positions within the whole result, as `max_pool` gives
    /// them. The last of several at one position stays.
    pub struct MaxUnpool = "max_unpool" is FOLLOWS_BLOCKS {
        /// The sizes of the result behind the first two axes.
        pub sizes: Vec<Dim>,
    }
}

impl MaxUnpool {
    fn shape(&self, x: &[Dim]) -> Shape {
        x.iter().take(2).chain(&self.sizes).cloned().collect()
    }
}

impl OpDef for MaxUnpool {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x, places] = exactly(operands)?;
        dtype(operands, 1, |t| t == DType::I64, "i64")?;
        sizes("sizes", &self.sizes)?;
        let rank = x.ty.rank();
        if rank < 3 || rank != self.sizes.len() + 2 {
            let expected = format!("it must have {} axes, at least 3", self.sizes.len() + 2);
            return Err(OpError::shape(0, x.ty, expected));
        }
        if places.ty.rank() != rank {
            let expected = format!("operand 0 is {}; both must have the same shape", x.ty);
            return Err(OpError::shape(1, places.ty, expected));
        }
        for (a, b) in x.ty.shape.iter().zip(places.ty.shape.iter()) {
            equal("sizes of the elements and of their positions", a, b)?;
        }
        result(TensorType { dtype: x.ty.dtype, shape: self.shape(&x.ty.shape) })
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        at.refuse(Code::GlobalIndex, "takes positions within the whole batch")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, places] = exactly(operands)?;
        let behind = known_sizes("the sizes", &self.sizes)?;
        let dims = [&x.dims()[..2], behind.as_slice()].concat();
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        let (width, count) = (x.dtype().bytes(), y.len());
        let to = y.bytes_mut();
        // In ascending order, so that of several elements at one position the last stays.
        let elements = x.bytes().chunks_exact(width);
        for (element, place) in elements.zip(places.as_slice::<i64>()) {
            let at = usize::try_from(*place).ok().filter(|at| *at < count).ok_or_else(|| {
                OpError::value(
                    1,
                    format!("the position {place} is outside a result of {count} elements"),
                )
            })?;
            to[at * width..][..width].copy_from_slice(element);
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, places, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let shape = at.shape(x);
        let line = |size: Dim| [size].into_iter().collect::<Shape>();
        let (count, all) = (line(shape.elements()), line(at.shape(dy).elements()));
        let taken = |at: &mut Backward<'_>, from| {
            let flat = at.reshape(from, &all)?;
            at.gather(flat, places, 0)
        };
        // Elements are numbered, so that of several at one position the one that stays is known.
        let one = at.number(places, 1.0)?;
        let ones = at.expand(one, &count)?;
        let numbers = at.running_sum(ones, 0)?;
        let numbers = at.reshape(numbers, &shape)?;
        let put = at.op(self.clone(), &[numbers, places])?;
        let found = taken(at, put)?;
        let stays = at.equal(found, numbers)?;
        let dx = taken(at, dy)?;
        let dx = at.only(stays, dx)?;
        at.give(0, dx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, refusal, rng};
    use super::super::{Op, Pool};
    use super::MaxUnpool;
    use crate::types::{Claim, DType, Tensor};

    #[test]
    fn what_a_pool_takes_goes_back() {
        let mut rng = rng(1);
        let x = random(&mut rng, DType::F32, &[2, 3, 4, 6]);
        let pool = Pool::Max {
            kernel: vec![2, 3],
            strides: vec![2, 3],
            dilations: Vec::new(),
            pads: Vec::new(),
            ceil_mode: false,
            indices: true,
            column_major: false,
        };
        let pooled = testing::eval(&pool.into(), &[&x]);
        let op = Op::from(MaxUnpool { sizes: vec![4.into(), 6.into()] });
        let y = &testing::eval(&op, &[&pooled[0], &pooled[1]])[0];
        let taken = |(y, x): (&f32, &f32)| y.to_bits() == x.to_bits() || y.abs() == 0.0;
        assert!(y.as_slice::<f32>().iter().zip(x.as_slice()).all(taken));
        let sum = |t: &Tensor| t.to_f64().iter().sum::<f64>();
        assert!((sum(y) - sum(&pooled[0])).abs() < 1e-4);
        let operands = [(&pooled[0], Claim::Invariant), (&pooled[1], Claim::Invariant)];
        assert_eq!(check_split(&op, &operands, 3), Ok(vec![Claim::Invariant]));
        let rows = [(&pooled[0], Claim::rows(0)), (&pooled[1], Claim::rows(0))];
        assert_eq!(refusal(&op, &rows), "R0106");
    }
}
