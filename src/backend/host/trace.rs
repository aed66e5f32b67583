//! A trace of streams and virtual devices, in the form that trace viewers read, and as a picture.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

use super::lock;
use super::profile::{Profile, Works};
pub(crate) use super::span::Span;
use crate::backend::RunError;
use crate::ir::picture::axis::{self, Unit};
use crate::ir::picture::chart::{Chart, Panel};
pub(crate) use crate::lower::picture::timeline::Kind;
use crate::lower::picture::timeline::{self, Stream};

/// The runs that a timeline shows at most: the last ones.
const SHOWN: usize = 8;

/// The pixels for each span of the busiest stream of a timeline, and the width of the longest run
/// at least and at most.
const PIECE: f64 = 8.0;
const WIDTH: (f64, f64) = (1000.0, 8000.0);

/// A record of runs: for each run and each stream the work that it did and when, apart from what it
/// waited for. Executables that are given the same one add to it.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    /// The runs that it has at most: the last ones.
    most: usize,
    runs: Mutex<Runs>,
    /// The times of the runs that it has no more, if they are wanted.
    profile: Option<Mutex<Profile>>,
}

/// The last runs, in order.
#[derive(Debug, Default)]
struct Runs {
    /// The runs before them.
    before: usize,
    kept: VecDeque<Run>,
}

/// The record of one run.
#[derive(Debug)]
struct Run {
    program: String,
    name: String,
    /// What its steps do, if their times are wanted.
    works: Works,
    spans: Vec<Span>,
}

/// The category of a kind in the form that trace viewers read.
const fn category(kind: Kind) -> &'static str {
    match kind {
        Kind::Compute | Kind::Copy | Kind::Collective => "work",
        Kind::Wait => "wait",
        Kind::Error => "error",
    }
}

/// The label of a stream that waits.
pub(crate) const WAIT: &str = "wait";

/// The record of one run.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    trace: Arc<Trace>,
    run: usize,
}

impl Recorder {
    /// Microseconds from the beginning of the trace to now.
    pub(crate) fn now(&self) -> f64 {
        self.at(Instant::now())
    }

    /// Microseconds from the beginning of the trace to a time.
    pub(crate) fn at(&self, time: Instant) -> f64 {
        time.saturating_duration_since(self.trace.start).as_secs_f64() * 1e6
    }

    /// Adds what was done.
    pub(crate) fn add(&self, spans: impl IntoIterator<Item = Span>) {
        let mut runs = lock(&self.trace.runs);
        let at = self.run.checked_sub(runs.before);
        if let Some(run) = at.and_then(|at| runs.kept.get_mut(at)) {
            run.spans.extend(spans);
        }
    }

    /// Adds an error with which the run ends now.
    pub(crate) fn fail(&self, error: &RunError) {
        let (track, name, start) = ("errors".to_owned(), error.to_string().into(), self.now());
        self.add([Span { track, name, start, length: 0.0, kind: Kind::Error, operator: None }]);
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
        Self { start: Instant::now(), most: usize::MAX, runs: Mutex::default(), profile: None }
    }

    /// An empty trace that has the runs of a timeline, and no others.
    pub(crate) fn of_timeline() -> Self {
        Self { most: SHOWN, ..Self::new() }
    }

    /// The same with the times of all steps.
    pub(crate) fn profiled(self) -> Self {
        Self { profile: Some(Mutex::default()), ..self }
    }

    /// The record of another run of the program of this name, whose steps do `works`.
    pub(crate) fn run(self: &Arc<Self>, program: &str, works: impl FnOnce() -> Works) -> Recorder {
        let works = if self.profile.is_some() { works() } else { Works::default() };
        let mut runs = lock(&self.runs);
        let run = runs.before + runs.kept.len();
        let name = format!("{program}, run {}", run + 1);
        let program = program.to_owned();
        runs.kept.push_back(Run { program, name, works, spans: Vec::new() });
        if runs.kept.len() > self.most {
            let gone = runs.kept.pop_front();
            if let (Some(profile), Some(run)) = (&self.profile, gone) {
                lock(profile).add(&run.spans, &run.works);
            }
            runs.before += 1;
        }
        Recorder { trace: Arc::clone(self), run }
    }

    /// Takes the times of the steps of all runs, if they are wanted, and the runs themselves.
    pub(crate) fn take_profile(&self) -> Option<Profile> {
        let profile = self.profile.as_ref()?;
        let mut all = std::mem::take(&mut *lock(profile));
        let mut runs = lock(&self.runs);
        runs.before += runs.kept.len();
        for run in runs.kept.drain(..) {
            all.add(&run.spans, &run.works);
        }
        Some(all)
    }

    /// The trace as Chrome and Perfetto read it: one process for each run with one track for each
    /// of its streams, times in microseconds, waiting in a category of its own.
    pub fn to_json(&self) -> String {
        let mut events = Vec::new();
        let runs = lock(&self.runs);
        for (number, run) in (runs.before..).zip(&runs.kept) {
            run.events(number, &mut events);
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }

    /// The last runs as a picture: a panel for each, with a row for each stream.
    pub(crate) fn timeline(&self) -> Chart {
        let runs = lock(&self.runs);
        let shown: Vec<&Run> =
            runs.kept.iter().skip(runs.kept.len().saturating_sub(SHOWN)).collect();
        let longest = shown.iter().map(|run| run.ends().1 - run.ends().0).fold(1.0, f64::max);
        let unit = axis::unit_of_time(longest);
        let streams: Vec<Vec<Stream>> = shown.iter().map(|run| run.streams(unit)).collect();
        let all: Vec<Stream> = streams.iter().flatten().cloned().collect();
        // A trace without spans has no busiest stream.
        let busiest = all.iter().map(|stream| stream.spans.len()).max().unwrap_or(0);
        let width = (busiest as f64 * PIECE).clamp(WIDTH.0, WIDTH.1);
        let mut notes =
            vec!["A bar is work of a stream, or a time for which it waits for another.".to_owned()];
        let all_runs = runs.before + runs.kept.len();
        if shown.len() < all_runs {
            notes.push(format!("The last {} of {all_runs} runs.", shown.len()));
        }
        let panels = shown.iter().zip(&streams);
        let programs: BTreeSet<&str> = shown.iter().map(|run| &*run.program).collect();
        let title: Vec<&str> = programs.into_iter().chain(["timeline"]).collect();
        Chart {
            title: title.join(" · "),
            notes,
            legend: timeline::legend(&all),
            scale: width * unit.1 / longest,
            panels: panels.map(|(run, streams)| run.panel(streams, unit)).collect(),
        }
    }
}

/// The device of a track, by kind and number, and what is behind it.
fn in_order(track: &str) -> (&str, u64, &str) {
    let (kind, rest) = track.split_once(':').unwrap_or((track, ""));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    // Only tracks of devices have numbers.
    (kind, rest[..end].parse().unwrap_or(0), &rest[end..])
}

impl Run {
    /// When its first span begins, and when its last one ends; 0 without any.
    fn ends(&self) -> (f64, f64) {
        let starts = self.spans.iter().map(|span| span.start).reduce(f64::min);
        let ends = self.spans.iter().map(|span| span.start + span.length).reduce(f64::max);
        // A run without spans takes no time.
        (starts.unwrap_or(0.0), ends.unwrap_or(0.0))
    }

    /// Its streams, with times from its beginning in a unit.
    fn streams(&self, (_, of): Unit) -> Vec<Stream> {
        let begin = self.ends().0;
        let is_shown = |span: &&Span| span.kind != Kind::Error && span.length > 0.0;
        let mut spans: Vec<&Span> = self.spans.iter().filter(is_shown).collect();
        spans.sort_by(|a, b| {
            in_order(&a.track).cmp(&in_order(&b.track)).then(a.start.total_cmp(&b.start))
        });
        let drawn = |span: &&Span| timeline::Span {
            name: span.name.to_string(),
            tells: format!("{:.1} µs from {:.1} µs", span.length, span.start - begin),
            start: (span.start - begin) / of,
            end: (span.start - begin + span.length) / of,
            kind: span.kind,
        };
        spans
            .chunk_by(|a, b| a.track == b.track)
            .map(|own| Stream {
                name: own[0].track.clone(),
                spans: own.iter().map(drawn).collect(),
            })
            .collect()
    }

    /// The panel of its streams. An error is marked.
    fn panel(&self, streams: &[Stream], unit: Unit) -> Panel {
        let (from, to) = self.ends();
        let error = self.spans.iter().find(|span| span.kind == Kind::Error);
        let at = |span: &Span| (span.start - from) / unit.1;
        let mark = error.map(|span| (at(span), format!("error: {}", span.name)));
        Panel {
            counts: format!("{} since the run began", unit.0),
            mark,
            ..timeline::panel(streams, self.name.clone(), 0.0, (to - from) / unit.1)
        }
    }

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
                    "name": &*span.name, "cat": category(span.kind), "pid": number, "tid": tid,
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

    use super::{Kind, Span, Trace, Works, lock};
    use crate::backend::RunError;
    use crate::ir::picture::chart::Upwards;

    #[test]
    fn streams_of_runs_are_tracks_and_work_is_in_order() {
        let trace = Arc::new(Trace::new());
        let span = |track: &str, name: &str, start, kind| Span {
            track: track.to_owned(),
            name: name.into(),
            start,
            length: 2.5,
            kind,
            operator: None,
        };
        let (first, second) = (trace.run("m", Works::default), trace.run("m", Works::default));
        second.add([span("gpu:1 compute", "b", 9.0, Kind::Compute)]);
        first.add([span("gpu:0 compute", "c", 4.0, Kind::Wait)]);
        first.add([span("gpu:0 compute", "a", 1.5, Kind::Compute)]);
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

    #[test]
    fn a_timeline_has_the_streams_of_the_last_runs() {
        let trace = Arc::new(Trace::of_timeline());
        let span = |track: &str, start: f64, length: f64, kind| Span {
            track: track.to_owned(),
            name: "<conv> & more".into(),
            start,
            length,
            kind,
            operator: None,
        };
        assert_eq!(trace.timeline().faults(), Vec::<String>::new());
        let early = trace.run("m", Works::default);
        for run in 1..10 {
            let (recorder, at) = (trace.run("m", Works::default), 3000.0 * f64::from(run));
            recorder.add([
                span("gpu:10 compute", at + 100.0, 900.0, Kind::Compute),
                span("gpu:2 uploads", at, 90.0, Kind::Copy),
                span("gpu:2 compute", at + 90.0, 10.0, Kind::Wait),
                span("gpu:2 compute", at + 100.0, 400.0, Kind::Compute),
                span("gpu:2 exchange", at + 300.0, 2000.0, Kind::Collective),
                span("cpu:0", at + 2400.0, 0.0, Kind::Wait),
                span("cpu:0", at + 2400.0, 100.0, Kind::Compute),
            ]);
            if run == 9 {
                recorder.fail(&RunError::UnknownInput { name: "x".to_owned(), known: Vec::new() });
            }
        }
        // What is added to a run that is no longer kept is not kept.
        early.add([span("cpu:0", 0.0, 1.0, Kind::Compute)]);
        let runs = lock(&trace.runs);
        assert_eq!((runs.before, runs.kept.len()), (2, 8));
        drop(runs);
        let mut chart = trace.timeline();
        assert_eq!((&*chart.title, chart.panels.len()), ("m · timeline", 8));
        assert_eq!(chart.notes[1], "The last 8 of 10 runs.");
        let Upwards::Rows(names) = &chart.panels[0].upwards else { panic!("rows") };
        let expected = ["cpu:0", "gpu:2 compute", "gpu:2 exchange", "gpu:2 uploads"];
        assert_eq!(names[..4], expected);
        assert_eq!(names[4..], ["gpu:10 compute"]);
        assert_eq!((&*chart.panels[0].title, chart.panels[0].bars.len()), ("m, run 3", 6));
        let legend: Vec<&str> = chart.legend.iter().map(|look| look.0).collect();
        assert_eq!(legend, ["compute", "copy", "collective", "wait"]);
        assert_eq!(chart.panels[0].counts, "ms since the run began");
        assert_eq!((chart.panels[0].from, chart.panels[0].to), (0.0, 2.5));
        let (_, error) = chart.panels.pop().unwrap().mark.unwrap();
        assert!(error.starts_with("error: there is no input"), "{error}");
        assert_eq!(chart.faults(), Vec::<String>::new());
        let (svg, page) = (chart.to_svg(), chart.to_html());
        assert!(svg.contains("&lt;conv&gt; &amp; more") && !svg.contains("<conv"), "{svg}");
        assert!(page.contains(&svg) && page.contains("<script>"));
    }
}
