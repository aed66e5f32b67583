//! Constants, and values made of sizes.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written};
use crate::op::{Constant, Dims};
use crate::types::Tensor;

pub(super) fn imports(all: &mut Imports) {
    all.add("Constant", 0, constant);
}

fn constant(n: &mut Node<'_, '_>) -> Done {
    // A valid node has exactly one of these attributes. Strings and sparse tensors, which it may
    // have too, are not tensors of numbers here.
    let tensor = if let Some(tensor) = n.tensor("value")? {
        tensor
    } else if let Some(x) = n.opt_float("value_float")? {
        Tensor::scalar(x)
    } else if let Some(x) = n.opt_floats("value_floats")? {
        Tensor::new(&[x.len()], &x)?
    } else if let Some(x) = n.opt_int("value_int")? {
        Tensor::scalar(x)
    } else if let Some(x) = n.opt_ints("value_ints")? {
        Tensor::new(&[x.len()], &x)?
    } else {
        return Err(NodeError::Unsupported(
            "a constant that is not a tensor of numbers".to_owned(),
        ));
    };
    n.constant(tensor);
    Ok(())
}

impl Export for Constant {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let constant = w.tensor(&self.value)?;
        w.done("Identity", vec![constant], &[])
    }
}

impl Export for Dims {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let sizes = w.sizes(&self.values)?;
        if !self.scalar {
            return w.done("Identity", vec![sizes], &[]);
        }
        // A vector of one element reshaped to no axes is a scalar.
        let none = w.ints(&[])?;
        w.done("Reshape", vec![sizes, none], &[])
    }
}
