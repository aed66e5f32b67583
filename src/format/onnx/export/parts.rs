//! Shapes, parts and constants.

use super::super::tensor;
use super::Refused;
use super::writer::{Attribute, Writer};
use crate::op::{
    ConstantOfShape, GatherAt, Op, Pad, PadMode, Range, Reduction, Reshape, Scatter, Slice, TopK,
};
use crate::types::{DType, Dim, Tensor};

type Done = Option<Result<(), Refused>>;

/// The end of a slice that goes back beyond the first entry.
const BEFORE_ALL: i64 = i64::MIN + 1;

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are in other files")]
pub(super) fn write(w: &mut Writer<'_>, op: &Op) -> Done {
    let int = |x: i64| Attribute::Int(x);
    Some(match op {
        Op::Identity(_) => w.same("Identity", &[]),
        Op::Cast(op) => w.same("Cast", &[("to", int(tensor::number(op.to).into()))]),
        Op::Concat(op) => w.same("Concat", &[("axis", int(op.axis))]),
        Op::Flatten(op) => w.same("Flatten", &[("axis", int(op.axis))]),
        Op::Transpose(op) => {
            let perm: Vec<i64> = op.perm.iter().filter_map(|p| i64::try_from(*p).ok()).collect();
            w.same("Transpose", &[("perm", Attribute::Ints(&perm))])
        }
        Op::Squeeze(op) => with(w, "Squeeze", |w| w.ints(&op.axes)),
        Op::Unsqueeze(op) => with(w, "Unsqueeze", |w| w.ints(&op.axes)),
        Op::Reshape(op) => reshape(w, op),
        Op::Expand(op) => with(w, "Expand", |w| w.sizes(&op.shape)),
        Op::Tile(op) => {
            let repeats: Vec<i64> =
                op.repeats.iter().filter_map(|r| i64::try_from(*r).ok()).collect();
            with(w, "Tile", |w| w.ints(&repeats))
        }
        Op::Slice(op) => slice(w, op),
        Op::Reverse(op) => {
            let count = op.axes.len();
            ends(
                w,
                &vec![Dim::from(-1); count],
                &vec![Dim::from(BEFORE_ALL); count],
                &op.axes,
                &vec![-1; count],
            )
        }
        Op::SplitOp(op) => w.sizes(&op.sizes).and_then(|sizes| {
            let mut operands = w.operands();
            operands.push(sizes);
            w.done("Split", operands, &[("axis", int(op.axis))])
        }),
        Op::Pad(op) => pad(w, op),
        _ => return chosen(w, op).or_else(|| made(w, op)),
    })
}

/// What takes entries by their numbers, or puts them there.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others take no entries by number")]
fn chosen(w: &mut Writer<'_>, op: &Op) -> Done {
    let int = |x: i64| Attribute::Int(x);
    Some(match op {
        Op::Gather(op) => w.same("Gather", &[("axis", int(op.axis))]),
        Op::GatherAt(GatherAt::Elements { axis }) => {
            w.same("GatherElements", &[("axis", int(*axis))])
        }
        Op::GatherAt(GatherAt::Nd { batch_dims }) => {
            w.same("GatherND", &[("batch_dims", int(*batch_dims))])
        }
        Op::Scatter(op) => scatter(w, op),
        Op::OneHot(op) => w.sizes(std::slice::from_ref(&op.depth)).and_then(|depth| {
            let mut operands = w.operands();
            operands.insert(1, depth);
            w.done("OneHot", operands, &[("axis", int(op.axis))])
        }),
        Op::TopK(op) => top_k(w, op),
        Op::Trilu(op) => {
            let k = w.tensor(&Tensor::scalar(op.k));
            let mut operands = w.operands();
            operands.push(k);
            w.done("Trilu", operands, &[("upper", int(op.upper.into()))])
        }
        _ => return None,
    })
}

/// What is made of sizes and numbers, and what else there is.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are in other files")]
fn made(w: &mut Writer<'_>, op: &Op) -> Done {
    let int = |x: i64| Attribute::Int(x);
    Some(match op {
        Op::Constant(op) => {
            let constant = w.tensor(&op.value);
            w.done("Identity", vec![constant], &[])
        }
        Op::ConstantOfShape(op) => constant_of_shape(w, op),
        Op::Range(op) => range(w, op),
        Op::Dims(op) => w.sizes(&op.values).and_then(|sizes| {
            if !op.scalar {
                return w.done("Identity", vec![sizes], &[]);
            }
            let none = w.ints(&[])?;
            w.done("Reshape", vec![sizes, none], &[])
        }),
        Op::ShapeOp(op) => {
            let mut given = vec![("start", int(op.start))];
            given.extend(op.end.map(|end| ("end", int(end))));
            w.same("Shape", &given)
        }
        Op::SizeOp(_) => w.same("Size", &[]),
        Op::Dropout(op) => w.scalar(DType::F32, op.rate.into()).and_then(|rate| {
            let mut operands = w.operands();
            operands.push(rate);
            w.done("Dropout", operands, &[])
        }),
        Op::ReverseSequence(op) => w.ty(1).and_then(|ty| {
            let mut operands = w.operands();
            if ty.dtype != DType::I64 {
                let to = [("to", int(tensor::number(DType::I64).into()))];
                operands[1] = w.emit("Cast", &[&operands[1]], &to);
            }
            let axes = [("batch_axis", int(op.batch_axis)), ("time_axis", int(op.time_axis))];
            w.done("ReverseSequence", operands, &axes)
        }),
        _ => return None,
    })
}

/// The present node with one more operand.
fn with(
    w: &mut Writer<'_>,
    op: &str,
    last: impl FnOnce(&mut Writer<'_>) -> Result<String, Refused>,
) -> Result<(), Refused> {
    let last = last(w)?;
    let mut operands = w.operands();
    operands.push(last);
    w.done(op, operands, &[])
}

fn reshape(w: &mut Writer<'_>, op: &Reshape) -> Result<(), Refused> {
    let open = op.shape.iter().filter(|size| size.as_const().is_none()).count();
    let shape = if open == 1 && !op.shape.contains(&Dim::ZERO) {
        let sizes: Vec<i64> = op.shape.iter().map(|size| size.as_const().unwrap_or(-1)).collect();
        w.ints(&sizes)?
    } else {
        w.sizes(&op.shape)?
    };
    let mut operands = w.operands();
    operands.push(shape);
    w.done(
        "Reshape",
        operands,
        &[("allowzero", Attribute::Int(i64::from(op.shape.contains(&Dim::ZERO))))],
    )
}

fn slice(w: &mut Writer<'_>, op: &Slice) -> Result<(), Refused> {
    let (shape, mut axes) = (w.shape(0)?, Vec::new());
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for (i, axis) in op.axes.iter().enumerate() {
        axes.push(i64::try_from(*axis).map_err(|e| e.to_string())?);
        let (start, end, size) = (&op.starts[i], &op.ends[i], &shape[*axis]);
        if op.steps[i] > 0 {
            from.push(start.clone());
            to.push(end.clone());
        } else if start.as_const().is_some_and(|start| start < 0) {
            return Err("it has no element, and begins before the first".to_owned());
        } else {
            // Where it goes back, the last entry and the end before the first have no number that holds for every `N`.
            let last = *start == size.clone() - 1;
            from.push(if last { i64::MAX.into() } else { start.clone() });
            let whole = end.as_const().is_some_and(|end| end < 0);
            to.push(if whole { BEFORE_ALL.into() } else { end.clone() });
        }
    }
    ends(w, &from, &to, &axes, &op.steps)
}

fn ends(
    w: &mut Writer<'_>,
    from: &[Dim],
    to: &[Dim],
    axes: &[i64],
    steps: &[i64],
) -> Result<(), Refused> {
    let mut operands = w.operands();
    operands.extend([w.sizes(from)?, w.sizes(to)?, w.ints(axes)?, w.ints(steps)?]);
    w.done("Slice", operands, &[])
}

fn pad(w: &mut Writer<'_>, op: &Pad) -> Result<(), Refused> {
    let mode = match op.mode {
        PadMode::Constant => "constant",
        PadMode::Reflect => "reflect",
        PadMode::Edge => "edge",
        PadMode::Wrap => "wrap",
    };
    let (dtype, mut operands) = (w.ty(0)?.dtype, w.operands());
    operands.push(w.ints(&op.pads)?);
    if op.mode == PadMode::Constant {
        operands.push(w.scalar(dtype, op.value)?);
    }
    w.done("Pad", operands, &[("mode", Attribute::Text(mode))])
}

fn scatter(w: &mut Writer<'_>, op: &Scatter) -> Result<(), Refused> {
    let named = |reduction: &Reduction| {
        Attribute::Text(match reduction {
            Reduction::None => "none",
            Reduction::Add => "add",
            Reduction::Mul => "mul",
            Reduction::Max => "max",
            Reduction::Min => "min",
        })
    };
    match op {
        Scatter::Elements { axis, reduction } => w.same(
            "ScatterElements",
            &[("axis", Attribute::Int(*axis)), ("reduction", named(reduction))],
        ),
        Scatter::Nd { reduction } => w.same("ScatterND", &[("reduction", named(reduction))]),
    }
}

fn top_k(w: &mut Writer<'_>, op: &TopK) -> Result<(), Refused> {
    if op.local {
        return Err("it takes of each replica's entries alone".to_owned());
    }
    let k = w.sizes(std::slice::from_ref(&op.k))?;
    let mut operands = w.operands();
    operands.push(k);
    let largest = Attribute::Int(op.largest.into());
    w.done("TopK", operands, &[("axis", Attribute::Int(op.axis)), ("largest", largest)])
}

/// One element broadcast to a shape.
fn constant_of_shape(w: &mut Writer<'_>, op: &ConstantOfShape) -> Result<(), Refused> {
    let value = op.value.clone().reshaped(&[]).map_err(|e| e.to_string())?;
    let operands = vec![w.tensor(&value), w.sizes(&op.shape)?];
    w.done("Expand", operands, &[])
}

fn range(w: &mut Writer<'_>, op: &Range) -> Result<(), Refused> {
    let none = w.ints(&[])?;
    let mut operands = Vec::new();
    for size in [&op.start, &op.limit, &Dim::from(op.delta)] {
        let one = w.sizes(std::slice::from_ref(size))?;
        operands.push(w.emit("Reshape", &[&one, &none], &[]));
    }
    if op.dtype == DType::I64 {
        return w.done("Range", operands, &[]);
    }
    let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
    let numbers = w.emit("Range", &operands, &[]);
    w.done("Cast", vec![numbers], &[("to", Attribute::Int(tensor::number(op.dtype).into()))])
}
