//! Channels exchanged with square blocks of an image.

use smallvec::{SmallVec, smallvec};

use super::attr::names;
use super::infer::{exactly, result, sizes_of};
use super::prelude::*;
use super::strided::{self, Axis, distances};
use crate::types::MAX_SIZE;
use crate::types::invariant::invariant;

names! {
    /// How the places in a block and the deep channels make up the channels of the image that is
    /// not deep.
    pub enum BlockOrder {
        /// Row in the block, column in the block, channel.
        Dcr = "dcr",
        /// Channel, row in the block, column in the block.
        Crd = "crd",
    }
}

family! {
    /// Channels of `[N, C, H, W]` exchanged with blocks of `block` times `block` elements.
    pub enum Blocks is PERMUTES | FOLLOWS_BLOCKS with [
        /// The rows, and the columns, of a block, at least 1.
        block: i64,
        /// The order of the channels of the image that is not deep, outermost first.
        mode: BlockOrder = BlockOrder::Dcr,
    ] {
        /// The image `[N, C / block^2, H * block, W * block]` of which each block holds the
        /// channels of one element of `x: [N, C, H, W]`.
        DepthToSpace = "depth_to_space",
        /// The image `[N, C * block^2, H / block, W / block]` of which each element has for
        /// channels the block of `x: [N, C, H, W]`.
        SpaceToDepth = "space_to_depth",
    }
}

impl Blocks {
    /// The elements of an operand with the sizes `dims`, which `infer` accepts and none of which is
    /// 0, in the order of the result: sizes and distances of axes, of which neighbours make up
    /// those of the result.
    ///
    /// `None` where the operand has not four axes.
    #[expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]
    pub(crate) fn reading(&self, dims: &[usize]) -> Option<SmallVec<[Axis; 6]>> {
        let [n, c, h, w] = *dims else { return None };
        let own = distances(dims);
        let (&block, &mode) = self.common();
        let b = usize::try_from(block).ok()?;
        let by = |distance: isize, times: usize| distance.wrapping_mul(times.cast_signed());
        Some(match self {
            Self::DepthToSpace { .. } => {
                let deep = c / b.checked_mul(b)?;
                let (channel, row, column) = match mode {
                    BlockOrder::Dcr => (own[1], by(own[1], b * deep), by(own[1], deep)),
                    BlockOrder::Crd => (by(own[1], b * b), by(own[1], b), own[1]),
                };
                smallvec![
                    (n, own[0]),
                    (deep, channel),
                    (h, own[2]),
                    (b, row),
                    (w, own[3]),
                    (b, column),
                ]
            }
            Self::SpaceToDepth { .. } => {
                let (channel, row, column) = ((c, own[1]), (b, own[2]), (b, own[3]));
                let [first, second, third] = match mode {
                    BlockOrder::Dcr => [row, column, channel],
                    BlockOrder::Crd => [channel, row, column],
                };
                smallvec![
                    (n, own[0]),
                    first,
                    second,
                    third,
                    (h / b, by(own[2], b)),
                    (w / b, by(own[3], b)),
                ]
            }
        })
    }
}

/// The part of `size` entries that is left when `by` of them become one; `what` names them.
fn part(what: &str, size: &Dim, by: &Dim) -> Result<Dim, OpError> {
    size.exact_div(by)
        .ok_or_else(|| OpError::attr("block", format!("{by} does not divide {size} {what}")))
}

impl OpDef for Blocks {
    #[expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let expected = "it must have a batch axis, channels, rows and columns";
        let [n, c, h, w] = sizes_of(operands, 0, expected)?;
        let (&block, _) = self.common();
        if !(1..=MAX_SIZE).contains(&block) {
            let reason = format!("{block} is out of range; it must be at least 1");
            return Err(OpError::attr("block", reason));
        }
        let block = Dim::from(block);
        let area = block.clone() * block.clone();
        let shape: [Dim; 4] = match self {
            Self::DepthToSpace { .. } => {
                let deep = part("channels", c, &area)?;
                [n.clone(), deep, h.clone() * block.clone(), w.clone() * block]
            }
            Self::SpaceToDepth { .. } => {
                let (rows, columns) = (part("rows", h, &block)?, part("columns", w, &block)?);
                [n.clone(), c.clone() * area, rows, columns]
            }
        };
        result(TensorType { dtype: x.ty.dtype, shape: Shape::from(shape.as_slice()) })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let (Shard { axis, inner, .. }, (&block, &mode)) = (shard, self.common());
        let b = u64::try_from(block).ok();
        let entries = if axis == 1 { b.and_then(|b| b.checked_mul(b)) } else { b };
        let shrinks = matches!(self, Self::DepthToSpace { .. }) == (axis == 1);
        let inner = match (axis, entries) {
            (0, _) => Some(inner),
            // The batch must stay outermost among the channels.
            (1, _) if mode == BlockOrder::Dcr && block != 1 => None,
            (_, Some(by)) if shrinks => (by > 0 && inner % by == 0).then(|| inner / by),
            (_, Some(by)) => inner.checked_mul(by),
            (_, None) => None,
        };
        let Some(inner) = inner else {
            let what = if axis == 1 { "channels" } else { "rows and columns" };
            let reason = format!("exchanges {what} that are the batch with other axes");
            return at.refuse(Code::Reorders, reason);
        };
        at.keep(Shard { inner, ..shard })
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let ty = x.tensor_type();
        let inferred = self.infer(&[Operand { ty: &ty, ints: None }])?;
        let dims = inferred.first().and_then(|r| r.ty.shape.as_const());
        let dims = invariant(dims, "that the sizes of a tensor are known");
        if x.is_empty() {
            return Ok(vec![Tensor::zeros(x.dtype(), &dims)?]);
        }
        let axes = invariant(self.reading(x.dims()), "that an image consists of blocks");
        Ok(vec![strided::taken(x, 0, &axes, &dims)?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        let inverse = match *self {
            Self::DepthToSpace { block, mode } => Self::SpaceToDepth { block, mode },
            Self::SpaceToDepth { block, mode } => Self::DepthToSpace { block, mode },
        };
        at.give(0, dy.apply(inverse))
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_wrap, reason = "the sizes of the tests are small")]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, indices, random, rng};
    use super::{BlockOrder, Blocks};
    use crate::types::DType;

    const ORDERS: [BlockOrder; 2] = [BlockOrder::Dcr, BlockOrder::Crd];

    fn to_space(block: usize, mode: BlockOrder) -> Op {
        Blocks::DepthToSpace { block: block as i64, mode }.into()
    }

    fn to_depth(block: usize, mode: BlockOrder) -> Op {
        Blocks::SpaceToDepth { block: block as i64, mode }.into()
    }

    #[test]
    #[expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]
    fn values() {
        let mut rng = rng(1);
        for i in 0..60usize {
            let mode = ORDERS[i % 2];
            let b = rng.random_range(1..=3usize);
            let [n, c, h, w] = [i % 3, 1, 1, 0].map(|least| least + rng.random_range(0..3usize));
            let deep = [n, c * b * b, h, w];
            let x = random(&mut rng, [DType::F32, DType::U8, DType::F64][i % 3], &deep);
            let y = &testing::eval(&to_space(b, mode), &[&x])[0];
            assert_eq!(y.dims(), [n, c, h * b, w * b]);
            let (x_values, y_values) = (x.to_f64(), y.to_f64());
            let channel = |channel: usize, row: usize, column: usize| match mode {
                BlockOrder::Dcr => (row * b + column) * c + channel,
                BlockOrder::Crd => (channel * b + row) * b + column,
            };
            for (at, index) in indices(y.dims()).iter().enumerate() {
                let [n, c, row, column] = index[..] else { unreachable!() };
                let from = n * deep[1] + channel(c, row % b, column % b);
                let from = (from * h + row / b) * w + column / b;
                assert!(
                    (y_values[at] - x_values[from]).abs() == 0.0,
                    "{mode:?} {deep:?} {index:?}"
                );
            }
            assert_eq!(testing::eval(&to_depth(b, mode), &[y])[0], x);
        }
    }
}
