//! The command line as a user meets it: results, exit codes, messages, files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fanwise::format::npz;
use fanwise::types::Tensor;
use support::snap;

fn fanwise(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(args).env_remove("RUST_BACKTRACE").output().expect("the binary runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Standard output of a command that succeeds.
fn good(args: &[&str]) -> String {
    let output = fanwise(args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// Standard error of a command that is refused.
fn refused(args: &[&str]) -> String {
    let output = fanwise(args);
    assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty(), "{args:?}: {}", stdout(&output));
    stderr(&output)
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("a path in UTF-8").to_owned()
}

#[test]
fn every_small_model_is_equal_on_many_devices() {
    for model in ["zoo:mlp", "zoo:two_head", "zoo:siamese", "zoo:nested"] {
        for [gpus, batch] in
            [["3", "10"], ["8", "31"], ["8", "5"], ["2", "1"], ["4", "0"], ["5,0,3", "7"]]
        {
            for shards in ["remainder-last", "balanced", "ceil"] {
                good(&["check", model, "--gpus", gpus, "--batch", batch, "--shards", shards]);
            }
        }
        for rest in [
            ["--merge", "gpu"],
            ["--weights", "mirrored"],
            ["--weights", "cpu"],
            ["--threads", "3"],
        ] {
            good(
                &[&["check", model, "--gpus", "2", "--shards", "weighted:3,1"][..], &rest[..]]
                    .concat(),
            );
        }
    }
}

#[test]
fn an_emitted_graph_is_read_back_and_gives_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name| path(folder.path(), name);
    let run = |model: &str, out: &str, extra: &[&str]| {
        good(
            &[&["run", model, "--batch", "7", "--seed", "3", "--outputs", out][..], extra].concat(),
        );
        fs::read(out).expect("the outputs")
    };
    let direct = run("zoo:two_head", &at("a.npz"), &["--gpus", "3"]);
    let one = run("zoo:two_head", &at("b.npz"), &[]);
    assert_eq!(direct, one, "one device and three");
    fs::write(
        at("graph.fan"),
        good(&["compile", "zoo:two_head", "--gpus", "3", "--emit", "graph"]),
    )
    .expect("written");
    fs::write(
        at("graph.json"),
        good(&["compile", "zoo:two_head", "--gpus", "3", "--emit", "json"]),
    )
    .expect("written");
    let file = at("saved.fan");
    good(&["compile", "zoo:two_head", "--gpus", "3", "--emit", &format!("graph={file}")]);
    for graph in ["graph.fan", "graph.json", "saved.fan"] {
        assert_eq!(run(&at(graph), &at("c.npz"), &[]), direct, "{graph}");
    }
    let again = good(&["compile", &at("graph.fan"), "--emit", "graph"]);
    assert_eq!(
        again,
        fs::read_to_string(at("graph.fan")).expect("the graph"),
        "printing is canonical"
    );
}

#[test]
fn weights_that_changed_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = path(folder.path(), "g.fan");
    let text = good(&["compile", "zoo:mlp", "--gpus", "2", "--emit", "graph"]);
    let at = text.find("blake3:").expect("a hash") + "blake3:".len();
    let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
    let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    fs::write(&file, changed).expect("written");
    assert!(refused(&["run", &file]).contains("not those that the graph was made for"));
    fs::write(&file, text.replace("zoo:mlp#", "elsewhere.safetensors#")).expect("written");
    assert!(refused(&["run", &file]).contains("--params FILE"));
}

#[test]
fn refusals_say_what_was_asked_what_exists_and_what_to_try() {
    let mut text = String::new();
    for args in [
        &["run", "zoo:mlp", "--gpus", "0"][..],
        &["run", "zoo:mlp", "--gpus", "-2"],
        &["run", "zoo:mlp", "--gpus", "0,0"],
        &["run", "zoo:mlp", "--gpus", "0,-1"],
        &["run", "zoo:mlp", "--gpus", "all"],
        &["run", "zoo:mlp", "--gpus", "2", "--shards", "weighted:1"],
        &["run", "zoo:nothing"],
        &["run", "no_such_file.onnx"],
        &["run", "zoo:mlp", "--max-memory", "1K"],
        &["run", "zoo:mlp", "--inputs", "no_such_file.npz"],
        &["compile", "zoo:mlp", "--emit", "picture"],
        &["explain", "R0100"],
    ] {
        writeln!(text, "$ fanwise {}\n{}", args.join(" "), refused(args).trim_end())
            .expect("a string");
    }
    snap::assert("cli", "refusals", &text);
}

#[test]
fn help_has_examples() {
    let trains = ["fit", "evaluate", "predict"];
    let others = [
        "compile",
        "run",
        "check",
        "summary",
        "devices",
        "cache",
        "passes",
        "zoo",
        "completions",
        "man",
    ];
    for command in trains.into_iter().chain(others) {
        let help = good(&[command, "--help"]);
        assert!(help.contains("Example"), "{command}: {help}");
    }
    assert_eq!(code(&fanwise(&["no-such-command"])), 2);
    assert_eq!(code(&fanwise(&["run", "zoo:mlp", "--gpus", "x"])), 2);
}

#[test]
fn virtual_devices_are_announced() {
    let output = fanwise(&["run", "zoo:mlp", "--gpus", "8", "--batch", "3", "--format", "json"]);
    assert_eq!(code(&output), 0);
    assert!(stderr(&output).contains("8 virtual devices"), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(json["rows"], 3);
    assert_eq!(json["devices"].as_array().map(Vec::len), Some(9));
}

#[test]
fn summaries_and_lists() {
    snap::assert("cli", "summary_two_head", &good(&["summary", "zoo:two_head"]));
    snap::assert("cli", "passes", &good(&["passes"]));
    for args in [&["passes"][..], &["devices"], &["summary", "zoo:mlp"]] {
        let text = good(&[args, &["--format", "json"]].concat());
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    }
}

#[test]
fn rewritten_graphs_are_proved() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, other) = (path(folder.path(), "out.fan"), path(folder.path(), "other.fan"));
    good(&["compile", "zoo:two_head", "--gpus", "3", "--emit", &format!("graph={graph}")]);
    let proved = "proved: 3 replicas compute what the template does: 6 slices, 15 operators, \
                  18 copies, 2 merges\n";
    assert_eq!(good(&["verify", &graph]), proved);
    assert_eq!(good(&["verify", &graph, "--template", "zoo:two_head"]), proved);
    let json = good(&["verify", &graph, "--format", "json"]);
    assert!(json.contains("\"proved\":true") && json.contains("\"slices\":6"), "{json}");
    let text = fs::read_to_string(&graph).unwrap();
    fs::write(&other, text.replace("relu(%x.r1.d)", "tanh(%x.r1.d)")).unwrap();
    let output = fanwise(&["verify", &other]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.starts_with("error[P5]: %h.r1: the template has no such `tanh`"), "{said}");
    let output = fanwise(&["verify", &graph, "--template", "zoo:mlp"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.starts_with("error[P1]: the inputs are not those of the template\n"), "{said}");
}

#[test]
fn random_indices_that_an_exporter_computes_are_in_range() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/exported/keras_multi_io.onnx");
    for gpus in ["1", "2", "3"] {
        good(&["check", model, "--gpus", gpus, "--batch", "64"]);
    }
    good(&["run", model, "--gpus", "2", "--batch", "64"]);
}

/// A lookup for which no number from 0 on is valid.
const SHIFTED: &str = "fanwise 1
symbol N >= 0
graph @shifted(%x: i64[N]) -> (y: f32[N]) {
  %table : f32[3] = constant() {value=f32[3] [0.5, 1.5, 2.5]}
  %three : i64[] = constant() {value=i64[] [3]}
  %at : i64[N] = add(%x, %three)
  %y : f32[N] = gather(%table, %at) {axis=0}
  return %y
}
";

#[test]
fn inputs_of_a_file_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, inputs) = (path(folder.path(), "shifted.fan"), path(folder.path(), "in.npz"));
    fs::write(&model, SHIFTED).expect("the model");
    let hint = "note: the inputs are random, and integers count from 0; if the model accepts only \
        some values, pass them with `--inputs FILE.npz`";
    for command in ["run", "check"] {
        let error = refused(&[command, &model, "--gpus", "2"]);
        assert!(error.contains(hint) && error.contains("is outside an axis of 3"), "{error}");
    }
    let write = |numbers: &[i64]| {
        let x = Tensor::new(&[numbers.len()], numbers).expect("a tensor");
        npz::write(Path::new(&inputs), &BTreeMap::from([("x".to_owned(), x)])).expect("written");
    };
    write(&[-6, -3, -2, -1]);
    let told = good(&["check", &model, "--gpus", "2", "--inputs", &inputs]);
    assert!(told.ends_with("1 device and 2, 4 rows: equal in every bit\n"), "{told}");
    write(&[-6, 0]);
    let error = refused(&["check", &model, "--gpus", "2", "--inputs", &inputs]);
    assert!(!error.contains(hint) && error.contains("is outside an axis of 3"), "{error}");
    let both = fanwise(&["check", &model, "--inputs", &inputs, "--batch", "3"]);
    assert_eq!(code(&both), 2, "{}", stderr(&both));
}

#[test]
fn a_step_of_training_is_printed_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = path(folder.path(), "training.fan");
    let compile = |kind: &str, gpus: &[&str]| {
        let args = ["compile", "zoo:two_head", "--loss", "score=mse", "--emit", kind];
        fanwise(&[&args[..], gpus].concat())
    };
    for gpus in [&[][..], &["--gpus", "2"]] {
        assert_eq!(code(&compile(&format!("graph:training={file}"), gpus)), 0);
        let text = fs::read_to_string(&file).expect("the graph");
        assert!(text.contains("score.target") && text.contains("optimizer.step"), "{text}");
        assert_eq!(text.contains("all_reduce"), !gpus.is_empty(), "{text}");
        let graph = fanwise::ir::parse(&text).unwrap();
        assert!(fanwise::ir::verify(&graph).is_ok());
        // Its program is that of the graph as it is read back.
        for kind in ["program", "memory"] {
            let of_model = compile(&format!("{kind}:training"), gpus);
            assert_eq!(stdout(&of_model), good(&["compile", &file, "--emit", kind]), "{kind}");
        }
        for kind in ["json", "dot", "timeline", "cuda"] {
            let told = compile(&format!("{kind}:training"), gpus);
            let only_devices = stderr(&told).lines().all(|line| line.contains("virtual devices"));
            assert!(stdout(&told).len() > 1000 && only_devices, "{}", stderr(&told));
        }
    }
    // With folds it is shorter, and reads back to the same text.
    let folded = path(folder.path(), "folded.fan");
    let fold = ["--gpus", "6", "--fold"];
    assert_eq!(code(&compile(&format!("graph:training={folded}"), &fold)), 0);
    let whole = path(folder.path(), "whole.fan");
    assert_eq!(code(&compile(&format!("graph:training={whole}"), &fold[..2])), 0);
    let [short, long] = [&folded, &whole].map(|file| fs::read_to_string(file).expect("a graph"));
    assert!(short.starts_with("fanwise 1 folded\n") && short.len() < long.len() / 2, "{short}");
    let read = |file: &String| good(&["compile", file, "--emit", "graph:input", "--no-loc"]);
    assert_eq!(read(&folded).replace("folded", "whole"), read(&whole));
    let said = stderr(&compile("program", &[]));
    assert!(said.contains("note: `--loss` has no effect without `--emit KIND:training`"), "{said}");
    for kind in ["claims:training", "summary:training", "graph:input:training"] {
        let error = stderr(&compile(kind, &[]));
        assert!(error.contains("for training steps graph:training, json:training"), "{error}");
    }
}

#[test]
fn the_name_of_a_file_says_how_a_plan_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| path(folder.path(), name);
    let (svg, table, page) = (file("plan.svg"), file("plan.txt"), file("plan.html"));
    let (plain, arena) = (file("plan"), file("arena.HTML"));
    let kinds =
        format!("memory={svg},memory={table},timeline={page},memory={plain},memory={arena}");
    good(&["compile", "zoo:siamese", "--gpus", "2", "--batch", "6", "--emit", &kinds]);
    let read = |path: &str| fs::read_to_string(path).expect(path);
    let drawn = read(&svg);
    assert!(drawn.starts_with("<svg ") && drawn.contains("memory at 6 rows"), "{drawn}");
    assert!(read(&table).starts_with("memory of siamese at 6 rows"));
    assert_eq!(read(&plain), read(&table));
    let arena = read(&arena);
    assert!(arena.starts_with("<!DOCTYPE html>") && arena.contains("memory at 6 rows"));
    assert!(read(&page).starts_with("<!DOCTYPE html>") && read(&page).contains(">gpu:1 compute<"));
    let timeline = good(&["compile", "zoo:siamese", "--gpus", "2", "--emit", "timeline"]);
    assert!(timeline.starts_with("<svg "), "{timeline}");
}

/// Batch normalisation while training.
const BATCH_NORM: &str = "fanwise 1
symbol N >= 0
graph @training(%x: f32[N,4], %scale: f32[4], %bias: f32[4], %mean: f32[4], %var: f32[4]) -> (y: \
f32[N,4]) {
  %y : f32[N,4], %new_mean : f32[4], %new_var : f32[4] = batch_norm_train(%x, %scale, %bias, \
  %mean, %var)
  return %y
}
";

#[test]
fn statistics_are_those_that_are_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name| path(folder.path(), name);
    let model = at("norm.fan");
    fs::write(&model, BATCH_NORM).expect("the model");
    let on = |gpus: &'static str, statistics: &'static str| {
        ["check", &model, "--batch", "9", "--gpus", gpus, "--batch-norm", statistics]
            .map(str::to_owned)
    };
    let check = |args: [String; 8]| fanwise(&args.each_ref().map(String::as_str));
    for statistics in ["sync", "ghost:1", "ghost:4", "ghost:20"] {
        for gpus in ["1", "2", "3"] {
            let output = check(on(gpus, statistics));
            assert_eq!(code(&output), 0, "{statistics} on {gpus}: {}", stderr(&output));
        }
    }
    let note = stderr(&check(on("2", "ghost:4")));
    assert!(
        note.contains("note: statistics of 4 groups of rows, which gives other results"),
        "{note}"
    );
    let local = check(on("2", "local"));
    assert_eq!(code(&local), 2);
    assert!(stderr(&local).contains("there is nothing to compare"), "{}", stderr(&local));
    assert_eq!(code(&check(on("1", "local"))), 0);
    let wrong = check(on("2", "ghost:0"));
    assert_eq!(code(&wrong), 2);
    assert!(stderr(&wrong).contains("ghost:G with G groups of rows"), "{}", stderr(&wrong));
    // One device computes the same with the same groups, and something else with others.
    let run = |gpus: &str, statistics: &str, out: &str| {
        let args = ["run", &model, "--batch", "8", "--gpus", gpus, "--shards", "balanced"];
        good(&[&args[..], &["--batch-norm", statistics, "--outputs", out]].concat());
        fs::read(out).expect("the outputs")
    };
    let one = run("1", "ghost:4", &at("one.npz"));
    assert!(one == run("2", "ghost:4", &at("two.npz")), "whole groups: the same bits");
    assert!(one == run("4", "ghost:4", &at("four.npz")), "whole groups: the same bits");
    assert!(one != run("1", "ghost:2", &at("other.npz")));
    let graph = at("out.fan");
    let emit = format!("graph={graph}");
    good(&["compile", &model, "--gpus", "3", "--batch-norm", "ghost:4", "--emit", &emit]);
    good(&["verify", &graph, "--template", &model, "--batch-norm", "ghost:4"]);
    let other = fanwise(&["verify", &graph, "--template", &model, "--batch-norm", "ghost:2"]);
    assert_eq!(code(&other), 1, "{}", stderr(&other));
}

#[test]
fn groups_of_rows_behind_an_operator_that_mixes_samples() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = path(folder.path(), "mixed.fan");
    let mixed = BATCH_NORM
        .replace("  %y :", "  %p : f32[N,4] = softmax(%x) {axis=0}\n  %y :")
        .replace("batch_norm_train(%x,", "batch_norm_train(%p,");
    fs::write(&model, mixed).expect("the model");
    for gpus in ["1", "2", "3"] {
        let args = ["check", &model, "--batch", "9", "--gpus", gpus, "--repair", "comm"];
        let output = fanwise(&[&args[..], &["--batch-norm", "ghost:2"]].concat());
        assert_eq!(code(&output), 0, "on {gpus}: {}", stderr(&output));
    }
}

#[test]
fn a_choice_of_statistics_goes_before_that_of_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = path(folder.path(), "local.fan");
    let local = BATCH_NORM.replace("%mean, %var)\n", "%mean, %var) {local=true}\n");
    fs::write(&model, local).expect("the model");
    let check = |more: &[&str]| {
        fanwise(&[&["check", &model, "--batch", "9", "--gpus", "2"][..], more].concat())
    };
    for statistics in ["sync", "ghost:2"] {
        let output = check(&["--batch-norm", statistics]);
        assert_eq!(code(&output), 0, "{statistics}: {}", stderr(&output));
    }
    let output = check(&[]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("there is nothing to compare"), "{}", stderr(&output));
}

#[test]
fn repairs_are_told_where_the_model_is_split() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "m.fan");
    // Rows of two inputs, then each with all others: repaired alone, the first is of no use.
    let text = "fanwise 1\nsymbol N >= 0
graph @g(%a: f32[N,4], %b: f32[N,4]) -> (s: f32[2*N,2*N]) {
  %v : f32[2*N,4] = concat(%a, %b) {axis=0}
  %z : f32[2*N,4] = lp_norm(%v) {axis=1}
  %t : f32[4,2*N] = transpose(%z) {perm=[1, 0]}
  %s : f32[2*N,2*N] = matmul(%z, %t)
  return %s
}
";
    fs::write(&file, text).unwrap();
    let said = refused(&["check", &file, "--gpus", "3"]);
    assert!(said.contains("allow a repair that inserts all_gather of %z"), "{said}");
    assert!(!said.contains("for `z` (lp_norm)"), "{said}");
    let said = stderr(&fanwise(&["check", &file, "--gpus", "3", "--repair", "comm"]));
    assert_eq!(said.matches("all_gather of %z").count(), 1, "{said}");
}

#[test]
fn codes_are_listed_and_explained() {
    snap::assert("cli", "explain", &good(&["explain"]));
    let text = good(&["explain", "R0104"]);
    snap::assert("cli", "explain_r0104", &text);
    assert_eq!(good(&["explain", "r0104"]), text, "lower case");
    for line in good(&["explain"]).lines() {
        let (code, headline) = line.split_once("  ").expect("a code and its headline");
        let first = format!("# {code}: {headline}\n");
        assert!(good(&["explain", code]).starts_with(&first), "{code}");
    }
}

/// A profile has the operators of the program with their times, and on the CPU what part of the
/// machine's speed they reach.
#[test]
fn profiles_tell_where_the_time_goes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.json").to_string_lossy().into_owned();
    let run = ["run", "zoo:mini_googlenet:narrow=8", "--batch", "4", "--target", "cpu"];
    let more = ["--repeat", "3", "--gpus", "2"];
    let output = fanwise(&[&run[..], &more, &["--profile"]].concat());
    assert_eq!(code(&output), 0);
    let said = stderr(&output);
    let head = "profile of mini_googlenet on 2 devices, 2 runs after the first: ";
    let head = said.lines().find(|line| line.starts_with(head));
    assert!(head.is_some_and(|line| line.contains("; at most ")), "{said}");
    let operator = |name: &str| said.lines().find(|line| line.starts_with(name));
    let conv: Vec<&str> = operator("conv ").unwrap().split_whitespace().collect();
    // 19 convolutions on each of two devices.
    assert_eq!(conv[1], "38", "{said}");
    assert!(conv[4].ends_with('%') && conv[6].ends_with('%') && conv[8].ends_with('%'), "{said}");
    assert!(said.contains("gpu:1 ") && said.contains("copy"), "{said}");
    good(&[&run[..], &more, &[&format!("--profile={file}")]].concat());
    let read: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let [program] = &read["programs"].as_array().unwrap()[..] else { panic!("{read}") };
    assert_eq!(program["runs"], 2);
    let sum = |program: &serde_json::Value, of: &str| -> f64 {
        program["steps"].as_array().unwrap().iter().map(|step| step[of].as_f64().unwrap()).sum()
    };
    // 2 rows on each of two devices do what 4 rows on one do.
    let alone = folder.path().join("q.json").to_string_lossy().into_owned();
    good(&[&run[..], &[&format!("--profile={alone}")]].concat());
    let alone: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(alone).unwrap()).unwrap();
    let operations = sum(&alone["programs"][0], "operations");
    let apart = (sum(program, "operations") - operations).abs();
    assert!(operations > 1e6 && apart < 1e-6 * operations, "{operations}");
    assert!(sum(program, "seconds") > 0.0 && sum(program, "bytes") > 1e5);
    let refusal = refused(&[&run[..], &["--profile=p.svg"]].concat());
    assert!(refusal.contains("profiles are .json files"), "{refusal}");
    let refusal = refused(&[&run[..], &["--profile=/nowhere/p.json"]].concat());
    assert!(refusal.contains("the folder /nowhere does not exist"), "{refusal}");
}
