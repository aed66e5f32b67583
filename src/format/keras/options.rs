use std::collections::BTreeMap;

/// What a model is built with.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuildOptions {
    /// The numbers of sizes that inputs leave open beside the batch, as `INPUT[AXIS]`.
    pub(crate) sizes: BTreeMap<String, i64>,
    /// The sizes that are symbols, in the order of the symbols.
    pub(crate) symbols: Vec<String>,
    /// Whether the model is to be trained.
    pub(crate) for_training: bool,
    /// Whether the file is of a version before 3, in which some defaults were others.
    pub(crate) is_before_3: bool,
}
