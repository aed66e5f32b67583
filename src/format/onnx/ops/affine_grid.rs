//! Grids of the positions that affine transforms give.

use super::{Done, Imports, Node, NodeError};
use crate::op::{Formula, OpError};
use crate::types::{DType, Dim, Tensor, TensorType};

pub(super) fn imports(all: &mut Imports) {
    all.add("AffineGrid", 2, affine_grid);
}

/// The positions of the elements of an image, with a 1 behind each, times the transforms of all
/// samples.
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
    let axes = if spatial.len() == 2 { 2 } else { 3 };
    // A freed batch may still stand as a number in the size that the node is given.
    let batch = n.freed().map(Dim::from);
    let suits = shape.rank() == 3
        && matches!(spatial.len(), 2 | 3)
        && shape[1] == axes.into()
        && shape[2] == (axes + 1).into()
        && (shape[0] == size[0] || (!shape[0].is_const() && batch.as_ref() == size.first()));
    // With `align_corners` the first and the last element lie at -1 and 1: the formula divides by
    // `size - 1`.
    let least = if align { 2 } else { 1 };
    if !suits || spatial.iter().any(|s| *s < least) {
        let text = format!("a grid of the size {size:?} by the transforms {}", n.ty(theta));
        return Err(NodeError::Unsupported(text));
    }
    let points = spatial.iter().fold(Dim::ONE, |all, s| all * Dim::from(*s));
    let ty = TensorType { dtype, shape: [points, (axes + 1).into()].into_iter().collect() };
    n.charge(&ty)?;
    let value = positions(&spatial, align, dtype)?;
    let points = n.literal(value)?;
    let turned = n.transpose(theta, vec![0, 2, 1])?;
    let grid = n.matmul(points, turned)?;
    let sizes = spatial.into_iter().map(Dim::from);
    let shape = std::iter::once(shape[0].clone()).chain(sizes).chain([axes.into()]).collect();
    n.last(0).view(grid, shape)?;
    Ok(())
}

/// The positions of all elements of an image in -1..1, row-major, the last axis first, and a 1
/// behind each.
fn positions(sizes: &[i64], align: bool, dtype: DType) -> Result<Tensor, NodeError> {
    // Aligned corners span -1..=1 from centre to centre: `2 i / (size - 1) - 1`. Otherwise the
    // edges of the image are -1 and 1, and the centres lie at `(2 i + 1) / size - 1`.
    let place = |i: i64, size: i64| {
        if align {
            2.0 * i as f64 / (size - 1) as f64 - 1.0
        } else {
            (2 * i + 1) as f64 / size as f64 - 1.0
        }
    };
    let mut all = Vec::new();
    for point in 0..sizes.iter().product::<i64>() {
        let mut rest = point;
        // Row-major numbers hold the last axis in their lowest digit, and a grid names it first (x
        // before y).
        for size in sizes.iter().rev() {
            all.push(place(rest % size, *size));
            rest /= size;
        }
        all.push(1.0);
    }
    let dims = [all.len() / (sizes.len() + 1), sizes.len() + 1];
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    let value = if dtype == DType::F64 {
        Tensor::new(&dims, &all)
    } else {
        Tensor::new(&dims, &all.iter().map(|x| *x as f32).collect::<Vec<f32>>())
    };
    Ok(value.map_err(OpError::from)?)
}
