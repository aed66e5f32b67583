//! Layers around a layer.

use serde_json::Value as Json;

use super::entry::layers;
use super::recurrent::sequence;
use crate::format::keras::at::{At, object};
use crate::format::keras::config::{Object, Read};
use crate::format::keras::error::Fault;
use crate::format::keras::tree::Spec;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Formula, Reverse};
use crate::types::{Dim, Shape};

layers! {
    "Bidirectional" Own => bidirectional;
    "TimeDistributed" Own => time_distributed;
    "Pipeline" Own => |at, args| {
        let x = args.tensor()?;
        at.in_sequence(x)
    };
    "SpectralNormalization" Kept => spectral;
    "Wrapper" Kept => |at, args| wrapped(at, args);
}

/// The layer inside, called as the wrapper is.
fn wrapped<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let inner = Spec::read(at.config.needed("layer")?)?;
    let x = args.tensor()?;
    one(&at.inside("layer", &inner, &Args::of(x))?)
}

fn one<'c>(tensors: &[Tensor]) -> Read<Arg<'c>> {
    match tensors {
        [tensor] => Ok((*tensor).into()),
        _ => Err(Fault::new("the layer inside gives several tensors")),
    }
}

/// What divides the kernel by its largest singular value is applied in training, and stays there.
fn spectral<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    at.config.ignore(&["power_iterations"]);
    if at.state.for_training {
        return Err(Fault::with_way(
            "the backends of Keras train its kernel differently: on JAX the variable stays as it \
             is, elsewhere the kernel that was divided takes its place",
            "take the wrapper out of the model, and bound the kernel by a constraint",
        ));
    }
    if !at.ty_of(args.tensor()?.value).is_float() {
        // Keras gives what the layer inside computes in the type of what the wrapper takes.
        return Err(Fault::with_way("it is called with integers", "cast them to a float first"));
    }
    let result = wrapped(at, args)?;
    let inner = Spec::read(at.config.needed("layer")?)?;
    let kernel = ["kernel", "embeddings"].iter().find_map(|name| {
        let name = format!("{}/{}/{name}", at.place.path, inner.name);
        at.state.variables.value(&name).map(|value| (value, name))
    });
    let (kernel, name) = kernel.ok_or_else(|| Fault::field("layer", "has no kernel"))?;
    let width = at.extent(kernel, at.rank(kernel) - 1)?;
    // The kernel is a variable of the wrapper, too, and its first one.
    at.share(&name);
    at.fixed("vector_u", &[1, width])?;
    Ok(result)
}

/// A configuration with other values of some fields.
fn changed(config: &Object, fields: &[(&str, Json)]) -> Object {
    let mut config = config.clone();
    for (name, value) in fields {
        config.insert((*name).to_owned(), value.clone());
    }
    config
}

fn bidirectional<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let forward = Spec::read(at.config.needed("layer")?)?;
    let backward = at.config.opt("backward_layer").map(Spec::read).transpose()?;
    let mode = at.config.opt_text("merge_mode")?;
    let flag = |name: &str| forward.config.get(name).and_then(Json::as_bool) == Some(true);
    let (all, states) = (flag("return_sequences"), flag("return_state"));
    for (name, own) in [("return_sequences", all), ("return_state", states)] {
        if at.config.flag(name, own)? != own {
            return Err(Fault::field(name, "differs from that of the layer inside"));
        }
    }
    at.config.ignore(&["stateful", "go_backwards", "zero_output_for_mask", "num_constants"]);
    let (x, mask) = sequence(at, args)?;
    // Without states, zeros.
    let initial = args.opt(1, "initial_state").map(Arg::tensors).unwrap_or_default();
    let x = Tensor { mask, ..x };
    // A file may have the name with what was put before it.
    let base = forward.name.strip_prefix("forward_").unwrap_or(forward.name);
    let name = format!("forward_{base}");
    // Keras makes a copy of the layer for each direction.
    let first = Spec { name: &name, shared: None, ..forward.clone() };
    let half = initial.len() / 2;
    let y = at.inside("forward_layer", &first, &call(x, &initial[..half]))?;
    let is_backwards = flag("go_backwards");
    let config = changed(forward.config, &[("go_backwards", Json::Bool(!is_backwards))]);
    let name = format!("backward_{base}");
    let second = match &backward {
        Some(own) => own.clone(),
        None => Spec { name: &name, config: &config, shared: None, ..forward.clone() },
    };
    let z = at.inside("backward_layer", &second, &call(x, &initial[half..]))?;
    let (Some(forth), Some(back)) = (y.first(), z.first()) else {
        return Err(Fault::new("the layer inside gives nothing"));
    };
    let (forth, mut back) = (forth.value, back.value);
    if all {
        back = at.op(Reverse { axes: vec![1] }, &[back])?;
    }
    let mask = if all { mask } else { None };
    let merged = merge(at, forth, back, mode)?;
    let merged = merged.into_iter().map(|value| Tensor { value, is_first: false, mask });
    let mut results: Vec<Tensor> = merged.collect();
    if states {
        results.extend(y[1..].iter().chain(&z[1..]).copied());
    }
    if let [only] = results[..] {
        return Ok(only.into());
    }
    Ok(Arg::List(results.into_iter().map(Arg::Tensor).collect()))
}

/// The call of a recurrent layer.
fn call<'i>(x: Tensor, states: &[Tensor]) -> Args<'i> {
    let states: Vec<Arg<'i>> = states.iter().copied().map(Arg::Tensor).collect();
    let kwargs =
        if states.is_empty() { Vec::new() } else { vec![("initial_state", Arg::List(states))] };
    Args::new(vec![x.into()], kwargs)
}

/// The results of both directions as one, or both.
fn merge(at: &mut At<'_, '_>, a: Value, b: Value, mode: Option<&str>) -> Read<Vec<Value>> {
    Ok(vec![match mode {
        None => return Ok(vec![a, b]),
        Some("concat") => at.concat(&[a, b], -1)?,
        Some("sum") => at.add(a, b)?,
        Some("mul") => at.mul(a, b)?,
        Some("ave") => {
            let sum = at.add(a, b)?;
            at.scale(sum, 0.5)?
        }
        Some(mode) => {
            let mode = crate::types::Quoted(mode);
            return Err(Fault::field("merge_mode", format!("is {mode}")));
        }
    }])
}

/// The layer inside, applied to each step as to a sample of its own.
fn time_distributed<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let config = at.config.needed("layer")?;
    let fields = Object::from_iter([("layer".to_owned(), config.clone())]);
    let inner = object(&fields, "layer")?;
    // Keras takes what the layer inside computes, and not what it adds to the loss.
    let config = changed(inner.config, &[("activity_regularizer", Json::Null)]);
    let inner = Spec { config: &config, ..inner };
    let x = args.tensor()?;
    let mask = args.opt_tensor(usize::MAX, "mask")?.map(|mask| mask.value).or(x.mask);
    let x = at.input(x)?;
    let shape = at.shape(x);
    if shape.rank() < 2 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    let steps = at.extent(x, 1)?;
    let samples = shape[0].clone() * steps;
    let merged: Shape = std::iter::once(samples).chain(shape.iter().skip(2).cloned()).collect();
    let x = at.reshape(x, &merged)?;
    let all = at.state.steps.saturating_mul(steps);
    let outer = std::mem::replace(&mut at.state.steps, all);
    let found = at.inside("layer", &inner, &Args::of(x.into()));
    at.state.steps = outer;
    let found = found?;
    let [y] = found[..] else { return Err(Fault::new("the layer inside gives several tensors")) };
    let y = at.natural(y)?;
    let sizes = at.sizes(y, 1)?;
    let apart: Shape = [shape[0].clone(), Dim::from(steps)]
        .into_iter()
        .chain(sizes.into_iter().map(Dim::from))
        .collect();
    let value = at.reshape(y, &apart)?;
    Ok(Tensor { value, is_first: false, mask }.into())
}
