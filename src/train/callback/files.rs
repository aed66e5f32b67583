//! Files that are written anew with every epoch: the history as a table, and as curves.

use std::path::PathBuf;

use super::error::failed;
use crate::Error;
use crate::format;
use crate::train::history::History;
use crate::train::observer::{Observer, TrainState};
use crate::train::plot;

/// Writes [`History::csv`] to a file.
#[derive(Clone, Debug)]
pub struct CsvLog {
    /// The file.
    pub path: PathBuf,
}

impl CsvLog {
    fn write(&self, history: &History) -> Result<bool, Error> {
        if !history.epochs.is_empty() {
            format::write_text(&self.path, &history.csv())?;
        }
        Ok(true)
    }
}

impl Observer for CsvLog {
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.write(watch.history())
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.write(watch.history())
    }
}

/// Draws the history to a file, as SVG.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// The file.
    pub path: PathBuf,
    /// The model and the data, for the title.
    pub of: String,
}

impl Plot {
    fn draw(&self, history: &History) -> Result<bool, Error> {
        if !history.epochs.is_empty() {
            plot::write(&self.path, &self.of, history).map_err(failed)?;
        }
        Ok(true)
    }
}

impl Observer for Plot {
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.draw(watch.history())
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.draw(watch.history())
    }
}
