//! What joins the values of all replicas, and is written once for all of them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::writer::{Joined, Replica, Rewrite};
use crate::ir::{NodeId, NodeKind, Place, Value};
use crate::op::{AllReduce, ExclusiveScan, First, MergeTopK, Op, Traits};
use crate::pass::PassError;
use crate::types::{Claim, Device, Dim};

impl Rewrite<'_> {
    pub(super) fn is_collective(&self, id: NodeId) -> bool {
        self.joins(id) || self.reshapes_joined(id)
    }

    /// True of what joins the values of all replicas.
    fn joins(&self, id: NodeId) -> bool {
        let joins = self.template.node(id).op().is_some_and(|op| op.is(Traits::COLLECTIVE));
        // Of what is whole on every replica it is an operator like others.
        let parts = |v: &Value| self.claims.get(*v) != Claim::Invariant;
        joins && self.template.operands(id).first().is_some_and(parts)
    }

    /// True of a reshape of gathered rows, which is done once, where they are gathered.
    pub(super) fn reshapes_joined(&self, id: NodeId) -> bool {
        let gathers = |v: Value| {
            matches!(self.template.node(v.node).op(), Some(Op::AllGather(_))) && self.joins(v.node)
        };
        matches!(self.template.node(id).op(), Some(Op::Reshape(_)))
            && matches!(*self.template.operands(id), [v] if gathers(v))
    }

    /// What joins the values of all replicas, where outputs are merged.
    pub(super) fn collective(
        &mut self,
        id: NodeId,
        replicas: &mut [Replica],
    ) -> Result<(), PassError> {
        let operands = self.template.operands(id);
        let Some(operand) = operands.first().copied() else { return Ok(()) };
        if let Some(Joined::Whole(gathered)) = self.joined[operand.node.index()] {
            return self.reshape_joined(id, gathered);
        }
        let node = self.template.node(id);
        // An input is whole already.
        if let (NodeKind::Input, Some(whole)) =
            (self.template.node(operand.node).kind(), self.inputs[operand.node.index()])
        {
            self.joined[id.index()] = Some(Joined::Whole(whole));
            return Ok(());
        }
        let scans = matches!(node.op(), Some(Op::ExclusiveScan(_)));
        if let (Some(whole), false) = (self.merged.get(&operand), scans) {
            self.joined[id.index()] = Some(Joined::Whole(*whole));
            return Ok(());
        }
        let mut parts = Vec::with_capacity(replicas.len() * operands.len());
        for replica in replicas {
            for operand in &operands {
                let part = self.own(replica, *operand);
                let name = self.template.info(*operand).name.clone();
                parts.push(self.copy_to(replica, self.merge_device, part, &name, ".h"));
            }
        }
        let op = self.joining(node.op(), operand);
        let names: SmallVec<[Arc<str>; 1]> = match node.results() {
            [each] if scans => (0..self.split.replicas())
                .map(|r| self.free_name(&each.name, &format!(".r{r}")))
                .collect(),
            results => (0u32..)
                .zip(results)
                .map(|(output, _)| self.joined_name(Value { node: id, output }))
                .collect(),
        };
        let place = Place { device: self.merge_device, replica: None };
        let new = self.out.add(op, &parts, &names, place, node.origin().clone())?;
        let whole = Value { node: new, output: 0 };
        if scans {
            self.joined[id.index()] = Some(Joined::Each(new));
            return Ok(());
        }
        self.joined[id.index()] = Some(Joined::Whole(whole));
        if node.results().len() == 1 {
            self.merged.insert(operand, whole);
        }
        Ok(())
    }

    /// The operator that joins the replicas' parts of `operand`, of one that does so in the
    /// template.
    fn joining(&self, op: Option<&Op>, operand: Value) -> Op {
        match op {
            Some(Op::AllGather(gather)) => gather.clone().into(),
            Some(Op::ExclusiveScan(scan)) => {
                ExclusiveScan { rows: self.rows(), ..scan.clone() }.into()
            }
            Some(Op::MergeTopK(merge)) => {
                let own = self.rows().into_iter().flat_map(|rows| {
                    merge.entries.iter().map(move |entries| entries.at_rows(&rows))
                });
                MergeTopK { entries: own.collect(), ..merge.clone() }.into()
            }
            _ => self.combine(self.claims.get(operand)),
        }
    }

    /// The rows of each replica.
    fn rows(&self) -> Vec<Dim> {
        (0..self.split.replicas()).filter_map(|r| self.split.rows(r)).collect()
    }

    /// Reshapes gathered rows where they are.
    fn reshape_joined(&mut self, id: NodeId, gathered: Value) -> Result<(), PassError> {
        let node = self.template.node(id);
        let Some(op) = node.op() else { return Ok(()) };
        let place = self.out.node(gathered.node).place();
        let (name, origin) =
            (self.joined_name(Value { node: id, output: 0 }), node.origin().clone());
        let node = self.out.add(op.clone(), &[gathered], &[name], place, origin)?;
        self.joined[id.index()] = Some(Joined::Whole(Value { node, output: 0 }));
        Ok(())
    }

    /// The name of what joins the replicas' values, where outputs are merged: if it is an output,
    /// that of its copy on the host is the template's.
    fn joined_name(&self, value: Value) -> Arc<str> {
        let name = &self.template.info(value).name;
        let is_output = || self.template.outputs().iter().any(|o| o.value == value);
        if self.merge_device != Device::HOST && is_output() {
            self.free_name(name, ".all")
        } else {
            name.clone()
        }
    }

    /// What combines the replicas' parts of a value with this claim.
    pub(super) fn combine(&self, claim: Claim) -> Op {
        let rows = self.rows();
        match claim.partial() {
            Some(by) => AllReduce { by, rows }.into(),
            None => First {}.into(),
        }
    }
}
