//! Simplification of a template: constant folding, removal of identities and dead code, and the
//! rewrites that keep the batch on an axis of its own.
//!
//! The passes keep the names of inputs and outputs, and the value of every output and update for
//! all inputs and variables.

mod equal;
mod fold;
mod identity;
mod options;
mod pads;
mod positions;
mod rows;
mod sizes;
mod widen;

pub(super) use identity::remove_identities;
pub(crate) use identity::without_training;
pub use options::SimplifyOptions;

use super::{PassError, PassInfo};
use crate::ir::{Graph, Weights};

/// One simplification.
pub(super) struct Simplification {
    pub(super) info: PassInfo,
    run: fn(&mut Graph, &mut Weights, &SimplifyOptions) -> Result<(), PassError>,
}

/// All simplifications, in the order in which they run: sizes first, as folded shapes let later
/// passes see constants and the batch; dead code last, as every other pass leaves some.
pub(super) const PASSES: &[Simplification] = &[
    Simplification {
        info: PassInfo {
            name: "fold_sizes",
            about: "replaces integers computed from shapes by the formulas that they are",
        },
        run: sizes::run,
    },
    Simplification {
        info: PassInfo {
            name: "unmerge_rows",
            about: "keeps the batch on a separate axis through a matrix product",
        },
        run: rows::run,
    },
    Simplification {
        info: PassInfo {
            name: "localize_lookups",
            about: "looks up entries within the row that their numbers are computed from",
        },
        run: positions::run,
    },
    Simplification {
        info: PassInfo {
            name: "fold_constants",
            about: "evaluates what depends only on constants and on parameters without an update",
        },
        run: fold::run,
    },
    Simplification {
        info: PassInfo {
            name: "remove_identities",
            about: "removes operators that return their operand unchanged",
        },
        run: identity::run,
    },
    Simplification {
        info: PassInfo {
            name: "fold_pads",
            about: "leaves padding to the convolution or the pooling that takes the padded value",
        },
        run: pads::run,
    },
    Simplification {
        info: PassInfo {
            name: "merge_equal",
            about: "computes once what several operators compute alike",
        },
        run: equal::run,
    },
    Simplification {
        info: PassInfo {
            name: "widen_sums",
            about: "computes in f64 the products and logarithms that sum over the batch",
        },
        run: widen::run,
    },
    Simplification {
        info: PassInfo {
            name: "remove_unused",
            about: "removes operators and parameters that no output and no update depends on",
        },
        run: |graph, weights, _| {
            // Dead code first as well: no pass should spend time or memory on it.
            remove_unused(graph, weights);
            Ok(())
        },
    },
];

/// Simplifies a template and the elements of its parameters in place.
///
/// Elsewhere: algebraic simplifier (XLA); canonicalization (MLIR); constant folding (ONNX).
pub fn simplify(
    graph: &mut Graph,
    weights: &mut Weights,
    options: &SimplifyOptions,
) -> Result<(), PassError> {
    remove_unused(graph, weights);
    let is_left_out = |name: &str| options.without.iter().any(|pass| pass == name);
    PASSES
        .iter()
        .filter(|pass| !is_left_out(pass.info.name))
        .try_for_each(|pass| (pass.run)(graph, weights, options))
}

/// Removes dead operators, and the elements of parameters that are left without one.
fn remove_unused(graph: &mut Graph, weights: &mut Weights) {
    graph.remove_unused();
    let used: std::collections::HashSet<&str> = graph.params().iter().map(|p| &*p.name).collect();
    weights.retain(|name| used.contains(name));
}
