//! What can be known of a graph without running it.

pub(crate) mod claims;
mod index_range;
mod proof;
pub(crate) mod random;
pub(crate) mod summary;
pub(crate) mod sums;

pub(crate) use claims::judge;
pub(crate) use claims::survey;
pub use claims::{ClaimMap, NoClaims, Refused, claims};
pub use proof::{Proof, ProofError, ProofRule, Violation, prove};
pub(crate) use random::random_inputs;
pub(crate) use summary::summary;
pub(crate) use sums::{Sums, Unexplained};
