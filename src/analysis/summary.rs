//! A model as a table: one row for each operator, like the summaries that Keras prints.

use std::fmt;

use crate::ir::{self, Graph, GraphError, IdMap, NodeId, NodeKind};
use crate::types::Dim;

/// The rows and totals of a model's summary.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Summary {
    /// The model's name.
    pub name: String,
    /// One row for each input and operator, in topological order.
    pub rows: Vec<SummaryRow>,
    /// The elements of all parameters.
    pub parameters: i64,
    /// Their bytes.
    pub bytes: i64,
    /// What the symbols in the types are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<String>,
}

/// An input or operator.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct SummaryRow {
    /// Its label.
    pub layer: String,
    /// The operator's name, or `input`.
    pub op: String,
    /// The types of its results.
    pub output: String,
    /// The elements of the parameters that it is the first to take.
    pub parameters: i64,
    /// The labels of the nodes whose results it takes, parameters apart.
    pub connected_to: Vec<String>,
}

/// The summary of a graph. Every parameter is counted once, at its first user.
pub(crate) fn summary(graph: &Graph) -> Result<Summary, GraphError> {
    // A graph that was not verified may have a parameter without a known size, which counts as 0.
    let known = |size: Dim| size.as_const().unwrap_or(0);
    let mut counted = IdMap::new(graph.params().len(), false);
    let mut rows = Vec::new();
    for id in graph.order()? {
        let node = graph.node(id);
        let op = match node.kind() {
            NodeKind::Param(_) => continue,
            NodeKind::Input => "input",
            NodeKind::Op(op) => op.name(),
        };
        let (mut parameters, mut connected_to) = (0, Vec::new());
        for operand in graph.operands(id) {
            match graph.node(operand.node).kind() {
                NodeKind::Param(param) => {
                    if !counted.replace(*param, true) {
                        parameters += known(graph.ty(operand).shape.elements());
                    }
                }
                NodeKind::Input | NodeKind::Op(_) => connected_to.push(name(graph, operand.node)),
            }
        }
        let output = node.results().iter().map(|r| r.ty.to_string()).collect::<Vec<_>>().join(", ");
        rows.push(SummaryRow {
            layer: name(graph, id),
            op: op.to_owned(),
            output,
            parameters,
            connected_to,
        });
    }
    let elements = |p: &ir::Param| known(p.ty.shape.elements());
    let bytes = |p: &ir::Param| known(p.ty.bytes());
    Ok(Summary {
        name: graph.name().to_owned(),
        rows,
        parameters: graph.params().iter().map(elements).sum(),
        bytes: graph.params().iter().map(bytes).sum(),
        sizes: ir::declared(graph.symbols()).collect(),
    })
}

/// The name of a node's first result, under which the table lists the node.
fn name(graph: &Graph, node: NodeId) -> String {
    graph.node(node).results().first().map_or_else(String::new, |r| r.name.to_string())
}

/// The number of characters that a cell of the table shows.
const MAX_CELL: usize = 80;

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["Layer (operator)", "Output", "Parameters", "Connected to"];
        let cells: Vec<[String; 4]> = self
            .rows
            .iter()
            .map(|r| {
                let layer = format!("{} ({})", r.layer, r.op);
                let cells = [layer, r.output.clone(), thousands(r.parameters), sources(r)];
                cells.map(|cell| shorten(&cell))
            })
            .collect();
        let width =
            |i: usize| cells.iter().map(|c| c[i].chars().count()).fold(head[i].len(), usize::max);
        let [a, b, c] = [width(0), width(1), width(2)];
        let rule = "─".repeat((a + b + c + 6 + width(3)).min(120));
        writeln!(f, "Model: {}", self.name)?;
        for size in &self.sizes {
            writeln!(f, "{size}")?;
        }
        writeln!(f, "{rule}")?;
        writeln!(f, "{:a$}  {:b$}  {:>c$}  {}", head[0], head[1], head[2], head[3])?;
        writeln!(f, "{rule}")?;
        for [layer, output, parameters, connected] in &cells {
            writeln!(
                f,
                "{}",
                format!("{layer:a$}  {output:b$}  {parameters:>c$}  {connected}").trim_end()
            )?;
        }
        writeln!(f, "{rule}")?;
        write!(f, "Parameters: {} ({} bytes)", thousands(self.parameters), thousands(self.bytes))
    }
}

/// The sources of a row. More than [`MAX_CELL`] names never fit into a cell.
fn sources(row: &SummaryRow) -> String {
    let shown: Vec<&str> = row.connected_to.iter().take(MAX_CELL).map(String::as_str).collect();
    shown.join(", ")
}

/// The cell, cut where it is too long for a table.
fn shorten(cell: &str) -> String {
    match cell.char_indices().nth(MAX_CELL) {
        Some((at, _)) => format!("{}…", &cell[..at]),
        None => cell.to_owned(),
    }
}

/// A number with a comma between groups of three digits.
fn thousands(n: i64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && d != '-' && (digits.len() - i).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(d);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(-123), "-123");
        assert_eq!(thousands(22_910_480), "22,910,480");
    }
}
