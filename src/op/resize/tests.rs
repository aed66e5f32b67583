use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::testing::{
    self, assert_close, check_split, indices, random, refusal, rng, tolerance,
};
use super::super::{Op, Operand};
use super::{Coordinates, Nearest, Resize, ResizeMode};
use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

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

fn line(op: Resize, x: &[f32]) -> Vec<f32> {
    let x = Tensor::new(&[x.len()], x).unwrap();
    testing::eval(&op.into(), &[&x])[0].as_slice::<f32>().to_vec()
}

#[test]
fn nearest_of_a_line() {
    use Coordinates::{AlignCorners, Asymmetric, HalfPixel, TfHalfPixelForNn};
    use Nearest::{Ceil, Floor, RoundPreferCeil, RoundPreferFloor, Simple};

    let base = plain(&[0], &[8], &[2.0]);
    assert_eq!(line(base.clone(), &[1., 2., 3., 4.]), [1., 1., 2., 2., 3., 3., 4., 4.]);
    let at = |nearest, coordinates| {
        let op = Resize { nearest, coordinates, ..plain(&[0], &[8], &[2.0]) };
        line(op, &[1., 2., 3., 4.])
    };
    assert_eq!(at(Ceil, HalfPixel), [1., 2., 2., 3., 3., 4., 4., 4.]);
    assert_eq!(at(Floor, AlignCorners), [1., 1., 1., 2., 2., 3., 3., 4.]);
    assert_eq!(at(RoundPreferCeil, Asymmetric), [1., 2., 2., 3., 3., 4., 4., 4.]);
    assert_eq!(at(RoundPreferFloor, Asymmetric), [1., 1., 2., 2., 3., 3., 4., 4.]);
    assert_eq!(at(Floor, TfHalfPixelForNn), [1., 1., 2., 2., 3., 3., 4., 4.]);
    assert_eq!(at(Simple, Asymmetric), [1., 1., 2., 2., 3., 3., 4., 4.]);
    let small = |nearest| {
        let op = Resize { nearest, coordinates: Asymmetric, ..plain(&[0], &[2], &[0.6]) };
        line(op, &[1., 2., 3., 4.])
    };
    assert_eq!((small(Simple), small(Floor)), (vec![1., 3.], vec![1., 2.]));
}

#[test]
fn a_line_is_blended() {
    let linear = |op: Resize| Resize { mode: ResizeMode::Linear, ..op };
    let y = line(linear(plain(&[0], &[4], &[2.0])), &[1., 2.]);
    assert_eq!(y, [1.0, 1.25, 1.75, 2.0]);
    let corners = Resize { coordinates: Coordinates::AlignCorners, ..plain(&[0], &[4], &[2.0]) };
    let y = line(linear(corners), &[0., 3.]);
    assert_eq!(y, [0., 1., 2., 3.]);
    let wide = Resize { antialias: true, ..plain(&[0], &[2], &[0.5]) };
    let y = line(linear(wide), &[1., 2., 3., 4.]);
    // The weights 1/8, 3/8, 3/8, 1/8 of the elements around 0.5, of which the first lies before the
    // line.
    assert_eq!(y, [0.5 + 0.75 + 0.375, 0.25 + 1.125 + 1.5 + 0.5]);
    let crop = Resize {
        coordinates: Coordinates::TfCropAndResize,
        roi: vec![0.5, 1.5],
        extrapolation: -1.0,
        ..plain(&[0], &[3], &[1.0])
    };
    assert_eq!(line(linear(crop.clone()), &[0., 1., 2.]), [1., 2., -1.]);
    assert_eq!(line(crop, &[0., 1., 2.]), [1., 2., -1.]);
    let symmetric =
        Resize { coordinates: Coordinates::HalfPixelSymmetric, ..plain(&[0], &[2], &[0.6]) };
    assert_close(
        &testing::eval(
            &linear(symmetric).into(),
            &[&Tensor::new(&[4], &[1f32, 2., 3., 4.]).unwrap()],
        )[0],
        &[1.666_666_7, 3.333_333_3],
        1e-6,
    );
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

#[test]
fn integers_are_taken_as_they_are() {
    let op = plain(&[0, 1], &[4, 1], &[2.0, 0.5]);
    let x = Tensor::new(&[2, 2], &[1u8, 2, 3, 4]).unwrap();
    assert_eq!(testing::eval(&op.clone().into(), &[&x])[0].as_slice::<u8>(), [1, 1, 3, 3]);
    let ty = x.tensor_type();
    let linear = Resize { mode: ResizeMode::Linear, ..op };
    assert!(Op::from(linear).infer(&[Operand { ty: &ty, ints: None }]).is_err());
}

#[test]
fn the_batch_passes_beside_the_axes() {
    let mut rng = rng(2);
    for i in 0..60usize {
        let (mut op, lengths) = case(&mut rng);
        let (n, inner) = (i / 10, i % 3 + 1);
        let mut dims = vec![lengths[0], lengths[1]];
        let axis = i % 2 * 2;
        dims.insert(axis, n * inner);
        if axis == 2 {
            op.axes = vec![0, 1];
        }
        let x = random(&mut rng, DType::F32, &dims);
        let claim = Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
        assert_eq!(check_split(&op.into(), &[(&x, claim)], n), Ok(vec![claim]));
    }
    let x = random(&mut rng, DType::F32, &[2, 3]);
    let op = plain(&[1], &[6], &[2.0]);
    assert_eq!(refusal(&op.into(), &[(&x, Claim::rows(1))]), "R0103");
}

#[test]
fn what_does_not_fit_is_an_error() {
    let ty = TensorType {
        dtype: DType::F32,
        shape: [Dim::n(), 2.into(), 4.into()].into_iter().collect(),
    };
    let fits = |op: Resize| Op::from(op).infer(&[Operand { ty: &ty, ints: None }]).is_ok();
    let base = || plain(&[1, 2], &[4, 8], &[2.0, 2.0]);
    assert!(fits(base()));
    assert!(!fits(plain(&[0], &[4], &[2.0])));
    assert!(!fits(plain(&[2, 1], &[8, 4], &[2.0, 2.0])));
    assert!(!fits(plain(&[1, 1], &[4, 4], &[2.0, 2.0])));
    assert!(!fits(plain(&[usize::MAX], &[4], &[2.0])));
    assert!(!fits(plain(&[1], &[4, 4], &[2.0])));
    for size in [i64::MIN, -1, 0, 9, i64::MAX] {
        assert!(!fits(plain(&[1], &[size], &[2.0])), "{size}");
    }
    for scale in [0.0, -2.0, 1e-30, f32::NAN, f32::INFINITY, f32::MAX] {
        assert!(!fits(plain(&[1], &[4], &[scale])), "{scale}");
    }
    assert!(!fits(Resize { antialias: true, ..base() }));
    assert!(!fits(Resize { exclude_outside: true, ..base() }));
    assert!(!fits(Resize { roi: vec![0.0; 4], ..base() }));
    assert!(!fits(Resize { coordinates: Coordinates::TfCropAndResize, ..base() }));
    // Two readings of the standard differ there.
    let part = plain(&[2], &[5], &[1.3]);
    assert!(fits(part.clone()));
    assert!(!fits(Resize { coordinates: Coordinates::AlignCorners, ..part }));
}
