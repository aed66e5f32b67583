//! Elements picked and written by number.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::super::tensor::element;
use super::Line;
use crate::op::infer::axis as named_axis;
use crate::op::{
    Cast, ConstantOfShape, GatherAt, Identity, OneHot, OpError, Pad, PadMode, Reduction, Scatter,
    Slice, TopK, Trilu,
};
use crate::types::{DType, Dim, Tensor};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "GatherElements" => (2, |n| {
            let axis = n.int("axis", 0)?;
            let operands = n.operands()?;
            n.result(GatherAt::Elements { axis }, &operands)
        }),
        "GatherND" => (2, |n| {
            let batch_dims = n.int("batch_dims", 0)?;
            let operands = n.operands()?;
            n.result(GatherAt::Nd { batch_dims }, &operands)
        }),
        "ScatterElements" | "Scatter" => (3, |n| {
            let (axis, reduction) = (n.int("axis", 0)?, reduction(n)?);
            let operands = n.operands()?;
            n.result(Scatter::Elements { axis, reduction }, &operands)
        }),
        "ScatterND" => (3, |n| {
            let reduction = reduction(n)?;
            let operands = n.operands()?;
            n.result(Scatter::Nd { reduction }, &operands)
        }),
        "TopK" => (2, top_k),
        "OneHot" => (3, one_hot),
        "EyeLike" => (1, eye_like),
        "CenterCropPad" => (2, center_crop_pad),
        _ => return None,
    })
}

fn reduction(n: &mut Node<'_, '_>) -> Result<Reduction, NodeError> {
    Ok(match n.string("reduction", "none")?.as_str() {
        "none" => Reduction::None,
        "add" => Reduction::Add,
        "mul" => Reduction::Mul,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        other => return Err(wrong("reduction", format!("is `{other}`"))),
    })
}

/// The single element of the integer operand `i`, which may depend on the batch size.
fn size(n: &Node<'_, '_>, i: usize) -> Result<Dim, NodeError> {
    match &n.sizes(i)?[..] {
        [only] => Ok(only.clone()),
        all => {
            let reason = format!("it has {} elements, not 1", all.len());
            Err(OpError::Value { operand: i, reason }.into())
        }
    }
}

/// The number is an attribute before opset 10. What is not to be sorted may be.
fn top_k(n: &mut Node<'_, '_>) -> Done {
    let (axis, x) = (n.int("axis", -1)?, n.operand(0)?);
    let k = if n.opset < 10 {
        n.opt_int("k")?.ok_or_else(|| wrong("k", "is missing"))?.into()
    } else {
        size(n, 1)?
    };
    let largest = n.opset < 11 || n.flag("largest", true)?;
    if n.opset >= 11 {
        n.flag("sorted", true)?;
    }
    n.results(2, TopK { axis, k, largest, local: false }, &[x])
}

/// Numbers with a fraction are cut.
fn one_hot(n: &mut Node<'_, '_>) -> Done {
    let (axis, mut numbers, values) = (n.int("axis", -1)?, n.operand(0)?, n.operand(2)?);
    let depth = match n.number(1) {
        #[expect(clippy::cast_possible_truncation, reason = "the depth is cut")]
        Some(depth) => Dim::from(depth as i64),
        None => size(n, 1)?,
    };
    if n.dtype(numbers).is_float() {
        numbers = n.emit(Cast { to: DType::I64 }, &[numbers])?;
    }
    n.result(OneHot { axis, depth }, &[numbers, values])
}

/// Ones everywhere, of which one diagonal stays. Of the operand only the shape counts.
fn eye_like(n: &mut Node<'_, '_>) -> Done {
    let (k, x) = (n.int("k", 0)?, n.operand(0)?);
    let dtype = match n.opt_int("dtype")? {
        None => n.dtype(x),
        Some(number) => {
            let number = i32::try_from(number).map_err(|_| "is no element type".to_owned());
            number.and_then(element).map_err(|reason| wrong("dtype", format!(": {reason}")))?
        }
    };
    let shape = n.shape(x).to_vec();
    if shape.len() != 2 {
        let expected = "it must have two axes".to_owned();
        return Err(OpError::Shape { operand: 0, found: n.ty(x).clone(), expected }.into());
    }
    let ones = n.emit(ConstantOfShape { shape, value: Tensor::scalar(1.0f32) }, &[])?;
    let upper = n.emit(Trilu { k, upper: true }, &[ones])?;
    let both = n.emit(Trilu { k, upper: false }, &[upper])?;
    n.result(Cast { to: dtype }, &[both])
}

/// Of too large an axis the middle stays, too small a one gets zeros on both sides; of an odd number the larger half
/// comes after, and is cut off after.
fn center_crop_pad(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let shape = n.shape(x).clone();
    let axes = n.opt_ints("axes")?.unwrap_or_else(|| (0i64..).take(shape.rank()).collect());
    let targets = n.sizes(1)?;
    if axes.len() != targets.len() {
        let reason = format!("{} axes for {} sizes", axes.len(), targets.len());
        return Err(wrong("axes", reason));
    }
    let mut cut =
        Slice { axes: Vec::new(), starts: Vec::new(), ends: Vec::new(), steps: Vec::new() };
    let mut pads = vec![0; 2 * shape.rank()];
    let mut named: Vec<(usize, &Dim)> = Vec::new();
    for (axis, target) in axes.iter().zip(&targets) {
        named.push((named_axis("axes", *axis, shape.rank())?, target));
    }
    named.sort_by_key(|(axis, _)| *axis);
    if named.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong("axes", "names an axis twice"));
    }
    for (axis, target) in named {
        let size = &shape[axis];
        if size == target {
            continue;
        }
        let (Some(size), Some(target)) = (size.as_const(), target.as_const()) else {
            let text = format!("{target} entries of the middle of {size}");
            return Err(NodeError::Unsupported(text));
        };
        if target < 0 {
            return Err(OpError::Value {
                operand: 1,
                reason: format!("the size {target} is negative"),
            }
            .into());
        }
        if target < size {
            let start = (size - target) / 2;
            cut.axes.push(axis);
            cut.starts.push(start.into());
            cut.ends.push((start + target).into());
            cut.steps.push(1);
        } else {
            let before = (target - size) / 2;
            (pads[axis], pads[axis + shape.rank()]) = (before, target - size - before);
        }
    }
    let mut y = x;
    if !cut.axes.is_empty() {
        y = n.emit(cut, &[y])?;
    }
    if pads.iter().any(|p| *p != 0) {
        n.result(Pad { mode: PadMode::Constant, pads, value: 0.0 }, &[y])
    } else {
        n.result(Identity {}, &[y])
    }
}
