//! Images put together from windows.

use super::windows::given;
use super::{Export, Imports, Writer, Written};
use crate::op::Col2Im;

pub(super) fn imports(all: &mut Imports) {
    all.add("Col2Im", 3, |n| {
        let (image, kernel) = (n.numbers(1)?, n.numbers(2)?);
        let (strides, dilations) = (n.ints("strides")?, n.ints("dilations")?);
        let pads = n.ints("pads")?;
        n.of_first(1, Col2Im { image, kernel, strides, dilations, pads })
    });
}

impl Export for Col2Im {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let Self { image, kernel, strides, dilations, pads } = self;
        let given = given([("strides", strides), ("dilations", dilations), ("pads", pads)]);
        let (image, kernel) = (w.ints(image)?, w.ints(kernel)?);
        w.with("Col2Im", [image, kernel], &given)
    }
}
