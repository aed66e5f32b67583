//! What brings a value to replicas in another form: combined, gathered, or only a replica's own
//! rows of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Action, At, Cause, Repair, Writer};
use crate::ir::{GraphError, ParamId, Value};
use crate::op::{AllGather, AllReduce, ConstantOfShape, Op, OwnRows, Reshape, Traits, rules};
use crate::types::invariant::{int, invariant};
use crate::types::{Claim, Code, Dim, Shard};

/// The most operators in a row that are moved behind `own_rows`.
const MOST_OPERATORS: usize = 64;

impl Writer<'_> {
    /// The value with the claim `to`, where it has the claim `from`.
    pub(super) fn bring(
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
        self.note(cause, action, Some(value));
        self.brought(value, from, to)
    }

    /// The claim that a value of equal elements may have as well, which meets rows in the blocks
    /// `met`.
    pub(super) fn filled(&self, value: Value, claim: Claim, met: Option<Shard>) -> Option<Claim> {
        let (own, met) = (claim.shard()?, met?);
        let fills = matches!(self.out.node(value.node).op(), Some(Op::ConstantOfShape(_)));
        let fits = fills && own.outer == 1 && own.size() == met.size();
        fits.then_some(Claim::Shard(Shard { axis: own.axis, ..met }))
    }

    /// A value of equal elements anew, with its rows in blocks.
    fn refill(&mut self, value: Value, to: Shard) -> Result<Value, GraphError> {
        let Some(Op::ConstantOfShape(fill)) = self.out.node(value.node).op().cloned() else {
            return Ok(value);
        };
        let key = (value, "constant_of_shape", to.outer);
        if let Some(known) = self.brought.get(&key) {
            return Ok(*known);
        }
        let label = self.out.info(value).name.clone();
        let shape = self.out.ty(value).shape.clone();
        let apart = ConstantOfShape { shape: blocks(&shape, to), ..fill };
        let rows = Claim::Shard(Shard { axis: 1, outer: 1, ..to });
        let name = format!("{label}.blocks");
        let new = self.derive(apart.into(), &[], value, &name, rows)?;
        let back = Reshape { shape: shape.to_vec() };
        let name = format!("{label}.again");
        let new = self.derive(back.into(), &[new], value, &name, Claim::Shard(to))?;
        self.brought.insert(key, new);
        Ok(new)
    }

    /// What brings the value to replicas, which there is once.
    fn brought(&mut self, value: Value, from: Claim, to: Claim) -> Result<Value, GraphError> {
        if let (Claim::Shard(_), Claim::Shard(to)) = (from, to) {
            return self.refill(value, to);
        }
        let shard = from.shard().or(to.shard());
        // What is neither cut nor to be cut is brought whole, which no axis changes.
        let (axis, outer) = shard.map_or((0, 1), |s| (s.axis, s.outer));
        let axis = if outer > 1 { 1 } else { int::<i64>(axis) };
        let (bring, suffix): (Op, _) = match from {
            Claim::Partial(by) => (AllReduce { by, rows: vec![Dim::n()] }.into(), ".all"),
            Claim::Shard(_) => (AllGather { axis }.into(), ".all"),
            Claim::Invariant | Claim::Own | Claim::Mixed => (OwnRows { axis }.into(), ".own"),
        };
        let key = (value, bring.name(), outer);
        if let Some(known) = self.brought.get(&key) {
            return Ok(*known);
        }
        let label = self.out.info(value).name.clone();
        let new = match shard.filter(|s| s.outer > 1) {
            None if matches!(bring, Op::OwnRows(_)) => {
                return self.own_rows(value, to, MOST_OPERATORS);
            }
            None => self.derive(bring, &[value], value, &format!("{label}{suffix}"), to)?,
            // With the blocks on an axis before it, the batch is outermost on its own.
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
                    self.left = true;
                    self.derive(draw.into(), &[], value, &parts, apart(from))?
                } else {
                    let blocks = Reshape { shape: blocks };
                    self.derive(blocks.into(), &[value], value, &parts, apart(from))?
                };
                let name = format!("{parts}{suffix}");
                let new = self.derive(bring, &[new], value, &name, apart(to))?;
                let back = Reshape { shape: shape.to_vec() };
                let name = format!("{label}{suffix}");
                self.derive(back.into(), &[new], value, &name, to)?
            }
        };
        self.brought.insert(key, new);
        Ok(new)
    }

    /// A replica's rows of a value that it holds whole. Where they are made of rows of what the
    /// whole is made of, by at most `most` operators in a row, the replica makes no others.
    fn own_rows(&mut self, value: Value, to: Claim, most: usize) -> Result<Value, GraphError> {
        let key = (value, "own_rows", 1);
        if let Some(known) = self.brought.get(&key) {
            return Ok(*known);
        }
        let name = format!("{}.own", self.out.info(value).name);
        let new = if let Some((op, operands)) = self.made_of_rows(value, to).filter(|_| most > 0) {
            let mut own: SmallVec<[Value; 4]> = SmallVec::new();
            for (operand, claim) in operands {
                own.push(match claim {
                    Some(claim) => self.own_rows(operand, claim, most - 1)?,
                    None => operand,
                });
            }
            self.left = true;
            self.derive(op, &own, value, &name, to)?
        } else {
            // Entries of replicas are the first axis.
            let axis = to.shard().map_or(0, |shard| shard.axis);
            let axis = int::<i64>(axis);
            self.derive(OwnRows { axis }.into(), &[value], value, &name, to)?
        };
        self.brought.insert(key, new);
        Ok(new)
    }

    /// The operator that makes rows `to` of its operands' rows, if one made the value; with the
    /// operands, and the claims of those of which it takes rows.
    #[expect(clippy::type_complexity, reason = "it is taken apart at once")]
    fn made_of_rows(
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

    /// The result of an operator, placed where the value `of` is.
    fn derive(
        &mut self,
        op: Op,
        operands: &[Value],
        of: Value,
        name: &str,
        claim: Claim,
    ) -> Result<Value, GraphError> {
        let name = self.fresh(name, "");
        let place = self.out.node(of.node).place();
        let origin = self.out.node(of.node).origin().clone();
        let node = self.out.add(op, operands, &[name], place, origin)?;
        self.set_claims(node, SmallVec::from_elem(claim, 1));
        Ok(Value { node, output: 0 })
    }

    /// The value of an output: of rows in several blocks what joins them block by block.
    pub(super) fn output(&mut self, old: Value) -> Result<Value, GraphError> {
        let value = self.new_value(old);
        let claim = self.claim(value);
        let shard = claim.shard().filter(|s| s.outer > 1 && self.options.allowed != Repair::None);
        let Some(shard) = shard else { return Ok(value) };
        if !self.brought.contains_key(&(value, "all_gather", shard.outer)) {
            let node = self.template.node(old.node);
            if let Some(op) = node.op() {
                let label = node.label().to_owned();
                let at = At { place: node.place(), origin: node.origin().clone(), label };
                let refusal = rules::in_blocks(0, shard);
                let cause = Cause { refusal: &refusal, op, at: &at };
                self.note(cause, Action::Blocks, Some(value));
            }
        }
        self.brought(value, claim, Claim::Invariant)
    }

    /// The value that a parameter holds after a run: the whole of one that has parts, where they
    /// may be exchanged.
    pub(super) fn update(&mut self, param: ParamId, old: Value) -> Result<Value, GraphError> {
        let value = self.new_value(old);
        let claim = self.claim(value);
        let parts = matches!(claim, Claim::Partial(_)) && self.options.allowed == Repair::Comm;
        let node = self.template.node(old.node);
        let Some(op) = node.op().filter(|_| parts) else { return Ok(value) };
        let label = node.label().to_owned();
        let at = At { place: node.place(), origin: node.origin().clone(), label };
        let name = &self.template.param(param).name;
        let reason = format!("gives each replica a part of what the parameter `{name}` is to hold");
        let refusal = rules::refuse(Code::NotPerSample, 0, reason);
        self.bring(value, claim, Claim::Invariant, Cause { refusal: &refusal, op, at: &at })
    }

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

/// The shape of a value whose blocks stand apart from its rows:
/// `[blocks, rows of one, what is behind]`.
fn blocks(shape: &[Dim], shard: Shard) -> Vec<Dim> {
    let product = |sizes: &[Dim]| sizes.iter().fold(Dim::ONE, |all, d| all * d.clone());
    let behind = shape.get(shard.axis + 1..);
    let behind = invariant(behind, "that rows are on an axis of their value");
    let outer = product(&shape[..shard.axis]) * int::<i64>(shard.outer);
    vec![outer, shard.block(), product(behind)]
}
