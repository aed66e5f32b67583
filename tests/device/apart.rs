//! Tests in processes of their own: what the driver says is wrong belongs to one test, and the fake
//! one, which runs one kernel of a process at a time, uses all cores.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::results::{RESULTS, fallible};
use crate::setup::runs_whole_models;

/// How long one process may take.
const LIMIT: Duration = Duration::from_mins(15);

/// How long one process may take where whole models run, which takes the fake device long.
const LONG: Duration = Duration::from_hours(24);

/// Says that a process runs one test, itself.
const ALONE: &str = "FANWISE_DEVICE_ALONE";

/// What a process said and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) output: String,
    /// What it said beside its results.
    pub(crate) errors: String,
    /// What the driver found wrong.
    pub(crate) report: String,
    /// Calls of the driver that can be made to fail.
    pub(crate) calls: u64,
    /// The call that it made to fail.
    pub(crate) failed: Option<Failed>,
    /// What it counted.
    stats: String,
}

impl Ended {
    /// The calls of a function, whatever its version.
    pub(crate) fn count(&self, function: &str) -> u64 {
        let of = |line: &str| {
            let (name, count) = line.strip_prefix("call ")?.split_once(' ')?;
            (name.trim_end_matches("_v2") == function).then(|| count.parse::<u64>().unwrap())
        };
        self.stats.lines().filter_map(of).sum()
    }

    /// The most bytes that a device had in use.
    pub(crate) fn peak(&self, device: usize) -> usize {
        let name = format!("peak.{device} ");
        let found = self.stats.lines().find_map(|line| line.strip_prefix(&name));
        found.unwrap().parse().unwrap()
    }
}

/// A call that the driver made to fail.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The function, without its version.
    pub(crate) function: String,
    /// The GPU of the thread's context.
    pub(crate) gpu: Option<u32>,
    /// The name of the thread.
    pub(crate) thread: String,
}

impl Failed {
    /// The call that the driver's counters name.
    fn of(stats: &str) -> Option<Self> {
        let find = |name: &str| stats.lines().find_map(|line| line.strip_prefix(name));
        Some(Self {
            function: find("failed ")?.trim_end_matches("_v2").to_owned(),
            gpu: find("failed.device ").and_then(|gpu| gpu.parse().ok()),
            thread: find("failed.thread ").unwrap_or_default().to_owned(),
        })
    }
}

/// Runs this program with other arguments, and a driver that reads these variables.
pub(crate) fn spawn(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("FAKECUDA_REPORT", file("report")).env("FAKECUDA_STATS", file("stats"));
    command.env_remove(RESULTS).envs(variables.iter().copied());
    let mut child = command.spawn().unwrap();
    let output = gather(child.stdout.take().unwrap());
    let errors = gather(child.stderr.take().unwrap());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > limit() {
            child.kill().unwrap();
            panic!("{args:?} with {variables:?} hangs");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let stats = read(&file("stats"));
    let calls = stats.lines().find_map(|line| line.strip_prefix("calls ")?.parse().ok());
    Ended {
        success: status.success(),
        output: output.join().unwrap(),
        errors: errors.join().unwrap(),
        report: read(&file("report")),
        calls: calls.unwrap_or(0),
        failed: Failed::of(&stats),
        stats,
    }
}

/// All that a process writes.
fn gather(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether this process runs one test, itself.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// The same test in a process of its own, which fails where the driver finds something wrong, too.
pub(crate) fn apart(trial: &Trial) -> Trial {
    let name = trial.name().to_owned();
    fallible(name.clone(), move || {
        let mut variables = vec![(ALONE, "1")];
        if name.starts_with("small_") || name.starts_with("whole_") {
            // Each replica has a device of its own; elsewhere some share one.
            variables.push(("FAKECUDA_DEVICES", "8"));
        }
        let args = ["--exact", &name, "--color", "never"];
        let ended = spawn(&args, &variables);
        if ended.success && ended.report.is_empty() && ended.output.contains(" 1 passed") {
            return Ok(());
        }
        let Ended { output, errors, report, .. } = ended;
        Err(libtest_mimic::Failed::from(format!(
            "{output}\n{errors}\nthe driver reports: {report}"
        )))
    })
}

/// How long one process may take.
fn limit() -> Duration {
    if runs_whole_models() { LONG } else { LIMIT }
}
