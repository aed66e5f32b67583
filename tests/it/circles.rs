//! Circles of files: files whose items need each other, so that none is understood before the
//! others.
//!
//! An edge is a path to an item that another file defines; re-exports are followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::layering::is_test;
use super::source::{self, File, block_end, files, members, without_tests};

/// The circles that there may be: a file of each, how many files it has at most, and why.
const ALLOWED: [(&str, usize, &str); 2] = [
    ("src/op/mod.rs", 111, "one enum has every operator, and some operators are made of others"),
    ("src/pass/repair/mod.rs", 4, "what is written for an operator is repaired where it must be"),
];

/// What a file says of the names in it.
struct Module {
    /// The file.
    path: String,
    /// The crate and the modules that it is.
    name: Vec<String>,
    /// Its items.
    items: BTreeSet<String>,
    /// The names that it imports or exports again.
    imports: Vec<Import>,
    /// The other paths in it.
    paths: BTreeSet<Vec<String>>,
    /// The words of its code, imports aside.
    words: BTreeSet<String>,
}

/// A name and what it stands for; that of a glob is `*`.
struct Import {
    name: String,
    path: Vec<String>,
    /// Whether other files may take it from here.
    is_exported: bool,
}

impl Import {
    /// The path that it stands for in a file: of a glob those of all names that the file may mean.
    fn paths(&self, module: &Module) -> Vec<Vec<String>> {
        match self.path.split_last() {
            Some((last, of)) if last == "*" => {
                module.words.iter().map(|word| [of, std::slice::from_ref(word)].concat()).collect()
            }
            _ => vec![self.path.clone()],
        }
    }
}

/// All files, by the modules that they are.
type Modules = BTreeMap<Vec<String>, Module>;

fn strings(path: &str, separator: &str) -> Vec<String> {
    path.split(separator).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The crate and the modules that a file is.
fn name(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    let mut name = vec!["fanwise".to_owned()];
    name.extend(strings(path, "/"));
    if matches!(name.last().map(String::as_str), Some("mod" | "lib")) {
        name.pop();
    }
    name
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first word of a text, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(|c: char| !is_word(c)).unwrap_or(text.len()))
}

/// The items at the top of a file.
fn items(code: &str) -> BTreeSet<String> {
    const KINDS: [&str; 8] =
        ["struct", "enum", "trait", "fn", "type", "const", "static", "macro_rules!"];
    let (mut level, mut found) = (0usize, BTreeSet::new());
    for line in code.lines() {
        // The types that `op!` declares are inside its braces.
        let declared = line.starts_with("    pub struct ") || line.starts_with("    pub enum ");
        for kind in KINDS.iter().filter(|_| level == 0 || declared) {
            let Some(at) = line.find(&format!("{kind} ")) else { continue };
            let (name, rest) = word(&line[at + kind.len()..]);
            found.insert(if name == "fn" { word(rest).0 } else { name }.to_owned());
        }
        let braces = |brace| line.matches(brace).count();
        level = (level + braces('{')).saturating_sub(braces('}'));
    }
    found
}

/// Reads `a::b`, `a as b`, `a::*` and `a::{b, c}` of an import, behind `before`.
fn leaves(code: &str, before: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let open = code.find('{').unwrap_or(code.len());
    let (path, alias) = code[..open].split_once(" as ").unwrap_or((&code[..open], ""));
    let mut path = [before, &strings(path.trim(), "::")].concat();
    if open < code.len() {
        let close = block_end(code, open) - 1;
        for at in members(code, open) {
            let part = &code[at..close];
            leaves(part[..part_end(part)].trim(), &path, found);
        }
        return;
    }
    path.retain(|name| name != "self" || before.is_empty());
    let name = if alias.is_empty() { path.last().cloned() } else { Some(alias.trim().to_owned()) };
    found.extend(name.map(|name| (name, path)));
}

/// Where the part of a list ends that `code` begins with.
fn part_end(code: &str) -> usize {
    let mut level = 0usize;
    let end = code.find(|c| {
        match c {
            '{' => level += 1,
            '}' => level = level.saturating_sub(1),
            _ => {}
        }
        c == ',' && level == 0
    });
    end.unwrap_or(code.len())
}

/// The imports of a file, and its code without them.
fn imports(code: &str) -> (Vec<Import>, String) {
    let (mut found, mut rest, mut from) = (Vec::new(), String::new(), 0);
    for (at, _) in code.match_indices("use ").filter(|(at, _)| !code[..*at].ends_with(is_word)) {
        if at < from {
            continue;
        }
        rest.push_str(&code[from..at]);
        from = at + code[at..].find(';').unwrap_or(code.len() - at);
        let is_exported = code[..at].trim_end().ends_with(['b', ')']);
        let mut names = Vec::new();
        leaves(&code[at + "use ".len()..from], &[], &mut names);
        found.extend(names.into_iter().map(|(name, path)| Import { name, path, is_exported }));
    }
    rest.push_str(&code[from..]);
    (found, rest)
}

/// The paths of at least two names in code without imports, and the names of macros.
fn paths(code: &str) -> BTreeSet<Vec<String>> {
    let path = |c: char| is_word(c) || c == ':';
    let words = code.split(|c: char| !path(c)).filter(|word| word.contains("::"));
    words.filter(|word| !word.starts_with(':')).map(|word| strings(word, "::")).collect()
}

fn read(file: &File) -> Module {
    let code = without_tests(&file.code);
    let (imports, rest) = imports(&code);
    let (path, name) = (file.path.clone(), name(&file.path));
    let mut words: BTreeSet<String> =
        source::words(&rest).map(|(_, word)| word.to_owned()).collect();
    // A module is declared once; to declare it is no use of what it is named after.
    for declared in rest.lines().filter_map(|line| line.strip_suffix(';')?.rsplit_once("mod ")) {
        words.remove(declared.1);
    }
    let mut items = items(&code);
    // The list of the operators declares the enum of them.
    if code.lines().any(|line| line.starts_with("ops! {")) {
        items.insert("Op".to_owned());
    }
    Module { path, name, items, imports, paths: paths(&rest), words }
}

/// The path from the crate on of a path that a module names; none for one of another crate.
fn absolute(modules: &Modules, module: &Module, path: &[String]) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    let join = |base: &[String], rest: &[String]| [base, rest].concat();
    match path.first()?.as_str() {
        "crate" => Some(join(&module.name[..1], &path[1..])),
        "fanwise" => Some(path.to_vec()),
        "super" => Some(join(&module.name[..module.name.len().checked_sub(ups)?], &path[ups..])),
        "self" => Some(join(&module.name, &path[1..])),
        first => {
            let own = join(&module.name, path);
            let inside = modules.contains_key(&own[..=module.name.len()]);
            let known = module.items.contains(first);
            let named = || module.imports.iter().any(|i| i.name == first && i.path != [first]);
            (inside || known || named()).then_some(own)
        }
    }
}

/// The file that defines what an absolute path ends at.
fn definition(modules: &Modules, path: &[String], depth: usize) -> Option<String> {
    let inside = (1..=path.len()).rev().find(|n| modules.contains_key(&path[..*n]))?;
    let module = &modules[&path[..inside]];
    let (first, rest) = path[inside..].split_first()?;
    if module.items.contains(first) || depth == 0 {
        return Some(module.path.clone());
    }
    let follow = |target: &[String]| {
        let target = absolute(modules, module, target)?;
        (target != path).then(|| definition(modules, &target, depth - 1)).flatten()
    };
    module.imports.iter().find_map(|Import { name, path: target, .. }| match name.as_str() {
        "*" => follow(&[&target[..target.len() - 1], &path[inside..]].concat()),
        name if name == first => follow(&[target, rest].concat()),
        _ => None,
    })
}

/// The files, each with those that define what it names.
fn edges(modules: &Modules) -> BTreeMap<String, BTreeSet<String>> {
    let of = |module: &Module| {
        // A file does not need what it only exports again.
        let used = |import: &&Import| !import.is_exported || module.words.contains(&import.name);
        let imported = module.imports.iter().filter(used).flat_map(|import| import.paths(module));
        let named = imported.chain(module.paths.iter().cloned()).filter_map(|path| {
            // Deeper chains of re-exports there are none.
            definition(modules, &absolute(modules, module, &path)?, 8)
        });
        named.filter(|path| *path != module.path).collect()
    };
    modules.values().map(|module| (module.path.clone(), of(module))).collect()
}

/// The groups of at least two files that need each other.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<&str>> {
    let mut graph = DiGraphMap::<&str, ()>::new();
    for (from, to) in edges {
        for to in to {
            graph.add_edge(from.as_str(), to.as_str(), ());
        }
    }
    let mut found = tarjan_scc(&graph);
    found.retain(|files| files.len() > 1);
    for files in &mut found {
        files.sort_unstable();
    }
    found.sort_unstable();
    found
}

fn modules(files: &[File]) -> Modules {
    files.iter().map(read).map(|module| (module.name.clone(), module)).collect()
}

#[test]
fn files_need_each_other_in_few_circles() {
    let mut files = files(&["src"]);
    files.retain(|file| !is_test(&file.path));
    let edges = edges(&modules(&files));
    let mut circles = circles(&edges);
    for (file, most, reason) in ALLOWED {
        let at = circles.iter().position(|circle| circle.contains(&file));
        let at = at.unwrap_or_else(|| panic!("{file} is in no circle any more ({reason})"));
        let circle = circles.remove(at);
        assert!(circle.len() <= most, "{} files, not {most}: {circle:?}", circle.len());
    }
    let mut shown = String::new();
    for circle in &circles {
        writeln!(shown, "{} files:", circle.len()).unwrap();
        for file in circle {
            let to = edges[*file].iter().filter(|to| circle.contains(&to.as_str()));
            writeln!(shown, "  {file} -> {}", to.cloned().collect::<Vec<_>>().join(" ")).unwrap();
        }
    }
    assert!(circles.is_empty(), "circles beside those that are allowed:\n{shown}");
}

#[test]
fn the_check_sees_circles() {
    let file = |path: &str, code: &str| File {
        path: path.to_owned(),
        text: String::new(),
        code: code.to_owned(),
    };
    let files = [
        // What `a` only exports again is no need of it.
        file("src/a/mod.rs", "mod b;\nmod c;\npub use b::{B, build as make};\npub struct A;\n"),
        file("src/a/b.rs", "use super::{A, c};\npub struct B(A);\nfn build() { c::help() }\n"),
        file("src/a/c.rs", "use crate::d::*;\npub fn help() -> D { crate::a::make() }\n"),
        file("src/d.rs", "use std::fmt;\npub struct D(Box<dyn fmt::Debug>);\n"),
    ];
    let edges = edges(&modules(&files));
    let to = |path: &str| edges[path].iter().map(String::as_str).collect::<Vec<_>>();
    assert!(to("src/a/mod.rs").is_empty());
    assert_eq!(to("src/a/b.rs"), ["src/a/c.rs", "src/a/mod.rs"]);
    assert_eq!(to("src/a/c.rs"), ["src/a/b.rs", "src/d.rs"]);
    assert_eq!(circles(&edges), [["src/a/b.rs", "src/a/c.rs"]]);
}
