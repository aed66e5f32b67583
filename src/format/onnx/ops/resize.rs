//! Images of other sizes.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written, free, longs, word, wrong};
use crate::ir::Value;
use crate::op::infer::axis as named_axis;
use crate::op::{Coordinates, Formula, Nearest, Resize, ResizeMode};
use crate::types::{Dim, Tensor};

/// The last came with opset 11.
const MODES: [(&str, ResizeMode); 3] = [
    ("nearest", ResizeMode::Nearest),
    ("linear", ResizeMode::Linear),
    ("cubic", ResizeMode::Cubic),
];

const COORDINATES: [(&str, Coordinates); 7] = [
    ("half_pixel", Coordinates::HalfPixel),
    ("half_pixel_symmetric", Coordinates::HalfPixelSymmetric),
    ("pytorch_half_pixel", Coordinates::PytorchHalfPixel),
    ("align_corners", Coordinates::AlignCorners),
    ("asymmetric", Coordinates::Asymmetric),
    ("tf_half_pixel_for_nn", Coordinates::TfHalfPixelForNn),
    ("tf_crop_and_resize", Coordinates::TfCropAndResize),
];

const ROUNDING: [(&str, Nearest); 4] = [
    ("round_prefer_floor", Nearest::RoundPreferFloor),
    ("round_prefer_ceil", Nearest::RoundPreferCeil),
    ("floor", Nearest::Floor),
    ("ceil", Nearest::Ceil),
];

pub(super) fn imports(all: &mut Imports) {
    all.add("Resize", 4, resize);
    all.add("Upsample", 2, upsample);
}

/// The elements of the float operand `i`, which must be a constant of the file; none where it is
/// left out or empty.
fn floats(n: &Node<'_, '_>, i: usize) -> Result<Option<Vec<f32>>, NodeError> {
    if n.optional(i).is_none() {
        return Ok(None);
    }
    let tensor = n.known(i).ok_or_else(|| n.not_known(i))?;
    #[expect(clippy::cast_possible_truncation, reason = "the operand holds f32")]
    let list: Vec<f32> = tensor.to_f64().into_iter().map(|x| x as f32).collect();
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// Interpolation of a resize as the node declares it, without the axes.
fn interpolation(n: &mut Node<'_, '_>) -> Result<Resize, NodeError> {
    let known = if n.opset < 11 { &MODES[..2] } else { &MODES };
    let mode = n.choice("mode", "nearest", known)?;
    let mut op = Resize {
        axes: Vec::new(),
        sizes: Vec::new(),
        scales: Vec::new(),
        mode,
        // Before opset 11 there is one rule for positions, `i / scale`, and one for rounding, and
        // no attribute names them.
        nearest: Nearest::Simple,
        coordinates: Coordinates::Asymmetric,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        roi: Vec::new(),
        extrapolation: 0.0,
    };
    if n.opset < 11 {
        return Ok(op);
    }
    op.coordinates = n.choice("coordinate_transformation_mode", "half_pixel", &COORDINATES)?;
    // It has no effect on the other modes.
    op.nearest = if mode == ResizeMode::Nearest {
        n.choice("nearest_mode", "round_prefer_floor", &ROUNDING)?
    } else {
        n.string("nearest_mode", "").map(|_| Nearest::RoundPreferFloor)?
    };
    let (cubic, outside) = (n.float("cubic_coeff_a", -0.75)?, n.float("extrapolation_value", 0.0)?);
    if mode == ResizeMode::Cubic {
        op.cubic = cubic;
    }
    if op.coordinates == Coordinates::TfCropAndResize {
        op.extrapolation = outside;
    }
    op.exclude_outside = n.flag("exclude_outside", false)?;
    op.antialias = n.flag("antialias", false)?;
    Ok(op)
}

/// The size and the scale of an axis of `dim` elements that is scaled.
fn scaled(dim: &Dim, scale: f32) -> Result<(Dim, f32), NodeError> {
    if scale.to_bits() == 1.0f32.to_bits() {
        return Ok((dim.clone(), scale));
    }
    let Some(length) = dim.as_const() else {
        let text = format!("a resize by {scale} of an axis of {dim} elements");
        return Err(NodeError::Unsupported(text));
    };
    #[expect(clippy::cast_possible_truncation, reason = "the operator checks the size")]
    // The product is rounded to `f32` before the floor, as runtimes compute it: in `f64` some
    // scales would give another size.
    let size = (scale * length as f32).floor() as i64;
    Ok((size.into(), scale))
}

/// The sizes and the scales of axes of `dims` elements that shall have `target` elements.
fn sized(dims: &[Dim], target: &[Dim], policy: &str) -> Result<Vec<(Dim, f32)>, NodeError> {
    let scale = |(dim, size): (&Dim, &Dim)| match (dim.as_const(), size.as_const()) {
        _ if dim == size => Ok(1.0),
        (Some(length), Some(size)) if length > 0 => Ok(size as f32 / length as f32),
        _ => {
            let text = format!("a resize of an axis of {dim} elements to {size}");
            Err(NodeError::Unsupported(text))
        }
    };
    let scales = dims.iter().zip(target).map(scale).collect::<Result<Vec<f32>, _>>()?;
    let all = match policy {
        "stretch" => return Ok(target.iter().cloned().zip(scales).collect()),
        // Both policies scale all axes alike, by the smallest or the largest of the scales, so that
        // the image keeps its proportions.
        "not_larger" => scales.iter().copied().reduce(f32::min),
        "not_smaller" => scales.iter().copied().reduce(f32::max),
        other => return Err(wrong("keep_aspect_ratio_policy", format!("is `{other}`"))),
    };
    // No axis, no scale.
    let all = all.unwrap_or(1.0);
    let size = |dim: &Dim| match dim.as_const() {
        #[expect(clippy::cast_possible_truncation, reason = "the operator checks the size")]
        Some(length) => Ok((Dim::from((all * length as f32).round() as i64), all)),
        None => scaled(dim, all),
    };
    dims.iter().map(size).collect()
}

fn resize(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (shape, op) = (n.shape(x).clone(), interpolation(n)?);
    let axes = match n.opt_ints("axes")? {
        None => (0..shape.rank()).collect(),
        Some(axes) => axes
            .iter()
            .map(|a| named_axis("axes", *a, shape.rank()))
            .collect::<Result<Vec<_>, _>>()?,
    };
    let policy = n.string("keep_aspect_ratio_policy", "stretch")?;
    let dims: Vec<Dim> = axes.iter().map(|a| shape[*a].clone()).collect();
    let at = if n.opset < 11 { 1 } else { 2 };
    let (scales, sizes) = (floats(n, at)?, n.opt_sizes(3)?.filter(|s| !s.is_empty()));
    let count = scales.iter().map(Vec::len).chain(sizes.iter().map(Vec::len)).sum::<usize>();
    if count != axes.len() {
        let text = format!("{count} sizes or scales for {} axes", axes.len());
        return Err(NodeError::Unsupported(text));
    }
    let parts = match (scales, sizes) {
        (Some(scales), _) => dims
            .iter()
            .zip(scales)
            .map(|(dim, scale)| scaled(dim, scale))
            .collect::<Result<_, _>>()?,
        (None, Some(mut sizes)) => {
            if let Some(batch) = n.freed() {
                let own = dims.iter().cloned().collect();
                sizes = free::expand(batch, &own, sizes);
            }
            sized(&dims, &sizes, &policy)?
        }
        (None, None) => Vec::new(),
    };
    let crops = op.coordinates == Coordinates::TfCropAndResize;
    // The check of the length refuses a region that is left out.
    let roi = if crops { floats(n, 1)?.unwrap_or_default() } else { Vec::new() };
    if crops && roi.len() != 2 * axes.len() {
        let text = format!("a region of {} numbers for {} axes", roi.len(), axes.len());
        return Err(NodeError::Unsupported(text));
    }
    let part = |(i, (axis, (size, scale))): (usize, (&usize, (Dim, f32)))| {
        let (start, end) = if crops { (roi[i], roi[axes.len() + i]) } else { (0.0, 1.0) };
        AxisPart { axis: *axis, size, scale, start, end }
    };
    let parts = axes.iter().zip(parts).enumerate().map(part);
    resized(n, x, op, parts.collect())
}

/// An axis with its size and its scale, and the part of it that is resized.
struct AxisPart {
    axis: usize,
    size: Dim,
    scale: f32,
    start: f32,
    end: f32,
}

/// Adds the resize of those of the axes that change.
fn resized(n: &mut Node<'_, '_>, x: Value, mut op: Resize, mut parts: Vec<AxisPart>) -> Done {
    let shape = n.shape(x).clone();
    let bits = f32::to_bits;
    // Neither the batch nor the channels are resized as a rule. Removing what stays keeps sizes
    // that are not constants out of the operator.
    parts.retain(|part| {
        let whole = part.start.abs() < 1e-9 && (part.end - 1.0).abs() < 1e-9;
        !whole || bits(part.scale) != bits(1.0) || part.size != shape[part.axis]
    });
    // The file names axes in any order, the operator in ascending order.
    parts.sort_by_key(|part| part.axis);
    if parts.is_empty() {
        n.last(0).identity(x)?;
        return Ok(());
    }
    for AxisPart { axis, size, scale, .. } in &parts {
        let size = size.as_const().ok_or_else(|| {
            NodeError::Unsupported(format!("a resize of axis {axis}, which has {size} elements,"))
        })?;
        op.axes.push(*axis);
        op.sizes.push(size);
        op.scales.push(*scale);
    }
    if op.coordinates == Coordinates::TfCropAndResize {
        op.roi.extend(parts.iter().map(|part| part.start));
        op.roi.extend(parts.iter().map(|part| part.end));
    }
    n.result(op, &[x])
}

fn upsample(n: &mut Node<'_, '_>) -> Done {
    if n.opset > 9 {
        return Err(NodeError::Unsupported(format!("Upsample in opset {}", n.opset)));
    }
    let x = n.operand(0)?;
    let (shape, op) = (n.shape(x).clone(), interpolation(n)?);
    let scales = if n.opset < 9 { n.opt_floats("scales")? } else { floats(n, 1)? };
    let scales = scales.ok_or_else(|| wrong("scales", "is missing"))?;
    if scales.len() != shape.rank() {
        let text = format!("{} scales for {}", scales.len(), n.ty(x));
        return Err(NodeError::Unsupported(text));
    }
    let part = |(axis, (dim, scale)): (usize, (&Dim, &f32))| {
        let (size, scale) = scaled(dim, *scale)?;
        Ok(AxisPart { axis, size, scale, start: 0.0, end: 1.0 })
    };
    let parts = shape.iter().zip(&scales).enumerate().map(part);
    let parts = parts.collect::<Result<Vec<AxisPart>, NodeError>>()?;
    resized(n, x, op, parts)
}

impl Export for Resize {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let mode = word(&MODES, &self.mode)?;
        let nearest = if self.nearest != Nearest::Simple {
            self.nearest
        } else if self.mode == ResizeMode::Nearest {
            return Err("its rounding is that of operator sets before 11".into());
        } else {
            Nearest::RoundPreferFloor
        };
        if self.coordinates == Coordinates::TfHalfPixelForNn {
            return Err("ONNX no longer has its coordinates".into());
        }
        let coordinates = word(&COORDINATES, &self.coordinates)?;
        let (shape, axes) = (w.shape(0)?, &self.axes);
        let lengths: Vec<i64> = axes.iter().filter_map(|a| shape.get(*a)?.as_const()).collect();
        // ONNX takes sizes or scales, not both. From sizes a runtime computes these ratios: only
        // where the operator's scales have the same bits may the sizes be written.
        let own = |(length, size): (&i64, &i64)| *size as f32 / *length as f32;
        let ratios: Vec<f32> = lengths.iter().zip(&self.sizes).map(own).collect();
        let mut operands = w.operands()?;
        let numbers = |list: &[f32]| Tensor::new(&[list.len()], list).map_err(|e| e.to_string());
        let region =
            if self.roi.is_empty() { String::new() } else { w.tensor(&numbers(&self.roi)?)? };
        operands.push(region);
        if ratios == self.scales {
            operands.extend([String::new(), w.ints(&self.sizes)?]);
        } else {
            operands.push(w.tensor(&numbers(&self.scales)?)?);
        }
        let axes = longs(axes)?;
        w.done(
            "Resize",
            operands,
            &[
                ("axes", axes.as_slice().into()),
                ("mode", mode),
                ("nearest_mode", word(&ROUNDING, &nearest)?),
                ("coordinate_transformation_mode", coordinates),
                ("cubic_coeff_a", self.cubic.into()),
                ("exclude_outside", self.exclude_outside.into()),
                ("antialias", self.antialias.into()),
                ("extrapolation_value", self.extrapolation.into()),
            ],
        )
    }
}
