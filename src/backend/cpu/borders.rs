//! What the launches of a device take from outside of it, and others from it: where launches of
//! some of its rows find it.

use std::ops::Range;

use super::kernel::StepKernels;
use crate::backend::host::touched;
use crate::lower::{
    Action, Bound, BoundDevice, Buffer, BufferId, Location, Port, Program, Space, Storage,
    read_elsewhere,
};
use crate::types::{Dim, Tensor};

/// What launches take from outside of a device, and others from it.
#[derive(Debug)]
pub(super) struct Borders {
    pub(super) inputs: Vec<Source>,
    /// The device that holds the parameters: this one or that which it copies them from.
    pub(super) holder: usize,
    /// The copies of parameters: where the holder has them.
    params: Vec<(BufferId, Location)>,
    /// The results that other devices copy; none of the host's, which are outputs of the program.
    pub(super) results: Vec<BufferId>,
}

/// Where an input of the launches lies among those of the program.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) input: usize,
    /// The entries along the first axis that are of all rows of the device.
    entries: Range<usize>,
    has_rows: bool,
    /// The buffer that it is copied to, on a device that is not the host.
    to: Option<BufferId>,
}

/// The launches of a device for so many rows.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bound: BoundDevice,
    pub(super) kernels: StepKernels,
    /// The positions of those that do something: what is copied from another device is read where
    /// it lies.
    pub(super) steps: Vec<usize>,
    /// The bytes of the arena that they touch.
    pub(super) used: u64,
}

impl Borders {
    /// Those of a device; `None` where launches wait for others, or take what no input is as it
    /// lies there.
    pub(super) fn new(program: &Program, bound: &Bound, d: usize) -> Option<Self> {
        let device = &program.devices[d];
        if program.devices.len() == 1 {
            let source = |(input, port): (usize, &Port)| {
                let (dim, ty) = (port.ty.shape.first(), &port.ty);
                // A scalar has no axis and so no entries: it is taken whole.
                let entries = 0..ty.shape.at(bound.n).first().copied().unwrap_or(0);
                let has_rows = dim.is_some_and(Dim::depends_on_batch);
                Source { input, entries, has_rows, to: None }
            };
            let inputs = program.inputs.iter().enumerate().map(source).collect();
            return Some(Self { inputs, holder: d, params: Vec::new(), results: Vec::new() });
        }
        let has_params = device.buffers.iter().any(|b| matches!(b.storage, Storage::Param(_)));
        let (mut inputs, mut params, mut holder) = (Vec::new(), Vec::new(), d);
        for step in &device.steps {
            match &step.action {
                Action::Launch(_) | Action::Record(_) => {}
                Action::Copy { device: from, .. } if *from == d => {}
                Action::Wait(_) => return None,
                Action::Copy { to, .. } if device.buffer(*to).storage != Storage::Arena => {
                    return None;
                }
                Action::Copy { device: other, from, to } => {
                    let at = &bound.devices[*other].locations[*from];
                    if let Space::Param(_) = at.space {
                        let is_held = if holder == d { !has_params } else { holder == *other };
                        is_held.then_some(())?;
                        holder = *other;
                        params.push((*to, at.clone()));
                    } else {
                        inputs.push(Source::new(program, bound, at, d, *to)?);
                    }
                }
            }
        }
        let mut results = read_elsewhere(&program.devices, d);
        results.sort_unstable();
        results.dedup();
        let is_own = |b: &BufferId| {
            let Buffer { storage, ty, .. } = device.buffer(*b);
            let has_rows = ty.shape.first().is_some_and(Dim::depends_on_batch);
            has_rows
                && matches!(storage, Storage::Arena | Storage::Reuse { .. })
                && inputs.iter().all(|source| source.to != Some(*b))
                && params.iter().all(|(to, _)| to != b)
        };
        results.iter().all(is_own).then_some(Self { inputs, holder, params, results })
    }

    /// The launches for so many rows of the only replica of a device, where inputs and results lie
    /// outside of its arena; `None` where they are too few for an operator.
    pub(super) fn part(&self, program: &Program, d: usize, rows: usize) -> Option<Part> {
        let (device, rows) = (&program.devices[d], i64::try_from(rows).ok()?);
        // Without replicas the rows are those of the batch.
        let n = rows.checked_mul(i64::try_from(program.rows.len().max(1)).ok()?)?;
        let all = program.bind(n).ok()?;
        if let [replica] = device.replicas.as_slice() {
            (all.rows[*replica as usize] == rows).then_some(())?;
        }
        let mut bound = all.devices.into_iter().nth(d)?;
        let inputs = (0u32..).zip(&self.inputs);
        let inputs = inputs.filter_map(|(i, source)| Some((source.to?, Space::Input(i), 0)));
        let params = self.params.iter().map(|(to, at)| (*to, at.space, at.offset));
        let results = (0u32..).zip(&self.results).map(|(i, b)| (*b, Space::Output(i), 0));
        let places: Vec<_> = inputs.chain(params).chain(results).collect();
        bound.put_elsewhere(program, d, n, &places);
        let kernels = StepKernels::new(device, &bound, n);
        let does = |i: &usize| match &device.steps[*i].action {
            Action::Launch(_) => kernels.of(*i).is_some(),
            Action::Copy { to, .. } => {
                !matches!(bound.locations[*to].space, Space::Input(_) | Space::Param(_))
            }
            Action::Wait(_) | Action::Record(_) => false,
        };
        let active = (0..device.steps.len()).filter(|i| bound.active[*i]);
        let (steps, used) = (active.filter(does).collect(), touched(device, &bound));
        Some(Part { bound, kernels, steps, used })
    }
}

impl Source {
    /// That of a copy to a device's buffer from there; `None` unless it is of whole entries of an
    /// input, as many for each row of the device.
    fn new(
        program: &Program,
        bound: &Bound,
        at: &Location,
        d: usize,
        to: BufferId,
    ) -> Option<Self> {
        let n = bound.n;
        let [replica] = program.devices[d].replicas.as_slice() else { return None };
        let rows = usize::try_from(bound.rows[*replica as usize]).ok()?;
        let Space::Input(input) = at.space else { return None };
        let port = &program.inputs.get(input as usize)?.ty;
        let (dims, ty) = (port.shape.at(n), &program.devices[d].buffer(to).ty);
        let inner = dims.iter().skip(1).try_fold(port.dtype.bytes(), |p, d| p.checked_mul(*d));
        let entry = inner.filter(|entry| *entry > 0)?;
        let has_rows = ty.shape.first().is_some_and(Dim::depends_on_batch);
        let is_whole = at.offset.is_multiple_of(entry) && at.bytes.is_multiple_of(entry);
        let count = at.bytes / entry;
        let fits = is_whole && (!has_rows || count.is_multiple_of(rows));
        fits.then(|| Self {
            input: input as usize,
            entries: at.offset / entry..at.offset / entry + count,
            has_rows,
            to: Some(to),
        })
    }

    /// The part of the input that some of so many rows have.
    pub(super) fn of(&self, tensor: &Tensor, rows: &Range<usize>, n: usize) -> Tensor {
        let Range { start, end } = self.entries;
        if self.has_rows {
            let each = (end - start) / n;
            tensor.entries(start + rows.start * each..start + rows.end * each)
        } else if tensor.dims().first().is_none_or(|all| *all == end - start) {
            tensor.clone()
        } else {
            tensor.entries(self.entries.clone())
        }
    }
}
