//! Images read at positions between their pixels: deformed convolutions, and regions of interest.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use super::attention::shape_error;
use super::windows::{Windows, spatial};
use super::{Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::Formula;
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

pub(super) fn imports(all: &mut Imports) {
    all.add("DeformConv", 5, deform_conv);
    all.add("RoiAlign", 3, roi_align);
}

/// The pixels on both sides of positions along an axis, each as an index with its weight.
struct Sides([(Value, Value); 2]);

/// The pixels beside `at`, of `size`; beyond the image there is nothing.
fn open_sides(n: &mut Node<'_, '_>, at: Value, size: i64) -> Result<Sides, NodeError> {
    let low = n.floor(at)?;
    let high = n.shift(low, 1.0)?;
    let to_high = n.sub(at, low)?;
    let to_low = n.complement(to_high)?;
    let side = |n: &mut Node<'_, '_>, place: Value, weight: Value| {
        let (from, to) = (n.is_at_least(place, 0.0)?, n.is_at_most(place, (size - 1) as f64)?);
        let inside = n.and(from, to)?;
        let weight = n.only(inside, weight)?;
        Ok::<_, NodeError>((index(n, place, size)?, weight))
    };
    Ok(Sides([side(n, low, to_low)?, side(n, high, to_high)?]))
}

/// The pixels beside `at`, of `size`: those up to one pixel beyond the image count as its edge.
fn edge_sides(n: &mut Node<'_, '_>, at: Value, size: i64) -> Result<Sides, NodeError> {
    let (from, to) = (n.is_at_least(at, -1.0)?, n.is_at_most(at, size as f64)?);
    let near = n.and(from, to)?;
    let at = n.clip(at, 0.0, (size - 1) as f64)?;
    let low = n.floor(at)?;
    let high = n.shift(low, 1.0)?;
    let to_high = n.sub(at, low)?;
    let to_low = n.complement(to_high)?;
    let (to_low, to_high) = (n.only(near, to_low)?, n.only(near, to_high)?);
    Ok(Sides([(index(n, low, size)?, to_low), (index(n, high, size)?, to_high)]))
}

/// A place as an index of an axis, whatever number it is.
fn index(n: &mut Node<'_, '_>, place: Value, size: i64) -> Result<Value, NodeError> {
    let last = (size - 1) as f64;
    let inside = n.clip(place, 0.0, last)?;
    let index = n.convert(inside, DType::I64)?;
    // A NaN becomes any integer.
    n.clip(index, 0.0, last)
}

/// The four pixels around each position, each times its weight. Their coordinates behind `batch`
/// shared axes of `x` are `before`, then those of the rows and columns; the last axis of `x` are
/// the channels.
fn corners(
    n: &mut Node<'_, '_>,
    x: Value,
    batch: i64,
    before: Option<Value>,
    [Sides(rows), Sides(columns)]: [Sides; 2],
) -> Result<Vec<Value>, NodeError> {
    let mut found = Vec::new();
    for (row, down) in rows {
        for (column, right) in columns {
            let weight = n.mul(down, right)?;
            let shape = n.shape(weight).to_vec();
            let mut coordinates = Vec::new();
            for part in before.into_iter().chain([row, column]) {
                let part = n.broadcast(part, shape.clone())?;
                coordinates.push(n.unsqueeze(part, vec![-1])?);
            }
            let places = n.concat(&coordinates, -1)?;
            let pixels = n.gather_blocks(x, places, batch)?;
            let weight = n.unsqueeze(weight, vec![-1])?;
            found.push(n.mul(pixels, weight)?);
        }
    }
    Ok(found)
}

fn sum(n: &mut Node<'_, '_>, all: &[Value]) -> Result<Value, NodeError> {
    let [first, rest @ ..] = all else { return Err(NodeError::Missing { operand: 0 }) };
    rest.iter().try_fold(*first, |sum, x| n.add(sum, *x))
}

/// The sizes of an image `[N, C, H, W]` behind its channels.
fn image_sizes(n: &Node<'_, '_>, x: Value) -> Result<[i64; 2], NodeError> {
    let sizes: Option<Vec<i64>> = spatial(n.shape(x)).iter().map(Dim::as_const).collect();
    match sizes.as_deref() {
        Some([h, w]) if n.shape(x).rank() == 4 && *h > 0 && *w > 0 => Ok([*h, *w]),
        _ => Err(shape_error(n, 0, x, "it must be images of two axes, whose sizes are known")),
    }
}

/// A tensor of the element type of `like`, of `number(i)` for each place `i`.
fn numbers(
    n: &mut Node<'_, '_>,
    like: Value,
    dims: [i64; 3],
    number: impl Fn(i64) -> f64,
) -> Result<Value, NodeError> {
    let shape: Shape = dims.into_iter().map(Dim::from).collect();
    // Before memory is taken.
    n.charge(&TensorType::new(DType::F64, shape.clone()))?;
    let all: Vec<f64> = (0..dims.iter().product()).map(number).collect();
    let wide = Tensor::new(&shape.at(0), &all)?;
    Formula::constant(n, like, wide)
}

/// The sizes of a deformed convolution.
struct Deformed {
    batch: Dim,
    image: [i64; 2],
    kernel: [i64; 2],
    out: [i64; 2],
    channels: i64,
    groups: i64,
    offset_groups: i64,
    made: i64,
    windows: Windows,
}

impl Deformed {
    fn read(n: &mut Node<'_, '_>) -> Result<Self, NodeError> {
        let (x, w, offset) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
        let (groups, offset_groups) = (n.int("group", 1)?, n.int("offset_group", 1)?);
        let image = image_sizes(n, x)?;
        let constants =
            |shape: &[Dim]| shape.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
        let (batch, channels) = (n.shape(x)[0].clone(), n.shape(x)[1].as_const());
        let weights = constants(n.shape(w));
        let (Some([made, each, kh, kw]), Some(channels)) = (weights.as_deref(), channels) else {
            return Err(shape_error(n, 1, w, "it must be a kernel of two axes"));
        };
        let kernel = [*kh, *kw];
        if n.opt_ints("kernel_shape")?.is_some_and(|given| given != kernel) {
            return Err(wrong("kernel_shape", format!("is not that of {}", n.ty(w))));
        }
        let positive = groups > 0 && offset_groups > 0 && *kh > 0 && *kw > 0;
        if !positive
            || each * groups != channels
            || channels % offset_groups != 0
            || made % groups != 0
        {
            return Err(wrong("group", format!("is {groups} for {} and {}", n.ty(x), n.ty(w))));
        }
        let windows = Windows::read(n, &spatial(n.shape(x)).clone(), &kernel)?;
        let behind = n.shape(offset).to_vec();
        // Fewer axes are refused below.
        let out = constants(behind.get(2..).unwrap_or_default());
        let Some([oh, ow]) = out.as_deref().filter(|_| behind.len() == 4) else {
            return Err(shape_error(n, 2, offset, "it must be an offset for each position"));
        };
        let (made, out) = (*made, [*oh, *ow]);
        Ok(Self { batch, image, kernel, out, channels, groups, offset_groups, made, windows })
    }

    /// The number of taps of the kernel, and of positions.
    fn counts(&self) -> [i64; 2] {
        [self.kernel.iter().product(), self.out.iter().product()]
    }

    /// Operand `i` as one number of `kinds` for each group of offsets, tap and position.
    fn offsets(&self, n: &mut Node<'_, '_>, i: usize, kinds: i64) -> Result<Value, NodeError> {
        let (value, [taps, places]) = (n.operand(i)?, self.counts());
        let expected = [self.offset_groups * taps * kinds, self.out[0], self.out[1]];
        let expected = [self.batch.clone()].into_iter().chain(expected.map(Dim::from));
        if n.shape(value).to_vec() != expected.collect::<Vec<Dim>>() {
            return Err(shape_error(n, i, value, "it must have numbers for each tap and position"));
        }
        let shape = [self.offset_groups, taps, kinds, places].map(Dim::from);
        n.view(value, [self.batch.clone()].into_iter().chain(shape).collect())
    }

    /// Where the taps read along axis `i`, `[N, G, taps * positions]`.
    fn places(&self, n: &mut Node<'_, '_>, i: usize) -> Result<Value, NodeError> {
        let offsets = self.offsets(n, 2, 2)?;
        let own = if i == 0 { 0..1 } else { 1..2 };
        let own = n.every(offsets, 3, own, 1)?;
        let [taps, places] = self.counts();
        let at = |list: &[i64], absent| list.get(i).copied().unwrap_or(absent);
        let (stride, dilation) = (at(&self.windows.strides, 1), at(&self.windows.dilations, 1));
        let pad = at(&self.windows.pads, 0);
        let along = |[_, columns]: [i64; 2], k: i64| if i == 0 { k / columns } else { k % columns };
        let number = |k: i64| {
            let (tap, place) = (along(self.kernel, k / places), along(self.out, k % places));
            tap as f64 * dilation as f64 + place as f64 * stride as f64 - pad as f64
        };
        let base = numbers(n, own, [taps, 1, places], number)?;
        let at = n.add(own, base)?;
        self.joined(n, at)
    }

    fn joined(&self, n: &mut Node<'_, '_>, at: Value) -> Result<Value, NodeError> {
        let [taps, places] = self.counts();
        n.view(at, vec![self.batch.clone(), self.offset_groups.into(), (taps * places).into()])
    }
}

/// A convolution whose taps are moved by offsets, and weighted by a mask.
fn deform_conv(n: &mut Node<'_, '_>) -> Done {
    let sizes = Deformed::read(n)?;
    let (x, w) = (n.operand(0)?, n.operand(1)?);
    let [taps, places] = sizes.counts();
    let Deformed { batch, image: [h, wide], groups, offset_groups, channels, made, .. } = &sizes;
    let each = channels / offset_groups;
    let view = |list: &[i64]| {
        [batch.clone()].into_iter().chain(list.iter().copied().map(Dim::from)).collect::<Vec<Dim>>()
    };
    let grouped = n.view(x, view(&[*offset_groups, each, *h, *wide]))?;
    let pixels = n.transpose(grouped, vec![0, 1, 3, 4, 2])?;
    let (rows, columns) = (sizes.places(n, 0)?, sizes.places(n, 1)?);
    let sides = [open_sides(n, rows, *h)?, open_sides(n, columns, *wide)?];
    let found = corners(n, pixels, 2, None, sides)?;
    let mut read = sum(n, &found)?;
    if n.optional(4).is_some() {
        let mask = sizes.offsets(n, 4, 1)?;
        let mask = sizes.joined(n, mask)?;
        let mask = n.unsqueeze(mask, vec![-1])?;
        read = n.mul(read, mask)?;
    }
    let read = n.view(read, view(&[*offset_groups, taps, places, each]))?;
    let read = n.transpose(read, vec![0, 1, 4, 2, 3])?;
    let read = n.view(read, view(&[*groups, channels / groups * taps, places]))?;
    let kernel = [*groups, made / groups, channels / groups * taps].map(Dim::from);
    let kernel = n.view(w, kernel.to_vec())?;
    let y = n.matmul(kernel, read)?;
    let shape = view(&[*made, sizes.out[0], sizes.out[1]]);
    let Some(bias) = n.optional(3) else {
        n.last(0).view(y, shape)?;
        return Ok(());
    };
    let y = n.view(y, shape)?;
    let bias = n.unsqueeze(bias, vec![1, 2])?;
    n.last(0).add(y, bias)?;
    Ok(())
}

/// The samples of a region along one axis.
struct Samples {
    /// The cells of the result.
    cells: i64,
    /// The samples of a cell.
    each: i64,
}

impl Samples {
    /// Positions `[R, cells * each]` between two edges `[R, 1]`.
    fn between(
        &self,
        n: &mut Node<'_, '_>,
        [from, to]: [Value; 2],
        least: Option<f64>,
    ) -> Result<Value, NodeError> {
        let mut length = n.sub(to, from)?;
        if let Some(least) = least {
            let least = n.number(length, least)?;
            length = n.max(length, least)?;
        }
        let cells = n.number(length, self.cells as f64)?;
        let cell = n.div(length, cells)?;
        let each = self.each;
        let within = |i: i64| (i / each) as f64 + ((i % each) as f64 + 0.5) / each as f64;
        let steps = numbers(n, cell, [1, 1, self.cells * each], within)?;
        let steps = n.squeeze(steps, vec![0])?;
        let moved = n.mul(steps, cell)?;
        n.add(from, moved)
    }
}

/// The cells of regions of images, each the mean or the largest of its samples.
fn roi_align(n: &mut Node<'_, '_>) -> Done {
    let (x, regions, images) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let most = n.choice("mode", "avg", &[("avg", false), ("max", true)])?;
    let default = if n.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let modes = [("half_pixel", true), ("output_half_pixel", false)];
    let half = n.choice("coordinate_transformation_mode", default, &modes)?;
    let (rows, columns) = (n.int("output_height", 1)?, n.int("output_width", 1)?);
    let (each, scale) = (n.int("sampling_ratio", 0)?, n.float("spatial_scale", 1.0)?);
    if each <= 0 {
        let reason = "is 0: the number of samples would depend on the sizes of the regions";
        return Err(wrong("sampling_ratio", reason));
    }
    if rows.min(columns) <= 0 || each.max(rows).max(columns) > MOST_CELLS {
        return Err(wrong("output_height", format!("is {rows}, with output_width {columns}")));
    }
    let [h, w] = image_sizes(n, x)?;
    // A scalar is refused by its rank.
    let count = n.shape(images).first().cloned().unwrap_or(Dim::ZERO);
    if n.shape(images).rank() != 1 || n.shape(regions).to_vec() != [count.clone(), 4.into()] {
        return Err(shape_error(n, 1, regions, "it must have 4 edges for each region"));
    }
    let scaled = n.scale(regions, scale.into())?;
    let edges = n.shift(scaled, if half { -0.5 } else { 0.0 })?;
    let mut edge = Vec::new();
    for i in 0..4 {
        edge.push(n.every(edges, 1, i..i + 1, 1)?);
    }
    let least = (!half).then_some(1.0);
    let down = Samples { cells: rows, each }.between(n, [edge[1], edge[3]], least)?;
    let right = Samples { cells: columns, each }.between(n, [edge[0], edge[2]], least)?;
    let (down, right) = (n.unsqueeze(down, vec![2])?, n.unsqueeze(right, vec![1])?);
    let sides = [edge_sides(n, down, h)?, edge_sides(n, right, w)?];
    let images = n.convert(images, DType::I64)?;
    let images = n.unsqueeze(images, vec![1, 2])?;
    let pixels = n.transpose(x, vec![0, 2, 3, 1])?;
    let found = corners(n, pixels, 0, Some(images), sides)?;
    let channels = n.shape(x)[1].clone();
    let cells = [rows, each, columns, each].map(Dim::from);
    let cells = [count].into_iter().chain(cells).chain([channels]).collect();
    // The largest is one of the products, before they are added.
    let samples = if most {
        let [first, rest @ ..] = &found[..] else { return Err(n.not_known(0)) };
        rest.iter().try_fold(*first, |a, b| n.max(a, *b))?
    } else {
        sum(n, &found)?
    };
    let samples = n.view(samples, cells)?;
    let y = if most {
        n.reduce_max(samples, vec![2, 4], false)?
    } else {
        n.reduce_mean(samples, vec![2, 4], false)?
    };
    n.last(0).transpose(y, vec![0, 3, 1, 2])?;
    Ok(())
}

/// The cells of a region along an axis, and the samples of a cell.
const MOST_CELLS: i64 = 1 << 12;
