//! Mistakes of users: commands that are refused, with what they are told.
//!
//! A line of a case is a mistake, the arguments of a command, or prepares one: `+` before it, a
//! command that succeeds; `= FILE TEXT`, a file with this text; `- FILE`, a file that goes. `#`
//! begins a comment.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fanwise::format::npz;
use fanwise::ir::Builder;
use fanwise::model::{self, GraphForm};
use fanwise::op::{MatMul, Softmax};
use fanwise::types::Tensor;

/// Every mistake of a case with its answer.
pub(crate) fn told(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().canonicalize().unwrap();
    prepare(&here);
    let (mut told, mut without) = (String::new(), Vec::new());
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        if let Some(file) = line.strip_prefix("= ") {
            let (name, text) = file.split_once(' ').unwrap();
            fs::write(here.join(name), text.replace("\\n", "\n")).unwrap();
            continue;
        }
        if let Some(name) = line.strip_prefix("- ") {
            fs::remove_file(here.join(name)).unwrap();
            continue;
        }
        let prepares = line.strip_prefix("+ ");
        let Output { status, stdout, stderr } = run(&here, prepares.unwrap_or(line));
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        if prepares.is_some() {
            assert!(status.success(), "{line}: {err}");
            continue;
        }
        let answer = err.replace(&here.display().to_string(), "HERE");
        writeln!(told, "$ fanwise {line}\n{}\n", answer.trim_end()).unwrap();
        assert_eq!(status.code(), Some(2), "{line}: it is no mistake: {out}{err}");
        assert!(!err.contains("internal") && !err.contains("panicked"), "{line}: {err}");
        without.extend((!has_way_out(&err)).then(|| format!("{line}: {err}")));
        assert!(!err.contains("os error"), "{line}: the number of the system says nothing: {err}");
    }
    assert!(without.is_empty(), "no way out is named:\n{}", without.join("\n"));
    told
}

/// Whether an answer says what to do, or what there is to choose from.
fn has_way_out(answer: &str) -> bool {
    /// What a user is asked to do.
    const VERBS: [&str; 18] = [
        "add", "copy", "correct", "download", "give", "leave", "make", "name", "number", "put",
        "replace", "resume", "save", "start", "train", "try", "use", "write",
    ];
    /// What tells of a choice, or of a command.
    const MARKS: [&str; 14] = [
        "= help: ",
        "tip: ",
        "did you mean",
        "[possible values: ",
        " are required",
        "is required: ",
        " were not provided",
        " cannot be used with ",
        " is not in ",
        "`fanwise ",
        " require ",
        "; the losses are ",
        "; an epoch has ",
        "; the model has ",
    ];
    let error = answer.lines().find(|line| line.starts_with("error")).unwrap_or_default();
    let clauses = error.split([';', ':', ',']).skip(1);
    let mut verbs = clauses.filter_map(|clause| clause.split_whitespace().next());
    let told = answer.find("error").map_or("", |at| &answer[at..]);
    MARKS.iter().any(|mark| told.contains(mark)) || verbs.any(|verb| VERBS.contains(&verb))
}

fn run(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(line.split_whitespace()).current_dir(folder).env_remove("RUST_BACKTRACE");
    command.output().unwrap()
}

/// A model with 4 inputs and 3 classes, and data that suit it and that do not.
fn prepare(folder: &Path) {
    let mut b = Builder::new("m");
    let x = b.input("x", "f32[N,4]".parse().unwrap());
    let weight: Vec<f32> = (0..12u8).map(|i| f32::from(i) * 0.125 - 0.5).collect();
    let w = b.param("w", Tensor::new(&[4, 3], &weight).unwrap());
    let logits = b.op("logits", MatMul {}, &[x, w]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    model::save(&folder.join("m.fan"), &graph, &weights, GraphForm::Text).unwrap();
    let x = |rows: usize, width: usize| {
        let values: Vec<f32> = (0..rows * width).map(|i| (i % 7) as f32 * 0.25).collect();
        Tensor::new(&[rows, width], &values).unwrap()
    };
    let classes = |all: &[i64]| Tensor::new(&[all.len()], all).unwrap();
    let usual = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2];
    let mut holed = x(12, 4);
    holed.as_mut_slice::<f32>()[14] = f32::NAN;
    let halves: Vec<f32> = usual.iter().map(|class| *class as f32 + 0.5).collect();
    for (name, x, y) in [
        ("good", x(12, 4), classes(&usual)),
        ("other", x(6, 4), classes(&usual[..6])),
        ("nan", holed, classes(&usual)),
        ("far", x(12, 4), classes(&[0, 1, 2, 0, 1, 2, 0, 7, 2, 0, 1, 2])),
        ("from_one", x(12, 4), classes(&[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3])),
        ("halves", x(12, 4), Tensor::new(&[12], &halves).unwrap()),
        ("few", x(12, 4), classes(&usual[..5])),
        ("wide", x(12, 5), classes(&usual)),
        ("none", x(0, 4), classes(&[])),
        ("hot", x(12, 4), x(12, 5)),
    ] {
        let arrays = BTreeMap::from([("x".to_owned(), x), ("y".to_owned(), y)]);
        npz::write(&folder.join(format!("{name}.npz")), &arrays).unwrap();
    }
    let named = BTreeMap::from([("images".to_owned(), x(12, 4))]);
    npz::write(&folder.join("named.npz"), &named).unwrap();
    let parts =
        BTreeMap::from([("x_train".to_owned(), x(12, 4)), ("y_train".to_owned(), classes(&usual))]);
    npz::write(&folder.join("parts.npz"), &parts).unwrap();
    let whole = fs::read(folder.join("good.npz")).unwrap();
    fs::write(folder.join("cut.npz"), &whole[..whole.len() / 2]).unwrap();
    for name in ["empty", "pictures/cat", "pictures/dog"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    fs::write(folder.join("pictures/cat/a.png"), "a picture of a cat").unwrap();
    fs::write(folder.join("picture.png"), b"\x89PNG\r\n\x1a\n").unwrap();
    fs::write(folder.join("nothing.onnx"), b"").unwrap();
    fs::write(folder.join("model.keras"), b"PK\x03\x04 config.json metadata.json").unwrap();
    fs::write(folder.join("model.pt"), b"PK\x03\x04 archive/data.pkl").unwrap();
}
