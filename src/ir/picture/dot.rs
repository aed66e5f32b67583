//! The graph as Graphviz draws it, with the folding, the order and the colours of other pictures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::blocks::{self, Band, Lane, Role};
use super::drawn::{Words, name_of};
use super::fold::{self, Folding};
use super::shapes::Texts;
use crate::ir::{Graph, NodeId, NodeKind, NodeMap, Value};
use crate::types::Device;

/// The graph in the DOT language: what the host has of all rows above, a cluster for each device,
/// what it merges below. Replicas that are equal but for their device and rows are drawn once.
pub fn to_dot(graph: &Graph) -> String {
    let order = graph.order().unwrap_or_else(|_| graph.ids().collect());
    let folding = fold::fold(graph, &order, true);
    let drawing = Drawing::of(graph, &order, &folding);
    let mut out = String::with_capacity(160 * graph.len());
    line(&mut out, format_args!("digraph {} {{", Quoted(graph.name())));
    line(&mut out, format_args!("  newrank=true;"));
    line(&mut out, format_args!("  node [shape=box, style=filled, fontname=\"monospace\"];"));
    drawing.clusters(&mut out);
    drawing.lanes_in_order(&mut out);
    drawing.edges(&mut out);
    drawing.updates(&mut out);
    out.push_str("}\n");
    out
}

/// What stands beside what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cluster {
    Above,
    Lane(Lane),
    Below,
}

/// A node that is drawn.
#[derive(Clone, Copy)]
struct Drawn {
    cluster: Cluster,
    band: Band,
    lane: Lane,
    role: Role,
}

struct Drawing<'a> {
    graph: &'a Graph,
    order: &'a [NodeId],
    folding: &'a Folding,
    words: Words<'a>,
    /// The position of each node in the order, so that ids do not show.
    numbers: NodeMap<usize>,
    drawn: NodeMap<Option<Drawn>>,
}

impl<'a> Drawing<'a> {
    fn of(graph: &'a Graph, order: &'a [NodeId], folding: &'a Folding) -> Self {
        let mut drawn = graph.node_map(None);
        let made = blocks::operators(graph, order, folding);
        for block in &made.blocks {
            let cluster = match block.band {
                Band::Given | Band::Divided => Cluster::Above,
                Band::Devices => Cluster::Lane(block.lane),
                Band::Returned | Band::Merged => Cluster::Below,
            };
            for id in &block.nodes {
                let (band, lane, role) = (block.band, block.lane, block.role);
                drawn[*id] = Some(Drawn { cluster, band, lane, role });
            }
        }
        let mut numbers = graph.node_map(0);
        for (number, id) in order.iter().enumerate() {
            numbers[*id] = number;
        }
        let words = Words::of(graph, folding, super::Level::Operators, &made);
        let mut drawing = Self { graph, order, folding, words, numbers, drawn };
        drawing.draw_params();
        drawing
    }

    /// Draws parameters, and what is made of them alone, where something that is drawn reads them,
    /// or nothing does.
    fn draw_params(&mut self) {
        let mut readers: NodeMap<(bool, bool)> = self.graph.node_map((false, false));
        for id in self.order.iter().rev() {
            let (is_read, by_drawn) = readers[*id];
            if self.drawn[*id].is_none() && self.folding.shown[*id] == *id && (by_drawn || !is_read)
            {
                let lane = blocks::lane(self.graph, *id, self.folding);
                let is_above = self.graph.split().is_some() && lane == Lane::Device(Device::HOST);
                let (cluster, band) = if is_above {
                    (Cluster::Above, Band::Given)
                } else {
                    (Cluster::Lane(lane), Band::Devices)
                };
                let role = blocks::role(self.graph, *id);
                self.drawn[*id] = Some(Drawn { cluster, band, lane, role });
            }
            let by_drawn = self.drawn[*id].is_some();
            for value in self.graph.operand_list(*id) {
                let (is_read, is_drawn) = &mut readers[value.node];
                (*is_read, *is_drawn) = (true, *is_drawn || by_drawn);
            }
        }
    }

    fn clusters(&self, out: &mut String) {
        let mut clusters: BTreeMap<Cluster, Vec<NodeId>> = BTreeMap::new();
        for id in self.order {
            if let Some(drawn) = self.drawn[*id] {
                clusters.entry(drawn.cluster).or_default().push(*id);
            }
        }
        if !self.graph.outputs().is_empty() {
            clusters.entry(Cluster::Below).or_default();
        }
        for (i, (cluster, nodes)) in clusters.iter().enumerate() {
            let (title, detail) = match cluster {
                Cluster::Above => (self.words.host(true), String::new()),
                Cluster::Lane(lane) => self.words.lane(*lane),
                Cluster::Below => (self.words.host(false), String::new()),
            };
            let label = format!("{title}\n{detail}");
            line(out, format_args!("  subgraph cluster_{i} {{"));
            line(out, format_args!("    label={};", Quoted(label.trim_end())));
            line(out, format_args!("    style=filled; fillcolor=\"#f6f8fb\"; color=\"#d5dce6\";"));
            for id in nodes {
                self.node(out, *id);
            }
            if *cluster == Cluster::Below {
                self.outputs(out);
            }
            line(out, format_args!("  }}"));
        }
    }

    fn node(&self, out: &mut String, id: NodeId) {
        let Some(drawn) = self.drawn[id] else { return };
        let node = self.graph.node(id);
        let count = match (node.kind(), drawn.lane) {
            // Every device has its copy.
            (NodeKind::Param(_), Lane::Group(group)) => self.folding.groups[group].len(),
            (NodeKind::Param(_) | NodeKind::Input | NodeKind::Op(_), _) => self.words.count(&[id]),
        };
        let is_told = count > 1 && drawn.role != Role::Compute;
        let times = if is_told { format!(" ×{count}") } else { String::new() };
        let (_, fill, border) = drawn.role.look();
        let (kind, look) = match node.kind() {
            NodeKind::Input => ("input", look(fill, border) + ", shape=ellipse"),
            NodeKind::Param(_) => ("param", look("#eeeeee", "#8a96a8")),
            NodeKind::Op(op) => (op.name(), look(fill, border)),
        };
        // A graph that was not verified may have a node without results.
        let name = node.results().first().map_or("", |r| &*r.name);
        let name = self.folding.name(self.graph, id, name);
        let label = format!("{kind}{times}\n{}", name_of(name, count));
        line(out, format_args!("    n{} [label={}, {look}];", self.numbers[id], Quoted(&label)));
    }

    fn outputs(&self, out: &mut String) {
        let (_, fill, border) = Role::Output.look();
        let look = look(fill, border);
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let name = Quoted(&output.name);
            line(
                out,
                format_args!(
                    "    o{i} [label={name}, {look}, fontcolor=\"#ffffff\", shape=ellipse];"
                ),
            );
        }
    }

    /// Has the first nodes of the lanes beside each other, that of replica 0 leftmost.
    fn lanes_in_order(&self, out: &mut String) {
        let mut first: BTreeMap<(Band, Lane), usize> = BTreeMap::new();
        for id in self.order {
            if let Some(Drawn { band, lane: lane @ Lane::Group(_), .. }) = self.drawn[*id] {
                first.entry((band, lane)).or_insert(self.numbers[*id]);
            }
        }
        for band in [Band::Divided, Band::Devices, Band::Returned] {
            let own = first.iter().filter(|((of, _), _)| *of == band);
            let names: Vec<String> = own.map(|(_, number)| format!("n{number}")).collect();
            if names.len() > 1 {
                let names = names.join(" -> ");
                line(out, format_args!("  {{ rank=same; {names} [style=invis]; }}"));
            }
        }
    }

    fn edges(&self, out: &mut String) {
        let mut seen = BTreeSet::new();
        for id in self.order.iter().filter(|id| self.drawn[**id].is_some()) {
            for value in self.graph.operands(*id) {
                let shown = Value { node: self.folding.shown[value.node], ..value };
                // Of what equal replicas have one edge is left.
                let is_new = seen.insert((shown, *id));
                if shown == value || is_new {
                    self.edge(out, shown, format_args!("n{}", self.numbers[*id]));
                }
            }
        }
        for (i, output) in self.graph.outputs().iter().enumerate() {
            if self.graph.get(output.value).is_some() {
                let shown = self.folding.shown[output.value.node];
                self.edge(out, Value { node: shown, ..output.value }, format_args!("o{i}"));
            }
        }
    }

    fn updates(&self, out: &mut String) {
        for (i, update) in self.graph.updates().iter().enumerate() {
            let label = format!("update\n{}", self.graph.param(update.param).name);
            let look = look("#eeeeee", "#8a96a8");
            line(out, format_args!("  u{i} [label={}, {look}];", Quoted(&label)));
            let mut seen = BTreeSet::new();
            for value in update.values.iter().filter(|value| self.graph.get(**value).is_some()) {
                let shown = Value { node: self.folding.shown[value.node], ..*value };
                if seen.insert(shown) {
                    self.edge(out, shown, format_args!("u{i}"));
                }
            }
        }
    }

    /// Draws an edge from a value that is drawn.
    fn edge(&self, out: &mut String, value: Value, to: std::fmt::Arguments<'_>) {
        if self.drawn[value.node].is_some() {
            let from = self.numbers[value.node];
            line(out, format_args!("  n{from} -> {to} [label=\"{}\"];", self.graph.ty(value)));
        }
    }
}

fn look(fill: &str, border: &str) -> String {
    format!("fillcolor=\"{fill}\", color=\"{border}\"")
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// A string of the DOT language.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c if c.is_control() => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::to_dot;
    use crate::ir::Placement;
    use crate::ir::testing::{plain, replicated, variables};
    use crate::snap;

    #[test]
    fn graphs_are_drawn_as_they_were() {
        snap::assert("dot", "plain", &to_dot(&plain()));
        snap::assert("dot", "variables", &to_dot(&variables(Some(Placement::Mirrored))));
        snap::assert("dot", "replicated", &to_dot(&replicated(Placement::Mirrored)));
    }
}
