//! Padding by convolutions and pooling themselves.

use super::options::SimplifyOptions;
use crate::ir::{Graph, NodeId, Value, Weights};
use crate::op::{Formula, Op};
use crate::pass::PassError;
use crate::types::Dim;

/// Gives what is put around a value to the convolution or the pooling that takes it: where nothing
/// else takes the padded value, it is then neither written nor read.
///
/// A sum has no products with the zeros any more, which is the same for finite weights, and the
/// greatest of zeros may have the other sign. Its gradient goes to another of equal elements then,
/// so that zeros around the operand of a greatest element stay where a graph is trained, but for
/// those around a ReLU: where that is 0, it passes no gradient on.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    options: &SimplifyOptions,
) -> Result<(), PassError> {
    for id in graph.order()? {
        // A value may be padded more than once.
        let mut at = id;
        while let Some((op, operands)) = padding_itself(graph, at, options.for_training) {
            let old = Value { node: at, output: 0 };
            let name = graph.info(old).name.clone();
            let new = graph.beside(at, name).op(op, &operands)?;
            graph.replace(old, new)?;
            at = new.node;
        }
    }
    graph.remove_unused();
    Ok(())
}

/// The operator that pads by itself, and its operands, if that of the node takes a padded value.
fn padding_itself(graph: &Graph, id: NodeId, for_training: bool) -> Option<(Op, Vec<Value>)> {
    let mut operands = graph.operands(id).to_vec();
    let padded = operands.first()?.node;
    let border = graph.node(padded).op()?.border()?;
    let x = *graph.operands(padded).first()?;
    let has_elements = |size: &Dim| size.as_const().is_some_and(|size| size > 0);
    if !graph.ty(x).shape.iter().skip(2).all(has_elements) {
        return None;
    }
    // Integers wrap.
    let nonnegative = graph.ty(x).dtype.is_float()
        && if for_training { is_masked(graph, x) } else { is_nonnegative(graph, x) };
    let op = graph.node(id).op()?.bordered(&border, nonnegative)?;
    operands[0] = x;
    Some((op, operands))
}

/// Whether a value is not below 0 and has no gradient to pass on where it is 0.
fn is_masked(graph: &Graph, value: Value) -> bool {
    graph.node(value.node).op().is_some_and(Op::is_masked)
}

/// The operators in front of a value that are asked for its sign: a file may have a chain of any
/// length in front of each of many pads.
const FAR: usize = 16;

/// Whether no element of a value is below 0, as far as operators of one operand in front of it say.
fn is_nonnegative(graph: &Graph, mut value: Value) -> bool {
    for _ in 0..FAR {
        let Some(op) = graph.node(value.node).op() else { return false };
        match graph.operands(value.node)[..] {
            [_] if op.is_nonnegative(&[false]) => return true,
            [x] if op.is_nonnegative(&[true]) => value = x,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use crate::ir::{Weights, parse, verify};
    use crate::op::testing::{eval, random, rng};
    use crate::op::{Conv, Op, OpDef, Pad, PadMode, Pool, PoolGrad, Unary};
    use crate::pass::simplify::{SimplifyOptions, simplify};
    use crate::types::{DType, Tensor};

    /// Numbers from 0 up to `most`.
    fn up_to(rng: &mut ChaCha8Rng, count: usize, most: i64) -> Vec<i64> {
        (0..count).map(|_| rng.random_range(0..=most)).collect()
    }

    /// A convolution or a pooling of two spatial axes.
    fn windows(rng: &mut ChaCha8Rng) -> Op {
        let one_more = |all: Vec<i64>| all.into_iter().map(|n| n + 1).collect::<Vec<_>>();
        let [kernel, strides, dilations] = [2, 2, 1].map(|most| one_more(up_to(rng, 2, most)));
        let most = rng.random_range(0..=1);
        let (pads, ceil_mode) = (up_to(rng, 4, most), rng.random_range(0..6) == 0);
        match rng.random_range(0..4) {
            0 => Conv { strides, dilations, pads, groups: 1 }.into(),
            1 => {
                let [indices, column_major] = [rng.random_range(0..8) == 0, false];
                Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major }
                    .into()
            }
            2 => {
                let count_include_pad = rng.random();
                Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad }
                    .into()
            }
            _ => Pool::Lp { kernel, strides, dilations, pads, ceil_mode, p: 2 }.into(),
        }
    }

    #[test]
    fn what_pads_by_itself_computes_the_same() {
        let (mut rng, mut count) = (rng(25), [0; 2]);
        for _ in 0..4000 {
            let op = windows(&mut rng);
            let nonnegative = rng.random();
            let value = [0.0, 0.0, f64::NEG_INFINITY, 1.0][rng.random_range(0..4usize)];
            let mut pads = vec![0; 8];
            let most = rng.random_range(1..=3);
            for axis in [2, 3, 6, 7] {
                pads[axis] = rng.random_range(if most == 3 { -1 } else { 0 }..=most);
            }
            let pad = Pad { mode: PadMode::Constant, pads, value };
            let itself = pad.border().and_then(|border| op.bordered(&border, nonnegative));
            let Some(itself) = itself else {
                count[0] += 1;
                continue;
            };
            let mut x = random(&mut rng, DType::F32, &[2, 2, 7, 6]);
            if nonnegative {
                x = eval(&Unary::Relu.into(), &[&x]).remove(0);
            }
            let w = random(&mut rng, DType::F32, &[3, 2, 2, 3]);
            let of = |op: &Op, x: &Tensor| {
                let operands: &[&Tensor] = if matches!(op, Op::Conv(_)) { &[x, &w] } else { &[x] };
                eval(op, operands).remove(0)
            };
            let padded = eval(&pad.clone().into(), &[&x]).remove(0);
            let expected = of(&op, &padded);
            let got = of(&itself, &x);
            assert_eq!(got.as_slice::<f32>(), expected.as_slice::<f32>(), "{op:?} of {pad:?}");
            count[1] += 1;
        }
        assert!(count.iter().all(|n| *n > 500), "{count:?}");
    }

    /// The gradient that a pool of what a ReLU gives gives back, as the ReLU passes it on.
    #[test]
    fn a_relu_passes_on_the_same_gradient() {
        let mut rng = rng(26);
        let mut differ = 0;
        for _ in 0..2000 {
            let op = windows(&mut rng);
            let Op::Pool(Pool::Max { indices: false, .. }) = op else { continue };
            let mut pads = vec![0; 8];
            for axis in [2, 3, 6, 7] {
                pads[axis] = rng.random_range(0..=1);
            }
            let pad = Pad { mode: PadMode::Constant, pads, value: 0.0 };
            let itself = pad.border().and_then(|border| op.bordered(&border, true));
            let Some(itself) = itself else { continue };
            let signs: Vec<f32> = up_to(&mut rng, 84, 2).iter().map(|n| *n as f32 - 1.0).collect();
            let x = Tensor::new(&[1, 2, 7, 6], &signs).unwrap();
            let x = eval(&Unary::Relu.into(), &[&x]).remove(0);
            let padded = eval(&pad.clone().into(), &[&x]).remove(0);
            let dims = eval(&op, &[&padded]).remove(0).dims().to_vec();
            let dy = random(&mut rng, DType::F32, &dims);
            let gradient = |op: &Op, x: &Tensor| {
                let Op::Pool(pool) = op else { unreachable!("it is a pool") };
                eval(&PoolGrad::of(pool, &x.tensor_type()).unwrap().into(), &[x, &dy]).remove(0)
            };
            let back = Pad { pads: pad.pads.iter().map(|by| -by).collect(), ..pad };
            let expected = eval(&back.into(), &[&gradient(&op, &padded)]).remove(0);
            let got = gradient(&itself, &x);
            let passed = |dx: &Tensor| -> Vec<f32> {
                let own = x.as_slice::<f32>().iter().zip(dx.as_slice::<f32>());
                own.map(|(x, dx)| if *x > 0.0 { *dx } else { 0.0 }).collect()
            };
            assert_eq!(passed(&got), passed(&expected), "{op:?}");
            differ += usize::from(got.as_slice::<f32>() != expected.as_slice::<f32>());
        }
        assert!(differ > 10, "{differ}");
    }

    /// A graph of some lines behind `%x` and in front of `%y`, simplified.
    fn simplified(lines: &str) -> String {
        with(lines, &SimplifyOptions::default())
    }

    fn with(lines: &str, options: &SimplifyOptions) -> String {
        let text = format!(
            "fanwise 1\nsymbol N >= 0\n\
             graph @g(%x: f32[N,2,4,4]) -> (y: f32[N,2,3,3]) {{\n{lines}  \
             %y : f32[N,2,3,3] = max_pool(%p) {{kernel=[2, 2], strides=[2, 2]}}\n  \
             return %y\n}}\n"
        );
        let mut graph = parse(&text).expect("the text is a graph");
        simplify(&mut graph, &mut Weights::default(), options).expect("it simplifies");
        verify(&graph).expect("it stays a graph");
        graph.to_string()
    }

    #[test]
    fn zeros_are_left_to_a_pooling_of_what_is_not_negative() {
        let pad = "  %p : f32[N,2,6,6] = pad(%r) {pads=[0, 0, 1, 1, 0, 0, 1, 1]}\n";
        let of = |op: &str| simplified(&format!("  %r : f32[N,2,4,4] = {op}\n{pad}"));
        let by_itself = "max_pool(%r) {kernel=[2, 2], pads=[1, 1, 1, 1], strides=[2, 2]}";
        // Gradients would go to other elements of what is clipped.
        for (op, stays) in [("relu(%x)", false), ("clip(%x) {max=6.0, min=0.0}", true)] {
            let lines = format!("  %r : f32[N,2,4,4] = {op}\n{pad}");
            let trained = SimplifyOptions { for_training: true, ..SimplifyOptions::default() };
            assert_eq!(with(&lines, &trained).contains("pad("), stays, "{op}");
            let got = of(op);
            assert!(got.contains(by_itself) && !got.contains("pad("), "{got}");
        }
        // In the second the upper bound wins.
        for op in ["tanh(%x)", "clip(%x) {max=-1.0, min=0.0}"] {
            let got = of(op);
            assert!(got.contains("pad("), "{got}");
        }
        // One pad after another; what is cut off, and borders that repeat, stay.
        let moved = "  %r : f32[N,2,4,4] = relu(%x)\n  %t : f32[N,2,4,4] = transpose(%r) \
            {perm=[0, 1, 3, 2]}\n";
        let two = "  %q : f32[N,2,5,5] = pad(%t) {pads=[0, 0, 1, 1, 0, 0, 0, 0]}\n  \
            %p : f32[N,2,6,6] = pad(%q) {pads=[0, 0, 0, 0, 0, 0, 1, 1]}\n";
        let got = simplified(&format!("{moved}{two}"));
        assert!(got.contains("pads=[1, 1, 1, 1]") && !got.contains("= pad("), "{got}");
        let edge = two.replace("0, 1, 1]", "0, 1, 1], mode=edge");
        let got = simplified(&format!("{moved}{edge}"));
        assert!(got.contains("mode=edge"), "{got}");
    }
}
