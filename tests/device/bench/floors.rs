//! The launches of a program by name, with the time that each takes and the least that it can take:
//! its floor.

use std::collections::BTreeMap;

use fanwise::backend::CUDA;
use fanwise::backend::cuda::Trace;
use fanwise::ir::{parse, verify};
use fanwise::lower::{Action, Buffer, BufferId, DeviceProgram, Launch, Program, Step, lower};
use fanwise::op::{Gemm, Op};
use fanwise::types::KernelClass;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::ceilings::Ceilings;
use super::{median, spans};
use crate::results::trial;
use crate::setup::replicas;

/// The launches of one name and their cost.
pub(super) struct Kernel {
    label: String,
    class: String,
    /// Seconds.
    pub(super) time: f64,
    bytes: f64,
    flops: f64,
    /// Seconds that its bytes take at least.
    reading: f64,
    /// Seconds that its operations take at least; 0 where they are not counted.
    computing: f64,
}

impl Kernel {
    /// Seconds that it takes at least.
    pub(super) fn floor(&self) -> f64 {
        self.reading.max(self.computing)
    }

    /// Whether the floor is that of bytes or of operations.
    fn bound(&self) -> &'static str {
        if self.computing > self.reading { "operations" } else { "bytes" }
    }

    pub(super) fn json(&self) -> Value {
        let share = if self.time > 0.0 { self.floor() / self.time } else { 0.0 };
        json!({
            "label": self.label, "class": self.class, "seconds": self.time,
            "floor_seconds": self.floor(), "floor_from": self.bound(), "share_of_floor": share,
            "bytes": self.bytes, "flops": self.flops,
        })
    }
}

/// The launches of the first GPU of a program in a batch of `n` rows, with their median times in
/// the runs of a trace but the first, in which kernels are loaded.
pub(super) fn kernels(
    program: &Program,
    n: i64,
    trace: &Trace,
    ceilings: &Ceilings,
) -> Vec<Kernel> {
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in spans(trace, "compute").into_values().skip(1) {
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for (name, length) in run {
            *sums.entry(name).or_default() += 1e-6 * length;
        }
        for (name, sum) in sums {
            times.entry(name).or_default().push(sum);
        }
    }
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (step, launch, bytes, flops) in costs(&program.devices[1], n) {
        let at = *places.entry(&*step.label).or_insert_with(|| {
            kernels.push(Kernel {
                label: step.label.to_string(),
                class: launch.class.to_string(),
                time: median(times.remove(&*step.label).unwrap_or_default()),
                bytes: 0.0,
                flops: 0.0,
                reading: 0.0,
                computing: 0.0,
            });
            kernels.len() - 1
        });
        kernels[at].bytes += bytes;
        kernels[at].flops += flops;
    }
    for kernel in &mut kernels {
        kernel.reading = kernel.bytes / ceilings.copy;
        kernel.computing = kernel.flops / ceilings.flops().0;
    }
    kernels
}

/// The launches of a device, with the bytes that each reads and writes at least and its operations.
fn costs(device: &DeviceProgram, n: i64) -> Vec<(&Step, &Launch, f64, f64)> {
    let mut partial: Vec<&Launch> = Vec::new();
    let mut all = Vec::new();
    for step in &device.steps {
        let Action::Launch(launch) = &step.action else { continue };
        let bytes = bytes(launch, device, &partial, n);
        all.push((step, &**launch, bytes, operations(launch, device, n)));
        partial.extend((launch.class == KernelClass::Partial).then_some(&**launch));
    }
    all
}

/// Bytes of a sample that a device keeps on chip at least: `sm_80` has 40 MB of cache beside what
/// its cores have.
const ON_CHIP: i64 = 32 << 20;

/// Whether a launch of a long line reads a buffer once more, of which `partial` launches before it
/// took parts. A line that stays on chip is read once at least, in however many launches.
fn reads_again(launch: &Launch, device: &DeviceProgram, partial: &[&Launch], b: BufferId) -> bool {
    let is_line = matches!(launch.class, KernelClass::Softmax | KernelClass::Norm);
    let parts = partial.iter().filter(|p| p.results.iter().any(|r| launch.operands.contains(r)));
    let mut read = parts.flat_map(|p| &p.operands);
    is_line && buffer(device, b).ty.bytes().eval(1) <= ON_CHIP && read.any(|read| *read == b)
}

/// The buffer with this id.
fn buffer(device: &DeviceProgram, id: BufferId) -> &Buffer {
    &device.buffers[id.0 as usize]
}

/// The bytes that a launch reads and writes at least, behind `partial` ones.
fn bytes(launch: &Launch, device: &DeviceProgram, partial: &[&Launch], n: i64) -> f64 {
    let bytes = |b: &BufferId| buffer(device, *b).ty.bytes().eval(n) as f64;
    let written: f64 = launch.results.iter().map(bytes).sum();
    // What picks elements reads no more of an operand than it writes.
    let picks = matches!(launch.class, KernelClass::Move | KernelClass::Index);
    let most = if picks { written } else { f64::INFINITY };
    let read = launch.operands.iter().filter(|b| !reads_again(launch, device, partial, **b));
    read.map(|b| bytes(b).min(most)).sum::<f64>() + written
}

/// The multiplications and additions of a convolution, a product or a cell; 0 for all else.
fn operations(launch: &Launch, device: &DeviceProgram, n: i64) -> f64 {
    if launch.class == KernelClass::Partial {
        // They are those of the launch behind it.
        return 0.0;
    }
    let shape = |i: usize| &buffer(device, launch.operands[i]).ty.shape;
    let elements = |i: usize| shape(i).elements().eval(n) as f64;
    let axis = |i: usize, axis: usize| shape(i).get(axis).map_or(1.0, |d| d.eval(n) as f64);
    let last = |i: usize| axis(i, shape(i).rank().saturating_sub(1));
    let result = || buffer(device, launch.results[0]).ty.shape.elements().eval(n) as f64;
    match &launch.op {
        Some(Op::Conv(_)) => 2.0 * result() * elements(1) / axis(1, 0).max(1.0),
        Some(Op::ConvTranspose(_)) => 2.0 * elements(0) * elements(1) / axis(1, 0).max(1.0),
        Some(Op::Gemm(Gemm { trans_a: true, .. })) => 2.0 * result() * axis(0, 0),
        Some(Op::Gemm(_) | Op::MatMul(_)) => 2.0 * result() * last(0),
        Some(Op::Recurrent(_)) => {
            2.0 * elements(0) / last(0).max(1.0) * (elements(1) + elements(2))
        }
        _ => 0.0,
    }
}

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("floors_of_long_lines_read_them_once", long_lines_are_read_once)]
}

/// But for those that no chip keeps; parts are small beside them.
fn long_lines_are_read_once() {
    const ROWS: i64 = 3;

    for (size, times) in [(1000, 2.0), (100_000, 2.0), (10_000_000, 3.0)] {
        for op in ["softmax(%x) {axis=1}", "lp_norm(%x) {axis=1, p=2}"] {
            let text = format!(
                "fanwise 1\nsymbol N >= 0\ngraph @lines(%x: f32[N,{size}]) -> (y: f32[N,{size}]) \
                 {{\n  \
                 %y : f32[N,{size}] = {op}\n  return %y\n}}\n"
            );
            let graph = replicas(&parse(&text).unwrap_or_else(|e| panic!("{e}")), 1, 1);
            let verified = verify(&graph).unwrap_or_else(|e| panic!("{e}"));
            let program = lower(&verified, &CUDA).unwrap();
            let found: f64 = costs(&program.devices[1], ROWS).iter().map(|cost| cost.2).sum();
            let share = found / (4 * size * ROWS) as f64;
            assert!((times..times + 0.01).contains(&share), "{op} of {size}: {share}");
        }
    }
}
