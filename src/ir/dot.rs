//! The graph as Graphviz draws it: one cluster for each device and replica.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Graph, NodeId, NodeKind, NodeMap, Value};
use crate::types::Device;

/// The graph in the DOT language. Its clusters are in the order of devices and replicas, its nodes
/// in the order of the text form.
pub fn to_dot(graph: &Graph) -> String {
    let order = graph.order().unwrap_or_else(|_| graph.ids().collect());
    let mut clusters: BTreeMap<(Device, Option<u32>), Vec<NodeId>> = BTreeMap::new();
    for id in &order {
        let place = graph.node(*id).place();
        clusters.entry((place.device, place.replica)).or_default().push(*id);
    }
    let mut out = String::with_capacity(128 * graph.len());
    let numbers = numbers(graph, &order);
    line(&mut out, format_args!("digraph {} {{", Quoted(graph.name())));
    line(&mut out, format_args!("  node [shape=box, fontname=\"monospace\"];"));
    for (i, ((device, replica), nodes)) in clusters.iter().enumerate() {
        let replica = replica.map_or_else(String::new, |r| format!(", replica {r}"));
        line(&mut out, format_args!("  subgraph cluster_{i} {{"));
        line(&mut out, format_args!("    label=\"{device}{replica}\";"));
        for id in nodes {
            node(&mut out, graph, *id, numbers[*id]);
        }
        line(&mut out, format_args!("  }}"));
    }
    for id in &order {
        for value in graph.operands(*id) {
            edge(&mut out, graph, value, &numbers, format_args!("n{}", numbers[*id]));
        }
    }
    for (i, output) in graph.outputs().iter().enumerate() {
        line(&mut out, format_args!("  o{i} [label={}, shape=ellipse];", Quoted(&output.name)));
        if graph.get(output.value).is_some() {
            edge(&mut out, graph, output.value, &numbers, format_args!("o{i}"));
        }
    }
    for (i, update) in graph.updates().iter().enumerate() {
        let label = format!("update\n{}", graph.param(update.param).name);
        let style = "style=filled, fillcolor=\"#eeeeee\"";
        line(&mut out, format_args!("  u{i} [label={}, {style}];", Quoted(&label)));
        for value in update.values.iter().filter(|value| graph.get(**value).is_some()) {
            edge(&mut out, graph, *value, &numbers, format_args!("u{i}"));
        }
    }
    out.push_str("}\n");
    out
}

/// The position of each node in the order, so that ids do not show.
fn numbers(graph: &Graph, order: &[NodeId]) -> NodeMap<usize> {
    let mut numbers = graph.node_map(0);
    for (number, id) in order.iter().enumerate() {
        numbers[*id] = number;
    }
    numbers
}

fn node(out: &mut String, graph: &Graph, id: NodeId, number: usize) {
    let node = graph.node(id);
    let (kind, style) = match node.kind() {
        NodeKind::Input => ("input", ", shape=ellipse"),
        NodeKind::Param(_) => ("param", ", style=filled, fillcolor=\"#eeeeee\""),
        NodeKind::Op(op) => (op.name(), ""),
    };
    // A graph that was not verified may have a node without results.
    let name = node.results().first().map_or("", |r| &*r.name);
    let label = format!("{kind}\n{name}");
    line(out, format_args!("    n{number} [label={}{style}];", Quoted(&label)));
}

fn edge(
    out: &mut String,
    graph: &Graph,
    value: Value,
    numbers: &NodeMap<usize>,
    to: std::fmt::Arguments<'_>,
) {
    let from = numbers[value.node];
    line(out, format_args!("  n{from} -> {to} [label=\"{}\"];", graph.ty(value)));
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
    use super::super::Placement;
    use super::super::testing::{plain, replicated, variables};
    use super::to_dot;
    use crate::snap;

    #[test]
    fn graphs_are_drawn_as_they_were() {
        snap::assert("dot", "plain", &to_dot(&plain()));
        snap::assert("dot", "variables", &to_dot(&variables(Some(Placement::Mirrored))));
        snap::assert("dot", "replicated", &to_dot(&replicated(Placement::Mirrored)));
    }
}
