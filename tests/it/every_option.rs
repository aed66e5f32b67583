//! Every option of every command has an effect, or is refused.
//!
//! `every_option.txt` has a command for each group of lines, and below it one line for each of its
//! options. What the command prints and writes with the option differs from what it does without,
//! or the option is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use fanwise::format::{Budget, npz};
use fanwise::types::Tensor;
use rayon::prelude::*;

const TABLE: &str = include_str!("every_option.txt");

/// A line of the table: a command, with and without an option.
struct Line {
    number: usize,
    /// The arguments that stand on both sides.
    base: String,
    option: String,
    /// What a refusal says, if it is refused.
    refusal: Option<String>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {} [{}]", self.number, self.base, self.option)
    }
}

impl Line {
    fn command(&self) -> &str {
        self.base.split(' ').next().unwrap()
    }

    fn flag(&self) -> &str {
        self.option.split([' ', '=']).next().unwrap()
    }
}

/// Arguments with others, each `--NAME` or `--NAME VALUE`, which take the place of those of their
/// names.
fn merged(arguments: &str, others: &str) -> String {
    let mut all = arguments.to_owned();
    for other in others.split(" --").map(|other| other.trim().trim_start_matches("--")) {
        let (name, value) = other.split_once(' ').unwrap_or((other, ""));
        if let Some((before, after)) = all.split_once(&format!(" --{name} ")) {
            let after = after.split_once(' ').map_or("", |(_, after)| after);
            all = format!("{before} {after}");
        }
        all = format!("{} --{name} {value}", all.trim_end());
    }
    all.trim_end().to_owned()
}

/// All lines. `OPTION VALUE` or `OPTION VALUE & CONTEXT`, where the context stands on both sides;
/// `=> TEXT` behind it if it is refused.
fn lines() -> Vec<Line> {
    let (mut base, mut lines) = (String::new(), Vec::new());
    for (i, line) in TABLE.lines().enumerate() {
        let Some(line) = line.strip_prefix("  ") else {
            line.trim().clone_into(&mut base);
            continue;
        };
        let (line, refusal) = match line.split_once(" => ") {
            Some((line, refusal)) => (line, Some(refusal.to_owned())),
            None => (line, None),
        };
        let (option, base) = match line.split_once(" & ") {
            Some((option, context)) => (option, merged(&base, context)),
            None => (line, base.clone()),
        };
        lines.push(Line { number: i + 1, base, option: option.trim().to_owned(), refusal });
    }
    lines
}

/// What a command did: its exit code, what it printed and the files that it wrote.
#[derive(PartialEq)]
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
    files: BTreeMap<String, Vec<u8>>,
}

/// Text without what differs from run to run: durations, rates, and the folder.
fn steady(bytes: &[u8], folder: &Path) -> String {
    const UNITS: [&str; 6] = ["s", "ms", "µs", "ns", "rows/s", "x"];
    let text = String::from_utf8_lossy(bytes).replace(&*folder.to_string_lossy(), ".");
    let number = |word: &str| word.parse::<f64>().is_ok();
    let lines = text.lines().map(|line| {
        let words: Vec<&str> =
            line.split([' ', ',', ';', '(', ')']).filter(|w| !w.is_empty()).collect();
        let timed = |i: usize| {
            let unit = words.get(i + 1).is_some_and(|next| UNITS.contains(next));
            let joined = UNITS.iter().any(|unit| words[i].strip_suffix(unit).is_some_and(number));
            joined || unit && number(words[i])
        };
        let kept = (0..words.len()).filter(|i| !timed(*i)).map(|i| words[i]);
        kept.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The files of a folder and its folders, by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(k, v)| (format!("{name}/{k}"), v)));
        } else {
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}

fn run(args: &str, prepared: &Path) -> Done {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files(prepared) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_fanwise"))
        .args(args.split(' '))
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .env_remove("RUST_BACKTRACE")
        .output()
        .unwrap();
    Done {
        code: output.status.code(),
        out: steady(&output.stdout, folder.path()),
        err: steady(&output.stderr, folder.path()),
        files: files(folder.path()),
    }
}

/// What is wrong with a line, if anything is.
fn wrong(line: &Line, prepared: &Path) -> Option<String> {
    let with = run(&merged(&line.base, &line.option), prepared);
    if let Some(refusal) = &line.refusal {
        let said = with.err.contains(refusal.as_str()) || with.out.contains(refusal.as_str());
        let refused = with.code == Some(2) && said;
        return (!refused).then(|| format!("{line} is not refused: {}{}", with.out, with.err));
    }
    if !matches!(with.code, Some(0 | 1)) {
        return Some(format!("{line} is refused: {}", with.err));
    }
    let (a, b) = (run(&line.base, prepared), run(&line.base, prepared));
    let steady = a.files.keys().filter(|name| a.files.get(*name) == b.files.get(*name));
    let steady: BTreeSet<_> = steady.cloned().collect();
    let changed = with.files.iter().any(|(name, bytes)| {
        a.files.get(name).is_none_or(|before| steady.contains(name) && before != bytes)
    });
    let printed = (a.code, &a.out, &a.err) != (with.code, &with.out, &with.err);
    let noise = a.out != b.out || a.err != b.err;
    if noise {
        return Some(format!("{line}: differs from run to run:\n{}\n{}", a.out, b.out));
    }
    (!changed && !printed).then(|| format!("{line} has no effect"))
}

/// The options of every command.
const GLOBAL: [&str; 3] = ["--color", "--quiet", "--verbose"];

/// The options of a command, as its help lists them, without those of every command.
fn options(command: &str) -> BTreeSet<String> {
    let mut words: Vec<&str> = command.split(' ').collect();
    words.push("-h");
    let output = Command::new(env!("CARGO_BIN_EXE_fanwise")).args(words).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("Options")).map(str::trim);
    let lines = lines.take_while(|line| !line.starts_with("Example"));
    let flags = lines.filter_map(|line| {
        let short = line.starts_with('-') && line.get(2..4) == Some(", ");
        let long = if short { &line[4..] } else { line };
        long.starts_with("--").then(|| long.split([' ', '[']).next().unwrap().to_owned())
    });
    let listed: BTreeSet<String> = flags.filter(|flag| flag != "--help").collect();
    assert!(GLOBAL.iter().all(|flag| listed.contains(*flag)), "{command}: {listed:?}");
    listed.into_iter().filter(|flag| !GLOBAL.contains(&flag.as_str())).collect()
}

/// Graphs that need the rows of all samples.
const GRAPHS: [(&str, &str); 2] = [
    (
        "sum.fan",
        "fanwise 1
symbol N >= 0
graph @sum(%x: f32[N,4]) -> (y: f32[N,4]) {
  %y : f32[N,4] = cumsum(%x) {axis=0}
  return %y
}
",
    ),
    (
        "norm.fan",
        "fanwise 1
symbol N >= 0
graph @norm(%x: f32[N,2,3]) -> (y: f32[N,2,3]) {
  %c : f32[2] = constant() {value=f32[2] [1.0, 2.0]}
  %y : f32[N,2,3], %mean : f32[2], %var : f32[2] = batch_norm_train(%x, %c, %c, %c, %c)
  return %y
}
",
    ),
];

/// A folder with data, weights and graphs.
fn prepared() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, arrays: Vec<(&str, Tensor)>| {
        let arrays = arrays.into_iter().map(|(name, t)| (name.to_owned(), t)).collect();
        npz::write(&folder.path().join(name), &arrays).unwrap();
    };
    let images = |step: usize| {
        let pixels: Vec<f32> = (0..20 * 768).map(|i| (i * step % 17) as f32 / 17.0).collect();
        Tensor::new(&[20, 16, 16, 3], &pixels).unwrap()
    };
    let classes: Vec<i64> = (0..20).map(|i| i * 3 % 10).collect();
    let labelled = |step| vec![("x", images(step)), ("y", Tensor::new(&[20], &classes).unwrap())];
    write("data.npz", labelled(7));
    write("other.npz", labelled(5));
    write("image.npz", vec![("image", images(7))]);
    write("image_2.npz", vec![("image", images(5))]);
    let rows: Vec<f32> = (0..60).map(|i| (i * 7 % 17) as f32).collect();
    let rows = Tensor::new(&[10, 2, 3], &rows).unwrap();
    write("rows.npz", vec![("x", rows.clone()), ("y", rows)]);
    let bias: Vec<f32> = (0..10).map(|i| i as f32 / 4.0).collect();
    write("w.npz", vec![("predictions.bias", Tensor::new(&[10], &bias).unwrap())]);
    for (name, text) in GRAPHS {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::create_dir_all(folder.path().join("case/test_data_set_0")).unwrap();
    fs::create_dir_all(folder.path().join("norm/test_data_set_0")).unwrap();
    for args in [
        "compile zoo:nested --emit onnx=case/model.onnx",
        "compile norm.fan --emit onnx=norm/model.onnx",
        "fit zoo:nested --data data.npz --loss scce --epochs 1 --save trained.safetensors",
        "compile zoo:nested --gpus 2 --emit graph=two.fan",
        "compile norm.fan --gpus 2 --repair comm --batch-norm local --emit graph=norm2.fan",
    ] {
        let done = Command::new(env!("CARGO_BIN_EXE_fanwise"))
            .args(args.split(' '))
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    data_set(folder.path(), "case", ("image", images(7)), "predictions");
    let rows: Vec<f32> = (0..24).map(|i| (i * 7 % 17) as f32).collect();
    data_set(folder.path(), "norm", ("x", Tensor::new(&[4, 2, 3], &rows).unwrap()), "y");
    folder
}

/// A data set of a model with one input, whose expected output is what the model gives but for
/// something small.
fn data_set(folder: &Path, name: &str, (input, tensor): (&str, Tensor), output: &str) {
    let set = folder.join(name).join("test_data_set_0");
    crate::it::data_sets::write(&set.join("input_0.pb"), input, &tensor);
    let args = format!("run {name}/model.onnx --inputs {name} --outputs {name}.npz");
    let run = Command::new(env!("CARGO_BIN_EXE_fanwise"))
        .args(args.split(' '))
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let path = folder.join(format!("{name}.npz"));
    let found = npz::read(&path, &mut Budget::new(1 << 30)).unwrap();
    let mut expected = found[output].clone();
    expected.as_mut_slice::<f32>()[0] *= 1.0 + 1e-6;
    crate::it::data_sets::write(&set.join("output_0.pb"), output, &expected);
}

#[test]
fn every_option_has_an_effect_or_is_refused() {
    let (lines, prepared) = (lines(), prepared());
    let mut told: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in &lines {
        told.entry(line.command()).or_default().insert(line.flag().to_owned());
    }
    let commands = ["compile", "run", "check", "fit", "evaluate", "predict", "verify", "summary"];
    let lists = ["devices", "cache", "passes", "zoo", "explain", "completions", "man"];
    let everywhere: BTreeSet<&str> = told.values().flatten().map(String::as_str).collect();
    assert!(GLOBAL.iter().all(|flag| everywhere.contains(flag)), "the options of every command");
    for command in commands.into_iter().chain(lists) {
        let mut told = told.get(command).cloned().unwrap_or_default();
        told.retain(|flag| !GLOBAL.contains(&flag.as_str()));
        assert_eq!(told, options(command), "the options of `{command}`");
    }
    let wrong: Vec<String> =
        lines.par_iter().filter_map(|line| wrong(line, prepared.path())).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), lines.len(), wrong.join("\n"));
}
