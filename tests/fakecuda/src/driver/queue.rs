//! Streams and the work in them.

use super::clock::Clock;
use crate::exec::block::Launch;
use crate::exec::kernel::Kernel;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

/// A function that the host gave to a stream.
#[derive(Clone, Copy)]
pub(super) struct HostCall {
    pub(super) function: unsafe extern "C" fn(*mut c_void),
    pub(super) data: usize,
}

/// Where a copy to the device takes its bytes.
#[derive(Clone)]
pub(super) enum Source {
    /// Bytes taken when the copy was given, as for pageable memory.
    Staged(Arc<[u8]>),
    /// Host memory read when the copy runs, and its checksum when the copy was given.
    Host(usize, Option<u64>),
}

/// One item of work.
#[derive(Clone)]
pub(super) enum Work {
    Launch { function: u64, kernel: Arc<Kernel>, launch: Arc<Launch> },
    ToDevice { to: u64, from: Source, len: usize },
    ToHost { to: usize, from: u64, len: usize },
    Copy { to: u64, from: u64, len: usize },
    Fill { to: u64, pattern: Vec<u8>, count: usize },
    Alloc { start: u64 },
    Free { start: u64 },
    Record(u64),
    Wait(u64),
    Host(HostCall),
}

impl Work {
    /// Host memory that it uses: first address, length, whether it writes.
    pub(super) fn host_range(&self) -> Option<(usize, usize, bool)> {
        match self {
            Self::ToDevice { from: Source::Host(at, _), len, .. } => Some((*at, *len, false)),
            Self::ToHost { to, len, .. } => Some((*to, *len, true)),
            _ => None,
        }
    }

    /// What it is, for reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Launch { kernel, .. } => format!("kernel {}", kernel.name),
            Self::ToDevice { len, .. } => format!("copy of {len} bytes to the device"),
            Self::ToHost { len, .. } => format!("copy of {len} bytes to the host"),
            Self::Copy { len, .. } => format!("copy of {len} bytes on the device"),
            Self::Fill { count, pattern, .. } => format!("fill of {} bytes", count * pattern.len()),
            Self::Alloc { .. } => "allocation".to_owned(),
            Self::Free { .. } => "free".to_owned(),
            Self::Record(_) => "event record".to_owned(),
            Self::Wait(_) => "event wait".to_owned(),
            Self::Host(_) => "host function".to_owned(),
        }
    }
}

/// Work and what the host knew when it gave it.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) work: Work,
    pub(super) host: Clock,
}

/// A stream.
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(super) struct Stream {
    /// Its place in clocks.
    pub(super) at: usize,
    pub(super) context: u64,
    pub(super) queue: VecDeque<Item>,
    pub(super) clock: Clock,
    /// Items run so far.
    pub(super) done: u64,
    /// Whether it waits for the legacy default stream and the other way round.
    pub(super) blocking: bool,
    /// A host function of it is running, or the time of a slow launch passes.
    pub(super) busy: bool,
    /// The capture it takes part in.
    pub(super) capture: Option<u64>,
    /// Made by the driver itself: the default stream, branches of graphs.
    pub(super) internal: bool,
    /// Destroyed, but its work is not all done.
    pub(super) destroyed: bool,
}

/// A point in a stream that others can wait for.
pub(super) struct Marker {
    pub(super) stream: u64,
    pub(super) done: bool,
    pub(super) clock: Clock,
    pub(super) time: Option<std::time::Instant>,
    /// The capture it was recorded in.
    pub(super) capture: Option<u64>,
}
