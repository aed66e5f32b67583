//! Whole models at full size, through the command line that `FANWISE_BIN` names; `cargo xtask test`
//! sets it.

use std::fs;
use std::process::Command;

fn fanwise(args: &[&str]) -> (i32, String) {
    let binary =
        std::env::var_os("FANWISE_BIN").expect("FANWISE_BIN is set: run `cargo xtask test`");
    let output = Command::new(binary).args(args).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

#[test]
#[ignore = "runs the command line: cargo xtask test"]
fn every_model_of_the_zoo_is_equal_on_many_devices() {
    let all = [["3", "10"], ["8", "31"], ["8", "5"], ["2", "1"], ["4", "0"]];
    for (model, shapes) in [
        ("mini_googlenet", &all[..]),
        ("mobilenet_v2", &all[..2]),
        ("resnet50", &all[2..3]),
        ("xception", &all[2..]),
    ] {
        for [gpus, batch] in shapes {
            let model = format!("zoo:{model}");
            let (code, text) = fanwise(&["check", &model, "--gpus", gpus, "--batch", batch]);
            assert_eq!(code, 0, "{model} on {gpus} at {batch}: {text}");
        }
    }
}

#[test]
#[ignore = "runs the command line: cargo xtask test"]
fn the_printed_graph_of_xception_gives_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (code, graph) = fanwise(&[
        "compile",
        "zoo:xception",
        "--gpus",
        "8",
        "--emit",
        &format!("graph={}", at("x.fan")),
    ]);
    assert_eq!(code, 0, "{graph}");
    for (model, gpus, out) in [("zoo:xception", Some("8"), "a.npz"), (&at("x.fan"), None, "b.npz")]
    {
        let out = at(out);
        let mut args = vec!["run", model, "--batch", "9", "--outputs", &out];
        args.extend(gpus.iter().flat_map(|g| ["--gpus", g]));
        let (code, text) = fanwise(&args);
        assert_eq!(code, 0, "{text}");
    }
    assert_eq!(fs::read(at("a.npz")).expect("outputs"), fs::read(at("b.npz")).expect("outputs"));
}
