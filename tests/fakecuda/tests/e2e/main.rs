//! The fake driver under the unmodified cudarc, with kernels that NVRTC compiles.
//!
//! Each test runs this program again with one scenario and the environment that makes cudarc find
//! the fake library. NVRTC is in the folder that `FANWISE_NVRTC` names, or in `nvidia/cu13/lib`
//! there.

#![allow(unsafe_code, reason = "launches are unsafe calls of cudarc")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    clippy::many_single_char_names,
    reason = "the scenarios use small numbers and compare bits"
)]

mod capture;
mod child;
mod kernels;

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a scenario's process left behind.
struct Ran {
    ok: bool,
    output: String,
    reports: String,
    stats: String,
}

/// The folder with the fake library under the name that cudarc looks for.
fn library(scratch: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("the test has a path");
    let built = own.parent().expect("a folder").join("libfakecuda.so");
    assert!(built.exists(), "{} is missing", built.display());
    let to = scratch.join("libcuda.so");
    std::fs::copy(built, to).expect("the library can be copied");
    scratch.to_owned()
}

/// Runs a scenario with settings of the fake driver.
fn run(scenario: &str, settings: &[(&str, &str)]) -> Ran {
    let nvrtc = std::env::var("FANWISE_NVRTC").expect("FANWISE_NVRTC names the folder of NVRTC");
    let inner = Path::new(&nvrtc).join("nvidia/cu13/lib");
    let nvrtc = if inner.exists() { inner } else { nvrtc.into() };
    let name: Vec<String> = settings.iter().map(|(k, v)| format!("{k}-{v}")).collect();
    let name = name.join("-").replace([':', '@'], "_");
    let name = format!("fakecuda-{}-{scenario}-{name}", std::process::id());
    let scratch = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&scratch).expect("a folder can be made");
    let fake = library(&scratch);
    let (report, stats) = (scratch.join("report"), scratch.join("stats"));
    let paths = format!("{}:{}", fake.display(), nvrtc.display());
    let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
    command.args(["child::scenario", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", paths).env("FAKECUDA_SCENARIO", scenario);
    command.env("FAKECUDA_REPORT", &report).env("FAKECUDA_STATS", &stats);
    for (key, value) in settings {
        command.env(format!("FAKECUDA_{key}"), value);
    }
    let output = command.output().expect("the test can run itself");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let ran = Ran {
        ok: output.status.success(),
        output: format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        reports: read(&report),
        stats: read(&stats),
    };
    std::fs::remove_dir_all(&scratch).expect("the folder can be removed");
    ran
}

/// A scenario that must pass with nothing reported, in every order of streams.
fn clean(scenario: &str) {
    for order in ["eager", "late", "lifo", "random:1", "random:2", "random:3"] {
        let ran = run(scenario, &[("ORDER", order)]);
        assert!(ran.ok, "{order}: {}", ran.output);
        assert_eq!(ran.reports, "", "{order}");
    }
}

/// A scenario whose fault must be reported in every order of streams.
fn caught(scenario: &str, words: &str) {
    for order in ["eager", "late", "lifo", "random:1"] {
        let ran = run(scenario, &[("ORDER", order)]);
        assert!(ran.ok, "{order}: {}", ran.output);
        assert!(ran.reports.contains(words), "{order}: {}", ran.reports);
    }
}

/// Tests that run a scenario: clean ones, and those whose fault is caught with some words.
macro_rules! scenarios {
    (clean $($clean:ident)*; caught $($caught:ident $words:literal)*;) => {
        $(
            #[test]
            #[ignore = "needs NVRTC; `cargo xtask test` runs it"]
            fn $clean() {
                clean(stringify!($clean));
            }
        )*
        $(
            #[test]
            #[ignore = "needs NVRTC; `cargo xtask test` runs it"]
            fn $caught() {
                caught(stringify!($caught), $words);
            }
        )*
    };
}

scenarios! {
    clean reduction matmul softmax tensor_cores graph peer_copy pool pipeline functions
        host_function;
    caught
        race "a race"
        shared_race "a race"
        out_of_bounds "out of bounds"
        use_after_free "use after free"
        wrong_device "another device without peer access"
        unwritten "never written"
        divergent_barrier "divergent barrier"
        missing_wait "ordered"
        blocks_conflict "a conflict between blocks"
        leak "leak:"
        pinned_freed "pinned memory is freed"
        missing_async_wait "not waited for"
        two_readers "not ordered after"
        unjoined "not joined"
        forbidden "while a stream is captured"
        unloaded_graph "the module of kernel add_one is unloaded";
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn a_buffer_that_changes_too_early_is_noticed() {
    let ran = run("pinned_changed", &[("ORDER", "late")]);
    assert!(ran.ok, "{}", ran.output);
    assert!(ran.reports.contains("the host changed the source"), "{}", ran.reports);
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn a_module_that_ends_before_its_kernel_runs_is_noticed() {
    let ran = run("unloaded", &[("ORDER", "late")]);
    assert!(ran.ok, "{}", ran.output);
    assert!(ran.reports.contains("its module is unloaded"), "{}", ran.reports);
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn a_thread_may_heed_no_captures() {
    let ran = run("heeded", &[]);
    assert!(ran.ok, "{}", ran.output);
    assert!(!ran.reports.contains("while a stream is captured"), "{}", ran.reports);
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn devices_can_be_absent() {
    let ran = run("no_device", &[("DEVICES", "0")]);
    assert!(ran.ok, "{}", ran.output);
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn memory_has_a_limit() {
    let ran = run("out_of_memory", &[("MEMORY", "65536")]);
    assert!(ran.ok, "{}", ran.output);
    assert_eq!(ran.reports, "");
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn every_call_can_fail_and_nothing_is_left_over() {
    let whole = run("fallible", &[]);
    assert!(whole.ok, "{}", whole.output);
    let calls = whole.stats.lines().find_map(|l| l.strip_prefix("calls "));
    let calls: u64 = calls.and_then(|c| c.parse().ok()).expect("the calls are counted");
    assert!(calls > 10, "{}", whole.stats);
    for n in 1..=calls {
        for code in ["out_of_memory", "illegal_address", "device_lost"] {
            let ran = run("fallible", &[("FAIL", &format!("{n}:{code}"))]);
            assert!(ran.output.contains("as asked"), "call {n}: {}", ran.output);
            assert!(ran.stats.contains("failed cu"), "call {n}: {}", ran.stats);
            assert!(!ran.reports.contains("leak"), "call {n} {code}: {}", ran.reports);
            assert!(ran.ok, "call {n} {code}: {}", ran.output);
        }
    }
}
