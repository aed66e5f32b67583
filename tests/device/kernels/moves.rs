//! Elements in other places, of several types.

use fanwise::ir::Value;
use fanwise::op::{
    BlockOrder, Blocks, Concat, Expand, Gather, Op, Pad, PadMode, Pool, Slice, Tile, Transpose,
};
use fanwise::types::{DType, Dim, Tensor};
use rand::Rng;
use rand::seq::SliceRandom;

use super::{Net, signed};

/// Ranges of every axis behind the batch, some of them backwards.
fn slice(net: &mut Net, dims: &[usize]) -> Slice {
    let mut op =
        Slice { axes: Vec::new(), starts: Vec::new(), ends: Vec::new(), steps: Vec::new() };
    for (a, d) in dims.iter().enumerate() {
        let from = net.pick(0, *d);
        let to = net.pick(from, *d);
        let backwards = net.chance() && to > 0;
        let (start, end, step) = if backwards {
            (signed(to) - 1, (signed(from) - 1).min(signed(to) - 1), -signed(net.pick(1, 2)))
        } else {
            (signed(from), signed(to), signed(net.pick(1, 3)))
        };
        op.axes.push(a + 1);
        op.starts.push(start.into());
        op.ends.push(end.into());
        op.steps.push(step);
    }
    op
}

/// Borders of every axis behind the batch.
fn pad(net: &mut Net, i: usize, dims: &[usize]) -> Pad {
    let mode = [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap][i % 4];
    let least = |d: usize| if mode == PadMode::Constant && d > 1 { -1 } else { 0 };
    let mut side = |before: bool| -> Vec<i64> {
        let batch = std::iter::once(0);
        let own: Vec<i64> = dims
            .iter()
            .map(|d| net.rng.random_range(if before { least(*d) } else { 0 }..=4))
            .collect();
        batch.chain(own).collect()
    };
    let pads = [side(true), side(false)].concat();
    Pad { mode, pads, value: 1.0 }
}

pub(super) fn moves(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = if i % 3 == 1 { DType::I64 } else { DType::F32 };
    let axes = net.pick(1, 3);
    let dims: Vec<usize> = (0..axes).map(|_| net.size(12)).collect();
    let x = net.input_of(dtype, &dims);
    let mut behind: Vec<usize> = (1..=axes).collect();
    behind.shuffle(&mut net.rng);
    let perm: Vec<usize> = std::iter::once(0).chain(behind).collect();
    let op = slice(net, &dims);
    let mut results = vec![net.op(Transpose { perm }, &[x]), net.op(op, &[x])];
    let repeats = (0..=axes).map(|a| if a == 0 { 1 } else { net.pick(1, 3) }).collect();
    results.push(net.op(Tile { repeats }, &[x]));
    let op = pad(net, i, &dims);
    results.push(net.op(op, &[x]));
    let axis = net.pick(1, axes);
    let mut other = dims.clone();
    other[axis - 1] = net.pick(1, 5);
    let second = net.input_of(dtype, &other);
    results.push(net.op(Concat { axis: signed(axis) }, &[second, x, x]));
    let size = signed(dims[axis - 1]);
    let places: Vec<i64> = (0..6).map(|_| net.rng.random_range(-size..size)).collect();
    let name = net.name();
    let places = net.builder.param(&name, Tensor::new(&[2, 3], &places).unwrap());
    results.push(net.op(Gather { axis: signed(axis) }, &[x, places]));
    let mut thin = vec![1usize];
    thin.extend(dims.iter().map(|d| if net.chance() { 1 } else { *d }));
    let x = net.param(&thin);
    let known = dims.iter().map(|d| Dim::from(signed(*d)));
    let shape = std::iter::once(Dim::n()).chain(known).collect();
    results.push(net.op(Expand { shape }, &[x]));
    results.extend(images(net, i));
    results
}

/// Images whose channels are last on the device, joined and cut.
fn images(net: &mut Net, i: usize) -> Vec<Value> {
    let block = signed(1 + i % 2);
    let b = 1 + i % 2;
    let mode = if i.is_multiple_of(2) { BlockOrder::Dcr } else { BlockOrder::Crd };
    let deep = net.input(&[3 * b * b, 2, 3]);
    let wide = net.input(&[20, 6 * b, 5 * b]);
    let mut results = vec![
        net.op(Blocks::DepthToSpace { block, mode }, &[deep]),
        net.op(Blocks::SpaceToDepth { block, mode }, &[wide]),
    ];
    let pool = |k: i64| Pool::Max {
        kernel: vec![k, k],
        strides: Vec::new(),
        dilations: Vec::new(),
        pads: vec![k / 2, k / 2, k / 2, k / 2],
        ceil_mode: false,
        indices: false,
        column_major: false,
    };
    let parts = [net.op(pool(1), &[wide]), net.op(pool(3), &[wide])];
    let joined = net.op(Concat { axis: 1 }, &parts);
    results.push(net.op(pool(3), &[joined]));
    let dims = net.dims(joined);
    let border = pad(net, i, &dims);
    let middle = Slice {
        axes: vec![1, 3],
        starts: vec![3.into(), 1.into()],
        ends: vec![33.into(), signed(dims[2]).into()],
        steps: vec![1 + signed(i % 2), 1],
    };
    for op in [Op::from(border), Op::from(middle)] {
        let moved = net.op(op, &[joined]);
        results.push(net.op(pool(3), &[moved]));
    }
    results
}
