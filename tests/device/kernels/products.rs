//! Chains, products and convolutions.

#![allow(
    clippy::many_single_char_names,
    reason = "sizes of products have the letters of their formulas"
)]

use fanwise::ir::{Graph, Value};
use fanwise::op::{
    BatchNorm, Binary, Concat, Conv, ConvTranspose, GeluForm, Gemm, MatMul, Pool, Softmax, Unary,
};
use fanwise::types::Tensor;
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::lines::compare;
use super::{Net, signed};
use crate::results::trial;
use crate::setup::{Tensors, inputs};

pub(super) fn unaries() -> Vec<Unary> {
    use Unary as U;
    vec![
        U::Abs,
        U::Neg,
        U::Sign,
        U::Relu,
        U::Clip { min: Some(-0.5), max: Some(0.75) },
        U::Exp,
        U::Floor,
        U::Ceil,
        U::Round,
        U::Erf,
        U::Sin,
        U::Cos,
        U::Atan,
        U::Sinh,
        U::Cosh,
        U::Tanh,
        U::Asinh,
        U::Sigmoid,
        U::HardSigmoid { alpha: 0.2, beta: 0.5 },
        U::Swish { alpha: 1.5 },
        U::HardSwish,
        U::Mish,
        U::Gelu { approximate: GeluForm::Exact },
        U::Gelu { approximate: GeluForm::Tanh },
        U::Softplus,
        U::Softsign,
        U::LeakyRelu { alpha: 0.01 },
        U::ThresholdedRelu { alpha: 0.5 },
        U::Shrink { bias: 0.25, lambd: 0.5 },
        U::Elu { alpha: 1.5 },
        U::Selu { alpha: 1.67, gamma: 1.05 },
        U::Celu { alpha: 0.5 },
    ]
}

/// Several functions of one input, and a chain.
pub(super) fn elementwise(net: &mut Net, i: usize) -> Vec<Value> {
    let axes = net.pick(0, 3);
    let dims = net.sizes(axes, 12);
    let x = net.input(&dims);
    let all = unaries();
    let own = (0..4).map(|k| all[(4 * i + k) % all.len()].clone());
    let mut results: Vec<Value> = own.map(|op| net.op(op, &[x])).collect();
    // Functions that are defined on positive numbers.
    let positive = net.op(Unary::Abs, &[x]);
    let one = net.param_from(1.0, &[1]);
    let above = net.op(Binary::Add, &[positive, one]);
    let ops = [Unary::Log, Unary::Sqrt, Unary::Reciprocal, Unary::Acosh];
    results.push(net.op(ops[i % 4].clone(), &[above]));
    let below = net.op(Binary::Div, &[x, above]);
    let ops = [Unary::Asin, Unary::Acos, Unary::Atanh, Unary::Tan];
    results.push(net.op(ops[i % 4].clone(), &[below]));
    let chained = net.chain(x);
    results.push(net.op(Unary::Neg, &[chained]));
    results
}

pub(super) fn broadcast(net: &mut Net, i: usize) -> Vec<Value> {
    use Binary as B;
    let axes = net.pick(1, 3);
    let dims = net.sizes(axes, 6);
    let mut thinned = || -> Vec<usize> {
        dims.iter().map(|d| if net.rng.random_bool(0.4) { 1 } else { *d }).collect()
    };
    let (left, right) = (thinned(), thinned());
    let (x, y) = (net.input(&left), net.input(&right));
    let ops = [B::Add, B::Sub, B::Mul, B::Max, B::Min];
    let first = net.op(ops[i % 5].clone(), &[x, y]);
    let other = net.param_from(0.5, &right);
    let second = net.op([B::Div, B::Mod { fmod: true }][i % 2].clone(), &[x, other]);
    let base = net.param_from(0.5, &left);
    let third = net.op(B::Pow, &[base, y]);
    vec![first, second, third]
}

pub(super) fn matmul(net: &mut Net, i: usize) -> Vec<Value> {
    let [m, k, w] = [net.size(70), net.size(70), net.size(140)];
    let (left, right) = match i % 6 {
        0 => (net.input(&[k]), net.param(&[k, w])),
        1 => (net.input(&[m, k]), net.param(&[k, w])),
        2 => (net.input(&[2, m, k]), net.input(&[2, k, w])),
        3 => (net.input(&[2, m, k]), net.param(&[2, k, w])),
        4 => (net.input(&[1, m, k]), net.param(&[1, 3, k, w])),
        _ => (net.input(&[m, k]), net.param(&[k])),
    };
    let y = net.op(MatMul {}, &[left, right]);
    vec![net.chain(y)]
}

pub(super) fn gemm(net: &mut Net, i: usize) -> Vec<Value> {
    let (k, w) = (net.size(140), net.size(140));
    let op = Gemm { alpha: 0.5, beta: 2.0, trans_a: false, trans_b: i.is_multiple_of(2) };
    let right = if op.trans_b { [w, k] } else { [k, w] };
    let mut operands = vec![net.input(&[k]), net.param(&right)];
    match i % 5 {
        0 => operands.push(net.param(&[1])),
        1 => operands.push(net.param(&[w])),
        2 => operands.push(net.param(&[1, w])),
        3 => operands.push(net.input(&[w])),
        _ => {}
    }
    let y = net.op(op, &operands);
    vec![net.chain(y)]
}

/// Settings of windows, sizes of an image and of a kernel.
pub(super) struct Windows {
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    pub(super) pads: Vec<i64>,
    pub(super) image: Vec<usize>,
    pub(super) kernel: Vec<usize>,
}

pub(super) fn windows(net: &mut Net, axes: usize) -> Windows {
    let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
        (0..n).map(|_| net.rng.random_range(from..=to)).collect()
    };
    let (strides, dilations, pads) = (list(1, 3, axes), list(1, 2, axes), list(0, 2, axes * 2));
    let kernel = net.sizes(axes, 3);
    let image = kernel.iter().map(|k| 2 * k - 1 + net.pick(0, 5)).collect();
    Windows { strides, dilations, pads, image, kernel }
}

/// Channels of a group in the operand and in the result, and groups.
const CHANNELS: [(usize, usize, usize); 8] =
    [(3, 8, 1), (4, 8, 1), (8, 36, 1), (5, 7, 2), (4, 4, 3), (12, 130, 1), (2, 3, 1), (16, 20, 2)];

fn convolution(net: &mut Net, i: usize, (c, m, groups): (usize, usize, usize)) -> Vec<Value> {
    let Windows { strides, dilations, pads, image, kernel } = windows(net, [2, 1, 2, 3][i % 4]);
    let x = net.input(&[&[c * groups], image.as_slice()].concat());
    let w = net.param(&[&[m * groups, c], kernel.as_slice()].concat());
    let mut operands = vec![x, w];
    if i.is_multiple_of(2) {
        operands.push(net.param(&[m * groups]));
    }
    let y = net.op(Conv { strides, dilations, pads, groups: signed(groups) }, &operands);
    vec![net.chain(y)]
}

/// A weight that is infinite or no number meets only what lies inside the image.
pub(super) fn infinite(net: &mut Net, i: usize) -> Vec<Value> {
    let Windows { strides, dilations, mut pads, image, kernel } = windows(net, [2, 1][i % 2]);
    pads.fill(1);
    let (c, m) = ([4, 3, 1][i % 3], [8, 5][i / 3 % 2]);
    let x = net.input(&[&[c], image.as_slice()].concat());
    let count: usize = kernel.iter().product();
    let special = net.pick(0, m * c * count - 1);
    let mut data: Vec<f32> = (0..m * c * count).map(|_| net.rng.random_range(-2.0..2.0)).collect();
    data[special] = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY][i % 3];
    let mut param = |sizes: [usize; 2]| {
        let dims = [sizes.as_slice(), kernel.as_slice()].concat();
        let name = net.name();
        net.builder.param(&name, Tensor::new(&dims, &data).unwrap())
    };
    let (w, turned) = (param([m, c]), param([c, m]));
    let bias = net.param(&[m]);
    let output_padding = strides.iter().map(|s| s - 1).collect();
    let conv = Conv { strides: strides.clone(), dilations: dilations.clone(), pads, groups: 1 };
    let transposed =
        ConvTranspose { strides, dilations, pads: Vec::new(), output_padding, groups: 1 };
    vec![net.op(conv, &[x, w, bias]), net.op(transposed, &[x, turned, bias])]
}

pub(super) fn conv(net: &mut Net, i: usize) -> Vec<Value> {
    convolution(net, i, CHANNELS[i % 8])
}

pub(super) fn depthwise(net: &mut Net, i: usize) -> Vec<Value> {
    let (groups, each) = [(8, 1), (5, 1), (3, 2), (132, 1), (1, 1), (40, 1)][i % 6];
    convolution(net, i, (1, each, groups))
}

pub(super) fn grouped(net: &mut Net, i: usize) -> Vec<Value> {
    let channels =
        [(4, 4, 8), (2, 3, 4), (8, 8, 5), (3, 16, 2), (4, 4, 32), (16, 12, 2), (5, 8, 3)];
    convolution(net, i, channels[i % 7])
}

pub(super) fn conv_transpose(net: &mut Net, i: usize) -> Vec<Value> {
    transposed(net, i, CHANNELS[i % 8])
}

pub(super) fn depthwise_transpose(net: &mut Net, i: usize) -> Vec<Value> {
    let groups = [8, 5, 132, 40, 3][i % 5];
    transposed(net, i, (1, 1, groups))
}

/// Of every second graph the first places of the result are cut off.
fn transposed(net: &mut Net, i: usize, (c, m, groups): (usize, usize, usize)) -> Vec<Value> {
    let Windows { strides, dilations, image, kernel, .. } = windows(net, [2, 1, 2, 3][i % 4]);
    let first = kernel.iter().zip(&dilations).map(|(k, d)| signed(*k - 1) * d);
    let pads = first.chain(kernel.iter().map(|_| 0)).collect();
    let pads = if i % 2 == 1 { pads } else { Vec::new() };
    let x = net.input(&[&[c * groups], image.as_slice()].concat());
    let w = net.param(&[&[c * groups, m], kernel.as_slice()].concat());
    let bias = net.param(&[m * groups]);
    let output_padding = strides.iter().map(|s| s - 1).collect();
    let groups = signed(groups);
    let op = ConvTranspose { strides, dilations, pads, output_padding, groups };
    let y = net.op(op, &[x, w, bias]);
    vec![net.chain(y)]
}

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("kernels_wide_tiles", wide_tiles),
        trial("kernels_joined_channels", joined_channels),
        trial("kernels_repeated_norms", repeated_norms),
        trial("kernels_taps_that_are_far_apart", taps_that_are_far_apart),
    ]
}

fn batch(graph: &Graph) -> Tensors {
    inputs(graph, 3, &mut ChaCha8Rng::seed_from_u64(5))
}

/// The largest tiles of convolutions and of matrix products, with and without vectors, whole and
/// cut off.
fn wide_tiles() {
    for (i, (c, m, kernel)) in [(4, 132, 3), (12, 130, 1), (8, 256, 1)].into_iter().enumerate() {
        let mut net = Net::new(i);
        let x = net.input(&[c, 10, 10]);
        let (w, bias) = (net.param(&[m, c, kernel, kernel]), net.param(&[m]));
        let pads = vec![signed(kernel / 2); 4];
        let conv = Conv { strides: vec![1, 1], dilations: vec![1, 1], pads, groups: 1 };
        let y = net.op(conv, &[x, w, bias]);
        let (rows, right) = (net.input(&[80, 9 * c]), net.param(&[9 * c, m]));
        let product = net.op(MatMul {}, &[rows, right]);
        let results = [net.chain(y), net.chain(product)];
        compare(net, &results, batch, 2e-5, &format!("{c} to {m} channels, kernel {kernel}"));
    }
}

/// Chains in which batch norms, vectors and whole operands come twice.
fn repeated_norms() {
    let mut net = Net::new(0);
    let x = net.input(&[3, 4]);
    let [scale, bias, mean, other] = [(); 4].map(|()| net.param(&[3]));
    let var = net.param_from(0.5, &[3]);
    let norm = BatchNorm::default;
    let p = net.op(Softmax::Softmax { axis: 2 }, &[x]);
    let sum = net.op(Binary::Add, &[x, p]);
    let first = net.op(norm(), &[sum, scale, bias, mean, var]);
    let product = net.op(Binary::Mul, &[first, p]);
    let bent = net.op(Unary::Relu, &[product]);
    let again = net.op(norm(), &[bent, scale, bias, mean, var]);
    let last = net.op(norm(), &[again, scale, bias, other, var]);
    // Means that the batch gives are no parameters.
    let vector = net.param(&[3, 1]);
    let given = net.op(Unary::Neg, &[mean]);
    let moved = net.op(Binary::Add, &[last, vector]);
    let plain = net.op(norm(), &[moved, scale, bias, given, var]);
    let end = net.op(Binary::Sub, &[plain, vector]);
    compare(net, &[end], batch, 2e-5, "repeated operands");
}

/// Images of which convolutions and pools write some channels each, at whole vectors or not.
fn joined_channels() {
    let conv = |pad: i64| Conv {
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads: vec![pad; 4],
        groups: 1,
    };
    for (i, [c, a, b]) in [[6, 5, 8], [4, 4, 12], [2, 1, 3], [8, 16, 130]].into_iter().enumerate() {
        let mut net = Net::new(i);
        let x = net.input(&[c, 9, 7]);
        let (w, bias) = (net.param(&[a, c, 1, 1]), net.param(&[a]));
        let one = net.op(conv(0), &[x, w, bias]);
        let one = net.op(Unary::Relu, &[one]);
        let w = net.param(&[b, c, 3, 3]);
        let three = net.op(conv(1), &[x, w]);
        let w = net.param(&[c, 2 * a, 3, 3]);
        let turned = ConvTranspose { pads: vec![1; 4], ..ConvTranspose::default() };
        let turned = net.op(turned, &[x, w]);
        let op = Pool::Max {
            kernel: vec![3, 3],
            strides: vec![1, 1],
            dilations: vec![1, 1],
            pads: vec![1; 4],
            ceil_mode: false,
            column_major: false,
            indices: false,
        };
        let pooled = net.op(op, &[x]);
        let mut parts = [one, three, turned, pooled];
        parts.rotate_left(i);
        let all = net.op(Concat { axis: 1 }, &parts);
        let w = net.param(&[5, 3 * a + b + c, 1, 1]);
        let next = net.op(conv(0), &[all, w]);
        compare(net, &[next], batch, 2e-5, &format!("{c} channels, {a} and {b} of {c}"));
    }
}

/// Depthwise convolutions whose windows reach further than a thread reads on.
fn taps_that_are_far_apart() {
    for (i, (kernel, dilation, stride)) in
        [(3, 64, 1), (3, 130, 2), (2, 600, 1)].into_iter().enumerate()
    {
        let mut net = Net::new(i);
        let x = net.input(&[8, dilation + 70]);
        let w = net.param(&[8, 1, kernel]);
        let pads = vec![signed(dilation); 2];
        let (strides, dilations) = (vec![signed(stride)], vec![signed(dilation)]);
        let y = net.op(Conv { strides, dilations, pads, groups: 8 }, &[x, w]);
        let results = [net.chain(y)];
        compare(net, &results, batch, 2e-5, &format!("kernel {kernel}, dilation {dilation}"));
    }
}
