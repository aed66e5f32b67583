//! Where the time of runs goes: operators with their share, beside what the machine could do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

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

/// A step: its device, its label and its operator. What is no step of a program has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    device: String,
    label: Arc<str>,
    operator: Option<&'static str>,
}

/// What the steps of a run do.
#[derive(Debug, Default)]
pub(crate) struct Works {
    /// The program, by its name and its devices.
    program: String,
    steps: BTreeMap<Key, Work>,
}

/// The operator of a copy.
pub(crate) const COPY: &str = "copy";

/// The operator of a step that works.
pub(crate) fn operator(action: &Action) -> Option<&'static str> {
    match action {
        Action::Launch(launch) => Some(launch.name()),
        Action::Copy { .. } => Some(COPY),
        Action::Wait(_) | Action::Record(_) => None,
    }
}

/// What the steps of a program do in a batch of `n` rows.
pub(crate) fn works(program: &Program, n: i64) -> Works {
    let devices = program.devices.iter().filter(|device| !device.replicas.is_empty()).count();
    let on = if devices > 1 { format!(" on {devices} devices") } else { String::new() };
    let mut works = Works { program: format!("{}{on}", program.name), ..Works::default() };
    for device in &program.devices {
        for step in &device.steps {
            let own = match &step.action {
                Action::Launch(launch) => work(device, launch, &[], 0, n),
                Action::Copy { to, .. } => {
                    let bytes = 2.0 * device.buffer(*to).ty.bytes().eval(n) as f64;
                    Work { operations: 0.0, bytes }
                }
                Action::Wait(_) | Action::Record(_) => continue,
            };
            let key = Key {
                device: device.device.to_string(),
                label: step.label.clone(),
                operator: operator(&step.action),
            };
            let all = works.steps.entry(key).or_default();
            all.operations += own.operations;
            all.bytes += own.bytes;
        }
    }
    works
}

/// The multiplications and additions of a program in a batch of `n` rows.
pub(crate) fn operations(program: &Program, n: i64) -> f64 {
    works(program, n).steps.values().map(|work| work.operations).sum()
}

/// The times of the steps of some runs, by their programs.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    programs: BTreeMap<String, Runs>,
}

/// The times of the steps of a program.
#[derive(Debug, Default)]
struct Runs {
    count: u32,
    /// Whether a run before these is left out.
    is_warm: bool,
    steps: BTreeMap<Key, Times>,
}

/// The time of a step, and what it did meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
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
    /// Adds a run.
    pub(super) fn add(&mut self, spans: &[Span], works: &Works) {
        self.programs.entry(works.program.clone()).or_default().add(spans, works);
    }

    /// The times as JSON: of each step its seconds in a run, what it computes and moves there.
    pub(crate) fn to_json(&self, peak: Option<Peak>) -> String {
        let peak = peak.map(|peak| {
            json!({
                "operations_per_second": peak.operations, "bytes_per_second": peak.bytes,
            })
        });
        let programs: Vec<_> =
            self.programs.iter().map(|(name, runs)| runs.to_json(name)).collect();
        json!({ "peak": peak, "programs": programs }).to_string()
    }

    /// The times as tables: of operators, and of the steps that take longest.
    pub(crate) fn to_text(&self, peak: Option<Peak>) -> String {
        let texts = self.programs.iter().map(|(name, runs)| runs.to_text(name, peak));
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl Runs {
    /// Adds a run. The first of several is left out: it takes memory that others find.
    fn add(&mut self, spans: &[Span], works: &Works) {
        if self.count == 1 && !self.is_warm {
            *self = Self { is_warm: true, ..Self::default() };
        }
        self.count += 1;
        let works_in =
            |span: &&Span| matches!(span.kind, Kind::Compute | Kind::Copy | Kind::Collective);
        for span in spans.iter().filter(works_in) {
            // The stream of a GPU is behind its name.
            let device = span.track.split(' ').next().unwrap_or(&span.track);
            let (device, label) = (device.to_owned(), span.name.clone());
            let times = self.steps.entry(Key { device, label, operator: span.operator });
            let times = times.or_default();
            times.calls += 1;
            times.micros += span.length;
        }
        for (key, work) in &works.steps {
            if let Some(times) = self.steps.get_mut(key) {
                times.work.operations += work.operations;
                times.work.bytes += work.bytes;
            }
        }
    }

    fn to_json(&self, program: &str) -> Value {
        let runs = f64::from(self.count.max(1));
        let step = |(key, times): (&Key, &Times)| {
            json!({
                "device": key.device, "step": &*key.label, "operator": key.operator,
                "seconds": times.micros / 1e6 / runs,
                "operations": times.work.operations / runs,
                "bytes": times.work.bytes / runs,
            })
        };
        let steps: Vec<_> = self.steps.iter().map(step).collect();
        json!({ "program": program, "runs": self.count, "steps": steps })
    }

    fn to_text(&self, program: &str, peak: Option<Peak>) -> String {
        let runs = f64::from(self.count.max(1));
        let all: f64 = self.steps.values().map(|times| times.micros).sum();
        let counted = match (self.count, self.is_warm) {
            (1, false) => "one run".to_owned(),
            (1, true) => "one run after the first".to_owned(),
            (n, _) => format!("{n} runs after the first"),
        };
        let mut text =
            format!("profile of {program}, {counted}: {} of work in each", time(all / runs));
        if let Some(peak) = peak {
            let (operations, bytes) = (peak.operations / 1e9, peak.bytes / 1e9);
            // Writing to a `String` cannot fail.
            let _ = write!(text, "; at most {operations:.1} GFlop/s, {bytes:.1} GB/s");
        }
        text += "\n\n";
        // What is no step of a program brings inputs or takes outputs.
        let named = |operator: Option<&'static str>| operator.unwrap_or("transfer");
        let mut operators: BTreeMap<&str, Times> = BTreeMap::new();
        for (key, times) in &self.steps {
            operators.entry(named(key.operator)).or_default().add(times);
        }
        let by_operator = operators.into_iter().map(|(name, times)| (name.to_owned(), times));
        text += &table("operator", by_operator.collect(), runs, all, peak);
        let several = self.steps.keys().any(|key| key.device != Device::HOST.to_string());
        let by_step = self.steps.iter().map(|(key, times)| {
            let place = if several { format!("{} ", key.device) } else { String::new() };
            (format!("{place}{} ({})", key.label, named(key.operator)), *times)
        });
        text.push('\n');
        text + &table("step", by_step.collect(), runs, all, peak)
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
    let widths = rows.iter().map(|(name, _)| name.chars().count());
    let width = widths.fold(what.len(), usize::max);
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
        // What is not counted, or could not be measured, has no rate.
        let rate = |rate: f64, most: f64| {
            if rate > 0.0 && most > 0.0 {
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

    fn span(name: &str, length: f64, kind: Kind, operator: Option<&'static str>) -> Span {
        let (track, name) = ("cpu:0".to_owned(), name.into());
        Span { track, name, start: 0.0, length, kind, operator }
    }

    #[test]
    fn the_time_of_steps_is_beside_what_they_do() {
        let key = |operator| Key {
            device: "cpu:0".to_owned(),
            label: "dense".into(),
            operator: Some(operator),
        };
        let work = |operations: f64| Work { operations, bytes: 1e5 };
        let steps = [(key("gemm"), work(2e6)), (key("softmax"), work(0.0))].into();
        let works = Works { program: "m".to_owned(), steps };
        let run = |length: f64| {
            [
                span("dense", length, Kind::Compute, Some("gemm")),
                span("dense", 5.0, Kind::Compute, Some("softmax")),
                span("dense", 9e9, Kind::Wait, None),
                span("inputs", 5.0, Kind::Copy, None),
            ]
        };
        let mut profile = Profile::default();
        assert_eq!(profile.to_text(None), "");
        // The first is slow, and left out.
        for length in [5000.0, 20.0, 40.0] {
            profile.add(&run(length), &works);
        }
        let peak = Peak { operations: 4e11, bytes: 1e10 };
        let text = profile.to_text(Some(peak));
        let head = "profile of m, 2 runs after the first: 40.0 µs of work in each; at most 400.0 \
            GFlop/s, 10.0 GB/s\n";
        assert!(text.starts_with(head), "{text}");
        let cells = |text: &str, row: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(row)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let gemm = ["gemm", "1", "30.0", "µs", "75.0%", "66.7", "17%", "3.3", "33%"];
        assert_eq!(cells(&text, "gemm"), gemm);
        assert_eq!(cells(&text, "dense (gemm)")[2..], gemm[1..]);
        let softmax = ["1", "5.0", "µs", "12.5%", "-", "-", "20.0", "200%"];
        assert_eq!(cells(&text, "dense (softmax)")[2..], softmax);
        let transfer = ["transfer", "1", "5.0", "µs", "12.5%", "-", "-", "-", "-"];
        assert_eq!(cells(&text, "transfer"), transfer);
        assert_eq!(cells(&profile.to_text(None), "gemm"), gemm[..5]);
        let read: Value = serde_json::from_str(&profile.to_json(Some(peak))).unwrap();
        let own = &read["programs"][0];
        assert_eq!(own["steps"][0]["seconds"], 30e-6);
        assert_eq!(own["steps"][0]["operations"], 2e6);
        assert_eq!(own["runs"], 2);
        // Another program has a first run of its own.
        profile.add(&run(7.0), &Works { program: "n".to_owned(), ..Works::default() });
        assert!(profile.to_text(None).contains("profile of n, one run: 17.0 µs"));
    }
}
