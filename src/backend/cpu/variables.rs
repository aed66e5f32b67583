//! The parameters of a program on virtual devices: before a run, and what a run makes of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::backend::host::lock;
use crate::backend::params::Sources;
use crate::backend::{CompileError, params};
#[cfg(feature = "onnx")]
use crate::format::mmap;
use crate::ir::Weights;
use crate::lower::{BoundDevice, BufferId, DeviceProgram, Program};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Device, Order, Tensor, TensorError};

/// The parameters that each device holds, by position; `None` for those it does not hold.
pub(super) type Params = Vec<Vec<Option<Tensor>>>;

/// The parameters of a program between its runs.
#[derive(Debug)]
pub(super) struct Variables {
    params: RwLock<Params>,
    /// The bytes of those of each device, as if it shared none.
    bytes: Vec<u64>,
    sources: Mutex<Sources>,
    /// Memory for the updates of each device; a run that updates parameters holds it, so that there
    /// is one at a time.
    spares: Mutex<Vec<Vec<Tensor>>>,
}

/// The elements of the parameters on each device. Devices share them, row-major ones with the
/// caller, too: a run writes to none, and memory that several devices read stays in caches.
fn place_params(program: &Program, weights: &Weights) -> Result<Params, CompileError> {
    let mut devices = Vec::with_capacity(program.devices.len());
    let mut placed = Placed { program, turned: BTreeMap::new() };
    for device in &program.devices {
        let all = program.params.len() + program.derived.len();
        let mut held: Vec<Option<Tensor>> = vec![None; all];
        let orders = params::orders_of(device);
        for (i, tensor) in params::of(program, device, weights)? {
            let order = order_of(&orders, i);
            let held_as = Held { device: device.device, i, order };
            held[i as usize] = Some(placed.of(&held_as, &tensor)?);
        }
        devices.push(held);
    }
    Ok(devices)
}

/// The order of a parameter on a device that holds these otherwise than row-major.
fn order_of(orders: &BTreeMap<u32, Order>, i: u32) -> Order {
    // `orders_of` names every parameter that lies otherwise.
    orders.get(&i).copied().unwrap_or(Order::RowMajor)
}

/// A parameter on a device.
struct Held {
    device: Device,
    /// Its number.
    i: u32,
    order: Order,
}

/// The parameters that were given to devices.
struct Placed<'a> {
    program: &'a Program,
    /// Those that lie otherwise than row-major, by number and order.
    turned: BTreeMap<(u32, Order), Tensor>,
}

impl Placed<'_> {
    /// The elements of a parameter in an order, for a device.
    fn of(&mut self, held: &Held, tensor: &Tensor) -> Result<Tensor, CompileError> {
        let Held { device, i, order } = *held;
        if order == Order::RowMajor {
            return Ok(tensor.clone());
        }
        if let Some(turned) = self.turned.get(&(i, order)) {
            return Ok(turned.clone());
        }
        let name = || {
            let port = self.program.param(i);
            invariant(port, "that devices hold parameters").name.to_string()
        };
        let turned = turned(tensor, |tensor, to| params::write(order, tensor, to))
            .map_err(|error| CompileError::Param { name: name(), device, error })?;
        // Seldom does another device read it as it is, and it is large.
        #[cfg(feature = "onnx")]
        mmap::release(tensor.bytes());
        self.turned.insert((i, order), turned.clone());
        Ok(turned)
    }
}

/// A tensor with its elements in the order in which `write` writes them.
fn turned(tensor: &Tensor, write: impl Fn(&Tensor, &mut [u8])) -> Result<Tensor, TensorError> {
    let mut turned = Tensor::zeros(tensor.dtype(), tensor.dims())?;
    write(tensor, turned.bytes_mut());
    Ok(turned)
}

/// The bytes of the updates of a device.
pub(super) fn update_bytes(device: &DeviceProgram, bound: &BoundDevice) -> u64 {
    params::updates(device).map(|(_, b)| bound.locations[b].bytes as u64).sum()
}

/// Tensors for the new elements of parameters on a device, empty ones for those of other devices:
/// `spares`, those of a run before, where nothing else has their memory.
pub(super) fn tensors(
    program: &Program,
    device: &DeviceProgram,
    spares: Option<Vec<Tensor>>,
) -> Result<Vec<Tensor>, TensorError> {
    if program.updates.is_empty() {
        return Ok(Vec::new());
    }
    let own: BTreeMap<u32, BufferId> = params::updates(device).collect();
    // Without spare tensors all are allocated.
    let mut spares = spares.unwrap_or_default().into_iter();
    let mut tensors = Vec::with_capacity(program.updates.len());
    for i in 0..int(program.updates.len()) {
        let spare = spares.next();
        let Some(buffer) = own.get(&i) else {
            tensors.push(Tensor::zeros(DType::U8, &[0])?);
            continue;
        };
        let ty = &device.buffer(*buffer).ty;
        let dims = ty.shape.at(0);
        // A caller may still hold the elements of a parameter before the last run.
        let fits = |t: &Tensor| t.dtype() == ty.dtype && *t.dims() == *dims && !t.is_shared();
        tensors.push(match spare.filter(fits) {
            Some(spare) => spare,
            None => Tensor::zeros(ty.dtype, &dims)?,
        });
    }
    Ok(tensors)
}

impl Variables {
    /// The parameters with these elements.
    pub(super) fn new(program: &Program, weights: &Weights) -> Result<Self, CompileError> {
        let params = place_params(program, weights)?;
        let held = params.iter().map(|held| held.iter().flatten());
        let bytes = held.map(|held| held.map(|t| t.byte_len() as u64).sum()).collect();
        let sources = Mutex::new(Sources::new(program, weights)?);
        Ok(Self { params: RwLock::new(params), bytes, sources, spares: Mutex::default() })
    }

    /// The bytes of the parameters of each device.
    pub(super) fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// The turn of a run that updates parameters, with memory for the updates; none for other runs.
    pub(super) fn turn(&self, program: &Program) -> Option<MutexGuard<'_, Vec<Vec<Tensor>>>> {
        (!program.updates.is_empty()).then(|| lock(&self.spares))
    }

    /// The parameters on each device.
    pub(super) fn held(&self) -> RwLockReadGuard<'_, Params> {
        self.params.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives every device the new elements of the parameters; `new` are those that they had.
    pub(super) fn replace(&self, program: &Program, new: &mut [Vec<Tensor>]) {
        let mut held = self.params.write().unwrap_or_else(PoisonError::into_inner);
        for ((device, held), new) in program.devices.iter().zip(held.iter_mut()).zip(new) {
            for (i, _) in params::updates(device) {
                let held = held[program.updates[i as usize] as usize].as_mut();
                let held = invariant(held, "that a device holds the parameters that it changes");
                // What the parameter was becomes the memory of the next update.
                std::mem::swap(held, &mut new[i as usize]);
            }
        }
    }

    /// The elements that the parameters have now.
    pub(super) fn current(&self, program: &Program) -> Result<Weights, TensorError> {
        let held = self.held();
        let mut weights = Weights::default();
        let orders: Vec<_> = program.devices.iter().map(params::orders_of).collect();
        for (i, port) in (0..).zip(&program.params) {
            let mut all = orders.iter().zip(held.iter());
            let own = all.find_map(|(orders, held)| {
                Some((order_of(orders, i), held.get(i as usize)?.as_ref()?))
            });
            let Some((order, tensor)) = own else { continue };
            let tensor = if order == Order::RowMajor {
                tensor.clone()
            } else {
                turned(tensor, |tensor, to| params::read(order, tensor, to))?
            };
            weights.insert(port.name.clone(), tensor);
        }
        Ok(weights)
    }

    /// Gives parameters other elements, between two runs.
    pub(super) fn set(&self, program: &Program, weights: &Weights) -> Result<(), CompileError> {
        // A run that updates parameters ends before, or begins after.
        let _turn = lock(&self.spares);
        // Everything is checked and placed before anything changes: a failure leaves all as it was.
        let mut given = params::matched(program, weights)?;
        let mut own = lock(&self.sources);
        let sources = own.with(program, &mut given)?;
        let mut new: Vec<(usize, u32, Tensor)> = Vec::new();
        let held = self.held();
        let mut placed = Placed { program, turned: BTreeMap::new() };
        for (d, program_device) in program.devices.iter().enumerate() {
            let (device, orders) = (program_device.device, params::orders_of(program_device));
            for (i, tensor) in &given {
                if held[d][*i as usize].is_some() {
                    let order = order_of(&orders, *i);
                    let held_as = Held { device, i: *i, order };
                    new.push((d, *i, placed.of(&held_as, tensor)?));
                }
            }
        }
        // The lock for writing waits for all readers, this one included.
        drop(held);
        let mut held = self.params.write().unwrap_or_else(PoisonError::into_inner);
        for (d, i, tensor) in new {
            held[d][i as usize] = Some(tensor);
        }
        *own = sources;
        Ok(())
    }
}
