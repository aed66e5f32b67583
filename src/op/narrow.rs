//! Wide sums and products, rounded.

use smallvec::SmallVec;

use super::infer::{dtype, exactly, known, result};
use super::prelude::*;
use super::real::Real;
use super::wide::{LargeSum, Moments, Product, Sum, Wide};

op! {
    /// The `f64` nearest to each wide sum or product, of which the first axis has the components.
    ///
    /// It is divided by `count` before it is rounded; the logarithm is taken of the rounded one.
    pub struct Narrow = "narrow" is NONE {
        /// The combiner of its operand: `wide_sum` or `wide_prod`.
        pub by: Combine,
        /// The divisor of each.
        pub count: Dim = Dim::ONE,
        /// Whether the natural logarithm is taken.
        pub log: bool = false,
    }
}

/// The type of wide numbers of so many components, one for each element of this shape.
pub(super) fn wide_type(components: usize, shape: &Shape) -> TensorType {
    let components = Shape::from(&[components][..]);
    let shape = components.iter().chain(shape.iter()).cloned().collect();
    TensorType { dtype: DType::F64, shape }
}

/// Fails unless a value of this type has the components of `by` on its first axis.
pub(super) fn check(by: Combine, ty: &TensorType) -> Result<(), OpError> {
    let sums = [Sum::WIDTH, LargeSum::WIDTH];
    let one = [if by == Combine::Moments { Moments::WIDTH } else { Product::WIDTH }];
    let components = if by == Combine::WideSum { &sums[..] } else { &one };
    let first = ty.shape.first().and_then(|d| usize::try_from(d.as_const()?).ok());
    if ty.dtype == DType::F64 && first.is_some_and(|first| components.contains(&first)) {
        return Ok(());
    }
    let expected = format!("it is f64, and its first axis has the components of `{}`", by.name());
    Err(OpError::shape(0, ty, expected))
}

impl OpDef for Narrow {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, |t| t == DType::F64, "f64")?;
        if !matches!(self.by, Combine::WideSum | Combine::WideProd) {
            let reason = format!("`{}` is no sum or product in components", self.by.name());
            return Err(OpError::attr("by", reason));
        }
        check(self.by, x.ty)?;
        let shape: Shape = x.ty.shape.iter().skip(1).cloned().collect();
        result(TensorType { dtype: DType::F64, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if self.count.depends_on_batch() {
            return at.refuse(Code::BakedBatch, "divides by a number of rows, not of one of them");
        }
        match shard.axis.checked_sub(1) {
            Some(axis) => at.keep(Shard { axis, ..shard }),
            None => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        fn values<W: Wide>(x: &[f64], y: &mut [f64], last: impl Fn(W) -> f64) {
            let results = y.len();
            for (i, y) in y.iter_mut().enumerate() {
                *y = last(W::read(|component| x[component * results + i]));
            }
        }
        let [x] = exactly(operands)?;
        check(self.by, &x.tensor_type())?;
        let dims: SmallVec<[usize; 4]> = x.dims().iter().skip(1).copied().collect();
        let mut y = Tensor::zeros(DType::F64, &dims)?;
        #[expect(clippy::cast_precision_loss, reason = "one device divides by the same")]
        let count = known("the count", &self.count)? as f64;
        let log = |value: f64| if self.log { Real::ln(value) } else { value };
        let (elements, to) = (x.as_slice::<f64>(), y.as_mut_slice::<f64>());
        match (self.by, x.dims()[0]) {
            (Combine::WideProd, _) => values::<Product>(elements, to, |w| log(w.over(count))),
            (_, LargeSum::WIDTH) => values::<LargeSum>(elements, to, |w| log(w.over(count))),
            _ => values::<Sum>(elements, to, |w| log(w.over(count))),
        }
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it rounds what replicas combined; gradients are taken before")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, tensor};
    use super::super::{AllReduce, Narrow, Op, Reduce};
    use crate::types::{Claim, Code, Combine, DType, Dim, Tensor};

    /// The result of `op` on rows that `cuts` divides.
    fn in_parts(op: &Reduce, x: &Tensor, cuts: &[usize]) -> Tensor {
        let (wide, narrow) = op.wide(&x.tensor_type()).unwrap();
        let wide = Op::from(wide);
        let row = x.dims()[1];
        let values = x.to_f64();
        let rows = cuts.windows(2).map(|c| (c[0], c[1])).filter(|(a, b)| a < b);
        let parts: Vec<Tensor> = rows
            .map(|(from, to)| {
                let part = tensor(x.dtype(), &[to - from, row], &values[from * row..to * row]);
                testing::eval(&wide, &[&part]).remove(0)
            })
            .collect();
        let rows = vec![Dim::ONE; parts.len()];
        let all = AllReduce { by: narrow.by, rows }.into();
        let all = testing::eval(&all, &parts.iter().collect::<Vec<_>>()).remove(0);
        testing::eval(&narrow.into(), &[&all]).remove(0)
    }

    #[test]
    fn a_replica_would_divide_by_its_own_rows() {
        let x = tensor(DType::F64, &[4, 6], &[1.0; 24]);
        let narrow = |count| Op::from(Narrow { by: Combine::WideSum, count, log: false });
        let code = testing::refusal(&narrow(Dim::n()), &[(&x, Claim::rows(1))]);
        assert_eq!(code, Code::BakedBatch.name());
        let kept = testing::check_split(&narrow(Dim::from(3)), &[(&x, Claim::rows(1))], 6);
        assert_eq!(kept, Ok(vec![Claim::rows(0)]));
    }

    #[test]
    fn parts_give_what_one_device_rounds() {
        let axes = || vec![0];
        let ops = [
            Reduce::Sum { axes: axes(), keepdims: false },
            Reduce::Mean { axes: axes(), keepdims: true },
            Reduce::LogSum { axes: axes(), keepdims: false },
            Reduce::Prod { axes: axes(), keepdims: false },
        ];
        let values = [1e30, 2.0, -1e30, 3.0, 1e-30, 7.0, 4.0, 1e30, 0.5, 2.0, 1.5, 0.25];
        for dtype in [DType::F32, DType::F64] {
            let x = tensor(dtype, &[6, 2], &values);
            for op in &ops {
                let whole = testing::eval(&op.clone().into(), &[&x]).remove(0);
                for cuts in [vec![0, 6], vec![0, 1, 3, 6], vec![0, 2, 2, 5, 6]] {
                    let parts = in_parts(op, &x, &cuts);
                    let parts = tensor(dtype, parts.dims(), &parts.to_f64());
                    assert_eq!(parts, whole, "{op:?} of {dtype} by {cuts:?}");
                }
            }
        }
    }
}
