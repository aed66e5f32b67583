//! Running sums and products along an axis.

use smallvec::smallvec;

use super::declare::family;
use super::element::{Float, Int, for_dtype};
use super::infer::{axis, dtype, one, result, tensors};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, rules};
use crate::types::{Claim, Code, DType, KernelClass, Refusal, Tensor, TensorType};

family! {
    /// For each element what it and those before it along `axis` make together.
    ///
    /// With `exclusive` it does not take part itself; with `reverse` those behind it do instead of those before.
    /// Floats are taken one after the other in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`; integers
    /// wrap.
    pub enum Scan {
        /// The sum; of nothing 0.
        Sum = "cumsum" {
            /// The axis, negative from the end.
            axis: i64,
            /// Whether an element takes no part in its own sum.
            exclusive: bool = false,
            /// Whether sums begin at the end of the axis.
            reverse: bool = false,
        },
        /// The product; of nothing 1.
        Prod = "cumprod" {
            /// The axis, negative from the end.
            axis: i64,
            /// Whether an element takes no part in its own product.
            exclusive: bool = false,
            /// Whether products begin at the end of the axis.
            reverse: bool = false,
        },
    }
}

impl Scan {
    fn settings(&self) -> (i64, bool, bool) {
        match *self {
            Self::Sum { axis, exclusive, reverse } | Self::Prod { axis, exclusive, reverse } => {
                (axis, exclusive, reverse)
            }
        }
    }

    /// Scans the middle one of three axes; the last two have the sizes `size` and `inner`, which are not 0.
    fn run<T: Copy, A: Copy>(
        &self,
        (x, y): (&[T], &mut [T]),
        (size, inner): (usize, usize),
        first: A,
        join: impl Fn(A, T) -> A,
        element: impl Fn(A) -> T,
    ) {
        let (_, exclusive, reverse) = self.settings();
        let mut running = vec![first; inner];
        let blocks = x.chunks_exact(size * inner).zip(y.chunks_exact_mut(size * inner));
        for (x, y) in blocks {
            running.fill(first);
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
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        axis("axis", self.settings().0, x.ty.rank())?;
        result(x.ty.clone())
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        let Some((i, shard)) = rules::first_shard(operands) else { return Ok(rules::invariant(1)) };
        let rank = operands.get(i).map_or(0, |x| x.ty.rank());
        match axis("axis", self.settings().0, rank) {
            Ok(own) if own != shard.axis => Ok(smallvec![Claim::Shard(shard)]),
            _ => Err(rules::refuse(Code::AcrossSamples, i, "runs along the samples of the batch")),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        use super::real::Real;
        let [x] = tensors(operands)?;
        let axis = axis("axis", self.settings().0, x.rank())?;
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        if x.is_empty() {
            return Ok(vec![y]);
        }
        let sizes = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        let sum = matches!(self, Self::Sum { .. });
        for_dtype!(
            x.dtype(),
            float F => {
                let both = (x.as_slice::<F>(), y.as_mut_slice::<F>());
                let of = <F as Float>::Real::of;
                if sum {
                    self.run(both, sizes, of(0.0), |a, x| a + x.real(), <F as Float>::round);
                } else {
                    self.run(both, sizes, of(1.0), |a, x| a * x.real(), <F as Float>::round);
                }
            },
            int I => {
                let both = (x.as_slice::<I>(), y.as_mut_slice::<I>());
                if sum {
                    self.run(both, sizes, 0i128, |a, x| I::wrap(a.wrapping_add(x.wide())).wide(), I::wrap);
                } else {
                    self.run(both, sizes, 1i128, |a, x| I::wrap(a.wrapping_mul(x.wide())).wide(), I::wrap);
                }
            },
            bool => {
                let expected = "a number".to_owned();
                return Err(OpError::DType { operand: 0, expected, found: x.dtype() });
            }
        );
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Reference
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_close, check_split, eval, random, rng, tensor, tolerance};
    use super::super::{OpDef, Operand};
    use super::Scan;
    use crate::types::{Claim, DType, Shard, TensorType};

    fn both(axis: i64, exclusive: bool, reverse: bool) -> [Scan; 2] {
        [Scan::Sum { axis, exclusive, reverse }, Scan::Prod { axis, exclusive, reverse }]
    }

    #[test]
    fn values_follow_the_formulas() {
        let mut rng = rng(1);
        for round in 0..120usize {
            let dtype =
                [DType::F64, DType::F32, DType::F16, DType::Bf16, DType::I64, DType::I32][round % 6];
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
    fn the_batch_passes_beside_the_axis() {
        let mut rng = rng(2);
        for case in 0..80 {
            let rank = rng.random_range(1..4);
            let (n, inner) = (rng.random_range(1..8), rng.random_range(1..4usize));
            let (at, own) = (rng.random_range(0..rank), rng.random_range(0..rank));
            let dims: Vec<usize> = (0..rank)
                .map(|a| if a == at { n * inner } else { rng.random_range(1..6) })
                .collect();
            let x = random(&mut rng, DType::F32, &dims);
            let claim = Claim::Shard(Shard { axis: at, outer: 1, inner: inner as u64 });
            let expected = if own == at { Err("R0105".to_owned()) } else { Ok(vec![claim]) };
            for op in both(i64::try_from(own).unwrap(), case % 2 == 0, case % 4 < 2) {
                assert_eq!(check_split(&op.into(), &[(&x, claim)], n), expected);
            }
        }
    }

    #[test]
    fn operands_are_checked() {
        let fails = |axis, dtype| {
            let ty = TensorType::new(dtype, [2, 3]);
            let operand = Operand { ty: &ty, ints: None };
            both(axis, false, false).iter().all(|op| op.infer(&[operand]).is_err())
        };
        assert!(!fails(-2, DType::I8));
        assert!(fails(2, DType::F32));
        assert!(fails(i64::MIN, DType::F32));
        assert!(fails(0, DType::Bool));
    }
}
