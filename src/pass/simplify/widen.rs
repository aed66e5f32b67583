//! Widening of sums over the batch to `f64`.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::options::SimplifyOptions;
use crate::analysis::Sums;
use crate::ir::{Graph, GraphError, NodeId, Value, Weights};
use crate::op::{Formula, Traits};
use crate::pass::PassError;
use crate::pass::repair::{Repair, RepairOptions, reaches_output, repair};
use crate::types::DType;

/// Computes in `f64` the operators that sum over the batch in the type of their elements: matrix
/// products and logarithms of sums of exponentials.
///
/// Replicas combine such parts in `f64`, so one device must not round more or overflow earlier.
/// Gradients of parameters, which no output depends on, keep their type.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    _: &SimplifyOptions,
) -> Result<(), PassError> {
    let narrow = |id: NodeId| graph.node(id).op().is_some_and(|op| op.is(Traits::SUMS_NARROW));
    if !graph.ids().any(narrow) {
        return Ok(());
    }
    // Only a repaired graph says which sums replicas combine; the repair itself is discarded.
    let sums = match repair(graph, RepairOptions::new(Repair::Comm))?.graph {
        // Nothing is combined.
        Cow::Borrowed(_) => return Ok(()),
        Cow::Owned(repaired) => Sums::find(graph, &repaired)?,
    };
    let reaches_output = reaches_output(graph, &graph.order()?);
    let combined = sums.nodes().filter(|id| reaches_output[*id] && narrow(*id));
    let combined: Vec<NodeId> = combined.collect();
    for id in combined {
        widen(graph, id)?;
    }
    Ok(())
}

/// Casts the operands to `f64` and the result back.
fn widen(graph: &mut Graph, id: NodeId) -> Result<(), GraphError> {
    let node = graph.node(id);
    let (Some(op), [result]) = (node.op().cloned(), node.results()) else { return Ok(()) };
    let result = result.clone();
    let to = result.ty.dtype;
    if !to.is_float() || to == DType::F64 {
        return Ok(());
    }
    let mut operands: SmallVec<[Value; 4]> = graph.operands(id);
    for (i, operand) in operands.iter_mut().enumerate() {
        let name = format!("{}.operand{i}.wide", result.name);
        *operand = graph.beside(id, name).convert(*operand, DType::F64)?;
    }
    let wide = graph.beside(id, format!("{}.wide", result.name)).op(op, &operands)?;
    let new = graph.beside(id, result.name).convert(wide, to)?;
    graph.replace(Value { node: id, output: 0 }, new)
}
