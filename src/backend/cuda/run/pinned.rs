//! Staging in pinned memory: elements on their way to GPUs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use super::parts::{Bytes, Parts};
use super::plan::Plan;
use crate::backend::cuda::driver::context::{Context, NOT_READY};
use crate::backend::cuda::driver::memory::{Global, HostBlock, Pinned, PinnedPool, free_memory};
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::host::{Block, Each};
use crate::backend::{CompileError, DriverError, params};
use crate::types::invariant::invariant;
use crate::types::{Device, Order, Tensor};

/// Bytes of parameters that are copied to a device at a time.
pub(super) const STAGING: usize = 16 << 20;

/// Bytes that a thread copies at a time when inputs are staged.
const STAGED_AT_ONCE: usize = 1 << 20;

/// The elements of a tensor in an order.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a> {
    pub(super) tensor: &'a Tensor,
    pub(super) order: Order,
}

/// The error of a call of the driver when a program is prepared.
pub(super) fn failed(device: Device, what: &str, error: DriverError) -> CompileError {
    CompileError::Driver { device, what: what.to_owned(), error: Box::new(error) }
}

/// Pinned memory that could not be had.
pub(super) struct NotTaken {
    /// The bytes asked for.
    pub(super) asked: usize,
    pub(super) error: DriverError,
}

/// Copies of the inputs from which GPUs copy.
pub(super) fn stage_inputs(
    parts: &Parts,
    plan: &Plan,
    inputs: &[Tensor],
) -> Result<BTreeMap<u32, Arc<Pinned>>, NotTaken> {
    let mut staged = BTreeMap::new();
    for i in &plan.staged {
        let tensor =
            invariant(inputs.get(*i as usize), "that a staged input is one of the program");
        staged.insert(*i, stage(parts, tensor)?);
    }
    Ok(staged)
}

/// A copy of a tensor from which GPUs copy.
pub(super) fn stage(parts: &Parts, tensor: &Tensor) -> Result<Arc<Pinned>, NotTaken> {
    let (bytes, asked) = (tensor.bytes(), tensor.byte_len());
    let mut block = parts.pool.take(asked).map_err(|error| NotTaken { asked, error })?;
    let whole = 0..asked;
    let to = block.parts(&[whole]).and_then(|mut parts| parts.pop());
    let to = invariant(to, "that a block has the bytes that were asked for");
    let copy = |(to, from): (&mut [u8], &[u8])| to.copy_from_slice(from);
    let pieces = to.par_chunks_mut(STAGED_AT_ONCE);
    parts.cpu.crew().enter(|| pieces.zip(bytes.par_chunks(STAGED_AT_ONCE)).each(copy));
    Ok(block.pinned().clone())
}

/// Through what elements are copied to the memory of GPUs: pinned memory, and a stream of each.
pub(super) struct Staging {
    block: HostBlock,
    streams: BTreeMap<u32, Stream>,
}

/// Why elements cannot be copied.
pub(super) enum NotStaged {
    /// The GPU of this number has no stream.
    Stream(u32, DriverError),
    /// There is no pinned memory.
    Pinned(DriverError),
}

impl Staging {
    /// For tensors of up to so many bytes, and the GPUs of these contexts.
    pub(super) fn new<'c>(
        pool: &PinnedPool,
        bytes: usize,
        contexts: impl IntoIterator<Item = &'c Arc<Context>>,
    ) -> Result<Self, NotStaged> {
        let mut streams = BTreeMap::new();
        for context in contexts {
            let ordinal = context.ordinal();
            if let Entry::Vacant(entry) = streams.entry(ordinal) {
                let stream = Stream::new(context);
                entry.insert(stream.map_err(|error| NotStaged::Stream(ordinal, error))?);
            }
        }
        let block = pool.take(bytes.min(STAGING)).map_err(NotStaged::Pinned)?;
        Ok(Self { block, streams })
    }

    /// Copies the elements of a tensor to the memory of a GPU, in an order, and gives itself back
    /// for the next.
    pub(super) fn write(
        mut self,
        context: &Context,
        to: &Arc<Global>,
        elements: Elements<'_>,
        limit: Duration,
    ) -> Result<Self, DriverError> {
        let tensor = elements.tensor;
        let mut turned;
        let data = if elements.order == Order::RowMajor {
            tensor.bytes()
        } else {
            turned = vec![0; tensor.byte_len()];
            params::write(elements.order, tensor, &mut turned);
            &turned
        };
        let stream =
            invariant(self.streams.get(&context.ordinal()), "that each GPU has its stream");
        for (i, part) in data.chunks(STAGING).enumerate() {
            invariant(self.block.fill(part).then_some(()), "that a part fits the staging block");
            let address = to.address() + (i * STAGING) as u64;
            stream.upload(self.block.pinned(), 0, address, part.len())?;
            if let Err(error) = stream.finish(limit) {
                if error.code == NOT_READY {
                    // The device may still be at it.
                    std::mem::forget((Arc::clone(to), self));
                }
                return Err(error);
            }
        }
        Ok(self)
    }
}

/// The error of pinned memory for a parameter.
pub(super) fn not_pinned(
    pool: &PinnedPool,
    bytes: Bytes,
    name: &str,
    error: DriverError,
) -> CompileError {
    if !error.is_out_of_memory() {
        return failed(pool.device(), &format!("the parameter `{name}`"), error);
    }
    let device = Device::HOST;
    let (name, free) = (name.to_owned(), free_memory());
    let (asked, planned) = (bytes.asked as u64, bytes.planned);
    CompileError::OutOfMemory { device, name, asked, planned, free }
}
