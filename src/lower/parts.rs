//! What the first of two launches that compute an operator leaves to the second.

use crate::op::window::WindowAxis;
use crate::op::{ConvWeightGrad, Op, Recurrent, Reduce};
use crate::types::{DType, Dim, KernelClass, Shape, Target, TensorType};

/// The elements of a line that the first launch of a reduction folds to one.
pub const PART: i64 = 4096;

/// The elements of a line from which on it is folded in parts.
const LONG: i64 = 8 * PART;

/// The most lines through the batch that are folded in parts; more of them fill a device.
const LINES: i64 = 4096;

/// The most elements of a recurrent cell's state: some sequences' states stay in the shared memory of a block.
pub const MOST_HIDDEN: i64 = 4096;

/// The places of a convolution's result whose part in the gradient of its kernel the first launch adds up.
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
        (KernelClass::Recurrent, Op::Recurrent(_) | Op::RecurrentGrad(_), [x, _, r, ..]) => {
            of_steps(x, r)
        }
        (KernelClass::Training, Op::ConvWeightGrad(op), [x, dy, ..]) => of_weights(op, x, dy),
        (KernelClass::Training, Op::BatchNormTrain(_), [x, ..]) => of_batch(x, 2, 1),
        (KernelClass::Training, Op::BatchNormGrad(_), [x, ..]) => of_batch(x, 4, 3),
        _ => None,
    }
}

/// `[parts, lines]` in `f64`; of the logarithm of a sum of exponentials two of them.
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
    let pairs = matches!(op, Reduce::LogSumExp { .. }).then_some(Dim::from(2));
    let shape: Shape = pairs.into_iter().chain([parts, lines]).collect();
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
    let parts = (terms + (BATCH_PART - 1)).floor_div(&BATCH_PART.into());
    let shape: Shape = [numbers.into(), parts, channels.clone()].into_iter().collect();
    Some(Parts { ty: TensorType::new(DType::F64, shape), reads })
}

/// Whether the kernels of a target that computes operators in parts take an operator on values of these types, operands
/// first; `None` where its class decides.
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
        Op::Reduce(_) | Op::Random(_) => Some(are(DType::F32) || are(DType::F64)),
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
