//! Operators on single elements, along an axis, and without operands.

use rand::Rng;

use super::Generator;
use super::draw::{Case, Draw, N, case, named};
use fanwise::internal::OpRead;
use fanwise::internal::{CopyOp, Narrow};
use fanwise::op::{
    Attr, Binary, BitCast, Cast, Classify, Compare, Constant, ConstantOfShape, Dft, Dropout,
    Identity, Logic, Quantize, Random, Range, Reduce, Unary, Where,
};
use fanwise::types::{Combine, DType, Dim};

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    ("unary", unary),
    ("binary", binary),
    ("compare", compare),
    ("logic", logic),
    ("classify", classify),
    ("where", where_),
    ("cast", cast),
    ("bit_cast", bit_cast),
    ("dft", dft),
    ("same", same),
    ("quantize", quantize),
    ("reduce", reduce),
    ("narrow", narrow),
    ("along", along),
    ("scan", scan),
    ("made", made),
];

/// Cases of an elementwise operator for each variant of a family: they take few rows each.
fn unary(draw: &mut Draw) -> Option<Case> {
    let name = draw.next_of(Unary::NAMES);
    let (alpha, shape, dtype) = (draw.rng.random_range(0.1..2.0), draw.shape(4), draw.float());
    let attrs = match name {
        "clip" => vec![("max", Attr::Float(alpha))],
        _ if draw.chance(2) => vec![("alpha", Attr::Float(alpha))],
        _ => Vec::new(),
    };
    let op = named(name, attrs).or_else(|| named(name, Vec::new()))?;
    case(op, [draw.held(dtype, &shape)])
}

fn binary(draw: &mut Draw) -> Option<Case> {
    let name = draw.next_of(Binary::NAMES);
    let shape = draw.shape(4);
    let dtype = if draw.chance(4) { DType::I32 } else { draw.float() };
    let mut pair = [draw.held(dtype, &shape), draw.partner(dtype, &shape)];
    if !dtype.is_float() && matches!(name, "div" | "mod") {
        let divisor = &mut pair[1].0;
        let values: Vec<f64> = divisor.to_f64().iter().map(|v| v.abs() + 1.0).collect();
        *divisor = crate::splits::tensor(dtype, divisor.dims(), &values);
    } else if draw.chance(3) {
        pair.swap(0, 1);
    }
    let fmod = name == "mod" && dtype.is_float();
    let attrs = if fmod { vec![("fmod", Attr::Bool(true))] } else { Vec::new() };
    case(named(name, attrs)?, pair)
}

fn compare(draw: &mut Draw) -> Option<Case> {
    let (name, shape) = (draw.next_of(Compare::NAMES), draw.shape(4));
    let dtype = draw.of(&[DType::F32, DType::I64, DType::U8]);
    case(named(name, Vec::new())?, [draw.held(dtype, &shape), draw.partner(dtype, &shape)])
}

fn logic(draw: &mut Draw) -> Option<Case> {
    let (name, shape) = (draw.next_of(Logic::NAMES), draw.shape(4));
    let bits = name.starts_with("bit");
    let dtype = if bits { draw.of(&[DType::U8, DType::U32]) } else { DType::Bool };
    let attrs =
        if name == "bit_shift" { vec![("left", Attr::Bool(draw.chance(2)))] } else { Vec::new() };
    let mut operands = vec![draw.held(dtype, &shape), draw.partner(dtype, &shape)];
    operands.truncate(if name.ends_with("not") { 1 } else { 2 });
    case(named(name, attrs)?, operands)
}

fn classify(draw: &mut Draw) -> Option<Case> {
    let (name, shape, dtype) = (draw.next_of(Classify::NAMES), draw.shape(4), draw.float());
    case(named(name, Vec::new())?, [draw.held(dtype, &shape)])
}

fn where_(draw: &mut Draw) -> Option<Case> {
    let (shape, dtype) = (draw.shape(4), draw.of(&[DType::F32, DType::I64]));
    let operands = [
        draw.partner(DType::Bool, &shape),
        draw.partner(dtype, &shape),
        draw.partner(dtype, &shape),
    ];
    case(Where {}, operands)
}

fn cast(draw: &mut Draw) -> Option<Case> {
    let all = [DType::F64, DType::F32, DType::F16, DType::I64, DType::I32, DType::U8, DType::Bool];
    let (from, to, shape) = (draw.of(&all), draw.of(&all), draw.shape(4));
    case(Cast { to }, [draw.held(from, &shape)])
}

fn bit_cast(draw: &mut Draw) -> Option<Case> {
    let pairs = [
        (DType::F32, DType::I32),
        (DType::I64, DType::U64),
        (DType::U8, DType::I8),
        (DType::I16, DType::U16),
        (DType::Bool, DType::U8),
    ];
    let ((from, to), shape) = (draw.of(&pairs), draw.shape(4));
    case(BitCast { to }, [draw.held(from, &shape)])
}

/// Transforms along any axis but the last one, of more, fewer or as many entries as there are.
fn dft(draw: &mut Draw) -> Option<Case> {
    let mut shape = draw.shape(3);
    let axis = draw.int(0, i64::try_from(shape.len()).unwrap());
    shape.push(draw.of(&[1, 2]));
    let length = draw.int(1, 8);
    let count = draw.of(&[length, length / 2 + 1, 0]);
    let (inverse, real) = (draw.chance(2), draw.chance(2));
    let dtype = draw.float();
    let x = draw.held(dtype, &shape);
    case(Dft { axis, length, count, inverse, real }, [x])
}

/// Operators that give their operand.
fn same(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(4);
    let x = draw.held(DType::F32, &shape);
    match draw.rng.random_range(0..4) {
        0 => case(Identity {}, [x]),
        1 => case(CopyOp {}, [x]),
        _ => case(Dropout { mask: draw.chance(2), rate: 0.0 }, [x]),
    }
}

fn quantize(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let axis = draw.axis(shape.len());
    let at = usize::try_from(axis.rem_euclid(i64::try_from(shape.len()).unwrap())).unwrap();
    let own: Vec<usize> = if draw.chance(2) { vec![shape[at]] } else { Vec::new() };
    let to = draw.of(&[DType::U8, DType::I8]);
    let scale = draw.held(DType::F32, &own);
    let zero = draw.ints(to, &own, 0, 5);
    if draw.chance(2) {
        let x = draw.held(DType::F32, &shape);
        return case(Quantize::Quantize { axis, block: 0, to }, [x, scale, zero]);
    }
    let x = draw.ints(to, &shape, 0, 9);
    if shape[at] != N && draw.chance(3) {
        let block = draw.rng.random_range(1..3usize);
        let mut own = shape;
        own[at] = own[at].div_ceil(block);
        let (scale, zero) = (draw.held(DType::F32, &own), draw.ints(to, &own, 0, 5));
        let block = i64::try_from(block).unwrap();
        return case(Quantize::Dequantize { axis, block }, [x, scale, zero]);
    }
    case(Quantize::Dequantize { axis, block: 0 }, [x, scale, zero])
}

/// Reductions of small integers as floats, whose sums are exact.
fn reduce(draw: &mut Draw) -> Option<Case> {
    let (name, shape) = (draw.next_of(Reduce::NAMES), draw.shape(4));
    let mut axes: Vec<i64> = (0i64..).take(shape.len()).collect();
    axes.retain(|_| draw.chance(2));
    let rank = i64::try_from(shape.len()).unwrap();
    let axes = axes.into_iter().map(|a| Dim::from(if draw.chance(2) { a } else { a - rank }));
    let axes = Attr::Ints(axes.collect::<Vec<Dim>>());
    let keepdims = Attr::Bool(draw.chance(2));
    let dtype = draw.of(&[DType::F64, DType::F32, DType::I64]);
    let x = draw.ints(dtype, &shape, 1, 4);
    case(named(name, vec![("axes", axes), ("keepdims", keepdims)])?, [x])
}

/// Sums and products in components, which small integers are.
fn narrow(draw: &mut Draw) -> Option<Case> {
    let by = draw.of(&[Combine::WideSum, Combine::WideProd]);
    let mut shape = draw.shape(3);
    shape.insert(0, 2);
    let (count, log) = (Dim::from(draw.of(&[1, 3])), draw.chance(2));
    case(Narrow { by, count, log }, [draw.ints(DType::F64, &shape, 1, 4)])
}

/// Operators along one axis.
fn along(draw: &mut Draw) -> Option<Case> {
    let names =
        ["softmax", "log_softmax", "hardmax", "lp_norm", "sort", "arg_max", "arg_min", "reverse"];
    let (name, shape) = (draw.next_of(&names), draw.shape(4));
    let axis = draw.axis(shape.len());
    let x = draw.ints(DType::F32, &shape, -3, 4);
    let attrs = match name {
        "reverse" => vec![("axes", Attr::Ints(vec![axis.into()]))],
        "sort" => {
            vec![("axis", Attr::Int(axis.into())), ("descending", Attr::Bool(draw.chance(2)))]
        }
        "lp_norm" => {
            vec![("axis", Attr::Int(axis.into())), ("p", Attr::Int(draw.int(1, 3).into()))]
        }
        "arg_max" | "arg_min" => vec![
            ("axis", Attr::Int(axis.into())),
            ("keepdims", Attr::Bool(draw.chance(2))),
            ("select_last_index", Attr::Bool(draw.chance(2))),
        ],
        _ => vec![("axis", Attr::Int(axis.into()))],
    };
    case(named(name, attrs)?, [x])
}

fn scan(draw: &mut Draw) -> Option<Case> {
    let (name, shape) = (draw.of(&["cumsum", "cumprod"]), draw.shape(4));
    let dtype = draw.of(&[DType::F32, DType::F64, DType::I64]);
    let attrs = vec![
        ("axis", Attr::Int(draw.axis(shape.len()).into())),
        ("exclusive", Attr::Bool(draw.chance(2))),
        ("reverse", Attr::Bool(draw.chance(2))),
    ];
    case(named(name, attrs)?, [draw.held(dtype, &shape)])
}

/// Values without operands; one element for each row where the batch has more would be no rows.
fn made(draw: &mut Draw) -> Option<Case> {
    let shape = draw.shape(3);
    let dims = draw.dims(&shape);
    let (seed, dtype) = (draw.int(-9, 9), DType::F32);
    let (value, _) = draw.held(dtype, &[]);
    match draw.rng.random_range(0..5) {
        0 => case(ConstantOfShape { shape: dims, value }, []),
        1 => case(Random::uniform(dtype, -1.0, 2.0, seed, dims), []),
        2 => case(Random::normal(dtype, 0.5, 2.0, seed, dims), []),
        3 => {
            let limit = draw.dims(&[N]).remove(0);
            case(Range { delta: 1, dtype: DType::I64, limit, start: 0.into() }, [])
        }
        _ => case(Constant { value }, []),
    }
}
