//! The rules of the source tree that no lint knows: which layer may import which, how long a file
//! and a function may be, where `unsafe` may stand.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::source::{self, files};

/// The layers from the lowest to the highest. A layer may import those of earlier lines, and none
/// of its own line but itself.
const LAYERS: &[&[&str]] = &[
    &["types"],
    &["op"],
    &["ir"],
    &["format", "analysis", "zoo"],
    &["pass"],
    &["model"],
    &["lower"],
    &["codegen"],
    &["backend"],
    &["train"],
    &["internal", "session"],
    &["cli"],
    &["bin"],
];

/// The rooms of the backends, each with the other rooms that it may import.
const ROOMS: &[(&str, &[&str])] = &[
    ("backend::host", &[]),
    ("backend::cpu", &["backend::host"]),
    ("backend::cuda::driver", &["backend::host"]),
    ("backend::cuda::compiler", &["backend::cuda::driver"]),
    (
        "backend::cuda::run",
        &["backend::host", "backend::cpu", "backend::cuda::driver", "backend::cuda::compiler"],
    ),
];

/// The wrapper files in which `unsafe` is allowed.
const UNSAFE: &[&str] = &[
    "bindings/python/src/array.rs",
    "src/backend/cpu/prefetch.rs",
    "src/backend/cuda/compiler/library.rs",
    "src/backend/cuda/compiler/program.rs",
    "src/backend/cuda/driver/captures.rs",
    "src/backend/cuda/driver/context.rs",
    "src/backend/cuda/driver/memory.rs",
    "src/backend/cuda/driver/module.rs",
    "src/backend/cuda/driver/stream.rs",
    "src/backend/cuda/driver/sys.rs",
    "src/backend/host/crew.rs",
    "src/format/mmap.rs",
    "src/types/subnormals.rs",
];

/// The crate that stands in for a C library: what it exports takes pointers.
const FOREIGN: &str = "tests/fakecuda/";

/// The file that `prost-build` writes.
const GENERATED: &str = "src/format/onnx/proto.rs";

/// The lines of a file, unless it is generated.
const FILE_LINES: usize = 600;

/// The columns of a line, tabs and all.
const COLUMNS: usize = 100;

/// The tests with lines of JSON and of assembler that cannot be broken: literals may end there
/// behind the last column.
const UNBROKEN: [&str; 3] = ["tests/it/hostile/", "tests/memory.rs", "tests/fakecuda/tests/"];

/// The lines of a function, from its `fn` to its closing brace.
const FN_LINES: usize = 60;

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|line| line.contains(&layer))
}

/// The layer that a file under `src` belongs to; none for `lib.rs`, which re-exports.
fn layer(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("src/")?;
    let name = rest.split_once('/').map_or_else(|| rest.trim_end_matches(".rs"), |(name, _)| name);
    (name != "lib").then_some(name)
}

/// The number of modules that a file is inside: 1 for `src/op/mod.rs`, 2 for `src/op/slice.rs`.
fn depth(path: &str) -> usize {
    let modules = path.trim_end_matches(".rs").split('/').skip(1);
    modules.filter(|part| *part != "mod").count()
}

/// True for a file of a `#[cfg(test)] mod`, which may reach up for its checks.
pub(crate) fn is_test(path: &str) -> bool {
    let stem = path.trim_end_matches(".rs").rsplit('/').next().unwrap_or_default();
    stem.starts_with("test")
}

/// What is wrong with `from` importing `item` of the layer `to`, if anything is.
fn objection(from: &str, to: &str, item: &str) -> Option<String> {
    match (from, to) {
        ("types", "error" | "Error" | "Result") => Some("types is a leaf".to_owned()),
        (_, "error" | "Error" | "Result") | ("error", "types") => None,
        // The crate's error holds those of the layers, and nothing else of them.
        ("error", _) if item.ends_with("Error") || item.ends_with("Errors") => None,
        ("error", _) => Some(format!("error must use only the errors of {to}, not {item}")),
        (from, to) if from == to => None,
        (from, to) => match (rank(from), rank(to)) {
            (Some(a), Some(b)) if b < a => None,
            (Some(_), Some(_)) => Some(format!("{from} must not use {to}")),
            (None, _) => Some(format!("{from} is not a layer")),
            (_, None) => Some(format!("{to} is not a layer")),
        },
    }
}

#[test]
fn imports_point_one_way() {
    let mut wrong = String::new();
    for file in files(&["src"]) {
        let Some(from) = layer(&file.path).filter(|_| !is_test(&file.path)) else { continue };
        let code = source::without_tests(&file.code);
        for import in source::imports(&code, depth(&file.path)) {
            if let Some(reason) = objection(from, &import.layer, &import.item) {
                writeln!(wrong, "{}:{}: {reason}", file.path, import.line).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The room that a path of modules lies in.
fn room(path: &str) -> Option<(&'static str, &'static [&'static str])> {
    let inside = |room: &str| path.strip_prefix(room).is_some_and(|rest| rest.starts_with("::"));
    ROOMS.iter().copied().find(|(room, _)| path == *room || inside(room))
}

/// What is wrong with a module naming `path`, if anything is.
fn room_objection(module: &str, path: &str) -> Option<String> {
    let ((own, below), (other, _)) = (room(module)?, room(path)?);
    let allowed = own == other || below.contains(&other);
    (!allowed).then(|| format!("{own} must not use {path}"))
}

#[test]
fn rooms_of_the_backends_have_a_direction() {
    let mut wrong = String::new();
    for file in files(&["src/backend"]).iter().filter(|file| !is_test(&file.path)) {
        let path = file.path.trim_start_matches("src/").trim_end_matches(".rs");
        let module: Vec<&str> = path.split('/').filter(|part| *part != "mod").collect();
        let code = source::without_tests(&file.code);
        for (line, path) in source::paths(&code, &module) {
            if let Some(reason) = room_objection(&module.join("::"), &path) {
                writeln!(wrong, "{}:{line}: {reason}", file.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn files_and_functions_fit_in_one_reading() {
    let mut wrong = String::new();
    for file in files(&["src", "tests", "bindings"]) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES && file.path != GENERATED {
            writeln!(wrong, "{}: {lines} lines, at most {FILE_LINES}", file.path).unwrap();
        }
        if file.path == GENERATED {
            continue;
        }
        for function in source::functions(&file.code) {
            if function.lines > FN_LINES {
                let source::Function { line, name, lines, .. } = function;
                let path = &file.path;
                writeln!(wrong, "{path}:{line}: {name} has {lines} lines, at most {FN_LINES}")
                    .unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// True if a parameter is a tuple, whose places only the order tells apart.
fn takes_a_tuple(signature: &str) -> bool {
    signature.split(": ").skip(1).any(|ty| {
        let ty = ty.trim_start_matches('&').trim_start_matches("mut ");
        let ty = ty.strip_prefix("Option<").unwrap_or(ty);
        ty.starts_with('(') && !["()", "(dyn ", "(impl "].iter().any(|p| ty.starts_with(p))
    })
}

#[test]
fn parameters_have_names() {
    let found: Vec<String> = files(&["src"])
        .iter()
        .flat_map(|file| {
            let of = move |f: &source::Function| format!("{}:{}: {}", file.path, f.line, f.name);
            let functions = source::functions(&file.code);
            // What `From` takes is the type that it is from.
            let named = functions.into_iter().filter(|f| f.name != "from");
            named.filter(|f| takes_a_tuple(&f.signature)).map(move |f| of(&f))
        })
        .collect();
    assert!(found.is_empty(), "parameters in tuples:\n{}", found.join("\n"));
    assert!(takes_a_tuple("fn f(size: (usize, usize)) "));
    assert!(takes_a_tuple("fn f((a, b): &(i64, f64)) "));
    assert!(takes_a_tuple("fn f(size: Option<(usize, usize)>) "));
    assert!(!takes_a_tuple("fn f(g: &(dyn Fn() -> (u64, u64) + Sync)) -> (u8, u8) "));
}

/// Whether only a literal, with what closes behind it, reaches beyond the last column of a line;
/// `code` is the line without literals and comments.
fn is_long_literal(text: &str, code: &str) -> bool {
    let code = code.trim_end_matches([' ', ',', ')', ';', '{', '}']);
    code.chars().count() <= COLUMNS && text.contains('"') && !text.contains("// ")
}

#[test]
fn lines_fit_in_columns() {
    let mut wrong = String::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs");
    let script = std::fs::read_to_string(script).unwrap();
    let script =
        source::File { path: "build.rs".to_owned(), code: source::code(&script), text: script };
    let others = files(&["src", "tests", "examples", "bindings"]);
    for file in others.into_iter().chain([script]).filter(|file| file.path != GENERATED) {
        let may = UNBROKEN.iter().any(|p| file.path.starts_with(p));
        for (line, (text, code)) in (1..).zip(file.text.lines().zip(file.code.lines())) {
            let columns = text.chars().count();
            if columns > COLUMNS && !(may && is_long_literal(text, code)) {
                writeln!(wrong, "{}:{line}: {columns} columns", file.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(is_long_literal("let x = \"{}\",", "let x =     ,"));
    assert!(!is_long_literal("let x = 1; // \"so\"", "let x = 1;"));
}

#[test]
fn unsafe_stays_in_its_wrappers() {
    for file in files(&["src", "tests", "bindings"]) {
        let found = source::words(&file.code).find(|(_, word)| *word == "unsafe");
        if let Some((line, _)) = found {
            let allowed = file.path.starts_with(FOREIGN) || UNSAFE.contains(&file.path.as_str());
            assert!(allowed, "{}:{line}: unsafe", file.path);
        }
    }
}

/// The first piece of the code that computes on a pool of rayon: a loop over a parallel iterator
/// that does not end in `each`, which the crew shares, or a function of a pool.
fn on_a_pool(code: &str) -> Option<&str> {
    const POOLS: [&str; 6] = [
        "ThreadPool",
        "num_threads",
        "rayon::join",
        "rayon::scope",
        "rayon::spawn",
        "rayon::broadcast",
    ];
    let pieces = || code.split([';', '{', '}']).map(str::trim);
    let is_parallel = |piece: &str| piece.contains(".par_") || piece.contains("into_par_iter");
    let named = |piece: &'_ str| Some(piece.strip_prefix("let ")?.split_once(' ')?.0.to_owned());
    let names: Vec<String> = pieces().filter(|p| is_parallel(p)).filter_map(named).collect();
    let of_name = |piece: &str| {
        let rest = |name: &String| piece.strip_prefix(name.as_str());
        names.iter().filter_map(rest).any(|rest| rest.starts_with('.'))
    };
    pieces().find(|piece| {
        let ends = [".for_each(", ".collect(", ".reduce("].iter().any(|end| piece.contains(end));
        POOLS.iter().any(|name| piece.contains(name))
            || ends && (is_parallel(piece) || of_name(piece))
    })
}

#[test]
fn backends_compute_on_their_crew() {
    for file in files(&["src/backend"]) {
        let found = on_a_pool(&file.code);
        assert_eq!(found, None, "{}", file.path);
    }
    assert!(on_a_pool("y.par_chunks_mut(8).enumerate().for_each(|(i, y)| f(i, y));").is_some());
    assert!(on_a_pool("let rows = y.par_chunks_mut(8); rows.for_each(f);").is_some());
    assert!(on_a_pool("let pool = ThreadPoolBuilder::new();").is_some());
    let shared = "let rows = y.par_chunks_mut(8); rows.each(f); x.iter().for_each(g);";
    assert_eq!(on_a_pool(shared), None);
}

#[test]
fn the_library_leaves_the_environment_alone() {
    for file in files(&["src"]) {
        if matches!(layer(&file.path), Some("cli" | "bin")) || is_test(&file.path) {
            continue;
        }
        let code = source::without_tests(&file.code);
        assert!(!code.contains("std::env"), "{}: the library reads no environment", file.path);
    }
}

/// The detours round cudarc in `docs/decisions/0014-cudarc.md`: files, and the functions that each
/// names.
fn detours() -> Vec<(String, usize)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let record = std::fs::read_to_string(root.join("docs/decisions/0014-cudarc.md")).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `src/")?.split('|');
        let path = format!("src/{}", cells.next()?.trim().trim_end_matches('`'));
        Some((path, cells.next()?.trim().parse().ok()?))
    };
    record.lines().filter_map(row).collect()
}

#[test]
fn detours_round_cudarc_are_recorded() {
    let is_function = |word: &&str| {
        let rest = word.strip_prefix("cu").or(word.strip_prefix("nvrtc"));
        rest.is_some_and(|rest| rest.starts_with(char::is_uppercase)) && *word != "nvrtcProgram"
    };
    let opens =
        |file: &source::File| source::words(&file.code).any(|(_, word)| word == "libloading");
    let found: Vec<(String, usize)> = files(&["src"])
        .into_iter()
        .filter(opens)
        .map(|file| {
            let names = source::words(&file.text).map(|(_, word)| word).filter(is_function);
            let count = names.collect::<BTreeSet<_>>().len();
            (file.path, count)
        })
        .collect();
    let mut recorded = detours();
    recorded.sort();
    assert_eq!(found, recorded, "files that open libraries, and the functions that they name");
}

#[test]
fn the_check_sees_what_it_should() {
    let text = "use crate::{\n  ir::{Graph, Node},\n  op::{self, Op},\n};\n\
                fn f() { super::super::pass::run(); }\n";
    let code = source::code(text);
    let found: Vec<String> = source::imports(&code, 2)
        .map(|import| format!("{} {} {}", import.line, import.layer, import.item))
        .collect();
    assert_eq!(found, ["2 ir Graph", "2 ir Node", "3 op self", "3 op Op", "5 pass run"]);
    assert_eq!(objection("op", "ir", "Graph").as_deref(), Some("op must not use ir"));
    assert_eq!(objection("zoo", "format", "read").as_deref(), Some("zoo must not use format"));
    assert_eq!(objection("model", "zoo", "build"), None);
    assert_eq!(objection("error", "ir", "GraphError"), None);
    assert!(objection("error", "ir", "Graph").is_some());

    let text = "use crate::backend::{\n  cpu::Cpu,\n  host::{Block, lock},\n};\n\
                use super::super::run::job;\n";
    let found = source::paths(&source::code(text), &["backend", "cuda", "driver", "sys"]);
    let found: Vec<String> = found.iter().map(|(line, path)| format!("{line} {path}")).collect();
    let expected = [
        "2 backend::cpu::Cpu",
        "3 backend::host::Block",
        "3 backend::host::lock",
        "5 backend::cuda::run::job",
    ];
    assert_eq!(found, expected);
    let told = |from, to| room_objection(from, to).is_some();
    assert!(told("backend::host::step", "backend::cpu::kernel::Kernel"));
    assert!(told("backend::cuda::driver::sys", "backend::cuda::run::job"));
    assert!(!told("backend::cuda::run::plan", "backend::cpu::Kernels"));
    assert!(!told("backend::ahead", "backend::cpu::Cpu"));
}
