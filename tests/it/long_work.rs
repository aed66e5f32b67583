//! What training, evaluation and inference say of themselves.

use std::fs;

use crate::fit_cli::{good, path, two_head};

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
    let (out, said) = good(&[&begin[..], &aim, &how, &kept, &ends].concat());
    let said = steady(&said).replace(&path(folder.path(), ""), "");
    let epochs = out.lines().count();
    let head = "training zoo:two_head on 2 virtual devices of the CPU, 9 epochs
  data: 30 rows of train.npz, 4 batches of up to 8 rows; 10 rows validate
  parameters: ";
    assert!(said.contains(head), "{said}");
    assert!(
        said.contains(
            "\n  files: run (the last and the best checkpoint), w.safetensors, log.csv\n"
        )
    );
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
         w.safetensors, log.csv\n",
        epochs - 2
    );
    assert!(said.ends_with(&files), "{said}");
    assert!(out.lines().nth(2).unwrap().contains("  learning_rate 25  "), "{out}");
    assert!(!out.lines().nth(1).unwrap().contains("learning_rate"), "{out}");
    let log = fs::read_to_string(at("log.csv")).unwrap();
    assert!(log.lines().nth(1).unwrap().starts_with("1,"), "{log}");
    // A run that has ended says so.
    let (_, said) = good(&["fit", "zoo:two_head", "--resume", &at("run"), "--epochs", "2"]);
    assert!(said.contains(&format!(", 2 epochs, after epoch {epochs}\n")), "{said}");
    assert!(said.contains("trained 0 epochs in ") && said.contains("the run had all 2 epochs"));
}

#[test]
fn evaluation_and_inference_say_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (_, test) = two_head(folder.path());
    let data = ["--data", &test, "--batch", "4"];
    let lines = |args: &[&str]| steady(&good(args).1).replace(&path(folder.path(), ""), "");
    let said = lines(&[&["evaluate", "zoo:two_head", "--loss", "score=mse"][..], &data].concat());
    assert_eq!(
        said,
        "evaluating zoo:two_head on the CPU\n  data: 10 rows of test.npz, 3 batches of up to 4 \
         rows\nevaluated 10 rows in # s, # rows/s\n"
    );
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
