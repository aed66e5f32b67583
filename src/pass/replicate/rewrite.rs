//! The graph over all replicas, written from the template.

mod join;
mod once;
mod updates;
mod writer;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use self::writer::Replica;
pub(super) use self::writer::Rewrite;
use crate::ir::{Graph, Node, NodeId, NodeKind, Place, ResultInfo, Value};
use crate::op::{Concat, CopyOp, Op};
use crate::pass::PassError;
use crate::types::Device;
use crate::types::invariant::int;

impl Rewrite<'_> {
    pub(super) fn run(mut self) -> Result<Graph, PassError> {
        for input in self.template.inputs() {
            let info = self.template.info(input);
            self.inputs[input.node.index()] =
                Some(self.out.add_input(info.name.clone(), info.ty.clone()));
        }
        let mut replicas = self.replicas();
        let stages = self.stages();
        let mut parts: Vec<Vec<Value>> = vec![Vec::new(); self.template.outputs().len()];
        for (stage, nodes) in stages.iter().enumerate() {
            let last = stage + 1 == stages.len();
            let (joins, clones): (Vec<NodeId>, Vec<NodeId>) =
                nodes.iter().partition(|id| self.is_collective(**id));
            let clones: Vec<NodeId> =
                clones.into_iter().filter(|id| !self.is_drawn_apart(*id)).collect();
            for replica in &mut replicas {
                if stage == 0 {
                    self.slice_inputs(replica);
                }
                for id in &clones {
                    self.clone_node(replica, *id);
                }
                if last {
                    self.return_outputs(replica, &mut parts);
                }
            }
            for id in joins {
                self.collective(id, &mut replicas)?;
            }
        }
        self.merge_outputs(&parts)?;
        self.updates(&mut replicas)?;
        Ok(self.out)
    }

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
                values: vec![SmallVec::new(); self.template.id_bound()],
                suffix: format!(".r{index}"),
                last: None,
            })
        };
        devices.filter_map(replica).collect()
    }

    /// The operators in the order in which they are written: replica after replica what needs
    /// nothing of others, then what joins their values, and so on. The last stage joins nothing.
    fn stages(&self) -> Vec<Vec<NodeId>> {
        let mut stage = vec![0usize; self.template.id_bound()];
        let mut stages = vec![Vec::new()];
        for id in self.claims.order() {
            let node = self.template.node(*id);
            if node.op().is_none() || self.once.only(*id) {
                continue;
            }
            let with = self.reshapes_joined(*id);
            let after = |v: &Value| {
                stage[v.node.index()] + usize::from(!with && self.is_collective(v.node))
            };
            // What has no operands can be computed first.
            let own = self.template.operands(*id).iter().map(after).max().unwrap_or(0);
            stage[id.index()] = own;
            let count = own + 1 + usize::from(self.is_collective(*id));
            if stages.len() < count {
                stages.resize(count, Vec::new());
            }
            stages[own].push(*id);
        }
        stages
    }

    /// The replica's rows of every input, on its device.
    fn slice_inputs(&mut self, replica: &mut Replica) {
        let parts: Vec<Value> =
            self.template.inputs().map(|v| self.slice_input(replica, v)).collect();
        for (input, part) in self.template.inputs().zip(parts) {
            let name = &self.template.info(input).name;
            let value = self.copy_to(replica, replica.device, part, name, ".d");
            replica.values[input.node.index()] = smallvec![value];
        }
    }

    fn clone_node(&mut self, replica: &mut Replica, id: NodeId) {
        let node = self.template.node(id);
        let NodeKind::Op(op) = node.kind() else { return };
        let operands = self.template.operands(id);
        if let Some(value) = self.draw_rows(replica, id) {
            replica.values[id.index()] = smallvec![value];
            return;
        }
        let operands: SmallVec<[Value; 4]> =
            operands.into_iter().map(|v| self.own(replica, v)).collect();
        replica.values[id.index()] = match (op, operands.as_slice()) {
            (Op::OwnRows(_), [whole]) => smallvec![self.own_rows(replica, id, *whole)],
            _ => self.clone_operator(replica, id, op.clone(), &operands),
        };
    }

    fn clone_operator(
        &mut self,
        replica: &mut Replica,
        id: NodeId,
        mut op: Op,
        operands: &[Value],
    ) -> SmallVec<[Value; 1]> {
        let node: &Node = self.template.node(id);
        let is_split = self.claims.is_local(self.template, id);
        if is_split {
            op.at_rows(&replica.rows);
        }
        let place = replica.place();
        let count = int::<u32>(node.results().len());
        let names: SmallVec<[Arc<str>; 1]> =
            node.results().iter().map(|r| self.free_name(&r.name, &replica.suffix)).collect();
        // Inference may know the elements of values whose sizes are constants, as those without
        // rows are.
        if replica.rows.is_const()
            && let Ok(clone) =
                self.out.add(op.clone(), operands, &names, place, node.origin().clone())
        {
            return (0..count).map(|output| Value { node: clone, output }).collect();
        }
        let results = node
            .results()
            .iter()
            .zip(names)
            .map(|(r, name)| ResultInfo {
                name,
                ty: if is_split { replica.part(&r.ty) } else { r.ty.clone() },
                // Elements that are formulas of N are known again where they stay: inference gives
                // them.
                ints: r.ints.as_ref().map(|ints| {
                    ints.iter()
                        .map(|d| if is_split { d.at_rows(&replica.rows) } else { d.clone() })
                        .collect()
                }),
            })
            .collect::<SmallVec<[ResultInfo; 1]>>();
        let clone = self.out.add_typed(op, operands, results, place, node.origin().clone());
        (0..count).map(|output| Value { node: clone, output }).collect()
    }

    /// Copies the replica's outputs to the device that merges them, each value once.
    fn return_outputs(&mut self, replica: &mut Replica, parts: &mut [Vec<Value>]) {
        let outputs = self.template.outputs();
        for (i, output) in outputs.iter().enumerate() {
            if self.first[i] != i {
                let part = parts[self.first[i]].last().copied();
                parts[i].extend(part);
                continue;
            }
            if self.whole(output.value).is_some() {
                continue;
            }
            let value = self.own(replica, output.value);
            let name = self.template.info(output.value).name.clone();
            parts[i].push(self.copy_to(replica, self.merge_device, value, &name, ".h"));
        }
    }

    /// One merge for each value that is an output, then its way to the host.
    fn merge_outputs(&mut self, parts: &[Vec<Value>]) -> Result<(), PassError> {
        let outputs = self.template.outputs();
        let mut merged: Vec<Value> = Vec::with_capacity(outputs.len());
        for (i, parts) in parts.iter().enumerate() {
            let value = match merged.get(self.first[i]) {
                Some(shared) => *shared,
                None => self.merge(outputs[i].value, parts)?,
            };
            merged.push(value);
        }
        self.merged.extend(outputs.iter().map(|o| o.value).zip(merged.iter().copied()));
        for i in 0..outputs.len() {
            let value = match self.out.outputs().get(self.first[i]) {
                Some(shared) => shared.value,
                None => self.bring_home(merged[i], outputs[i].value),
            };
            self.out.add_output(outputs[i].name.clone(), value);
        }
        Ok(())
    }

    /// The replicas' parts of `value` joined, or the one that they all hold.
    fn merge(&mut self, value: Value, parts: &[Value]) -> Result<Value, PassError> {
        if let Some(whole) = self.whole(value) {
            return Ok(whole);
        }
        let claim = self.claims.get(value);
        let op: Op = match claim.shard() {
            Some(shard) => Concat { axis: int::<i64>(shard.axis) }.into(),
            None => self.combine(claim),
        };
        let name = if self.merge_device == Device::HOST {
            self.merged_name(value)
        } else {
            self.free_name(&self.template.info(value).name, ".all")
        };
        let origin = self.template.node(value.node).origin().clone();
        let place = Place { device: self.merge_device, replica: None };
        Ok(Value { node: self.out.add(op, parts, &[name], place, origin)?, output: 0 })
    }

    fn bring_home(&mut self, merged: Value, value: Value) -> Value {
        if self.merge_device == Device::HOST {
            return merged;
        }
        let ty = self.out.ty(merged).clone();
        let name = self.merged_name(value);
        self.add(CopyOp {}.into(), merged, name, ty, Place::HOST)
    }

    /// The name of an output's value in the template, unless an input or a parameter has it.
    fn merged_name(&self, value: Value) -> Arc<str> {
        let name = &self.template.info(value).name;
        match self.template.node(value.node).kind() {
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
