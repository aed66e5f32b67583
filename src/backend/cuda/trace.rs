//! What streams did and when, in the form that trace viewers read.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::json;

use crate::backend::cpu::lock;

/// A record of runs: for each stream the work it did and when. Executables that are given the same one add to it.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    spans: Mutex<Vec<Span>>,
}

/// Work of a stream.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// The stream: its device and what it is for.
    pub(super) track: String,
    /// What was done.
    pub(super) name: Arc<str>,
    /// Microseconds from the beginning of the trace.
    pub(super) start: f64,
    /// Microseconds that it took.
    pub(super) length: f64,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl Trace {
    /// An empty trace that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), spans: Mutex::default() }
    }

    /// Microseconds from the beginning of the trace to now.
    pub(super) fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e6
    }

    pub(super) fn add(&self, spans: impl IntoIterator<Item = Span>) {
        lock(&self.spans).extend(spans);
    }

    /// The trace as Chrome and Perfetto read it: one track for each stream, times in microseconds.
    pub fn to_json(&self) -> String {
        let mut spans = lock(&self.spans).clone();
        spans.sort_by(|a, b| a.track.cmp(&b.track).then(a.start.total_cmp(&b.start)));
        let tracks: BTreeSet<&str> = spans.iter().map(|s| s.track.as_str()).collect();
        let mut events = Vec::with_capacity(spans.len() + tracks.len());
        for (number, track) in tracks.iter().enumerate() {
            events.push(json!({
                "name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": { "name": track },
            }));
            for span in spans.iter().filter(|s| s.track == *track) {
                events.push(json!({
                    "name": &*span.name, "ph": "X", "pid": 0, "tid": number,
                    "ts": span.start, "dur": span.length,
                }));
            }
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::{Span, Trace};

    #[test]
    fn streams_are_tracks_and_work_is_in_order() {
        let trace = Trace::new();
        let span = |track: &str, name: &str, start| Span {
            track: track.to_owned(),
            name: name.into(),
            start,
            length: 2.5,
        };
        trace.add([span("gpu:1 compute", "b", 9.0), span("gpu:0 compute", "c", 4.0)]);
        trace.add([span("gpu:0 compute", "a", 1.5)]);
        let json: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
        let found: Vec<_> = json["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| format!("{} {} {} {}", e["ph"], e["tid"], e["name"], e["ts"]).replace('"', ""))
            .collect();
        let expected =
            ["M 0 thread_name null", "X 0 a 1.5", "X 0 c 4.0", "M 1 thread_name null", "X 1 b 9.0"];
        assert_eq!(found, expected);
        assert!(trace.now() >= 0.0);
    }
}
