//! Images read at other places.

use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::ir::Value;
use crate::op::Formula;
use crate::types::{DType, Dim, Shape, Tensor};

/// The place that an element comes from, for each image: `x = x[0] * column + x[1] * row + x[2]`,
/// and `y` alike. Slopes divide both by `slopes[0] * column + slopes[1] * row + 1`. The numbers are
/// `f32`, of one element or `[N, 1, 1, 1]`.
pub(super) struct Transform {
    pub(super) x: [Value; 3],
    pub(super) y: [Value; 3],
    pub(super) slopes: Option<[Value; 2]>,
}

impl Transform {
    pub(super) fn identity(at: &mut At<'_, '_>) -> Read<Self> {
        let mut number = |x: f32| at.literal(Tensor::new(&[1], &[x])?);
        let (zero, one) = (number(0.0)?, number(1.0)?);
        Ok(Self { x: [one, zero, zero], y: [zero, one, zero], slopes: None })
    }
}

/// What an element is that comes from outside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outside {
    /// A number.
    Constant,
    /// The element at the edge.
    Nearest,
    /// The elements again, from the last to the first, from the first to the last.
    Reflect,
    /// The elements again, from the first to the last.
    Wrap,
}

/// How elements are read between others and outside.
pub(super) struct Sampler {
    outside: Outside,
    fill: f64,
    is_linear: bool,
}

/// An element of an axis that is read: its index, its part in the result (`None` for all of it),
/// and whether it lies inside (`None` for always).
struct Tap {
    index: Value,
    weight: Option<Value>,
    inside: Option<Value>,
}

/// The indices along an axis of images, as numbers that spread over the other axes.
pub(super) fn places(at: &mut At<'_, '_>, x: Value, axis: usize, to: DType) -> Read<Value> {
    let size = at.extent(x, axis)?;
    let numbers = at.count_to(size.into(), DType::I64)?;
    let numbers = at.convert(numbers, to)?;
    let mut shape = vec![Dim::ONE; at.rank(x)];
    shape[axis] = size.into();
    at.view(numbers, shape)
}

impl Sampler {
    pub(super) fn read(at: &At<'_, '_>) -> Read<Self> {
        const OUTSIDE: [(&str, Outside); 4] = [
            ("constant", Outside::Constant),
            ("nearest", Outside::Nearest),
            ("reflect", Outside::Reflect),
            ("wrap", Outside::Wrap),
        ];
        let outside = at.config.choice("fill_mode", "reflect", &OUTSIDE)?;
        Ok(Self { outside, ..Self::bounded(at)? })
    }

    /// With a number for all elements from outside.
    pub(super) fn bounded(at: &At<'_, '_>) -> Read<Self> {
        const LINEAR: [(&str, bool); 2] = [("bilinear", true), ("nearest", false)];
        Ok(Self {
            outside: Outside::Constant,
            fill: at.config.number("fill_value", 0.0)?,
            is_linear: at.config.choice("interpolation", "bilinear", &LINEAR)?,
        })
    }

    /// Images `[N, C, H, W]` read at other places.
    pub(super) fn apply(
        &self,
        at: &mut At<'_, '_>,
        images: Value,
        transform: &Transform,
    ) -> Read<Value> {
        let sizes = [at.extent(images, 2)?, at.extent(images, 3)?];
        let axes = [places(at, images, 2, DType::F32)?, places(at, images, 3, DType::F32)?];
        let linear = |at: &mut At<'_, '_>, [of_x, of_y]: [Value; 2], rest: Value| {
            let (of_x, of_y) = (at.mul(of_x, axes[1])?, at.mul(of_y, axes[0])?);
            let sum = at.add(of_x, of_y)?;
            at.add(sum, rest)
        };
        let divisor = match transform.slopes {
            Some(slopes) => {
                let one = at.number(slopes[0], 1.0)?;
                let divisor = linear(at, slopes, one)?;
                // What is infinitely far becomes just far outside.
                let (zero, least) = (at.number(divisor, 0.0)?, at.number(divisor, 1e-7)?);
                let is_zero = at.equal(divisor, zero)?;
                Some(at.choose(is_zero, least, divisor)?)
            }
            None => None,
        };
        let mut taps = Vec::new();
        for (row, size) in [&transform.y, &transform.x].into_iter().zip(sizes) {
            let place = linear(at, [row[0], row[1]], row[2])?;
            let place = match divisor {
                Some(divisor) => at.div(place, divisor)?,
                None => place,
            };
            taps.push(self.taps(at, place, size)?);
        }
        let mut sum = None;
        for y in &taps[0] {
            for x in &taps[1] {
                let part = self.part(at, images, [y, x], sizes)?;
                sum = Some(match sum {
                    Some(sum) => at.add(sum, part)?,
                    None => part,
                });
            }
        }
        sum.ok_or_else(|| Fault::new("it reads nothing"))
    }

    /// The elements of an axis that are read for each place.
    fn taps(&self, at: &mut At<'_, '_>, place: Value, size: i64) -> Read<Vec<Tap>> {
        if !self.is_linear {
            // Halves go away from zero.
            let (sign, distance) = (at.sign(place)?, at.abs(place)?);
            let raised = at.shift(distance, 0.5)?;
            let whole = at.floor(raised)?;
            let nearest = at.mul(sign, whole)?;
            return Ok(vec![self.tap(at, nearest, None, size)?]);
        }
        let below = at.floor(place)?;
        let upper = at.sub(place, below)?;
        let lower = at.complement(upper)?;
        let above = at.shift(below, 1.0)?;
        Ok(vec![self.tap(at, below, Some(lower), size)?, self.tap(at, above, Some(upper), size)?])
    }

    /// The element of an index that may lie outside.
    fn tap(
        &self,
        at: &mut At<'_, '_>,
        index: Value,
        weight: Option<Value>,
        size: i64,
    ) -> Read<Tap> {
        let (last, size) = ((size - 1) as f64, size as f64);
        let mut inside = None;
        let index = match self.outside {
            Outside::Constant => {
                let kept = at.clip(index, 0.0, last)?;
                inside = Some(at.equal(kept, index)?);
                kept
            }
            Outside::Nearest => at.clip(index, 0.0, last)?,
            Outside::Wrap => remainder(at, index, size)?,
            Outside::Reflect => {
                // Between halves the elements are a wave of twice their number.
                let twice = at.scale(index, 2.0)?;
                let odd = at.shift(twice, 1.0 + 2.0 * size)?;
                let wave = remainder(at, odd, 4.0 * size)?;
                let wave = at.shift(wave, -2.0 * size)?;
                let wave = at.abs(wave)?;
                let half = at.shift(wave, -1.0)?;
                let half = at.scale(half, 0.5)?;
                let whole = at.floor(half)?;
                at.clip(whole, 0.0, last)?
            }
        };
        Ok(Tap { index, weight, inside })
    }

    /// What one element of each axis adds to the result.
    fn part(
        &self,
        at: &mut At<'_, '_>,
        images: Value,
        [y, x]: [&Tap; 2],
        [height, width]: [i64; 2],
    ) -> Read<Value> {
        let to = at.ty_of(images);
        let row = at.scale(y.index, width as f64)?;
        let place = at.add(row, x.index)?;
        let place = at.convert(place, DType::I64)?;
        let shape = at.shape(images);
        let count = Dim::from(height.saturating_mul(width));
        let flat = |channels: Dim| -> Shape {
            [shape[0].clone(), channels, count.clone()].into_iter().collect()
        };
        // A place is the same for all images where nothing was drawn for it.
        let all: Shape =
            [shape[0].clone(), Dim::ONE, height.into(), width.into()].into_iter().collect();
        let place = at.expand(place, &all)?;
        let place = at.reshape(place, &flat(Dim::ONE))?;
        let place = at.expand(place, &flat(shape[1].clone()))?;
        let elements = at.reshape(images, &flat(shape[1].clone()))?;
        let found = at.gather_elements(elements, place, 2)?;
        let mut found = at.reshape(found, &shape)?;
        for inside in [y.inside, x.inside].into_iter().flatten() {
            let fill = at.number(found, self.fill)?;
            found = at.choose(inside, found, fill)?;
        }
        for weight in [y.weight, x.weight].into_iter().flatten() {
            let weight = at.cast(weight, to)?;
            found = at.mul(found, weight)?;
        }
        Ok(found)
    }
}

/// What is left of whole numbers in steps of a size, at least 0.
fn remainder(at: &mut At<'_, '_>, x: Value, size: f64) -> Read<Value> {
    let divisor = at.number(x, size)?;
    let part = at.div(x, divisor)?;
    let steps = at.floor(part)?;
    let whole = at.scale(steps, size)?;
    at.sub(x, whole)
}
