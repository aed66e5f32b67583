//! Folding of sizes: integers computed from shapes become constants or formulas of `N`.

use super::options::SimplifyOptions;
use crate::ir::{Graph, NodeId, NodeKind, ResultInfo, Value, Weights};
use crate::op::{Constant, Dims, Formula, Op, Traits, infer};
use crate::pass::PassError;
use crate::types::{DType, Dim};

/// Replaces every value whose integer elements are known by a `constant`, or by `dims` where they
/// depend on the batch size. Sizes then no longer depend on the values whose shapes they came from,
/// and replicas need not follow that arithmetic.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    _: &SimplifyOptions,
) -> Result<(), PassError> {
    for id in graph.order()? {
        let node = graph.node(id);
        let NodeKind::Op(op) = node.kind() else { continue };
        let [result] = node.results() else { continue };
        let value = Value { node: id, output: 0 };
        // The nodes that this pass writes are in their final form: a second run changes nothing.
        if matches!(**op, Op::Constant(_) | Op::Dims(_))
            || is_cast_of_dims(graph, id)
            || !graph.is_used(value)
        {
            continue;
        }
        let Some(known) = known(result) else { continue };
        let (name, to) = (result.name.clone(), result.ty.dtype);
        let new = if known.known().is_none() && to != DType::I64 {
            let dims = graph.beside(id, format!("{name}.dims")).op(known, &[])?;
            graph.beside(id, name).convert(dims, to)?
        } else {
            graph.beside(id, name).op(known, &[])?
        };
        graph.replace(value, new)?;
    }
    graph.remove_unused();
    Ok(())
}

/// True for a cast of `dims`: the form that this pass gives formulas of other types than `i64`.
fn is_cast_of_dims(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).op().is_some_and(|op| op.is(Traits::CONVERTS))
        && graph.operands(id).iter().all(|v| matches!(graph.node(v.node).op(), Some(Op::Dims(_))))
}

/// The operator that gives the result's known elements; formulas as `i64`.
fn known(result: &ResultInfo) -> Option<Op> {
    let ints = result.ints.as_ref()?;
    if ints.iter().all(Dim::is_const) {
        let value = infer::constant(&result.ty, ints)?;
        return Some(Constant { value }.into());
    }
    let rank = result.ty.rank();
    (rank <= 1).then(|| Dims { values: ints.to_vec(), scalar: rank == 0 }.into())
}
