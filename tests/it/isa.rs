//! Every kind of vector instructions gives the same bits.

use std::process::Command;

use support::exported;
use support::turn::part;

/// Models with every kind of kernel, small enough for instructions without vectors.
pub(crate) const MODELS: [&str; 13] = [
    "gru",
    "lstm",
    "mini_googlenet:narrow=8",
    "mlp",
    "mobilenet_v2:narrow=16",
    "nested",
    "resnet50:narrow=16",
    "siamese",
    "transformer",
    "two_head",
    "unet:narrow=4",
    "video",
    "xception:narrow=16",
];

fn fanwise(args: &[&str]) -> (bool, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_fanwise")).args(args).output().unwrap();
    let said = if done.status.success() { done.stdout } else { done.stderr };
    (done.status.success(), String::from_utf8(said).unwrap())
}

/// What is compared, and whether this machine has it.
fn own_instructions() -> [(&'static str, bool); 3] {
    #[cfg(target_arch = "x86_64")]
    let (avx2, avx512) = (
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl"),
    );
    #[cfg(not(target_arch = "x86_64"))]
    let (avx2, avx512) = (false, false);
    [("portable", true), ("avx2", avx2), ("avx512", avx512)]
}

#[expect(clippy::print_stderr, reason = "what a test does not run is told")]
fn say(line: &str) {
    eprintln!("{line}");
}

#[test]
fn all_instructions_give_the_same_bits() {
    let own = own_instructions();
    for (name, _) in own.iter().filter(|(_, is_here)| !is_here) {
        say(&format!("not run by {name}: this machine lacks it"));
    }
    for (model, [gpus, rows, threads]) in part(exported::with_counts(&MODELS), 3, 0) {
        let sizes = ["--gpus", &gpus, "--batch", &rows, "--threads", &threads];
        let options = ["--target", "cpu", "--isa", "all", "--format", "json"];
        let (equal, said) = fanwise(&[&["check", &model][..], &sizes, &options].concat());
        assert!(equal, "{model}: {said}");
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let each = told["others"].as_object().unwrap();
        assert_eq!(each.len(), 3, "{model}: {said}");
        for (name, is_here) in own {
            // `null` of those that this machine lacks.
            let same = if is_here { true.into() } else { serde_json::Value::Null };
            assert_eq!(each[name], same, "{model} by {name}: {said}");
        }
    }
}

#[test]
fn instructions_that_are_not_there_are_refused_with_those_that_are() {
    let (ran, said) = fanwise(&["run", "zoo:mlp", "--isa", "neon"]);
    assert!(!ran && said.contains("expected portable, avx2 or avx512"), "{said}");
    let shown = fanwise(&["check", "zoo:mlp", "--isa", "all"]).1;
    for name in ["portable", "avx2", "avx512"] {
        let (ran, said) = fanwise(&["run", "zoo:mlp", "--target", "cpu", "--isa", name]);
        let is_here = !shown.contains(&format!("{name}: not run: this machine lacks it"));
        assert_eq!(ran, is_here, "{name}: {said}");
        assert!(is_here || said.contains("this machine lacks it; it has portable"), "{said}");
    }
}
