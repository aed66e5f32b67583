//! A choice between two values, element by element.

use super::broadcast::Broadcast;
use super::declare::op;
use super::element::for_dtype;
use super::infer::{broadcast, dtype, result_with_ints};
use super::interval::{FALSE, TRUE};
use super::{
    Backward, Claims, Formula, Gradient, Interval, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, ints, rules,
};
use crate::types::{DType, Dim, Element, KernelClass, Refusal, Shape, Tensor, TensorType};

op! {
    /// The second operand where the first, of type `bool`, is true, else the third; the three are
    /// broadcast to one shape.
    pub struct Where = "where" {}
}

/// The known elements of the result: where the condition is known, those of the side that it
/// chooses need be known.
fn known(
    shape: &Shape,
    condition: &Operand<'_>,
    a: &Operand<'_>,
    b: &Operand<'_>,
) -> Option<ints::Known> {
    let (condition_ints, left, right) = (ints::of(condition), ints::of(a), ints::of(b));
    let at = |ints: Option<&[Dim]>, i: usize| ints.and_then(|ints| ints.get(i).cloned());
    let positions = ints::meetings(shape, [condition, a, b])?;
    let choice = |[c, i, j]: [usize; 3]| match at(condition_ints, c).and_then(|c| c.as_const()) {
        Some(0) => at(right, j),
        Some(_) => at(left, i),
        None => at(left, i).filter(|x| at(right, j).as_ref() == Some(x)),
    };
    positions.into_iter().map(choice).collect()
}

impl OpDef for Where {
    fn traits(&self) -> Traits {
        Traits::ELEMENTWISE | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn interval(&self, _: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(condition), Some(a), Some(b)] = *operands else { return None };
        Some(match condition {
            TRUE => a,
            FALSE => b,
            _ => a.with(b),
        })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [condition, a, b] = operands else {
            return Err(OpError::Operands { expected: "3", found: operands.len() });
        };
        dtype(operands, 0, |t| t == DType::Bool, "bool")?;
        if a.ty.dtype != b.ty.dtype {
            let expected = format!("{}, as operand 1 is", a.ty.dtype);
            return Err(OpError::DType { operand: 2, expected, found: b.ty.dtype });
        }
        let shape = broadcast(operands.iter().map(|x| &x.ty.shape))?;
        let known = known(&shape, condition, a, b);
        result_with_ints(TensorType { dtype: a.ty.dtype, shape }, known)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::elementwise(operands, results.first().map_or(0, TensorType::rank))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [condition, a, b] = operands else {
            return Err(OpError::Operands { expected: "3", found: operands.len() });
        };
        let (plan, dims) = Broadcast::of([condition.dims(), a.dims(), b.dims()]);
        let mut y = Tensor::zeros(a.dtype(), &dims)?;
        let condition = condition.as_slice::<u8>();
        for_dtype!(
            a.dtype(),
            float F => choose::<F>(&plan, condition, a, b, &mut y),
            int I => choose::<I>(&plan, condition, a, b, &mut y),
            bool => choose::<u8>(&plan, condition, a, b, &mut y),
        );
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Elementwise
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, condition) = (at.dy()?, at.operand(0)?);
        let zero = at.number(dy, 0.0)?;
        if at.wants(1) {
            let dx = at.op(Self {}, &[condition, dy, zero])?;
            at.give_sum(1, dx)?;
        }
        if at.wants(2) {
            let dx = at.op(Self {}, &[condition, zero, dy])?;
            at.give_sum(2, dx)?;
        }
        Ok(())
    }
}

fn choose<T: Element>(
    plan: &Broadcast<3>,
    condition: &[u8],
    a: &Tensor,
    b: &Tensor,
    y: &mut Tensor,
) {
    let (a, b, y) = (a.as_slice::<T>(), b.as_slice::<T>(), y.as_mut_slice::<T>());
    plan.elements(|out, [c, i, j]| y[out] = if condition[c] != 0 { a[i] } else { b[j] });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng, tensor};
    use super::super::{OpDef, Operand};
    use super::Where;
    use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

    #[test]
    fn values_of_every_type() {
        let condition = tensor(DType::Bool, &[2, 1], &[1.0, 0.0]);
        for dtype in DType::ALL {
            let (a, b) = (tensor(dtype, &[3], &[1.0, 0.0, 1.0]), tensor(dtype, &[], &[0.0]));
            let y = testing::eval(&Where {}.into(), &[&condition, &a, &b]);
            assert_eq!(y[0], tensor(dtype, &[2, 3], &[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]));
        }
        let nan = Tensor::scalar(f32::NAN);
        let y = testing::eval(&Where {}.into(), &[&condition, &Tensor::scalar(2.0f32), &nan]);
        let y = y[0].as_slice::<f32>();
        assert_eq!(y[0].to_bits(), 2f32.to_bits());
        assert!(y[1].is_nan());
    }

    #[test]
    fn types_are_checked() {
        let fails = |dtypes: [DType; 3]| {
            let types = dtypes.map(|t| TensorType::new(t, [2]));
            Where {}.infer(&types.each_ref().map(|ty| Operand { ty, ints: None })).is_err()
        };
        assert!(fails([DType::I32, DType::F32, DType::F32]));
        assert!(fails([DType::Bool, DType::F32, DType::F64]));
        assert!(!fails([DType::Bool, DType::Bool, DType::Bool]));
        assert!(Where {}.infer(&[]).is_err());
        let bools = TensorType::new(DType::Bool, [1 << 40, 1]);
        let wide = TensorType::new(DType::Bool, [1, 1 << 40]);
        let operand = |ty| Operand { ty, ints: None };
        assert!(Where {}.infer(&[operand(&bools), operand(&wide), operand(&wide)]).is_err());
    }

    #[test]
    fn known_elements_of_the_chosen_side() {
        let bools = TensorType::new(DType::Bool, [2]);
        let ty = TensorType::new(DType::I64, [2]);
        let (no_yes, a, b) =
            ([Dim::ZERO, Dim::ONE], [Dim::n(), 5.into()], [Dim::n(), Dim::n() * 2]);
        let known = |c: Option<&[Dim]>, a: Option<&[Dim]>, b: Option<&[Dim]>| {
            let operands = [
                Operand { ty: &bools, ints: c },
                Operand { ty: &ty, ints: a },
                Operand { ty: &ty, ints: b },
            ];
            Where {}.infer(&operands).unwrap().remove(0).ints.map(|i| i.to_vec())
        };
        assert_eq!(known(Some(&no_yes), Some(&a), Some(&b)), Some(vec![Dim::n(), 5.into()]));
        assert_eq!(known(Some(&no_yes), Some(&a), None), None);
        assert_eq!(known(None, Some(&a), Some(&a)), Some(a.to_vec()));
        assert_eq!(known(None, Some(&a), Some(&b)), None);
        assert_eq!(known(Some(&[Dim::ONE, Dim::ONE]), Some(&a), None), Some(a.to_vec()));
    }

    #[test]
    fn aligned_rows_pass() {
        let mut rng = rng(1);
        for (n, inner) in [(6, 1), (4, 3), (1, 2)] {
            let shard = |axis| Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
            let c = random(&mut rng, DType::Bool, &[n * inner, 1]);
            let a = random(&mut rng, DType::I64, &[2, n * inner, 3]);
            let b = random(&mut rng, DType::I64, &[3]);
            let operands = [(&c, shard(0)), (&a, shard(1)), (&b, Claim::Invariant)];
            assert_eq!(check_split(&Where {}.into(), &operands, n), Ok(vec![shard(1)]));
        }
        let c = random(&mut rng, DType::Bool, &[4, 1]);
        let a = random(&mut rng, DType::I64, &[4]);
        let operands = [(&c, Claim::rows(0)), (&a, Claim::rows(0)), (&a, Claim::rows(0))];
        assert_eq!(check_split(&Where {}.into(), &operands, 4), Err("R0101".to_owned()));
    }
}
