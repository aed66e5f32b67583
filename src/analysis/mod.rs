//! Static analyses: facts about a graph that need no run.

mod claims;
mod index_range;
mod proof;
mod random;
mod summary;
mod sums;

pub use claims::{ClaimMap, NoClaims, Refused, claims, is_local, judge, survey};
pub use index_range::index_ranges;
pub use proof::{Proof, ProofError, ProofRule, Violation, prove};
pub use random::random_inputs;
pub use summary::{Summary, SummaryRow, summary};
pub use sums::{Sums, Unexplained};
