//! Static analyses: facts about a graph that need no run.

pub(crate) mod agree;
mod apart;
pub(crate) mod claims;
mod index_range;
mod proof;
pub(crate) mod random;
pub(crate) mod summary;
pub(crate) mod sums;

pub(crate) use agree::agree;
pub(crate) use apart::{rows_are_apart, rows_are_apart_on};
pub(crate) use claims::claims_over;
pub(crate) use claims::judge;
pub(crate) use claims::survey;
pub use claims::{ClaimMap, NoClaims, Refused, claims};
pub(crate) use index_range::may_look_beyond;
pub use proof::{Proof, ProofError, ProofRule, Violation, prove};
pub(crate) use random::random_inputs;
pub(crate) use summary::summary;
pub(crate) use sums::{Sums, Unexplained};
