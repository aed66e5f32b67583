//! Elements picked and placed by number, and lines of numbers, exactly as the reference evaluation
//! has them.

use fanwise::internal::SegmentSum;
use fanwise::ir::Value;
use fanwise::op::{
    Arg, Binary, Cast, Gather, GatherAt, Lrn, OneHot, Op, Reduction, Reverse, ReverseSequence,
    Scan, Scatter, Sort, Squeeze, TopK, Transpose, Trilu, Unary,
};
use fanwise::types::{DType, Element, Tensor};
use rand::Rng;

use super::{Net, signed};

/// Inputs of integers are below this, so that each names an entry of an axis that is as long.
const LENGTH: usize = 9;

/// A type of numbers.
fn number(i: usize) -> DType {
    let types = [DType::F32, DType::I64, DType::F16, DType::F64, DType::Bf16, DType::U8, DType::I8];
    types[i % 7]
}

/// An input of a type with many equal elements.
fn coarse(net: &mut Net, dtype: DType, dims: &[usize]) -> Value {
    let x = net.input(dims);
    let two = net.param_of(&[1], &[2.0f32]);
    let doubled = net.op(Binary::Mul, &[x, two]);
    let x = net.op(Unary::Round, &[doubled]);
    if dtype == DType::F32 {
        return x;
    }
    let x = if matches!(dtype, DType::U8) { net.op(Unary::Abs, &[x]) } else { x };
    net.op(Cast { to: dtype }, &[x])
}

/// Numbers for each row of an axis of `LENGTH` entries, some from its end.
fn numbers(net: &mut Net, dims: &[usize]) -> Value {
    let x = net.input_of(DType::I64, dims);
    if net.chance() {
        return x;
    }
    let length = net.param_of(&[1], &[signed(LENGTH)]);
    net.op(Binary::Sub, &[x, length])
}

/// Numbers that are known, of an axis of so many entries.
fn known(net: &mut Net, dims: &[usize], length: usize) -> Value {
    let (count, length) = (dims.iter().product(), signed(length));
    if net.chance() {
        let values: Vec<i64> = (0..count).map(|_| net.rng.random_range(-length..length)).collect();
        return net.param_of(dims, &values);
    }
    let length = i32::try_from(length).unwrap();
    let values: Vec<i32> = (0..count).map(|_| net.rng.random_range(-length..length)).collect();
    net.param_of(dims, &values)
}

/// The value with the batch behind all other axes, or back before them.
fn turned(net: &mut Net, x: Value, rank: usize, back: bool) -> Value {
    let perm = if back {
        std::iter::once(rank - 1).chain(0..rank - 1).collect()
    } else {
        (1..rank).chain(std::iter::once(0)).collect()
    };
    net.op(Transpose { perm }, &[x])
}

pub(super) fn gathers(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = [DType::F32, DType::I64, DType::U8, DType::F64][i % 4];
    let (rows, width) = (net.pick(1, 6), [1, 3, 4, 8, 16][i % 5]);
    let x = coarse(net, dtype, &[LENGTH, width]);
    let (one, two) = (known(net, &[rows, 2], LENGTH), known(net, &[rows, 2], width.min(LENGTH)));
    let mut results =
        vec![net.op(Gather { axis: 1 }, &[x, one]), net.op(Gather { axis: -1 }, &[x, two])];
    // An embedding: rows of a parameter by the numbers of each sample.
    let table: Vec<f32> = (0..LENGTH * width).map(|i| i as f32).collect();
    let table = net.param_of(&[LENGTH, width], &table);
    let words = numbers(net, &[rows]);
    results.push(net.op(Gather { axis: 0 }, &[table, words]));
    let own = numbers(net, &[rows, width]);
    results.push(net.op(GatherAt::Elements { axis: 1 }, &[x, own]));
    let single = numbers(net, &[rows, 1]);
    results.push(net.op(GatherAt::Nd { batch_dims: 1 }, &[x, single]));
    let pairs = known(net, &[rows, 2], width.min(LENGTH));
    let back = turned(net, x, 3, false);
    results.push({
        let y = net.op(GatherAt::Nd { batch_dims: 0 }, &[back, pairs]);
        turned(net, y, 2, true)
    });
    results
}

pub(super) fn scatters(net: &mut Net, i: usize) -> Vec<Value> {
    let reductions =
        [Reduction::None, Reduction::Add, Reduction::Mul, Reduction::Max, Reduction::Min];
    let (dtype, reduction) = (number(i), reductions[i % 5]);
    let (length, width) = ([LENGTH, 70][i % 2], net.pick(1, 5));
    let x = coarse(net, dtype, &[length, width]);
    let (count, less) = (net.pick(1, 20), net.pick(1, width));
    let (at, updates) = (numbers(net, &[count, less]), coarse(net, dtype, &[count, less]));
    let elements = |axis| Scatter::Elements { axis, reduction };
    let mut results = vec![net.op(elements(1), &[x, at, updates])];
    let line = coarse(net, dtype, &[LENGTH]);
    let (at, updates) = (numbers(net, &[count]), coarse(net, dtype, &[count]));
    results.push(net.op(elements(-1), &[line, at, updates]));
    // The batch lies in the blocks that are placed.
    let back = turned(net, x, 3, false);
    for given in [1, 2] {
        let smallest = if given == 1 { length } else { length.min(width) };
        let at = known(net, &[count, given], smallest);
        let block = if given == 1 { vec![count, width] } else { vec![count] };
        let updates = coarse(net, dtype, &block);
        let updates = turned(net, updates, block.len() + 1, false);
        let y = net.op(Scatter::Nd { reduction }, &[back, at, updates]);
        results.push(turned(net, y, 3, true));
    }
    results
}

pub(super) fn patterns(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = [DType::F32, DType::I64, DType::U8, DType::F64][i % 4];
    let (rows, columns) = (net.pick(1, 7), net.pick(1, 7));
    let x = coarse(net, dtype, &[2, rows, columns]);
    let k = [0, 1, -2, i64::MAX, i64::MIN][i % 5];
    let mut results = vec![net.op(Trilu { k, upper: i.is_multiple_of(2) }, &[x])];
    let axes = [vec![1], vec![-1, 2], vec![1, 2, 3], Vec::new()][i % 4].clone();
    results.push(net.op(Reverse { axes }, &[x]));
    let long = coarse(net, dtype, &[LENGTH, columns]);
    let lengths: Vec<i64> =
        (0..columns).map(|_| net.rng.random_range(0..=signed(LENGTH))).collect();
    let lengths = net.param_of(&[columns], &lengths);
    results.push(net.op(ReverseSequence { batch_axis: 2, time_axis: 1 }, &[long, lengths]));
    let words = coarse(net, dtype, &[2, LENGTH]);
    let lengths = net.input_of(DType::I64, &[1]);
    let lengths = net.op(Squeeze { axes: vec![1] }, &[lengths]);
    results.push(net.op(ReverseSequence { batch_axis: 0, time_axis: 2 }, &[words, lengths]));
    let values = net.param_of(&[2], &[-1.0f32, 5.0]);
    let at = numbers(net, &[rows]);
    let depth = [5, 9, 12, 0][i % 4].into();
    results.push(net.op(OneHot { axis: [-1, 1, 2][i % 3], depth }, &[at, values]));
    results
}

pub(super) fn orders(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = number(i);
    let dims = if i.is_multiple_of(6) { vec![40] } else { net.sizes(2, 9) };
    let x = if i % 7 == 2 { nans(net, &dims) } else { coarse(net, dtype, &dims) };
    let axis = signed(net.pick(1, dims.len()));
    let size = dims[usize::try_from(axis - 1).unwrap()];
    let (last, keepdims) = (net.chance(), net.chance());
    let mut results = vec![
        net.op(Arg::Max { axis, keepdims, select_last_index: last }, &[x]),
        net.op(Arg::Min { axis, keepdims, select_last_index: last }, &[x]),
    ];
    let k = signed(net.pick(0, size)).into();
    let sort = Sort { axis, descending: net.chance() };
    let top = TopK { axis, k, largest: net.chance(), local: false };
    for op in [Op::from(sort), Op::from(top)] {
        let names = [net.name(), net.name()];
        let names = names.each_ref().map(String::as_str);
        results.extend(net.builder.ops(&names, op, &[x]).unwrap());
    }
    results
}

/// Quotients of integers, some of them no numbers.
fn nans(net: &mut Net, dims: &[usize]) -> Value {
    let (a, b) = (coarse(net, DType::F32, dims), coarse(net, DType::F32, dims));
    net.op(Binary::Div, &[a, b])
}

pub(super) fn scans(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = number(i);
    let dims = net.sizes(2, 9);
    let x = if dtype == DType::F32 { net.input(&dims) } else { coarse(net, dtype, &dims) };
    let axis = signed(net.pick(1, 2));
    let (exclusive, reverse) = (net.chance(), net.chance());
    let mut results = vec![
        net.op(Scan::Sum { axis, exclusive, reverse }, &[x]),
        net.op(Scan::Prod { axis, exclusive, reverse }, &[x]),
    ];
    let mut first = dims.clone();
    first[usize::try_from(axis - 1).unwrap()] = 1;
    let start = coarse(net, dtype, &first);
    results.push(net.op(Scan::Sum { axis, exclusive, reverse }, &[x, start]));
    let back = turned(net, x, 3, false);
    let rows = dims[0];
    let ids: Vec<i64> = (0..rows).map(|_| net.rng.random_range(0..4)).collect();
    let ids = net.param_of(&[rows], &ids);
    let y = net.op(SegmentSum { segments: 4, wide: false }, &[back, ids]);
    results.push(turned(net, y, 3, true));
    // Of the rows of the batch, whose sums replicas add.
    let rows = coarse(net, DType::F32, &[3]);
    let ids = net.input_of(DType::I64, &[1]);
    let ids = net.op(Squeeze { axes: vec![1] }, &[ids]);
    results.push(net.op(SegmentSum { segments: signed(LENGTH), wide: false }, &[rows, ids]));
    let doubles = coarse(net, DType::F64, &[3]);
    for wide in [false, true] {
        results.push(net.op(SegmentSum { segments: signed(LENGTH), wide }, &[doubles, ids]));
    }
    let image = net.input(&[dims[0], 3, 2]);
    let size = [1, 2, 5, i64::MAX][i % 4];
    results.push(net.op(Lrn { alpha: 0.4, beta: 0.75, bias: 1.5, size }, &[image]));
    results
}

impl Net {
    /// A parameter with these elements.
    fn param_of<T: Element>(&mut self, dims: &[usize], data: &[T]) -> Value {
        let name = self.name();
        self.builder.param(&name, Tensor::new(dims, data).unwrap())
    }
}
