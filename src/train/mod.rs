//! Training: the data that a training graph is fed with, and the loop around it.
//!
//! A [`Trainer`] holds three programs of one model: one step of training, evaluation ([`Evaluator`]), and the model itself
//! ([`Predictor`]). Their parameters have the model's names, so that what is trained on any number of devices runs on one.

mod callback;
mod checkpoint;
pub mod data;
mod error;
mod history;
pub mod plot;
mod schedule;
mod stage;
mod trainer;

pub use callback::{
    CsvLog, EarlyStopping, EventLog, Finite, Keep, Keeper, Monitor, ParseKeepError, Plot,
};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use error::TrainError;
pub use history::{Epoch, History, Logs};
pub use schedule::{ParseScheduleError, Plateau, Schedule};
pub use stage::{Evaluator, Place, Predictor, replicated};
pub use trainer::{FitOptions, Observer, Trainer, TrainerOptions, Watch};
