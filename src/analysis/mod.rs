//! What can be known of a graph without running it.

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
