//! Options of simplification.

/// What simplification may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimplifyOptions {
    /// The largest total size of folded constants in bytes; operators beyond it are not folded.
    pub max_bytes: u64,
    /// Keeps dropout and operators on parameters, which training needs.
    pub for_training: bool,
    /// Simplifications that are left out, by the names that `fanwise passes` lists; other names
    /// have no effect.
    pub without: Vec<String>,
}

impl Default for SimplifyOptions {
    /// 4 GiB.
    fn default() -> Self {
        Self { max_bytes: 4 << 30, for_training: false, without: Vec::new() }
    }
}
