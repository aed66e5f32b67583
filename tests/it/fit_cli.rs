//! Training from the command line: what a run writes, and how it goes on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fanwise::format::{Budget, npz};
use fanwise::types::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) fn command(binary: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(args).env_remove("RUST_BACKTRACE");
    command
}

fn fanwise(args: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_fanwise"), args).output().unwrap()
}

pub(crate) fn good(args: &[&str]) -> (String, String) {
    let output = fanwise(args);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

pub(crate) fn refused(args: &[&str]) -> String {
    let output = fanwise(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", texts(&output).0);
    texts(&output).1
}

pub(crate) fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// Data for `zoo:two_head`, the rows of one file and of another.
pub(crate) fn two_head(folder: &Path) -> (String, String) {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut write = |name: &str, rows: usize| {
        let mut random = |dims: &[usize]| {
            let count = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
            Tensor::new(dims, &values).unwrap()
        };
        let mut arrays = BTreeMap::new();
        for (name, size) in [("x", 8), ("aux", 2), ("score", 1)] {
            arrays.insert(name.to_owned(), random(&[rows, size]));
        }
        let classes: Vec<i64> = (0..rows).map(|row| i64::try_from(row % 3).unwrap()).collect();
        arrays.insert("logits".to_owned(), Tensor::new(&[rows], &classes).unwrap());
        let path = path(folder, name);
        npz::write(Path::new(&path), &arrays).unwrap();
        path
    };
    (write("train.npz", 30), write("test.npz", 10))
}

const LOSSES: &str =
    "logits=categorical_crossentropy:from_logits=true,smoothing=0.1,score=huber:delta=0.5";

/// What both runs are asked for, besides their files.
const SETTINGS: &str = "--loss-weight score=0.5 --metrics score=mae --metrics mse,logits=accuracy \
    --optimizer Adam:clipnorm=1 \
    --l2 0.0001,p*=0.001 --batch 8 --seed 7 --drop-last --gpus 3";

#[test]
fn a_run_goes_on_with_its_settings_and_refuses_others() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let run = |dir: &str, epochs: &str, save: &str, log: &str| {
        let files = ["--data", &train, "--validation", &test, "--checkpoint", dir];
        let results = ["--epochs", epochs, "--save", save, "--log", log];
        let settings: Vec<&str> = SETTINGS.split_whitespace().collect();
        let begin = ["fit", "zoo:two_head", "--loss", LOSSES];
        good(&[&begin[..], &settings, &files, &results].concat())
    };
    run(&at("a"), "4", &at("a.safetensors"), &at("a.csv"));
    run(&at("b"), "2", &at("b.safetensors"), &at("b.csv"));
    for (given, said) in [
        (["--batch", "9"], "`--batch 9` contradicts"),
        (["--optimizer", "sgd"], "which has `--optimizer Adam:clipnorm=1`"),
        (["--l2", "p*=0.001"], "which has `--l2 0.0001,p*=0.001`"),
        (["--metrics", "mae,mse"], "which has `--metrics score=mae,mse,logits=accuracy`"),
        (["--loss-weight", "score=1"], "which has `--loss-weight score=0.5`"),
        (["--freeze", "h.weight"], "which has none"),
        (["--constraint", "h.weight=non_neg"], "which has none"),
        (["--shuffle", "false"], "which has `--shuffle true`"),
        (["--data", &test], "the data is 10 rows of"),
    ] {
        let error =
            refused(&[&["fit", "zoo:two_head", "--resume", &at("b")][..], &given[..]].concat());
        assert!(error.contains(said), "{error}");
    }
    let same = "adam:clipnorm=1.0";
    let given = ["--epochs", "4", "--optimizer", same, "--metrics", "score=MAE,mse,logits=acc"];
    good(&[&["fit", "zoo:two_head", "--resume", &at("b")][..], &given[..]].concat());
    for name in ["safetensors", "csv"] {
        let read = |run: &str| fs::read(at(&format!("{run}.{name}"))).unwrap();
        assert!(read("a") == read("b"), "{name}");
    }
    let log = fs::read_to_string(at("a.csv")).unwrap();
    assert_eq!(log.lines().count(), 5);
    let own = ["val_logits_loss", "score_mean_absolute_error", "val_logits_accuracy"];
    assert!(own.iter().all(|name| log.contains(name)), "{log}");
    assert!(!log.contains("logits_mean_absolute_error") && !log.contains("score_accuracy"));
    // A checkpoint that somebody else made names a file anywhere.
    let state = at("b/state.json");
    let text = fs::read_to_string(&state).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = path(elsewhere.path(), "secret.csv");
    fs::write(&state, text.replace(&at("b.csv"), &secret)).unwrap();
    let again = ["fit", "zoo:two_head", "--resume", &at("b"), "--epochs", "5"];
    let error = refused(&again);
    assert!(error.contains(&format!("has `--log {secret}`")), "{error}");
    assert!(!Path::new(&secret).exists());
    good(&[&again[..], &["--log", &secret]].concat());
    assert!(Path::new(&secret).exists());
}

#[test]
fn a_run_may_watch_more_when_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--loss", "score=mse", "--learning-rate", "1e-9"];
    good(&[&begin[..], &["--data", &train, "--epochs", "2", "--checkpoint", &at("run")]].concat());
    let more = ["--validation", &test, "--keep", "best", "--save", &at("best.safetensors")];
    let again = ["fit", "zoo:two_head", "--resume", &at("run"), "--epochs", "3"];
    good(&[&again[..], &more, &["--log", &at("log.csv")]].concat());
    let log = fs::read_to_string(at("log.csv")).unwrap();
    let lines: Vec<Vec<&str>> = log.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["epoch", "loss", "val_loss", "learning_rate"], "{log}");
    assert!(lines.iter().all(|line| line.len() == 4), "{log}");
    assert!(lines[1][2].is_empty() && !lines[3][2].is_empty(), "{log}");
    // The best of a run is the best where it goes on and gets no better.
    let worse = ["--learning-rate", "50", "--monitor", "loss", "--keep", "best"];
    let data = ["--data", &train, "--checkpoint", &at("other"), "--epochs", "1"];
    good(&[&["fit", "zoo:two_head", "--loss", "score=mse"][..], &worse, &data].concat());
    let again = ["fit", "zoo:two_head", "--resume", &at("other"), "--epochs", "2"];
    good(&[&again[..], &["--save", &at("kept.safetensors")]].concat());
    let read = |file: &str| fs::read(at(file)).unwrap();
    assert!(read("kept.safetensors").len() == read("best.safetensors").len());
}

#[test]
fn another_kind_of_validation_than_that_of_the_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--loss", "score=mse", "--data", &train, "--epochs", "1"];
    for (dir, had, given) in [
        ("split", ["--validation-split", "0.2"], ["--validation", &test]),
        ("other", ["--validation", &test], ["--validation-split", "0.2"]),
    ] {
        good(&[&begin[..], &had, &["--checkpoint", &at(dir)]].concat());
        let again = ["fit", "zoo:two_head", "--resume", &at(dir), "--epochs", "2"];
        let error = refused(&[&again[..], &given].concat());
        let said = format!(
            "`{}` contradicts the run in {}, which has `{}`: it would train on other rows; leave \
             `{}` out to resume, or start a new run without `--resume`",
            given.join(" "),
            at(dir),
            had.join(" "),
            given[0]
        );
        assert!(error.contains(&said), "{error}");
        good(&again);
    }
    // Options of every command may stand before it.
    let (_, said) = good(&[
        "-q",
        "fit",
        "zoo:two_head",
        "--resume",
        &at("split"),
        "--epochs",
        "3",
        "--gpus",
        "2",
    ]);
    assert_eq!(said, "");
    // Nothing that is held back leaves the rows as they are.
    let none = ["--validation-split", "0", "--checkpoint", &at("none")];
    good(&[&begin[..], &none].concat());
    let again = ["fit", "zoo:two_head", "--resume", &at("none"), "--epochs", "2"];
    good(&[&again[..], &["--validation", &test]].concat());
}

#[test]
fn the_mean_of_a_loss_counts_what_the_loss_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    let begin = [
        "fit",
        "zoo:two_head",
        "--data",
        &train,
        "--epochs",
        "1",
        "--batch",
        "30",
        "--format",
        "json",
    ];
    let loss = "sparse_categorical_crossentropy:ignore_class=1";
    let (out, _) =
        good(&[&begin[..], &["--loss", &format!("logits={loss}"), "--metrics", loss]].concat());
    let epoch: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
    let metric = &epoch["sparse_categorical_crossentropy"];
    let (loss, metric) = (epoch["loss"].as_f64().unwrap(), metric.as_f64().unwrap());
    assert!((loss - metric).abs() < 1e-6 * loss, "{loss} and {metric}");
    // A setting behind a comma belongs to the metric before it.
    let loss = "sparse_categorical_crossentropy:ignore_class=1,from_logits=true";
    let metrics = format!("accuracy,{loss},top_2_accuracy");
    let more = ["--loss", &format!("logits={loss}"), "--metrics", &metrics];
    let (out, _) = good(&[&begin[..], &more].concat());
    let epoch: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
    let metric = &epoch["sparse_categorical_crossentropy"];
    let (loss, metric) = (epoch["loss"].as_f64().unwrap(), metric.as_f64().unwrap());
    assert!((loss - metric).abs() < 1e-6 * loss, "{loss} and {metric}");
    assert!(epoch["accuracy"].is_number() && epoch["top_2_accuracy"].is_number(), "{epoch}");
}

#[test]
fn weights_that_are_no_longer_finite_are_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--loss", "score=mse", "--epochs", "1", "--batch", "30"];
    let rate = ["--data", &train, "--learning-rate", "1e38", "--loss-weight", "score=1000"];
    let begin = [&begin[..], &rate].concat();
    for how in [["--save", &at("w.safetensors")], ["--checkpoint", &at("run")]] {
        let (out, error) = texts(&fanwise(&[&begin[..], &how].concat()));
        assert!(error.contains("is no longer finite"), "{out}{error}");
        assert!(!Path::new(how[1]).join("state.json").exists() && !Path::new(how[1]).is_file());
    }
}

#[test]
fn the_best_epoch_stays_and_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    // So large a rate makes the first epoch the best.
    let (out, _) = good(&[
        "fit",
        "zoo:two_head",
        "--data",
        &train,
        "--validation",
        &test,
        "--loss",
        "score=mse",
        "--optimizer",
        "sgd:global_clipnorm=1",
        "--learning-rate",
        "50",
        "--epochs",
        "9",
        "--checkpoint",
        &at("run"),
        "--keep",
        "best",
        "--early-stopping",
        "val_loss",
        "--patience",
        "2",
        "--save",
        &at("best.fan"),
        "--format",
        "json",
    ]);
    let epochs: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let losses: Vec<f64> = epochs.iter().map(|e| e["val_loss"].as_f64().unwrap()).collect();
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let best = losses.iter().position(|x| x.to_bits() == least.to_bits()).unwrap();
    assert_eq!(losses.len(), best + 3, "{losses:?}");
    let (out, _) = good(&[
        "evaluate",
        &at("best.fan"),
        "--data",
        &test,
        "--loss",
        "score=mse",
        "--format",
        "json",
    ]);
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["loss"].as_f64().unwrap().to_bits(), least.to_bits());
    // A run that has ended by itself has ended.
    good(&["fit", "zoo:two_head", "--resume", &at("run"), "--log", &at("again.csv")]);
    let log = fs::read_to_string(at("again.csv")).unwrap();
    assert_eq!(log.lines().count(), losses.len() + 1);
}

#[test]
fn the_best_epoch_is_found_anew_by_another_number() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let begin = ["fit", "zoo:two_head", "--data", &train, "--validation", &test];
    let aim = ["--loss", "score=mse", "--metrics", "mae", "--optimizer", "sgd:global_clipnorm=1"];
    let kept = ["--learning-rate", "50", "--checkpoint", &at("run"), "--keep", "best"];
    let (out, _) =
        good(&[&begin[..], &aim, &kept, &["--epochs", "3", "--format", "json"]].concat());
    let losses = out.lines().map(|line| -> f64 {
        let epoch: serde_json::Value = serde_json::from_str(line).unwrap();
        epoch["val_loss"].as_f64().unwrap()
    });
    let least = losses.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    let best = || -> (u64, String) {
        let text = fs::read_to_string(at("run/best/state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_str(&text).unwrap();
        let by = state["best_by"]["name"].as_str().unwrap().to_owned();
        (state["epoch"].as_u64().unwrap(), by)
    };
    assert_eq!(best(), (least as u64 + 1, "val_loss".to_owned()));
    let again = ["fit", "zoo:two_head", "--resume", &at("run")];
    let (_, said) = good(&[&again[..], &["--epochs", "4", "--monitor", "learning_rate"]].concat());
    let note = "note: the best epoch so far was chosen by `val_loss`; by `learning_rate`, the last \
        epoch counts as the best until a better one";
    assert!(said.contains(note), "{said}");
    // It never changes, so the epoch that is there when the run goes on stays the best.
    assert_eq!(best(), (3, "learning_rate".to_owned()));
    let (_, said) = good(&[&again[..], &["--epochs", "5"]].concat());
    assert!(!said.contains("the best epoch"), "{said}");
    assert_eq!(best(), (3, "learning_rate".to_owned()));
    // A checkpoint that does not say by what it is the best stays it.
    let state = at("run/best/state.json");
    let mut silent: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    silent.as_object_mut().unwrap().remove("best_by");
    fs::write(&state, silent.to_string()).unwrap();
    good(&[&again[..], &["--epochs", "6"]].concat());
    let silent: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    assert_eq!((silent["epoch"].as_u64(), silent.get("best_by")), (Some(3), None));
}

#[test]
fn weights_of_classes_are_weights_of_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    let mut arrays = npz::read(Path::new(&train), &mut Budget::new(1 << 20)).unwrap();
    let of_class = |class: &i64| [1.0f32, 0.25, 3.0][usize::try_from(*class).unwrap()];
    let weights: Vec<f32> = arrays["logits"].as_slice::<i64>().iter().map(of_class).collect();
    arrays.insert("sample_weight".to_owned(), Tensor::new(&[weights.len()], &weights).unwrap());
    npz::write(Path::new(&at("weighted.npz")), &arrays).unwrap();
    let run = |data: &str, log: &str, more: &[&str]| {
        let loss = "logits=sparse_categorical_crossentropy:from_logits=true";
        let args = ["fit", "zoo:two_head", "--data", data, "--loss", loss, "--log", log];
        good(&[&args[..], &["--epochs", "3", "--batch", "8"], more].concat());
        fs::read_to_string(log).unwrap()
    };
    let plain = run(&train, &at("plain.csv"), &[]);
    let rows = run(&at("weighted.npz"), &at("rows.csv"), &[]);
    let classes = run(&train, &at("classes.csv"), &["--class-weight", "1=0.25,2=3"]);
    assert_eq!(rows, classes);
    assert_ne!(plain, classes);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    let error = refused(&[
        "fit",
        "zoo:two_head",
        "--data",
        &train,
        "--loss",
        "score=mse",
        "--optimizer",
        "sgd",
        "--learning-rate",
        "1e30",
        "--epochs",
        "30",
    ]);
    assert!(error.contains("the loss became") && error.contains("of epoch"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let base = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse"];
    let with = |more: &[&str]| refused(&[&base[..], more].concat());
    let arrays = [("x".to_owned(), Tensor::new(&[1, 8], &[0.0f32; 8]).unwrap())];
    npz::write(Path::new(&at("other.npz")), &BTreeMap::from(arrays)).unwrap();
    for (more, said) in [
        (&["--validation", &at("other.npz")][..], "no array for"),
        (&["--keep", "best"], "require `--checkpoint` or `--resume`"),
        (&["--plot", "curves.png"], "ends in .svg"),
        (&["--augment", "flip"], "exactly one image input"),
        (&["--augment", "turn"], "`turn`"),
        (&["--loss-weight", "logits=2"], "`logits` has no loss"),
        (&["--freeze", "nothing"], "no parameter `nothing`"),
        (&["--l2", "none*=1"], "no trained parameter `none*` exists for a penalty"),
        (&["--constraint", "none*=non_neg"], "exists for a constraint"),
        (&["--constraint", "*=max_norm:axis=2"], "the constraint of `"),
        (&["--constraint", "*=maxnorm:max=2"], "has no setting `max`"),
        (&["--l1", "h*=-1"], "`h*=-1` is not a penalty"),
        (&["--metrics", "logits=mae"], "`logits` has no loss; outputs with a loss are score"),
        (&["--metrics", "acuracy"], "did you mean `accuracy`?"),
        (&["--optimizer", "adam:beta=1"], "adam has no setting `beta`"),
        (&["--class-weight", "0=-1"], "of at least 0"),
        (&["--class-weight", "0=1,0=2"], "class 0 is given twice"),
        (&["--resume", &at("nowhere")], "has no checkpoint"),
        (
            &["--monitor", "val_loss", "--checkpoint", &at("kept")],
            "unknown metric `val_loss`; an epoch has loss, learning_rate",
        ),
        (&["--validation", &test, "--early-stopping", "val_x"], "unknown metric `val_x`"),
    ] {
        let error = with(more);
        assert!(error.contains(said), "{more:?}: {error}");
    }
    let error = refused(&["fit", "zoo:two_head", "--data", &train]);
    assert!(error.contains("`--loss` is required"), "{error}");
    let error =
        refused(&["fit", "zoo:two_head", "--data", &train, "--loss", "score=huber:smoothing=1"]);
    assert!(error.contains("huber has no setting"), "{error}");
}

/// Files of the real layout of CIFAR-10 with few images, whose classes have colours of their own.
fn cifar(folder: &Path, images: [usize; 3]) {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let names = ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"];
    for (name, images) in names.into_iter().zip(images) {
        let mut bytes = Vec::new();
        for _ in 0..images {
            let class: u8 = rng.random_range(0..10);
            bytes.push(class);
            for channel in 0..3u8 {
                let base = class.wrapping_mul(23).wrapping_add(channel.wrapping_mul(70)) % 200;
                bytes.extend((0..1024).map(|_| base + rng.random_range(0..50)));
            }
        }
        assert_eq!(bytes.len(), images * 3073);
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// The experiment of MiniGoogLeNet on CIFAR-10: its schedule, optimizer and augmentation.
fn experiment(folder: &Path, name: &str, model: &str, sizes: &[&str]) -> Vec<String> {
    let at = |end: &str| path(folder, &format!("{name}.{end}"));
    let texts = [
        "fit",
        model,
        "--data",
        &path(folder, ""),
        "--validation",
        &path(folder, "test_batch.bin"),
        "--normalize",
        "mean",
        "--augment",
        "shift=0.1,flip",
        "--loss",
        "categorical_crossentropy",
        "--metrics",
        "accuracy",
        "--optimizer",
        "sgd:momentum=0.9",
        "--learning-rate",
        "0.005",
        "--schedule",
        "polynomial:epochs=70,power=1",
        "--gpus",
        "2",
        "--checkpoint",
        &at("run"),
        "--log",
        &at("csv"),
        "--plot",
        &at("svg"),
        "--save",
        &at("fan"),
        "--drop-last",
    ];
    texts.iter().chain(sizes).map(|text| (*text).to_owned()).collect()
}

#[test]
#[ignore = "runs the command line: cargo xtask test"]
fn mini_googlenet_on_cifar_goes_on_after_it_is_killed_at_any_moment() {
    let binary =
        std::env::var_os("FANWISE_BIN").expect("FANWISE_BIN is set: run `cargo xtask test`");
    let folder = tempfile::tempdir().unwrap();
    cifar(folder.path(), [24, 21, 9]);
    let model = "zoo:mini_googlenet:narrow=16";
    let sizes = ["--batch", "8", "--epochs", "4", "--checkpoint-every", "2"];
    let args = |args: &[String]| {
        let texts: Vec<&str> = args.iter().map(String::as_str).collect();
        command(&binary, &texts)
    };
    let began = Instant::now();
    let output = args(&experiment(folder.path(), "whole", model, &sizes)).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    let whole = began.elapsed();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let fresh = experiment(folder.path(), "killed", model, &sizes);
    let state = folder.path().join("killed.run").join("state.json");
    let resume = |folder: &Path| {
        ["fit", model, "--resume", &path(folder, "killed.run")].map(str::to_owned).to_vec()
    };
    let mut kills = 0;
    loop {
        let line = if state.exists() { resume(folder.path()) } else { fresh.clone() };
        let mut child = args(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Later runs get longer, so that there is an end.
        let part = rng.random_range(0.05..0.4) * (1.0 + f64::from(kills) / 8.0);
        let (until, began) = (whole.mul_f64(part), Instant::now());
        while child.try_wait().unwrap().is_none() && (kills >= 8 || began.elapsed() < until) {
            sleep(Duration::from_millis(2));
        }
        // What has ended is not killed.
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        if output.status.code().is_some() {
            assert!(output.status.success(), "{}", texts(&output).1);
            break;
        }
        kills += 1;
    }
    assert!(kills > 1, "{kills}");
    for end in ["safetensors", "fan", "csv", "svg"] {
        let read = |name: &str| fs::read(folder.path().join(format!("{name}.{end}"))).unwrap();
        let (one, other) = (read("whole"), read("killed"));
        let same = if end == "fan" {
            // The file names that of its weights.
            let text = String::from_utf8(other).unwrap();
            text.replace("killed.safetensors", "whole.safetensors").into_bytes() == one
        } else {
            other == one
        };
        assert!(same, "{end} after {kills} kills");
    }
    let log = fs::read_to_string(folder.path().join("whole.csv")).unwrap();
    assert_eq!(log.lines().count(), 5, "{log}");
    let last = log.lines().last().unwrap().rsplit_once(',').unwrap().1;
    let expected = 0.005 * (1.0 - 3.0 / 70.0);
    assert!((last.parse::<f64>().unwrap() - expected).abs() < 1e-12, "{log}");
}

/// A step of 64 rows for each of two devices, which a run that goes on has behind it; steps of
/// fewer rows go on as if they had not stopped.
#[test]
#[ignore = "runs the command line: cargo xtask test"]
fn mini_googlenet_of_full_width_trains_on_cifar_and_goes_on() {
    let binary =
        std::env::var_os("FANWISE_BIN").expect("FANWISE_BIN is set: run `cargo xtask test`");
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    cifar(folder.path(), [70, 63, 1]);
    let model = "zoo:mini_googlenet";
    let run = |args: &[&str]| {
        let output = command(&binary, args).output().unwrap();
        assert!(output.status.success(), "{}", texts(&output).1);
    };
    let train = |name: &str, batch: &str, epochs: &str| {
        let sizes = ["--batch", batch, "--epochs", epochs, "--steps-per-epoch", "1"];
        let args = experiment(folder.path(), name, model, &sizes);
        run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let resume = |name: &str, epochs: &str| {
        run(&["fit", model, "--resume", &at(&format!("{name}.run")), "--epochs", epochs]);
    };
    let read = |name: &str| fs::read(at(name)).unwrap();
    train("wide", "128", "1");
    let weights = read("wide.safetensors");
    fs::remove_file(at("wide.safetensors")).unwrap();
    resume("wide", "1");
    assert!(read("wide.safetensors") == weights);
    let log = fs::read_to_string(at("wide.csv")).unwrap();
    let loss: f64 = log.lines().last().unwrap().split(',').nth(1).unwrap().parse().unwrap();
    assert!((1.0..5.0).contains(&loss), "{log}");
    train("whole", "3", "2");
    train("halves", "3", "1");
    resume("halves", "2");
    for end in ["safetensors", "csv"] {
        assert!(read(&format!("whole.{end}")) == read(&format!("halves.{end}")), "{end}");
    }
}
