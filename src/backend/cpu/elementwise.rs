//! Chains of elementwise operators on `f32`, at the end of another kernel or alone.

use std::borrow::Cow;

use rayon::prelude::*;
use smallvec::SmallVec;

use super::simd::vectorised;
use crate::backend::host::Each as _;
use crate::lower::{Access, Chain, ChainStep};
use crate::op::{Apply, Apply2, BatchNorm, Binary, Unary};

/// The elements that pass through all steps before the next ones do: some kilobytes.
const BLOCK: usize = 2048;

/// The elements of a task.
const TASK: usize = 4 * BLOCK;

/// A chain with the elements of its operands.
#[derive(Clone, Debug, Default)]
pub struct Epilogue<'a> {
    steps: SmallVec<[Step<'a>; 4]>,
}

#[derive(Clone, Debug)]
enum Step<'a> {
    Unary(Unary),
    Binary { op: Binary, operand: Operand<'a>, swapped: bool },
    ScaleShift { scale: Cow<'a, [f32]>, shift: Cow<'a, [f32]>, inner: usize },
}

/// The elements of an operand, and where they are met.
#[derive(Clone, Copy, Debug)]
enum Operand<'a> {
    Full(&'a [f32]),
    Scalar(f32),
    Axis(&'a [f32], usize),
}

impl<'a> Operand<'a> {
    fn new(data: &'a [f32], access: Access) -> Option<Self> {
        match access {
            Access::Full => Some(Self::Full(data)),
            Access::Scalar | Access::Axis { size: 1, .. } => {
                data.first().copied().map(Self::Scalar)
            }
            Access::Axis { inner, size } => {
                (inner > 0 && size > 0).then_some(Self::Axis(data.get(..size)?, inner))
            }
        }
    }
}

/// The operands at these positions, with an element for each index of an axis, and the elements of
/// the running value for each index; `None` if one is missing or shorter.
fn channels<'a, const K: usize>(
    operands: &[&'a [f32]],
    at: &[usize; K],
    access: Access,
) -> Option<(usize, [&'a [f32]; K])> {
    let Access::Axis { inner, size } = access else { return None };
    let mut lists = [&[][..]; K];
    for (list, at) in lists.iter_mut().zip(at) {
        *list = operands.get(*at)?.get(..size)?;
    }
    (inner > 0 && size > 0).then_some((inner, lists))
}

impl<'a> Step<'a> {
    fn new(step: &ChainStep, operands: &[&'a [f32]]) -> Option<Self> {
        match step {
            ChainStep::Unary(op) => Some(Step::Unary(op.clone())),
            ChainStep::Binary { op, operand, access, swapped } => {
                let operand = Operand::new(operands.get(*operand)?, *access)?;
                Some(Step::Binary { op: op.clone(), operand, swapped: *swapped })
            }
            ChainStep::BatchNorm { op, operands: at, access } => {
                let (inner, [scale, bias, mean, var]) = channels(operands, at, *access)?;
                // The factors of the reference, so that the bits are its own.
                let (scale, shift) = BatchNorm::scale_shift(scale, bias, mean, var, op.epsilon);
                Some(Step::ScaleShift { scale: scale.into(), shift: shift.into(), inner })
            }
            ChainStep::ScaleShift { operands: at, access } => {
                let (inner, [scale, shift]) = channels(operands, at, *access)?;
                Some(Step::ScaleShift { scale: scale.into(), shift: shift.into(), inner })
            }
            ChainStep::Mixed { .. } => None,
        }
    }
}

impl<'a> Epilogue<'a> {
    /// The chain with these operands in place of its positions; `None` if one is missing or shorter
    /// than the chain says.
    pub fn new(chain: &Chain, operands: &[&'a [f32]]) -> Option<Self> {
        let mut own = Self::default();
        own.set(chain, operands)?;
        Some(own)
    }

    /// Adds the steps of a chain; see [`Epilogue::new`]. The list is the caller's, who does not
    /// move it.
    pub(super) fn set(&mut self, chain: &Chain, operands: &[&'a [f32]]) -> Option<()> {
        for step in &chain.steps {
            self.steps.push(Step::new(step, operands)?);
        }
        Some(())
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Applies the chain to consecutive elements of a value, of which the first is element `at`.
    ///
    /// # Panics
    /// If an operand with the shape of the value ends before: a bug in the caller.
    pub fn apply(&self, x: &mut [f32], at: usize) {
        self.steps().apply(x, at);
    }
}

/// Steps of a chain, whose first ones a kernel may take and apply itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps<'a>(&'a [Step<'a>]);

impl Epilogue<'_> {
    /// All steps.
    pub fn steps(&self) -> Steps<'_> {
        Steps(&self.steps)
    }
}

impl<'a> Steps<'a> {
    /// Takes a step that adds an element to each channel, of which there are so many and the last
    /// axis is.
    pub(super) fn bias(&mut self, channels: usize) -> Option<&'a [f32]> {
        match self.0 {
            [Step::Binary { op: Binary::Add, operand: Operand::Axis(bias, 1), .. }, rest @ ..]
                if bias.len() == channels =>
            {
                self.0 = rest;
                Some(*bias)
            }
            _ => None,
        }
    }

    /// Takes a step of factors and addends, one for each channel, of which there are so many and
    /// the last axis is.
    pub(super) fn scale_shift_of_last(&mut self, channels: usize) -> Option<[&'a [f32]; 2]> {
        match self.0 {
            [Step::ScaleShift { scale, .. }, ..] if scale.len() == channels => self.scale_shift(1),
            _ => None,
        }
    }

    /// Takes a step of factors and addends, in turn for channels of so many elements.
    pub(super) fn scale_shift(&mut self, elements: usize) -> Option<[&'a [f32]; 2]> {
        match self.0 {
            [Step::ScaleShift { scale, shift, inner }, rest @ ..] if *inner == elements => {
                self.0 = rest;
                Some([&**scale, &**shift])
            }
            _ => None,
        }
    }

    /// Takes a step that keeps numbers between two, as [`Unary::bounds`] has them.
    pub(super) fn bounds(&mut self) -> Option<[f32; 2]> {
        let [Step::Unary(op), rest @ ..] = self.0 else { return None };
        let bounds = op.bounds()?;
        self.0 = rest;
        Some(bounds)
    }

    /// Takes a step that adds an operand of the value's shape.
    pub(super) fn added(&mut self) -> Option<&'a [f32]> {
        match self.0 {
            [Step::Binary { op: Binary::Add, operand: Operand::Full(added), .. }, rest @ ..] => {
                self.0 = rest;
                Some(*added)
            }
            _ => None,
        }
    }

    /// True if none is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies the steps that are left to consecutive elements, as [`Epilogue::apply`] does all.
    pub(super) fn apply(&self, x: &mut [f32], at: usize) {
        if self.is_empty() {
            return;
        }
        for (i, x) in x.chunks_mut(BLOCK).enumerate() {
            // All steps on one block before the next block: it stays in the nearest cache between
            // them.
            for step in self.0 {
                step.apply(x, at + i * BLOCK);
            }
        }
    }
}

/// Applies `chain` to all elements of `y`, in parallel.
pub(crate) fn in_place(y: &mut [f32], chain: &Epilogue<'_>) {
    y.par_chunks_mut(TASK).enumerate().each(|(i, y)| chain.apply(y, i * TASK));
}

/// Writes to `y` what `chain` makes of `x`, in parallel.
///
/// # Panics
/// If the lengths differ: a bug in the caller.
pub(crate) fn map(x: &[f32], y: &mut [f32], chain: &Epilogue<'_>) {
    assert_eq!(x.len(), y.len(), "elements of an elementwise operator");
    let tasks = y.par_chunks_mut(TASK).zip(x.par_chunks(TASK)).enumerate();
    tasks.each(|(i, (y, x))| {
        for (j, (y, x)) in y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)).enumerate() {
            y.copy_from_slice(x);
            chain.apply(y, i * TASK + j * BLOCK);
        }
    });
}

impl Step<'_> {
    fn apply(&self, x: &mut [f32], at: usize) {
        match self {
            Self::Unary(op) => op.visit(Each(x)),
            Self::Binary { op, operand, swapped: false } => {
                op.visit(Right { x, at, operand: *operand });
            }
            Self::Binary { op, operand, swapped: true } => {
                op.visit(Left { x, at, operand: *operand });
            }
            Self::ScaleShift { scale, shift, inner } => {
                scale_shift(x, at, *inner, scale, shift);
            }
        }
    }
}

/// The loop of a function of one number.
pub(super) struct Each<'a>(pub(super) &'a mut [f32]);

impl Apply<f32> for Each<'_> {
    type Output = ();

    #[inline]
    fn apply(self, f: impl Fn(f32) -> f32) {
        vectorised!({
            // Moved into the loop's own function, where its parameters stay in registers.
            let f = f;
            for x in self.0.iter_mut() {
                *x = f(*x);
            }
        });
    }
}

/// The loop of a function of the running element and an operand's.
struct Right<'a, 'b> {
    x: &'a mut [f32],
    at: usize,
    operand: Operand<'b>,
}

impl Apply2<f32> for Right<'_, '_> {
    type Output = ();

    #[inline]
    fn apply(self, f: impl Fn(f32, f32) -> f32) {
        let Self { x, at, operand } = self;
        zip(x, at, operand, f);
    }
}

/// The loop of a function of an operand's element and the running one.
struct Left<'a, 'b> {
    x: &'a mut [f32],
    at: usize,
    operand: Operand<'b>,
}

impl Apply2<f32> for Left<'_, '_> {
    type Output = ();

    #[inline]
    fn apply(self, f: impl Fn(f32, f32) -> f32) {
        let Self { x, at, operand } = self;
        zip(x, at, operand, {
            #[inline(always)]
            |x: f32, y: f32| f(y, x)
        });
    }
}

/// Where an operand varies along one axis, runs of elements meet consecutive elements of it
/// (`inner` of 1) or one of them.
#[inline]
fn zip(x: &mut [f32], at: usize, operand: Operand<'_>, f: impl Fn(f32, f32) -> f32) {
    let with_slice = |x: &mut [f32], y: &[f32]| {
        vectorised!(for (x, y) in x.iter_mut().zip(y) {
            *x = f(*x, *y);
        });
    };
    let with_number = |x: &mut [f32], y: f32| {
        vectorised!(for x in x.iter_mut() {
            *x = f(*x, y);
        });
    };
    match operand {
        Operand::Full(y) => with_slice(x, &y[at..at + x.len()]),
        Operand::Scalar(y) => with_number(x, y),
        Operand::Axis(y, 1) => {
            runs(x, at, 1, y.len(), |x, i| with_slice(x, &y[i..]));
        }
        Operand::Axis(y, inner) => {
            runs(x, at, inner, 1, |x, i| with_number(x, y[i % y.len()]));
        }
    }
}

/// Cuts the elements, of which the first is element `at`, where the index `i / inner` becomes a
/// multiple of `period`, and calls `f` with each piece and the index of its first element: below
/// `period` if that is not 1.
#[inline]
fn runs(
    mut x: &mut [f32],
    mut at: usize,
    inner: usize,
    period: usize,
    mut f: impl FnMut(&mut [f32], usize),
) {
    let span = inner * period;
    while !x.is_empty() {
        let len = (span - at % span).min(x.len());
        let (piece, rest) = x.split_at_mut(len);
        f(piece, if period == 1 { at / inner } else { at % span });
        (x, at) = (rest, at + len);
    }
}

fn scale_shift(x: &mut [f32], at: usize, inner: usize, scale: &[f32], shift: &[f32]) {
    if inner == 1 && scale.len() > 1 {
        runs(x, at, 1, scale.len(), |x, i| {
            let factors = scale[i..].iter().zip(&shift[i..]);
            vectorised!(for (x, (s, t)) in x.iter_mut().zip(factors) {
                *x = *x * *s + *t;
            });
        });
        return;
    }
    runs(x, at, inner, 1, |x, i| {
        let (s, t) = (scale[i % scale.len()], shift[i % shift.len()]);
        vectorised!(for x in x.iter_mut() {
            *x = *x * s + t;
        });
    });
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{Epilogue, TASK, in_place, map};
    use crate::backend::cpu::testing::{assert_bits, in_pools, misaligned, random, rng};
    use crate::lower::{Access, Chain, ChainStep};
    use crate::op::{BatchNorm, Binary, GeluForm, Op, Unary};
    use crate::types::Tensor;

    const DIMS: [usize; 3] = [5, 7, 1201];

    /// The chain's steps by reference evaluation, operator by operator, on a value of shape
    /// [`DIMS`].
    fn reference(chain: &Chain, x: &[f32], operands: &[&[f32]]) -> Vec<f32> {
        let mut y = Tensor::new(&DIMS, x).unwrap();
        let operand = |i: usize, access: Access| {
            let dims = match access {
                Access::Full => DIMS,
                Access::Scalar => [1, 1, 1],
                Access::Axis { inner: 1, size } => [1, 1, size],
                Access::Axis { inner: 1201, size } => [1, size, 1],
                Access::Axis { size, .. } => [size, 1, 1],
            };
            Tensor::new(&dims, operands[i]).unwrap()
        };
        for step in &chain.steps {
            let (op, operands) = match step {
                ChainStep::Unary(op) => (Op::from(op.clone()), vec![y]),
                ChainStep::Binary { op, operand: i, access, swapped } => {
                    let other = operand(*i, *access);
                    let both = if *swapped { vec![other, y] } else { vec![y, other] };
                    (Op::from(op.clone()), both)
                }
                ChainStep::BatchNorm { op, operands: at, .. } => {
                    let vectors = at.iter().map(|i| Tensor::new(&[7], operands[*i]).unwrap());
                    (Op::from(op.clone()), std::iter::once(y).chain(vectors).collect())
                }
                ChainStep::ScaleShift { operands: [s, t], access } => {
                    let (s, t) = (operand(*s, *access), operand(*t, *access));
                    y = Op::from(Binary::Mul).eval(&[&y, &s]).unwrap().remove(0);
                    (Op::from(Binary::Add), vec![y, t])
                }
                ChainStep::Mixed { .. } => panic!("{chain} is not of f32 alone"),
            };
            y = op.eval(&operands.iter().collect::<Vec<_>>()).unwrap().remove(0);
        }
        y.as_slice::<f32>().to_vec()
    }

    const UNARY: [Unary; 13] = [
        Unary::Relu,
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Exp,
        Unary::Clip { min: Some(-0.5), max: Some(0.5) },
        Unary::LeakyRelu { alpha: 0.1 },
        Unary::Log,
        Unary::Sin,
        Unary::Atan,
        Unary::Acosh,
        Unary::Softplus,
        Unary::Mish,
        Unary::Gelu { approximate: GeluForm::Exact },
    ];

    const BINARY: [Binary; 6] =
        [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Div, Binary::Pow];

    #[test]
    fn chains_give_the_bits_of_their_operators() {
        let mut rng = rng(1);
        let n: usize = DIMS.iter().product();
        assert!(n > TASK, "more than one task");
        let axis = |inner, size| Access::Axis { inner, size };
        let accesses =
            [Access::Full, Access::Scalar, axis(1, 1201), axis(1201, 7), axis(7 * 1201, 5)];
        for case in 0..24 {
            let mut operands = Vec::new();
            let mut steps = Vec::new();
            for i in 0..rng.random_range(1..5) {
                steps.push(match rng.random_range(0..5) {
                    0 | 1 => ChainStep::Unary(UNARY[rng.random_range(0..UNARY.len())].clone()),
                    2 if case % 2 == 0 => {
                        let at = operands.len();
                        operands.extend((0..4).map(|_| random(&mut rng, 7)));
                        operands[at + 3].iter_mut().for_each(|x| *x = x.abs());
                        let access = axis(1201, 7);
                        if i % 2 == 0 {
                            let operands = [at, at + 1, at + 2, at + 3];
                            ChainStep::BatchNorm { op: BatchNorm::default(), operands, access }
                        } else {
                            ChainStep::ScaleShift { operands: [at, at + 1], access }
                        }
                    }
                    _ => {
                        let access = accesses[(case + i) % accesses.len()];
                        let len = match access {
                            Access::Full => n,
                            Access::Scalar => 1,
                            Access::Axis { size, .. } => size,
                        };
                        let operand = operands.len();
                        operands.push(random(&mut rng, len));
                        let op = BINARY[rng.random_range(0..BINARY.len())].clone();
                        ChainStep::Binary { op, operand, access, swapped: rng.random_bool(0.5) }
                    }
                });
            }
            let chain = Chain { steps };
            let x = random(&mut rng, n);
            let operands: Vec<&[f32]> = operands.iter().map(Vec::as_slice).collect();
            let epilogue = Epilogue::new(&chain, &operands).unwrap();
            let expected = reference(&chain, &x, &operands);
            let shifted = misaligned(&x);
            let y = in_pools(|| {
                let mut y = vec![0.0; n];
                map(&shifted[1..], &mut y, &epilogue);
                let mut same = misaligned(&x);
                in_place(&mut same[1..], &epilogue);
                assert_bits(&y, &same[1..], "in place");
                y
            });
            assert_bits(&y, &expected, &chain.to_string());
            // In pieces, as behind another kernel.
            let (mut piece, at) = (x[1000..1777].to_vec(), 1000);
            epilogue.apply(&mut piece, at);
            assert_bits(&piece, &expected[1000..1777], &chain.to_string());
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let step = |access| {
            let (op, operand) = (Binary::Add, 0);
            Chain { steps: vec![ChainStep::Binary { op, operand, access, swapped: false }] }
        };
        let axis = step(Access::Axis { inner: 2, size: 3 });
        assert!(Epilogue::new(&axis, &[&[1.0; 3]]).is_some());
        assert!(Epilogue::new(&axis, &[&[1.0; 2]]).is_none());
        assert!(Epilogue::new(&axis, &[]).is_none());
        assert!(Epilogue::new(&step(Access::Scalar), &[&[]]).is_none());
        assert!(Epilogue::new(&step(Access::Axis { inner: 0, size: 2 }), &[&[1.0; 2]]).is_none());
        assert!(Epilogue::default().is_empty());
    }
}
