//! Reads the declarations of operators under `src/op`.

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
    let mut found = Vec::new();
    for file in source::files(&["src/op"]) {
        let mut lines = file.text.lines();
        while let Some(line) = lines.next() {
            if line == "op! {" || line == "family! {" {
                let block = lines.by_ref().take_while(|line| *line != "}");
                found.extend(block_operators(block, &file.path));
            }
        }
    }
    found
}

/// The operators of one macro call: every `Name = "name"` is one, and the fields after it are its
/// attributes.
fn block_operators<'a>(lines: impl Iterator<Item = &'a str>, file: &str) -> Vec<Operator> {
    let mut found: Vec<Operator> = Vec::new();
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
        if let Some((_, rest)) = declaration.split_once(" = \"") {
            let name = rest.split('"').next().unwrap_or_default().to_owned();
            let (meaning, file) = (first_sentence(&doc), file.to_owned());
            found.push(Operator { name, meaning, attributes: Vec::new(), file });
        } else if let (Some((field, ty)), Some(op)) = (line.split_once(": "), found.last_mut())
            // A callback is never written.
            && ty != "Callback,"
        {
            op.attributes.push(field.trim_start_matches("pub ").to_owned());
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
