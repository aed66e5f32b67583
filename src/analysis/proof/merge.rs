//! Rules P7 and P9 to P11 of the proof: nodes that take the parts of all replicas.
//!
//! Every rule first asks [`Relation::all_parts`] for the one value of the template of which its
//! operands are the parts, then compares the operator with the claim of that value.

use super::relate::{Broken, Meaning, Relation, Results};
use super::rule::ProofRule;
use crate::ir::Value;
use crate::op::{AllReduce, ExclusiveScan, MergeTopK, Op};
use crate::types::Claim;

impl Relation<'_, '_> {
    /// The value of the template whose parts of all replicas these are, in order.
    ///
    /// # Errors
    /// If a part is missing, repeated, out of order, or of another value.
    fn all_parts(&self, parts: &[Meaning]) -> Result<Value, Broken> {
        let broken = |reason: String| Err((ProofRule::P7, reason));
        let Some(value) = parts.first().map(|m| self.template.canonical(m.value)) else {
            return broken("merges nothing".to_owned());
        };
        if parts.len() != self.split.replicas() {
            let (parts, replicas) = (parts.len(), self.split.replicas());
            return broken(format!("merges {parts} parts of {replicas} replicas"));
        }
        for (i, part) in (0u32..).zip(parts) {
            if self.template.canonical(part.value) != value {
                return broken(format!("part {i} and part 0 belong to different values"));
            }
            // A whole value that no row changes is also each replica's part: `first` takes it from
            // anywhere.
            let own = part.replica.is_none() && self.template.claim(part.value) == Claim::Invariant;
            if part.replica != Some(i) && !own {
                return broken(format!("part {i} is not that of replica {i}"));
            }
        }
        Ok(value)
    }

    /// Rule P7 for a concatenation of rows on the axis `joined`.
    pub(super) fn concat(&mut self, joined: i64, parts: &[Meaning]) -> Result<Meaning, Broken> {
        let value = self.all_parts(parts)?;
        match self.template.shard(value) {
            // Rows in several blocks interleave: one block of each replica after the other would
            // reorder them.
            Some(shard) if shard.outer > 1 => {
                let reason = format!("joins rows of {} blocks as if they were one", shard.outer);
                return Err((ProofRule::P7, reason));
            }
            Some(shard) if i64::try_from(shard.axis) == Ok(joined) => {}
            Some(shard) => {
                let reason =
                    format!("joins rows on axis {joined}; the batch is on axis {}", shard.axis);
                return Err((ProofRule::P7, reason));
            }
            None => {
                let reason = "joins copies of a value that has no rows".to_owned();
                return Err((ProofRule::P7, reason));
            }
        }
        Ok(self.whole(value))
    }

    /// Rule P7 for `first`: all replicas must hold the same value.
    pub(super) fn first(&mut self, parts: &[Meaning]) -> Result<Meaning, Broken> {
        let value = self.all_parts(parts)?;
        if self.template.claim(value) != Claim::Invariant {
            return Err((ProofRule::P7, "takes what one replica holds for the whole".to_owned()));
        }
        Ok(self.whole(value))
    }

    /// Rule P9: the parts combine as the claim says, weighted by the replicas' rows.
    pub(super) fn all_reduce(
        &mut self,
        reduce: &AllReduce,
        parts: &[Meaning],
    ) -> Result<Meaning, Broken> {
        let value = self.all_parts(parts)?;
        let broken = |reason: String| Err((ProofRule::P9, reason));
        match self.template.claim(value) {
            Claim::Partial(by) if by == reduce.by => {}
            claim @ (Claim::Invariant
            | Claim::Shard(_)
            | Claim::Partial(_)
            | Claim::Own
            | Claim::Mixed) => {
                let by = reduce.by.name();
                return broken(format!("combines by {by} the parts of a value that is {claim}"));
            }
        }
        if reduce.rows != self.template.rows() {
            return broken("weights the parts by rows other than those of the replicas".to_owned());
        }
        Ok(self.whole(value))
    }

    /// Rule P10: the result of each replica comes from the rows before its own, as in the template.
    pub(super) fn exclusive_scan(
        &mut self,
        scan: &ExclusiveScan,
        parts: &[Meaning],
    ) -> Result<Results, Broken> {
        let value = self.all_parts(parts)?;
        let known = self.template.with_operands(&[value]).iter().find(|id| {
            let op = self.template.graph.node(**id).op();
            matches!(op, Some(Op::ExclusiveScan(known))
                if (known.by, known.reverse) == (scan.by, scan.reverse))
        });
        let broken = |reason: &str| Err((ProofRule::P10, reason.to_owned()));
        let Some(known) = known.copied() else {
            return broken("scans a value that the template does not scan in this way");
        };
        if self.template.claim(Value { node: known, output: 0 }) != Claim::Own {
            return broken("scans what every replica holds whole");
        }
        if scan.rows != self.template.rows() {
            return broken("takes rows other than those of the replicas");
        }
        self.proof.merges += 1;
        Ok(Results::Each(known))
    }

    /// Rule P11: the best of all replicas' candidates, where the template takes them.
    pub(super) fn merge_top_k(
        &mut self,
        merge: &MergeTopK,
        parts: &[Meaning],
    ) -> Result<Results, Broken> {
        // Operands alternate: the values and the positions of replica 0, those of replica 1, and so
        // on.
        let every = |of: usize| parts.iter().skip(of).step_by(2).copied().collect::<Vec<_>>();
        let (values, places) = (self.all_parts(&every(0))?, self.all_parts(&every(1))?);
        let graph = self.template.graph;
        let known = self.template.with_operands(&[values, places]).iter().find(|id| {
            let Some(Op::MergeTopK(known)) = graph.node(**id).op() else { return false };
            let [entries] = &*known.entries else { return false };
            // On one device the merge knows the entries of the whole batch; here it must
            // know each replica's.
            let own = self.template.rows().iter().map(|rows| entries.at_rows(rows));
            let parts = MergeTopK { entries: own.collect(), ..known.clone() };
            parts == *merge
        });
        let known = known.copied().filter(|_| self.template.claim(values) == Claim::Own);
        let Some(known) = known else {
            let reason = "merges candidates that the template does not merge in this way";
            return Err((ProofRule::P11, reason.to_owned()));
        };
        self.proof.merges += 1;
        Ok(Results::Whole(known))
    }

    /// The meaning of a merge: the whole of the value whose parts it takes. Counts the merge.
    fn whole(&mut self, value: Value) -> Meaning {
        self.proof.merges += 1;
        Meaning { value: self.template.undistributed(value), replica: None }
    }
}
