//! What the first of two launches that compute an operator leaves to the second.

use crate::op::window::WindowAxis;
use crate::op::{ConvWeightGrad, GroupNorm, LayerNorm, LpNorm, Op, Recurrent, Reduce, Softmax};
use crate::types::{DType, Dim, KernelClass, Shape, Target, TensorType};

/// The elements of a line that the first launch of a reduction folds to one.
pub const PART: i64 = 4096;

/// The elements of a line from which on it is folded in parts.
const LONG: i64 = 8 * PART;

/// The elements of a line from which on a distribution or a normalisation of it is computed in
/// parts: such lines are read once more than those that a block takes alone.
const VERY_LONG: i64 = 2 * LONG;

/// The most lines through the batch that are folded in parts; more of them fill a device.
const LINES: i64 = 4096;

/// The most elements of a recurrent cell's state: some sequences' states stay in the shared memory
/// of a block.
pub const MOST_HIDDEN: i64 = 4096;

/// The places of a convolution's result whose part in the gradient of its kernel the first launch
/// adds up.
pub const WEIGHT_PART: i64 = 1024;

/// The elements of a channel whose statistics the first launch of a batch normalisation gives.
pub const BATCH_PART: i64 = 2048;

/// What lies between two launches.
pub(super) struct Parts {
    /// The type of the value that the first one writes.
    pub(super) ty: TensorType,
    /// The operands that the first one reads, the operator's first ones.
    pub(super) reads: usize,
}

/// The parts of an operator that the target computes in two launches; `None` if one is enough.
pub(super) fn parts(
    op: Option<&Op>,
    class: KernelClass,
    operands: &[&TensorType],
    target: &Target,
) -> Option<Parts> {
    if !target.has(KernelClass::Partial) {
        return None;
    }
    match (class, op?, operands) {
        (KernelClass::Reduce, Op::Reduce(op), [x, ..]) => of_lines(op, x),
        (KernelClass::Softmax | KernelClass::Norm, op, [x, ..]) => match long_line(op, x)? {
            LongLine::Reduce(op) => of_lines(&op, x),
            LongLine::Statistics { size, lines } => Some(of_channels(&size.into(), lines, 2, 1)),
        },
        (KernelClass::Recurrent, Op::Recurrent(_) | Op::RecurrentGrad(_), [x, _, r, ..]) => {
            of_steps(x, r)
        }
        (KernelClass::Training, Op::ConvWeightGrad(op), [x, dy, ..]) => of_weights(op, x, dy),
        (KernelClass::Training, Op::BatchNormTrain(_), [x, ..]) => of_batch(x, 2, 1),
        (KernelClass::Training, Op::BatchNormGrad(_), [x, ..]) => of_batch(x, 4, 3),
        _ => None,
    }
}

/// What the first launch computes of the parts of long lines that are brought to one scale.
pub enum LongLine {
    /// The parts of a reduction.
    Reduce(Reduce),
    /// The mean and the spread of each part, of lines that lie one behind the other.
    Statistics {
        /// Elements of a line.
        size: i64,
        /// The number of lines.
        lines: Dim,
    },
}

/// What two launches compute a distribution or a normalisation of `x` from; `None` where one is
/// enough. Lines through the batch are not taken apart, as their size is none of a sample.
pub fn long_line(op: &Op, x: &TensorType) -> Option<LongLine> {
    let rank = x.rank();
    let position = |axis: i64| {
        let from_end = i64::try_from(rank).ok()?.checked_add(axis)?;
        usize::try_from(if axis < 0 { from_end } else { axis }).ok().filter(|axis| *axis < rank)
    };
    let product = |from: usize, to: usize| {
        let sizes = x.shape.get(from..to)?.iter();
        Some(sizes.fold(Dim::ONE, |product, size| product * size.clone()))
    };
    let is_long = |from: usize, size: &Dim| from > 0 && size.as_const() >= Some(VERY_LONG);
    let along = |from: usize, to: usize, reduce: fn(Vec<i64>) -> Reduce| {
        let axes = (from..to).map(i64::try_from).collect::<Result<_, _>>().ok()?;
        is_long(from, &product(from, to)?).then(|| LongLine::Reduce(reduce(axes)))
    };
    let squares = |axes| Reduce::SumSquare { axes, keepdims: false };
    #[expect(clippy::wildcard_enum_match_arm, reason = "the classes have no other operators")]
    match op {
        Op::Softmax(Softmax::Hardmax { .. }) => None,
        Op::Softmax(op) => {
            let axis = op.axis(rank)?;
            along(axis, axis + 1, |axes| Reduce::LogSumExp { axes, keepdims: false })
        }
        Op::LpNorm(LpNorm { axis, p }) => {
            let axis = position(*axis)?;
            let magnitudes = |axes| Reduce::L1 { axes, keepdims: false };
            along(axis, axis + 1, if *p == 1 { magnitudes } else { squares })
        }
        Op::LayerNorm(op @ LayerNorm::Rms { .. }) => along(op.first_axis(rank)?, rank, squares),
        Op::LayerNorm(op @ LayerNorm::Layer { .. }) => {
            let first = op.first_axis(rank)?;
            let (size, lines) = (product(first, rank)?, product(0, first)?);
            let size = Some(&size).filter(|size| is_long(first, size))?.as_const()?;
            Some(LongLine::Statistics { size, lines })
        }
        Op::GroupNorm(op) => {
            let groups = match op {
                GroupNorm::Group { groups, .. } => Dim::from(*groups),
                GroupNorm::Instance { .. } => x.shape.get(1)?.clone(),
            };
            let size = x.shape.get(1)?.floor_div(&groups) * product(2, rank)?;
            let size = Some(&size).filter(|size| is_long(1, size))?.as_const()?;
            Some(LongLine::Statistics { size, lines: x.shape.first()?.clone() * groups })
        }
        _ => None,
    }
}

/// `[parts, lines]` in `f64`; two of them of the logarithm of a sum of exponentials, and one for
/// each component of wide sums and products.
fn of_lines(op: &Reduce, x: &TensorType) -> Option<Parts> {
    let reduced = op.reduced(x.rank()).ok()?;
    let product = |wanted: bool| {
        let sizes = x.shape.iter().zip(&reduced).filter(|(_, r)| **r == wanted);
        sizes.fold(Dim::ONE, |product, (size, _)| product * size.clone())
    };
    let (size, lines) = (product(true), product(false));
    // Of a line through the batch the size does not decide, even if it is known.
    let known = size.as_const().filter(|_| reduced.first() != Some(&true));
    let long = match known {
        Some(size) => size >= LONG,
        None => lines.as_const().is_some_and(|lines| lines <= LINES),
    };
    if !long {
        return None;
    }
    let parts = (size + (PART - 1)).floor_div(&PART.into());
    let logs = matches!(op, Reduce::LogSumExp { .. }).then_some(2);
    let wide = logs.or_else(|| op.accumulator(x.dtype));
    let wide = wide.map(|components| Shape::from(&[components][..]));
    let wide = wide.iter().flat_map(|shape| shape.iter().cloned());
    let shape: Shape = wide.chain([parts, lines]).collect();
    Some(Parts { ty: TensorType::new(DType::F64, shape), reads: 1 })
}

/// The products of all elements with their weights: `[steps * rows, directions * gates * H]`.
fn of_steps(x: &TensorType, r: &TensorType) -> Option<Parts> {
    let ([a, b, _], [directions, width, _]) = (&x.shape[..], &r.shape[..]) else { return None };
    let sizes = [a.clone() * b.clone(), directions.clone() * width.clone()];
    let ty = TensorType::new(DType::F32, sizes.into_iter().collect::<Shape>());
    Some(Parts { ty, reads: 2 })
}

/// The sums of parts of all places of a convolution's result: `[parts, M, C / groups, taps]`.
fn of_weights(op: &ConvWeightGrad, x: &TensorType, dy: &TensorType) -> Option<Parts> {
    let windows = op.windows(x).ok()?;
    let size = |f: fn(&WindowAxis) -> usize| {
        windows.iter().try_fold(1i64, |p, a| p.checked_mul(i64::try_from(f(a)).ok()?))
    };
    let places = dy.shape.first()?.clone() * size(|a| a.output)?;
    let parts = (places + (WEIGHT_PART - 1)).floor_div(&WEIGHT_PART.into());
    let each = x.shape.get(1)?.floor_div(&op.groups.into());
    let sizes = [parts, dy.shape.get(1)?.clone(), each, size(|a| a.kernel)?.into()];
    let ty = TensorType::new(DType::F32, sizes.into_iter().collect::<Shape>());
    Some(Parts { ty, reads: 2 })
}

/// So many numbers in `f64` for each part of each channel: `[numbers, parts, C]`.
fn of_batch(x: &TensorType, numbers: i64, reads: usize) -> Option<Parts> {
    let [rows, channels, sizes @ ..] = &x.shape[..] else { return None };
    let terms = sizes.iter().fold(rows.clone(), |product, size| product * size.clone());
    Some(of_channels(&terms, channels.clone(), numbers, reads))
}

/// So many numbers in `f64` for each part of channels of so many terms:
/// `[numbers, parts, channels]`.
fn of_channels(terms: &Dim, channels: Dim, numbers: i64, reads: usize) -> Parts {
    let parts = (terms.clone() + (BATCH_PART - 1)).floor_div(&BATCH_PART.into());
    let shape: Shape = [numbers.into(), parts, channels].into_iter().collect();
    Parts { ty: TensorType::new(DType::F64, shape), reads }
}

/// Whether the kernels of a target that computes operators in parts take an operator on values of
/// these types, operands first; `None` where its class decides.
pub(super) fn takes<'a>(
    op: &Op,
    types: impl Iterator<Item = &'a TensorType> + Clone,
    target: &Target,
) -> Option<bool> {
    if !target.has(KernelClass::Partial) {
        return None;
    }
    let are = |dtype: DType| types.clone().all(|ty| ty.dtype == dtype);
    #[expect(clippy::wildcard_enum_match_arm, reason = "the class of the others decides")]
    match op {
        // A wide result is `f64`.
        Op::Reduce(_) => {
            let x = types.clone().next().map(|ty| ty.dtype);
            Some(matches!(x, Some(DType::F32 | DType::F64)))
        }
        Op::Narrow(_) => Some(are(DType::F64)),
        Op::Random(_) => Some(are(DType::F32) || are(DType::F64)),
        Op::DropoutTrain(_) => Some(types.clone().next().is_some_and(|x| x.dtype.is_float())),
        Op::Recurrent(op) => Some(cell(op, &types.collect::<Vec<_>>())),
        Op::RecurrentGrad(op) => Some(cell(&op.forward(), &types.collect::<Vec<_>>())),
        _ => None,
    }
}

/// True if all but the lengths is `f32`, and the states fit into shared memory.
fn cell(op: &Recurrent, types: &[&TensorType]) -> bool {
    let floats = types.iter().enumerate().filter(|(i, _)| Some(*i) != op.lengths_operand());
    let known = |axis: usize| types.get(2).and_then(|r| r.shape.get(axis)?.as_const());
    known(2).is_some_and(|hidden| (1..=MOST_HIDDEN).contains(&hidden))
        && types
            .get(1)
            .is_some_and(|w| w.shape.last().is_some_and(|size| size.as_const().is_some()))
        && floats.into_iter().all(|(_, ty)| ty.dtype == DType::F32)
}
