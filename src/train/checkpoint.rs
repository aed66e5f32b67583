//! Checkpoints: all that a training needs to go on as if it had not stopped.

use std::collections::BTreeMap;
use std::num::ParseFloatError;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::data::Position;
use super::error::{CheckpointError, named};
use super::history::{Number, Sums};
use super::{History, Monitor};
use crate::format::{Budget, FileError, check_write, is_unfinished, safetensors, write_text};
use crate::ir::Weights;

/// The name of the file that says which variables belong to the checkpoint.
const STATE: &str = "state.json";

/// The most bytes that it may have where it is read for what it says alone.
const MAX_STATE: u64 = 1 << 28;

/// The prefix and suffix of the names of files of variables.
const VARIABLES: &str = "variables-";
const SAFETENSORS: &str = ".safetensors";

/// The folder, in that of a run, of the checkpoint of the best epoch.
pub(super) const BEST: &str = "best";

/// The beginning of the names of the folders, in that of a run, of the checkpoints of epochs.
pub(super) const OF_EPOCH: &str = "epoch-";

/// A checkpoint of a training.
///
/// Elsewhere: state dict (PyTorch); `ModelCheckpoint` (Keras).
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// The parameters of the model and the variables of the optimizer, by name.
    pub variables: Weights,
    /// The next batch.
    pub at: Position,
    /// The whole epochs so far.
    pub history: History,
    /// What follows depends on besides the model, its losses and the data: the `optimizer` and the
    /// `schedule`, how rows become `batches`, and the `mode` with what decides what dropout drops,
    /// as texts. A training goes on with the same ones.
    pub terms: BTreeMap<String, String>,
    /// The number by which it was found to be that of the best epoch, where it is kept for that.
    pub best_by: Option<Monitor>,
    /// What the run was asked for: the values of settings by name, as whoever keeps it writes them.
    pub settings: BTreeMap<String, Vec<String>>,
    /// The sums of the epoch that is not whole.
    pub(super) partial: Sums,
    /// The batches of all epochs before the next one.
    pub(super) done: u64,
    /// The learning rate of the last of them.
    pub(super) rate: Option<f64>,
}

/// The sums of an epoch in a file: rows, loss times rows, and the metrics.
type PartialForm = (u64, f64, Vec<(String, Vec<Number>, Vec<Number>)>);

fn form_of(sums: &Sums) -> PartialForm {
    let numbers = |all: &[f64]| all.iter().map(|x| Number::from(*x)).collect();
    let metrics = sums.metrics.iter().map(|(n, t, c)| (n.clone(), numbers(t), numbers(c)));
    (sums.rows, sums.loss, metrics.collect())
}

fn read_form(form: PartialForm) -> Result<Sums, ParseFloatError> {
    let (rows, loss, metrics) = form;
    let numbers = |all: Vec<Number>| all.into_iter().map(f64::try_from).collect::<Result<_, _>>();
    let read = |(n, t, c)| Ok((n, numbers(t)?, numbers(c)?));
    let metrics = metrics.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(Sums { rows, loss, metrics })
}

/// The version that is written and read.
const VERSION: u32 = 1;

/// What a state of any version says.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The file beside the variables.
#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    variables: String,
    epoch: u64,
    step: u64,
    history: History,
    partial: PartialForm,
    #[serde(default)]
    terms: BTreeMap<String, String>,
    #[serde(default)]
    best_by: Option<Monitor>,
    #[serde(default)]
    settings: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    done: u64,
    #[serde(default)]
    rate: Option<f64>,
}

fn io(path: &Path, error: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.display().to_string(), error }
}

impl Checkpoint {
    /// True if training can continue after the losses so far.
    fn is_finite(&self) -> bool {
        let epochs = self.history.epochs.iter().map(|epoch| epoch.training.loss);
        epochs.chain([self.partial.loss]).all(f64::is_finite)
    }

    /// Writes it to a folder, which is made if it does not exist. The variables are written first,
    /// under a name of their own; the checkpoint before counts until the file that names them is in
    /// its place.
    pub fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(STATE);
        if !self.is_finite() {
            let error = "the loss is not finite, so training cannot resume from it".to_owned();
            return Err(CheckpointError::State { path: path.display().to_string(), error });
        }
        std::fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
        let Position { epoch, step } = self.at;
        // A name that no checkpoint before has.
        let mut names = (0u64..).map(|i| format!("{VARIABLES}{epoch}-{step}-{i}{SAFETENSORS}"));
        let variables = names.find(|name| !folder.join(name).exists()).unwrap_or_default();
        safetensors::write(&folder.join(&variables), &self.variables)?;
        let (history, partial) = (self.history.clone(), form_of(&self.partial));
        let state = State {
            version: VERSION,
            variables: variables.clone(),
            epoch,
            step,
            history,
            partial,
            terms: self.terms.clone(),
            best_by: self.best_by.clone(),
            settings: self.settings.clone(),
            done: self.done,
            rate: self.rate,
        };
        let wrong = |error: serde_json::Error| CheckpointError::State {
            path: path.display().to_string(),
            error: error.to_string(),
        };
        let text = serde_json::to_string_pretty(&state).map_err(wrong)?;
        write_text(&path, &text)?;
        for entry in std::fs::read_dir(folder).map_err(|e| io(folder, e))? {
            let entry = entry.map_err(|e| io(folder, e))?;
            let name = entry.file_name();
            let old = name.to_string_lossy();
            // The second is what a writer left that was killed.
            if (is_of_variables(&old) && *old != *variables) || is_unfinished(&old) {
                // One that stays is in nobody's way.
                drop(std::fs::remove_file(entry.path()));
            }
        }
        Ok(())
    }

    /// Makes the folder if it does not exist, and fails where a checkpoint could not be written to
    /// it.
    pub(crate) fn check_folder(folder: &Path) -> Result<(), CheckpointError> {
        std::fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
        Ok(check_write(&folder.join(STATE))?)
    }

    /// True if a folder has a checkpoint.
    pub(crate) fn is_in(folder: &Path) -> bool {
        folder.join(STATE).exists()
    }

    /// Reads the checkpoint of a folder; `None` where it has none.
    pub fn read(folder: &Path, max_memory: u64) -> Result<Option<Self>, CheckpointError> {
        let mut budget = Budget::new(max_memory);
        read_or(folder, || {
            let Some((mut read, file)) = Self::state(folder, &mut budget)? else { return Ok(None) };
            read.variables = safetensors::read(&folder.join(file), &mut budget, |_| true)?;
            Ok(Some(read))
        })
    }

    /// All but the variables of the checkpoint of a folder, and the name of their file; `None`
    /// where it has none.
    fn state(
        folder: &Path,
        budget: &mut Budget,
    ) -> Result<Option<(Self, String)>, CheckpointError> {
        let path = folder.join(STATE);
        match path.metadata() {
            Ok(file) => budget.charge(STATE, file.len()).map_err(FileError::from)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(&path, error)),
        }
        let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
        let wrong =
            |error: String| CheckpointError::State { path: path.display().to_string(), error };
        let unread = |e: serde_json::Error| {
            wrong(if e.is_eof() { "it ends too soon".to_owned() } else { e.to_string() })
        };
        let Versioned { version } = serde_json::from_str(&text).map_err(unread)?;
        if version != VERSION {
            return Err(CheckpointError::Version { path: path.display().to_string(), version });
        }
        let state: State = serde_json::from_str(&text).map_err(unread)?;
        let plain =
            Path::new(&state.variables).file_name().is_some_and(|name| *name == *state.variables);
        if !plain {
            return Err(wrong("its variables lie outside its folder".to_owned()));
        }
        let at = Position { epoch: state.epoch, step: state.step };
        let State { history, partial, terms, best_by, settings, done, rate, .. } = state;
        let partial = read_form(partial).map_err(|e| wrong(e.to_string()))?;
        let variables = Weights::default();
        let read = Self { variables, at, history, terms, best_by, settings, partial, done, rate };
        Ok(Some((read, state.variables)))
    }

    /// All but the variables of the checkpoint of a folder; `None` where it has none.
    pub(crate) fn read_state(folder: &Path) -> Result<Option<Self>, CheckpointError> {
        let state = || Self::state(folder, &mut Budget::new(MAX_STATE));
        Ok(read_or(folder, state)?.map(|(read, _)| read))
    }

    /// The newest checkpoint of the run of a folder that is whole, but for that of the folder
    /// itself: its folder, and how far it is. A folder that is named like a part of a run is one
    /// only in the folder of a run.
    pub(crate) fn beside(folder: &Path) -> Option<(PathBuf, String)> {
        let name = folder.file_name().and_then(|name| name.to_str());
        let is_part = name.is_some_and(|name| name == BEST || number(name).is_some());
        let run = folder.parent().filter(|parent| is_part && Self::is_in(parent));
        let run = run.unwrap_or(folder); // it is a run of its own
        let inside = std::fs::read_dir(named(run));
        // What cannot be listed has no checkpoint that could be named.
        let inside = inside.into_iter().flatten().flatten();
        let names = inside.filter_map(|entry| entry.file_name().into_string().ok());
        let mut epochs: Vec<u64> = names.filter_map(|name| number(&name)).collect();
        epochs.sort_unstable_by(|a, b| b.cmp(a));
        let epochs = epochs.iter().map(|epoch| run.join(format!("{OF_EPOCH}{epoch}")));
        let other = |at: &PathBuf| at != folder;
        let whole = |at: PathBuf| Some((Self::whole(&at)?, at));
        let newest = epochs.filter(other).find_map(whole);
        let rest = [run.to_path_buf(), run.join(BEST)].into_iter().filter(other);
        let (Position { epoch, step }, at) =
            rest.filter_map(whole).chain(newest).max_by_key(|(at, _)| (at.epoch, at.step))?;
        let how_far = match step {
            0 => format!("after epoch {epoch}"),
            _ => format!("after batch {step} of epoch {}", epoch + 1),
        };
        Some((named(&at).to_path_buf(), how_far))
    }

    /// The place of the checkpoint of a folder, if it has one and nothing of it is missing.
    fn whole(folder: &Path) -> Option<Position> {
        let (read, file) = Self::state(folder, &mut Budget::new(MAX_STATE)).ok()??;
        safetensors::map(&folder.join(file)).ok()?;
        Some(read.at)
    }

    /// The name of a term that is another one in these, with both texts. A checkpoint that has no
    /// terms agrees with all.
    pub(super) fn contradiction(&self, terms: &BTreeMap<String, String>) -> Option<[String; 3]> {
        let mut others =
            self.terms.iter().filter(|(name, before)| terms.get(*name) != Some(before));
        let (name, before) = others.next()?;
        Some([name.clone(), before.clone(), terms.get(name).cloned().unwrap_or_default()])
    }
}

/// What is read of a folder; an error of damaged files knows what there is in their place.
fn read_or<T>(
    folder: &Path,
    read: impl FnOnce() -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    read().map_err(|error| {
        if !error.is_of_damage() {
            return error;
        }
        let whole = Checkpoint::beside(folder);
        let whole = whole.map(|(at, how_far)| (at.display().to_string(), how_far));
        let folder = folder.display().to_string();
        CheckpointError::Damaged { error: Box::new(error), folder, whole }
    })
}

/// The number of the epoch in the name of a folder that keeps it.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix(OF_EPOCH)?.parse().ok()
}

/// True if a file has a name that a checkpoint gives its variables.
fn is_of_variables(name: &str) -> bool {
    let numbers = name.strip_prefix(VARIABLES).and_then(|name| name.strip_suffix(SAFETENSORS));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    numbers
        .is_some_and(|numbers| numbers.split('-').count() == 3 && numbers.split('-').all(is_number))
}

#[cfg(test)]
mod tests {
    use super::{Checkpoint, History, Position, Sums};
    use crate::train::{Epoch, Logs};
    use crate::types::Diagnostic;

    fn of_losses(training: f64, validation: f64) -> Checkpoint {
        let logs = |loss| Logs { rows: 3, loss, metrics: vec![("mse".to_owned(), validation)] };
        let (training, validation) = (logs(training), Some(logs(validation)));
        let epochs = vec![Epoch { training, validation, ..Epoch::default() }];
        Checkpoint { history: History { epochs }, ..Checkpoint::default() }
    }

    #[test]
    fn numbers_that_are_told_may_be_any() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".fanwise-killed"), "a part").unwrap();
        for told in [f64::INFINITY, f64::NEG_INFINITY, 0.1 + 0.2] {
            let mut kept = of_losses(0.5, told);
            let metrics = vec![("mse".to_owned(), vec![told], vec![2.0])];
            kept.partial = Sums { rows: 2, loss: 0.25, metrics };
            kept.write(folder.path()).unwrap();
            let read = Checkpoint::read(folder.path(), 1 << 20).unwrap().unwrap();
            assert_eq!((read.history, read.partial), (kept.history, kept.partial));
        }
        of_losses(0.5, f64::NAN).write(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        let read = Checkpoint::read(folder.path(), 1 << 20).unwrap().unwrap();
        assert!(read.history.epochs[0].validation.as_ref().is_some_and(|logs| logs.loss.is_nan()));
    }

    #[test]
    fn the_newest_whole_checkpoint_of_a_run_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let at = |name: &str| if name.is_empty() { run.clone() } else { run.join(name) };
        let told = |name: &str| {
            let (at, how_far) = Checkpoint::beside(&at(name))?;
            let at = at.strip_prefix(&run).unwrap().display().to_string();
            Some(format!("{at}: {how_far}"))
        };
        assert_eq!(told(""), None);
        let places = [("", 10, 3), ("best", 7, 0), ("epoch-9", 9, 0), ("epoch-10", 10, 0)];
        for (name, epoch, step) in places {
            let at = Position { epoch, step };
            let kept = Checkpoint { at, ..of_losses(0.5, 0.5) };
            kept.write(&run.join(name)).unwrap();
        }
        assert_eq!(told("best").as_deref(), Some(": after batch 3 of epoch 11"));
        assert_eq!(told("").as_deref(), Some("epoch-10: after epoch 10"));
        // An archive of variables that ends too early, or is not there.
        std::fs::write(run.join("epoch-10/variables-10-0-0.safetensors"), "a part").unwrap();
        assert_eq!(told("").as_deref(), Some("epoch-9: after epoch 9"));
        std::fs::remove_file(run.join("epoch-9/variables-9-0-0.safetensors")).unwrap();
        assert_eq!(told("").as_deref(), Some("best: after epoch 7"));
        let error = Checkpoint::read(&run.join("epoch-9"), 1 << 20).unwrap_err();
        let hint = error.hints()[0].to_string();
        assert!(hint.starts_with("use the checkpoint in ") && hint.contains("of epoch 11"));
        std::fs::write(run.join("state.json"), "{").unwrap();
        assert_eq!(told("epoch-9").as_deref(), Some("best: after epoch 7"));
        std::fs::write(run.join("best/state.json"), "{").unwrap();
        let error = Checkpoint::read(&run, 1 << 20).unwrap_err();
        assert!(error.hints()[0].to_string().contains("no other checkpoint"), "{error}");
    }

    #[test]
    fn a_folder_that_is_named_like_a_part_of_a_run_may_be_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["best", "epoch-3", "best/epoch-1"] {
            of_losses(0.5, 0.5).write(&at(name)).unwrap();
        }
        let beside = |name: &str| Checkpoint::beside(&at(name)).map(|(at, _)| at);
        assert_eq!(beside("epoch-3"), None);
        assert_eq!(beside("best"), Some(at("best/epoch-1")));
    }

    #[test]
    fn what_is_not_damaged_is_not_called_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = |name: &str| {
            let error = Checkpoint::read(&folder.path().join(name), 1 << 20).unwrap_err();
            let hints = error.hints().iter().map(ToString::to_string).collect::<String>();
            (error.to_string(), hints)
        };
        of_losses(0.5, 0.5).write(&folder.path().join("newer")).unwrap();
        // Another version has other fields.
        std::fs::write(folder.path().join("newer/state.json"), r#"{"version": 7}"#).unwrap();
        let (text, hint) = error("newer");
        assert!(text.ends_with("of version 7; version 1 is supported"), "{text}");
        assert_eq!(hint, "use the fanwise that wrote it, or a newer one");
        std::fs::create_dir_all(folder.path().join("closed/state.json")).unwrap();
        let (text, hint) = error("closed");
        assert!(text.contains("closed/state.json: ") && hint.is_empty(), "{text}: {hint}");
        std::fs::create_dir(folder.path().join("bytes")).unwrap();
        std::fs::write(folder.path().join("bytes/state.json"), [0xff]).unwrap();
        assert!(error("bytes").1.contains("no other checkpoint"), "{:?}", error("bytes"));
    }

    #[test]
    fn nothing_is_kept_from_which_nothing_can_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |kept: &Checkpoint| kept.write(folder.path()).unwrap_err().to_string();
        assert!(refused(&of_losses(f64::NAN, 1.0)).contains("the loss is not finite"));
        assert!(refused(&of_losses(f64::INFINITY, 1.0)).contains("the loss is not finite"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
