//! The kernel files, embedded, and what they include.

use super::{CodegenError, float};
use crate::types::invariant::invariant;

/// The files of `kernels/` by name and those of `kernels/include/` by `include/` and name.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Each file's name below `kernels/` and its text, ordered by name.
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../kernels/", $name)))),*];
    };
}

files![
    "all_reduce.cu",
    "arg.cu",
    "batch_join.cu",
    "batch_norm.cu",
    "batch_statistics.cu",
    "batch_sums.cu",
    "broadcast.cu",
    "conv.cu",
    "conv_weight_grad.cu",
    "depthwise.cu",
    "dft.cu",
    "dropout.cu",
    "elementwise.cu",
    "exchange.cu",
    "few_weight_grad.cu",
    "gather.cu",
    "gather_at.cu",
    "include/batch.cuh",
    "include/common.cuh",
    "include/double.cuh",
    "include/functions.cuh",
    "include/index.cuh",
    "include/lines.cuh",
    "include/numbers.cuh",
    "include/pairs.cuh",
    "include/recurrent.cuh",
    "include/report.cuh",
    "include/row_hash.cuh",
    "include/tile.cuh",
    "include/wide.cuh",
    "join.cu",
    "long_norm.cu",
    "long_softmax.cu",
    "lrn.cu",
    "matmul.cu",
    "merge_top_k.cu",
    "move.cu",
    "narrow.cu",
    "norm.cu",
    "one_hot.cu",
    "pad.cu",
    "pool.cu",
    "pool_grad.cu",
    "random.cu",
    "range.cu",
    "rank.cu",
    "recurrent.cu",
    "recurrent_grad.cu",
    "reduce.cu",
    "resize.cu",
    "reverse_sequence.cu",
    "row_noise.cu",
    "scan.cu",
    "scatter.cu",
    "segment_sum.cu",
    "side_by_side.cu",
    "softmax.cu",
    "trilu.cu",
    "update.cu",
    "written.cu",
];

/// The name under which a kernel's file includes its expression.
pub(super) const EXPRESSION: &str = "expression.cuh";

/// The folder of the files that kernels share.
const SHARED: &str = "include/";

/// All files, with the one that is written and not in the folder.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().copied().chain(std::iter::once_with(|| (float::FILE, float::text())))
}

/// The text of a file, by its name below `kernels/`.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    let found = all().find(|(n, _)| *n == name).map(|(_, text)| text);
    #[cfg(test)]
    let found = found.or_else(|| super::testing::text(name));
    found
}

/// The names of the kernel files, as `conv.cu`.
#[cfg(test)]
fn kernel_files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name).filter(|name| !name.starts_with(SHARED))
}

/// A line of a file.
enum Line<'a> {
    /// Text that is taken as it is.
    Text(&'a str),
    /// `#include "NAME"`.
    Include(&'a str),
    /// A line that has no meaning in a unit: `#pragma once`.
    Nothing,
}

fn line(text: &str) -> Line<'_> {
    let directive = text.trim().strip_prefix('#').map(str::trim_start);
    match directive {
        // Each shared file is in a unit once; the compiler would warn of the pragma in a main file.
        Some(rest) if rest.trim_start_matches("pragma").trim() == "once" => Line::Nothing,
        Some(rest) => {
            let name = rest.strip_prefix("include").map(str::trim_start);
            let name = name.and_then(|n| n.strip_prefix('"')).and_then(|n| n.split_once('"'));
            name.map_or(Line::Text(text), |(name, _)| Line::Include(name))
        }
        None => Line::Text(text),
    }
}

fn missing(file: &str, name: &str) -> CodegenError {
    let reason = format!("it includes `{name}`, which is not a file of `kernels/include`");
    CodegenError::Source { file: file.to_owned(), reason }
}

/// The directive that says where the following line comes from.
pub(super) fn origin(number: usize, file: &str) -> String {
    format!("#line {number} \"{file}\"\n")
}

/// The text of a kernel file with its expression in place. Its other includes are dropped, and
/// named in `shared`; they belong before all kernels of a unit.
pub(super) fn kernel(
    file: &str,
    expression: &str,
    expression_origin: &str,
    shared: &mut Vec<&'static str>,
) -> Result<String, CodegenError> {
    let Some(source) = text(file).filter(|_| !file.starts_with(SHARED)) else {
        let reason = "there is no such kernel file".to_owned();
        return Err(CodegenError::Source { file: file.to_owned(), reason });
    };
    let path = format!("kernels/{file}");
    // With `#line` directives, compiler messages and profilers name the file in `kernels/`. Each
    // line of the file stays one line, so a directive at the start and one behind the expression
    // suffice.
    let mut out = origin(1, &path);
    for (number, text) in source.lines().enumerate() {
        match line(text) {
            Line::Text(text) => out += text,
            Line::Nothing => {}
            Line::Include(EXPRESSION) => {
                out += &origin(1, expression_origin);
                out += expression;
                if !expression.is_empty() && !expression.ends_with('\n') {
                    out.push('\n');
                }
                out += &origin(number + 2, &path);
                continue;
            }
            Line::Include(name) => add_shared(file, name, shared)?,
        }
        out.push('\n');
    }
    Ok(out)
}

/// Adds a shared file after those that it includes, unless it is there.
fn add_shared(from: &str, name: &str, shared: &mut Vec<&'static str>) -> Result<(), CodegenError> {
    let find = |name: &str| all().find(|(n, _)| n.strip_prefix(SHARED) == Some(name));
    // An explicit stack of the files that are open. A file that is found again on the stack
    // includes itself; one that is done already is skipped, as `#pragma once` would.
    let mut open: Vec<(&'static str, std::str::Lines<'static>)> = Vec::new();
    let mut wanted = Some(name.to_owned());
    loop {
        if let Some(name) = wanted.take() {
            let around = open.last().map_or(from, |(name, _)| name);
            let (file, text) = find(&name).ok_or_else(|| missing(around, &name))?;
            if open.iter().any(|(other, _)| *other == file) {
                let reason = format!("it includes itself through `{name}`");
                return Err(CodegenError::Source { file: file.to_owned(), reason });
            }
            if !shared.contains(&file) {
                open.push((file, text.lines()));
            }
        }
        let Some((file, lines)) = open.last_mut() else { return Ok(()) };
        let next = lines.find_map(|text| match line(text) {
            Line::Include(name) => Some(name.to_owned()),
            Line::Text(_) | Line::Nothing => None,
        });
        if next.is_some() {
            wanted = next;
        } else {
            shared.push(file);
            open.pop();
        }
    }
}

/// The text of the shared files, as a unit with these kernels has it: of the functions of `float`
/// those that are called.
pub(super) fn headers(files: &[&'static str], kernels: &str) -> String {
    // Those of `double` have the same names.
    let apart = [float::FILE, "include/double.cuh"];
    let callers = files.iter().filter(|file| !apart.contains(file)).map(|file| shared(file));
    let callers: String = callers.chain([kernels.to_owned()]).collect();
    let text = |file: &&'static str| match *file {
        float::FILE => in_unit(float::FILE, &float::used_by(&callers)),
        file => shared(file),
    };
    files.iter().map(text).collect()
}

fn shared(file: &str) -> String {
    in_unit(file, invariant(text(file), "that shared files are in the library"))
}

/// The text of a shared file, as a unit has it.
fn in_unit(file: &str, text: &str) -> String {
    let mut out = origin(1, &format!("kernels/{file}"));
    for text in text.lines() {
        match line(text) {
            Line::Text(text) => out += text,
            // Included files come before this one; the line stays, empty, so that numbers are
            // right.
            Line::Nothing | Line::Include(_) => {}
        }
        out.push('\n');
    }
    out
}

/// The macros that a text defines, in their order.
pub(super) fn macros(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix('#')?.trim_start().strip_prefix("define")?;
        let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        Some(end.map_or(rest, |end| &rest[..end])).filter(|name| !name.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{FILES, kernel, kernel_files, line, macros, shared, text};

    #[test]
    fn the_list_is_the_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut found = Vec::new();
        for (folder, prefix) in [(root.clone(), ""), (root.join("include"), "include/")] {
            for entry in fs::read_dir(folder).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let ending = Path::new(&name).extension().and_then(|e| e.to_str());
                if matches!(ending, Some("cu" | "cuh")) {
                    found.push(format!("{prefix}{name}"));
                }
            }
        }
        found.sort();
        assert_eq!(FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), found);
    }

    #[test]
    fn every_kernel_file_resolves_and_says_what_it_does() {
        for file in kernel_files() {
            let mut headers = Vec::new();
            let text = kernel(file, "", "expression.cuh", &mut headers).unwrap();
            assert!(!text.contains("#include"), "{file}");
            assert_eq!(text.matches("ENTRY(const Params p)").count(), 1, "{file}");
            assert!(super::text(file).unwrap().starts_with("//"), "{file}");
            for header in headers {
                assert!(!shared(header).contains("#include"), "{header}");
            }
        }
    }

    #[test]
    fn lines_keep_their_numbers() {
        let mut headers = Vec::new();
        let text = kernel("copy.cu", "", "e", &mut headers).unwrap();
        assert_eq!(headers, ["include/common.cuh"]);
        let source = text.strip_prefix("#line 1 \"kernels/copy.cu\"\n").unwrap();
        let original = super::text("copy.cu").unwrap().replace("#include \"common.cuh\"", "");
        assert_eq!(source, original);
    }

    #[test]
    fn what_is_no_file_is_an_error() {
        let error = kernel("none.cu", "", "e", &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(error, "kernels/none.cu: there is no such kernel file");
        assert!(kernel("include/common.cuh", "", "e", &mut Vec::new()).is_err());
        assert!(super::add_shared("copy.cu", "none.cuh", &mut Vec::new()).is_err());
        assert!(text("common.cuh").is_none());
    }

    #[test]
    fn directives_are_found() {
        let include = |text| matches!(line(text), super::Line::Include("a.cuh"));
        assert!(include("#include \"a.cuh\"") && include("  # include \"a.cuh\" // why"));
        assert!(!include("// #include \"a.cuh\"") && !include("#include <a.cuh>"));
        assert!(matches!(line("#pragma once"), super::Line::Nothing));
        assert!(matches!(line("#pragma unroll"), super::Line::Text(_)));
        let text = "#define A 1\n # define B(x) x\n#defined C\n#define\n#define D\n";
        assert_eq!(macros(text).collect::<Vec<_>>(), ["A", "B", "D"]);
    }
}
