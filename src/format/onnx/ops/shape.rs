//! Values made of sizes.

use super::{Export, Imports, Writer, Written};
use crate::op::{Dims, ShapeOp};

pub(super) fn imports(all: &mut Imports) {
    all.add("Shape", 1, |n| {
        let (start, end) = (n.int("start", 0)?, n.opt_int("end")?);
        n.of_first(1, ShapeOp { end, start })
    });
}

impl Export for ShapeOp {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let mut given = vec![("start", self.start.into())];
        given.extend(self.end.map(|end| ("end", end.into())));
        w.same("Shape", &given)
    }
}

impl Export for Dims {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let sizes = w.sizes(&self.values)?;
        if !self.scalar {
            return w.done("Identity", vec![sizes], &[]);
        }
        let none = w.ints(&[])?;
        w.done("Reshape", vec![sizes, none], &[])
    }
}
