//! Translation units: the text that NVRTC compiles at once, with one or more kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CodegenError, Kernel, ParamDecl, source};
use crate::types::invariant::invariant;

/// The files whose kernels take long to compile. Each such kernel is a unit of its own, so that all
/// cores have work.
const HEAVY: &[&str] = &["conv.cu", "conv_weight_grad.cu", "depthwise.cu", "matmul.cu"];

/// The most kernels of other files in a unit. A program of NVRTC has a fixed cost: with one kernel
/// per unit, compilation would take three times as long.
const LIGHT_PER_UNIT: usize = 20;

/// The most members of a kernel's argument; of eight bytes each, they fill the 4096 bytes that
/// every architecture supports.
pub(super) const MAX_PARAMS: usize = 512;

/// A translation unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// CUDA C++ without any `#include`.
    pub text: String,
    /// Its kernels, in order.
    pub entries: Vec<Entry>,
}

/// A kernel of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The function's name in the compiled unit.
    pub name: String,
    /// The kernel.
    pub kernel: Arc<Kernel>,
}

/// Partitions kernels into units, each kernel once: kernels of heavy files come first, alone; the
/// others are grouped. The units depend on the set of kernels only, not on their order or
/// repetition.
///
/// A group ends at a kernel whose hash satisfies a condition (content-defined chunking). Programs
/// that share most of their kernels, such as one model on two and on three devices, therefore share
/// most of their units, which the cache then holds.
pub fn units(kernels: &[Arc<Kernel>]) -> Result<Vec<Unit>, CodegenError> {
    let all: BTreeSet<&Arc<Kernel>> = kernels.iter().collect();
    // A set: equal kernels are compiled once, and the order of the launches does not matter.
    let (heavy, light): (Vec<_>, Vec<_>) = all.into_iter().partition(|kernel| is_heavy(kernel));
    let mut groups: Vec<Vec<&Arc<Kernel>>> = heavy.into_iter().map(|kernel| vec![kernel]).collect();
    for ends in light.split_inclusive(|kernel| ends_group(kernel)) {
        groups.extend(ends.chunks(LIGHT_PER_UNIT).map(<[_]>::to_vec));
    }
    groups.iter().map(|group| Unit::new(group)).collect()
}

/// True if a kernel, or one of its parts, takes long to compile.
pub(super) fn is_heavy(kernel: &Kernel) -> bool {
    HEAVY.contains(&kernel.file) || kernel.parts.iter().any(|part| is_heavy(part))
}

/// The members of a kernel's argument, with those of its parts.
pub(super) fn members(kernel: &Kernel) -> usize {
    kernel.params.len() + kernel.parts.iter().map(|part| members(part)).sum::<usize>()
}

/// True for one kernel in eight, by its hash: groups have eight kernels on average.
fn ends_group(kernel: &Kernel) -> bool {
    hash(kernel).ends_with(['0', '8'])
}

/// The name of a kernel's function: the stem of its file and a hash of the kernel.
pub fn entry_name(kernel: &Kernel) -> String {
    format!("{}_{}", kernel.file.trim_end_matches(".cu"), hash(kernel))
}

/// The first 64 bits of a hash of the kernel, as 16 hexadecimal digits.
fn hash(kernel: &Kernel) -> String {
    // Every part is preceded by its length and the defines by their number, so that no two kernels
    // have the same input by concatenation.
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &str| {
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    };
    add(kernel.file);
    add(&kernel.defines.len().to_string());
    for (name, value) in &kernel.defines {
        add(name);
        add(value);
    }
    add(&kernel.expression);
    // The declarations, not the buffers: launches of one kernel differ in their arguments.
    add(&params(kernel));
    add(&kernel.threads.to_string());
    add(&kernel.shared.to_string());
    kernel.parts.iter().for_each(|part| add(&hash(part)));
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The declarations of the members of the kernel's argument.
fn params(kernel: &Kernel) -> String {
    let parts =
        (0..kernel.parts.len()).map(|k| format!("    part_{}::Params k{k};\n", kernel.part(k)));
    kernel.params.iter().fold(parts.collect(), |text: String, param| {
        text + &match param {
            ParamDecl::Read(name, ty) => format!("    const {ty}* {name};\n"),
            ParamDecl::Write(name, ty) => format!("    {ty}* {name};\n"),
            ParamDecl::Size(name) => format!("    long long {name};\n"),
        }
    })
}

/// The macros of a kernel and their replacements, in order.
fn macros(kernel: &Kernel, entry: &str) -> Vec<(String, String)> {
    let mut all = vec![
        ("ENTRY".to_owned(), entry.to_owned()),
        ("THREADS".to_owned(), kernel.threads.to_string()),
        ("SHARED".to_owned(), kernel.shared.to_string()),
    ];
    all.extend(kernel.params.iter().filter_map(|param| match param {
        // The preprocessor does not expand a macro inside itself, so the member keeps its name.
        ParamDecl::Size(name) => Some((name.clone(), format!("(p.{name})"))),
        ParamDecl::Read(..) | ParamDecl::Write(..) => None,
    }));
    all.extend(kernel.defines.iter().cloned());
    all
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Fails unless the names of macros and members are distinct identifiers, and every replacement is
/// one line.
fn check(kernel: &Kernel, macros: &[(String, String)]) -> Result<(), CodegenError> {
    let wrong = |reason| Err(CodegenError::Source { file: kernel.file.to_owned(), reason });
    let pointers = kernel.params.iter().filter_map(|param| match param {
        ParamDecl::Read(name, _) | ParamDecl::Write(name, _) => Some(name),
        ParamDecl::Size(_) => None,
    });
    // A macro with one of these names would rewrite the struct or the argument itself.
    let mut seen = BTreeSet::from(["Params", "p"]);
    for name in macros.iter().map(|(name, _)| name).chain(pointers) {
        if !is_identifier(name) || !seen.insert(name) {
            return wrong(format!("`{name}` is not a name, or not the only one of its kind"));
        }
    }
    if let Some((name, _)) = macros.iter().find(|(_, value)| value.contains(['\n', '\r', '\\'])) {
        return wrong(format!("`{name}` does not stand for one line"));
    }
    let count = members(kernel);
    if count > MAX_PARAMS {
        return wrong(format!("{count} members of its argument; {MAX_PARAMS} fit"));
    }
    Ok(())
}

impl Unit {
    /// Writes the unit of these kernels, which must be distinct.
    fn new(kernels: &[&Arc<Kernel>]) -> Result<Self, CodegenError> {
        // Shared headers come once, before all kernels and outside their namespaces, so that their
        // functions are compiled once for the unit.
        let (mut headers, mut bodies) = (Vec::new(), String::new());
        let mut entries = Vec::with_capacity(kernels.len());
        for &kernel in kernels {
            let name = entry_name(kernel);
            bodies += &body(kernel, &name, &mut headers)?;
            entries.push(Entry { name, kernel: Arc::clone(kernel) });
        }
        Ok(Self { text: source::headers(&headers, &bodies) + &bodies, entries })
    }

    /// The lines around the first error in a compiler log, with their numbers in the file; empty if
    /// the log names no line of this unit.
    pub(crate) fn excerpt(&self, log: &str) -> String {
        /// The lines shown before and after the one of the error.
        const AROUND: usize = 4;
        let lines = self.lines();
        let error = log.lines().filter(|line| line.contains("error")).find_map(position);
        let Some((file, at)) = error else { return String::new() };
        let mut text = String::new();
        for number in at.saturating_sub(AROUND)..=at.saturating_add(AROUND) {
            if let Some(line) = lines.get(&(file, number)) {
                let mark = if number == at { '>' } else { ' ' };
                text.extend([format!("{mark}{number:>5} | {line}\n")]);
            }
        }
        text
    }

    /// The lines by file and number, as the `#line` directives place them.
    fn lines(&self) -> BTreeMap<(&str, usize), &str> {
        let (mut file, mut next) = ("", 1);
        let mut lines = BTreeMap::new();
        for line in self.text.lines() {
            let directive = line.strip_prefix("#line ").and_then(|rest| rest.split_once(' '));
            if let Some((number, name)) = directive {
                file = name.trim_matches('"');
                next = invariant(number.parse().ok(), "that `#line` has a number");
            } else {
                // The same file occurs once for each of its kernels, with the same lines.
                lines.entry((file, next)).or_insert(line);
                next += 1;
            }
        }
        lines
    }
}

/// The file and line that a message of the compiler begins with: `kernels/conv.cu(12): error: …`.
fn position(line: &str) -> Option<(&str, usize)> {
    let (place, _) = line.split_once("):")?;
    let (file, number) = place.rsplit_once('(')?;
    Some((file, number.parse().ok()?))
}

/// The text of a kernel in a unit.
fn body(
    kernel: &Kernel,
    entry: &str,
    headers: &mut Vec<&'static str>,
) -> Result<String, CodegenError> {
    let mut parts = String::new();
    for (k, part) in kernel.parts.iter().enumerate().filter(|(k, _)| kernel.part(*k) == *k) {
        let origin = format!("{entry}/part_{k}");
        parts += &own_text(part, [&format!("part_{k}"), "run", &origin], headers)?;
    }
    if !parts.is_empty() {
        parts = format!(
            "#undef GLOBAL\n#define GLOBAL GLOBAL_BESIDE\n{parts}#undef GLOBAL\n\
             #define GLOBAL GLOBAL_ALONE\n"
        );
    }
    let place = format!("k_{}", hash(kernel));
    let own = own_text(kernel, [&place, entry, entry], headers)?;
    let Some((opened, rest)) = own.split_once("{\n").filter(|_| !parts.is_empty()) else {
        return Ok(own);
    };
    Ok(format!("{opened}{{\n{parts}{}{rest}", source::origin(1, entry)))
}

/// The text of a kernel's own file in a namespace, with this name of its entry.
fn own_text(
    kernel: &Kernel,
    [namespace, entry, origin]: [&str; 3],
    headers: &mut Vec<&'static str>,
) -> Result<String, CodegenError> {
    let macros = macros(kernel, entry);
    check(kernel, &macros)?;
    let expression_origin = format!("{origin}/{}", source::EXPRESSION);
    let file = source::kernel(kernel.file, &kernel.expression, &expression_origin, headers)?;
    let defines = macros.iter().map(|(name, value)| format!("#define {name} {value}\n"));
    let mut done = BTreeSet::new();
    let names = macros.iter().map(|(name, _)| name.as_str()).chain(source::macros(&file));
    // Macros ignore namespaces: what one kernel defines must be undefined before the next kernel,
    // including the macros that the file itself defines.
    let names = names.filter(|name| done.insert(*name));
    let undefines = names.map(|name| format!("#undef {name}\n"));
    Ok(format!(
        "{}namespace {namespace} {{\nstruct Params {{\n{}}};\n{}{file}{}}}\n{}",
        source::origin(1, origin),
        params(kernel),
        defines.collect::<String>(),
        source::origin(1, &format!("{origin}/end")),
        undefines.collect::<String>(),
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{LIGHT_PER_UNIT, Unit, entry_name, units};
    use crate::codegen::testing::copy;
    use crate::codegen::{Kernel, ParamDecl};

    fn text(kernel: Kernel) -> String {
        units(&[Arc::new(kernel)]).unwrap().remove(0).text
    }

    #[test]
    fn a_unit_of_one_kernel() {
        let text = text(copy("float"));
        let start = text.find("#line 1 \"copy_").unwrap();
        let name = entry_name(&copy("float"));
        let hash = name.strip_prefix("copy_").unwrap();
        let head = format!(
            "#line 1 \"{name}\"\nnamespace k_{hash} {{\nstruct Params {{\n    const float* x;\n    \
             float* y;\n    \
             long long COUNT;\n}};\n#define ENTRY {name}\n#define THREADS 256\n#define SHARED 0\n\
             #define COUNT (p.COUNT)\n#line 1 \"kernels/copy.cu\"\n// Copies"
        );
        assert!(text[start..].starts_with(&head), "{}", &text[start..]);
        assert!(text.starts_with("#line 1 \"kernels/include/common.cuh\"\n"));
        let tail = "}\n#undef ENTRY\n#undef THREADS\n#undef SHARED\n#undef COUNT\n";
        assert!(text.ends_with(tail), "{text}");
        assert!(!text.contains("#include") && !text.contains("#pragma once"));
    }

    #[test]
    fn what_a_kernel_is_specialised_to_names_it() {
        let base = copy("float");
        let [first, second] = [base.clone(), base.clone()];
        let mut others = [copy("double"), first, second, base.clone(), base.clone()];
        others[1].threads = 128;
        others[2].shared = 16;
        others[3].expression = "// nothing".to_owned();
        others[4].defines = vec![("WIDTH".to_owned(), "4".to_owned())];
        let names: Vec<_> = others.iter().chain([&base]).map(entry_name).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{names:?}");
        }
        // The parts are told apart, not only their text in a row.
        let of = |a: &str, b: &str| Kernel {
            defines: vec![(a.to_owned(), b.to_owned())],
            ..base.clone()
        };
        assert_ne!(entry_name(&of("AB", "C")), entry_name(&of("A", "BC")));
    }

    #[test]
    fn groups_do_not_depend_on_order_or_repetition() {
        let of = |width: usize| {
            let mut kernel = copy("float");
            kernel.defines = vec![("WIDTH".to_owned(), width.to_string())];
            Arc::new(kernel)
        };
        let mut kernels: Vec<_> = (0..=2 * LIGHT_PER_UNIT).map(of).collect();
        let first = units(&kernels).unwrap();
        let sizes: Vec<usize> = first.iter().map(|u| u.entries.len()).collect();
        assert!(sizes.len() > 1 && sizes.iter().all(|n| *n <= LIGHT_PER_UNIT), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), kernels.len());
        // Without one of them all units but one are the same.
        let fewer = units(&kernels[1..]).unwrap();
        assert_eq!(first.iter().filter(|unit| !fewer.contains(unit)).count(), 1);
        kernels.reverse();
        kernels.push(Arc::clone(&kernels[3]));
        assert_eq!(units(&kernels).unwrap(), first);
        assert_eq!(units(&[]).unwrap(), []);
        // Shared files are there once.
        assert_eq!(first[0].text.matches("kernels/include/common.cuh").count(), 1);
    }

    #[test]
    fn names_that_would_break_the_text_are_errors() {
        let with = |change: fn(&mut Kernel)| {
            let mut kernel = copy("float");
            change(&mut kernel);
            units(&[Arc::new(kernel)]).unwrap_err().to_string()
        };
        for change in [
            (|k| k.defines.push(("COUNT".to_owned(), "1".to_owned()))) as fn(&mut Kernel),
            |k| k.defines.push(("x".to_owned(), "1".to_owned())),
            |k| k.defines.push(("ENTRY".to_owned(), "f".to_owned())),
            |k| k.defines.push(("A B".to_owned(), "1".to_owned())),
            |k| k.defines.push((String::new(), "1".to_owned())),
            |k| k.params.push(ParamDecl::Size("p".to_owned())),
        ] {
            let message = with(change);
            assert!(message.contains("is not a name, or not the only one"), "{message}");
        }
        let message = with(|k| k.defines.push(("A".to_owned(), "1\n#error".to_owned())));
        assert_eq!(message, "kernels/copy.cu: `A` does not stand for one line");
        let message = with(|k| k.params.extend((0..512).map(|i| ParamDecl::Size(format!("S{i}")))));
        assert!(message.contains("515 members"), "{message}");
    }

    #[test]
    fn errors_show_their_lines() {
        let unit = units(&[Arc::new(copy("float"))]).unwrap().remove(0);
        let excerpt = unit.excerpt("note\nkernels/copy.cu(11): error: no\n1 error");
        assert!(excerpt.contains(">   11 |         p.y[i] = p.x[i];\n"), "{excerpt}");
        assert_eq!(excerpt.lines().count(), 7, "{excerpt}");
        for log in ["", "error", "a.cu(3): error: x", "kernels/copy.cu(9999999999): error: x"] {
            assert_eq!(unit.excerpt(log), "", "{log}");
        }
        let empty = Unit { text: String::new(), entries: Vec::new() };
        assert_eq!(empty.excerpt("a(18446744073709551615): error: x"), "");
    }
}
