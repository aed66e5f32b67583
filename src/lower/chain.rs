//! Fused chains of elementwise operators: their steps, and how steps access operands.

use std::fmt;

use crate::op::{Attr, BatchNorm, Binary, Op, OpText, Unary};
use crate::types::DType;

/// A fused chain: elementwise operators applied one after another to every element of a value,
/// either as the epilogue of a kernel before it stores its result, or to a value in memory.
///
/// The element that a step computes with is the *running* element. Steps refer to the other
/// operands of the chain by position. All elements are `f32` on targets whose elementwise kernels
/// support no other type.
///
/// Elsewhere: loop fusion (XLA); pointwise fusion (PyTorch).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// The steps, in order.
    pub steps: Vec<ChainStep>,
}

/// One operator of a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum ChainStep {
    /// A function of the running element.
    Unary(Unary),
    /// A function of the running element and an element of an operand.
    Binary {
        /// The function.
        op: Binary,
        /// The position of the operand.
        operand: usize,
        /// The access to the operand.
        access: Access,
        /// True if the operand is the first argument and the running element the second.
        swapped: bool,
    },
    /// `x * s + t` for the running element `x`, with the factors of `BatchNorm::scale_shift`.
    BatchNorm {
        /// The operator.
        op: BatchNorm,
        /// The positions of its scale, bias, mean and variance.
        operands: [usize; 4],
        /// The access to these operands: `Access::Axis`.
        access: Access,
    },
    /// The same with factors that are operands: those of a batch norm whose operands no run
    /// changes.
    ScaleShift {
        /// The positions of `s` and `t`.
        operands: [usize; 2],
        /// The access to these operands: `Access::Axis`.
        access: Access,
    },
    /// A function whose operands and result may differ in type, or which takes more than two
    /// operands.
    Mixed {
        /// The operator: elementwise, as [`Traits::ELEMENTWISE`](crate::op::Traits) states.
        op: Op,
        /// The position of the operand that is the running element.
        slot: usize,
        /// The positions of its other operands, in order.
        operands: Vec<usize>,
        /// The access to each of them.
        accesses: Vec<Access>,
        /// The element type of its result.
        to: DType,
    },
}

/// The index of an operand's element that is combined with element `i` of the running value; both
/// are counted in the memory order of the running value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Element `i`: the operand has the shape of the running value.
    Full,
    /// The only element.
    Scalar,
    /// Element `(i / inner) % size`: the operand is a vector along an axis, or a tensor over
    /// neighbouring axes.
    Axis {
        /// The elements of the running value for each index of the axis: the product of the sizes
        /// behind it.
        inner: usize,
        /// The size of the axis, or the product of the sizes of the axes.
        size: usize,
    },
}

impl Access {
    /// The name in the printed form.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Scalar => "scalar",
            Self::Axis { .. } => "axis",
        }
    }
}

impl ChainStep {
    /// The name of its operator.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Unary(op) => op.name(),
            Self::Binary { op, .. } => op.name(),
            Self::BatchNorm { op, .. } => op.name(),
            Self::ScaleShift { .. } => "scale_shift",
            Self::Mixed { op, .. } => op.name(),
        }
    }

    /// The positions of the operands that it reads.
    pub(crate) fn operands(&self) -> &[usize] {
        match self {
            Self::Unary(_) => &[],
            Self::Binary { operand, .. } => std::slice::from_ref(operand),
            Self::BatchNorm { operands, .. } => operands,
            Self::ScaleShift { operands, .. } => operands,
            Self::Mixed { operands, .. } => operands,
        }
    }

    /// The same, to change them.
    pub(super) fn operands_mut(&mut self) -> &mut [usize] {
        match self {
            Self::Unary(_) => &mut [],
            Self::Binary { operand, .. } => std::slice::from_mut(operand),
            Self::BatchNorm { operands, .. } => operands,
            Self::ScaleShift { operands, .. } => operands,
            Self::Mixed { operands, .. } => operands,
        }
    }

    /// The access to each of its [operands](Self::operands).
    pub(crate) fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Unary(_) => Vec::new(),
            Self::Binary { access, .. } => vec![*access],
            Self::BatchNorm { operands, access, .. } => vec![*access; operands.len()],
            Self::ScaleShift { operands, access } => vec![*access; operands.len()],
            Self::Mixed { accesses, .. } => accesses.clone(),
        }
    }
}

impl Chain {
    /// True of a chain without steps.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// True if a step reads an operand of the full shape, element by element.
    pub(crate) fn takes_whole(&self, operand: usize) -> bool {
        let takes = |step: &ChainStep| {
            let mut read = step.operands().iter().zip(step.accesses());
            read.any(|(o, access)| *o == operand && access == Access::Full)
        };
        self.steps.iter().any(takes)
    }

    /// The number of operands: one more than the greatest position that a step names.
    pub(crate) fn operands(&self) -> usize {
        // 0 if no step refers to an operand.
        self.steps.iter().flat_map(ChainStep::operands).map(|i| i + 1).max().unwrap_or(0)
    }

    /// Displays the chain with these names for its operands instead of `$0`, `$1`, …
    pub(crate) fn display<'a>(&'a self, names: &'a [&'a str]) -> impl fmt::Display + 'a {
        Named { chain: self, names }
    }
}

impl fmt::Display for Chain {
    /// Prints ` -> ` before each step and `.` for the running element:
    /// ` -> add(., $0[axis]) -> relu(.)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display(&[]).fmt(f)
    }
}

struct Named<'a> {
    chain: &'a Chain,
    names: &'a [&'a str],
}

impl Named<'_> {
    fn operand(&self, f: &mut fmt::Formatter<'_>, i: usize) -> fmt::Result {
        match self.names.get(i) {
            Some(name) => f.write_str(name),
            None => write!(f, "${i}"),
        }
    }

    /// A step whose operands have an element for each channel.
    fn channels(&self, f: &mut fmt::Formatter<'_>, name: &str, operands: &[usize]) -> fmt::Result {
        write!(f, " -> {name}(.")?;
        for i in operands {
            f.write_str(", ")?;
            self.operand(f, *i)?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.chain.steps {
            match step {
                ChainStep::Unary(op) => {
                    write!(f, " -> {}(.)", op.name())?;
                    print_attrs(f, &op.attrs())?;
                }
                ChainStep::Binary { op, operand, access, swapped } => {
                    write!(f, " -> {}({}", op.name(), if *swapped { "" } else { "., " })?;
                    self.operand(f, *operand)?;
                    write!(f, "[{}]{})", access.name(), if *swapped { ", ." } else { "" })?;
                    print_attrs(f, &op.attrs())?;
                }
                ChainStep::BatchNorm { operands, op, .. } => {
                    self.channels(f, step.name(), operands)?;
                    print_attrs(f, &op.attrs())?;
                }
                ChainStep::ScaleShift { operands, .. } => {
                    self.channels(f, step.name(), operands)?;
                }
                ChainStep::Mixed { op, slot, operands, accesses, .. } => {
                    write!(f, " -> {}(", op.name())?;
                    let mut others = operands.iter().zip(accesses);
                    for i in 0..=operands.len() {
                        f.write_str(if i > 0 { ", " } else { "" })?;
                        if i == *slot {
                            f.write_str(".")?;
                        } else if let Some((operand, access)) = others.next() {
                            self.operand(f, *operand)?;
                            write!(f, "[{}]", access.name())?;
                        }
                    }
                    f.write_str(")")?;
                    print_attrs(f, &op.attrs())?;
                }
            }
        }
        Ok(())
    }
}

/// Writes attributes in braces, as the text form of a graph does; nothing if there are none.
pub(super) fn print_attrs(f: &mut fmt::Formatter<'_>, attrs: &[(&str, Attr)]) -> fmt::Result {
    for (i, (name, value)) in attrs.iter().enumerate() {
        write!(f, "{}{name}={value}", if i > 0 { ", " } else { " {" })?;
    }
    f.write_str(if attrs.is_empty() { "" } else { "}" })
}

#[cfg(test)]
mod tests {
    use super::{Access, Chain, ChainStep};
    use crate::op::{BatchNorm, Binary, Unary};

    #[test]
    fn steps_are_printed_in_order() {
        let binary =
            |op, operand, access, swapped| ChainStep::Binary { op, operand, access, swapped };
        let axis = Access::Axis { inner: 4, size: 3 };
        let chain = Chain {
            steps: vec![
                binary(Binary::Add, 0, axis, false),
                ChainStep::BatchNorm {
                    op: BatchNorm::default(),
                    operands: [1, 2, 3, 4],
                    access: axis,
                },
                ChainStep::Unary(Unary::Clip { min: Some(0.0), max: Some(6.0) }),
                binary(Binary::Sub, 5, Access::Scalar, true),
                binary(Binary::Mul, 6, Access::Full, false),
                ChainStep::ScaleShift { operands: [7, 8], access: axis },
            ],
        };
        assert_eq!(chain.operands(), 9);
        assert_eq!(
            chain.to_string(),
            " -> add(., $0[axis]) -> batch_norm(., $1, $2, $3, $4) -> clip(.) {max=6.0, min=0.0} \
             -> sub($5[scalar], .) -> mul(., $6[full]) -> scale_shift(., $7, $8)"
        );
        let short = Chain { steps: vec![binary(Binary::Add, 0, axis, false)] };
        assert_eq!(short.display(&["bias"]).to_string(), " -> add(., bias[axis])");
        assert!(Chain::default().is_empty() && Chain::default().operands() == 0);
    }
}
