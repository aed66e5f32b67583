//! The kernels of `gemm` and `matmul`.

use super::cpu_op::{CpuKernel, CpuOp, Dims, Orders, Sizes, ending_in_chain, of_f32};
use super::elementwise::Epilogue;
use super::ending_last::{Addend, EndingLast};
use super::gemm::{Matrix, Panels, Right};
use super::products::{Matrices, Product, Products, View, size};
use crate::backend::host::Unsuited;
use crate::lower::{Support, Types};
use crate::op::{Gemm, MatMul};
use crate::types::invariant::invariant;
use crate::types::{KernelClass, Order};

/// `y = epilogue(alpha a b + beta c)` as `op` says, for operands that it admits.
///
/// # Panics
/// If `y` has not the size of the product: a bug in the caller.
pub fn gemm(
    op: &Gemm,
    a: View<'_>,
    b: View<'_>,
    c: Option<View<'_>>,
    y: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let matrix = |x: View<'_>| (x.dims[0], x.dims[1]);
    let (rows, columns) = matrix(a);
    let mut left = Matrix::contiguous(a.data, rows, columns);
    if op.trans_a {
        left = left.transposed();
    }
    let (rows, columns) = matrix(b);
    let right: Right<'_> = match (b.order, op.trans_b) {
        (Order::RowMajor, false) => Matrix::contiguous(b.data, rows, columns).into(),
        (Order::RowMajor, true) => Matrix::contiguous(b.data, rows, columns).transposed().into(),
        (Order::RowPanels, true) => Right::Panels(Panels::new(b.data, columns, rows)),
        (Order::ChannelsLast | Order::RowPanels | Order::GatePanels | Order::Heads, _) => {
            invariant(None, "that weights lie as their product takes them")
        }
    };
    let addend = c.map(|c| {
        // The distance between elements along an axis, counted from the last.
        let size = |axis: usize| size(c.dims, axis);
        let down = if size(2) == 1 { 0 } else { size(1) };
        Addend { data: c.data, factor: op.beta, down, across: usize::from(size(1) != 1) }
    });
    let ending = EndingLast::of_product(op.alpha, addend, epilogue.steps(), right.columns());
    let ending = &ending.among(a.data.len() + y.len());
    Product { a: left, b: right, ending }.compute(y, 0);
}

/// `y = epilogue(a b)`, the product over the last two axes with the axes before them broadcast; an
/// operand of one axis is a row on the left and a column on the right. `y` lies in this order.
///
/// # Panics
/// If the sizes do not fit: a bug in the caller.
pub(crate) fn matmul(
    left: View<'_>,
    right: View<'_>,
    order: Order,
    y: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let left = Matrices::new(left, [1, left.data.len()]);
    let right = Matrices::new(right, [right.data.len(), 1]);
    let ending = EndingLast::new(None, epilogue.steps(), right.columns);
    let ending = &ending.among(left.data.len() + y.len());
    if right.outer.iter().all(|d| *d == 1) {
        // The rows of all matrices on the left meet the same matrix.
        let rows = y.len() / right.columns.max(1);
        let (a, b) = (Matrix::contiguous(left.data, rows, left.columns), right.matrix(0).into());
        Product { a, b, ending }.compute(y, 0);
        return;
    }
    let products = Products { left, right, ending };
    match order {
        Order::RowMajor => products.compute(y),
        Order::Heads => {
            debug_assert!(epilogue.is_empty(), "heads end without a chain");
            products.compute_heads(y);
        }
        Order::ChannelsLast | Order::RowPanels | Order::GatePanels => {
            invariant::<()>(None, "that matrices lie as their product gives them");
        }
    }
}

/// The sizes of the operands of a product, and the factors of one that has an addend.
#[derive(Clone, Debug, PartialEq)]
struct ProductPlan {
    scaled: Option<Gemm>,
    sizes: Dims,
    orders: Orders,
    /// The order of the result.
    written: Order,
}

impl ProductPlan {
    fn new(scaled: Option<Gemm>, at: &Sizes) -> Self {
        let (sizes, orders) = (at.operands.clone(), at.orders.clone());
        Self { scaled, sizes, orders, written: at.written }
    }
}

impl CpuKernel for ProductPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let [y] = results else { return Err(Unsuited) };
        let of = self.sizes.iter().zip(&self.orders).zip(operands);
        let mut views = of.map(|((dims, order), data)| View { dims, data, order: *order });
        let (Some(a), Some(b)) = (views.next(), views.next()) else { return Err(Unsuited) };
        match &self.scaled {
            Some(op) => gemm(op, a, b, views.next(), y, chain),
            None => matmul(a, b, self.written, y, chain),
        }
        Ok(())
    }

    fn ends_in_chain(&self) -> bool {
        true
    }
}

impl CpuOp for MatMul {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = ending_in_chain(of_f32(KernelClass::MatMul, types));
        let heads = match types.operands.as_slice() {
            [a, b] => a.rank() == 4 && b.rank() == 4 && a.shape[..2] == b.shape[..2],
            _ => false,
        };
        let holds = heads && support.kernel.is_some();
        Support { matrices: if holds { Order::Heads } else { Order::RowMajor }, ..support }
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(ProductPlan::new(None, at)))
    }
}

impl CpuOp for Gemm {
    fn supports(&self, types: &Types<'_>) -> Support {
        // Weights that are taken transposed would be turned at every run.
        let weights = if self.trans_b { Order::RowPanels } else { Order::RowMajor };
        Support { weights, ..ending_in_chain(of_f32(KernelClass::MatMul, types)) }
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(ProductPlan::new(Some(self.clone()), at)))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{View, gemm, matmul};
    use crate::backend::cpu::elementwise::Epilogue;
    use crate::backend::cpu::testing::{assert_bits, in_pools, misaligned, random, rng, spoil};
    use crate::backend::params;
    use crate::lower::{Access, Chain, ChainStep};
    use crate::op::{Binary, Gemm, MatMul, OpDef, Unary};
    use crate::types::{Order, Tensor};

    fn reference(op: &impl OpDef, operands: &[(&[usize], &[f32])]) -> Vec<f32> {
        let tensors: Vec<Tensor> =
            operands.iter().map(|(dims, data)| Tensor::new(dims, data).unwrap()).collect();
        let y = op.eval(&tensors.iter().collect::<Vec<_>>()).unwrap().remove(0);
        y.as_slice::<f32>().to_vec()
    }

    const SIZES: [[usize; 3]; 12] = [
        [1, 1, 1],
        [1, 300, 700],
        [5, 7, 3],
        [9, 1, 40],
        [30, 130, 513],
        [2, 129, 0],
        [70, 17, 1100],
        [140, 65, 64],
        [5, 1000, 600],
        [1, 2, 5],
        [600, 20, 9],
        [26, 200, 530],
    ];

    /// A chain that reads a value of the shape of the product, and two vectors of its columns.
    fn chain(case: usize, columns: usize) -> Chain {
        let last = Access::Axis { inner: 1, size: columns };
        let binary =
            |op, operand, access| ChainStep::Binary { op, operand, access, swapped: false };
        let unary = |op: Unary| ChainStep::Unary(op);
        let clip = unary(Unary::Clip { min: Some(-0.5), max: Some(0.25) });
        let (add, bias) = (binary(Binary::Add, 0, Access::Full), binary(Binary::Add, 1, last));
        let scaled = ChainStep::ScaleShift { operands: [1, 2], access: last };
        let steps = match case % 5 {
            0 => vec![unary(Unary::Relu)],
            1 => vec![scaled, clip.clone(), add, clip],
            2 => vec![bias, unary(Unary::Sigmoid), binary(Binary::Mul, 2, last)],
            3 => vec![bias, scaled, add, unary(Unary::Relu), unary(Unary::Tanh)],
            _ => vec![],
        };
        Chain { steps }
    }

    #[test]
    fn factors_that_are_not_of_columns_are_those_of_their_rows() {
        let (rows, terms) = (6, 5);
        let mut rng = rng(4);
        let (a, b) = (random(&mut rng, rows * terms), random(&mut rng, terms));
        let [scale, shift] = [(); 2].map(|()| random(&mut rng, 3));
        let access = Access::Axis { inner: 1, size: 3 };
        let chain = Chain { steps: vec![ChainStep::ScaleShift { operands: [0, 1], access }] };
        let epilogue = Epilogue::new(&chain, &[&scale, &shift]).unwrap();
        let (a_dims, b_dims) = ([2, 3, terms], [terms, 1]);
        let mut expected = reference(&MatMul {}, &[(&a_dims, &a), (&b_dims, &b)]);
        epilogue.apply(&mut expected, 0);
        let mut y = vec![f32::NAN; rows];
        matmul(View::new(&a_dims, &a), View::new(&b_dims, &b), Order::RowMajor, &mut y, &epilogue);
        assert_bits(&y, &expected, "one column");
    }

    /// A sum that is no number changes nothing in what others of its tile meet.
    #[test]
    fn a_nan_behind_a_product_keeps_its_bits() {
        let (rows, columns) = (9, 20);
        let mut a = vec![1.0; rows];
        a[0] = f32::INFINITY;
        let mut b = vec![1.0; columns];
        b[0] = 0.0;
        let mut added = vec![0.5; rows * columns];
        added[2 * columns + 3] = f32::from_bits(0xffc0_1234);
        let step =
            ChainStep::Binary { op: Binary::Add, operand: 0, access: Access::Full, swapped: false };
        let epilogue_of = Chain { steps: vec![step] };
        let epilogue = Epilogue::new(&epilogue_of, &[&added]).unwrap();
        let (a_dims, b_dims) = ([rows, 1], [1, columns]);
        let y = in_pools(|| {
            let mut y = vec![0.0; rows * columns];
            matmul(
                View::new(&a_dims, &a),
                View::new(&b_dims, &b),
                Order::RowMajor,
                &mut y,
                &epilogue,
            );
            y
        });
        assert_eq!(y[0].to_bits(), f32::NAN.to_bits());
        assert_eq!(y[2 * columns + 3].to_bits(), 0xffc0_1234);
    }

    #[test]
    fn scaled_products() {
        let mut rng = rng(1);
        for (case, [m, n, k]) in SIZES.into_iter().cycle().take(4 * SIZES.len()).enumerate() {
            let op = Gemm {
                alpha: if case % 3 == 0 { 0.7 } else { 1.0 },
                beta: if case % 5 == 0 { 1.0 } else { 1.3 },
                trans_a: rng.random_bool(0.3),
                trans_b: (case / SIZES.len()).is_multiple_of(2),
            };
            let (mut a, b) = (random(&mut rng, m * k), random(&mut rng, n * k));
            if case % 4 == 0 && !a.is_empty() {
                spoil(&mut rng, &mut a);
            }
            let a_dims = if op.trans_a { [k, m] } else { [m, k] };
            let b_dims = if op.trans_b { [n, k] } else { [k, n] };
            let c_dims = [vec![], vec![n], vec![m, n], vec![1, n], vec![m, 1], vec![1]];
            let c_dims = &c_dims[rng.random_range(0..6)];
            let c = random(&mut rng, c_dims.iter().product());
            let behind = [m * n, n, n].map(|size| random(&mut rng, size));
            let operands = behind.each_ref().map(Vec::as_slice);
            let chain = chain(case, n);
            let epilogue = Epilogue::new(&chain, &operands).unwrap();
            let run = |a: &[f32], b: &[f32], with: bool| {
                let mut y = vec![f32::NAN; m * n];
                let (a, b) = (View::new(&a_dims, a), View::new(&b_dims, b));
                let c = View::new(c_dims, &c);
                gemm(&op, a, b, with.then_some(c), &mut y, &epilogue);
                y
            };
            let what = format!("{op:?} {m} x {n} x {k} + {c_dims:?}");
            let y = in_pools(|| run(&a, &b, true));
            assert_bits(&y, &run(&misaligned(&a)[1..], &misaligned(&b)[1..], true), &what);
            let mut expected = reference(&op, &[(&a_dims, &a), (&b_dims, &b), (c_dims, &c)]);
            epilogue.apply(&mut expected, 0);
            assert_bits(&y, &expected, &what);
            let mut expected = reference(&op, &[(&a_dims, &a), (&b_dims, &b)]);
            epilogue.apply(&mut expected, 0);
            assert_bits(&run(&a, &b, false), &expected, &what);
            if !op.trans_b {
                continue;
            }
            let (order, mut turned) = (Order::RowPanels, vec![0.0f32; b.len()]);
            let bytes = bytemuck::cast_slice_mut(&mut turned);
            params::write(order, &Tensor::new(&b_dims, &b).unwrap(), bytes);
            let panels = View { order, ..View::new(&b_dims, &turned) };
            let of_panels = in_pools(|| {
                let mut y = vec![f32::NAN; m * n];
                gemm(&op, View::new(&a_dims, &a), panels, None, &mut y, &epilogue);
                y
            });
            assert_bits(&of_panels, &expected, &what);
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_others() {
        let mut rng = rng(2);
        for [m, n, k] in SIZES {
            let (a, b) = (random(&mut rng, m * k), random(&mut rng, n * k));
            for trans_b in [false, true] {
                let op = Gemm { trans_b, ..Gemm::default() };
                let b_dims = if trans_b { [n, k] } else { [k, n] };
                let run = |rows: std::ops::Range<usize>| {
                    let mut y = vec![f32::NAN; rows.len() * n];
                    let dims = [rows.len(), k];
                    let a = View::new(&dims, &a[rows.start * k..rows.end * k]);
                    let b = View::new(&b_dims, &b);
                    gemm(&op, a, b, None, &mut y, &Epilogue::default());
                    if !trans_b {
                        let mut other = vec![f32::NAN; y.len()];
                        matmul(a, b, Order::RowMajor, &mut other, &Epilogue::default());
                        assert_bits(&y, &other, "gemm and matmul");
                    }
                    y
                };
                let whole = run(0..m);
                for rows in [0..1, m / 2..m, m / 3..(m / 3 + 2).min(m)] {
                    let expected = &whole[rows.start * n..rows.end * n];
                    assert_bits(&run(rows), expected, &format!("{m} x {n} x {k} {trans_b}"));
                }
            }
        }
    }

    #[test]
    fn a_column_does_not_depend_on_the_others() {
        let mut rng = rng(4);
        for [m, n, k] in SIZES {
            let (a, b) = (random(&mut rng, m * k), random(&mut rng, n * k));
            for case in 0..4 {
                let op = Gemm { trans_a: case % 2 == 1, trans_b: case > 1, ..Gemm::default() };
                let a_dims = if op.trans_a { [k, m] } else { [m, k] };
                let a = View::new(&a_dims, &a);
                let run = |columns: std::ops::Range<usize>| {
                    let width = columns.len();
                    let (dims, own) = if op.trans_b {
                        ([width, k], b[columns.start * k..columns.end * k].to_vec())
                    } else {
                        let rows = b.chunks(n).flat_map(|row| &row[columns.clone()]);
                        ([k, width], rows.copied().collect())
                    };
                    let b = View::new(&dims, &own);
                    let mut y = vec![f32::NAN; m * width];
                    gemm(&op, a, b, None, &mut y, &Epilogue::default());
                    if case == 0 {
                        let mut other = vec![f32::NAN; y.len()];
                        matmul(a, b, Order::RowMajor, &mut other, &Epilogue::default());
                        assert_bits(&y, &other, "gemm and matmul");
                        let (a_dims, b_dims) = ([2, 1, m, k], [1, 2, k, width]);
                        let [a, b] = [a, b].map(|x| x.data.repeat(2));
                        let a = View::new(&a_dims, &a);
                        let b = View::new(&b_dims, &b);
                        let mut stack = vec![f32::NAN; 4 * y.len()];
                        matmul(a, b, Order::RowMajor, &mut stack, &Epilogue::default());
                        assert_bits(&y.repeat(4), &stack, "a matrix and a stack");
                    }
                    y
                };
                let whole = run(0..n);
                for columns in [0..1, n - 1..n, n / 2..n, n / 3..(n / 3 + 2).min(n), 0..n / 2] {
                    let rows = whole.chunks(n).flat_map(|row| &row[columns.clone()]);
                    let expected: Vec<f32> = rows.copied().collect();
                    assert_bits(&run(columns), &expected, &format!("{op:?} {m} x {n} x {k}"));
                }
            }
        }
    }

    /// Of one sum in registers, of stacks of small products, and of rows that tasks share.
    #[test]
    fn heads_may_lie_by_token() {
        let mut rng = rng(5);
        let sizes = [
            [1, 4, 16, 16, 8],
            [5, 4, 16, 8, 16],
            [3, 2, 1, 5, 1],
            [2, 1, 7, 3, 4],
            [1, 3, 300, 70, 20],
            [2, 12, 65, 64, 65],
            [1, 2, 20, 9, 1030],
        ];
        for [samples, heads, m, n, k] in sizes {
            let (a_dims, b_dims) = ([samples, heads, m, k], [samples, heads, k, n]);
            let a = random(&mut rng, a_dims.iter().product());
            let b = random(&mut rng, b_dims.iter().product());
            let expected = reference(&MatMul {}, &[(&a_dims, &a), (&b_dims, &b)]);
            let y_dims = [samples, heads, m, n];
            let lying = |order: Order, dims: &[usize], data: &[f32]| {
                let (tensor, mut lying) = (Tensor::new(dims, data).unwrap(), data.to_vec());
                params::write(order, &tensor, bytemuck::cast_slice_mut(&mut lying));
                lying
            };
            let orders = [Order::RowMajor, Order::Heads];
            for case in 0..8 {
                let [of_a, of_b, of_y] = [0, 1, 2].map(|bit| orders[case >> bit & 1]);
                let (a, b) = (lying(of_a, &a_dims, &a), lying(of_b, &b_dims, &b));
                let y = in_pools(|| {
                    let mut y = vec![f32::NAN; expected.len()];
                    let a = View { order: of_a, ..View::new(&a_dims, &a) };
                    let b = View { order: of_b, ..View::new(&b_dims, &b) };
                    matmul(a, b, of_y, &mut y, &Epilogue::default());
                    y
                });
                let what = format!("{a_dims:?} {of_a:?} by {b_dims:?} {of_b:?} to {of_y:?}");
                assert_bits(&y, &lying(of_y, &y_dims, &expected), &what);
            }
        }
    }

    #[test]
    fn stacks_are_broadcast() {
        let mut rng = rng(3);
        let cases: [(&[usize], &[usize]); 9] = [
            (&[3, 4, 5, 6], &[6, 7]),
            (&[3, 4, 5, 6], &[1, 1, 6, 7]),
            (&[3, 4, 5, 6], &[4, 6, 7]),
            (&[3, 1, 5, 6], &[1, 4, 6, 7]),
            (&[5, 6], &[2, 3, 6, 7]),
            (&[6], &[2, 6, 3]),
            (&[2, 5, 6], &[6]),
            (&[6], &[6]),
            (&[0, 5, 6], &[6, 7]),
        ];
        for (a_dims, b_dims) in cases {
            let a = random(&mut rng, a_dims.iter().product());
            let b = random(&mut rng, b_dims.iter().product());
            let mut expected = reference(&MatMul {}, &[(a_dims, &a), (b_dims, &b)]);
            let other = random(&mut rng, expected.len());
            let (op, operand, access) = (Binary::Add, 0, Access::Full);
            let step = ChainStep::Binary { op, operand, access, swapped: false };
            let chain = Chain { steps: vec![step] };
            let epilogue = Epilogue::new(&chain, &[&other]).unwrap();
            epilogue.apply(&mut expected, 0);
            let y = in_pools(|| {
                let mut y = vec![f32::NAN; expected.len()];
                let (a, b) = (View::new(a_dims, &a), View::new(b_dims, &b));
                matmul(a, b, Order::RowMajor, &mut y, &epilogue);
                y
            });
            assert_bits(&y, &expected, &format!("{a_dims:?} {b_dims:?}"));
        }
    }
}
