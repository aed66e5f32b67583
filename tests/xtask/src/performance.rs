//! `cargo xtask performance`: the figures of docs/performance.md, on this machine and this commit.

use std::fs;

use crate::python::{Python, environment};
use crate::step::Step;
use crate::{EXECUTABLE, Failure, root, target};

/// Measures everything and writes the page. The machine should do nothing else.
pub(crate) fn performance() -> Result<(), Failure> {
    if !Step::new("git", &["status", "--porcelain"]).lines()?.is_empty() {
        return Err("files differ from the commit that the page would name: commit them".to_owned());
    }
    let commit = Step::new("git", &["rev-parse", "--short=8", "HEAD"]).first_line()?;
    let folder = target().join("performance");
    let listed = "tests/models/performance.txt";
    let interpreter = environment(&folder, listed, &[], |_| Ok(()))?;
    let python = Python::prepare(&target())?;
    Step::cargo(&["build", "--release", "--bins"]).run()?;
    let bench = |name| ["bench", "--package", "bench", "--bench", name];
    Step::cargo(&bench("passes")).run()?;
    let lines = Step::cargo(&bench("pass_memory")).lines()?.join("\n");
    let memory = folder.join("pass_memory.txt");
    fs::write(&memory, lines).map_err(|e| format!("cannot write {}: {e}", memory.display()))?;
    let page = root().join("docs/performance.md");
    let paths = [
        root().join("tests/models/performance.py"),
        target().join("release").join(EXECUTABLE),
        target().join("criterion"),
        commit.into(),
        memory,
        page,
    ];
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    let paths: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
    Step::new(interpreter, &paths).env("FANWISE_NVRTC", &python.packages).run()
}
