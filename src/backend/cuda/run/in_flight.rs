//! The memory that GPUs need for all runs which may be in flight at the same time.

use std::collections::BTreeMap;
use std::fmt;

use super::parts::IN_FLIGHT;
use super::plan::{ALIGNMENT, planned};
use super::staging::KEPT_STAGINGS;
use crate::lower::{Action, Bound, Program, Space};

/// A table of it, for programs on GPUs.
pub(crate) struct InFlight<'a> {
    pub(crate) program: &'a Program,
    pub(crate) bound: &'a Bound,
}

impl InFlight<'_> {
    /// The bytes of the inputs that come to a device before a run.
    fn staged(&self, d: usize) -> u64 {
        let (device, host) = (&self.program.devices[d], &self.bound.devices[0]);
        let active = device.steps.iter().zip(&self.bound.devices[d].active);
        let inputs = active.filter(|(_, active)| **active).filter_map(|(step, _)| {
            let Action::Copy { device: 0, from, .. } = step.action else { return None };
            let at = &host.locations[from];
            let Space::Input(i) = at.space else { return None };
            let has_axes = self.program.inputs.get(i as usize)?.ty.rank() > 0;
            has_axes.then_some(at.bytes.next_multiple_of(ALIGNMENT) as u64)
        });
        inputs.sum()
    }
}

impl fmt::Display for InFlight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A run that changes parameters is alone, but for the inputs of the next.
        let runs = if self.program.updates.is_empty() { IN_FLIGHT } else { 1 };
        let told = match runs {
            1 => "one run at a time: the inputs of the next come while it computes".to_owned(),
            _ => format!(
                "{runs} runs may be in flight: the inputs of one come while another computes"
            ),
        };
        writeln!(
            f,
            "\n{told}\n\n{:<8} {:>14} {:>14} {:>14} {:>14}",
            "device", "arenas", "inputs", "parameters", "all"
        )?;
        let devices: BTreeMap<_, _> =
            self.program.devices.iter().enumerate().skip(1).map(|(d, of)| (of.device, d)).collect();
        for (device, d) in devices {
            let arenas = u64::from(runs) * self.bound.devices[d].planned as u64;
            let inputs = KEPT_STAGINGS as u64 * self.staged(d);
            let held = planned(self.program, &self.program.devices[d]);
            let (name, all) = (device.to_string(), arenas + inputs + held);
            writeln!(f, "{name:<8} {arenas:>14} {inputs:>14} {held:>14} {all:>14}")?;
        }
        Ok(())
    }
}
