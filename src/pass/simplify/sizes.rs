use smallvec::smallvec;

use super::SimplifyOptions;
use crate::ir::{Graph, NodeId, NodeKind, ResultInfo, Value, Weights};
use crate::op::{Cast, Constant, Dims, Op};
use crate::pass::PassError;
use crate::types::{DType, Dim, Tensor};

/// Replaces every value whose integer elements are known by a `constant`, or by `dims` where they depend on
/// the batch size: what was computed from shapes then no longer depends on the values that had them.
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
    let dims = result.ty.shape.as_const()?;
    if let Some(values) = ints.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() {
        let tensor = integers(result.ty.dtype, &dims, &values)?;
        return Some(Constant { value: tensor }.into());
    }
    (dims.len() <= 1).then(|| Dims { values: ints.to_vec(), scalar: dims.is_empty() }.into())
}

/// The tensor of integers (or `bool`) with these elements, if they fit its type.
fn integers(dtype: DType, dims: &[usize], values: &[i64]) -> Option<Tensor> {
    macro_rules! narrow {
        ($t:ty) => {{
            let values = values.iter().map(|v| <$t>::try_from(*v)).collect::<Result<Vec<$t>, _>>();
            Tensor::new::<$t>(dims, &values.ok()?).ok()
        }};
    }
    match dtype {
        DType::I64 => narrow!(i64),
        DType::I32 => narrow!(i32),
        DType::I16 => narrow!(i16),
        DType::I8 => narrow!(i8),
        DType::U64 => narrow!(u64),
        DType::U32 => narrow!(u32),
        DType::U16 => narrow!(u16),
        DType::U8 => narrow!(u8),
        DType::Bool => narrow!(u8).map(|t| t.reinterpreted(DType::Bool)),
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => None,
    }
}
