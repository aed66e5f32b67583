//! Sums over the batch that are computed in a wider type than that of their elements.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::SimplifyOptions;
use crate::analysis::Sums;
use crate::ir::{Graph, GraphError, NodeId, Value, Weights};
use crate::op::{Cast, Op, Reduce};
use crate::pass::PassError;
use crate::pass::repair::{Repair, repair, seen};
use crate::types::DType;

/// Computes in `f64` what sums over the batch inside an operator that computes in the type of its
/// elements: products of matrices and logarithms of sums of exponentials. Replicas combine such
/// parts in `f64`, so one device must not round more or overflow earlier. Gradients of parameters,
/// which no output depends on, stay as they are.
pub(super) fn run(graph: &mut Graph, _: &mut Weights, _: SimplifyOptions) -> Result<(), PassError> {
    let narrow = |id: NodeId| graph.node(id).op().is_some_and(is_narrow);
    if !graph.ids().any(narrow) {
        return Ok(());
    }
    let sums = match repair(graph, Repair::Comm)? {
        // Nothing is combined.
        (Cow::Borrowed(_), _) => return Ok(()),
        (Cow::Owned(repaired), _) => Sums::find(graph, &repaired)?,
    };
    let seen = seen(graph, &graph.order()?);
    let combined = sums.nodes().filter(|id| seen[id.index()] && narrow(*id));
    let combined: Vec<NodeId> = combined.collect();
    for id in combined {
        widen(graph, id)?;
    }
    Ok(())
}

/// True of an operator that computes in the type of its elements.
fn is_narrow(op: &Op) -> bool {
    matches!(
        op,
        Op::MatMul(_)
            | Op::Gemm(_)
            | Op::Einsum(_)
            | Op::ConvWeightGrad(_)
            | Op::Reduce(Reduce::LogSumExp { .. })
    )
}

fn widen(graph: &mut Graph, id: NodeId) -> Result<(), GraphError> {
    let node = graph.node(id);
    let (Some(op), [result]) = (node.op().cloned(), node.results()) else { return Ok(()) };
    let (place, origin, result) = (node.place(), node.origin().clone(), result.clone());
    let to = result.ty.dtype;
    if !to.is_float() || to == DType::F64 {
        return Ok(());
    }
    let add = |graph: &mut Graph, op: Op, operands: &[Value], name: Arc<str>| {
        let node = graph.add(op, operands, &[name], place, origin.clone())?;
        Ok::<_, GraphError>(Value { node, output: 0 })
    };
    let mut operands: SmallVec<[Value; 4]> = graph.operands(id);
    for (i, operand) in operands.iter_mut().enumerate() {
        let name = format!("{}.operand{i}.wide", result.name).into();
        *operand = add(graph, Cast { to: DType::F64 }.into(), &[*operand], name)?;
    }
    let wide = add(graph, op, &operands, format!("{}.wide", result.name).into())?;
    let old = Value { node: id, output: 0 };
    let new = add(graph, Cast { to }.into(), &[wide], result.name)?;
    graph.replace(old, new)
}
