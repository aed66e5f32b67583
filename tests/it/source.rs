//! A reader of Rust source that knows as much as the tests of the source tree need.

use std::fs;
use std::path::{Path, PathBuf};

/// A Rust file of the repository.
pub(crate) struct File {
    /// The path from the repository's root.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text without comments and without the contents of literals.
    pub(crate) code: String,
}

/// The Rust files below these folders, by path.
pub(crate) fn files(folders: &[&str]) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for folder in folders {
        collect(&root.join(folder), &mut paths);
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let code = code(&text);
        File { path, text, code }
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|n| n != "target") {
            collect(&path, paths);
        } else if path.extension().is_some_and(|e| e == "rs") {
            paths.push(path);
        }
    }
}

/// An import of a top-level module of the crate.
pub(crate) struct Import {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The module.
    pub(crate) layer: String,
    /// What is taken from it, where one name is.
    pub(crate) item: String,
}

/// A function with a body.
pub(crate) struct Function {
    /// The line of its `fn`, from 1.
    pub(crate) line: usize,
    /// Its name.
    pub(crate) name: String,
    /// Its lines, from `fn` to the closing brace.
    pub(crate) lines: usize,
    /// From `fn` to the brace that opens its body.
    pub(crate) signature: String,
}

/// The text with comments and the contents of literals replaced by blanks; lines stay where they
/// are.
pub(crate) fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = literal_end(&chars, i);
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            out.extend(chars[i..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            i = end;
        }
    }
    out
}

/// The end of the comment or literal that starts at `i`, or `i` where none does.
fn literal_end(chars: &[char], i: usize) -> usize {
    let at = |k: usize| chars.get(k).copied().unwrap_or('\0');
    let find = |from: usize, end: &str| {
        let end: Vec<char> = end.chars().collect();
        let window = chars[from.min(chars.len())..].windows(end.len());
        window.into_iter().position(|w| w == end).map_or(chars.len(), |p| from + p + end.len())
    };
    let in_word = i > 0 && (at(i - 1).is_alphanumeric() || at(i - 1) == '_');
    match (at(i), at(i + 1)) {
        ('/', '/') => find(i, "\n").saturating_sub(1).max(i + 2),
        ('/', '*') => find(i, "*/"),
        ('"', _) => string_end(chars, i),
        ('r', '"' | '#') if !in_word => {
            let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
            if at(i + 1 + hashes) == '"' {
                find(i + 2 + hashes, &format!("\"{}", "#".repeat(hashes)))
            } else {
                i
            }
        }
        // A character literal, not a lifetime.
        ('\'', '\\') => find(i + 3, "'"),
        ('\'', _) if at(i + 2) == '\'' => i + 3,
        _ => i,
    }
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

/// The words of `code` with their lines.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(line, text)| {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.filter(|w| !w.is_empty()).map(move |w| (line + 1, w))
    })
}

/// `code` with the bodies of its `#[cfg(test)]` modules replaced by blanks.
pub(crate) fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        let body = code[start..].find(['{', ';']).map_or(code.len(), |p| start + p);
        let end = if code[body..].starts_with('{') { block_end(&code, body) } else { body };
        let blank: String =
            code[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        code.replace_range(start..end, &blank);
        from = start + blank.len();
    }
    code
}

/// The end of the block whose brace is at byte `open`.
pub(crate) fn block_end(code: &str, open: usize) -> usize {
    let mut level = 0usize;
    for (i, c) in code[open..].char_indices() {
        match c {
            '{' => level += 1,
            '}' if level == 1 => return open + i + 1,
            '}' => level -= 1,
            _ => {}
        }
    }
    code.len()
}

fn line_of(code: &str, byte: usize) -> usize {
    1 + code[..byte].matches('\n').count()
}

/// The functions of `code` that have a body.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let boundary = code[..at].chars().next_back();
        let name: String =
            code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if boundary.is_some_and(|c| c.is_alphanumeric() || c == '_') || name.is_empty() {
            continue;
        }
        let Some(open) = body_start(code, at) else { continue };
        let line = line_of(code, at);
        let lines = line_of(code, block_end(code, open)) - line + 1;
        found.push(Function { line, name, lines, signature: code[at..open].to_owned() });
    }
    found
}

/// The brace that opens the body of the function declared at `at`, if it has one.
fn body_start(code: &str, at: usize) -> Option<usize> {
    let mut level = 0usize;
    for (i, c) in code[at..].char_indices() {
        match c {
            '(' | '[' => level += 1,
            ')' | ']' => level = level.checked_sub(1)?,
            '{' if level == 0 => return Some(at + i),
            ';' if level == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The imports of other top-level modules that `code`, of a file inside `depth` modules, makes by
/// `crate::…` or by enough `super::…`.
pub(crate) fn imports(code: &str, depth: usize) -> impl Iterator<Item = Import> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            leaves(code, at + "crate::".len(), None, &mut found);
        }
    }
    let ups = "super::".repeat(depth);
    for (at, _) in code.match_indices(&ups) {
        if depth > 0 && !code[..at].ends_with("super::") {
            leaves(code, at + ups.len(), None, &mut found);
        }
    }
    found.into_iter()
}

/// Reads `a::B`, `a`, `a::{B, C}` or `{a::B, c::{D, E}}` at byte `at`; inside brackets, `layer`
/// stands before them.
fn leaves(code: &str, at: usize, layer: Option<&str>, found: &mut Vec<Import>) {
    if code[at..].starts_with('{') {
        return members(code, at).into_iter().for_each(|part| leaves(code, part, layer, found));
    }
    let end = code[at..].find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let end = end.map_or(code.len(), |end| at + end);
    let names: Vec<&str> = code[at..end].split("::").filter(|name| !name.is_empty()).collect();
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return };
    let layer = layer.unwrap_or(first);
    if code[..end].ends_with("::") && code[end..].starts_with('{') {
        return leaves(code, end, Some(layer), found);
    }
    // `crate::op!` and the like are macros of this crate, in the order in which they are declared.
    if names.len() > 1 || !code[end..].starts_with('!') {
        let (layer, item) = (layer.to_owned(), (*last).to_owned());
        found.push(Import { line: line_of(code, at), layer, item });
    }
}

/// Where the parts begin of the list in braces at byte `open`.
pub(crate) fn members(code: &str, open: usize) -> Vec<usize> {
    let end = block_end(code, open) - 1;
    let (mut level, mut parts) = (0usize, vec![open + 1]);
    for (i, c) in code[open + 1..end].char_indices().map(|(i, c)| (open + 1 + i, c)) {
        match c {
            '{' => level += 1,
            '}' => level -= 1,
            ',' if level == 0 => parts.push(i + 1),
            _ => {}
        }
    }
    let blank = |part: usize| code[part..].len() - code[part..].trim_start().len();
    parts.into_iter().map(|part| part + blank(part)).filter(|part| *part < end).collect()
}

/// The paths into the crate that `code` of a module names, in full, with their lines: those that
/// begin with `crate::`, and those that begin with `super::`. A list in braces names a path for
/// each of its parts.
pub(crate) fn paths(code: &str, module: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let free = |at: usize| {
        !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$')
    };
    for (at, start) in code.match_indices("crate::") {
        if free(at) {
            branches(code, at + start.len(), "", &mut found);
        }
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| free(*at)) {
        let ups = code[at..].split("super::").take_while(|part| part.is_empty()).count();
        let up = module.len().saturating_sub(ups);
        branches(code, at + ups * "super::".len(), &module[..up].join("::"), &mut found);
    }
    found
}

/// Reads `a::B` or `a::{B, c::D}` at byte `at`, behind `before`.
fn branches(code: &str, at: usize, before: &str, found: &mut Vec<(usize, String)>) {
    if code[at..].starts_with('{') {
        return members(code, at).into_iter().for_each(|at| branches(code, at, before, found));
    }
    let end = code[at..].find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let end = end.map_or(code.len(), |end| at + end);
    let own = code[at..end].trim_end_matches(':');
    let path = if before.is_empty() { own.to_owned() } else { format!("{before}::{own}") };
    if code[..end].ends_with("::") && code[end..].starts_with('{') {
        return branches(code, end, &path, found);
    }
    found.push((line_of(code, at), path));
}
