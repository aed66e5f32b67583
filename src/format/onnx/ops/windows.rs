//! Windows that move over the axes behind the first two.

use super::{Attribute, Node, NodeError, wrong};
use crate::format::windows::same_padding;
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

/// The padding with which there is a window for every `stride` elements.
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
    Ok(same_padding(&input, kernel, strides, dilations, lower))
}

/// The attributes of windows that are not left out.
pub(super) fn given<'a, const K: usize>(
    lists: [(&'a str, &'a [i64]); K],
) -> Vec<(&'a str, Attribute<'a>)> {
    let given = lists.into_iter().filter(|(_, list)| !list.is_empty());
    given.map(|(name, list)| (name, list.into())).collect()
}
