//! How many files know an operator: what is said of it stands in its own file, and others ask the
//! operator or write formulas.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{self, files};

/// The files of which half of the operators have no more than this.
const MEDIAN: usize = 4;

/// The files that may mention an operator that is not listed below.
const MOST: usize = 8;

/// The operators that more files mention, how many exactly, and why.
const NAMED: &[(&str, usize, &str)] = &[
    ("Binary", 18, "a family: its own folder, and whoever fuses it or reads a formula in it"),
    ("Unary", 16, "a family: its own folder, and whoever fuses it or reads a formula in it"),
    ("Reduce", 15, "a family: its own folder, its kernels, and the operators made of it"),
    ("Slice", 12, "what divides the batch between replicas"),
    ("AllReduce", 12, "a collective"),
    ("ExclusiveScan", 10, "a collective"),
    (
        "BatchNorm",
        9,
        "a step of chains with vectors of its own; training makes it another operator",
    ),
    ("Concat", 9, "what joins the rows of replicas, and the coordinates of elements"),
    ("Reshape", 9, "what folds the batch into blocks of rows"),
];

/// The files that list operators, or are no part of what is compiled by hand.
const LISTS: [&str; 5] = [
    "src/op/mod.rs",
    "src/internal.rs",
    "src/format/onnx/ops/mod.rs",
    "src/backend/cpu/kernel.rs",
    "src/codegen/kernels/mod.rs",
];

/// The operators that `ops!` lists.
fn operators(list: &str) -> Vec<String> {
    let (_, list) = list.split_once("ops! {").unwrap();
    let (list, _) = list.split_once('}').unwrap();
    let names = list.split(',').filter_map(|line| line.trim().split_once("::"));
    names.map(|(_, name)| name.to_owned()).collect()
}

/// The module that a file is: `op::reduce` for `src/op/reduce/mod.rs`.
fn module(path: &str) -> Vec<&str> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').filter(|part| *part != "mod").collect()
}

/// Whether the word before or after which `::` stands at byte `at` begins there.
fn begins(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'))
}

/// The operators that `code` mentions by `Op::X`, or by `op::X` where it imports the module, and
/// those that it declares.
fn spelled<'o>(code: &str, own: bool, all: &'o BTreeSet<String>) -> BTreeSet<&'o str> {
    let mut found = BTreeSet::new();
    for before in ["Op::", "op::", "pub struct ", "pub enum "] {
        let declares = before.starts_with("pub");
        if declares && !own {
            continue;
        }
        for (at, _) in code.match_indices(before).filter(|(at, _)| begins(code, *at)) {
            let rest = &code[at + before.len()..];
            let word = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            found.extend(word.and_then(|word| all.get(word)).map(String::as_str));
        }
    }
    found
}

/// The files that mention each operator.
fn mentions() -> BTreeMap<String, BTreeSet<String>> {
    let files: Vec<_> = files(&["src"]).into_iter().filter(|file| counts(&file.path)).collect();
    let list = files.iter().find(|file| file.path == LISTS[0]).unwrap();
    let all: BTreeSet<String> = operators(&list.code).into_iter().collect();
    // The names that each module imports from operators, which others may import from there.
    let mut known: BTreeSet<(String, &str)> =
        all.iter().map(|name| ("op".to_owned(), name.as_str())).collect();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    loop {
        let before = known.len();
        for file in &files {
            let (code, module) = (source::without_tests(&file.code), module(&file.path));
            let own = module[0] == "op";
            let mut names = spelled(&code, own, &all);
            if own {
                known.extend(names.iter().map(|name| (module.join("::"), *name)));
            }
            for (_, path) in source::paths(&code, &module) {
                let Some((from, name)) = path.rsplit_once("::") else { continue };
                let Some(name) = all.get(name) else { continue };
                if known.contains(&(from.to_owned(), name.as_str())) {
                    names.insert(name);
                    known.insert((module.join("::"), name));
                }
            }
            for name in names {
                found.entry(name.to_owned()).or_default().insert(file.path.clone());
            }
        }
        if known.len() == before {
            break;
        }
    }
    for paths in found.values_mut() {
        paths.retain(|path| !LISTS.contains(&path.as_str()));
    }
    found
}

/// Whether mentions in a file count. Models of the zoo and layers of Keras are made of operators,
/// as models are: a new operator needs neither.
fn counts(path: &str) -> bool {
    let test = path.ends_with("tests.rs") || path.contains("/tests/");
    let apart = path.contains("/properties/") || path.ends_with("testing.rs");
    let models = ["src/zoo", "src/format/keras"].iter().any(|folder| path.starts_with(folder));
    !test && !apart && !models && !path.contains("generated")
}

#[test]
fn few_files_know_an_operator() {
    let mentions = mentions();
    let mut counts: Vec<usize> = mentions.values().map(BTreeSet::len).collect();
    counts.sort_unstable();
    let median = counts[counts.len() / 2];
    let mut wrong: Vec<String> = Vec::new();
    if median > MEDIAN {
        wrong.push(format!("half of the operators are mentioned in {median} files or more"));
    }
    for (name, paths) in &mentions {
        let listed = NAMED.iter().find(|(named, ..)| named == name);
        let most = listed.map_or(MOST, |(_, most, _)| *most);
        let slack = listed.is_some() && paths.len() != most;
        if paths.len() > most || slack {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            wrong.push(format!("{name}, {} files: {}", paths.len(), paths.join(" ")));
        }
        if listed.is_some() && paths.len() <= MOST {
            wrong.push(format!("{name} need not be listed: {} files mention it", paths.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The examples of `docs/adding-an-operator.md`, and the files of the source that know them.
const EXAMPLES: [(&str, &[&str]); 2] = [
    (
        "BitCast",
        &["src/codegen/kernels/move.rs", "src/format/onnx/ops/bit_cast.rs", "src/op/bit_cast.rs"],
    ),
    (
        "Dft",
        &[
            "src/backend/cpu/dft.rs",
            "src/codegen/kernels/dft.rs",
            "src/format/onnx/ops/dft.rs",
            "src/op/dft.rs",
        ],
    ),
];

#[test]
fn the_examples_of_the_book_are_few_files() {
    let mentions = mentions();
    for ((name, files), most) in EXAMPLES.into_iter().zip([4, 6]) {
        let found: Vec<&str> = mentions[name].iter().map(String::as_str).collect();
        assert_eq!(found, files, "{name}");
        assert!(found.len() <= most, "{name}");
    }
}

#[test]
fn mentions_are_found() {
    let all: BTreeSet<String> = ["Cast", "Slice"].map(str::to_owned).into();
    let find = |code: &str, own| spelled(code, own, &all).into_iter().collect::<Vec<_>>();
    assert_eq!(find("matches!(op, Op::Cast(_))", false), ["Cast"]);
    assert_eq!(find("op::Slice { axes }", false), ["Slice"]);
    assert_eq!(find("pub struct Slice = x", true), ["Slice"]);
    assert!(find("pub struct Slice; MyOp::Cast; Option::Cast", false).is_empty());
}
