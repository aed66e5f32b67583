//! Transposed convolutions.

use super::alike::alike;
use super::windows::{constants, spatial};
use super::{Done, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::ConvTranspose;

alike! {
    ConvTranspose {
        "ConvTranspose" conv_transpose 3 => ConvTranspose {
            strides, dilations, pads, output_padding, groups as "group"
        },
    }
}

/// The settings of a transposed convolution, with `auto_pad` and the sizes asked for resolved.
struct Spread {
    input: Vec<i64>,
    kernel: Vec<i64>,
    op: ConvTranspose,
}

impl Spread {
    /// The size of each axis without padding.
    fn reach(&self) -> Vec<i64> {
        let ConvTranspose { strides, dilations, output_padding, .. } = &self.op;
        // `(size - 1) * stride + (kernel - 1) * dilation + 1 + output_padding`. The numbers are the
        // file's, so the arithmetic saturates.
        let one = |(axis, (size, taps)): (usize, (&i64, &i64))| {
            let steps = size.saturating_sub(1).saturating_mul(at(strides, axis, 1));
            let extent = taps.saturating_sub(1).saturating_mul(at(dilations, axis, 1));
            let added = at(output_padding, axis, 0);
            steps.saturating_add(extent).saturating_add(1).saturating_add(added)
        };
        self.input.iter().zip(&self.kernel).enumerate().map(one).collect()
    }

    /// Sets the padding with which the sizes are `asked`: what is too much is left out at both
    /// ends, of an odd number the larger half at the end where `upper`; what is missing is added at
    /// the end.
    fn fit(&mut self, asked: &[i64], upper: bool) {
        let (mut before, mut after, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, (reach, asked)) in self.reach().iter().zip(asked).enumerate() {
            let total = reach.saturating_sub(*asked);
            let (small, large) = (total.max(0) / 2, total.max(0) - total.max(0) / 2);
            before.push(if upper { small } else { large });
            after.push(if upper { large } else { small });
            let given = at(&self.op.output_padding, axis, 0);
            added.push(given.saturating_add(total.min(0).saturating_neg()));
        }
        before.extend(after);
        (self.op.pads, self.op.output_padding) = (before, added);
    }

    /// The sizes of `stride` elements for each of the input, where windows reach so far.
    fn same(&self) -> Vec<i64> {
        let size = |(axis, (size, reach)): (usize, (&i64, i64))| {
            size.saturating_mul(at(&self.op.strides, axis, 1)).min(reach)
        };
        self.input.iter().zip(self.reach()).enumerate().map(size).collect()
    }
}

/// The number for an axis; a list that is empty has `absent` for each.
fn at(list: &[i64], axis: usize, absent: i64) -> i64 {
    list.get(axis).copied().unwrap_or(absent)
}
/// The constant sizes of the axes of a value behind the first two.
fn sizes(n: &Node<'_, '_>, value: Value) -> Result<Vec<i64>, NodeError> {
    constants(&spatial(n.shape(value))).ok_or_else(|| {
        let text = format!("{} of {}, whose sizes are not constants,", n.op_type(), n.ty(value));
        NodeError::Unsupported(text)
    })
}

fn conv_transpose(n: &mut Node<'_, '_>) -> Done {
    let (x, w) = (n.operand(0)?, n.operand(1)?);
    let (input, kernel) = (sizes(n, x)?, sizes(n, w)?);
    if let Some(declared) = n.opt_ints("kernel_shape")?.filter(|k| *k != kernel) {
        let reason = format!("is {declared:?}, but the kernel is {}", n.ty(w));
        return Err(wrong("kernel_shape", reason));
    }
    let op = ConvTranspose {
        strides: n.ints("strides")?,
        dilations: n.ints("dilations")?,
        pads: n.ints("pads")?,
        output_padding: n.ints("output_padding")?,
        groups: n.int("group", 1)?,
    };
    let mut spread = Spread { input, kernel, op };
    let asked = n.opt_ints("output_shape")?;
    let auto_pad = n.string("auto_pad", "NOTSET")?;
    let upper = auto_pad == "SAME_UPPER";
    match (auto_pad.as_str(), asked) {
        ("NOTSET" | "" | "VALID" | "SAME_UPPER" | "SAME_LOWER", Some(sizes)) => {
            if sizes.len() != spread.input.len() || sizes.iter().any(|s| *s < 1) {
                let reason = format!("is {sizes:?}; it must be the sizes of the spatial axes");
                return Err(wrong("output_shape", reason));
            }
            spread.fit(&sizes, upper);
        }
        ("NOTSET" | "", None) => {}
        (_, None) if spread.op.pads.iter().any(|p| *p != 0) => {
            return Err(wrong("pads", format!("contradicts auto_pad {auto_pad}")));
        }
        ("VALID", None) => spread.op.pads = Vec::new(),
        ("SAME_UPPER" | "SAME_LOWER", None) => spread.fit(&spread.same(), upper),
        _ => return Err(wrong("auto_pad", format!("is `{auto_pad}`"))),
    }
    n.of_all(spread.op)
}
