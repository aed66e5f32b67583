//! Rows in several blocks: values joined along the batch, and what takes them apart again.

use fanwise::ir::Value;
use fanwise::op::Attr;
use fanwise::types::{Dim, TensorType};
use rand::seq::IndexedRandom;

use super::{Generator, int, ints};

type Added = Option<Vec<Value>>;

impl Generator {
    /// Several blocks of rows, operators on them, and mostly the blocks apart again.
    pub(super) fn blocks(&mut self, x: Value, ty: &TensorType, batch: usize) -> Added {
        let (mut value, count, axis) = self.joined(x, ty, batch)?;
        let mut all = vec![value];
        for _ in 0..self.pick(0..3) {
            if let Some(next) = self.on_blocks(value, axis) {
                value = next;
                all.push(value);
            }
        }
        let ty = self.ty(value);
        match self.pick(0..5) {
            0 | 1 => {
                self.folded.extend(&all);
                Some(all)
            }
            2 if self.across => self.over_batch(value, &ty, axis),
            _ => self.apart(value, &ty, (count, axis)),
        }
    }

    /// A value of several blocks, their number, and the axis they are on.
    fn joined(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<(Value, usize, usize)> {
        match self.pick(0..4) {
            0 => {
                let times = self.pick(2..4);
                let repeats = (0..ty.rank()).map(|axis| if axis == batch { times } else { 1 });
                let tiled = self.add("tile", vec![("repeats", ints(repeats))], &[x])?;
                Some((tiled[0], times, batch))
            }
            1 if batch == 0 && ty.rank() > 1 => {
                let count = Self::size(ty, 1)?;
                let perm = [1, 0].into_iter().chain(2..ty.rank());
                let turned = self.add("transpose", vec![("perm", ints(perm))], &[x])?;
                let mut shape = vec![Dim::n() * i64::try_from(count).unwrap()];
                shape.extend(ty.shape.iter().skip(2).cloned());
                let folded = self.add("reshape", vec![("shape", Attr::Ints(shape))], &turned)?;
                Some((folded[0], count, 0))
            }
            _ => {
                let same: Vec<Value> =
                    self.rows.iter().copied().filter(|v| self.ty(*v) == *ty).collect();
                let mut operands = vec![x];
                for _ in 0..self.pick(1..3) {
                    operands.push(*same.choose(&mut self.rng)?);
                }
                let joined = self.add("concat", vec![("axis", int(batch))], &operands)?;
                Some((joined[0], operands.len(), batch))
            }
        }
    }

    /// An operator that keeps the blocks.
    fn on_blocks(&mut self, value: Value, axis: usize) -> Option<Value> {
        let ty = self.ty(value);
        let added = match self.pick(0..5) {
            0 => {
                let axis = self.axis(&ty, axis)?;
                self.add("softmax", vec![("axis", int(axis))], &[value])?
            }
            1 => {
                let same: Vec<Value> =
                    self.folded.iter().copied().filter(|v| self.ty(*v) == ty).collect();
                let other = same.choose(&mut self.rng).copied().unwrap_or(value);
                self.add("sub", vec![], &[value, other])?
            }
            2 => {
                let scale = self.param(&[]);
                self.add("mul", vec![], &[scale, value])?
            }
            _ => self.unary(value)?,
        };
        added.first().copied()
    }

    fn apart(&mut self, value: Value, ty: &TensorType, (count, axis): (usize, usize)) -> Added {
        let blocks = |count: usize| Dim::n() * i64::try_from(count).unwrap();
        match self.pick(0..3) {
            0 => {
                let first = self.pick(0..count);
                let attrs = vec![
                    ("axes", ints([axis])),
                    ("starts", Attr::Ints(vec![blocks(first)])),
                    ("ends", Attr::Ints(vec![blocks(first + 1)])),
                    ("steps", ints([1])),
                ];
                self.add("slice", attrs, &[value])
            }
            1 => {
                let sizes = Attr::Ints(vec![Dim::n(); count]);
                self.add("split", vec![("axis", int(axis)), ("sizes", sizes)], &[value])
            }
            _ => {
                let mut shape = ty.shape.to_vec();
                shape[axis] = Dim::n();
                shape.insert(axis, i64::try_from(count).unwrap().into());
                self.add("reshape", vec![("shape", Attr::Ints(shape))], &[value])
            }
        }
    }
}
