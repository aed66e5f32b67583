//! Layers of Keras 1 that later versions do not have, with the fields that these would have.

use super::activation::{apply_to, function, of_elements};
use super::conv::transposed;
use super::entry::layers;
use super::merging::dot;
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Binary, Einsum, Formula};

layers! {
    "Deconvolution2D" Dropped => deconvolution;
    "Highway" Dropped => highway;
    "MaxoutDense" Dropped => maxout;
    "Merge" Dropped => cosine;
    "ParametricSoftplus" Kept => softplus;
    "SReLU" Kept => s_relu;
}

/// A transposed convolution that states the size of its result, which must be the usual one.
fn deconvolution<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let stated = at.config.one_or_open("output_shape")?;
    let result = transposed(at, args, 2)?;
    let Arg::Tensor(tensor) = result else { return Ok(result) };
    let mut sizes = at.sizes(tensor.value, 1)?;
    if at.format()? == Format::ChannelsLast {
        sizes.rotate_left(1);
    }
    // The batch may be any number.
    let own = stated.get(1..).filter(|stated| stated.len() == sizes.len());
    let is_own = own.is_some_and(|own| {
        own.iter().zip(&sizes).all(|(stated, size)| stated.is_none_or(|stated| stated == *size))
    });
    if is_own {
        return Ok(tensor.into());
    }
    Err(Fault::field("output_shape", format!("is not that of its windows, [N, {sizes:?}]")))
}

/// A mix of the input and a dense layer of it, by a gate.
fn highway<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let activation = function(at, "activation")?;
    let has_bias = at.config.flag("use_bias", true)?;
    let x = args.tensor()?;
    let x = at.floats(x)?;
    let width = flat(at, x)?;
    let kernels =
        [at.weight("kernel", &[width, width])?, at.weight("carry_kernel", &[width, width])?];
    let [mut y, mut gate] = [at.matmul(x, kernels[0])?, at.matmul(x, kernels[1])?];
    if has_bias {
        let biases = [at.weight("bias", &[width])?, at.weight("carry_bias", &[width])?];
        (y, gate) = (at.add(y, biases[0])?, at.add(gate, biases[1])?);
    }
    let gate = at.sigmoid(gate)?;
    let y = apply_to(at, &activation, y)?;
    let moved = at.sub(y, x)?;
    let moved = at.mul(moved, gate)?;
    Ok(at.add(x, moved)?.into())
}

/// The largest results of several dense layers.
fn maxout<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (units, count) = (at.config.count("units")?, at.config.count("nb_feature")?);
    let has_bias = at.config.flag("use_bias", true)?;
    let x = args.tensor()?;
    let x = at.floats(x)?;
    let width = flat(at, x)?;
    let kernel = at.weight("kernel", &[count, width, units])?;
    let mut y = at.op(Einsum { equation: "ni,fio->nfo".to_owned() }, &[x, kernel])?;
    if has_bias {
        let bias = at.weight("bias", &[count, units])?;
        y = at.add(y, bias)?;
    }
    Ok(at.reduce_max(y, vec![1], false)?.into())
}

/// The features of rows without other axes.
fn flat(at: &At<'_, '_>, x: Value) -> Read<i64> {
    if at.rank(x) != 2 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    at.extent(x, 1)
}

/// The cosine of the angles between two tensors: the only merging that later versions have not,
/// with an axis behind the batch.
fn cosine<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let result = dot(at, args)?;
    let (Arg::Tensor(products), [a, b]) = (result, &args.first()?.tensors()[..]) else {
        return Err(Fault::new("it is called with other than 2 tensors"));
    };
    let mut square = |x: Tensor| -> Read<Value> {
        let x = at.floats(x)?;
        flat(at, x)?;
        let square = at.square(x)?;
        at.reduce_sum(square, vec![1], true)
    };
    let (a, b) = (square(*a)?, square(*b)?);
    let product = at.mul(a, b)?;
    let size = at.sqrt(product)?;
    let least = at.number(size, 1e-7)?; // as in Keras 1
    let size = at.max(size, least)?;
    let y = at.div(products.value, size)?;
    Ok(at.unsqueeze(y, vec![1])?.into())
}

/// `alpha * log(1 + exp(beta * x))`.
fn softplus<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (x, [alpha, beta]) = elementwise(at, args, ["alpha", "beta"])?;
    let y = at.mul(x, beta)?;
    let y = at.softplus(y)?;
    Ok(at.mul(y, alpha)?.into())
}

/// The identity between two points, and a line below and above of them.
fn s_relu<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let names = ["t_left", "a_left", "t_right", "a_right"];
    let (x, [t_left, a_left, t_right, a_right]) = elementwise(at, args, names)?;
    let distance = at.abs(t_right)?;
    let above = at.sub(x, t_left)?;
    let middle = at.relu(above)?;
    let middle = at.op(Binary::Min, &[middle, distance])?;
    let below = at.neg(above)?;
    let below = at.relu(below)?;
    let below = at.mul(below, a_left)?;
    let right = at.sub(above, distance)?;
    let right = at.relu(right)?;
    let right = at.mul(right, a_right)?;
    let y = at.add(t_left, middle)?;
    let y = at.sub(y, below)?;
    Ok(at.add(y, right)?.into())
}

/// What a layer is called with, and variables that have a number for each of its elements.
fn elementwise<const N: usize>(
    at: &mut At<'_, '_>,
    args: &Args<'_>,
    names: [&str; N],
) -> Read<(Value, [Value; N])> {
    at.config.ignore(&["t_left_init", "a_left_init", "t_right_init", "a_right_init"]);
    let x = args.tensor()?;
    let x = at.floats(x)?;
    let sizes = of_elements(at, x)?;
    let mut values = [x; N];
    for (value, name) in values.iter_mut().zip(names) {
        *value = at.weight(name, &sizes)?;
    }
    Ok((x, values))
}
