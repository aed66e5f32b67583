//! The size of the library's interface, counted on the pages that `cargo doc` writes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// The public items that there may be: types, functions and methods.
const ITEMS: usize = 600;

/// The names that the hidden module may have, which tests and benches use.
const HIDDEN: usize = 100;

/// The kinds of pages that stand for an item.
const KINDS: [&str; 8] = ["struct", "enum", "union", "trait", "fn", "type", "constant", "static"];

/// Fails if the interface has grown beyond its bounds; gives the number of its items.
pub(crate) fn check(pages: &Path, hidden: &Path) -> Result<usize, Failure> {
    let mut files = Vec::new();
    collect(pages, &mut files)?;
    let mut items = 0;
    for file in files {
        items += of_page(&file, &read(&file)?);
    }
    if items == 0 || items > ITEMS {
        return Err(format!("the library has {items} public items, of at most {ITEMS}"));
    }
    let names = names(&read(hidden)?);
    if names > HIDDEN {
        return Err(format!("{} has {names} names, of at most {HIDDEN}", hidden.display()));
    }
    Ok(items)
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let unread = |e| format!("{}: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            files.push(path);
        }
    }
    Ok(())
}

/// The items of a page: a type or function, and the methods that it declares itself.
fn of_page(file: &Path, text: &str) -> usize {
    let name = file.file_name().and_then(|name| name.to_str());
    let kind = name.and_then(|name| name.split_once('.')).map(|(kind, _)| kind);
    let moved = text.contains("http-equiv=\"refresh\"");
    let Some(kind) = kind.filter(|kind| KINDS.contains(kind) && !moved) else { return 0 };
    let (begin, ends): (&str, &[&str]) = match kind {
        "trait" => ("<body", &["id=\"foreign-impls\"", "id=\"implementors\""]),
        _ => (
            "id=\"implementations-list\"",
            &[
                "id=\"trait-implementations\"",
                "id=\"deref-methods",
                "id=\"synthetic-implementations\"",
            ],
        ),
    };
    let Some(own) = text.find(begin).map(|at| &text[at..]) else { return 1 };
    let end = ends.iter().filter_map(|end| own.find(end)).min().unwrap_or(own.len());
    let methods = ["<section id=\"method.", "<section id=\"tymethod."];
    1 + methods.iter().map(|method| own[..end].matches(method).count()).sum::<usize>()
}

/// The names that a file exports again.
fn names(text: &str) -> usize {
    let exports = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let of = |path: &str| {
        path.split(',').filter(|name| !name.trim_matches([' ', '\n', '}']).is_empty()).count()
    };
    exports.map(of).sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{names, of_page};

    #[test]
    fn methods_of_a_type_are_its_own() {
        let page = "<body id=\"implementations-list\"><section id=\"method.new\">\
                    id=\"trait-implementations\" <section id=\"method.fmt\">";
        assert_eq!(of_page(Path::new("doc/struct.A.html"), page), 2);
        assert_eq!(of_page(Path::new("doc/index.html"), page), 0);
        assert_eq!(of_page(Path::new("doc/fn.f.html"), "<body"), 1);
    }

    #[test]
    fn exported_names_are_counted() {
        assert_eq!(names("pub use a::B;\npub use c::{D, e, F};\n"), 4);
    }
}
