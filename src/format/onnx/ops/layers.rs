//! Convolutions, pools, matrix products and what stands between them in a network.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::Line;
use super::random::dropped;
use crate::ir::Value;
use crate::op::{Cast, Conv, Dropout, Gemm, Lrn, MatMul, Pool};
use crate::types::{Dim, Shape};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "Conv" => (3, conv),
        "MaxPool" => (1, max_pool),
        "AveragePool" => (1, average_pool),
        "LpPool" => (1, lp_pool),
        "GlobalLpPool" => (1, global_lp_pool),
        "LRN" => (1, |n| {
            let size = n.opt_int("size")?.ok_or_else(|| wrong("size", "is missing"))?;
            let (alpha, beta) = (n.float("alpha", 1e-4)?, n.float("beta", 0.75)?);
            let (bias, x) = (n.float("bias", 1.0)?, n.operand(0)?);
            n.result(Lrn { alpha, beta, bias, size }, &[x])
        }),
        "Gemm" => (3, gemm),
        "MatMul" => (2, |n| {
            let operands = [n.operand(0)?, n.operand(1)?];
            n.result(MatMul {}, &operands)
        }),
        "Dropout" => (3, dropout),
        _ => return None,
    })
}

/// The settings of windows as ONNX gives them, with `auto_pad` resolved.
struct Windows {
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
}

/// The sizes of the axes behind the first two.
fn spatial(shape: &Shape) -> Vec<Dim> {
    shape.iter().skip(2).cloned().collect()
}

fn constants(sizes: &[Dim]) -> Option<Vec<i64>> {
    sizes.iter().map(Dim::as_const).collect()
}

impl Windows {
    fn read(n: &mut Node<'_, '_>, input: &[Dim], kernel: &[i64]) -> Result<Self, NodeError> {
        let strides = n.ints("strides")?;
        let dilations = n.ints("dilations")?;
        let given = n.opt_ints("pads")?;
        let auto_pad = n.string("auto_pad", "NOTSET")?;
        let pads = match (auto_pad.as_str(), given) {
            ("NOTSET" | "", given) => given.unwrap_or_default(),
            (_, Some(pads)) if pads.iter().any(|p| *p != 0) => {
                return Err(wrong("pads", format!("contradicts auto_pad {auto_pad}")));
            }
            ("VALID", _) => Vec::new(),
            ("SAME_UPPER", _) => same(input, kernel, &strides, &dilations, false)?,
            ("SAME_LOWER", _) => same(input, kernel, &strides, &dilations, true)?,
            _ => return Err(wrong("auto_pad", format!("is `{auto_pad}`"))),
        };
        Ok(Self { strides, dilations, pads })
    }
}

/// The padding with which there is a window for every `stride` elements; an odd one is at the end, or at the
/// start where `lower`.
fn same(
    input: &[Dim],
    kernel: &[i64],
    strides: &[i64],
    dilations: &[i64],
    lower: bool,
) -> Result<Vec<i64>, NodeError> {
    let Some(input) = constants(input) else {
        let text = "automatic padding of an axis whose size depends on the batch".to_owned();
        return Err(NodeError::Unsupported(text));
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (axis, (size, taps)) in input.iter().zip(kernel).enumerate() {
        let stride = strides.get(axis).copied().unwrap_or(1).max(1);
        let dilation = dilations.get(axis).copied().unwrap_or(1);
        let extent = taps.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        let steps = size.saturating_sub(1).div_euclid(stride);
        let total =
            steps.saturating_mul(stride).saturating_add(extent).saturating_sub(*size).max(0);
        let (small, large) = (total / 2, total - total / 2);
        before.push(if lower { large } else { small });
        after.push(if lower { small } else { large });
    }
    before.extend(after);
    Ok(before)
}

fn conv(n: &mut Node<'_, '_>) -> Done {
    let (x, w) = (n.operand(0)?, n.operand(1)?);
    let conv = conv_of(n, x, w)?;
    let operands = n.operands()?;
    n.result(conv, &operands)
}

/// The convolution of `x` by `w` that the attributes of the node describe.
pub(super) fn conv_of(n: &mut Node<'_, '_>, x: Value, w: Value) -> Result<Conv, NodeError> {
    let taps = spatial(n.shape(w));
    let input = spatial(n.shape(x));
    let Some(kernel) = constants(&taps) else {
        return Err(NodeError::Unsupported("a kernel whose size depends on the batch".to_owned()));
    };
    if let Some(declared) = n.opt_ints("kernel_shape")?.filter(|k| *k != kernel) {
        let reason = format!("is {declared:?}, but the kernel is {}", n.ty(w));
        return Err(wrong("kernel_shape", reason));
    }
    let groups = n.int("group", 1)?;
    let Windows { strides, dilations, pads } = Windows::read(n, &input, &kernel)?;
    Ok(Conv { strides, dilations, pads, groups })
}

/// The kernel and the windows of a pool, and whether a partial last window counts.
fn pool(n: &mut Node<'_, '_>) -> Result<(Vec<i64>, Windows, bool), NodeError> {
    let x = n.operand(0)?;
    let input = spatial(n.shape(x));
    let kernel = n.opt_ints("kernel_shape")?.ok_or_else(|| wrong("kernel_shape", "is missing"))?;
    let windows = Windows::read(n, &input, &kernel)?;
    let ceil_mode = n.flag("ceil_mode", false)?;
    Ok((kernel, windows, ceil_mode))
}

fn max_pool(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (kernel, Windows { strides, dilations, pads }, ceil_mode) = pool(n)?;
    let (indices, column_major) = (n.wants(1), n.flag("storage_order", false)?);
    let column_major = column_major && indices;
    let op = Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major };
    n.results(1 + usize::from(indices), op, &[x])
}

fn average_pool(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (kernel, Windows { strides, dilations, pads }, ceil_mode) = pool(n)?;
    let count_include_pad = n.flag("count_include_pad", false)?;
    let op = Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad };
    n.result(op, &[x])
}

fn lp_pool(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (kernel, Windows { strides, dilations, pads }, ceil_mode) = pool(n)?;
    let p = n.int("p", 2)?;
    n.result(Pool::Lp { kernel, strides, dilations, pads, ceil_mode, p }, &[x])
}

fn global_lp_pool(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let p = n.int("p", 2)?;
    let Some(kernel) = constants(&spatial(n.shape(x))) else {
        let text = "a pool over an axis whose size depends on the batch".to_owned();
        return Err(NodeError::Unsupported(text));
    };
    let (strides, dilations, pads) = (Vec::new(), Vec::new(), Vec::new());
    n.result(Pool::Lp { kernel, strides, dilations, pads, ceil_mode: false, p }, &[x])
}

/// Before opset 7 the addend broadcasts only where `broadcast` says so.
fn gemm(n: &mut Node<'_, '_>) -> Done {
    let (alpha, beta) = (n.float("alpha", 1.0)?, n.float("beta", 1.0)?);
    let (trans_a, trans_b) = (n.flag("transA", false)?, n.flag("transB", false)?);
    if n.opset < 7 && !n.flag("broadcast", false)? {
        let (a, b, c) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
        let sizes = |shape: &Shape, axis: usize| shape.get(axis).cloned();
        let rows = sizes(n.shape(a), usize::from(trans_a));
        let columns = sizes(n.shape(b), usize::from(!trans_b));
        let wanted: Option<Shape> = [rows, columns].into_iter().collect();
        if wanted.as_ref() != Some(n.shape(c)) {
            let text = format!("the addend {} without the attribute `broadcast`", n.ty(c));
            return Err(NodeError::Unsupported(text));
        }
    }
    let operands = n.operands()?;
    n.result(Gemm { alpha, beta, trans_a, trans_b }, &operands)
}

/// Inference drops nothing. Training does, unless its ratio is 0.
fn dropout(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (ratio, training, seed) = if n.opset < 12 {
        let training = n.opset < 7 && !n.flag("is_test", false)?;
        (Some(f64::from(n.float("ratio", 0.5)?)), training, None)
    } else {
        let seed = n.opt_int("seed")?;
        let training = n.opt_numbers(2)?.is_some_and(|t| t != [0]);
        let ratio = if n.optional(1).is_some() { n.number(1) } else { Some(0.5) };
        (ratio, training, seed)
    };
    if training && ratio != Some(0.0) {
        let ratio = ratio.ok_or_else(|| n.not_known(1))?;
        let seed = seed.unwrap_or_else(|| n.own_seed());
        return dropped(n, x, ratio, seed);
    }
    let mask = n.wants(1);
    // What training would drop; a file may hold any number where nothing is dropped.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to the type of the attribute")]
    let rate = ratio.map(|r| r as f32).filter(|r| (0.0..1.0).contains(r)).unwrap_or(0.0);
    if !mask || n.opset >= 10 {
        return n.results(1 + usize::from(mask), Dropout { mask, rate }, &[x]);
    }
    // Before opset 10 the mask has the type of the operand.
    let to = n.dtype(x);
    n.result(Dropout { mask: false, rate: 0.0 }, &[x])?;
    let kept = n.emit_all(2, Dropout { mask: true, rate: 0.0 }, &[x])?;
    n.result_at(1, Cast { to }, &kept[1..])
}
