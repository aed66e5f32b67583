//! Operators that layers are made of.

use rand::Rng;

use super::Generator;
use super::draw::{Case, Draw, Held, N, case, named};
use super::parts::signed;
use crate::splits::tensor;
use fanwise::internal::{
    BatchNormGrad, BatchNormTrain, ConvWeightGrad, DropoutTrain, GridSampleGrad, PoolGrad,
};
use fanwise::op::{
    Attr, BatchNorm, BlockOrder, Blocks, Col2Im, Conv, ConvTranspose, DynamicQuantize, Einsum,
    Gemm, GridPadding, GridSample, GroupNorm, LayerNorm, Lrn, MatMul, MaxUnpool, Pool, Resize,
    ResizeMode,
};
use fanwise::op::{Coordinates, Nearest};
use fanwise::types::{Claim, DType, Dim};

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    ("matmul", matmul),
    ("gemm", gemm),
    ("einsum", einsum),
    ("conv", conv),
    ("conv_transpose", conv_transpose),
    ("conv_weight_grad", conv_weight_grad),
    ("pool", pool),
    ("pool_grad", pool_grad),
    ("dropout_train", dropout_train),
    ("for_training", for_training),
    ("row_noise", row_noise),
    ("channels", channels),
    ("moments", moments),
    ("layer_norm", layer_norm),
    ("blocks", blocks),
    ("resize", resize),
    ("grid_sample", grid_sample),
    ("grid_sample_grad", grid_sample_grad),
    ("col2im", col2im),
    ("recurrent", recurrent),
    ("recurrent_grad", recurrent_grad),
    ("trees", trees),
    ("class_pairs", class_pairs),
    ("whole", whole),
];

/// Products of small integers, which are exact in any order.
fn matmul(draw: &mut Draw) -> Option<Case> {
    let pairs: [(&[usize], &[usize]); 13] = [
        (&[N, 3], &[3, 2]),
        (&[3, 2], &[2, N]),
        (&[2], &[3, 2, N]),
        (&[4, 1, 3, 2], &[5, 2, N]),
        (&[3, N], &[N, 2]),
        (&[N, 3], &[3, N]),
        (&[N, 2, 3], &[N, 3, 2]),
        (&[N, 2, 3], &[3, 2]),
        (&[2, N, 3], &[2, 3, 4]),
        (&[N, 1, 2, 3], &[2, 3, 2]),
        (&[N], &[N]),
        (&[N, 3], &[3]),
        (&[N], &[N, 2]),
    ];
    let (a, b) = draw.of(&pairs);
    let dtype = draw.of(&[DType::F32, DType::F64, DType::I32]);
    let operands = [draw.ints(dtype, a, -3, 4), draw.ints(dtype, b, -3, 4)];
    case(MatMul {}, operands)
}

fn gemm(draw: &mut Draw) -> Option<Case> {
    let (trans_a, trans_b) = (draw.chance(2), draw.chance(2));
    let [rows, inner, columns] = draw.of(&[[N, 3, 2], [N, 3, 2], [3, N, 2], [3, 2, N]]);
    let left = if trans_a { [inner, rows] } else { [rows, inner] };
    let right = if trans_b { [columns, inner] } else { [inner, columns] };
    let mut operands =
        vec![draw.ints(DType::F32, &left, -3, 4), draw.ints(DType::F32, &right, -3, 4)];
    if draw.chance(2) {
        let matrix = vec![rows, columns];
        let added: Vec<usize> =
            draw.of(&[vec![], vec![columns], vec![rows, 1], matrix, vec![1, columns]]);
        operands.push(draw.ints(DType::F32, &added, -3, 4));
    }
    let (alpha, beta) = (draw.of(&[1.0, 0.5]), draw.of(&[1.0, 2.0]));
    case(Gemm { alpha, beta, trans_a, trans_b }, operands)
}

fn einsum(draw: &mut Draw) -> Option<Case> {
    let forms: [(&str, &[&[usize]]); 11] = [
        ("oi,...ib->...ob", &[&[2, 3], &[2, 3, N]]),
        ("bij,bjk->bik", &[&[N, 2, 3], &[N, 3, 2]]),
        ("bi,ij->bj", &[&[N, 3], &[3, 2]]),
        ("bi,bj->ij", &[&[N, 3], &[N, 2]]),
        ("ab,cb->ac", &[&[N, 3], &[N, 3]]),
        ("bi->b", &[&[N, 3]]),
        ("bi->ib", &[&[N, 3]]),
        ("bi->i", &[&[N, 3]]),
        ("bii->bi", &[&[N, 2, 2]]),
        ("...i,ij->...j", &[&[2, N, 3], &[3, 2]]),
        ("ib,b->i", &[&[3, N], &[N]]),
    ];
    let (equation, shapes) = draw.of(&forms);
    let operands: Vec<_> = shapes.iter().map(|s| draw.ints(DType::F32, s, -3, 4)).collect();
    case(Einsum { equation: equation.to_owned() }, operands)
}

/// The shape of images; seldom the batch is where a window or the channels are.
fn images(draw: &mut Draw, channels: usize, axes: usize) -> Vec<usize> {
    let mut shape = vec![N, channels];
    shape.extend((0..axes).map(|_| draw.rng.random_range(5..8)));
    if draw.chance(8) {
        let at = draw.rng.random_range(1..shape.len());
        shape[0] = 2;
        shape[at] = N;
    }
    shape
}

fn numbers(draw: &mut Draw, count: usize, low: i64, high: i64) -> Vec<i64> {
    if draw.chance(3) { Vec::new() } else { (0..count).map(|_| draw.int(low, high)).collect() }
}

fn conv(draw: &mut Draw) -> Option<Case> {
    let (groups, axes) = (draw.rng.random_range(1..3), draw.rng.random_range(1..3));
    let (channels, made) = (groups * draw.of(&[1, 2]), groups * draw.of(&[1, 2]));
    let mut kernel = vec![made, channels / groups];
    kernel.extend((0..axes).map(|_| draw.rng.random_range(1..4)));
    let shape = images(draw, channels, axes);
    let mut operands = vec![draw.held(DType::F32, &shape), draw.held(DType::F32, &kernel)];
    if draw.chance(2) {
        operands.push(draw.held(DType::F32, &[made]));
    }
    let op = Conv {
        strides: numbers(draw, axes, 1, 3),
        dilations: numbers(draw, axes, 1, 3),
        pads: numbers(draw, 2 * axes, 0, 2),
        groups: i64::try_from(groups).unwrap(),
    };
    case(op, operands)
}

fn conv_transpose(draw: &mut Draw) -> Option<Case> {
    let (groups, axes) = (draw.rng.random_range(1..3), draw.rng.random_range(1..3));
    let channels = groups * draw.of(&[1, 2]);
    let mut kernel = vec![channels, draw.of(&[1, 2])];
    kernel.extend((0..axes).map(|_| draw.rng.random_range(2..4)));
    let shape = images(draw, channels, axes);
    let operands = [draw.held(DType::F32, &shape), draw.held(DType::F32, &kernel)];
    let op = ConvTranspose {
        strides: numbers(draw, axes, 2, 4),
        dilations: Vec::new(),
        pads: numbers(draw, 2 * axes, 0, 2),
        output_padding: numbers(draw, axes, 0, 5),
        groups: i64::try_from(groups).unwrap(),
    };
    case(op, operands)
}

/// The windows that a kernel without dilation has on an axis.
fn windows(size: usize, kernel: i64, stride: i64, pads: i64) -> Option<usize> {
    if size == N {
        return Some(N);
    }
    let room = i64::try_from(size).unwrap() + pads - kernel;
    usize::try_from(room / stride + 1).ok().filter(|_| room >= 0)
}

fn conv_weight_grad(draw: &mut Draw) -> Option<Case> {
    let (groups, axes) = (draw.rng.random_range(1..3), draw.rng.random_range(1..3));
    let (channels, made) = (groups * draw.of(&[1, 2]), groups * draw.of(&[1, 2]));
    let shape = images(draw, channels, axes);
    let kernel: Vec<i64> = (0..axes).map(|_| draw.int(1, 4)).collect();
    let (strides, pads) = (numbers(draw, axes, 1, 3), numbers(draw, 2 * axes, 0, 2));
    let mut given = vec![shape[0], made];
    for (axis, taps) in kernel.iter().enumerate() {
        let stride = strides.get(axis).copied().unwrap_or(1);
        let padded = pads.get(axis).unwrap_or(&0) + pads.get(axes + axis).unwrap_or(&0);
        given.push(windows(shape[axis + 2], *taps, stride, padded)?);
    }
    let groups = i64::try_from(groups).unwrap();
    let op = ConvWeightGrad { strides, dilations: Vec::new(), pads, groups, kernel };
    case(op, [draw.ints(DType::F32, &shape, -3, 4), draw.ints(DType::F32, &given, -3, 4)])
}

fn pool_grad(draw: &mut Draw) -> Option<Case> {
    let axes = draw.rng.random_range(1..3);
    let shape = images(draw, 2, axes);
    let kernel: Vec<i64> = (0..axes).map(|_| draw.int(2, 4)).collect();
    let (strides, dilations) = (numbers(draw, axes, 1, 3), Vec::new());
    let (pads, ceil_mode) = (numbers(draw, 2 * axes, 0, 2), false);
    let mut given = vec![shape[0], shape[1]];
    for (axis, taps) in kernel.iter().enumerate() {
        let stride = strides.get(axis).copied().unwrap_or(1);
        let padded = pads.get(axis).unwrap_or(&0) + pads.get(axes + axis).unwrap_or(&0);
        given.push(windows(shape[axis + 2], *taps, stride, padded)?);
    }
    let dy = draw.held(DType::F32, &given);
    if draw.chance(2) {
        let op = PoolGrad::Max { kernel, strides, dilations, pads, ceil_mode };
        return case(op, [draw.held(DType::F32, &shape), dy]);
    }
    let sizes = shape[2..].iter().map(|d| i64::try_from(*d).unwrap_or(1)).collect();
    let count_include_pad = draw.chance(2);
    case(
        PoolGrad::Average { sizes, kernel, strides, dilations, pads, ceil_mode, count_include_pad },
        [dy],
    )
}

fn dropout_train(draw: &mut Draw) -> Option<Case> {
    let op = DropoutTrain { rate: draw.of(&[0.0, 0.25, 0.5]), seed: draw.int(0, 100) };
    let shape = draw.of(&[vec![N, 3], vec![N], vec![N, 2, 3], vec![3, N]]);
    let rows = draw.ints(DType::I64, &shape[..1], 0, 1000);
    case(op, [draw.held(DType::F32, &shape), rows, draw.ints(DType::I64, &[], 0, 9)])
}

fn for_training(draw: &mut Draw) -> Option<Case> {
    let shape = draw.of(&[vec![N, 3], vec![2, N]]);
    let mut operands = vec![draw.held(DType::F32, &shape)];
    let name = draw.of(&["stop_gradient", "in_training", "add_loss", "counted", "move_variable"]);
    match name {
        "in_training" => operands.push(draw.held(DType::F32, &shape)),
        "add_loss" => operands.push(draw.held(DType::F32, &[])),
        "counted" => {
            let axes = draw.of(&[1, 2]);
            operands.push(draw.ints(DType::Bool, &shape[..axes], 0, 1));
        }
        "move_variable" => {
            operands.extend([draw.held(DType::F32, &[2]), draw.held(DType::F32, &[2])]);
        }
        _ => {}
    }
    case(named(name, Vec::new())?, operands)
}

fn row_noise(draw: &mut Draw) -> Option<Case> {
    let name = draw.of(&["row_uniform", "row_normal"]);
    let shape = draw.of(&[vec![N, 3], vec![N], vec![N, 2, 3], vec![3, N]]);
    let mut operands = vec![draw.held(DType::F32, &shape)];
    if draw.chance(3) {
        return case(named(name, Vec::new())?, operands);
    }
    operands.push(draw.ints(DType::I64, &shape[..1], 0, 1000));
    operands.push(draw.ints(DType::I64, &[], 0, 9));
    case(named(name, vec![("seed", Attr::Int(draw.int(0, 100).into()))])?, operands)
}

fn pool(draw: &mut Draw) -> Option<Case> {
    let axes = draw.rng.random_range(1..3);
    let shape = images(draw, 2, axes);
    let kernel: Vec<i64> = (0..axes).map(|_| draw.int(2, 4)).collect();
    let (strides, pads) = (numbers(draw, axes, 1, 3), numbers(draw, 2 * axes, 0, 2));
    let (dilations, ceil_mode) = (Vec::new(), draw.chance(2));
    let op = match draw.rng.random_range(0..3) {
        0 => {
            let (indices, column_major) = (draw.chance(3), false);
            Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major }
        }
        1 => {
            let count_include_pad = draw.chance(2);
            Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad }
        }
        _ => Pool::Lp { kernel, strides, dilations, pads, ceil_mode, p: draw.int(1, 4) },
    };
    case(op, [draw.held(DType::F32, &shape)])
}

/// Normalisations by channels.
fn channels(draw: &mut Draw) -> Option<Case> {
    let axes = draw.rng.random_range(1..3);
    let shape = images(draw, 4, axes);
    let c = shape[1];
    let x = draw.held(DType::F32, &shape);
    let mut rows =
        |count: usize| (0..count).map(|_| draw.held(DType::F32, &[c])).collect::<Vec<_>>();
    let four = rows(4);
    let two = four[..2].to_vec();
    let with = |others: Vec<_>| [x.clone()].into_iter().chain(others).collect::<Vec<_>>();
    let epsilon = 0.1;
    match draw.rng.random_range(0..4) {
        0 => case(BatchNorm { epsilon, ..BatchNorm::default() }, with(four)),
        1 => case(GroupNorm::Instance { epsilon }, with(two)),
        2 => case(GroupNorm::Group { epsilon, groups: draw.of(&[1, 2, 4]) }, with(two)),
        _ => case(Lrn { alpha: 0.5, beta: 0.75, bias: 1.0, size: draw.of(&[1, 3]) }, [x]),
    }
}

fn layer_norm(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(4);
    let axis = draw.axis(shape.len());
    let rank = i64::try_from(shape.len()).unwrap();
    let row = shape[usize::try_from(axis.rem_euclid(rank)).unwrap()..].to_vec();
    let x = draw.held(DType::F32, &shape);
    let rows = [draw.held(DType::F32, &row), draw.held(DType::F32, &row)];
    let (epsilon, count) = (0.1, draw.rng.random_range(0..3));
    if draw.chance(2) {
        let op = LayerNorm::Layer { axis, epsilon, statistics: draw.chance(2) };
        return case(op, [x].into_iter().chain(rows.into_iter().take(count)));
    }
    let op = LayerNorm::Rms { axis, epsilon };
    case(op, [x].into_iter().chain(rows.into_iter().take(count.min(1))))
}

fn blocks(draw: &mut Draw) -> Option<Case> {
    let mode = draw.of(&[BlockOrder::Dcr, BlockOrder::Crd]);
    let batch = draw.of(&[0, 0, 0, 1, 2]);
    let (op, mut shape) = if draw.chance(2) {
        (Blocks::DepthToSpace { block: 2, mode }, vec![2, 8, 2, 3])
    } else {
        (Blocks::SpaceToDepth { block: 2, mode }, vec![2, 3, 4, 2])
    };
    shape[batch] = N;
    case(op, [draw.held(DType::F32, &shape)])
}

fn resize(draw: &mut Draw) -> Option<Case> {
    let shape = images(draw, 2, 2);
    let mode = draw.of(&[ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic]);
    let coordinates =
        draw.of(&[Coordinates::HalfPixel, Coordinates::Asymmetric, Coordinates::TfCropAndResize]);
    let cropped = coordinates == Coordinates::TfCropAndResize;
    // The corners of the part that is taken, of which some lie outside.
    let mut corner = || draw.of(&[-0.25, 0.0, 0.5, 1.0, 1.25]);
    let roi = if cropped { vec![corner(), corner(), corner(), corner()] } else { Vec::new() };
    let op = Resize {
        axes: vec![2, 3],
        sizes: vec![2 * i64::try_from(shape[2]).ok()?, 2 * i64::try_from(shape[3]).ok()?],
        scales: vec![2.0, 2.0],
        mode,
        nearest: Nearest::RoundPreferFloor,
        coordinates,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        roi,
        extrapolation: if cropped { 2.5 } else { 0.0 },
    };
    case(op, [draw.held(DType::F32, &shape)])
}

fn grid_sample(draw: &mut Draw) -> Option<Case> {
    let mode = draw.of(&[ResizeMode::Linear, ResizeMode::Nearest, ResizeMode::Cubic]);
    let padding = draw.of(&[GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection]);
    let (x, grid) = if draw.chance(5) {
        (vec![2, N, 4, 3], vec![2, 3, 2, 2])
    } else {
        (vec![N, 2, 4, 3], vec![N, 3, 2, 2])
    };
    let operands = [draw.held(DType::F32, &x), draw.held(DType::F32, &grid)];
    case(GridSample { mode, padding, align_corners: draw.chance(2) }, operands)
}

fn grid_sample_grad(draw: &mut Draw) -> Option<Case> {
    let mode = draw.of(&[ResizeMode::Linear, ResizeMode::Nearest, ResizeMode::Cubic]);
    let padding = draw.of(&[GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection]);
    let [x, grid, dy] = match draw.int(0, 5) {
        0 => [vec![2, N, 4, 3], vec![2, 3, 2, 2], vec![2, N, 3, 2]],
        1 => [vec![2, 2, 4, 3], vec![2, 3, N, 2], vec![2, 2, 3, N]],
        _ => [vec![N, 2, 4, 3], vec![N, 3, 2, 2], vec![N, 2, 3, 2]],
    };
    let operands = [x, grid, dy].map(|shape| draw.held(DType::F32, &shape));
    case(GridSampleGrad { mode, padding, align_corners: draw.chance(2) }, operands)
}

fn col2im(draw: &mut Draw) -> Option<Case> {
    let stride = draw.int(1, 3);
    let windows = usize::try_from(((5 - 1 - 2) / stride + 1) * ((4 - 2) / stride + 1)).unwrap();
    let op = Col2Im {
        image: vec![4, 4],
        kernel: vec![2, 2],
        strides: vec![stride, stride],
        dilations: Vec::new(),
        pads: Vec::new(),
    };
    case(op, [draw.held(DType::F32, &[N, 8, windows])])
}

/// A cell with its attributes and operands, and the shapes of its results.
struct Cell {
    name: &'static str,
    attrs: Vec<(&'static str, Attr)>,
    operands: Vec<Held>,
    results: Vec<Vec<usize>>,
}

/// A function of a cell, mostly `tanh`.
fn function(draw: &mut Draw) -> Attr {
    let others =
        ["affine(0.5, 0.25)", "elu(0.5)", "scaled_tanh(1.5, 0.5)", "softsign", "softplus", "relu"];
    Attr::Name(if draw.chance(3) { draw.of(&others) } else { "tanh" }.to_owned())
}

fn cell(draw: &mut Draw) -> Cell {
    let (name, gates) = draw.of(&[("lstm", 4), ("gru", 3), ("rnn", 1)]);
    let (direction, ways) = draw.of(&[("forward", 1), ("reverse", 1), ("bidirectional", 2)]);
    let [batch_first, bias, lengths, initial, more] = [(); 5].map(|()| draw.chance(2));
    let (hidden, size, steps) = (2, 3, 4);
    let sequence = if batch_first { [N, steps, size] } else { [steps, N, size] };
    let state = if batch_first { [N, ways, hidden] } else { [ways, N, hidden] };
    let states =
        if batch_first { vec![N, steps, ways, hidden] } else { vec![steps, ways, N, hidden] };
    let mut operands = vec![
        draw.held(DType::F32, &sequence),
        draw.held(DType::F32, &[ways, gates * hidden, size]),
        draw.held(DType::F32, &[ways, gates * hidden, hidden]),
    ];
    if bias {
        operands.push(draw.held(DType::F32, &[ways, 2 * gates * hidden]));
    }
    if lengths {
        operands.push(draw.ints(DType::I32, &[N], 0, 5));
    }
    let kept = if name == "lstm" { 2 } else { 1 };
    for _ in 0..(if initial { kept } else { 0 }) {
        operands.push(draw.held(DType::F32, &state));
    }
    let mut attrs = vec![
        ("direction", Attr::Name(direction.to_owned())),
        ("batch_first", Attr::Bool(batch_first)),
        ("bias", Attr::Bool(bias)),
        ("lengths", Attr::Bool(lengths)),
        ("initial", Attr::Bool(initial)),
    ];
    if draw.chance(4) {
        attrs.push(("clip", Attr::Float(1.5)));
    }
    attrs.push(("candidate", function(draw)));
    match name {
        "lstm" => {
            attrs.push(("hidden", function(draw)));
            attrs.push(("coupled", Attr::Bool(draw.chance(3))));
            if more {
                attrs.push(("peepholes", Attr::Bool(true)));
                operands.push(draw.held(DType::F32, &[ways, 3 * hidden]));
            }
        }
        "gru" => attrs.push(("reset_after", Attr::Bool(more))),
        _ => {}
    }
    let last = std::iter::repeat_n(state.to_vec(), kept);
    Cell { name, attrs, operands, results: std::iter::once(states).chain(last).collect() }
}

fn recurrent(draw: &mut Draw) -> Option<Case> {
    let Cell { name, attrs, operands, .. } = cell(draw);
    case(named(name, attrs)?, operands)
}

fn recurrent_grad(draw: &mut Draw) -> Option<Case> {
    let Cell { name, mut attrs, mut operands, results } = cell(draw);
    attrs.push(("cell", Attr::Name(name.to_owned())));
    operands.extend(results.iter().map(|shape| draw.held(DType::F32, shape)));
    case(named("recurrent_grad", attrs)?, operands)
}

/// The steps of batch normalisation between which replicas exchange statistics.
fn moments(draw: &mut Draw) -> Option<Case> {
    let mut shape = images(draw, 2, 1);
    shape.truncate(draw.of(&[2, 3, 3]));
    let dtype = draw.float();
    let channels = [shape[1]];
    let (x, dy) = (draw.held(dtype, &shape), draw.held(dtype, &shape));
    let [scale, bias] = [(); 2].map(|()| draw.held(DType::F32, &channels));
    let [moments, sums] = [4, 2].map(|k| draw.ints(DType::F64, &[k, channels[0]], 1, 5));
    let epsilon = ("epsilon", Attr::Float(0.1));
    match draw.rng.random_range(0..4) {
        0 => case(named("batch_moments", vec![])?, [x]),
        1 => case(named("batch_norm_apply", vec![epsilon])?, [x, scale, bias, moments]),
        2 => case(named("batch_norm_sums", vec![])?, [x, dy, moments]),
        _ => case(named("batch_norm_apply_grad", vec![epsilon])?, [x, scale, dy, moments, sums]),
    }
}

/// Operators that take all samples together.
fn whole(draw: &mut Draw) -> Option<Case> {
    match draw.rng.random_range(0..5) {
        4 => {
            let shape = images(draw, 2, 1);
            let [x, dy] = [(); 2].map(|()| draw.held(DType::F32, &shape));
            let scale = draw.held(DType::F32, &[shape[1]]);
            case(BatchNormGrad { epsilon: 0.1, local: false }, [x, scale, dy])
        }
        0 => {
            let shape = images(draw, 2, 1);
            let mut operands = vec![draw.held(DType::F32, &shape)];
            operands.extend((0..4).map(|_| draw.held(DType::F32, &[shape[1]])));
            case(BatchNormTrain { epsilon: 0.1, local: false, momentum: 0.9 }, operands)
        }
        1 => case(DynamicQuantize::Quantize, [draw.held(DType::F32, &[N, 3])]),
        2 => case(DynamicQuantize::Range, [draw.held(DType::F32, &[]), draw.held(DType::F32, &[])]),
        _ => {
            let x = draw.held(DType::F32, &[N, 1, 2]);
            let sizes: Vec<Dim> = draw.dims(&[4]);
            case(MaxUnpool { sizes }, [x, draw.ints(DType::I64, &[N, 1, 2], 0, 4)])
        }
    }
}

/// Trees that hang their leaves at random, on features of three values, some missing.
fn trees(draw: &mut Draw) -> Option<Case> {
    let (features, targets) = (draw.size(), draw.size());
    let shape = if draw.chance(4) { vec![2, N, features] } else { vec![N, features] };
    let dtype = draw.of(&[DType::F32, DType::F64]);
    let (mut nodes, mut roots) = (Vec::new(), Vec::new());
    let weights = 6;
    for _ in 0..draw.int(1, 4) {
        let (root, branches) = (i64::try_from(nodes.len() / 4).unwrap(), draw.int(0, 6));
        roots.push(root as f64);
        // Each branch leads to two of the nodes behind it, of which the last are leaves.
        for own in root..root + branches {
            let next = |draw: &mut Draw| draw.int(own + 1, root + branches + 2) as f64;
            let (yes, no) = (next(draw), next(draw));
            let test = draw.int(0, 6) + 8 * draw.int(0, 2);
            nodes.extend([draw.int(0, signed(features)) as f64, test as f64, yes, no]);
        }
        for _ in 0..2 {
            let from = draw.int(0, weights);
            let to = draw.int(from, weights + 1);
            nodes.extend([0.0, 6.0, from as f64, to as f64]);
        }
    }
    let ints = |values: &[f64], dims: &[usize]| tensor(DType::I32, dims, values);
    let count = nodes.len() / 4;
    let (mut x, claim) = draw.ints(dtype, &shape, -1, 2);
    let values: Vec<f64> =
        x.to_f64().into_iter().map(|x| if draw.chance(6) { f64::NAN } else { x }).collect();
    x = tensor(dtype, x.dims(), &values);
    let aggregate = draw.of(&["sum", "min", "max"]).to_owned();
    let attrs =
        vec![("aggregate", Attr::Name(aggregate)), ("targets", Attr::Int(signed(targets).into()))];
    let own = usize::try_from(weights).unwrap();
    let of = draw.ints(DType::I32, &[own], 0, signed(targets));
    let whole = |tensor| (tensor, Claim::Invariant);
    let operands = [
        (x, claim),
        whole(ints(&nodes, &[count, 4])),
        draw.ints(dtype, &[count], -1, 2),
        whole(ints(&roots, &[roots.len()])),
        of,
        draw.held(dtype, &[own]),
    ];
    case(named("tree_ensemble", attrs)?, operands)
}

fn class_pairs(draw: &mut Draw) -> Option<Case> {
    let classes = draw.int(1, 5);
    let pairs = usize::try_from(classes * (classes - 1) / 2).unwrap();
    let shape = if draw.chance(4) { vec![pairs, N] } else { vec![N, pairs] };
    let dtype = draw.of(&[DType::F32, DType::F64]);
    let (x, claim) = draw.ints(dtype, &shape, 1, 20);
    let values: Vec<f64> = x.to_f64().into_iter().map(|x| x / 20.0).collect();
    let x = tensor(dtype, x.dims(), &values);
    let attrs = vec![("classes", Attr::Int(classes.into()))];
    case(named("pair_probabilities", attrs)?, [(x, claim)])
}
