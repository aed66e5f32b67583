//! Elements of images at given positions.

use super::{Export, Imports, Writer, Written, word};
use crate::op::{GridPadding, GridSample, ResizeMode};

/// The words of today, then those before opset 20.
const MODES: [(&str, ResizeMode); 5] = [
    ("nearest", ResizeMode::Nearest),
    ("linear", ResizeMode::Linear),
    ("cubic", ResizeMode::Cubic),
    ("bilinear", ResizeMode::Linear),
    ("bicubic", ResizeMode::Cubic),
];

const PADDING: [(&str, GridPadding); 3] = [
    ("zeros", GridPadding::Zeros),
    ("border", GridPadding::Border),
    ("reflection", GridPadding::Reflection),
];

pub(super) fn imports(all: &mut Imports) {
    all.add("GridSample", 2, |n| {
        let mode = n.choice("mode", "linear", &MODES)?;
        let padding = n.choice("padding_mode", "zeros", &PADDING)?;
        let align_corners = n.flag("align_corners", false)?;
        n.of_first(2, GridSample { mode, padding, align_corners })
    });
}

impl Export for GridSample {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let mode = ("mode", word(&MODES, &self.mode)?);
        let padding = ("padding_mode", word(&PADDING, &self.padding)?);
        w.same("GridSample", &[mode, padding, ("align_corners", self.align_corners.into())])
    }
}
