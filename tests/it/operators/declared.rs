//! Reads the declarations of operators under `src/op`.

use std::collections::BTreeMap;

use crate::source;

/// An operator as its declaration says it.
pub(crate) struct Operator {
    pub(crate) name: String,
    /// The first sentence of its documentation.
    pub(crate) meaning: String,
    pub(crate) attributes: Vec<String>,
    /// The file, from the repository's root.
    pub(crate) file: String,
}

/// Every operator declared by `op!` or `family!`.
pub(crate) fn declared() -> Vec<Operator> {
    let (files, mut found) = (source::files(&["src/op"]), Vec::new());
    let shared: BTreeMap<String, Vec<String>> = files.iter().flat_map(settings).collect();
    for file in files {
        let mut lines = file.text.lines();
        while let Some(line) = lines.next() {
            if line == "op! {" || line == "family! {" {
                let block = lines.by_ref().take_while(|line| *line != "}");
                found.extend(block_operators(block, &file.path, &shared));
            }
        }
    }
    found
}

/// The attributes that several operators share, by the name of their struct.
fn settings(file: &source::File) -> impl Iterator<Item = (String, Vec<String>)> {
    let blocks = file.text.split("\nsettings! {\n").skip(1).map(|rest| {
        let block = rest.split("\n}\n").next().unwrap_or_default();
        let names = block.lines().map(str::trim).filter_map(|line| line.strip_prefix("pub "));
        let struct_of =
            |line: &str| Some(line.strip_prefix("struct ")?.split(' ').next()?.to_owned());
        let attributes = names.clone().filter_map(|line| Some(line.split_once(": ")?.0.to_owned()));
        (names.clone().find_map(struct_of).unwrap_or_default(), attributes.collect())
    });
    blocks.collect::<Vec<_>>().into_iter()
}

/// The operators of one macro call: every `Name = "name"` is one, and the fields after it are its
/// attributes.
fn block_operators<'a>(
    lines: impl Iterator<Item = &'a str>,
    file: &str,
    shared: &BTreeMap<String, Vec<String>>,
) -> Vec<Operator> {
    let mut found: Vec<Operator> = Vec::new();
    let mut of_all: Vec<String> = Vec::new();
    let mut in_common = false;
    let mut doc = String::new();
    for line in lines.map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            match text.trim() {
                "" => doc.push('\n'),
                text if doc.is_empty() => doc.push_str(text),
                text => doc = format!("{doc} {text}"),
            }
            continue;
        }
        let declaration = line.strip_prefix("pub struct ").unwrap_or(line);
        // The attributes of all operators of a family: `with [`, one on each line, `] {`.
        if in_common || declaration.ends_with(" with [") {
            of_all.extend(line.split_once(": ").map(|(field, _)| field.to_owned()));
            in_common = line != "] {";
            doc.clear();
            continue;
        }
        if let Some((_, name)) = declaration.split_once(" with ") {
            of_all.clone_from(&shared[name.trim_end_matches(" {")]);
            doc.clear();
            continue;
        }
        if let Some((_, rest)) = declaration.split_once(" = \"") {
            let name = rest.split('"').next().unwrap_or_default().to_owned();
            let (meaning, file) = (first_sentence(&doc), file.to_owned());
            let without = rest.split_once("without [").map_or("", |(_, list)| list);
            let without: Vec<&str> = without.split([',', ' ', ']']).collect();
            let own = of_all.iter().filter(|attr| !without.contains(&attr.as_str()));
            found.push(Operator { name, meaning, attributes: own.cloned().collect(), file });
        } else if let (Some((field, ty)), Some(op)) = (line.split_once(": "), found.last_mut())
            // A callback is never written.
            && ty != "Callback,"
        {
            match shared.get(ty) {
                Some(attributes) => op.attributes.extend(attributes.iter().cloned()),
                None => op.attributes.push(field.trim_start_matches("pub ").to_owned()),
            }
        }
        doc.clear();
    }
    found
}

/// The text up to the first full stop that ends a sentence, or to the end of the paragraph.
fn first_sentence(doc: &str) -> String {
    let paragraph = doc.split('\n').next().unwrap_or_default().trim();
    let end = paragraph.find(". ").map_or(paragraph.len(), |p| p + 1);
    paragraph[..end].trim_end_matches('.').to_owned()
}
