//! Fourier transforms of `keras.ops`, whose complex numbers are pairs of tensors: the real and the
//! imaginary parts.

use std::f64::consts::TAU;

use super::core::integers;
use super::entry::layers;
use super::functions::{flat, operand};
use super::promotion::floating;
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Dft, Formula, Pad, PadMode};
use crate::types::invariant::int as narrow;
use crate::types::{Dim, Quoted, Shape, Tensor as Elements};

layers! {
    "FFT" Dropped => |at, args| {
        let x = complex(at, args)?;
        let x = along(at, x, -2, false)?;
        Ok(Arg::List(parts(at, x)?.map(Arg::from).into()))
    };
    "FFT2" Dropped => |at, args| plane(at, args, false);
    "IFFT2" Dropped => |at, args| plane(at, args, true);
    "RFFT" Dropped => |at, args| {
        let length = at.config.opt_int("fft_length")?;
        let x = operand(at, args)?;
        let x = floating(at, x)?;
        let length = checked("fft_length", length.map_or_else(|| last(at, x), Ok)?)?;
        Ok(Arg::List(spectrum(at, x, length)?.map(Arg::from).into()))
    };
    "IRFFT" Dropped => |at, args| {
        let length = at.config.opt_int("fft_length")?;
        let x = complex(at, args)?;
        let count = of_axis(at.extent(x, at.rank(x) - 2)?)?;
        let length = checked("fft_length", length.unwrap_or(2 * (count - 1)))?; // Keras' default
        // What the other half of the spectrum adds is the same again.
        let weights: Vec<f64> = (0..count)
            .map(|k| match 2 * k {
                0 => 1.0,
                twice if twice < length => 2.0,
                twice if twice == length => 1.0,
                _ => 0.0,
            })
            .collect();
        let weights = at.constant(x, Elements::new(&[weights.len(), 1], &weights)?)?;
        let x = at.mul(x, weights)?;
        let op = Dft { axis: -2, length, count: length, inverse: true, real: true };
        let y = at.op(op, &[x])?;
        Ok(at.squeeze(y, vec![-1])?.into())
    };
    "STFT" Dropped => |at, args| {
        let frames = Frames::read(at)?;
        let is_centered = at.config.flag("center", true)?;
        let x = operand(at, args)?;
        let x = floating(at, x)?;
        Ok(Arg::List(frames.spectra(at, x, is_centered)?.map(Arg::from).into()))
    };
}

/// The longest period: sums are as long for each entry of a result.
const MOST: i64 = 1 << 16;

/// The most elements of a list of places.
const MOST_PLACES: i64 = 1 << 24;

fn checked(name: &str, length: i64) -> Read<i64> {
    if (1..=MOST).contains(&length) {
        return Ok(length);
    }
    Err(Fault::field(name, format!("is {length}, not from 1 to {MOST}")))
}

/// The size of an axis that is transformed.
fn of_axis(size: i64) -> Read<i64> {
    let wrong = || Fault::new(format!("an axis has {size} entries, not from 1 to {MOST}"));
    (1..=MOST).contains(&size).then_some(size).ok_or_else(wrong)
}

/// The size of the last axis, which is not the batch.
fn last(at: &At<'_, '_>, x: Value) -> Read<i64> {
    match at.rank(x) {
        0 | 1 => Err(Fault::new("it works along the batch")),
        rank => at.extent(x, rank - 1),
    }
}

/// A pair of tensors as one, in which the parts stand last.
fn complex<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Value> {
    let tensors = args.first()?.tensors();
    let [real, imaginary] = tensors[..] else {
        return Err(Fault::new(format!("it is called with {} tensors, not two", tensors.len())));
    };
    let mut both = Vec::new();
    for x in [real, imaginary] {
        let x = at.natural(x)?;
        let x = floating(at, x)?;
        last(at, x)?;
        both.push(at.unsqueeze(x, vec![-1])?);
    }
    at.concat(&both, -1)
}

/// The real and the imaginary parts of numbers.
fn parts(at: &mut At<'_, '_>, x: Value) -> Read<[Value; 2]> {
    let both = at.split(x, -1, vec![Dim::ONE; 2])?;
    Ok([at.squeeze(both[0], vec![-1])?, at.squeeze(both[1], vec![-1])?])
}

/// The transform of complex numbers along an axis.
fn along(at: &mut At<'_, '_>, x: Value, axis: i64, inverse: bool) -> Read<Value> {
    let own = at.axis(x, axis)?;
    if own == 0 {
        return Err(Fault::new("it works along the batch"));
    }
    let length = at.extent(x, own)?;
    let length = of_axis(length)?;
    at.op(Dft { axis, length, count: length, inverse, real: false }, &[x])
}

/// The transform along the last two axes.
fn plane<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, inverse: bool) -> Read<Arg<'c>> {
    let x = complex(at, args)?;
    let x = along(at, x, -2, inverse)?;
    let x = along(at, x, -3, inverse)?;
    Ok(Arg::List(parts(at, x)?.map(Arg::from).into()))
}

/// The half of the transform of real numbers along the last axis that says all.
fn spectrum(at: &mut At<'_, '_>, x: Value, length: i64) -> Read<[Value; 2]> {
    last(at, x)?;
    let x = at.unsqueeze(x, vec![-1])?;
    let op = Dft { axis: -2, length, count: length / 2 + 1, inverse: false, real: false };
    let y = at.op(op, &[x])?;
    parts(at, y)
}

/// Parts of a signal that begin at every few entries, each under a window.
pub(super) struct Frames {
    length: i64,
    stride: i64,
    window: Vec<f64>,
}

impl Frames {
    pub(super) fn read(at: &At<'_, '_>) -> Read<Self> {
        let length = checked("fft_length", at.config.count("fft_length")?)?;
        let stride = at.config.count("sequence_stride")?;
        let own = at.config.opt_int("sequence_length")?.unwrap_or(length);
        if !(1..=length).contains(&own) {
            return Err(Fault::field("sequence_length", format!("is {own}, of {length}")));
        }
        let own = match at.config.opt("window") {
            None => vec![1.0; narrow(length)],
            Some(serde_json::Value::String(name)) => named(name, own)?,
            Some(list) => {
                let (mut found, mut dims) = (Vec::new(), Vec::new());
                flat(list, &mut found, &mut dims, 0)?;
                found.into_iter().map(|(x, _)| x).collect()
            }
        };
        let rest = length - narrow::<i64>(own.len());
        let before = usize::try_from(rest / 2);
        let before = before.map_err(|_| Fault::field("window", "is longer than a part"))?;
        let mut window = vec![0.0; before];
        window.extend(own);
        window.resize(narrow(length), 0.0);
        Ok(Self { length, stride, window })
    }

    /// The spectra of the parts of signals along the last axis; with half a part mirrored on both
    /// ends if they are centered.
    pub(super) fn spectra(
        &self,
        at: &mut At<'_, '_>,
        x: Value,
        is_centered: bool,
    ) -> Read<[Value; 2]> {
        let mut x = x;
        let axis = at.rank(x).saturating_sub(1);
        let own = last(at, x)?;
        if is_centered {
            let half = self.length / 2;
            if half >= own {
                return Err(Fault::new(format!("its signal of {own} entries is too short")));
            }
            let mut pads = vec![0; 2 * (axis + 1)];
            (pads[axis], pads[2 * axis + 1]) = (half, half);
            x = at.op(Pad { mode: PadMode::Reflect, pads, value: 0.0 }, &[x])?;
        }
        let size = last(at, x)?;
        if size < self.length {
            return Err(Fault::new(format!("its signal of {own} entries is too short")));
        }
        let count = (size - self.length) / self.stride + 1;
        if count.checked_mul(self.length).is_none_or(|all| all > MOST_PLACES) {
            return Err(Fault::new(format!("its parts have more than {MOST_PLACES} elements")));
        }
        let places = (0..count).flat_map(|part| (0..self.length).map(move |at| (part, at)));
        let places: Vec<i64> = places.map(|(part, at)| part * self.stride + at).collect();
        let places = integers(at, &places)?;
        let shape: Shape = [Dim::from(count), Dim::from(self.length)].into_iter().collect();
        let places = at.reshape(places, &shape)?;
        let parts = at.gather(x, places, -1)?;
        let window = at.constant(parts, Elements::new(&[self.window.len()], &self.window)?)?;
        let parts = at.mul(parts, window)?;
        spectrum(at, parts, self.length)
    }
}

/// A window of this name that goes on after its end.
fn named(name: &str, length: i64) -> Read<Vec<f64>> {
    let share = match name {
        "hann" => 0.5,
        "hamming" => 0.54,
        _ => return Err(Fault::field("window", format!("is {}", Quoted(name)))),
    };
    if length == 1 {
        return Ok(vec![1.0]);
    }
    let at = |n: i64| share - (1.0 - share) * libm::cos(TAU * n as f64 / length as f64);
    Ok((0..length).map(at).collect())
}
