//! The writer of the replicated graph: stages of clones with collectives between them.

mod clones;
mod collective;
mod update_nodes;
mod updates;
mod writer;

use std::sync::Arc;

use smallvec::SmallVec;

use self::clones::Forms;
use self::writer::Replica;
pub(super) use self::writer::Rewrite;
use crate::ir::{DevicePlacement, Graph, NodeId, NodeKind, Value};
use crate::op::{Concat, Op};
use crate::pass::PassError;
use crate::types::invariant::{int, invariant};
use crate::types::{Device, FastMap};

impl Rewrite<'_> {
    /// Writes the replicated graph.
    ///
    /// Stages alternate: all replicas write their clones of a stage, one replica after the other,
    /// then the collectives behind it join their values. Nodes are thereby added in an order in
    /// which every operand exists before its user.
    pub(super) fn run(mut self) -> Result<Graph, PassError> {
        for input in self.template.inputs() {
            let info = self.template.info(input);
            self.inputs[input.node] = Some(self.out.add_input(info.name.clone(), info.ty.clone()));
        }
        let mut replicas = self.replicas();
        let stages = self.stages();
        let mut parts: Vec<Vec<Value>> = vec![Vec::new(); self.template.outputs().len()];
        for (stage, nodes) in stages.iter().enumerate() {
            let last = stage + 1 == stages.len();
            let (joins, clones): (Vec<NodeId>, Vec<NodeId>) =
                nodes.iter().partition(|id| self.is_collective(**id));
            let clones = clones.into_iter().filter(|id| !self.draws_own_rows(*id));
            let (steps, mut forms) = (self.steps(clones), Forms::default());
            for replica in &mut replicas {
                if stage == 0 {
                    self.slice_inputs(replica);
                }
                self.clone_nodes(replica, &steps, &mut forms);
                if last {
                    self.return_outputs(replica, &mut parts);
                }
            }
            for id in joins {
                self.write_collective(id, &mut replicas)?;
            }
        }
        self.merge_outputs(&parts)?;
        self.updates(&mut replicas)?;
        Ok(self.out)
    }

    /// Writes the template on the device of the only replica, all values whole.
    pub(super) fn run_whole(mut self) -> Graph {
        let template = self.template;
        for input in template.inputs() {
            let info = template.info(input);
            self.inputs[input.node] = Some(self.out.add_input(info.name.clone(), info.ty.clone()));
        }
        let mut replica = invariant(self.replicas().pop(), "that a split has a replica");
        replica.is_whole = true;
        self.slice_inputs(&mut replica);
        let steps = self.steps(self.claims.order().iter().copied());
        self.clone_nodes(&mut replica, &steps, &mut Forms::default());
        for (i, output) in template.outputs().iter().enumerate() {
            let shared = self.out.outputs().get(self.first_output[i]).map(|output| output.value);
            let value = shared.unwrap_or_else(|| {
                let value = self.local(&mut replica, output.value);
                self.copy_to_host(value, output.value)
            });
            self.out.add_output(output.name.clone(), value);
        }
        for update in template.updates() {
            let homes = self.out.homes(update.param).to_vec();
            let value = invariant(update.values.first(), "that an update has a value");
            let own = self.local(&mut replica, *value);
            let name = &template.info(*value).name;
            let copies = homes.iter().map(|home| self.copy_to(&replica, *home, own, name, ".home"));
            let copies: SmallVec<[Value; 1]> = copies.collect();
            self.out.add_update(update.param, copies);
        }
        self.out
    }

    /// The replicas of the split, without values.
    fn replicas(&self) -> Vec<Replica> {
        let devices = (0u32..).zip(self.split.devices());
        let replica = |(index, device): (u32, &Device)| {
            let (from, to) = self.split.range(index as usize)?;
            Some(Replica {
                index,
                device: *device,
                rows: self.split.rows(index as usize)?,
                from: from.clone(),
                to: to.clone(),
                values: self.template.node_map(None),
                scattered: FastMap::default(),
                suffix: format!(".r{index}"),
                is_whole: false,
            })
        };
        devices.filter_map(replica).collect()
    }

    /// The operators by stage: stage 0 needs nothing of other replicas, stage `i + 1` needs the
    /// collectives of stage `i`. The last stage has no collectives.
    fn stages(&self) -> Vec<Vec<NodeId>> {
        let mut stage = self.template.node_map(0usize);
        let mut stages = vec![Vec::new()];
        for id in self.claims.order() {
            let node = self.template.node(*id);
            if node.op().is_none() || self.update_nodes.is_update_only(*id) {
                continue;
            }
            // A reshape of gathered rows runs with the gather, on the device that merges, not a
            // stage later.
            let with = self.reshapes_gathered(*id);
            let after =
                |v: &Value| stage[v.node] + usize::from(!with && self.is_collective(v.node));
            // Operators without operands belong to stage 0.
            let own = self.template.operand_list(*id).iter().map(after).max().unwrap_or(0);
            stage[*id] = own;
            let count = own + 1 + usize::from(self.is_collective(*id));
            if stages.len() < count {
                stages.resize(count, Vec::new());
            }
            stages[own].push(*id);
        }
        stages
    }

    /// Slices the replica's rows of every input and copies them to its device.
    fn slice_inputs(&mut self, replica: &mut Replica) {
        let parts: Vec<Value> =
            self.template.inputs().map(|v| self.slice_input(replica, v)).collect();
        for (input, part) in self.template.inputs().zip(parts) {
            let name = &self.template.info(input).name;
            let value = self.copy_to(replica, replica.device, part, name, ".d");
            replica.values[input.node] = Some(value);
        }
    }

    /// Copies the replica's outputs to the device that merges them; a value that is several outputs
    /// is copied once.
    fn return_outputs(&mut self, replica: &mut Replica, parts: &mut [Vec<Value>]) {
        let outputs = self.template.outputs();
        for (i, output) in outputs.iter().enumerate() {
            if self.first_output[i] != i {
                let part = parts[self.first_output[i]].last().copied();
                parts[i].extend(part);
                continue;
            }
            if self.whole(output.value).is_some() {
                continue;
            }
            let value = self.local(replica, output.value);
            let name = self.template.info(output.value).name.clone();
            parts[i].push(self.copy_to(replica, self.merge_device, value, &name, ".h"));
        }
    }

    /// Writes the merge of each output value, and its copy to the host.
    fn merge_outputs(&mut self, parts: &[Vec<Value>]) -> Result<(), PassError> {
        let outputs = self.template.outputs();
        let mut merged: Vec<Value> = Vec::with_capacity(outputs.len());
        for (i, parts) in parts.iter().enumerate() {
            let value = match merged.get(self.first_output[i]) {
                Some(shared) => *shared,
                None => self.merge(outputs[i].value, parts)?,
            };
            merged.push(value);
        }
        self.merged.extend(outputs.iter().map(|o| o.value).zip(merged.iter().copied()));
        for i in 0..outputs.len() {
            let value = match self.out.outputs().get(self.first_output[i]) {
                Some(shared) => shared.value,
                None => self.copy_to_host(merged[i], outputs[i].value),
            };
            self.out.add_output(outputs[i].name.clone(), value);
        }
        Ok(())
    }

    /// The merge of the replicas' parts of `value`; a collective's result where there is one.
    fn merge(&mut self, value: Value, parts: &[Value]) -> Result<Value, PassError> {
        if let Some(whole) = self.whole(value) {
            return Ok(whole);
        }
        let template = self.template;
        let claim = self.claims.get(value);
        let op: Op = match claim.shard() {
            Some(shard) => Concat { axis: int::<i64>(shard.axis) }.into(),
            None => self.combine(claim),
        };
        // The value on the host has the template's name; a merge elsewhere leaves that name to the
        // copy.
        let name = if self.merge_device == Device::HOST {
            self.merged_name(value)
        } else {
            self.free_name(&template.info(value).name, ".all")
        };
        let origin = self.template.node(value.node).origin().clone();
        let place = DevicePlacement { device: self.merge_device, replica: None };
        Ok(Value { node: self.out.add(op, parts, &[name], place, origin)?, output: 0 })
    }

    /// The merged value on the host.
    fn copy_to_host(&mut self, merged: Value, value: Value) -> Value {
        if self.out.node(merged.node).place().device == Device::HOST {
            return merged;
        }
        let name = self.merged_name(value);
        self.add_copy(merged, name, DevicePlacement::HOST)
    }

    /// The template's name of an output value; an input or parameter keeps its name for itself.
    fn merged_name(&mut self, value: Value) -> Arc<str> {
        let template = self.template;
        let name = &template.info(value).name;
        match template.node(value.node).kind() {
            NodeKind::Op(_) => name.clone(),
            NodeKind::Input | NodeKind::Param(_) => self.free_name(name, ".merged"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rewrite;
    use crate::analysis::claims;
    use crate::ir::parse;
    use crate::pass::Replicate;
    use crate::types::{Device, Split};

    #[test]
    #[should_panic(expected = "that inputs are written before what takes them")]
    fn an_input_that_is_not_written_is_no_value_of_the_old_graph() {
        let text =
            "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N]) -> (x: f32[N]) {\n  return %x\n}\n";
        let graph = parse(text).unwrap();
        let options = Replicate::over(vec![Device::gpu(0), Device::gpu(1)]);
        let split = Split::new(options.devices.clone(), options.rule.clone()).unwrap();
        let claims = claims(&graph).unwrap();
        let mut rewrite = Rewrite::new(&graph, &claims, &split, &options);
        let replica = rewrite.replicas().remove(0);
        let input = graph.inputs().next().unwrap();
        rewrite.slice_input(&replica, input);
    }
}
