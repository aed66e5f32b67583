//! Reductions, normalisations, pools and resized images.

use fanwise::ir::{Graph, Value};
use fanwise::op::{
    Cast, Coordinates, GroupNorm, LayerNorm, LpNorm, Nearest, Pool, Reduce, Resize, ResizeMode,
    Softmax, Unary,
};

use fanwise::types::{DType, Tensor};
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::products::{Windows, windows};
use super::{Net, assert_within, signed};
use crate::results::trial;
use crate::setup::{
    Tensors, assert_bits, assert_close, expected, inputs, on_gpus, outputs, replicas,
};

/// Elements of a line from which on several blocks take it.
const LONG: usize = 65_536;

pub(super) fn reduce(net: &mut Net, i: usize) -> Vec<Value> {
    let axes = net.pick(1, 3);
    let mut dims = net.sizes(axes, 8);
    if i.is_multiple_of(5) {
        dims.push(1500);
    }
    let x = net.input(&dims);
    let positive = net.op(Unary::Abs, &[x]);
    let mut listed: Vec<i64> = (1..=dims.len()).filter(|_| net.chance()).map(signed).collect();
    if listed.is_empty() {
        listed.push(signed(dims.len()));
    }
    let (axes, keepdims) = (Vec::new(), net.chance());
    let kinds = [
        Reduce::Sum { axes: axes.clone(), keepdims },
        Reduce::Mean { axes: axes.clone(), keepdims },
        Reduce::Max { axes: axes.clone(), keepdims },
        Reduce::Min { axes: axes.clone(), keepdims },
        Reduce::L1 { axes: axes.clone(), keepdims },
        Reduce::L2 { axes: axes.clone(), keepdims },
        Reduce::LogSumExp { axes: axes.clone(), keepdims },
        Reduce::SumSquare { axes: axes.clone(), keepdims },
        Reduce::Prod { axes: axes.clone(), keepdims },
    ];
    let own = [i % 9, (i + 3) % 9].map(|k| kinds[k].with_axes(listed.clone(), keepdims));
    let mut results: Vec<Value> = own.into_iter().map(|op| net.op(op, &[x])).collect();
    let log = Reduce::LogSum { axes: listed, keepdims };
    results.push(net.op(log, &[positive]));
    results
}

/// Lines that are folded in parts, and lines through the batch.
pub(super) fn long(net: &mut Net, i: usize) -> Vec<Value> {
    // In one launch and in two, along the elements of memory and across them.
    let long: [(&[usize], &[i64]); 6] = [
        // More parts than sums.
        (&[33 * PART + 5], &[1]),
        (&[3, 11_000], &[1, 2]),
        (&[11_000, 3], &[1, 2]),
        (&[2, 9_000], &[2]),
        (&[5_000, 3], &[1]),
        (&[4_097], &[1]),
    ];
    let whole = i >= long.len();
    let (dims, axes) = match (whole, i % 3) {
        (false, _) => (long[i].0.to_vec(), long[i].1.to_vec()),
        (true, 0) => (net.sizes(2, 9), vec![0]),
        // More lines than two launches would share.
        (true, 1) => (vec![2, 5_000], vec![0, 1]),
        (true, _) => (net.sizes(2, 9), vec![0, 1, 2]),
    };
    let x = net.input(&dims);
    let keepdims = net.chance();
    let kinds = [
        Reduce::Sum { axes: Vec::new(), keepdims },
        Reduce::Mean { axes: Vec::new(), keepdims },
        Reduce::Max { axes: Vec::new(), keepdims },
        Reduce::Min { axes: Vec::new(), keepdims },
        Reduce::L1 { axes: Vec::new(), keepdims },
        Reduce::L2 { axes: Vec::new(), keepdims },
        Reduce::LogSumExp { axes: Vec::new(), keepdims },
        Reduce::SumSquare { axes: Vec::new(), keepdims },
    ];
    let own = [i % 8, (i + 2) % 8, (i + 5) % 8];
    let mut results: Vec<Value> =
        own.map(|k| net.op(kinds[k].with_axes(axes.clone(), keepdims), &[x])).into();
    if !whole {
        let wide = net.op(Cast { to: DType::F64 }, &[x]);
        for kind in [&kinds[6], &kinds[i % 2]] {
            let wide = net.op(kind.with_axes(axes.clone(), keepdims), &[wide]);
            results.push(net.op(Cast { to: DType::F32 }, &[wide]));
        }
        // Distributions of longer lines have an order of their own on a GPU.
        if dims[0] < LONG {
            results.push(net.op(Softmax::Softmax { axis: 1 }, &[x]));
        }
    }
    results
}

/// Distributions and normalisations of lines that several blocks take.
pub(super) fn shared(net: &mut Net, i: usize) -> Vec<Value> {
    // Every kind of line once; of short ones nothing is shared.
    let size = if i < 4 { [LONG, LONG + 1, LONG + 5000, LONG][i] } else { net.pick(4, 40) };
    let mut results = Vec::new();
    if i.is_multiple_of(2) {
        // Along an axis before another one, whose lines lie side by side.
        let dims = if i.is_multiple_of(4) { vec![size] } else { vec![size, 2] };
        let x = net.input(&dims);
        results.push(net.op(Softmax::Softmax { axis: 1 }, &[x]));
        results.push(net.op(Softmax::LogSoftmax { axis: 1 }, &[x]));
        results.push(net.op(LpNorm { axis: 1, p: 1 + signed(i / 2 % 2) }, &[x]));
        results.push(net.op(Softmax::Hardmax { axis: 1 }, &[x]));
        return results;
    }
    let dims = [vec![size], vec![2, size / 2, 2]][i / 2 % 2].clone();
    let x = net.input(&dims);
    let (scale, shift) = (net.param(&dims), net.param(&dims));
    let layer = LayerNorm::Layer { axis: 1, epsilon: 0.01, statistics: true };
    results.extend(net.ops(3, layer, &[x, scale, shift]));
    results.push(net.op(LayerNorm::Rms { axis: 1, epsilon: 0.01 }, &[x, scale]));
    if dims.len() > 1 {
        let (scale, bias) = (net.param(&dims[..1]), net.param(&dims[..1]));
        results.push(net.op(GroupNorm::Instance { epsilon: 0.1 }, &[x, scale, bias]));
        results.push(net.op(GroupNorm::Group { epsilon: 0.1, groups: 1 }, &[x, scale, bias]));
    }
    results
}

pub(super) fn softmax(net: &mut Net, i: usize) -> Vec<Value> {
    let axes = net.pick(1, 3);
    let mut dims = net.sizes(axes, 40);
    if i.is_multiple_of(6) {
        dims = vec![1100];
    }
    let x = net.input(&dims);
    let axis = signed(net.pick(1, dims.len()));
    let ops = [Softmax::Softmax { axis }, Softmax::LogSoftmax { axis }, Softmax::Hardmax { axis }];
    ops.into_iter().map(|op| net.op(op, &[x])).collect()
}

pub(super) fn norm(net: &mut Net, i: usize) -> Vec<Value> {
    let axes = net.pick(1, 2);
    let mut dims = net.sizes(axes, 8);
    dims.push(if i.is_multiple_of(7) { 1200 } else { net.pick(2, 40) });
    let x = net.input(&dims);
    let first = net.pick(1, dims.len());
    let row = dims[first - 1..].to_vec();
    let (scale, shift) = (net.param(&row), net.param(&row));
    let axis = signed(first);
    let layer = LayerNorm::Layer { axis, epsilon: 0.01, statistics: false };
    let operands = [x, scale, shift];
    let layer = net.op(layer, &operands[..=(i % 3)]);
    let rms = net.op(LayerNorm::Rms { axis, epsilon: 0.01 }, &operands[..=(i % 2)]);
    let (scale, bias) = (net.param(&dims[..1]), net.param(&dims[..1]));
    let groups = if dims[0].is_multiple_of(2) { 2 } else { 1 };
    let group = net.op(GroupNorm::Group { epsilon: 0.1, groups }, &[x, scale, bias]);
    let instance = net.op(GroupNorm::Instance { epsilon: 0.1 }, &[x, scale, bias]);
    let p = 1 + signed(i % 2);
    let lp = net.op(LpNorm { axis, p }, &[x]);
    vec![layer, rms, group, instance, lp]
}

pub(super) fn pool(net: &mut Net, i: usize) -> Vec<Value> {
    let Windows { strides, dilations, pads, image, kernel } = windows(net, [2, 1, 3][i % 3]);
    let kernel: Vec<i64> = kernel.into_iter().map(signed).collect();
    let channels = [3, 8, 1, 12][i % 4];
    let x = net.input(&[&[channels], image.as_slice()].concat());
    let ceil_mode = net.chance();
    let average = |count_include_pad: bool| Pool::Average {
        kernel: kernel.clone(),
        strides: strides.clone(),
        dilations: dilations.clone(),
        pads: pads.clone(),
        ceil_mode,
        count_include_pad,
    };
    let lp = Pool::Lp {
        kernel: kernel.clone(),
        strides: strides.clone(),
        dilations: dilations.clone(),
        pads: pads.clone(),
        ceil_mode,
        p: 1 + signed(i % 3),
    };
    let (mean, padded) = (average(false), average(true));
    let max = Pool::Max {
        kernel,
        strides,
        dilations,
        pads,
        ceil_mode,
        indices: false,
        column_major: false,
    };
    [max, mean, padded, lp].into_iter().map(|op| net.op(op, &[x])).collect()
}

pub(super) fn resize(net: &mut Net, i: usize) -> Vec<Value> {
    let modes = [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic];
    let coordinates = [
        Coordinates::HalfPixel,
        Coordinates::AlignCorners,
        Coordinates::Asymmetric,
        Coordinates::TfCropAndResize,
    ];
    let image = [net.pick(2, 6), net.pick(2, 6)];
    let sizes: Vec<i64> = (0..2).map(|_| signed(net.pick(1, 9))).collect();
    let scales = sizes.iter().zip(image).map(|(s, d)| *s as f32 / d as f32).collect();
    let (mode, coordinates) = (modes[i % 3], coordinates[i % 4]);
    let crops = coordinates == Coordinates::TfCropAndResize;
    let op = Resize {
        axes: vec![2, 3],
        sizes,
        scales,
        mode,
        nearest: Nearest::RoundPreferFloor,
        coordinates,
        cubic: -0.75,
        exclude_outside: i % 6 == 2,
        antialias: mode != ResizeMode::Nearest && i.is_multiple_of(5),
        roi: if crops { vec![-0.2, 0.1, 0.9, 1.3] } else { Vec::new() },
        extrapolation: 7.5,
    };
    let channels = net.pick(1, 5);
    let x = net.input(&[channels, image[0], image[1]]);
    vec![net.op(op, &[x])]
}

/// Elements of a part of a line that one block takes.
const PART: usize = 4096;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("kernels_of_small_results_are_told_apart", small_results_are_told_apart),
        trial("kernels_ends_of_shared_lines", ends_of_shared_lines),
        trial("kernels_shared_groups", shared_groups),
        trial("kernels_products_of_far_numbers", products_of_far_numbers),
    ]
}

/// The reference evaluation's results on one device, within `tolerance`, and the same bits on two
/// and three.
pub(super) fn compare(
    net: Net,
    results: &[Value],
    batch: impl FnOnce(&Graph) -> Tensors,
    tolerance: f64,
    what: &str,
) {
    let (graph, weights) = net.finish(results);
    let inputs = batch(&graph);
    let alone = outputs(&on_gpus(&graph, &weights, 1, 1), &inputs);
    assert_within(&alone, &expected(&graph, &weights, &inputs, false), tolerance, what);
    for count in [2, 3] {
        let variant = u64::from(count);
        let many = outputs(&on_gpus(&graph, &weights, count, variant), &inputs);
        let what = format!("{what} on {count}");
        assert_bits(&replicas(&graph, count, variant), &many, &alone, &what);
    }
}

/// A class of a thousand that is wrong by a tenth of a percent.
fn small_results_are_told_apart() {
    let wanted = Tensor::new(&[1000], &[1e-3f32; 1000]).unwrap();
    let mut found = wanted.clone();
    found.as_mut_slice::<f32>()[7] = 1.001e-3;
    let compared =
        || assert_close(std::slice::from_ref(&found), std::slice::from_ref(&wanted), 1e-4, "");
    assert!(std::panic::catch_unwind(compared).is_err());
}

/// Products whose parts are too large and too small for any float, of `f32` and of `f64`, in one
/// launch and in two.
fn products_of_far_numbers() {
    for (i, dims) in [vec![320], vec![320, 3], vec![LONG], vec![LONG, 2]].into_iter().enumerate() {
        let mut net = Net::new(i);
        let x = net.input(&dims);
        let wide = net.op(Cast { to: DType::F64 }, &[x]);
        let op = Reduce::Prod { axes: vec![1], keepdims: false };
        let wide = net.op(op.clone(), &[wide]);
        let results = [net.op(op, &[x]), net.op(Cast { to: DType::F32 }, &[wide])];
        let beside: usize = dims[1..].iter().product();
        let batch = |graph: &Graph| {
            let mut inputs = inputs(graph, 3, &mut ChaCha8Rng::seed_from_u64(7));
            let x = inputs.values_mut().next().unwrap().as_mut_slice::<f32>();
            for (at, x) in x.iter_mut().enumerate() {
                let near = 1.0 + *x * 1e-3;
                *x = near * [1e37, -1e-37].get(at / beside % 32).copied().unwrap_or(1.0);
            }
            inputs
        };
        compare(net, &results, batch, 0.0, &format!("products over {dims:?}"));
    }
}

/// Numbers without end, and what is no number: in all of one block's part of the first row, all
/// over the second row, and in the last place of the third.
fn ends_of_shared_lines() {
    for end in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
        for (i, dims) in [vec![LONG + 5], vec![LONG + 5, 2]].into_iter().enumerate() {
            let mut net = Net::new(i);
            let x = net.input(&dims);
            let mut results: Vec<Value> =
                [Softmax::Softmax { axis: 1 }, Softmax::LogSoftmax { axis: 1 }]
                    .map(|op| net.op(op, &[x]))
                    .into();
            results.extend([1, 2].map(|p| net.op(LpNorm { axis: 1, p }, &[x])));
            if dims.len() == 1 {
                let scale = net.param(&dims);
                let layer = LayerNorm::Layer { axis: 1, epsilon: 0.01, statistics: true };
                results.extend(net.ops(3, layer, &[x, scale]));
                results.push(net.op(LayerNorm::Rms { axis: 1, epsilon: 0.01 }, &[x, scale]));
            }
            let line: usize = dims.iter().product();
            let beside = line / dims[0];
            let batch = |graph: &Graph| {
                let mut inputs = inputs(graph, 3, &mut ChaCha8Rng::seed_from_u64(7));
                let x = inputs.values_mut().next().unwrap().as_mut_slice::<f32>();
                x[PART * beside..2 * PART * beside]
                    .iter_mut()
                    .step_by(beside)
                    .for_each(|x| *x = end);
                x[line..2 * line].iter_mut().step_by(beside).for_each(|x| *x = end);
                x[3 * line - 1] = end;
                inputs
            };
            compare(net, &results, batch, 2e-5, &format!("{end} in lines of {dims:?}"));
        }
    }
}

/// Several groups of one sample, each of which several blocks take.
fn shared_groups() {
    for (i, (dims, groups)) in
        [([4, LONG / 2], 2), ([6, LONG / 2 + 1], 3), ([3, LONG + 3], 3)].into_iter().enumerate()
    {
        let mut net = Net::new(i);
        let x = net.input(&dims);
        let (scale, bias) = (net.param(&dims[..1]), net.param(&dims[..1]));
        let group = GroupNorm::Group { epsilon: 0.1, groups };
        let mut results = vec![net.op(group, &[x, scale, bias])];
        if signed(dims[0]) == groups {
            results.push(net.op(GroupNorm::Instance { epsilon: 0.1 }, &[x, scale, bias]));
        }
        let batch = |graph: &Graph| inputs(graph, 3, &mut ChaCha8Rng::seed_from_u64(8));
        compare(net, &results, batch, 2e-5, &format!("{groups} groups of {dims:?}"));
    }
}
