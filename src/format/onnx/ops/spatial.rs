//! Operators that give images other sizes.

use super::super::node::{Node, wrong};
use super::super::{NodeError, free};
use super::Line;
use crate::ir::Value;
use crate::op::infer::axis as named_axis;
use crate::op::{
    BlockOrder, Blocks, ConvTranspose, Coordinates, Identity, Nearest, Resize, ResizeMode,
};
use crate::types::Dim;

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "DepthToSpace" => (1, |n| {
            let (x, (block, mode)) = (n.operand(0)?, blocks(n)?);
            n.result(Blocks::DepthToSpace { block, mode }, &[x])
        }),
        "SpaceToDepth" => (1, |n| {
            let (x, (block, mode)) = (n.operand(0)?, blocks(n)?);
            n.result(Blocks::SpaceToDepth { block, mode }, &[x])
        }),
        "ConvTranspose" => (3, conv_transpose),
        "Resize" => (4, resize),
        "Upsample" => (2, upsample),
        _ => return None,
    })
}

/// The size of the blocks and the order of the channels.
fn blocks(n: &mut Node<'_, '_>) -> Result<(i64, BlockOrder), NodeError> {
    let block = n.opt_int("blocksize")?.ok_or_else(|| wrong("blocksize", "is missing"))?;
    let mode = match n.string("mode", "DCR")?.as_str() {
        "DCR" => BlockOrder::Dcr,
        "CRD" => BlockOrder::Crd,
        other => return Err(wrong("mode", format!("is `{other}`"))),
    };
    Ok((block, mode))
}

/// The settings of a transposed convolution, with `auto_pad` and the sizes asked for resolved.
struct Spread {
    input: Vec<i64>,
    kernel: Vec<i64>,
    op: ConvTranspose,
}

impl Spread {
    /// The size of each axis without padding.
    fn reach(&self) -> Vec<i64> {
        let ConvTranspose { strides, dilations, output_padding, .. } = &self.op;
        let one = |(axis, (size, taps)): (usize, (&i64, &i64))| {
            let steps = size.saturating_sub(1).saturating_mul(at(strides, axis, 1));
            let extent = taps.saturating_sub(1).saturating_mul(at(dilations, axis, 1));
            let added = at(output_padding, axis, 0);
            steps.saturating_add(extent).saturating_add(1).saturating_add(added)
        };
        self.input.iter().zip(&self.kernel).enumerate().map(one).collect()
    }

    /// Sets the padding with which the sizes are `asked`: what is too much is left out at both ends, of an odd number
    /// the larger half at the end where `upper`; what is missing is added at the end.
    fn fit(&mut self, asked: &[i64], upper: bool) {
        let (mut before, mut after, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, (reach, asked)) in self.reach().iter().zip(asked).enumerate() {
            let total = reach.saturating_sub(*asked);
            let (small, large) = (total.max(0) / 2, total.max(0) - total.max(0) / 2);
            before.push(if upper { small } else { large });
            after.push(if upper { large } else { small });
            let given = at(&self.op.output_padding, axis, 0);
            added.push(given.saturating_add(total.min(0).saturating_neg()));
        }
        before.extend(after);
        (self.op.pads, self.op.output_padding) = (before, added);
    }

    /// The sizes of `stride` elements for each of the input, where windows reach so far.
    fn same(&self) -> Vec<i64> {
        let size = |(axis, (size, reach)): (usize, (&i64, i64))| {
            size.saturating_mul(at(&self.op.strides, axis, 1)).min(reach)
        };
        self.input.iter().zip(self.reach()).enumerate().map(size).collect()
    }
}

fn at(list: &[i64], axis: usize, absent: i64) -> i64 {
    list.get(axis).copied().unwrap_or(absent)
}

/// The constant sizes of the axes of a value behind the first two.
fn spatial(n: &Node<'_, '_>, value: Value) -> Result<Vec<i64>, NodeError> {
    let sizes = n.shape(value).iter().skip(2).map(Dim::as_const).collect::<Option<Vec<i64>>>();
    sizes.ok_or_else(|| {
        let text = format!("{} of {}, whose sizes are not constants,", n.op_type(), n.ty(value));
        NodeError::Unsupported(text)
    })
}

fn conv_transpose(n: &mut Node<'_, '_>) -> Done {
    let (x, w) = (n.operand(0)?, n.operand(1)?);
    let (input, kernel) = (spatial(n, x)?, spatial(n, w)?);
    if let Some(declared) = n.opt_ints("kernel_shape")?.filter(|k| *k != kernel) {
        let reason = format!("is {declared:?}, but the kernel is {}", n.ty(w));
        return Err(wrong("kernel_shape", reason));
    }
    let op = ConvTranspose {
        strides: n.ints("strides")?,
        dilations: n.ints("dilations")?,
        pads: n.ints("pads")?,
        output_padding: n.ints("output_padding")?,
        groups: n.int("group", 1)?,
    };
    let mut spread = Spread { input, kernel, op };
    let asked = n.opt_ints("output_shape")?;
    let auto_pad = n.string("auto_pad", "NOTSET")?;
    let upper = auto_pad == "SAME_UPPER";
    match (auto_pad.as_str(), asked) {
        ("NOTSET" | "" | "VALID" | "SAME_UPPER" | "SAME_LOWER", Some(sizes)) => {
            if sizes.len() != spread.input.len() || sizes.iter().any(|s| *s < 1) {
                let reason = format!("is {sizes:?}; it must be the sizes of the spatial axes");
                return Err(wrong("output_shape", reason));
            }
            spread.fit(&sizes, upper);
        }
        ("NOTSET" | "", None) => {}
        (_, None) if spread.op.pads.iter().any(|p| *p != 0) => {
            return Err(wrong("pads", format!("contradicts auto_pad {auto_pad}")));
        }
        ("VALID", None) => spread.op.pads = Vec::new(),
        ("SAME_UPPER" | "SAME_LOWER", None) => spread.fit(&spread.same(), upper),
        _ => return Err(wrong("auto_pad", format!("is `{auto_pad}`"))),
    }
    let operands = n.operands()?;
    n.result(spread.op, &operands)
}

/// The elements of the float operand `i`, which must be a constant of the file; none where it is left out or empty.
fn floats(n: &Node<'_, '_>, i: usize) -> Result<Option<Vec<f32>>, NodeError> {
    if n.optional(i).is_none() {
        return Ok(None);
    }
    let tensor = n.known(i).ok_or_else(|| n.not_known(i))?;
    #[expect(clippy::cast_possible_truncation, reason = "the operand holds f32")]
    let list: Vec<f32> = tensor.to_f64().into_iter().map(|x| x as f32).collect();
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// How a resize interpolates, as the node says it; the axes are to come.
fn interpolation(n: &mut Node<'_, '_>) -> Result<Resize, NodeError> {
    let mode = match n.string("mode", "nearest")?.as_str() {
        "nearest" => ResizeMode::Nearest,
        "linear" => ResizeMode::Linear,
        "cubic" if n.opset >= 11 => ResizeMode::Cubic,
        other => return Err(wrong("mode", format!("is `{other}`"))),
    };
    let mut op = Resize {
        axes: Vec::new(),
        sizes: Vec::new(),
        scales: Vec::new(),
        mode,
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
    op.coordinates = match n.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_half_pixel_for_nn" => Coordinates::TfHalfPixelForNn,
        "tf_crop_and_resize" => Coordinates::TfCropAndResize,
        other => return Err(wrong("coordinate_transformation_mode", format!("is `{other}`"))),
    };
    op.nearest = match n.string("nearest_mode", "round_prefer_floor")?.as_str() {
        // It means nothing for the other modes.
        _ if mode != ResizeMode::Nearest => Nearest::RoundPreferFloor,
        "round_prefer_floor" => Nearest::RoundPreferFloor,
        "round_prefer_ceil" => Nearest::RoundPreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        other => return Err(wrong("nearest_mode", format!("is `{other}`"))),
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
    #[expect(clippy::cast_possible_truncation, reason = "the operator refuses what is no size")]
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
        "not_larger" => scales.iter().copied().reduce(f32::min),
        "not_smaller" => scales.iter().copied().reduce(f32::max),
        other => return Err(wrong("keep_aspect_ratio_policy", format!("is `{other}`"))),
    };
    let all = all.unwrap_or(1.0);
    let size = |dim: &Dim| match dim.as_const() {
        #[expect(clippy::cast_possible_truncation, reason = "the operator refuses what is no size")]
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
    let count = scales.as_ref().map_or(0, Vec::len) + sizes.as_ref().map_or(0, Vec::len);
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
    let roi = if crops { floats(n, 1)?.unwrap_or_default() } else { Vec::new() };
    if crops && roi.len() != 2 * axes.len() {
        let text = format!("a region of {} numbers for {} axes", roi.len(), axes.len());
        return Err(NodeError::Unsupported(text));
    }
    let ends = |i: usize| if crops { (roi[i], roi[axes.len() + i]) } else { (0.0, 1.0) };
    let parts = axes.iter().zip(parts).enumerate().map(|(i, (axis, part))| (*axis, part, ends(i)));
    resized(n, x, op, parts.collect())
}

/// An axis, its size and its scale, and the part of it that is resized.
type AxisPart = (usize, (Dim, f32), (f32, f32));

/// Adds the resize of those of the axes that change.
fn resized(n: &mut Node<'_, '_>, x: Value, mut op: Resize, mut parts: Vec<AxisPart>) -> Done {
    let shape = n.shape(x).clone();
    let bits = f32::to_bits;
    parts.retain(|(axis, (size, scale), (start, end))| {
        let whole = start.abs() < 1e-9 && (end - 1.0).abs() < 1e-9;
        !whole || bits(*scale) != bits(1.0) || *size != shape[*axis]
    });
    parts.sort_by_key(|(axis, ..)| *axis);
    if parts.is_empty() {
        return n.result(Identity {}, &[x]);
    }
    for (axis, (size, scale), _) in &parts {
        let size = size.as_const().ok_or_else(|| {
            NodeError::Unsupported(format!("a resize of axis {axis}, which has {size} elements,"))
        })?;
        op.axes.push(*axis);
        op.sizes.push(size);
        op.scales.push(*scale);
    }
    if op.coordinates == Coordinates::TfCropAndResize {
        op.roi.extend(parts.iter().map(|(.., (start, _))| *start));
        op.roi.extend(parts.iter().map(|(.., (_, end))| *end));
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
    let part =
        |(axis, (dim, scale)): (usize, (&Dim, &f32))| Ok((axis, scaled(dim, *scale)?, (0.0, 1.0)));
    let parts = shape.iter().zip(&scales).enumerate().map(part);
    let parts = parts.collect::<Result<Vec<AxisPart>, NodeError>>()?;
    resized(n, x, op, parts)
}
