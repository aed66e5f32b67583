//! Functions of `keras.ops` that compute what layers do, with weights that the call gives.

use super::attention::{causal, low_softmax, shared_heads};
use super::conv::{convolve, depthwise_kernel, turned_kernel};
use super::entry::layers;
use super::functions::value_of;
use super::pooling::adaptive;
use super::promotion::promoted;
use super::windows::{Padding, Windows};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Einsum, Formula};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Dim, Shape};

layers! {
    "Conv" Dropped => |at, args| convolution(at, args, |at, kernels, windows, x| {
        let (channels, own) = (at.extent(x, 1)?, at.extent(kernels[0], windows.rank)?);
        if channels % own != 0 {
            return Err(Fault::new(format!("{channels} channels are no groups of {own}")));
        }
        let kernel = turned_kernel(at, kernels[0])?;
        convolve(at, windows, &[x, kernel], channels / own)
    });
    "DepthwiseConv" Dropped => |at, args| convolution(at, args, |at, kernels, windows, x| {
        depthwise(at, kernels[0], windows, x)
    });
    "SeparableConv" Dropped => |at, args| convolution(at, args, |at, kernels, windows, x| {
        let x = depthwise(at, kernels[0], windows, x)?;
        let missing = || Fault::new("it is called without a kernel of points");
        let kernel = turned_kernel(at, *kernels.get(1).ok_or_else(missing)?)?;
        at.op(crate::op::Conv::default(), &[x, kernel])
    });
    "AdaptiveAveragePool" Dropped => |at, args| pool(at, args, false);
    "AdaptiveMaxPool" Dropped => |at, args| pool(at, args, true);
    "BatchNorm" Dropped => batch_norm;
    "LayerNorm" Dropped => layer_norm;
    "RMSNorm" Dropped => |at, args| {
        let epsilon = at.config.number("epsilon", LEAST)?;
        // Keras's default.
        let axes = at.config.one_or_more("axis")?.unwrap_or_else(|| vec![-1]);
        let (x, own) = wide(at, args)?;
        let scale = value_of(at, args, 1, "scale", at.ty_of(x))?;
        let squares = at.square(x)?;
        let mean = at.reduce_mean(squares, axes, true)?;
        let sum = at.shift(mean, epsilon)?;
        let root = at.sqrt(sum)?;
        let mut y = at.div(x, root)?;
        if let Some(scale) = scale {
            let scale = at.cast(scale, at.ty_of(y))?;
            y = at.mul(y, scale)?;
        }
        Ok(at.cast(y, own)?.into())
    };
    "DotProductAttention" Dropped => attention;
}

/// What Keras adds to divisors.
const LEAST: f64 = 1e-7;

/// A convolution of an image with kernels that the call gives, as Keras has them.
fn convolution<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, &[Value], &Windows, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    at.dtype = at.ty_of(x.value);
    if !at.dtype.is_float() {
        return Err(Fault::with_way("it convolves integers", "cast them to a float first"));
    }
    let rank = at.rank(x.value).saturating_sub(2);
    let mut kernels = Vec::new();
    for (position, names) in [(1, ["kernel", "depthwise_kernel"]), (2, ["pointwise_kernel"; 2])] {
        let name = names[usize::from(args.opt(position, names[0]).is_none())];
        if let Some(kernel) = value_of(at, args, position, name, at.dtype)? {
            if at.rank(kernel) != rank + 2 {
                return Err(Fault::new("its kernel has not the axes of its images"));
            }
            kernels.push(at.cast(kernel, at.dtype)?);
        }
    }
    let first = *kernels.first().ok_or_else(|| Fault::new("it is called without a kernel"))?;
    let windows = Windows {
        rank,
        kernel: (0..rank).map(|axis| at.extent(first, axis)).collect::<Read<_>>()?,
        strides: at.config.ints("strides", rank)?.unwrap_or_else(|| vec![1; rank]),
        dilations: at.config.ints("dilation_rate", rank)?.unwrap_or_else(|| vec![1; rank]),
        padding: Padding::read(at)?,
        format: at.format()?,
    };
    let windows = windows.check()?;
    let x = at.image(x, windows.format)?;
    windows.fit(at, x)?;
    let y = f(at, &kernels, &windows, x)?;
    Ok(at.pictured(y, windows.format).into())
}

fn depthwise(at: &mut At<'_, '_>, kernel: Value, windows: &Windows, x: Value) -> Read<Value> {
    let channels = at.extent(x, 1)?;
    let kernel = depthwise_kernel(at, kernel)?;
    convolve(at, windows, &[x, kernel], channels)
}

fn pool<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_max: bool) -> Read<Arg<'c>> {
    let x = args.tensor()?.value;
    if at.ty_of(x).is_float() {
        at.dtype = at.ty_of(x);
    }
    let rank = at.rank(x).checked_sub(2).filter(|rank| (1..=3).contains(rank));
    let rank = rank.ok_or_else(|| Fault::new("it is called with no image"))?;
    adaptive(at, args, rank, is_max)
}

/// The tensor of a call in `f32` at least, and its element type.
fn wide<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<(Value, DType)> {
    let x = args.tensor()?;
    let x = at.natural(x)?;
    let own = at.ty_of(x);
    if !own.is_float() {
        return Err(Fault::with_way("it normalises integers", "cast them to a float first"));
    }
    let to = if own == DType::F64 { own } else { DType::F32 };
    Ok((at.cast(x, to)?, own))
}

/// A vector along some axes of a tensor of this rank.
fn along(at: &mut At<'_, '_>, vector: Value, axes: &[usize], x: Value) -> Read<Value> {
    let vector = at.cast(vector, at.ty_of(x))?;
    if at.rank(vector) == at.rank(x) {
        return Ok(vector);
    }
    let mut shape: Vec<Dim> = vec![Dim::ONE; at.rank(x)];
    let own = at.shape(x);
    for axis in axes {
        shape[*axis] = own[*axis].clone();
    }
    at.reshape(vector, &shape.into_iter().collect::<Shape>())
}

fn batch_norm<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let epsilon = at.config.number("epsilon", 1e-3)?;
    let axis = at.config.axis()?;
    let x = args.tensor()?;
    let x = at.natural(x)?;
    let axis = at.axis(x, axis)?;
    let mut vectors = Vec::new();
    for (position, name) in (1..).zip(["mean", "variance", "offset", "scale"]) {
        let vector = value_of(at, args, position, name, at.ty_of(x))?;
        vectors.push(vector.map(|vector| along(at, vector, &[axis], x)).transpose()?);
    }
    let missing = || Fault::new("it is called without a mean or a variance");
    let mean = vectors[0].ok_or_else(missing)?;
    let variance = vectors[1].ok_or_else(missing)?;
    let sum = at.shift(variance, epsilon)?;
    let root = at.sqrt(sum)?;
    let distance = at.sub(x, mean)?;
    let mut y = at.div(distance, root)?;
    if let Some(scale) = vectors[3] {
        y = at.mul(y, scale)?;
    }
    if let Some(offset) = vectors[2] {
        y = at.add(y, offset)?;
    }
    Ok(y.into())
}

fn layer_norm<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let epsilon = at.config.number("epsilon", LEAST)?;
    let is_rms = at.config.flag("rms_scaling", false)?;
    // Keras's default.
    let given = at.config.one_or_more("axis")?.unwrap_or_else(|| vec![-1]);
    let (x, own) = wide(at, args)?;
    let axes = given.iter().map(|axis| at.axis(x, *axis)).collect::<Read<Vec<usize>>>()?;
    let over: Vec<i64> = axes.iter().copied().map(narrow).collect();
    let mut factors = Vec::new();
    for (position, name) in [(1, "gamma"), (2, "beta")] {
        let vector = value_of(at, args, position, name, at.ty_of(x))?;
        factors.push(vector.map(|vector| along(at, vector, &axes, x)).transpose()?);
    }
    let mean = at.reduce_mean(x, over.clone(), true)?;
    let distance = at.sub(x, mean)?;
    let squares = at.square(distance)?;
    let variance = at.reduce_mean(squares, over, true)?;
    let sum = at.shift(variance, epsilon)?;
    let root = at.sqrt(sum)?;
    let mut y = at.div(if is_rms { x } else { distance }, root)?;
    if let Some(gamma) = factors[0] {
        y = at.mul(y, gamma)?;
    }
    if let Some(beta) = factors[1].filter(|_| !is_rms) {
        y = at.add(y, beta)?;
    }
    Ok(at.cast(y, own)?.into())
}

/// The attention of `[N, T, heads, size]`, whose keys and values may have fewer heads.
fn attention<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    at.config.ignore(&["flash_attention"]);
    let is_causal = at.config.flag("is_causal", false)?;
    let mut values = Vec::new();
    for (position, name) in ["query", "key", "value"].into_iter().enumerate() {
        let x = args.opt_tensor(position, name)?;
        let x = x.ok_or_else(|| Fault::new(format!("it is called without a {name}")))?;
        values.push(at.natural(x)?);
    }
    promoted(at, &mut values)?;
    if values.iter().any(|x| at.rank(*x) != 4) {
        return Err(Fault::new("its tensors have not four axes"));
    }
    let scale = args.constant(5, "scale")?.map(|x| number("scale", &x)).transpose()?;
    let (heads, size) = (at.extent(values[0], 2)?, at.extent(values[0], 3)?);
    let steps = [at.extent(values[0], 1)?, at.extent(values[1], 1)?];
    for value in &mut values[1..] {
        *value = shared_heads(at, *value, heads)?;
    }
    let [query, key, value] = [values[0], values[1], values[2]];
    let scale = scale.unwrap_or(1.0 / (size as f64).sqrt()); // Keras' default
    let query = at.scale(query, scale)?;
    let products = Einsum { equation: "nthd,nshd->nhts".to_owned() };
    let mut scores = at.op(products, &[query, key])?;
    let mut beside = Vec::new();
    for (position, name, dtype) in [(3, "bias", at.ty_of(scores)), (4, "mask", DType::Bool)] {
        let value = value_of(at, args, position, name, dtype)?;
        if value.is_some_and(|value| at.rank(value) != 4) {
            return Err(Fault::new(format!("argument `{name}` has not four axes")));
        }
        beside.push(value);
    }
    if let Some(bias) = beside[0] {
        let bias = at.cast(bias, at.ty_of(scores))?;
        scores = at.add(scores, bias)?;
    }
    let mut mask = beside[1];
    if let Some(own) = mask {
        mask = Some(at.cast(own, DType::Bool)?);
    }
    if is_causal {
        let own = causal(at, steps)?;
        mask = Some(mask.map_or(Ok(own), |mask| at.and(mask, own))?);
    }
    let weights = low_softmax(at, scores, mask)?;
    let sums = Einsum { equation: "nhts,nshd->nthd".to_owned() };
    Ok(at.op(sums, &[weights, value])?.into())
}
