//! `cargo xtask full`: the whole product, in parts that run alone and are not run twice.

use std::fs;
use std::path::{Path, PathBuf};

use crate::peers::peers;
use crate::python::{Python, environment};
use crate::step::Step;
use crate::{
    BROWSER, Failure, LONG, MANY, R, TF_KERAS, TORCH, beside, cargo_test, complain, fake_driver,
    root, run_device_tests, run_tests, say, step_with, target, turn, unit_tests,
};

/// A part: its name, and what it runs.
type Part = (&'static str, fn() -> Result<(), Failure>);

/// All parts, in two lanes that run at the same time, since most parts keep one core busy. The
/// parts of a lane follow one another, the cheapest first. Parts that run device tests on the fake
/// driver share a folder, and so do those that install the Python package for one interpreter: they
/// are in the first lane.
const LANES: [&[Part]; 2] = [
    &[("whole", whole), ("torch", torch), ("matrices", matrices), ("keras", keras)],
    &[
        ("r", r),
        ("backends", backends),
        ("fuzz", fuzz),
        ("package", package),
        ("browser", browser),
        ("features", features),
        ("drawn", drawn),
        ("benches", benches),
        ("peers", || peers(None)),
    ],
];

/// How much more of each fuzz target is run than for a change.
const FUZZ_TIMES: &str = "50";

/// The features that are linted alone; "" is none.
const FEATURES: [&str; 11] =
    ["", "gradients", "lower", "onnx", "keras", "zoo", "cpu", "cuda", "train", "images", "cli"];

/// Models of the zoo at their full size that the fake driver ends in minutes.
const WHOLE: [&str; 5] = ["lstm", "unet", "mini_googlenet", "mobilenet_v2", "xception"];

/// The tests of every family of Keras, and of every combination of its training.
const OF_KERAS: [&str; 2] = ["families", "combinations"];

/// Runs the named part, or all that have not passed at this commit.
pub(crate) fn full(only: Option<&str>) -> Result<(), Failure> {
    let known: Vec<&str> = LANES.concat().iter().map(|(part, _)| *part).collect();
    if let Some(name) = only.filter(|name| !known.contains(name)) {
        return Err(format!("`{name}` is no part; there are {}", known.join(", ")));
    }
    let folder = passed_at_this_commit()?;
    if only.is_none() {
        // Both lanes use it, and must not make it at the same time.
        Python::prepare(&target())?;
    }
    let lane = |parts| run_parts(parts, only, folder.as_deref());
    let (one, other) = beside(|| lane(LANES[0]), || lane(LANES[1]));
    one.and(other)
}

/// Runs the parts of a lane, one after the other.
fn run_parts(parts: &[Part], only: Option<&str>, folder: Option<&Path>) -> Result<(), Failure> {
    for (name, run) in parts {
        let mark = folder.map(|folder| folder.join(name));
        let done = mark.as_ref().is_some_and(|mark| mark.exists());
        if only.is_some_and(|only| only != *name) || (only.is_none() && done) {
            continue;
        }
        if let Err(error) = run() {
            // The other lane goes on for long.
            complain(&format!("part {name} failed"));
            return Err(format!("part {name}: {error}"));
        }
        if let Some(mark) = mark {
            fs::write(&mark, "").map_err(|e| format!("{}: {e}", mark.display()))?;
        }
        say(&format!("part {name} passed"));
    }
    Ok(())
}

/// The folder that knows which parts passed; none where files differ from the commit.
fn passed_at_this_commit() -> Result<Option<PathBuf>, Failure> {
    if !Step::new("git", &["status", "--porcelain"]).lines()?.is_empty() {
        return Ok(None);
    }
    let commit = Step::new("git", &["rev-parse", "HEAD"]).first_line()?;
    let folder = target().join("full").join(commit);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(Some(folder))
}

/// The checks of a change, with matrices whole; those of Keras are a part of their own.
fn matrices() -> Result<(), Failure> {
    let counts = run_tests("no", "all", &OF_KERAS)?;
    say(&format!("{} passed, {} failed", counts.passed, counts.failed));
    Ok(())
}

/// The first seed of a commit. Tests count up from it, at most tens of thousands, so that no two
/// commits of a branch draw the same.
fn seed() -> String {
    /// Odd, so that what has its turn by the rest of the seed has it at one of as many commits.
    const EACH: u64 = 100_003;
    // Without a repository there is no number of commits, and each run draws the same.
    let turn: u64 = turn().parse().unwrap_or(0);
    (turn * EACH).to_string()
}

/// Mutants and numbers in thousands, and the long commands of the book.
fn drawn() -> Result<(), Failure> {
    let python = Python::prepare(&target())?;
    let drawn = cargo_test(&["--test", "it", "--", "--ignored", MANY, LONG]);
    let drawn = step_with(&python, drawn).env("FANWISE_SEED", seed());
    drawn.env("FANWISE_FAKE", fake_driver()?).run_tests()?;
    let unit = unit_tests().args(&["--", "--ignored", MANY]);
    unit.env("FANWISE_SEED", seed()).run_tests().map(drop)
}

/// Models at their full size on the fake driver.
fn whole() -> Result<(), Failure> {
    let python = Python::prepare(&target())?;
    for model in WHOLE {
        if run_device_tests(&python, "all", Some(model))?.passed == 0 {
            return Err(format!("no device test runs the whole {model}"));
        }
    }
    Ok(())
}

/// The Python package with Keras on its other backends, and the files of tf.keras.
fn backends() -> Result<(), Failure> {
    let listed = "bindings/python/tests/backends.txt";
    let tf_keras = |interpreter: &Path| {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let listed = root().join("bindings/python/tests/tf_keras.txt");
        Step::new(interpreter, &pip).args(&["-r", &listed.to_string_lossy()]).run()
    };
    let python = environment(&target().join("backends"), listed, &[], tf_keras)?;
    let others: [(&str, &[&str]); 2] = [("tensorflow", &[]), ("torch", &["--skip", TF_KERAS])];
    for (backend, skipped) in others {
        let modules =
            ["--test", "python", "--", "--ignored", "keras", "training", "metrics", "strategy"];
        let step = cargo_test(&modules).args(skipped);
        let step = step.env("FANWISE_PYTHON", &python).env("KERAS_BACKEND", backend);
        step.env("FANWISE_TURN", "all").run_tests()?;
    }
    Ok(())
}

/// The Python package with PyTorch.
fn torch() -> Result<(), Failure> {
    let listed = "bindings/python/tests/torch.txt";
    let python = environment(&target().join("torch"), listed, &[], |_| Ok(()))?;
    let step = cargo_test(&["--test", "python", "--", "--ignored", TORCH]);
    step.env("FANWISE_PYTHON", &python).run_tests().map(drop)
}

/// Models of Keras and their training: every family and every combination.
fn keras() -> Result<(), Failure> {
    let python = Python::prepare(&target())?;
    let step = cargo_test(&["--test", "python", "--", "--ignored"]).args(&OF_KERAS);
    step_with(&python, step).env("FANWISE_TURN", "all").run_tests().map(drop)
}

/// The package for R, with R and reticulate of the system.
fn r() -> Result<(), Failure> {
    let reticulate =
        ["-e", "stopifnot(requireNamespace('reticulate'), requireNamespace('magrittr'))"];
    if !Step::new("Rscript", &reticulate).succeeds() {
        return Err("needs R with reticulate and magrittr (Debian: r-base-core, \
            r-cran-reticulate, r-cran-magrittr)"
            .to_owned());
    }
    let listed = "bindings/r/tests/requirements.txt";
    let python = environment(&target().join("r"), listed, &[], |_| Ok(()))?;
    let step = cargo_test(&["--test", "python", "--", "--ignored", R]);
    step.env("FANWISE_PYTHON", &python).run_tests().map(drop)
}

/// What every bench measures, once.
fn benches() -> Result<(), Failure> {
    for name in ["passes", "kernels", "data"] {
        let bench = ["bench", "--package", "bench", "--bench", name, "--", "--test"];
        Step::cargo(&bench).run()?;
    }
    Step::cargo(&["bench", "--package", "bench", "--bench", "pass_memory"]).run()
}

/// Pictures in a real browser.
fn browser() -> Result<(), Failure> {
    cargo_test(&["--test", "it", "--", "--ignored", BROWSER]).run_tests().map(drop)
}

/// Every reader, for longer than the checks of a change.
fn fuzz() -> Result<(), Failure> {
    let step = cargo_test(&["--test", "it", "--", "fuzz::"]);
    step.env("FANWISE_FUZZ_TIMES", FUZZ_TIMES).env("FANWISE_SEED", seed()).run_tests().map(drop)
}

/// The library without features, and with each of them alone.
fn features() -> Result<(), Failure> {
    for features in FEATURES {
        let step = Step::cargo(&["clippy", "--no-default-features", "--features", features]);
        step.args(&["--lib", "--bins", "--", "-D", "warnings"]).run()?;
    }
    Ok(())
}

/// The package builds from its own archive, the bindings in it are what their generator gives, and
/// the pages' ways to install it work, from Python, too.
fn package() -> Result<(), Failure> {
    Step::cargo(&["test", "--manifest-path", "tests/bindings/Cargo.toml"])
        .env("CARGO_TARGET_DIR", target())
        .run_tests()?;
    Step::cargo(&["package", "--package", "fanwise", "--allow-dirty"]).run()?;
    installed()?;
    installed_by_pip()
}

/// The ways of the pages to install the Python package and to make its wheel, in the profile of the
/// tests, and what they install.
fn installed_by_pip() -> Result<(), Failure> {
    let folder = target().join("package");
    let python = environment(&folder, "bindings/python/tests/package.txt", &[], |_| Ok(()))?;
    let bin = python.parent().ok_or("an interpreter is in a folder")?;
    let profile = ["--profile", "checked"];
    Step::new(bin.join("pip"), &["install", "--disable-pip-version-check"])
        .args(&["./bindings/python[keras]"])
        .env("CARGO_TARGET_DIR", target())
        .env("MATURIN_PEP517_ARGS", profile.join(" "))
        .run()?;
    Step::new(bin.join("fanwise"), &["check", "zoo:mlp", "--gpus", "3"]).run()?;
    let wheels = folder.join("wheels");
    Step::new(bin.join("maturin"), &["build", "--manifest-path", "bindings/python/Cargo.toml"])
        .args(&profile)
        .args(&["--out", &wheels.to_string_lossy()])
        .env("CARGO_TARGET_DIR", target())
        .run()
}

/// The front page's ways to install the command line and to add the library, in the profile of the
/// tests.
fn installed() -> Result<(), Failure> {
    let to = target().join("installed");
    Step::cargo(&["install", "--locked", "--path", ".", "--force", "--profile", "checked"])
        .args(&["--root", &to.to_string_lossy()])
        .env("CARGO_TARGET_DIR", target())
        .run()?;
    Step::new(to.join("bin/fanwise"), &["check", "zoo:mlp", "--gpus", "3"]).run()?;
    let user = target().join("user");
    let manifest = user.join("Cargo.toml");
    let written = fs::create_dir_all(user.join("src"))
        .and_then(|()| {
            fs::write(&manifest, "[package]\nname = \"user\"\nedition = \"2024\"\n[workspace]\n")
        })
        .and_then(|()| fs::write(user.join("src/main.rs"), "use fanwise as _;\nfn main() {}\n"));
    written.map_err(|e| format!("{}: {e}", user.display()))?;
    let manifest = manifest.to_string_lossy();
    Step::cargo(&["add", "--manifest-path", &manifest, "--path"])
        .args(&[&root().to_string_lossy()])
        .run()?;
    Step::cargo(&["check", "--manifest-path", &manifest]).env("CARGO_TARGET_DIR", target()).run()
}
