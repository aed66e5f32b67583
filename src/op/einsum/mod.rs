//! Sums of products, written as an equation of labels.

mod contract;
mod labels;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use contract::Arithmetic;
pub(crate) use labels::Labels;

use super::element::for_number;
use super::infer::{at_least, count, dtype, equal, result, same_dtype};
use super::numeric::{narrow, widen_all};
use super::prelude::*;

op! {
    /// The products of elements of all operands, summed over every label that is not in the result,
    /// as in `bij,bjk->bik`.
    ///
    /// Each letter names an axis; where it occurs several times, the axes have the same size (or 1,
    /// in another operand), and those of one operand give its diagonal. `...` stands for any number
    /// of axes, which broadcast, aligned at the right. Without `->` the result has the axes of
    /// `...`, then in the order of the alphabet the letters that occur once. `f16` and `bf16` are
    /// summed in `f32`; integers wrap.
    ///
    /// Operands are joined from left to right; a label is summed as soon as no later operand has
    /// it, the terms of each sum in ascending order.
    pub struct Einsum = "einsum" is FOLLOWS_BLOCKS | MATRIX_PRODUCT {
        /// The labels of each operand's axes, and of the result's.
        pub equation: String,
    }
}

impl Einsum {
    /// The labels of operands with this many axes each.
    pub(crate) fn labels(&self, ranks: &[usize]) -> Result<Labels, OpError> {
        Labels::new(&self.equation, ranks)
    }
}

/// The letters and the sizes of labels.
struct Named {
    letters: BTreeMap<u8, char>,
    sizes: BTreeMap<u8, Dim>,
}

impl Named {
    fn new(at: &Backward<'_>, labels: &Labels) -> Result<Self, RuleError> {
        let all: BTreeSet<u8> =
            labels.operands.iter().flatten().chain(&labels.result).copied().collect();
        let letters = all.into_iter().zip(letters()).collect();
        let mut sizes: BTreeMap<u8, Dim> = BTreeMap::new();
        for (o, of) in labels.operands.iter().enumerate() {
            for (label, size) in of.iter().zip(at.shape(at.operand(o)?).iter()) {
                if sizes.get(label).is_none_or(|d| *d == Dim::ONE) {
                    sizes.insert(*label, size.clone());
                }
            }
        }
        Ok(Self { letters, sizes })
    }

    fn text(&self, labels: &[u8]) -> String {
        labels.iter().filter_map(|l| self.letters.get(l)).collect()
    }
}

impl Einsum {
    /// The gradient of operand `i`: the sum of the products of the result's gradient with all other
    /// operands.
    fn contribution(at: &mut Backward<'_>, labels: &Labels, i: usize) -> Result<Term, RuleError> {
        let named = Named::new(at, labels)?;
        // Of an operand whose diagonal is taken, the axes of the diagonal.
        let (mut own, mut to): (Vec<u8>, Vec<Dim>) = (Vec::new(), Vec::new());
        for (label, size) in labels.operands[i].iter().zip(at.shape(at.operand(i)?).iter()) {
            if !own.contains(label) {
                own.push(*label);
                to.push(size.clone());
            }
        }
        let to: Shape = to.into_iter().collect();
        let (mut equation, mut operands) = (named.text(&labels.result), vec![at.dy()?]);
        for (o, of) in labels.operands.iter().enumerate().filter(|(o, _)| *o != i) {
            equation.push(',');
            equation.push_str(&named.text(of));
            operands.push(at.operand(o)?);
        }
        // Labels that only this operand has are summed: their gradient is the same at every place.
        let others = labels.operands.iter().enumerate().filter(|(o, _)| *o != i);
        let elsewhere: BTreeSet<u8> = others
            .flat_map(|(_, of)| of.iter().copied())
            .chain(labels.result.iter().copied())
            .collect();
        let kept: Vec<u8> = own.iter().copied().filter(|l| elsewhere.contains(l)).collect();
        equation.push_str("->");
        equation.push_str(&named.text(&kept));
        let dx = at.op(Self { equation }, &operands)?;
        let size = |l: &u8, alone: &Dim| {
            if elsewhere.contains(l) { named.sizes[l].clone() } else { alone.clone() }
        };
        // Size 1 at the labels that were summed, then broadcast back to their sizes.
        let apart: Shape = own.iter().map(|l| size(l, &Dim::ONE)).collect();
        let dx = at.reshape(dx, &apart)?;
        let broadcast: Shape = own.iter().zip(to.iter()).map(|(l, d)| size(l, d)).collect();
        let dx = at.expand(dx, &broadcast)?;
        let dx = at.sum_to(dx, &to)?;
        if own.len() == labels.operands[i].len() {
            return Ok(dx);
        }
        Self::on_diagonal(at, dx, &own, &labels.operands[i], &named)
    }

    /// `dx`, whose axes have the labels `own`, on the diagonal of zeros whose axes have the labels
    /// `of`.
    fn on_diagonal(
        at: &mut Backward<'_>,
        dx: Term,
        own: &[u8],
        of: &[u8],
        named: &Named,
    ) -> Result<Term, RuleError> {
        let sizes = at.shape(dx);
        let mut free = letters().filter(|letter| !named.letters.values().any(|l| l == letter));
        let (mut equation, mut result) = (named.text(own), String::new());
        let (mut operands, mut seen) = (vec![dx], BTreeSet::new());
        for label in of {
            let (Some(letter), Some(place)) =
                (named.letters.get(label), own.iter().position(|l| l == label))
            else {
                return Err(RuleError::Undefined("it has more labels than there are letters"));
            };
            if seen.insert(*label) {
                result.push(*letter);
                continue;
            }
            let Some(size) = sizes[place].as_const().and_then(|n| usize::try_from(n).ok()) else {
                return Err(RuleError::Undefined("it takes a diagonal of the batch"));
            };
            let another = free.next();
            let another =
                another.ok_or(RuleError::Undefined("it has more labels than there are letters"))?;
            result.push(another);
            let _ = write!(equation, ",{letter}{another}");
            // A product with the unit matrix puts the gradient on the diagonal of two axes.
            let one = |i: usize| if i / size == i % size { 1.0f64 } else { 0.0 };
            let ones: Vec<f64> = (0..size.saturating_mul(size)).map(one).collect();
            let ones = Tensor::new(&[size, size], &ones).map_err(OpError::from)?;
            operands.push(at.constant(dx, ones)?);
        }
        at.op(Self { equation: format!("{equation}->{result}") }, &operands)
    }
}

/// The letters that name axes.
fn letters() -> impl Iterator<Item = char> {
    ('a'..='z').chain('A'..='Z')
}

/// The size of each label.
fn sizes(labels: &Labels, operands: &[Operand<'_>]) -> Result<BTreeMap<u8, Dim>, OpError> {
    let mut sizes: BTreeMap<u8, Dim> = BTreeMap::new();
    for (own, x) in labels.operands.iter().zip(operands) {
        let mut here: BTreeMap<u8, &Dim> = BTreeMap::new();
        for (label, size) in own.iter().zip(x.ty.shape.iter()) {
            match here.get(label) {
                Some(other) => equal("sizes on a diagonal", other, size)?,
                None => drop(here.insert(*label, size)),
            }
        }
        for (label, size) in here {
            match sizes.get(&label) {
                Some(other) if *other != Dim::ONE => {
                    if *size != Dim::ONE {
                        equal("sizes of one label", other, size)?;
                    }
                }
                _ => drop(sizes.insert(label, size.clone())),
            }
        }
    }
    Ok(sizes)
}

impl OpDef for Einsum {
    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 1, usize::MAX, "at least 1")?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let dtype = same_dtype(operands)?;
        let ranks: Vec<usize> = operands.iter().map(|x| x.ty.rank()).collect();
        let labels = self.labels(&ranks)?;
        let sizes = sizes(&labels, operands)?;
        let size = |label: &u8| sizes.get(label).cloned().unwrap_or(Dim::ONE);
        result(TensorType { dtype, shape: labels.result.iter().map(size).collect::<Shape>() })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let ranks: Vec<usize> = at.operands.iter().map(|x| x.ty.rank()).collect();
        let Ok(labels) = self.labels(&ranks) else {
            return at.refuse(Code::NoRule, "has an invalid equation");
        };
        let label = labels.operands.get(at.carrier()).and_then(|own| own.get(shard.axis)).copied();
        for (i, (own, x)) in labels.operands.iter().zip(at.operands).enumerate() {
            let split = x.claim.shard();
            for (axis, other) in own.iter().enumerate() {
                let rows = split.is_some_and(|s| s.axis == axis);
                if rows
                    && (Some(*other) != label
                        || split.map(|s| (s.outer, s.inner)) != Some((shard.outer, shard.inner)))
                {
                    let reason = "multiplies samples of the batch by other samples of it";
                    return at.refuse_at(i, Code::SampleBySample, reason);
                }
                let size = x.ty.shape.get(axis).filter(|d| **d != Dim::ONE);
                if let (false, Some(size), true) = (rows, size, Some(*other) == label) {
                    let reason =
                        format!("meets a value whose axis {axis} has a fixed size of {size}");
                    return at.refuse(Code::Misaligned, reason);
                }
            }
        }
        // A label that no result has is summed over.
        match labels.result.iter().position(|l| Some(*l) == label) {
            Some(axis) => at.keep(Shard { axis, ..shard }),
            None => at.give(Claim::Partial(Combine::Sum)),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([first], _) = at_least(operands)?;
        let ranks: Vec<usize> = operands.iter().map(|x| x.rank()).collect();
        let labels = self.labels(&ranks)?;
        let inputs = widen_all(operands)?;
        let arithmetic = for_number!(first.dtype(), T => Arithmetic::of::<T>());
        let y = contract::all(&labels, &inputs, arithmetic)?;
        Ok(vec![narrow(y, first.dtype())?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let ranks: Vec<usize> = (0..at.operands())
            .map(|i| Ok(at.ty(at.operand(i)?).rank()))
            .collect::<Result<_, RuleError>>()?;
        let labels = self.labels(&ranks)?;
        for i in (0..at.operands()).filter(|i| at.wants(*i)).collect::<Vec<_>>() {
            let dx = Self::contribution(at, &labels, i)?;
            at.give(i, dx)?;
        }
        Ok(())
    }
}
