mod join;
mod once;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use self::join::Joined;
use self::once::Once;
use super::options::{Merge, Replicate, WeightPlacement};
use crate::analysis::ClaimMap;
use crate::ir::{
    Graph, Node, NodeId, NodeKind, Origin, ParamId, Place, Placement, ResultInfo, Value,
};
use crate::op::{Concat, CopyOp, Op, Slice};
use crate::pass::PassError;
use crate::types::invariant::{int, invariant};
use crate::types::{Device, Dim, Shard, Split, TensorType};

/// The template, what is known of it, and the graph that replaces it as far as it is written.
pub(super) struct Rewrite<'a> {
    template: &'a Graph,
    claims: &'a ClaimMap,
    split: &'a Split,
    merge_device: Device,
    out: Graph,
    /// The inputs of `out`, by the template's input node.
    inputs: Vec<Option<Value>>,
    /// The node of each parameter on the devices that hold it, by parameter and device.
    params: Vec<Option<Value>>,
    /// The names of inputs and merged outputs that clones might take, and must not.
    reserved: BTreeSet<Arc<str>>,
    /// For each output the first output that is the same value.
    first: Vec<usize>,
    /// What joins the values of all replicas, by the template's node.
    joined: Vec<Option<Joined>>,
    /// The same, by the value of the template whose parts are joined.
    merged: HashMap<Value, Value>,
    /// What is written once for all replicas, for the updates.
    once: Once,
}

/// The values of one replica.
struct Replica {
    index: u32,
    device: Device,
    rows: Dim,
    from: Dim,
    to: Dim,
    /// The clone's results, by the template's node.
    values: Vec<SmallVec<[Value; 1]>>,
    /// The suffix of its names.
    suffix: String,
    /// The type that was asked for last, and what it is on the replica's rows.
    last: Option<(TensorType, TensorType)>,
}

impl Replica {
    /// The type of the replica's part of a value of type `ty`.
    fn part(&mut self, ty: &TensorType) -> TensorType {
        match &self.last {
            Some((whole, part)) if whole == ty => part.clone(),
            _ => {
                let part = ty.at_rows(&self.rows);
                self.last = Some((ty.clone(), part.clone()));
                part
            }
        }
    }

    fn place(&self) -> Place {
        Place { device: self.device, replica: Some(self.index) }
    }

    /// The places of its rows on the axis that has them.
    fn range(&self, shard: Shard) -> (Dim, Dim) {
        let inner = int::<i64>(shard.inner);
        (self.from.clone() * inner, self.to.clone() * inner)
    }

    fn get(&self, value: Value) -> Value {
        self.values[value.node.index()][value.output as usize]
    }
}

impl<'a> Rewrite<'a> {
    pub(super) fn new(
        template: &'a Graph,
        claims: &'a ClaimMap,
        split: &'a Split,
        options: &Replicate,
    ) -> Self {
        let merge_device = match (options.merge, split.devices().first()) {
            (Merge::Gpu, Some(device)) => *device,
            _ => Device::HOST,
        };
        let mut out = Graph::new(template.name());
        let nodes = template.len() * split.replicas();
        out.reserve(nodes + nodes / 8, nodes * 2);
        out.set_split(Some(split.clone()));
        for param in template.params() {
            let mut param = param.clone();
            match options.weights {
                WeightPlacement::Template => {}
                WeightPlacement::Cpu => param.placement = Placement::Shared(Device::HOST),
                WeightPlacement::Mirrored => param.placement = Placement::Mirrored,
            }
            out.add_param(param);
        }
        // A clone's name has a dot before its suffix, so that only names with a dot can be taken.
        let names = template.inputs().chain(template.outputs().iter().map(|o| o.value));
        let names = names.map(|v| template.info(v).name.clone());
        let once = Once::new(template, claims);
        let names = names.chain(once.names(template));
        let reserved = names.filter(|name| name.contains('.')).collect();
        let params = vec![None; template.params().len() * split.replicas()];
        let inputs = vec![None; template.id_bound()];
        let mut seen = HashMap::new();
        let outputs = template.outputs().iter().enumerate();
        let first = outputs.map(|(i, o)| *seen.entry(o.value).or_insert(i)).collect();
        let joined = vec![None; template.id_bound()];
        Self {
            template,
            claims,
            split,
            merge_device,
            out,
            inputs,
            params,
            reserved,
            first,
            joined,
            merged: HashMap::new(),
            once,
        }
    }

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

    /// The replica's form of a value of the template, on its device.
    fn own(&mut self, replica: &mut Replica, value: Value) -> Value {
        if replica.values[value.node.index()].is_empty() {
            let node = self.template.node(value.node);
            let brought = match (node.kind(), self.joined[value.node.index()]) {
                (NodeKind::Param(param), _) => smallvec![self.bring_param(replica, *param)],
                (_, Some(joined)) => (0u32..)
                    .zip(node.results())
                    .map(|(output, result)| {
                        let joined = joined.result(output, replica.index);
                        self.copy_to(replica, replica.device, joined, &result.name, ".d")
                    })
                    .collect(),
                (NodeKind::Input | NodeKind::Op(_), None) => SmallVec::new(),
            };
            replica.values[value.node.index()] = brought;
        }
        replica.get(value)
    }

    /// Whether replicas draw their own rows of this node's numbers, and no others.
    fn is_drawn_apart(&self, id: NodeId) -> bool {
        let template = self.template;
        let users = template.users(id);
        let rows = |user: NodeId| {
            let own = matches!(template.node(user).op(), Some(Op::OwnRows(_)));
            own && self.own_shard(user).is_some_and(|shard| shard.outer == 1)
        };
        matches!(template.node(id).op(), Some(Op::Random(draw)) if !draw.is_part())
            && !users.is_empty()
            && users.iter().all(|(user, ..)| rows(*user))
            && !template.is_kept(Value { node: id, output: 0 })
    }

    /// Where a replica has its rows of an operator's first result.
    fn own_shard(&self, id: NodeId) -> Option<Shard> {
        self.claims.get(Value { node: id, output: 0 }).shard()
    }

    /// The replica's rows of a draw, without the others.
    fn draw_rows(&mut self, replica: &Replica, id: NodeId) -> Option<Value> {
        let [whole] = *self.template.operands(id) else { return None };
        let Some(Op::Random(draw)) = self.template.node(whole.node).op() else { return None };
        let shard = self.own_shard(id).filter(|_| self.is_drawn_apart(whole.node))?;
        let (from, to) = replica.range(shard);
        let part = draw.rows(shard.axis, &from, &to)?;
        let info = self.template.info(Value { node: id, output: 0 });
        let name = self.free_name(&info.name, &replica.suffix);
        let ty = info.ty.at_rows(&replica.rows);
        let results = smallvec![ResultInfo { name, ty, ints: None }];
        let origin = self.template.node(id).origin().clone();
        let node = self.out.add_typed(part.into(), &[], results, replica.place(), origin);
        Some(Value { node, output: 0 })
    }

    /// The replica's rows of a value that it holds whole.
    fn own_rows(&mut self, replica: &Replica, id: NodeId, whole: Value) -> Value {
        let info = self.template.info(Value { node: id, output: 0 });
        let Some(shard) = self.own_shard(id) else { return whole };
        let (from, to) = replica.range(shard);
        let name = self.free_name(&info.name, &replica.suffix);
        let op = Slice::rows(shard.axis, from, to).into();
        self.add(op, whole, name, info.ty.at_rows(&replica.rows), replica.place())
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

    /// The replica's rows of an input on the host, or all of it where it carries no batch.
    fn slice_input(&mut self, replica: &Replica, input: Value) -> Value {
        let info = self.template.info(input);
        let whole = self.inputs[input.node.index()].unwrap_or(input);
        let Some(shard) = self.claims.get(input).shard() else { return whole };
        let (from, to) = replica.range(shard);
        let op = Slice::rows(shard.axis, from, to);
        let name = self.free_name(&info.name, &replica.suffix);
        let place = Place { device: Device::HOST, replica: Some(replica.index) };
        self.add(op.into(), whole, name, info.ty.at_rows(&replica.rows), place)
    }

    /// The parameter as the replica's device sees it.
    fn bring_param(&mut self, replica: &Replica, id: ParamId) -> Value {
        let name = self.out.param(id).name.clone();
        let held = self.held_param(id, replica.device);
        self.copy_to(replica, replica.device, held, &name, ".w")
    }

    /// The parameter on the device that holds it, as `device` sees it.
    fn held_param(&mut self, id: ParamId, device: Device) -> Value {
        let home = self.out.param(id).placement.seen_from(device);
        let column = self.out.homes(id).iter().position(|held| *held == home);
        let column = invariant(column, "that a parameter is held where it is seen from");
        let slot = id.0 as usize * self.split.replicas() + column;
        let held = match self.params[slot] {
            Some(value) => value,
            None => self.out.add_param_node(id, home),
        };
        self.params[slot] = Some(held);
        held
    }

    /// `value` on `device`: a copy, unless it is there.
    fn copy_to(
        &mut self,
        replica: &Replica,
        device: Device,
        value: Value,
        name: &Arc<str>,
        suffix: &str,
    ) -> Value {
        if self.out.node(value.node).place().device == device {
            return value;
        }
        let name = self.name(name, replica.index, suffix);
        let place = Place { device, replica: Some(replica.index) };
        let ty = self.out.ty(value).clone();
        self.add(CopyOp {}.into(), value, name, ty, place)
    }

    fn add(
        &mut self,
        op: Op,
        operand: Value,
        name: Arc<str>,
        ty: TensorType,
        place: Place,
    ) -> Value {
        let ints = self.out.info(operand).ints.clone().filter(|_| matches!(op, Op::CopyOp(_)));
        let results = smallvec![ResultInfo { name, ty, ints }];
        Value {
            node: self.out.add_typed(op, &[operand], results, place, Origin::default()),
            output: 0,
        }
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

    /// The whole of a value, where something joined the replicas' parts of it already.
    fn whole(&self, value: Value) -> Option<Value> {
        match self.joined[value.node.index()] {
            Some(joined @ Joined::Whole(_)) => Some(joined.result(value.output, 0)),
            Some(Joined::Each(_)) | None => self.merged.get(&value).copied(),
        }
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

    /// The name of replica `index`'s clone of `name`.
    fn name(&self, name: &str, index: u32, suffix: &str) -> Arc<str> {
        self.free_name(name, &format!(".r{index}{suffix}"))
    }

    fn free_name(&self, name: &str, suffix: &str) -> Arc<str> {
        let mut wanted = String::with_capacity(name.len() + suffix.len());
        wanted.push_str(name);
        wanted.push_str(suffix);
        while self.reserved.contains(wanted.as_str()) {
            wanted.push('_');
        }
        wanted.into()
    }
}
