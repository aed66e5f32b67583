//! Launches side by side: small launches of a device that do not depend on one another become rows
//! of steps that one launch can run together (horizontal fusion). A launch has a fixed cost of
//! microseconds, and one with few blocks leaves most of a large device idle; both matter where a
//! model has many small layers, as the branches of an Inception block and the gradients of their
//! weights.

use std::collections::BTreeMap;
use std::ops::Range;

use super::program::{Action, BufferId, DeviceProgram, Guard, Lane, Step};
use crate::types::invariant::int;
use crate::types::{Dim, KernelClass, TensorType};

/// The most steps of a row.
const MOST: usize = 16;

/// How many rows a step is moved at most: what it writes, or what it reads, takes memory meanwhile.
const REACH: usize = 16;

/// The most bytes that a step of a row touches for each row of the batch. Of 256 rows a GPU of 4
/// TB/s moves as much in 60 microseconds, beside which the cost of a launch does not matter.
const MOST_BYTES: i64 = 1 << 20;

/// Steps of one kind may run together.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    guard: Guard,
    /// True for products, whose blocks take most of a multiprocessor.
    product: bool,
    /// Of products of any size, such as queries, keys and values, the operand that they share and
    /// of which each reads all, and the bytes of their results, or of a row of these.
    shared: Option<(BufferId, i64)>,
}

/// A row under construction.
struct Row {
    /// The positions of its steps.
    steps: Vec<usize>,
    /// What its steps have in common; `None` if it takes no other step.
    kind: Option<Kind>,
}

impl Row {
    fn takes(&self, kind: Option<Kind>) -> bool {
        kind.is_some() && self.kind == kind && self.steps.len() < MOST
    }
}

/// The buffers that a step reads and writes, by their roots.
struct Touched {
    reads: Vec<BufferId>,
    writes: Vec<BufferId>,
    records: bool,
}

/// Moves the small launches of the compute lane of device `d` into rows.
///
/// Before buffers are reused each byte is written once, so a step depends on the writers of what it
/// reads and on nothing else. Copies from the host come first, as whatever they wait for is before
/// these steps; other copies and records keep their order. A launch may come before a record that
/// it followed, never behind one that it preceded. No launch passes a wait or a step of
/// the exchange lane, on whose place in the order the memory plan relies.
pub(super) fn group(device: &mut DeviceProgram, d: usize) {
    let steps = std::mem::take(&mut device.steps);
    let (mut out, mut segment) = (Vec::with_capacity(steps.len()), Vec::new());
    for step in steps {
        if step.lane == Lane::Exchange || matches!(step.action, Action::Wait(_)) {
            out.extend(in_rows(device, d, std::mem::take(&mut segment)));
            out.push(step);
        } else {
            segment.push(step);
        }
    }
    out.extend(in_rows(device, d, segment));
    device.steps = out;
}

/// These steps in rows.
fn in_rows(device: &DeviceProgram, d: usize, mut steps: Vec<Step>) -> Vec<Step> {
    let uploads = |step: &Step| matches!(step.action, Action::Copy { device: 0, .. } if d != 0);
    steps.sort_by_key(|step| !uploads(step));
    let touched: Vec<Touched> = steps.iter().map(|step| touched(device, d, step)).collect();
    let mut rows = forward(device, &steps, &touched);
    backward(&mut rows, &touched);
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let mut out = Vec::with_capacity(steps.len());
    for row in rows {
        for (k, i) in row.steps.into_iter().enumerate() {
            out.extend(steps[i].take().map(|step| Step { beside: k > 0, ..step }));
        }
    }
    out
}

/// Rows in which each launch comes as early as what it reads and [`REACH`] allow.
fn forward(device: &DeviceProgram, steps: &[Step], touched: &[Touched]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    // The last row that writes to each root buffer.
    let mut writers: BTreeMap<BufferId, usize> = BTreeMap::new();
    for (i, (step, own)) in steps.iter().zip(touched).enumerate() {
        let kind = kind(device, step);
        let behind = own.reads.iter().filter_map(|b| writers.get(b)).max();
        // A step that reads none of their results may be in the first row.
        let from = behind.map_or(0, |row| row + 1).max(rows.len().saturating_sub(REACH));
        let found = rows[from..].iter().position(|row| row.takes(kind));
        let at = found.map_or(rows.len(), |at| from + at);
        if at == rows.len() {
            rows.push(Row { steps: Vec::new(), kind });
        }
        rows[at].steps.push(i);
        for root in &own.writes {
            let last = writers.entry(*root).or_insert(at);
            *last = at.max(*last);
        }
    }
    rows
}

/// Empties the rows all of whose steps can join later ones: those before the first step that reads
/// what they write.
fn backward(rows: &mut [Row], touched: &[Touched]) {
    let mut row_of = vec![0; touched.len()];
    let mut readers: BTreeMap<BufferId, Vec<usize>> = BTreeMap::new();
    for (r, row) in rows.iter().enumerate() {
        for i in &row.steps {
            row_of[*i] = r;
            touched[*i].reads.iter().for_each(|b| readers.entry(*b).or_default().push(*i));
        }
    }
    let records = |row: &Row| row.steps.iter().any(|i| touched[*i].records);
    for r in (0..rows.len()).rev().filter(|r| *r + 1 < touched.len()) {
        let end = rows.len().min(r + 1 + REACH);
        // Without a record the reach decides.
        let end = (r + 1..end).find(|at| records(&rows[*at])).unwrap_or(end);
        let kind = rows[r].kind;
        let mut more = vec![0; end.saturating_sub(r + 1)];
        let moved: Option<Vec<usize>> = rows[r]
            .steps
            .iter()
            .map(|i| {
                let read = touched[*i].writes.iter().filter_map(|b| readers.get(b)).flatten();
                let first = read.filter(|j| *j > i).map(|j| row_of[*j]).min();
                let end = first.map_or(end, |first| first.min(end));
                let free = |at: &usize| {
                    rows[*at].takes(kind) && rows[*at].steps.len() + more[*at - r - 1] < MOST
                };
                let at = (r + 1..end).rev().find(free)?;
                more[at - r - 1] += 1;
                Some(at)
            })
            .collect();
        let Some(moved) = moved else { continue };
        let steps = std::mem::take(&mut rows[r].steps);
        for (i, at) in steps.into_iter().zip(moved) {
            row_of[i] = at;
            rows[at].steps.push(i);
        }
    }
    for row in rows {
        row.steps.sort_unstable();
    }
}

/// The root buffers that a step touches.
fn touched(device: &DeviceProgram, d: usize, step: &Step) -> Touched {
    let roots = |ids: &[BufferId]| ids.iter().map(|b| device.root(*b)).collect();
    let (reads, writes): (&[BufferId], &[BufferId]) = match &step.action {
        Action::Launch(launch) => (&launch.operands, &launch.results),
        Action::Copy { device, from, to } => {
            let own = if *device == d { std::slice::from_ref(from) } else { &[] };
            (own, std::slice::from_ref(to))
        }
        Action::Wait(_) | Action::Record(_) => (&[], &[]),
    };
    let records = matches!(step.action, Action::Record(_));
    Touched { reads: roots(reads), writes: roots(writes), records }
}

/// The kind of a step; `None` if it runs alone.
fn kind(device: &DeviceProgram, step: &Step) -> Option<Kind> {
    let Action::Launch(launch) = &step.action else { return None };
    match launch.class {
        KernelClass::Conv
        | KernelClass::MatMul
        | KernelClass::Partial
        | KernelClass::Elementwise
        | KernelClass::Broadcast
        | KernelClass::Pool
        | KernelClass::Reduce
        | KernelClass::Norm
        | KernelClass::Softmax
        | KernelClass::Move
        | KernelClass::Index
        | KernelClass::Line
        | KernelClass::Reorder
        | KernelClass::Random
        | KernelClass::Training => {}
        KernelClass::Recurrent
        | KernelClass::Update
        | KernelClass::Collective
        | KernelClass::Own
        | KernelClass::Reference => return None,
    }
    let touched = launch.operands.iter().chain(&launch.results);
    let mut bytes = 0i64;
    for buffer in touched {
        bytes = bytes.saturating_add(bytes_of_row(&device.buffer(*buffer).ty)?);
    }
    let kind = Kind { guard: step.guard, product: launch.product, shared: None };
    if bytes <= MOST_BYTES {
        return Some(kind);
    }
    let [result] = launch.results[..] else { return None };
    let each = known_bytes(&device.buffer(result).ty);
    let operand = launch.operands.first().filter(|_| launch.class == KernelClass::MatMul)?;
    Some(Kind { shared: Some((device.root(*operand), each)), ..kind })
}

/// The bytes for each entry of the first axis that is not constant; 0 if all are. It must not
/// depend on how many rows a replica has, since all replicas run the same kernels. `None` if there
/// are several such axes.
fn bytes_of_row(ty: &TensorType) -> Option<i64> {
    let mut open = ty.shape.iter().filter(|d| d.as_const().is_none());
    let (first, more) = (open.next(), open.next());
    if more.is_some() {
        return None;
    }
    Some(if first.is_some() { known_bytes(ty) } else { 0 })
}

/// The bytes for one entry of the axes that are not constant.
fn known_bytes(ty: &TensorType) -> i64 {
    let known = ty.shape.iter().filter_map(Dim::as_const);
    known.fold(int::<i64>(ty.dtype.bytes()), i64::saturating_mul)
}

impl DeviceProgram {
    /// For each step the steps that may run at the same time on its lane: its row.
    pub(super) fn rows(&self) -> Vec<Range<usize>> {
        let mut rows = Vec::with_capacity(self.steps.len());
        let mut start = 0;
        while start < self.steps.len() {
            let more = self.steps[start + 1..].iter().take_while(|step| step.beside).count();
            let end = start + 1 + more;
            rows.extend((start..end).map(|_| start..end));
            start = end;
        }
        rows
    }
}
