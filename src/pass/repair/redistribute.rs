//! Redistribution of values between replicas: all-reduce, all-gather, and slices of own rows.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Action, Cause, InsertionPoint, Repair, Writer};
use crate::ir::{GraphError, ParamId, Value};
use crate::op::{AllGather, AllReduce, ConstantOfShape, Emit, Formula, Op, OwnRows, Traits, rules};
use crate::types::invariant::{int, invariant};
use crate::types::{Claim, Code, Dim, Shard, TensorType};

/// The longest chain of operators that a slice of own rows moves through: a bound on recursion.
const MOST_OPERATORS: usize = 64;

impl<'g> Writer<'g> {
    /// The value redistributed from the claim `from` to the claim `to`; records the repair.
    pub(super) fn redistribute(
        &mut self,
        value: Value,
        from: Claim,
        to: Claim,
        cause: Cause<'_>,
    ) -> Result<Value, GraphError> {
        let action = match from {
            Claim::Partial(by) => Action::AllReduce(by),
            Claim::Shard(_) if to.shard().is_some() => Action::Filled,
            Claim::Shard(_) => Action::AllGather,
            Claim::Invariant | Claim::Own | Claim::Mixed => Action::OwnRows,
        };
        self.record(cause, action, Some(value));
        self.materialize(value, from, to)
    }

    /// The claim with rows in the blocks `met` that a constant of equal elements may have instead
    /// of `claim`: any distribution of equal elements is right.
    pub(super) fn filled(&self, value: Value, claim: Claim, met: Option<Shard>) -> Option<Claim> {
        let (own, met) = (claim.shard()?, met?);
        let fills = matches!(self.out.node(value.node).op(), Some(Op::ConstantOfShape(_)));
        let fits = fills && own.outer == 1 && own.size() == met.size();
        fits.then_some(Claim::Shard(Shard { axis: own.axis, ..met }))
    }

    /// A constant of equal elements written again, with its rows in blocks.
    fn refill_blocks(&mut self, value: Value, to: Shard) -> Result<Value, GraphError> {
        let Some(Op::ConstantOfShape(fill)) = self.out.node(value.node).op().cloned() else {
            return Ok(value);
        };
        // One redistribution serves all users of a value.
        let key = (value, "constant_of_shape", to.outer);
        if let Some(known) = self.redistributed.get(&key) {
            return Ok(*known);
        }
        let label = self.out.info(value).name.clone();
        let shape = self.out.ty(value).shape.clone();
        let apart = ConstantOfShape { shape: blocks(&shape, to), ..fill };
        let rows = Claim::Shard(Shard { axis: 1, outer: 1, ..to });
        let name = format!("{label}.blocks");
        let new = self.derived(value, &name, rows).op(apart, &[])?;
        let name = format!("{label}.again");
        let new = self.derived(value, &name, Claim::Shard(to)).view(new, shape.to_vec())?;
        self.redistributed.insert(key, new);
        Ok(new)
    }

    /// The redistributed value, written at its first use.
    fn materialize(&mut self, value: Value, from: Claim, to: Claim) -> Result<Value, GraphError> {
        if let (Claim::Shard(_), Claim::Shard(to)) = (from, to) {
            return self.refill_blocks(value, to);
        }
        let shard = from.shard().or(to.shard());
        // A value without rows is redistributed whole, for which the axis does not matter.
        let (axis, outer) = shard.map_or((0, 1), |s| (s.axis, s.outer));
        // Rows in blocks are moved to axis 1 first, behind the blocks.
        let axis = if outer > 1 { 1 } else { int::<i64>(axis) };
        let (exchange, suffix): (Op, _) = match from {
            Claim::Partial(by) => (AllReduce { by, rows: vec![Dim::n()] }.into(), ".all"),
            Claim::Shard(_) => (AllGather { axis }.into(), ".all"),
            Claim::Invariant | Claim::Own | Claim::Mixed => (OwnRows { axis }.into(), ".own"),
        };
        let key = (value, exchange.name(), outer);
        if let Some(known) = self.redistributed.get(&key) {
            return Ok(*known);
        }
        let label = self.out.info(value).name.clone();
        let new = match shard.filter(|s| s.outer > 1) {
            None if matches!(exchange, Op::OwnRows(_)) => {
                return self.own_rows(value, to, MOST_OPERATORS);
            }
            None => self.derived(value, &format!("{label}{suffix}"), to).op(exchange, &[value])?,
            // Rows in several blocks: with the blocks on an axis of their own, the rows on the next
            // axis are one block, and a view restores the shape.
            Some(shard) => {
                let shape = self.out.ty(value).shape.clone();
                let blocks = blocks(&shape, shard);
                let draw = match self.out.node(value.node).op() {
                    Some(Op::Random(draw)) => draw.reshaped(blocks.clone()),
                    _ => None,
                };
                let apart = |claim: Claim| match claim.shard() {
                    Some(s) => Claim::Shard(Shard { axis: 1, outer: 1, ..s }),
                    None => claim,
                };
                let parts = format!("{label}.blocks");
                let new = if let Some(draw) = draw {
                    self.has_dead_nodes = true;
                    self.derived(value, &parts, apart(from)).op(draw, &[])?
                } else {
                    self.derived(value, &parts, apart(from)).view(value, blocks)?
                };
                let name = format!("{parts}{suffix}");
                let new = self.derived(value, &name, apart(to)).op(exchange, &[new])?;
                let name = format!("{label}{suffix}");
                self.derived(value, &name, to).view(new, shape.to_vec())?
            }
        };
        self.redistributed.insert(key, new);
        Ok(new)
    }

    /// A replica's rows of a value that it holds whole. The slice moves up through at most `most`
    /// operators that compute rows from rows, so that the replica computes its own rows only.
    fn own_rows(&mut self, value: Value, to: Claim, most: usize) -> Result<Value, GraphError> {
        let key = (value, "own_rows", 1);
        if let Some(known) = self.redistributed.get(&key) {
            return Ok(*known);
        }
        let name = format!("{}.own", self.out.info(value).name);
        let new =
            if let Some((op, operands)) = self.computed_from_rows(value, to).filter(|_| most > 0) {
                let mut own: SmallVec<[Value; 4]> = SmallVec::new();
                for (operand, claim) in operands {
                    own.push(match claim {
                        Some(claim) => self.own_rows(operand, claim, most - 1)?,
                        None => operand,
                    });
                }
                self.has_dead_nodes = true;
                self.derived(value, &name, to).op(op, &own)?
            } else {
                // Values that differ between replicas have an entry for each on axis 0.
                let axis = to.shard().map_or(0, |shard| shard.axis);
                let axis = int::<i64>(axis);
                self.derived(value, &name, to).op(OwnRows { axis }, &[value])?
            };
        self.redistributed.insert(key, new);
        Ok(new)
    }

    /// The operator that computed a value, if it computes rows `to` from rows of its operands; with
    /// the operands, and the claim of each operand that has to be sliced.
    #[expect(clippy::type_complexity, reason = "it is taken apart at once")]
    fn computed_from_rows(
        &self,
        value: Value,
        to: Claim,
    ) -> Option<(Op, SmallVec<[(Value, Option<Claim>); 4]>)> {
        let node = self.out.node(value.node);
        let op = node.op().filter(|op| !op.is(Traits::COLLECTIVE))?;
        let operands = self.out.operands(value.node);
        let rows = |v: &Value| match (self.claim(*v), rules::batch_axis(self.out.ty(*v), 0)) {
            (Claim::Invariant, Ok(Some(shard))) => Some(Claim::Shard(shard)),
            _ => None,
        };
        let own: SmallVec<[Option<Claim>; 4]> = operands.iter().map(rows).collect();
        let claims: SmallVec<[Claim; 4]> =
            operands.iter().zip(&own).map(|(v, own)| own.unwrap_or(self.claim(*v))).collect();
        let judged = self.judge(op, &operands, &claims, node.results()).ok()?;
        let same = own.iter().any(Option::is_some) && *judged == [to];
        same.then(|| (op.clone(), operands.into_iter().zip(own).collect()))
    }

    /// An emitter of operators whose results have this claim, placed with the value `of`.
    fn derived<'w>(&'w mut self, of: Value, name: &'w str, claim: Claim) -> Derived<'w, 'g> {
        Derived { writer: self, of, name, claim }
    }

    /// The new value of an output; rows in several blocks are gathered block by block.
    pub(super) fn output(&mut self, old: Value) -> Result<Value, GraphError> {
        let value = self.new_value(old);
        let claim = self.claim(value);
        let shard = claim.shard().filter(|s| s.outer > 1 && self.options.allowed != Repair::None);
        let Some(shard) = shard else { return Ok(value) };
        if !self.redistributed.contains_key(&(value, "all_gather", shard.outer)) {
            let node = self.template.node(old.node);
            if let Some(op) = node.op() {
                let label = node.label().to_owned();
                let at =
                    InsertionPoint { place: node.place(), origin: node.origin().clone(), label };
                let refusal = rules::in_blocks(0, shard);
                let cause = Cause { refusal: &refusal, op, at: &at };
                self.record(cause, Action::Blocks, Some(value));
            }
        }
        self.materialize(value, claim, Claim::Invariant)
    }

    /// The new value of an update, all-reduced if it is partial and exchanges are allowed: every
    /// device that holds the parameter needs the whole.
    pub(super) fn update(&mut self, param: ParamId, old: Value) -> Result<Value, GraphError> {
        let value = self.new_value(old);
        let claim = self.claim(value);
        let parts = matches!(claim, Claim::Partial(_)) && self.options.allowed == Repair::Comm;
        let node = self.template.node(old.node);
        let Some(op) = node.op().filter(|_| parts) else { return Ok(value) };
        let label = node.label().to_owned();
        let at = InsertionPoint { place: node.place(), origin: node.origin().clone(), label };
        let name = &self.template.param(param).name;
        let reason = format!("gives each replica a part of what the parameter `{name}` is to hold");
        let refusal = rules::refuse(Code::NotPerSample, 0, reason);
        self.redistribute(value, claim, Claim::Invariant, Cause { refusal: &refusal, op, at: &at })
    }

    /// A name that no value has: `name` with `suffix`, and a number if that is taken.
    pub(super) fn fresh(&mut self, name: &str, suffix: &str) -> Arc<str> {
        let mut wanted: Arc<str> = format!("{name}{suffix}").into();
        let mut number = 1;
        while self.names.contains(&wanted) {
            number += 1;
            wanted = format!("{name}{suffix}{number}").into();
        }
        self.names.insert(wanted.clone());
        wanted
    }
}

/// Emitter of operators derived from a value, with a known claim.
struct Derived<'w, 'g> {
    writer: &'w mut Writer<'g>,
    of: Value,
    name: &'w str,
    claim: Claim,
}

impl Emit for Derived<'_, '_> {
    type Value = Value;
    type Error = GraphError;

    fn ty(&self, value: Value) -> &TensorType {
        self.writer.out.ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, GraphError> {
        let name = self.writer.fresh(self.name, "");
        let new = self.writer.out.beside(self.of.node, name).op(op, operands)?;
        self.writer.set_claims(new.node, smallvec![self.claim]);
        Ok(smallvec![new])
    }
}

/// The shape with blocks, rows and the axes behind them apart: `[blocks, rows of one, behind]`.
fn blocks(shape: &[Dim], shard: Shard) -> Vec<Dim> {
    let product = |sizes: &[Dim]| sizes.iter().fold(Dim::ONE, |all, d| all * d.clone());
    let behind = shape.get(shard.axis + 1..);
    let behind = invariant(behind, "that rows are on an axis of their value");
    let outer = product(&shape[..shard.axis]) * int::<i64>(shard.outer);
    vec![outer, shard.block(), product(behind)]
}
