//! Every command of the front page and of the book runs, and prints what its page shows.

mod given;
mod shown;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use fanwise::format::{Budget, npz};

use crate::fit_cli::texts;
use crate::python::set;
use given::{Of, Place};
use shown::{Shown, of_page};

/// Commands that do not run here, by how they begin, and why.
const EXCUSED: [(&str, &str); 21] = [
    ("cargo xtask", "runs the tests"),
    ("cargo test", "runs the tests"),
    ("cargo build", "builds what the tests run"),
    ("cargo bench", "takes minutes"),
    ("cargo doc", "opens a browser; the lints build the pages"),
    ("cargo fuzz", "needs a nightly compiler"),
    ("cargo install", "installs; `cargo xtask full package` does so"),
    ("cargo add", "changes a package; `cargo xtask full package` does so"),
    ("cargo run --example", "tests of their own run the examples"),
    ("cargo run -p expect", "a test compares what it prints"),
    ("FANWISE_BIN=", "runs the tests"),
    ("FANWISE_PYTHON=", "runs the tests"),
    ("pip install", "installs; `cargo xtask full package` and environments of tests do so"),
    ("maturin build", "builds a wheel; `cargo xtask full package` does so"),
    ("python3 -m venv", "installs; the tests make environments in this way"),
    ("python3 examples/digits.py", "needs scikit-learn; a test of its own runs it"),
    ("~/fanwise/bin/pip", "installs; `cargo xtask full package` and `full r` do so"),
    ("R CMD INSTALL", "installs; the tests of the package for R do so"),
    ("export RETICULATE_PYTHON=", "a shell keeps it"),
    ("tests/gpu/check.sh pack", "packs the tests on a GPU"),
    ("tar xzf", "runs the tests on a GPU"),
];

/// Blocks of text that show no command, by page and beginning, and what they are.
const OTHERS: [(&str, &str, &str); 9] = [
    ("docs/architecture.md", " front ends", "a drawing"),
    ("docs/claims.md", "%", "claims, which the tests of the examples compare"),
    ("docs/data.md", "impl Source for Mine", "Rust"),
    ("docs/data.md", "let mean", "Rust"),
    ("docs/ir.md", "file      =", "a grammar"),
    ("docs/ir.md", "  repeat 0..2", "a part of a folded text"),
    ("docs/onnx.md", "resnet50/model.onnx", "names of files"),
    ("docs/performance.md", "12500 nodes onto 8", "what a bench printed"),
    ("docs/training.md", "let training", "Rust"),
];

/// Models of the pages that a change does not wait for, and those that run in their place.
const SMALLER: [(&str, &str); 3] = [
    ("zoo:mini_googlenet", "zoo:mini_googlenet:narrow=8"),
    ("zoo:xception", "zoo:xception:narrow=8,pixels=71"),
    ("zoo:resnet50", "zoo:resnet50:narrow=8"),
];

/// Settings of training that takes hours, and those that run in their place.
const SHORTER: [(&str, &str, &str); 3] =
    [("--epochs", "70", "1"), ("--epochs", "10", "1"), ("--batch", "256", "8")];

/// Commands of full-size models that run in their [`SMALLER`] and [`SHORTER`] form alone, by how
/// they begin, and why.
const LASTING: [(&str, &str); 1] = [("fanwise fit zoo:mini_googlenet ", "trains for hours")];

/// What stands for something on a page, and what is given for it.
const NAMES: [(&str, &str); 10] = [
    ("MODEL", "model.onnx"),
    ("GRAPH", "out.fan"),
    ("DATA", "test.npz"),
    ("FILE", "file.npz"),
    ("onnx=FILE", "onnx=file.onnx"),
    ("DIR…", "onnx-model"),
    ("CODE", "E0102"),
    ("SHELL", "bash"),
    ("LOSS", "mse"),
    ("OPTIMIZER", "adam"),
];

/// Options whose value is a file or folder that the command writes.
const WRITTEN: [&str; 7] =
    ["--outputs", "--save", "--checkpoint", "--emit", "--plot", "--log", "--out"];

/// Commands that are whole without arguments.
const ALONE: [&str; 6] = ["--version", "explain", "devices", "passes", "zoo", "man"];

/// The pages with their texts.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = vec!["README.md".to_owned()];
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        names.extend(path.extension().is_some_and(|e| e == "md").then(|| format!("docs/{name}")));
    }
    names.sort();
    let read = |name: String| {
        let text = fs::read_to_string(root.join(&name)).unwrap();
        (name, text)
    };
    names.into_iter().map(read).collect()
}

/// The words of a command, without quotation marks, with what is given for names.
fn words(text: &str) -> Vec<String> {
    let bare = text.replace(['\'', '"'], "");
    let mut words: Vec<String> = bare.split_whitespace().map(str::to_owned).collect();
    for i in 0..words.len() {
        let of_data = i > 0 && words[i - 1] == "--inputs" && words[i] == "DIR";
        let given = NAMES.iter().find(|(name, _)| *name == words[i]).map(|(_, given)| *given);
        if let Some(given) = given.or_else(|| of_data.then_some("test_data_set_0")) {
            given.clone_into(&mut words[i]);
        }
    }
    // A name of a command stands for no run.
    let is_name = words.len() == 1 && !ALONE.contains(&words[0].as_str());
    words.extend(is_name.then(|| "--help".to_owned()));
    words
}

/// The words of a command that is done in seconds: with a model of [`SMALLER`] and settings of
/// [`SHORTER`].
fn shortened(words: &[String]) -> Vec<String> {
    let trains = words[0] == "fit" && words.iter().any(|word| word.starts_with("zoo:mini"));
    let mut short = words.to_vec();
    for i in 1..short.len() {
        let of = |(option, from, _): &&(&str, &str, &str)| {
            trains && short[i - 1] == *option && short[i] == *from
        };
        let shorter = SHORTER.iter().find(of).map(|(_, _, to)| *to);
        let smaller = SMALLER.iter().find(|(from, _)| short[i] == *from).map(|(_, to)| *to);
        if let Some(to) = shorter.or(smaller) {
            to.clone_into(&mut short[i]);
        }
    }
    short
}

/// The words of a command of a page.
fn words_of(command: &Shown) -> Vec<String> {
    let text = command.text.replace("cargo run --release -- ", "fanwise ");
    words(text.strip_prefix("fanwise ").unwrap())
}

/// Where a command of a page runs: those of a page share a folder, but for what is of other data.
fn place(folder: &Path, page: &str, words: &[String]) -> Place {
    let has = |part: &str| words.iter().any(|word| word.starts_with(part));
    let (name, of) = if has("cifar") {
        ("cifar", Of::Cifar)
    } else if has("cat.png") || has("pictures") {
        ("images", Of::Images)
    } else if has("--template") {
        ("proved", Of::Digits)
    } else if ["docs/cli.md", "docs/training.md"].contains(&page) {
        ("rows", Of::Digits)
    } else {
        ("rows", Of::Numbers)
    };
    let folder = folder.join(page.replace('/', "-")).join(name);
    fs::create_dir_all(&folder).unwrap();
    Place { folder, of }
}

/// How a command of a page runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// With small models, without a GPU.
    Small,
    /// As the page has it.
    AsShown,
    /// With small models on the fake driver, which executes instructions one by one.
    OnFake,
}

/// The words of a command of a page as it runs.
fn words_that_run(command: &Shown, how: How) -> Vec<String> {
    let words = words_of(command);
    let mut words = if how == How::AsShown { words } else { shortened(&words) };
    if words[0] == "bench" && !words.iter().any(|word| word == "--help") {
        words.extend(["--rounds", "1"].map(str::to_owned));
    }
    if how == How::OnFake {
        // It executes the text of instructions, and no machine code.
        words.extend(["--code", "ptx"].map(str::to_owned));
    }
    words
}

/// Runs a command.
fn run(all: &Path, command: &Shown, how: How) {
    let at = format!("{}:{}: `{}`", command.page, command.line, command.text);
    let words = words_that_run(command, how);
    let place = place(all, &command.page, &words);
    if how == How::AsShown && words.iter().any(|word| word.starts_with("digits/")) {
        place.digits();
    }
    let folder = place.folder.display().to_string();
    let here = |word: &String| word.replace("/tmp", &folder).replace('~', &folder);
    let words: Vec<String> = words.iter().map(here).collect();
    for (i, word) in words.iter().enumerate().skip(1) {
        let option = words[i - 1].as_str();
        if option == "--checkpoint" {
            let run = place.folder.join(word);
            let is_inside = run.starts_with(&place.folder) && !word.contains("..");
            assert!(is_inside, "{at} writes outside its folder");
            // A run that is shown twice begins twice.
            drop(fs::remove_dir_all(run));
        } else if !WRITTEN.contains(&option) {
            place.give(word);
        }
    }
    let mut process = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    process.args(&words).current_dir(&place.folder).env_remove("RUST_BACKTRACE");
    // Other programs that `bench` measures are those of the tests.
    let mut folders = vec![set("FANWISE_PYTHON").parent().unwrap().to_path_buf()];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    process.env("PATH", std::env::join_paths(folders).unwrap());
    process.env("HOME", &folder).env("XDG_CACHE_HOME", &folder).env("COLUMNS", "100");
    match how {
        How::Small => drop(process.env("FANWISE_NVRTC", "/no/such/folder")),
        How::OnFake => {
            process.env("LD_LIBRARY_PATH", set("FANWISE_FAKE")).env("FAKECUDA_DEVICES", "4");
        }
        How::AsShown => {}
    }
    let output = process.output().unwrap();
    let (out, err) = texts(&output);
    // Whether there is a GPU, a page does not say.
    let notes = err.lines().filter(|line| !line.starts_with("note: no GPU found"));
    let err: String = notes.flat_map(|line| [line, "\n"]).collect();
    let line = words.join(" ");
    let lacks_gpu = how == How::Small && needs_gpu(&line) && err.contains("error[E0503]");
    let refused = output.status.code() == Some(2) && !command.prints.is_empty();
    assert!(output.status.success() || lacks_gpu || refused, "{at}, as `{line}`: {out}{err}");
    if command.comment.starts_with("passed") {
        assert_eq!(out.lines().last(), Some(&*command.comment), "{at}");
    }
    let shown = masked(&command.prints.join("\n"));
    let printed = [masked(&out), masked(&err)];
    assert!(printed.iter().any(|text| prints(text, &shown)), "{at} prints\n{out}{err}");
}

/// Whether a command names GPUs as its target.
fn needs_gpu(line: &str) -> bool {
    ["--target cuda", "--target cpu,cuda"].iter().any(|target| line.contains(target))
}

/// Units of what differs from run to run; rates end in `/s`.
const UNITS: [&str; 6] = ["ns", "µs", "ms", "s", "min", "h"];

/// A text whose times and rates are `#`.
fn masked(text: &str) -> String {
    let is_number =
        |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.parse::<f64>().is_ok();
    let bare = |word: &str| word.trim_matches(['(', ',', ';', ')', '.']).to_owned();
    let line = |line: &str| {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let masked = words.iter().enumerate().map(|(i, word)| {
            // The last has none.
            let unit = words.get(i + 1).map_or(String::new(), |next| bare(next));
            let is_before = UNITS.contains(&&*unit) || unit.ends_with("/s");
            let bare = bare(word);
            let mut joined = UNITS.iter().filter_map(|unit| bare.strip_suffix(unit));
            let is_time = is_before && is_number(&bare) || joined.any(is_number);
            if is_time { word.replace(&bare, "#") } else { (*word).to_owned() }
        });
        masked.collect::<Vec<_>>().join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

/// True if a text is what a page shows, where a line `…` stands for any lines.
fn prints(text: &str, shown: &str) -> bool {
    let (text, shown): (Vec<_>, Vec<_>) = (text.lines().collect(), shown.lines().collect());
    let mut parts = shown.split(|line| *line == "…");
    // A split has one part at least.
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return shown.is_empty() || rest.is_empty() };
    for part in parts {
        let Some(at) = (0..=rest.len()).find(|at| rest[*at..].starts_with(part)) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The commands that run, of all pages. Every other one is excused.
fn commands() -> Vec<Shown> {
    let mut found = Vec::new();
    let (mut excused, mut others) = (BTreeSet::new(), BTreeSet::new());
    for (page, text) in pages() {
        let (commands, blocks) = of_page(&page, &text);
        for (line, first) in blocks {
            let known = |other: &(&str, &str, &str)| other.0 == page && first.starts_with(other.1);
            let known = OTHERS.iter().position(known);
            let known = known.unwrap_or_else(|| {
                panic!("{page}:{line}: a block of text that is no command, and that no test knows")
            });
            others.insert(known);
        }
        for command in commands {
            let runs = ["fanwise ", "cargo run --release -- "];
            // What stands before the words of any command.
            if command.text == runs[1].trim() {
                continue;
            }
            if runs.iter().any(|begin| command.text.starts_with(begin)) {
                found.push(command);
                continue;
            }
            let known = EXCUSED.iter().position(|(begin, _)| command.text.starts_with(begin));
            let known = known.unwrap_or_else(|| {
                panic!("{page}:{}: no test knows `{}`", command.line, command.text)
            });
            excused.insert(known);
        }
    }
    // What no page shows needs no excuse.
    assert_eq!((excused.len(), others.len()), (EXCUSED.len(), OTHERS.len()));
    found
}

#[test]
fn commands_of_the_pages_run() {
    let folder = tempfile::tempdir().unwrap();
    let commands = commands();
    assert!(commands.len() > 150, "{}", commands.len());
    for command in &commands {
        run(folder.path(), command, How::Small);
    }
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn long_commands_of_the_pages_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut lasting = BTreeSet::new();
    for command in commands() {
        let words = words_of(&command);
        if shortened(&words) == words && !needs_gpu(&command.text) {
            continue;
        }
        let known = LASTING.iter().position(|(begin, _)| command.text.starts_with(begin));
        if let Some(known) = known {
            lasting.insert(known);
        } else {
            // Kernels are compiled without a GPU.
            let compiles = command.text.starts_with("fanwise compile");
            let on_fake = needs_gpu(&command.text) && !compiles;
            run(folder.path(), &command, if on_fake { How::OnFake } else { How::AsShown });
        }
    }
    assert_eq!(lasting.len(), LASTING.len());
}

#[test]
fn every_kind_of_file_gets_from_the_front_page_to_replicas_in_three_commands() {
    let (_, page) = pages().into_iter().find(|(name, _)| name == "README.md").unwrap();
    let page = &page[page.find("From a file, `.onnx`, `.keras` or `.h5` alike").unwrap()..];
    let block = page.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let lines: Vec<&str> = block.lines().collect();
    assert_eq!(lines.len(), 3, "{block}");
    for kind in ["onnx", "keras", "h5"] {
        let folder = tempfile::tempdir().unwrap();
        // A file of another program, not an export of our own.
        let of = if kind == "onnx" { Of::Exported } else { Of::Numbers };
        let place = Place { folder: folder.path().to_path_buf(), of };
        // What the user has.
        for name in [&format!("model.{kind}"), "in.npz", "train.npz"] {
            assert!(place.give(name), "{name}");
        }
        let mut said = String::new();
        for line in &lines {
            let line = line.split(" # ").next().and_then(|line| line.strip_prefix("fanwise "));
            // Each command names a file of some kind.
            let of_kind = |word: String| {
                let name =
                    word.split('.').next().filter(|name| ["model", "trained"].contains(name));
                name.map_or_else(|| word.clone(), |name| format!("{name}.{kind}"))
            };
            let words = words(line.unwrap()).into_iter().map(of_kind);
            let mut process = Command::new(env!("CARGO_BIN_EXE_fanwise"));
            let output = process.args(words).current_dir(folder.path()).output().unwrap();
            let (out, err) = texts(&output);
            assert!(output.status.success(), "{line:?} of {kind}: {err}");
            said += &(out + &err);
        }
        for part in ["equal in every bit", "\ngpu:3 ", "training model", "on 4 "] {
            assert!(said.contains(part), "{kind}: no {part:?} in {said}");
        }
        for name in ["out.npz", "run/state.json", &format!("trained.{kind}")] {
            assert!(folder.path().join(name).exists(), "{kind}: {name}");
        }
    }
}

#[test]
#[ignore = "needs Python: cargo xtask test"]
fn the_digits_of_the_experiment_are_images() {
    let folder = tempfile::tempdir().unwrap();
    Place { folder: folder.path().to_path_buf(), of: Of::Digits }.digits();
    for (name, rows) in [("train.npz", 1437), ("test.npz", 360)] {
        let file = folder.path().join("digits").join(name);
        let arrays = npz::read(&file, &mut Budget::new(1 << 30)).unwrap();
        assert_eq!((arrays["x"].dims(), arrays["y"].dims()), (&[rows, 32, 32, 3][..], &[rows][..]));
    }
}

#[test]
fn the_error_as_json_is_that_of_the_page() {
    let args = ["run", "zoo:mlp", "--gpus", "all", "--format", "json"];
    let output = Command::new(env!("CARGO_BIN_EXE_fanwise")).args(args).output().unwrap();
    if output.status.success() {
        // This machine has GPUs.
        return;
    }
    let given: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    let page = pages().into_iter().find(|(name, _)| name == "docs/cli.md").unwrap().1;
    let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    let shown: Vec<serde_json::Value> =
        blocks.map(|block| serde_json::from_str(block).unwrap()).collect();
    assert!(shown.contains(&given), "{given}");
}

#[test]
fn what_a_page_shows_is_compared_line_by_line() {
    for (text, shown, same) in [
        ("a\nb\n", "a\nb\n", true),
        ("a\nb\n", "a\n", false),
        ("a\nb\nc\n", "a\n…\nc\n", true),
        ("a\nb\nc\n", "a\n…\n", true),
        ("a\nb\nc\n", "a\n…\nb\n", false),
        ("a\nxb\n", "a\n…\nb\n", false),
        ("a\nbx\n", "a\n…\nb\n", false),
        ("a\nxb\nc\nd\n", "a\n…\nb\nc\n…\n", false),
        ("a\nb\nc\nb\n", "a\n…\nb\n", true),
        ("a\nb\nc\nd\n", "…\nb\n…\nd\n", true),
        ("a\n", "a\n…\na\n", false),
        ("a\nb\n", "", true),
        ("a\n", "b\n", false),
    ] {
        assert_eq!(prints(text, shown), same, "{text:?} {shown:?}");
    }
    let (given, same) = ("in 3.40 s; (0.5)  1 x.y 2 rows", "in # s; (0.5)  1 x.y 2 rows\n");
    assert_eq!(masked(given), same);
    let (given, same) =
        ("4.9ms (12 s), 3.5 rows/s, 12s.\nloss 2.5", "# (# s), # rows/s, #.\nloss 2.5\n");
    assert_eq!(masked(given), same);
}
