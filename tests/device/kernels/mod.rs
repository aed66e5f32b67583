//! Every kernel file on random small shapes: one device against the reference evaluation, three
//! against one.

mod cells;
mod functions;
mod index;
mod lines;
mod moves;
mod products;
mod training;
mod types;

use fanwise::ir::{Builder, Graph, Value, Weights};
use fanwise::op::{BatchNorm, Binary, Op, Unary};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};
use libtest_mimic::Trial;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::turn::part;

use crate::results::trial;
use crate::setup::{
    Tensors, assert_bits, assert_close, assert_equal, expected, inputs, is_fake, on_gpus, outputs,
    replicas,
};

/// A graph of one kernel, from the number of a case.
type Make = fn(&mut Net, usize) -> Vec<Value>;

const CLASSES: [(&str, Make); 5] = [
    ("shared_lines", lines::shared),
    ("gradients_of_recurrent_cells", cells::gradients),
    ("draws", cells::random),
    ("gradients_of_weights", training::weights),
    ("gradients_of_few_weights", training::few_weights),
];

/// Classes whose kernels take the operations of the reference evaluation, in its order. Of these,
/// logarithms and exponentials of `f64` are CUDA's, whose differences the results' rounding hides.
const EXACT: [(&str, Make); 25] = [
    ("long_lines", lines::long),
    ("reductions", lines::reduce),
    ("elementwise_chains", products::elementwise),
    ("broadcasts", products::broadcast),
    ("softmaxes", lines::softmax),
    ("normalisations", lines::norm),
    ("pools", lines::pool),
    ("resized_images", lines::resize),
    ("moved_elements", moves::moves),
    ("recurrent_cells", cells::recurrent),
    ("gradients_of_pools", training::pools),
    ("matrix_products", products::matmul),
    ("scaled_matrix_products", products::gemm),
    ("convolutions", products::conv),
    ("transposed_convolutions", products::conv_transpose),
    ("depthwise_convolutions", products::depthwise),
    ("transposed_depthwise_convolutions", products::depthwise_transpose),
    ("grouped_convolutions", products::grouped),
    ("convolutions_with_infinite_weights", products::infinite),
    ("picked_elements", index::gathers),
    ("placed_elements", index::scatters),
    ("patterns_of_elements", index::patterns),
    ("ordered_lines", index::orders),
    ("scanned_lines", index::scans),
    ("dropped_elements", training::dropped),
];

/// Graphs of each class, on the fake device and on a real one; each setting of a class comes in the
/// first nine.
const GRAPHS: [usize; 2] = [9, 30];

pub(crate) fn trials() -> Vec<Trial> {
    let class = |((name, make), tolerance): ((&'static str, Make), f64)| {
        trial(format!("kernels_{name}"), move || {
            let graphs = 0..GRAPHS[usize::from(!is_fake())];
            part(graphs, 2, 0).for_each(|i| check(name, make, i, tolerance));
        })
    };
    let classes = CLASSES.into_iter().zip(std::iter::repeat(2e-5));
    let all = classes.chain(EXACT.into_iter().zip(std::iter::repeat(0.0))).map(class);
    let all = all.chain(types::trials()).chain(training::trials()).chain(functions::trials());
    all.chain(lines::trials()).chain(products::trials()).collect()
}

fn check(name: &str, make: Make, i: usize, tolerance: f64) {
    let mut net = Net::new(i);
    let results = make(&mut net, i);
    // A block takes four sequences through the steps of a cell.
    let most = if name.ends_with("recurrent_cells") { 10 } else { 5 };
    let n = net.rng.random_range(1..most);
    let (graph, weights) = net.finish(&results);
    let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
    let mut inputs = inputs(&graph, n, &mut rng);
    match i % 3 {
        0 if name != "matrix_products" => corners(&mut inputs),
        1 => rarities(&mut inputs),
        _ => {}
    }
    let what = format!("{name} {i} of {n} rows:\n{graph}");
    let wanted = expected(&graph, &weights, &inputs, false);
    let alone = outputs(&on_gpus(&graph, &weights, 1, 1), &inputs);
    assert_within(&alone, &wanted, tolerance, &what);
    let split = replicas(&graph, 3, i as u64);
    let many = outputs(&on_gpus(&graph, &weights, 3, i as u64), &inputs);
    assert_bits(&split, &many, &alone, &what);
}

/// Fails unless floats are within `tolerance` of the largest magnitude; without any all have the
/// same bits, zeros their signs, and a NaN equals a NaN.
fn assert_within(found: &[Tensor], expected: &[Tensor], tolerance: f64, what: &str) {
    if tolerance > 0.0 {
        assert_close(found, expected, tolerance, what);
    } else {
        assert_equal(found, expected, what);
    }
}

/// Puts numbers at which functions have corners before the others.
fn corners(inputs: &mut Tensors) {
    let corners = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1e-40, -1e-40, 1.0, -1.0];
    for tensor in inputs.values_mut().filter(|t| t.dtype() == DType::F32) {
        tensor.as_mut_slice::<f32>().iter_mut().zip(corners).for_each(|(x, c)| *x = c);
    }
}

/// Puts what is no number, infinities and numbers whose exponentials are such in the middle of the
/// others.
fn rarities(inputs: &mut Tensors) {
    let rarities = [f32::NAN, f32::INFINITY, -104.0, f32::NEG_INFINITY, 104.0];
    for tensor in inputs.values_mut().filter(|t| t.dtype() == DType::F32) {
        let elements = tensor.as_mut_slice::<f32>();
        let middle = elements.len() / 2;
        elements[middle..].iter_mut().zip(rarities).for_each(|(x, rare)| *x = rare);
    }
}

/// A graph under construction, with the randomness of its case.
struct Net {
    rng: ChaCha8Rng,
    builder: Builder,
    values: usize,
}

impl Net {
    fn new(i: usize) -> Self {
        let builder = Builder::new(format!("case_{i}"));
        Self { rng: ChaCha8Rng::seed_from_u64(1000 + i as u64), builder, values: 0 }
    }

    fn pick(&mut self, from: usize, to: usize) -> usize {
        self.rng.random_range(from..=to)
    }

    fn chance(&mut self) -> bool {
        self.rng.random_bool(0.5)
    }

    /// A size, often one that vectors divide.
    fn size(&mut self, most: usize) -> usize {
        if self.chance() { 4 * self.pick(1, (most / 4).max(1)) } else { self.pick(1, most) }
    }

    /// Sizes of so many axes.
    fn sizes(&mut self, axes: usize, most: usize) -> Vec<usize> {
        (0..axes).map(|_| self.pick(1, most)).collect()
    }

    fn name(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    /// An input with these sizes behind the batch.
    fn input(&mut self, dims: &[usize]) -> Value {
        self.input_of(DType::F32, dims)
    }

    fn input_of(&mut self, dtype: DType, dims: &[usize]) -> Value {
        let size = |d: &usize| Dim::from(i64::try_from(*d).unwrap());
        let shape: Shape = std::iter::once(Dim::n()).chain(dims.iter().map(size)).collect();
        let name = self.name();
        self.builder.input(&name, TensorType::new(dtype, shape))
    }

    /// A parameter with numbers in `from..2`.
    fn param_from(&mut self, from: f32, dims: &[usize]) -> Value {
        let count = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|_| self.rng.random_range(from..2.0)).collect();
        let name = self.name();
        self.builder.param(&name, Tensor::new(dims, &data).unwrap())
    }

    /// A parameter with numbers in `-limit..limit`.
    fn param_within(&mut self, limit: f32, dims: &[usize]) -> Value {
        let count = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|_| self.rng.random_range(-limit..limit)).collect();
        let name = self.name();
        self.builder.param(&name, Tensor::new(dims, &data).unwrap())
    }

    fn param(&mut self, dims: &[usize]) -> Value {
        self.param_from(-2.0, dims)
    }

    fn op(&mut self, op: impl Into<Op>, operands: &[Value]) -> Value {
        let name = self.name();
        self.builder.op(&name, op, operands).unwrap_or_else(|e| panic!("{e}"))
    }

    /// An operator with so many results.
    fn ops(&mut self, results: usize, op: impl Into<Op>, operands: &[Value]) -> Vec<Value> {
        let names: Vec<String> = (0..results).map(|_| self.name()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.builder.ops(&names, op, operands).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The sizes of a value behind the batch.
    fn dims(&self, value: Value) -> Vec<usize> {
        let shape = &self.builder.graph().ty(value).shape;
        shape[1..].iter().map(|d| usize::try_from(d.as_const().unwrap()).unwrap()).collect()
    }

    /// The value behind some elementwise operators.
    fn chain(&mut self, mut x: Value) -> Value {
        let dims = self.dims(x);
        for _ in 0..self.pick(0, 3) {
            let from = self.pick(0, dims.len());
            let behind = &dims[from.min(dims.len())..];
            x = match self.pick(0, 4) {
                0 => {
                    let ops = [
                        Unary::Relu,
                        Unary::Sigmoid,
                        Unary::Clip { min: Some(0.0), max: Some(6.0) },
                    ];
                    let op = ops.choose(&mut self.rng).unwrap().clone();
                    self.op(op, &[x])
                }
                1 => {
                    // A vector along one axis, and a value over the last axes.
                    let mut sizes = behind.to_vec();
                    if self.chance() {
                        sizes.iter_mut().skip(1).for_each(|d| *d = 1);
                    }
                    let other = self.param(&sizes);
                    let operands = if self.chance() { [x, other] } else { [other, x] };
                    self.op(Binary::Sub, &operands)
                }
                2 => {
                    let other = self.input(&dims);
                    let operands = if self.chance() { [x, other] } else { [other, x] };
                    self.op(Binary::Add, &operands)
                }
                3 if !dims.is_empty() => {
                    let mut operands = vec![x];
                    operands.extend((0..3).map(|_| self.param(&dims[..1])));
                    operands.push(self.param_from(0.1, &dims[..1]));
                    self.op(BatchNorm { epsilon: 0.001, ..BatchNorm::default() }, &operands)
                }
                _ => {
                    let other = self.param(&[1]);
                    self.op(Binary::Mul, &[x, other])
                }
            };
        }
        x
    }

    fn finish(mut self, results: &[Value]) -> (Graph, Weights) {
        for (i, value) in results.iter().enumerate() {
            self.builder.output(&format!("y{i}"), *value);
        }
        self.builder.finish()
    }
}

fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap()
}
