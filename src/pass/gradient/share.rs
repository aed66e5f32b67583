//! One node for constants that are equal.

use std::collections::BTreeMap;

use crate::ir::{Builder, GraphError, Value};
use crate::op::Op;
use crate::types::TensorType;

/// The bytes up to which constants are compared.
const SMALL: usize = 64;

/// Makes all that takes a small constant take the first one that equals it.
pub(super) fn share_constants(b: &mut Builder) -> Result<(), GraphError> {
    let mut firsts: BTreeMap<(String, Vec<u8>), Value> = BTreeMap::new();
    let ids: Vec<_> = b.graph().ids().collect();
    for id in ids {
        let Some(Op::Constant(constant)) = b.graph().node(id).op() else { continue };
        let bytes = constant.value.bytes();
        if bytes.len() > SMALL {
            continue;
        }
        let ty: TensorType = constant.value.tensor_type();
        let (key, value) = ((ty.to_string(), bytes.to_vec()), Value { node: id, output: 0 });
        match firsts.get(&key) {
            Some(first) => b.replace(value, *first)?,
            None => drop(firsts.insert(key, value)),
        }
    }
    Ok(())
}
