//! Graphs that the unit tests of this module share.

use std::sync::Arc;

use super::{
    Builder, ContentHash, DevicePlacement, Graph, NodeId, Origin, Param, Placement, Source, Value,
};
use crate::op::{Concat, CopyOp, Op, Slice, Unary};
use crate::types::{DType, Device, Dim, Shape, ShardRule, Split, Tensor, TensorType};

/// `f32[N,width]`.
pub(super) fn rows(width: i64) -> TensorType {
    TensorType::new(DType::F32, Shape::from([Dim::n(), width.into()].as_slice()))
}

/// A graph with two inputs, two outputs and a parameter, all on the host.
pub(super) fn plain() -> Graph {
    let mut b = Builder::new("two_head");
    b.set_source("m.onnx");
    let x = b.input("x", rows(8));
    let aux = b.input("aux", rows(2));
    let w = b.param("w", Tensor::new(&[8], &[0.5f32; 8]).unwrap());
    b.set_origin(Origin::new("block/relu 1"));
    let h = b.op("h", Unary::Relu, &[x]).unwrap();
    let scale = b.op("scale", Unary::Exp, &[w]).unwrap();
    b.set_origin(Origin::default());
    let joined = b.op("joined", Concat { axis: 1 }, &[h, aux]).unwrap();
    let last = Slice::rows(1, 2.into(), 10.into());
    let score = b.op("a/score:0", last, &[joined]).unwrap();
    b.output("logits", joined);
    b.output("score 2", score);
    b.output("scale", scale);
    b.output("aux", aux);
    b.finish().0
}

/// On a device, perhaps of a replica.
pub(super) fn at(device: Device, replica: Option<u32>) -> DevicePlacement {
    DevicePlacement { device, replica }
}

/// Adds an operator at a place. The name up to `.r` is its origin.
pub(super) fn add(
    graph: &mut Graph,
    op: impl Into<Op>,
    operands: &[Value],
    name: &str,
    place: DevicePlacement,
) -> Value {
    let names: [Arc<str>; 1] = [name.into()];
    let origin = Origin(name.split_once(".r").map(|(origin, _)| origin.into()));
    let node: NodeId = graph.add(op.into(), operands, &names, place, origin).unwrap();
    Value { node, output: 0 }
}

/// `y = relu(x)` with a parameter beside it, replicated by hand onto two devices.
pub(super) fn replicated(placement: Placement) -> Graph {
    let mut graph = Graph::new("net");
    let x = graph.add_input("x", rows(8));
    let tensor = Tensor::new(&[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let (name, ty, hash) = ("w".into(), tensor.tensor_type(), ContentHash::of(&tensor));
    let source = Source { file: "m.onnx".into(), key: "w".into() };
    let id = graph.add_param(Param { name, ty, source, hash, placement });
    let devices = vec![Device::gpu(0), Device::gpu(1)];
    let split = Split::new(devices.clone(), ShardRule::RemainderLast).unwrap();
    graph.set_split(Some(split.clone()));
    let shared = match placement {
        Placement::Shared(device) => Some(graph.add_param_node(id, device)),
        Placement::Mirrored => None,
    };
    let mut merged = Vec::new();
    for (i, device) in (0u32..).zip(devices) {
        let r = Some(i);
        let (from, to) = split.range(i as usize).unwrap();
        let slice = Slice::rows(0, from.clone(), to.clone());
        let x = add(&mut graph, slice, &[x], &format!("x.r{i}"), at(Device::HOST, r));
        let x = add(&mut graph, CopyOp {}, &[x], &format!("x.r{i}.d"), at(device, r));
        let w = match shared {
            Some(w) => add(&mut graph, CopyOp {}, &[w], &format!("w.r{i}"), at(device, r)),
            None => graph.add_param_node(id, device),
        };
        add(&mut graph, Unary::Neg, &[w], &format!("v.r{i}"), at(device, r));
        let y = add(&mut graph, Unary::Relu, &[x], &format!("y.r{i}"), at(device, r));
        merged.push(add(&mut graph, CopyOp {}, &[y], &format!("y.r{i}.h"), at(Device::HOST, r)));
    }
    let y = add(&mut graph, Concat { axis: 0 }, &merged, "y", at(Device::HOST, None));
    graph.add_output("y", y);
    graph
}

/// Two variables, one of which takes the other's value and the other a computed one, before and
/// after a replication by hand onto two devices: on each device where it is mirrored, else where it
/// is shared.
pub(super) fn variables(placement: Option<Placement>) -> Graph {
    let mut graph = Graph::new("train");
    let tensor = Tensor::new(&[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let ids = ["w", "last w"].map(|name| {
        let source = Source { file: "m.onnx".into(), key: name.into() };
        let placement = placement.unwrap_or(Placement::Shared(Device::HOST));
        let (ty, hash) = (tensor.tensor_type(), ContentHash::of(&tensor));
        graph.add_param(Param { name: name.into(), ty, source, hash, placement })
    });
    let devices = vec![Device::gpu(0), Device::gpu(1)];
    if placement.is_some() {
        let split = Split::new(devices, ShardRule::RemainderLast).unwrap();
        graph.set_split(Some(split));
    }
    let mut new = Vec::new();
    let mut old = Vec::new();
    for device in graph.homes(ids[0]).to_vec() {
        let w = graph.add_param_node(ids[0], device);
        old.push(w);
        new.push(add(&mut graph, Unary::Neg, &[w], &format!("w.new.{device}"), at(device, None)));
    }
    graph.add_update(ids[0], new);
    graph.add_update(ids[1], old);
    graph
}
