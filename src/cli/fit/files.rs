//! The files that a training writes.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::train::{Checkpoint, Keep};
use anyhow::{Context, bail};
use clap::Args;

use crate::cli::paths;
use crate::cli::trace::check_written;

/// Output files.
#[derive(Args)]
pub(super) struct FileArgs {
    /// Save a checkpoint to this folder after every epoch
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,
    /// Also save a checkpoint after this many batches
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) checkpoint_every: Option<u64>,
    /// Which checkpoints to keep
    ///
    /// `last` keeps the last one only. `best` also keeps that of the best epoch, in `DIR/best`;
    /// `--save` then writes its weights. `every` keeps those of all epochs.
    #[arg(long, value_name = "last|best|every", default_value_t)]
    pub(super) keep: Keep,
    /// Metric that determines the best epoch
    /// [default: that of `--early-stopping`, or the validation loss]
    #[arg(long, value_name = "METRIC")]
    pub(super) monitor: Option<String>,
    /// Resume from the checkpoint in this folder, and update it
    ///
    /// Options default to those of the run that wrote it. Output files (`--log`, `--plot`,
    /// `--save`, `--tensorboard`) outside the working folder and the checkpoint's parent folder
    /// must be given again.
    #[arg(long, value_name = "DIR", conflicts_with = "checkpoint")]
    pub(super) resume: Option<PathBuf>,
    /// Write one line per epoch to a CSV file
    #[arg(long, value_name = "FILE.csv")]
    pub(super) log: Option<PathBuf>,
    /// Plot the loss and the metrics of all epochs to an SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Write event files for `tensorboard` to this folder
    #[arg(long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Save the trained model: .fan, .onnx, .keras, .h5, or .safetensors for the weights only
    ///
    /// The weights of a .fan file are written beside it. If MODEL is an ONNX file, a saved .onnx
    /// file is that file with the trained weights. If MODEL is a Keras file, a saved .keras or .h5
    /// file is that file with the trained weights.
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
}

/// How the names of Keras files end.
pub(super) const KERAS: [&str; 2] = ["keras", "h5"];

/// Returns true if the name of a file ends in one of these.
pub(super) fn ends(path: &Path, kinds: &[&str]) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| kinds.contains(&e))
}

impl FileArgs {
    /// Fails where one could not be written. The folder of checkpoints is made.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let kinds = &[&["fan", "onnx", "safetensors"][..], &KERAS].concat();
        if let Some(path) = self.save.as_ref().filter(|path| !ends(path, kinds)) {
            let path = path.display();
            bail!(
                "cannot save to {path}: use .fan or .onnx, .keras or .h5 of such a file, or \
                 .safetensors for the weights only"
            );
        }
        if let Some(path) = self.plot.as_ref().filter(|path| !ends(path, &["svg"])) {
            bail!("cannot plot to {}: name a file that ends in .svg", path.display());
        }
        self.log.as_ref().map_or(Ok(()), |path| paths::check_form("log", path, "csv"))?;
        for (option, path) in [("save", &self.save), ("plot", &self.plot), ("log", &self.log)] {
            let Some(path) = path else { continue };
            check_written(option, path)?;
        }
        let folders = [
            ("checkpoint", &self.checkpoint),
            ("resume", &self.resume),
            ("tensorboard", &self.tensorboard),
        ];
        for (option, folder) in folders {
            if let Some(file) = folder.as_ref().filter(|path| path.exists() && !path.is_dir()) {
                bail!("`--{option} {}`: this is a file; name a folder", file.display());
            }
        }
        for (option, folder) in [("checkpoint", &self.checkpoint), ("resume", &self.resume)] {
            let Some(folder) = folder else { continue };
            let refused = || format!("the folder of `--{option}` cannot hold checkpoints");
            Checkpoint::check_folder(folder).map_err(Error::from).with_context(refused)?;
        }
        Ok(())
    }
}
