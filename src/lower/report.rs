//! The memory plan of a program at one batch size, for people.

use std::fmt;

use super::{Bound, Program, Space};

/// The memory that a program takes at one batch size, device by device.
pub struct MemoryReport<'a> {
    program: &'a Program,
    bound: &'a Bound,
}

impl Bound {
    /// The plan as a table; `program` is the one that was bound.
    pub fn report<'a>(&'a self, program: &'a Program) -> MemoryReport<'a> {
        MemoryReport { program, bound: self }
    }
}

impl fmt::Display for MemoryReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory of {} at {} rows, in bytes", self.program.name, self.bound.n)?;
        for (device, bound) in self.program.devices.iter().zip(&self.bound.devices) {
            writeln!(
                f,
                "\n{}: arena {}, live at most {}",
                device.device, bound.planned, bound.live
            )?;
            let mut placed: Vec<_> = device
                .buffers
                .iter()
                .zip(&bound.locations)
                .filter(|(_, l)| l.space == Space::Arena && l.bytes > 0)
                .map(|(buffer, l)| (l.offset, l.bytes, &*buffer.name))
                .collect();
            placed.sort_unstable();
            for (offset, bytes, name) in placed {
                writeln!(f, "  {offset:>12} {bytes:>12}  {name}")?;
            }
        }
        Ok(())
    }
}
