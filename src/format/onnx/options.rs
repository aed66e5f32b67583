//! Options of the ONNX import.

use std::collections::BTreeMap;

use crate::op::Assume;
use crate::types::Tensor;

/// Settings for a model that its file leaves open.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The inputs that carry the batch, and on which axis; empty to find them. Where it is given,
    /// no other input carries the batch, save where a size has the same name.
    pub batch_axis: BTreeMap<String, usize>,
    /// The values of sizes that the file leaves open, by name; a size without a name is
    /// `INPUT[AXIS]`.
    pub dims: BTreeMap<String, i64>,
    /// The values of inputs, by name: constants in place of inputs of a run. Small ones may say
    /// sizes, and decide which branch of the graph is taken.
    pub set: BTreeMap<String, Tensor>,
    /// Whether a constant batch size of the inputs becomes the batch: that of the axes in
    /// `batch_axis`; without these the leading size of the first input that has an axis, and each
    /// equal size that the graph equates with it. Numbers inside the graph follow where the flow of
    /// the batch proves that they stand for it; one that may stand for it, and is not proved to, is
    /// an error.
    pub free_batch: bool,
    /// The open sizes that stay symbols in a graph for people, by name, with the number that each
    /// has where the graph is run. With any, `batch_axis` says the batch.
    pub symbols: BTreeMap<String, i64>,
    /// What is assumed of operators that are not ONNX's own, by domain and name, `com.acme.Gate`:
    /// they become [`External`](crate::op::External), with the types that the file declares for
    /// their results. A function of the model of this name is still expanded.
    pub assume: BTreeMap<String, Assume>,
    /// The bytes that the file and its tensors may take.
    pub max_memory: u64,
}

impl Default for ImportOptions {
    /// Nothing is said, and memory is bounded at 16 GiB.
    fn default() -> Self {
        Self {
            batch_axis: BTreeMap::new(),
            dims: BTreeMap::new(),
            set: BTreeMap::new(),
            free_batch: false,
            symbols: BTreeMap::new(),
            assume: BTreeMap::new(),
            max_memory: 16 << 30,
        }
    }
}
