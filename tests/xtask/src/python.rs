//! The Python environment that tests compare with: made once under `target/python`, made again when
//! `tests/models/requirements.txt` changes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::step::Step;
use crate::{Failure, root};

/// A ready environment.
pub(crate) struct Python {
    /// Its interpreter.
    pub(crate) interpreter: PathBuf,
    /// The models and cases that the package `onnx` brings.
    pub(crate) onnx_data: PathBuf,
    /// The folder of its packages, which has the compiler of CUDA kernels.
    pub(crate) packages: PathBuf,
}

/// Fails unless the interpreter has wheels of every requirement and can make environments.
const CHECK: &str =
    "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))";

const DATA: &str = "import onnx, os; print(os.path.join(os.path.dirname(onnx.__file__), 'backend', \
    'test', 'data'))";

const PACKAGES: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

/// The second build of each library of NVRTC, half of what the package takes on disk; nothing opens
/// them.
const UNUSED: [&str; 2] = ["libnvrtc.alt.so.13", "libnvrtc-builtins.alt.so.13.0"];

impl Python {
    /// Makes the environment below `target`, unless it is there.
    pub(crate) fn prepare(target: &Path) -> Result<Self, Failure> {
        // All that is needed is listed; of what is not imported the dependencies are not.
        let options = ["--no-deps", "--no-compile", "--only-binary", ":all:"];
        let clean = |interpreter: &Path| Self::remove_unused(&Self::packages(interpreter)?);
        let listed = "tests/models/requirements.txt";
        let interpreter = environment(&target.join("python"), listed, &options, clean)?;
        let onnx_data = Step::new(&interpreter, &["-c", DATA]).first_line()?.into();
        let packages = Self::packages(&interpreter)?;
        Ok(Self { interpreter, onnx_data, packages })
    }

    fn packages(interpreter: &Path) -> Result<PathBuf, Failure> {
        Ok(Step::new(interpreter, &["-c", PACKAGES]).first_line()?.into())
    }

    fn remove_unused(packages: &Path) -> Result<(), Failure> {
        let files = UNUSED.map(|name| packages.join("nvidia/cu13/lib").join(name));
        for file in files.iter().filter(|file| file.exists()) {
            fs::remove_file(file).map_err(|e| format!("cannot remove {}: {e}", file.display()))?;
        }
        Ok(())
    }
}

/// The interpreter of the environment in `folder` with the packages that the file `listed` pins;
/// it is made, and `finish`ed, unless it is there.
pub(crate) fn environment(
    folder: &Path,
    listed: &str,
    options: &[&str],
    finish: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    let bin = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    let interpreter = folder.join(bin);
    let requirements = root().join(listed);
    let wanted = fs::read_to_string(&requirements)
        .map_err(|e| format!("cannot read {}: {e}", requirements.display()))?;
    // Written last, so that its presence says that the installation was completed.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        make(folder, &interpreter)?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let requirements = requirements.to_string_lossy();
        Step::new(&interpreter, &pip).args(options).args(&["-r", &requirements]).run()?;
        finish(&interpreter)?;
        fs::write(&stamp, wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    }
    Ok(interpreter)
}

/// An environment without packages, in place of what was there.
fn make(folder: &Path, interpreter: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .map_err(|e| format!("cannot remove {}: {e}", folder.display()))?;
    }
    let system = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"]
        .into_iter()
        .find(|name| Step::new(name, &["-c", CHECK]).succeeds())
        .ok_or(
            "the tests need Python 3.11 to 3.14 with its module `venv` (Debian: python3-venv)",
        )?;
    Step::new(system, &["-m", "venv", &folder.to_string_lossy()]).run()?;
    if Step::new(interpreter, &["-c", ""]).succeeds() {
        Ok(())
    } else {
        Err(format!("{} does not start", interpreter.display()))
    }
}
