//! Entries of lines in an order, with the positions that they had.

use crate::op::infer::results;
use crate::op::prelude::*;

/// A part of lines along an axis.
pub(in crate::op) struct Part<'a> {
    /// The entries.
    pub(in crate::op) values: &'a Tensor,
    /// Their positions in the part; `None` where they are those that they have in `values`.
    pub(in crate::op) places: Option<&'a Tensor>,
    /// The position of the part's first entry on the whole axis.
    pub(in crate::op) from: i64,
}

/// An entry of a line.
pub(in crate::op) struct Entry {
    /// A number in the order of the elements: equal elements have one key, and that of a NaN is
    /// the largest. So one loop ranks lines of every type.
    pub(in crate::op) key: u64,
    /// Whether the element is a NaN.
    pub(in crate::op) nan: bool,
    /// The position on the whole axis.
    pub(in crate::op) position: i64,
    /// The part that it is from, and its number among the elements there.
    from: (usize, usize),
}

/// The key of a NaN.
const NAN: u64 = u64::MAX;

/// The keys of elements.
fn keys(x: &Tensor) -> Result<Vec<u64>, OpError> {
    const SIGN: u64 = 1 << 63;
    let float = |x: f64| match (x + 0.0).to_bits() {
        _ if x.is_nan() => NAN,
        bits if bits & SIGN == 0 => bits | SIGN,
        bits => !bits,
    };
    let signed = |x: &i64| x.cast_unsigned() ^ SIGN;
    if x.dtype().is_float() {
        return Ok(x.to_f64().into_iter().map(float).collect());
    }
    if x.dtype() == DType::U64 {
        return Ok(x.as_slice::<u64>().to_vec());
    }
    Ok(x.to_i64().ok_or_else(OpError::not_a_number)?.iter().map(signed).collect())
}

/// The types of the entries and their positions.
pub(in crate::op) fn types(entries: TensorType) -> Result<Results, OpError> {
    let positions = TensorType { dtype: DType::I64, shape: entries.shape.clone() };
    results([entries, positions])
}

/// The gradient of the entries, at the positions that they had.
pub(in crate::op) fn back_to_positions(at: &mut Backward<'_>, axis: i64) -> Result<(), RuleError> {
    let (positions, dy) = (at.result(1)?, at.dy()?);
    let to = at.shape(at.operand(0)?);
    let zeros = at.zeros(dy, &to)?;
    let dx = at.scatter(zeros, positions, dy, axis)?;
    at.give(0, dx)
}

/// The entries of a line that stay, and their order.
pub(in crate::op) trait Ranking {
    /// Leaves those entries, of all in ascending order of their positions.
    fn rank(&self, line: &mut Vec<Entry>);
}

/// For each line of the parts, one behind the other along `axis`, the `k` entries that stay and
/// their positions. Where no part has entries, the results are like `like` but for the axis.
pub(in crate::op) fn ranked(
    like: &Tensor,
    axis: usize,
    parts: &[Part<'_>],
    k: usize,
    ranking: &dyn Ranking,
) -> Result<Vec<Tensor>, OpError> {
    let inner: usize = like.dims()[axis + 1..].iter().product();
    let mut dims = like.dims().to_vec();
    dims[axis] = k;
    let mut values = Tensor::zeros(like.dtype(), &dims)?;
    let mut places = Tensor::zeros(DType::I64, &dims)?;
    if like.dtype() == DType::Bool {
        return Err(OpError::not_a_number());
    }
    let keys = parts.iter().map(|part| keys(part.values)).collect::<Result<Vec<_>, _>>()?;
    let width = like.dtype().bytes();
    let (bytes, positions) = (values.bytes_mut(), places.as_mut_slice::<i64>());
    let mut line: Vec<Entry> = Vec::new();
    let lines = positions.len().checked_div(k).unwrap_or_default();
    for (block, column) in (0..lines).map(|i| (i / inner, i % inner)) {
        line.clear();
        for (p, (part, keys)) in parts.iter().zip(&keys).enumerate() {
            let count = part.values.dims()[axis];
            let own = part.places.map(Tensor::as_slice::<i64>);
            let first = block * count * inner + column;
            line.extend((0..count).zip(part.from..).map(|(row, position)| {
                let at = first + row * inner;
                let position = own.map_or(position, |own| part.from + own[at]);
                let nan = keys[at] == NAN && like.dtype().is_float();
                Entry { key: keys[at], nan, position, from: (p, at) }
            }));
        }
        ranking.rank(&mut line);
        for (row, Entry { position, from: (p, at), .. }) in line.iter().enumerate() {
            let to = (block * k + row) * inner + column;
            let entry = &parts[*p].values.bytes()[at * width..][..width];
            bytes[to * width..][..width].copy_from_slice(entry);
            positions[to] = *position;
        }
    }
    Ok(vec![values, places])
}
