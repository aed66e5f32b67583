//! Models as PyTorch exports them, on fanwise and on ONNX Runtime.

use std::env;
use std::fs;
use std::path::PathBuf;

use crate::python::environment;
use crate::step::Step;
use crate::{EXECUTABLE, Failure, say, target};

/// Makes the environment and the models in `folder`, or in the user's cache, and compares all.
pub(crate) fn peers(folder: Option<&str>) -> Result<(), Failure> {
    let folder = folder.map_or_else(of_user, |folder| Ok(PathBuf::from(folder)))?;
    say(&format!(
        "packages (7 GiB) and models (3 GiB) go to {}; remove it to have the space back",
        folder.display()
    ));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let listed = "tests/models/peers.txt";
    let interpreter = environment(&folder.join("python"), listed, &[], |_| Ok(()))?;
    Step::cargo(&["build", "--release", "--bins"]).run()?;
    let binary = target().join("release").join(EXECUTABLE);
    let models = folder.join("models");
    let script = ["tests/models/export.py", &binary.to_string_lossy(), &models.to_string_lossy()];
    Step::new(interpreter, &script).run()
}

/// A folder that outlives `target`: the packages are large.
fn of_user() -> Result<PathBuf, Failure> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).ok_or("no HOME is set: say `cargo xtask peers FOLDER`")?;
    Ok(cache.join("fanwise-peers"))
}
