//! State of the rewrite: the graph being written, and access to values as a replica sees them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::update_nodes::UpdateNodes;
use crate::analysis::ClaimMap;
use crate::ir::{
    DevicePlacement, Graph, NodeId, NodeKind, NodeMap, Origin, ParamId, Placement, ResultInfo,
    Value,
};
use crate::op::{CopyOp, Op, Slice};
use crate::pass::replicate::options::{Merge, Replicate, WeightPlacement};
use crate::types::invariant::{int, invariant};
use crate::types::{Device, Dim, Shard, Split, TensorType};

/// The template with its claims and split, and the replicated graph as far as it is written.
pub(in super::super) struct Rewrite<'a> {
    pub(super) template: &'a Graph,
    pub(super) claims: &'a ClaimMap,
    pub(super) split: &'a Split,
    pub(super) merge_device: Device,
    pub(super) out: Graph,
    /// The inputs of `out`, by input node of the template.
    pub(super) inputs: NodeMap<Option<Value>>,
    /// The node of each parameter on the devices that hold it, by parameter and device.
    pub(super) params: Vec<Option<Value>>,
    /// Names of inputs and merged outputs with a dot, which clones must not take.
    pub(super) reserved: BTreeSet<Arc<str>>,
    /// By output: the first output with the same value.
    pub(super) first_output: Vec<usize>,
    /// The results of collectives, by node of the template.
    pub(super) joined: NodeMap<Option<CollectiveResult>>,
    /// The merged values, by value of the template whose parts they join.
    pub(super) merged: HashMap<Value, Value>,
    /// The nodes that are written once, for updates.
    pub(super) update_nodes: UpdateNodes,
}

/// The values of one replica.
pub(super) struct Replica {
    pub(super) index: u32,
    pub(super) device: Device,
    pub(super) rows: Dim,
    pub(super) from: Dim,
    pub(super) to: Dim,
    /// The results of the clones, by node of the template.
    pub(super) values: NodeMap<SmallVec<[Value; 1]>>,
    /// The suffix of the names of its values.
    pub(super) suffix: String,
    /// Whether its values are whole, and belong to no replica.
    pub(super) is_whole: bool,
    /// The last type looked up and its form on the replica's rows: neighbouring nodes mostly have
    /// equal types, and replacing `N` in formulas is slow.
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

    /// The placement of the replica's nodes.
    pub(super) fn placement(&self) -> DevicePlacement {
        self.placement_on(self.device)
    }

    /// The placement of its nodes on another device.
    fn placement_on(&self, device: Device) -> DevicePlacement {
        DevicePlacement { device, replica: (!self.is_whole).then_some(self.index) }
    }

    /// The range of its rows on the axis of a shard, which has `inner` entries for each row.
    pub(super) fn range(&self, shard: Shard) -> (Dim, Dim) {
        let inner = int::<i64>(shard.inner);
        (self.from.clone() * inner, self.to.clone() * inner)
    }

    /// The replica's form of a value that it has.
    pub(super) fn get(&self, value: Value) -> Value {
        self.values[value.node][value.output as usize]
    }
}

/// The result of a collective.
#[derive(Clone, Copy)]
pub(super) enum CollectiveResult {
    /// The whole value, the same for all replicas.
    Whole(Value),
    /// A node with a result for each replica.
    Each(NodeId),
}

impl CollectiveResult {
    /// The value that a replica uses for the template's result number `output`.
    pub(super) fn result(self, output: u32, replica: u32) -> Value {
        match self {
            Self::Whole(whole) => Value { output, ..whole },
            Self::Each(node) => Value { node, output: replica },
        }
    }
}

impl<'a> Rewrite<'a> {
    /// An empty graph with the template's parameters, placed by the options.
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
        out.set_symbols(template.symbols().to_vec());
        let nodes = template.len() * split.replicas();
        // Room for the clones, and an eighth more for slices and copies: growing would copy the
        // graph.
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
        let update_nodes = UpdateNodes::new(template, claims);
        let names = names.chain(UpdateNodes::names(template));
        let reserved = names.filter(|name| name.contains('.')).collect();
        let params = vec![None; template.params().len() * split.replicas()];
        let inputs = template.node_map(None);
        let mut seen = HashMap::new();
        let outputs = template.outputs().iter().enumerate();
        let first_output = outputs.map(|(i, o)| *seen.entry(o.value).or_insert(i)).collect();
        let joined = template.node_map(None);
        Self {
            template,
            claims,
            split,
            merge_device,
            out,
            inputs,
            params,
            reserved,
            first_output,
            joined,
            merged: HashMap::new(),
            update_nodes,
        }
    }

    /// The replica's form of a value of the template, on its device; copied there at the first use.
    pub(super) fn local(&mut self, replica: &mut Replica, value: Value) -> Value {
        if replica.values[value.node].is_empty() {
            let node = self.template.node(value.node);
            let brought = match (node.kind(), self.joined[value.node]) {
                (NodeKind::Param(param), _) => smallvec![self.copy_param(replica, *param)],
                (_, Some(joined)) => (0u32..)
                    .zip(node.results())
                    .map(|(output, result)| {
                        let joined = joined.result(output, replica.index);
                        self.copy_to(replica, replica.device, joined, &result.name, ".d")
                    })
                    .collect(),
                (NodeKind::Input | NodeKind::Op(_), None) => SmallVec::new(),
            };
            replica.values[value.node] = brought;
        }
        replica.get(value)
    }

    /// True if replicas can draw their own rows of this node's random numbers alone: every user
    /// takes own rows, in one block. Drawing all of them would repeat the work on each replica.
    pub(super) fn draws_own_rows(&self, id: NodeId) -> bool {
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

    /// The shard of an operator's first result.
    pub(super) fn own_shard(&self, id: NodeId) -> Option<Shard> {
        self.claims.get(Value { node: id, output: 0 }).shard()
    }

    /// The replica's rows of a random draw, drawn alone.
    pub(super) fn draw_rows(&mut self, replica: &Replica, id: NodeId) -> Option<Value> {
        let [whole] = *self.template.operands(id) else { return None };
        let Some(Op::Random(draw)) = self.template.node(whole.node).op() else { return None };
        let shard = self.own_shard(id).filter(|_| self.draws_own_rows(whole.node))?;
        let (from, to) = replica.range(shard);
        let part = draw.rows(shard.axis, &from, &to)?;
        let info = self.template.info(Value { node: id, output: 0 });
        let name = self.free_name(&info.name, &replica.suffix);
        let ty = info.ty.at_rows(&replica.rows);
        let results = smallvec![ResultInfo { name, ty, ints: None }];
        let origin = self.template.node(id).origin().clone();
        let node = self.out.add_typed(part.into(), &[], results, replica.placement(), origin);
        Some(Value { node, output: 0 })
    }

    /// A slice of the replica's rows of a value that it holds whole.
    pub(super) fn own_rows(&mut self, replica: &Replica, id: NodeId, whole: Value) -> Value {
        let info = self.template.info(Value { node: id, output: 0 });
        let Some(shard) = self.own_shard(id) else { return whole };
        let (from, to) = replica.range(shard);
        let name = self.free_name(&info.name, &replica.suffix);
        let op = Slice::rows(shard.axis, from, to).into();
        self.add(op, whole, name, info.ty.at_rows(&replica.rows), replica.placement())
    }

    /// The new value of an input of the template.
    pub(super) fn input(&self, input: Value) -> Value {
        let what = "that inputs are written before what takes them";
        invariant(self.inputs[input.node], what)
    }

    /// A slice, on the host, of the replica's rows of an input; all of an input without a batch.
    pub(super) fn slice_input(&mut self, replica: &Replica, input: Value) -> Value {
        let info = self.template.info(input);
        let whole = self.input(input);
        let Some(shard) = self.claims.get(input).shard() else { return whole };
        let (from, to) = replica.range(shard);
        let op = Slice::rows(shard.axis, from, to);
        let name = self.free_name(&info.name, &replica.suffix);
        let place = DevicePlacement { device: Device::HOST, replica: Some(replica.index) };
        self.add(op.into(), whole, name, info.ty.at_rows(&replica.rows), place)
    }

    /// The parameter on the replica's device: its own copy, or a copy made in each run.
    pub(super) fn copy_param(&mut self, replica: &Replica, id: ParamId) -> Value {
        let name = self.out.param(id).name.clone();
        let held = self.held_param(id, replica.device);
        self.copy_to(replica, replica.device, held, &name, ".w")
    }

    /// The parameter on the device that holds it for `device`.
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

    /// `value` on `device`: a copy, unless it is there already.
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
        let place = replica.placement_on(device);
        let ty = self.out.ty(value).clone();
        self.add(CopyOp {}.into(), value, name, ty, place)
    }

    /// Adds an operator with one operand and a known type. A copy keeps known elements.
    pub(super) fn add(
        &mut self,
        op: Op,
        operand: Value,
        name: Arc<str>,
        ty: TensorType,
        place: DevicePlacement,
    ) -> Value {
        let ints = self.out.info(operand).ints.clone().filter(|_| matches!(op, Op::CopyOp(_)));
        let results = smallvec![ResultInfo { name, ty, ints }];
        Value {
            node: self.out.add_typed(op, &[operand], results, place, Origin::default()),
            output: 0,
        }
    }

    /// The whole of a value, if a collective or a merge made it already.
    pub(super) fn whole(&self, value: Value) -> Option<Value> {
        match self.joined[value.node] {
            Some(joined @ CollectiveResult::Whole(_)) => Some(joined.result(value.output, 0)),
            Some(CollectiveResult::Each(_)) | None => self.merged.get(&value).copied(),
        }
    }

    /// The name of replica `index`'s clone of `name`.
    pub(super) fn name(&self, name: &str, index: u32, suffix: &str) -> Arc<str> {
        self.free_name(name, &format!(".r{index}{suffix}"))
    }

    /// A name that is not reserved: `name` with `suffix`, and underscores if that is taken.
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
