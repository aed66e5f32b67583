//! Images put in another order in memory.

use rayon::prelude::*;

use super::cpu_op::CpuKernel;
use super::elementwise::Epilogue;
use super::matrix::Matrix;
use crate::backend::host::{Each, Unsuited};
use crate::types::Order;
use crate::types::invariant::invariant;

/// The rows of the result of a task.
const ROWS: usize = 64;

/// Matrices to transpose: the channels and places of each sample, or its places and channels.
#[derive(Debug)]
pub(super) struct ReorderPlan {
    /// The rows and columns of the operand.
    rows: usize,
    columns: usize,
}

impl ReorderPlan {
    /// The plan for images of these sizes, which lie in this order afterwards and in the other one
    /// before.
    pub(super) fn new(dims: &[usize], to: Order) -> Self {
        // A value of fewer axes has no channels: each order has the same bytes.
        let (channels, places) = match dims {
            [_, channels, places @ ..] => (*channels, places.iter().product()),
            [] | [_] => (1, dims.iter().product()),
        };
        match to {
            Order::ChannelsLast => Self { rows: channels, columns: places },
            Order::RowMajor => Self { rows: places, columns: channels },
            Order::RowPanels | Order::GatePanels | Order::Heads => {
                invariant(None, "that images are put into the orders of images")
            }
        }
    }
}

impl CpuKernel for ReorderPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        let Self { rows, columns } = *self;
        let size = rows * columns;
        if size == 0 || x.len() != y.len() {
            return Err(Unsuited);
        }
        y.par_chunks_exact_mut(size).zip(x.par_chunks_exact(size)).each(|(y, x)| {
            let x = Matrix::contiguous(x, rows, columns);
            y.par_chunks_mut(ROWS * rows).enumerate().each(|(i, y)| {
                let first = i * ROWS;
                let x = x.block(0..rows, first..first + y.len() / rows);
                x.pack_transposed(y, rows);
            });
        });
        Ok(())
    }
}
