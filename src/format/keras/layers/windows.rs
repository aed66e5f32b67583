//! Windows over images, as fields of layers give them.

use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::windows::same_padding;
use crate::ir::Value;
use crate::op::{Formula, Pad, PadMode};
use crate::types::Quoted;

/// How the border of an image is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    Valid,
    Same,
    /// Everything before the image, so that a step sees none behind it.
    Causal,
}

impl Padding {
    pub(super) fn read(at: &At<'_, '_>) -> Read<Self> {
        const WORDS: [(&str, Padding); 3] =
            [("valid", Padding::Valid), ("same", Padding::Same), ("causal", Padding::Causal)];
        at.config.choice("padding", "valid", &WORDS)
    }
}

/// The windows of a layer over `rank` spatial axes.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub(super) rank: usize,
    pub(super) kernel: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    pub(super) padding: Padding,
    pub(super) format: Format,
}

/// The largest number of a window: a file's numbers may be anything.
const MOST: i64 = 1 << 30;

impl Windows {
    /// The windows whose size is the field `size`.
    pub(super) fn read(at: &At<'_, '_>, rank: usize, size: &str) -> Read<Self> {
        let kernel = at.config.ints(size, rank)?;
        let kernel = kernel.ok_or_else(|| Fault::field(size, "is missing"))?;
        let windows = Self {
            rank,
            strides: at.config.ints("strides", rank)?.unwrap_or_else(|| vec![1; rank]),
            dilations: at.config.ints("dilation_rate", rank)?.unwrap_or_else(|| vec![1; rank]),
            padding: Padding::read(at)?,
            format: at.format()?,
            kernel,
        };
        windows.check()
    }

    /// Fails unless all numbers are positive.
    pub(super) fn check(self) -> Read<Self> {
        let lists = [("kernel", &self.kernel), ("strides", &self.strides)];
        for (name, list) in lists.into_iter().chain([("dilation_rate", &self.dilations)]) {
            if let Some(wrong) = list.iter().find(|x| !(1..=MOST).contains(*x)) {
                return Err(Fault::new(format!("a number of {} is {wrong}", Quoted(name))));
            }
        }
        Ok(self)
    }

    /// The padding of an image with its channels behind the batch.
    pub(super) fn pads(&self, at: &At<'_, '_>, x: Value) -> Read<Vec<i64>> {
        match self.padding {
            Padding::Valid => Ok(Vec::new()),
            Padding::Same => {
                let sizes = at.sizes(x, 2)?;
                Ok(same_padding(&sizes, &self.kernel, &self.strides, &self.dilations, false))
            }
            Padding::Causal => {
                let before = self.kernel.iter().zip(&self.dilations).map(|(k, d)| (k - 1) * d);
                Ok(before.chain(std::iter::repeat_n(0, self.rank)).collect())
            }
        }
    }

    /// Fails unless an image has as many axes as the windows.
    pub(super) fn fit(&self, at: &At<'_, '_>, x: Value) -> Read<()> {
        if at.rank(x) == self.rank + 2 {
            return Ok(());
        }
        Err(Fault::new(format!(
            "it is called with {}, no image of {} axes",
            at.ty_of_value(x),
            self.rank
        )))
    }
}

/// Zeros around the spatial axes of an image with its channels behind the batch, or entries less.
pub(super) fn pad_image(
    at: &mut At<'_, '_>,
    x: Value,
    before: &[i64],
    after: &[i64],
    mode: PadMode,
) -> Read<Value> {
    let edges = |list: &[i64]| [&[0, 0], list].concat();
    let pads = [edges(before), edges(after)].concat();
    at.op(Pad { mode, pads, value: 0.0 }, &[x])
}
