//! NVRTC as it is, found where `FANWISE_NVRTC` says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::cache::{self, Cache};
use super::compile::{Compiler, Module, alone, is_heavy};
use super::nvrtc::{KernelError, Nvrtc};
use crate::backend::CUDA;
use crate::backend::cuda::NvrtcSearch;
use crate::codegen::testing::copy;
use crate::codegen::unit::entry_name;
use crate::codegen::{Arch, CodeFormat, Kernel, Unit, kernels, units};
use crate::ir::{Builder, verify};
use crate::lower::lower;
use crate::op::{Conv, Unary};
use crate::pass::{Replicate, WeightPlacement, replicate};
use crate::types::{DType, Device, Dim, Shape, Tensor, TensorType};

fn compiler(cache: Option<Cache>) -> Compiler {
    let folder = std::env::var_os("FANWISE_NVRTC").map(PathBuf::from);
    let folder =
        folder.expect("FANWISE_NVRTC names the folder of libnvrtc; `cargo xtask test` sets it");
    let search = NvrtcSearch { folder: Some(folder), ..NvrtcSearch::default() };
    Compiler::open(&search, cache, 2).expect("NVRTC is there")
}

fn of(kernels: Vec<Kernel>) -> Vec<Unit> {
    units(&kernels.into_iter().map(Arc::new).collect::<Vec<_>>()).unwrap()
}

fn arch(text: &str) -> Arch {
    text.parse().unwrap()
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn a_unit_becomes_machine_code_and_ptx() {
    let compiler = compiler(None);
    let units = of(vec![copy("float"), copy("double"), copy("unsigned char")]);
    let progress = AtomicU64::new(0);
    for target in ["sm_80", "sm_90a"] {
        let modules = compiler.compile(&units, arch(target), CodeFormat::Cubin, &progress).unwrap();
        let compiled = &modules.modules[0].compiled;
        assert!(compiled.image.starts_with(b"\x7fELF"), "{target}");
        let mut found: Vec<_> = compiled.resources().into_iter().map(|r| r.name).collect();
        let mut names: Vec<_> = units[0].entries.iter().map(|e| e.name.clone()).collect();
        found.sort();
        names.sort();
        assert_eq!(found, names);
        assert!(compiled.resources().iter().all(|r| r.registers > 0 && r.spill_stores == 0));
        let modules = compiler.compile(&units, arch(target), CodeFormat::Ptx, &progress).unwrap();
        let text = String::from_utf8(modules.modules[0].compiled.image.clone()).unwrap();
        assert!(text.contains(&format!(".entry {}(", entry_name(&copy("float")))), "{text}");
        assert!(text.contains(&format!(".target {target}")) && !text.ends_with('\0'));
    }
    assert_eq!(progress.into_inner(), 4);
}

/// The bounds that are changed for one that spills are in the text of each, and of no other: a
/// kernel is heavy that says how many blocks a multiprocessor shall hold.
#[test]
fn heavy_kernels_are_known_by_their_bounds() {
    let entries = of(vec![copy("float")])[0].entries.clone();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut heavy = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let bounded = text.lines().any(|line| line.starts_with("GLOBAL(THREADS, "));
        let unit = Unit { text, entries: entries.clone() };
        assert_eq!(is_heavy(&unit), bounded, "{}", path.display());
        let Some(alone) = alone(&unit) else { continue };
        assert!(alone.text.contains("GLOBAL(THREADS, 1) ENTRY("), "{}", path.display());
        heavy.push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    heavy.sort();
    let known =
        ["conv.cu", "conv_weight_grad.cu", "depthwise.cu", "few_weight_grad.cu", "matmul.cu"];
    assert_eq!(heavy, known);
}

/// A depthwise convolution with a long chain behind it is one kernel, alone in its unit, which is
/// compiled again for one block where it spills.
#[test]
fn a_depthwise_convolution_with_a_long_chain_is_heavy() {
    const CHAIN: usize = 24;
    let mut b = Builder::new("chain");
    let shape: Shape = [Dim::n(), 8.into(), 16.into(), 16.into()].into_iter().collect();
    let x = b.input("x", TensorType::new(DType::F32, shape));
    let weights = b.param("w", Tensor::zeros(DType::F32, &[8, 1, 3, 3]).unwrap());
    let conv = Conv { groups: 8, pads: vec![1; 4], ..Conv::default() };
    let mut y = b.op("y", conv, &[x, weights]).unwrap();
    for k in 0..CHAIN {
        y = b.op(&format!("y{k}"), Unary::Tanh, &[y]).unwrap();
    }
    b.output("y", y);
    let on = Replicate::over(vec![Device::gpu(0)]);
    let on = Replicate { weights: WeightPlacement::Mirrored, ..on };
    let graph = replicate(&b.finish().0, &on).unwrap();
    let program = lower(&verify(&graph).unwrap(), &CUDA).unwrap();
    let units = units(&kernels(&program).unwrap()).unwrap();
    let direct = |unit: &&Unit| unit.entries.iter().any(|e| e.kernel.file == "depthwise.cu");
    let unit = units.iter().find(direct).unwrap();
    let chain = &unit.entries[0].kernel.expression;
    assert!(chain.matches("tanh_of").count() >= CHAIN, "{chain}");
    assert!(is_heavy(unit));
    let alone = alone(unit).unwrap().text;
    assert!(unit.text.contains("GLOBAL(THREADS, 2)") && alone.contains("GLOBAL(THREADS, 1)"));
    assert_eq!(alone.replace("GLOBAL(THREADS, 1)", "GLOBAL(THREADS, 2)"), unit.text);
}

/// The bounds of the two kinds of heavy kernels.
const BOUNDS: [&str; 2] = ["THREADS, resident(THREADS)", "THREADS, 2"];

/// A unit of a kernel with these bounds that needs as many registers as it has numbers at a time.
fn wide(numbers: u32, bounds: &str) -> Unit {
    let text = format!(
        "#define THREADS 256\n\
         __host__ __device__ constexpr int resident(int n) {{ return n > 128 ? 2 : 3; }}\n\
         extern \"C\" __global__ void\n\
         __launch_bounds__({bounds}) wide(float *x) {{\n\
         float held[{numbers}];\n\
         #pragma unroll\n\
         for (int i = 0; i < {numbers}; ++i) held[i] = x[i * THREADS + threadIdx.x];\n\
         __syncthreads();\n\
         #pragma unroll\n\
         for (int i = 0; i < {numbers}; ++i)\n\
         x[(i + 1) * 7 * THREADS + threadIdx.x] = held[i] * held[(i * 5 + 1) % {numbers}];\n}}\n"
    );
    let entries = of(vec![copy("float")])[0].entries.clone();
    Unit { text, entries }
}

/// Of a kernel that spills one block is on a multiprocessor at a time; where that is not enough it
/// is slow, and said to be.
#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn a_heavy_kernel_that_spills_gets_more_registers() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = compiler(Some(Cache::new(folder.path(), cache::DEFAULT_LIMIT)));
    for bounds in BOUNDS {
        spills_are_avoided(&compiler, bounds);
    }
}

fn spills_are_avoided(compiler: &Compiler, bounds: &str) {
    let (target, form) = (arch("sm_80"), CodeFormat::Cubin);
    let compiled = |numbers| {
        let units = [wide(numbers, bounds)];
        let modules = compiler.compile(&units, target, form, &AtomicU64::new(0)).unwrap();
        let given = compiler.nvrtc().compile(&units[0], target, form).unwrap();
        let module = modules.modules.into_iter().next().unwrap();
        let warning = module.warning(&units[0]);
        assert_eq!(warning.is_some(), module.compiled.spilled() > 0, "{warning:?}");
        (given, module, warning)
    };
    let (given, module, _) = compiled(64);
    assert_eq!((given.spilled(), module.compiled.spilled()), (0, 0));
    assert_eq!(given.image, module.compiled.image);
    let (given, module, _) = compiled(160);
    assert!(given.spilled() > 0 && module.compiled.spilled() == 0, "{}", given.log);
    assert!(module.compiled.resources()[0].registers > 128);
    // The cache has both.
    assert_eq!(compiled(160).1, Module { from_cache: true, ..module });
    let (given, module, warning) = compiled(600);
    let spilled = module.compiled.spilled();
    assert!(spilled > 0 && spilled <= given.spilled());
    let told = format!("is slow: {spilled} bytes of each thread have no registers");
    assert!(warning.unwrap().contains(&told));
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn what_does_not_compile_shows_the_lines() {
    let compiler = compiler(None);
    let mut wrong = copy("float");
    wrong.params.remove(2);
    let progress = AtomicU64::new(0);
    let failed = compiler.compile(&of(vec![wrong]), arch("sm_80"), CodeFormat::Cubin, &progress);
    let said = failed.unwrap_err().to_string();
    assert!(said.contains("identifier \"COUNT\" is undefined"), "{said}");
    assert!(said.contains("kernels/copy.cu(10): error"), "{said}");
    assert!(said.contains(">   10 |     for (i64 i"), "{said}");
    let failed =
        compiler.compile(&of(vec![copy("float")]), arch("sm_20"), CodeFormat::Cubin, &progress);
    let said = failed.unwrap_err().to_string();
    assert!(said.contains("does not compile for sm_20; it supports sm_75, sm_80"), "{said}");
    let newest = *compiler.nvrtc().archs().last().unwrap();
    let newer = Arch::of_device(newest.number() / 10 + 1, 0);
    let of_device = |arch| compiler.nvrtc().for_device(arch, CodeFormat::Cubin).unwrap();
    assert_eq!(of_device(newer), (newest, CodeFormat::Ptx));
    assert_eq!(of_device(arch("sm_80")), (arch("sm_80"), CodeFormat::Cubin));
    let nul = Unit { text: "\0".to_owned(), entries: Vec::new() };
    let failed = compiler.nvrtc().compile(&nul, arch("sm_80"), CodeFormat::Cubin);
    assert!(matches!(failed, Err(KernelError::Compile { .. })));
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn the_second_time_the_cache_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Cache::new(folder.path(), cache::DEFAULT_LIMIT);
    let compiler = compiler(Some(store.clone()));
    let units = of(vec![copy("float")]);
    let run = |form, target| {
        let modules = compiler.compile(&units, arch(target), form, &AtomicU64::new(0)).unwrap();
        assert_eq!(modules.cache_error, None);
        modules.modules.into_iter().next().unwrap()
    };
    let first = run(CodeFormat::Cubin, "sm_80");
    let second = run(CodeFormat::Cubin, "sm_80");
    assert_eq!((first.from_cache, second.from_cache), (false, true));
    assert_eq!(first.compiled, second.compiled);
    assert!(
        !run(CodeFormat::Cubin, "sm_90a").from_cache && !run(CodeFormat::Ptx, "sm_80").from_cache
    );
    assert_eq!(store.list().unwrap().len(), 3);
    for file in store.list().unwrap() {
        std::fs::write(folder.path().join(file.name), "damaged").unwrap();
    }
    let again = run(CodeFormat::Cubin, "sm_80");
    assert!(!again.from_cache && run(CodeFormat::Cubin, "sm_80").from_cache);
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn cudarc_and_the_library_itself_give_the_same() {
    let compiler = compiler(None);
    let (known, own) = (compiler.nvrtc(), compiler.nvrtc().clone().without_cudarc());
    // A toolkit on the library path is what cudarc opens.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let is_other = |file: &str| {
        file.contains("libnvrtc.so")
            && !file.starts_with(&*std::env::temp_dir().to_string_lossy())
            && !known.path().parent().is_some_and(|own| file.starts_with(&*own.to_string_lossy()))
    };
    assert!(known.is_cudarcs() || files.any(is_other), "{}", known.path().display());
    assert!(!own.is_cudarcs());
    let units = of(vec![copy("float")]);
    for form in [CodeFormat::Cubin, CodeFormat::Ptx] {
        let compile = |nvrtc: &Nvrtc| nvrtc.compile(&units[0], arch("sm_80"), form).unwrap().image;
        assert_eq!(compile(known), compile(&own));
    }
    let mut wrong = copy("float");
    wrong.params.remove(2);
    let wrong = of(vec![wrong]);
    let fail =
        |nvrtc: &Nvrtc| nvrtc.compile(&wrong[0], arch("sm_80"), CodeFormat::Ptx).unwrap_err();
    assert_eq!(fail(known), fail(&own));
}
