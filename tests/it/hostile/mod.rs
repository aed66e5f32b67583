//! Files that mean harm. Each ends soon with an error that names the place, takes little memory and
//! leaves nothing behind, or works where it is merely odd. The message that each gets is a
//! snapshot.

mod big;
mod json;
mod keras;
mod million;
mod npz;
mod onnx;
mod safetensors;
mod text;
mod watch;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rayon::prelude::*;

pub(crate) use watch::{watch, watch_binary};

/// The memory that a run takes beyond four times the size of its files.
const SPARE: u64 = 16 << 20;

/// The lines of a message that the table shows.
const LINES: usize = 12;

/// The bytes that a message has at most.
const MESSAGE: usize = 20_000;

/// A folder of files, and the command that is run in it.
pub(crate) struct Case {
    name: String,
    /// Makes the files.
    write: Box<dyn Fn(&Path) + Send + Sync>,
    args: Vec<String>,
    /// The bytes that tensors take which the files only declare.
    declared: u64,
}

impl Case {
    /// The file `file` with these bytes, which is compiled.
    pub(crate) fn new(name: &str, file: &'static str, bytes: Vec<u8>) -> Self {
        Self::of(name, file, move |folder| fs::write(folder.join(file), &bytes).expect("written"))
    }

    /// The files that `write` makes, of which `file` is compiled.
    pub(crate) fn of(
        name: &str,
        file: &str,
        write: impl Fn(&Path) + Send + Sync + 'static,
    ) -> Self {
        let args = ["compile", file, "--gpus", "2", "--emit", "graph=out.fan"];
        let args = args.into_iter().map(str::to_owned).collect();
        Self { name: name.to_owned(), write: Box::new(write), args, declared: 0 }
    }

    /// The case with further arguments.
    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|a| (*a).to_owned()));
        self
    }

    /// The case with another command.
    pub(crate) fn command(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|a| (*a).to_owned()).collect();
        self
    }

    /// The case where tensors may take as many bytes beyond what the files have.
    pub(crate) fn declares(mut self, bytes: u64) -> Self {
        self.declared = bytes;
        self
    }

    /// What comes of it, as lines of the table; an error where that must not be.
    fn outcome(&self, base: u64) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a folder");
        (self.write)(folder.path());
        let before = entries(folder.path());
        let size: u64 = before.iter().map(|e| e.1).sum();
        let wrong = |what: String| Err(format!("{}: {what}", self.name));
        let Some(end) = watch(folder.path(), &self.args) else {
            return wrong("it does not end".to_owned());
        };
        let limit = base + 4 * size + self.declared + SPARE;
        if end.peak > limit {
            return wrong(format!("{} bytes of memory, at most {limit}", end.peak));
        }
        if end.code == Some(0) {
            return Ok(format!("{}\n    works", self.name));
        }
        let shown = |c: char| c == '\n' || !c.is_control();
        if end.code != Some(2) {
            wrong(format!("exit code {:?}: {}", end.code, end.stderr))
        } else if entries(folder.path()) != before {
            wrong("it leaves files behind".to_owned())
        } else if !end.stdout.is_empty() {
            wrong(format!("results: {}", end.stdout))
        } else if end.stderr.len() > MESSAGE {
            wrong(format!("a message of {} bytes", end.stderr.len()))
        } else if !end.stderr.chars().all(shown) {
            wrong(format!("control characters: {:?}", end.stderr))
        } else {
            let place = folder.path().to_string_lossy().into_owned();
            let message = end.stderr.trim_end().replace(&place, "FOLDER");
            // Whether the machine has GPUs is not part of the table.
            let shown = message.lines().filter(|line| !line.starts_with("note: no GPU"));
            let mut lines: Vec<&str> = shown.collect();
            let more = format!("({} lines more)", lines.len().saturating_sub(LINES));
            if lines.len() > LINES {
                lines.truncate(LINES);
                lines.push(&more);
            }
            Ok(format!("{}\n    {}", self.name, lines.join("\n    ")))
        }
    }
}

/// The names and sizes of what a folder holds.
fn entries(folder: &Path) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry")) {
            let meta = entry.path().symlink_metadata().expect("an entry");
            if meta.is_dir() {
                folders.push(entry.path());
            }
            found.insert((entry.path().display().to_string(), meta.len()));
        }
    }
    found
}

/// The table of what comes of the cases.
pub(crate) fn table(cases: &[Case]) -> String {
    let names: BTreeSet<&str> = cases.iter().map(|c| &*c.name).collect();
    assert_eq!(names.len(), cases.len(), "the cases have different names");
    let folder = tempfile::tempdir().expect("a folder");
    // What reading takes is small beside a run of a model of the usual size.
    let usual = ["run", "zoo:resnet50:narrow=2", "--gpus", "1", "--batch", "1"].map(str::to_owned);
    let base = watch(folder.path(), &usual).expect("it ends").peak;
    assert!(base > 0, "the peak was seen");
    let outcomes: Vec<Result<String, String>> =
        cases.par_iter().map(|case| case.outcome(base)).collect();
    let wrong: Vec<&str> = outcomes.iter().filter_map(|o| o.as_ref().err()).map(|w| &**w).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    outcomes.into_iter().flatten().collect::<Vec<String>>().join("\n")
}
