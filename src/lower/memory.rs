//! The memory plan: lifetimes of buffers, and their locations at one batch size.

use smallvec::SmallVec;

use super::offsets::{LiveRange, assign_offsets, peak_live};
use super::program::{Action, BufferId, DeviceProgram, Program, Region, Storage};
use super::reuse::read_elsewhere;
use crate::ir::IdMap;
use crate::types::invariant::int;
use crate::types::{Diagnostic, MAX_SIZE, TensorType};

/// A program bound to one batch size: the active steps and the location of every buffer.
///
/// Elsewhere: buffer assignment (XLA); memory planning (PyTorch); bufferization (MLIR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The batch size.
    pub n: i64,
    /// The rows of each replica.
    pub rows: Vec<i64>,
    /// The devices, in the program's order.
    pub devices: Vec<BoundDevice>,
}

/// The memory of one device at one batch size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundDevice {
    /// The location of each buffer.
    pub(crate) locations: IdMap<BufferId, Location>,
    /// True for each step that runs at this batch size.
    pub active: Vec<bool>,
    /// The bytes of the arena.
    pub planned: usize,
    /// The peak of live bytes over the steps: a lower bound for every arena.
    pub live: usize,
}

/// The location of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The memory space.
    pub(crate) space: Space,
    /// The offset of its first byte.
    pub(crate) offset: usize,
    /// The number of bytes.
    pub(crate) bytes: usize,
    /// The sizes of its axes.
    pub(crate) dims: SmallVec<[usize; 4]>,
}

/// A memory space of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Space {
    /// The caller's tensor for an input.
    Input(u32),
    /// The device's copy of a parameter.
    Param(u32),
    /// The tensor handed out as an output.
    Output(u32),
    /// The device's tensor for the new elements of an updated parameter.
    Update(u32),
    /// The device's arena.
    Arena,
}

/// An error of [`Program::bind`]: the program has no memory plan at this batch size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// A batch size below 0.
    #[error("a batch cannot have {0} rows")]
    Negative(i64),
    /// An operator needs more entries of an axis than the batch gives.
    #[error(
        "`{label}` ({op}) needs {takes} or more entries, and a batch of size {n} has {entries}"
    )]
    TooFew {
        /// The batch size.
        n: i64,
        /// The operator's label.
        label: String,
        /// The operator.
        op: &'static str,
        /// The entries that it needs.
        takes: i64,
        /// The entries of the axis.
        entries: i64,
    },
    /// A buffer exceeds the maximum size of a tensor.
    #[error("at a batch of {n} rows `{name}` ({ty}) is too large")]
    TooLarge {
        /// The batch size.
        n: i64,
        /// The buffer's name.
        name: String,
        /// Its type.
        ty: Box<TensorType>,
    },
    /// The regions of a device together exceed the address space.
    #[error("at a batch of {0} rows the values take more memory than can be counted")]
    ArenaTooLarge(i64),
}

impl Diagnostic for BindError {
    fn code(&self) -> &'static str {
        "E0401"
    }
}

/// The last plan. Replicas with equal rows have equal regions, so the plan of one device usually
/// serves the next; planning is the costly part of [`Program::bind`].
#[derive(Default)]
struct PlanCache {
    items: Vec<LiveRange>,
    offsets: Vec<usize>,
    bytes: usize,
}

impl PlanCache {
    /// Returns an offset for each item and the size of the arena.
    fn plan(&mut self, items: &[LiveRange]) -> (&[usize], usize) {
        if self.items != items {
            (self.offsets, self.bytes) = assign_offsets(items);
            self.items = items.to_vec();
        }
        (&self.offsets, self.bytes)
    }
}

/// The regions of a device's arena, in the order of their buffers. They do not depend on the batch
/// size: guards are ignored, so a region covers the steps of every batch.
pub(super) fn regions(devices: &[DeviceProgram], d: usize) -> Vec<Region> {
    let device = &devices[d];
    let mut spans: IdMap<BufferId, Option<(usize, usize)>> = device.buffer_map(None);
    let mut touch = |buffer: BufferId, step: usize| {
        if let Some(region) = device.region(buffer) {
            let span = spans[region].get_or_insert((step, step));
            *span = (span.0.min(step), span.1.max(step));
        }
    };
    let times = device.rows().into_iter().zip(device.completions());
    for (step, (row, end)) in device.steps.iter().zip(times) {
        for buffer in step.action.touched(d) {
            touch(buffer, row.start);
            touch(buffer, end);
        }
    }
    // Another device reads at a time that no step of this device knows, so the bytes stay until the
    // end of the program.
    for buffer in read_elsewhere(devices, d) {
        touch(buffer, device.steps.len());
    }
    let region = |buffer: BufferId| {
        let (first, last) = spans[buffer]?;
        Some(Region { buffer, first, last })
    };
    device.buffer_ids().filter_map(region).collect()
}

/// Fails if an operator needs more entries of an axis than a batch of `n` rows gives.
fn check_entries(device: &DeviceProgram, n: i64) -> Result<(), BindError> {
    for step in &device.steps {
        let Action::Launch(launch) = &step.action else { continue };
        let Some(op) = &launch.op else { continue };
        let types = launch.operands.iter().map(|b| &device.buffer(*b).ty);
        let types: SmallVec<[&TensorType; 4]> = types.collect();
        let Some((entries, takes)) = op.takes(&types) else { continue };
        let (entries, takes) = (entries.eval(n), takes.eval(n));
        if takes > entries {
            let label = step.label.to_string();
            return Err(BindError::TooFew { n, label, op: op.name(), takes, entries });
        }
    }
    Ok(())
}

impl Program {
    /// Plans the memory for a batch of `n` rows.
    pub fn bind(&self, n: i64) -> Result<Bound, BindError> {
        if n < 0 {
            return Err(BindError::Negative(n));
        }
        let rows: Vec<i64> = self.rows.iter().map(|d| d.eval(n)).collect();
        let mut cache = PlanCache::default();
        let devices = self
            .devices
            .iter()
            .map(|device| self.bind_device(device, n, &rows, &mut cache))
            .collect::<Result<_, _>>()?;
        Ok(Bound { n, rows, devices })
    }

    fn bind_device(
        &self,
        device: &DeviceProgram,
        n: i64,
        rows: &[i64],
        cache: &mut PlanCache,
    ) -> Result<BoundDevice, BindError> {
        let active: Vec<bool> = device.steps.iter().map(|s| s.guard.holds(rows)).collect();
        check_entries(device, n)?;
        let mut locations = Vec::with_capacity(device.buffers.len());
        for buffer in &device.buffers {
            let too_large = || BindError::TooLarge {
                n,
                name: buffer.name.to_string(),
                ty: Box::new(buffer.ty.clone()),
            };
            let dims = buffer.ty.shape.at(n);
            let bytes = dims.iter().try_fold(buffer.ty.dtype.bytes(), |p, d| p.checked_mul(*d));
            let limit = int::<usize>(MAX_SIZE);
            let bytes = bytes.filter(|b| *b <= limit).ok_or_else(too_large)?;
            let space = match buffer.storage {
                Storage::Input(i) => Space::Input(i),
                Storage::Output(i) => Space::Output(i),
                Storage::Param(i) => Space::Param(i),
                Storage::Update(i) => Space::Update(i),
                Storage::Arena
                | Storage::Part { .. }
                | Storage::Strip { .. }
                | Storage::Reuse { .. } => Space::Arena,
            };
            locations.push(Location { space, offset: 0, bytes, dims });
        }
        let mut locations = IdMap::from(locations);
        let items = live_ranges(device, &active, &locations, self.target.alignment as usize);
        let total = items.iter().try_fold(0usize, |sum, i| sum.checked_add(i.size));
        // Every offset is at most this sum, so the arithmetic of the planner cannot overflow.
        total.filter(|t| isize::try_from(*t).is_ok()).ok_or(BindError::ArenaTooLarge(n))?;
        let (offsets, planned) = cache.plan(&items);
        for (region, offset) in device.regions.iter().zip(offsets) {
            locations[region.buffer].offset = *offset;
        }
        place_aliases(device, n, &mut locations);
        Ok(BoundDevice { locations, active, planned, live: peak_live(&items) })
    }
}

impl BoundDevice {
    /// Moves buffers that are no parts of others out of the arena, each with its parts to a place
    /// in another space, and plans the arena for what is left.
    pub(crate) fn put_elsewhere(
        &mut self,
        program: &Program,
        d: usize,
        n: i64,
        places: &[(BufferId, Space, usize)],
    ) {
        let device = &program.devices[d];
        let whole = |of: BufferId| device.buffer_ids().filter(move |own| device.root(*own) == of);
        for (buffer, space, _) in places {
            whole(*buffer).for_each(|own| self.locations[own].space = *space);
        }
        let alignment = program.target.alignment as usize;
        let items = live_ranges(device, &self.active, &self.locations, alignment);
        let (offsets, planned) = assign_offsets(&items);
        for (region, offset) in device.regions.iter().zip(offsets) {
            self.locations[region.buffer].offset = offset;
        }
        place_aliases(device, n, &mut self.locations);
        for (buffer, _, begin) in places {
            let first = self.locations[*buffer].offset;
            for own in whole(*buffer) {
                let at = &mut self.locations[own];
                at.offset = begin + at.offset - first;
            }
        }
        (self.planned, self.live) = (planned, peak_live(&items));
    }
}

/// The live ranges of the regions, with sizes; a region that no active step touches has size 0.
pub(super) fn live_ranges(
    device: &DeviceProgram,
    active: &[bool],
    locations: &IdMap<BufferId, Location>,
    alignment: usize,
) -> Vec<LiveRange> {
    // The size of a region is the largest buffer that an active step puts there. Skipped steps do
    // not count, so a replica without rows needs no memory.
    let mut sizes = device.buffer_map(0usize);
    let mut touch = |buffer: BufferId| {
        let root = device.root(buffer);
        let is_here = locations[root].space == Space::Arena;
        if let Some(region) = device.region(root).filter(|_| is_here) {
            let size = &mut sizes[region];
            *size = (*size).max(locations[root].bytes);
        }
    };
    let steps = device.steps.iter().zip(active).filter(|(_, active)| **active);
    for (step, _) in steps {
        match &step.action {
            Action::Launch(launch) => {
                launch.operands.iter().chain(&launch.results).for_each(|b| touch(*b));
            }
            Action::Copy { to, .. } => touch(*to),
            Action::Wait(_) | Action::Record(_) => {}
        }
    }
    let item = |r: &Region| {
        // Sizes are rounded up and offsets are sums of sizes, so every offset is aligned.
        let size = sizes[r.buffer].next_multiple_of(alignment);
        LiveRange { size, first: r.first, last: r.last }
    };
    device.regions.iter().map(item).collect()
}

/// Locates the buffers that lie within others or reuse their bytes. Two passes, because a part may
/// lie within a buffer that reuses another.
fn place_aliases(device: &DeviceProgram, n: i64, locations: &mut IdMap<BufferId, Location>) {
    for id in device.buffer_ids() {
        if let Storage::Reuse { of } = device.buffer(id).storage {
            locations[id].offset = locations[of].offset;
        }
    }
    for id in device.buffer_ids() {
        if let Storage::Part { of, offset } | Storage::Strip { of, offset, .. } =
            &device.buffer(id).storage
        {
            let Location { space, offset: start, .. } = locations[*of];
            let inside = int::<usize>(offset.eval(n));
            locations[id].space = space;
            locations[id].offset = start.saturating_add(inside);
        }
    }
}
