//! The parameters that devices hold, and those that a run changes.

use std::collections::BTreeMap;

use super::CompileError;
use crate::ir::Weights;
use crate::lower::{Buffer, BufferId, DeviceProgram, Program, Storage};
use crate::types::Tensor;

/// The parameter whose elements, or new elements, a buffer holds, by number.
///
/// # Errors
/// An update that the program does not have.
pub(super) fn held(program: &Program, buffer: &Buffer) -> Result<Option<u32>, CompileError> {
    match buffer.storage {
        Storage::Param(i) => Ok(Some(i)),
        Storage::Update(i) => {
            let name = &buffer.name;
            let missing = || {
                CompileError::Internal(format!("`{name}` is update {i}, which the program lacks"))
            };
            program.updates.get(i as usize).copied().ok_or_else(missing).map(Some)
        }
        Storage::Input(_)
        | Storage::Output(_)
        | Storage::Arena
        | Storage::Part { .. }
        | Storage::Reuse { .. } => Ok(None),
    }
}

/// The updates that a device has, by their position in the program, and their buffers.
pub(super) fn updates(device: &DeviceProgram) -> impl Iterator<Item = (u32, BufferId)> + '_ {
    device.buffers.iter().zip(0u32..).filter_map(|(buffer, at)| match buffer.storage {
        Storage::Update(i) => Some((i, BufferId(at))),
        Storage::Input(_)
        | Storage::Output(_)
        | Storage::Param(_)
        | Storage::Arena
        | Storage::Part { .. }
        | Storage::Reuse { .. } => None,
    })
}

/// The parameters that a device holds, or that a run changes there, by number; each must have its
/// elements in `weights`.
pub(super) fn of<'a>(
    program: &Program,
    device: &DeviceProgram,
    weights: &'a Weights,
) -> Result<BTreeMap<u32, &'a Tensor>, CompileError> {
    let mut all = BTreeMap::new();
    for buffer in &device.buffers {
        let Some(i) = held(program, buffer)? else { continue };
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
        all.insert(i, tensor);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::of;
    use crate::backend::CPU;
    use crate::ir::verify;
    use crate::lower::testing::template;
    use crate::lower::{Storage, lower};

    #[test]
    fn an_update_that_the_program_does_not_have_is_named() {
        let (graph, weights) = template();
        let mut program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        assert!(of(&program, &program.devices[0], &weights).is_ok());
        program.devices[0].buffers[0].storage = Storage::Update(7);
        let name = program.devices[0].buffers[0].name.clone();
        let said = of(&program, &program.devices[0], &weights).unwrap_err().to_string();
        assert_eq!(said, format!("internal error: `{name}` is update 7, which the program lacks"));
    }
}
