//! Errors of the library name no options of the command line, and all reach it with their hints.

use std::collections::BTreeSet;

use crate::source;

/// The string literals of Rust code outside comments, with the number of their line. Raw strings
/// with quotes inside are cut at these, which loses nothing that is looked for here.
fn literals(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("//") {
            continue;
        }
        // Continued literals begin without a quote, so the whole line is taken if it has one.
        if line.contains('"') || line.ends_with('\\') {
            found.push((i + 1, line.to_owned()));
        }
    }
    found
}

/// Whether a line names an option: two hyphens and a letter, after no other hyphen or letter.
fn names_option(line: &str) -> bool {
    line.match_indices("--").any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + 2..].chars().next();
        after.is_some_and(|c| c.is_ascii_lowercase())
            && before.is_none_or(|c| !c.is_alphanumeric() && c != '-')
    })
}

/// Files whose texts are for other programs: the options of the compiler of kernels.
const OTHER_PROGRAMS: [&str; 1] = ["src/codegen/key.rs"];

#[test]
fn the_library_names_no_options() {
    let mut found = Vec::new();
    for file in source::files(&["src"]) {
        let of_the_command_line = file.path.starts_with("src/cli/")
            || file.path.starts_with("src/bin/")
            || OTHER_PROGRAMS.contains(&&*file.path);
        if of_the_command_line {
            continue;
        }
        for (line, text) in literals(&file.text) {
            if names_option(&text) {
                found.push(format!("{}:{line}: {text}", file.path));
            }
        }
    }
    assert!(found.is_empty(), "use `types::Hint` instead:\n{}", found.join("\n"));
}

/// The errors that reach `fanwise::Error` within another one, and that one, which passes their
/// hints on.
const NESTED: [(&str, &str); 4] = [
    ("ExportError", "ModelError"),
    ("ImportError", "ModelError"),
    ("KerasError", "ModelError"),
    ("ProbeError", "CompileError"),
];

#[test]
fn the_hints_of_every_error_reach_the_command_line() {
    let files = source::files(&["src"]);
    let mut implementors = BTreeSet::new();
    for file in &files {
        for rest in file.code.split("impl Diagnostic for ").skip(1) {
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            implementors.insert(name.to_owned());
        }
    }
    // That of the whole library is the one that the command line asks.
    assert!(implementors.remove("Error") && implementors.len() > NESTED.len(), "{implementors:?}");
    let whole = &files.iter().find(|file| file.path == "src/error.rs").unwrap().code;
    let direct = |name: &str| whole.contains(&format!("(#[from] {name})"));
    for name in &implementors {
        let within = NESTED.iter().find(|(nested, _)| nested == name).map(|(_, outer)| *outer);
        assert!(
            direct(name) || within.is_some_and(direct),
            "{name}: a variant of `fanwise::Error`, or an entry of NESTED"
        );
        let Some(outer) = within else { continue };
        let file = files.iter().find(|f| f.code.contains(&format!("impl Diagnostic for {outer}")));
        let code = &file.unwrap().code;
        let body = code.split(&format!("impl Diagnostic for {outer}")).nth(1).unwrap();
        assert!(body.contains("error.hints()"), "{outer} passes on the hints of {name}");
    }
}
