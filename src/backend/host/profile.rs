//! Where the time of runs goes: operators with their share, beside what the machine could do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::json;

use super::span::Span;
use crate::lower::picture::timeline::Kind;
use crate::lower::work::{Work, work};
use crate::lower::{Action, Program};
use crate::types::Device;

/// What a machine does at most in a second, by all threads that a run may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Peak {
    /// Multiplications and additions of `f32`.
    pub(crate) operations: f64,
    /// Bytes read from memory or written to it.
    pub(crate) bytes: f64,
}

/// A step, by its device and its label.
type Key = (String, Arc<str>);

/// What the steps of a run do.
pub(crate) type Works = BTreeMap<Key, (&'static str, Work)>;

/// What the steps of a program do in a batch of `n` rows.
pub(crate) fn works(program: &Program, n: i64) -> Works {
    let mut works = Works::new();
    for device in &program.devices {
        for step in &device.steps {
            let (name, own) = match &step.action {
                Action::Launch(launch) => (launch.name(), work(device, launch, &[], 0, n)),
                Action::Copy { to, .. } => {
                    let bytes = 2.0 * device.buffer(*to).ty.bytes().eval(n) as f64;
                    ("copy", Work { operations: 0.0, bytes })
                }
                Action::Wait(_) | Action::Record(_) => continue,
            };
            let key = (device.device.to_string(), step.label.clone());
            // The first launch of several of one operator gives the name.
            let all = &mut works.entry(key).or_insert((name, Work::default())).1;
            all.operations += own.operations;
            all.bytes += own.bytes;
        }
    }
    works
}

/// The times of the steps of some runs.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    runs: u32,
    /// Whether a run before these is left out.
    is_warm: bool,
    steps: BTreeMap<Key, Times>,
}

/// The time of a step, and what it did meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    operator: &'static str,
    calls: u32,
    micros: f64,
    work: Work,
}

impl Times {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.micros += other.micros;
        self.work.operations += other.work.operations;
        self.work.bytes += other.work.bytes;
    }
}

impl Profile {
    /// Adds a run. The first of several is left out: it takes memory that others find.
    pub(super) fn add(&mut self, spans: &[Span], works: &Works) {
        if self.runs == 1 && !self.is_warm {
            *self = Self { is_warm: true, ..Self::default() };
        }
        self.runs += 1;
        let works_of =
            |span: &Span| matches!(span.kind, Kind::Compute | Kind::Copy | Kind::Collective);
        for span in spans.iter().filter(|span| works_of(span)) {
            // The stream of a GPU is behind its name.
            let device = span.track.split(' ').next().unwrap_or(&span.track);
            let key = (device.to_owned(), span.name.clone());
            // What is no step of a program has no operator: uploads, for example.
            let (operator, _) = works.get(&key).copied().unwrap_or(("transfer", Work::default()));
            let times = self.steps.entry(key).or_insert(Times { operator, ..Times::default() });
            times.calls += 1;
            times.micros += span.length;
        }
        for (key, (_, work)) in works {
            if let Some(times) = self.steps.get_mut(key) {
                times.work.operations += work.operations;
                times.work.bytes += work.bytes;
            }
        }
    }

    /// The times as JSON: of each step its seconds in a run, what it computes and moves there.
    pub(crate) fn to_json(&self, peak: Option<Peak>) -> String {
        let runs = f64::from(self.runs.max(1));
        let step = |((device, label), times): (&Key, &Times)| {
            json!({
                "device": device, "step": &**label, "operator": times.operator,
                "seconds": times.micros / 1e6 / runs,
                "operations": times.work.operations / runs,
                "bytes": times.work.bytes / runs,
            })
        };
        let peak = peak
            .map(|p| json!({ "operations_per_second": p.operations, "bytes_per_second": p.bytes }));
        let steps: Vec<_> = self.steps.iter().map(step).collect();
        json!({ "runs": self.runs, "peak": peak, "steps": steps }).to_string()
    }

    /// The times as tables: of operators, and of the steps that take longest.
    pub(crate) fn to_text(&self, peak: Option<Peak>) -> String {
        let runs = f64::from(self.runs.max(1));
        let all: f64 = self.steps.values().map(|times| times.micros).sum();
        let mut text = match (self.runs, self.is_warm) {
            (0, _) => return "profile: nothing ran\n".to_owned(),
            (1, false) => "profile of one run".to_owned(),
            (1, true) => "profile of one run after the first".to_owned(),
            (n, _) => format!("profile of {n} runs after the first"),
        };
        // Writing to a `String` cannot fail.
        let _ = write!(text, ": {} of work in each", time(all / runs));
        if let Some(peak) = peak {
            let (operations, bytes) = (peak.operations / 1e9, peak.bytes / 1e9);
            let _ = write!(text, "; this machine: {operations:.0} GFlop/s, {bytes:.0} GB/s");
        }
        text += "\n\n";
        let mut operators: BTreeMap<&str, Times> = BTreeMap::new();
        for times in self.steps.values() {
            operators.entry(times.operator).or_default().add(times);
        }
        let by_operator = operators.into_iter().map(|(name, times)| (name.to_owned(), times));
        text += &table("operator", by_operator.collect(), runs, all, peak);
        let hosts = |device: &str| device == Device::HOST.to_string();
        let several = self.steps.keys().any(|(device, _)| !hosts(device));
        let named = |((device, label), times): (&Key, &Times)| {
            let place = if several { format!("{device} ") } else { String::new() };
            (format!("{place}{label} ({})", times.operator), *times)
        };
        text.push('\n');
        text + &table("step", self.steps.iter().map(named).collect(), runs, all, peak)
    }
}

/// A time in words.
fn time(micros: f64) -> String {
    if micros < 1e3 { format!("{micros:.1} µs") } else { format!("{:.2} ms", micros / 1e3) }
}

/// The rows that take longest, and the rest as one.
fn table(
    what: &str,
    mut rows: Vec<(String, Times)>,
    runs: f64,
    all: f64,
    peak: Option<Peak>,
) -> String {
    /// The rows that are shown.
    const SHOWN: usize = 12;
    rows.sort_by(|(_, one), (_, other)| other.micros.total_cmp(&one.micros));
    if rows.len() > SHOWN + 1 {
        let rest = rows.split_off(SHOWN);
        let mut sum = Times::default();
        for (_, times) in &rest {
            sum.add(times);
        }
        rows.push((format!("{} more", rest.len()), sum));
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).chain([what.len()]).max();
    let width = width.unwrap_or(0); // There is the head at least.
    let mut text = format!("{what:<width$}  {:>7} {:>10} {:>6}", "calls", "time", "share");
    let _ = if peak.is_some() {
        writeln!(text, " {:>9} {:>8} {:>7} {:>10}", "GFlop/s", "of peak", "GB/s", "of memory")
    } else {
        writeln!(text)
    };
    for (name, times) in rows {
        let pad = " ".repeat(width - name.chars().count());
        let share = 100.0 * times.micros / all.max(f64::MIN_POSITIVE);
        let calls = (f64::from(times.calls) / runs).round();
        let _ =
            write!(text, "{name}{pad}  {calls:>7} {:>10} {share:>5.1}%", time(times.micros / runs));
        let Some(peak) = peak else {
            text.push('\n');
            continue;
        };
        let seconds = (times.micros / 1e6).max(f64::MIN_POSITIVE);
        let (operations, bytes) = (times.work.operations / seconds, times.work.bytes / seconds);
        // What does not multiply has no rate.
        let rate = |rate: f64, most: f64| {
            if rate > 0.0 {
                [format!("{:.1}", rate / 1e9), format!("{:.0}%", 100.0 * rate / most)]
            } else {
                ["-".to_owned(), "-".to_owned()]
            }
        };
        let [multiplies, of_peak] = rate(operations, peak.operations);
        let [moves, of_memory] = rate(bytes, peak.bytes);
        let _ = writeln!(text, " {multiplies:>9} {of_peak:>8} {moves:>7} {of_memory:>10}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(track: &str, name: &str, length: f64, kind: Kind) -> Span {
        Span { track: track.to_owned(), name: name.into(), start: 0.0, length, kind }
    }

    #[test]
    fn the_time_of_steps_is_beside_what_they_do() {
        let work = Work { operations: 2e6, bytes: 1e5 };
        let works: Works = [(("cpu:0".to_owned(), "dense".into()), ("gemm", work))].into();
        let run = |length: f64| {
            [
                span("cpu:0", "dense", length, Kind::Compute),
                span("cpu:0", "dense", 9e9, Kind::Wait),
                span("cpu:0", "other", 10.0, Kind::Copy),
            ]
        };
        let mut profile = Profile::default();
        assert_eq!(profile.to_text(None), "profile: nothing ran\n");
        // The first is slow, and left out.
        for length in [5000.0, 20.0, 40.0] {
            profile.add(&run(length), &works);
        }
        let peak = Peak { operations: 4e11, bytes: 1e10 };
        let text = profile.to_text(Some(peak));
        let head = "profile of 2 runs after the first: 40.0 µs of work in each; this machine: 400 \
            GFlop/s, 10 GB/s\n";
        assert!(text.starts_with(head), "{text}");
        let cells = |text: &str, row: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(row)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let gemm = ["gemm", "1", "30.0", "µs", "75.0%", "66.7", "17%", "3.3", "33%"];
        assert_eq!(cells(&text, "gemm"), gemm);
        assert_eq!(cells(&text, "dense (gemm)")[2..], gemm[1..]);
        let transfer = ["transfer", "1", "10.0", "µs", "25.0%", "-", "-", "-", "-"];
        assert_eq!(cells(&text, "transfer"), transfer);
        assert_eq!(cells(&profile.to_text(None), "gemm"), gemm[..5]);
        let read: serde_json::Value = serde_json::from_str(&profile.to_json(Some(peak))).unwrap();
        assert_eq!(read["steps"][0]["seconds"], 30e-6);
        assert_eq!(read["steps"][0]["operations"], 2e6);
        assert_eq!(read["runs"], 2);
    }
}
