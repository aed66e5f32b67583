//! Collectives: operators on the parts of all replicas, written once on the device that merges.

use std::sync::Arc;

use smallvec::SmallVec;

use super::writer::{CollectiveResult, Replica, Rewrite};
use crate::ir::{DevicePlacement, NodeId, NodeKind, Value};
use crate::op::{AllReduce, ExclusiveScan, First, MergeTopK, Op, Traits};
use crate::pass::PassError;
use crate::types::{Claim, Device, Dim};

impl Rewrite<'_> {
    /// True for a node that is written once on the device that merges.
    pub(super) fn is_collective(&self, id: NodeId) -> bool {
        self.is_exchange(id) || self.reshapes_gathered(id)
    }

    /// True for a collective on parts that differ between replicas.
    fn is_exchange(&self, id: NodeId) -> bool {
        let joins = self.template.node(id).op().is_some_and(|op| op.is(Traits::COLLECTIVE));
        // On a whole value a collective is an identity, cloned like any operator.
        let parts = |v: &Value| self.claims.get(*v) != Claim::Invariant;
        joins && self.template.operand_list(id).first().is_some_and(parts)
    }

    /// True for a reshape of gathered rows. It restores the order of rows in blocks, and done once
    /// where rows are gathered it costs one view instead of one for each replica.
    pub(super) fn reshapes_gathered(&self, id: NodeId) -> bool {
        let gathers = |v: Value| {
            matches!(self.template.node(v.node).op(), Some(Op::AllGather(_)))
                && self.is_exchange(v.node)
        };
        matches!(self.template.node(id).op(), Some(Op::Reshape(_)))
            && matches!(*self.template.operand_list(id), [v] if gathers(v))
    }

    /// Writes a collective on the device that merges outputs.
    pub(super) fn write_collective(
        &mut self,
        id: NodeId,
        replicas: &mut [Replica],
    ) -> Result<(), PassError> {
        let template = self.template;
        let operands = template.operand_list(id);
        let Some(operand) = operands.first().copied() else { return Ok(()) };
        if let Some(CollectiveResult::Whole(gathered)) = self.joined[operand.node] {
            return self.reshape_gathered(id, gathered);
        }
        let node = template.node(id);
        // An input is whole on the host before it is sliced: no exchange is needed.
        if let (NodeKind::Input, Some(whole)) =
            (template.node(operand.node).kind(), self.inputs[operand.node])
        {
            self.joined[id] = Some(CollectiveResult::Whole(whole));
            return Ok(());
        }
        let scans = matches!(node.op(), Some(Op::ExclusiveScan(_)));
        // The same parts are joined once, whoever asks; a scan has another result for each replica.
        if let (Some(whole), false) = (self.merged.get(&operand), scans) {
            self.joined[id] = Some(CollectiveResult::Whole(*whole));
            return Ok(());
        }
        let mut parts = Vec::with_capacity(replicas.len() * operands.len());
        for replica in replicas {
            for operand in operands {
                let part = self.local(replica, *operand);
                let name = &template.info(*operand).name;
                parts.push(self.copy_to(replica, self.merge_device, part, name, ".h"));
            }
        }
        let op = self.collective_op(node.op(), operand);
        // A scan has one result for each replica, any other collective the template's results.
        let names: SmallVec<[Arc<str>; 1]> = match node.results() {
            [each] if scans => (0..self.split.replicas())
                .map(|r| self.free_name(&each.name, &format!(".r{r}")))
                .collect(),
            results => (0u32..)
                .zip(results)
                .map(|(output, _)| self.collective_name(Value { node: id, output }))
                .collect(),
        };
        let place = DevicePlacement { device: self.merge_device, replica: None };
        let new = self.out.add(op, &parts, &names, place, node.origin().clone())?;
        let whole = Value { node: new, output: 0 };
        if scans {
            self.joined[id] = Some(CollectiveResult::Each(new));
            return Ok(());
        }
        self.joined[id] = Some(CollectiveResult::Whole(whole));
        if node.results().len() == 1 {
            self.merged.insert(operand, whole);
        }
        Ok(())
    }

    /// The template's collective with the rows or entries of all replicas in its attributes.
    fn collective_op(&self, op: Option<&Op>, operand: Value) -> Op {
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

    /// Writes a reshape of gathered rows on the device that gathered them.
    fn reshape_gathered(&mut self, id: NodeId, gathered: Value) -> Result<(), PassError> {
        let template = self.template;
        let node = template.node(id);
        let Some(op) = node.op() else { return Ok(()) };
        let place = self.out.node(gathered.node).place();
        let (name, origin) =
            (self.collective_name(Value { node: id, output: 0 }), node.origin().clone());
        let node = self.out.add(op.clone(), &[gathered], &[name], place, origin)?;
        self.joined[id] = Some(CollectiveResult::Whole(Value { node, output: 0 }));
        Ok(())
    }

    /// The name of a collective's result. For an output that is merged on a GPU, the copy on the
    /// host gets the template's name.
    fn collective_name(&mut self, value: Value) -> Arc<str> {
        let template = self.template;
        let name = &template.info(value).name;
        let is_output = || template.outputs().iter().any(|o| o.value == value);
        if self.merge_device != Device::HOST && is_output() {
            self.free_name(name, ".all")
        } else {
            name.clone()
        }
    }

    /// The operator that merges parts with this claim: an all-reduce of partial values, else the
    /// value of the first replica that has rows.
    pub(super) fn combine(&self, claim: Claim) -> Op {
        let rows = self.rows();
        match claim.partial() {
            Some(by) => AllReduce { by, rows }.into(),
            None => First {}.into(),
        }
    }
}
