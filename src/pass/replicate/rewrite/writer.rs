//! State of the rewrite: the graph being written, and access to values as a replica sees them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::smallvec;

use super::update_nodes::UpdateNodes;
use crate::analysis::ClaimMap;
use crate::ir::{
    DevicePlacement, Graph, NodeId, NodeKind, NodeMap, Origin, ParamId, Placement, ResultInfo,
    Value,
};
use crate::op::{CopyOp, Op, Slice};
use crate::pass::replicate::options::{Merge, Replicate, WeightPlacement};
use crate::types::invariant::{int, invariant};
use crate::types::{Device, Dim, FastMap, Shard, Split};

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
    pub(super) names: Names,
    /// The position of each device among those that hold a mirrored parameter, and that of the
    /// last one asked for.
    columns: FastMap<Device, usize>,
    column: Option<(Device, usize)>,
    /// The operands of the clone that is being written.
    pub(super) operands: Vec<Value>,
    /// What all copies are.
    copy: Arc<Op>,
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
    /// The first results of the clones, by node of the template; other results are those behind
    /// it.
    pub(super) values: NodeMap<Option<Value>>,
    /// The other results that are not: each is a copy of its own.
    pub(super) scattered: FastMap<Value, Value>,
    /// The suffix of the names of its values.
    pub(super) suffix: String,
    /// Whether its values are whole, and belong to no replica.
    pub(super) is_whole: bool,
}

impl Replica {
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

    /// The replica's form of a value, if it has it.
    pub(super) fn get(&self, value: Value) -> Option<Value> {
        let Value { node, output } = self.values[value.node]?;
        if value.output > 0
            && let Some(copy) = self.scattered.get(&value)
        {
            return Some(*copy);
        }
        Some(Value { node, output: output + value.output })
    }
}

/// Names for the values of replicas.
pub(super) struct Names {
    /// Names of inputs and merged outputs with a dot, which clones must not take.
    reserved: BTreeSet<Arc<str>>,
    /// The last name.
    last: String,
}

impl Names {
    /// A name that is not reserved: these parts, and underscores if that is taken.
    pub(super) fn free(&mut self, parts: [&str; 3]) -> Arc<str> {
        self.last.clear();
        for part in parts.iter().filter(|part| !part.is_empty()) {
            self.last.push_str(part);
        }
        while !self.reserved.is_empty() && self.reserved.contains(self.last.as_str()) {
            self.last.push('_');
        }
        self.last.as_str().into()
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
        let operands = template.ids().map(|id| template.operand_list(id).len() + 1).sum::<usize>();
        // Room for the clones, and an eighth more for slices and copies: growing would copy the
        // graph. A node is a copy at most once for each replica.
        out.reserve(nodes + nodes / 8, operands * split.replicas());
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
        let columns = split.devices().iter().enumerate().rev().map(|(i, device)| (*device, i));
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
            names: Names { reserved, last: String::new() },
            columns: columns.collect(),
            column: None,
            operands: Vec::new(),
            copy: Arc::new(CopyOp {}.into()),
            first_output,
            joined,
            merged: HashMap::new(),
            update_nodes,
        }
    }

    /// The replica's form of a value of the template, on its device; copied there at the first use.
    pub(super) fn local(&mut self, replica: &mut Replica, value: Value) -> Value {
        match replica.get(value) {
            Some(own) => own,
            None => self.bring(replica, value),
        }
    }

    /// Brings a parameter or what a collective gave to the replica's device.
    fn bring(&mut self, replica: &mut Replica, value: Value) -> Value {
        let template = self.template;
        let node = template.node(value.node);
        match (node.kind(), self.joined[value.node]) {
            (NodeKind::Param(param), _) => {
                replica.values[value.node] = Some(self.copy_param(replica, *param));
            }
            (_, Some(joined)) => {
                for (output, result) in (0u32..).zip(node.results()) {
                    let whole = joined.result(output, replica.index);
                    let copy = self.copy_to(replica, replica.device, whole, &result.name, ".d");
                    match output {
                        0 => replica.values[value.node] = Some(copy),
                        _ => drop(replica.scattered.insert(Value { output, ..value }, copy)),
                    }
                }
            }
            (NodeKind::Input | NodeKind::Op(_), None) => {}
        }
        invariant(replica.get(value), "that a replica has the operands of what it clones")
    }

    /// True if replicas can draw their own rows of this node's random numbers alone: every user
    /// takes own rows, in one block. Drawing all of them would repeat the work on each replica.
    pub(super) fn draws_own_rows(&self, id: NodeId) -> bool {
        let template = self.template;
        if !matches!(template.node(id).op(), Some(Op::Random(draw)) if !draw.is_part()) {
            return false;
        }
        let users = template.users(id);
        let rows = |user: NodeId| {
            let own = matches!(template.node(user).op(), Some(Op::OwnRows(_)));
            own && self.own_shard(user).is_some_and(|shard| shard.outer == 1)
        };
        !users.is_empty()
            && users.iter().all(|(user, ..)| rows(*user))
            && !template.is_kept(Value { node: id, output: 0 })
    }

    /// The shard of an operator's first result.
    pub(super) fn own_shard(&self, id: NodeId) -> Option<Shard> {
        self.claims.get(Value { node: id, output: 0 }).shard()
    }

    /// The replica's rows of a random draw, drawn alone.
    pub(super) fn draw_rows(&mut self, replica: &Replica, id: NodeId) -> Option<Value> {
        let template = self.template;
        let [whole] = *template.operand_list(id) else { return None };
        let Some(Op::Random(draw)) = template.node(whole.node).op() else { return None };
        let shard = self.own_shard(id).filter(|_| self.draws_own_rows(whole.node))?;
        let (from, to) = replica.range(shard);
        let part = Op::from(draw.rows(shard.axis, &from, &to)?);
        let info = template.info(Value { node: id, output: 0 });
        let name = self.free_name(&info.name, &replica.suffix);
        let ty = info.ty.at_rows(&replica.rows);
        let results = smallvec![ResultInfo { name, ty, ints: None }];
        let origin = template.node(id).origin().clone();
        let node = self.out.add_typed(part, &[], results, replica.placement(), origin);
        Some(Value { node, output: 0 })
    }

    /// A slice of the replica's rows of a value that it holds whole.
    pub(super) fn own_rows(&mut self, replica: &Replica, id: NodeId, whole: Value) -> Value {
        let Some(shard) = self.own_shard(id) else { return whole };
        let (from, to) = replica.range(shard);
        let rows = self.rows_of(replica, Value { node: id, output: 0 });
        self.add_slice(Slice::rows(shard.axis, from, to), whole, rows, replica.placement())
    }

    /// The name and the type of the replica's rows of a value of the template.
    fn rows_of(&mut self, replica: &Replica, value: Value) -> ResultInfo {
        let template = self.template;
        let ResultInfo { name, ty, .. } = template.info(value);
        let name = self.free_name(name, &replica.suffix);
        ResultInfo { name, ty: ty.at_rows(&replica.rows), ints: None }
    }

    /// The new value of an input of the template.
    pub(super) fn input(&self, input: Value) -> Value {
        let what = "that inputs are written before what takes them";
        invariant(self.inputs[input.node], what)
    }

    /// A slice, on the host, of the replica's rows of an input; all of an input without a batch.
    pub(super) fn slice_input(&mut self, replica: &Replica, input: Value) -> Value {
        let whole = self.input(input);
        let Some(shard) = self.claims.get(input).shard() else { return whole };
        let (from, to) = replica.range(shard);
        let rows = self.rows_of(replica, input);
        let place = DevicePlacement { device: Device::HOST, replica: Some(replica.index) };
        self.add_slice(Slice::rows(shard.axis, from, to), whole, rows, place)
    }

    /// The parameter on the replica's device: its own copy, or a copy made in each run.
    pub(super) fn copy_param(&mut self, replica: &Replica, id: ParamId) -> Value {
        let held = self.held_param(id, replica.device);
        let template = self.template;
        self.copy_to(replica, replica.device, held, &template.param(id).name, ".w")
    }

    /// The parameter on the device that holds it for `device`.
    pub(super) fn held_param(&mut self, id: ParamId, device: Device) -> Value {
        let (home, column) = match self.out.param(id).placement {
            Placement::Shared(home) => (home, Some(0)),
            Placement::Mirrored => {
                let last = self.column.filter(|(last, _)| *last == device);
                let column = || Some((device, *self.columns.get(&device)?));
                self.column = last.or_else(column);
                (device, self.column.map(|(_, column)| column))
            }
        };
        let column = invariant(column, "that a parameter is held where it is seen from");
        let slot = id.0 as usize * self.split.replicas() + column;
        if let Some(held) = self.params[slot] {
            return held;
        }
        let held = self.out.add_param_node(id, home);
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
        let name = self.names.free([name, &replica.suffix, suffix]);
        self.add_copy(value, name, replica.placement_on(device))
    }

    /// Adds a copy of a value, which has its type and known elements.
    pub(super) fn add_copy(
        &mut self,
        value: Value,
        name: Arc<str>,
        place: DevicePlacement,
    ) -> Value {
        let ResultInfo { ty, ints, .. } = self.out.info(value).clone();
        let results = smallvec![ResultInfo { name, ty, ints }];
        let copy = self.copy.clone();
        let node = self.out.add_typed(copy, &[value], results, place, Origin::default());
        Value { node, output: 0 }
    }

    /// Adds a slice of a value, of a known type.
    fn add_slice(
        &mut self,
        slice: Slice,
        value: Value,
        result: ResultInfo,
        place: DevicePlacement,
    ) -> Value {
        let (op, results) = (Op::from(slice), smallvec![result]);
        let node = self.out.add_typed(op, &[value], results, place, Origin::default());
        Value { node, output: 0 }
    }

    /// The whole of a value, if a collective or a merge made it already.
    pub(super) fn whole(&self, value: Value) -> Option<Value> {
        match self.joined[value.node] {
            Some(joined @ CollectiveResult::Whole(_)) => Some(joined.result(value.output, 0)),
            Some(CollectiveResult::Each(_)) | None => self.merged.get(&value).copied(),
        }
    }

    /// A name that is not reserved: `name` with `suffix`, and underscores if that is taken.
    pub(super) fn free_name(&mut self, name: &str, suffix: &str) -> Arc<str> {
        self.names.free([name, suffix, ""])
    }
}
