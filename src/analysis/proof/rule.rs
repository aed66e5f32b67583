//! The result of a proof: its rules, violations and counts.

use std::fmt;

use crate::analysis::NoClaims;
use crate::ir::NodeId;
use crate::types::Diagnostic;

/// The number of a rule of the proof; the head of the module and the book list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProofRule {
    /// Inputs and outputs.
    P1 = 1,
    /// The shards of the split.
    P2,
    /// Parameters.
    P3,
    /// Slices of replicas.
    P4,
    /// Operators of replicas.
    P5,
    /// Copies.
    P6,
    /// Merges.
    P7,
    /// The meaning of outputs.
    P8,
    /// Combinations of partial values.
    P9,
    /// Scans over the replicas.
    P10,
    /// Candidates of all replicas.
    P11,
    /// Updates of parameters.
    P12,
}

impl fmt::Display for ProofRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{}", *self as u8)
    }
}

/// A place where a replicated graph does not compute what its template does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: ProofRule,
    /// The fault.
    pub message: String,
    /// The node it concerns; `None` if it concerns the graph.
    pub node: Option<NodeId>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.rule, self.message)
    }
}

/// The reason for a missing proof.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The template itself may not be split, or is damaged.
    #[error("the template cannot be split along its batch")]
    Template(NoClaims),
    /// The graph breaks rules: all places, except those that only follow from others.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Violations(Vec<Violation>),
}

impl Diagnostic for ProofError {
    fn code(&self) -> &'static str {
        "E0310"
    }
}

/// The counts of a successful proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// The replicas.
    pub replicas: usize,
    /// Slices that give each replica its rows.
    pub slices: usize,
    /// Operators of replicas that are the template's.
    pub clones: usize,
    /// Copies from one device to another.
    pub copies: usize,
    /// Merges of all replicas' parts.
    pub merges: usize,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, slices, clones, copies, merges } = *self;
        let counted =
            |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        write!(
            f,
            "{} what the template does: {}, {}, {}, {}",
            counted(replicas, "replica computes", "replicas compute"),
            counted(slices, "slice", "slices"),
            counted(clones, "operator", "operators"),
            counted(copies, "copy", "copies"),
            counted(merges, "merge", "merges"),
        )
    }
}
