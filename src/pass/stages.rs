//! Stages of a graph on its way to replicas, as types: repaired, replicated, proven. A
//! [`Proven`] graph exists only with its proof.

use std::borrow::Cow;
use std::ops::Deref;

use super::PassError;
use super::repair::{self, AppliedRepair, BatchStatistics, Repair, RepairOptions};
use super::replicate::{self, Replicate};
use crate::analysis::{self, ClaimMap, Proof, ProofError};
use crate::ir::{Graph, GraphError, Verified};

/// Repairs a graph so that it may be split along the batch, as far as the options allow: a level
/// ([`Repair`]) or [`RepairOptions`]. Operators that no allowed repair helps stay as they are.
///
/// The result computes what the template does, except where the options choose local or ghost
/// statistics for batch normalisation.
///
/// # Errors
/// If the graph is damaged.
pub fn repair(
    template: &Graph,
    options: impl Into<RepairOptions>,
) -> Result<Repaired<'_>, GraphError> {
    let repair::Outcome { graph, done, claims } = repair::repair(template, options.into())?;
    Ok(Repaired { template, graph, repairs: done, claims })
}

/// Repairs a graph for so many replicas: one has all rows and needs no repair, unless groups of
/// rows are asked for.
pub(crate) fn repair_for(
    template: &Graph,
    replicas: usize,
    options: RepairOptions,
) -> Result<Repaired<'_>, GraphError> {
    let is_ghost = matches!(options.batch_norm, Some(BatchStatistics::Ghost(_)));
    if replicas == 1 && !is_ghost {
        let (graph, repairs) = (Cow::Borrowed(template), Vec::new());
        return Ok(Repaired { template, graph, repairs, claims: None });
    }
    repair(template, options)
}

/// Repairs a graph as `options` allow, and replicates it: [`repair()`], then
/// [`Repaired::replicate`].
///
/// # Errors
/// If the devices are wrong, or the graph may not be split: every operator that forbids it.
///
/// Elsewhere: SPMD partitioner (XLA); data parallelism (PyTorch); `multi_gpu_model` (Keras).
pub fn replicate(template: &Graph, options: &Replicate) -> Result<Graph, PassError> {
    repair(template, options.repair)?.replicate(options)
}

/// A template with its repairs: the graph that replicas are written from, and that they are proved
/// against.
#[derive(Clone, Debug)]
pub struct Repaired<'g> {
    template: &'g Graph,
    graph: Cow<'g, Graph>,
    repairs: Vec<AppliedRepair>,
    /// The claims of the graph, where the repair found that it needs none.
    claims: Option<ClaimMap>,
}

impl<'g> Repaired<'g> {
    /// The graph after its repairs: the template itself if it needs none.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The repairs that were applied.
    pub fn repairs(&self) -> &[AppliedRepair] {
        &self.repairs
    }

    /// The graph after its repairs.
    pub fn into_graph(self) -> Cow<'g, Graph> {
        self.graph
    }

    /// Writes the replicas. Refusals name operators of the template; `options.repair` is not used,
    /// as the graph is repaired already.
    ///
    /// # Errors
    /// If the devices are wrong, or the graph may not be split: every operator that forbids it.
    pub fn replicate(&self, options: &Replicate) -> Result<Graph, PassError> {
        replicate::write(self.template, &self.graph, self.claims.as_ref(), options)
    }

    /// Proves that a graph computes what the template does, for every batch.
    ///
    /// # Errors
    /// If it does not: every place where a rule of the proof is broken.
    pub fn prove<'v>(&self, replicated: Verified<'v>) -> Result<Proven<'v>, ProofError> {
        let proof = analysis::prove(&self.graph, &replicated)?;
        Ok(Proven { graph: replicated, proof })
    }
}

/// A replicated graph with the proof that it computes what its template does; only
/// [`Repaired::prove`] constructs one.
#[derive(Clone, Debug)]
pub struct Proven<'g> {
    graph: Verified<'g>,
    proof: Proof,
}

impl Proven<'_> {
    /// The counts of the proof.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }
}

impl<'g> Deref for Proven<'g> {
    type Target = Verified<'g>;

    fn deref(&self) -> &Verified<'g> {
        &self.graph
    }
}

impl From<Repair> for RepairOptions {
    fn from(allowed: Repair) -> Self {
        Self::new(allowed)
    }
}
