//! What may be simplified.

/// What simplification may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimplifyOptions {
    /// The bytes that folded constants may take in all; operators beyond stay.
    pub max_bytes: u64,
    /// Whether what training needs stays: dropout, and operators on parameters.
    pub for_training: bool,
}

impl Default for SimplifyOptions {
    /// 4 GiB.
    fn default() -> Self {
        Self { max_bytes: 4 << 30, for_training: false }
    }
}
