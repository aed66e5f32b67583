//! Ctrl-C: a training ends after the batch that it computes, and keeps a checkpoint; at the second
//! one it ends at once. Before it has begun there is nothing to keep.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
#[cfg(unix)]
use std::time::Duration;

#[cfg(unix)]
use anyhow::Context as _;

use super::lines::after;
#[cfg(unix)]
use super::signals;
use crate::Error;
use crate::cli::report::quoted;
use crate::cli::ui;
#[cfg(unix)]
use crate::train::Checkpoint;
use crate::train::{ModelCheckpoint, Observer, TrainError, TrainState};

/// The exit code of a program that Ctrl-C ends.
const CODE: u8 = 130;

/// Says what an interrupted training leaves, and gives the exit code.
pub(super) fn told(text: &str) -> ExitCode {
    ui::talk(text);
    ExitCode::from(CODE)
}

/// The folder of the checkpoint of a run without `--checkpoint`; where it is taken, a number
/// follows.
const FOLDER: &str = "fanwise-interrupted";

/// How often it is tried to remove a folder that an interrupted preparation has made.
#[cfg(unix)]
const TRIES: u32 = 200;

/// What a run does until its training begins, which a signal ends at once. What it makes and does
/// not fill goes with it.
pub(super) struct Preparation {
    ended: Arc<AtomicBool>,
    /// Whether a signal ends the process.
    ending: Arc<AtomicBool>,
    /// Whether the training is asked to end.
    asked: Arc<AtomicBool>,
    /// The folders that were not there before, the innermost first.
    made: Vec<PathBuf>,
    /// The folder that the interruption makes, where the run has none.
    own: Arc<OnceLock<PathBuf>>,
}

impl Preparation {
    /// Listens to signals from now on. The folder of checkpoints goes with an interrupted
    /// preparation if this run makes it.
    pub(super) fn new(checkpoint: Option<&Path>) -> anyhow::Result<Self> {
        let (ended, asked, own) = (Arc::default(), Arc::default(), Arc::default());
        let ending = Arc::default();
        // None: a run without checkpoints makes no folder before it begins.
        let made = checkpoint.map_or_else(Vec::new, unmade);
        #[cfg(unix)]
        {
            let answers = Answers {
                prepared: Arc::clone(&ended),
                ending: Arc::clone(&ending),
                asked: Arc::clone(&asked),
                made: made.clone(),
                checkpoint: checkpoint.map(Path::to_owned),
                own: Arc::clone(&own),
            };
            signals::listen(move || answers.answer()).context("no handler for Ctrl-C")?;
        }
        Ok(Self { ended, ending, asked, made, own })
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        // What fails because the folder of checkpoints has gone is no error of the run.
        while self.ending.load(Ordering::Acquire) {
            std::thread::park();
        }
        if !self.ended.load(Ordering::Relaxed) {
            remove_empty(&self.made);
        }
    }
}

/// Removes folders as far as they are empty: one with files stays.
fn remove_empty(folders: &[PathBuf]) {
    for folder in folders {
        drop(std::fs::remove_dir(folder));
    }
}

/// The command that goes on from the checkpoint in a folder.
fn to_go_on(folder: &Path) -> String {
    format!("to go on: fanwise fit --resume {}", quoted(&folder.display().to_string()))
}

/// The folders of a path that do not exist yet, the innermost first.
fn unmade(folder: &Path) -> Vec<PathBuf> {
    let all = folder.ancestors().take_while(|at| !at.as_os_str().is_empty() && !at.exists());
    all.map(Path::to_owned).collect()
}

/// Ends a training that Ctrl-C, or a request to terminate, interrupts. A second one ends the
/// process at once.
pub(super) struct Interrupt {
    ended: Arc<OnceLock<String>>,
    keeper: ModelCheckpoint,
    /// Whether another callback keeps the checkpoints of epochs in the same folder.
    kept: bool,
    files: Pending,
    preparation: Preparation,
}

/// The files that a run writes.
#[derive(Default)]
pub(super) struct Pending {
    /// Those of its end.
    pub(super) last: Vec<PathBuf>,
    /// Those of every epoch.
    pub(super) of_epochs: Vec<PathBuf>,
}

impl Pending {
    /// A line that names those that are not there after so many epochs, if there are some.
    fn missing(&self, epochs: usize) -> String {
        let of_epochs = if epochs == 0 { &self.of_epochs[..] } else { &[] };
        let names: Vec<String> =
            self.last.iter().chain(of_epochs).map(|path| path.display().to_string()).collect();
        if names.is_empty() {
            return String::new();
        }
        format!("not written yet: {}\n", names.join(", "))
    }
}

/// The folder for a run that names none.
fn folder() -> PathBuf {
    let first = PathBuf::from(FOLDER);
    let others = (2u32..).map(|i| PathBuf::from(format!("{FOLDER}-{i}")));
    let mut all = std::iter::once(first.clone()).chain(others);
    // One of so many names is free.
    all.find(|path| !path.exists()).unwrap_or(first)
}

impl Interrupt {
    /// Ends a training with a checkpoint as `keeper` writes it, or, where `kept` is false, in a
    /// folder of its own.
    pub(super) fn new(
        keeper: ModelCheckpoint,
        kept: bool,
        files: Pending,
        preparation: Preparation,
    ) -> Self {
        Self { ended: Arc::default(), keeper, kept, files, preparation }
    }

    /// What there is to say if the training was interrupted.
    pub(super) fn ended(&self) -> Arc<OnceLock<String>> {
        Arc::clone(&self.ended)
    }

    /// Whether the training is to end.
    fn is_asked(&self) -> bool {
        self.preparation.asked.load(Ordering::Relaxed)
    }

    /// Keeps what there is, and says how to go on.
    fn end(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        if !self.kept {
            self.keeper.folder = folder();
            // Nobody else sets it.
            drop(self.preparation.own.set(self.keeper.folder.clone()));
        }
        if !self.kept || watch.at.step > 0 {
            self.keeper.write(watch, None)?;
        }
        let at = if watch.at.step > 0 && watch.steps == Some(watch.at.step) {
            format!("in the validation of epoch {}", watch.at.epoch + 1)
        } else {
            after(watch.at)
        };
        let text = format!(
            "interrupted {at}; the checkpoint is in {}\n{}{}",
            self.keeper.folder.display(),
            self.files.missing(watch.history().epochs.len()),
            to_go_on(&self.keeper.folder)
        );
        // Nobody else sets it.
        drop(self.ended.set(text));
        Ok(())
    }

    /// Ends the training within an epoch.
    fn stop(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        self.end(watch)?;
        Err(TrainError::Watch("the training was interrupted".to_owned()).into())
    }
}

/// What is done at a signal.
#[cfg(unix)]
struct Answers {
    /// Whether training has begun.
    prepared: Arc<AtomicBool>,
    /// Whether the process ends.
    ending: Arc<AtomicBool>,
    /// Whether the training is asked to end.
    asked: Arc<AtomicBool>,
    /// The folders that were not there before, the innermost first.
    made: Vec<PathBuf>,
    /// The folder of checkpoints, if the run has one.
    checkpoint: Option<PathBuf>,
    /// The folder that the interruption makes, where the run has none.
    own: Arc<OnceLock<PathBuf>>,
}

#[cfg(unix)]
impl Answers {
    /// Asks a training to end; ends a preparation, and a training that is asked already.
    fn answer(&self) {
        let text = if !self.prepared.load(Ordering::Relaxed) {
            self.ending.store(true, Ordering::Release);
            self.leave_nothing();
            "interrupted before training began: nothing was trained, and no file written".to_owned()
        } else if self.asked.load(Ordering::Relaxed) {
            remove_empty(&self.made);
            if let Some(folder) = self.own.get() {
                remove_empty(std::slice::from_ref(folder));
            }
            self.left()
        } else {
            signals::say(|| {
                ui::note("training ends after this batch; press Ctrl-C again to end it at once");
            });
            // Behind the note, so that what the training says at its end comes after it.
            self.asked.store(true, Ordering::Relaxed);
            return;
        };
        signals::say(move || ui::talk(&text));
        signal_hook::low_level::exit(CODE.into());
    }

    /// Removes the folders of an interrupted preparation. One may hold a file for a moment, by
    /// which it is tried whether it takes some.
    fn leave_nothing(&self) {
        for _ in 0..TRIES {
            remove_empty(&self.made);
            if self.made.first().is_none_or(|folder| !folder.exists()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a training leaves that ends at once.
    fn left(&self) -> String {
        let folder = self.checkpoint.as_ref().or(self.own.get());
        match folder.filter(|folder| Checkpoint::is_in(folder)) {
            Some(folder) => format!(
                "ended at once; the last checkpoint is in {}\n{}",
                folder.display(),
                to_go_on(folder)
            ),
            None => "ended at once: no checkpoint was kept".to_owned(),
        }
    }
}

impl Observer for Interrupt {
    fn begin(&mut self, _: &TrainState<'_>) -> Result<bool, Error> {
        #[cfg(not(unix))]
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The first sets the flag, with which the second ends the process.
            let asked = || Arc::clone(&self.preparation.asked);
            signal_hook::flag::register_conditional_shutdown(signal, CODE.into(), asked())
                .and_then(|_| signal_hook::flag::register(signal, asked()))
                .map_err(|e| TrainError::Watch(format!("no handler for Ctrl-C: {e}")))?;
        }
        self.preparation.ended.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        // What is behind the last batch of an epoch belongs to its end.
        if !self.is_asked() || watch.steps == Some(watch.at.step) {
            return Ok(());
        }
        self.stop(watch)
    }

    fn validation_batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        // What goes on validates the epoch anew.
        if self.is_asked() { self.stop(watch) } else { Ok(()) }
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        // The last epoch ends the run by itself, with all its files.
        if !self.is_asked() || watch.at.epoch >= watch.epochs {
            return Ok(true);
        }
        self.end(watch)?;
        Ok(false)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::Answers;

    #[test]
    fn a_run_that_ends_at_once_names_the_checkpoint_that_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let [given, own] = ["given", "own"].map(|name| folder.path().join(name));
        let answers = |checkpoint: Option<&std::path::Path>| Answers {
            prepared: std::sync::Arc::default(),
            ending: std::sync::Arc::default(),
            asked: std::sync::Arc::default(),
            made: Vec::new(),
            checkpoint: checkpoint.map(Into::into),
            own: std::sync::Arc::new(own.clone().into()),
        };
        let none = "ended at once: no checkpoint was kept";
        assert_eq!([answers(None).left(), answers(Some(&given)).left()], [none, none]);
        for (at, checkpoint) in [(&own, None), (&given, Some(&*given))] {
            std::fs::create_dir(at).unwrap();
            std::fs::write(at.join("state.json"), "").unwrap();
            let left = answers(checkpoint).left();
            assert!(left.contains(&format!("is in {}\nto go on: ", at.display())), "{left}");
        }
    }
}
