use std::sync::Arc;

use smallvec::smallvec;

use super::super::testing::{add, at, plain, replicated, rows, variables};
use super::super::{
    Builder, ContentHash, DevicePlacement, Graph, Origin, Param, ParamId, Placement, ResultInfo,
    Source, Value,
};
use super::{MAX_CONSTANT, Rule, verify};
use crate::op::{Concat, Constant, CopyOp, Flatten, Op, Slice, Unary};
use crate::snap;
use crate::types::{DType, Device, Dim, Shape, ShardRule, Split, Symbol, Tensor, TensorType};

const HOST: DevicePlacement = DevicePlacement::HOST;

/// Checks that the graph breaks exactly these rules, and that the errors read as they did.
#[track_caller]
fn broken(name: &str, graph: &Graph, rules: &[Rule]) {
    let errors = verify(graph).map(|_| ()).unwrap_err();
    let found: Vec<Rule> = errors.iter().map(|e| e.rule).collect();
    assert_eq!(found, rules, "\n{errors}");
    snap::assert("verify", name, &errors.to_string());
}

fn empty(name: &str) -> (Graph, Value) {
    let mut b = Builder::new(name);
    let x = b.input("x", rows(8));
    (b.finish().0, x)
}

/// A value of any type, as no inference would give it.
fn typed(graph: &mut Graph, name: &str, ty: TensorType, ints: Option<&[Dim]>, x: &[Value]) {
    let results = smallvec![ResultInfo { name: name.into(), ty, ints: ints.map(Arc::from) }];
    graph.add_typed(Op::from(Unary::Relu), x, results, DevicePlacement::HOST, Origin::default());
}

#[test]
fn good_graphs_pass() {
    for graph in [
        plain(),
        replicated(Placement::Shared(Device::HOST)),
        replicated(Placement::Shared(Device::gpu(1))),
        replicated(Placement::Mirrored),
        variables(None),
        variables(Some(Placement::Shared(Device::gpu(1)))),
        variables(Some(Placement::Mirrored)),
    ] {
        let verified = verify(&graph).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(verified.order().len(), verified.len());
    }
}

#[test]
fn v01_names_of_values() {
    let (mut g, x) = empty("g");
    let a = add(&mut g, Unary::Relu, &[x], "x", HOST);
    add(&mut g, Unary::Relu, &[a], "", HOST);
    let (op, origin) = (Op::from(Unary::Relu), Origin::new("layer"));
    g.add_typed(op, &[a], smallvec![], DevicePlacement::HOST, origin);
    broken("v01_names", &g, &[Rule::V1, Rule::V1, Rule::V1, Rule::V2]);
}

#[test]
fn v02_types() {
    let (mut g, x) = empty("g");
    typed(&mut g, "other", rows(9), None, &[x]);
    typed(&mut g, "ints", rows(8), Some(&[3.into()]), &[x]);
    typed(&mut g, "wrong", rows(8), None, &[x, x]);
    broken("v02_types", &g, &[Rule::V2, Rule::V2, Rule::V2]);
}

#[test]
fn v03_cycles() {
    let (mut g, x) = empty("g");
    let first = add(&mut g, Unary::Relu, &[x], "a", HOST);
    let second = add(&mut g, Unary::Neg, &[first], "b", HOST);
    let third = add(&mut g, Unary::Exp, &[second], "c", HOST);
    add(&mut g, Unary::Exp, &[third], "d", HOST);
    g.replace(x, third).unwrap();
    assert!(g.order().is_err());
    broken("v03_cycle", &g, &[Rule::V3]);
}

#[test]
fn v04_devices_of_operands() {
    let (mut g, x) = empty("g");
    let copied = add(&mut g, CopyOp {}, &[x], "copied", at(Device::gpu(0), None));
    add(&mut g, Unary::Relu, &[copied], "a", HOST);
    broken("v04_devices", &g, &[Rule::V4]);
}

#[test]
fn v05_numbers_of_replicas() {
    let (mut g, x) = empty("g");
    add(&mut g, Unary::Relu, &[x], "a", at(Device::HOST, Some(0)));
    broken("v05_no_split", &g, &[Rule::V5]);
    let (mut g, x) = empty("g");
    g.set_split(Some(Split::new(vec![Device::HOST], ShardRule::Balanced).unwrap()));
    add(&mut g, Unary::Relu, &[x], "a", at(Device::HOST, Some(1)));
    broken("v05_no_such_replica", &g, &[Rule::V5]);
}

#[test]
fn v06_devices_of_replicas() {
    let (mut g, x) = empty("g");
    let devices = vec![Device::gpu(0), Device::gpu(1)];
    g.set_split(Some(Split::new(devices, ShardRule::Balanced).unwrap()));
    add(&mut g, Unary::Relu, &[x], "host", at(Device::HOST, Some(1)));
    add(&mut g, CopyOp {}, &[x], "merged", at(Device::gpu(0), Some(1)));
    add(&mut g, CopyOp {}, &[x], "strange", at(Device::gpu(7), Some(1)));
    broken("v06_places", &g, &[Rule::V6, Rule::V6]);
}

#[test]
fn v07_operands_across_replicas() {
    let (mut g, x) = empty("g");
    let devices = vec![Device::gpu(0), Device::gpu(1)];
    let split = Split::new(devices, ShardRule::Balanced).unwrap();
    g.set_split(Some(split.clone()));
    let half = Slice::rows(0, Dim::ZERO, split.offsets()[1].clone());
    let own = add(&mut g, half, &[x], "own", at(Device::HOST, Some(0)));
    let d = add(&mut g, CopyOp {}, &[own], "d", at(Device::gpu(0), Some(0)));
    add(&mut g, CopyOp {}, &[d], "other", at(Device::gpu(1), Some(1)));
    add(&mut g, Unary::Relu, &[own], "none", HOST);
    add(&mut g, Concat { axis: 0 }, &[own, own], "merge", HOST);
    broken("v07_replicas", &g, &[Rule::V7, Rule::V7]);
}

fn param(name: &str, ty: TensorType, placement: Placement) -> Param {
    let source = Source { file: "m#1.onnx".into(), key: name.into() };
    Param { name: name.into(), ty, source, hash: ContentHash([7; 8]), placement }
}

#[test]
fn v08_parameters() {
    let mut g = Graph::new("g");
    let host = Placement::Shared(Device::HOST);
    g.add_param(param("w", rows(8), host));
    g.add_param(param("w", TensorType::new(DType::I8, Shape::from([-1])), host));
    g.add_param(param("", TensorType::scalar(DType::Bool), host));
    broken("v08_parameters", &g, &[Rule::V8, Rule::V8, Rule::V8, Rule::V8]);
}

#[test]
fn v09_devices_of_parameters() {
    let mut g = Graph::new("g");
    let ty = TensorType::new(DType::F32, Shape::from([2]));
    let id = g.add_param(param("w", ty.clone(), Placement::Shared(Device::gpu(1))));
    g.add_param_node(id, Device::gpu(1));
    g.add_param_node(id, Device::gpu(1));
    g.add_param_node(id, Device::HOST);
    g.add_param(param("v", ty, Placement::Mirrored));
    broken("v09_devices_of_parameters", &g, &[Rule::V9, Rule::V9, Rule::V9]);
    let mut g = replicated(Placement::Mirrored);
    g.add_param_node(ParamId(0), Device::gpu(2));
    broken("v09_mirrored", &g, &[Rule::V9]);
}

#[test]
fn v10_inputs() {
    let mut g = Graph::new("g");
    let half = Dim::n() - 1;
    g.add_input("a", TensorType::new(DType::F32, Shape::from([-3])));
    g.add_input("b", TensorType::new(DType::F32, Shape::from([half].as_slice())));
    g.add_input("c", TensorType::new(DType::F32, Shape::from([1 << 40, 1 << 40])));
    broken("v10_inputs", &g, &[Rule::V10, Rule::V10, Rule::V10]);
}

#[test]
fn v11_outputs() {
    let mut g = replicated(Placement::Mirrored);
    let shard = g.ids().find(|n| g.node(*n).place().replica.is_some()).unwrap();
    let y = g.outputs()[0].value;
    g.add_output("y", y);
    g.add_output("", y);
    g.add_output("shard", Value { node: shard, output: 0 });
    g.add_output("second", Value { node: shard, output: 1 });
    broken("v11_outputs", &g, &[Rule::V11; 4]);
}

#[test]
fn v12_symbols() {
    let other = Dim::symbol(Symbol(1));
    let mut g = Graph::new("g");
    let ty = TensorType::new(DType::F32, Shape::from([other.clone()].as_slice()));
    let x = g.add_input("x", ty.clone());
    typed(&mut g, "y", ty, None, &[x]);
    let z = TensorType::new(DType::F32, Shape::from([0]));
    let slice = Slice::rows(0, other.clone(), other);
    let results = smallvec![ResultInfo { name: "z".into(), ty: z, ints: None }];
    g.add_typed(Op::from(slice), &[x], results, DevicePlacement::HOST, Origin::default());
    broken("v12_symbols", &g, &[Rule::V12, Rule::V12, Rule::V12]);
}

#[test]
fn v13_constants() {
    let (mut g, _) = empty("g");
    let value = Tensor::zeros(DType::U8, &[MAX_CONSTANT + 1]).unwrap();
    let big = add(&mut g, Constant { value }, &[], "big", HOST);
    add(&mut g, Flatten { axis: 0 }, &[big], "flat", HOST);
    let value = Tensor::zeros(DType::U8, &[MAX_CONSTANT]).unwrap();
    add(&mut g, Constant { value }, &[], "small", HOST);
    broken("v13_constants", &g, &[Rule::V13]);
}

#[test]
fn v14_updates() {
    let mut g = replicated(Placement::Mirrored);
    let ty = TensorType::new(DType::F32, Shape::from([4]));
    let id = g.add_param(param("v", ty, Placement::Shared(Device::HOST)));
    let here = g.add_param_node(id, Device::HOST);
    let named = |name: &str| {
        let node = g.ids().find(|n| *g.node(*n).results()[0].name == *name).unwrap();
        Value { node, output: 0 }
    };
    let (y, own) = (named("y"), named("v.r0"));
    g.add_update(id, [here]);
    g.add_update(id, [y]);
    g.add_update(ParamId(0), [own, here, here]);
    g.add_update(ParamId(0), [Value { node: own.node, output: 1 }]);
    broken("v14_updates", &g, &[Rule::V14; 8]);
}

#[test]
fn updates_survive_changes() {
    let mut g = variables(None);
    let new = g.updates()[0].values[0];
    let old = g.operands(new.node)[0];
    assert!(g.is_used(new) && g.is_used(old));
    assert_eq!(g.kept().collect::<Vec<_>>(), [new, old]);
    // A parameter that nothing reads stays while it is updated; those before it go.
    let ty = TensorType::new(DType::F32, Shape::from([4]));
    let mut other = Graph::new("g");
    let host = Placement::Shared(Device::HOST);
    other.add_param(param("unused", ty.clone(), host));
    let id = other.add_param(param("v", ty.clone(), host));
    let x = other.add_input("x", ty);
    let first = add(&mut other, Unary::Neg, &[x], "y", HOST);
    let last = add(&mut other, Unary::Neg, &[first], "z", HOST);
    other.add_update(id, [last]);
    assert_eq!(other.remove_unused(), 0);
    assert_eq!(other.params().len(), 1);
    assert_eq!(other.updates()[0].values[0], last);
    other.replace(last, x).unwrap();
    assert_eq!(other.remove_unused(), 2);
    assert_eq!(other.updates()[0].values[0], x);
    assert!(other.is_kept(x) && verify(&other).is_ok());
    assert_eq!(g.remove_unused(), 0);
    g.replace(new, old).unwrap();
    assert_eq!(g.remove_unused(), 1);
    assert_eq!(g.to_string().matches("update @").count(), 2);
}
