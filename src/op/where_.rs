//! A choice between two values, element by element.

use super::broadcast::{Broadcast, Run};
use super::element::for_dtype;
use super::infer::{broadcast, dtype, exactly, result_with_ints};
use super::interval::{FALSE, TRUE};
use super::ints;
use super::prelude::*;
use crate::types::Element;

op! {
    /// The second operand where the first, of type `bool`, is true, else the third; the three are
    /// broadcast to one shape.
    pub struct Where = "where" is ELEMENTWISE | CHEAP | FOLLOWS_BLOCKS {}
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
    fn interval(&self, _: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(condition), Some(a), Some(b)] = *operands else { return None };
        Some(match condition {
            TRUE => a,
            FALSE => b,
            _ => a.with(b),
        })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [condition, a, b] = &exactly(operands)?;
        dtype(operands, 0, |t| t == DType::Bool, "bool")?;
        if a.ty.dtype != b.ty.dtype {
            return Err(OpError::dtype(2, b.ty.dtype, format!("{}, as operand 1 is", a.ty.dtype)));
        }
        let shape = broadcast(operands.iter().map(|x| &x.ty.shape))?;
        let known = known(&shape, condition, a, b);
        result_with_ints(TensorType { dtype: a.ty.dtype, shape }, known)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [condition, a, b] = exactly(operands)?;
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

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, condition) = (at.dy()?, at.operand(0)?);
        let zero = at.number(dy, 0.0)?;
        if at.wants(1) {
            at.give_sum(1, dy.where_else(condition, zero))?;
        }
        if at.wants(2) {
            at.give_sum(2, zero.where_else(condition, dy))?;
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
    plan.runs(|Run { out, len, starts: [c, i, j], steps }| {
        let y = &mut y[out..out + len];
        let pick = |condition: u8, a: T, b: T| if condition != 0 { a } else { b };
        // Where all are neighbours, or one is a number, there is a loop without multiplications.
        match steps {
            [1, 1, 1] => {
                let operands = condition[c..].iter().zip(&a[i..]).zip(&b[j..]);
                y.iter_mut().zip(operands).for_each(|(y, ((c, a), b))| *y = pick(*c, *a, *b));
            }
            [1, 0, 1] => {
                let (a, operands) = (a[i], condition[c..].iter().zip(&b[j..]));
                y.iter_mut().zip(operands).for_each(|(y, (c, b))| *y = pick(*c, a, *b));
            }
            [1, 1, 0] => {
                let (b, operands) = (b[j], condition[c..].iter().zip(&a[i..]));
                y.iter_mut().zip(operands).for_each(|(y, (c, a))| *y = pick(*c, *a, b));
            }
            [c_step, i_step, j_step] => {
                for (k, y) in y.iter_mut().enumerate() {
                    *y = pick(condition[c + k * c_step], a[i + k * i_step], b[j + k * j_step]);
                }
            }
        }
    });
}
