//! Capture of streams and launches of graphs.

use super::code;
use super::current;
use super::queue::{Source, Work};
use super::schedule::Goal;
use super::state::{Call, Capture, CaptureMode, Driver, Executable, Graph};
use std::collections::BTreeMap;

impl Driver {
    /// Begins a capture in a stream.
    pub(super) fn begin_capture(&mut self, stream: u64, mode: u32) -> Call<()> {
        let mode = CaptureMode::of(mode)?;
        let default = self.streams.get(&stream).is_some_and(|s| s.internal);
        if default {
            return Err(self.refuse(
                code::STREAM_CAPTURE_UNSUPPORTED,
                "the legacy default stream cannot be captured",
            ));
        }
        let id = self.handle();
        let Some(of) = self.streams.get_mut(&stream) else { return Err(code::INVALID_HANDLE) };
        if of.capture.is_some() {
            return Err(code::INVALID_VALUE);
        }
        of.capture = Some(id);
        let capture = Capture {
            origin: stream,
            streams: vec![stream],
            work: Vec::new(),
            broken: false,
            thread: std::thread::current().id(),
            mode,
        };
        self.captures.insert(id, capture);
        Ok(())
    }

    /// Adds work to a capture.
    pub(super) fn capture_work(&mut self, stream: u64, work: Work) -> Call<()> {
        let id = self.streams.get(&stream).and_then(|s| s.capture).unwrap_or(0);
        if matches!(work, Work::Alloc { .. } | Work::Free { .. }) {
            self.break_captures();
            return Err(self.refuse(
                code::NOT_SUPPORTED,
                "allocation in a captured stream is not supported here",
            ));
        }
        // What a captured copy reads is read when the graph is launched.
        let work = match work {
            Work::ToDevice { to, from: Source::Host(at, _), len } => {
                Work::ToDevice { to, from: Source::Host(at, None), len }
            }
            other => other,
        };
        let Some(capture) = self.captures.get_mut(&id) else { return Err(code::INVALID_HANDLE) };
        if capture.broken {
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        capture.work.push((stream, work));
        Ok(())
    }

    /// Makes a stream wait for an event that was recorded in a capture: it takes part from now.
    pub(super) fn join_capture(&mut self, stream: u64, marker: u64, capture: u64) -> Call<()> {
        if !self.captures.contains_key(&capture) {
            let text = "an event of a capture that has ended is waited for";
            return Err(self.refuse(code::CAPTURED_EVENT, text));
        }
        let Some(of) = self.streams.get_mut(&stream) else { return Err(code::INVALID_HANDLE) };
        if of.internal {
            return Err(code::STREAM_CAPTURE_IMPLICIT);
        }
        match of.capture {
            Some(own) if own != capture => return Err(code::STREAM_CAPTURE_MERGE),
            Some(_) => {}
            None => {
                of.capture = Some(capture);
                if let Some(c) = self.captures.get_mut(&capture) {
                    c.streams.push(stream);
                }
            }
        }
        self.capture_work(stream, Work::Wait(marker))
    }

    /// A call that a capture does not allow makes it invalid.
    pub(super) fn break_captures(&mut self) {
        self.captures.values_mut().for_each(|c| c.broken = true);
    }

    /// Refuses a potentially unsafe call, and makes the captures invalid that forbid it.
    pub(super) fn unsafe_call(&mut self, what: &str) -> Call<()> {
        let own = std::thread::current().id();
        let heeds = current::heeds();
        let forbids = |c: &&mut Capture| match (c.mode, heeds) {
            (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
            (CaptureMode::Global, CaptureMode::Global) => true,
            (CaptureMode::Global | CaptureMode::ThreadLocal, _) => c.thread == own,
        };
        let mut is_forbidden = false;
        for capture in self.captures.values_mut().filter(forbids) {
            capture.broken = true;
            is_forbidden = true;
        }
        if !is_forbidden {
            return Ok(());
        }
        let text = format!("{what} while a stream is captured");
        Err(self.refuse(code::STREAM_CAPTURE_UNSUPPORTED, &text))
    }

    /// Refuses to wait for a context of which a stream is captured, in whatever mode.
    pub(super) fn none_captured(&mut self, context: u64) -> Call<()> {
        let of = |id: &u64| self.streams.get(id).is_some_and(|s| s.context == context);
        if !self.captures.values().any(|c| c.streams.iter().any(of)) {
            return Ok(());
        }
        self.break_captures();
        let text = "the context of a captured stream is waited for";
        Err(self.refuse(code::STREAM_CAPTURE_UNSUPPORTED, text))
    }

    /// Refuses to wait for a stream that is captured.
    pub(super) fn not_captured(&mut self, stream: u64) -> Call<()> {
        if self.streams.get(&stream).is_none_or(|s| s.capture.is_none()) {
            return Ok(());
        }
        self.break_captures();
        Err(self.refuse(code::STREAM_CAPTURE_UNSUPPORTED, "a captured stream is waited for"))
    }

    /// Ends a capture and gives its graph.
    pub(super) fn end_capture(&mut self, stream: u64) -> Call<u64> {
        let id = self.streams.get(&stream).and_then(|s| s.capture).ok_or(code::ILLEGAL_STATE)?;
        if self.captures.get(&id).is_some_and(|c| c.origin != stream) {
            return Err(code::STREAM_CAPTURE_UNMATCHED);
        }
        let capture = self.captures.remove(&id).ok_or(code::ILLEGAL_STATE)?;
        for of in self.streams.values_mut() {
            if of.capture == Some(id) {
                of.capture = None;
            }
        }
        if capture.broken {
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(branch) = unjoined(&capture) {
            let text = format!("branch {branch} of a capture is not joined to its origin");
            return Err(self.refuse(code::STREAM_CAPTURE_UNJOINED, &text));
        }
        let slot = |s: u64| capture.streams.iter().position(|&o| o == s).unwrap_or(0);
        let work = capture.work.iter().map(|(s, w)| (slot(*s), w.clone())).collect();
        let graph = Graph { work, branches: capture.streams.len() };
        let handle = self.handle();
        self.graphs.insert(handle, graph);
        Ok(handle)
    }

    /// Ends the capture that began in a stream, without a graph.
    pub(super) fn abandon_capture(&mut self, stream: u64) {
        let begun = self.captures.iter().find(|(_, c)| c.origin == stream).map(|(&id, _)| id);
        let Some(id) = begun else { return };
        self.captures.remove(&id);
        for of in self.streams.values_mut().filter(|s| s.capture == Some(id)) {
            of.capture = None;
        }
    }

    /// Makes a graph launchable.
    pub(super) fn instantiate(&mut self, graph: u64) -> Call<u64> {
        let context = self.current()?;
        let Some(graph) = self.graphs.get(&graph).cloned() else {
            return Err(self.refuse(code::INVALID_VALUE, "a graph that does not exist is used"));
        };
        let branches = (1..graph.branches).map(|_| self.new_stream(context, false, true)).collect();
        let handle = self.handle();
        let executable = Executable { context, graph, branches, last: None, bytes: None };
        self.executables.insert(handle, executable);
        Ok(handle)
    }

    /// Takes the memory of a graph, unless it has it.
    pub(super) fn upload_graph(&mut self, executable: u64) -> Call<()> {
        let Some(of) = self.executables.get(&executable) else {
            let text = "a graph that does not exist or is destroyed is launched";
            return Err(self.refuse(code::INVALID_VALUE, text));
        };
        if of.bytes.is_none() {
            let (bytes, device) = (self.config.graph, self.context(of.context)?.device);
            self.reserve(device, bytes)?;
            if let Some(of) = self.executables.get_mut(&executable) {
                of.bytes = Some(bytes);
            }
        }
        Ok(())
    }

    /// Gives back the memory of a graph that ends.
    pub(super) fn end_graph(&mut self, of: &Executable) {
        let device = self.contexts.get(&of.context).map(|context| context.device);
        if let (Some(device), Some(bytes)) = (device, of.bytes) {
            self.memory.release(device, bytes);
        }
    }

    /// Launches a graph in a stream, after its last launch.
    pub(super) fn launch_graph(&mut self, executable: u64, stream: u64) -> Call<Goal> {
        self.upload_graph(executable)?;
        let of = &self.executables[&executable];
        if let Some((_, gone)) = of.graph.work.iter().find(|(_, work)| self.is_unloaded(work)) {
            let text =
                format!("a graph is launched, of which the module of {} is unloaded", gone.name());
            return Err(self.refuse(code::INVALID_HANDLE, &text));
        }
        let (work, branches, last) = (of.graph.work.clone(), of.branches.clone(), of.last);
        self.stats.graph_launches += 1;
        self.hang(stream)?;
        if let Some(last) = last.filter(|m| self.markers.contains_key(m)) {
            self.enqueue(stream, Work::Wait(last))?;
        }
        let mut markers = BTreeMap::new();
        for (slot, item) in work {
            let to = if slot == 0 { stream } else { branches[slot - 1] };
            let item = match item {
                Work::Record(old) => {
                    let new = self.new_marker(to);
                    markers.insert(old, new);
                    Work::Record(new)
                }
                Work::Wait(old) => match markers.get(&old) {
                    Some(&new) => Work::Wait(new),
                    None => continue,
                },
                other => other,
            };
            self.enqueue(to, item)?;
        }
        let end = self.new_marker(stream);
        self.enqueue(stream, Work::Record(end))?;
        if let Some(of) = self.executables.get_mut(&executable) {
            of.last = Some(end);
        }
        Ok(Goal::Nothing)
    }
}

/// A branch whose work the origin does not wait for.
fn unjoined(capture: &Capture) -> Option<usize> {
    let slots = capture.streams.len();
    let slot = |s: u64| capture.streams.iter().position(|&o| o == s).unwrap_or(0);
    // For each branch, how much of every branch's work it waits for.
    let mut known = vec![vec![0usize; slots]; slots];
    let mut marked: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut total = vec![0usize; slots];
    for (stream, work) in &capture.work {
        let at = slot(*stream);
        match work {
            Work::Record(marker) => {
                marked.insert(*marker, known[at].clone());
            }
            Work::Wait(marker) => {
                let Some(marked) = marked.get(marker) else { continue };
                for (mine, theirs) in known[at].iter_mut().zip(marked) {
                    *mine = (*mine).max(*theirs);
                }
            }
            _ => {
                total[at] += 1;
                known[at][at] = total[at];
            }
        }
    }
    (0..slots).find(|&s| known[0][s] < total[s])
}
