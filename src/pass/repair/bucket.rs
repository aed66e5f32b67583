//! Messages of many values: all-reduces of gradients joined so that each exchange is large, and
//! those of statistics that replicas can send together.

use crate::ir::{Builder, Graph, GraphError, NodeId, NodeMap, Origin, Value, Weights};
use crate::op::{AllReduce, Formula, Op, Traits};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape};

/// The size of the first bucket in bytes, 1 MiB: the exchange begins while most gradients are still
/// being computed.
const FIRST: u64 = 1 << 20;

/// The alignment in bytes of vector accesses. Parts of a multiple of it come first in a bucket, so
/// that each of them begins aligned.
const WIDE: i64 = 16;

/// The bytes of a value up to which latency alone bounds its exchange.
const SMALL: i64 = 1 << 16;

/// Values that the same all-reduce combines, in the order in which their parts are computed.
struct Bucket {
    reduce: AllReduce,
    dtype: DType,
    /// The all-reduce of each value.
    nodes: Vec<NodeId>,
    bytes: u64,
}

impl Bucket {
    fn new(reduce: AllReduce, dtype: DType, first: NodeId) -> Self {
        Self { reduce, dtype, nodes: vec![first], bytes: 0 }
    }
}

/// Concatenates the parts of values that only updates take into buckets of `most` bytes, and
/// all-reduces each bucket; and the parts of small values that are sent together. Each element, or
/// each number in components, is reduced as before, so that results keep their bits.
pub(super) fn bucket(mut graph: Graph, most: u64) -> Result<Graph, GraphError> {
    if graph.updates().is_empty() || most == 0 {
        return Ok(graph);
    }
    graph.remove_unused();
    let mut open: Vec<Bucket> = Vec::new();
    let mut full = Vec::new();
    for id in candidates(&graph)? {
        let Some(Op::AllReduce(reduce)) = graph.node(id).op() else { continue };
        // Updates take no numbers in components.
        if reduce.by.is_wide() {
            continue;
        }
        let ty = graph.ty(Value { node: id, output: 0 });
        // A size that depends on the batch is no parameter's, and has no place in a bucket.
        let Some(bytes) = ty.bytes().as_const().and_then(|b| u64::try_from(b).ok()) else {
            continue;
        };
        // One bucket for each kind of reduction and element type: only such parts concatenate.
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
    full.append(&mut together(&graph)?);
    // A bucket of one value would add two copies and save nothing.
    full.retain(|bucket| bucket.nodes.len() > 1);
    let mut b = Builder::over(graph, Weights::default());
    for bucket in full {
        write(&mut b, bucket)?;
    }
    let (mut graph, _) = b.finish();
    graph.remove_unused();
    Ok(graph)
}

/// The small values that replicas send together: those that equally many exchanges precede, of
/// which none depends on another, and none waits for an exchange that it would not wait for alone.
/// So do the statistics of the branches of a block.
fn together(graph: &Graph) -> Result<Vec<Bucket>, GraphError> {
    let order = graph.order()?;
    let early = early(graph, &order);
    let mut depth = graph.node_map(0usize);
    let mut found: Vec<((usize, Dim), Bucket)> = Vec::new();
    for id in order {
        let operands = graph.operands(id);
        // Nothing precedes what has no operands.
        let before = operands.iter().map(|v| depth[v.node]).max().unwrap_or(0);
        depth[id] = before + usize::from(early[id] && exchanges(graph, id));
        let (Some(Op::AllReduce(reduce)), [part]) = (graph.node(id).op(), &*operands) else {
            continue;
        };
        let ty = graph.ty(*part);
        let small = ty.bytes().as_const().is_some_and(|bytes| bytes <= SMALL);
        // Numbers in components are joined as they are: no other shape keeps components apart.
        let wide = reduce.by.is_wide();
        if !early[id] || !small || (wide && ty.rank() != 2) {
            continue;
        }
        let components = if wide { ty.shape[0].clone() } else { Dim::ONE };
        let alike = |own: &Bucket| (&own.reduce, own.dtype) == (reduce, ty.dtype);
        let level = (before, components);
        match found.iter_mut().find(|(own, bucket)| *own == level && alike(bucket)) {
            Some((_, bucket)) => bucket.nodes.push(id),
            None => found.push((level, Bucket::new(reduce.clone(), ty.dtype, id))),
        }
    }
    Ok(found.into_iter().map(|(_, bucket)| bucket).collect())
}

/// True for an operator that joins values of all replicas.
fn exchanges(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).op().is_some_and(|op| op.is(Traits::COLLECTIVE))
}

/// The nodes that an output or an exchange needs: waiting for a bucket would delay these.
fn early(graph: &Graph, order: &[NodeId]) -> NodeMap<bool> {
    let mut early = graph.node_map(false);
    graph.outputs().iter().for_each(|output| early[output.value.node] = true);
    for id in order.iter().rev() {
        let users = graph.users(*id);
        early[*id] |= users.iter().any(|(user, ..)| early[*user] || exchanges(graph, *user));
    }
    early
}

/// The all-reduces that only updates depend on, in the order in which their parts are computed.
fn candidates(graph: &Graph) -> Result<Vec<NodeId>, GraphError> {
    let order = graph.order()?;
    let mut position = graph.node_map(0);
    order.iter().enumerate().for_each(|(i, id)| position[*id] = i);
    let early = early(graph, &order);
    let mut found = Vec::new();
    for id in &order {
        let reduces = matches!(graph.node(*id).op(), Some(Op::AllReduce(_)));
        if let (true, false, [part]) = (reduces, early[*id], &*graph.operands(*id)) {
            found.push((position[part.node], *id));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, id)| id).collect())
}

/// Writes one bucket: concatenation, all-reduce, and a slice for each user of a value.
fn write(b: &mut Builder, bucket: Bucket) -> Result<(), GraphError> {
    let of = |id: NodeId| Value { node: id, output: 0 };
    let bytes = |id: &NodeId| {
        let bytes = b.graph().ty(of(*id)).bytes().as_const();
        invariant(bytes, "that what buckets hold has a fixed size")
    };
    let (mut nodes, narrow): (Vec<NodeId>, Vec<NodeId>) =
        bucket.nodes.iter().partition(|id| bytes(id) % WIDE == 0);
    nodes.extend(narrow);
    // Components stay on the first axis.
    let axis = usize::from(bucket.reduce.by.is_wide());
    let flat = |shape: &Shape| {
        let rest = shape[axis..].iter().fold(Dim::ONE, |all, d| all * d.clone());
        shape[..axis].iter().cloned().chain([rest]).collect::<Vec<Dim>>()
    };
    let mut parts = Vec::with_capacity(nodes.len());
    for id in &nodes {
        let Some(part) = b.graph().operands(*id).first().copied() else { continue };
        let (name, shape) = (b.graph().info(part).name.clone(), b.graph().ty(part).shape.clone());
        b.set_origin(b.graph().node(part.node).origin().clone());
        parts.push(if shape.len() == axis + 1 {
            part
        } else {
            b.named(&format!("{name}.flat")).view(part, flat(&shape))?
        });
    }
    b.set_origin(Origin::default());
    let joined = b.named("bucket").concat(&parts, int(axis))?;
    let name = format!("{}.all", b.graph().info(joined).name);
    let all = b.op(&name, bucket.reduce, &[joined])?;
    let mut from = Dim::ZERO;
    for id in nodes {
        let old = of(id);
        let (name, shape) = (b.graph().info(old).name.clone(), b.graph().ty(old).shape.clone());
        b.set_origin(b.graph().node(id).origin().clone());
        let to = from.clone() + flat(&shape)[axis].clone();
        let piece = b.named(&format!("{name}.flat")).rows(all, axis, from, to.clone())?;
        let new = if shape.len() == axis + 1 {
            piece
        } else {
            b.named(&format!("{name}.own")).view(piece, shape.to_vec())?
        };
        b.replace(old, new)?;
        from = to;
    }
    Ok(())
}
