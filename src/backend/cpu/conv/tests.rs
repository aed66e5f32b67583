//! Convolutions in every way that must give the same bits.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{ConvOperands, ConvPlan, InImages, InOrder, Method, Ordered};
use crate::backend::cpu::cpu_op::CpuKernel;
use crate::backend::cpu::elementwise::{Epilogue, Steps};
use crate::backend::cpu::testing::{assert_bits, in_pools, misaligned, random, rng, spoil};
use crate::backend::params;
use crate::lower::{Access, Chain, ChainStep};
use crate::op::{Binary, Conv, OpDef, Unary};
use crate::types::{DType, Order, Tensor};

impl Method {
    fn name(&self) -> &'static str {
        match self {
            Self::Planes(_) => "planes",
            Self::Pointwise => "pointwise",
            Self::Direct(_) => "direct",
            Self::Once => "once",
            Self::ForEachTile => "for each tile",
        }
    }
}

/// The elements of a tensor of these sizes, in an order.
fn turned(order: Order, dims: &[usize], data: &[f32]) -> Vec<f32> {
    let tensor = Tensor::new(dims, data).unwrap();
    let mut turned = Tensor::zeros(DType::F32, dims).unwrap();
    params::write(order, &tensor, turned.bytes_mut());
    turned.as_slice().to_vec()
}

/// A chain that reads a residual, and factors and addends of the filters.
fn random_chain(rng: &mut ChaCha8Rng, windows: usize, filters: usize) -> Chain {
    let add =
        ChainStep::Binary { op: Binary::Add, operand: 0, access: Access::Full, swapped: true };
    let by_channel = Access::Axis { inner: windows, size: filters };
    let scaled = ChainStep::ScaleShift { operands: [1, 2], access: by_channel };
    let clip = ChainStep::Unary(Unary::Clip { min: Some(-0.5), max: Some(0.25) });
    let relu = ChainStep::Unary(Unary::Relu);
    let sigmoid = ChainStep::Unary(Unary::Sigmoid);
    let steps = match rng.random_range(0..5) {
        0 => vec![add, relu],
        1 => vec![scaled, clip, add],
        2 => vec![scaled, add, clip],
        3 => vec![scaled, sigmoid, add],
        _ => vec![relu],
    };
    Chain { steps }
}

/// Evaluates a convolution of five samples in every way that must give the same bits, the
/// reference among them; some weights are not finite if `wild`. Returns the method.
fn check(rng: &mut ChaCha8Rng, op: &Conv, x: &[usize], w: &[usize], wild: bool) -> &'static str {
    const BATCH: usize = 5;
    let x_dims = [&[BATCH], x].concat();
    let plan = ConvPlan::new(op, &x_dims, w).unwrap();
    let data = random(rng, x_dims.iter().product());
    let mut weights = random(rng, w.iter().product());
    if wild {
        spoil(rng, &mut weights);
    }
    let bias = rng.random_bool(0.7).then(|| random(rng, w[0]));
    let bias = bias.as_deref();
    let residual = random(rng, BATCH * plan.sample());
    let [scale, shift] = [random(rng, w[0]), random(rng, w[0])];
    let chain = random_chain(rng, plan.windows, w[0]);
    let (sample, method) = (plan.sample(), plan.method.name());
    let mut kernel = Ordered { plan, order: Order::RowMajor };
    let run_by = |kernel: &Ordered, x: &[f32], w: &[f32], rows: std::ops::Range<usize>| {
        let residual = &residual[rows.start * sample..rows.end * sample];
        let epilogue = Epilogue::new(&chain, &[residual, &scale, &shift]).unwrap();
        let mut y = vec![f32::NAN; rows.len() * sample];
        let operands: Vec<&[f32]> = [x, w].into_iter().chain(bias).collect();
        kernel.run(&operands, &mut [&mut y], &epilogue).unwrap();
        y
    };
    let run = |x: &[f32], w: &[f32], rows| run_by(&kernel, x, w, rows);
    let what = format!("{op:?} {x:?} {w:?} {method}");
    let y = in_pools(|| run(&data, &weights, 0..BATCH));
    let (x_shifted, w_shifted) = (misaligned(&data), misaligned(&weights));
    assert_bits(&y, &run(&x_shifted[1..], &w_shifted[1..], 0..BATCH), &what);
    let input = data.len() / BATCH;
    for i in 0..BATCH {
        let alone = run(&data[i * input..][..input], &weights, i..i + 1);
        assert_bits(&y[i * sample..][..sample], &alone, &what);
    }
    kernel.order = Order::ChannelsLast;
    let last = turned(Order::ChannelsLast, w, &weights);
    assert_bits(&y, &run_by(&kernel, &data, &last, 0..BATCH), &what);
    let mut operands =
        vec![Tensor::new(&x_dims, &data).unwrap(), Tensor::new(w, &weights).unwrap()];
    operands.extend(bias.map(|b| Tensor::new(&w[..1], b).unwrap()));
    let expected = op.eval(&operands.iter().collect::<Vec<_>>()).unwrap().remove(0);
    let mut expected = expected.as_slice::<f32>().to_vec();
    let epilogue = Epilogue::new(&chain, &[&residual, &scale, &shift]).unwrap();
    epilogue.apply(&mut expected, 0);
    assert_bits(&y, &expected, &what);
    let case = Case { op, x: &x_dims, w, data: &data, weights: &weights, bias, chain };
    case.check_last(
        &Behind { residual: &residual, scale: &scale, shift: &shift },
        &expected,
        &what,
    );
    method
}

/// A convolution with what it reads.
struct Case<'a> {
    op: &'a Conv,
    x: &'a [usize],
    w: &'a [usize],
    data: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    chain: Chain,
}

/// What its chain reads.
struct Behind<'a> {
    residual: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
}

impl Case<'_> {
    /// The same with the channels last, if that has a kernel, with weights in each order.
    fn check_last(mut self, behind: &Behind<'_>, expected: &[f32], what: &str) {
        let ty = |dims: &[usize]| Tensor::zeros(DType::F32, dims).unwrap().tensor_type();
        let (x, w) = (ty(self.x), ty(self.w));
        let plan = InImages::new(&self.op.windows(&x, &w).unwrap(), &x, &w);
        let Some(plan) = plan else { return };
        let mut kernel = InOrder { plan, order: Order::RowPanels, channels: self.w[1] };
        let (batch, filters) = (self.x[0], self.w[0]);
        let (input, sample) = (self.data.len() / batch, expected.len() / batch);
        let dims = [batch, filters, sample / filters];
        let data = turned(Order::ChannelsLast, self.x, self.data);
        let residual = turned(Order::ChannelsLast, &dims, behind.residual);
        let expected = turned(Order::ChannelsLast, &dims, expected);
        for step in &mut self.chain.steps {
            if let ChainStep::ScaleShift { access, .. } = step {
                *access = Access::Axis { inner: 1, size: filters };
            }
        }
        let run = |kernel: &InOrder, x: &[f32], w: &[f32], rows: std::ops::Range<usize>| {
            let residual = &residual[rows.start * sample..rows.end * sample];
            let operands = [residual, behind.scale, behind.shift];
            let epilogue = Epilogue::new(&self.chain, &operands).unwrap();
            let mut y = vec![f32::NAN; rows.len() * sample];
            let operands: Vec<&[f32]> = [x, w].into_iter().chain(self.bias).collect();
            kernel.run(&operands, &mut [&mut y], &epilogue).unwrap();
            y
        };
        let what = format!("{what}, channels last");
        for order in [Order::RowMajor, Order::ChannelsLast, Order::RowPanels] {
            kernel.order = order;
            let w = turned(order, self.w, self.weights);
            let all = 0..batch;
            assert_bits(&in_pools(|| run(&kernel, &data, &w, all.clone())), &expected, &what);
            let (x_shifted, w_shifted) = (misaligned(&data), misaligned(&w));
            assert_bits(&run(&kernel, &x_shifted[1..], &w_shifted[1..], all), &expected, &what);
            let some = run(&kernel, &data[2 * input..4 * input], &w, 2..4);
            assert_bits(&some, &expected[2 * sample..4 * sample], &what);
        }
    }
}

#[test]
fn random_convolutions() {
    let mut rng = rng(1);
    for i in 0..80 {
        let rank = rng.random_range(1..=3usize);
        let (each, groups) = (rng.random_range(1..=4usize), rng.random_range(1..=3usize));
        let m = groups * rng.random_range(1..=7usize);
        let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
            (0..n).map(|_| rng.random_range(from..=to)).collect()
        };
        let (strides, dilations) = (list(1, 3, rank), list(1, 2, rank));
        let (pads, kernel) = (list(0, 3, 2 * rank), list(1, 3, rank));
        let op = Conv { strides, dilations, pads, groups: i64::try_from(groups).unwrap() };
        let kernel: Vec<usize> = kernel.iter().map(|k| usize::try_from(*k).unwrap()).collect();
        let (mut x, mut w) = (vec![groups * each], vec![m, each]);
        x.extend(kernel.iter().map(|k| 2 * k - 1 + rng.random_range(0..=7usize)));
        w.extend(&kernel);
        check(&mut rng, &op, &x, &w, i % 4 == 0);
    }
}

#[test]
fn every_method() {
    let mut rng = rng(2);
    let op = |pads: i64, stride: i64, groups: i64| Conv {
        pads: vec![pads; 4],
        strides: vec![stride; 2],
        groups,
        ..Conv::default()
    };
    let cases = [
        (op(1, 1, 12), [12, 19, 21], [24, 1, 3, 3], "planes"),
        (op(1, 2, 6), [6, 40, 37], [6, 1, 3, 3], "planes"),
        (op(2, 1, 9), [9, 7, 7], [9, 1, 5, 5], "planes"),
        (op(1, 1, 75), [75, 6, 59], [75, 1, 3, 3], "planes"),
        (op(1, 2, 40), [40, 9, 17], [40, 1, 3, 3], "planes"),
        (op(2, 2, 33), [33, 8, 10], [33, 1, 5, 5], "planes"),
        (op(1, 1, 34), [34, 3, 3], [34, 1, 3, 3], "planes"),
        (op(0, 1, 1), [40, 17, 13], [70, 40, 1, 1], "pointwise"),
        (op(0, 1, 2), [600, 16, 10], [12, 300, 1, 1], "pointwise"),
        (op(1, 1, 1), [130, 7, 7], [64, 130, 3, 3], "direct"),
        (op(0, 1, 1), [530, 7, 7], [62, 530, 1, 1], "direct"),
        (op(3, 2, 1), [3, 65, 61], [20, 3, 7, 7], "direct"),
        (op(1, 1, 1), [64, 50, 45], [14, 64, 3, 3], "direct"),
        (op(1, 2, 2), [128, 30, 33], [24, 64, 3, 3], "direct"),
        (op(1, 1, 2), [12, 90, 70], [10, 6, 3, 3], "direct"),
        (op(1, 1, 1), [3, 2, 900], [9, 3, 3, 3], "direct"),
        (op(1, 1, 1), [3, 2, 3000], [9, 3, 3, 3], "once"),
        (op(0, 1, 1), [130, 60, 4], [64, 130, 3, 3], "once"),
        (op(0, 1, 2), [128, 60, 4], [64, 64, 3, 3], "for each tile"),
    ];
    for (op, x, w, method) in cases {
        for wild in [false, true] {
            assert_eq!(check(&mut rng, &op, &x, &w, wild), method, "{op:?} {x:?} {w:?}");
        }
    }
}

#[test]
fn no_samples() {
    let plan = ConvPlan::new(&Conv::default(), &[0, 2, 5], &[3, 2, 2]).unwrap();
    let (x, w, epilogue) = (&[], &[1.0; 12], Steps::default());
    plan.convolve(ConvOperands { x, w, bias: None, epilogue }, &mut []);
    assert_eq!(plan.sample(), 12);
}
