//! Graphs that the unit tests of lowering and of the backends share, replicated by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{
    Builder, ContentHash, Graph, NodeKind, Origin, Param, Place, Placement, Source, Value, Weights,
};
use crate::op::{Concat, CopyOp, First, Op, Reshape, Slice, Unary};
use crate::types::{DType, Device, Dim, Shape, ShardRule, Split, Tensor, TensorType};

/// `f32[N,width]`.
pub(crate) fn rows(width: i64) -> TensorType {
    TensorType::new(DType::F32, Shape::from([Dim::n(), width.into()].as_slice()))
}

/// A tensor of different numbers.
pub(crate) fn numbers(dims: &[usize]) -> Tensor {
    let count: u16 = u16::try_from(dims.iter().product::<usize>()).unwrap();
    let data: Vec<f32> = (0..count).map(|i| f32::from(i) * 0.25 - 3.0).collect();
    Tensor::new(dims, &data).unwrap()
}

/// Weights and biases of the template, by name.
fn weights() -> Weights {
    let mut weights = Weights::default();
    weights.insert("w", numbers(&[3, 8]));
    weights
}

/// `y = exp(relu(x)) ++ neg(x)`, `z = flat(relu(x))`, and `v = neg(w)`, which carries no batch.
pub(crate) fn template() -> (Graph, Weights) {
    let mut b = Builder::new("net");
    let x = b.input("x", rows(8));
    let w = b.param("w", numbers(&[3, 8]));
    let h = b.op("h", Unary::Relu, &[x]).unwrap();
    let e = b.op("e", Unary::Exp, &[h]).unwrap();
    let n = b.op("n", Unary::Neg, &[x]).unwrap();
    let y = b.op("y", Concat { axis: 1 }, &[e, n]).unwrap();
    let v = b.op("v", Unary::Neg, &[w]).unwrap();
    b.output("y", y);
    b.output("h", h);
    b.output("v", v);
    (b.finish().0, weights())
}

struct Replicas {
    graph: Graph,
}

impl Replicas {
    fn add(
        &mut self,
        op: impl Into<Op>,
        operands: &[Value],
        name: &str,
        device: Device,
        replica: Option<u32>,
    ) -> Value {
        let names: [Arc<str>; 1] = [name.into()];
        let place = Place { device, replica };
        let node = self.graph.add(op.into(), operands, &names, place, Origin::default()).unwrap();
        Value { node, output: 0 }
    }
}

/// The template on `count` devices, merged on the host or on the first of them.
pub(crate) fn replicated(
    count: u32,
    rule: ShardRule,
    merge: Device,
    placement: Placement,
) -> (Graph, Weights) {
    let devices: Vec<Device> = (0..count).map(Device::gpu).collect();
    let split = Split::new(devices.clone(), rule).unwrap();
    let mut g = Replicas { graph: Graph::new("net") };
    let x = g.graph.add_input("x", rows(8));
    let tensor = numbers(&[3, 8]);
    let (name, ty, hash) = ("w".into(), tensor.tensor_type(), ContentHash::of(&tensor));
    let source = Source { file: "m.onnx".into(), key: "w".into() };
    let id = g.graph.add_param(Param { name, ty, source, hash, placement });
    g.graph.set_split(Some(split.clone()));
    let shared =
        (placement != Placement::Mirrored).then(|| g.graph.add_param_node(id, Device::HOST));
    let mut parts: [Vec<Value>; 3] = Default::default();
    for (i, device) in (0u32..).zip(devices) {
        let r = Some(i);
        let (from, to) = split.range(i as usize).unwrap();
        let s = g.add(
            Slice::rows(0, from.clone(), to.clone()),
            &[x],
            &format!("x.r{i}"),
            Device::HOST,
            r,
        );
        let x = g.add(CopyOp {}, &[s], &format!("x.r{i}.d"), device, r);
        let w = match shared {
            Some(w) => g.add(CopyOp {}, &[w], &format!("w.r{i}"), device, r),
            None => g.graph.add_param_node(id, device),
        };
        let h = g.add(Unary::Relu, &[x], &format!("h.r{i}"), device, r);
        let e = g.add(Unary::Exp, &[h], &format!("e.r{i}"), device, r);
        let n = g.add(Unary::Neg, &[x], &format!("n.r{i}"), device, r);
        let y = g.add(Concat { axis: 1 }, &[e, n], &format!("y.r{i}"), device, r);
        let v = g.add(Unary::Neg, &[w], &format!("v.r{i}"), device, r);
        for (part, (value, name)) in parts.iter_mut().zip([(y, "y"), (h, "h"), (v, "v")]) {
            let merged = device != merge;
            part.push(if merged {
                g.add(CopyOp {}, &[value], &format!("{name}.r{i}.h"), merge, r)
            } else {
                value
            });
        }
    }
    for (parts, name) in parts.iter().zip(["y", "h", "v"]) {
        let op: Op = if name == "v" { First {}.into() } else { Concat { axis: 0 }.into() };
        let on_host = merge == Device::HOST;
        let mut value = g.add(
            op,
            parts,
            &if on_host { name.to_owned() } else { format!("{name}.all") },
            merge,
            None,
        );
        if !on_host {
            value = g.add(CopyOp {}, &[value], name, Device::HOST, None);
        }
        g.graph.add_output(name, value);
    }
    (g.graph, weights())
}

/// The outputs of a graph at a batch of `n` rows, node after node by reference evaluation. What a replica
/// without rows gives has no rows; of equal values the first is taken.
pub(crate) fn naive(
    graph: &Graph,
    weights: &Weights,
    inputs: &BTreeMap<String, Tensor>,
    n: i64,
) -> Vec<Tensor> {
    let mut values: BTreeMap<Value, Tensor> = BTreeMap::new();
    for id in graph.order().unwrap() {
        let node = graph.node(id);
        let operands: Vec<&Tensor> = graph.operands(id).iter().map(|v| &values[v]).collect();
        let results = match node.kind() {
            NodeKind::Input => vec![inputs[&*node.results()[0].name].clone()],
            NodeKind::Param(id) => vec![weights.get(&graph.param(*id).name).unwrap().clone()],
            NodeKind::Op(op) => {
                let mut op = op.clone();
                op.at_rows(&Dim::from(n));
                op.eval(&operands).unwrap()
            }
        };
        for (output, result) in (0u32..).zip(results) {
            values.insert(Value { node: id, output }, result);
        }
    }
    graph.outputs().iter().map(|o| values[&o.value].clone()).collect()
}

/// A chain of views between elementwise operators on the host.
pub(crate) fn views() -> (Graph, Weights) {
    let mut b = Builder::new("views");
    let x = b.input("x", rows(8));
    let h = b.op("h", Unary::Relu, &[x]).unwrap();
    let flat = b.op("flat", Reshape { shape: vec![Dim::n() * 8] }, &[h]).unwrap();
    let e = b.op("e", Unary::Exp, &[flat]).unwrap();
    let back = b.op("back", Reshape { shape: vec![Dim::n(), 2.into(), 4.into()] }, &[e]).unwrap();
    let y = b.op("y", Unary::Neg, &[back]).unwrap();
    b.output("x", x);
    b.output("flat", flat);
    b.output("y", y);
    b.output("again", y);
    (b.finish().0, Weights::default())
}
