//! The files that a training writes.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::format::check_write;
use crate::train::{Checkpoint, Keep};
use anyhow::{Context, bail};
use clap::Args;

/// What is written.
#[derive(Args)]
pub(super) struct FileArgs {
    /// Keep in this folder what is needed to go on, after every epoch
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,
    /// Also after so many batches
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) checkpoint_every: Option<u64>,
    /// Which checkpoints stay besides the last: none, that of the best epoch in `DIR/best`, whose
    /// weights `--save` then writes, or that of every epoch
    #[arg(long, value_name = "last|best|every", default_value_t)]
    pub(super) keep: Keep,
    /// The number by which the best epoch is found; by default that of `--early-stopping`, or the
    /// loss of validation
    #[arg(long, value_name = "NUMBER")]
    pub(super) monitor: Option<String>,
    /// Go on from the checkpoint of this folder, and keep it up to date; options that are not given
    /// are those of the run that wrote it. The files to write (`--log`, `--plot`, `--save`,
    /// `--tensorboard`) are so only where they lie, as plain files, in the working folder or beside
    /// the checkpoint; elsewhere they have to be named again
    #[arg(long, value_name = "DIR", conflicts_with = "checkpoint")]
    pub(super) resume: Option<PathBuf>,
    /// Write a line for each epoch to this file
    #[arg(long, value_name = "FILE.csv")]
    pub(super) log: Option<PathBuf>,
    /// Draw the loss and the metrics of every epoch to this file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Write event files, which `tensorboard` shows, into this folder
    #[arg(long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Write the trained model: .fan (with its weights beside it), .onnx (MODEL with other weights
    /// where it is such a file, else written anew), or .safetensors for the weights alone
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
}

/// Whether the name of a file ends in one of these.
pub(super) fn ends(path: &Path, kinds: &[&str]) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| kinds.contains(&e))
}

impl FileArgs {
    /// Fails where one could not be written. The folder of checkpoints is made.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let kinds = &["fan", "onnx", "safetensors"];
        if let Some(path) = self.save.as_ref().filter(|path| !ends(path, kinds)) {
            let path = path.display();
            bail!("{path}: trained models are .fan or .onnx, their weights .safetensors");
        }
        if let Some(path) = self.plot.as_ref().filter(|path| !ends(path, &["svg"])) {
            bail!("{}: curves are drawn as SVG; name a file .svg", path.display());
        }
        for (option, path) in [("save", &self.save), ("plot", &self.plot), ("log", &self.log)] {
            let Some(path) = path else { continue };
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                bail!("{}: there is no folder {}", path.display(), folder.display());
            }
            let refused = || format!("`--{option}` names a file that cannot be written");
            check_write(path).map_err(Error::from).with_context(refused)?;
        }
        for (option, folder) in [("checkpoint", &self.checkpoint), ("resume", &self.resume)] {
            let Some(folder) = folder else { continue };
            let refused =
                || format!("`--{option}` names no folder that checkpoints can be kept in");
            Checkpoint::check_folder(folder).map_err(Error::from).with_context(refused)?;
        }
        Ok(())
    }
}
