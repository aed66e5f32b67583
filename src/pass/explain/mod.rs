//! Explanations of the codes of refusals: the rule, a graph it refuses, the error that a split
//! would cause, and the remedies.

use crate::types::Code;
use crate::types::invariant::invariant;

/// The explanation of a code, as Markdown of lines that fit a terminal.
///
/// It begins with the line `# R0105: `[`headline`]. A graph behind the line `Refused:` is refused
/// with this code where no repair is allowed; one behind `Accepted:` is replicated.
/// `fanwise explain` prints it.
pub const fn explain(code: Code) -> &'static str {
    match code {
        Code::NoBatchAxis => include_str!("r0001.md"),
        Code::AmbiguousBatchAxis => include_str!("r0002.md"),
        Code::Misaligned => include_str!("r0101.md"),
        Code::SampleBySample => include_str!("r0102.md"),
        Code::WindowAxis => include_str!("r0103.md"),
        Code::BatchStatistics => include_str!("r0104.md"),
        Code::AcrossSamples => include_str!("r0105.md"),
        Code::GlobalIndex => include_str!("r0106.md"),
        Code::ControlFlow => include_str!("r0107.md"),
        Code::Reorders => include_str!("r0108.md"),
        Code::Random => include_str!("r0109.md"),
        Code::BakedBatch => include_str!("r0110.md"),
        Code::NotPerSample => include_str!("r0111.md"),
        Code::EmptyShards => include_str!("r0112.md"),
        Code::NoRule => include_str!("r0199.md"),
    }
}

/// The explanation of a code in one line, for lists.
pub fn headline(code: Code) -> &'static str {
    let first = invariant(explain(code).lines().next(), "that an explanation has a line");
    first.split_once(": ").map_or(first, |(_, text)| text)
}
