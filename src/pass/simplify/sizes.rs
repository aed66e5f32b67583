use smallvec::smallvec;

use super::SimplifyOptions;
use crate::ir::{Graph, NodeId, NodeKind, ResultInfo, Value, Weights};
use crate::op::{Cast, Constant, Dims, Op, infer};
use crate::pass::PassError;
use crate::types::{DType, Dim};

/// Replaces every value whose integer elements are known by a `constant`, or by `dims` where they
/// depend on the batch size: what was computed from shapes then no longer depends on the values
/// that had them.
pub(super) fn run(graph: &mut Graph, _: &mut Weights, _: SimplifyOptions) -> Result<(), PassError> {
    for id in graph.order()? {
        let node = graph.node(id);
        let NodeKind::Op(op) = node.kind() else { continue };
        let [result] = node.results() else { continue };
        let value = Value { node: id, output: 0 };
        if matches!(op, Op::Constant(_) | Op::Dims(_))
            || is_cast_of_dims(graph, id)
            || !graph.is_used(value)
        {
            continue;
        }
        let Some(known) = known(result) else { continue };
        let (place, origin, result) = (node.place(), node.origin().clone(), result.clone());
        let to = result.ty.dtype;
        let new = if matches!(known, Op::Dims(_)) && to != DType::I64 {
            let name = format!("{}.dims", result.name).into();
            let dims = graph.add(known, &[], &[name], place, origin.clone())?;
            let operand = Value { node: dims, output: 0 };
            graph.add_typed(Cast { to }.into(), &[operand], smallvec![result], place, origin)
        } else {
            graph.add_typed(known, &[], smallvec![result], place, origin)
        };
        graph.replace(value, Value { node: new, output: 0 })?;
    }
    graph.remove_unused();
    Ok(())
}

/// True of what this pass makes of formulas in other types than `i64`.
fn is_cast_of_dims(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).op(), Some(Op::Cast(_)))
        && graph.operands(id).iter().all(|v| matches!(graph.node(v.node).op(), Some(Op::Dims(_))))
}

/// The operator that gives the result's known elements, as `i64` where they are formulas.
fn known(result: &ResultInfo) -> Option<Op> {
    let ints = result.ints.as_ref()?;
    if ints.iter().all(Dim::is_const) {
        let value = infer::constant(&result.ty, ints)?;
        return Some(Constant { value }.into());
    }
    let rank = result.ty.rank();
    (rank <= 1).then(|| Dims { values: ints.to_vec(), scalar: rank == 0 }.into())
}
