//! The functions of `f32` on a sample of all bit patterns: the bits of the reference evaluation.

use fanwise::ir::Value;
use fanwise::op::{Binary, Concat, GeluForm, Softmax, Unary};
use fanwise::types::{DType, Tensor};
use libtest_mimic::Trial;
use support::turn::part;

use super::Net;
use crate::results::trial;
use crate::setup::{Tensors, expected, is_fake, on_gpus, outputs};

/// The functions whose operations are written for the CPU and for CUDA alike.
fn functions() -> Vec<Unary> {
    use Unary as U;
    vec![
        U::Exp,
        U::Log,
        U::Sin,
        U::Cos,
        U::Tan,
        U::Asin,
        U::Acos,
        U::Atan,
        U::Sinh,
        U::Cosh,
        U::Tanh,
        U::Asinh,
        U::Acosh,
        U::Atanh,
        U::Erf,
        U::Sigmoid,
        U::Swish { alpha: 1.0 },
        U::Swish { alpha: 1.702 },
        U::Mish,
        U::Gelu { approximate: GeluForm::Exact },
        U::Gelu { approximate: GeluForm::Tanh },
        U::Softplus,
        U::Elu { alpha: 1.0 },
        U::Selu { alpha: 1.67, gamma: 1.05 },
        U::Celu { alpha: 0.5 },
    ]
}

/// The elements of a row.
const WIDTH: usize = 64;

/// Functions of one graph.
const FEW: usize = 5;

pub(super) fn trials() -> impl Iterator<Item = Trial> {
    [
        trial("kernels_functions_of_all_patterns", || {
            let all = functions();
            let groups: Vec<&[Unary]> = all.chunks(FEW).collect();
            part(0..groups.len(), 2, 0).for_each(|i| unary(groups[i]));
        }),
        trial("kernels_powers_of_all_patterns", powers),
        trial("kernels_logarithms_of_sums", logarithms),
    ]
    .into_iter()
}

/// Every so many of the patterns, with those at which functions end, in rows.
fn patterns(rows: usize, seed: u32) -> Tensor {
    let special = [
        0.0,
        1.0,
        f32::INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        0.5,
        0.625,
        0.47,
        0.92,
        20.0,
        88.7,
        89.0,
        104.0,
        1024.0,
        16_777_216.0,
    ];
    let count = rows * WIDTH;
    let step = u32::MAX / u32::try_from(count).unwrap();
    let sample = (0..).map(|i: u32| f32::from_bits(seed.wrapping_add(i.wrapping_mul(step))));
    // Most patterns are huge or tiny.
    let near = (0..).map(|i: i16| f32::from(i.wrapping_mul(12_713)) / 1024.0);
    let mixed = sample.zip(near).flat_map(|(a, b)| [a, b]);
    let all: Vec<f32> =
        special.into_iter().flat_map(|x| [x, -x]).chain(mixed).take(count).collect();
    Tensor::new(&[rows, WIDTH], &all).unwrap()
}

fn unary(ops: &[Unary]) {
    let mut net = Net::new(0);
    let x = net.input_of(DType::F32, &[WIDTH]);
    let results: Vec<_> = ops.iter().map(|op| net.op(op.clone(), &[x])).collect();
    let names: Vec<String> = ops.iter().map(|op| format!("{op:?}")).collect();
    let rows = if is_fake() { 512 } else { 8192 };
    compare(net, &results, [patterns(rows, 77)].into(), &names);
}

fn powers() {
    let mut net = Net::new(0);
    let (x, y) = (net.input_of(DType::F32, &[WIDTH]), net.input_of(DType::F32, &[WIDTH]));
    let power = net.op(Binary::Pow, &[x, y]);
    let magnitude = net.op(Unary::Abs, &[x]);
    let of_magnitude = net.op(Binary::Pow, &[magnitude, y]);
    let rows = if is_fake() { 512 } else { 8192 };
    let (x, mut y) = (patterns(rows, 77), patterns(rows, 1_234_567));
    // Every special number meets every other one.
    let shifted = y.as_mut_slice::<f32>();
    shifted[..34].reverse();
    for (i, exponent) in shifted.iter_mut().enumerate().skip(34) {
        if i % 3 == 0 {
            *exponent = (i % 19) as f32 - 9.0;
        }
    }
    let names = ["pow".to_owned(), "pow of magnitudes".to_owned()];
    compare(net, &[power, of_magnitude], vec![x, y], &names);
}

/// The logarithm of a sum of exponentials, which is in kernels of its own.
fn logarithms() {
    let mut net = Net::new(0);
    let x = net.input_of(DType::F32, &[1]);
    let two = net.op(Binary::Add, &[x, x]);
    let pair = net.op(Concat { axis: 1 }, &[x, two]);
    let y = net.op(Softmax::LogSoftmax { axis: 1 }, &[pair]);
    let rows = if is_fake() { 512 } else { 8192 } * WIDTH;
    let x = patterns(rows / WIDTH, 5);
    let x = Tensor::new(&[rows, 1], x.as_slice::<f32>()).unwrap();
    compare(net, &[y], vec![x], &["log_softmax".to_owned()]);
}

/// Fails unless the device, the kernels of the CPU and the reference give the same bits.
fn compare(net: Net, results: &[Value], operands: Vec<Tensor>, names: &[String]) {
    let (graph, weights) = net.finish(results);
    let inputs: Tensors =
        graph.inputs().map(|value| graph.info(value).name.to_string()).zip(operands).collect();
    let wanted = expected(&graph, &weights, &inputs, false);
    let on_cpu = expected(&graph, &weights, &inputs, true);
    let on_gpu = outputs(&on_gpus(&graph, &weights, 1, 1), &inputs);
    for (i, name) in names.iter().enumerate() {
        let wanted = wanted[i].as_slice::<f32>();
        for (place, found) in [("CPU", &on_cpu[i]), ("GPU", &on_gpu[i])] {
            for (at, (a, b)) in found.as_slice::<f32>().iter().zip(wanted).enumerate() {
                let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                let of = inputs.values().filter_map(|x| x.as_slice::<f32>().get(at));
                let of: Vec<f32> = of.copied().collect();
                assert!(same, "{name} of {of:?} on the {place}: {a:e}, not {b:e}");
            }
        }
    }
}
