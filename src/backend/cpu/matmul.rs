//! Products of matrices and of stacks of matrices of `f32`.
//!
//! The result is computed in tiles, whose shape changes no bit: every element is one chain over its
//! terms in ascending order.

use std::ops::Range;

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Dims, Orders, Sizes, ending_in_chain, of_f32};
use super::elementwise::Epilogue;
use super::ending_last::{Addend, Ended, EndingLast};
use super::gemm::{MAX_TERMS, Matrix, Panels, Right, Stack, sum};
use super::isa;
use super::tile::{self, Extent, PIECES, Pieces, by_tiles};
use crate::backend::host::{Each, Unsuited, crew};
use crate::lower::{Support, Types};
use crate::op::{Gemm, MatMul};
use crate::types::invariant::invariant;
use crate::types::{KernelClass, Order};

/// A tensor to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The sizes of its axes.
    pub dims: &'a [usize],
    /// Its elements.
    pub data: &'a [f32],
    /// The order in which they lie: that of a right operand which is transposed may be panels.
    pub order: Order,
}

impl<'a> View<'a> {
    /// A tensor whose elements lie row-major.
    pub fn new(dims: &'a [usize], data: &'a [f32]) -> Self {
        Self { dims, data, order: Order::RowMajor }
    }
}

/// The rows of a tile, at most: for many, reading the right operand and copying it costs little.
/// Few in unit tests.
const HEIGHT: usize = if cfg!(test) { 256 } else { 1024 };

/// The fewest rows of a tile, beside which reading the right operand again costs little.
const LOW: usize = 48;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 16;

/// As many rows as are multiplied in the time in which a row of the right operand is read.
const READ: usize = 4;

/// A product of two matrices, and what becomes of it.
struct Product<'a> {
    a: Matrix<'a>,
    b: Right<'a>,
    ending: &'a EndingLast<'a>,
}

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
        (Order::ChannelsLast | Order::RowPanels, _) => {
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
/// operand of one axis is a row on the left and a column on the right.
///
/// # Panics
/// If the sizes do not fit: a bug in the caller.
pub(crate) fn matmul(left: View<'_>, right: View<'_>, y: &mut [f32], epilogue: &Epilogue<'_>) {
    let (outer_a, m, k) = match left.dims {
        [outer @ .., m, k] => (outer, *m, *k),
        _ => (&[][..], 1, left.data.len()),
    };
    let (outer_b, n) = match right.dims {
        [outer @ .., _, n] => (outer, *n),
        _ => (&[][..], 1),
    };
    let is_row_major = right.order == Order::RowMajor;
    invariant(is_row_major.then_some(()), "that weights lie as their product takes them");
    let ending = &EndingLast::new(None, epilogue.steps(), n).among(left.data.len() + y.len());
    let product = |a, b| Product { a, b, ending };
    let matrix_b = |at: usize| Matrix::contiguous(&right.data[at * k * n..], k, n).into();
    if outer_b.iter().all(|d| *d == 1) {
        // The rows of all matrices on the left meet the same matrix.
        let rows = y.len() / n.max(1);
        product(Matrix::contiguous(left.data, rows, k), matrix_b(0)).compute(y, 0);
        return;
    }
    let matrix_a = |at: usize| Matrix::contiguous(&left.data[at * m * k..], m, k);
    let (work, size) = (m.saturating_mul(n).saturating_mul(k), (m * n).max(1));
    let each = (WORTH / work.max(1)).min(PIECES / m.max(1));
    if each < 2 || !(1..=MAX_TERMS).contains(&k) {
        y.par_chunks_mut(size).enumerate().each(|(i, y)| {
            let (at_a, at_b) = places(i, outer_a, outer_b);
            product(matrix_a(at_a), matrix_b(at_b)).compute(y, i * size);
        });
        return;
    }
    let stack = Stack { a: left.data, b: right.data, sizes: [m, n, k] };
    y.par_chunks_mut(each * size).enumerate().each(|(task, y)| {
        let mut pieces = Pieces::new();
        pieces.extend(y.chunks_exact_mut(n));
        stack.sum(pieces.chunks_exact_mut(m).zip(task * each..).map(|(pieces, at)| {
            let (at_a, at_b) = places(at, outer_a, outer_b);
            let sums = Ended { ending, row: at * m, channel: 0, pieces, has_nan: false };
            ([at_a * m * k, at_b * k * n], sums)
        }));
        drop(pieces);
        ending.rest(y, task * each * size);
    });
}

/// The size of an axis counted from the last; one that is not there broadcasts as 1.
fn size(dims: &[usize], axis: usize) -> usize {
    // Missing axes broadcast.
    dims.len().checked_sub(axis).map_or(1, |at| dims[at])
}

/// The positions of the matrices, in two stacks with these axes that broadcast, of which matrix `i`
/// of the result is the product.
fn places(mut i: usize, a: &[usize], b: &[usize]) -> (usize, usize) {
    let (mut at, mut strides) = ((0, 0), (1, 1));
    for axis in 1..=a.len().max(b.len()) {
        let (a, b) = (size(a, axis), size(b, axis));
        let both = if a == 1 { b } else { a };
        let index = i % both.max(1);
        at.0 += if a == 1 { 0 } else { index * strides.0 };
        at.1 += if b == 1 { 0 } else { index * strides.1 };
        strides = (strides.0 * a, strides.1 * b);
        i /= both.max(1);
    }
    at
}

impl Product<'_> {
    /// Computes all elements; `y` begins at position `first` of the whole output.
    fn compute(&self, y: &mut [f32], first: usize) {
        let (rows, columns, terms) = (self.a.rows(), self.b.columns(), self.a.columns());
        assert_eq!(y.len(), rows * columns, "elements of a product");
        if y.is_empty() {
            return;
        }
        let compute = |row: usize, own: &Range<usize>, pieces: &mut [&mut [f32]]| {
            let a = self.a.block(row..row + pieces.len(), 0..terms);
            let b = self.b.block(0..terms, own.clone());
            let (row, channel) = (first / columns + row, own.start);
            let mut sums = Ended { ending: self.ending, row, channel, pieces, has_nan: false };
            if terms == 0 {
                sums.end_empty();
                return;
            }
            sum(isa::arch(), a, b, &mut sums, false);
        };
        let rest = |y: &mut [f32], at: usize| self.ending.rest(y, first + at);
        by_tiles(y, columns, self.extent(), compute, rest);
    }

    /// The sizes of a tile, which change no result: an element is the same chain of sums in every
    /// tile. Columns are shared before rows, as each tile reads all of its part of the right
    /// operand.
    fn extent(&self) -> Extent {
        let (rows, columns, terms) = (self.a.rows(), self.b.columns(), self.a.columns());
        let work = rows.max(READ).saturating_mul(columns).saturating_mul(terms);
        // Of few rows a thread has one tile, the same in every run: it finds in its cache what it
        // read before.
        let most = if rows < READ { crew::sharing() } else { usize::MAX };
        let wanted = tile::wanted(work, WORTH).min(most);
        if wanted == 1 && rows <= HEIGHT {
            return Extent { rows, columns };
        }
        let panels = columns.div_ceil(Order::PANEL);
        let least = if panels < crew::sharing() { 1 } else { LOW };
        let down = wanted.div_ceil(panels).min(rows.div_ceil(least));
        let down = down.max(rows.div_ceil(HEIGHT));
        let height = rows.div_ceil(down);
        let across = wanted.div_ceil(rows.div_ceil(height)).clamp(1, panels);
        Extent { rows: height, columns: panels.div_ceil(across) * Order::PANEL }
    }
}

/// The sizes of the operands of a product, and the factors of one that has an addend.
#[derive(Clone, Debug, PartialEq)]
struct ProductPlan {
    scaled: Option<Gemm>,
    sizes: Dims,
    orders: Orders,
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
            None => matmul(a, b, y, chain),
        }
        Ok(())
    }

    fn ends_in_chain(&self) -> bool {
        true
    }
}

impl CpuOp for MatMul {
    fn supports(&self, types: &Types<'_>) -> Support {
        ending_in_chain(of_f32(KernelClass::MatMul, types))
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let (sizes, orders) = (at.operands.clone(), at.orders.clone());
        Some(Box::new(ProductPlan { scaled: None, sizes, orders }))
    }
}

impl CpuOp for Gemm {
    fn supports(&self, types: &Types<'_>) -> Support {
        // Weights that are taken transposed would be turned at every run.
        let weights = if self.trans_b { Order::RowPanels } else { Order::RowMajor };
        Support { weights, ..ending_in_chain(of_f32(KernelClass::MatMul, types)) }
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let (sizes, orders) = (at.operands.clone(), at.orders.clone());
        Some(Box::new(ProductPlan { scaled: Some(self.clone()), sizes, orders }))
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
        matmul(View::new(&a_dims, &a), View::new(&b_dims, &b), &mut y, &epilogue);
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
            matmul(View::new(&a_dims, &a), View::new(&b_dims, &b), &mut y, &epilogue);
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
                        matmul(a, b, &mut other, &Epilogue::default());
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
                        matmul(a, b, &mut other, &Epilogue::default());
                        assert_bits(&y, &other, "gemm and matmul");
                        let (a_dims, b_dims) = ([2, 1, m, k], [1, 2, k, width]);
                        let [a, b] = [a, b].map(|x| x.data.repeat(2));
                        let a = View::new(&a_dims, &a);
                        let b = View::new(&b_dims, &b);
                        let mut stack = vec![f32::NAN; 4 * y.len()];
                        matmul(a, b, &mut stack, &Epilogue::default());
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
                matmul(a, b, &mut y, &epilogue);
                y
            });
            assert_bits(&y, &expected, &format!("{a_dims:?} {b_dims:?}"));
        }
    }
}
