//! What watches a training: it is kept, logged, drawn and ended.

mod error;
mod events;
mod files;
mod keep;
mod progress;
mod rate;
mod stop;

pub use events::EventLog;
pub use files::{CsvLog, Plot};
pub use keep::{Keep, Keeper, ParseKeepError};
pub use progress::{Progress, ProgressMeter};
pub use rate::LearningRate;
pub use stop::{EarlyStopping, Finite};
