//! The device tests: the CUDA backend on whatever `libcuda` there is, that of a GPU or the fake
//! one.
//!
//! A binary of its own, which a machine with a GPU and without Rust can run. `FANWISE_NVRTC` names
//! the folder of NVRTC; `FANWISE_FAKE` says that the driver is the fake one, with which failures
//! are injected. Without `FANWISE_DEVICE` there is no test; with it a missing driver is a
//! failure. `FANWISE_DEVICE_WHOLE` adds the models at their full sizes on the fake driver, which a
//! GPU always runs. `FANWISE_DEVICE_RESULTS` names a file for what becomes of each test.
//! `--bench OUT.json` measures instead, `--table OUT.json` prints what that found,
//! `--scenario NAME` is one process of a test.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
mod random;

/// The modules of `tests/device/`.
mod device {
    pub(super) mod ahead;
    pub(super) mod apart;
    pub(super) mod bench;
    pub(super) mod beside;
    pub(super) mod collectives;
    pub(super) mod failures;
    pub(super) mod graphs;
    pub(super) mod hardware;
    pub(super) mod kernels;
    pub(super) mod models;
    pub(super) mod orders;
    pub(super) mod results;
    pub(super) mod runs;
    pub(super) mod script;
    pub(super) mod setup;
    pub(super) mod shared;
    pub(super) mod training;
    pub(super) mod variables;
}

use std::process::ExitCode;

use device::{
    ahead, apart, bench, beside, collectives, failures, graphs, hardware, kernels, models, orders,
    results, runs, script, setup, shared, training, variables,
};
use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--scenario", name] => return scenario(name),
        ["--bench", path, ..] => return bench::main(path, &args[2..]),
        ["--table", path] => return bench::table::main(path),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    if std::env::var_os("FANWISE_DEVICE").is_none() {
        // Among the tests that need no device there is nothing to run.
        return libtest_mimic::run(&arguments, Vec::new()).exit_code();
    }
    if let Err(error) = fanwise::internal::driver() {
        setup::complain(&format!("error: {error}"));
        return ExitCode::FAILURE;
    }
    // The longest first, so that none runs alone in the end.
    let mut trials = training::trials();
    trials.extend(models::trials());
    trials.extend(kernels::trials());
    trials.extend(collectives::trials());
    trials.extend(graphs::trials());
    trials.extend(runs::trials());
    trials.extend(ahead::trials());
    trials.extend(bench::trials());
    trials.extend(shared::trials());
    trials.extend(variables::trials());
    trials.extend(hardware::trials());
    if setup::is_fake() && !apart::is_alone() {
        trials = trials.iter().map(apart::apart).collect();
    }
    // These start processes themselves and wait for them the longest: first, the others fill the
    // gaps.
    let mut all = failures::trials();
    if setup::is_fake() {
        all.extend(variables::disturbed());
        all.extend(ahead::disturbed());
        all.extend(beside::disturbed());
        all.extend(hardware::disturbed_trials());
        all.extend(orders::trials());
        all.extend(script::trials());
    }
    all.extend(trials);
    // Devices are shared, and a test uses several threads anyway; those on the fake one are
    // processes.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let apart = setup::is_fake() && !apart::is_alone();
    arguments.test_threads.get_or_insert(if apart { cores } else { 1 });
    let conclusion = libtest_mimic::run(&arguments, all);
    setup::close();
    conclusion.exit_code()
}

/// One process of a test that starts some.
fn scenario(name: &str) -> ExitCode {
    if name == "ahead" {
        ahead::scenario();
    } else if let Some(way) = name.strip_prefix("beside/") {
        beside::scenario(way);
    } else if let Some(way) = name.strip_prefix("hardware/") {
        hardware::scenario(way);
    } else {
        return match name.strip_prefix("orders/") {
            Some(name) => orders::scenario(name),
            None => failures::scenario(name),
        };
    }
    ExitCode::SUCCESS
}
