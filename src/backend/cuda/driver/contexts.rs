//! The contexts of the GPUs that programs use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::context::{Context, Gpu};
use crate::backend::DriverError;
use crate::backend::host::lock;
use crate::lower::Program;
use crate::types::Device;

/// The contexts that are open, each from the first program on that uses its GPU.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    contexts: BTreeMap<u32, Arc<Context>>,
    /// The pairs of GPUs whose peer access was requested. The driver fails a second request, so
    /// each is made once.
    asked: BTreeSet<(u32, u32)>,
}

impl Contexts {
    /// The GPUs that are open, by their numbers, ascending.
    pub(crate) fn ordinals(&self) -> Vec<u32> {
        lock(&self.0).contexts.keys().copied().collect()
    }

    /// The context of a GPU, which may make no progress for `limit`.
    pub(crate) fn open(&self, gpu: Gpu, limit: Duration) -> Result<Arc<Context>, DriverError> {
        let mut open = lock(&self.0);
        if let Some(context) = open.contexts.get(&gpu.ordinal()) {
            return Ok(context.clone());
        }
        let context = Context::new(gpu, limit)?;
        open.contexts.insert(gpu.ordinal(), context.clone());
        Ok(context)
    }

    /// Enables peer access between GPUs that support it. An error has the number of its GPU.
    pub(crate) fn connect<'a>(
        &self,
        contexts: impl Iterator<Item = &'a Arc<Context>>,
    ) -> Result<(), (u32, DriverError)> {
        let contexts: Vec<_> = contexts.collect();
        let mut open = lock(&self.0);
        for context in &contexts {
            for other in contexts.iter().filter(|other| other.ordinal() != context.ordinal()) {
                let pair = (context.ordinal(), other.ordinal());
                if !open.asked.contains(&pair) {
                    context.reach(other).map_err(|error| (pair.0, error))?;
                    open.asked.insert(pair);
                }
            }
        }
        Ok(())
    }
}

/// The GPU of a program's device, by its number; none for the host.
pub(crate) fn ordinal(
    program: &Program,
    contexts: &[Option<Arc<Context>>],
    device: Device,
) -> Option<u32> {
    let d = program.devices.iter().position(|known| known.device == device)?;
    contexts.get(d)?.as_ref().map(|context| context.ordinal())
}

/// The other logical devices of a program on the GPU of `device`: a sticky error breaks them too.
pub(crate) fn colocated(
    program: &Program,
    contexts: &[Option<Arc<Context>>],
    device: Device,
) -> Vec<Device> {
    let gpu = ordinal(program, contexts, device);
    let all = program.devices.iter().map(|known| known.device);
    let shares = |other: &Device| {
        *other != device && gpu.is_some() && ordinal(program, contexts, *other) == gpu
    };
    all.filter(shares).collect()
}
