//! The memory report: the memory plan at one batch size as a table.

use crate::ir::IdMap;
use std::collections::BTreeSet;
use std::fmt;

use super::{Bound, BoundDevice, BufferId, DeviceProgram, Program, Space, Storage};

/// The memory plan of a program at one batch size.
struct MemoryReport<'a> {
    program: &'a Program,
    bound: &'a Bound,
}

impl Bound {
    /// Displays the plan as a table; `program` is the one that was bound.
    pub fn report<'a>(&'a self, program: &'a Program) -> impl fmt::Display + 'a {
        MemoryReport { program, bound: self }
    }
}

impl fmt::Display for MemoryReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory of {} at {} rows, in bytes\n", self.program.name, self.bound.n)?;
        self.totals(f)?;
        for (device, bound) in self.program.devices.iter().zip(&self.bound.devices) {
            if bound.planned > 0 {
                arena(f, device, bound)?;
            }
        }
        Ok(())
    }
}

impl MemoryReport<'_> {
    /// Prints a line for each device: rows, bytes of the arena, the peak of live bytes, and the
    /// bytes of parameters and outputs.
    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<8} {:>8} {:>14} {:>14} {:>7} {:>14} {:>14}",
            "device", "rows", "arena", "live", "ratio", "parameters", "outputs"
        )?;
        let updates = !self.program.updates.is_empty();
        end(f, updates.then_some(&"updates"))?;
        for (device, bound) in self.program.devices.iter().zip(&self.bound.devices) {
            let rows: i64 =
                device.replicas.iter().filter_map(|r| self.bound.rows.get(*r as usize)).sum();
            let rows = if device.replicas.is_empty() { "-".to_owned() } else { rows.to_string() };
            // The planned bytes over the least that any plan needs: what fragmentation costs.
            let ratio = match bound.live {
                0 => "-".to_owned(),
                live => format!("{:.3}", bound.planned as f64 / live as f64),
            };
            let Held { params, outputs, updates: new } = held(device, bound);
            let name = device.device.to_string();
            write!(
                f,
                "{name:<8} {rows:>8} {:>14} {:>14} {ratio:>7} {params:>14} {outputs:>14}",
                bound.planned, bound.live
            )?;
            end(f, updates.then_some(&new))?;
        }
        Ok(())
    }
}

/// Ends a line, with an optional last column.
fn end(f: &mut fmt::Formatter<'_>, column: Option<&dyn fmt::Display>) -> fmt::Result {
    match column {
        Some(column) => writeln!(f, " {:>14}", column.to_string()),
        None => writeln!(f),
    }
}

/// The bytes that a device holds outside its arena.
#[derive(Default)]
struct Held {
    params: usize,
    outputs: usize,
    /// The new elements of parameters.
    updates: usize,
}

/// A parameter may have several buffers that are the same memory: it counts once.
fn held(device: &DeviceProgram, bound: &BoundDevice) -> Held {
    let (mut held, mut seen) = (Held::default(), BTreeSet::new());
    for (buffer, at) in device.buffers.iter().zip(bound.locations.iter()) {
        match buffer.storage {
            Storage::Param(i) if seen.insert(i) => held.params += at.bytes,
            Storage::Output(_) => held.outputs += at.bytes,
            Storage::Update(_) => held.updates += at.bytes,
            Storage::Param(_)
            | Storage::Input(_)
            | Storage::Arena
            | Storage::Part { .. }
            | Storage::Strip { .. }
            | Storage::Reuse { .. } => {}
        }
    }
    held
}

/// Prints the nonempty regions of an arena by offset: the offset, the bytes, the live range in
/// steps, and the buffers that use the region one after the other.
fn arena(f: &mut fmt::Formatter<'_>, device: &DeviceProgram, bound: &BoundDevice) -> fmt::Result {
    writeln!(f, "\n{}", device.device)?;
    writeln!(f, "  {:>12} {:>12}  {:<13} buffers", "offset", "bytes", "steps")?;
    let at = |buffer: BufferId| &bound.locations[buffer];
    let holders = holders(device, bound);
    let mut regions: Vec<_> = device.regions.iter().filter(|r| at(r.buffer).bytes > 0).collect();
    // By place, then by time: a reader sees what shares the same bytes.
    regions.sort_by_key(|r| (at(r.buffer).offset, r.first));
    for region in regions {
        let (place, steps) = (at(region.buffer), format!("{}..={}", region.first, region.last));
        write!(f, "  {:>12} {:>12}  {steps:<13}", place.offset, place.bytes)?;
        for holder in &holders[region.buffer] {
            write!(f, " {}", device.buffer(*holder).name)?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// The buffers that use each region, one after the other.
pub(super) fn holders(
    device: &DeviceProgram,
    bound: &BoundDevice,
) -> IdMap<BufferId, Vec<BufferId>> {
    let mut holders: IdMap<BufferId, Vec<BufferId>> = device.buffer_map(Vec::new());
    for id in device.buffer_ids() {
        if bound.locations[id].space == Space::Arena
            && !device.buffer(id).storage.is_within()
            && let Some(region) = device.region(id)
        {
            holders[region].push(id);
        }
    }
    holders
}
