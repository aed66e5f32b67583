//! Data for training: where rows come from, what is made of them, and the batches that are ready
//! before they are asked for.
//!
//! A [`Source`] holds rows that are read in any order by their number; a [`Stream`] gives rows one
//! after another. A row has one tensor for each [`Column`], all rows of the same types. [`Arrays`]
//! (`.npz`, `.npy`, `.safetensors`), [`Table`] (CSV), [`Cifar`] and [`Folder`] (images) are
//! sources; a user's own is as good. [`open`] takes what a path names for one of these. [`Data`]
//! are the rows of one of them with the changes that are made of each.
//!
//! A [`Change`] makes another row of a row: [`Images`] augments, `Categorical` and `Integer`
//! convert labels, [`ClassWeights`] weighs samples, and the loader casts columns to the types of
//! the model, whose arrays [`Names`] finds. What a change draws follows from the seed, the epoch
//! and the number of the row (`RowKey`), never from the thread that makes it or the order in
//! which rows are made.
//!
//! A [`Loader`] reads and changes the rows of the next batches on all cores while the devices
//! compute. A batch is one tensor for each column, with the rows outermost, so that what a replica
//! needs is a range of its memory. The order of an epoch's rows is a function of the seed and the
//! epoch: a run that goes on at a [`Position`] gets the batches that it would have got, and nothing
//! is replayed for it.
//!
//! ```
//! use fanwise::train::data::{Arrays, Loader, LoaderOptions, Position};
//! use fanwise::types::Tensor;
//!
//! # fn main() -> Result<(), fanwise::Error> {
//! let x = Tensor::new(&[5, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])?;
//! let y = Tensor::new(&[5], &[0i64, 1, 0, 1, 0])?;
//! let source = Arrays::new([("x", x), ("y", y)])?;
//! let options = LoaderOptions { batch: 2, ..LoaderOptions::default() };
//! let loader = Loader::new(source, options)?;
//! for batch in loader.batches(Position::default(), 1)? {
//!     let batch = batch?;
//!     assert_eq!(batch.arrays["x"].dims(), [batch.rows, 2]);
//! }
//! # Ok(())
//! # }
//! ```

mod arrays;
mod batches;
pub(crate) mod change;
pub(crate) mod cifar;
mod classes;
mod column;
#[cfg(feature = "images")]
pub(crate) mod decode;
pub(crate) mod draw;
mod error;
mod files;
#[cfg(feature = "images")]
pub(crate) mod folder;
mod images;
pub(crate) mod labels;
mod loader;
mod names;
mod produce;
#[cfg(feature = "images")]
pub(crate) mod resize;
pub(crate) mod source;
mod statistics;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod validate;

pub use arrays::Arrays;
pub use batches::Batches;
pub(crate) use change::Change;
pub(crate) use cifar::Cifar;
pub(crate) use classes::listed_classes;
pub use column::{Column, RowMut};
#[cfg(feature = "images")]
pub(crate) use decode::decode_image;
pub(crate) use draw::order;
pub(crate) use draw::{Draws, RowKey};
pub use error::DataError;
#[cfg(feature = "cli")]
pub(crate) use files::check_labels;
pub use files::{OpenOptions, open};
#[cfg(feature = "images")]
pub use folder::FolderOptions;
#[cfg(feature = "cli")]
pub(crate) use folder::left_out;
#[cfg(feature = "images")]
pub(crate) use folder::{Folder, is_image};
pub use images::{Fill, Images, Layout, Step};
pub use labels::ClassWeights;
pub(crate) use labels::{Categorical, Integer};
pub(crate) use labels::{SAMPLE_MASK, SAMPLE_WEIGHT};
pub use loader::{Batch, Loader, LoaderOptions, Position};
pub(crate) use names::CastColumns;
pub(super) use names::Ones;
pub use names::{Feed, Names};
#[cfg(feature = "images")]
pub(crate) use resize::Resize;
pub(crate) use source::split;
pub use source::{Concat, Data, Source, Stream};
pub use statistics::Statistics;
pub(crate) use table::Table;
pub use table::TableOptions;
pub(crate) use validate::{ClassRange, RowValidator};
