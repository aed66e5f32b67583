//! A trace of the streams, in the form that trace viewers read.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

use crate::backend::RunError;
use crate::backend::host::lock;

/// A record of runs: for each run and each stream the work that it did and when, apart from what it
/// waited for. Executables that are given the same one add to it.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    runs: Mutex<Vec<Run>>,
}

/// The record of one run.
#[derive(Debug)]
struct Run {
    name: String,
    spans: Vec<Span>,
}

/// Work of a stream, or what it waited for.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// The stream: its device and what it is for.
    pub(super) track: String,
    /// The name of the work.
    pub(super) name: Arc<str>,
    /// Microseconds from the beginning of the trace.
    pub(super) start: f64,
    /// Microseconds that it took.
    pub(super) length: f64,
    pub(super) kind: Kind,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Work of the stream.
    Work,
    /// The stream waits for another one.
    Wait,
    /// An error, which takes no time.
    Error,
}

impl Kind {
    /// The name of the category.
    const fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Wait => "wait",
            Self::Error => "error",
        }
    }
}

/// The label of a stream that waits.
pub(super) const WAIT: &str = "wait";

/// The record of one run.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    trace: Arc<Trace>,
    run: usize,
}

impl Recorder {
    /// Microseconds from the beginning of the trace to now.
    pub(super) fn now(&self) -> f64 {
        self.trace.start.elapsed().as_secs_f64() * 1e6
    }

    /// Adds what was done.
    pub(super) fn add(&self, spans: impl IntoIterator<Item = Span>) {
        if let Some(run) = lock(&self.trace.runs).get_mut(self.run) {
            run.spans.extend(spans);
        }
    }

    /// Adds an error with which the run ends now.
    pub(super) fn fail(&self, error: &RunError) {
        let (track, name, start) = ("errors".to_owned(), error.to_string().into(), self.now());
        self.add([Span { track, name, start, length: 0.0, kind: Kind::Error }]);
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl Trace {
    /// An empty trace that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), runs: Mutex::default() }
    }

    /// The record of another run of the program of this name.
    pub(super) fn run(self: &Arc<Self>, program: &str) -> Recorder {
        let mut runs = lock(&self.runs);
        let run = runs.len();
        runs.push(Run { name: format!("{program}, run {}", run + 1), spans: Vec::new() });
        Recorder { trace: Arc::clone(self), run }
    }

    /// The trace as Chrome and Perfetto read it: one process for each run with one track for each
    /// of its streams, times in microseconds, waiting in a category of its own.
    pub fn to_json(&self) -> String {
        let mut events = Vec::new();
        for (number, run) in lock(&self.runs).iter().enumerate() {
            run.events(number, &mut events);
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }
}

impl Run {
    /// Adds the events of the run with this number.
    fn events(&self, number: usize, events: &mut Vec<Value>) {
        let mut spans: Vec<_> = self.spans.iter().collect();
        spans.sort_by(|a, b| a.track.cmp(&b.track).then(a.start.total_cmp(&b.start)));
        let tracks: BTreeSet<&str> = spans.iter().map(|s| s.track.as_str()).collect();
        events.push(json!({
            "name": "process_name", "ph": "M", "pid": number, "args": { "name": self.name },
        }));
        for (tid, track) in tracks.iter().enumerate() {
            events.push(json!({
                "name": "thread_name", "ph": "M", "pid": number, "tid": tid,
                "args": { "name": track },
            }));
            for span in spans.iter().filter(|s| s.track == *track) {
                let mut event = json!({
                    "name": &*span.name, "cat": span.kind.name(), "pid": number, "tid": tid,
                    "ts": span.start,
                });
                if span.kind == Kind::Error {
                    (event["ph"], event["s"]) = (json!("i"), json!("p"));
                } else {
                    (event["ph"], event["dur"]) = (json!("X"), json!(span.length));
                }
                events.push(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Kind, Span, Trace};
    use crate::backend::RunError;

    #[test]
    fn streams_of_runs_are_tracks_and_work_is_in_order() {
        let trace = Arc::new(Trace::new());
        let span = |track: &str, name: &str, start, kind| Span {
            track: track.to_owned(),
            name: name.into(),
            start,
            length: 2.5,
            kind,
        };
        let (first, second) = (trace.run("m"), trace.run("m"));
        second.add([span("gpu:1 compute", "b", 9.0, Kind::Work)]);
        first.add([span("gpu:0 compute", "c", 4.0, Kind::Wait)]);
        first.add([span("gpu:0 compute", "a", 1.5, Kind::Work)]);
        second.fail(&RunError::UnknownInput { name: "x".to_owned(), known: Vec::new() });
        let json: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
        let found: Vec<_> = json["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                let name = e["args"]["name"].as_str().or(e["name"].as_str()).unwrap();
                format!("{} {} {} {name} {}", e["ph"], e["pid"], e["tid"], e["cat"])
            })
            .map(|text| text.replace('"', ""))
            .collect();
        let expected = [
            "M 0 null m, run 1 null",
            "M 0 0 gpu:0 compute null",
            "X 0 0 a work",
            "X 0 0 c wait",
            "M 1 null m, run 2 null",
            "M 1 0 errors null",
            "i 1 0 there is no input `x`; the inputs are none error",
            "M 1 1 gpu:1 compute null",
            "X 1 1 b work",
        ];
        assert_eq!(found, expected);
        assert!(first.now() >= 0.0);
    }
}
