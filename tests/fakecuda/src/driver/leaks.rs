//! What was never given back, and the counters.

use super::state::{Driver, say};

impl Driver {
    /// Reports what is left in a context that ends.
    pub(super) fn context_leaks(&mut self, context: u64) {
        let device = self.contexts.get(&context).map_or(0, |c| c.device);
        let mut left: Vec<String> = self
            .memory
            .live()
            .filter(|a| a.device == device && !a.label.starts_with("variable"))
            .map(|a| format!("{} bytes at {:#x} on device {device} {}", a.len, a.start, a.label))
            .collect();
        let streams = self.streams.values();
        let streams = streams.filter(|s| s.context == context && !s.internal && !s.destroyed);
        left.extend(streams.map(|s| format!("stream {} of device {device}", s.at)));
        let events = self.events.iter().filter(|(_, e)| e.context == context);
        left.extend(events.map(|(id, _)| format!("event {id:#x} of device {device}")));
        let modules = self.modules.values().filter(|m| m.context == context);
        left.extend(modules.map(|m| {
            let names: Vec<&str> = m.kernels.keys().map(String::as_str).collect();
            format!("the module of {} on device {device}", names.join(", "))
        }));
        let graphs = self.executables.iter().filter(|(_, e)| e.context == context);
        left.extend(graphs.map(|(id, _)| format!("launchable graph {id:#x}")));
        for what in left {
            self.report(&format!("leak: {what} was never given back"));
        }
    }

    /// Reports what is left when the process ends.
    pub(super) fn leaks(&mut self) {
        let alive: Vec<u64> =
            self.contexts.iter().filter(|(_, c)| c.alive).map(|(&id, _)| id).collect();
        for context in alive {
            self.context_leaks(context);
        }
        let mut left: Vec<String> = self.graphs.keys().map(|id| format!("graph {id:#x}")).collect();
        left.extend(self.pinned.iter().map(|(at, (len, own))| {
            let what = if *own { "pinned" } else { "registered" };
            format!("{len} bytes of {what} host memory at {at:#x}")
        }));
        for what in left {
            self.report(&format!("leak: {what} was never given back"));
        }
    }

    /// Writes the counters to the file that the environment names.
    pub(super) fn write_stats(&self) {
        let Some(path) = &self.config.stats else { return };
        let stats = &self.stats;
        let mut lines = vec![format!("calls {}", stats.calls)];
        lines.extend(stats.by_class.iter().map(|(class, count)| format!("calls.{class} {count}")));
        let by_function = stats.by_function.iter();
        lines.extend(by_function.map(|(name, count)| format!("call {name} {count}")));
        lines.extend([
            format!("launches {}", stats.launches),
            format!("graph_launches {}", stats.graph_launches),
            format!("warp_instructions {}", stats.steps),
            format!("bytes.to_device {}", stats.to_device),
            format!("bytes.to_host {}", stats.to_host),
            format!("bytes.on_device {}", stats.on_device),
            format!("reports {}", stats.reports),
        ]);
        if let Some(failed) = &stats.failed {
            lines.push(format!("failed {}", failed.name));
            lines.push(format!("failed.thread {}", failed.thread));
            lines.extend(failed.device.map(|device| format!("failed.device {device}")));
        }
        let peaks = self.memory.peak.iter().enumerate();
        lines.extend(peaks.map(|(device, peak)| format!("peak.{device} {peak}")));
        let text = lines.join("\n") + "\n";
        if std::fs::write(path, text).is_err() {
            say(&format!("the file {path} cannot be written"));
        }
    }
}
