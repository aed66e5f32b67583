//! The book says what the code does: its tables are generated or checked, its links lead somewhere.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fanwise::internal::{headline, keras_layers, supported};
use fanwise::ir::{parse, verify};
use fanwise::op::Op;
use fanwise::types::{Code, Device, ShardRule, Split};

use crate::{operators, source};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every page of the book, and those beside it.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Checks that what follows the line `<!-- generated from SOURCE … -->`, up to the next heading, is
/// `text`; `INSTA_UPDATE=always` writes it.
#[track_caller]
fn generated(page: &str, source: &str, text: &str) {
    let whole = read(page);
    let marker = format!("<!-- generated from {source} by `cargo xtask bless` -->\n");
    let at = whole.find(&marker).unwrap_or_else(|| panic!("{page}: no line {marker}"));
    let start = at + marker.len();
    let end = whole[start..].find("\n#").map_or(whole.len(), |p| start + p);
    let wanted = format!("{}\n{}{}", &whole[..start], text, &whole[end..]);
    if whole != wanted {
        let bless = std::env::var("INSTA_UPDATE").is_ok_and(|v| v == "always");
        assert!(bless, "{page} is not what {source} says; `cargo xtask bless` writes it");
        fs::write(root().join(page), wanted).unwrap();
    }
}

#[test]
fn the_picture_of_the_readme_is_drawn_by_its_command() {
    let args = ["compile", "zoo:two_head", "--gpus", "3", "--weights", "mirrored"];
    let readme = read("README.md").replace('\n', " ");
    assert!(readme.contains(&format!("`fanwise {} --emit svg:operators`", args.join(" "))));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    let drawn = command.args(args).args(["--emit", "svg:operators"]).output().unwrap();
    assert!(drawn.status.success());
    let (drawn, path) = (String::from_utf8(drawn.stdout).unwrap(), "docs/two_head.svg");
    if std::env::var("INSTA_UPDATE").is_ok_and(|v| v == "always") {
        fs::write(root().join(path), &drawn).unwrap();
    }
    assert!(drawn == read(path), "{path} is another picture; `cargo xtask bless` draws it");
}

#[test]
fn the_table_of_operators_is_that_of_the_code() {
    let mut declared = operators::declared();
    let names: Vec<&str> = Op::names().collect();
    let known: Vec<&str> = declared.iter().map(|op| op.name.as_str()).collect();
    for name in &names {
        assert!(known.contains(name), "{name}: its declaration was not found under src/op");
    }
    assert_eq!(known.len(), names.len(), "{known:?}");
    declared.sort_by(|a, b| a.name.cmp(&b.name));
    let mut table =
        "| operator | what it computes | attributes | file |\n| --- | --- | --- | --- |\n"
            .to_owned();
    for op in declared {
        let meaning = op.meaning.replace('|', "\\|");
        let attributes: Vec<String> = op.attributes.iter().map(|a| format!("`{a}`")).collect();
        let attributes = attributes.join(", ");
        writeln!(table, "| `{}` | {meaning} | {attributes} | `{}` |", op.name, op.file).unwrap();
    }
    generated("docs/operators.md", "src/op", &table);
}

#[test]
fn the_operators_of_onnx_are_those_that_are_read() {
    let listed = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("- {}\n", names.join(", "))
    };
    // One paragraph for each first letter.
    let own = supported("");
    let table: String =
        own.chunk_by(|a, b| a.as_bytes()[0] == b.as_bytes()[0]).map(listed).collect();
    generated("docs/onnx.md", "src/format/onnx/ops", &table);
    generated("docs/onnx.md", "src/format/onnx/ops/ml_*.rs", &listed(&supported("ai.onnx.ml")));
}

#[test]
fn the_layers_of_keras_are_those_that_are_read() {
    let mut list = String::new();
    for (title, layers) in keras_layers() {
        let layers: Vec<String> = layers.iter().map(|name| format!("`{name}`")).collect();
        writeln!(list, "- {title}: {}", layers.join(", ")).unwrap();
    }
    generated("docs/keras.md", "src/format/keras/layers", &list);
}

/// The list of rules at the head of a module, whose first begins with `first`.
fn rules(file: &str, first: &str) -> String {
    let mut rules = String::new();
    let head = read(file);
    let lines = head.lines().map_while(|line| line.strip_prefix("//!"));
    let lines = lines.skip_while(|line| !line.starts_with(first));
    for line in lines.take_while(|line| !line.is_empty()) {
        writeln!(rules, "{}", line.strip_prefix(' ').unwrap_or(line)).unwrap();
    }
    rules
}

#[test]
fn the_rules_are_those_of_the_verifier_and_of_the_proof() {
    let file = "src/ir/verify/mod.rs";
    generated("docs/ir.md", file, &rules(file, " - V1").replace("[`MAX_CONSTANT`]", "1024"));
    let file = "src/analysis/proof/mod.rs";
    generated("docs/replicate.md", file, &rules(file, " - P1"));
}

#[test]
fn the_chapter_on_claims_has_every_code_and_every_rule_of_the_proof() {
    let mut table = "| code | what it says | more |\n| --- | --- | --- |\n".to_owned();
    for code in Code::ALL {
        writeln!(table, "| `{code}` | {} | `fanwise explain {code}` |", headline(code)).unwrap();
    }
    generated("docs/claims.md", "src/pass/explain", &table);
    let page = read("docs/claims.md");
    let rules = rules("src/analysis/proof/mod.rs", " - P1");
    for rule in rules.lines().filter_map(|line| line.strip_prefix("- ")?.split(':').next()) {
        assert!(page.contains(&format!("\n| {rule} | ")), "docs/claims.md: what {rule} catches");
    }
}

/// Commands that list what there is, or write it for other programs.
const LISTS: [&str; 7] = ["summary", "devices", "cache", "passes", "zoo", "completions", "man"];

#[test]
fn the_page_of_the_command_line_has_its_help() {
    let mut text = String::new();
    let used = ["", "compile", "run", "check", "bench", "test", "fit", "evaluate", "predict"];
    for command in used.into_iter().chain(["verify", "explain"]).chain(LISTS) {
        let mut help = Command::new(env!("CARGO_BIN_EXE_fanwise"));
        help.args([command, "--help"].iter().filter(|arg| !arg.is_empty())).env("COLUMNS", "100");
        let output = help.output().unwrap();
        assert!(output.status.success(), "{command}");
        let shown = format!("fanwise {command}");
        writeln!(text, "**`{}`**\n\n```text", shown.trim()).unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        writeln!(text, "```\n").unwrap();
    }
    generated("docs/cli.md", "--help", &format!("{}\n", text.trim_end()));
}

#[test]
fn the_table_of_errors_has_the_codes_of_the_code() {
    let file = "src/cli/explain/errors.md";
    let explained = read(file);
    let heads = explained.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(": "));
    let mut table = "| code | what is wrong |\n| --- | --- |\n".to_owned();
    for (code, headline) in heads {
        writeln!(table, "| `{code}` | {headline} |").unwrap();
    }
    generated("docs/cli.md", file, &table);
    let codes = |text: &str, quote: &str| {
        let parts = text.split(quote).filter(|part| {
            part.len() == 5
                && part.starts_with('E')
                && part[1..].bytes().all(|b| b.is_ascii_digit())
        });
        parts.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let given: BTreeSet<String> =
        source::files(&["src"]).iter().flat_map(|file| codes(&file.text, "\"")).collect();
    assert_eq!(codes(&table, "`"), given);
}

#[test]
fn the_table_of_shard_rules_is_true() {
    let page = read("docs/replicate.md");
    for rule in ["remainder-last", "balanced", "ceil", "weighted:3,1,1,1,1,1,1,1"] {
        let devices = (0..8).map(Device::gpu).collect();
        let split = Split::new(devices, rule.parse::<ShardRule>().unwrap()).unwrap();
        let rows = (0..8).map(|i| split.rows(i).unwrap().eval(31).to_string());
        let rows: Vec<String> = rows.collect();
        let row = rows.join(" ");
        let line = page.lines().find(|l| l.starts_with(&format!("| `{rule}`"))).unwrap_or_default();
        assert!(line.ends_with(&format!("| {row} |")), "{rule}: {row}, not {line}");
    }
}

#[test]
fn the_source_tree_is_that_of_the_architecture_page() {
    let page = read("docs/architecture.md");
    let listed: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `src/")?.split_once('`').map(|(name, _)| name))
        .collect();
    let mut found: Vec<String> = fs::read_dir(root().join("src"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path().is_dir()))
        .map(|(name, folder)| if folder { format!("{name}/") } else { name })
        .filter(|name| name != "lib.rs")
        .collect();
    found.retain(|name| !listed.contains(&name.as_str()));
    assert!(found.is_empty(), "docs/architecture.md does not say what these are: {found:?}");
}

#[test]
fn examples_of_the_text_form_are_canonical() {
    let mut found = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for example in text.split("```fan\n").skip(1) {
            let example = example.split("```").next().unwrap_or_default();
            let graph = parse(example).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
            verify(&graph).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
            assert_eq!(graph.to_string(), example, "{}", page.display());
            found += 1;
        }
    }
    assert!(found > 0, "the book has examples of the text form");
}

#[test]
fn links_lead_somewhere() {
    let summary = read("docs/SUMMARY.md");
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                let path = page.parent().unwrap().join(target);
                assert!(path.exists(), "{}: no {target}", page.display());
            }
        }
        let name = page.strip_prefix(root().join("docs")).ok().and_then(Path::to_str);
        if let Some(name) = name.filter(|name| *name != "SUMMARY.md") {
            assert!(summary.contains(&format!("]({name})")), "docs/SUMMARY.md: no {name}");
        }
    }
}

/// The documentation of an item, in one line: the comment before its declaration.
fn documentation(path: &str, item: &str) -> String {
    let text = read(path);
    let declares = |line: &str| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let mut words = rest.split(|c: char| !c.is_alphanumeric() && c != '_');
        (words.nth(1)? == item).then_some(())
    };
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| declares(line).is_some());
    let at = at.unwrap_or_else(|| panic!("{path} declares no public `{item}`"));
    let above = lines[..at].iter().rev().map(|line| line.trim_start());
    let comment = above.skip_while(|l| l.starts_with("#[")).map_while(|l| l.strip_prefix("///"));
    let mut words: Vec<&str> = comment.flat_map(|line| line.split_whitespace().rev()).collect();
    words.reverse();
    words.join(" ")
}

#[test]
fn items_name_the_terms_of_the_glossary() {
    let glossary = read("docs/glossary.md");
    let rows = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut found = 0;
    for row in rows.filter(|row| !row.starts_with("term ") && !row.starts_with("---")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [term, item, counterparts @ ..] = &cells[..] else { panic!("{row}") };
        assert_eq!(counterparts.len(), 5, "{row}");
        let (item, path) = item.split_once(" in ").unwrap_or_else(|| panic!("{row}"));
        let (item, path) = (item.trim_matches('`'), path.trim_matches('`'));
        let said = documentation(path, item).replace('`', "");
        for counterpart in counterparts.iter().filter(|c| **c != "—") {
            let wanted = counterpart.trim_matches('`');
            assert!(said.contains(wanted), "{term}: the docs of `{item}` do not say {wanted}");
            found += 1;
        }
    }
    assert!(found >= 80, "{found} counterparts");
}
