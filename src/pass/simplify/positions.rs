use smallvec::SmallVec;

use super::options::SimplifyOptions;
use crate::ir::{Graph, GraphError, NodeId, NodeKind, Value, Weights};
use crate::op::{Concat, Formula, Gather, GatherAt, Interval, Op, PositionOperand, Positions};
use crate::pass::PassError;
use crate::types::invariant::int;
use crate::types::{DType, Dim, FastMap, Shape};

/// Rewrites lookups that each row makes in its own part of a value, by numbers that are computed
/// from the number of the row.
///
/// Exporters take a `[N, a, …]` value as `[N*a, …]` and look the entries `a*row + r` up, or give
/// the row as the first coordinate of an element. Where `0 <= r < a` is known, entry `r` of the row
/// is the same element; looked up in this way nothing numbers the rows of the whole batch.
pub(super) fn run(
    graph: &mut Graph,
    weights: &mut Weights,
    _: &SimplifyOptions,
) -> Result<(), PassError> {
    let order = graph.order()?;
    if !order.iter().any(|id| lookup(graph, *id).is_some()) {
        return Ok(());
    }
    let mut numbers = Numbers::default();
    for id in &order {
        numbers.visit(graph, weights, *id);
    }
    for id in order {
        let new = match lookup(graph, id) {
            Some(Lookup::Entries(axis)) => numbers.entries(graph, id, axis)?,
            Some(Lookup::Coordinates) => numbers.coordinates(graph, id)?,
            Some(Lookup::Updates(scatter)) => numbers.updates(graph, id, scatter)?,
            None => None,
        };
        let old = Value { node: id, output: 0 };
        if let Some(new) = new.filter(|new| graph.ty(*new) == graph.ty(old)) {
            graph.replace(old, new)?;
        }
    }
    graph.remove_unused();
    Ok(())
}

/// A lookup in a value whose rows are the batch.
enum Lookup {
    /// Entries of this axis, of which the batch is a part.
    Entries(usize),
    /// Elements by coordinates, the first of which is the row.
    Coordinates,
    /// Elements by coordinates, to which updates are written; by entries this operator does it.
    Updates(Op),
}

/// The lookup of a node, if it is one among all rows by numbers of type `i64`.
fn lookup(graph: &Graph, id: NodeId) -> Option<Lookup> {
    let operands = graph.operands(id);
    let (data, indices) = (graph.ty(*operands.first()?), graph.ty(*operands.get(1)?));
    if indices.dtype != DType::I64 || !indices.shape.iter().any(Dim::depends_on_batch) {
        return None;
    }
    let op = graph.node(id).op()?;
    #[expect(clippy::wildcard_enum_match_arm, reason = "others say whether they write updates")]
    let found = match op {
        Op::Gather(Gather { axis }) => Lookup::Entries(along(*axis, data.rank())?),
        Op::GatherAt(GatherAt::Nd { batch_dims: 0 }) => Lookup::Coordinates,
        _ => Lookup::Updates(op.by_entries()?),
    };
    let axis = match found {
        Lookup::Entries(axis) => axis,
        Lookup::Coordinates | Lookup::Updates(_) => 0,
    };
    data.shape.get(axis).is_some_and(Dim::depends_on_batch).then_some(found)
}

/// An axis that is counted from the end where it is negative.
fn along(axis: i64, rank: usize) -> Option<usize> {
    usize::try_from(axis.checked_rem_euclid(int::<i64>(rank))?).ok()
}

/// The known structure of the integers of a value.
#[derive(Clone, Copy)]
struct Known {
    /// The rows that they number.
    rows: Option<Positions>,
    /// Whether what is added to the row's part is the same for all rows.
    is_uniform: bool,
    /// The elements of what is added.
    rest: Option<Interval>,
}

/// The integers of a graph, as far as they number rows.
#[derive(Default)]
struct Numbers {
    known: FastMap<Value, Known>,
    /// The addend of the rows' parts, where it was written.
    rests: FastMap<Value, Value>,
}

impl Numbers {
    fn visit(&mut self, graph: &Graph, weights: &Weights, id: NodeId) {
        let node = graph.node(id);
        self.places(graph, id);
        let [result] = node.results() else { return };
        if result.ty.dtype.is_float() || self.known.contains_key(&Value { node: id, output: 0 }) {
            return;
        }
        let whole = !result.ty.shape.iter().any(Dim::depends_on_batch);
        let rest = match node.kind() {
            NodeKind::Op(op) => Ok(op),
            NodeKind::Param(param) => {
                let tensor = weights.get(&graph.param(*param).name);
                Err(tensor.and_then(Interval::of_tensor))
            }
            NodeKind::Input => Err(Interval::any(result.ty.dtype)),
        };
        let known = match rest {
            Ok(op) => self.result(graph, id, op, whole),
            Err(rest) => Known { rows: None, is_uniform: whole, rest },
        };
        self.known.insert(Value { node: id, output: 0 }, known);
    }

    /// The results that number the entries of an axis.
    fn places(&mut self, graph: &Graph, id: NodeId) {
        let node = graph.node(id);
        let (Some(op), Some(x)) = (node.op(), graph.operands(id).first().copied()) else { return };
        let shape = &graph.ty(x).shape;
        for (i, result) in node.results().iter().enumerate() {
            let axis = op.places(i).and_then(|axis| along(axis, shape.rank()));
            let Some(axis) = axis else { continue };
            let size = shape[axis].as_const().filter(|size| *size > 0);
            let rest = size.map(|size| Interval { low: 0, high: size - 1 });
            let is_uniform = !result.ty.shape.iter().any(Dim::depends_on_batch);
            let known = Known { rows: None, is_uniform, rest };
            self.known.insert(Value { node: id, output: int::<u32>(i) }, known);
        }
    }

    /// The known structure of an operator's result.
    fn result(&self, graph: &Graph, id: NodeId, op: &Op, whole: bool) -> Known {
        let ty = &graph.node(id).results()[0].ty;
        let operands = graph.operands(id);
        let of = |v: &Value| self.known.get(v).copied();
        let taken: SmallVec<[PositionOperand<'_>; 4]> = operands
            .iter()
            .map(|v| PositionOperand {
                ty: graph.ty(*v),
                rows: of(v).and_then(|known| known.rows),
                rest: of(v).and_then(|known| known.rest),
            })
            .collect();
        let rows = if ty.dtype == DType::I64 { op.positions(&taken, ty) } else { None };
        let rests: SmallVec<[Option<Interval>; 4]> = taken.iter().map(|x| x.rest).collect();
        // Without numbers of rows the operator takes its operands as they are.
        let is_rest = rows.is_some() || taken.iter().all(|x| x.rows.is_none());
        let rest = if is_rest { at_first_row(op).interval(ty.dtype, &rests) } else { None };
        let is_uniform = match rows {
            Some(_) => operands.iter().all(|v| of(v).is_some_and(|known| known.is_uniform)),
            None => whole,
        };
        Known { rows, is_uniform, rest: rest.or_else(|| Interval::any(ty.dtype)) }
    }

    /// What is added to the rows' part in a value, as a value: for a uniform one as the first row
    /// has it, with the size 1 on the rows' axis. `None` where an operator takes parts of both
    /// kinds at one size only.
    fn rest(&mut self, graph: &mut Graph, value: Value) -> Option<Value> {
        let known = self.known.get(&value).copied();
        let Some(Known { rows: Some(_), is_uniform, .. }) = known else {
            return Some(value);
        };
        if let Some(rest) = self.rests.get(&value) {
            return Some(*rest);
        }
        let operands = graph.operands(value.node);
        let operands = operands.iter().map(|v| {
            let rest = self.rest(graph, *v)?;
            if is_uniform { Some(rest) } else { self.of_all_rows(graph, *v, rest) }
        });
        let operands = operands.collect::<Option<SmallVec<[Value; 4]>>>()?;
        let op = graph.node(value.node).op()?.clone();
        let op = if is_uniform { at_first_row(&op) } else { op };
        let name = format!("{}.rest", graph.info(value).name);
        let rest = graph.beside(value.node, name).op(op, &operands).ok()?;
        self.rests.insert(value, rest);
        Some(rest)
    }

    /// What is added to the rows' part in `value`, beside values that differ from row to row: where
    /// each row has several entries of the axis, those of the first row are repeated.
    fn of_all_rows(&self, graph: &mut Graph, value: Value, rest: Value) -> Option<Value> {
        let known = self.known.get(&value).filter(|known| known.is_uniform);
        let several = known.and_then(|known| known.rows).filter(|rows| rows.each > 1);
        let Some(Positions { axis, .. }) = several else { return Some(rest) };
        let mut sizes = graph.ty(rest).shape.to_vec();
        let mut all = sizes.clone();
        all[axis] = graph.ty(value).shape[axis].clone();
        sizes.insert(axis, Dim::ONE);
        let name = graph.info(rest).name.clone();
        let beside = |what: &str| format!("{name}.{what}");
        let apart = graph.beside(value.node, beside("one")).view(rest, sizes.clone()).ok()?;
        sizes[axis] = Dim::n();
        let wide = Shape::from(sizes.as_slice());
        let wide = graph.beside(value.node, beside("each")).expand(apart, &wide).ok()?;
        graph.beside(value.node, beside("all")).view(wide, all).ok()
    }

    /// The entries that each row looks up among its own, for a lookup along `axis`.
    fn entries(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        axis: usize,
    ) -> Result<Option<Value>, GraphError> {
        let operands = graph.operands(id);
        let (data, indices) = (operands[0], operands[1]);
        let Some(Known { rows: Some(rows), is_uniform, rest: Some(rest) }) =
            self.known.get(&indices).copied()
        else {
            return Ok(None);
        };
        let shape = graph.ty(data).shape.clone();
        // The rows' part of the axis has to be as long as the distance between the numbers of two
        // rows.
        let own = shape[axis].exact_div(&Dim::n()).and_then(|own| own.as_const());
        let Some(own) = own.filter(|own| *own == rows.stride) else { return Ok(None) };
        // Within `0..own` the number stays in its own row.
        if rest.low < 0 || rest.high >= own || (!is_uniform && (axis > 0 || rows.axis > 0)) {
            return Ok(None);
        }
        let mut apart = shape.to_vec();
        apart.splice(axis..=axis, [Dim::n(), own.into()]);
        let name = graph.node(id).label().to_owned();
        let wanted = graph.ty(Value { node: id, output: 0 }).shape.clone();
        let data = graph.beside(id, format!("{name}.rows")).view(data, apart)?;
        let Some(rest) = self.rest(graph, indices) else { return Ok(None) };
        let mut sizes = graph.ty(rest).shape.to_vec();
        if !is_uniform {
            sizes.splice(..1, apart_by_row(rows));
            sizes.push(Dim::ONE);
            let rest = graph.beside(id, format!("{name}.entries")).view(rest, sizes)?;
            let nd = GatherAt::Nd { batch_dims: 1 };
            let picked = graph.beside(id, apart_name(&name, rows)).op(nd, &[data, rest])?;
            return graph.beside(id, name).reshape(picked, &wanted).map(Some);
        }
        // Of several entries each row's stay an axis.
        if rows.each == 1 {
            sizes.remove(rows.axis);
        }
        let rest = graph.beside(id, format!("{name}.entries")).view(rest, sizes)?;
        let gather = Gather { axis: int::<i64>(axis + 1) };
        let picked = graph.beside(id, format!("{name}.picked")).op(gather, &[data, rest])?;
        // The rows go back among the axes of the numbers.
        let mut perm: Vec<usize> = (0..graph.ty(picked).rank()).collect();
        perm[axis..=axis + rows.axis].rotate_left(1);
        let turned = graph.beside(id, apart_name(&name, rows)).transpose(picked, perm)?;
        graph.beside(id, name).reshape(turned, &wanted).map(Some)
    }

    /// The rows of coordinates, and those behind the row, where the first is the row and no other
    /// number of it.
    fn behind_the_row(
        &self,
        graph: &Graph,
        id: NodeId,
    ) -> Option<(Positions, SmallVec<[Value; 4]>)> {
        let operands = graph.operands(id);
        let (data, indices) = (operands[0], operands[1]);
        let Op::Concat(Concat { axis }) = graph.node(indices.node).op()? else { return None };
        let rank = graph.ty(indices).rank();
        let last = *axis == -1 || usize::try_from(*axis).is_ok_and(|axis| axis + 1 == rank);
        let parts = graph.operands(indices.node);
        let [row, others @ ..] = parts.as_slice() else { return None };
        let Known { rows: Some(rows), rest, .. } = *self.known.get(row)? else { return None };
        let is_row = rows.axis == 0 && rows.stride == 1 && rest == Some(Interval::one(0));
        let of_rows = graph.ty(data).shape.first() == Some(&Dim::n());
        let one = graph.ty(*row).shape.last() == Some(&Dim::ONE);
        let found = last && rank > 1 && is_row && of_rows && one && !others.is_empty();
        found.then(|| (rows, others.into()))
    }

    /// The elements that each row looks up among its own, where the first coordinate is the row.
    fn coordinates(&self, graph: &mut Graph, id: NodeId) -> Result<Option<Value>, GraphError> {
        let Some((rows, others)) = self.behind_the_row(graph, id) else { return Ok(None) };
        let data = graph.operands(id)[0];
        let name = graph.node(id).label().to_owned();
        let wanted = graph.ty(Value { node: id, output: 0 }).shape.clone();
        let others = match others[..] {
            [other] => other,
            _ => {
                graph.beside(id, format!("{name}.coordinates")).op(Concat { axis: -1 }, &others)?
            }
        };
        let mut sizes = graph.ty(others).shape.to_vec();
        sizes.splice(..1, apart_by_row(rows));
        let sizes = Shape::from(sizes.as_slice());
        let others = graph.beside(id, format!("{name}.entries")).reshape(others, &sizes)?;
        let nd = GatherAt::Nd { batch_dims: 1 };
        let picked = graph.beside(id, apart_name(&name, rows)).op(nd, &[data, others])?;
        graph.beside(id, name).reshape(picked, &wanted).map(Some)
    }

    /// The updates that each row writes to its own entries of axis 1, where the coordinates are the
    /// row and one entry.
    fn updates(
        &self,
        graph: &mut Graph,
        id: NodeId,
        scatter: Op,
    ) -> Result<Option<Value>, GraphError> {
        let Some((_, others)) = self.behind_the_row(graph, id).filter(|(rows, _)| rows.each == 1)
        else {
            return Ok(None);
        };
        let (operands, name) = (graph.operands(id), graph.node(id).label().to_owned());
        let (data, updates) = (operands[0], operands[2]);
        let [entry] = others[..] else { return Ok(None) };
        let shape = graph.ty(updates).shape.clone();
        let mut sizes = graph.ty(entry).shape.to_vec();
        // `[N, K, 1]`: K entries of each row.
        // Entries of more coordinates would have to become one number first.
        if sizes.len() != 3 || sizes[2] != Dim::ONE || sizes[..2] != shape[..2] {
            return Ok(None);
        }
        sizes.truncate(2);
        sizes.resize(shape.rank(), Dim::ONE);
        let entry = graph.beside(id, format!("{name}.entry")).view(entry, sizes)?;
        let entries = graph.beside(id, format!("{name}.entries")).expand(entry, &shape)?;
        graph.beside(id, name).op(scatter, &[data, entries, updates]).map(Some)
    }
}

/// The sizes of the axis of the rows where it is cut into the entries of each row.
fn apart_by_row(rows: Positions) -> SmallVec<[Dim; 2]> {
    let each = (rows.each > 1).then(|| rows.each.into());
    [Dim::n()].into_iter().chain(each).collect()
}

/// The name of what is looked up before the entries of all rows are one axis again.
fn apart_name(name: &str, rows: Positions) -> String {
    if rows.each > 1 { format!("{name}.apart") } else { name.to_owned() }
}

/// An operator as it is for one row, the first.
fn at_first_row(op: &Op) -> Op {
    let mut op = op.clone();
    op.at_rows(&Dim::ONE);
    op
}
