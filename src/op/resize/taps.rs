//! Interpolation taps of a resized axis: source positions and weights.

use super::super::numeric::Wide;
use super::{Coordinates, Nearest, Resize, ResizeMode};

/// One axis of a value while it is resized.
#[derive(Clone, Debug)]
struct Step {
    /// Elements before the axis, and behind it.
    before: usize,
    inner: usize,
    input: usize,
    output: usize,
    /// The elements of the operand that make one of the result.
    each: usize,
    /// `each` positions for each element of the result.
    places: Vec<usize>,
    /// The weights of `places`; none where an element is taken as it is.
    weights: Vec<f64>,
}

/// All axes of a value that are resized, each behind the one before: a function of sizes and
/// settings.
#[derive(Clone, Debug)]
pub(crate) struct Passes {
    steps: Vec<Step>,
    /// Blocks of the result that take the value for what is outside: the elements before an axis,
    /// those of the axis with whether they are outside, and the elements behind it.
    outside: Vec<(usize, Vec<bool>, usize)>,
    value: f64,
    input: usize,
    output: usize,
}

impl Resize {
    /// The order in which the axes are resized, by their numbers among those that are; `length`
    /// gives the size of an axis of the operand.
    pub(crate) fn order(&self, length: impl Fn(usize) -> Option<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.axes.len()).collect();
        // The axis that shrinks most comes first, so that no intermediate value is larger than the
        // operand and the result. The ratios are compared as cross products: exact, no division.
        let growth = |i: &usize| (self.sizes.get(*i), self.axes.get(*i).and_then(|a| length(*a)));
        order.sort_by(|a, b| match (growth(a), growth(b)) {
            ((Some(out_a), Some(in_a)), (Some(out_b), Some(in_b))) => {
                let (left, right) = (product(*out_a, in_b), product(*out_b, in_a));
                left.cmp(&right).then(a.cmp(b))
            }
            _ => a.cmp(b),
        });
        order
    }
}

impl Passes {
    /// The passes over an operand whose axes from `first` on have the sizes `dims`, for settings
    /// that suit it.
    pub(crate) fn new(op: &Resize, first: usize, dims: &[usize]) -> Self {
        let mut now = dims.to_vec();
        let order = op.order(|axis| dims.get(axis - first).copied());
        let mut all = Self {
            steps: Vec::new(),
            outside: Vec::new(),
            value: f64::from(op.extrapolation),
            input: dims.iter().product(),
            output: 0,
        };
        let mut flags = Vec::new();
        for i in order {
            let at = op.axes[i] - first;
            let output = usize::try_from(op.sizes[i]).unwrap_or(0);
            let AxisTaps { each, places, weights, outside } = AxisTaps::new(op, i, now[at]);
            let (before, inner) = (now[..at].iter().product(), now[at + 1..].iter().product());
            all.steps.push(Step { before, inner, input: now[at], output, each, places, weights });
            flags.push((at, outside));
            now[at] = output;
        }
        for (at, outside) in flags.into_iter().filter(|(_, flags)| flags.contains(&true)) {
            all.outside.push((now[..at].iter().product(), outside, now[at + 1..].iter().product()));
        }
        all.output = now.iter().product();
        all
    }

    /// The elements of the operand, and of the result.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.input, self.output)
    }

    /// The result of elements of `width` bytes that are taken as they are, with `value` for what is
    /// outside.
    ///
    /// # Panics
    /// If a slice has not the size of the passes: a bug in the caller.
    pub(crate) fn pick(&self, width: usize, x: &[u8], y: &mut [u8], value: &[u8]) {
        let mut now = x.to_vec();
        for step in &self.steps {
            let row = step.inner * width;
            let mut next = vec![0; step.before * step.output * row];
            if row > 0 && step.input > 0 {
                let rows = next.chunks_exact_mut(row);
                for (i, to) in rows.enumerate() {
                    let from = i / step.output * step.input + step.places[i % step.output];
                    to.copy_from_slice(&now[from * row..][..row]);
                }
            }
            now = next;
        }
        y.copy_from_slice(&now);
        self.mark(width, y, |block| {
            for element in block.chunks_exact_mut(width) {
                element.copy_from_slice(value);
            }
        });
    }

    /// The result of elements that are blended.
    ///
    /// # Panics
    /// If a slice has not the size of the passes: a bug in the caller.
    #[expect(private_bounds, reason = "the sealed trait of the two types")]
    pub(crate) fn blend<T: Wide>(&self, x: &[T], y: &mut [T]) {
        let Some((last, steps)) = self.steps.split_last() else { return y.copy_from_slice(x) };
        let mut now: Option<Vec<T>> = None;
        for step in steps {
            let mut next = vec![T::of(0.0); step.before * step.output * step.inner];
            step.blend(now.as_deref().unwrap_or(x), &mut next);
            now = Some(next);
        }
        last.blend(now.as_deref().unwrap_or(x), y);
        let value = T::of(self.value);
        self.mark(1, y, |block| block.fill(value));
    }

    /// Calls `f` with each block of the result, of `width` units to an element, that is outside.
    fn mark<T>(&self, width: usize, y: &mut [T], f: impl Fn(&mut [T])) {
        for (before, outside, inner) in &self.outside {
            let row = inner * width;
            if row == 0 || *before == 0 {
                continue;
            }
            for (i, block) in y.chunks_exact_mut(row).enumerate() {
                if outside[i % outside.len()] {
                    f(block);
                }
            }
        }
    }
}

fn product(a: i64, b: usize) -> i128 {
    i128::from(a) * i128::try_from(b).unwrap_or(i128::MAX >> 64)
}

impl Step {
    /// One axis. Each element is the sum of its products with weights, in the order of the axis.
    fn blend<T: Wide>(&self, x: &[T], y: &mut [T]) {
        let weights: Vec<T> = self.weights.iter().map(|w| T::of(*w)).collect();
        let taps = |j: usize| {
            let range = j * self.each..(j + 1) * self.each;
            self.places[range.clone()].iter().zip(&weights[range])
        };
        if self.inner == 0 || self.output == 0 {
            return;
        }
        let planes = x.chunks_exact(self.input * self.inner);
        for (x, y) in planes.zip(y.chunks_exact_mut(self.output * self.inner)) {
            for (j, y) in y.chunks_exact_mut(self.inner).enumerate() {
                y.fill(T::of(0.0));
                for (place, weight) in taps(j) {
                    let x = &x[place * self.inner..][..self.inner];
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = y.add_product(*weight, *x);
                    }
                }
            }
        }
    }
}

/// Interpolation taps of one resized axis, independent of the other axes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AxisTaps {
    /// The elements of the operand that make one of the result.
    pub each: usize,
    /// `each` positions for each element of the result.
    pub places: Vec<usize>,
    /// The weights of `places`; none where an element is taken as it is.
    pub weights: Vec<f64>,
    /// Marks the elements of the result that take the extrapolation value.
    pub outside: Vec<bool>,
}

impl AxisTaps {
    pub(super) fn new(op: &Resize, i: usize, input: usize) -> Self {
        let output = usize::try_from(op.sizes[i]).unwrap_or(0);
        let axis = Axis::new(op, i, input, output);
        let (each, places, weights) = axis.taps(op);
        let crops = op.coordinates == Coordinates::TfCropAndResize;
        let outside = if crops { axis.outside() } else { vec![false; output] };
        Self { each, places, weights, outside }
    }
}

/// One axis: for each element of the result the position in the operand that it is taken from, in
/// elements.
struct Axis {
    input: usize,
    scale: f32,
    positions: Vec<f32>,
}

impl Axis {
    /// The `i`-th axis that is resized. Positions are computed in `f32`, each operation rounded.
    fn new(op: &Resize, i: usize, input: usize, output: usize) -> Self {
        let scale = op.scales.get(i).copied().unwrap_or(1.0);
        let count = op.axes.len();
        let end = |at: usize, absent: f32| op.roi.get(at).copied().unwrap_or(absent);
        let (start, end) = (end(i, 0.0), end(count + i, 1.0));
        let (length, size) = (input as f32, output as f32);
        let position = |j: usize| {
            let x = j as f32;
            match op.coordinates {
                Coordinates::HalfPixel => (x + 0.5) / scale - 0.5,
                Coordinates::HalfPixelSymmetric => {
                    let offset = length / 2.0 * (1.0 - size / (scale * length));
                    offset + (x + 0.5) / scale - 0.5
                }
                Coordinates::PytorchHalfPixel if output > 1 => (x + 0.5) / scale - 0.5,
                Coordinates::AlignCorners if output > 1 => x * (length - 1.0) / (size - 1.0),
                Coordinates::PytorchHalfPixel | Coordinates::AlignCorners => 0.0,
                Coordinates::Asymmetric => x / scale,
                Coordinates::TfHalfPixelForNn => (x + 0.5) / scale,
                Coordinates::TfCropAndResize if output > 1 => {
                    start * (length - 1.0) + x * (end - start) * (length - 1.0) / (size - 1.0)
                }
                Coordinates::TfCropAndResize => 0.5 * (start + end) * (length - 1.0),
            }
        };
        Self { input, scale, positions: (0..output).map(position).collect() }
    }

    /// Marks the elements of the result that lie outside the operand.
    fn outside(&self) -> Vec<bool> {
        let last = self.input as f32 - 1.0;
        self.positions.iter().map(|x| !(0.0..=last).contains(x)).collect()
    }

    /// The position `x`, moved into the operand.
    #[expect(clippy::cast_possible_truncation, reason = "positions far outside are moved inside")]
    fn inside(&self, x: f64) -> usize {
        usize::try_from((x as i64).max(0)).unwrap_or(0).min(self.input - 1)
    }

    /// The elements of the operand that make one of the result, their positions and their weights.
    fn taps(&self, op: &Resize) -> (usize, Vec<usize>, Vec<f64>) {
        if op.mode == ResizeMode::Nearest {
            let nearest = |x: &f32| self.inside(f64::from(nearest(op.nearest, *x, self.scale)));
            return (1, self.positions.iter().map(nearest).collect(), Vec::new());
        }
        let cubic = op.mode == ResizeMode::Cubic;
        // Antialiasing widens the filter by the factor by which the axis shrinks, as ONNX defines;
        // an axis that grows keeps the filter.
        let squeezed = if op.antialias { f64::from(self.scale).min(1.0) } else { 1.0 };
        let reach = if cubic { 2.0 } else { 1.0 } / squeezed;
        // The first of the elements counted from the one at or before the position.
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the size of the axis")]
        let first = (-reach).floor() as i64 + 1;
        let count = usize::try_from(2 - 2 * first).unwrap_or(2);
        let (mut places, mut weights) = (Vec::new(), Vec::new());
        for x in &self.positions {
            let base = x.floor();
            let ratio = f64::from(x - base);
            let from = weights.len();
            for k in 0..count {
                let step = first as f64 + k as f64;
                let at = f64::from(base) + step;
                let distance = (squeezed * (step - ratio)).abs();
                let weight = if cubic {
                    cubic_weight(f64::from(op.cubic), distance)
                } else {
                    (1.0 - distance).max(0.0)
                };
                let out = at < 0.0 || at > self.input as f64 - 1.0;
                weights.push(if out && op.exclude_outside { 0.0 } else { weight });
                places.push(self.inside(at));
            }
            // Both change the sum of the weights, which ONNX requires to be 1.
            if op.antialias || op.exclude_outside {
                let sum: f64 = weights[from..].iter().sum();
                if sum.abs() > 0.0 {
                    weights[from..].iter_mut().for_each(|w| *w /= sum);
                }
            }
        }
        (count, places, weights)
    }
}

/// The whole position next to `x`.
fn nearest(rule: Nearest, x: f32, scale: f32) -> f32 {
    let below = x.floor();
    let next = |beyond: bool| if beyond { below + 1.0 } else { below };
    match rule {
        Nearest::RoundPreferFloor => next(x - below > 0.5),
        Nearest::RoundPreferCeil => next(x - below >= 0.5),
        Nearest::Ceil => x.ceil(),
        Nearest::Simple if scale < 1.0 => x.ceil(),
        Nearest::Floor | Nearest::Simple => below,
    }
}

/// The weight of an element at a distance from the position (Keys 1981, eq. 4, with `a` for
/// -1/2).
fn cubic_weight(a: f64, x: f64) -> f64 {
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
