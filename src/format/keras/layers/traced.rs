//! Layers that stand for parts of Python code in a model that was traced.

use super::entry::layers;
use crate::format::keras::error::Fault;
use crate::format::keras::value::Tensor;

layers! {
    // A variable: what it is called with only gives it a place among the calls.
    "Parameter" Own => |at, args| {
        args.first()?;
        let shape = at.config.opt_list("shape")?;
        let shape = shape.ok_or_else(|| Fault::field("shape", "is missing"))?;
        Ok(at.variable("value", &shape, true)?.into())
    };
    // A tensor with the mask that Python code gave it.
    "Masked" Own => |at, args| {
        let x = args.tensor()?;
        let mask = args.opt_tensor(1, "mask")?.map(|mask| at.natural(mask)).transpose()?;
        Ok(Tensor { mask, ..at.as_is(x)? }.into())
    };
    // A tensor with the mask of another one.
    "Counted" Own => |at, args| {
        let (x, like) = (args.tensor()?, args.opt_tensor(1, "like")?);
        Ok(Tensor { mask: like.and_then(|like| like.mask), ..at.as_is(x)? }.into())
    };
}
