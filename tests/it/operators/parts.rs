//! Operators that pick, place and reshape elements.

use rand::Rng;
use rand::seq::SliceRandom;

use super::Generator;
use super::draw::{Case, Draw, N, case, named};
use fanwise::internal::SegmentSum;
use fanwise::op::{
    Attr, Concat, Expand, Flatten, Gather, GatherAt, OneHot, Pad, PadMode, Reduction, Reshape,
    ReverseSequence, Scatter, ShapeOp, SizeOp, Slice, SplitOp, Squeeze, Tile, TopK, Transpose,
    Trilu, Unsqueeze,
};
use fanwise::types::{DType, Dim};

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    ("concat", concat),
    ("split", split),
    ("slice", slice),
    ("pad", pad),
    ("tile", tile),
    ("expand", expand),
    ("reshape", reshape),
    ("axes", axes),
    ("transpose", transpose),
    ("gather", gather),
    ("gather_elements", gather_elements),
    ("gather_nd", gather_nd),
    ("scatter", scatter),
    ("segment_sum", segment_sum),
    ("top_k", top_k),
    ("one_hot", one_hot),
    ("trilu", trilu),
    ("reverse_sequence", reverse_sequence),
    ("sizes", sizes),
];

pub(super) fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap()
}

/// The place of an axis that may count from the end.
fn place(axis: i64, rank: usize) -> usize {
    usize::try_from(axis.rem_euclid(signed(rank))).unwrap()
}

fn concat(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let axis = draw.axis(shape.len());
    let at = place(axis, shape.len());
    let one = |draw: &mut Draw| {
        let mut own = shape.clone();
        own[at] = if own[at] == N && !draw.chance(3) { N } else { draw.size() };
        draw.held(DType::F32, &own)
    };
    let count = draw.size();
    let operands: Vec<_> = (0..count).map(|_| one(draw)).collect();
    case(Concat { axis }, operands)
}

fn split(draw: &mut Draw) -> Option<Case> {
    let mut shape = draw.shape(3);
    let axis = draw.axis(shape.len());
    let at = place(axis, shape.len());
    let sizes: Vec<usize> = if shape[at] == N {
        if draw.chance(2) { vec![N] } else { vec![N, 0] }
    } else {
        (0..draw.size()).map(|_| draw.size()).collect()
    };
    if shape[at] != N {
        shape[at] = sizes.iter().sum();
    }
    let sizes = draw.dims(&sizes);
    case(SplitOp { axis, sizes }, [draw.held(DType::F32, &shape)])
}

fn slice(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let mut op = Slice { axes: vec![], starts: vec![], ends: vec![], steps: vec![] };
    for (axis, size) in shape.iter().enumerate() {
        let size = draw.dims(&[*size]).remove(0);
        let step = draw.of(&[1, 1, 2, -1]);
        let (start, end) = if step < 0 {
            (size.clone() - 1, Dim::from(-1))
        } else {
            let cut = draw.of(&[0, 0, 1]);
            (Dim::from(cut).minimum(&size), size.clone())
        };
        if draw.chance(2) {
            op.axes.push(axis);
            op.starts.push(start);
            op.ends.push(end);
            op.steps.push(step);
        }
    }
    case(op, [draw.held(DType::F32, &shape)])
}

fn pad(draw: &mut Draw) -> Option<Case> {
    let shape: Vec<usize> =
        draw.shape(3).into_iter().map(|d| if d == N { N } else { d + 2 }).collect();
    let mode = draw.of(&[PadMode::Constant, PadMode::Edge, PadMode::Reflect, PadMode::Wrap]);
    let low = if mode == PadMode::Constant { -1 } else { 0 };
    let around = |draw: &mut Draw, d: &usize| {
        if *d == N && !draw.chance(4) { 0 } else { draw.int(low, 3) }
    };
    let pads = [&shape[..], &shape[..]].concat().iter().map(|d| around(draw, d)).collect();
    case(Pad { mode, pads, value: 0.5 }, [draw.held(DType::F32, &shape)])
}

fn tile(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let times =
        |draw: &mut Draw, d: &usize| if *d == N && !draw.chance(4) { 1 } else { draw.size() };
    let repeats = shape.iter().map(|d| times(draw, d)).collect();
    case(Tile { repeats }, [draw.held(DType::F32, &shape)])
}

fn expand(draw: &mut Draw) -> Option<Case> {
    let whole = draw.shape(4);
    let mut own: Vec<usize> = whole.clone();
    for d in &mut own {
        if draw.chance(3) {
            *d = 1;
        }
    }
    let skip = draw.rng.random_range(0..=own.iter().position(|d| *d != 1).unwrap_or(own.len()));
    let shape = draw.dims(&whole);
    case(Expand { shape }, [draw.held(DType::F32, &own[skip..])])
}

/// Neighbouring axes of a shape taken together at random, twice: from the one form to the other.
fn reshape(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(5);
    let merged = |draw: &mut Draw| {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (axis, d) in shape.iter().enumerate() {
            // What stands before the batch would be an outer digit of it.
            let joins = axis > 0 && *d != N && draw.chance(2);
            match groups.last_mut() {
                Some(group) if joins => group.push(*d),
                _ => groups.push(vec![*d]),
            }
        }
        groups
    };
    let (from, to) = (merged(draw), merged(draw));
    let size = |draw: &Draw, group: &Vec<usize>| {
        let all = draw.dims(group);
        all.iter().fold(Dim::ONE, |product, d| product * d.clone())
    };
    let target: Vec<Dim> = to.iter().map(|group| size(draw, group)).collect();
    // The operand has the first form, whose batch axis may have more entries for each row.
    let folded = from.iter().find(|group| group[0] == N)?[1..].iter().product::<usize>();
    let own: Vec<usize> =
        from.iter().map(|group| if group[0] == N { N } else { group.iter().product() }).collect();
    draw.inner *= folded;
    case(Reshape { shape: target }, [draw.held(DType::F32, &own)])
}

/// Axes that come, go and are counted.
fn axes(draw: &mut Draw) -> Option<Case> {
    let mut shape = draw.shape(3);
    let rank = signed(shape.len());
    match draw.rng.random_range(0..3) {
        0 => {
            let axis = draw.int(-rank - 1, rank + 1);
            case(Unsqueeze { axes: vec![axis] }, [draw.held(DType::F32, &shape)])
        }
        1 => {
            let at = draw.rng.random_range(0..=shape.len());
            shape.insert(at, 1);
            case(Squeeze { axes: vec![signed(at)] }, [draw.held(DType::F32, &shape)])
        }
        _ => {
            let axis = draw.int(-rank, rank + 1);
            case(Flatten { axis }, [draw.held(DType::F32, &shape)])
        }
    }
}

fn transpose(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(4);
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.shuffle(&mut draw.rng);
    case(Transpose { perm }, [draw.held(DType::F32, &shape)])
}

/// Numbers of entries of an axis of `size`; of the batch the first.
fn entries(draw: &mut Draw, index: &[usize], size: usize) -> super::draw::Held {
    let dtype = draw.of(&[DType::I64, DType::I32]);
    let (low, high) = if size == N { (0, 1) } else { (-signed(size), signed(size)) };
    draw.ints(dtype, index, low, high)
}

fn gather(draw: &mut Draw) -> Option<Case> {
    let mut shape = draw.shape(3);
    if draw.chance(2) {
        shape.retain(|d| *d != N);
        shape.push(3);
    }
    let axis = draw.axis(shape.len());
    let index = if draw.chance(2) { draw.shape(2) } else { vec![2] };
    let size = shape[place(axis, shape.len())];
    case(Gather { axis }, [draw.held(DType::F32, &shape), entries(draw, &index, size)])
}

fn gather_elements(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let axis = draw.axis(shape.len());
    let at = place(axis, shape.len());
    let mut index = shape.clone();
    if index[at] != N {
        index[at] = draw.size();
    }
    let indices = entries(draw, &index, shape[at]);
    case(GatherAt::Elements { axis }, [draw.held(DType::F32, &shape), indices])
}

fn gather_nd(draw: &mut Draw) -> Option<Case> {
    let (a, b) = (draw.size(), draw.size());
    let (data, index, batch_dims, size) = match draw.rng.random_range(0..6) {
        0 => (vec![N, a, b], vec![N, 2, 1], 1, a),
        4 => (vec![2, N, a, a, b], vec![2, N, 3, 2], 2, a),
        5 => (vec![N, a, a], vec![N, 2], 1, a),
        1 => (vec![a, b], vec![N, 1], 0, a),
        2 => (vec![a, N], vec![2, 1], 0, a),
        _ => (vec![N, a], vec![3, 1], 0, N),
    };
    case(GatherAt::Nd { batch_dims }, [draw.held(DType::F32, &data), entries(draw, &index, size)])
}

/// Sums and products of small integers, whatever the order.
fn scatter(draw: &mut Draw) -> Option<Case> {
    let reduction =
        draw.of(&[Reduction::Add, Reduction::Max, Reduction::Min, Reduction::Mul, Reduction::None]);
    if draw.chance(3) {
        let a = draw.size();
        let (data, index, updates, size) = match draw.rng.random_range(0..3) {
            0 => (vec![a, N], vec![2, 1], vec![2, N], a),
            1 => (vec![a, 3], vec![N, 1], vec![N, 3], a),
            _ => (vec![N, a], vec![2, 1], vec![2, a], N),
        };
        let operands = [
            draw.ints(DType::F32, &data, -3, 4),
            entries(draw, &index, size),
            draw.ints(DType::F32, &updates, -3, 4),
        ];
        return case(Scatter::Nd { reduction }, operands);
    }
    let shape = draw.shape(3);
    let axis = draw.axis(shape.len());
    let at = place(axis, shape.len());
    let mut index = shape.clone();
    if index[at] != N {
        index[at] = draw.size();
    }
    let operands = [
        draw.ints(DType::F32, &shape, -3, 4),
        entries(draw, &index, shape[at]),
        draw.ints(DType::F32, &index, -3, 4),
    ];
    case(Scatter::Elements { axis, reduction }, operands)
}

fn segment_sum(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let segments = draw.size();
    let wide = draw.chance(3);
    let x = draw.ints(if wide { DType::F64 } else { DType::F32 }, &shape, -3, 4);
    let ids = draw.ints(DType::I64, &shape[..1], 0, signed(segments));
    case(SegmentSum { segments: signed(segments), wide }, [x, ids])
}

fn top_k(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let axis = draw.axis(shape.len());
    let size = shape[place(axis, shape.len())];
    let k =
        if size == N { draw.dims(&[N]).remove(0) } else { draw.int(1, signed(size) + 1).into() };
    let x = draw.ints(DType::F32, &shape, -3, 4);
    case(TopK { axis, k, largest: draw.chance(2), local: false }, [x])
}

fn one_hot(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let rank = signed(shape.len());
    let axis = draw.int(-rank - 1, rank + 1);
    let depth = if draw.chance(8) { draw.dims(&[N]).remove(0) } else { 4.into() };
    let x = draw.ints(DType::I64, &shape, -4, 5);
    case(OneHot { axis, depth }, [x, draw.held(DType::F32, &[2])])
}

fn trilu(draw: &mut Draw) -> Option<Case> {
    let mut shape = draw.shape(3);
    shape.push(draw.size());
    if draw.chance(2) {
        shape.push(draw.size());
    }
    let op = Trilu { k: draw.int(-2, 3), upper: draw.chance(2) };
    case(op, [draw.held(DType::F32, &shape)])
}

fn reverse_sequence(draw: &mut Draw) -> Option<Case> {
    let batch_axis = draw.int(0, 2);
    let mut shape = if batch_axis == 0 { vec![N, 4, 2] } else { vec![4, N, 2] };
    let mut lengths = vec![N];
    if draw.chance(3) {
        // The batch is behind both axes.
        (shape, lengths) =
            if batch_axis == 0 { (vec![3, 4, N], vec![3]) } else { (vec![4, 3, N], vec![3]) };
    }
    let lengths = draw.ints(DType::I64, &lengths, 1, 5);
    let op = ReverseSequence { batch_axis, time_axis: 1 - batch_axis };
    case(op, [draw.held(DType::F32, &shape), lengths])
}

fn sizes(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let x = draw.held(DType::F32, &shape);
    match draw.rng.random_range(0..3) {
        0 => case(SizeOp {}, [x]),
        1 => case(ShapeOp { end: None, start: draw.axis(shape.len()) }, [x]),
        _ => case(named("identity", Vec::<(&str, Attr)>::new())?, [x]),
    }
}
