use std::sync::Arc;

use smallvec::SmallVec;

use super::super::{Graph, Node, NodeId, NodeKind, Param, ParamId, Placement, Value};
use super::checked::{Checked, Known};
use super::error::{Collector, ErrorLocation, Line, LinePart, Rule, VerifyErrors};
use super::held::Held;
use super::names::NameHashes;
use crate::op::{Attr, Op, Operand};
use crate::types::{Device, Dim, FastSet, Split, Symbol, TensorType};

/// The largest number of elements of a tensor that is an attribute.
pub(crate) const MAX_CONSTANT: usize = 1024;

/// The operators that may run elsewhere than the replica they belong to.
/// A copy runs where its result is needed. A slice runs where the whole batch is: only the rows of
/// the replica need to travel.
const MOVES: [&str; 2] = ["copy", "slice"];
/// The operators of no replica that take what belongs to replicas.
/// They run on one device for all, and are the only way out of a replica.
const MERGES: [&str; 6] =
    ["all_gather", "all_reduce", "concat", "exclusive_scan", "first", "merge_top_k"];

/// A check in progress.
pub(super) struct Check<'g> {
    graph: &'g Graph,
    errors: Collector<'g>,
    names: Names<'g>,
    held: Held,
    /// The devices of the split.
    devices: FastSet<Device>,
    checked: Checked,
}

/// The names of inputs and results seen so far.
enum Names<'g> {
    /// Where it is enough to know whether all are different.
    Hashes(NameHashes),
    /// Where a name that is there twice is to be reported.
    Set(FastSet<&'g str>),
}

impl<'g> Check<'g> {
    /// A check that reports what it finds; names that are there twice only if it `names` them.
    pub(super) fn new(graph: &'g Graph, names: bool) -> Self {
        let names = if names {
            Names::Set(FastSet::default())
        } else {
            Names::Hashes(NameHashes::new(graph.len()))
        };
        let devices = graph.split().map_or(&[][..], Split::devices); // no replicas
        Self {
            graph,
            errors: Collector::new(graph),
            names,
            held: Held::new(graph),
            devices: devices.iter().copied().collect(),
            checked: Checked::default(),
        }
    }

    /// The errors found, or nothing.
    pub(super) fn finish(self) -> Option<VerifyErrors> {
        let errors = self.errors.finish();
        (!errors.is_empty()).then_some(VerifyErrors(errors))
    }

    /// True if nothing was found, and no name can be there twice.
    pub(super) fn finds_nothing(self) -> bool {
        let different = match self.names {
            Names::Hashes(hashes) => hashes.are_different(),
            Names::Set(_) => true,
        };
        different && self.errors.count() == 0
    }

    /// V3, for a graph that has no topological order: reports one cycle.
    pub(super) fn cycle(&mut self) {
        // A node that is left when those without operands are taken away again and again is on a
        // cycle or behind one; going from operand to operand that is left ends on one.
        let graph = self.graph;
        let mut waiting = graph.node_map(0);
        graph.ids().for_each(|n| waiting[n] = graph.operands(n).len());
        let mut ready: Vec<NodeId> = graph.ids().filter(|n| waiting[*n] == 0).collect();
        while let Some(n) = ready.pop() {
            for (user, _, _) in graph.users(n) {
                waiting[user] -= 1;
                if waiting[user] == 0 {
                    ready.push(user);
                }
            }
        }
        let Some(mut at) = graph.ids().find(|n| waiting[*n] > 0) else { return };
        let mut path: Vec<NodeId> = Vec::new();
        let mut seen = graph.node_map(false);
        // Every node that is left has an operand that is left, or it would have been taken away:
        // the walk ends only where it meets itself.
        while !seen.replace(at, true) {
            path.push(at);
            let mut operands = graph.operands(at).into_iter();
            let Some(next) = operands.find(|v| waiting[v.node] > 0) else { return };
            at = next.node;
        }
        // The walk may have entered the cycle from outside: the path before the entry is no part of
        // it.
        let from = path.iter().position(|n| *n == at).unwrap_or(0);
        let name = |n: &NodeId| {
            graph.node(*n).results().first().map_or_else(String::new, |r| format!("`{}`", r.name))
        };
        // A long cycle is shown by its beginning.
        let names: Vec<String> = path[from..].iter().chain([&at]).take(12).map(name).collect();
        let message = format!("the value depends on itself: {}", names.join(" from "));
        self.errors.add(Rule::V3, Line::Op(at).at(LinePart::Whole), message, "break the cycle");
    }

    /// V8, and V9 for parameters that no value shows.
    pub(super) fn params(&mut self) {
        let mut names = FastSet::default();
        for (i, param) in (0u32..).zip(self.graph.params()) {
            let at = Line::Param(ParamId(i)).at(LinePart::Result(0));
            if param.name.is_empty() {
                self.errors.add(Rule::V8, at, "a parameter has no name".into(), "name it");
            } else if !names.insert(&*param.name) {
                let message = format!("two parameters are named `{}`", param.name);
                self.errors.add(Rule::V8, at, message, "rename one of them");
            }
            if param.ty.shape.as_const().is_none() || !param.ty.shape.is_valid() {
                let message = format!("a parameter cannot be {}", param.ty);
                let hint = "the sizes of a parameter are constants, at least 0";
                self.errors.add(Rule::V8, at, message, hint);
            }
            if param.placement == Placement::Mirrored && self.graph.split().is_none() {
                let message = format!("`{}` is mirrored, but the graph has no split", param.name);
                self.errors.add(Rule::V9, at, message, "give the device that holds it");
            }
        }
    }

    /// V10, and V1 and V12 for inputs.
    pub(super) fn inputs(&mut self) {
        for (i, value) in self.graph.inputs().enumerate() {
            let at = Line::Signature.at(LinePart::Operand(i));
            let info = self.graph.info(value);
            self.name(&info.name, at);
            // Parameters have constant sizes; an input's may depend on the batch, and must not be
            // negative for any size of it.
            let possible = info.ty.shape.is_valid()
                && info.ty.shape.iter().all(|d| d.is_const() || d.is_nonnegative());
            if self.has_other_symbols(&info.ty.shape) {
                self.other_symbol(at);
            } else if !possible {
                let message = format!("an input cannot be {}", info.ty);
                let hint = "every size is at least 0, whatever the batch size N";
                self.errors.add(Rule::V10, at, message, hint);
            }
        }
    }

    /// V11.
    pub(super) fn outputs(&mut self) {
        let mut names = FastSet::default();
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let at = Line::Signature.at(LinePart::Result(i));
            if output.name.is_empty() {
                self.errors.add(Rule::V11, at, "an output has no name".into(), "name it");
            } else if !names.insert(&*output.name) {
                let message = format!("two outputs are named `{}`", output.name);
                self.errors.add(Rule::V11, at, message, "rename one of them");
            }
            if self.graph.get(output.value).is_none() {
                let message = format!("the output `{}` is not a value of the graph", output.name);
                self.errors.add(Rule::V11, at, message, "remove it, or give it another value");
            } else if let Some(r) = self.graph.node(output.value.node).place().replica {
                let message = format!("the output `{}` belongs to replica {r}", output.name);
                self.errors.add(Rule::V11, at, message, "merge the replicas' values first");
            }
        }
    }

    /// V14.
    pub(super) fn updates(&mut self) {
        let mut updated = FastSet::default();
        for (i, update) in self.graph.updates().iter().enumerate() {
            let at = Line::Update(i).at(LinePart::Result(0));
            let param = self.graph.param(update.param);
            if !updated.insert(update.param) {
                let message = format!("`{}` is updated twice", param.name);
                self.errors.add(Rule::V14, at, message, "keep one of the updates");
            }
            // One value for each device that holds the parameter, in the order of the devices.
            let homes = self.graph.homes(update.param);
            if homes.len() != update.values.len() {
                let (devices, values) = (homes.len(), update.values.len());
                let message =
                    format!("`{}` is on {devices} devices, its update has {values}", param.name);
                let hint = "an update has one value for each device that holds the parameter";
                self.errors.add(Rule::V14, at, message, hint);
            }
            for (slot, (value, home)) in update.values.iter().zip(homes).enumerate() {
                self.new_value(i, slot, param, *value, *home);
            }
        }
    }

    /// V14 for one value of an update, which `home` is to hold.
    fn new_value(&mut self, i: usize, slot: usize, param: &Param, value: Value, home: Device) {
        let at = Line::Update(i).at(LinePart::Operand(slot));
        let name = &param.name;
        let Some(info) = self.graph.get(value) else {
            let message = format!("the update of `{name}` is not a value of the graph");
            return self.errors.add(Rule::V14, at, message, "remove it, or give it another value");
        };
        if info.ty != param.ty {
            let message = format!("`{name}` is {}, its update {}", param.ty, info.ty);
            self.errors.add(Rule::V14, at, message, "a parameter keeps its type");
        }
        let place = self.graph.node(value.node).place();
        if place.device != home {
            let message = format!("`{name}` is held by {home}, its update is on {}", place.device);
            self.errors.add(Rule::V14, at, message, format!("copy it to {home}"));
        }
        if let Some(r) = place.replica {
            let message = format!("the update of `{name}` belongs to replica {r}");
            self.errors.add(Rule::V14, at, message, "merge the replicas' values first");
        }
    }

    /// The rules of nodes.
    pub(super) fn nodes(&mut self) {
        for id in self.graph.ids() {
            let node = self.graph.node(id);
            match node.kind() {
                NodeKind::Input => {}
                NodeKind::Param(param) => self.param_node(*param, node),
                NodeKind::Op(op) => self.op_node(id, node, op),
            }
        }
    }

    /// V9.
    fn param_node(&mut self, id: ParamId, node: &Node) {
        let at = Line::Param(id).at(LinePart::Result(0));
        let param = self.graph.param(id);
        let device = node.place().device;
        let holds = match param.placement {
            Placement::Shared(home) => home == device,
            Placement::Mirrored => self.graph.split().is_none() || self.devices.contains(&device),
        };
        if !holds {
            let message = format!("`{}` is used from {device}, which does not hold it", param.name);
            self.errors.add(Rule::V9, at, message, "copy it from a device that does");
        }
        if node.place().replica.is_some() {
            let message = format!("`{}` belongs to a replica", param.name);
            self.errors.add(Rule::V9, at, message, "a parameter serves all replicas");
        }
        // Passes compare values by node: one parameter as two nodes of one device would be read
        // twice.
        if !self.held.insert(id, device) {
            let message = format!("`{}` is two values on {device}", param.name);
            self.errors.add(Rule::V9, at, message, "use one of them everywhere");
        }
        if node.results().iter().any(|r| r.name != param.name || r.ty != param.ty) {
            let message = format!("the value of `{}` has another name or type", param.name);
            self.errors.add(Rule::V9, at, message, "both are those of the parameter");
        }
    }

    /// V1, V2, V4 to V7, V12 and V13 for one operator.
    fn op_node(&mut self, id: NodeId, node: &'g Node, op: &'g Arc<Op>) {
        if node.results().is_empty() {
            let message = format!("`{}` has no result", op.name());
            self.errors.add(Rule::V1, Line::Op(id).at(LinePart::Operator), message, "remove it");
        }
        let operands = self.graph.operand_list(id);
        let known = match self.errors.count() {
            0 => self.checked.known(self.graph, id, op),
            _ => Known::Nothing,
        };
        for (i, result) in node.results().iter().enumerate() {
            self.name(&result.name, Line::Op(id).at(LinePart::Result(i)));
            if known != Known::All && self.has_other_symbols(&result.ty.shape) {
                self.other_symbol(Line::Op(id).at(LinePart::Result(i)));
            }
        }
        if known != Known::All {
            self.types(id, node, op, operands);
        }
        if known == Known::Nothing {
            self.attributes(id, op);
        }
        self.places(id, node, op, operands);
        if known != Known::All && self.errors.count() == 0 {
            self.checked.add(id, op);
        }
    }

    /// V1 for one value.
    fn name(&mut self, name: &'g str, at: ErrorLocation) {
        if name.is_empty() {
            return self.errors.add(Rule::V1, at, "a value has no name".into(), "name it");
        }
        let is_new = match &mut self.names {
            Names::Hashes(hashes) => {
                hashes.push(name);
                true
            }
            Names::Set(names) => names.insert(name),
        };
        if !is_new {
            let message = format!("two values are named `{name}`");
            self.errors.add(Rule::V1, at, message, "rename one of them");
        }
    }

    /// V2.
    fn types(&mut self, id: NodeId, node: &Node, op: &Op, operands: &[Value]) {
        let infos = operands.iter().map(|v| self.graph.info(*v));
        let inputs: SmallVec<[Operand<'_>; 4]> =
            infos.map(|info| Operand { ty: &info.ty, ints: info.ints.as_deref() }).collect();
        // Types are inferred again from the operands: what is stored is a claim that a pass may
        // have broken.
        let inferred = match op.infer(&inputs) {
            Ok(inferred) => inferred,
            Err(error) => {
                let message = format!("`{}` cannot be applied: {error}", op.name());
                let hint = format!("the operands are {}", types(inputs.iter().map(|x| x.ty)));
                return self.errors.add(
                    Rule::V2,
                    Line::Op(id).at(LinePart::Operator),
                    message,
                    hint,
                );
            }
        };
        if inferred.len() != node.results().len() {
            let (found, count) = (node.results().len(), inferred.len());
            let message = format!("`{}` has {count} results, not {found}", op.name());
            let hint = format!("they are {}", types(inferred.iter().map(|r| &r.ty)));
            return self.errors.add(Rule::V2, Line::Op(id).at(LinePart::Operator), message, hint);
        }
        for (i, (expected, found)) in inferred.iter().zip(node.results()).enumerate() {
            let at = Line::Op(id).at(LinePart::Result(i));
            if expected.ty != found.ty {
                let message = format!("`{}` is {}, not {}", found.name, expected.ty, found.ty);
                let hint = format!("the operands are {}", types(inputs.iter().map(|x| x.ty)));
                self.errors.add(Rule::V2, at, message, hint);
            // Known integers decide shapes further on; stale ones would make two views of one
            // graph.
            } else if expected.ints != found.ints {
                let list = |ints: Option<&[Dim]>| match ints {
                    Some(ints) => format!("{:?}", &ints[..ints.len().min(8)]),
                    None => "not known".to_owned(),
                };
                let (stored, inferred) =
                    (list(found.ints.as_deref()), list(expected.ints.as_deref()));
                let message =
                    format!("the elements of `{}` are {inferred}, not {stored}", found.name);
                self.errors.add(Rule::V2, at, message, "infer the node again");
            }
        }
    }

    /// V12 and V13 for attributes.
    fn attributes(&mut self, id: NodeId, op: &Op) {
        let at = Line::Op(id).at(LinePart::Attributes);
        let mut symbols = false;
        for (name, attr) in op.attrs() {
            match attr {
                Attr::Int(dim) => symbols |= self.has_other_symbols(std::slice::from_ref(&dim)),
                Attr::Ints(dims) => symbols |= self.has_other_symbols(&dims),
                Attr::Tensor(tensor) if tensor.len() > MAX_CONSTANT => {
                    let message = format!("`{name}` has {} elements", tensor.len());
                    let hint =
                        format!("make it a parameter: a constant has at most {MAX_CONSTANT}");
                    self.errors.add(Rule::V13, at, message, hint);
                }
                Attr::Tensor(_)
                | Attr::Bool(_)
                | Attr::Float(_)
                | Attr::Floats(_)
                | Attr::Name(_) => {}
            }
        }
        if symbols {
            self.other_symbol(at);
        }
    }

    /// True if a symbol other than `N` and those of the graph occurs.
    fn has_other_symbols(&self, dims: &[Dim]) -> bool {
        let mut found = false;
        for dim in dims.iter().filter(|d| !d.is_const()) {
            dim.symbols(&mut |s| {
                found |= s != Symbol::BATCH && s.0 as usize > self.graph.symbols().len();
            });
        }
        found
    }

    fn other_symbol(&mut self, at: ErrorLocation) {
        let message = "a size depends on a symbol that is not the batch size".to_owned();
        self.errors.add(Rule::V12, at, message, "bind every symbol but N to a number");
    }

    /// True for the host and the devices of the split.
    fn is_known(&self, device: Device) -> bool {
        device == Device::HOST || self.devices.contains(&device)
    }

    /// V4 to V7.
    fn places(&mut self, id: NodeId, node: &Node, op: &Op, operands: &[Value]) {
        let (name, place) = (op.name(), node.place());
        let at = Line::Op(id).at(LinePart::Operator);
        if let Some(i) = place.replica {
            let devices = self.graph.split().map_or(&[][..], Split::devices); // no replicas
            match devices.get(i as usize) {
                None => {
                    let message = format!("there is no replica {i}");
                    let hint = match devices.len() {
                        0 => "the graph has no split".to_owned(),
                        k => format!("the split has the replicas 0 to {}", k - 1),
                    };
                    self.errors.add(Rule::V5, at, message, hint);
                }
                Some(own) if *own == place.device => {}
                Some(own) => {
                    let known = self.is_known(place.device);
                    if !(known && MOVES.contains(&name)) {
                        let message = format!("`{name}` of replica {i} runs on {}", place.device);
                        self.errors.add(
                            Rule::V6,
                            at,
                            message,
                            format!("replica {i} runs on {own}"),
                        );
                    }
                }
            }
        }
        for (slot, value) in operands.iter().enumerate() {
            let at = Line::Op(id).at(LinePart::Operand(slot));
            let other = self.graph.node(value.node).place();
            // A copy is the only operator that reads from another device.
            if other.device != place.device && name != "copy" {
                let message = format!(
                    "`{name}` runs on {}, its operand {slot} is on {}",
                    place.device, other.device
                );
                self.errors.add(
                    Rule::V4,
                    at,
                    message,
                    format!("copy it to {} first", place.device),
                );
            }
            // What belongs to no replica holds for every batch; what belongs to one exists only
            // where that one has rows.
            let allowed = other.replica.is_none()
                || other.replica == place.replica
                || (place.replica.is_none() && MERGES.contains(&name));
            if let (Some(from), false) = (other.replica, allowed) {
                let own = place.replica.map_or("none".to_owned(), |i| format!("replica {i}"));
                let message =
                    format!("operand {slot} belongs to replica {from}, `{name}` to {own}");
                let hint = "only a merge outside replicas (`concat`, `first`, `all_reduce`, …) \
                    takes values of replicas";
                self.errors.add(Rule::V7, at, message, hint);
            }
        }
    }
}

/// The first types of a list, in words.
fn types<'a>(types: impl ExactSizeIterator<Item = &'a TensorType>) -> String {
    let count = types.len();
    let first: Vec<String> = types.take(6).map(ToString::to_string).collect();
    match count {
        0 => "none".to_owned(),
        1..=6 => first.join(", "),
        _ => format!("{}, … ({count} in all)", first.join(", ")),
    }
}
