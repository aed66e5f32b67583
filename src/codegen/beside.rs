//! Calls side by side: calls that do not depend on one another become one call of
//! `side_by_side.cu` (horizontal fusion), as far as their kernels fit a block together.

use std::fmt::Write as _;
use std::sync::Arc;

use super::kernel::{Arg, Call, Kernel, ParamDecl};
use super::unit::{MAX_PARAMS, is_heavy, members};
use crate::types::Dim;
use crate::types::invariant::{int, invariant};

/// The shared memory of a block that every architecture offers without opting in.
const MOST_SHARED: i64 = 48 << 10;

/// The most kernels of a call.
const MOST: usize = 16;

/// The files whose kernels run beside others: which tile a matrix, which stride by the grid and
/// hence take more blocks than their own.
const FILES: &[(&str, Blocks)] = &[
    ("batch_norm.cu", Blocks::Any),
    ("batch_statistics.cu", Blocks::Any),
    ("broadcast.cu", Blocks::Any),
    ("conv.cu", Blocks::Own),
    ("conv_weight_grad.cu", Blocks::Own),
    ("dropout.cu", Blocks::Any),
    ("elementwise.cu", Blocks::Any),
    ("exchange.cu", Blocks::Own),
    ("few_weight_grad.cu", Blocks::Any),
    ("gather.cu", Blocks::Any),
    ("join.cu", Blocks::Any),
    ("matmul.cu", Blocks::Own),
    ("move.cu", Blocks::Any),
    ("norm.cu", Blocks::Any),
    ("one_hot.cu", Blocks::Any),
    ("pad.cu", Blocks::Any),
    ("pool.cu", Blocks::Any),
    ("pool_grad.cu", Blocks::Any),
    ("random.cu", Blocks::Any),
    ("range.cu", Blocks::Any),
    ("reduce.cu", Blocks::Any),
    ("softmax.cu", Blocks::Any),
    ("written.cu", Blocks::Own),
];

/// The blocks along x that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    /// Any number: its loop strides by the grid.
    Any,
    /// Those of its own grid.
    Own,
}

/// Calls that become one.
struct Row {
    calls: Vec<Call>,
    shared: i64,
    members: usize,
}

/// Joins calls that may run at the same time. Those of one row have as many threads, and products
/// run beside products alone: a light kernel would get as few blocks on a multiprocessor.
pub(super) fn together(calls: Vec<Call>) -> Vec<Call> {
    let mut rows: Vec<Row> = Vec::new();
    for call in calls {
        let (size, own) = (shared(&call.kernel), members(&call.kernel) + 2);
        // Calls of one kernel, such as the products of queries, keys and values, share its text and
        // hence its arrays.
        let shared = |row: &Row| {
            let is_known = row.calls.iter().any(|other| other.kernel == call.kernel);
            row.shared + if is_known { 0 } else { size }
        };
        let fits = |row: &Row| {
            let first = &row.calls[0].kernel;
            first.threads == call.kernel.threads
                && is_heavy(first) == is_heavy(&call.kernel)
                && row.calls.len() < MOST
                && shared(row) <= MOST_SHARED
                && row.members + own <= MAX_PARAMS
                && joins(&row.calls[0])
        };
        let found = if joins(&call) { rows.iter_mut().find(|row| fits(row)) } else { None };
        if let Some(row) = found {
            row.shared = shared(row);
            row.calls.push(call);
            row.members += own;
        } else {
            rows.push(Row { calls: vec![call], shared: size, members: own });
        }
    }
    rows.into_iter().map(|row| joined(row.calls)).collect()
}

/// The blocks that a file's kernels take, if they run beside others.
fn blocks(file: &str) -> Option<Blocks> {
    FILES.iter().find(|(name, _)| *name == file).map(|(_, blocks)| *blocks)
}

/// True if a call may be one of a row.
fn joins(call: &Call) -> bool {
    blocks(call.kernel.file).is_some() && call.kernel.shared == 0 && call.grid[2] == Dim::ONE
}

/// The bytes of static shared memory of a kernel at most.
fn shared(kernel: &Kernel) -> i64 {
    let number = |name: &str| {
        let found = kernel.defines.iter().find(|(n, _)| n == name);
        found.and_then(|(_, value)| value.parse::<i64>().ok())
    };
    // A column holds two numbers for four operands, or one for one.
    let operand = |p: &&ParamDecl| matches!(p, ParamDecl::Read(name, _) if is_chained(name));
    let operands = int::<i64>(kernel.params.iter().filter(operand).count());
    let column = if operands == 0 { 1 } else { 16 + 8 * operands };
    let threads = i64::from(kernel.threads);
    match (kernel.file, number("BM").zip(number("BN")).zip(number("BK"))) {
        (_, Some(((rows, columns), terms))) => {
            /// Floats behind each row of a buffer, as `TilePad`.
            const PAD: i64 = 4;
            let buffers = 2 * 4 * terms * (rows + columns + 2 * PAD);
            // Weight gradients and products define no bias.
            let bias = 4 * number("BIAS").unwrap_or(0);
            // Each array begins at a multiple of 16 bytes.
            buffers + columns * (column + bias) + 32
        }
        ("elementwise.cu", None) => match (number("COLUMNS"), number("BEHIND")) {
            (Some(1..), Some(2..)) => {
                // At least a thread to each line.
                let lanes = number("LINE_THREADS").unwrap_or(1).max(1);
                threads / lanes * column
            }
            _ => 0,
        },
        // The kind 2 keeps the place of a largest element beside it.
        ("softmax.cu", None) if number("KIND") == Some(2) => 16 * threads,
        ("softmax.cu", None) => 8 * threads,
        ("norm.cu", None) => 4 * threads,
        ("few_weight_grad.cu", None) => {
            4 * threads
                * invariant(number("VECTOR"), "that the kernel says how many channels a thread has")
        }
        // The largest numbers that threads exchange are of four doubles; a square of 32 by 33
        // elements of eight bytes is smaller than those of 256 threads and a row.
        (file, None) => {
            let text = super::source::text(file);
            if text.is_some_and(|text| text.contains("__shared__")) { 36 * threads } else { 0 }
        }
    }
}

/// True of the name of an operand of a chain: `c0`, `c1`, …
fn is_chained(name: &str) -> bool {
    let number = name.strip_prefix('c');
    number.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// One call for these.
fn joined(mut calls: Vec<Call>) -> Call {
    if calls.len() == 1 {
        return calls.remove(0);
    }
    let [mut across, mut down, _] = calls[0].grid.clone();
    for call in &calls[1..] {
        across = across.maximum(&call.grid[0]);
        down = down.maximum(&call.grid[1]);
    }
    let kernels = calls.iter().map(|call| call.kernel.clone());
    let bounds = if is_heavy(&calls[0].kernel) { "THREADS, resident(THREADS)" } else { "THREADS" };
    let mut kernel = Kernel {
        file: "side_by_side.cu",
        defines: vec![("BOUNDS".to_owned(), bounds.to_owned())],
        expression: String::new(),
        params: Vec::new(),
        threads: calls[0].kernel.threads,
        shared: 0,
        parts: kernels.collect(),
    };
    let mut args: Vec<Arg> = calls.iter().flat_map(|call| call.args.clone()).collect();
    let mut text = String::new();
    for (k, call) in calls.iter().enumerate() {
        let mut limit = |name: &str, size: &Dim| {
            let name = format!("{name}_{k}");
            if let Some(known) = size.as_const() {
                kernel.defines.push((name.clone(), known.to_string()));
            } else {
                kernel.params.push(ParamDecl::Size(name.clone()));
                args.push(Arg::Size(size.clone()));
            }
            name
        };
        let mut conditions = Vec::new();
        if blocks(call.kernel.file) == Some(Blocks::Own) && call.grid[0] != across {
            conditions.push(format!("blockIdx.x < {}", limit("BLOCKS", &call.grid[0])));
        }
        if call.grid[1] != down {
            conditions.push(format!("blockIdx.y < {}", limit("ROWS", &call.grid[1])));
        }
        let part = kernel.part(k);
        let run = format!("part_{part}::run(p.k{k});");
        let guard = if conditions.is_empty() {
            String::new()
        } else {
            format!("if ({}) ", conditions.join(" && "))
        };
        // Writing to a string does not fail.
        writeln!(text, "    case {k}: {guard}{run} break;").unwrap_or(());
    }
    kernel.expression = text;
    let count = int::<i64>(calls.len());
    Call { kernel: Arc::new(kernel), grid: [across, down, count.into()], args }
}

#[cfg(test)]
mod tests {
    use super::{Blocks, FILES};
    use crate::codegen::source;

    /// A kernel that strides by the grid takes more blocks than its own; others are guarded. None
    /// counts the blocks along other axes.
    #[test]
    fn files_stride_by_the_grid_as_listed() {
        for (name, blocks) in FILES {
            let text = source::text(name).unwrap_or_else(|| panic!("{name}"));
            let strides = text.contains("gridDim.x") || text.contains("thread_count()");
            assert_eq!(strides, *blocks == Blocks::Any, "{name}");
            let others = ["gridDim.y", "gridDim.z", "blockIdx.z"];
            assert!(others.iter().all(|other| !text.contains(other)), "{name}");
            // Memory that the launch gives a block belongs to one kernel.
            assert!(!text.contains("extern __shared__"), "{name}");
        }
    }
}
