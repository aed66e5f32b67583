use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::testing::{self, assert_close, indices, random, rng, tolerance};
use super::{Coordinates, Nearest, Resize, ResizeMode};
use crate::types::DType;

fn plain(axes: &[usize], sizes: &[i64], scales: &[f32]) -> Resize {
    Resize {
        axes: axes.to_vec(),
        sizes: sizes.to_vec(),
        scales: scales.to_vec(),
        mode: ResizeMode::Nearest,
        nearest: Nearest::RoundPreferFloor,
        coordinates: Coordinates::HalfPixel,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        roi: Vec::new(),
        extrapolation: 0.0,
    }
}

/// A resize of two axes, with sizes, and a size of the operand.
fn case(rng: &mut ChaCha8Rng) -> (Resize, Vec<usize>) {
    let lengths = [0; 2].map(|_| rng.random_range(1..7usize));
    let sizes = [0; 2].map(|_| rng.random_range(1..9usize));
    let scales: Vec<f32> = lengths.iter().zip(sizes).map(|(l, s)| s as f32 / *l as f32).collect();
    let coordinates = [
        Coordinates::HalfPixel,
        Coordinates::HalfPixelSymmetric,
        Coordinates::PytorchHalfPixel,
        Coordinates::AlignCorners,
        Coordinates::Asymmetric,
        Coordinates::TfHalfPixelForNn,
        Coordinates::TfCropAndResize,
    ][rng.random_range(0..7usize)];
    let mode =
        [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic][rng.random_range(0..3usize)];
    let crops = coordinates == Coordinates::TfCropAndResize;
    let op = Resize {
        mode,
        coordinates,
        nearest: [Nearest::Floor, Nearest::Ceil, Nearest::Simple][rng.random_range(0..3usize)],
        exclude_outside: mode == ResizeMode::Cubic && rng.random_bool(0.5),
        cubic: if rng.random_bool(0.5) { -0.5 } else { -0.75 },
        roi: if crops { vec![0.1, -0.2, 0.9, 1.1] } else { Vec::new() },
        extrapolation: 3.0,
        ..plain(&[1, 2], &sizes.map(|s| i64::try_from(s).unwrap()), &scales)
    };
    (op, lengths.to_vec())
}

/// The position from which an element is taken.
fn position(op: &Resize, axis: usize, length: usize, x: usize) -> f64 {
    let (scale, size) = (f64::from(op.scales[axis]), op.sizes[axis] as f64);
    let (x, length) = (x as f64, length as f64);
    match op.coordinates {
        Coordinates::HalfPixel | Coordinates::HalfPixelSymmetric => (x + 0.5) / scale - 0.5,
        Coordinates::PytorchHalfPixel if size > 1.0 => (x + 0.5) / scale - 0.5,
        Coordinates::AlignCorners if size > 1.0 => x * (length - 1.0) / (size - 1.0),
        Coordinates::PytorchHalfPixel | Coordinates::AlignCorners => 0.0,
        Coordinates::Asymmetric => x / scale,
        Coordinates::TfHalfPixelForNn => (x + 0.5) / scale,
        Coordinates::TfCropAndResize => {
            let (start, end) = (f64::from(op.roi[axis]), f64::from(op.roi[2 + axis]));
            let part = if size > 1.0 { x / (size - 1.0) } else { 0.5 };
            (start + part * (end - start)) * (length - 1.0)
        }
    }
}

/// The weights of the elements around a position, with those outside moved to the ends.
fn weights(op: &Resize, length: usize, at: f64) -> Vec<(usize, f64)> {
    let last = length as f64 - 1.0;
    let kernel = |d: f64| match op.mode {
        ResizeMode::Nearest => 0.0,
        ResizeMode::Linear => (1.0 - d).max(0.0),
        ResizeMode::Cubic => {
            let a = f64::from(op.cubic);
            match d {
                0.0..=1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
                1.0..2.0 => a * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0),
                _ => 0.0,
            }
        }
    };
    let mut all = Vec::new();
    for i in -12..24 {
        let i = f64::from(i);
        if op.exclude_outside && !(0.0..=last).contains(&i) {
            continue;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is inside"
        )]
        all.push((i.clamp(0.0, last) as usize, kernel((i - at).abs())));
    }
    let sum: f64 = all.iter().map(|(_, w)| w).sum();
    all.iter().map(|(i, w)| (*i, if op.exclude_outside { w / sum } else { *w })).collect()
}

#[test]
fn values_are_those_of_the_definition() {
    let mut rng = rng(1);
    let mut blended = 0;
    for i in 0..300 {
        let (op, lengths) = case(&mut rng);
        if op.mode == ResizeMode::Nearest {
            continue;
        }
        blended += 1;
        let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
        let x = random(&mut rng, dtype, &[2, lengths[0], lengths[1]]);
        let y = &testing::eval(&op.clone().into(), &[&x])[0];
        let values = x.to_f64();
        let one = |o: &Vec<usize>| {
            let at = [0, 1].map(|a| position(&op, a, lengths[a], o[a + 1]));
            let crops = op.coordinates == Coordinates::TfCropAndResize;
            let out = (0..2).any(|a| !(0.0..=lengths[a] as f64 - 1.0).contains(&at[a]));
            if crops && out {
                return 3.0;
            }
            let rows = weights(&op, lengths[0], at[0]);
            let columns = weights(&op, lengths[1], at[1]);
            let mut sum = 0.0;
            for (r, v) in &rows {
                for (c, w) in &columns {
                    sum += v * w * values[(o[0] * lengths[0] + r) * lengths[1] + c];
                }
            }
            sum
        };
        let expected: Vec<f64> = indices(y.dims()).iter().map(one).collect();
        assert_close(y, &expected, tolerance(dtype).max(2e-5));
    }
    assert!(blended > 100);
}
