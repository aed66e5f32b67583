//! Plans: the forms of operands that a repair tries, from the cheapest on.

use super::Repair;
use crate::op::rules;
use crate::types::{Claim, Shard, TensorType};

/// A way to make the operands of a refused operator fit its split rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Each replica takes its own rows of whole operands. Nothing is exchanged.
    Rows,
    /// Partial operands are all-reduced.
    Reduce,
    /// Partial operands are all-reduced, then cut to own rows with the whole ones.
    ReduceAndRows,
    /// The operator is decomposed into several whose parts combine.
    Formula,
    /// All operands are made whole, and every replica does the work of one device.
    Gather,
}

/// The plans that a level allows, in the order in which they are tried: from those that exchange
/// nothing to gathered rows, which need the most memory and repeat all work on every replica.
pub(super) fn plans(allowed: Repair) -> &'static [Plan] {
    match allowed {
        Repair::None => &[],
        Repair::Local => &[Plan::Rows],
        Repair::Comm => {
            &[Plan::Rows, Plan::Reduce, Plan::ReduceAndRows, Plan::Formula, Plan::Gather]
        }
    }
}

impl Plan {
    /// True for a plan that cuts operands to rows.
    pub(super) fn takes_rows(self) -> bool {
        matches!(self, Self::Rows | Self::ReduceAndRows)
    }

    /// The claim that the plan gives an operand. `blocks` is the shard of another operand whose
    /// rows stand in several blocks.
    pub(super) fn claim(self, claim: Claim, ty: &TensorType, blocks: Option<Shard>) -> Claim {
        let rows = || {
            let own = rules::batch_axis(ty, 0).ok().flatten();
            // A value without a batch axis is whole everywhere already. Where the rows that it
            // meets stand in blocks, its own rows have to stand in the same blocks.
            own.map_or(Claim::Invariant, |own| match blocks {
                Some(met) if met.size() == own.size() => {
                    Claim::Shard(Shard { axis: own.axis, ..met })
                }
                _ => Claim::Shard(own),
            })
        };
        match (self, claim) {
            (_, Claim::Invariant) if self.takes_rows() => rows(),
            (Self::Reduce | Self::ReduceAndRows | Self::Gather, Claim::Partial(_))
            | (Self::Gather, Claim::Shard(_)) => Claim::Invariant,
            _ => claim,
        }
    }
}
