//! One test for each file under `tests/cases/<area>/`; its result is the snapshot
//! `snapshots/<area>/<name>.snap`.
//!
//! A case begins with directives, comments of the form `; key: value`; the rest of the file is a
//! graph, unless `model` names one. `emit` says what the snapshot holds: `graph` (default),
//! `input`, `program`, `memory`, `calls` (of kernels), `gradient` (of the first output), `parse`
//! (of a wrong text), `verify` (of a damaged graph) or `run` (of operators on operands, one a line,
//! instead of a graph); `target` is what programs are lowered for. A refusal's diagnostic is the
//! result where there is one. Cases of `mistakes` are commands.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fanwise::backend::{CPU, CUDA};
use fanwise::internal::Printer;
use fanwise::ir::{self, Graph};
use fanwise::lower::Kernels;
use fanwise::model::{self, LoadOptions};
use fanwise::pass::{
    self, Gpus, Merge, PassError, Repair, Replicate, SimplifyOptions, WeightPlacement,
};
use fanwise::types::{Diagnostic as _, Hint};
use libtest_mimic::{Arguments, Failed, Trial};
use support::snap;

mod applied;
mod mistakes;
mod splits;

fn main() {
    let args = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut trials = Vec::new();
    for area in sorted(&root) {
        for case in sorted(&area) {
            let name = |p: &Path| p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (area, stem) = (name(&area), name(&case));
            trials.push(Trial::test(format!("{area}/{stem}"), move || run(&area, &stem, &case)));
        }
    }
    libtest_mimic::run(&args, trials).exit();
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder of cases")
        .map(|e| e.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

fn run(area: &str, name: &str, path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    if area == "mistakes" {
        snap::assert(area, name, &mistakes::told(&text));
        return Ok(());
    }
    let (directives, graph) = split(&text);
    let result = result(&directives, graph).unwrap_or_else(|error| error);
    snap::assert(area, name, &result);
    Ok(())
}

/// The directives at the head of a case, and what follows them.
fn split(text: &str) -> (BTreeMap<&str, &str>, &str) {
    let mut directives = BTreeMap::new();
    let mut rest = text;
    while let Some(line) = rest.lines().next().filter(|l| l.starts_with("; ")) {
        if let Some((key, value)) = line[2..].split_once(':') {
            directives.insert(key.trim(), value.trim());
        }
        rest = rest[line.len()..].trim_start_matches('\n');
    }
    (directives, rest)
}

/// What the case prints, or its diagnostic.
fn result(directives: &BTreeMap<&str, &str>, text: &str) -> Result<String, String> {
    let emit = directives.get("emit").copied().unwrap_or("graph");
    if emit == "run" {
        return Ok(applied::table(text));
    }
    let mut template = match directives.get("model") {
        Some(model) => {
            model::load(model, &LoadOptions::default()).map_err(|e| e.to_string())?.graph
        }
        None => ir::parse(text).map_err(|e| e.to_string())?,
    };
    if emit == "parse" {
        return Err("the text was read".to_owned());
    }
    ir::verify(&template).map_err(|e| e.to_string())?;
    if directives.contains_key("simplify") {
        let mut weights = ir::Weights::default();
        pass::simplify(&mut template, &mut weights, &SimplifyOptions::default())
            .map_err(|e| e.to_string())?;
    }
    if emit == "verify" || emit == "input" {
        return Ok(Printer::default().print(&template));
    }
    if emit == "gradient" {
        return applied::gradients::told(template);
    }
    if emit == "calls" {
        applied::calls::assert_shared(&template);
    }
    let graph = match directives.get("gpus") {
        Some(gpus) => replicate(directives, gpus, &template)?,
        None => template,
    };
    let verified = ir::verify(&graph).map_err(|e| e.to_string())?;
    let printed = Printer::default().print(&graph);
    let read = ir::parse(&printed).map_err(|e| e.to_string())?;
    assert!(read == graph, "what is printed reads back");
    let kernels: &dyn Kernels = match directives.get("target").copied() {
        None | Some("cpu") => &CPU,
        Some("cuda") => &CUDA,
        Some(other) => return Err(format!("there is no target `{other}`")),
    };
    let program = || fanwise::lower::lower(&verified, kernels).map_err(|e| e.to_string());
    match emit {
        "graph" => Ok(printed),
        "program" => program().map(|p| p.to_string()),
        "calls" => applied::calls::told(&program()?),
        "memory" => {
            let rows = directives
                .get("batch")
                .map_or(Ok(32), |b| b.parse())
                .map_err(|_| "batch".to_owned())?;
            let program = program()?;
            let bound = program.bind(rows).map_err(|e| e.to_string())?;
            Ok(bound.report(&program).to_string())
        }
        other => Err(format!("`{other}` is nothing to emit")),
    }
}

fn replicate(
    directives: &BTreeMap<&str, &str>,
    gpus: &str,
    template: &Graph,
) -> Result<Graph, String> {
    let gpus: Gpus = gpus.parse().map_err(|e| format!("{e}"))?;
    let found =
        directives.get("found").map_or(Ok(0), |f| f.parse()).map_err(|_| "found".to_owned())?;
    let mut options = Replicate::over(gpus.select(found).map_err(|e| told(&e.into()))?);
    if let Some(rule) = directives.get("shards") {
        options.rule = rule.parse().map_err(|e| format!("{e}"))?;
    }
    options.merge = match directives.get("merge") {
        Some(&"gpu") => Merge::Gpu,
        _ => Merge::Cpu,
    };
    options.weights = match directives.get("weights") {
        Some(&"cpu") => WeightPlacement::Cpu,
        Some(&"mirrored") => WeightPlacement::Mirrored,
        _ => WeightPlacement::Template,
    };
    options.repair = match directives.get("repair") {
        Some(&"none") => Repair::None,
        Some(&"comm") => Repair::Comm,
        _ => Repair::Local,
    };
    pass::replicate(template, &options).map_err(|e| told(&e))
}

/// An error with its hints.
fn told(error: &PassError) -> String {
    error.worded(&Hint::to_string)
}
