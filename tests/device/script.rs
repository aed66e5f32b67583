//! `tests/gpu/check.sh` with the fake driver in place of a GPU: as the pack is run, with next to nothing to measure.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use libtest_mimic::Trial;
use serde_json::Value;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    vec![
        trial("the_script_proves_and_measures", the_script_proves_and_measures),
        trial("the_script_says_what_it_does_not_know", the_script_says_what_it_does_not_know),
    ]
}

/// Runs the script in an unpacked folder.
fn script(folder: &Path, args: &[&str]) -> Output {
    Command::new("sh").arg(folder.join("check.sh")).args(args).current_dir(folder).output().unwrap()
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

fn the_script_proves_and_measures() {
    let folder = unpacked();
    let fake = std::env::var("FANWISE_FAKE").unwrap();
    let bounds = ["--models", "two_head", "--batch", "4", "--repeat", "1", "--bytes", "262144"];
    let tests = ["--tests", "small_two_head", "--limit", "300", "--json", "out.json"];
    let args: Vec<&str> = ["run", "--fake", &fake].into_iter().chain(bounds).chain(tests).collect();
    let ended = script(folder.path(), &args);
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("test small_two_head ... ok"), "{said}");
    // The table comes last.
    let table = said.split("written to out.json\n").nth(1).unwrap_or_default();
    for wanted in
        ["device ", "driver ", "host to device", "two_head: cold start", "two_head: 8 replicas"]
    {
        assert!(table.contains(wanted), "{wanted}: {said}");
    }
    let json = std::fs::read_to_string(folder.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["commit"], "0123abc");
    for text in ["date", "device", "arch", "driver", "nvrtc"] {
        assert!(json[text].as_str().is_some_and(|text| text.len() > 2), "{text}: {json}");
    }
    for rate in ["copy", "memory", "upload", "download"] {
        let found = json["ceilings"][format!("{rate}_bytes_per_second")].as_f64();
        assert!(found.is_some_and(|rate| rate > 0.0), "{rate}: {json}");
    }
    let model = &json["models"]["two_head"];
    assert!(model["kernels"].as_array().is_some_and(|kernels| !kernels.is_empty()), "{json}");
    for count in ["1", "2", "4", "8"] {
        assert!(model["replicas"][count]["seconds"].as_f64() > Some(0.0), "{json}");
    }
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
