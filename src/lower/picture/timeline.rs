//! Streams over time: a row for each, with a bar for each piece of work.

use std::collections::VecDeque;

use crate::ir::picture::Role;
use crate::ir::picture::chart::{Bar, Chart, Look, Panel, Upwards};
use crate::lower::{Action, Bound, DeviceProgram, Lane, Launch, Program};
use crate::op::Traits;
use crate::types::invariant::invariant;

/// What a stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Compute,
    Copy,
    Collective,
    /// It waits for another stream.
    Wait,
    /// An error, which takes no time and is no bar.
    Error,
}

impl Kind {
    /// The kinds of bars.
    const ALL: [Self; 4] = [Self::Compute, Self::Copy, Self::Collective, Self::Wait];

    pub(super) fn look(self) -> Look {
        match self {
            Self::Compute => Role::Compute.look(),
            Self::Copy => Role::Copy.look(),
            Self::Collective => Role::Collective.look(),
            Self::Wait => ("wait", "#eceff4", "#b8c1ce"),
            Self::Error => ("error", "#fbd5d5", "#c53030"),
        }
    }

    /// The kind of the work of a step; `None` of what waits and records.
    pub(crate) fn of(action: &Action) -> Option<Self> {
        match action {
            Action::Copy { .. } => Some(Self::Copy),
            Action::Launch(launch) => Some(Self::of_launch(launch)),
            Action::Wait(_) | Action::Record(_) => None,
        }
    }

    fn of_launch(launch: &Launch) -> Self {
        let is_collective = launch.op.as_ref().is_some_and(|op| op.is(Traits::COLLECTIVE));
        if is_collective { Self::Collective } else { Self::Compute }
    }
}

/// A piece of work, or a time of waiting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) name: String,
    /// What is said of it beside its name.
    pub(crate) tells: String,
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) kind: Kind,
}

/// A stream with what it does, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) spans: Vec<Span>,
}

/// The kinds that some streams have, in the order of the legend.
pub(crate) fn legend(streams: &[Stream]) -> Vec<Look> {
    legend_of(|kind| streams.iter().flat_map(|s| &s.spans).any(|span| span.kind == kind))
}

/// The kinds of bars that there are, in the order of the legend.
pub(super) fn legend_of(has: impl Fn(Kind) -> bool) -> Vec<Look> {
    Kind::ALL.into_iter().filter(|kind| has(*kind)).map(Kind::look).collect()
}

/// A panel with a row for each stream, over times from `from` to `to`.
pub(crate) fn panel(streams: &[Stream], title: String, from: f64, to: f64) -> Panel {
    let rows = streams.iter().enumerate().flat_map(|(row, stream)| {
        let bar = move |span: &Span| Bar {
            from: span.start,
            to: span.end,
            low: row as f64 + 0.1,
            high: row as f64 + 0.9,
            label: span.name.clone(),
            tells: format!("{}: {}", span.name, span.tells),
            look: span.kind.look(),
        };
        stream.spans.iter().map(bar)
    });
    Panel {
        title,
        detail: String::new(),
        from,
        to,
        least: 0.0,
        counts: String::new(),
        bars: rows.collect(),
        upwards: Upwards::Rows(streams.iter().map(|stream| stream.name.clone()).collect()),
        mark: None,
    }
}

/// About how wide a plan is, and how wide its pieces are at least and at most.
const WIDTH: f64 = 1600.0;
const PIECE: (f64, f64) = (6.0, 110.0);

/// The plan of a program at one batch size: the streams of its devices, each launch and copy
/// equally long. What waits for an event begins behind what records it.
pub(crate) fn plan(program: &Program, bound: &Bound) -> Chart {
    let streams = scheduled(program, bound);
    let ends = streams.iter().flat_map(|stream| &stream.spans).map(|span| span.end);
    let end = ends.fold(1.0, f64::max);
    let title = format!("{} rows, {} devices", bound.n, program.devices.len());
    let legend = legend(&streams);
    let panel = Panel {
        least: 1.0,
        counts: "launches and copies, one behind the other".to_owned(),
        ..panel(&streams, title, 0.0, end)
    };
    Chart {
        title: super::title(program, "plan", bound),
        notes: vec![
            "Every launch and copy is drawn equally long: a plan has their order and what they \
             wait for, not their times."
                .to_owned(),
        ],
        legend,
        scale: (WIDTH / end).clamp(PIECE.0, PIECE.1),
        panels: vec![panel],
    }
}

/// An event: the label and the device of the step that records it, and when it is recorded.
#[derive(Clone, Default)]
struct Event {
    recorder: String,
    at: Option<f64>,
}

/// The events of a program, none of them recorded.
fn events(program: &Program) -> Vec<Event> {
    let mut events = vec![Event::default(); program.events as usize];
    for device in &program.devices {
        for step in &device.steps {
            if let Action::Record(event) = step.action {
                events[event as usize].recorder = format!("{} on {}", step.label, device.device);
            }
        }
    }
    events
}

/// A stream of which some steps are placed.
struct Placing<'a> {
    device: &'a DeviceProgram,
    stream: Stream,
    /// The steps that are left.
    steps: VecDeque<usize>,
    /// When the last step that is placed ends.
    now: f64,
}

/// The streams with their steps in places.
fn scheduled(program: &Program, bound: &Bound) -> Vec<Stream> {
    let mut events = events(program);
    let mut streams: Vec<Placing<'_>> = Vec::new();
    for (d, (device, own)) in program.devices.iter().zip(&bound.devices).enumerate() {
        for lane in [Lane::Compute, Lane::Exchange] {
            let steps = device.steps.iter().zip(&own.active).enumerate();
            let steps: VecDeque<usize> = steps
                .filter(|(_, (step, active))| **active && step.lane == lane)
                .map(|(i, _)| i)
                .collect();
            if !steps.is_empty() {
                let stream = Stream { name: name(device, d, lane), spans: Vec::new() };
                streams.push(Placing { device, stream, steps, now: 0.0 });
            }
        }
    }
    while streams.iter().any(|stream| !stream.steps.is_empty()) {
        let placed: usize = streams.iter_mut().map(|stream| stream.go_on(&mut events)).sum();
        invariant((placed > 0).then_some(()), "that no streams wait for each other");
    }
    streams.into_iter().map(|placing| placing.stream).collect()
}

/// The name of a stream, as traces of GPUs have it. On the CPU a device has one track.
fn name(device: &DeviceProgram, d: usize, lane: Lane) -> String {
    match (d, lane) {
        // The host has one stream, unless it exchanges.
        (0, Lane::Compute) => device.device.to_string(),
        (_, Lane::Compute) => format!("{} compute", device.device),
        (_, Lane::Exchange) => format!("{} exchange", device.device),
    }
}

impl Placing<'_> {
    /// Places steps until one waits for an event that is not recorded yet; how many.
    fn go_on(&mut self, events: &mut [Event]) -> usize {
        let before = self.steps.len();
        while let Some(i) = self.steps.front().copied() {
            let step = &self.device.steps[i];
            match &step.action {
                Action::Wait(event) => {
                    let event = &events[*event as usize];
                    let Some(at) = event.at else { break };
                    if at > self.now {
                        let tells = format!("for {}", event.recorder);
                        self.push("wait", tells, at, Kind::Wait);
                    }
                }
                Action::Record(event) => events[*event as usize].at = Some(self.now),
                Action::Copy { .. } => {
                    let tells = format!("step {i}, a copy");
                    self.push(&step.label, tells, self.now + 1.0, Kind::Copy);
                }
                Action::Launch(launch) => {
                    let kind = Kind::of_launch(launch);
                    let tells = format!("step {i}, {} of {}", launch.class, launch.name());
                    match self.stream.spans.last_mut().filter(|_| step.beside) {
                        // Launches that run together are one.
                        Some(last) => {
                            last.tells += &["; ", &step.label, ": ", &tells].concat();
                        }
                        None => self.push(&step.label, tells, self.now + 1.0, kind),
                    }
                }
            }
            self.steps.pop_front();
        }
        before - self.steps.len()
    }

    fn push(&mut self, name: &str, tells: String, end: f64, kind: Kind) {
        let (name, start) = (name.to_owned(), self.now);
        self.stream.spans.push(Span { name, tells, start, end, kind });
        self.now = end;
    }
}

#[cfg(test)]
mod tests {
    use super::plan;
    use crate::backend::CPU;
    use crate::ir::{parse, verify};
    use crate::lower::lower;
    use crate::lower::picture::memory;

    /// A sum over rows, which the host combines.
    const SUM: &str = "fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last {
  n = [N/2, N-(N/2)]
  o = [0, N/2]
}
graph @main_graph(%x: f32[N]) -> (later: f32[], less: f32[]) {
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %a : f32[n0@dp] = slice(%x) {axes=[0], ends=[N/2], starts=[0], steps=[1]}
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %b : f32[n1@dp] = slice(%x) {axes=[0], ends=[N], starts=[N/2], steps=[1]}
  }
  on gpu:0 replica @dp[0] if n0@dp > 0 {
    %ad : f32[n0@dp] = copy(%a)
    %as : f32[] = reduce_sum(%ad) {axes=[0], keepdims=false}
  }
  on gpu:1 replica @dp[1] if n1@dp > 0 {
    %bd : f32[n1@dp] = copy(%b)
    %bs : f32[] = reduce_sum(%bd) {axes=[0], keepdims=false}
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %ah : f32[] = copy(%as)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %bh : f32[] = copy(%bs)
  }
  on cpu:0 {
    %sum : f32[] = all_reduce(%ah, %bh) {by=sum, rows=[N/2, N-(N/2)]}
    %later : f32[] = exp(%sum)
    %less : f32[] = neg(%sum)
  }
  return %later, %less
}
";

    /// A collective has its colour where the reference computes it, too.
    #[test]
    fn collectives_have_a_colour_of_their_own() {
        let graph = parse(SUM).unwrap_or_else(|e| panic!("{e}"));
        let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        let bound = program.bind(4).unwrap();
        let charts = [plan(&program, &bound), memory(&program, &bound)];
        let legend = |at: usize| charts[at].legend.iter().map(|look| look.0).collect::<Vec<_>>();
        assert_eq!(legend(0), ["compute", "copy", "collective", "wait"]);
        assert_eq!(legend(1), ["compute", "copy", "collective"]);
        for chart in &charts {
            let bars = chart.panels.iter().flat_map(|panel| &panel.bars);
            let own = bars.filter(|bar| bar.look.0 == "collective");
            assert_eq!(own.map(|bar| &*bar.label).collect::<Vec<_>>(), ["sum"]);
            // What a chart says of itself is not cut, and its name is not that of an exporter.
            let svg = chart.to_svg();
            let mut words = chart.notes.iter().flat_map(|note| note.split(' '));
            assert!(words.all(|word| svg.contains(word)), "{svg}");
            assert!(!chart.title.contains("main"), "{}", chart.title);
        }
    }
}
