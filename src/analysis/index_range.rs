//! Value ranges of integer inputs, from the lookups (`gather`, sequence lengths) they reach.
//!
//! Random inputs must be valid indices, or nearly every run on them would fail. Interval arithmetic
//! forwards from the inputs says which elements reach each lookup; a binary search finds the
//! largest range `0..n` of the inputs for which all of them are valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{Graph, Id, NodeId, NodeKind, NodeMap, ResultInfo, Value, Weights};
use crate::op::{self, Interval, Op, Traits};
use crate::types::{DType, Dim, TensorType};

/// The range of integers of an input that no lookup bounds: `0..100`.
pub(super) const UNBOUNDED: i64 = 100;

/// The valid range `0..number` of every integer input that reaches indices or sequence lengths,
/// directly or through arithmetic.
///
/// Lookups that no range makes valid, or whose index arithmetic has no intervals, bound nothing;
/// then only the direct uses count.
pub(crate) fn index_ranges(graph: &Graph) -> BTreeMap<Arc<str>, i64> {
    let Ok(order) = graph.order() else { return BTreeMap::new() };
    let lookups = order.iter().filter_map(|id| lookup(graph, *id)).collect::<Vec<_>>();
    let mut caps = direct_caps(graph, &order, &lookups);
    let mut intervals = Intervals(graph.node_map(None));
    for group in index_groups(graph, &order, &lookups) {
        group.bound(graph, &mut caps, &mut intervals);
    }
    let inputs = order.iter().filter(|id| matches!(graph.node(**id).kind(), NodeKind::Input));
    let named = |id: &NodeId| Some((graph.node(*id).results()[0].name.clone(), caps[*id]?));
    inputs.filter(|id| is_drawn(graph, **id)).filter_map(named).collect()
}

/// True if a lookup by numbers that follow from no input may reach beyond its axis, as that of
/// positions does in a sequence that is longer than their table.
pub(crate) fn may_look_beyond(graph: &Graph, weights: &Weights) -> bool {
    let Ok(order) = graph.order() else { return false };
    let mut known = Intervals(graph.node_map(None));
    for id in &order {
        let node = graph.node(*id);
        let [result] = node.results() else { continue };
        let operands = graph.operands(*id).into_iter().map(|value| known.0[value.node]);
        // Of floats, and of what follows from inputs, nothing is known.
        known.0[*id] = match node.kind() {
            NodeKind::Input => None,
            NodeKind::Param(param) => {
                weights.get(&graph.param(*param).name).and_then(Interval::of_tensor)
            }
            NodeKind::Op(op) => operands.collect::<Option<Vec<_>>>().and_then(|all| {
                let all: Vec<Option<Interval>> = all.into_iter().map(Some).collect();
                op.interval(result.ty.dtype, &all)
            }),
        };
    }
    let lookups = order.iter().filter_map(|id| lookup(graph, *id));
    let mut found = lookups.filter_map(|l| known.0[l.source.node].map(|x| l.admits(x)));
    found.any(|is_valid| !is_valid)
}

/// True for an input of integers.
fn is_drawn(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let dtype = node.results()[0].ty.dtype;
    matches!(node.kind(), NodeKind::Input) && dtype != DType::Bool && !dtype.is_float()
}

/// The number of valid values of each node for all lookups that its results reach unchanged.
fn direct_caps(graph: &Graph, order: &[NodeId], lookups: &[Lookup]) -> NodeMap<Option<i64>> {
    let mut caps: NodeMap<Option<i64>> = graph.node_map(None);
    let lower = |cap: &mut Option<i64>, own: i64| *cap = Some(cap.map_or(own, |cap| cap.min(own)));
    for lookup in lookups {
        lower(&mut caps[lookup.source.node], lookup.count);
    }
    // Backwards: moves and casts keep elements, so that the bound of a result holds for operands.
    for id in order.iter().rev() {
        let node = graph.node(*id);
        let (Some(op), Some(own)) = (node.op(), caps[*id]) else { continue };
        if op.is(Traits::MOVES) || op.is(Traits::CONVERTS) {
            for source in graph.operands(*id) {
                lower(&mut caps[source.node], own);
            }
        }
    }
    caps
}

/// An operand that holds indices or lengths, with its valid range.
#[derive(Clone, Copy)]
struct Lookup {
    source: Value,
    /// The smallest valid number; negative where indices may count from the end.
    low: i64,
    /// The number of valid values from 0 on.
    count: i64,
}

/// A connected component of index arithmetic: its nodes in topological order, and the lookups
/// behind them. The inputs of one group get one common range.
#[derive(Default)]
struct IndexGroup {
    nodes: Vec<NodeId>,
    lookups: Vec<Lookup>,
}

/// The groups of a graph in topological order, by union-find over the operators that lead to
/// lookups.
fn index_groups(graph: &Graph, order: &[NodeId], lookups: &[Lookup]) -> Vec<IndexGroup> {
    let mut needed = graph.node_map(false);
    for lookup in lookups {
        needed[lookup.source.node] = true;
    }
    // Union-find: the parent of each node, which has a smaller index; a root is its own parent.
    let mut first: Vec<usize> = (0..needed.iter().len()).collect();
    for id in order.iter().rev().filter(|id| graph.node(**id).op().is_some_and(is_followed)) {
        if !needed[*id] {
            continue;
        }
        for source in graph.operands(*id) {
            needed[source.node] = true;
            // A constant must not connect all arithmetic that it is used in.
            if !is_leaf(graph, source.node) || is_drawn(graph, source.node) {
                let (a, b) = (root(&mut first, id.index()), root(&mut first, source.node.index()));
                first[a.max(b)] = a.min(b);
            }
        }
    }
    let mut groups: BTreeMap<usize, IndexGroup> = BTreeMap::new();
    for id in order.iter().filter(|id| needed[**id]) {
        groups.entry(root(&mut first, id.index())).or_default().nodes.push(*id);
    }
    for lookup in lookups {
        let at = root(&mut first, lookup.source.node.index());
        groups.entry(at).or_default().lookups.push(*lookup);
    }
    let drawn = |group: &IndexGroup| group.nodes.iter().any(|id| is_drawn(graph, *id));
    groups.into_values().filter(|group| drawn(group) && !group.lookups.is_empty()).collect()
}

/// The root of a node's group; halves the path on the way.
fn root(first: &mut [usize], mut at: usize) -> usize {
    while first[at] != at {
        first[at] = first[first[at]];
        at = first[at];
    }
    at
}

/// True for a node without operands.
fn is_leaf(graph: &Graph, id: NodeId) -> bool {
    graph.operands(id).is_empty()
}

impl IndexGroup {
    /// Lowers the ranges of all inputs of the group to the largest common number that makes valid
    /// every lookup that some number makes valid.
    fn bound(&self, graph: &Graph, caps: &mut NodeMap<Option<i64>>, intervals: &mut Intervals) {
        intervals.read(graph, &self.nodes);
        let mut valid = |cap: i64, caps: &NodeMap<Option<i64>>, lookups: &[Lookup]| {
            intervals.follow(graph, &self.nodes, caps, cap);
            let known = lookups.iter().copied();
            known
                .filter(|l| intervals.of(graph, l.source).is_some_and(|x| l.admits(x)))
                .collect::<Vec<_>>()
        };
        // A lookup that fails even for inputs that are all 0 fails for every range: it is ignored.
        let can = valid(1, caps, &self.lookups);
        let Some(most) = can.iter().map(|lookup| lookup.count.max(UNBOUNDED)).max() else { return };
        // Binary search, as a wider range of inputs only widens the intervals behind it: `good` is
        // valid, `bad` is not, unless the largest candidate is valid and there is no search.
        let (mut good, mut bad) = (1, most.saturating_add(1));
        if valid(most, caps, &can).len() == can.len() {
            good = most;
        }
        while good + 1 < bad && good < most {
            let middle = good.midpoint(bad);
            if valid(middle, caps, &can).len() == can.len() {
                good = middle;
            } else {
                bad = middle;
            }
        }
        for id in self.nodes.iter().filter(|id| is_drawn(graph, **id)) {
            let cap = &mut caps[*id];
            *cap = Some(cap.map_or(good, |own| own.min(good)));
        }
    }
}

/// Intervals of the elements of each node's results, by node index; `None` for floats.
struct Intervals(NodeMap<Option<Interval>>);

impl Intervals {
    /// Sets the intervals of the leaves: constants, sizes, and operands outside the group.
    fn read(&mut self, graph: &Graph, nodes: &[NodeId]) {
        let mut seen = graph.node_map(false);
        for id in nodes {
            for source in graph.operands(*id).into_iter().map(|value| value.node).chain([*id]) {
                if seen.replace(source, true) {
                    continue;
                }
                if let [result] = graph.node(source).results() {
                    self.0[source] = leaf_interval(graph.node(source).kind(), result);
                }
            }
        }
    }

    /// Propagates intervals through the nodes, for inputs drawn from `0..cap` or a smaller range.
    fn follow(&mut self, graph: &Graph, nodes: &[NodeId], caps: &NodeMap<Option<i64>>, cap: i64) {
        for id in nodes {
            let node = graph.node(*id);
            if is_drawn(graph, *id) {
                let high = caps[*id].map_or(cap, |own| own.min(cap)).max(1) - 1;
                self.0[*id] = Some(Interval { low: 0, high });
            } else if let Some(op) = node.op().filter(|op| is_followed(op)) {
                let operands = graph.operands(*id).into_iter();
                let operands: Vec<_> = operands.map(|value| self.of(graph, value)).collect();
                self.0[*id] = result_interval(op, node.results()[0].ty.dtype, &operands);
            }
        }
    }

    /// The interval of a value.
    fn of(&self, graph: &Graph, value: Value) -> Option<Interval> {
        let node = graph.node(value.node);
        if node.results().len() == 1 || node.op().is_some_and(is_followed) {
            self.0[value.node]
        } else {
            Interval::any(graph.ty(value).dtype)
        }
    }
}

impl Lookup {
    /// True if all elements of the interval are valid.
    fn admits(&self, elements: Interval) -> bool {
        self.low <= elements.low && elements.high < self.count
    }
}

/// The operand of an operator that holds indices or lengths.
fn lookup(graph: &Graph, id: NodeId) -> Option<Lookup> {
    let (op, operands) = (graph.node(id).op()?, graph.operands(id));
    let types: Vec<&TensorType> = operands.iter().map(|v| graph.ty(*v)).collect();
    let op::Lookup { operand, count, from_end } = op.lookup(&types)?;
    let source = *operands.get(operand)?;
    Some(Lookup { source, low: if from_end { -count } else { 0 }, count })
}

/// True if intervals propagate through the operator: data movement and elementwise arithmetic.
fn is_followed(op: &Op) -> bool {
    op.traits().intersects(Traits::MOVES.union(Traits::ELEMENTWISE))
}

/// The interval of an operator's results of type `dtype`: every value of the type where the
/// operator has no rule, `None` for floats.
fn result_interval(op: &Op, dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
    op.interval(dtype, operands).or_else(|| Interval::any(dtype))
}

/// The interval of a result that does not depend on operands.
fn leaf_interval(kind: &NodeKind, result: &ResultInfo) -> Option<Interval> {
    let known = result.ints.as_ref().and_then(|ints| {
        let numbers: Option<Vec<i64>> = ints.iter().map(Dim::as_const).collect();
        numbers?.into_iter().map(Interval::one).reduce(Interval::with)
    });
    let written = || match kind {
        NodeKind::Op(op) => op.interval(result.ty.dtype, &[]),
        NodeKind::Input | NodeKind::Param(_) => None,
    };
    known.or_else(written).or_else(|| Interval::any(result.ty.dtype))
}

#[cfg(test)]
mod tests {
    use super::index_ranges;
    use crate::ir::{Builder, Graph, Value};
    use crate::op::{Binary, Cast, Compare, Constant, Gather, Logic, Unary, Where};
    use crate::types::{DType, Dim, Shape, Tensor, TensorType};

    /// The ranges of a graph whose indices of 20 entries follow from `x`, an input of these
    /// integers.
    fn ranges(dtype: DType, indices: impl FnOnce(&mut Builder, Value) -> Value) -> Option<i64> {
        let mut b = Builder::new("net");
        let shape = Shape::from([Dim::n(), 7.into()].as_slice());
        let x = b.input("x", TensorType::new(dtype, shape));
        let table = b.param("table", Tensor::zeros(DType::F32, &[20, 4]).unwrap());
        let at = indices(&mut b, x);
        let rows = b.op("rows", Gather { axis: 0 }, &[table, at]).unwrap();
        b.output("rows", rows);
        let graph: Graph = b.finish().0;
        index_ranges(&graph).get("x").copied()
    }

    fn number(b: &mut Builder, value: Tensor) -> Value {
        let name = b.fresh("number");
        b.op(&name, Constant { value }, &[]).unwrap()
    }

    fn op(b: &mut Builder, op: impl Into<crate::op::Op>, operands: &[Value]) -> Value {
        let name = b.fresh("value");
        b.op(&name, op, operands).unwrap()
    }

    #[test]
    fn an_input_is_followed_to_the_indices_that_follow_from_it() {
        assert_eq!(ranges(DType::I32, |_, x| x), Some(20));
        // x < 0 ? x + 20 : x
        let chosen = ranges(DType::I64, |b, x| {
            let (zero, size) = (number(b, Tensor::scalar(0i64)), number(b, Tensor::scalar(20i64)));
            let below = op(b, Compare::Less, &[x, zero]);
            let moved = op(b, Binary::Add, &[x, size]);
            op(b, Where {}, &[below, moved, x])
        });
        assert_eq!(chosen, Some(20));
        // (x < 0) * (x + 20) + !(x < 0) * x, compared as floats.
        let summed = ranges(DType::I32, |b, x| {
            let (zero, size) = (number(b, Tensor::scalar(0f32)), number(b, Tensor::scalar(20i32)));
            let float = op(b, Cast { to: DType::F32 }, &[x]);
            let below = op(b, Compare::Less, &[float, zero]);
            let above = op(b, Logic::Not, &[below]);
            let [below, above] = [below, above].map(|x| op(b, Cast { to: DType::I32 }, &[x]));
            let moved = op(b, Binary::Add, &[x, size]);
            let (moved, kept) =
                (op(b, Binary::Mul, &[below, moved]), op(b, Binary::Mul, &[x, above]));
            op(b, Binary::Add, &[moved, kept])
        });
        assert_eq!(summed, Some(20));
        // x + (x < 0) * 20
        let added = ranges(DType::I32, |b, x| {
            let (zero, size) = (number(b, Tensor::scalar(0i32)), number(b, Tensor::scalar(20i32)));
            let below = op(b, Compare::Less, &[x, zero]);
            let below = op(b, Cast { to: DType::I32 }, &[below]);
            let moved = op(b, Binary::Mul, &[below, size]);
            op(b, Binary::Add, &[x, moved])
        });
        assert_eq!(added, Some(20));
    }

    #[test]
    fn arithmetic_moves_the_end_of_a_range() {
        let with = |arithmetic: Binary, by: i64| {
            ranges(DType::I64, |b, x| {
                let by = number(b, Tensor::scalar(by));
                op(b, arithmetic, &[x, by])
            })
        };
        assert_eq!(with(Binary::Add, 5), Some(15));
        // Negative numbers count from the end.
        assert_eq!(with(Binary::Sub, 20), Some(40));
        assert_eq!(with(Binary::Mul, 3), Some(7));
        assert_eq!(with(Binary::Div, 4), Some(80));
        assert_eq!(with(Binary::Mod { fmod: false }, 20), Some(100));
        assert_eq!(with(Binary::Min, 19), Some(100));
        let clip = Unary::Clip { min: Some(0.0), max: Some(19.0) };
        assert_eq!(ranges(DType::I64, |b, x| op(b, clip, &[x])), Some(100));
        // No number is valid, or nothing is known of the result.
        assert_eq!(with(Binary::Add, 20), None);
        assert_eq!(with(Binary::Sub, 21), None);
        assert_eq!(with(Binary::Pow, 2), None);
        // Numbers that wrap are not followed.
        assert_eq!(with(Binary::Mul, i64::MAX), Some(1));
    }
}
