//! Graphs that the unit tests of lowering and of the backends share, replicated by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{
    Builder, ContentHash, DevicePlacement, Graph, NodeKind, Origin, Param, ParamId, Placement,
    Source, Value, Weights,
};
use crate::op::{BatchNorm, Binary, Concat, Conv, CopyOp, First, Op, Reshape, Slice, Unary};
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

/// `n` rows for the input of the graphs below.
pub(crate) fn batch(n: usize) -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_owned(), numbers(&[n, 8]))])
}

fn weights() -> Weights {
    let mut weights = Weights::default();
    weights.insert("w", numbers(&[3, 8]));
    weights
}

/// `y = exp(h) ++ neg(x)` with `h = relu(x)`, `h` itself, and `v = neg(w)`, which carries no batch.
pub(crate) fn template() -> (Graph, Weights) {
    let mut build = Builder::new("net");
    let input = build.input("x", rows(8));
    let weight = build.param("w", numbers(&[3, 8]));
    let relu = build.op("h", Unary::Relu, &[input]).unwrap();
    let exp = build.op("e", Unary::Exp, &[relu]).unwrap();
    let neg = build.op("n", Unary::Neg, &[input]).unwrap();
    let joined = build.op("y", Concat { axis: 1 }, &[exp, neg]).unwrap();
    let whole = build.op("v", Unary::Neg, &[weight]).unwrap();
    build.output("y", joined);
    build.output("h", relu);
    build.output("v", whole);
    (build.finish().0, weights())
}

/// The options of replicating the template.
#[derive(Clone, Debug)]
pub(crate) struct Replication {
    pub(crate) count: u32,
    pub(crate) rule: ShardRule,
    pub(crate) merge: Device,
    pub(crate) weights: Placement,
}

impl Replication {
    /// By the default rule, merged on the host, which holds the parameters.
    pub(crate) fn of(count: u32) -> Self {
        let weights = Placement::Shared(Device::HOST);
        Self { count, rule: ShardRule::RemainderLast, merge: Device::HOST, weights }
    }

    /// The template on several devices.
    pub(crate) fn graph(&self) -> (Graph, Weights) {
        let devices: Vec<Device> = (0..self.count).map(Device::gpu).collect();
        let split = Split::new(devices, self.rule.clone()).unwrap();
        let mut graph = Graph::new("net");
        let input = graph.add_input("x", rows(8));
        let tensor = numbers(&[3, 8]);
        let param = graph.add_param(Param {
            name: "w".into(),
            ty: tensor.tensor_type(),
            source: Source { file: "m.onnx".into(), key: "w".into() },
            hash: ContentHash::of(&tensor),
            placement: self.weights,
        });
        graph.set_split(Some(split));
        let shared = self.weights != Placement::Mirrored;
        let held = shared.then(|| graph.add_param_node(param, Device::HOST));
        let mut parts: [Vec<Value>; 3] = Default::default();
        for replica in 0..self.count {
            let values = self.clone_template(&mut graph, replica, input, held.ok_or(param));
            parts.iter_mut().zip(values).for_each(|(part, value)| part.push(value));
        }
        for (parts, name) in parts.iter().zip(["y", "h", "v"]) {
            let op: Op = if name == "v" { First {}.into() } else { Concat { axis: 0 }.into() };
            let merged = if self.merge == Device::HOST { "" } else { ".all" };
            let mut value =
                add(&mut graph, op, parts, &format!("{name}{merged}"), at(self.merge, None));
            if self.merge != Device::HOST {
                value = add(&mut graph, CopyOp {}, &[value], name, at(Device::HOST, None));
            }
            graph.add_output(name, value);
        }
        (graph, weights())
    }

    fn clone_template(
        &self,
        graph: &mut Graph,
        replica: u32,
        input: Value,
        weight: Result<Value, ParamId>,
    ) -> [Value; 3] {
        let device = Device::gpu(replica);
        let name = |name: &str| format!("{name}.r{replica}");
        let (there, host) = (at(device, Some(replica)), at(Device::HOST, Some(replica)));
        let split = graph.split().unwrap().clone();
        let (from, to) = split.range(replica as usize).unwrap();
        let slice = Slice::rows(0, from.clone(), to.clone());
        let slice = add(graph, slice, &[input], &name("x"), host);
        let own = add(graph, CopyOp {}, &[slice], &format!("x.r{replica}.d"), there);
        let weight = match weight {
            Ok(weight) => add(graph, CopyOp {}, &[weight], &name("w"), there),
            Err(param) => graph.add_param_node(param, device),
        };
        let relu = add(graph, Unary::Relu, &[own], &name("h"), there);
        let exp = add(graph, Unary::Exp, &[relu], &name("e"), there);
        let neg = add(graph, Unary::Neg, &[own], &name("n"), there);
        let joined = add(graph, Concat { axis: 1 }, &[exp, neg], &name("y"), there);
        let whole = add(graph, Unary::Neg, &[weight], &name("v"), there);
        [(joined, "y"), (relu, "h"), (whole, "v")].map(|(value, output)| {
            if device == self.merge {
                return value;
            }
            let name = format!("{output}.r{replica}.h");
            add(graph, CopyOp {}, &[value], &name, at(self.merge, Some(replica)))
        })
    }
}

fn at(device: Device, replica: Option<u32>) -> DevicePlacement {
    DevicePlacement { device, replica }
}

fn add(
    graph: &mut Graph,
    op: impl Into<Op>,
    operands: &[Value],
    name: &str,
    place: DevicePlacement,
) -> Value {
    let names: [Arc<str>; 1] = [name.into()];
    let node = graph.add(op.into(), operands, &names, place, Origin::default()).unwrap();
    Value { node, output: 0 }
}

/// Views between elementwise operators on the host; an input that is an output, and a value that is
/// two.
pub(crate) fn views() -> (Graph, Weights) {
    let mut build = Builder::new("views");
    let input = build.input("x", rows(8));
    let relu = build.op("h", Unary::Relu, &[input]).unwrap();
    let flat = build.op("flat", Reshape { shape: vec![Dim::n() * 8] }, &[relu]).unwrap();
    let exp = build.op("e", Unary::Exp, &[flat]).unwrap();
    let shape = vec![Dim::n(), 2.into(), 4.into()];
    let back = build.op("back", Reshape { shape }, &[exp]).unwrap();
    let neg = build.op("y", Unary::Neg, &[back]).unwrap();
    build.output("x", input);
    build.output("flat", flat);
    build.output("y", neg);
    build.output("again", neg);
    (build.finish().0, Weights::default())
}

/// The outputs of a graph at a batch of `n` rows, node after node by reference evaluation: what a
/// replica without rows gives has no rows, and of equal values the first is taken.
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
                let mut op = Op::clone(op);
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

/// A residual block: two convolutions, each with a normalisation; their sum is activated.
/// `f32[N,4,5,5]` in and out, then a chain of its own.
pub(crate) fn block() -> (Graph, Weights) {
    let mut build = Builder::new("block");
    let shape: Shape = [Dim::n(), 4.into(), 5.into(), 5.into()].into_iter().collect();
    let input = build.input("x", TensorType::new(DType::F32, shape));
    let norm = |build: &mut Builder, name: &str, value: Value| {
        let factors = ["scale", "bias", "mean", "var"];
        let mut operands = vec![value];
        for factor in factors {
            let data = [1.0f32, 0.5, 2.0, 0.25];
            operands.push(build.param(factor, Tensor::new(&[4], &data).unwrap()));
        }
        build.op(name, BatchNorm::default(), &operands).unwrap()
    };
    let narrow = build.param("w1", numbers(&[4, 4, 1, 1]));
    let wide = build.param("w3", numbers(&[4, 4, 3, 3]));
    let left = build.op("left", Conv::default(), &[input, narrow]).unwrap();
    let left = norm(&mut build, "left_norm", left);
    let conv = Conv { pads: vec![1; 4], ..Conv::default() };
    let right = build.op("right", conv, &[input, wide]).unwrap();
    let right = norm(&mut build, "right_norm", right);
    let sum = build.op("sum", Binary::Sub, &[left, right]).unwrap();
    let relu = build.op("relu", Unary::Relu, &[sum]).unwrap();
    let half = build.param("half", Tensor::scalar(0.5f32));
    let scaled = build.op("scaled", Binary::Mul, &[half, relu]).unwrap();
    let vector = build.param("vector", Tensor::new(&[4, 1, 1], &[1.0f32, 2.0, 3.0, 4.0]).unwrap());
    let other = build.op("other", Binary::Div, &[scaled, vector]).unwrap();
    let tanh = build.op("tanh", Unary::Tanh, &[other]).unwrap();
    let exp = build.op("exp", Unary::Exp, &[tanh]).unwrap();
    let both = build.op("both", Binary::Sub, &[scaled, exp]).unwrap();
    build.output("y", both);
    build.finish()
}
