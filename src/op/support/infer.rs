//! Checks and formulas that the inference of several operators shares.

use smallvec::{SmallVec, smallvec};

use crate::op::element::for_dtype;
use crate::op::{Inferred, Op, OpError, Operand, Results, Traits};
use crate::types::{DType, Dim, Element, Shape, Tensor, TensorType};

/// Elements of a small integer tensor are followed up to this number: enough for sizes and
/// positions, and a bound on the memory that a line of a hostile text can ask for.
pub(crate) const MAX_INTS: usize = 64;

/// Fails unless there are `min..=max` operands; `expected` says so in words.
pub(crate) fn count(
    operands: &[Operand<'_>],
    min: usize,
    max: usize,
    expected: &'static str,
) -> Result<(), OpError> {
    if (min..=max).contains(&operands.len()) {
        Ok(())
    } else {
        Err(OpError::Operands { expected, found: operands.len() })
    }
}

/// The operands of an operator that takes `K` of them, as inference or as an evaluation sees them.
pub(crate) fn exactly<T: Copy, const K: usize>(operands: &[T]) -> Result<[T; K], OpError> {
    let expected = ["0", "1", "2", "3", "4", "5"].get(K).copied().unwrap_or("more than 5");
    <[T; K]>::try_from(operands).map_err(|_| OpError::Operands { expected, found: operands.len() })
}

/// The first `K` operands of an operator that takes as many at least, and the others.
pub(crate) fn at_least<T: Copy, const K: usize>(operands: &[T]) -> Result<([T; K], &[T]), OpError> {
    let expected = ["0", "at least 1", "at least 2"].get(K).copied().unwrap_or("at least 3");
    let found = operands.split_first_chunk();
    let (first, rest) = found.ok_or(OpError::Operands { expected, found: operands.len() })?;
    Ok((*first, rest))
}

/// The sizes of operand `i`, which has `K` axes; `expected` says which.
pub(crate) fn sizes_of<'a, const K: usize>(
    operands: &[Operand<'a>],
    i: usize,
    expected: &str,
) -> Result<&'a [Dim; K], OpError> {
    let ty = operands.get(i).ok_or(OpError::Operands { expected: "more", found: i })?.ty;
    ty.shape.as_array().ok_or_else(|| OpError::shape(i, ty, expected))
}

/// Fails unless operand `i` has the sizes of `shape`, which `what` names and `expected` tells.
pub(crate) fn has_sizes(
    operands: &[Operand<'_>],
    i: usize,
    shape: &[Dim],
    what: &str,
    expected: impl FnOnce() -> String,
) -> Result<(), OpError> {
    let Some(x) = operands.get(i) else { return Ok(()) };
    if x.ty.rank() != shape.len() {
        return Err(OpError::shape(i, x.ty, expected()));
    }
    x.ty.shape.iter().zip(shape).try_for_each(|(own, size)| equal(what, own, size))
}

/// Fails unless every operand has the element type of the first.
pub(crate) fn same_dtype(operands: &[Operand<'_>]) -> Result<DType, OpError> {
    let ([first], _) = at_least(operands)?;
    let first = first.ty.dtype;
    for (i, x) in operands.iter().enumerate() {
        if x.ty.dtype != first {
            return Err(OpError::dtype(i, x.ty.dtype, format!("{first}, as operand 0 is")));
        }
    }
    Ok(first)
}

/// Fails unless `test` holds for the element type of operand `i`; `expected` says which types do.
pub(crate) fn dtype(
    operands: &[Operand<'_>],
    i: usize,
    test: impl Fn(DType) -> bool,
    expected: &str,
) -> Result<(), OpError> {
    match operands.get(i) {
        Some(x) if !test(x.ty.dtype) => Err(OpError::dtype(i, x.ty.dtype, expected.to_owned())),
        _ => Ok(()),
    }
}

/// Fails unless the two sizes are equal for every `N`; `what` names them.
pub(crate) fn equal(what: &str, left: &Dim, right: &Dim) -> Result<(), OpError> {
    if left == right {
        Ok(())
    } else {
        Err(OpError::SizesDiffer {
            what: what.to_owned(),
            left: left.clone(),
            right: right.clone(),
        })
    }
}

/// The axis that `axis` names, counted from the end where it is negative, among `rank` of them.
pub(crate) fn axis(attr: &'static str, axis: i64, rank: usize) -> Result<usize, OpError> {
    let rank_i = i64::try_from(rank).unwrap_or(i64::MAX);
    let at = if axis < 0 { axis.saturating_add(rank_i) } else { axis };
    usize::try_from(at).ok().filter(|a| *a < rank).ok_or_else(|| {
        OpError::attr(attr, format!("{axis} is not an axis of a value with {rank} axes"))
    })
}

/// The axes that `list` names among `rank` of them, ascending; each may be named once.
pub(crate) fn axes(
    attr: &'static str,
    list: &[i64],
    rank: usize,
) -> Result<SmallVec<[usize; 4]>, OpError> {
    let mut axes =
        list.iter().map(|a| axis(attr, *a, rank)).collect::<Result<SmallVec<[usize; 4]>, _>>()?;
    axes.sort_unstable();
    match axes.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(axes),
        Some(pair) => Err(OpError::attr(attr, format!("axis {} is named twice", pair[0]))),
    }
}

/// The shape to which shapes broadcast, aligned at the right, where sizes are equal or 1.
pub(crate) fn broadcast<'a>(
    shapes: impl Iterator<Item = &'a Shape> + Clone,
) -> Result<Shape, OpError> {
    let rank = shapes.clone().map(Shape::rank).max().unwrap_or(0);
    let mut out: Shape = std::iter::repeat_n(Dim::ONE, rank).collect();
    for shape in shapes {
        let skip = rank - shape.rank();
        for (slot, d) in out.iter_mut().skip(skip).zip(shape.iter()) {
            if *slot == Dim::ONE {
                *slot = d.clone();
            } else if *d != Dim::ONE {
                equal("sizes that broadcast", slot, d)?;
            }
        }
    }
    Ok(out)
}

/// Fails unless every size that the attribute `attr` gives is at least 0 for every `N`.
pub(crate) fn sizes(attr: &'static str, sizes: &[Dim]) -> Result<(), OpError> {
    match sizes.iter().find(|d| !d.is_nonnegative()) {
        None => Ok(()),
        Some(d) => Err(OpError::attr(attr, format!("{d} is not a size for every N"))),
    }
}

/// The value of `d`, which an evaluation needs; `what` names it.
pub(crate) fn known(what: &str, d: &Dim) -> Result<i64, OpError> {
    d.as_const().ok_or_else(|| OpError::NotConstant(format!("{what} {d}")))
}

/// The values of all of them.
pub(crate) fn known_all(what: &str, all: &[Dim]) -> Result<Vec<i64>, OpError> {
    all.iter().map(|d| known(what, d)).collect()
}

/// The sizes that an evaluation needs; `what` names them.
pub(crate) fn known_sizes(what: &str, sizes: &[Dim]) -> Result<SmallVec<[usize; 4]>, OpError> {
    let shape = Shape::from(sizes);
    shape.as_const().ok_or_else(|| OpError::NotConstant(format!("{what} {shape}")))
}

/// The elements of `x` in the same order, where they are known.
pub(crate) fn carried(x: &Operand<'_>) -> Option<SmallVec<[Dim; 8]>> {
    x.ints.map(|ints| ints.iter().cloned().collect())
}

/// Fills in the elements of small integer results that inference left unknown, where those of all
/// operands are constants: by evaluation. What a callback gives is not known: a graph that is read
/// has none.
pub(in crate::op) fn evaluate_known(op: &Op, operands: &[Operand<'_>], results: &mut Results) {
    if op.is(Traits::UNREPEATABLE)
        || operands.is_empty()
        || operands.iter().any(|x| x.ints.is_none())
    {
        return;
    }
    let is_open = |r: &Inferred| {
        let elements = r.ty.shape.elements().as_const();
        let few = elements.is_some_and(|n| usize::try_from(n).is_ok_and(|n| n <= MAX_INTS));
        r.ints.is_none() && !r.ty.dtype.is_float() && few
    };
    if !results.iter().all(is_open) {
        return;
    }
    let tensors = operands.iter().map(|x| constant(x.ty, x.ints?)).collect::<Option<Vec<Tensor>>>();
    let evaluated = tensors.and_then(|t| op.eval(&t.iter().collect::<Vec<_>>()).ok());
    for (result, tensor) in results.iter_mut().zip(evaluated.into_iter().flatten()) {
        // An unsigned number above the range of i64 has no known value.
        let ints =
            tensor.to_i64().filter(|i| tensor.dtype() != DType::U64 || i.iter().all(|i| *i >= 0));
        if tensor.tensor_type() == result.ty {
            result.ints = ints.map(|ints| ints.into_iter().map(Dim::from).collect());
        }
    }
}

/// The tensor of integers (or `bool`) with these elements, if they are constants that fit its type.
pub(crate) fn constant(ty: &TensorType, elements: &[Dim]) -> Option<Tensor> {
    fn of<T: Element + TryFrom<i64>>(dims: &[usize], elements: &[Dim]) -> Option<Tensor> {
        let values = elements.iter().map(|d| T::try_from(d.as_const()?).ok());
        Tensor::new::<T>(dims, &values.collect::<Option<Vec<T>>>()?).ok()
    }
    let dims = ty.shape.as_const()?;
    for_dtype!(
        ty.dtype,
        float _F => None,
        int I => of::<I>(&dims, elements),
        bool => of::<u8>(&dims, elements).map(|t| t.reinterpreted(DType::Bool)),
    )
}

/// The one result, if its size is possible.
pub(crate) fn result(ty: TensorType) -> Result<Results, OpError> {
    results([ty])
}

/// The results, if their sizes are possible.
pub(crate) fn results(types: impl IntoIterator<Item = TensorType>) -> Result<Results, OpError> {
    types
        .into_iter()
        .map(|ty| {
            if ty.shape.is_valid() { Ok(Inferred::from(ty)) } else { Err(OpError::ResultSize(ty)) }
        })
        .collect()
}

/// The one result, with its elements where they are known and few.
pub(crate) fn result_with_ints(
    ty: TensorType,
    ints: Option<SmallVec<[Dim; 8]>>,
) -> Result<Results, OpError> {
    if !ty.shape.is_valid() {
        return Err(OpError::ResultSize(ty));
    }
    let ints = ints.filter(|i| {
        !ty.dtype.is_float()
            && i.len() <= MAX_INTS
            && ty.shape.elements().as_const() == i64::try_from(i.len()).ok()
    });
    Ok(smallvec![Inferred { ty, ints: ints.map(|i| i.as_slice().into()) }])
}
