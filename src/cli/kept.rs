//! The checkpoint of a training in place of a model: the model that was trained, with the weights
//! that it has in the checkpoint.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, anyhow, bail};

use crate::Error;
use crate::ir::{Model, Weights};
use crate::model;
use crate::pass;
use crate::train::Checkpoint;

/// The setting of a checkpoint that names its model.
pub(crate) const MODEL: &str = "model";

/// The setting of a checkpoint that has the names of the classes, in the order of their numbers.
pub(crate) const CLASSES: &str = "classes of the data";

/// Fails where the model that a checkpoint in `folder` is of is not there any more.
pub(crate) fn check_there(model: &str, folder: &str) -> anyhow::Result<()> {
    if model.starts_with("zoo:") || Path::new(model).exists() {
        return Ok(());
    }
    bail!(
        "the checkpoint in {folder} is of the model {model}, which is not there any more; put it \
         back, or name it where it is: `fanwise fit MODEL --resume {folder} --save FILE` goes on \
         with the run and writes the trained model"
    )
}

/// The options of a model that a checkpoint keeps.
const OPTIONS: [&str; 8] = [
    "batch_axis",
    "dim",
    "set",
    "free_batch",
    "assume",
    "params",
    "params_unchecked",
    "without_pass",
];

/// A model as a checkpoint names it: a file is found from any working folder.
pub(crate) fn named(spec: &str) -> String {
    if spec.starts_with("zoo:") {
        return spec.to_owned();
    }
    absolute(spec).map_or_else(|_| spec.to_owned(), |path| path.display().to_string())
}

/// The folder of the checkpoint that a MODEL argument names, if it names one.
fn folder(spec: &str) -> Option<&Path> {
    Some(Path::new(spec)).filter(|folder| folder.is_dir() && Checkpoint::is_in(folder))
}

/// The folder that a file or a folder lies in.
fn beside(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fails where a file of a checkpoint is named in place of its folder.
pub(crate) fn check_file(spec: &str) -> anyhow::Result<()> {
    let file = Path::new(spec);
    // A file of a checkpoint has a name in ASCII.
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named_so = name == "state.json" || name.starts_with("variables-");
    // Other programs have files of such names, too.
    let is_kept = || matches!(Checkpoint::read_state(beside(file)), Ok(Some(_)));
    if is_named_so && file.is_file() && is_kept() {
        let folder = beside(file).display();
        bail!("{spec} is a file of the checkpoint in {folder}; name the folder, {folder}");
    }
    Ok(())
}

/// The folder of the run that keeps the checkpoint of `folder` beside its last one, if it can go
/// on: a damaged run goes on from such a part.
pub(crate) fn run_of(folder: &Path, limit: u64) -> Option<PathBuf> {
    // A folder such as `.` has a name nevertheless.
    let named =
        folder.file_name().map_or_else(|| folder.canonicalize().ok(), |_| Some(folder.into()));
    let named: PathBuf = named?;
    let name = named.file_name()?.to_str()?;
    let is_epoch = name.strip_prefix("epoch-").is_some_and(|epoch| epoch.parse::<u64>().is_ok());
    let run = beside(&named);
    let goes_on = || matches!(Checkpoint::read(run, limit), Ok(Some(_)));
    ((name == "best" || is_epoch) && goes_on()).then(|| run.to_owned())
}

/// The checkpoint that a MODEL argument names, if it names one.
pub(crate) fn checkpoint(spec: &str, limit: u64) -> anyhow::Result<Option<Checkpoint>> {
    check_file(spec)?;
    let read = folder(spec).map(|folder| Checkpoint::read(folder, limit));
    Ok(read.transpose().map_err(Error::from)?.flatten())
}

/// The checkpoint that a MODEL argument names, if it names one, without its variables.
pub(crate) fn state(spec: &str) -> anyhow::Result<Option<Checkpoint>> {
    check_file(spec)?;
    let read = folder(spec).map(Checkpoint::read_state);
    Ok(read.transpose().map_err(Error::from)?.flatten())
}

/// The command line that the model of a checkpoint was read with, of its name and options.
pub(crate) fn line(spec: &str, checkpoint: &Checkpoint) -> anyhow::Result<Vec<String>> {
    let kept = |id: &str| checkpoint.settings.get(id).into_iter().flatten();
    let Some(name) = kept(MODEL).next() else {
        bail!(
            "the checkpoint in {spec} does not say which model it is of; `fanwise fit MODEL \
             --resume {spec}` goes on with it, and `--save` writes a model"
        );
    };
    check_there(name, spec)?;
    let mut line = vec!["fanwise".to_owned(), name.clone()];
    for id in OPTIONS {
        let option = id.replace('_', "-");
        for value in kept(id) {
            match (id, value.as_str()) {
                ("free_batch" | "params_unchecked", "true") => line.push(format!("--{option}")),
                ("free_batch" | "params_unchecked", _) => {}
                _ => line.push(format!("--{option}={value}")),
            }
        }
    }
    Ok(line)
}

/// The trained model: `read` is the model before the training.
pub(crate) fn trained(
    spec: &str,
    checkpoint: &Checkpoint,
    read: anyhow::Result<Model>,
) -> anyhow::Result<Model> {
    let of = checkpoint.settings.get(MODEL).into_iter().flatten().next();
    let of = of.map_or("", String::as_str);
    let missing = || format!("the checkpoint in {spec} is of the model {of}, which is needed, too");
    let mut model = read.with_context(missing)?;
    let weights = weights(&checkpoint.variables);
    for (name, tensor) in weights.iter() {
        let Some(own) = model.weights.get(name) else { continue };
        if own.tensor_type() != tensor.tensor_type() {
            return Err(anyhow!(
                "the checkpoint in {spec} has `{name}` as {}, the model {of} as {}: it has been \
                 changed since; put the model that was trained back there",
                tensor.tensor_type(),
                own.tensor_type()
            ));
        }
        model.weights.insert(name.clone(), tensor.clone());
    }
    model.graph = model::with_weights(&model.graph, &model.weights);
    Ok(model)
}

/// The parameters of a checkpoint: their moving averages where there are some, as `--save` takes
/// them.
fn weights(variables: &Weights) -> Weights {
    let begun =
        variables.get(pass::STEP).is_some_and(|step| step.to_f64().iter().any(|x| *x > 0.0));
    let mut all = Weights::default();
    for (name, tensor) in variables.iter() {
        let average = variables.get(&pass::average_of(name)).filter(|_| begun);
        // With the average as it is named, no step of the optimizer is a parameter of the model.
        all.insert(name.clone(), average.unwrap_or(tensor).clone());
    }
    all
}
