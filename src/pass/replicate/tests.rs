use super::{Merge, Replicate, WeightPlacement};
use crate::analysis::prove;
use crate::ir::{Builder, Graph, NodeId, Weights, verify};
use crate::op::{Concat, MatMul, Reverse, Slice, Unary};
use crate::pass::PassError;
use crate::pass::replicate;
use crate::types::{Code, DType, Device, Dim, Shape, ShardRule, Tensor, TensorType};

fn devices(ids: &[u32]) -> Vec<Device> {
    ids.iter().map(|id| Device::gpu(*id)).collect()
}

fn rows(width: i64) -> TensorType {
    TensorType::new(DType::F32, [Dim::n(), width.into()].into_iter().collect::<Shape>())
}

/// A shared parameter, an input without batch, an output of each kind, an input that is an output.
fn template() -> (Graph, Weights) {
    let mut b = Builder::new("net");
    let x = b.input("x", rows(8));
    let table = b.input("table", TensorType::new(DType::F32, [1, 8]));
    let w = b.param("w", Tensor::zeros(DType::F32, &[8, 8]).unwrap());
    let h = b.op("h", MatMul {}, &[x, w]).unwrap();
    let product = b.op("g", MatMul {}, &[h, w]).unwrap();
    let joined = b.op("y", Concat { axis: 1 }, &[product, x]).unwrap();
    let relu = b.op("t", Unary::Relu, &[table]).unwrap();
    b.output("y", joined);
    b.output("same", x);
    b.output("table", relu);
    b.output("again", joined);
    b.output("weights", w);
    b.finish()
}

#[test]
fn every_choice_gives_a_valid_graph_with_the_interface_of_the_template() {
    let (template, _) = template();
    let rules = [
        ShardRule::RemainderLast,
        ShardRule::Balanced,
        ShardRule::Ceil,
        ShardRule::Weighted(vec![3, 0, 2]),
    ];
    for rule in rules {
        for merge in [Merge::Cpu, Merge::Gpu] {
            for weights in
                [WeightPlacement::Template, WeightPlacement::Cpu, WeightPlacement::Mirrored]
            {
                let options = Replicate {
                    rule: rule.clone(),
                    merge,
                    weights,
                    ..Replicate::over(devices(&[2, 0, 5]))
                };
                let graph = replicate(&template, &options).unwrap();
                verify(&graph).unwrap_or_else(|e| panic!("{options:?}\n{e}"));
                let interface = |g: &Graph| {
                    let inputs: Vec<_> =
                        g.inputs().map(|v| (g.info(v).name.clone(), g.ty(v).clone())).collect();
                    let outputs: Vec<_> = g
                        .outputs()
                        .iter()
                        .map(|o| (o.name.clone(), g.ty(o.value).clone()))
                        .collect();
                    (inputs, outputs)
                };
                assert_eq!(interface(&graph), interface(&template));
                let again = [&graph.outputs()[0], &graph.outputs()[3]];
                assert_eq!(again[0].value, again[1].value, "one merge for both outputs");
            }
        }
    }
}

#[test]
fn names_of_clones_avoid_those_of_inputs_and_outputs() {
    let mut b = Builder::new("net");
    let x = b.input("x", rows(2));
    let other = b.input("x.r0", rows(2));
    let first = b.op("a", Unary::Relu, &[x]).unwrap();
    let next = b.op("a.r1", Unary::Relu, &[first]).unwrap();
    let both = b.op("d", Concat { axis: 1 }, &[next, other]).unwrap();
    b.output("y", next);
    b.output("z", both);
    let (template, _) = b.finish();
    let graph = replicate(&template, &Replicate::over(devices(&[0, 1]))).unwrap();
    verify(&graph).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn every_operator_that_forbids_the_split_is_named() {
    let mut b = Builder::new("net");
    let x = b.input("x", rows(4));
    let h = b.op("h", Unary::Tanh, &[x]).unwrap();
    let first =
        b.op("first", Slice::rows(0, Dim::ZERO, Dim::n().floor_div(&2.into())), &[h]).unwrap();
    let after = b.op("after", Unary::Relu, &[first]).unwrap();
    let across = b.op("across", Reverse { axes: vec![0] }, &[h]).unwrap();
    b.output("after", after);
    b.output("across", across);
    let (template, _) = b.finish();
    let Err(PassError::Refused(refused)) = replicate(&template, &Replicate::over(devices(&[0, 1])))
    else {
        panic!("samples are selected and joined")
    };
    let found: Vec<_> = refused.iter().map(|r| (r.label.as_str(), r.code, r.path.len())).collect();
    assert_eq!(found, [("first", Code::Reorders, 2), ("across", Code::Reorders, 2)]);
}

/// One device has all rows, so that nothing forbids a split of them; it computes without rows, too.
#[test]
fn a_single_replica_takes_what_may_not_be_split() {
    let mut b = Builder::new("net");
    let x = b.input("x", rows(4));
    let w = b.param("w", Tensor::zeros(DType::F32, &[4, 4]).unwrap());
    let h = b.op("h", MatMul {}, &[x, w]).unwrap();
    let across = b.op("across", Reverse { axes: vec![0] }, &[h]).unwrap();
    b.output("across", across);
    b.output("same", x);
    let (template, _) = b.finish();
    let over = Replicate::over(devices(&[3]));
    for weights in [WeightPlacement::Template, WeightPlacement::Mirrored] {
        let graph = replicate(&template, &Replicate { weights, ..over.clone() }).unwrap();
        let verified = verify(&graph).unwrap_or_else(|e| panic!("{e}"));
        prove(&template, &verified).unwrap_or_else(|e| panic!("{e}"));
        let is_reverse =
            |id: &NodeId| graph.node(*id).op().is_some_and(|op| op.name() == "reverse");
        let across = graph.ids().find(is_reverse).unwrap();
        let place = graph.node(across).place();
        assert_eq!((place.device, place.replica), (Device::gpu(3), None));
    }
}

#[test]
fn a_graph_is_replicated_once() {
    let (template, _) = template();
    let options = Replicate::over(devices(&[0, 1]));
    let graph = replicate(&template, &options).unwrap();
    assert_eq!(replicate(&graph, &options), Err(PassError::AlreadyReplicated(2)));
}
