//! The parameters that devices hold, and those that a run changes.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::CompileError;
use super::host::Each;
use crate::ir::Weights;
use crate::lower::{Buffer, BufferId, Derived, DeviceProgram, Factor, Port, Program, Storage};
use crate::types::invariant::{int, invariant};
use crate::types::{Order, Tensor, subnormals};

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

/// The orders of the parameters that a device holds otherwise than row-major, by number.
pub(super) fn orders_of(device: &DeviceProgram) -> BTreeMap<u32, Order> {
    let held = device.buffers.iter().filter(|b| b.order != Order::RowMajor);
    let param =
        |b: &Buffer| if let Storage::Param(i) = b.storage { Some((i, b.order)) } else { None };
    held.filter_map(param).collect()
}

/// Writes the elements of a tensor, which lie row-major, in an order.
pub(super) fn write(order: Order, tensor: &Tensor, to: &mut [u8]) {
    reorder(order, tensor, to, |sizes| sizes);
}

/// Writes the elements of a tensor, which lie in an order, row-major.
pub(super) fn read(order: Order, tensor: &Tensor, to: &mut [u8]) {
    reorder(order, tensor, to, |[first, middle, last]| [last, middle, first]);
}

/// Exchanges the axes that an order exchanges; `as_they_lie` gives the sizes of three axes from
/// those that they have row-major.
fn reorder(
    order: Order,
    tensor: &Tensor,
    to: &mut [u8],
    as_they_lie: impl Fn([usize; 3]) -> [usize; 3] + Sync,
) {
    let (from, size) = (tensor.bytes(), tensor.dtype().bytes());
    match order {
        Order::RowMajor => to.copy_from_slice(from),
        Order::ChannelsLast => exchange(from, size, as_they_lie(planes(tensor)), to),
        Order::RowPanels => {
            let [channels, taps] = columns(tensor);
            each_panel(from, to, channels * taps * size, |rows, from, to| {
                exchange(from, size, as_they_lie([rows, channels, taps]), to);
            });
        }
        Order::GatePanels => {
            let terms = *invariant(tensor.dims().last(), "that weights of gates have terms");
            each_panel(from, to, terms * size, |gates, from, to| {
                exchange(from, size, as_they_lie([gates, terms, 1]), to);
            });
        }
        Order::Heads => {
            let [heads, tokens, run] = heads(tensor);
            exchange(from, run * size, as_they_lie([heads, 1, tokens]), to);
        }
    }
}

/// The heads and tokens of each row, and the elements that each of them has.
fn heads(tensor: &Tensor) -> [usize; 3] {
    let sizes = match tensor.dims() {
        [_, heads, tokens, run] => Some([*heads, *tokens, *run]),
        _ => None,
    };
    invariant(sizes, "that heads are of rows, and have tokens")
}

/// The columns of a matrix, or the channels and taps of weights.
fn columns(tensor: &Tensor) -> [usize; 2] {
    let sizes = match tensor.dims() {
        [_, channels, taps @ ..] => Some([*channels, taps.iter().product()]),
        [] | [_] => None,
    };
    invariant(sizes, "that panels are of matrices or weights")
}

/// Does it with each panel of rows of so many bytes: their number, and their bytes in both orders.
fn each_panel(from: &[u8], to: &mut [u8], row: usize, f: impl Fn(usize, &[u8], &mut [u8]) + Sync) {
    // `max(1)`: sizes of 0 have no panels.
    let bytes = (Order::PANEL * row).max(1);
    let panels = to.par_chunks_mut(bytes).zip(from.par_chunks(bytes));
    panels.each(|(to, from)| f(from.len() / row, from, to));
}

/// The channels of a tensor, and the places of each.
fn planes(tensor: &Tensor) -> [usize; 3] {
    match tensor.dims() {
        [_, channels, places @ ..] => [*channels, 1, places.iter().product()],
        // One order has the same bytes as the other.
        [] | [_] => [1; 3],
    }
}

/// Writes blocks of three axes of these sizes, of elements of `size` bytes, each with its first
/// axis in the place of its last.
fn exchange(from: &[u8], size: usize, sizes: [usize; 3], to: &mut [u8]) {
    match size {
        1 => exchange_words::<1>(from, sizes, to),
        2 => exchange_words::<2>(from, sizes, to),
        4 => exchange_words::<4>(from, sizes, to),
        8 => exchange_words::<8>(from, sizes, to),
        _ => exchange_runs(from, size, sizes, to),
    }
}

/// As [`exchange`], of elements that are runs of bytes.
fn exchange_runs(from: &[u8], size: usize, [first, middle, last]: [usize; 3], to: &mut [u8]) {
    // `max(1)`: sizes of 0 have no blocks.
    let block = (first * middle * last * size).max(1);
    to.par_chunks_exact_mut(block).zip(from.par_chunks_exact(block)).each(|(to, from)| {
        for (i, to) in to.chunks_exact_mut(first * size).enumerate() {
            let from = &from[(i % middle * last + i / middle) * size..];
            let runs = from.chunks(size).step_by(middle * last);
            to.chunks_exact_mut(size).zip(runs).for_each(|(to, from)| to.copy_from_slice(from));
        }
    });
}

/// As [`exchange`], of elements of so many bytes.
fn exchange_words<const SIZE: usize>(from: &[u8], sizes: [usize; 3], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<SIZE>().0, to.as_chunks_mut::<SIZE>().0);
    let [first, middle, last] = sizes;
    // `max(1)`: sizes of 0 have no blocks.
    let block = (first * middle * last).max(1);
    to.par_chunks_exact_mut(block).zip(from.par_chunks_exact(block)).each(|(to, from)| {
        for (i, to) in to.chunks_exact_mut(first).enumerate() {
            let from = &from[i % middle * last + i / middle..];
            for (to, from) in to.iter_mut().zip(from.iter().step_by(middle * last)) {
                *to = *from;
            }
        }
    });
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
        let _kept = subnormals::kept();
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
    use super::{of, read, write};
    use crate::backend::CPU;
    use crate::ir::verify;
    use crate::lower::testing::template;
    use crate::lower::{Storage, lower};
    use crate::types::{DType, Order, Tensor};

    #[test]
    fn channels_vary_fastest() {
        let tensor = |dims: &[usize]| {
            let count: usize = dims.iter().product();
            let data: Vec<u8> = (0..count).map(|i| u8::try_from(i).unwrap()).collect();
            Tensor::new(dims, &data).unwrap()
        };
        let check = |dims: &[usize], expected: &[u8]| {
            let mut turned = vec![0; expected.len()];
            write(Order::ChannelsLast, &tensor(dims), &mut turned);
            assert_eq!(turned, expected, "{dims:?}");
            let mut back = turned.clone();
            read(Order::ChannelsLast, &Tensor::new(dims, &turned).unwrap(), &mut back);
            assert_eq!(back, tensor(dims).bytes(), "{dims:?}");
        };
        // Samples of three channels of two places.
        check(&[2, 3, 2, 1], &[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        check(&[1, 2, 3], &[0, 3, 1, 4, 2, 5]);
        check(&[4], &[0, 1, 2, 3]);
        check(&[0, 3, 2], &[]);
        check(&[2, 0, 2], &[]);
        let wide = Tensor::new(&[1, 2, 2], &[1u16, 2, 3, 4]).unwrap();
        let mut turned = [0; 8];
        write(Order::ChannelsLast, &wide, &mut turned);
        assert_eq!(turned, bytemuck::cast_slice::<u16, u8>(&[1, 3, 2, 4]));
    }

    #[test]
    fn heads_of_a_token_lie_one_behind_the_other() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let tensor = Tensor::new(&[1, 2, 3, 2], &data).unwrap();
        let mut turned = Tensor::zeros(DType::F32, tensor.dims()).unwrap();
        write(Order::Heads, &tensor, turned.bytes_mut());
        let expected = [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0];
        assert_eq!(turned.as_slice::<f32>(), expected);
        let mut back = Tensor::zeros(DType::F32, tensor.dims()).unwrap();
        read(Order::Heads, &turned, back.bytes_mut());
        assert_eq!(back, tensor);
        let data: Vec<f32> = (0..36).map(|i| i as f32).collect();
        let wide = Tensor::new(&[2, 3, 2, 3], &data).unwrap();
        let [mut turned, mut back] =
            [(); 2].map(|()| Tensor::zeros(DType::F32, wide.dims()).unwrap());
        write(Order::Heads, &wide, turned.bytes_mut());
        assert_eq!(turned.as_slice::<f32>()[3..6], [6.0, 7.0, 8.0]);
        read(Order::Heads, &turned, back.bytes_mut());
        assert_eq!(back, wide);
        for dims in [[0, 2, 3, 2], [1, 0, 3, 2], [1, 2, 0, 2], [1, 2, 3, 0]] {
            let none = Tensor::zeros(DType::F32, &dims).unwrap();
            write(Order::Heads, &none, &mut []);
        }
    }

    #[test]
    fn panels_have_the_rows_of_matrices() {
        for dims in [[5, 130], [130, 5], [64, 64], [1, 3], [0, 70], [70, 0]] {
            let [rows, columns] = dims;
            let data: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let tensor = Tensor::new(&dims, &data).unwrap();
            let mut turned = Tensor::zeros(DType::F32, &dims).unwrap();
            write(Order::RowPanels, &tensor, turned.bytes_mut());
            let mut expected = Vec::new();
            for first in (0..rows).step_by(Order::PANEL) {
                for column in 0..columns {
                    let panel = first..rows.min(first + Order::PANEL);
                    expected.extend(panel.map(|row| data[row * columns + column]));
                }
            }
            assert_eq!(turned.as_slice::<f32>(), expected, "{dims:?}");
            let mut back = Tensor::zeros(DType::F32, &dims).unwrap();
            read(Order::RowPanels, &turned, back.bytes_mut());
            assert_eq!(back.as_slice::<f32>(), data, "{dims:?}");
        }
    }

    #[test]
    fn panels_have_the_gates_of_a_direction() {
        let dims = [2, 128, 3];
        let data: Vec<f32> = (0..2 * 128 * 3).map(|i| i as f32).collect();
        let tensor = Tensor::new(&dims, &data).unwrap();
        let mut turned = Tensor::zeros(DType::F32, &dims).unwrap();
        write(Order::GatePanels, &tensor, turned.bytes_mut());
        let panels = (0..4).flat_map(|panel| (0..3).map(move |term| (panel, term)));
        let rows = panels.flat_map(|(panel, term)| {
            (panel * 64..(panel + 1) * 64).map(move |gate| (gate * 3 + term) as f32)
        });
        assert_eq!(turned.as_slice::<f32>(), rows.collect::<Vec<_>>());
        let mut back = Tensor::zeros(DType::F32, &dims).unwrap();
        read(Order::GatePanels, &turned, back.bytes_mut());
        assert_eq!(back.as_slice::<f32>(), data);
        let none = Tensor::zeros(DType::F32, &[1, 64, 0]).unwrap();
        write(Order::GatePanels, &none, &mut []);
    }

    #[test]
    fn panels_have_the_filters_of_weights() {
        for dims in [[70, 3, 2, 2], [64, 1, 3, 3], [5, 4, 1, 1]] {
            let [filters, channels, ..] = dims;
            let taps = dims[2] * dims[3];
            let data: Vec<f32> = (0..filters * channels * taps).map(|i| i as f32).collect();
            let tensor = Tensor::new(&dims, &data).unwrap();
            let mut turned = Tensor::zeros(DType::F32, &dims).unwrap();
            write(Order::RowPanels, &tensor, turned.bytes_mut());
            let mut expected = Vec::new();
            for first in (0..filters).step_by(Order::PANEL) {
                for (tap, c) in (0..taps).flat_map(|tap| (0..channels).map(move |c| (tap, c))) {
                    let panel = first..filters.min(first + Order::PANEL);
                    expected.extend(panel.map(|f| data[(f * channels + c) * taps + tap]));
                }
            }
            assert_eq!(turned.as_slice::<f32>(), expected, "{dims:?}");
            let mut back = Tensor::zeros(DType::F32, &dims).unwrap();
            read(Order::RowPanels, &turned, back.bytes_mut());
            assert_eq!(back.as_slice::<f32>(), data, "{dims:?}");
        }
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
