//! Windows that move over the axes behind the first two.

use super::{Attribute, Node, NodeError, wrong};
use crate::types::{Dim, Shape};

/// The settings of windows as ONNX gives them, with `auto_pad` resolved.
pub(super) struct Windows {
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    pub(super) pads: Vec<i64>,
}

/// The sizes of the axes behind the first two.
pub(super) fn spatial(shape: &Shape) -> Vec<Dim> {
    shape.iter().skip(2).cloned().collect()
}

/// The sizes, where all are constants.
pub(super) fn constants(sizes: &[Dim]) -> Option<Vec<i64>> {
    sizes.iter().map(Dim::as_const).collect()
}

impl Windows {
    pub(super) fn read(
        n: &mut Node<'_, '_>,
        input: &[Dim],
        kernel: &[i64],
    ) -> Result<Self, NodeError> {
        let strides = n.ints("strides")?;
        let dilations = n.ints("dilations")?;
        let given = n.opt_ints("pads")?;
        let auto_pad = n.string("auto_pad", "NOTSET")?;
        let pads = match (auto_pad.as_str(), given) {
            ("NOTSET" | "", given) => given.unwrap_or_default(), // no padding
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

/// The padding with which there is a window for every `stride` elements; an odd one is at the end,
/// or at the start where `lower`.
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
        // A list that is empty means ones.
        // A stride below 1 is the operator's to refuse; here it must only not divide by 0.
        let stride = strides.get(axis).copied().unwrap_or(1).max(1);
        // An empty list means ones.
        let dilation = dilations.get(axis).copied().unwrap_or(1);
        let extent = taps.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        let steps = size.saturating_sub(1).div_euclid(stride);
        // `(ceil(size / stride) - 1) * stride + extent - size`: what the last window lacks.
        let total =
            steps.saturating_mul(stride).saturating_add(extent).saturating_sub(*size).max(0);
        let (small, large) = (total / 2, total - total / 2);
        before.push(if lower { large } else { small });
        after.push(if lower { small } else { large });
    }
    before.extend(after);
    Ok(before)
}

/// The attributes of windows that are not left out.
pub(super) fn given<'a, const K: usize>(
    lists: [(&'a str, &'a [i64]); K],
) -> Vec<(&'a str, Attribute<'a>)> {
    let given = lists.into_iter().filter(|(_, list)| !list.is_empty());
    given.map(|(name, list)| (name, list.into())).collect()
}
