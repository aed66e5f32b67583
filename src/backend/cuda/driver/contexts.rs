//! The contexts of the GPUs that programs use.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::context::{Context, Gpu};
use super::peers::{self, Failed, Flaw, Link};
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
    /// How copies to a GPU from another go, of pairs that were connected. The driver fails a second
    /// request for access, so each is made once.
    links: BTreeMap<(u32, u32), Link>,
}

/// Two GPUs, by their numbers, between which the driver says that direct copies go, and they go
/// wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distrusted {
    /// The GPU that copies.
    to: u32,
    /// The GPU from which it does.
    from: u32,
    flaw: Flaw,
}

impl fmt::Display for Distrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, from, flaw } = self;
        let flaw = flaw.words();
        write!(f, "direct copies from GPU {from} to GPU {to} {flaw}: they go through the host")
    }
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

    /// Enables peer access between GPUs that support it; the pairs whose direct copies go wrong. An
    /// error has the number of its GPU.
    pub(crate) fn connect<'a>(
        &self,
        contexts: impl Iterator<Item = &'a Arc<Context>>,
    ) -> Result<Vec<Distrusted>, (u32, DriverError)> {
        let contexts: Vec<_> = contexts.collect();
        let mut open = lock(&self.0);
        let mut distrusted = BTreeMap::new();
        for context in &contexts {
            for other in contexts.iter().filter(|other| other.ordinal() != context.ordinal()) {
                let pair = (context.ordinal(), other.ordinal());
                let link = if let Some(link) = open.links.get(&pair) {
                    *link
                } else {
                    let connected = peers::connect(context, other);
                    connected.map_err(|Failed { on, error }| (on, error))?
                };
                if link != Link::Broken(Flaw::Untried) {
                    open.links.insert(pair, link);
                }
                if let Link::Broken(flaw) = link {
                    distrusted.insert(pair, Distrusted { to: pair.0, from: pair.1, flaw });
                }
            }
        }
        Ok(distrusted.into_values().collect())
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
