//! What the command line says of itself: help, completions, man pages, errors, notes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::snap;

const COMMANDS: [&str; 17] = [
    "compile",
    "run",
    "check",
    "bench",
    "test",
    "fit",
    "evaluate",
    "predict",
    "verify",
    "explain",
    "summary",
    "devices",
    "cache",
    "passes",
    "zoo",
    "completions",
    "man",
];

fn fanwise(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(args.split(' ').filter(|word| !word.is_empty()));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn good(args: &str) -> String {
    let Output { status, stdout, stderr } = fanwise(args).output().unwrap();
    assert!(status.success(), "{args}: {}", text(&stderr));
    text(&stdout)
}

fn stderr(command: &mut Command) -> String {
    text(&command.output().unwrap().stderr)
}

/// Standard error of a command that is refused.
fn refused(args: &str) -> String {
    let Output { status, stdout, stderr } = fanwise(args).output().unwrap();
    assert_eq!(status.code(), Some(2), "{args}: {}", text(&stdout));
    assert!(stdout.is_empty(), "{args}: {}", text(&stdout));
    text(&stderr)
}

/// The long options that a help lists.
fn options(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',']));
    words.filter(|word| word.starts_with("--")).collect()
}

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = good(&format!("completions {shell}"));
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("max-memory"), "{shell}");
    }
    let Ok(mut bash) = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn() else {
        // There is no bash to check the script with.
        return;
    };
    bash.stdin.take().unwrap().write_all(good("completions bash").as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success(), "bash rejects its script");
}

#[test]
fn every_command_has_a_man_page_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man");
    good(&format!("man --out {}", out.display()));
    let page = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(page("fanwise.1"), good("man"));
    for name in ["cache-list", "cache-clear"].into_iter().chain(COMMANDS) {
        let text = page(&format!("fanwise-{name}.1"));
        assert!(text.contains(".SH NAME"), "{name}");
        // Roff writes a hyphen as `\-`.
        let plain = text.replace("\\-", "-");
        for option in options(&good(&format!("{} --help", name.replace('-', " ")))) {
            // A value that may be left out follows the name in brackets.
            let name_of = option.split('[').next().unwrap();
            assert!(plain.contains(name_of), "{name}: {option}");
        }
    }
}

#[test]
fn all_options_stand_in_groups() {
    for command in ["compile", "run", "check", "fit", "evaluate", "predict"] {
        let help = good(&format!("{command} -h"));
        let own = help.split("\nOptions:\n").nth(1).unwrap();
        let common = options(own.split("\n\n").next().unwrap()).len();
        assert!((4..=14).contains(&common), "{command}: {common} options without a group");
        let end = help.find("\nGlobal options:\n").unwrap();
        assert!(help[end..].contains("--color"), "{command}");
    }
}

#[test]
fn the_version_has_the_commit_and_the_features() {
    let short = format!("fanwise {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(good("-V"), short);
    let long = good("--version");
    assert!(long.starts_with(short.trim_end()), "{long}");
    assert!(long.contains(" (") && long.contains("features: cli cpu "), "{long}");
}

#[test]
fn usual_names_of_commands_are_understood() {
    for (given, own) in [
        ("train", "fit"),
        ("eval", "evaluate"),
        ("infer", "predict"),
        ("inference", "predict"),
        ("export", "compile"),
        ("chek", "check"),
    ] {
        let said = refused(given);
        let wanted = format!("error: unknown command `{given}`; did you mean `{own}`?\n");
        assert!(said.starts_with(&wanted), "{said}");
    }
    assert!(refused("xyz").starts_with("error: unknown command `xyz`\n"));
}

/// The texts of errors, which people read.
#[test]
fn errors_of_the_command_line() {
    let mut texts = String::new();
    for args in [
        "run zoo:mlp --batch-axis x",
        "run zoo:mlp --batch-axis x=first",
        "run zoo:mlp --assume Custom",
        "run zoo:mlp --max-memory much",
        "run zoo:mlp --params-unchecked",
        "run zoo:mlp --code text",
        "run zoo:mlp --watchdog never",
        "run zoo:mlp --threads 0",
        "run zoo:mlp --target cpu --logical 2 --trace t.json",
        "run zoo:mlp --outputs out.txt",
        "run zoo:mlp --quiet --verbose",
        "compile zoo:mlp --emit graph=",
        "compile zoo:mlp --emit graph=a,json=a",
        "compile zoo:mlp --emit onnx",
        "compile zoo:mlp --emit summary:training",
        "compile zoo:mlp --target cpu --emit cuda",
        "fit zoo:mlp --loss mse",
        "fit zoo:mlp --keep best",
        "fit zoo:mlp --patience 3",
        "fit zoo:mlp --reproducible yes",
        "fit zoo:mlp --reproducible n-invariant --shards ceil",
        "fit zoo:mlp --resume nowhere",
        "fit zoo:mlp --save model.pb",
        "fit zoo:mlp --plot curves.png",
        "fit zoo:mlp --log nowhere/log.csv",
        "fit zoo:mlp --class-weight a",
        "fit zoo:mlp --loss-weight a",
        "fit zoo:mlp --class-axis a=last",
        "fit zoo:mlp --batch-norm-momentum 2",
        "fit zoo:mlp --min-delta -1",
        "fit zoo:mlp --augment turn",
        "fit zoo:mlp --normalize all",
        "fit zoo:mlp --layout rows",
        "evaluate zoo:mlp --data x.npz --normalize mean",
        "predict zoo:mlp --data x.npz --outputs out.txt",
        "explain E9999",
        "zoo none",
    ] {
        let said = refused(args);
        let said = said.trim_end();
        writeln!(texts, "$ fanwise {args}\n{said}").unwrap();
    }
    snap::assert("cli", "errors", &texts);
}

/// The texts of notes on options that have no effect, and on devices.
#[test]
fn notes_of_the_command_line() {
    let mut texts = String::new();
    for args in [
        "compile zoo:mlp --arch sm_90 --batch 3 --no-loc --loss mse --learning-rate 1",
        "run zoo:mlp --shards ceil --weights cpu --target cpu",
        "run zoo:mlp --code ptx --watchdog 3 --target cpu",
        "run zoo:mlp --gpus 3 --batch 2 --target cpu",
        "run zoo:mlp --dim rows=3",
    ] {
        writeln!(texts, "$ fanwise {args}\n{}", stderr(&mut fanwise(args)).trim_end()).unwrap();
    }
    snap::assert("cli", "notes", &texts);
}

#[test]
fn diagnostics_are_coloured_where_that_is_wanted() {
    let args = "run zoo:mlp --gpus all";
    let coloured = stderr(&mut fanwise(&format!("{args} --color always")));
    snap::assert("cli", "colours", &coloured.replace('\u{1b}', "<ESC>"));
    let plain = stderr(&mut fanwise(args));
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let forced = |command: &mut Command| stderr(command.env("CLICOLOR_FORCE", "1"));
    assert_eq!(forced(&mut fanwise(args)), coloured);
    assert_eq!(forced(&mut fanwise(&format!("{args} --color never"))), plain);
    assert_eq!(forced(fanwise(args).env("NO_COLOR", "1")), plain);
    // The choice holds for usage errors, too.
    assert!(stderr(&mut fanwise("run --color=always --foo")).contains('\u{1b}'));
}

#[test]
fn errors_are_json_where_results_are() {
    let object = |args: &str| -> Value { serde_json::from_str(&refused(args)).expect(args) };
    let error = object("run zoo:mlp --max-memory 1K --format json");
    let expected = json!({ "error": {
        "code": "E0101",
        "message": "zoo:mlp has 971048 bytes; the limit is 1024",
        "hints": [{
            "advice": "raise the memory limit (`--max-memory`)",
            "setting": "max_memory",
            "option": "--max-memory",
            "values": [],
        }],
    } });
    assert_eq!(error, expected);
    let usage = object("run zoo:mlp --format json --gpsu 2");
    assert!(usage["error"]["code"].is_null(), "{usage}");
    let message = usage["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("unexpected argument '--gpsu' found"), "{usage}");
    assert!(!message.contains("Usage:") && !message.contains("For more"), "{usage}");
    let unknown = object("train zoo:mlp --format=json");
    assert_eq!(unknown["error"]["message"], "unknown command `train`; did you mean `fit`?");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("sum.fan");
    let graph = "fanwise 1\nsymbol N >= 0\ngraph @sum(%x: f32[N,4]) -> (y: f32[N,4]) {\n  \
        %y : f32[N,4] = cumsum(%x) {axis=0}\n  return %y\n}\n";
    fs::write(&model, graph).unwrap();
    let args = format!("run {} --gpus 2 --quiet --format json", model.display());
    let error = object(&args);
    assert_eq!(error["error"]["code"], "R0105", "{error}");
    let hints = error["error"]["hints"].as_array().unwrap();
    let repair = hints.iter().find(|hint| hint["setting"] == "repair").expect("a repair");
    assert_eq!((&repair["option"], &repair["values"]), (&json!("--repair"), &json!(["comm"])));
}

#[test]
fn notes_and_stages_are_told_on_demand() {
    let said = |args: &str| stderr(&mut fanwise(&format!("run zoo:mlp --gpus 2 {args}")));
    assert!(said("").contains("note: "));
    assert_eq!(said("--quiet"), "");
    assert_eq!(stderr(&mut fanwise("-q run zoo:mlp --gpus 2")), "");
    let verbose = said("-v");
    let stages: Vec<&str> = verbose
        .lines()
        .filter_map(|line| line.strip_prefix("stage: ")?.split(' ').next())
        .collect();
    assert_eq!(stages, ["load", "repair", "replicate", "prove", "lower", "compile"], "{verbose}");
    assert!(refused("-q run zoo:none").starts_with("error[E0103]"));
}

#[test]
fn the_zoo_is_listed_without_building_and_names_have_no_case() {
    let names: Vec<&str> = fanwise::zoo::names().collect();
    let list = good("zoo");
    assert_eq!(list.lines().count(), names.len());
    for name in names {
        assert!(list.contains(&format!("zoo:{name} ")), "{name}");
    }
    let listed: Value = serde_json::from_str(&good("zoo --format json")).unwrap();
    assert!(listed.as_array().unwrap().iter().all(|m| m["about"].is_string()), "{listed}");
    assert!(good("zoo SiamesE").contains("zoo:siamese         161"), "{}", good("zoo SiamesE"));
    let graph = |model: &str| good(&format!("compile {model} --emit graph"));
    assert_eq!(graph("zoo:Two_Head"), graph("zoo:two_head"));
    assert_eq!(graph("zoo:NESTED:narrow=2"), graph("zoo:nested:narrow=2"));
}

#[test]
fn every_error_has_causes_and_a_way_out() {
    let list = good("explain");
    let codes: Vec<&str> = list.lines().filter_map(|line| line.split("  ").next()).collect();
    let errors: Vec<&&str> = codes.iter().filter(|code| code.starts_with('E')).collect();
    assert!(errors.len() > 30, "{list}");
    for code in errors {
        let text = good(&format!("explain {}", code.to_lowercase()));
        assert!(text.starts_with(&format!("# {code}: ")), "{text}");
        for part in ["\n\nCommon causes:\n- ", "\n\nWhat to do:\n- "] {
            assert!(text.contains(part), "{text}");
        }
    }
}
