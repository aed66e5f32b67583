//! Spectrograms of signals.

use super::conv::{convolve, turned_kernel};
use super::core::{all_axes, rows};
use super::entry::layers;
use super::fourier::Frames;
use super::windows::{Padding, Windows};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Binary, Formula};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Tensor as Elements};

layers! {
    "STFTSpectrogram" Dropped => spectrogram;
    "MelSpectrogram" Dropped => mel;
}

/// The least number of which Keras takes a root or a logarithm.
const LEAST: f64 = 1e-7;

/// What becomes of the real and imaginary parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Log,
    Magnitude,
    Psd,
    Real,
    Imaginary,
    Angle,
    Both,
}

fn spectrogram<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const MODES: [(&str, Mode); 7] = [
        ("log", Mode::Log),
        ("magnitude", Mode::Magnitude),
        ("psd", Mode::Psd),
        ("real", Mode::Real),
        ("imag", Mode::Imaginary),
        ("angle", Mode::Angle),
        ("stft", Mode::Both),
    ];
    // These only say what the kernels are before they are trained.
    at.config.ignore(&["window", "periodic", "scaling"]);
    let mode = at.config.choice("mode", "log", &MODES)?;
    let length = at.config.count("frame_length")?;
    let step = at.config.opt_int("frame_step")?.unwrap_or(length / 2);
    let whole = at.config.opt_int("fft_length")?;
    let whole = whole.or_else(|| u64::try_from(length).ok()?.next_power_of_two().try_into().ok());
    let whole = whole.filter(|whole| (length..1 << 30).contains(whole));
    let whole = whole.ok_or_else(|| Fault::field("fft_length", "does not fit"))?;
    let apart = at.config.flag("expand_dims", false)?;
    let format = at.format()?;
    let windows = Windows {
        rank: 1,
        kernel: vec![length],
        strides: vec![step],
        dilations: vec![1],
        padding: Padding::read(at)?,
        format,
    };
    let windows = windows.check()?;
    let x = args.tensor()?;
    let x = at.image(x, format)?;
    windows.fit(at, x)?;
    let count = whole / 2 + 1;
    let shape = [length, 1, count];
    let mut filtered = |name: &str| {
        let kernel = at.weight(name, &shape)?;
        filtered(at, &windows, x, kernel)
    };
    let real = if mode == Mode::Imaginary { None } else { Some(filtered("real_kernel")?) };
    let imaginary = if mode == Mode::Real { None } else { Some(filtered("imag_kernel")?) };
    let y = match (real, imaginary) {
        (Some(real), Some(imaginary)) => combined(at, mode, [real, imaginary])?,
        (one, other) => one.or(other).ok_or_else(|| Fault::new("it has no parts"))?,
    };
    let sizes = at.sizes(y, 1)?;
    Ok(match (apart, format) {
        (false, format) => {
            let y = rows(at, y, &[sizes[0] * sizes[1], sizes[2]])?;
            at.pictured(y, format).into()
        }
        (true, Format::ChannelsLast) => at.transpose(y, vec![0, 3, 2, 1])?.into(),
        (true, Format::ChannelsFirst) => at.transpose(y, vec![0, 1, 3, 2])?.into(),
    })
}

/// Signals `[N, C, T]` under all filters of a kernel: `[N, C, filters, T]`.
fn filtered(at: &mut At<'_, '_>, windows: &Windows, x: Value, kernel: Value) -> Read<Value> {
    let channels = at.extent(x, 1)?;
    let kernel = turned_kernel(at, kernel)?;
    let filters = at.extent(kernel, 0)?;
    let count = usize::try_from(channels).ok().filter(|count| *count <= 1 << 10);
    let count = count.ok_or_else(|| Fault::new(format!("its signals have {channels} channels")))?;
    let kernels = if count == 1 { kernel } else { at.concat(&vec![kernel; count], 0)? };
    let y = convolve(at, windows, &[x, kernels], channels)?;
    let length = at.extent(y, 2)?;
    rows(at, y, &[channels, filters, length])
}

fn combined(at: &mut At<'_, '_>, mode: Mode, [real, imaginary]: [Value; 2]) -> Read<Value> {
    match mode {
        Mode::Both => return at.concat(&[real, imaginary], 2),
        Mode::Angle => return super::numeric::angle(at, imaginary, real),
        _ => {}
    }
    let (a, b) = (at.square(real)?, at.square(imaginary)?);
    let power = at.add(a, b)?;
    if mode == Mode::Psd {
        let count = at.extent(power, 2)?;
        let inner = at.rows(power, 2, 1.into(), (count - 1).into())?;
        let inner = at.pad(inner, vec![0, 0, 1, 0, 0, 0, 1, 0], 0.0)?;
        return at.add(power, inner);
    }
    let least = at.number(power, LEAST)?;
    let power = at.max(power, least)?;
    let size = at.sqrt(power)?;
    if mode == Mode::Magnitude {
        return Ok(size);
    }
    let size = at.max(size, least)?;
    at.log(size)
}

/// The scale of pitches, of a frequency.
fn pitch(hertz: f64) -> f64 {
    1127.0 * libm::log(1.0 + hertz / 700.0)
}

/// The shares that the entries of a spectrum have in each band: triangles of one width on the scale
/// of pitches.
fn bands(entries: i64, count: i64, rate: f64, [low, high]: [f64; 2]) -> Vec<f64> {
    let step = (pitch(high) - pitch(low)) / (count + 1) as f64;
    let edge = |at: i64| pitch(low) + step * at as f64;
    let mut shares = Vec::new();
    for entry in 0..entries {
        let own = pitch(rate / 2.0 * entry as f64 / (entries - 1).max(1) as f64);
        for band in 0..count {
            let rising = (own - edge(band)) / (edge(band + 1) - edge(band));
            let falling = (edge(band + 2) - own) / (edge(band + 2) - edge(band + 1));
            // The first entry, which is no frequency, has no share.
            shares.push(if entry == 0 { 0.0 } else { rising.min(falling).max(0.0) });
        }
    }
    shares
}

fn mel<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    /// The most shares.
    const MOST: i64 = 1 << 22;
    let frames = Frames::read(at)?;
    let entries = at.config.count("fft_length")? / 2 + 1;
    let (count, rate) =
        (at.config.count("num_mel_bins")?, at.config.number("sampling_rate", 16e3)?);
    let low = at.config.number("min_freq", 20.0)?;
    let half = (rate / 2.0).trunc();
    let high = at.config.opt_number("max_freq")?.filter(|high| *high != 0.0).unwrap_or(half);
    if entries.checked_mul(count).is_none_or(|all| all > MOST) {
        return Err(Fault::field("num_mel_bins", format!("is {count}, too many")));
    }
    let power = at.config.number("mag_exp", 2.0)?;
    let has_decibels = at.config.flag("power_to_db", true)?;
    let span = at.config.number("top_db", 80.0)?;
    let least = at.config.number("min_power", 1e-10)?;
    let reference = at.config.number("ref_power", 1.0)?.abs().max(least);
    let x = args.tensor()?;
    let x = at.natural(x)?;
    let wide = if at.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = at.cast(x, wide)?;
    let [real, imaginary] = frames.spectra(at, x, true)?;
    let (a, b) = (at.square(real)?, at.square(imaginary)?);
    let sum = at.add(a, b)?;
    let size = at.sqrt(sum)?;
    let exponent = at.number(size, power)?;
    let size = at.op(Binary::Pow, &[size, exponent])?;
    let shares = bands(entries, count, rate, [low, high]);
    let shares = Elements::new(&[narrow(entries), narrow(count)], &shares)?;
    let shares = at.constant(size, shares)?;
    let mut y = at.matmul(size, shares)?;
    if has_decibels {
        y = decibels(at, y, [least, reference, span])?;
    }
    let rank = at.rank(y);
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    let y = at.transpose(y, perm)?;
    let to = at.dtype;
    Ok(at.cast(y, to)?.into())
}

/// Powers in decibels, of which the least are this far below the largest one of the batch.
fn decibels(at: &mut At<'_, '_>, x: Value, [least, reference, span]: [f64; 3]) -> Read<Value> {
    let tens = 10.0 / std::f64::consts::LN_10;
    let least = at.number(x, least)?;
    let x = at.max(x, least)?;
    let x = at.log(x)?;
    let x = at.scale(x, tens)?;
    let x = at.shift(x, -tens * libm::log(reference))?;
    let axes = all_axes(0, at.rank(x));
    let most = at.reduce_max(x, axes, false)?;
    let low = at.shift(most, -span)?;
    at.max(x, low)
}
