//! Dense layers, embeddings and masks.

use super::activation::{apply_to, function};
use super::entry::layers;
use crate::format::keras::activity::Penalty;
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Einsum, Formula, Gemm};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Quoted, Shape, Tensor as Elements};

layers! {
    "Dense" Kept => dense;
    "EinsumDense" Dropped => einsum_dense;
    "Embedding" Own => embedding;
    "ReversibleEmbedding" Own => reversible;
    "Masking" Own => masking;
    "LayerScale" Dropped => |at, args| {
        at.config.ignore(&["init_values"]);
        let width = at.config.count("projection_dim")?;
        let x = args.tensor()?;
        let x = at.floats(x)?;
        let gamma = at.weight("gamma", &[width])?;
        Ok(at.mul(x, gamma)?.into())
    };
    "Identity" Kept => |at, args| same(at, args);
    "ActivityRegularization" Kept => |at, args| {
        let penalty =
            Penalty { l1: at.config.number("l1", 0.0)?, l2: at.config.number("l2", 0.0)? };
        let result = same(at, args)?;
        if at.state.for_training { penalty.added(at, result) } else { Ok(result) }
    };
}

/// The tensor that a layer is called with.
pub(super) fn same<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    Ok(at.as_is(x)?.into())
}

fn dense<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let x = at.floats(x)?;
    let units = at.config.count("units")?;
    let has_bias = at.config.flag("use_bias", true)?;
    let activation = function(at, "activation")?;
    let rank = at.rank(x);
    if rank < 2 {
        return Err(Fault::new("it is called with a tensor without features"));
    }
    let features = at.extent(x, rank - 1)?;
    let kernel = at.weight("kernel", &[features, units])?;
    let y = if rank == 2 && has_bias {
        let bias = at.weight("bias", &[units])?;
        at.op(Gemm::default(), &[x, kernel, bias])?
    } else {
        let y = at.matmul(x, kernel)?;
        if has_bias { at.add_bias(y, &[units])? } else { y }
    };
    Ok(apply_to(at, &activation, y)?.into())
}

/// The equation of a dense layer: the labels of its input, its kernel and its result.
struct Equation {
    input: Vec<char>,
    kernel: Vec<char>,
    output: Vec<char>,
}

impl Equation {
    /// Reads `ab,bc->ac`; `...` stands for the axes of the input that have no label.
    fn read(text: &str, rank: usize) -> Read<Self> {
        let wrong = || Fault::field("equation", format!("is {}", Quoted(text)));
        let (left, output) = text.split_once("->").ok_or_else(wrong)?;
        let (input, kernel) = left.split_once(',').ok_or_else(wrong)?;
        let labels = |part: &str| -> Vec<char> { part.chars().filter(|c| *c != ' ').collect() };
        let dots = ['.', '.', '.'];
        let (mut input, kernel, mut output) = (labels(input), labels(kernel), labels(output));
        if let Some(at) = input.windows(3).position(|w| w == dots) {
            let count = (rank + 3).checked_sub(input.len()).ok_or_else(wrong)?;
            let unused = ('A'..='Z').chain('a'..='z');
            let used = |c: &char| input.contains(c) || kernel.contains(c) || output.contains(c);
            let free: Vec<char> = unused.filter(|c| !used(c)).take(count).collect();
            if free.len() < count {
                return Err(wrong());
            }
            let to = output.windows(3).position(|w| w == dots).ok_or_else(wrong)?;
            output.splice(to..to + 3, free.iter().copied());
            input.splice(at..at + 3, free);
        }
        if input.len() != rank {
            return Err(wrong());
        }
        Ok(Self { input, kernel, output })
    }

    fn text(&self) -> String {
        let text = |labels: &[char]| labels.iter().collect::<String>();
        format!("{},{}->{}", text(&self.input), text(&self.kernel), text(&self.output))
    }
}

fn einsum_dense<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let x = at.floats(x)?;
    let equation = at.config.needed("equation")?;
    let equation = crate::format::keras::config::text("equation", equation)?;
    let sizes = at.config.one_or_open("output_shape")?;
    let bias = at.config.opt_text("bias_axes")?;
    let activation = function(at, "activation")?;
    let y = product(at, x, equation, &sizes, bias)?;
    Ok(apply_to(at, &activation, y)?.into())
}

/// A product with the kernel of a dense layer inside a layer, whose results have its penalty.
pub(super) fn einsum_product(
    at: &mut At<'_, '_>,
    x: Value,
    equation: &str,
    sizes: &[Option<i64>],
    bias: Option<&str>,
) -> Read<Value> {
    let y = product(at, x, equation, sizes, bias)?;
    let penalty = if at.state.for_training { Penalty::of(at)? } else { None };
    match penalty {
        Some(penalty) => Ok(penalty.one(at, y.into())?.value),
        None => Ok(y),
    }
}

/// A product with the kernel of a dense layer, of which `sizes` are the result's without the batch,
/// and the bias along some axes of the result.
fn product(
    at: &mut At<'_, '_>,
    x: Value,
    equation: &str,
    sizes: &[Option<i64>],
    bias: Option<&str>,
) -> Read<Value> {
    let wrong = || Fault::field("output_shape", "does not fit the equation");
    let equation = Equation::read(equation, at.rank(x))?;
    // Sizes are given for the last axes: all but the batch.
    let skipped = equation.output.len().checked_sub(sizes.len()).ok_or_else(wrong)?;
    let size = |at: &At<'_, '_>, label: char| {
        let of_result = equation.output.iter().position(|c| *c == label);
        let given = of_result.and_then(|i| i.checked_sub(skipped)).and_then(|i| sizes[i]);
        match (given, equation.input.iter().position(|c| *c == label)) {
            (Some(size), _) => Ok(size),
            (None, Some(axis)) => at.extent(x, axis),
            (None, None) => Err(wrong()),
        }
    };
    let shape = equation.kernel.iter().map(|c| size(at, *c)).collect::<Read<Vec<i64>>>()?;
    let kernel = at.weight("kernel", &shape)?;
    let y = at.op(Einsum { equation: equation.text() }, &[x, kernel])?;
    let Some(axes) = bias else { return Ok(y) };
    // One size for each axis of the result from the first one of the bias on.
    let labels: Vec<char> = axes.chars().collect();
    let first = equation.output.iter().position(|c| labels.contains(c));
    let first = first.ok_or_else(|| Fault::field("bias_axes", "names no axis of the result"))?;
    let shape = equation.output[first..]
        .iter()
        .map(|c| if labels.contains(c) { size(at, *c) } else { Ok(1) });
    let shape = shape.collect::<Read<Vec<i64>>>()?;
    at.add_bias(y, &shape)
}

fn embedding<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    at.config.ignore(&["input_length"]);
    let rows = at.config.count("input_dim")?;
    let width = at.config.count("output_dim")?;
    let masks = at.config.flag("mask_zero", false)?;
    let table = at.weight("embeddings", &[rows, width])?;
    looked_up(at, args, table, masks)
}

/// The rows of a table with the numbers that a call gives; steps of the number 0 may not count.
fn looked_up<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, table: Value, masks: bool) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let numbers = at.natural(x)?;
    let mask = if masks {
        let zero = at.number(numbers, 0.0)?;
        let is_zero = at.equal(numbers, zero)?;
        Some(at.not(is_zero)?)
    } else {
        None
    };
    let is_index = matches!(at.ty_of(numbers), DType::I32 | DType::I64);
    let numbers = if is_index { numbers } else { at.cast(numbers, DType::I32)? };
    let value = at.gather(table, numbers, 0)?;
    Ok(Tensor { value, is_first: false, mask }.into())
}

/// An embedding that also gives a number for each of its rows, of a vector of features.
fn reversible<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let is_tied = at.config.flag("tie_weights", true)?;
    let cap = at.config.opt_number("logit_soft_cap")?;
    let to = at.config.opt_text("reverse_dtype")?;
    let reverse = args.constant(1, "reverse")? == Some(serde_json::Value::Bool(true));
    let (count, width) = (at.config.count("input_dim")?, at.config.count("output_dim")?);
    let table = at.weight("embeddings", &[count, width])?;
    let back = if is_tied { None } else { Some(at.weight("reverse_embeddings", &[width, count])?) };
    if !reverse {
        let masks = at.config.flag("mask_zero", false)?;
        return looked_up(at, args, table, masks);
    }
    at.config.ignore(&["mask_zero"]);
    let x = args.tensor()?;
    let mut x = at.floats(x)?;
    let mut kernel = back.map_or_else(|| at.transposed(table), Ok)?;
    if let Some(to) = to {
        let to = crate::format::keras::at::dtype(to);
        let to = to.ok_or_else(|| Fault::field("reverse_dtype", "is not supported"))?;
        (x, kernel) = (at.cast(x, to)?, at.cast(kernel, to)?);
    }
    let y = at.matmul(x, kernel)?;
    let Some(cap) = cap else { return Ok(y.into()) };
    let divisor = at.number(y, cap)?;
    let part = at.div(y, divisor)?;
    let part = at.tanh(part)?;
    Ok(at.scale(part, cap)?.into())
}

fn masking<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let skipped = at.config.number("mask_value", 0.0)?;
    let x = args.tensor()?;
    let x = at.input(x)?;
    let number = at.number(x, skipped)?;
    let is_skipped = at.equal(x, number)?;
    let counts = at.not(is_skipped)?;
    let steps = any(at, counts, -1, true)?;
    let zero = at.number(x, 0.0)?;
    let value = at.choose(steps, x, zero)?;
    let mask = at.squeeze(steps, vec![-1])?;
    Ok(Tensor { value, is_first: false, mask: Some(mask) }.into())
}

/// Whether one of the truth values along an axis holds.
pub(super) fn any(at: &mut At<'_, '_>, x: Value, axis: i64, keeps: bool) -> Read<Value> {
    at.reduce_max(x, vec![axis], keeps)
}

/// A constant of integers along one axis.
pub(super) fn integers(at: &mut At<'_, '_>, list: &[i64]) -> Read<Value> {
    at.literal(Elements::new(&[list.len()], list)?)
}

/// A value as one of `shape` with the batch before it.
pub(super) fn rows(at: &mut At<'_, '_>, x: Value, shape: &[i64]) -> Read<Value> {
    let batch = at.shape(x).first().cloned().unwrap_or_else(Dim::n);
    let dims: Shape =
        std::iter::once(batch).chain(shape.iter().map(|size| Dim::from(*size))).collect();
    at.reshape(x, &dims)
}

/// The axes of a list of this length, as operators take them.
pub(super) fn all_axes(from: usize, rank: usize) -> Vec<i64> {
    (from..rank).map(int).collect()
}
