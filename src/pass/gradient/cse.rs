//! Common-subexpression elimination of small values.

use crate::ir::{Builder, GraphError, Value};
use crate::pass::alike::Alike;

/// The largest size in bytes of values that are compared. Scalars and short vectors are what rules
/// repeat; sharing a large value could keep it in memory for longer.
const SMALL: i64 = 64;

/// Replaces small values by the first equal one: an equal constant, or an equal operator on the
/// same operands. Rules write some values for each parameter anew, such as the learning rate in its
/// type; they are computed once.
pub(super) fn cse_small(b: &mut Builder) -> Result<(), GraphError> {
    let mut alike = Alike::default();
    let ids: Vec<_> = b.graph().ids().collect();
    for id in ids {
        let [result] = b.graph().node(id).results() else { continue };
        if result.ty.bytes().as_const().is_none_or(|bytes| bytes > SMALL) {
            continue;
        }
        if let Some(node) = alike.earlier(b.graph(), id) {
            b.replace(Value { node: id, output: 0 }, Value { node, output: 0 })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cse_small;
    use crate::ir::{Builder, Value};
    use crate::op::{Binary, Cast, Constant, ConstantOfShape, Unary};
    use crate::types::{DType, Dim, Shape, Tensor, TensorType};

    #[test]
    fn what_is_computed_alike_is_one_node() {
        let mut b = Builder::new("alike");
        let x = b.input("x", TensorType::new(DType::F64, Shape::default()));
        let wide: Shape = [Dim::from(100)].into_iter().collect();
        let big = b.input("big", TensorType::new(DType::F32, wide));
        let mut alike = |i: usize| -> Vec<Value> {
            let mut op = |name: &str, op: crate::op::Op, operands: &[Value]| {
                b.op(&format!("{name}{i}"), op, operands).unwrap()
            };
            let two = op("two", Constant { value: Tensor::scalar(2.0f32) }.into(), &[]);
            let cast = op("cast", Cast { to: DType::F32 }.into(), &[x]);
            let product = op("product", Binary::Mul.into(), &[cast, two]);
            let turned = op("turned", Binary::Mul.into(), &[two, cast]);
            let large = op("large", Unary::Neg.into(), &[big]);
            // As f64 both are the same number.
            let value = Tensor::new(&[1], &[(1i64 << 53) + i64::try_from(i).unwrap()]).unwrap();
            let shape = vec![Dim::from(2)];
            let filled = op("filled", ConstantOfShape { shape, value }.into(), &[]);
            vec![product, turned, large, filled]
        };
        let all = [alike(0), alike(1)];
        for (i, value) in all.concat().into_iter().enumerate() {
            b.output(&format!("y{i}"), value);
        }
        cse_small(&mut b).unwrap();
        let (graph, _) = b.finish();
        let values: Vec<Value> = graph.outputs().iter().map(|o| o.value).collect();
        let same: Vec<bool> = (0..4).map(|i| values[i] == values[i + 4]).collect();
        assert_eq!(same, [true, true, false, false], "{graph}");
        assert_ne!(values[0], values[1], "{graph}");
    }
}
