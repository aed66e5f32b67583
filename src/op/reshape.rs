//! The same elements, in the same order, under another shape.

use super::declare::op;
use super::infer::sizes;
use super::view::View;
use super::{OpError, Traits};
use crate::types::{Dim, Shape, TensorType};

op! {
    /// The elements of its operand in row-major order under `shape`, which has as many for every
    /// `N`.
    pub struct Reshape = "reshape" {
        /// The sizes of the result.
        pub shape: Vec<Dim>,
    }
}

impl Reshape {
    /// The shape that `target` asks for in the manner of ONNX: one -1 stands for the size that
    /// keeps the number of elements; a 0 stands for the size of `input` at the same place, or for
    /// itself where `allow_zero`.
    ///
    /// # Errors
    /// If an entry is below -1, -1 stands twice (or beside a 0 under `allow_zero`), a 0 has no
    /// counterpart in `input`, or the number of elements is not provably a multiple of the sizes
    /// given.
    pub fn resolve(input: &Shape, target: &[Dim], allow_zero: bool) -> Result<Shape, OpError> {
        let wrong = |reason: String| OpError::Attribute { attr: "shape", reason };
        let mut shape = Shape::scalar();
        let mut free = None;
        for (i, d) in target.iter().enumerate() {
            shape.push(match d.as_const() {
                Some(0) if !allow_zero => match input.get(i) {
                    Some(size) => size.clone(),
                    None => {
                        return Err(wrong(format!("entry {i} is 0 and {input} has no axis {i}")));
                    }
                },
                Some(-1) if free.replace(i).is_some() => {
                    return Err(wrong("-1 stands for more than one size".to_owned()));
                }
                Some(-1) => Dim::ONE,
                Some(c) if c < 0 => return Err(wrong(format!("entry {i} is {c}"))),
                _ => d.clone(),
            });
        }
        if let Some(at) = free {
            let (all, given) = (input.elements(), shape.elements());
            shape[at] = all.exact_div(&given).ok_or_else(|| {
                wrong(format!("no size at entry {at} gives {input} as {}", Shape::from(target)))
            })?;
        }
        Ok(shape)
    }
}

impl View for Reshape {
    const TRAITS: Traits = Traits::CHEAP.union(Traits::FOLLOWS_BLOCKS);

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let shape = Shape::from(self.shape.as_slice());
        let (from, to) = (x.shape.elements(), shape.elements());
        if from != to || from.is_overflow() {
            let reason = format!("{shape} has {to} elements, {x} has {from}");
            return Err(OpError::Attribute { attr: "shape", reason });
        }
        // One size that depends on N among positive ones is the quotient of two numbers that are
        // not negative.
        let symbolic = shape.iter().filter(|d| !d.is_const()).count();
        let positive = shape.iter().filter_map(Dim::as_const).all(|c| c > 0);
        if symbolic > 1 || !positive {
            sizes("shape", &shape)?;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, rng};
    use super::super::{Op, OpDef, OpError, Operand};
    use super::Reshape;
    use crate::types::{Claim, DType, Dim, Shape, Shard, Tensor, TensorType};

    fn n(k: i64) -> Dim {
        Dim::n() * k
    }

    fn reshape(shape: &[Dim]) -> Op {
        Reshape { shape: shape.to_vec() }.into()
    }

    #[test]
    fn values_and_known_elements() {
        let x = Tensor::new(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
        let y = testing::eval(&reshape(&[3.into(), 1.into(), 2.into()]), &[&x]);
        assert_eq!(
            (y[0].dims(), y[0].as_slice::<i64>()),
            ([3, 1, 2].as_slice(), [1, 2, 3, 4, 5, 6].as_slice())
        );
        let empty = Tensor::new::<f32>(&[0, 4], &[]).unwrap();
        assert_eq!(testing::eval(&reshape(&[2.into(), 0.into()]), &[&empty])[0].dims(), [2, 0]);
        let ty = TensorType::new(DType::I64, [1]);
        let ints = [Dim::n()];
        let y = reshape(&[]).infer(&[Operand { ty: &ty, ints: Some(&ints) }]).unwrap();
        assert_eq!(y[0].ints.as_deref(), Some(ints.as_slice()));
    }

    #[test]
    fn counts_are_equal_for_every_batch() {
        let infer = |from: &[Dim], to: &[Dim]| {
            let ty = TensorType::new(DType::F32, Shape::from(from));
            Reshape { shape: to.to_vec() }.infer(&[Operand { ty: &ty, ints: None }])
        };
        assert!(infer(&[n(1), 8.into()], &[n(4), 2.into()]).is_ok());
        for to in [
            vec![n(1), 4.into()],
            vec![10.into(), 8.into()],
            vec![(-1).into(), (n(1) * -8)],
            vec![n(1).floor_div(&2.into()), 16.into()],
            vec![i64::MAX.into(), n(8)],
        ] {
            assert!(
                matches!(infer(&[n(1), 8.into()], &to), Err(OpError::Attribute { .. })),
                "{to:?}"
            );
        }
        assert!(infer(&[0.into()], &[0.into(), n(-1)]).is_err());
    }

    #[test]
    fn onnx_targets() {
        let input: Shape = [n(1), 4.into(), 8.into()].into_iter().collect();
        let get = |target: &[Dim], allow_zero| {
            Reshape::resolve(&input, target, allow_zero).map(|s| s.to_string()).ok()
        };
        assert_eq!(get(&[0.into(), (-1).into()], false), Some("[N,32]".to_owned()));
        assert_eq!(get(&[(-1).into(), 8.into()], false), Some("[4*N,8]".to_owned()));
        assert_eq!(get(&[n(1), (-1).into(), 2.into()], false), Some("[N,16,2]".to_owned()));
        assert_eq!(get(&[0.into(), 0.into(), 0.into()], false), Some("[N,4,8]".to_owned()));
        assert_eq!(get(&[(-1).into()], false), Some("[32*N]".to_owned()));
        for target in [[-1i64, -1].as_slice(), &[-2], &[1, 1, 1, 0], &[3, -1]] {
            let target: Vec<Dim> = target.iter().map(|d| Dim::from(*d)).collect();
            assert_eq!(get(&target, false), None, "{target:?}");
        }
        assert_eq!(get(&[0.into(), (-1).into()], true), None);
        assert_eq!(get(&[0.into(), 5.into()], true), Some("[0,5]".to_owned()));
    }

    #[test]
    fn the_batch_digit_moves_and_absorbs() {
        let f = |dims: &[usize]| random(&mut rng(1), DType::F32, dims);
        let shard = |axis, inner| Claim::Shard(Shard { axis, outer: 1, inner });
        let (x, rows) = (f(&[6, 4, 8]), Claim::rows(0));
        assert_eq!(
            check_split(&reshape(&[n(4), 8.into()]), &[(&x, rows)], 6),
            Ok(vec![shard(0, 4)])
        );
        let folded = f(&[24, 8]);
        let back = reshape(&[n(1), 4.into(), 8.into()]);
        assert_eq!(check_split(&back, &[(&folded, shard(0, 4))], 6), Ok(vec![rows]));
        let lead = f(&[1, 6, 8]);
        assert_eq!(
            check_split(&reshape(&[n(1), 8.into()]), &[(&lead, Claim::rows(1))], 6),
            Ok(vec![rows])
        );
        let mixed = reshape(&[4.into(), n(1), 8.into()]);
        assert_eq!(check_split(&mixed, &[(&x, rows)], 6), Err("R0108".to_owned()));
        let inside = f(&[2, 6, 3]);
        let blocks = Claim::Shard(Shard { axis: 0, outer: 2, inner: 1 });
        assert_eq!(
            check_split(&reshape(&[n(2), 3.into()]), &[(&inside, Claim::rows(1))], 6),
            Ok(vec![blocks])
        );
        let joined = f(&[12, 3]);
        let apart = reshape(&[2.into(), n(1), 3.into()]);
        assert_eq!(check_split(&apart, &[(&joined, blocks)], 6), Ok(vec![Claim::rows(1)]));
        assert_eq!(check_split(&apart, &[(&joined, shard(0, 2))], 6), Err("R0108".to_owned()));
        let empty = f(&[6, 0]);
        assert_eq!(
            check_split(&reshape(&[0.into(), 5.into()]), &[(&empty, rows)], 6),
            Err("R0110".to_owned())
        );
        let nothing = f(&[0, 5]);
        assert_eq!(
            check_split(&reshape(&[n(1), 0.into()]), &[(&nothing, Claim::Invariant)], 6),
            Ok(vec![Claim::Invariant])
        );
    }

    /// Sizes that group some of `digits` together, ones put between, and where the digit `batch`
    /// is.
    fn grouped(rng: &mut impl Rng, digits: &[usize], batch: usize) -> (Vec<usize>, Shard) {
        let (mut dims, mut shard, mut open) =
            (vec![], Shard { axis: 0, outer: 1, inner: 1 }, false);
        for (i, d) in digits.iter().enumerate() {
            while rng.random_ratio(1, 8) {
                dims.push(1);
                open = false;
            }
            if !open {
                dims.push(1);
            }
            let axis = dims.len() - 1;
            if i == batch {
                shard = Shard { axis, outer: dims[axis] as u64, inner: 1 };
            } else if i > batch && shard.axis == axis {
                shard.inner *= *d as u64;
            }
            dims[axis] *= d;
            open = rng.random_bool(0.5);
        }
        (dims, shard)
    }

    #[test]
    fn random_groupings_pass() {
        let mut rng = rng(7);
        for _ in 0..400 {
            let mut digits: Vec<usize> =
                (0..rng.random_range(1..5)).map(|_| rng.random_range(1..4)).collect();
            let (batch, rows) = (rng.random_range(0..digits.len()), rng.random_range(1..8));
            digits[batch] = rows;
            let (from, shard) = grouped(&mut rng, &digits, batch);
            let (to, out) = grouped(&mut rng, &digits, batch);
            let mut shape: Vec<Dim> = Shape::from(to.as_slice()).to_vec();
            shape[out.axis] = n(i64::try_from(to[out.axis] / rows).unwrap());
            let x = random(&mut rng, DType::F32, &from);
            let got = check_split(&reshape(&shape), &[(&x, Claim::Shard(shard))], rows);
            assert_eq!(got, Ok(vec![Claim::Shard(out)]), "{from:?} {shard:?} to {shape:?}");
        }
    }
}
