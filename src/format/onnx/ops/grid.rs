//! Images put together from windows and from their greatest elements, and elements of images at given positions.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::Line;
use crate::op::{
    Col2Im, Constant, GridPadding, GridSample, MatMul, MaxUnpool, OpError, Reshape, ResizeMode,
    Transpose,
};
use crate::types::{DType, Dim, Tensor, TensorType};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "Col2Im" => (3, col2im),
        "GridSample" => (2, grid_sample),
        "AffineGrid" => (2, affine_grid),
        "MaxUnpool" => (3, max_unpool),
        _ => return None,
    })
}

fn col2im(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let image = n.opt_numbers(1)?.ok_or(NodeError::Missing { operand: 1 })?;
    let kernel = n.opt_numbers(2)?.ok_or(NodeError::Missing { operand: 2 })?;
    let (strides, dilations, pads) = (n.ints("strides")?, n.ints("dilations")?, n.ints("pads")?);
    n.result(Col2Im { image, kernel, strides, dilations, pads }, &[x])
}

/// The sizes are those of the operand of a max pool with these windows.
fn max_unpool(n: &mut Node<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let shape = n.shape(operands[0]).clone();
    let kernel = n.opt_ints("kernel_shape")?.ok_or_else(|| wrong("kernel_shape", "is missing"))?;
    let (strides, pads) = (n.ints("strides")?, n.ints("pads")?);
    let rank = kernel.len();
    let fits = |list: &[i64], count: usize| list.is_empty() || list.len() == count;
    if shape.rank() != rank + 2 || !fits(&strides, rank) || !fits(&pads, 2 * rank) {
        let text = format!("{rank} sizes of windows, their strides and pads for {shape}");
        return Err(NodeError::Unsupported(text));
    }
    let at =
        |list: &[i64], i: usize, absent: i64| Dim::from(list.get(i).copied().unwrap_or(absent));
    let size = |(i, d): (usize, &Dim)| {
        let reach = (d.clone() - 1) * at(&strides, i, 1) + at(&kernel, i, 1);
        reach - at(&pads, i, 0) - at(&pads, i + rank, 0)
    };
    let sizes: Vec<Dim> = shape.iter().skip(2).enumerate().map(size).collect();
    if let Some(asked) = n.opt_sizes(2)?
        && asked.get(2..) != Some(&sizes)
    {
        let text = format!("an unpooling to {asked:?}, where windows make {sizes:?},");
        return Err(NodeError::Unsupported(text));
    }
    n.result(MaxUnpool { sizes }, &operands)
}

fn grid_sample(n: &mut Node<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let mode = match n.string("mode", "linear")?.as_str() {
        "nearest" => ResizeMode::Nearest,
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" | "bicubic" => ResizeMode::Cubic,
        other => return Err(wrong("mode", format!("is `{other}`"))),
    };
    let padding = match n.string("padding_mode", "zeros")?.as_str() {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return Err(wrong("padding_mode", format!("is `{other}`"))),
    };
    let align_corners = n.flag("align_corners", false)?;
    n.result(GridSample { mode, padding, align_corners }, &operands)
}

/// The positions of the elements of an image, with a 1 behind each, times the transforms of all samples.
fn affine_grid(n: &mut Node<'_, '_>) -> Done {
    let (theta, size) = (n.operand(0)?, n.sizes(1)?);
    let align = n.flag("align_corners", false)?;
    let dtype = n.dtype(theta);
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(NodeError::Unsupported(format!("a grid of {dtype}")));
    }
    let spatial = size.iter().skip(2).map(Dim::as_const).collect::<Option<Vec<i64>>>();
    let spatial = spatial.ok_or_else(|| n.not_known(1))?;
    let shape = n.shape(theta).clone();
    let axes = i64::try_from(spatial.len()).unwrap_or(i64::MAX);
    let batch = n.freed().map(Dim::from);
    let suits = shape.rank() == 3
        && matches!(axes, 2 | 3)
        && shape[1] == axes.into()
        && shape[2] == (axes + 1).into()
        && (shape[0] == size[0] || (!shape[0].is_const() && batch.as_ref() == size.first()));
    let least = if align { 2 } else { 1 };
    if !suits || spatial.iter().any(|s| *s < least) {
        let text = format!("a grid of the size {size:?} by the transforms {}", n.ty(theta));
        return Err(NodeError::Unsupported(text));
    }
    let points = spatial.iter().fold(Dim::ONE, |all, s| all * Dim::from(*s));
    let ty = TensorType { dtype, shape: [points, (axes + 1).into()].into_iter().collect() };
    n.charge(&ty)?;
    let value = positions(&spatial, align, dtype)?;
    let points = n.emit(Constant { value }, &[])?;
    let turned = n.emit(Transpose { perm: vec![0, 2, 1] }, &[theta])?;
    let grid = n.emit(MatMul {}, &[points, turned])?;
    let sizes = spatial.into_iter().map(Dim::from);
    let shape = std::iter::once(shape[0].clone()).chain(sizes).chain([axes.into()]).collect();
    n.result(Reshape { shape }, &[grid])
}

/// The positions of all elements of an image in -1..1, row-major, the last axis first, and a 1 behind each.
fn positions(sizes: &[i64], align: bool, dtype: DType) -> Result<Tensor, NodeError> {
    let place = |i: i64, size: i64| {
        if align {
            2.0 * i as f64 / (size - 1) as f64 - 1.0
        } else {
            (2 * i + 1) as f64 / size as f64 - 1.0
        }
    };
    let points = sizes.iter().product::<i64>();
    let mut all = Vec::new();
    for point in 0..points {
        let mut rest = point;
        for size in sizes.iter().rev() {
            all.push(place(rest % size, *size));
            rest /= size;
        }
        all.push(1.0);
    }
    let dims = [usize::try_from(points).unwrap_or(0), sizes.len() + 1];
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    let value = if dtype == DType::F64 {
        Tensor::new(&dims, &all)
    } else {
        Tensor::new(&dims, &all.iter().map(|x| *x as f32).collect::<Vec<f32>>())
    };
    Ok(value.map_err(OpError::from)?)
}
