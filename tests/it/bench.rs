//! `fanwise bench`: what it measures, and what it refuses.

use std::process::{Command, Output};

use serde_json::Value;

use crate::python::set;

/// A model that Keras reads as well.
const KERAS: &str = "tests/fuzz/corpus/keras_file/mlp.keras";

fn bench(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.arg("bench").args(args.split(' ')).current_dir(support::root(""));
    command.env_remove("RUST_BACKTRACE").output().unwrap()
}

/// What is measured, as JSON.
fn measured(args: &str) -> Value {
    let Output { status, stdout, stderr } = bench(&format!("{args} --format json"));
    assert!(status.success(), "{args}: {}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

fn refused(args: &str) -> String {
    let Output { status, stderr, .. } = bench(args);
    assert_eq!(status.code(), Some(2), "{args}");
    String::from_utf8(stderr).unwrap()
}

fn names(case: &Value) -> Vec<&str> {
    case["measured"].as_array().unwrap().iter().map(|own| own["name"].as_str().unwrap()).collect()
}

/// Numbers of a case that hold for every machine.
fn check(case: &Value, rounds: usize) {
    let rows = case["rows"].as_f64().unwrap();
    for own in case["measured"].as_array().unwrap() {
        let number = |name: &str| own[name].as_f64().unwrap();
        let all = own["rounds"].as_array().unwrap();
        let mut all: Vec<f64> = all.iter().map(|round| round.as_f64().unwrap()).collect();
        all.sort_unstable_by(f64::total_cmp);
        assert_eq!(all.len(), rounds, "{own}");
        let (least, most) = (all[0], all[rounds - 1]);
        assert!(0.0 < least && (least..=most).contains(&number("seconds")), "{own}");
        let rate = rows / number("seconds");
        assert!((number("rows_per_second") / rate - 1.0).abs() < 1e-9, "{own}");
        assert!((number("spread") - (most - least) / number("seconds")).abs() < 1e-9, "{own}");
        assert!(number("speed") > 0.0 && number("memory_bytes") > 0.0, "{own}");
    }
    assert!((case["measured"][0]["speed"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{case}");
}

#[test]
fn devices_and_batches_are_measured_in_turn() {
    let all = measured("zoo:two_head zoo:mlp --gpus 3 --batch 1,7 --rounds 2 --threads 1");
    let cases = all["cases"].as_array().unwrap();
    let of: Vec<(&str, u64)> = cases
        .iter()
        .map(|case| (case["model"].as_str().unwrap(), case["rows"].as_u64().unwrap()))
        .collect();
    let expected = [("zoo:two_head", 1), ("zoo:two_head", 7), ("zoo:mlp", 1), ("zoo:mlp", 7)];
    assert_eq!(of, expected);
    for case in cases {
        check(case, 2);
        assert_eq!(names(case), ["fanwise", "fanwise, 3 devices"]);
    }
    // Twice the products of its three layers, and no more than the processor can.
    let (case, peak) = (&cases[3], all["peak_operations_per_second"].as_f64().unwrap());
    let own = &case["measured"][0];
    let products = 7.0 * 2.0 * (784.0 * 256.0 + 256.0 * 128.0 + 128.0 * 64.0 + 64.0 * 10.0);
    let share = products / own["seconds"].as_f64().unwrap() / peak;
    assert!((own["share_of_peak"].as_f64().unwrap() / share - 1.0).abs() < 1e-3, "{own}");
    assert_eq!(all["geometric_means"].as_array().unwrap().len(), 1);
    if cfg!(target_os = "linux") {
        assert_eq!(all["processors"].as_array().unwrap().len(), 1);
    }
    let text = bench("zoo:two_head --batch 4 --rounds 1 --train mse --optimizer adam");
    let text = String::from_utf8(text.stdout).unwrap();
    for part in ["\nzoo:two_head, 4 rows\nwhat ", "\nfanwise ", " 1 round, on "] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn other_programs_run_the_same_model() {
    let python = set("FANWISE_PYTHON").display().to_string();
    let with = format!("--rounds 2 --threads 1 --python {python}");
    for spec in ["zoo:two_head", "tests/models/exported/torch_script_convnet.onnx"] {
        let all = measured(&format!("{spec} --batch 3 --against onnxruntime {with}"));
        check(&all["cases"][0], 2);
        let names = names(&all["cases"][0]);
        let version = names[1].strip_prefix("onnxruntime ").unwrap();
        assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
    }
    for train in ["", " --train mse --optimizer sgd:momentum=0.9"] {
        let all = measured(&format!("{KERAS} --batch 3 --against jax {with}{train}"));
        check(&all["cases"][0], 2);
        let names = names(&all["cases"][0]);
        assert!(names[1].starts_with("jax ") && names[1].contains(", Keras "), "{names:?}");
    }
}

#[test]
fn what_cannot_be_measured_is_told_before() {
    for (args, says) in [
        ("zoo:mlp --trace t.json", "change what is measured"),
        ("zoo:mlp --against torch", "runs Keras files (.keras, .h5), and zoo:mlp is none"),
        ("zoo:mlp --against onnxruntime --train mse", "does not train"),
        ("zoo:mlp --against onnxruntime --python nowhere", "name a Python with `--python FILE`"),
        ("zoo:mlp --train nothing", "is not a loss"),
        ("zoo:mlp --train mse --optimizer nothing", "is not an optimizer"),
        ("zoo:mlp --batch 0", "0 is not in"),
        ("zoo:mlp --rounds 0", "0 is not in"),
        ("zoo:nothing", "unknown built-in model"),
    ] {
        let said = refused(args);
        assert!(said.contains(says), "{args}: {said}");
    }
}
