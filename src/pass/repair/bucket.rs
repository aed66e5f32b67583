//! Sums over replicas that are made together, in buckets.

use crate::ir::{Builder, Graph, GraphError, NodeId, Origin, Value, Weights};
use crate::op::{AllReduce, Formula, Op, Traits};
use crate::types::invariant::invariant;
use crate::types::{DType, Dim};

/// Bytes at which the first bucket is full, so that the exchange begins early.
const FIRST: u64 = 1 << 20;

/// Parts of as many bytes come first in a bucket: what lies behind them is aligned for wide
/// accesses.
const WIDE: i64 = 16;

/// Values whose parts are combined alike, in the order in which they are computed.
struct Bucket {
    reduce: AllReduce,
    dtype: DType,
    /// What combines each.
    nodes: Vec<NodeId>,
    bytes: u64,
}

/// Joins the parts of values that only updates take until they have `most` bytes, and combines them
/// as one: element by element that gives the same.
pub(super) fn bucket(mut graph: Graph, most: u64) -> Result<Graph, GraphError> {
    if graph.updates().is_empty() || most == 0 {
        return Ok(graph);
    }
    graph.remove_unused();
    let mut open: Vec<Bucket> = Vec::new();
    let mut full = Vec::new();
    for id in candidates(&graph)? {
        let Some(Op::AllReduce(reduce)) = graph.node(id).op() else { continue };
        let ty = graph.ty(Value { node: id, output: 0 });
        let Some(bytes) = ty.bytes().as_const().and_then(|b| u64::try_from(b).ok()) else {
            continue;
        };
        let at = open.iter().position(|b| b.reduce == *reduce && b.dtype == ty.dtype);
        let at = at.unwrap_or_else(|| {
            let (reduce, dtype) = (reduce.clone(), ty.dtype);
            open.push(Bucket { reduce, dtype, nodes: Vec::new(), bytes: 0 });
            open.len() - 1
        });
        open[at].nodes.push(id);
        open[at].bytes = open[at].bytes.saturating_add(bytes);
        let limit = if full.is_empty() { most.min(FIRST) } else { most };
        if open[at].bytes >= limit {
            full.push(open.remove(at));
        }
    }
    full.append(&mut open);
    full.retain(|bucket| bucket.nodes.len() > 1);
    let mut b = Builder::over(graph, Weights::default());
    for bucket in full {
        write(&mut b, bucket)?;
    }
    let (mut graph, _) = b.finish();
    graph.remove_unused();
    Ok(graph)
}

/// What combines parts for updates alone, in the order in which the parts are computed.
fn candidates(graph: &Graph) -> Result<Vec<NodeId>, GraphError> {
    let order = graph.order()?;
    let mut position = vec![0; graph.id_bound()];
    order.iter().enumerate().for_each(|(i, id)| position[id.index()] = i);
    // What an output needs, or something that replicas exchange.
    let mut early = vec![false; graph.id_bound()];
    graph.outputs().iter().for_each(|output| early[output.value.node.index()] = true);
    let mut found = Vec::new();
    for id in order.iter().rev() {
        let exchanges =
            |user: NodeId| graph.node(user).op().is_some_and(|op| op.is(Traits::COLLECTIVE));
        let users = graph.users(*id);
        early[id.index()] |= users.iter().any(|(user, ..)| early[user.index()] || exchanges(*user));
        let reduces = matches!(graph.node(*id).op(), Some(Op::AllReduce(_)));
        if let (true, false, [part]) = (reduces, early[id.index()], &*graph.operands(*id)) {
            found.push((position[part.node.index()], *id));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, id)| id).collect())
}

/// Writes one bucket, and gives its pieces to what took the values.
fn write(b: &mut Builder, bucket: Bucket) -> Result<(), GraphError> {
    let of = |id: NodeId| Value { node: id, output: 0 };
    let bytes = |id: &NodeId| {
        let bytes = b.graph().ty(of(*id)).bytes().as_const();
        invariant(bytes, "that what buckets hold has a fixed size")
    };
    let (mut nodes, narrow): (Vec<NodeId>, Vec<NodeId>) =
        bucket.nodes.iter().partition(|id| bytes(id) % WIDE == 0);
    nodes.extend(narrow);
    let mut parts = Vec::with_capacity(nodes.len());
    for id in &nodes {
        let Some(part) = b.graph().operands(*id).first().copied() else { continue };
        let (name, shape) = (b.graph().info(part).name.clone(), b.graph().ty(part).shape.clone());
        b.set_origin(b.graph().node(part.node).origin().clone());
        parts.push(match shape.len() {
            1 => part,
            _ => b.named(&format!("{name}.flat")).view(part, vec![shape.elements()])?,
        });
    }
    b.set_origin(Origin::default());
    let joined = b.named("bucket").concat(&parts, 0)?;
    let name = format!("{}.all", b.graph().info(joined).name);
    let all = b.op(&name, bucket.reduce, &[joined])?;
    let mut from = Dim::ZERO;
    for id in nodes {
        let old = of(id);
        let (name, shape) = (b.graph().info(old).name.clone(), b.graph().ty(old).shape.clone());
        b.set_origin(b.graph().node(id).origin().clone());
        let to = from.clone() + shape.elements();
        let piece = b.named(&format!("{name}.flat")).rows(all, 0, from, to.clone())?;
        let shape = shape.to_vec();
        let new = match shape.len() {
            1 => piece,
            _ => b.named(&format!("{name}.own")).view(piece, shape)?,
        };
        b.replace(old, new)?;
        from = to;
    }
    Ok(())
}
