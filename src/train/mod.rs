//! Training: the data that a training graph is fed with, and the loop around it.
//!
//! A [`Trainer`] holds three programs of one model: one step of training, evaluation ([`Evaluator`]), and the model itself
//! ([`Predictor`]). Their parameters have the model's names, so that what is trained on any number of devices runs on one.

mod checkpoint;
pub mod data;
mod history;
mod schedule;
mod stage;
mod trainer;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use history::{Epoch, History, Logs};
pub use schedule::{ParseScheduleError, Plateau, Schedule};
pub use stage::{Evaluator, Place, Predictor};
pub use trainer::{FitOptions, Observer, TrainError, Trainer, TrainerOptions, Watch};
