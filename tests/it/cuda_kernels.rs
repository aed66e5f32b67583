//! The kernels of every model of the zoo: what text they are, and what NVRTC makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fanwise::backend::CUDA;
use fanwise::backend::cuda::NvrtcSearch;
use fanwise::backend::cuda::{Arch, CodeFormat};
use fanwise::internal::DEFAULT_LIMIT;
use fanwise::internal::{Cache, Compiler, Resources};
use fanwise::internal::{Kernel, Unit, entry_name, kernels, units};
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::{Program, lower};
use fanwise::model::{self, LoadOptions};
use fanwise::pass::{BatchStatistics, Replicate, WeightPlacement, replicate};
use fanwise::types::Device;
use fanwise::zoo;
use support::snap;
use support::turn::turns;

use crate::cuda_training;
use crate::it::cuda_indexing;

/// The name of the graph of operators that no model has.
const INDEXING: &str = "indexing";

/// The files whose kernels must keep everything in registers.
const HEAVY: [&str; 5] =
    ["conv.cu", "conv_weight_grad.cu", "depthwise.cu", "few_weight_grad.cu", "matmul.cu"];

/// Models in training, and the files of kernels that they are there for.
const TRAINING: [(&str, &[&str]); 4] = [
    (
        "mini_googlenet",
        &[
            "batch_norm.cu",
            "batch_statistics.cu",
            "conv_weight_grad.cu",
            "dropout.cu",
            "pool_grad.cu",
            "update.cu",
            "written.cu",
        ],
    ),
    ("mobilenet_v2", &["few_weight_grad.cu"]),
    ("gru", &["recurrent_grad.cu"]),
    ("lstm", &["recurrent_grad.cu"]),
];

/// The program of a model on so many GPUs, each with the weights.
fn program(template: &Graph, gpus: u32) -> Program {
    let how = Replicate::over((0..gpus).map(Device::gpu).collect());
    replicated(template, &Replicate { weights: WeightPlacement::Mirrored, ..how })
}

fn replicated(template: &Graph, how: &Replicate) -> Program {
    let graph = replicate(template, how).unwrap_or_else(|e| panic!("{e}"));
    lower(&verify(&graph).unwrap(), &CUDA).unwrap()
}

/// The kernels of a model on so many GPUs.
fn of(template: &Graph, gpus: u32) -> Vec<Arc<Kernel>> {
    kernels(&program(template, gpus)).unwrap_or_else(|e| panic!("{e}"))
}

/// The kernels of a model of the zoo on GPUs as the command line reads it and places its weights.
fn by_default(name: &str) -> Vec<Arc<Kernel>> {
    let read = model::load(&format!("zoo:{name}"), &LoadOptions::default());
    let template = read.unwrap_or_else(|e| panic!("{e}")).graph;
    let program = replicated(&template, &Replicate::over((0..4).map(Device::gpu).collect()));
    kernels(&program).unwrap_or_else(|e| panic!("{e}"))
}

/// The models of the zoo, and a graph of operators that none of them has.
fn names() -> impl Iterator<Item = &'static str> {
    zoo::names().chain(std::iter::once(INDEXING))
}

/// A model.
fn whole(name: &str) -> Graph {
    if name == INDEXING {
        return cuda_indexing::graph();
    }
    zoo::build(name).unwrap_or_else(|e| panic!("{e}")).0
}

/// A model with an eighth of its features, where it can be had.
fn narrow(name: &str) -> Graph {
    if name == INDEXING {
        return cuda_indexing::graph();
    }
    let scaled = zoo::build(&format!("{name}:narrow=8")).or_else(|_| zoo::build(name));
    scaled.unwrap_or_else(|e| panic!("{e}")).0
}

/// What a unit has of its own: the text without that of the kernel files.
fn own_text(unit: &Unit) -> String {
    let (mut text, mut own) = (String::new(), true);
    for line in unit.text.lines() {
        if let Some(place) = line.strip_prefix("#line ") {
            own = !place.contains("\"kernels/");
            let file = place.trim_start_matches("1 ").trim_matches('"');
            if !own && place.starts_with("1 ") && !file.contains("/include/") {
                writeln!(text, "    … {file}").unwrap();
            }
        } else if own && !line.starts_with("#undef") {
            writeln!(text, "{line}").unwrap();
        }
    }
    text
}

#[test]
#[ignore = "builds every model with its weights; `cargo xtask test` runs it"]
fn the_program_and_text_of_every_model() {
    for name in names() {
        let template = narrow(name);
        snap::assert("cuda", &format!("{name}_program"), &program(&template, 2).to_string());
        let one = of(&template, 1);
        // Kernels depend on no number of replicas and no batch.
        for gpus in [2, 3, 8] {
            assert_eq!(of(&template, gpus), one, "{name} on {gpus}");
        }
        let units = units(&one).unwrap();
        snap::assert("cuda", name, &units.iter().map(own_text).collect::<Vec<_>>().join("\n"));
    }
}

fn compiler(cache: Option<Cache>) -> Compiler {
    let folder = std::env::var_os("FANWISE_NVRTC").map(PathBuf::from);
    let folder =
        folder.expect("FANWISE_NVRTC names the folder of NVRTC; `cargo xtask test` sets it");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let search = NvrtcSearch { folder: Some(folder), ..NvrtcSearch::default() };
    Compiler::open(&search, cache, threads).unwrap_or_else(|e| panic!("{e}"))
}

/// What each kernel takes when it is compiled for an architecture.
fn resources(compiler: &Compiler, units: &[Unit], arch: Arch) -> BTreeMap<String, Resources> {
    let modules = compiler.compile(units, arch, CodeFormat::Cubin, &AtomicU64::new(0));
    let modules = modules.unwrap_or_else(|e| panic!("{e}")).modules;
    let all = modules.iter().flat_map(|module| module.compiled.resources());
    all.map(|resources| (resources.name.clone(), resources)).collect()
}

#[test]
#[ignore = "needs NVRTC and builds every model with its weights; `cargo xtask test` runs it"]
fn every_kernel_of_every_model_compiles() {
    let mut used: BTreeMap<Arc<Kernel>, BTreeSet<&str>> = BTreeMap::new();
    let mut all = Vec::new();
    // In the units that the command line compiles.
    for name in names() {
        let own = of(&whole(name), 2);
        all.extend(units(&own).unwrap());
        let read = if name == INDEXING { own.clone() } else { by_default(name) };
        if read != own {
            all.extend(units(&read).unwrap());
        }
        own.into_iter().chain(read).for_each(|kernel| {
            used.entry(kernel).or_default().insert(name);
        });
    }
    let mut trained = BTreeSet::new();
    for (name, files) in TRAINING {
        let program =
            cuda_training::on_gpus(&cuda_training::step(name, "sgd"), BatchStatistics::Local);
        let own = kernels(&program).unwrap_or_else(|e| panic!("{e}"));
        let trains = |kernel: &Kernel| files.contains(&kernel.file);
        let any = |kernel: &Kernel| kernel.parts.iter().any(|part| trains(part));
        trained.extend(own.into_iter().filter(|kernel| trains(kernel) || any(kernel)));
    }
    all.extend(units(&trained.iter().cloned().collect::<Vec<_>>()).unwrap());
    for kernel in trained {
        used.entry(kernel).or_default().insert("training");
    }
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let compiler = compiler(Some(Cache::new(&kept, DEFAULT_LIMIT))).keeping_ptx();
    let newest = *compiler.nvrtc().archs().last().expect("NVRTC knows an architecture");
    // The command line is asked for the first two; of the newest each kernel is compiled once.
    let once = units(&used.keys().cloned().collect::<Vec<_>>()).unwrap();
    let asked: [Arch; 2] = ["sm_80", "sm_90a"].map(|name| name.parse().unwrap());
    let archs = [("sm_80", asked[0]), ("sm_90a", asked[1]), ("newest", newest)];
    let archs = turns(&[], &archs, "kernels");
    for (name, arch) in &archs {
        let units = if *name == "newest" { &once } else { &all };
        table(&used, (name, *arch), &resources(&compiler, units, *arch));
    }
    let asked: Vec<Arch> =
        archs.into_iter().map(|(_, a)| a).filter(|a| asked.contains(a)).collect();
    let work: Vec<_> = zoo::names().flat_map(|name| asked.iter().map(move |a| (name, a))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, arch)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    emitted(name, **arch, &kept);
                }
            });
        }
    });
}

/// The command line writes the text, the PTX and the machine code of a whole model on a machine
/// without a GPU; what it compiles is in the cache. Each kernel that the program launches stands in
/// a file of each form.
fn emitted(name: &str, arch: Arch, cache: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().display();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(["compile", &format!("zoo:{name}"), "--gpus", "4", "--target", "cuda"]);
    command.args([
        "--arch",
        &arch.to_string(),
        "--emit",
        &format!("cuda={to},ptx={to},cubin={to}"),
    ]);
    command.arg("--cache-dir").arg(cache);
    let before = files(cache);
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{name} for {arch}: {ended:?}");
    assert_eq!(files(cache), before, "{name} for {arch} is compiled anew");
    let read =
        |file: &str| fs::read(folder.path().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let index = |form: &str| String::from_utf8(read(&format!("kernels.{form}.txt"))).unwrap();
    let listed = |form: &str, file: usize, kernel: usize| -> BTreeMap<String, String> {
        let lines = index(form);
        let words = lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let units = words.filter(|words| words[file].starts_with("unit_"));
        units.map(|words| (words[kernel].to_owned(), words[file].to_owned())).collect()
    };
    let [cuda, ptx, cubin] = [listed("cu", 0, 1), listed("ptx", 0, 1), listed("cubin", 1, 0)];
    let launched = by_default(name);
    assert_eq!(launched.len(), cuda.len(), "{name}");
    for kernel in launched.iter().map(|kernel| entry_name(kernel)) {
        let texts = [(&cuda, "#define ENTRY "), (&ptx, ".entry "), (&cubin, ".text.")];
        for (files, before) in texts {
            let bytes = read(&files[&kernel]);
            let wanted = format!("{before}{kernel}");
            assert!(memmem(&bytes, wanted.as_bytes()), "{name} for {arch}: {wanted}");
        }
    }
}

/// Cells whose states are the largest that a kernel takes, forwards and in training.
#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn large_cells_compile() {
    let compiler = compiler(None);
    for (cell, gates, cells) in [("lstm", 4, ", %c : f32[1,N,4096]"), ("gru", 3, "")] {
        let width = gates * 4096;
        let text = format!(
            "fanwise 1\nsymbol N >= 0\n\
             param @w : f32[1,{width},4] = \"t#w\" blake3:0000000000000001\n\
             param @r : f32[1,{width},4096] = \"t#r\" blake3:0000000000000002\n\
             graph @cell(%x: f32[N,3,4]) -> (h: f32[1,N,4096]) {{\n  \
             %y : f32[N,3,1,4096], %h : f32[N,1,4096]{cells} = {cell}(%x, @w, @r) \
             {{batch_first=true}}\n  \
             return %h\n}}\n"
        );
        let text = text.replace("f32[1,N,4096]", "f32[N,1,4096]");
        let graph = parse(&text).unwrap_or_else(|e| panic!("{text}{e}"));
        let trained = expect::step(&graph, &Weights::default(), "sgd").graph;
        let step = cuda_training::on_gpus(&trained, BatchStatistics::Local);
        let both = [of(&graph, 2), kernels(&step).unwrap_or_else(|e| panic!("{e}"))].concat();
        let own: BTreeSet<_> =
            both.into_iter().filter(|k| k.file.starts_with("recurrent")).collect();
        let files: BTreeSet<_> = own.iter().map(|kernel| kernel.file).collect();
        assert_eq!(Vec::from_iter(files), ["recurrent.cu", "recurrent_grad.cu"], "{cell}");
        let own: Vec<_> = own.into_iter().collect();
        let found = resources(&compiler, &units(&own).unwrap(), "sm_80".parse().unwrap());
        assert!(found.values().all(|r| (32 << 10..=48 << 10).contains(&r.shared)), "{found:?}");
    }
}

/// The products of queries, keys and values are one launch, of any size; equal parts of a kernel
/// share what one of them takes of shared memory.
#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn products_of_one_operand_are_one_launch() {
    let compiler = compiler(None);
    for (tokens, features) in [(128, 768), (197, 768), (512, 1024)] {
        let products = |count: usize| -> Arc<Kernel> {
            let each = |text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<Vec<_>>();
            let weight = format!("f32[{features},{features}]");
            let params = each(&|i| {
                format!("param @w{i} : {weight} = \"t#w{i}\" blake3:000000000000000{i}\n")
            });
            let ty = format!("f32[N,{tokens},{features}]");
            let results = each(&|i| format!("y{i}: {ty}")).join(", ");
            let lines = each(&|i| format!("  %y{i} : {ty} = matmul(%x, @w{i})\n")).concat();
            let names = each(&|i| format!("%y{i}")).join(", ");
            let text = format!(
                "fanwise 1\nsymbol N >= 0\n{}graph @g(%x: {ty}) -> ({results}) {{\n{lines}  \
                 return {names}\n}}\n",
                params.concat()
            );
            let graph = parse(&text).unwrap_or_else(|e| panic!("{text}{e}"));
            let kernels = of(&graph, 2);
            assert_eq!(kernels.len(), 1, "{count} of {tokens} by {features}");
            kernels[0].clone()
        };
        let [one, three] = [products(1), products(3)];
        assert_eq!((one.file, three.parts.len()), ("matmul.cu", 3));
        let units = units(&[one.clone(), three.clone()]).unwrap();
        let found = resources(&compiler, &units, "sm_90a".parse().unwrap());
        let shared = |kernel: &Kernel| found[&entry_name(kernel)].shared;
        assert_eq!(shared(&three), shared(&one), "{found:?}");
    }
}

/// The number of files in a folder.
fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Whether bytes stand among others.
fn memmem(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// The snapshot of what each kernel takes. What is heavy spills nothing.
fn table(
    used: &BTreeMap<Arc<Kernel>, BTreeSet<&str>>,
    (area, arch): (&str, Arch),
    found: &BTreeMap<String, Resources>,
) {
    let mut text = format!("registers/stack/spilled bytes/shared bytes of {arch}\n\n");
    writeln!(text, "{:30} {:>7}  {:>16}  models", "kernel", "threads", arch.to_string()).unwrap();
    let mut spills = Vec::new();
    for (kernel, models) in used {
        let name = entry_name(kernel);
        write!(text, "{name:30} {:7}", kernel.threads).unwrap();
        let r = found.get(&name).unwrap_or_else(|| panic!("{name} of {arch} is not told of"));
        let spilled = r.spill_stores + r.spill_loads;
        let heavy = |kernel: &Kernel| HEAVY.contains(&kernel.file);
        if spilled > 0 && (heavy(kernel) || kernel.parts.iter().any(|part| heavy(part))) {
            spills.push(format!("{name} spills {spilled} bytes for {arch}"));
        }
        let shown = format!("{}/{}/{spilled}/{}", r.registers, r.stack, r.shared);
        write!(text, "  {shown:>16}").unwrap();
        writeln!(text, "  {}", models.iter().copied().collect::<Vec<_>>().join(" ")).unwrap();
    }
    assert!(spills.is_empty(), "{spills:#?}");
    snap::assert("cuda", &format!("resources_{area}"), &text);
}
