//! The parameters that devices hold, and those that a run changes.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::CompileError;
use crate::ir::Weights;
use crate::lower::{Buffer, BufferId, Derived, DeviceProgram, Factor, Port, Program, Storage};
use crate::types::invariant::{int, invariant};
use crate::types::{Order, Tensor};

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
        | Storage::Strip { .. }
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
        | Storage::Strip { .. }
        | Storage::Reuse { .. } => None,
    })
}

/// The order in which a device holds a parameter.
pub(super) fn order(device: &DeviceProgram, i: u32) -> Order {
    let mut held = device.buffers.iter().filter(|b| b.storage == Storage::Param(i));
    // Updates of a parameter that no step reads are row-major.
    held.next().map_or(Order::RowMajor, |buffer| buffer.order)
}

/// The elements of a tensor in the order [`Order::ChannelsLast`]: axis 1 varies fastest, then the
/// axes behind it as they were, axis 0 slowest.
pub(super) fn channels_last(tensor: &Tensor) -> Vec<u8> {
    let dims = tensor.dims();
    // A tensor without channels or places has one order.
    let channels = dims.get(1).copied().unwrap_or(1);
    let plane = dims.get(2..).map_or(1, |dims| dims.iter().product());
    exchanged(tensor, channels, plane)
}

/// The elements of a tensor whose elements lie in the order [`Order::ChannelsLast`], row-major.
pub(super) fn channels_first(tensor: &Tensor) -> Vec<u8> {
    let dims = tensor.dims();
    // As above.
    let channels = dims.get(1).copied().unwrap_or(1);
    let plane = dims.get(2..).map_or(1, |dims| dims.iter().product());
    exchanged(tensor, plane, channels)
}

/// The elements of matrices of `rows` by `columns`, each transposed.
fn exchanged(tensor: &Tensor, rows: usize, columns: usize) -> Vec<u8> {
    let (data, size) = (tensor.bytes(), tensor.dtype().bytes());
    let mut turned = vec![0; data.len()];
    let matrix = (rows * columns * size).max(1);
    let matrices = turned.par_chunks_exact_mut(matrix).zip(data.par_chunks_exact(matrix));
    matrices.for_each(|(to, from)| {
        for (i, to) in to.chunks_exact_mut(size).enumerate() {
            let at = (i % rows * columns + i / rows) * size;
            to.copy_from_slice(&from[at..at + size]);
        }
    });
    turned
}

/// The parameters that a device holds, or that a run changes there, by number; each that is given
/// must have its elements in `weights`.
pub(super) fn of(
    program: &Program,
    device: &DeviceProgram,
    weights: &Weights,
) -> Result<BTreeMap<u32, Tensor>, CompileError> {
    let mut all = BTreeMap::new();
    let sources = Sources::new(program, weights)?;
    for buffer in &device.buffers {
        let Some(i) = held(program, buffer)? else { continue };
        let tensor = match program.derived(i) {
            Some(derived) => sources.compute(derived)?,
            None => given(program, i, weights)?,
        };
        all.insert(i, tensor);
    }
    Ok(all)
}

/// The elements of a given parameter.
fn given(program: &Program, i: u32, weights: &Weights) -> Result<Tensor, CompileError> {
    let port = program.params.get(i as usize);
    let port = port
        .ok_or_else(|| CompileError::Internal(format!("parameter {i}, which the program lacks")))?;
    let missing = || CompileError::MissingParam(port.name.to_string());
    let tensor = weights.get(&port.name).ok_or_else(missing)?;
    expect_type(port, tensor)?;
    Ok(tensor.clone())
}

/// Fails for elements of another type than the parameter's.
fn expect_type(port: &Port, tensor: &Tensor) -> Result<(), CompileError> {
    let found = tensor.tensor_type();
    if found == port.ty {
        return Ok(());
    }
    let (expected, found) = (Box::new(port.ty.clone()), Box::new(found));
    Err(CompileError::ParamType { name: port.name.to_string(), expected, found })
}

/// New elements of given parameters, by number.
///
/// # Errors
/// A name that no parameter has, or elements of another type.
pub(super) fn matched(
    program: &Program,
    weights: &Weights,
) -> Result<BTreeMap<u32, Tensor>, CompileError> {
    let ports = (0u32..).zip(&program.params);
    let ports: BTreeMap<&str, (u32, &Port)> =
        ports.map(|(i, port)| (&*port.name, (i, port))).collect();
    let mut new = BTreeMap::new();
    for (name, tensor) in weights.iter() {
        let unknown = || CompileError::UnknownParam(name.to_string());
        let (i, port) = *ports.get(&**name).ok_or_else(unknown)?;
        expect_type(port, tensor)?;
        new.insert(i, tensor.clone());
    }
    Ok(new)
}

/// The elements of the parameters that others are computed from.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources(BTreeMap<u32, Tensor>);

impl Sources {
    pub(super) fn new(program: &Program, weights: &Weights) -> Result<Self, CompileError> {
        let all = program.derived.iter().flat_map(|derived| derived.operands);
        let elements = all.map(|i| Ok((i, given(program, i, weights)?)));
        Ok(Self(elements.collect::<Result<_, CompileError>>()?))
    }

    /// The sources with these new elements, to which those of derived parameters are added.
    pub(super) fn with(
        &self,
        program: &Program,
        new: &mut BTreeMap<u32, Tensor>,
    ) -> Result<Self, CompileError> {
        let mut sources = self.clone();
        for (i, tensor) in &mut sources.0 {
            if let Some(new) = new.get(i) {
                tensor.clone_from(new);
            }
        }
        let behind = int::<u32>(program.params.len());
        for (i, derived) in (behind..).zip(&program.derived) {
            if derived.operands.iter().any(|i| new.contains_key(i)) {
                new.insert(i, sources.compute(derived)?);
            }
        }
        Ok(sources)
    }

    /// The elements of a derived parameter.
    fn compute(&self, derived: &Derived) -> Result<Tensor, CompileError> {
        let operands = derived.operands.map(|i| {
            invariant(self.0.get(&i), "that sources are all that derived parameters need")
        });
        let factors = derived.op.factors(derived.port.ty.dtype, operands);
        let [scale, shift] = factors.map_err(|error| CompileError::Internal(error.to_string()))?;
        Ok(match derived.factor {
            Factor::Scale => scale,
            Factor::Shift => shift,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{channels_first, channels_last, of};
    use crate::backend::CPU;
    use crate::ir::verify;
    use crate::lower::testing::template;
    use crate::lower::{Storage, lower};
    use crate::types::Tensor;

    #[test]
    fn channels_vary_fastest() {
        let tensor = |dims: &[usize]| {
            let count: usize = dims.iter().product();
            let data: Vec<u8> = (0..count).map(|i| u8::try_from(i).unwrap()).collect();
            Tensor::new(dims, &data).unwrap()
        };
        let check = |dims: &[usize], expected: &[u8]| {
            let turned = channels_last(&tensor(dims));
            assert_eq!(turned, expected, "{dims:?}");
            let back = channels_first(&Tensor::new(dims, &turned).unwrap());
            assert_eq!(back, tensor(dims).bytes(), "{dims:?}");
        };
        // Samples of three channels of two places.
        check(&[2, 3, 2, 1], &[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        check(&[1, 2, 3], &[0, 3, 1, 4, 2, 5]);
        check(&[4], &[0, 1, 2, 3]);
        check(&[0, 3, 2], &[]);
        check(&[2, 0, 2], &[]);
        let wide = Tensor::new(&[1, 2, 2], &[1u16, 2, 3, 4]).unwrap();
        assert_eq!(channels_last(&wide), bytemuck::cast_slice::<u16, u8>(&[1, 3, 2, 4]));
    }

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
