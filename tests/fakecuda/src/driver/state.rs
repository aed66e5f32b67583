//! Everything the driver knows.

use super::clock::Clock;
use super::code;
use super::config::{Class, Config};
use super::queue::{Item, Marker, Stream, Work};
use crate::exec::kernel::Kernel;
use crate::exec::memory::Memory;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::Write as _;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

/// A result of a driver call; the error is a `CUresult`.
pub(super) type Call<T> = Result<T, u32>;

/// A context.
pub(super) struct Context {
    pub(super) device: u32,
    /// How often the primary context is retained.
    pub(super) retained: u32,
    /// The error that every further call gives.
    pub(super) error: Option<u32>,
    /// Its default stream.
    pub(super) default: u64,
    pub(super) alive: bool,
}

/// An event.
pub(super) struct Event {
    pub(super) context: u64,
    /// Where it was recorded last.
    pub(super) marker: Option<u64>,
    pub(super) timing: bool,
    /// Whether who waits for it sleeps; else the driver looks again and again.
    pub(super) blocking: bool,
}

/// A loaded module.
pub(super) struct Module {
    pub(super) context: u64,
    pub(super) kernels: BTreeMap<String, u64>,
    /// Address and size of its variables.
    pub(super) variables: BTreeMap<String, (u64, usize)>,
}

/// A function of a module.
pub(super) struct Function {
    pub(super) context: u64,
    pub(super) kernel: Arc<Kernel>,
    pub(super) max_dynamic: usize,
    pub(super) alive: bool,
    /// Bytes of the device that its code takes, since its first launch.
    pub(super) code: usize,
}

/// A captured graph: its work with the branch it belongs to, in an order that is possible.
#[derive(Clone)]
pub(super) struct Graph {
    pub(super) work: Vec<(usize, Work)>,
    pub(super) branches: usize,
}

/// A graph that can be launched.
pub(super) struct Executable {
    pub(super) context: u64,
    pub(super) graph: Graph,
    /// Streams of the branches after the first.
    pub(super) branches: Vec<u64>,
    /// The end of its last launch.
    pub(super) last: Option<u64>,
    /// Bytes of the device that it takes, since it was uploaded or launched.
    pub(super) bytes: Option<usize>,
}

/// Whose potentially unsafe calls a capture forbids.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptureMode {
    /// Those of every thread.
    Global,
    /// Those of the thread that began it.
    ThreadLocal,
    /// Nobody's.
    Relaxed,
}

impl CaptureMode {
    /// The mode of a number of the driver.
    pub(super) fn of(number: u32) -> Call<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(code::INVALID_VALUE),
        }
    }

    /// Its number for the driver.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }
}

/// A capture that has begun.
pub(super) struct Capture {
    pub(super) origin: u64,
    pub(super) streams: Vec<u64>,
    pub(super) work: Vec<(u64, Work)>,
    /// The work that made it invalid.
    pub(super) broken: bool,
    /// The thread that began it.
    pub(super) thread: ThreadId,
    pub(super) mode: CaptureMode,
}

/// Work that ran and that something to come may not be ordered after.
pub(super) struct Live {
    pub(super) first: u32,
    pub(super) end: u32,
    pub(super) at: usize,
    pub(super) count: u64,
    pub(super) name: String,
    /// Host memory that it used.
    pub(super) host: Option<(usize, usize, bool)>,
}

/// Counters for `FAKECUDA_STATS`.
#[derive(Default)]
pub(super) struct Stats {
    pub(super) calls: u64,
    pub(super) by_class: BTreeMap<&'static str, u64>,
    pub(super) by_function: BTreeMap<&'static str, u64>,
    pub(super) launches: u64,
    pub(super) graph_launches: u64,
    pub(super) steps: u64,
    pub(super) to_device: u64,
    pub(super) to_host: u64,
    pub(super) on_device: u64,
    pub(super) reports: u64,
    pub(super) failed: Option<Failed>,
}

/// The call that was made to fail.
pub(super) struct Failed {
    pub(super) name: &'static str,
    /// The device of the context that was current.
    pub(super) device: Option<u32>,
    /// The thread that called, by the name that the system knows.
    pub(super) thread: String,
}

/// Markers beyond which those that nothing can ask for any more are looked for.
const MANY_MARKERS: usize = 256;

/// PTX text that was loaded before.
pub(super) struct Image {
    pub(super) module: Arc<crate::ptx::Module>,
    /// Its kernels, if they do not depend on where variables lie.
    pub(super) kernels: Option<Vec<Arc<Kernel>>>,
}

/// The driver.
pub(super) struct Driver {
    pub(super) config: Config,
    pub(super) initialised: bool,
    pub(super) memory: Memory,
    /// The primary context of each device.
    pub(super) primary: Vec<Option<u64>>,
    pub(super) lost: BTreeSet<u32>,
    pub(super) contexts: BTreeMap<u64, Context>,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) markers: BTreeMap<u64, Marker>,
    pub(super) modules: BTreeMap<u64, Module>,
    /// What was read of each text.
    pub(super) images: HashMap<Vec<u8>, Image>,
    pub(super) functions: BTreeMap<u64, Function>,
    pub(super) graphs: BTreeMap<u64, Graph>,
    pub(super) executables: BTreeMap<u64, Executable>,
    pub(super) captures: BTreeMap<u64, Capture>,
    pub(super) pools: BTreeMap<u64, u32>,
    /// Pinned host memory: first address and size, and whether the driver allocated it.
    pub(super) pinned: BTreeMap<usize, (usize, bool)>,
    /// What is ordered before everything the host does next.
    pub(super) host: Clock,
    pub(super) live: VecDeque<Live>,
    pub(super) next_run: u32,
    pub(super) next_handle: u64,
    pub(super) next_clock: usize,
    pub(super) random: u64,
    pub(super) stats: Stats,
    pub(super) failures: u64,
    /// The thread that was told of an injected failure, and when, until it makes its next call.
    pub(super) told: Option<(ThreadId, Instant)>,
    /// Whether the next kernel or copy never ends.
    pub(super) is_hanging: bool,
    /// Whether some work never ends.
    pub(super) never_ends: bool,
}

impl Driver {
    /// A driver before `cuInit`.
    pub(super) fn new(config: Config) -> Self {
        let mut memory = Memory::new(config.devices);
        memory.peers.extend(config.enabled);
        Self {
            memory,
            primary: vec![None; config.devices],
            random: config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            config,
            initialised: false,
            lost: BTreeSet::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            markers: BTreeMap::new(),
            modules: BTreeMap::new(),
            images: HashMap::new(),
            functions: BTreeMap::new(),
            graphs: BTreeMap::new(),
            executables: BTreeMap::new(),
            captures: BTreeMap::new(),
            pools: BTreeMap::new(),
            pinned: BTreeMap::new(),
            host: Clock::default(),
            live: VecDeque::new(),
            next_run: 1,
            next_handle: 1,
            next_clock: 0,
            stats: Stats::default(),
            failures: 0,
            told: None,
            is_hanging: false,
            never_ends: false,
        }
    }

    /// A number for a new object; as a handle it looks like an address.
    pub(super) fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        0x5_0000_0000 + self.next_handle * 64
    }

    /// A number below `n`.
    pub(super) fn choose(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % n.max(1) as u64).unwrap_or(0)
    }

    /// Says what is wrong, on standard error and in the report file.
    pub(super) fn report(&mut self, text: &str) {
        self.stats.reports += 1;
        let line = text.replace('\n', " ");
        say(&line);
        if let Some(path) = &self.config.report {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            if file.and_then(|mut f| writeln!(f, "{line}")).is_err() {
                say(&format!("the report file {path} cannot be written"));
            }
        }
    }

    /// Reports and gives the code.
    pub(super) fn refuse(&mut self, code: u32, text: &str) -> u32 {
        self.report(text);
        code
    }

    /// Counts a call and says whether it is made to fail.
    pub(super) fn gate(&mut self, function: &'static str, class: Class) -> Call<()> {
        *self.stats.by_function.entry(function).or_default() += 1;
        let name = match class {
            Class::Alloc => "alloc",
            Class::Launch => "launch",
            Class::Copy => "copy",
            Class::Sync => "sync",
            Class::Other => "other",
            Class::Release => "release",
            Class::Query => return Ok(()),
        };
        *self.stats.by_class.entry(name).or_default() += 1;
        if class == Class::Release {
            return Ok(());
        }
        self.stats.calls += 1;
        let Some(failure) = &self.config.failure else { return Ok(()) };
        if !failure.concerns(function, class) {
            return Ok(());
        }
        self.failures += 1;
        if !failure.strikes(self.failures) {
            return Ok(());
        }
        let Some(code) = failure.code else {
            say(&format!("the work of call {} ({name}) never ends, as asked", self.failures));
            self.is_hanging = true;
            return Ok(());
        };
        say(&format!("call {} ({name}) fails with code {code}, as asked", self.failures));
        Err(code)
    }

    /// Takes memory of a device for something that has no address.
    pub(super) fn reserve(&mut self, device: u32, len: usize) -> Call<()> {
        let used = self.memory.used[device as usize];
        if self.config.memory.saturating_sub(used) < len {
            return Err(code::OUT_OF_MEMORY);
        }
        self.memory.reserve(device, len);
        Ok(())
    }

    /// A context that can be used.
    pub(super) fn context(&self, id: u64) -> Call<&Context> {
        match self.contexts.get(&id) {
            Some(context) if context.alive => match context.error {
                Some(code) => Err(code),
                None => Ok(context),
            },
            Some(_) => Err(code::CONTEXT_IS_DESTROYED),
            None => Err(code::INVALID_CONTEXT),
        }
    }

    /// Makes a stream.
    pub(super) fn new_stream(&mut self, context: u64, blocking: bool, internal: bool) -> u64 {
        let id = self.handle();
        let at = self.next_clock;
        self.next_clock += 1;
        let stream = Stream {
            at,
            context,
            queue: VecDeque::new(),
            clock: Clock::default(),
            done: 0,
            blocking,
            busy: false,
            capture: None,
            internal,
            destroyed: false,
        };
        self.streams.insert(id, stream);
        id
    }

    /// Makes a marker at the current end of a stream.
    pub(super) fn new_marker(&mut self, stream: u64) -> u64 {
        let id = self.handle();
        let capture = self.streams.get(&stream).and_then(|s| s.capture);
        let marker = Marker { stream, done: false, clock: Clock::default(), time: None, capture };
        self.markers.insert(id, marker);
        id
    }

    /// Lets a stream never go on, if that was asked for. What is captured hangs when its graph is
    /// launched.
    pub(super) fn hang(&mut self, stream: u64) -> Call<()> {
        let captured = self.streams.get(&stream).is_some_and(|s| s.capture.is_some());
        if !captured && std::mem::take(&mut self.is_hanging) {
            self.block(stream)?;
        }
        Ok(())
    }

    /// Lets a stream never go on.
    pub(super) fn block(&mut self, stream: u64) -> Call<()> {
        self.never_ends = true;
        let never = self.new_marker(stream);
        self.enqueue(stream, Work::Wait(never))
    }

    /// Puts work at the end of a stream, in the order that the default stream asks for.
    pub(super) fn enqueue(&mut self, stream: u64, work: Work) -> Call<()> {
        let Some(of) = self.streams.get(&stream) else {
            return Err(self.refuse(code::INVALID_HANDLE, "a stream that does not exist is used"));
        };
        if of.capture.is_some() {
            return self.capture_work(stream, work);
        }
        let (context, blocking) = (of.context, of.blocking);
        let default = self.contexts.get(&context).map_or(0, |c| c.default);
        if stream == default {
            let waits = |s: &Stream| s.capture.is_some() && s.context == context && s.blocking;
            if self.streams.values().any(waits) {
                self.break_captures();
                return Err(code::STREAM_CAPTURE_IMPLICIT);
            }
            let others: Vec<u64> = self
                .streams
                .iter()
                .filter(|(id, s)| {
                    **id != default
                        && s.context == context
                        && s.blocking
                        && s.done + s.queue.len() as u64 > 0
                })
                .map(|(&id, _)| id)
                .collect();
            for other in others {
                self.depend(stream, other);
            }
        } else if blocking
            && self.streams.get(&default).is_some_and(|s| s.done + s.queue.len() as u64 > 0)
        {
            self.depend(stream, default);
        }
        self.push(stream, work);
        Ok(())
    }

    /// Makes what comes next in `stream` wait for what is in `on`.
    pub(super) fn depend(&mut self, stream: u64, on: u64) {
        let marker = self.new_marker(on);
        self.push(on, Work::Record(marker));
        self.push(stream, Work::Wait(marker));
    }

    /// Puts work at the end of a stream.
    pub(super) fn push(&mut self, stream: u64, work: Work) {
        let host = self.host.clone();
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.queue.push_back(Item { work, host });
        }
    }

    /// Forgets work that everything to come is ordered after.
    pub(super) fn prune(&mut self) {
        let host = &self.host;
        self.live.retain(|l| host.get(l.at) < l.count);
        let oldest = self.live.iter().map(|l| l.first).min().unwrap_or(self.next_run);
        self.memory.prune(oldest);
        if self.markers.len() < MANY_MARKERS {
            return;
        }
        let used: BTreeSet<u64> = self
            .events
            .values()
            .filter_map(|e| e.marker)
            .chain(self.executables.values().filter_map(|e| e.last))
            .collect();
        let waited: BTreeSet<u64> = self
            .streams
            .values()
            .flat_map(|s| &s.queue)
            .filter_map(|i| match i.work {
                Work::Wait(m) | Work::Record(m) => Some(m),
                _ => None,
            })
            .collect();
        let capturing = !self.captures.is_empty();
        self.markers.retain(|id, _| capturing || used.contains(id) || waited.contains(id));
    }
}

/// Says something on standard error.
#[expect(clippy::print_stderr, reason = "a test double says loudly what it sees")]
pub(super) fn say(text: &str) {
    eprintln!("fakecuda: {text}");
}
