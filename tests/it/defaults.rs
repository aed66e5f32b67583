//! Defaults that might stand where a broken invariant should stop the program.
//!
//! `unwrap_or`, `unwrap_or_else`, `unwrap_or_default` and `map_or` with a constant need a reason,
//! in a comment on their line or on the one above. What cannot be absent goes through
//! `types::invariant`.

use std::fmt::Write as _;

use super::layering::is_test;
use super::source::{self, files, without_tests};

/// Where a wrong value becomes a wrong program.
const HELD: [&str; 20] = [
    "src/analysis/",
    "src/backend/",
    "src/codegen/",
    "src/format/keras/",
    "src/format/onnx/",
    "src/ir/",
    "src/lower/",
    "src/model",
    "src/op/blocks.rs",
    "src/op/gather",
    "src/op/one_hot.rs",
    "src/op/range.rs",
    "src/op/reduce/",
    "src/op/reverse_sequence.rs",
    "src/op/scatter.rs",
    "src/op/slice.rs",
    "src/op/support/index.rs",
    "src/pass/",
    "src/session.rs",
    "src/train/keras/",
];

/// The calls that take a default first.
const CALLS: [&str; 4] = [".unwrap_or(", ".unwrap_or_else(", ".unwrap_or_default(", ".map_or("];

/// The first argument of a call whose bracket ends before byte `at`.
fn argument(code: &str, at: usize) -> &str {
    let mut level = 0usize;
    let end = code[at..].find(|c: char| {
        let ends = level == 0 && matches!(c, ',' | ')');
        match c {
            '(' | '[' | '{' => level += 1,
            ')' | ']' | '}' => level = level.saturating_sub(1),
            _ => {}
        }
        ends
    });
    &code[at..end.map_or(code.len(), |end| at + end)]
}

/// True for an expression in which no variable stands.
fn is_constant(expression: &str) -> bool {
    let starts = |(_, word): (usize, &str)| !word.starts_with(|c: char| c.is_lowercase());
    let known = |word: &str| matches!(word, "true" | "false" | "f64" | "i64" | "u64" | "usize");
    // What makes an empty value.
    let made = ["::new", "::default", "vec!"].into_iter();
    let rest = made.fold(expression.to_owned(), |rest, word| rest.replace(word, ""));
    source::words(&rest).all(|(line, word)| starts((line, word)) || known(word))
}

/// The lines, from 1, with a default and without a reason.
fn unexplained(code: &str, text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let reason = |line: usize| {
        let above = line.checked_sub(1).map(|above| lines[above].trim_start());
        lines[line].contains("// ") || above.is_some_and(|above| above.starts_with("// "))
    };
    let calls = CALLS.iter().flat_map(|call| code.match_indices(call));
    let defaults = calls.filter(|(at, call)| is_constant(argument(code, at + call.len())));
    let mut found: Vec<usize> = defaults.map(|(at, _)| code[..at].matches('\n').count()).collect();
    found.retain(|line| !reason(*line));
    found.sort_unstable();
    found.dedup();
    found.iter().map(|line| line + 1).collect()
}

#[test]
fn defaults_have_reasons() {
    let mut wrong = String::new();
    for file in files(&["src"]) {
        if is_test(&file.path) || !HELD.iter().any(|held| file.path.starts_with(held)) {
            continue;
        }
        for line in unexplained(&without_tests(&file.code), &file.text) {
            let text = file.text.lines().nth(line - 1).unwrap().trim();
            writeln!(wrong, "{}:{line}: {text}", file.path).unwrap();
        }
    }
    assert!(wrong.is_empty(), "defaults without a reason:\n{wrong}");
}

#[test]
fn the_check_sees_defaults() {
    let text = "let a = x.unwrap_or(own);\n\
                let b = x.unwrap_or(Dim::ONE);\n\
                // None stands for one.\n\
                let c = x.map_or(1, |x| x);\n\
                let d = x.map_or(\"\", |x| x); // a name is for people\n\
                let e = x.map_or(&[][..], |x| x).map_or(f(x), g);\n\
                /// Documented.\n\
                let f = x.unwrap_or_default();\n\
                let g = x.unwrap_or(Vec::new()).unwrap_or(default);\n\
                let h = x.unwrap_or_else(|| vec![1; 2]);\n\
                let i = x.unwrap_or_else(|| f(1));\n";
    assert_eq!(unexplained(&source::code(text), text), [2, 6, 8, 9, 10]);
}
