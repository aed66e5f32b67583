//! Training: the data that a training graph is fed with, and the loop around it.
//!
//! A [`Trainer`] holds three programs of one model: one step of training, evaluation
//! ([`Trainer::evaluate`]), and the model itself ([`Predictor`]). Their parameters have the model's
//! names, so that what is trained on any number of devices runs on one.
//!
//! [`Trainer::fit`] takes rows of any source and [`FitOptions`], whose default is Keras'. An
//! [`Observer`] watches it, sets its learning rate and may end it; those of the crate are:
//!
//! | observer | what it does |
//! | --- | --- |
//! | [`ModelCheckpoint`] | keeps checkpoints: the last, the best, every one |
//! | [`EarlyStopping`] | ends a training that gets no better |
//! | [`Finite`] | ends one whose loss is no finite number |
//! | [`LearningRate`] | sets the learning rate of every batch |
//! | [`ProgressMeter`] | tells how far an epoch is |
//! | [`CsvLog`], [`EventLog`] | write the history: as a table, for `TensorBoard` |
//!
//! ```
//! use fanwise::Session;
//! use fanwise::ir::Builder;
//! use fanwise::op::MatMul;
//! use fanwise::pass::{Optimizer, Training};
//! use fanwise::train::data::Arrays;
//! use fanwise::train::{EarlyStopping, FitOptions, Validation};
//! use fanwise::types::Tensor;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut b = Builder::new("line");
//! let x = b.input("x", "f32[N,1]".parse()?);
//! let w = b.param("w", Tensor::new(&[1, 1], &[0.0f32])?);
//! let y = b.op("y", MatMul {}, &[x, w])?;
//! b.output("y", y);
//!
//! let x: Vec<f32> = (0..100u8).map(f32::from).collect();
//! let y: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
//! let column = |values: &[f32]| Tensor::new(&[100, 1], values);
//! let data = Arrays::new([("x", column(&x)?), ("y", column(&y)?)])?;
//!
//! let training = Training::new("y", "mse".parse()?, Optimizer::default());
//! let mut trainer = Session::builder(b.finish()).gpus(3).train(training)?;
//! let history = trainer.fit(
//!     data,
//!     FitOptions {
//!         epochs: 3,
//!         validation: Validation::Split(0.2),
//!         observers: vec![&mut EarlyStopping::new("val_loss")],
//!         ..FitOptions::default()
//!     },
//! )?;
//! assert!(history.epochs[2].training.loss < history.epochs[0].training.loss);
//! # Ok(())
//! # }
//! ```

mod bytes;
mod callback;
mod cause;
mod checkpoint;
pub mod data;
mod error;
mod fit;
mod history;
#[cfg(feature = "keras")]
pub(crate) mod keras;
mod monitor;
mod observer;
mod options;
pub(crate) mod plot;
mod run;
mod schedule;
pub(crate) mod stage;
mod targets;
mod trainer;

pub(crate) use callback::Plot;
pub use callback::{
    CsvLog, EarlyStopping, EventLog, Finite, Keep, LearningRate, ModelCheckpoint, Progress,
    ProgressMeter,
};
pub use checkpoint::Checkpoint;
pub use error::{CheckpointError, TrainError};
pub use fit::{FitOptions, Validation};
pub use history::{Epoch, History, Logs};
pub use monitor::Monitor;
pub use observer::{Observer, TrainState};
pub use options::{Distribution, TrainerOptions};
pub use schedule::{Plateau, Schedule};
pub use stage::Predictor;
#[cfg(feature = "cli")]
pub(crate) use stage::claims;
pub(crate) use stage::{Evaluator, replicated};
pub use trainer::Trainer;
