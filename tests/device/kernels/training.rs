//! What only training has: gradients of windows, dropped elements, statistics of the batch.

use fanwise::internal::{BatchNormGrad, BatchNormTrain, ConvWeightGrad, DropoutTrain, PoolGrad};
use fanwise::ir::Value;
use fanwise::op::{Attr, Binary, Cast, Conv, Op, Pool, Range, Unary};
use fanwise::types::{DType, Tensor};
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::products::{Windows, windows};
use super::{Net, corners, signed};
use crate::results::trial;
use crate::setup::{assert_close, expected, inputs, is_fake, on_gpus, outputs};

/// The gradients of both pools, whose windows overlap, leave gaps, or have no element.
pub(super) fn pools(net: &mut Net, i: usize) -> Vec<Value> {
    let Windows { strides, dilations, pads, image, kernel } = windows(net, [2, 1, 2, 3][i % 4]);
    let channels = [1, 4, 5][i % 3];
    let kernel: Vec<i64> = kernel.into_iter().map(signed).collect();
    let pads: Vec<i64> =
        pads.iter().zip(kernel.iter().chain(&kernel)).map(|(p, k)| *p.min(k)).collect();
    let ceil_mode = i.is_multiple_of(5);
    let sizes = [&[channels], image.as_slice()].concat();
    let mut x = net.input(&sizes);
    if net.chance() {
        // Equal elements.
        x = net.op(Unary::Round, &[x]);
    }
    let pool = Pool::Max {
        kernel: kernel.clone(),
        strides: strides.clone(),
        dilations: dilations.clone(),
        pads: pads.clone(),
        ceil_mode,
        indices: false,
        column_major: false,
    };
    let y = net.op(pool, &[x]);
    let dims = net.dims(y);
    let dy = net.input(&dims);
    let max = PoolGrad::Max {
        kernel: kernel.clone(),
        strides: strides.clone(),
        dilations: dilations.clone(),
        pads: pads.clone(),
        ceil_mode,
    };
    let average = PoolGrad::Average {
        sizes: image.into_iter().map(signed).collect(),
        kernel,
        strides,
        dilations,
        pads,
        ceil_mode,
        count_include_pad: net.chance(),
    };
    vec![net.op(max, &[x, dy]), net.op(average, &[dy])]
}

/// Channels of a group in the operand and in the result, and groups.
const CHANNELS: [(usize, usize, usize); 8] =
    [(3, 8, 1), (4, 36, 1), (1, 5, 1), (20, 4, 2), (1, 1, 40), (3, 2, 3), (1, 2, 5), (4, 4, 8)];

/// Gradients of convolutions' kernels; in some graphs one of what comes back is infinite.
pub(super) fn weights(net: &mut Net, i: usize) -> Vec<Value> {
    let mut windows = windows(net, [2, 1, 2, 3][i % 4]);
    if i % 7 == 1 {
        // Several parts.
        windows.image[0] += 600;
    }
    let infinite = i % 6 == 2;
    if infinite {
        windows.pads.fill(1);
    }
    let [x, mut dy] = convolved(net, &windows, CHANNELS[i % 8]);
    if infinite {
        let dims = net.dims(dy);
        let mut factors = vec![1.0f32; dims.iter().product()];
        let place = net.pick(0, factors.len() - 1);
        factors[place] = f32::INFINITY;
        let name = net.name();
        let factors = net.builder.param(&name, Tensor::new(&dims, &factors).unwrap());
        dy = net.op(Binary::Mul, &[dy, factors]);
    }
    gradient(net, windows, CHANNELS[i % 8].2, &[x, dy])
}

/// Gradients of the kernels of single channels and of small groups: more weights than a thread
/// holds, parts that begin inside a sample, one and three axes, channels that are no vectors.
pub(super) fn few_weights(net: &mut Net, i: usize) -> Vec<Value> {
    let (channels, image, kernel) = [
        ((1, 1, 8), vec![37, 41], vec![5, 5]),
        ((1, 1, 4), vec![1500], vec![3]),
        ((1, 1, 12), vec![9, 11, 13], vec![2, 3, 3]),
        ((1, 2, 5), vec![33, 35], vec![3, 2]),
        ((4, 2, 3), vec![34, 36], vec![3, 3]),
    ][i % 5]
        .clone();
    let axes = image.len();
    let strides = vec![1 + signed(i / 5 % 2); axes];
    let dilations = vec![1 + signed(i / 10 % 2); axes];
    let pads = vec![signed(i % 2); 2 * axes];
    let windows = Windows { strides, dilations, pads, image, kernel };
    let operands = convolved(net, &windows, channels);
    gradient(net, windows, channels.2, &operands)
}

/// What a convolution takes, and what comes back for its result: of so many channels of a group in
/// the operand and in the result, and groups.
fn convolved(net: &mut Net, of: &Windows, channels: (usize, usize, usize)) -> [Value; 2] {
    let (from, to, groups) = channels;
    let x = net.input(&[&[from * groups], of.image.as_slice()].concat());
    let w = net.param(&[&[to * groups, from], of.kernel.as_slice()].concat());
    let (strides, dilations, pads) = (of.strides.clone(), of.dilations.clone(), of.pads.clone());
    let y = net.op(Conv { strides, dilations, pads, groups: signed(groups) }, &[x, w]);
    let dims = net.dims(y);
    [x, net.input(&dims)]
}

/// The gradient of its kernel.
fn gradient(net: &mut Net, of: Windows, groups: usize, operands: &[Value; 2]) -> Vec<Value> {
    let Windows { strides, dilations, pads, kernel, .. } = of;
    let kernel = kernel.into_iter().map(signed).collect();
    let op = ConvWeightGrad { strides, dilations, pads, groups: signed(groups), kernel };
    vec![net.op(op, operands)]
}

/// Elements of all floats that are dropped.
pub(super) fn dropped(net: &mut Net, i: usize) -> Vec<Value> {
    let axes = net.pick(0, 3);
    let dims = net.sizes(axes, 9);
    let x = net.input(&dims);
    let to = [DType::F32, DType::F32, DType::F16, DType::Bf16][i % 4];
    let x = net.op(Cast { to }, &[x]);
    let rows = net.input_of(DType::I64, &[]);
    let name = net.name();
    let number = net.rng.random_range(0..1000i64);
    let step = net.builder.param(&name, Tensor::scalar(number));
    let rate = [0.0, 0.25, 0.5, 0.9][net.pick(0, 3)];
    let seed = net.rng.random::<i64>();
    let start = net.rng.random_range(-9..9i64);
    let delta = [1, -3][i % 2];
    let dtype = [DType::I64, DType::I32][i / 2 % 2];
    let range = Range { delta, dtype, limit: (start + 4 * delta).into(), start: start.into() };
    let mut results = vec![net.op(DropoutTrain { rate, seed }, &[x, rows, step])];
    for name in ["row_uniform", "row_normal"] {
        let noise = Op::read(name, vec![("seed".to_owned(), Attr::Int(seed.into()))]).unwrap();
        let drawn = net.op(noise, &[x, rows, step]);
        // A GPU's logarithm and cosine of f64 may end in another digit.
        results.push(net.op(Cast { to: DType::F32 }, &[drawn]));
    }
    results.push(net.op(range, &[]));
    results
}

/// Those that look at the whole batch, on one device.
pub(super) fn trials() -> Vec<Trial> {
    let count = [12, 60][usize::from(!is_fake())];
    vec![trial("kernels_statistics_of_batches", move || (0..count).for_each(statistics))]
}

fn statistics(i: usize) {
    let mut net = Net::new(i);
    let channels = net.size(40);
    let behind = [vec![], vec![1], vec![5], vec![3, 4], vec![30, 40], vec![2, 1, 3]][i % 6].clone();
    let dims = [&[channels], behind.as_slice()].concat();
    let x = net.input(&dims);
    let [scale, bias, mean] = [(); 3].map(|()| net.param(&[channels]));
    let variance = net.param_from(0.1, &[channels]);
    let train = BatchNormTrain { epsilon: 1e-3, local: true, momentum: 0.75 };
    let mut results = net.ops(3, train, &[x, scale, bias, mean, variance]);
    let y = results[0];
    results[0] = net.chain(y);
    let dy = net.input(&dims);
    let gradient = BatchNormGrad { epsilon: 1e-3, local: true };
    results.extend(net.ops(3, gradient, &[x, scale, dy]));
    results.extend(steps(&mut net, i, [x, dy, scale, bias]));
    let (graph, weights) = net.finish(&results);
    let gpu = on_gpus(&graph, &weights, 1, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
    for n in [[0, 1, 3], [2, 7, 0]][i % 2] {
        let mut batch = inputs(&graph, n, &mut rng);
        if i.is_multiple_of(3) {
            corners(&mut batch);
        }
        let what = format!("statistics {i} of {n} rows:\n{graph}");
        let wanted = expected(&graph, &weights, &batch, false);
        assert_close(&outputs(&gpu, &batch), &wanted, 2e-5, &what);
    }
}

/// The same in the steps between which replicas exchange statistics, of singles and of halves.
fn steps(net: &mut Net, i: usize, [x, dy, scale, bias]: [Value; 4]) -> Vec<Value> {
    let op = |name: &str| Op::read(name, vec![]).unwrap();
    let to = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
    let [x, dy] = [x, dy].map(|v| net.op(Cast { to }, &[v]));
    let moments = net.op(op("batch_moments"), &[x]);
    let y = net.op(op("batch_norm_apply"), &[x, scale, bias, moments]);
    let sums = net.op(op("batch_norm_sums"), &[x, dy, moments]);
    let dx = net.op(op("batch_norm_apply_grad"), &[x, scale, dy, moments, sums]);
    [moments, y, sums, dx].map(|v| net.op(Cast { to: DType::F32 }, &[v])).into()
}
