//! The parameters that devices hold.

use std::collections::BTreeMap;

use super::CompileError;
use crate::ir::Weights;
use crate::lower::{DeviceProgram, Program, Storage};
use crate::types::Tensor;

/// The parameters that a device holds, or that a run changes there, by number; each must have its elements in `weights`.
pub(super) fn of<'a>(
    program: &Program,
    device: &DeviceProgram,
    weights: &'a Weights,
) -> Result<BTreeMap<u32, &'a Tensor>, CompileError> {
    let mut held = BTreeMap::new();
    for buffer in &device.buffers {
        let held_here = match buffer.storage {
            Storage::Param(i) => Some(i),
            Storage::Update(i) => program.updates.get(i as usize).copied(),
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Arena
            | Storage::Part { .. }
            | Storage::Reuse { .. } => None,
        };
        let Some(i) = held_here else { continue };
        let missing = || CompileError::MissingParam(buffer.name.to_string());
        let port = program.params.get(i as usize).ok_or_else(missing)?;
        let tensor = weights.get(&port.name).ok_or_else(missing)?;
        if tensor.tensor_type() != port.ty {
            return Err(CompileError::ParamType {
                name: buffer.name.to_string(),
                expected: Box::new(port.ty.clone()),
                found: Box::new(tensor.tensor_type()),
            });
        }
        held.insert(i, tensor);
    }
    Ok(held)
}
