//! `cargo xtask`: the checks that every change must pass, and the tasks around them.

mod api;
mod full;
mod peers;
mod performance;
mod python;
mod quick;
mod step;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use python::Python;
use step::{Counts, Step};

const USAGE: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  quick   check what changed, while working: format, lints, unit tests, cases, layering
  test    run every check that a change must pass
  full [PART]
          run what takes long as well, each part once for a commit, or one part again:
          matrices, drawn, keras, whole, r, backends, browser, fuzz, features, package, benches,
          peers
  peers [FOLDER]
          export models by PyTorch and compare with ONNX Runtime; takes 10 GiB of disk outside
          target/, by default in the user's cache
  performance
          measure what docs/performance.md shows, and write it; takes half an hour of an idle
          machine, and 4 GiB of disk for the programs beside which it measures
  bless   run the tests and accept every changed snapshot
  python  make the Python environment that tests compare with, and print its interpreter
";

/// What went wrong, as one line for a person.
type Failure = String;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["quick"] => quick::quick(),
        ["test"] => test(),
        ["full"] => full::full(None),
        ["full", part] => full::full(Some(part)),
        ["peers"] => peers::peers(None),
        ["peers", folder] => peers::peers(Some(folder)),
        ["performance"] => performance::performance(),
        ["bless"] => bless(),
        ["python"] => Python::prepare(&target()).map(|p| say(&p.interpreter.to_string_lossy())),
        ["help" | "-h" | "--help"] => {
            say(USAGE);
            Ok(())
        }
        _ => Err(format!("expected a command\n\n{USAGE}")),
    };
    step::tell_slowest();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&format!("error: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// All checks: the format, then lints and documentation beside the tests, which leave a core idle
/// now and then.
fn test() -> Result<(), Failure> {
    format()?;
    let turn = turn();
    let (linted, counts) = beside(lint, || run_tests("no", &turn, &[]));
    linted?;
    let counts = counts?;
    say(&format!("{} passed, {} failed", counts.passed, counts.failed));
    Ok(())
}

/// The format of every file, also of the crates outside of the workspace.
fn format() -> Result<(), Failure> {
    for manifest in ["Cargo.toml", "tests/bindings/Cargo.toml", "tests/fuzz/Cargo.toml"] {
        Step::cargo(&["fmt", "--all", "--check", "--manifest-path", manifest]).run()?;
    }
    Ok(())
}

/// Lints and the documentation, with warnings as errors, in a folder of their own: cargo lets one
/// build in a folder wait for another.
fn lint() -> Result<(), Failure> {
    let folder = target().join("lint");
    let all =
        ["clippy", "--profile", PROFILE, "--workspace", "--all-targets", "--", "-D", "warnings"];
    Step::cargo(&all).env("CARGO_TARGET_DIR", &folder).run()?;
    let doc = ["doc", "--profile", PROFILE, "--workspace", "--no-deps"];
    let pages = folder.join("doc/fanwise");
    // Pages of items that are no more would be counted. There may be none yet.
    drop(fs::remove_dir_all(&pages));
    let doc = Step::cargo(&doc).env("CARGO_TARGET_DIR", &folder);
    doc.env("RUSTDOCFLAGS", "-D warnings").run()?;
    let items = api::check(&pages, &root().join("src/internal.rs"))?;
    say(&format!("{items} public items"));
    Ok(())
}

/// Accepts what the snapshot tests print now.
fn bless() -> Result<(), Failure> {
    let counts = run_tests("always", "all", &[])?;
    say(&format!("{} passed, {} failed", counts.passed, counts.failed));
    Ok(())
}

/// Runs all tests but for `others`; `snapshots` is insta's `INSTA_UPDATE`, `turn` the
/// `FANWISE_TURN` of matrices.
///
/// The unit tests need no Python, so they are built and run while its environment is made. The
/// device tests have the others beside them, whose interpreters leave cores idle.
fn run_tests(snapshots: &str, turn: &str, others: &[&str]) -> Result<Counts, Failure> {
    let run =
        |step: Step| step.env("INSTA_UPDATE", snapshots).env("FANWISE_TURN", turn).run_tests();
    let fast = || run(unit_tests().args(&["--no-fail-fast"]));
    let (python, unit) = beside(|| Python::prepare(&target()), fast);
    let (python, unit) = (python?, unit?);
    let skipped = [&[MANY, LONG, R, TORCH, TF_KERAS, BROWSER], others].concat();
    let skipped: Vec<&str> = skipped.into_iter().flat_map(|name| ["--skip", name]).collect();
    let with = |step: Step, which: &str| {
        run(step_with(&python, step.args(&["--no-fail-fast", "--", which]).args(&skipped)))
    };
    let slow = with(unit_tests(), "--ignored")?;
    // Built before, as both need the executables.
    cargo_test(&["--bins", "--test", "*"]).args(&["--no-run"]).run()?;
    // The interpreters of `python` leave a core idle, too: its tests follow those of the device.
    let (python_alone, all_others) = (["--test", "p*"], ["--bins", "--test", "[!p]*"]);
    let all = |tests: &[&str]| with(cargo_test(tests), "--include-ignored");
    let device = || -> Result<Counts, Failure> {
        Ok(run_device_tests(&python, turn, None)? + all(&python_alone)?)
    };
    let (device, others) = beside(device, || all(&all_others));
    Ok(unit + slow + others? + device? + run(cargo_test(&["--doc"]))?)
}

/// The beginning of the names of tests that draw more than a change has to wait for.
const MANY: &str = "thousands_of_";

/// The beginning of the name of the test of the commands of the book that take long.
const LONG: &str = "long_commands_";

/// The test that needs R.
const R: &str = "r_package";

/// The test that needs PyTorch.
const TORCH: &str = "torch_package";

/// The test that needs tf.keras.
const TF_KERAS: &str = "tf_keras";

/// The test that needs Chromium.
const BROWSER: &str = "browser_";

/// A step that may use Python, the compiler of kernels and the command line.
fn step_with(python: &Python, step: Step) -> Step {
    step.env("FANWISE_PYTHON", &python.interpreter)
        .env("FANWISE_ONNX_DATA", &python.onnx_data)
        .env("FANWISE_NVRTC", &python.packages)
        .env("FANWISE_BIN", built(EXECUTABLE))
}

/// The turn of matrices that not every commit runs whole: the number of commits, so that each part
/// has its turn in a row of them.
fn turn() -> String {
    let count = Step::new("git", &["rev-list", "--count", "HEAD"]).first_line();
    count.unwrap_or_else(|_| "0".to_owned())
}

/// The unit tests. They are small, so their build of the library is not optimised, which takes a
/// third of the time, and has all checks.
fn unit_tests() -> Step {
    let own = |setting| format!("profile.{PROFILE}.package.fanwise.{setting}");
    let step = cargo_test(&["--lib"]);
    step.args(&["--config", &own("opt-level=0"), "--config", &own("debug-assertions=true")])
}

/// `cargo test` of every package, so that all of them share what is built.
fn cargo_test(args: &[&str]) -> Step {
    Step::cargo(&["test", "--profile", PROFILE, "--workspace"]).args(args)
}

/// Does both at once.
fn beside<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), other)
    })
}

/// The folder that has the fake driver, built here, under the name of the driver. It is built in a
/// folder of its own: alone its dependencies have fewer features, and the library of the tests of
/// the driver, which has the same name, would be gone while these run.
fn fake_driver() -> Result<PathBuf, Failure> {
    let alone = target().join("driver");
    let build = Step::cargo(&["build", "--profile", PROFILE, "-p", "fakecuda"]);
    build.args(&["--target-dir", &alone.display().to_string()]).run()?;
    let folder = target().join("fake");
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    // Another part may run with the one that is there, which must not change under it.
    let new = folder.join("libcuda.so.new");
    fs::copy(alone.join(PROFILE).join("libfakecuda.so"), &new).map_err(failed)?;
    fs::rename(new, folder.join("libcuda.so")).map_err(failed)?;
    Ok(folder)
}

/// Runs the device tests on the fake driver, or one `whole` model alone. What that reports, leaks
/// among it, is a failure.
fn run_device_tests(python: &Python, turn: &str, whole: Option<&str>) -> Result<Counts, Failure> {
    let folder = fake_driver()?;
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let report = folder.join("report.txt");
    fs::write(&report, "").map_err(failed)?;
    // More than there are cores: processes on the fake driver wait for each other.
    let mut step = cargo_test(&["--test", "device", "--", "--test-threads", "8"]);
    if let Some(model) = whole {
        step = step.args(&["--exact", &format!("whole_{model}")]).env("FANWISE_DEVICE_WHOLE", "1");
    }
    let counts = step
        .env("FANWISE_TURN", turn)
        .env("LD_LIBRARY_PATH", &folder)
        .env("FANWISE_DEVICE", "fake")
        // Fewer than some tests ask for, so that logical devices share one, too.
        .env("FAKECUDA_DEVICES", "4")
        .env("FANWISE_FAKE", &folder)
        .env("FANWISE_NVRTC", &python.packages)
        .env("FANWISE_DEVICE_CACHE", folder.join("cache"))
        .env("FAKECUDA_REPORT", &report)
        .run_tests()?;
    match fs::read_to_string(&report).map_err(failed)?.trim() {
        "" => Ok(counts),
        found => Err(format!("the fake driver reports\n{found}")),
    }
}

/// The profile that tests are built in.
const PROFILE: &str = "checked";

/// A file that the tests' profile builds.
fn built(name: &str) -> PathBuf {
    target().join(PROFILE).join(name)
}

/// The file that cargo builds of the command line.
const EXECUTABLE: &str = if cfg!(windows) { "fanwise.exe" } else { "fanwise" };

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map_or_else(PathBuf::new, Into::into)
}

/// The folder that cargo builds in.
fn target() -> PathBuf {
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(folder)
}

#[expect(clippy::print_stdout, reason = "a command prints its result")]
fn say(text: &str) {
    println!("{}", text.trim_end());
}

#[expect(clippy::print_stderr, reason = "a command reports its progress")]
fn complain(text: &str) {
    eprintln!("{text}");
}
