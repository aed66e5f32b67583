//! Normalisations.

use super::entry::layers;
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::for_training::ForTraining;
use crate::op::{BatchNorm, Formula, GroupNorm, LayerNorm};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Shape};

layers! {
    "BatchNormalization" Kept => batch;
    "LayerNormalization" Kept => layer;
    "GroupNormalization" Kept => group;
    "UnitNormalization" Kept => unit;
    "RMSNormalization" Dropped => rms;
}

/// A tensor whose axis of channels stands behind the batch, and how it came there.
struct Channels {
    value: Value,
    /// The order of the axes that brings it back; `None` where it may stay.
    back: Option<Vec<usize>>,
    is_first: bool,
}

impl Channels {
    /// Brings the axis `axis`, in Keras' order, behind the batch.
    fn of(at: &mut At<'_, '_>, x: Tensor, axis: i64) -> Read<Self> {
        let rank = at.rank(x.value);
        let axis = at.axis(x.value, axis)?;
        if axis == 0 {
            return Err(Fault::field("axis", "is the batch"));
        }
        if axis == rank - 1 && rank > 2 {
            return Ok(Self { value: at.like(x, true)?, back: None, is_first: true });
        }
        let value = at.natural(x)?;
        if axis == 1 {
            return Ok(Self { value, back: None, is_first: false });
        }
        let perm: Vec<usize> =
            [0, axis].into_iter().chain((1..rank).filter(|a| *a != axis)).collect();
        let mut back = vec![0; rank];
        perm.iter().enumerate().for_each(|(to, from)| back[*from] = to);
        Ok(Self { value: at.transpose(value, perm)?, back: Some(back), is_first: false })
    }

    /// A result with its axes as they were.
    fn restore(self, at: &mut At<'_, '_>, value: Value) -> Read<Tensor> {
        let value = match self.back {
            Some(back) => at.transpose(value, back)?,
            None => value,
        };
        Ok(Tensor { value, is_first: self.is_first, mask: None })
    }
}

/// The axis of a field that names one, which may be a list of one.
fn one_axis(at: &At<'_, '_>) -> Read<i64> {
    match at.config.one_or_more("axis")?.as_deref() {
        None => Ok(-1),
        Some([axis]) => Ok(*axis),
        Some(_) => Err(Fault::field("axis", "names several axes")),
    }
}

/// A tensor of one number.
fn constant(at: &mut At<'_, '_>, sizes: &[i64], number: f64, dtype: DType) -> Read<Value> {
    let wide = crate::types::Tensor::scalar(number).reshaped(&[1])?;
    let value = crate::op::converted(&wide, dtype)?;
    at.filled(sizes.iter().map(|size| Dim::from(*size)).collect(), value)
}

fn batch<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    // Synchronised statistics are what one device takes of the whole batch.
    at.config.ignore(&["synchronized", "virtual_batch_size", "fused", "renorm_momentum"]);
    let epsilon = at.config.number("epsilon", 1e-3)?;
    let momentum = at.config.number("momentum", 0.99)?;
    let (scale, center) = (at.config.flag("scale", true)?, at.config.flag("center", true)?);
    let axis = one_axis(at)?;
    let x = args.tensor()?;
    let x = at.as_is(x)?;
    let given = args.opt_tensor(usize::MAX, "mask")?.map(|mask| mask.value);
    let mask = given.or(x.mask).filter(|_| at.state.for_training && at.place.is_trainable);
    if mask.is_some() && at.axis(x.value, axis)? + 1 != at.rank(x.value) {
        return Err(Fault::field("axis", "is not the last, and what it normalises has a mask"));
    }
    let channels = Channels::of(at, x, axis)?;
    let count = [at.extent(channels.value, 1)?];
    let dtype = at.variable_type();
    let gamma = if scale { Some(at.variable("gamma", &count, true)?) } else { None };
    let beta = if center { Some(at.variable("beta", &count, true)?) } else { None };
    let mean = at.statistic("moving_mean", &count)?;
    let variance = at.statistic("moving_variance", &count)?;
    let or_constant = |at: &mut At<'_, '_>, value: Option<Value>, number| match value {
        Some(value) => Ok(value),
        None => constant(at, &count, number, dtype),
    };
    let gamma = or_constant(at, gamma, 1.0)?;
    let beta = or_constant(at, beta, 0.0)?;
    let operands = [channels.value, gamma, beta, mean, variance];
    let value = match mask {
        Some(mask) => masked(at, operands, mask, [epsilon, momentum])?,
        None if at.state.for_training && !at.place.is_trainable => frozen(at, operands, epsilon)?,
        None => at.op(BatchNorm { epsilon, momentum }, &operands)?,
    };
    Ok(channels.restore(at, value)?.into())
}

/// A normalisation whose statistics in training are those of the places that count: `mask` lacks
/// the channels of `[N, C, …]`.
fn masked(
    at: &mut At<'_, '_>,
    operands: [Value; 5],
    mask: Value,
    [epsilon, momentum]: [f64; 2],
) -> Read<Value> {
    /// What Keras adds to divisors.
    const LEAST: f64 = 1e-7;
    let [x, gamma, beta, mean, variance] = operands;
    let resting = frozen(at, operands, epsilon)?;
    let (own, wide) = (at.ty_of(x), at.ty_of(mean));
    let x = at.cast(x, wide)?;
    let counts = at.unsqueeze(mask, vec![1])?;
    let counts = at.cast(counts, DType::Bool)?;
    let over: Vec<i64> = std::iter::once(0).chain((2..at.rank(x)).map(int)).collect();
    let ones = at.cast(counts, wide)?;
    let number = at.total(ones)?;
    let number = at.shift(number, LEAST)?;
    let average = |at: &mut At<'_, '_>, x: Value| -> Read<Value> {
        let kept = at.only(counts, x)?;
        let sum = at.reduce_sum(kept, over.clone(), false)?;
        at.div(sum, number)
    };
    let center = average(at, x)?;
    let shape: Shape = std::iter::once(Dim::ONE)
        .chain(at.shape(center).iter().cloned())
        .chain(std::iter::repeat_n(Dim::ONE, at.rank(x) - 2))
        .collect();
    let along = at.reshape(center, &shape)?;
    let distance = at.sub(x, along)?;
    let squares = at.square(distance)?;
    let spread = average(at, squares)?;
    let new = frozen(at, [x, gamma, beta, center, spread], epsilon)?;
    let new = at.cast(new, own)?;
    let mut value = at.op(ForTraining::InTraining, &[resting, new])?;
    for (running, found) in [(mean, center), (variance, spread)] {
        let kept = at.scale(running, momentum)?;
        let added = at.scale(found, 1.0 - momentum)?;
        let moved = at.add(kept, added)?;
        value = at.op(ForTraining::Move, &[value, running, moved])?;
    }
    Ok(value)
}

/// A normalisation whose statistics stay in training: it is then no more than a scale and a shift.
fn frozen(at: &mut At<'_, '_>, operands: [Value; 5], epsilon: f64) -> Read<Value> {
    let [x, gamma, beta, mean, variance] = operands;
    let sum = at.shift(variance, epsilon)?;
    let deviation = at.sqrt(sum)?;
    let factor = at.div(gamma, deviation)?;
    let product = at.mul(mean, factor)?;
    let shift = at.sub(beta, product)?;
    let (rank, to) = (at.rank(x), at.ty_of(x));
    let along = |at: &mut At<'_, '_>, value: Value| {
        let shape: Shape = at
            .shape(value)
            .iter()
            .cloned()
            .chain(std::iter::repeat_n(Dim::ONE, rank - 2))
            .collect();
        let value = at.cast(value, to)?;
        at.reshape(value, &shape)
    };
    let (factor, shift) = (along(at, factor)?, along(at, shift)?);
    let scaled = at.mul(x, factor)?;
    at.add(scaled, shift)
}

/// The axes of a field, ascending, and the sizes along them.
fn axes(at: &At<'_, '_>, x: Value) -> Read<(Vec<usize>, Vec<i64>)> {
    // Keras's default.
    let given = at.config.one_or_more("axis")?.unwrap_or_else(|| vec![-1]);
    let axes = given.iter().map(|axis| at.axis(x, *axis)).collect::<Read<Vec<usize>>>()?;
    let sizes = axes.iter().map(|axis| at.extent(x, *axis)).collect::<Read<Vec<i64>>>()?;
    Ok((axes, sizes))
}

/// The first of axes that are all up to the last one, as an operator names it.
fn suffix(axes: &[usize], rank: usize) -> Option<i64> {
    let first = rank.checked_sub(axes.len())?;
    axes.iter().copied().eq(first..rank).then(|| int(first))
}

/// A variable along some axes of a value.
fn along(at: &mut At<'_, '_>, value: Value, axes: &[usize], x: Value) -> Read<Value> {
    let sizes = at.shape(value);
    let mut shape: Vec<Dim> = vec![Dim::ONE; at.rank(x)];
    axes.iter().zip(sizes.iter()).for_each(|(axis, size)| shape[*axis] = size.clone());
    at.reshape(value, &shape.into_iter().collect())
}

/// A tensor of floats: of integers Keras on JAX gives the whole parts of what it computes.
fn of_floats(at: &mut At<'_, '_>, x: Tensor) -> Read<Value> {
    if at.ty_of(x.value).is_float() {
        return at.floats(x);
    }
    Err(Fault::with_way("it is called with integers", "cast them to a float first"))
}

fn layer<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let epsilon = at.config.number("epsilon", 1e-3)?;
    let (scale, center) = (at.config.flag("scale", true)?, at.config.flag("center", true)?);
    let is_rms = at.config.flag("rms_scaling", false)?;
    let x = args.tensor()?;
    let x = of_floats(at, x)?;
    let (axes, sizes) = axes(at, x)?;
    let gamma = if scale || is_rms { Some(at.weight("gamma", &sizes)?) } else { None };
    let beta = if center && !is_rms { Some(at.weight("beta", &sizes)?) } else { None };
    if let Some(first) = suffix(&axes, at.rank(x)).filter(|_| !is_rms) {
        let mut operands = vec![x];
        if gamma.is_some() || beta.is_some() {
            let to = at.dtype;
            operands.push(match gamma {
                Some(gamma) => gamma,
                None => constant(at, &sizes, 1.0, to)?,
            });
            operands.extend(beta);
        }
        let op = LayerNorm::Layer { axis: first, epsilon, statistics: false };
        return Ok(at.op(op, &operands)?.into());
    }
    let over: Vec<i64> = axes.iter().copied().map(int).collect();
    let mean = at.reduce_mean(x, over.clone(), true)?;
    let distance = at.sub(x, mean)?;
    let squares = at.square(distance)?;
    let variance = at.reduce_mean(squares, over, true)?;
    let sum = at.shift(variance, epsilon)?;
    let deviation = at.sqrt(sum)?;
    let mut y = at.div(if is_rms { x } else { distance }, deviation)?;
    if let Some(gamma) = gamma {
        let gamma = along(at, gamma, &axes, x)?;
        y = at.mul(y, gamma)?;
    }
    if let Some(beta) = beta {
        let beta = along(at, beta, &axes, x)?;
        y = at.add(y, beta)?;
    }
    Ok(y.into())
}

fn rms<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let epsilon = at.config.number("epsilon", 1e-6)?;
    let x = args.tensor()?;
    let x = of_floats(at, x)?;
    let (axes, sizes) = axes(at, x)?;
    let scale = at.weight("scale", &sizes)?;
    if let Some(first) = suffix(&axes, at.rank(x)) {
        let op = LayerNorm::Rms { axis: first, epsilon };
        return Ok(at.op(op, &[x, scale])?.into());
    }
    let over: Vec<i64> = axes.iter().copied().map(int).collect();
    let squares = at.square(x)?;
    let mean = at.reduce_mean(squares, over, true)?;
    let sum = at.shift(mean, epsilon)?;
    let root = at.sqrt(sum)?;
    let y = at.div(x, root)?;
    let scale = along(at, scale, &axes, x)?;
    Ok(at.mul(y, scale)?.into())
}

fn group<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let epsilon = at.config.number("epsilon", 1e-3)?;
    let (scale, center) = (at.config.flag("scale", true)?, at.config.flag("center", true)?);
    let groups = at.config.int("groups", 32)?;
    let axis = one_axis(at)?;
    let x = args.tensor()?;
    let x = at.as_is(x)?;
    let channels = Channels::of(at, x, axis)?;
    let count = [at.extent(channels.value, 1)?];
    // Each channel is a group of its own.
    let groups = if groups == -1 { count[0] } else { groups };
    let to = at.dtype;
    let gamma = if scale { at.weight("gamma", &count)? } else { constant(at, &count, 1.0, to)? };
    let beta = if center { at.weight("beta", &count)? } else { constant(at, &count, 0.0, to)? };
    let value = at.op(GroupNorm::Group { epsilon, groups }, &[channels.value, gamma, beta])?;
    Ok(channels.restore(at, value)?.into())
}

fn unit<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let x = at.floats(x)?;
    // Keras's default.
    let given = at.config.one_or_more("axis")?.unwrap_or_else(|| vec![-1]);
    let axes = given.iter().map(|axis| at.axis(x, *axis).map(int)).collect::<Read<Vec<i64>>>()?;
    Ok(normalized(at, x, axes)?.into())
}

/// A value divided by the root of the sum of its squares over axes.
pub(super) fn normalized(at: &mut At<'_, '_>, x: Value, axes: Vec<i64>) -> Read<Value> {
    let sum = at.reduce_sum_square(x, axes, true)?;
    // Keras bounds the factor by 1e12.
    let least = at.number(sum, 1e-24)?;
    let sum = at.max(sum, least)?;
    let root = at.sqrt(sum)?;
    at.div(x, root)
}
