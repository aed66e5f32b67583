//! The cases of the package `onnx`: each is a small model, its inputs and what they give. The
//! command `fanwise test` runs them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fanwise::format::onnx::{ImportOptions, import_bytes};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use support::snap;

/// The folder of the data that the package brings.
fn data() -> PathBuf {
    std::env::var_os("FANWISE_ONNX_DATA").expect("run `cargo xtask test`").into()
}

/// Cases whose expected values are written with four digits.
const FOUR_DIGITS: [&str; 3] = [
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
    "test_roialign_aligned_false",
    "test_roialign_aligned_true",
];

/// A case that was run.
struct Case {
    /// The folder of its model.
    name: String,
    result: String,
    /// Why it did not pass.
    reason: String,
}

/// The cases of a folder, with further arguments.
fn run(folder: &Path, args: &[&str]) -> Vec<Case> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    let output = command.arg("test").arg(folder).args(["--format", "json"]).args(args).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let json: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let case = |case: &Value| {
        let text = |key: &str| case[key].as_str().unwrap_or_default().to_owned();
        let path = PathBuf::from(text("folder"));
        let folder = path.ancestors().find(|path| path.join("model.onnx").exists());
        let name = folder.and_then(Path::file_name).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        Case { name, result: text("result"), reason: text("reason") }
    };
    json["cases"].as_array().unwrap().iter().map(case).collect()
}

/// A reason without the names of the case.
fn category(reason: &str) -> String {
    let (_, reason) = reason.split_once("]: ").unwrap_or(("", reason));
    let mut text = String::new();
    for (i, part) in reason.split('`').enumerate() {
        // Every other part is quoted.
        if i % 2 == 0 || text.ends_with("attribute ") {
            text.push_str(part);
        }
    }
    if let Some(listed) = text.strip_prefix("operators that are not supported: ") {
        // Of each operator its name, a colon and its nodes.
        let names = listed.split_whitespace().filter_map(|word| word.strip_suffix(':'));
        return format!("operators {}", names.collect::<Vec<_>>().join(" "));
    }
    text.replace("the node of  (", "").replace("):", ":").replace("input :", "input:")
}

/// Runs all cases of a set and compares which of them pass and which are refused with the snapshot.
fn run_set(set: &str) {
    let folder = data().join(set);
    let mut cases = run(&folder, &[]);
    for case in cases.iter_mut().filter(|case| FOUR_DIGITS.contains(&&*case.name)) {
        assert_eq!(case.result, "failed", "{}", case.name);
        let again = run(&folder.join(&case.name), &["--tolerance", "1e-3"]);
        case.result.clone_from(&again[0].result);
    }
    let (mut passed, mut refused) = (Vec::new(), BTreeMap::<String, Vec<&str>>::new());
    let mut wrong = String::new();
    for Case { name, result, reason } in &cases {
        match &**result {
            "passed" => passed.push(name),
            "refused" => refused.entry(category(reason)).or_default().push(name),
            _ => writeln!(wrong, "{name}: {reason}").unwrap(),
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    let mut text = format!("{} cases, {} passed\n", cases.len(), passed.len());
    for name in &passed {
        writeln!(text, "  {name}").unwrap();
    }
    for (reason, names) in &refused {
        writeln!(text, "refused: {reason}").unwrap();
        for name in names {
            writeln!(text, "  {name}").unwrap();
        }
    }
    snap::assert("onnx", set, &text);
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn node_cases() {
    run_set("node");
}

/// Where a leading size is proved to be a batch, three devices give the bits of one.
#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn node_cases_on_three_devices() {
    let cases = run(&data().join("node"), &["--gpus", "3"]);
    let wrong = |case: &&Case| case.result == "failed" && !FOUR_DIGITS.contains(&&*case.name);
    let wrong: Vec<String> =
        cases.iter().filter(wrong).map(|case| format!("{}: {}", case.name, case.reason)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let passed = cases.iter().filter(|case| case.result == "passed").count();
    assert!(passed >= 1090, "{passed} of {}", cases.len());
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn converted_models() {
    run_set("pytorch-converted");
    run_set("pytorch-operator");
    run_set("simple");
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn real_models_import() {
    let mut models: Vec<PathBuf> =
        fs::read_dir(data().join("light")).unwrap().map(|e| e.unwrap().path()).collect();
    models.retain(|m| m.extension().is_some_and(|e| e == "onnx"));
    models.sort();
    assert_eq!(models.len(), 9);
    let mut text = String::new();
    for path in models {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for free_batch in [false, true] {
            let options = ImportOptions { free_batch, ..ImportOptions::default() };
            let model = import_bytes(fs::read(&path).unwrap().into(), &name, &options)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let graph = &model.graph;
            let types = |value| graph.ty(value).to_string();
            let inputs: Vec<String> = graph.inputs().map(types).collect();
            let outputs: Vec<String> = graph.outputs().iter().map(|o| types(o.value)).collect();
            let (inputs, outputs) = (inputs.join(" "), outputs.join(" "));
            writeln!(text, "{name}: {} nodes, {inputs} -> {outputs}", graph.len()).unwrap();
        }
    }
    snap::assert("onnx", "light", &text);
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn damaged_real_models_are_models_or_errors() {
    let whole = fs::read(data().join("light/light_squeezenet.onnx")).unwrap();
    let options = ImportOptions { max_memory: 1 << 24, ..ImportOptions::default() };
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for i in 0..1000 {
        let mut bytes = whole.clone();
        if i % 4 == 0 {
            bytes.truncate(rng.random_range(0..whole.len()));
        } else {
            for _ in 0..rng.random_range(1..16) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
        }
        // Either result is right; a panic or a hang is not.
        drop(import_bytes(bytes.into(), "damaged", &options).map_err(|e| e.to_string()));
    }
}
