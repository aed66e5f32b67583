//! The tests of the Python package: its wheel is made with the library that was built beside this
//! test, installed, and tested by `unittest`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

/// The folder that the wheel is installed in.
static INSTALLED: LazyLock<PathBuf> = LazyLock::new(install);

/// The interpreter with the packages that the tests compare with.
fn interpreter() -> PathBuf {
    env::var_os("FANWISE_PYTHON").expect("FANWISE_PYTHON names an interpreter").into()
}

fn python() -> Command {
    Command::new(interpreter())
}

/// What a command prints; it has to succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8_lossy(out).into_owned();
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

fn install() -> PathBuf {
    let built = env::current_exe().unwrap();
    let built = built.parent().unwrap();
    let library = built.join(format!("{}fanwise_python.so", env::consts::DLL_PREFIX));
    // Tests with other interpreters may run at the same time.
    let interpreter = interpreter().to_string_lossy().replace(['/', '\\'], "_");
    let folder = built.join("../python").join(interpreter);
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    let script = tests().join("wheel.py");
    let wheel = printed(python().arg(script).arg(library).arg(&folder));
    let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"];
    let to = folder.join("installed");
    printed(python().args(pip).args(["--no-index", "--target"]).arg(&to).arg(wheel.trim()));
    to
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Runs the tests of a module.
fn run(module: &str) {
    let mut command = python();
    command.args(["-m", "unittest", "-q", module]).current_dir(tests());
    // `cargo xtask full` names other backends.
    let backend = env::var_os("KERAS_BACKEND").unwrap_or_else(|| "jax".into());
    command.env("PYTHONPATH", &*INSTALLED).env("KERAS_BACKEND", backend);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    // With donated buffers in flight Keras on JAX gave another loss once in some hundred runs, on
    // loaded machines only.
    command.env("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false");
    printed(&mut command);
}

macro_rules! modules {
    ($($name:ident)*) => {
        $(
            #[test]
            #[ignore = "needs Python with the packages of tests/models/requirements.txt"]
            fn $name() {
                run(concat!("test_", stringify!($name)));
            }
        )*
    };
}

/// What a script of R runs with: the interpreter of these tests, and the package for it.
fn install_for_r() -> PathBuf {
    let folder = INSTALLED.join("../library");
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    let package = tests().join("../../r");
    printed(Command::new("R").args(["CMD", "INSTALL", "--library"]).arg(&folder).arg(package));
    folder
}

#[test]
#[ignore = "needs R with reticulate, and Python with the packages of bindings/r/tests"]
fn r_package() {
    let library = install_for_r();
    for script in ["pages.R", "functions.R", "page.R", "snippets.R"] {
        let mut command = Command::new("Rscript");
        command.arg(script).current_dir(tests().join("../../r/tests")).env("R_LIBS", &library);
        command.env("RETICULATE_PYTHON", interpreter());
        command.env("PYTHONPATH", &*INSTALLED).env("KERAS_BACKEND", "jax");
        printed(&mut command);
    }
}

#[test]
#[ignore = "needs Python with the packages of bindings/python/tests/torch.txt"]
fn torch_package() {
    for part in ["", "_calls", "_compile", "_docs", "_drawn", "_loops", "_models"] {
        run(&format!("test_torch{part}"));
    }
}

modules!(arrays graph command_line devices);
modules!(keras training metrics drawn trace strategy families combinations damaged docs tf_keras);
