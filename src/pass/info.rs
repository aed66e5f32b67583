//! Names and descriptions of passes.

/// The entry of a pass in lists such as `fanwise passes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassInfo {
    /// The pass's name.
    pub name: &'static str,
    /// A description in one sentence.
    pub about: &'static str,
}
