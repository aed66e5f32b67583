//! What the pass writes into, and how values reach a replica.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::once::Once;
use crate::analysis::ClaimMap;
use crate::ir::{Graph, NodeId, NodeKind, Origin, ParamId, Place, Placement, ResultInfo, Value};
use crate::op::{CopyOp, Op, Slice};
use crate::pass::replicate::options::{Merge, Replicate, WeightPlacement};
use crate::types::invariant::{int, invariant};
use crate::types::{Device, Dim, Shard, Split, TensorType};

/// The template, what is known of it, and the graph that replaces it as far as it is written.
pub(in super::super) struct Rewrite<'a> {
    pub(super) template: &'a Graph,
    pub(super) claims: &'a ClaimMap,
    pub(super) split: &'a Split,
    pub(super) merge_device: Device,
    pub(super) out: Graph,
    /// The inputs of `out`, by the template's input node.
    pub(super) inputs: Vec<Option<Value>>,
    /// The node of each parameter on the devices that hold it, by parameter and device.
    pub(super) params: Vec<Option<Value>>,
    /// The names of inputs and merged outputs that clones might take, and must not.
    pub(super) reserved: BTreeSet<Arc<str>>,
    /// For each output the first output that is the same value.
    pub(super) first: Vec<usize>,
    /// What joins the values of all replicas, by the template's node.
    pub(super) joined: Vec<Option<Joined>>,
    /// The same, by the value of the template whose parts are joined.
    pub(super) merged: HashMap<Value, Value>,
    /// What is written once for all replicas, for the updates.
    pub(super) once: Once,
}

/// The values of one replica.
pub(super) struct Replica {
    pub(super) index: u32,
    pub(super) device: Device,
    pub(super) rows: Dim,
    pub(super) from: Dim,
    pub(super) to: Dim,
    /// The clone's results, by the template's node.
    pub(super) values: Vec<SmallVec<[Value; 1]>>,
    /// The suffix of its names.
    pub(super) suffix: String,
    /// The type that was asked for last, and what it is on the replica's rows.
    pub(super) last: Option<(TensorType, TensorType)>,
}

impl Replica {
    /// The type of the replica's part of a value of type `ty`.
    pub(super) fn part(&mut self, ty: &TensorType) -> TensorType {
        match &self.last {
            Some((whole, part)) if whole == ty => part.clone(),
            _ => {
                let part = ty.at_rows(&self.rows);
                self.last = Some((ty.clone(), part.clone()));
                part
            }
        }
    }

    pub(super) fn place(&self) -> Place {
        Place { device: self.device, replica: Some(self.index) }
    }

    /// The places of its rows on the axis that has them.
    pub(super) fn range(&self, shard: Shard) -> (Dim, Dim) {
        let inner = int::<i64>(shard.inner);
        (self.from.clone() * inner, self.to.clone() * inner)
    }

    pub(super) fn get(&self, value: Value) -> Value {
        self.values[value.node.index()][value.output as usize]
    }
}

/// What joins the replicas' parts.
#[derive(Clone, Copy)]
pub(super) enum Joined {
    /// The whole.
    Whole(Value),
    /// A node with a result for each replica.
    Each(NodeId),
}

impl Joined {
    /// What a replica sees of the template's result number `output`.
    pub(super) fn result(self, output: u32, replica: u32) -> Value {
        match self {
            Self::Whole(whole) => Value { output, ..whole },
            Self::Each(node) => Value { node, output: replica },
        }
    }
}

impl<'a> Rewrite<'a> {
    pub(in super::super) fn new(
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

    /// The replica's form of a value of the template, on its device.
    pub(super) fn own(&mut self, replica: &mut Replica, value: Value) -> Value {
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
    pub(super) fn is_drawn_apart(&self, id: NodeId) -> bool {
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
    pub(super) fn own_shard(&self, id: NodeId) -> Option<Shard> {
        self.claims.get(Value { node: id, output: 0 }).shard()
    }

    /// The replica's rows of a draw, without the others.
    pub(super) fn draw_rows(&mut self, replica: &Replica, id: NodeId) -> Option<Value> {
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
    pub(super) fn own_rows(&mut self, replica: &Replica, id: NodeId, whole: Value) -> Value {
        let info = self.template.info(Value { node: id, output: 0 });
        let Some(shard) = self.own_shard(id) else { return whole };
        let (from, to) = replica.range(shard);
        let name = self.free_name(&info.name, &replica.suffix);
        let op = Slice::rows(shard.axis, from, to).into();
        self.add(op, whole, name, info.ty.at_rows(&replica.rows), replica.place())
    }

    /// The new graph's value of an input of the template.
    pub(super) fn input(&self, input: Value) -> Value {
        let what = "that inputs are written before what takes them";
        invariant(self.inputs[input.node.index()], what)
    }

    /// The replica's rows of an input on the host, or all of it where it carries no batch.
    pub(super) fn slice_input(&mut self, replica: &Replica, input: Value) -> Value {
        let info = self.template.info(input);
        let whole = self.input(input);
        let Some(shard) = self.claims.get(input).shard() else { return whole };
        let (from, to) = replica.range(shard);
        let op = Slice::rows(shard.axis, from, to);
        let name = self.free_name(&info.name, &replica.suffix);
        let place = Place { device: Device::HOST, replica: Some(replica.index) };
        self.add(op.into(), whole, name, info.ty.at_rows(&replica.rows), place)
    }

    /// The parameter as the replica's device sees it.
    pub(super) fn bring_param(&mut self, replica: &Replica, id: ParamId) -> Value {
        let name = self.out.param(id).name.clone();
        let held = self.held_param(id, replica.device);
        self.copy_to(replica, replica.device, held, &name, ".w")
    }

    /// The parameter on the device that holds it, as `device` sees it.
    pub(super) fn held_param(&mut self, id: ParamId, device: Device) -> Value {
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
    pub(super) fn copy_to(
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

    pub(super) fn add(
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

    /// The whole of a value, where something joined the replicas' parts of it already.
    pub(super) fn whole(&self, value: Value) -> Option<Value> {
        match self.joined[value.node.index()] {
            Some(joined @ Joined::Whole(_)) => Some(joined.result(value.output, 0)),
            Some(Joined::Each(_)) | None => self.merged.get(&value).copied(),
        }
    }

    /// The name of replica `index`'s clone of `name`.
    pub(super) fn name(&self, name: &str, index: u32, suffix: &str) -> Arc<str> {
        self.free_name(name, &format!(".r{index}{suffix}"))
    }

    pub(super) fn free_name(&self, name: &str, suffix: &str) -> Arc<str> {
        let mut wanted = String::with_capacity(name.len() + suffix.len());
        wanted.push_str(name);
        wanted.push_str(suffix);
        while self.reserved.contains(wanted.as_str()) {
            wanted.push('_');
        }
        wanted.into()
    }
}
