//! What the device and the backend on it are worth: ceilings, kernels as shares of their floors,
//! models in images a second, replicas against one, cold and warm starts, beside what the tests
//! gave. Writes JSON, anew behind each model.

mod ceilings;
mod floors;
mod model;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fanwise::backend::{Executable, RunOptions, RunOutput, Trace};
use fanwise::zoo;
use libtest_mimic::Trial;
use serde_json::{Map, Value, json};

use crate::setup::{Tensors, compiler, complain};
use ceilings::Ceilings;
use model::Subject;

pub(crate) fn trials() -> Vec<Trial> {
    floors::trials()
}

/// What is measured, from the arguments after the file.
struct Scope {
    models: Vec<String>,
    batch: i64,
    repeat: usize,
    /// Bytes of the copy that is measured.
    bytes: i64,
    /// Rows and columns of the matrix product that is measured.
    product: usize,
    /// Operations a second of a library's matrix products in `f32` and in `bf16`, if known.
    flops: Option<[f64; 2]>,
    /// When nothing more is begun.
    end: Option<Instant>,
    /// The names of the tests, one a line, and what became of each.
    tests: Option<(String, String)>,
    /// What was built, and when it is measured.
    commit: String,
    date: String,
}

impl Scope {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut scope = Self {
            models: zoo::names().map(str::to_owned).collect(),
            batch: 64,
            repeat: 20,
            bytes: 1 << 30,
            product: 4096,
            flops: None,
            end: None,
            tests: None,
            commit: "unknown".to_owned(),
            date: "unknown".to_owned(),
        };
        for pair in args.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} has no value", pair[0])) };
            let number = || value.parse::<f64>().map_err(|e| format!("{name}: {e}"));
            let whole = || value.parse::<u32>().map_err(|e| format!("{name}: {e}"));
            match name.as_str() {
                "--models" if value == "all" => {}
                "--models" if value == "none" => scope.models.clear(),
                "--models" => scope.models = value.split(',').map(str::to_owned).collect(),
                "--batch" => scope.batch = whole()?.into(),
                "--repeat" => scope.repeat = whole()?.max(1) as usize,
                "--bytes" => scope.bytes = whole()?.into(),
                "--product" => scope.product = whole()?.max(1) as usize,
                "--limit" => {
                    let limit = Duration::try_from_secs_f64(number()?);
                    let limit = limit.map_err(|e| format!("{name}: {e}"))?;
                    scope.end = Instant::now().checked_add(limit);
                }
                "--commit" => scope.commit.clone_from(value),
                "--date" => scope.date.clone_from(value),
                "--flops" => {
                    let (f32, bf16) = value.split_once(',').ok_or("--flops takes two rates")?;
                    let rate = |text: &str| text.parse::<f64>().map_err(|e| format!("{name}: {e}"));
                    scope.flops = Some([rate(f32)?, rate(bf16)?]);
                }
                "--tests" => {
                    let (names, results) =
                        value.split_once(',').ok_or("--tests takes two files".to_owned())?;
                    scope.tests = Some((names.to_owned(), results.to_owned()));
                }
                _ => return Err(format!("{name} is unknown")),
            }
        }
        Ok(scope)
    }

    /// What is measured, in order: each model's inference, then a step of its training.
    fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        let both = |model| [false, true].map(|is_trained| Subject { model, is_trained });
        self.models.iter().map(String::as_str).flat_map(both)
    }

    /// Whether the time is over.
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// The exit status where nothing failed, but time ran out before all was measured.
const LATE: u8 = 3;

/// Measures; the process fails where a model could not be measured, and has a status of its own
/// where time ran out before it, or before one of its numbers of replicas.
pub(crate) fn main(path: &str, args: &[String]) -> ExitCode {
    match Scope::read(args).and_then(|scope| measure(path, &scope)) {
        Ok(late) if late.is_empty() => ExitCode::SUCCESS,
        Ok(late) => {
            complain(&format!("not measured, for time ran out: {}", late.join(", ")));
            ExitCode::from(LATE)
        }
        Err(error) => {
            complain(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Measures; what was not measured because time ran out.
fn measure(path: &str, scope: &Scope) -> Result<Vec<String>, String> {
    let mut found = head(scope)?;
    write(path, &found)?;
    if scope.models.is_empty() {
        return Ok(Vec::new());
    }
    let ceilings = guarded(|| Ceilings::measure(scope))?;
    found.insert("ceilings".to_owned(), ceilings.json());
    let (mut models, mut failed, mut late) = (Map::new(), Vec::new(), Vec::new());
    for subject in scope.subjects() {
        if scope.is_over() {
            break;
        }
        let (name, mut model) = (subject.name(), Map::new());
        if let Err(error) = guarded(|| model::measure(&subject, scope, &ceilings, &mut model)) {
            model.insert("error".to_owned(), json!(error));
            failed.push(name.clone());
        } else if let Some(left) = model.get("replicas_not_measured") {
            late.push(format!("{name} on {left} replicas"));
        }
        models.insert(name, Value::Object(model));
        found.insert("models".to_owned(), Value::Object(models.clone()));
        write(path, &found)?;
    }
    let names = scope.subjects().map(|subject| subject.name());
    let left: Vec<String> = names.filter(|name| !models.contains_key(name)).collect();
    found.insert("not_measured".to_owned(), json!(left));
    write(path, &found)?;
    late.extend(left);
    if failed.is_empty() { Ok(late) } else { Err(format!("not measured: {}", failed.join(", "))) }
}

/// What something gives, or the text with which it panics.
fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// Replaces the file as a whole.
fn write(path: &str, found: &Map<String, Value>) -> Result<(), String> {
    let text = serde_json::to_string_pretty(found).map_err(|e| e.to_string())?;
    let next = format!("{path}.writing");
    std::fs::write(&next, text + "\n").map_err(|e| format!("{next}: {e}"))?;
    std::fs::rename(&next, path).map_err(|e| format!("{path}: {e}"))
}

/// What is measured, on what, and what the tests gave.
fn head(scope: &Scope) -> Result<Map<String, Value>, String> {
    let devices = fanwise::internal::devices().map_err(|e| e.to_string())?;
    let device = devices.list.first();
    let head = json!({
        "date": scope.date,
        "commit": scope.commit,
        "device": device.map(|d| d.name.clone()),
        "arch": device.map(|d| d.arch.to_string()),
        "gpus": devices.list.len(),
        "driver": devices.driver.to_string(),
        "nvrtc": compiler(None).nvrtc().version().to_string(),
        "batch": scope.batch,
        "repeat": scope.repeat,
        "not_measured": scope.subjects().map(|subject| subject.name()).collect::<Vec<_>>(),
    });
    let Value::Object(mut head) = head else { return Err("no object".to_owned()) };
    if let Some((names, results)) = &scope.tests {
        head.insert("tests".to_owned(), tests(Path::new(names), Path::new(results))?);
    }
    Ok(head)
}

/// What became of each test of a list, and how many passed, failed and did not end.
fn tests(names: &Path, results: &Path) -> Result<Value, String> {
    let names = std::fs::read_to_string(names).map_err(|e| format!("{}: {e}", names.display()))?;
    // Without one no test has ended.
    let results = std::fs::read_to_string(results).unwrap_or_default();
    let mut ended: BTreeMap<String, Value> = BTreeMap::new();
    for line in results.lines() {
        let result: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        ended.insert(result["name"].as_str().unwrap_or_default().to_owned(), result);
    }
    let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    let missing = |name: &str| json!({ "name": name, "result": "not run" });
    let all: Vec<Value> =
        names.map(|name| ended.remove(name).unwrap_or_else(|| missing(name))).collect();
    let count = |result: &str| all.iter().filter(|test| test["result"] == result).count();
    let seconds: f64 = all.iter().filter_map(|test| test["seconds"].as_f64()).sum();
    Ok(json!({
        "passed": count("ok"), "failed": count("failed"), "not_run": count("not run"),
        "seconds": seconds, "results": all,
    }))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn execute(run: &dyn Executable, batch: &Tensors) -> RunOutput {
    run.run(batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Seconds of the device that is busy longest, but the host.
fn busy(output: &RunOutput) -> f64 {
    let times = output.devices.iter().skip(1).map(|device| device.time);
    times.max().unwrap_or_default().as_secs_f64()
}

/// Microseconds of the work on tracks with this ending, in order, for each run by name.
fn spans(trace: &Trace, track: &str) -> BTreeMap<u64, Vec<(String, f64)>> {
    let json: Value = serde_json::from_str(&trace.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let place = |e: &Value| Some((e["pid"].as_u64()?, e["tid"].as_u64()?));
    let is_track = |e: &&Value| e["args"]["name"].as_str().is_some_and(|n| n.ends_with(track));
    let tracks: Vec<_> = events.iter().filter(is_track).filter_map(place).collect();
    let mut runs: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
    for event in events.iter().filter(|e| e["ph"] == "X" && e["cat"] == "work") {
        let Some(at) = place(event).filter(|at| tracks.contains(at)) else { continue };
        let name = event["name"].as_str().unwrap_or_default().to_owned();
        runs.entry(at.0).or_default().push((name, event["dur"].as_f64().unwrap_or(0.0)));
    }
    runs
}
