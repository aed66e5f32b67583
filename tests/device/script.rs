//! `tests/gpu/check.sh` with the fake driver in place of a GPU: as the pack is run, with next to
//! nothing to measure.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use serde_json::Value;

use crate::results::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("the_script_proves_and_measures", the_script_proves_and_measures),
        trial("the_script_tells_what_it_could_not_do", the_script_tells_what_it_could_not_do),
        trial("the_script_packs_what_runs_elsewhere", the_script_packs_what_runs_elsewhere),
        trial("the_script_says_where_a_model_is_left_out", a_model_is_left_out),
        trial("the_script_says_where_replicas_are_left_out", replicas_are_left_out),
        trial("the_script_says_what_it_does_not_know", the_script_says_what_it_does_not_know),
    ]
}

/// Runs the script in an unpacked folder, on what says that it is a GPU whose times are expected.
fn script(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    // The test that is asked for has its turn here, whichever commit this is.
    command.env_remove("FANWISE_TURN").env("FAKECUDA_NAME", "NVIDIA H200");
    command.arg(folder.join("check.sh")).args(args).current_dir(folder).output().unwrap()
}

/// The numbers that a run of the script left.
fn found(folder: &tempfile::TempDir) -> Value {
    let json = std::fs::read_to_string(folder.path().join("results.json")).unwrap();
    serde_json::from_str(&json).unwrap()
}

/// What `pack` packs, of the binaries that this test is run with.
fn unpacked() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu");
    for name in ["check.sh", "ceilings.py"] {
        std::fs::copy(from.join(name), at(name)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_fanwise"), at("fanwise")).unwrap();
    symlink(std::env::current_exe().unwrap(), at("device")).unwrap();
    std::fs::write(at("commit"), "0123abc\n").unwrap();
    folder
}

/// In place of Cargo: builds nothing, and says what is built where Cargo is asked to.
const CARGO: &str = r#"#!/bin/sh
echo "cargo $*" >> "$CARGO_TARGET_DIR/asked"
case "$*" in
    *json*) echo "{\"target\":{\"kind\":[\"test\"],\"name\":\"device\"},\
\"executable\":\"$DEVICE\",\"fresh\":true}" ;;
esac
"#;

/// `pack` with the binaries that this test is run with, and the script of what it packed.
fn the_script_packs_what_runs_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for made in ["bin", "target", "target/release", "there"] {
        std::fs::create_dir(at(made)).unwrap();
    }
    std::fs::write(at("bin/cargo"), CARGO).unwrap();
    std::fs::set_permissions(at("bin/cargo"), Permissions::from_mode(0o755)).unwrap();
    symlink(env!("CARGO_BIN_EXE_fanwise"), at("target/release/fanwise")).unwrap();
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let pack = |nvrtc: &Path| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/check.sh");
        let mut command = Command::new("sh");
        command.arg(script).args(["pack", "out.tar.gz", "--nvrtc"]).arg(nvrtc);
        command.env("PATH", &path).env("CARGO_TARGET_DIR", at("target"));
        command.env("DEVICE", std::env::current_exe().unwrap());
        // NVRTC is large.
        command.env("GZIP", "-1");
        command.current_dir(folder.path()).output().unwrap()
    };
    let refused = pack(&at("there"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("there has no libnvrtc.so.*"), "{said}");
    assert!(!at("target/asked").exists(), "nothing is built for a pack that cannot be");

    let packages = PathBuf::from(std::env::var_os("FANWISE_NVRTC").unwrap());
    let inner = packages.join("nvidia/cu13/lib");
    let packed = pack(if inner.exists() { &inner } else { &packages });
    assert!(packed.status.success(), "{packed:?}");
    let asked = std::fs::read_to_string(at("target/asked")).unwrap();
    assert_eq!(asked.lines().count(), 2, "{asked}");
    assert!(asked.lines().all(|line| line.contains("--release")), "{asked}");

    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(at("out.tar.gz")).arg("-C").arg(at("there"));
    assert!(unpack.status().unwrap().success());
    let there = at("there/fanwise-gpu");
    assert!(std::fs::read_to_string(there.join("glibc")).unwrap().starts_with("GLIBC_"));
    let fake = std::env::var("FANWISE_FAKE").unwrap();
    let mut run = Command::new("sh");
    run.arg(there.join("check.sh")).args(["run", "--fake", &fake, "--no-bench"]);
    // NVRTC is that of the pack.
    run.args(["--tests", "small_two_head"]).env_remove("FANWISE_NVRTC").current_dir(&there);
    run.env_remove("FANWISE_TURN");
    let ended = run.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success() && said.contains("1 passed, 0 failed"), "{ended:?}");
}

fn the_script_proves_and_measures() {
    let folder = unpacked();
    let fake = std::env::var("FANWISE_FAKE").unwrap();
    let bounds = ["--models", "two_head", "--batch", "4", "--repeat", "1", "--bytes", "262144"];
    let tests = ["--product", "32", "--tests", "small_two_head", "--limit", "300"];
    let args: Vec<&str> = ["run", "--fake", &fake].into_iter().chain(bounds).chain(tests).collect();
    let ended = script(folder.path(), &args);
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("test small_two_head ... ok"), "{said}");
    // The table comes last.
    let table = said.split("written to results.json\n").nth(1).unwrap_or_default();
    for wanted in [
        "test small_two_head",
        "1 passed, 0 failed, 0 not run",
        "device ",
        "driver, NVRTC ",
        "host to device",
        "operations of the own GEMM",
        "two_head: start",
        "two_head: floor",
        "% of one",
        "two_head: 8 replicas",
        "% of that in bf16)",
        "% of its floor of ",
        "two_head training: 8 replicas",
    ] {
        assert!(table.contains(wanted), "{wanted}: {said}");
    }
    for name in ["two_head", "two_head training"] {
        let name = format!("{name}: kernels ");
        let row = table.lines().find(|line| line.starts_with(&name)).unwrap_or_default();
        assert!(row.contains("ms, expected 0.0") && !row.contains("expected 0.000 "), "{said}");
    }
    let json = found(&folder);
    assert_eq!(json["commit"], "0123abc");
    assert_eq!(json["tests"]["results"][0]["result"], "ok", "{json}");
    assert!(json["tests"]["seconds"].as_f64() > Some(0.0), "{json}");
    for text in ["date", "device", "arch", "driver", "nvrtc"] {
        assert!(json[text].as_str().is_some_and(|text| text.len() > 2), "{text}: {json}");
    }
    for rate in ["copy", "memory", "upload", "download"] {
        let found = json["ceilings"][format!("{rate}_bytes_per_second")].as_f64();
        assert!(found.is_some_and(|rate| rate > 0.0), "{rate}: {json}");
    }
    assert!(json["ceilings"]["own_flops"].as_f64() > Some(0.0), "{json}");
    assert_eq!(json["ceilings"]["expected_on"], "H200");
    for name in ["two_head", "two_head training"] {
        assert_model_is_measured(&json["models"][name], &json);
    }
    assert_eq!(json["not_measured"], Value::Array(Vec::new()));
}

/// Kernels against both floors and beside what is expected of them, and each number of replicas.
fn assert_model_is_measured(model: &Value, json: &Value) {
    for number in ["expected_seconds", "bf16_floor_seconds", "floor_seconds", "kernel_seconds"] {
        assert!(model[number].as_f64() > Some(0.0), "{number}: {json}");
    }
    let kernels = model["kernels"].as_array().unwrap();
    assert!(kernels.iter().all(|kernel| kernel["bytes"].as_f64() > Some(0.0)), "{json}");
    for number in ["seconds", "floor_seconds", "expected_seconds", "flops"] {
        let found: f64 = kernels.iter().filter_map(|kernel| kernel[number].as_f64()).sum();
        assert!(found > 0.0, "{number}: {json}");
    }
    for count in ["1", "2", "4", "8"] {
        let shares = ["share_of_floor", "share_of_bf16_floor"];
        for number in ["seconds", "against_one", "device_against_one"].iter().chain(&shares) {
            assert!(model["replicas"][count][number].as_f64() > Some(0.0), "{number}: {json}");
        }
    }
}

/// Tests that do not end in time; a model that there is not, unless time is over before it.
fn the_script_tells_what_it_could_not_do() {
    let folder = unpacked();
    let fake = std::env::var("FANWISE_FAKE").unwrap();
    let args = ["run", "--fake", &fake, "--models", "nothing", "--bytes", "262144"];
    let bounds = ["--product", "32", "--tests", "small_", "--limit", "1"];
    let ended = script(folder.path(), &[&args[..], &bounds[..]].concat());
    assert!(!ended.status.success(), "{ended:?}");
    let json = found(&folder);
    let count = |what: &str| json["tests"][what].as_u64().unwrap();
    let models = crate::models::trials().len() as u64;
    assert!(count("passed") + count("failed") + count("not_run") >= models, "{json}");
    assert!(count("not_run") > 0, "{json}");
    let error = json["models"]["nothing"]["error"].as_str();
    assert!(
        error.is_some_and(|error| error.contains("the zoo has no `nothing`"))
            || json["not_measured"][0] == "nothing",
        "{json}"
    );
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let table = said.split("written to results.json\n").nth(1).unwrap_or_default();
    let ends = table.lines().last().is_some_and(|line| line.starts_with("nothing"));
    assert!(ends && table.contains("  not run\n"), "{said}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("error: "), "{ended:?}");
}

/// The status of a run in which all is right that there was time for.
const LATE: Option<i32> = Some(3);

/// Time that runs out before a model leaves it out.
fn a_model_is_left_out() {
    let folder = unpacked();
    let fake = std::env::var("FANWISE_FAKE").unwrap();
    let args = ["run", "--fake", &fake, "--no-tests", "--models", "two_head", "--limit", "0"];
    let bounds = ["--bytes", "262144", "--product", "32", "--repeat", "1"];
    let ended = script(folder.path(), &[&args[..], &bounds[..]].concat());
    assert_eq!(ended.status.code(), LATE, "{ended:?}");
    assert_eq!(found(&folder)["not_measured"][0], "two_head");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(said.contains("not measured: time ran out"), "{said}");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("not measured, for time ran out: two_head"), "{ended:?}");
    assert!(errors.contains("all that ran is right") && !errors.contains("error: "), "{ended:?}");
}

/// Time that runs out at a model leaves replicas out, for however short its runs are there are too
/// many. On a busy machine it may run out before the model, and is longer the next time.
fn replicas_are_left_out() {
    let folder = unpacked();
    let fake = std::env::var("FANWISE_FAKE").unwrap();
    let args = ["run", "--fake", &fake, "--no-tests", "--models", "two_head", "--batch", "4"];
    let bounds = ["--repeat", "1000000", "--bytes", "262144", "--product", "32", "--limit"];
    let limited = |limit| script(folder.path(), &[&args[..], &bounds[..], &[limit][..]].concat());
    let is_begun = |_: &Output| found(&folder)["not_measured"][0] != "two_head";
    let ended = ["10", "40", "160"].into_iter().map(limited).find(is_begun).unwrap();
    assert_eq!(ended.status.code(), LATE, "{ended:?}");
    let json = found(&folder);
    let left = json["models"]["two_head"]["replicas_not_measured"].as_array();
    assert!(left.and_then(|left| left.last()).is_some_and(|last| *last == 8), "{json}");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let table = said.split("written to results.json\n").nth(1).unwrap_or_default();
    let row = table.lines().find(|line| line.starts_with("two_head: 8 replicas"));
    assert!(row.is_some_and(|row| row.ends_with("not measured")), "{said}");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("time ran out: two_head on ["), "{ended:?}");
    assert!(errors.contains("all that ran is right"), "{ended:?}");
}

fn the_script_says_what_it_does_not_know() {
    let folder = unpacked();
    let wrong: [(&[&str], &str); 5] = [
        (&["run", "--nothing"], "run does not know --nothing"),
        (&["run", "--models"], "parameter"),
        (&["pack"], "pack takes a file to write"),
        (&["pack", "out.tar.gz", "--nothing"], "pack does not know --nothing"),
        (&["run", "--fake", "no/such/folder"], "no/such/folder"),
    ];
    for (args, wanted) in wrong {
        let ended = script(folder.path(), args);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains(wanted), "{args:?}: {ended:?}");
    }
    let help = script(folder.path(), &[]);
    let said = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(said.contains("--fake DIR") && said.contains("NVRTC is taken"), "{said}");
}
