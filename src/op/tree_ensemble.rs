//! Ensembles of decision trees.

use super::attr::names;
use super::infer::{count, dtype, equal, exactly, result};
use super::numeric::Wide;
use super::prelude::*;
use crate::types::invariant::int;

names! {
    /// What a tree ensemble makes of the weights that a row reaches for one target.
    pub enum TreeAggregate {
        /// Their sum.
        Sum = "sum",
        /// The smallest.
        Min = "min",
        /// The largest.
        Max = "max",
    }
}

op! {
    /// Decision trees on rows of features, the last axis of the first operand, which becomes that
    /// of the targets. A row walks each tree from its root to a leaf, and the weights of all
    /// leaves are aggregated by target, from 0, tree by tree; a target that no leaf weighs is 0.
    /// Operands: the rows, nodes, thresholds, roots, and the targets and weights of leaves. A node
    /// `[feature, test, yes, no]` leads to a later one: `yes` if its feature compares with its
    /// threshold by `test` (0 `<=`, 1 `<`, 2 `>=`, 3 `>`, 4 `==`, 5 `!=`; 8 more: or is NaN), else
    /// `no`; with the test 6 it is a leaf, which has the weights `yes..no`.
    pub struct TreeEnsemble = "tree_ensemble" is FOLLOWS_BLOCKS | JUMPS {
        /// What becomes of the weights of a target.
        pub aggregate: TreeAggregate = TreeAggregate::Sum,
        /// The number of targets.
        pub targets: usize,
    }
}

/// The entries of a node: its feature, its test, and the nodes that follow.
pub(crate) const NODE: usize = 4;

/// The test of a leaf.
pub(crate) const LEAF: i32 = 6;

/// Added to a test that NaN passes.
pub(crate) const OR_NAN: i32 = 8;

/// Rows that walk a tree before the next one is taken, while it is in the cache.
const ROWS: usize = 64;

/// The tables of an ensemble. They may be of a file: every number is checked where it is used.
struct Trees<'a, R> {
    nodes: &'a [[i32; NODE]],
    thresholds: &'a [R],
    roots: &'a [i32],
    targets: &'a [i32],
    weights: &'a [R],
}

/// The position that a table holds, if it is one.
#[inline]
fn place(at: i32) -> Option<usize> {
    usize::try_from(at).ok()
}

/// Whether a feature passes a test; `None` if there is no such test.
#[inline]
fn passes<R: Wide>(test: i32, x: R, threshold: R) -> Option<bool> {
    let holds = match test & !OR_NAN {
        0 => x <= threshold,
        1 => x < threshold,
        2 => x >= threshold,
        3 => x > threshold,
        4 => x == threshold,
        5 => x != threshold,
        _ => return None,
    };
    Some(holds || (test & OR_NAN != 0 && x.is_nan()))
}

impl<R: Wide> Trees<'_, R> {
    /// The leaf that a row reaches; `None` if the nodes are no tree. A node leads to later ones
    /// only, so every walk ends.
    #[inline]
    fn leaf(&self, root: i32, row: &[R]) -> Option<[i32; NODE]> {
        let mut at = place(root)?;
        loop {
            let node = *self.nodes.get(at)?;
            let [feature, test, yes, no] = node;
            if test == LEAF {
                return Some(node);
            }
            let (x, threshold) = (*row.get(place(feature)?)?, *self.thresholds.get(at)?);
            let next = place(if passes(test, x, threshold)? { yes } else { no })?;
            if next <= at {
                return None;
            }
            at = next;
        }
    }

    /// The weights of a leaf, with their targets.
    fn entries(&self, [_, _, from, to]: [i32; NODE]) -> Option<impl Iterator<Item = (&i32, &R)>> {
        let entries = place(from)?..place(to)?;
        let weights = self.weights.get(entries.clone())?;
        Some(self.targets.get(entries)?.iter().zip(weights))
    }
}

impl TreeEnsemble {
    /// Adds to some rows of the result what they reach; `reached` are the targets that have a
    /// weight.
    fn add<R: Wide>(
        &self,
        trees: &Trees<'_, R>,
        x: &[R],
        y: &mut [R],
        reached: &mut [bool],
    ) -> Option<()> {
        let features = x.len() / (y.len() / self.targets);
        for root in trees.roots {
            let rows = y.chunks_exact_mut(self.targets).zip(reached.chunks_mut(self.targets));
            for (i, (y, reached)) in rows.enumerate() {
                let leaf = trees.leaf(*root, &x[i * features..(i + 1) * features])?;
                for (target, weight) in trees.entries(leaf)? {
                    let target = place(*target)?;
                    let (y, reached) = (y.get_mut(target)?, reached.get_mut(target)?);
                    *y = match self.aggregate {
                        TreeAggregate::Sum => *y + *weight,
                        TreeAggregate::Min if *weight < *y => *weight,
                        TreeAggregate::Max if *weight > *y => *weight,
                        TreeAggregate::Min | TreeAggregate::Max if *reached => *y,
                        TreeAggregate::Min | TreeAggregate::Max => *weight,
                    };
                    *reached = true;
                }
            }
        }
        Some(())
    }

    fn evaluate<R: Wide>(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, nodes, thresholds, roots, targets, weights] = exactly(operands)?;
        let mut dims = x.dims().to_vec();
        let last = dims.last_mut().map(|features| std::mem::replace(features, self.targets));
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        if y.is_empty() {
            return Ok(vec![y]);
        }
        let trees = Trees {
            nodes: nodes.as_slice::<i32>().as_chunks::<NODE>().0,
            thresholds: thresholds.as_slice::<R>(),
            roots: roots.as_slice::<i32>(),
            targets: targets.as_slice::<i32>(),
            weights: weights.as_slice::<R>(),
        };
        let (features, count) = (last.unwrap_or(0), y.len() / self.targets);
        let mut reached = vec![false; count.min(ROWS) * self.targets];
        for (i, y) in y.as_mut_slice::<R>().chunks_mut(ROWS * self.targets).enumerate() {
            let rows = y.len() / self.targets;
            let x = &x.as_slice::<R>()[i * ROWS * features..][..rows * features];
            reached.fill(false);
            self.add(&trees, x, y, &mut reached).ok_or_else(|| {
                let reason = "a node leads to an earlier one, or refers to a feature, a test, a \
                    node, a weight or a target that does not exist"
                    .to_owned();
                OpError::Value { operand: 1, reason }
            })?;
        }
        Ok(vec![y])
    }
}

impl OpDef for TreeEnsemble {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 6, 6, "6")?;
        let float = operands[0].ty.dtype;
        dtype(operands, 0, |t| matches!(t, DType::F32 | DType::F64), "f32 or f64")?;
        for i in [2, 5] {
            dtype(operands, i, |t| t == float, &format!("{float}, as operand 0 is"))?;
        }
        for i in [1, 3, 4] {
            dtype(operands, i, |t| t == DType::I32, "i32")?;
        }
        for (i, x) in operands.iter().enumerate().skip(1) {
            let rank = if i == 1 { 2 } else { 1 };
            if x.ty.rank() != rank {
                let expected = format!("it must have the rank {rank}");
                return Err(OpError::Shape { operand: i, found: x.ty.clone(), expected });
            }
        }
        let size = |i: usize| &operands[i].ty.shape[0];
        equal("the entries of a node", &operands[1].ty.shape[1], &Dim::from(int::<i64>(NODE)))?;
        equal("the nodes and their thresholds", size(1), size(2))?;
        equal("the targets and the weights of leaves", size(4), size(5))?;
        let mut shape = operands[0].ty.shape.clone();
        let Some(last) = shape.rank().checked_sub(1) else {
            let expected = "it must have an axis of features".to_owned();
            return Err(OpError::Shape { operand: 0, found: operands[0].ty.clone(), expected });
        };
        shape[last] = Dim::from(i64::try_from(self.targets).unwrap_or(i64::MAX));
        result(TensorType { dtype: float, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        for i in 1..at.operands.len() {
            at.expect_whole(i, Code::NotPerSample, "takes its trees from samples")?;
        }
        if at.operands.first().is_some_and(|x| shard.axis + 1 < x.ty.rank()) {
            return at.keep(shard);
        }
        at.refuse(Code::AcrossSamples, "decides by features of several samples")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        match operands.first().map(|x| x.dtype()) {
            Some(DType::F64) => self.evaluate::<f64>(operands),
            _ => self.evaluate::<f32>(operands),
        }
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is constant between thresholds, and jumps there")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_split, eval, random, refusal, rng, tensor};
    use super::super::{OpDef, Operand};
    use super::{TreeAggregate, TreeEnsemble};
    use crate::types::{Claim, DType, Tensor, TensorType};

    /// Two trees on three features. The first: `x0 <= 0.5` gives target 0 the weight 1, else `x1 >
    /// 0` (or NaN) target 1 the weight 2, else both 4 and 8. The second: `x2 == 1` gives target 0
    /// the weight -16, else nothing.
    fn tables(dtype: DType) -> Vec<Tensor> {
        let nodes: [i32; 32] = [
            0, 0, 1, 2, 0, 6, 0, 1, 1, 11, 3, 4, 0, 6, 1, 2, 0, 6, 2, 4, 2, 4, 6, 7, 0, 6, 4, 5, 0,
            6, 5, 5,
        ];
        let float = |values: &[f64]| tensor(dtype, &[values.len()], values);
        let targets = [0, 1, 0, 1, 0];
        vec![
            Tensor::new::<i32>(&[8, 4], &nodes).unwrap(),
            float(&[0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
            Tensor::new::<i32>(&[2], &[0, 5]).unwrap(),
            Tensor::new::<i32>(&[5], &targets).unwrap(),
            float(&[1.0, 2.0, 4.0, 8.0, -16.0]),
        ]
    }

    fn operands<'a>(x: &'a Tensor, tables: &'a [Tensor]) -> Vec<&'a Tensor> {
        [x].into_iter().chain(tables).collect()
    }

    fn ensemble(aggregate: TreeAggregate) -> TreeEnsemble {
        TreeEnsemble { aggregate, targets: 2 }
    }

    const ROWS: [f32; 15] = [
        0.5,
        9.0,
        1.0,
        0.6,
        f32::NAN,
        0.0,
        0.6,
        0.1,
        1.0,
        f32::NAN,
        0.0,
        f32::NAN,
        f32::NEG_INFINITY,
        0.0,
        f32::INFINITY,
    ];

    #[test]
    fn rows_reach_leaves() {
        let x = Tensor::new(&[5, 3], &ROWS).unwrap();
        let wide = Tensor::new(&[5, 3], &ROWS.map(f64::from)).unwrap();
        for (aggregate, expected) in [
            (TreeAggregate::Sum, [-15.0, 0.0, 0.0, 2.0, -16.0, 2.0, 4.0, 8.0, 1.0, 0.0]),
            (TreeAggregate::Min, [-16.0, 0.0, 0.0, 2.0, -16.0, 2.0, 4.0, 8.0, 1.0, 0.0]),
            (TreeAggregate::Max, [1.0, 0.0, 0.0, 2.0, -16.0, 2.0, 4.0, 8.0, 1.0, 0.0]),
        ] {
            let op = ensemble(aggregate).into();
            let y = eval(&op, &operands(&x, &tables(DType::F32)));
            assert_eq!(y[0], tensor(DType::F32, &[5, 2], &expected));
            let y = eval(&op, &operands(&wide, &tables(DType::F64)));
            assert_eq!(y[0], Tensor::new(&[5, 2], &expected).unwrap());
        }
    }

    #[test]
    fn sums_go_from_tree_to_tree_in_the_type_of_the_weights() {
        // One leaf a tree: 2^24 + 1 is 2^24 in `f32`, and so is the sum of both ones after it, but
        // not before it.
        let leaves = |order: [i32; 3]| {
            let nodes: Vec<i32> = order.iter().flat_map(|i| [0, 6, *i, i + 1]).collect();
            vec![
                Tensor::new::<i32>(&[3, 4], &nodes).unwrap(),
                Tensor::zeros(DType::F32, &[3]).unwrap(),
                Tensor::new::<i32>(&[3], &[0, 1, 2]).unwrap(),
                Tensor::new::<i32>(&[3], &[0, 0, 0]).unwrap(),
                Tensor::new::<f32>(&[3], &[16_777_216.0, 1.0, 1.0]).unwrap(),
            ]
        };
        let x = Tensor::zeros(DType::F32, &[1, 0]).unwrap();
        let op = TreeEnsemble { aggregate: TreeAggregate::Sum, targets: 1 }.into();
        for (order, sum) in [([0, 1, 2], 16_777_216.0f32), ([1, 2, 0], 16_777_218.0)] {
            let y = eval(&op, &operands(&x, &leaves(order)));
            assert_eq!(y[0], Tensor::new(&[1, 1], &[sum]).unwrap());
        }
    }

    #[test]
    fn rows_pass_and_nothing_else() {
        let tables = tables(DType::F32);
        let with = |x: &Tensor, claim| {
            let all = [(x.clone(), claim)].into_iter();
            all.chain(tables.iter().map(|t| (t.clone(), Claim::Invariant))).collect::<Vec<_>>()
        };
        let refs = |all: &[(Tensor, Claim)]| -> Vec<(Tensor, Claim)> { all.to_vec() };
        let mut rng = rng(3);
        let op = ensemble(TreeAggregate::Sum).into();
        for n in [1, 7, 200] {
            for (dims, axis) in [(vec![n, 3], 0), (vec![2, n, 3], 1), (vec![n, 2, 3], 0)] {
                let all = with(&random(&mut rng, DType::F32, &dims), Claim::rows(axis));
                let all: Vec<_> = all.iter().map(|(t, c)| (t, *c)).collect();
                assert_eq!(check_split(&op, &all, n), Ok(vec![Claim::rows(axis)]));
            }
        }
        let x = random(&mut rng, DType::F32, &[3, 3]);
        let all = with(&x, Claim::rows(1));
        assert_eq!(refusal(&op, &all.iter().map(|(t, c)| (t, *c)).collect::<Vec<_>>()), "R0105");
        for i in 1..6 {
            let mut all = refs(&with(&x, Claim::Invariant));
            all[i].1 = Claim::rows(0);
            let all: Vec<_> = all.iter().map(|(t, c)| (t, *c)).collect();
            assert_eq!(refusal(&op, &all), "R0111");
        }
    }

    #[test]
    fn tables_that_are_no_trees_are_errors() {
        let x = Tensor::new(&[1, 3], &[1.0f32, 1.0, 1.0]).unwrap();
        let op = ensemble(TreeAggregate::Sum);
        // The table, the element, and what it becomes.
        let wrong = [
            (0, 0, 3),
            (0, 0, -1),
            (0, 1, 7),
            (0, 1, -1),
            (0, 3, 0),
            (0, 3, 8),
            (0, 3, -1),
            (0, 10, 2),
            (0, 15, 9),
            (0, 14, 3),
            (2, 0, 8),
            (2, 0, -1),
            (3, 1, 2),
            (3, 1, -1),
        ];
        for (table, element, value) in wrong {
            let mut all = tables(DType::F32);
            all[table].as_mut_slice::<i32>()[element] = value;
            let found = op.eval(&operands(&x, &all));
            assert!(found.is_err(), "{table} {element} {value}: {found:?}");
        }
    }

    #[test]
    fn types_that_do_not_suit_are_refused() {
        let x = Tensor::zeros(DType::F32, &[1, 3]).unwrap();
        let good: Vec<TensorType> =
            operands(&x, &tables(DType::F32)).iter().map(|t| t.tensor_type()).collect();
        let ok = |types: &[TensorType], targets: usize| {
            let operands: Vec<Operand<'_>> =
                types.iter().map(|ty| Operand { ty, ints: None }).collect();
            TreeEnsemble { aggregate: TreeAggregate::Sum, targets }.infer(&operands).is_ok()
        };
        assert!(ok(&good, 2) && ok(&good, 0));
        assert!(!ok(&good, usize::MAX) && !ok(&good[..5], 2));
        let zeros = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims).unwrap().tensor_type();
        for (i, ty) in [
            (0, zeros(DType::F32, &[])),
            (0, zeros(DType::F16, &[1, 3])),
            (0, zeros(DType::F64, &[1, 3])),
            (1, zeros(DType::I32, &[8, 3])),
            (1, zeros(DType::I64, &[8, 4])),
            (1, zeros(DType::I32, &[7, 4])),
            (2, zeros(DType::F32, &[8, 1])),
            (3, zeros(DType::F32, &[2])),
            (4, zeros(DType::I32, &[4])),
            (5, zeros(DType::F64, &[5])),
        ] {
            let mut types = good.clone();
            types[i] = ty;
            assert!(!ok(&types, 2), "{i}: {}", types[i]);
        }
    }
}
