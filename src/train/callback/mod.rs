//! Observers of training: checkpoints, logs, plots and early stopping.

mod drawing;
mod error;
mod events;
mod files;
mod keep;
mod progress;
mod rate;
mod stop;

pub use events::EventLog;
pub use files::CsvLog;
pub(crate) use files::Plot;
pub use keep::{Keep, ModelCheckpoint};
pub use progress::{Progress, ProgressMeter};
pub use rate::LearningRate;
pub use stop::{EarlyStopping, Finite};
