//! The command line where it speaks of GPUs, on a machine that has none.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command line with the folders of kernels and of NVRTC as given.
fn fanwise(args: &[&str], nvrtc: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(args).env("FANWISE_NVRTC", nvrtc).env_remove("RUST_BACKTRACE");
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Standard output of a command that succeeds, without any NVRTC.
fn good(args: &[&str]) -> String {
    let output = fanwise(args, Path::new("/no/such/folder"));
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Standard error of a command that is refused, without any NVRTC.
fn refused(args: &[&str]) -> String {
    let output = fanwise(args, Path::new("/no/such/folder"));
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn devices() -> serde_json::Value {
    serde_json::from_str(&good(&["devices", "--format", "json"])).expect("JSON")
}

fn has_gpu() -> bool {
    devices()["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty())
}

/// How to get GPUs on a machine without: a driver, or where there is one a GPU that it shows.
fn remedy(devices: &serde_json::Value) -> &'static str {
    if devices["driver"].is_null() { "install" } else { "/dev/nvidia*" }
}

#[test]
fn devices_says_what_is_missing_and_how_to_get_it() {
    let shown = good(&["devices"]);
    assert!(shown.starts_with("cpu:0 "), "{shown}");
    assert!(shown.contains("missing /no/such/folder has no libnvrtc"), "{shown}");
    let json = devices();
    assert!(json["nvrtc"].is_null());
    let missing = json["missing"].to_string();
    assert!(missing.contains("libnvrtc"), "{missing}");
    if !has_gpu() {
        assert!(missing.contains("libcuda") && missing.contains(remedy(&json)), "{missing}");
        assert!(shown.contains("gpu     none found"), "{shown}");
    }
}

#[test]
fn a_run_on_gpus_that_are_not_there_names_what_is_missing() {
    if has_gpu() {
        return;
    }
    let remedy = remedy(&devices());
    for command in ["run", "check"] {
        let said = refused(&[command, "zoo:mlp", "--gpus", "4", "--target", "cuda"]);
        assert!(said.contains("libcuda") && said.contains(remedy), "{said}");
        assert!(said.contains("--target cpu"), "{said}");
        // Only GPUs have it.
        let said = refused(&[command, "zoo:mlp", "--logical=4"]);
        assert!(said.contains("requires a GPU, and none was found"), "{said}");
        let said = refused(&[command, "zoo:mlp", "--logical=4", "--target", "cpu"]);
        assert!(said.contains("requires a GPU, and `--target cpu` excludes GPUs"), "{said}");
        for seconds in ["x", "inf", "NaN", "1e999", "", "=-1"] {
            let said = refused(&[command, "zoo:mlp", &format!("--watchdog={seconds}")]);
            assert!(said.contains("expected a number of seconds, or 0"), "{said}");
        }
        good(&[command, "zoo:mlp", "--gpus", "4", "--target", "cpu", "--watchdog", "0"]);
        good(&[command, "zoo:mlp", "--gpus", "4", "--target", "auto"]);
    }
}

/// Every command that asks for GPUs or their compiler fails alike, and the machine's devices are
/// told without either.
#[test]
fn every_command_says_what_is_missing() {
    if has_gpu() {
        return;
    }
    let asked: [(&[&str], &str); 6] = [
        (&["run", "zoo:xception", "--gpus", "4", "--target", "cuda"], "libcuda"),
        (&["run", "zoo:mlp", "--gpus", "all", "--target", "cuda"], "libcuda"),
        (&["check", "zoo:xception", "--gpus", "4", "--target", "cuda"], "libcuda"),
        (&["compile", "zoo:mlp", "--arch", "sm_80", "--emit", "ptx"], "libnvrtc"),
        (&["compile", "zoo:mlp", "--arch", "sm_80", "--emit", "cubin"], "libnvrtc"),
        (&["compile", "zoo:mlp", "--gpus", "2", "--emit", "cubin"], "--arch sm_80"),
    ];
    for (args, named) in asked {
        let said = refused(args);
        assert!(said.contains(named), "{args:?}: {said}");
    }
}

#[test]
fn the_text_of_kernels_needs_no_compiler() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("new/kernels");
    let to = format!("cuda={}", at.display());
    good(&["compile", "zoo:siamese", "--gpus", "4", "--target", "cuda", "--emit", &to]);
    let index = fs::read_to_string(at.join("kernels.cu.txt")).expect("the list");
    let mut files = 0;
    for line in index.lines() {
        let (file, kernel) = line.split_once("  ").expect("a file and a kernel");
        let unit = fs::read_to_string(at.join(file)).expect("the unit");
        assert!(unit.contains(&format!("#define ENTRY {kernel}\n")), "{line}");
        files += 1;
    }
    assert!(files > 0);
    let shown = good(&["compile", "zoo:siamese", "--gpus", "2", "--emit", "cuda"]);
    let first = fs::read_to_string(at.join("unit_000.cu")).expect("the first unit");
    assert!(shown.starts_with(&format!("// unit_000.cu\n{first}")), "the same kernels");
}

#[test]
fn what_cannot_be_compiled_says_why() {
    let to_ptx = ["compile", "zoo:siamese", "--gpus", "2", "--emit", "ptx", "--arch"];
    let said = refused(&[&to_ptx[..], &["sm_80"]].concat());
    assert!(said.contains("/no/such/folder has no libnvrtc"), "{said}");
    let said = refused(&[&to_ptx[..], &["volta"]].concat());
    assert!(said.contains("`volta` is not an architecture; write sm_80"), "{said}");
    if !has_gpu() {
        let said = refused(&to_ptx[..6]);
        assert!(said.contains("name an architecture, such as `--arch sm_80`"), "{said}");
    }
}

#[test]
fn a_program_is_lowered_for_the_target() {
    let of = |target| {
        let args = ["compile", "zoo:siamese", "--gpus", "2", "--emit", "program", "--target"];
        good(&[&args[..], &[target]].concat())
    };
    assert_eq!(of("auto"), of("cpu"));
    assert_ne!(of("cuda"), of("cpu"));
}

#[test]
fn the_cache_is_listed_and_cleared() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().to_str().expect("a path in UTF-8");
    let list = || good(&["cache", "list", "--cache-dir", at]);
    assert!(list().contains(&format!("0 files, 0 B in {at}")), "{}", list());
    let name = format!("{}-sm_80.cubin", "0a".repeat(32));
    fs::write(folder.path().join(&name), "damaged").expect("written");
    fs::write(folder.path().join("notes.txt"), "mine").expect("written");
    assert!(list().contains(&name) && list().contains("1 files, 7 B"), "{}", list());
    let json = good(&["cache", "list", "--cache-dir", at, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["files"][0]["name"], name.as_str());
    let said = good(&["cache", "clear", "--cache-dir", at]);
    assert_eq!(said, format!("{at}: 1 files removed, 7 B\n"));
    assert!(!folder.path().join(name).exists() && folder.path().join("notes.txt").exists());
    let file = folder.path().join("notes.txt");
    let said = refused(&["cache", "list", "--cache-dir", file.to_str().expect("a path")]);
    assert!(said.contains("notes.txt"), "{said}");
}

#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn kernels_are_compiled_without_a_gpu() {
    let nvrtc = std::env::var_os("FANWISE_NVRTC");
    let nvrtc = nvrtc.expect("FANWISE_NVRTC names the folder of NVRTC; `cargo xtask test` sets it");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let kinds = format!("cuda={0},cubin={0},ptx={0},cubin", at("out"));
    let cache = at("cache");
    let mut first = 0;
    // The flags of an ELF header say for which architecture it is.
    let mut flags: Vec<[u8; 4]> = Vec::new();
    for (round, arch) in ["sm_80", "sm_90a", "sm_80"].into_iter().enumerate() {
        let model = ["compile", "zoo:siamese", "--gpus", "4", "--arch", arch];
        let rest = ["--emit", &kinds, "--cache-dir", &cache];
        let output = fanwise(&[&model[..], &rest[..]].concat(), Path::new(&nvrtc));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let table = text(&output.stdout);
        assert!(table.starts_with("kernel ") && table.contains("unit_000.cubin"), "{table}");
        let file = |name: &str| fs::read(folder.path().join("out").join(name)).expect("a file");
        let cubin = file("unit_000.cubin");
        assert!(cubin.starts_with(b"\x7fELF"));
        flags.push(cubin[48..52].try_into().expect("a header"));
        assert!(text(&file("unit_000.ptx")).contains(&format!(".target {arch}")));
        assert_eq!(text(&file("kernels.cubin.txt")), table);
        let kept = fs::read_dir(&cache).expect("the cache").count();
        if round == 0 {
            assert!(kept > 0, "kernels are kept");
            first = kept;
        }
        let wanted = first * [1, 2, 2][round];
        assert_eq!(kept, wanted, "each architecture has its own, and finds them again");
    }
    assert!(flags[0] == flags[2] && flags[0] != flags[1], "{flags:?}");
}

/// A step of training, in both forms of code.
#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn kernels_of_training_are_compiled_without_a_gpu() {
    let nvrtc = std::env::var_os("FANWISE_NVRTC").expect("FANWISE_NVRTC names the folder of NVRTC");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out").display().to_string();
    let kinds = format!("cuda:training={out},ptx:training={out},cubin:training={out}");
    let model =
        ["compile", "zoo:mlp:narrow=64", "--loss", "mse", "--optimizer", "adam", "--gpus", "2"];
    let cache = folder.path().join("cache").display().to_string();
    let rest = ["--arch", "sm_80", "--emit", &kinds, "--cache-dir", &cache];
    let output = fanwise(&[&model[..], &rest[..]].concat(), Path::new(&nvrtc));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let read = |name: &str| fs::read(folder.path().join("out").join(name)).expect("a file");
    let lines = text(&read("kernels.ptx.txt"));
    assert!(lines.contains("  update_"), "{lines}");
    for line in lines.lines() {
        let (file, kernel) = line.split_once("  ").expect("a file and a kernel");
        assert!(text(&read(file)).contains(&format!(".entry {kernel}(")), "{line}");
        let cubin = text(&read("kernels.cubin.txt"));
        assert!(cubin.contains(kernel), "{kernel}: {cubin}");
        assert!(read(&file.replace(".ptx", ".cubin")).starts_with(b"\x7fELF"), "{line}");
    }
}

/// Of a Python that a shell finds, of one of pyenv, of one of the user's own.
#[cfg(unix)]
#[test]
#[ignore = "needs NVRTC; `cargo xtask test` runs it"]
fn nvrtc_is_found_beside_pythons() {
    let nvrtc = std::env::var_os("FANWISE_NVRTC").expect("FANWISE_NVRTC names the folder of NVRTC");
    let packages = Path::new(&nvrtc).join("nvidia").canonicalize().expect("NVIDIA's packages");
    let places = [
        "tools/lib/python3.12",
        "pyenv/versions/3.11.9/lib/python3.11",
        "home/.local/lib/python3.9",
    ];
    for place in places {
        let folder = tempfile::tempdir().expect("a folder");
        let site = folder.path().join(place).join("site-packages");
        fs::create_dir_all(&site).expect("made");
        fs::create_dir_all(folder.path().join("tools/bin")).expect("made");
        std::os::unix::fs::symlink(&packages, site.join("nvidia")).expect("linked");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
        command.args(["devices", "--format", "json"]).env_clear();
        command
            .env("PATH", folder.path().join("tools/bin"))
            .env("HOME", folder.path().join("home"));
        command.env("PYENV_ROOT", folder.path().join("pyenv"));
        let output = command.output().expect("the binary runs");
        let json: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
        let found = json["nvrtc_path"].to_string();
        assert!(found.contains(&site.display().to_string()), "{place}: {json}");
    }
}

#[test]
fn programs_of_the_cpu_have_no_kernels_of_gpus() {
    for kind in ["cuda", "ptx", "cubin"] {
        let said = refused(&["compile", "zoo:mlp", "--target", "cpu", "--emit", kind]);
        assert!(said.contains("use `--target cuda`"), "{said}");
    }
}

/// The numbers of the row of a device behind a line of a text.
fn row(text: &str, behind: &str, device: &str) -> Vec<u64> {
    let rows = text.split(behind).nth(1).expect("the line is there").lines();
    let row = { rows }.find(|line| line.starts_with(device)).expect("the device has a row");
    row.split_whitespace().skip(1).filter_map(|cell| cell.parse().ok()).collect()
}

/// A step changes parameters, so no other run is beside it.
#[test]
fn memory_of_training_is_that_of_one_run() {
    let args = ["compile", "zoo:mlp", "--gpus", "2", "--batch", "8", "--target", "cuda"];
    let step = ["--loss", "mse", "--optimizer", "adam", "--emit", "memory:training"];
    let text = good(&[&args[..], &step[..]].concat());
    let behind = "one run at a time";
    for device in ["gpu:0", "gpu:1"] {
        let [_, arena, ..] = row(&text, "memory of", device)[..] else { panic!("{text}") };
        let [arenas, inputs, held, all] = row(&text, behind, device)[..] else { panic!("{text}") };
        assert_eq!((arenas, all), (arena, arenas + inputs + held), "{text}");
        // The inputs of the next come while one computes.
        assert!(inputs >= 2 * 4 * 4 && held > 0, "{text}");
    }
    assert!(!text.contains("may be in flight"), "{text}");
}

#[test]
fn memory_is_that_of_all_runs_in_flight() {
    let args = ["compile", "zoo:mlp", "--gpus", "2", "--batch", "8", "--emit", "memory"];
    assert!(!good(&args).contains("in flight"), "virtual devices run one batch at a time");
    let text = good(&[&args[..], &["--target", "cuda"]].concat());
    let behind = "2 runs may be in flight";
    for device in ["gpu:0", "gpu:1"] {
        let [_, arena, ..] = row(&text, "memory of", device)[..] else { panic!("{text}") };
        let [arenas, inputs, held, all] = row(&text, behind, device)[..] else { panic!("{text}") };
        assert_eq!((arenas, all), (2 * arena, arenas + inputs + held), "{text}");
        // 4 of 8 rows of 784 floats, which come to two places.
        assert!(inputs >= 2 * 4 * 4 && held > 0, "{text}");
    }
}

/// Weights stay on GPUs, but for those that steps of training change and that are asked to go there
/// from the host each time, which a note tells; virtual devices take those of the template.
#[test]
fn weights_are_mirrored_on_gpus() {
    let compile = |more: &[&str]| {
        let args = ["compile", "zoo:mlp", "--gpus", "2", "--emit", "graph"];
        let output = fanwise(&[&args[..], more].concat(), Path::new("/no/such/folder"));
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let gpus = |weights| compile(&["--target", "cuda", "--weights", weights]);
    assert_eq!(compile(&["--target", "cuda"]), gpus("mirrored"));
    let (template, note) = gpus("template");
    assert!(!note.contains("of weights"), "what no run changes stays on GPUs: {note}");
    assert_ne!(template, gpus("mirrored").0);
    let (virtual_devices, note) = compile(&["--target", "cpu"]);
    assert!(virtual_devices == template && !note.contains("of weights"), "{note}");
    let step = |weights: &str, frozen: &[&str]| {
        let step = ["--target", "cuda", "--weights", weights, "--loss", "mse"];
        compile(&[&step[..], &["--emit", "graph:training"], frozen].concat()).1
    };
    let told = "note: 1.9 MiB of weights go to the GPUs in each step; `--weights mirrored` keeps";
    for weights in ["cpu", "template"] {
        let note = step(weights, &[]);
        assert!(note.contains(told), "{weights}: {note}");
    }
    assert!(!step("mirrored", &[]).contains("of weights"));
    // The first layer has nearly all of them.
    let note = step("cpu", &["--freeze", "dense_1.kernel"]);
    assert!(note.contains("note: 328.6 KiB of weights go to the GPUs in each step"), "{note}");
}
