//! The kernels of every model of the zoo: what text they are, and what NVRTC makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fanwise::backend::cuda::cache::DEFAULT_LIMIT;
use fanwise::backend::cuda::{Cache, Compiler, NvrtcSearch, Resources};
use fanwise::codegen::{Arch, Form, Kernel, Unit, entry_name, kernels, units};
use fanwise::ir::{Graph, verify};
use fanwise::lower::{Program, lower};
use fanwise::pass::{BatchStatistics, Replicate, WeightPlacement, replicate};
use fanwise::types::{Device, Target};
use fanwise::zoo;

use crate::{cuda_indexing, cuda_training, snap};

/// The name of the graph of operators that no model has.
const INDEXING: &str = "indexing";

/// The files whose kernels must keep everything in registers.
const HEAVY: [&str; 4] = ["conv.cu", "conv_weight_grad.cu", "depthwise.cu", "matmul.cu"];

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

/// The program of a model on so many GPUs.
fn program(template: &Graph, gpus: u32) -> Program {
    let mut how = Replicate::over((0..gpus).map(Device::gpu).collect());
    how.weights = WeightPlacement::Mirrored;
    let graph = replicate(template, &how).unwrap_or_else(|e| panic!("{e}"));
    lower(&verify(&graph).unwrap(), &Target::CUDA).unwrap()
}

/// The kernels of a model on so many GPUs.
fn of(template: &Graph, gpus: u32) -> Vec<Arc<Kernel>> {
    kernels(&program(template, gpus)).unwrap_or_else(|e| panic!("{e}"))
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
    let search = NvrtcSearch { folder: Some(folder), candidates: Vec::new() };
    Compiler::open(&search, cache, threads).unwrap_or_else(|e| panic!("{e}"))
}

/// What each kernel takes when it is compiled for an architecture.
fn resources(compiler: &Compiler, units: &[Unit], arch: Arch) -> BTreeMap<String, Resources> {
    let modules = compiler.compile(units, arch, Form::Cubin, &AtomicU64::new(0));
    let modules = modules.unwrap_or_else(|e| panic!("{e}")).modules;
    let all = modules.iter().flat_map(|module| module.compiled.resources());
    all.map(|resources| (resources.name.clone(), resources)).collect()
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn every_kernel_of_every_model_compiles() {
    let mut used: BTreeMap<Arc<Kernel>, BTreeSet<&str>> = BTreeMap::new();
    for name in names() {
        for kernel in of(&whole(name), 2) {
            used.entry(kernel).or_default().insert(name);
        }
    }
    for (name, files) in TRAINING {
        let program =
            cuda_training::on_gpus(&cuda_training::step(name, "sgd"), BatchStatistics::Local);
        let own = kernels(&program).unwrap_or_else(|e| panic!("{e}"));
        for kernel in own.into_iter().filter(|kernel| files.contains(&kernel.file)) {
            used.entry(kernel).or_default().insert("training");
        }
    }
    let all: Vec<_> = used.keys().cloned().collect();
    let units = units(&all).unwrap();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let compiler = compiler(Some(Cache::new(kept, DEFAULT_LIMIT)));
    let newest = *compiler.nvrtc().archs().last().expect("NVRTC knows an architecture");
    let archs = ["sm_80".parse().unwrap(), "sm_90a".parse().unwrap(), newest];
    let found = archs.map(|arch| resources(&compiler, &units, arch));
    let mut text = "registers/stack/spilled bytes/shared bytes of each architecture\n\n".to_owned();
    write!(text, "{:30} {:>7}", "kernel", "threads").unwrap();
    writeln!(text, "{}  models", archs.map(|arch| format!("  {arch:>16}")).concat()).unwrap();
    let mut spills = Vec::new();
    for (kernel, models) in &used {
        let name = entry_name(kernel);
        write!(text, "{name:30} {:7}", kernel.threads).unwrap();
        for (arch, found) in archs.iter().zip(&found) {
            let r = found.get(&name).unwrap_or_else(|| panic!("{name} of {arch} is not told of"));
            let spilled = r.spill_stores + r.spill_loads;
            if spilled > 0 && HEAVY.contains(&kernel.file) {
                spills.push(format!("{name} spills {spilled} bytes for {arch}"));
            }
            let shown = format!("{}/{}/{spilled}/{}", r.registers, r.stack, r.shared);
            write!(text, "  {shown:>16}").unwrap();
        }
        writeln!(text, "  {}", models.iter().copied().collect::<Vec<_>>().join(" ")).unwrap();
    }
    assert!(spills.is_empty(), "{spills:#?}");
    snap::assert("cuda", "resources", &text);
}
