//! Keras' rule of element types: in which type tensors of several types meet.

use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::ir::Value;
use crate::op::{Binary, Formula, Logic, Op};
use crate::types::DType;

/// The signed integers, each with the unsigned type of as many bits.
const INTEGERS: [(DType, DType); 4] = [
    (DType::I8, DType::U8),
    (DType::I16, DType::U16),
    (DType::I32, DType::U32),
    (DType::I64, DType::U64),
];

/// The element type in which two types meet: `keras.backend.result_type`, of which integers of 64
/// bits stay what they are.
pub(super) fn common(a: DType, b: DType) -> DType {
    let size = |dtype: DType| INTEGERS.iter().position(|(i, u)| *i == dtype || *u == dtype);
    match (a, b) {
        (a, b) if a == b => a,
        (DType::Bool, other) | (other, DType::Bool) => other,
        (DType::F16, DType::Bf16) | (DType::Bf16, DType::F16) => DType::F32,
        (a, b) if a.is_float() != b.is_float() => [a, b][usize::from(b.is_float())],
        (a, b) if a.is_float() || a.is_signed() == b.is_signed() => {
            [a, b][usize::from(b.bytes() > a.bytes())]
        }
        (a, b) => {
            let (signed, unsigned) = if a.is_signed() { (a, b) } else { (b, a) };
            let least = size(unsigned).map(|size| size + 1);
            // The next larger signed type holds the unsigned one; of the largest there is none.
            match least.and_then(|least| INTEGERS.get(least)) {
                None => DType::F32,
                Some((next, _)) if next.bytes() > signed.bytes() => *next,
                Some(_) => signed,
            }
        }
    }
}

/// Values in the element type in which all of them meet.
pub(super) fn promoted(at: &mut At<'_, '_>, values: &mut [Value]) -> Read<()> {
    let Some(to) = values.iter().map(|value| at.ty_of(*value)).reduce(common) else {
        return Ok(());
    };
    values.iter_mut().try_for_each(|value| {
        *value = at.cast(*value, to)?;
        Ok(())
    })
}

/// Arithmetic of two values in the type in which they meet. Of truth values a sum and a maximum is
/// `or`, a product and a minimum is `and`; powers and remainders are those of integers.
pub(super) fn arithmetic(at: &mut At<'_, '_>, op: Binary, a: Value, b: Value) -> Read<Value> {
    let mut both = [a, b];
    promoted(at, &mut both)?;
    if at.ty_of(both[0]) != DType::Bool {
        return at.op(op, &both);
    }
    let truth: Op = match op {
        Binary::Add | Binary::Max => Logic::Or.into(),
        Binary::Mul | Binary::Min => Logic::And.into(),
        op => {
            let numbers = [at.cast(a, DType::I32)?, at.cast(b, DType::I32)?];
            return at.op(op, &numbers);
        }
    };
    at.op(truth, &both)
}

/// A value as numbers: truth values become integers.
pub(super) fn numbers(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    Ok(if at.ty_of(x) == DType::Bool { at.cast(x, DType::I32)? } else { x })
}

/// A value as floats.
pub(super) fn floating(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    Ok(if at.ty_of(x).is_float() { x } else { at.cast(x, DType::F32)? })
}

/// A value in the element type of its sums and products: small integers have 32 bits.
pub(super) fn summable(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let to = match at.ty_of(x) {
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 | DType::U16 => DType::U32,
        dtype => dtype,
    };
    at.cast(x, to)
}

#[cfg(test)]
mod tests {
    use super::common;
    use crate::types::DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

    #[test]
    fn types_meet_as_in_keras() {
        for (a, b, both) in [
            (Bool, U8, U8),
            (U8, I8, I16),
            (U16, I8, I32),
            (U32, I8, I64),
            (U64, I64, F32),
            (U8, I32, I32),
            (U8, U32, U32),
            (I64, F16, F16),
            (F16, Bf16, F32),
            (Bf16, F32, F32),
            (F64, F32, F64),
            (I16, I64, I64),
        ] {
            assert_eq!((common(a, b), common(b, a)), (both, both), "{a} and {b}");
        }
    }
}
