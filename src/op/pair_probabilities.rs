//! Probabilities of classes by those of pairs.

use super::infer::{dtype, equal, exactly, result};
use super::numeric::Wide;
use super::prelude::*;

op! {
    /// The probability of each class, along the last axis, by those that the first of two classes
    /// is the right one if one of both is, for all pairs in order: the second method of Wu, Lin
    /// and Weng (2004) as libsvm iterates it, at most a hundred times, until the error is below
    /// 0.005 divided by the number of classes.
    pub struct PairProbabilities = "pair_probabilities" is FOLLOWS_BLOCKS | JUMPS {
        /// The number of classes.
        pub classes: usize,
    }
}

/// The most turns of the iteration.
const TURNS: usize = 100;

impl PairProbabilities {
    /// The number of pairs; `None` where that is no size.
    fn pairs(&self) -> Option<usize> {
        self.classes.checked_mul(self.classes.checked_sub(1)?).map(|twice| twice / 2)
    }

    /// The quadratic form whose least value the probabilities give.
    fn form<R: Wide>(&self, pairs: &[R], form: &mut [R]) {
        let (k, zero) = (self.classes, R::of(0.0));
        form.fill(zero);
        let mut at = pairs.iter();
        for i in 0..k {
            for (j, first) in (i + 1..k).zip(&mut at) {
                let second = R::of(1.0) - *first;
                form[i * k + i] = form[i * k + i] + second * second;
                form[j * k + j] = form[j * k + j] + *first * *first;
                let both = -(second * *first);
                (form[i * k + j], form[j * k + i]) = (both, both);
            }
        }
    }

    fn row<R: Wide>(&self, form: &[R], product: &mut [R], p: &mut [R]) {
        let count = R::of(self.classes as f64);
        p.fill(R::of(1.0) / count);
        let least = R::of(0.005) / count;
        for _ in 0..TURNS {
            let mut all = R::of(0.0);
            for ((row, product), own) in form.chunks(self.classes).zip(&mut *product).zip(&*p) {
                let terms = row.iter().zip(&*p);
                *product = terms.fold(R::of(0.0), |sum, (q, p)| sum + *q * *p);
                all = all + *own * *product;
            }
            if product.iter().all(|product| (*product - all).abs() < least) {
                break;
            }
            for i in 0..self.classes {
                let row = &form[i * self.classes..(i + 1) * self.classes];
                let step = (all - product[i]) / row[i];
                p[i] = p[i] + step;
                let scale = R::of(1.0) + step;
                all = (all + step * (step * row[i] + R::of(2.0) * product[i])) / scale / scale;
                for (j, q) in row.iter().enumerate() {
                    product[j] = (product[j] + step * *q) / scale;
                    p[j] = p[j] / scale;
                }
            }
        }
    }

    fn evaluate<R: Wide>(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let mut dims = x.dims().to_vec();
        let pairs = dims.last_mut().map_or(0, |last| std::mem::replace(last, self.classes));
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        if y.is_empty() {
            return Ok(vec![y]);
        }
        let zero = R::of(0.0);
        let (mut form, mut product) =
            (vec![zero; self.classes * self.classes], vec![zero; self.classes]);
        for (i, p) in y.as_mut_slice::<R>().chunks_exact_mut(self.classes).enumerate() {
            self.form(&x.as_slice::<R>()[i * pairs..][..pairs], &mut form);
            self.row(&form, &mut product, p);
        }
        Ok(vec![y])
    }
}

impl OpDef for PairProbabilities {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, |t| matches!(t, DType::F32 | DType::F64), "f32 or f64")?;
        let mut shape = x.ty.shape.clone();
        let Some(last) = shape.rank().checked_sub(1) else {
            let expected = "it must have an axis of pairs".to_owned();
            return Err(OpError::Shape { operand: 0, found: x.ty.clone(), expected });
        };
        let pairs = self.pairs().and_then(|pairs| i64::try_from(pairs).ok());
        let pairs = pairs.filter(|_| self.classes > 0).ok_or_else(|| {
            let reason = format!("{} is not a number of classes", self.classes);
            OpError::Attribute { attr: "classes", reason }
        })?;
        equal("the pairs of classes", &shape[last], &Dim::from(pairs))?;
        shape[last] = Dim::from(i64::try_from(self.classes).unwrap_or(i64::MAX));
        result(TensorType { dtype: x.ty.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if shard.axis + 1 < at.rank() {
            return at.keep(shard);
        }
        at.refuse(Code::AcrossSamples, "couples the samples of the batch")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        match operands.first().map(|x| x.dtype()) {
            Some(DType::F64) => self.evaluate::<f64>(operands),
            _ => self.evaluate::<f32>(operands),
        }
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is found by an iteration")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, check_split, eval, refusal, rng};
    use super::super::{OpDef, Operand};
    use super::PairProbabilities;
    use crate::types::{Claim, DType, Tensor};
    use rand::Rng;

    #[test]
    fn of_two_classes_they_are_those_of_the_pair() {
        // Within the bound at which the iteration ends.
        let x = Tensor::new(&[3, 1], &[0.9f64, 0.5, 0.25]).unwrap();
        let y = eval(&PairProbabilities { classes: 2 }.into(), &[&x]);
        assert_close(&y[0], &[0.9, 0.1, 0.5, 0.5, 0.25, 0.75], 5e-3);
    }

    #[test]
    fn pairs_that_agree_give_what_they_come_from() {
        let p = [0.5f64, 0.3, 0.2];
        let x: Vec<f64> =
            [(0, 1), (0, 2), (1, 2)].iter().map(|(i, j)| p[*i] / (p[*i] + p[*j])).collect();
        let x = Tensor::new(&[1, 3], &x).unwrap();
        assert_close(&eval(&PairProbabilities { classes: 3 }.into(), &[&x])[0], &p, 5e-3);
    }

    #[test]
    fn rows_pass() {
        let op = PairProbabilities { classes: 4 }.into();
        let mut rng = rng(5);
        for n in [1, 6, 11] {
            let values: Vec<f32> = (0..n * 6).map(|_| rng.random_range(0.01..0.99)).collect();
            let x = Tensor::new(&[n, 6], &values).unwrap();
            let passed = check_split(&op, &[(&x, Claim::rows(0))], n);
            assert_eq!(passed, Ok(vec![Claim::rows(0)]));
        }
        let x = Tensor::zeros(DType::F32, &[2, 6]).unwrap();
        assert_eq!(refusal(&op, &[(&x, Claim::rows(1))]), "R0105");
    }

    #[test]
    fn sizes_that_do_not_suit_are_refused() {
        let ok = |classes: usize, dtype: DType, dims: &[usize]| {
            let ty = Tensor::zeros(dtype, dims).unwrap().tensor_type();
            PairProbabilities { classes }.infer(&[Operand { ty: &ty, ints: None }]).is_ok()
        };
        assert!(ok(3, DType::F32, &[2, 3]) && ok(1, DType::F64, &[2, 0]));
        assert!(!ok(0, DType::F32, &[2, 0]) && !ok(3, DType::F32, &[2, 2]));
        assert!(!ok(usize::MAX, DType::F32, &[2, 3]) && !ok(3, DType::F16, &[2, 3]));
        assert!(!ok(1, DType::F32, &[]));
    }
}
