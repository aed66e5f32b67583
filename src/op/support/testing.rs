//! Support of the operators' unit tests: an operator's inference, evaluation and split rule are
//! held against each other.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smallvec::SmallVec;

use crate::op::{AllReduce, Narrow, Op, OpDef, Operand, SplitOperand};
use crate::types::{Claim, Combine, DType, Dim, Shape, Shard, Tensor, TensorType};

/// A generator for a test's cases; the same seed gives the same cases.
pub(crate) fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A tensor of small values: floats in -2..2, integers in 0..8 (signed ones -4..4), `bool`.
pub(crate) fn random(rng: &mut ChaCha8Rng, dtype: DType, dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    let values: Vec<f64> = (0..n)
        .map(|_| {
            if dtype.is_float() {
                return f64::from(rng.random_range(-2.0f32..2.0));
            }
            let (low, high) = if dtype.is_signed() { (-4, 4) } else { (0, 8) };
            f64::from(rng.random_range(if dtype == DType::Bool { 0..2 } else { low..high }))
        })
        .collect();
    tensor(dtype, dims, &values)
}

/// The tensor of `dtype` with these values, rounded to it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "test values fit")]
pub(crate) fn tensor(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
    macro_rules! make {
        ($t:ty, $f:expr) => {
            Tensor::new::<$t>(dims, &values.iter().map($f).collect::<Vec<$t>>()).unwrap()
        };
    }
    match dtype {
        DType::F64 => make!(f64, |x| *x),
        DType::F32 => make!(f32, |x| *x as f32),
        DType::F16 => make!(half::f16, |x| half::f16::from_f64(*x)),
        DType::Bf16 => make!(half::bf16, |x| half::bf16::from_f64(*x)),
        DType::I64 => make!(i64, |x| *x as i64),
        DType::I32 => make!(i32, |x| *x as i32),
        DType::I16 => make!(i16, |x| *x as i16),
        DType::I8 => make!(i8, |x| *x as i8),
        DType::U64 => make!(u64, |x| *x as u64),
        DType::U32 => make!(u32, |x| *x as u32),
        DType::U16 => make!(u16, |x| *x as u16),
        DType::U8 => make!(u8, |x| *x as u8),
        DType::Bool => make!(u8, |x| *x as u8).reinterpreted(DType::Bool),
    }
}

/// These sizes as attributes hold them.
pub(crate) fn sizes(sizes: &[usize]) -> Vec<Dim> {
    Shape::from(sizes).to_vec()
}

/// Evaluates `op`, and fails unless inference gives the types (and, where it knows them, the
/// elements) of the results.
pub(crate) fn eval(op: &Op, operands: &[&Tensor]) -> Vec<Tensor> {
    let types: Vec<TensorType> = operands.iter().map(|t| t.tensor_type()).collect();
    let ints: Vec<Option<Vec<Dim>>> = operands
        .iter()
        .map(|t| t.to_i64().map(|v| v.into_iter().map(Dim::from).collect()))
        .collect();
    let inputs: Vec<Operand<'_>> =
        types.iter().zip(&ints).map(|(ty, ints)| Operand { ty, ints: ints.as_deref() }).collect();
    let inferred = op.infer(&inputs).unwrap_or_else(|e| panic!("{op:?} on {types:?}: {e}"));
    let results = op.eval(operands).unwrap_or_else(|e| panic!("{op:?} on {types:?}: {e}"));
    assert_eq!(inferred.len(), results.len(), "{op:?}: number of results");
    for (ty, result) in inferred.iter().zip(&results) {
        assert_eq!(ty.ty, result.tensor_type(), "{op:?} on {types:?}");
        if let Some(ints) = &ty.ints {
            let known: Option<Vec<i64>> = ints.iter().map(Dim::as_const).collect();
            assert_eq!(known, result.to_i64(), "{op:?}: known elements");
        }
    }
    // The text form reads back.
    let attrs = op.attrs().into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
    assert_eq!(Op::read(op.name(), attrs).as_ref(), Ok(op));
    results
}

/// The symbolic type of an operand: the batch axis is `outer * N * inner`, the others are as they
/// are.
pub(in crate::op) fn symbolic(tensor: &Tensor, claim: Claim) -> TensorType {
    let mut ty = tensor.tensor_type();
    if let Some(shard) = claim.shard() {
        ty.shape[shard.axis] = shard.size();
    }
    ty
}

/// The rows `from..to` of `tensor` as a replica holds it.
fn part(tensor: &Tensor, claim: Claim, from: usize, to: usize) -> Tensor {
    let Some(Shard { axis, outer, inner }) = claim.shard() else { return tensor.clone() };
    let [blocks, inner] = [outer, inner].map(|d| usize::try_from(d).unwrap());
    let dims = tensor.dims();
    let outer = dims[..axis].iter().product::<usize>() * blocks;
    let block = dims[axis] / blocks;
    let width = dims[axis + 1..].iter().product::<usize>() * tensor.dtype().bytes();
    let (from, to) = (from * inner, to * inner);
    let mut bytes = Vec::new();
    for o in 0..outer {
        let row = o * block * width;
        bytes.extend_from_slice(&tensor.bytes()[row + from * width..row + to * width]);
    }
    let mut dims: SmallVec<[usize; 4]> = dims.into();
    dims[axis] = (to - from) * blocks;
    Tensor::from_bytes(tensor.dtype(), &dims, &bytes).unwrap()
}

/// Checks the split rule on these operands of a batch of `n` rows: every replica's results,
/// computed from its own parts of the operands, must be its parts of the whole results, bit for
/// bit; of a partial result the parts combined must be the whole, within rounding. Returns the
/// claims of the results, or the refusal's code as text. `op` has `N` where its attributes depend
/// on the batch size.
pub(crate) fn check_split(
    op: &Op,
    operands: &[(&Tensor, Claim)],
    n: usize,
) -> Result<Vec<Claim>, String> {
    let (claims, results) = split(op, operands)?;
    assert_claims(op, operands, &claims, &results, n);
    check_blocks(op, operands, n);
    Ok(claims)
}

/// The same with the entries of each row in several blocks: what the rule says of them holds, too,
/// if it allows them.
fn check_blocks(op: &Op, operands: &[(&Tensor, Claim)], n: usize) {
    let shards = || operands.iter().filter_map(|(_, claim)| claim.shard());
    let most = shards().map(|s| s.inner).max().unwrap_or(1);
    for outer in 2..=most.min(6) {
        if shards().any(|s| s.outer > 1 || s.inner % outer > 0) {
            continue;
        }
        let blocks = |claim: &Claim| match claim.shard() {
            Some(s) => Claim::Shard(Shard { outer, inner: s.inner / outer, ..s }),
            None => *claim,
        };
        let operands: Vec<_> = operands.iter().map(|(t, claim)| (*t, blocks(claim))).collect();
        if let Ok((claims, results)) = split(op, &operands) {
            assert_claims(op, &operands, &claims, &results, n);
        }
    }
}

/// Fails unless the claims hold of the results of types `results`, as [`check_split`] says.
pub(crate) fn assert_claims(
    op: &Op,
    operands: &[(&Tensor, Claim)],
    claims: &[Claim],
    results: &[TensorType],
    n: usize,
) {
    let at = |rows: usize| {
        let mut op = op.clone();
        let partial = operands.iter().any(|(_, c)| c.partial().is_some());
        let local = |c: &Claim| c.shard().is_some() || (c.partial().is_some() && !partial);
        op.at_rows(&dim(if claims.iter().any(local) { rows } else { n }));
        op
    };
    let whole_operands: Vec<&Tensor> = operands.iter().map(|(t, _)| *t).collect();
    let whole = at(n).eval(&whole_operands).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    for (tensor, ty) in whole.iter().zip(results) {
        assert_eq!(Shape::from(tensor.dims()), ty.shape.at_rows(&dim(n)), "{op:?}");
    }
    let five = vec![0, n / 5, n / 2, n / 2, n - n / 6, n];
    for cuts in [vec![0, n], vec![0, n / 3, 2 * (n / 3), n], vec![0, n / 2, n / 2, n], five] {
        let rows: Vec<usize> = cuts.windows(2).map(|c| c[1] - c[0]).collect();
        let mut all: Vec<Vec<Tensor>> = vec![Vec::new(); whole.len()];
        for (r, cut) in cuts.windows(2).enumerate().filter(|(_, c)| c[0] < c[1]) {
            let held = |(t, c): &(&Tensor, Claim)| match c {
                Claim::Partial(by) => share(t, *by, &rows, r),
                Claim::Invariant | Claim::Shard(_) | Claim::Own | Claim::Mixed => {
                    part(t, *c, cut[0], cut[1])
                }
            };
            let parts: Vec<Tensor> = operands.iter().map(held).collect();
            let got = at(cut[1] - cut[0])
                .eval(&parts.iter().collect::<Vec<_>>())
                .unwrap_or_else(|e| panic!("{op:?}: {e}"));
            for (i, (got, claim)) in got.into_iter().zip(claims).enumerate() {
                if claim.partial().is_none() {
                    let expected = part(&whole[i], *claim, cut[0], cut[1]);
                    assert_eq!(got, expected, "{op:?}: rows {cut:?} of {n}, {claim}");
                }
                all[i].push(got);
            }
        }
        for ((parts, whole), claim) in all.iter().zip(&whole).zip(claims) {
            if let (Some(by), false) = (claim.partial(), parts.is_empty()) {
                let rows = rows.iter().filter(|n| **n > 0).map(|n| dim(*n)).collect();
                let joined = AllReduce { by, rows }.eval(&parts.iter().collect::<Vec<_>>());
                let joined = joined.unwrap_or_else(|e| panic!("{op:?}: {e}")).remove(0);
                let (joined, whole) = (rounded(by, joined), rounded(by, whole.clone()));
                assert_close(&joined, &whole.to_f64(), tolerance(whole.dtype()));
            }
        }
    }
}

/// A combined value after rounding.
fn rounded(by: Combine, value: Tensor) -> Tensor {
    if !by.is_wide() || by == Combine::Moments {
        return value;
    }
    eval(&Narrow { by, count: Dim::ONE, log: false }.into(), &[&value]).remove(0)
}

/// The part that replica `r` holds of a partial value of small integers: parts that combine to the
/// whole, exactly.
fn share(whole: &Tensor, by: Combine, rows: &[usize], r: usize) -> Tensor {
    let present: Vec<usize> = (0..rows.len()).filter(|i| rows[*i] > 0).collect();
    let place = present.iter().position(|i| *i == r).unwrap();
    let others = f64::from(u32::try_from(present.len() - 1).unwrap());
    let count = |i: usize| f64::from(u32::try_from(rows[present[i]]).unwrap());
    let value = |x: f64| match by {
        Combine::Sum if place == 0 => x - 3.0 * others,
        Combine::Sum => 3.0,
        Combine::Max if place > 0 => x - 1.0,
        Combine::Min if place > 0 => x + 1.0,
        Combine::Prod if place > 0 => 1.0,
        // Every part differs from the mean, and the differences cancel.
        Combine::Mean if place == 0 && present.len() > 1 => x + count(1),
        Combine::Mean if place == 1 => x - count(0),
        Combine::Lse if place > 0 => f64::NEG_INFINITY,
        Combine::L2 if place > 0 => 0.0,
        Combine::Max
        | Combine::Min
        | Combine::Prod
        | Combine::Mean
        | Combine::Lse
        | Combine::WideSum
        | Combine::WideProd
        | Combine::Moments
        | Combine::L2 => x,
    };
    let values: Vec<f64> = whole.to_f64().into_iter().map(value).collect();
    tensor(whole.dtype(), whole.dims(), &values)
}

/// The claims that the split rule gives, and the types of the whole results they are about.
fn split(op: &Op, operands: &[(&Tensor, Claim)]) -> Result<(Vec<Claim>, Vec<TensorType>), String> {
    let types: Vec<TensorType> = operands.iter().map(|(t, c)| symbolic(t, *c)).collect();
    let ints: Vec<Option<Vec<Dim>>> = operands
        .iter()
        .map(|(t, c)| match c {
            Claim::Invariant => t.to_i64().map(|v| v.into_iter().map(Dim::from).collect()),
            Claim::Shard(_) | Claim::Partial(_) | Claim::Own | Claim::Mixed => None,
        })
        .collect();
    let inputs: Vec<Operand<'_>> =
        types.iter().zip(&ints).map(|(ty, ints)| Operand { ty, ints: ints.as_deref() }).collect();
    let inferred = op.infer(&inputs).unwrap_or_else(|e| panic!("{op:?} on {types:?}: {e}"));
    let results: Vec<TensorType> = inferred.into_iter().map(|r| r.ty).collect();
    let split: Vec<SplitOperand<'_>> = types
        .iter()
        .zip(operands)
        .map(|(ty, (_, claim))| SplitOperand { claim: *claim, ty })
        .collect();
    let claims = op.split(&split, &results).map_err(|r| r.code.name().to_owned())?;
    assert_eq!(claims.len(), results.len(), "{op:?}: one claim for each result");
    for (claim, ty) in claims.iter().zip(&results) {
        if let Some(s) = claim.shard() {
            assert_eq!(ty.shape[s.axis], s.size(), "{op:?}: {claim} of {ty}");
        } else if operands.iter().any(|(_, c)| c.shard().is_some()) {
            let depends = ty.shape.iter().any(Dim::depends_on_batch);
            assert!(!depends, "{op:?}: {claim} of {ty}");
        }
    }
    Ok((claims.into_vec(), results))
}

fn dim(size: usize) -> Dim {
    i64::try_from(size).unwrap().into()
}

/// The code with which `op` refuses operands with these claims, whatever inference says of their
/// symbolic types.
pub(crate) fn refusal(op: &Op, operands: &[(&Tensor, Claim)]) -> String {
    let types: Vec<TensorType> = operands.iter().map(|(t, c)| symbolic(t, *c)).collect();
    let split: Vec<SplitOperand<'_>> = types
        .iter()
        .zip(operands)
        .map(|(ty, (_, claim))| SplitOperand { claim: *claim, ty })
        .collect();
    let refusal = op.split(&split, &[]).expect_err("the split is refused");
    assert!(
        operands[refusal.operand].1 != Claim::Invariant,
        "{op:?}: blames operand {}",
        refusal.operand
    );
    refusal.code.name().to_owned()
}

/// Fails unless every element of `got` is within `tolerance` of the greatest magnitude in
/// `expected`.
pub(crate) fn assert_close(got: &Tensor, expected: &[f64], tolerance: f64) {
    let got_values = got.to_f64();
    assert_eq!(got_values.len(), expected.len(), "{got:?}");
    let scale = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for (i, (a, b)) in got_values.iter().zip(expected).enumerate() {
        let near = (a - b).abs() <= tolerance * scale
            || a.to_bits() == b.to_bits()
            || (a.is_nan() && b.is_nan());
        assert!(near, "element {i} of {got:?}: {a} is not {b}");
    }
}

/// The tolerance of [`assert_close`] that suits an element type.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::Bf16 => 1.6e-2,
        DType::I64
        | DType::I32
        | DType::I16
        | DType::I8
        | DType::U64
        | DType::U32
        | DType::U16
        | DType::U8
        | DType::Bool => 0.0,
    }
}

/// All tuples of indices below `sizes`, in row-major order.
pub(crate) fn indices(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![vec![]], |all, d| {
        all.iter().flat_map(|head| (0..*d).map(|i| [head.as_slice(), &[i]].concat())).collect()
    })
}
