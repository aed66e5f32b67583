//! What training, evaluation and inference say of themselves.

use std::collections::BTreeMap;
use std::fs;
#[cfg(unix)]
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
#[cfg(unix)]
use std::process::{Child, Command, Stdio};
#[cfg(unix)]
use std::time::Duration;

use fanwise::format::{Budget, npz};
use fanwise::ir::{Builder, Origin};
use fanwise::model::{self, GraphForm};
use fanwise::op::{BatchNorm, MatMul, Unary};
use fanwise::types::{DType, Tensor};

use crate::fit_cli::{command, good, path, refused, texts, two_head};
#[cfg(unix)]
use crate::python::python;

/// Text without times and rates.
fn steady(text: &str) -> String {
    let timed = |word: &str| word.parse::<f64>().is_ok() && word.contains('.');
    let lines = text.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let kept = words.iter().enumerate().map(|(i, word)| {
            let next = words.get(i + 1).map_or("", |next| next.trim_end_matches([',', ';']));
            if next == "rows/s" || next == "s" && timed(word) { "#" } else { word }
        });
        kept.collect::<Vec<_>>().join(" ") + "\n"
    });
    lines.collect()
}

#[test]
fn a_run_says_what_it_does_and_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--data", &train, "--validation", &test, "--batch", "8"];
    let aim = ["--loss", "score=mse", "--optimizer", "sgd:global_clipnorm=1", "--gpus", "2"];
    let how = ["--learning-rate", "50", "--epochs", "9", "--schedule", "step:every=2,factor=0.5"];
    let kept = ["--checkpoint", &at("run"), "--keep", "best", "--log", &at("log.csv")];
    let ends = ["--early-stopping", "val_loss", "--patience", "2", "--save", &at("w.safetensors")];
    let profile = format!("--profile={}", at("p.json"));
    let told = ["--timeline", &at("t.svg"), "--trace", &at("t.json"), &profile];
    let (out, said) = good(&[&begin[..], &aim, &how, &kept, &ends, &told].concat());
    let said = steady(&said).replace(&path(folder.path(), ""), "");
    let epochs = out.lines().count();
    let head = "training zoo:two_head on 2 virtual devices of the CPU, 9 epochs
  data: 30 rows of train.npz, 4 batches of up to 8 rows; 10 rows validate
  parameters: ";
    assert!(said.contains(head), "{said}");
    assert!(said.contains(
        "\n  files: run (the last and the best checkpoint), w.safetensors, log.csv, t.json, t.svg, \
             p.json\n"
    ));
    let ended = format!(
        "trained {epochs} epochs in # s; stopped before epoch {} because `val_loss` has not \
         improved for 2 epochs\n  best epoch: {}, val_loss ",
        epochs + 1,
        epochs - 2
    );
    assert!(said.contains(&ended), "{said}");
    assert!(said.contains("\n  learning rate: 50, 25 from epoch 3"), "{said}");
    let files = format!(
        "\n  files: run (checkpoint of epoch {epochs}), run/best (checkpoint of epoch {}), \
         w.safetensors, log.csv, t.json, t.svg, p.json\n",
        epochs - 2
    );
    assert!(said.ends_with(&files), "{said}");
    assert!(out.lines().nth(2).unwrap().contains("  learning_rate 25  "), "{out}");
    assert!(!out.lines().nth(1).unwrap().contains("learning_rate"), "{out}");
    let log = fs::read_to_string(at("log.csv")).unwrap();
    assert!(log.lines().nth(1).unwrap().starts_with("1,"), "{log}");
    // A run that has ended says so.
    let again = |all: usize| {
        ["fit", "--resume", &at("run"), "--epochs", &all.to_string()].map(str::to_owned)
    };
    let (_, said) = good(&again(epochs).each_ref().map(String::as_str));
    for part in [
        format!("has all its epochs, {epochs}; give `--epochs N` with a number above {epochs}"),
        format!(", {epochs} epochs, after epoch {epochs}\n"),
        "trained 0 epochs in ".to_owned(),
        format!("the run had them before: {epochs} epochs"),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    let error = refused(&again(epochs - 1).each_ref().map(String::as_str));
    assert!(error.contains(&format!("is less than the {epochs} epochs that the run")), "{error}");
}

#[test]
fn evaluation_and_inference_say_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (_, test) = two_head(folder.path());
    let data = ["--data", &test, "--batch", "4"];
    let lines = |args: &[&str]| steady(&good(args).1).replace(&path(folder.path(), ""), "");
    let evaluate = ["evaluate", "zoo:two_head", "--loss", "score=mse"];
    let head = "evaluating zoo:two_head on the CPU\n  data: 10 rows of test.npz, 3 batches of up \
                to 4 rows\n";
    let said = lines(&[&evaluate[..], &data].concat());
    assert_eq!(said, format!("{head}evaluated 10 rows in # s, # rows/s\n"));
    let said = lines(&[&evaluate[..], &data, &["--trace", &at("t.json")]].concat());
    let end = "  files: t.json\nevaluated 10 rows in # s, # rows/s; wrote t.json\n";
    assert_eq!(said, format!("{head}{end}"));
    let outputs = at("out.npz");
    let predict = ["predict", "zoo:two_head", "--outputs", &outputs];
    let said = lines(&[&predict[..], &data].concat());
    assert_eq!(
        said,
        "predicting with zoo:two_head on the CPU\n  data: 10 rows of test.npz, 3 batches of up to \
         4 rows\n  files: out.npz\npredicted 10 rows in # s, # rows/s; wrote out.npz\n"
    );
    assert!(lines(&[&predict[..], &data, &["-q"]].concat()).is_empty());
}

#[test]
fn a_checkpoint_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--data", &train, "--validation", &test, "--batch", "8"];
    let aim = ["--loss", "score=mse", "--metrics", "mae", "--l2", "0.1", "--freeze", "logits*"];
    let kept = ["--checkpoint", &at("run"), "--save", &at("m.fan"), "--epochs", "2"];
    let (out, _) = good(&[&begin[..], &aim, &kept, &["--format", "json"]].concat());
    let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let data = ["--data", &test, "--batch", "8"];
    let evaluated = |more: &[&str]| {
        let begin = ["evaluate", &at("run"), "--format", "json"];
        let (out, said) = good(&[&begin[..], &data, more].concat());
        (serde_json::from_str::<serde_json::Value>(&out).unwrap(), said)
    };
    // What it is to be told by is that of the run, unless a loss is given.
    let (found, said) = evaluated(&[]);
    assert!(said.contains("\n  as in its run: --loss score=mse --metrics mae --l2 0.1\n"));
    let metric = ["mean_absolute_error", "val_mean_absolute_error"];
    assert_eq!([&found["loss"], &found[metric[0]]], [&last["val_loss"], &last[metric[1]]]);
    let (given, said) = evaluated(&["--metrics", "mse"]);
    assert!(said.contains("\n  as in its run: --loss score=mse --l2 0.1\n"), "{said}");
    assert_eq!(given["loss"], found["loss"]);
    let (given, said) = evaluated(&["--loss", "score=mse"]);
    assert!(!said.contains("as in its run") && given["loss"] != found["loss"], "{said}");
    // It computes what the saved model does.
    let outputs = |model: &str, name: &str| {
        let args = ["predict", model, "--outputs", &at(name)];
        good(&[&args[..], &data].concat());
        fs::read(at(name)).unwrap()
    };
    assert!(outputs(&at("run"), "a.npz") == outputs(&at("m.fan"), "b.npz"));
    let ran = |model: &str, name: &str| {
        good(&["run", model, "--gpus", "2", "--batch", "5", "--outputs", &at(name)]);
        fs::read(at(name)).unwrap()
    };
    assert!(ran(&at("run"), "c.npz") == ran(&at("m.fan"), "d.npz"));
    let inputs = ["run", &at("run"), "--inputs", &at("in.npz"), "--format", "json"];
    let arrays = npz::read(Path::new(&test), &mut Budget::new(1 << 20)).unwrap();
    let inputs_of = |name: &str| ["x", "aux"].contains(&name);
    let arrays = arrays.into_iter().filter(|(name, _)| inputs_of(name)).collect();
    npz::write(Path::new(&at("in.npz")), &arrays).unwrap();
    let (out, _) = good(&inputs);
    assert!(out.starts_with("{\"rows\":10") || out.contains("\"rows\":10"), "{out}");
    let (table, _) = good(&["summary", &at("run")]);
    assert_eq!(table, good(&["summary", &at("m.fan")]).0);
    let (proof, _) = good(&["verify", &at("run")]);
    assert_eq!(proof, "proved: the graph is the model itself\n");
    // A graph that is compiled from it keeps its weights.
    good(&["compile", &at("run"), "--gpus", "2", "--emit", &format!("graph={}", at("g.fan"))]);
    good(&["run", &at("g.fan"), "--batch", "5", "--outputs", &at("e.npz")]);
    assert!(fs::read(at("e.npz")).unwrap() == fs::read(at("c.npz")).unwrap());
    let error = refused(&["fit", &at("run"), "--data", &train, "--loss", "score=mse"]);
    assert!(error.contains("run is a checkpoint: `fanwise fit --resume"), "{error}");
    let error = refused(&["run", &at("run"), "--params", &at("m.safetensors")]);
    assert!(error.contains("`--params` excludes a checkpoint"), "{error}");
}

#[test]
fn a_run_goes_on_without_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let weights = at("w.safetensors");
    let begin = ["fit", "zoo:two_head", "--data", &train, "--validation", &test, "--batch", "8"];
    let aim = ["--loss", "score=mse", "--params", &weights];
    let run = |more: &[&str]| good(&[&begin[..], &aim[..2], more].concat());
    run(&["--epochs", "1", "--save", &weights]);
    let run = |more: &[&str]| good(&[&begin[..], &aim[..], more].concat());
    run(&["--epochs", "3", "--save", &at("a.safetensors")]);
    run(&["--epochs", "1", "--save", &at("b.safetensors"), "--checkpoint", &at("run")]);
    let (_, said) = good(&["fit", "--resume", &at("run"), "--epochs", "3"]);
    assert!(said.contains("training zoo:two_head on the CPU, 3 epochs, after epoch 1"), "{said}");
    let read = |name: &str| fs::read(at(name)).unwrap();
    assert!(read("a.safetensors") == read("b.safetensors"));
    let error = refused(&["fit", "--data", &train, "--loss", "mse"]);
    assert!(error.contains("<MODEL>"), "{error}");
    // The checkpoint of a version that did not keep it.
    let state = at("run/state.json");
    let mut old: serde_json::Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    old["settings"].as_object_mut().unwrap().remove("model").unwrap();
    fs::write(&state, old.to_string()).unwrap();
    let error = refused(&["fit", "--resume", &at("run")]);
    assert!(error.contains("name it, `fanwise fit MODEL --resume "), "{error}");
    let error = refused(&["evaluate", &at("run"), "--data", &test, "--loss", "score=mse"]);
    assert!(error.contains("does not say which model it is of"), "{error}");
}

/// Starts a command in a folder.
#[cfg(unix)]
fn spawned(folder: &Path, args: &[&str]) -> Child {
    let mut command = command(env!("CARGO_BIN_EXE_fanwise"), args);
    command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts a training that takes long, and waits until its first epoch has ended.
#[cfg(unix)]
fn started(folder: &Path, more: &[&str]) -> Child {
    let (train, _) = two_head(folder);
    let begin = ["fit", "zoo:two_head", "--data", &train, "--batch", "8", "--loss", "score=mse"];
    let mut child = spawned(folder, &[&begin[..], more].concat());
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("epoch 1/"), "{line}");
    // The rest is read, so that the child does not wait for somebody to do so.
    std::thread::spawn(move || drop(std::io::copy(&mut out, &mut std::io::sink())));
    child
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn an_interrupted_preparation_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    // Weights of a large model are made after the folder, which some meet while it is tried.
    let args = ["fit", "zoo:xception", "--data", &train, "--loss", "cce", "--checkpoint", "a/b"];
    for before in [false, true].repeat(8) {
        let folder = tempfile::tempdir().unwrap();
        if before {
            fs::create_dir(folder.path().join("a")).unwrap();
        }
        let mut child = spawned(folder.path(), &args);
        while !folder.path().join("a/b").exists() {
            assert!(child.try_wait().unwrap().is_none());
        }
        signal(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        let said = texts(&output).1;
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.ends_with("began: nothing was trained, and no file written\n"), "{said}");
        // A folder that was there stays.
        let left = [folder.path().join("a/b").exists(), folder.path().join("a").exists()];
        assert_eq!(left, [false, before]);
    }
}

#[test]
fn a_refused_training_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    // The number is looked for when the folder has been tried.
    let begin = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse"];
    let checkpoint = ["--checkpoint", &at("a/b"), "--keep", "best", "--monitor", "other"];
    let error = refused(&[&begin[..], &checkpoint].concat());
    assert!(error.contains("`other`"), "{error}");
    assert!(!Path::new(&at("a")).exists());
}

#[test]
fn what_a_resumed_run_is_given_belongs_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    fs::copy(&train, at("moved.npz")).unwrap();
    let begin = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse"];
    good(&[&begin[..], &["--checkpoint", &at("run"), "--keep", "best", "--epochs", "2"]].concat());
    let error = refused(&["fit", "--resume", &at("run/best"), "--epochs", "3"]);
    assert!(error.contains("run/best is a part of the run in "), "{error}");
    assert!(!Path::new(&at("run/best/best")).exists());
    // The folder of the run is its model.
    let again = ["fit", &at("run"), "--resume", &at("run"), "--epochs"];
    let (_, said) = good(&[&again[..], &["3"]].concat());
    assert!(!said.contains("note: the run") && said.contains("after epoch 2"), "{said}");
    let (_, said) = good(&[&again[..], &["4", "--keep", "every"]].concat());
    assert!(said.contains("keeps the checkpoints from epoch 4 on"), "{said}");
    let (_, said) = good(&[&again[..], &["5", "--keep", "every"]].concat());
    assert!(said.contains("keeps the checkpoints from epoch 4 on"), "{said}");
    fs::remove_file(&train).unwrap();
    let error = refused(&[&again[..], &["6"]].concat());
    assert!(error.contains("or name it where it is with `--data FILE`"), "{error}");
    good(&[&again[..], &["6", "--data", &at("moved.npz")]].concat());
    // A damaged run goes on from a part of it.
    fs::write(at("run/state.json"), "{").unwrap();
    let of_part = ["fit", "--resume", &at("run/epoch-5"), "--epochs", "6"];
    good(&[&of_part[..], &["--data", &at("moved.npz")]].concat());
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_keeps_a_checkpoint_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    for (name, more) in [
        ("run", &["--checkpoint", "run"][..]),
        ("fanwise-interrupted", &[]),
        ("fanwise-interrupted-2", &[]),
    ] {
        let child = started(folder.path(), &[more, &["--epochs", "1000000"]].concat());
        signal(&child, if name == "run" { "-INT" } else { "-TERM" });
        let output = child.wait_with_output().unwrap();
        let said = texts(&output).1;
        assert_eq!(output.status.code(), Some(130), "{said}");
        let end = format!("; the checkpoint is in {name}\nto go on: fanwise fit --resume {name}\n");
        assert!(said.ends_with(&end) && said.contains("interrupted after "), "{said}");
        // It goes on where it ended, with the bits of a run that was not interrupted.
        let state: serde_json::Value =
            serde_json::from_slice(&fs::read(at(&format!("{name}/state.json"))).unwrap()).unwrap();
        let epochs = (state["epoch"].as_u64().unwrap() + 1).to_string();
        let saved = at(&format!("{name}.safetensors"));
        good(&["fit", "--resume", &at(name), "--epochs", &epochs, "--save", &saved]);
        let whole = at("whole.safetensors");
        let train = at("train.npz");
        let begin = ["fit", "zoo:two_head", "--data", &train, "--batch", "8"];
        let aim = ["--loss", "score=mse", "--epochs", &epochs, "--save", &whole];
        good(&[&begin[..], &aim].concat());
        assert!(fs::read(saved).unwrap() == fs::read(whole).unwrap(), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_second_interruption_ends_a_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    // A full pipe, which nobody reads: the run does not get past the line of its first epoch.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filled = writer.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut std::io::repeat(b'.'), &mut filled));
    let begin = ["fit", "zoo:two_head", "--data", &train, "--batch", "30", "--loss", "score=mse"];
    let files = ["--epochs", "1000000", "--checkpoint", "run", "--checkpoint-every", "1"];
    let mut command = command(env!("CARGO_BIN_EXE_fanwise"), &[&begin[..], &files].concat());
    command.current_dir(folder.path()).stdout(writer).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The checkpoint of the only batch of the epoch, behind which the run listens to signals
    // again after that line alone.
    while !folder.path().join("run/state.json").exists() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut err = BufReader::new(child.stderr.take().unwrap());
    signal(&child, "-INT");
    let mut said = String::new();
    while !said.contains("press Ctrl-C again to end it at once") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    signal(&child, "-INT");
    err.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("ended at once; the last checkpoint is in run\nto go on: "), "{said}");
    drop(reader);
}

#[cfg(unix)]
#[test]
fn a_training_goes_on_when_nobody_reads_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let begin = ["fit", "zoo:two_head", "--data", &train, "--batch", "8", "--loss", "score=mse"];
    let files = ["--checkpoint", "run", "--save", "w.safetensors", "--epochs", "9"];
    let mut command = command(env!("CARGO_BIN_EXE_fanwise"), &[&begin[..], &files].concat());
    command.current_dir(folder.path()).stdout(writer).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let said = texts(&output).1;
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.ends_with("run (checkpoint of epoch 9), w.safetensors\n"), "{said}");
    assert!(folder.path().join("w.safetensors").exists());
}

/// The rows of a file so many times, in another file.
#[cfg(unix)]
fn repeated(from: &str, to: &str, times: usize) {
    let arrays = npz::read(Path::new(from), &mut Budget::new(1 << 20)).unwrap();
    let arrays = arrays.into_iter().map(|(name, tensor)| {
        let dims = [&[tensor.dims()[0] * times][..], &tensor.dims()[1..]].concat();
        let all = if tensor.dtype() == DType::I64 {
            Tensor::new(&dims, &tensor.as_slice::<i64>().repeat(times))
        } else {
            Tensor::new(&dims, &tensor.as_slice::<f32>().repeat(times))
        };
        (name, all.unwrap())
    });
    npz::write(Path::new(to), &arrays.collect()).unwrap();
}

#[cfg(unix)]
#[test]
fn an_interrupted_validation_ends_and_the_files_that_are_missing_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    // The epoch has 30 batches, its validation 12,000.
    repeated(&test, &at("many.npz"), 1200);
    let begin = ["fit", "zoo:two_head", "--data", &train, "--validation", &at("many.npz")];
    let aim = ["--batch", "1", "--loss", "score=mse", "--checkpoint", "run"];
    let files = ["--checkpoint-every", "30", "--save", "w.safetensors", "--log", "log.csv"];
    let fit = |args: &[&str]| spawned(folder.path(), args);
    let mut child = fit(&[&begin[..], &aim, &files].concat());
    let (mut said, mut err) = (String::new(), BufReader::new(child.stderr.take().unwrap()));
    // The checkpoint of the last batch, behind which there is the validation alone.
    while !folder.path().join("run/state.json").exists() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(&child, "-INT");
    err.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    let end = "interrupted in the validation of epoch 1; the checkpoint is in run\n\
        not written yet: w.safetensors, log.csv\nto go on: fanwise fit --resume run\n";
    assert!(said.ends_with(end), "{said}");
    let missing = |name: &str| !folder.path().join(name).exists();
    assert!(missing("w.safetensors") && missing("log.csv"));
    // What goes on trains no more, and validates anew.
    let (out, said) = texts(&fit(&["fit", "--resume", "run"]).wait_with_output().unwrap());
    assert!(said.contains("after batch 30 of epoch 1"), "{said}");
    assert!(out.starts_with("epoch 1/1  ") && out.contains("val_loss"), "{out}{said}");
    assert!(!missing("w.safetensors") && !missing("log.csv"));
}

#[test]
fn a_timeline_that_cannot_be_written_loses_no_training() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    let saved = at("w.safetensors");
    let begin = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse"];
    let begin = [&begin[..], &["--target", "cpu", "--save", &saved]].concat();
    for (option, name) in [("--timeline", "t.svg"), ("--trace", "t.json")] {
        for nowhere in [&at("nowhere"), "/dev/null"] {
            let error = refused(&[&begin[..], &[option, &format!("{nowhere}/{name}")]].concat());
            assert!(error.contains(&format!("{nowhere} does not exist")), "{error}");
        }
    }
    let error = refused(&[&begin[..], &["--trace", &at("")]].concat());
    assert!(error.contains("the file of `--trace` cannot be written"), "{error}");
    assert!(!Path::new(&saved).exists());
    // A folder of this name comes with the first epoch.
    let kept = ["--checkpoint", &at("run"), "--keep", "best", "--trace", &at("run/best")];
    let error = refused(&[&begin[..], &kept].concat());
    assert!(error.contains("error[E0110]: cannot write") && error.contains("run/best"), "{error}");
    assert!(error.contains("trained 1 epoch in") && Path::new(&saved).exists(), "{error}");
}

#[test]
fn an_epoch_that_has_begun_is_one_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = path(folder.path(), "run");
    let (train, _) = two_head(folder.path());
    good(&["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse", "--checkpoint", &run]);
    // As it is left within the next epoch.
    let state = path(folder.path(), "run/state.json");
    let text = fs::read_to_string(&state).unwrap();
    assert!(text.contains("\"step\": 0,"), "{text}");
    fs::write(&state, text.replace("\"step\": 0,", "\"step\": 1,")).unwrap();
    let error = refused(&["fit", "--resume", &run]);
    let begun = "has: epoch 2 has begun; give a number above 1 to go on";
    assert!(error.contains("`--epochs 1` is less than the 2 epochs") && error.contains(begun));
}

#[test]
fn a_damaged_checkpoint_names_the_folder_that_it_is_named_in() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse"];
    good(&[&begin[..], &["--checkpoint", &at("run"), "--keep", "best"]].concat());
    fs::write(at("run/best/state.json"), "{").unwrap();
    let mut command = command(env!("CARGO_BIN_EXE_fanwise"), &["fit", "--resume", "best"]);
    let (_, error) = texts(&command.current_dir(at("run")).output().unwrap());
    let way = "use the checkpoint in ., after epoch 1, which is whole, and remove best";
    assert!(error.contains(way), "{error}");
}

/// Bars of an epoch, and of rows where work takes longer than a second, are drawn over and over in
/// a terminal, and are gone in the end.
#[cfg(unix)]
#[test]
#[ignore = "needs Python: cargo xtask test"]
fn work_shows_bars_in_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    let shown = |args: &[&str]| {
        let words = [&[env!("CARGO_BIN_EXE_fanwise")][..], args, &["zoo:two_head"]].concat();
        python("terminal.py", &words.iter().map(Path::new).collect::<Vec<_>>())
    };
    let fit = ["fit", "--data", &train, "--batch", "2", "--loss", "score=mse", "--epochs", "2"];
    let said = shown(&fit);
    for part in ["epoch 1/2 █", "/15  loss ", " rows/s", "epoch 2/2  loss "] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("0/0"), "{said}");
    let (many, rows) = (path(folder.path(), "many.npz"), 120_000);
    let arrays = [("x", 8), ("aux", 2), ("score", 1)].map(|(name, width)| {
        (name.to_owned(), Tensor::new(&[rows, width], &vec![0.5f32; rows * width]).unwrap())
    });
    npz::write(Path::new(&many), &BTreeMap::from(arrays)).unwrap();
    let predict = ["predict", "--outputs", &path(folder.path(), "out.npz")];
    for own in [predict, ["evaluate", "--loss", "score=mse"]] {
        let said = shown(&[&own[..], &["--data", &many, "--batch", "1"]].concat());
        let ended = said.split_once("ed 120000 rows in").unwrap();
        assert!(ended.0.contains("% ") && ended.0.contains(" left"), "{said}");
        assert!(ended.0.contains("█") && !ended.1.contains("█"), "{said}");
    }
}

/// A model that normalises its batches, whose validation has the statistics of its beginning.
#[test]
fn statistics_that_have_hardly_moved_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let mut b = Builder::new("normal");
    let x = b.input("x", "f32[N,1]".parse().unwrap());
    let [scale, bias, mean, var] = [("scale", 1.0f32), ("bias", 0.0), ("mean", 0.0), ("var", 1.0)]
        .map(|(name, value)| b.param(name, Tensor::new(&[1], &[value]).unwrap()));
    let y = b.op("y", BatchNorm::default(), &[x, scale, bias, mean, var]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    model::save(Path::new(&at("n.fan")), &graph, &weights, GraphForm::Text).unwrap();
    let rows: Vec<f32> = (0..8u8).map(|i| 100.0 + f32::from(i)).collect();
    let targets: Vec<f32> = (0..8u8).map(|i| f32::from(i) / 2.0 - 1.75).collect();
    let arrays = [("x", rows), ("y", targets)]
        .map(|(name, values)| (name.to_owned(), Tensor::new(&[8, 1], &values).unwrap()));
    npz::write(Path::new(&at("d.npz")), &BTreeMap::from(arrays)).unwrap();
    let (model, data) = (at("n.fan"), at("d.npz"));
    let args = ["fit", &model, "--data", &data, "--validation", &data, "--loss", "mse"];
    let train = |epochs: &str| good(&[&args[..], &["--epochs", epochs]].concat()).1;
    let said = train("2");
    assert!(said.contains("note: validation is far from training, `val_loss` is "), "{said}");
    assert!(said.contains(", which have gone 2 % of their way in 2 batches at a"), "{said}");
    let said = train("600");
    assert!(!said.contains("far from training"), "{said}");
}

/// A model with a layer that overflows for inputs above 88, and its weights beside it.
fn overflowing(folder: &Path) -> String {
    let mut b = Builder::new("steep");
    let x = b.input("x", "f32[N,2]".parse().unwrap());
    b.set_origin(Origin(Some("steep".into())));
    let steep = b.op("e", Unary::Exp, &[x]).unwrap();
    b.set_origin(Origin(Some("head".into())));
    let w = b.param("w", Tensor::new(&[2, 1], &[0.5f32, 0.25]).unwrap());
    let y = b.op("y", MatMul {}, &[steep, w]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    let file = path(folder, "steep.fan");
    model::save(Path::new(&file), &graph, &weights, GraphForm::Text).unwrap();
    file
}

#[test]
fn a_loss_that_is_no_number_names_where_it_began() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let model = overflowing(folder.path());
    let rows = |name: &str, x: [f32; 4]| {
        let arrays = [("x", Tensor::new(&[2, 2], &x)), ("y", Tensor::new(&[2, 1], &[1.0f32, 2.0]))];
        let arrays = arrays.map(|(name, tensor)| (name.to_owned(), tensor.unwrap()));
        npz::write(Path::new(&at(name)), &BTreeMap::from(arrays)).unwrap();
        at(name)
    };
    let error = |data: &str, more: &[&str]| {
        let args = ["fit", &model, "--data", data, "--loss", "mse", "--shuffle", "false"];
        refused(&[&args[..], &["--optimizer", "sgd", "--epochs", "9"], more].concat())
    };
    for gpus in ["1", "2"] {
        let said = error(&rows("steep.npz", [1.0, 2.0, 1.0, 100.0]), &["--gpus", gpus]);
        let expected = "the loss became inf at batch 1 of epoch 1: it began in the layer `steep`, \
            at its `exp`, whose result is not finite while its operands are; try";
        assert!(said.contains(expected), "{said}");
    }
    let every = ["--batch", "1", "--checkpoint", &at("run"), "--checkpoint-every", "1"];
    let (said, run) = (error(&at("steep.npz"), &every), at("run"));
    let way = format!("`fanwise compile {run} --emit graph=restart.fan`, then `fanwise fit ");
    assert!(said.contains("after batch 1 of epoch 1 stays in ") && said.contains(&way), "{said}");
    let good = rows("good.npz", [1.0, 2.0, 1.0, 1.0]);
    let said = error(&good, &["--learning-rate", "1e38"]);
    let step = "it began in the step before, after which `w` held infinities or NaN; try a lower";
    let loss = "of the loss, whose result is not finite while its operands are";
    assert!(said.contains(step) || said.contains(loss), "{said}");
}
