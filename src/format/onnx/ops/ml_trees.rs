//! The tables of `tree_ensemble`, laid out from the nodes of a file.

use super::{NodeError, wrong};
use crate::op::tree_ensemble::{LEAF, NODE, OR_NAN};
use crate::op::{OpError, converted};
use crate::types::{DType, Tensor};

/// A node of a file; others are named by their position.
#[derive(Clone, Copy)]
pub(super) enum TreeNode {
    Branch {
        feature: i64,
        test: i32,
        yes: usize,
        no: usize,
    },
    /// Its weights are those of this number among the leaves.
    Leaf(usize),
}

/// The weight of a leaf for a target.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    pub(super) leaf: usize,
    pub(super) target: i64,
    pub(super) value: f64,
}

/// Trees as a file gives them.
#[derive(Clone)]
pub(super) struct Forest {
    pub(super) nodes: Vec<TreeNode>,
    /// A number for each node; those of leaves say nothing.
    pub(super) thresholds: Vec<f64>,
    pub(super) roots: Vec<usize>,
    pub(super) leaves: usize,
    /// In the order in which those of one leaf are added.
    pub(super) weights: Vec<Weight>,
}

/// A test by its number, which NaN passes if `missing`.
pub(super) fn test(number: i32, missing: bool) -> i32 {
    if missing { number | OR_NAN } else { number }
}

/// What is wrong with a table of nodes.
fn broken(reason: String) -> NodeError {
    wrong("nodes_…", reason)
}

/// A number of a table.
fn entry(number: impl TryInto<i32>) -> Result<i32, NodeError> {
    number.try_into().map_err(|_| broken("has a number beyond 2^31".to_owned()))
}

impl Forest {
    /// Whether every row has a weight for a target: some tree has one in each of its leaves. Trees
    /// stand one after the other.
    pub(super) fn always(&self, target: usize) -> bool {
        let mut has = vec![false; self.leaves];
        for weight in self.weights.iter().filter(|w| usize::try_from(w.target) == Ok(target)) {
            has[weight.leaf] = true;
        }
        let ends = self.roots.iter().skip(1).copied().chain([self.nodes.len()]);
        let lacks = |node: &TreeNode| matches!(node, TreeNode::Leaf(leaf) if !has[*leaf]);
        self.roots.iter().zip(ends).any(|(from, to)| !self.nodes[*from..to].iter().any(lacks))
    }

    /// Makes each of these branches, which compares with one number, a chain of those that compare
    /// with the numbers of its set; NaNs stand between the sets.
    pub(super) fn members(
        &mut self,
        branches: impl Iterator<Item = usize>,
        values: &[f64],
    ) -> Result<(), NodeError> {
        let (last, before) = values.split_last().unwrap_or((&f64::NAN, values));
        let values = if last.is_nan() { before } else { values };
        let mut sets = values.split(|value| value.is_nan()).filter(|_| !values.is_empty());
        for at in branches {
            let set = sets.next().ok_or_else(|| wrong("membership_values", "has too few sets"))?;
            let TreeNode::Branch { feature, test, yes, no } = self.nodes[at] else { continue };
            // No number equals a NaN: an empty set between others has no member.
            let (first, rest) = set.split_first().unwrap_or((&f64::NAN, &[]));
            self.thresholds[at] = *first;
            let mut last = at;
            for value in rest {
                let next = self.nodes.len();
                self.nodes[last] = TreeNode::Branch { feature, test, yes, no: next };
                self.nodes.push(TreeNode::Branch { feature, test, yes, no });
                self.thresholds.push(*value);
                last = next;
            }
        }
        if sets.next().is_some() {
            return Err(wrong("membership_values", "has more sets than there are branches"));
        }
        Ok(())
    }

    /// The nodes that the roots lead to, each before those that follow it, the trees in order.
    fn order(&self) -> Result<Vec<usize>, NodeError> {
        #[derive(Clone, Copy)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut state = vec![State::New; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        // Nodes to enter, and to leave. They are left in the reverse of the order in which they
        // will stand: the last root comes first, and `no` before `yes`.
        let mut stack: Vec<(usize, bool)> = self.roots.iter().map(|root| (*root, false)).collect();
        while let Some((at, leave)) = stack.pop() {
            let (Some(state), Some(node)) = (state.get_mut(at), self.nodes.get(at)) else {
                return Err(broken(format!("has no node {at}")));
            };
            if leave {
                *state = State::Done;
                order.push(at);
                continue;
            }
            match *state {
                State::Done => {}
                State::Open => return Err(broken("has a node that follows itself".to_owned())),
                State::New => {
                    *state = State::Open;
                    stack.push((at, true));
                    if let TreeNode::Branch { yes, no, .. } = *node {
                        stack.extend([(yes, false), (no, false)]);
                    }
                }
            }
        }
        order.reverse();
        Ok(order)
    }

    /// The weights in the order of their leaves, and where those of each leaf begin.
    fn by_leaf(&self, targets: usize) -> Result<(Vec<Weight>, Vec<usize>), NodeError> {
        let mut starts = vec![0; self.leaves + 1];
        for weight in &self.weights {
            if usize::try_from(weight.target).ok().is_none_or(|t| t >= targets) {
                let text = format!("has the target {} of {targets}", weight.target);
                return Err(wrong("…_ids", text));
            }
            starts[weight.leaf + 1] += 1;
        }
        for leaf in 0..self.leaves {
            starts[leaf + 1] += starts[leaf];
        }
        // The sort is stable: what one leaf has stays in its order.
        let mut weights = self.weights.clone();
        weights.sort_by_key(|weight| weight.leaf);
        Ok((weights, starts))
    }

    /// The operands of `tree_ensemble` behind the rows, for so many features and targets.
    pub(super) fn tables(
        &self,
        dtype: DType,
        features: usize,
        targets: usize,
    ) -> Result<[Tensor; 5], NodeError> {
        if self.roots.is_empty() {
            return Err(broken("has no tree".to_owned()));
        }
        let (order, (weights, starts)) = (self.order()?, self.by_leaf(targets)?);
        let mut places = vec![0i32; self.nodes.len()];
        for (place, at) in order.iter().enumerate() {
            places[*at] = entry(place)?;
        }
        let (mut nodes, mut thresholds) = (Vec::new(), Vec::new());
        nodes.reserve_exact(order.len() * NODE);
        thresholds.reserve_exact(order.len());
        let (mut of, mut own) = (Vec::new(), Vec::new());
        for at in &order {
            thresholds.push(self.thresholds[*at]);
            match self.nodes[*at] {
                TreeNode::Branch { feature, test, yes, no } => {
                    if usize::try_from(feature).ok().is_none_or(|f| f >= features) {
                        let text = format!("has {feature}; the rows have {features} features");
                        return Err(wrong("nodes_featureids", text));
                    }
                    nodes.extend([entry(feature)?, test, places[yes], places[no]]);
                }
                TreeNode::Leaf(leaf) => {
                    let from = entry(own.len())?;
                    for weight in &weights[starts[leaf]..starts[leaf + 1]] {
                        of.push(entry(weight.target)?);
                        own.push(weight.value);
                    }
                    nodes.extend([0, LEAF, from, entry(own.len())?]);
                }
            }
        }
        let roots: Vec<i32> = self.roots.iter().map(|root| places[*root]).collect();
        let ints = |dims: &[usize], all: &[i32]| Tensor::new(dims, all).map_err(OpError::from);
        Ok([
            ints(&[order.len(), NODE], &nodes)?,
            floats(dtype, &thresholds)?,
            ints(&[roots.len()], &roots)?,
            ints(&[of.len()], &of)?,
            floats(dtype, &own)?,
        ])
    }
}

/// Numbers that were of this type.
fn floats(dtype: DType, values: &[f64]) -> Result<Tensor, OpError> {
    converted(&Tensor::new(&[values.len()], values)?, dtype)
}
