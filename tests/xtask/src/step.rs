//! One command of a task: announced, run, and named when it fails.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::ops::Add;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{Failure, complain, root, say};

/// The tests that passed and that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Add for Counts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl Counts {
    /// The counts of a line `test result: ok. 3 passed; 0 failed; …`, none for any other line.
    fn of_line(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let count = |what: &str| {
            let part = counts.split("; ").find(|part| part.ends_with(what))?;
            part.split(' ').next()?.parse().ok()
        };
        Some(Self { passed: count(" passed")?, failed: count(" failed")? })
    }
}

/// The steps that ended, with their times.
static ENDED: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Says which steps took longest.
pub(crate) fn tell_slowest() {
    const TOLD: usize = 10;
    let Ok(mut ended) = ENDED.lock() else { return };
    ended.sort_unstable_by(|a, b| b.cmp(a));
    if ended.len() > 1 {
        complain("==> the slowest steps");
    }
    for (time, shown) in ended.iter().take(TOLD).filter(|_| ended.len() > 1) {
        complain(&format!("    {:.0} s: {shown}", time.as_secs_f64()));
    }
}

/// A command run in the repository's root.
pub(crate) struct Step {
    command: Command,
    shown: String,
}

impl Step {
    /// `program` with these arguments.
    pub(crate) fn new(program: impl AsRef<OsStr>, args: &[&str]) -> Self {
        let shown = program.as_ref().to_string_lossy().into_owned();
        Self::shown_as(shown, program.as_ref()).args(args)
    }

    /// `cargo` with these arguments.
    pub(crate) fn cargo(args: &[&str]) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        Self::shown_as("cargo".to_owned(), &cargo).args(args)
    }

    fn shown_as(shown: String, program: &OsStr) -> Self {
        let mut command = Command::new(program);
        command.current_dir(root());
        Self { command, shown }
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        for arg in args {
            self.shown = format!("{} {arg}", self.shown);
        }
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it; its output goes where ours goes.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        let start = self.announce();
        let child = self.command.spawn();
        self.finish(child, start)
    }

    /// Runs it and returns the first line that it prints.
    pub(crate) fn first_line(self) -> Result<String, Failure> {
        let shown = self.shown.clone();
        self.lines()?.into_iter().next().ok_or_else(|| format!("`{shown}` printed nothing"))
    }

    /// Runs it and returns the lines that it prints.
    pub(crate) fn lines(mut self) -> Result<Vec<String>, Failure> {
        let output = self.command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| format!("`{}` does not start: {e}", self.shown))?;
        if !output.status.success() {
            return Err(format!("`{}` failed", self.shown));
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// True if it can be run and succeeds; its output is dropped.
    pub(crate) fn succeeds(mut self) -> bool {
        let quiet = self.command.stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }

    /// Runs test executables and sums what they report.
    pub(crate) fn run_tests(mut self) -> Result<Counts, Failure> {
        let start = self.announce();
        let mut child = self.command.stdout(Stdio::piped()).spawn();
        let mut counts = Counts::default();
        if let Ok(Some(stdout)) = child.as_mut().map(|child| child.stdout.take()) {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                counts = counts + Counts::of_line(&line).unwrap_or_default();
                say(&line);
            }
        }
        let Counts { passed, failed } = counts;
        self.finish(child, start).map_err(|e| format!("{e}: {passed} passed, {failed} failed"))?;
        Ok(counts)
    }

    fn announce(&self) -> Instant {
        complain(&format!("==> {}", self.shown));
        Instant::now()
    }

    fn finish(&self, child: std::io::Result<Child>, start: Instant) -> Result<(), Failure> {
        let status = child.and_then(|mut child| child.wait());
        let status = status.map_err(|e| format!("`{}` does not start: {e}", self.shown))?;
        complain(&format!("    {:.0} s: {}", start.elapsed().as_secs_f64(), self.shown));
        if let Ok(mut ended) = ENDED.lock() {
            ended.push((start.elapsed(), self.shown.clone()));
        }
        if status.success() { Ok(()) } else { Err(format!("`{}` failed", self.shown)) }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn counts_are_read_from_the_summary_of_a_test_run() {
        let line = "test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 3, failed: 0 }));
        let line = "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 10, failed: 2 }));
        assert_eq!(Counts::of_line("test op::slice ... ok"), None);
    }
}
