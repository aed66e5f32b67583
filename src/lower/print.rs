//! The text form of a program.

use std::fmt;

use super::chain::print_attrs;
use crate::op::OpText;

use super::program::{
    Action, Buffer, Derived, DeviceProgram, Guard, Lane, Launch, Program, Step, Storage,
};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {} for {}", self.name, self.target.name)?;
        for (i, rows) in self.rows.iter().enumerate() {
            writeln!(f, "replica {i}: {rows} rows")?;
        }
        for (i, port) in self.outputs.iter().enumerate() {
            writeln!(f, "output {i} {}: {}", port.name, port.ty)?;
        }
        for (i, port) in (0u32..).zip(&self.updates).filter_map(|(i, _)| Some((i, self.update(i)?)))
        {
            writeln!(f, "update {i} {}: {}", port.name, port.ty)?;
        }
        for (i, derived) in (self.params.len()..).zip(&self.derived) {
            let Derived { port, op, operands: [scale, bias, mean, var], factor, .. } = derived;
            write!(f, "param {i} {}: {} = {} of batch_norm(", port.name, port.ty, factor.name())?;
            write!(f, "param {scale}, param {bias}, param {mean}, param {var})")?;
            print_attrs(f, &op.attrs())?;
            writeln!(f)?;
        }
        for device in &self.devices {
            writeln!(f)?;
            self.print_device(f, device)?;
        }
        Ok(())
    }
}

impl Program {
    /// A device with its replicas, its buffers by number, and its steps in order.
    fn print_device(&self, f: &mut fmt::Formatter<'_>, device: &DeviceProgram) -> fmt::Result {
        write!(f, "{}", device.device)?;
        for r in &device.replicas {
            write!(f, " replica {r}")?;
        }
        writeln!(f)?;
        for (i, buffer) in device.buffers.iter().enumerate() {
            writeln!(f, "  %{i} {buffer}")?;
        }
        for step in &device.steps {
            f.write_str("  ")?;
            self.print_step(f, step)?;
            writeln!(f)?;
        }
        Ok(())
    }

    /// A step as one line: `aside` for the exchange lane, `beside` for a launch that runs together
    /// with the one before it, `if GUARD:` where it may be skipped, then what it does. Waits and
    /// records belong to no operator and so have no label.
    fn print_step(&self, f: &mut fmt::Formatter<'_>, step: &Step) -> fmt::Result {
        if step.lane == Lane::Exchange {
            f.write_str("aside ")?;
        }
        if step.beside {
            f.write_str("beside ")?;
        }
        if step.guard != Guard::Always {
            write!(f, "if {}: ", step.guard)?;
        }
        match &step.action {
            Action::Wait(event) => write!(f, "wait e{event}"),
            Action::Record(event) => write!(f, "record e{event}"),
            Action::Copy { device, from, to } => {
                let source = self.devices.get(*device).map(|d| d.device);
                write!(f, "copy %{} = ", to.0)?;
                if let Some(source) = source {
                    write!(f, "{source} ")?;
                }
                write!(f, "%{}", from.0)
            }
            Action::Launch(launch) => {
                write!(f, "{}", launch.class)?;
                for (i, result) in launch.results.iter().enumerate() {
                    write!(f, "{}%{}", if i == 0 { " " } else { ", " }, result.0)?;
                }
                print_kernel(f, launch)
            }
        }?;
        match &step.action {
            Action::Launch(_) | Action::Copy { .. } => write!(f, " `{}`", step.label),
            Action::Wait(_) | Action::Record(_) => Ok(()),
        }
    }
}

/// The operator with its own operands, then the fused chain, which names the others where it uses
/// them.
fn print_kernel(f: &mut fmt::Formatter<'_>, launch: &Launch) -> fmt::Result {
    let (operands, others) = launch.split_operands();
    f.write_str(" = ")?;
    if let Some(op) = &launch.op {
        write!(f, "{}(", op.name())?;
    }
    for (i, operand) in operands.iter().enumerate() {
        f.write_str(if i == 0 { "" } else { ", " })?;
        match launch.prologue.get(&i) {
            Some(step) => write!(f, "{}(%{})", step.name(), operand.0)?,
            None => write!(f, "%{}", operand.0)?,
        }
    }
    if let Some(op) = &launch.op {
        f.write_str(")")?;
        print_attrs(f, &op.attrs())?;
    }
    let names: Vec<String> = others.iter().map(|b| format!("%{}", b.0)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    write!(f, "{}", launch.chain.display(&names))
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)?;
        if let Some(order) = self.order.name() {
            write!(f, " {order}")?;
        }
        match &self.storage {
            Storage::Input(i) => write!(f, " input {i}"),
            Storage::Output(i) => write!(f, " output {i}"),
            Storage::Param(i) => write!(f, " param {i}"),
            Storage::Update(i) => write!(f, " update {i}"),
            Storage::Arena => Ok(()),
            Storage::Part { of, offset } => write!(f, " in %{} at {offset}", of.0),
            Storage::Strip { of, channel, .. } => {
                write!(f, " in %{} from channel {channel}", of.0)
            }
            Storage::Reuse { of } => write!(f, " over %{}", of.0),
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Rows(r) => write!(f, "rows({r})"),
            Self::First(r) => write!(f, "first({r})"),
        }
    }
}
