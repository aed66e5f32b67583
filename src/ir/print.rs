//! The canonical text form of a graph: the same graph gives the same bytes, and
//! [`parse`](super::parse) gives the graph back.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use super::text::{
    SPLIT, push, push_attr, push_dim, push_escaped, push_list, push_name, push_type,
};
use super::{
    DevicePlacement, Graph, Node, NodeId, NodeKind, Param, Placement, Update, Value, declared,
};
use crate::op::Attr;
use crate::types::invariant::invariant;
use crate::types::{Device, Dim, FastMap, Split};

/// Options of printing a graph.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// Whether the names that nodes have in their source are listed at the end, where they differ
    /// from the names of their values. Without them the text reads back as a graph that knows only
    /// the latter.
    pub locations: bool,
}

impl Default for Printer {
    fn default() -> Self {
        Self { locations: true }
    }
}

impl Printer {
    /// The text of a graph. A graph that breaks a rule of [`verify`](super::verify) is printed as
    /// far as possible, in the order of ids where it has a cycle.
    pub fn print(&self, graph: &Graph) -> String {
        let mut w = Writer::new(graph);
        w.out.reserve(96 * graph.len());
        let order = graph.order().unwrap_or_else(|_| graph.ids().collect());
        w.header(&order);
        w.signature();
        w.body(&order);
        if self.locations {
            w.locations(&order);
        }
        w.out
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Printer::default().print(self))
    }
}

/// The text written so far, and what is needed to go on.
pub(super) struct Writer<'g> {
    graph: &'g Graph,
    pub(super) out: String,
    /// The rows of each replica, as far as they depend on the batch.
    rows: Vec<Option<(Dim, u32)>>,
    /// The positions of the parts of the last line, if requested.
    pub(super) parts: Option<LineParts>,
}

/// The bytes that the parts of one line take.
#[derive(Default)]
pub(super) struct LineParts {
    pub(super) results: Vec<Range<usize>>,
    pub(super) op: Range<usize>,
    pub(super) operands: Vec<Range<usize>>,
    pub(super) attrs: Range<usize>,
}

impl<'g> Writer<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        let rows = |split: &Split| {
            let rows = (0u32..).take(split.replicas()).map(|i| {
                // A size that equals the rows of its replica is written `n<i>@dp`; a constant is
                // shorter.
                let rows = split.rows(i as usize).filter(|rows| !rows.is_const());
                rows.map(|rows| (rows, i))
            });
            rows.collect()
        };
        // Without a split there are no rows of replicas.
        let rows = graph.split().map(rows).unwrap_or_default();
        Self { graph, out: String::new(), rows, parts: None }
    }

    fn header(&mut self, order: &[NodeId]) {
        let graph = self.graph;
        self.out.push_str("fanwise 1\nsymbol N >= 0\n");
        for line in declared(graph.symbols()) {
            push(&mut self.out, format_args!("symbol {line}\n"));
        }
        let devices = devices(graph, order);
        // A graph that runs on the host alone is written without devices.
        let plain = devices == [Device::HOST] && graph.split().is_none();
        if !plain {
            push(&mut self.out, format_args!("device {}", Commas(&devices)));
            self.out.push('\n');
        }
        self.split();
        for param in graph.params() {
            self.param(param, plain);
            self.out.push('\n');
        }
    }

    fn split(&mut self) {
        let Some(split) = self.graph.split() else { return };
        let (devices, rule) = (Commas(split.devices()), split.rule());
        let out = &mut self.out;
        push(out, format_args!("split @{SPLIT} of N over [{devices}] rule={rule} {{\n  n = "));
        push_list(out, (0..split.replicas()).filter_map(|i| split.rows(i)), |out, d| {
            push_dim(out, &d);
        });
        out.push_str("\n  o = ");
        // The last offset is N by definition.
        push_list(out, split.offsets().iter().take(split.replicas()), push_dim);
        out.push_str("\n}\n");
    }

    /// Writes the declaration of a parameter. Where every value is on the host, so is the parameter
    /// unless something else is said.
    pub(super) fn param(&mut self, param: &Param, plain: bool) {
        self.out.push_str("param ");
        let from = self.out.len();
        self.out.push('@');
        push_name(&mut self.out, &param.name);
        self.part(from, |parts| &mut parts.results);
        let out = &mut self.out;
        out.push_str(" : ");
        push_type(out, &param.ty, None);
        out.push_str(" = \"");
        push_escaped(out, &param.source.file, &['#']);
        out.push('#');
        push_escaped(out, &param.source.key, &[]);
        push(out, format_args!("\" blake3:{}", param.hash));
        match param.placement {
            Placement::Shared(Device::HOST) if plain => {}
            Placement::Shared(device) => push(out, format_args!(" share {device}")),
            Placement::Mirrored => push(out, format_args!(" mirror @{SPLIT}")),
        }
    }

    /// Writes the line that names the graph, its inputs and its outputs.
    pub(super) fn signature(&mut self) {
        let graph = self.graph;
        self.out.push_str("graph @");
        push_name(&mut self.out, graph.name());
        self.out.push('(');
        for (i, value) in graph.inputs().enumerate() {
            self.comma(i);
            let from = self.out.len();
            self.out.push('%');
            push_name(&mut self.out, &graph.info(value).name);
            self.out.push_str(": ");
            push_type(&mut self.out, graph.ty(value), None);
            self.part(from, |parts| &mut parts.operands);
        }
        self.out.push_str(") -> (");
        for (i, output) in graph.outputs().iter().enumerate() {
            self.comma(i);
            let from = self.out.len();
            push_name(&mut self.out, &output.name);
            self.out.push_str(": ");
            match graph.get(output.value) {
                Some(info) => push_type(&mut self.out, &info.ty, None),
                None => self.out.push('?'),
            }
            self.part(from, |parts| &mut parts.results);
        }
        self.out.push_str(") {\n");
    }

    fn comma(&mut self, i: usize) {
        if i > 0 {
            self.out.push_str(", ");
        }
    }

    fn part(&mut self, from: usize, list: impl FnOnce(&mut LineParts) -> &mut Vec<Range<usize>>) {
        if let Some(parts) = &mut self.parts {
            list(parts).push(from..self.out.len());
        }
    }

    fn body(&mut self, order: &[NodeId]) {
        let graph = self.graph;
        let ops = || order.iter().filter(|n| graph.node(**n).op().is_some());
        let plain = ops().all(|n| graph.node(*n).place() == DevicePlacement::HOST);
        // Neighbouring nodes of one place share a block. The order is not changed for it.
        let mut open = None;
        for n in ops() {
            let place = graph.node(*n).place();
            if !plain && open != Some(place) {
                if open.is_some() {
                    self.out.push_str("  }\n");
                }
                self.open(place);
                open = Some(place);
            }
            self.out.push_str(if plain { "  " } else { "    " });
            self.op(*n);
            self.out.push('\n');
        }
        if open.is_some() {
            self.out.push_str("  }\n");
        }
        for update in graph.updates() {
            self.out.push_str("  ");
            self.update(update);
            self.out.push('\n');
        }
        self.out.push_str("  return");
        for (i, output) in graph.outputs().iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { " " });
            self.value(output.value, Device::HOST);
        }
        if graph.split().is_some() {
            // A comment for the reader: what is promised of each output.
            let labels = graph.labels_in(order);
            for (i, label) in labels.iter().enumerate() {
                push(&mut self.out, format_args!("{}{label}", if i > 0 { ", " } else { "  ; " }));
            }
        }
        self.out.push_str("\n}\n");
    }

    /// Writes an update: the parameter, and its new value on each device that holds it.
    pub(super) fn update(&mut self, update: &Update) {
        let from = self.out.len();
        self.out.push_str("update @");
        push_name(&mut self.out, &self.graph.param(update.param).name);
        self.part(from, |parts| &mut parts.results);
        self.out.push_str(" =");
        let homes = self.graph.homes(update.param);
        for (i, value) in update.values.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { " " });
            let from = self.out.len();
            // A graph that was not verified may have more values than homes.
            self.value(*value, homes.get(i).copied().unwrap_or(Device::HOST));
            self.part(from, |parts| &mut parts.operands);
        }
    }

    fn open(&mut self, place: DevicePlacement) {
        push(&mut self.out, format_args!("  on {}", place.device));
        if let Some(i) = place.replica {
            push(&mut self.out, format_args!(" replica @{SPLIT}[{i}] if n{i}@{SPLIT} > 0"));
        }
        self.out.push_str(" {\n");
    }

    /// Writes an operator: its results with their types, its name, operands and attributes.
    pub(super) fn op(&mut self, id: NodeId) {
        let graph = self.graph;
        let node: &Node = graph.node(id);
        let Some(op) = node.op() else { return };
        for (i, result) in node.results().iter().enumerate() {
            self.comma(i);
            let from = self.out.len();
            self.out.push('%');
            push_name(&mut self.out, &result.name);
            self.out.push_str(" : ");
            let replica = node.place().replica;
            let rows = replica.and_then(|i| self.rows.get(i as usize)).and_then(Option::as_ref);
            push_type(&mut self.out, &result.ty, rows);
            self.part(from, |parts| &mut parts.results);
        }
        self.out.push_str(" = ");
        let from = self.out.len();
        self.out.push_str(op.name());
        let name = from..self.out.len();
        self.out.push('(');
        for (i, value) in graph.operands(id).into_iter().enumerate() {
            self.comma(i);
            let from = self.out.len();
            self.value(value, node.place().device);
            self.part(from, |parts| &mut parts.operands);
        }
        self.out.push(')');
        let attrs = self.attrs(&op.attrs());
        if let Some(parts) = &mut self.parts {
            (parts.op, parts.attrs) = (name, attrs);
        }
    }

    fn attrs(&mut self, attrs: &[(&'static str, Attr)]) -> Range<usize> {
        let from = self.out.len() + 1;
        for (i, (name, value)) in attrs.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { " {" });
            self.out.push_str(name);
            self.out.push('=');
            push_attr(&mut self.out, value);
        }
        if !attrs.is_empty() {
            self.out.push('}');
        }
        from..self.out.len().max(from)
    }

    /// Writes a reference to a value from a place on `device`. A parameter is the one that its
    /// placement puts there; another says its device.
    fn value(&mut self, value: Value, device: Device) {
        let graph = self.graph;
        let Some(info) = graph.get(value) else { return self.out.push('?') };
        let node = graph.node(value.node);
        let NodeKind::Param(id) = node.kind() else {
            self.out.push('%');
            return push_name(&mut self.out, &info.name);
        };
        self.out.push('@');
        push_name(&mut self.out, &info.name);
        // Only what the reader could not know is written.
        if node.place().device != graph.param(*id).placement.seen_from(device) {
            push(&mut self.out, format_args!(" on {}", node.place().device));
        }
    }

    fn locations(&mut self, order: &[NodeId]) {
        let mut index: FastMap<&str, usize> = FastMap::default();
        // Each origin, in the order in which they occur; each name with the number of its origin.
        let (mut origins, mut names) = (Vec::new(), Vec::new());
        for node in order.iter().map(|n| self.graph.node(*n)).filter(|n| n.op().is_some()) {
            let Some(result) = node.results().first() else { continue };
            if node.label() != &*result.name {
                let at = *index.entry(node.label()).or_insert(origins.len());
                if at == origins.len() {
                    origins.push(node.label());
                }
                names.push((at, &*result.name));
            }
        }
        if names.is_empty() {
            return;
        }
        // Names of one origin stay in their order.
        names.sort_by_key(|(at, _)| *at);
        self.out.push_str("loc {\n");
        for group in names.chunk_by(|(left, _), (right, _)| left == right) {
            for (i, (_, name)) in group.iter().enumerate() {
                self.out.push_str(if i > 0 { ", %" } else { "  %" });
                push_name(&mut self.out, name);
            }
            self.out.push_str(" = \"");
            let (at, _) = invariant(group.first(), "that a group has a member");
            push_escaped(&mut self.out, origins[*at], &[]);
            self.out.push_str("\"\n");
        }
        self.out.push_str("}\n");
    }
}

/// The devices that a graph speaks of, in order.
fn devices(graph: &Graph, order: &[NodeId]) -> Vec<Device> {
    let mut devices = BTreeSet::from([Device::HOST]);
    let mut last = Device::HOST;
    for device in order.iter().map(|n| graph.node(*n).place().device) {
        if device != last {
            devices.insert(device);
            last = device;
        }
    }
    devices.extend(graph.split().into_iter().flat_map(Split::devices));
    devices.extend(graph.params().iter().filter_map(|param| match param.placement {
        Placement::Shared(device) => Some(device),
        Placement::Mirrored => None,
    }));
    devices.into_iter().collect()
}

/// Writes items with commas between them.
struct Commas<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Commas<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            item.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Placement;
    use super::super::testing::{plain, replicated, variables};
    use super::Printer;
    use crate::snap;
    use crate::types::Device;

    #[test]
    fn graphs_print_as_they_did() {
        snap::assert("print", "plain", &plain().to_string());
        let shared = replicated(Placement::Shared(Device::HOST));
        snap::assert("print", "replicated_shared", &shared.to_string());
        let updated = variables(Some(Placement::Mirrored));
        snap::assert("print", "variables", &updated.to_string());
        let mirrored = replicated(Placement::Mirrored);
        let text = Printer { locations: false }.print(&mirrored);
        snap::assert("print", "replicated_mirrored", &text);
    }
}
