//! Checkpoints: all that a training needs to go on as if it had not stopped.

use std::collections::BTreeMap;
use std::num::ParseFloatError;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::History;
use super::data::Position;
use super::history::Number;
use crate::format::{Budget, FileError, safetensors, write_text};
use crate::ir::Weights;
use crate::types::{DType, Tensor};

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

/// The same in a file.
type PartialForm = (u64, f64, Vec<(String, Vec<Number>, Vec<Number>)>);

fn form_of((rows, loss, metrics): &Partial) -> PartialForm {
    let numbers = |all: &[f64]| all.iter().map(|x| Number::from(*x)).collect();
    let metrics = metrics.iter().map(|(n, t, c)| (n.clone(), numbers(t), numbers(c))).collect();
    (*rows, *loss, metrics)
}

fn read_form((rows, loss, metrics): PartialForm) -> Result<Partial, ParseFloatError> {
    let numbers = |all: Vec<Number>| all.into_iter().map(f64::try_from).collect::<Result<_, _>>();
    let read = |(n, t, c)| Ok((n, numbers(t)?, numbers(c)?));
    Ok((rows, loss, metrics.into_iter().map(read).collect::<Result<_, _>>()?))
}

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
    partial: PartialForm,
    #[serde(default)]
    settings: BTreeMap<String, Vec<String>>,
}

fn io(path: &Path, error: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.display().to_string(), error }
}

impl Checkpoint {
    /// What is no finite number, so that nothing can be learned after it.
    fn not_finite(&self) -> Option<String> {
        let epochs = self.history.epochs.iter().map(|epoch| epoch.training.loss);
        if !epochs.chain([self.partial.1]).all(f64::is_finite) {
            return Some("the loss".to_owned());
        }
        let mut variables = self.variables.iter();
        let (name, _) = variables.find(|(_, tensor)| has_nan(tensor))?;
        Some(format!("an element of `{name}`"))
    }

    /// Writes it to a folder, which is made if it does not exist. The variables are written first, under a name of their
    /// own; the checkpoint before counts until the file that names them is in its place.
    pub fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(STATE);
        if let Some(what) = self.not_finite() {
            let error = format!("{what} is no number, and nothing could go on from it");
            return Err(CheckpointError::State { path: path.display().to_string(), error });
        }
        std::fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
        let Position { epoch, step } = self.at;
        // A name that no checkpoint before has.
        let mut names = (0u64..).map(|i| format!("{VARIABLES}{epoch}-{step}-{i}{SAFETENSORS}"));
        let variables = names.find(|name| !folder.join(name).exists()).unwrap_or_default();
        safetensors::write(&folder.join(&variables), &self.variables)?;
        let (history, partial) = (self.history.clone(), form_of(&self.partial));
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
        let partial = read_form(partial).map_err(|e| wrong(e.to_string()))?;
        Ok(Some(Self { variables, at, history, settings, partial }))
    }
}

/// Whether an element of floats, which training works with, is a NaN; masks may well be infinite.
fn has_nan(tensor: &Tensor) -> bool {
    if tensor.dtype() == DType::F32 {
        tensor.as_slice::<f32>().iter().any(|x| x.is_nan())
    } else {
        tensor.dtype() == DType::F64 && tensor.as_slice::<f64>().iter().any(|x| x.is_nan())
    }
}

/// Whether a file has a name that a checkpoint gives its variables.
fn is_of_variables(name: &str) -> bool {
    let numbers = name.strip_prefix(VARIABLES).and_then(|name| name.strip_suffix(SAFETENSORS));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    numbers
        .is_some_and(|numbers| numbers.split('-').count() == 3 && numbers.split('-').all(is_number))
}

#[cfg(test)]
mod tests {
    use super::{Checkpoint, History};
    use crate::train::{Epoch, Logs};
    use crate::types::Tensor;

    fn of_losses(training: f64, validation: f64) -> Checkpoint {
        let logs = |loss| Logs { rows: 3, loss, metrics: vec![("mse".to_owned(), validation)] };
        let (training, validation) = (logs(training), Some(logs(validation)));
        let epochs = vec![Epoch { training, validation, ..Epoch::default() }];
        Checkpoint { history: History { epochs }, ..Checkpoint::default() }
    }

    #[test]
    fn numbers_that_are_told_may_be_any() {
        let folder = tempfile::tempdir().unwrap();
        for told in [f64::INFINITY, f64::NEG_INFINITY, 0.1 + 0.2] {
            let mut kept = of_losses(0.5, told);
            kept.partial = (2, 0.25, vec![("mse".to_owned(), vec![told], vec![2.0])]);
            kept.write(folder.path()).unwrap();
            let read = Checkpoint::read(folder.path(), 1 << 20).unwrap().unwrap();
            assert_eq!((read.history, read.partial), (kept.history, kept.partial));
        }
        of_losses(0.5, f64::NAN).write(folder.path()).unwrap();
        let read = Checkpoint::read(folder.path(), 1 << 20).unwrap().unwrap();
        assert!(read.history.epochs[0].validation.as_ref().is_some_and(|logs| logs.loss.is_nan()));
    }

    #[test]
    fn nothing_is_kept_from_which_nothing_can_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |kept: &Checkpoint| kept.write(folder.path()).unwrap_err().to_string();
        assert!(refused(&of_losses(f64::NAN, 1.0)).contains("the loss is no number"));
        let mut kept = of_losses(0.5, 1.0);
        let weights = Tensor::new(&[2], &[1.0f32, f32::NAN]).unwrap();
        kept.variables.insert("w", weights);
        assert!(refused(&kept).contains("`w` is no number"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
