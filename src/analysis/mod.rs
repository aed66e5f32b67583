//! What can be known of a graph without running it.

mod claims;
mod index_range;
mod proof;
mod random;
mod summary;
mod sums;

pub(crate) use claims::is_local;
pub(crate) use claims::survey;
pub use claims::{ClaimMap, NoClaims, Refused, claims, judge};
pub(crate) use index_range::index_ranges;
pub use proof::{Proof, ProofError, ProofRule, Violation, prove};
pub use random::random_inputs;
pub use summary::{Summary, SummaryRow, summary};
pub use sums::{Sums, Unexplained};
