//! Entries put around a value, or taken from its borders.

use smallvec::SmallVec;

use super::Border;
use super::attr::names;
use super::element::{Float, for_dtype};
use super::infer::{exactly, result};
use super::prelude::*;
use super::strided;

names! {
    /// Padding mode: the entries around a value.
    pub enum PadMode {
        /// One value everywhere.
        Constant = "constant",
        /// The value mirrored at its border entries, which are not repeated.
        Reflect = "reflect",
        /// The border entry.
        Edge = "edge",
        /// The value from its other end, as on a ring.
        Wrap = "wrap",
    }
}

op! {
    /// Its operand with `pads[i]` entries before and `pads[rank + i]` after each axis `i`; negative
    /// numbers take entries away, in the mode `constant`.
    pub struct Pad = "pad" is FOLLOWS_BLOCKS | READS_ONCE {
        /// The padding mode.
        pub mode: PadMode = PadMode::Constant,
        /// The number of entries before each axis, then the number after each.
        pub pads: Vec<i64>,
        /// The new entries in the mode `constant`, rounded to a floating-point element type;
        /// another type must have the number itself.
        pub value: f64 = 0.0,
    }
}

/// The largest integer up to which `f64` has all.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// The scalar of type `dtype` that `value` stands for: rounded for floats; for other types the
/// number itself.
fn element(dtype: DType, value: f64) -> Option<Tensor> {
    #[expect(clippy::cast_possible_truncation, reason = "an integer that f64 has exactly")]
    let integer = (value.fract() == 0.0 && value.abs() <= MAX_EXACT).then_some(value as i64);
    Some(for_dtype!(
        dtype,
        float F => Tensor::scalar(F::of_f64(value)),
        int I => Tensor::scalar(I::try_from(integer?).ok()?),
        bool => {
            let bit = u8::try_from(integer?).ok().filter(|bit| *bit < 2)?;
            Tensor::scalar(bit).reinterpreted(DType::Bool)
        },
    ))
}

impl Pad {
    /// The new entries in the mode `constant` for elements of type `dtype`, a scalar; `None` if
    /// that type has no such number.
    pub(crate) fn entry(&self, dtype: DType) -> Option<Tensor> {
        element(dtype, self.value)
    }

    /// The entries before and after axis `i` of `rank`.
    fn around(&self, i: usize, rank: usize) -> (i64, i64) {
        let at = |i: usize| self.pads.get(i).copied().unwrap_or(0);
        (at(i), at(i + rank))
    }

    /// Fails unless axis `i` of `ty` can be padded so.
    fn check(&self, ty: &TensorType, i: usize, size: &Dim) -> Result<(), OpError> {
        let (before, after) = self.around(i, ty.rank());
        let wrong = |reason: String| Err(OpError::attr("pads", reason));
        if self.mode == PadMode::Constant {
            let kept = size.clone() + before.min(0) + after.min(0);
            if !kept.is_nonnegative() {
                return wrong(format!("axis {i} of {ty} has no {before} and {after} to take away"));
            }
        } else if before < 0 || after < 0 {
            return Err(OpError::Unsupported(format!(
                "removing entries in the mode `{}`",
                self.mode.name()
            )));
        } else if (before > 0 || after > 0) && !(size.clone() - 1).is_nonnegative() {
            return wrong(format!("axis {i} of {ty} may have no entry to repeat"));
        }
        Ok(())
    }

    /// The source of the entries of axis `i`, whose size in the operand is `size`.
    fn line(&self, i: usize, rank: usize, size: usize) -> Line {
        let (before, after) = self.around(i, rank);
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let length = size.saturating_add(before).saturating_add(after).max(0);
        Line { mode: self.mode, size, before, length: usize::try_from(length).unwrap_or(0) }
    }

    /// A tensor of the padding value.
    fn filled(&self, dtype: DType, dims: &[usize]) -> Result<Tensor, OpError> {
        match element(dtype, self.value).filter(|v| v.bytes().iter().any(|b| *b != 0)) {
            Some(value) => strided::taken(&value, 0, &[(dims.iter().product(), 0)], dims),
            None => Ok(Tensor::zeros(dtype, dims)?),
        }
    }
}

/// One padded axis.
struct Line {
    mode: PadMode,
    size: i64,
    before: i64,
    length: usize,
}

impl Line {
    /// The entry of the operand that entry `i` of the result is; `None` for the padding value.
    fn origin(&self, i: usize) -> Option<usize> {
        let at = i64::try_from(i).ok()? - self.before;
        let last = (self.size - 1).max(0);
        let inside = match self.mode {
            PadMode::Constant => at,
            PadMode::Edge => at.clamp(0, last),
            PadMode::Wrap => at.rem_euclid(self.size.max(1)),
            PadMode::Reflect => {
                let at = at.rem_euclid((2 * last).max(1));
                at.min(2 * last - at)
            }
        };
        usize::try_from(inside).ok().filter(|_| inside < self.size)
    }

    /// The entries of the result that are the operand's own, in its order.
    fn own(&self) -> std::ops::Range<usize> {
        let entry = |i: i64| usize::try_from(i).unwrap_or(0).min(self.length);
        entry(self.before)..entry(self.size.saturating_add(self.before))
    }

    /// Writes the entries, of `width` bytes, that come from the operand's entries `from`.
    fn write(&self, from: &[u8], to: &mut [u8], width: usize) {
        let own = self.own();
        if let Some(at) = self.origin(own.start).filter(|_| !own.is_empty()) {
            let run = own.len() * width;
            to[own.start * width..][..run].copy_from_slice(&from[at * width..][..run]);
        }
        if self.mode != PadMode::Constant {
            for i in (0..own.start).chain(own.end..self.length) {
                if let Some(at) = self.origin(i) {
                    to[i * width..][..width].copy_from_slice(&from[at * width..][..width]);
                }
            }
        }
    }
}

/// The row of the operand that row `r` of the result comes from, over the axes outside the last.
fn origin_row(outer: &[Line], r: usize) -> Option<usize> {
    let (mut rest, mut row, mut step) = (r, 0, 1);
    for line in outer.iter().rev() {
        row += line.origin(rest % line.length)? * step;
        rest /= line.length;
        step *= usize::try_from(line.size).ok()?;
    }
    Some(row)
}

impl OpDef for Pad {
    fn is_nonnegative(&self, known: &[bool]) -> bool {
        (self.mode != PadMode::Constant || self.value >= 0.0) && known.iter().all(|known| *known)
    }

    fn border(&self) -> Option<Border> {
        let (before, after) = self.pads.split_at_checked(self.pads.len() / 2)?;
        let adds = self.pads.iter().all(|n| *n >= 0) && self.mode == PadMode::Constant;
        let (samples, spatial) = (|side: &[i64]| side.iter().take(2).sum::<i64>(), 2..);
        let pads = [before.get(spatial.clone())?, after.get(spatial)?].concat();
        let apart = adds && samples(before) == 0 && samples(after) == 0;
        apart.then_some(Border { pads, value: self.value })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let rank = x.ty.rank();
        if self.pads.len() != 2 * rank {
            let reason =
                format!("{} numbers for {}, which needs {}", self.pads.len(), x.ty, 2 * rank);
            return Err(OpError::attr("pads", reason));
        }
        if element(x.ty.dtype, self.value).is_none() {
            let reason = format!("{} is not exact as {}", self.value, x.ty.dtype);
            return Err(OpError::attr("value", reason));
        }
        let mut ty = x.ty.clone();
        for (i, size) in x.ty.shape.iter().enumerate() {
            self.check(x.ty, i, size)?;
            let (before, after) = self.around(i, rank);
            ty.shape[i] = size.clone() + before + after;
        }
        result(ty)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        match self.around(shard.axis, at.rank()) {
            (0, 0) => at.keep(shard),
            _ => at.refuse(Code::Reorders, "adds or removes samples at the borders of the batch"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let sizes = x.dims().iter().enumerate();
        let lines: SmallVec<[Line; 6]> =
            sizes.map(|(i, size)| self.line(i, x.rank(), *size)).collect();
        let dims: SmallVec<[usize; 6]> = lines.iter().map(|line| line.length).collect();
        let mut y = self.filled(x.dtype(), &dims)?;
        let Some((columns, outer)) = lines.split_last() else { return Ok(vec![x.clone()]) };
        if y.is_empty() || x.is_empty() {
            return Ok(vec![y]);
        }
        let width = x.dtype().bytes();
        let row = x.dims()[outer.len()] * width;
        let rows = y.bytes_mut().chunks_exact_mut(columns.length * width);
        for (r, out) in rows.enumerate() {
            if let Some(from) = origin_row(outer, r) {
                columns.write(&x.bytes()[from * row..][..row], out, width);
            }
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, shape) = (at.dy()?, at.shape(at.operand(0)?));
        let rank = shape.len();
        if self.mode == PadMode::Constant {
            let pads = self.pads.iter().map(|p| -p).collect();
            let dx = at.pad(dy, pads, 0.0)?;
            at.give(0, dx)?;
            return Ok(());
        }
        let mut dx = dy;
        for axis in 0..rank {
            if self.pads[axis] == 0 && self.pads[rank + axis] == 0 {
                continue;
            }
            let size = shape[axis].clone();
            // The entries of the axis that the padded ones are copies of.
            let numbers = at.count_to(size.clone(), DType::I64)?;
            let own = vec![self.pads[axis], self.pads[rank + axis]];
            let copies = at.op(Self { mode: self.mode, pads: own, value: 0.0 }, &[numbers])?;
            let mut to = at.shape(dx).to_vec();
            to[axis] = size;
            dx = at.gathered(dx, copies, axis, &to.into_iter().collect())?;
        }
        at.give(0, dx)
    }
}
