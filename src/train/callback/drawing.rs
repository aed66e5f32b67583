//! The graph of a model as `TensorBoard` reads it: `GraphDef` of TensorFlow.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use crate::ir::{Graph, NodeId, NodeKind, Value};

/// `GraphDef` of `graph.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<NodeDef>,
}

/// `NodeDef` of `node_def.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeDef {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) op: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) input: Vec<String>,
}

/// The name of a node there, where `/` separates what readers fold, and only these characters are.
fn readable(name: &str) -> String {
    let character = |c: char| match c {
        '.' | '/' => '/',
        c if c.is_ascii_alphanumeric() || c == '_' || c == '-' => c,
        _ => '_',
    };
    let name: String = name.chars().map(character).collect();
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "_".to_owned() } else { parts.join("/") }
}

/// The name, or with the next number where it is taken. `numbers` has that of each name: names that
/// become equal may be many.
fn free(own: &str, taken: &mut BTreeSet<String>, numbers: &mut BTreeMap<String, u64>) -> String {
    let mut name = own.to_owned();
    while !taken.insert(name.clone()) {
        // The name itself is the first of its numbers.
        let number = numbers.entry(own.to_owned()).or_insert(1);
        *number += 1;
        name = format!("{own}_{number}");
    }
    name
}

/// The graph of a model: its inputs, parameters and operators.
pub(super) fn graph_def(graph: &Graph) -> GraphDef {
    let mut names = graph.node_map(String::new());
    let (mut taken, mut numbers) = (BTreeSet::new(), BTreeMap::new());
    for id in graph.ids() {
        let node = graph.node(id);
        let own = match node.kind() {
            NodeKind::Param(param) => &graph.param(*param).name,
            // Every other node has a result.
            NodeKind::Input | NodeKind::Op(_) => &node.results()[0].name,
        };
        names[id] = free(&readable(own), &mut taken, &mut numbers);
    }
    let of = |id: NodeId| {
        let op = match graph.node(id).kind() {
            NodeKind::Input => "Placeholder",
            NodeKind::Param(_) => "Variable",
            NodeKind::Op(op) => op.name(),
        };
        let operand = |value: &Value| match value.output {
            0 => names[value.node].clone(),
            output => format!("{}:{output}", names[value.node]),
        };
        let input = graph.operand_list(id).iter().map(operand).collect();
        NodeDef { name: names[id].clone(), op: op.to_owned(), input }
    };
    GraphDef { node: graph.ids().map(of).collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{free, graph_def, readable};
    use crate::ir::Builder;
    use crate::op::{MatMul, Unary};
    use crate::types::Tensor;

    #[test]
    fn names_that_become_equal_are_many() {
        let (mut taken, mut numbers) = (BTreeSet::new(), BTreeMap::new());
        let mut next = |name: &str| free(name, &mut taken, &mut numbers);
        let names = ["a", "a_2", "a", "a_2", "a"].map(&mut next);
        assert_eq!(names, ["a", "a_2", "a_3", "a_2_2", "a_4"]);
        for i in 1..100_000 {
            assert_eq!(next("_"), if i == 1 { "_".to_owned() } else { format!("__{i}") });
        }
    }

    #[test]
    fn nodes_have_names_that_readers_fold() {
        assert_eq!(readable("block.1/conv:0"), "block/1/conv_0");
        assert_eq!([readable(""), readable("..")], ["_", "_"]);
        let mut b = Builder::new("m");
        let x = b.input("x", "f32[N,2]".parse().unwrap());
        let w = b.param("dense.w", Tensor::new(&[2, 1], &[1.0f32, 2.0]).unwrap());
        let product = b.op("dense.mul", MatMul {}, &[x, w]).unwrap();
        let grown = b.op("dense/mul", Unary::Exp, &[product]).unwrap();
        b.output("y", grown);
        let def = graph_def(&b.finish().0);
        let mut nodes: Vec<_> =
            def.node.iter().map(|n| (&*n.name, &*n.op, n.input.join(" "))).collect();
        nodes.sort();
        let expected = [
            ("dense/mul", "matmul", "x dense/w"),
            ("dense/mul_2", "exp", "dense/mul"),
            ("dense/w", "Variable", ""),
            ("x", "Placeholder", ""),
        ];
        assert_eq!(nodes, expected.map(|(name, op, input)| (name, op, input.to_owned())));
    }
}
