//! Checkpoints: all that a training needs to go on as if it had not stopped.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::History;
use super::data::Position;
use crate::format::{Budget, FileError, safetensors, write_text};
use crate::ir::Weights;

/// The name of the file that says which variables belong to the checkpoint.
const STATE: &str = "state.json";

/// How the names of files of variables begin and end.
const VARIABLES: &str = "variables-";
const SAFETENSORS: &str = ".safetensors";

/// What is kept of a training.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// The parameters of the model and the variables of the optimizer, by name.
    pub variables: Weights,
    /// The next batch.
    pub at: Position,
    /// The whole epochs so far.
    pub history: History,
    /// What the run was asked for: the values of settings by name, as whoever keeps it writes them.
    pub settings: BTreeMap<String, Vec<String>>,
    /// The sums of the epoch that is not whole: rows, loss times rows, and the metrics.
    pub(super) partial: Partial,
}

/// What the batches of an epoch gave so far.
pub(super) type Partial = (u64, f64, Vec<(String, Vec<f64>, Vec<f64>)>);

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file could not be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder cannot be used.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: String,
        /// What failed.
        error: std::io::Error,
    },
    /// The state is damaged.
    #[error("{path} is no state of a training: {error}")]
    State {
        /// The file.
        path: String,
        /// What is wrong.
        error: String,
    },
}

/// The file beside the variables.
#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    variables: String,
    epoch: u64,
    step: u64,
    history: History,
    partial: Partial,
    #[serde(default)]
    settings: BTreeMap<String, Vec<String>>,
}

fn io(path: &Path, error: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.display().to_string(), error }
}

impl Checkpoint {
    /// Whether every number of the history is one that a file can hold.
    fn is_finite(&self) -> bool {
        let epochs = self.history.epochs.iter().flat_map(super::Epoch::numbers);
        let (_, loss, metrics) = &self.partial;
        let sums =
            metrics.iter().flat_map(|(_, totals, counts)| totals.iter().chain(counts)).copied();
        epochs.map(|(_, x)| x).chain(sums).chain([*loss]).all(f64::is_finite)
    }

    /// Writes it to a folder, which is made if it does not exist. The variables are written first, under a name of their
    /// own; the checkpoint before counts until the file that names them is in its place.
    pub fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(STATE);
        if !self.is_finite() {
            let error = "the loss is no finite number, and nothing could go on from it".to_owned();
            return Err(CheckpointError::State { path: path.display().to_string(), error });
        }
        std::fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
        let Position { epoch, step } = self.at;
        // A name that no checkpoint before has.
        let mut names = (0u64..).map(|i| format!("{VARIABLES}{epoch}-{step}-{i}{SAFETENSORS}"));
        let variables = names.find(|name| !folder.join(name).exists()).unwrap_or_default();
        safetensors::write(&folder.join(&variables), &self.variables)?;
        let (history, partial) = (self.history.clone(), self.partial.clone());
        let (version, settings) = (1, self.settings.clone());
        let named = variables.clone();
        let state = State { version, variables: named, epoch, step, history, partial, settings };
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
            if is_of_variables(&old) && *old != *variables {
                // One that stays is in nobody's way.
                drop(std::fs::remove_file(entry.path()));
            }
        }
        Ok(())
    }

    /// Reads the checkpoint of a folder; `None` where it has none.
    pub fn read(folder: &Path, max_memory: u64) -> Result<Option<Self>, CheckpointError> {
        let path = folder.join(STATE);
        let mut budget = Budget::new(max_memory);
        match path.metadata() {
            Ok(file) => budget.charge(STATE, file.len()).map_err(FileError::from)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(&path, error)),
        }
        let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
        let wrong =
            |error: String| CheckpointError::State { path: path.display().to_string(), error };
        let state: State = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if state.version != 1 {
            return Err(wrong(format!("its version is {}, this program reads 1", state.version)));
        }
        let plain =
            Path::new(&state.variables).file_name().is_some_and(|name| *name == *state.variables);
        if !plain {
            return Err(wrong("its variables lie outside its folder".to_owned()));
        }
        let variables = safetensors::read(&folder.join(&state.variables), &mut budget, |_| true)?;
        let at = Position { epoch: state.epoch, step: state.step };
        let State { history, partial, settings, .. } = state;
        Ok(Some(Self { variables, at, history, settings, partial }))
    }
}

/// Whether a file has a name that a checkpoint gives its variables.
fn is_of_variables(name: &str) -> bool {
    let numbers = name.strip_prefix(VARIABLES).and_then(|name| name.strip_suffix(SAFETENSORS));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    numbers
        .is_some_and(|numbers| numbers.split('-').count() == 3 && numbers.split('-').all(is_number))
}
