//! Long short-term memory whose products are convolutions.

use super::activation::{Function, apply_to, function};
use super::conv::{convolve, turned_kernel};
use super::entry::layers;
use super::random::kept;
use super::recurrent::{Drops, Sequences, initial, lstm_step, sequence};
use super::steps::Steps;
use super::windows::{Padding, Windows};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::Formula;

layers! {
    "ConvLSTM1D" Own => |at, args| layer(at, args, 1);
    "ConvLSTM2D" Own => |at, args| layer(at, args, 2);
    "ConvLSTM3D" Own => |at, args| layer(at, args, 3);
}

/// The variables, with the kernels as operators take them.
#[derive(Clone, Copy)]
struct Kernels {
    input: Value,
    state: Value,
    bias: Option<Value>,
}

fn layer<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let sequences = Sequences::read(at)?;
    at.config.ignore(&["unit_forget_bias"]);
    let drops = Drops::read(at, false)?;
    let filters = at.config.count("filters")?;
    let windows = Windows::read(at, rank, "kernel_size")?;
    let functions = [function(at, "recurrent_activation")?, function(at, "activation")?];
    let has_bias = at.config.flag("use_bias", true)?;
    let (x, mask) = sequence(at, args)?;
    let mut x = at.floats(x)?;
    if at.rank(x) != rank + 3 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    if windows.format == Format::ChannelsLast {
        // `[N, T, spatial…, C]` with the channels behind the steps.
        let perm = [0, 1, rank + 2].into_iter().chain(2..rank + 2).collect();
        x = at.transpose(x, perm)?;
    }
    let channels = at.extent(x, 2)?;
    let kernels =
        at.part("cell", "conv_lstm_cell", |at| kernels(at, &windows, channels, filters, has_bias))?;
    let initial = initial(at, args, 2)?;
    if !initial.is_empty() && windows.format == Format::ChannelsLast {
        return Err(Fault::new("it is called with states"));
    }
    let x = sequences.ordered(at, x)?;
    let taken = mask.map(|mask| sequences.ordered(at, mask)).transpose()?;
    let first = at.rows(x, 1, 0.into(), 1.into())?;
    let first = at.squeeze(first, vec![1])?;
    let probe = convolve(at, &windows, &[first, kernels.input], 1)?;
    let shape = [&[filters][..], &at.sizes(probe, 2)?].concat();
    let steps = Steps { x, mask: taken, initial, zeroes_masked: sequences.zeroes_masked };
    let sizes = at.sizes(first, 1)?;
    let masks = [masks(at, x, &sizes, drops.input)?, masks(at, x, &shape, drops.state)?];
    let cell = Cell { filters, windows: &windows, functions, kernels, masks };
    let (mut all, mut states) =
        steps.one_by_one(at, &[shape.clone(), shape], |at, x, states| cell.step(at, x, states))?;
    if windows.format == Format::ChannelsLast {
        let perm = [0, 1].into_iter().chain(3..rank + 3).chain([2]).collect();
        all = at.transpose(all, perm)?;
        states = states.iter().map(|state| at.turn(*state, false)).collect::<Read<Vec<_>>>()?;
    }
    sequences.results(at, all, &states, mask)
}

/// A cell of `filters` channels.
struct Cell<'w> {
    filters: i64,
    windows: &'w Windows,
    /// The functions of the gates and of the state.
    functions: [Function; 2],
    kernels: Kernels,
    /// What each gate multiplies the input and the state by; nothing if nothing is dropped.
    masks: [Vec<Value>; 2],
}

/// The factors of the four gates for values of this shape, drawn once for each row of `x`.
fn masks(at: &mut At<'_, '_>, x: Value, shape: &[i64], rate: f64) -> Read<Vec<Value>> {
    let count = if rate > 0.0 { 4 } else { 0 };
    (0..count).map(|_| kept(at, x, shape, rate)).collect()
}

/// A convolution of which each gate takes a part of the kernel, and multiplies the value before.
fn by_gate(
    at: &mut At<'_, '_>,
    windows: &Windows,
    [x, kernel]: [Value; 2],
    masks: &[Value],
) -> Read<Value> {
    if masks.is_empty() {
        return convolve(at, windows, &[x, kernel], 1);
    }
    let width = at.extent(kernel, 0)? / 4;
    let kernels = at.split(kernel, 0, vec![width.into(); 4])?;
    let mut parts = Vec::new();
    for (mask, kernel) in masks.iter().zip(kernels) {
        let x = at.mul(x, *mask)?;
        parts.push(convolve(at, windows, &[x, kernel], 1)?);
    }
    at.concat(&parts, 1)
}

impl Cell<'_> {
    /// The states behind a step.
    fn step(&self, at: &mut At<'_, '_>, x: Value, states: &[Value]) -> Read<Vec<Value>> {
        let Self { filters, windows, kernels, functions: [gate, activation], masks } = self;
        let mut from_input = by_gate(at, windows, [x, kernels.input], &masks[0])?;
        if let Some(bias) = kernels.bias {
            from_input = at.add(from_input, bias)?;
        }
        let ones = vec![1; windows.rank];
        let (strides, dilations, padding) = (ones.clone(), ones, Padding::Same);
        let inner = Windows { strides, dilations, padding, ..(*windows).clone() };
        let from_state = by_gate(at, &inner, [states[0], kernels.state], &masks[1])?;
        let sums = at.add(from_input, from_state)?;
        let gates = at.split(sums, 1, vec![(*filters).into(); 4])?;
        let c = lstm_step(at, [gates[0], gates[1], gates[2]], states[1], [gate, activation])?;
        let output = apply_to(at, gate, gates[3])?;
        let shown = apply_to(at, activation, c)?;
        Ok(vec![at.mul(output, shown)?, c])
    }
}

fn kernels(
    at: &mut At<'_, '_>,
    windows: &Windows,
    channels: i64,
    filters: i64,
    has_bias: bool,
) -> Read<Kernels> {
    let width = filters.saturating_mul(4);
    let input = at.weight("kernel", &[&windows.kernel[..], &[channels, width]].concat())?;
    let state =
        at.weight("recurrent_kernel", &[&windows.kernel[..], &[filters, width]].concat())?;
    let bias = if has_bias {
        let bias = at.weight("bias", &[width])?;
        let axes = super::core::all_axes(1, windows.rank + 1);
        Some(at.unsqueeze(bias, axes)?)
    } else {
        None
    };
    Ok(Kernels { input: turned_kernel(at, input)?, state: turned_kernel(at, state)?, bias })
}
