//! The arena of each device over the steps of the program: a rectangle for each region.

use std::ops::RangeInclusive;

use super::timeline::{self, Kind};
use crate::ir::picture::axis;
use crate::ir::picture::chart::{Bar, Chart, Panel, Upwards};
use crate::lower::memory::live_ranges;
use crate::lower::offsets::{LiveRange, peak};
use crate::lower::report::holders;
use crate::lower::{Action, Bound, BoundDevice, BufferId, DeviceProgram, Program};
use crate::types::Device;
use crate::types::invariant::invariant;

/// About how wide a panel is, and how wide a step at most.
const WIDTH: f64 = 1200.0;
const STEP: f64 = 48.0;

/// The plan of an arena: its live ranges with their offsets, and its bytes.
#[derive(PartialEq)]
struct Arena {
    items: Vec<(LiveRange, usize)>,
    planned: usize,
    steps: usize,
}

/// The memory plan of a program at one batch size as a picture. Devices beside each other whose
/// plans are equal share a panel.
pub(crate) fn memory(program: &Program, bound: &Bound) -> Chart {
    let mut plans: Vec<(RangeInclusive<usize>, Arena)> = Vec::new();
    let devices = program.devices.iter().zip(&bound.devices).enumerate();
    for (d, (device, own)) in devices.filter(|(_, (_, own))| own.planned > 0) {
        let arena = arena(program, device, own);
        match plans.last_mut() {
            Some((devices, last)) if *last == arena && *devices.end() + 1 == d => {
                *devices = *devices.start()..=d;
            }
            Some(_) | None => plans.push((d..=d, arena)),
        }
    }
    // Without an arena there is nothing to scale.
    let longest = plans.iter().map(|(_, arena)| arena.end()).max().unwrap_or(1);
    let panel = |(devices, arena): &(RangeInclusive<usize>, Arena)| {
        let d = *devices.start();
        let (device, own) = (&program.devices[d], &bound.devices[d]);
        let last = program.devices[*devices.end()].device;
        panel(device, own, arena, title(device.device, last, devices.clone().count()))
    };
    let panels: Vec<Panel> = plans.iter().map(panel).collect();
    let note = match panels[..] {
        [] => "no device has an arena: every value is an input, a parameter or an output",
        _ => {
            "A rectangle is a region of the arena: its bytes, from the first step that uses it to \
             the last, in the colour of what writes it first. Inputs, parameters and outputs lie \
             elsewhere."
        }
    };
    Chart {
        title: super::title(program, "memory", bound),
        notes: vec![note.to_owned()],
        legend: timeline::legend_of(|kind| {
            panels.iter().flat_map(|panel| &panel.bars).any(|bar| bar.look == kind.look())
        }),
        scale: (WIDTH / longest as f64).min(STEP),
        panels,
    }
}

/// The title of the panel of so many devices.
fn title(first: Device, last: Device, count: usize) -> String {
    match count {
        1 => first.to_string(),
        _ => format!("{first} … {last} ×{count}"),
    }
}

fn arena(program: &Program, device: &DeviceProgram, own: &BoundDevice) -> Arena {
    let alignment = program.target.alignment as usize;
    let ranges = live_ranges(device, &own.active, &own.locations, alignment);
    let offsets = device.regions.iter().map(|region| own.locations[region.buffer].offset);
    Arena {
        items: ranges.into_iter().zip(offsets).collect(),
        planned: own.planned,
        steps: device.steps.len(),
    }
}

impl Arena {
    /// The end of its axis: behind the last step, and behind what outlives it.
    fn end(&self) -> usize {
        self.items.iter().map(|(item, _)| item.last + 1).fold(self.steps, usize::max)
    }
}

fn panel(device: &DeviceProgram, own: &BoundDevice, arena: &Arena, title: String) -> Panel {
    let holders = holders(device, own);
    let regions = device.regions.iter().map(|region| region.buffer).zip(&arena.items);
    let placed: Vec<(BufferId, LiveRange, usize)> = regions
        .filter(|(_, (item, _))| item.size > 0)
        .map(|(buffer, (item, offset))| (buffer, *item, *offset))
        .collect();
    let bar = |(buffer, item, offset): &(BufferId, LiveRange, usize)| {
        let names: Vec<&str> =
            holders[*buffer].iter().map(|holder| &*device.buffer(*holder).name).collect();
        Bar {
            from: item.first as f64,
            to: item.last as f64 + 1.0,
            low: *offset as f64,
            high: (offset + item.size) as f64,
            label: names.join(", "),
            tells: format!(
                "{}: {} at {offset}, steps {} to {}",
                names.join(", "),
                axis::bytes(item.size as u64),
                item.first,
                item.last
            ),
            look: kind(device, *buffer, item.first).look(),
        }
    };
    let bars = placed.iter().map(bar).collect();
    let items: Vec<LiveRange> = placed.iter().map(|(_, item, _)| *item).collect();
    let (live, at) = peak(&items);
    let (planned, live) = (axis::bytes(arena.planned as u64), axis::bytes(live as u64));
    Panel {
        title,
        detail: format!("arena of {planned}, {} regions", placed.len()),
        from: 0.0,
        to: arena.end() as f64,
        least: 1.0,
        counts: format!("steps of {}, in order: launches, copies, waits", device.device),
        upwards: Upwards::Size(arena.planned as f64, axis::unit_of_bytes(arena.planned as f64)),
        bars,
        mark: Some((at as f64 + 0.5, format!("peak: {live} are live in step {at}"))),
    }
}

/// What writes a region first, which begins with this step.
fn kind(device: &DeviceProgram, region: BufferId, first: usize) -> Kind {
    let is_own = |buffer: &BufferId| device.region(*buffer) == Some(region);
    let writes = |action: &&Action| match action {
        Action::Copy { to, .. } => is_own(to),
        Action::Launch(launch) => launch.results.iter().any(is_own),
        Action::Wait(_) | Action::Record(_) => false,
    };
    let mut actions = device.steps[first..].iter().map(|step| &step.action);
    invariant(actions.find(writes).and_then(Kind::of), "that a step writes each region")
}
