//! The launches of a program by name, with the time that each takes and the least that it can take:
//! its floor.

use std::collections::BTreeMap;

use expect::{Rates, costs};
use fanwise::backend::CUDA;
use fanwise::backend::Trace;
use fanwise::ir::{parse, verify};
use fanwise::lower::{Program, lower};
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
    /// Seconds that its layers take at least.
    floor: f64,
    /// Seconds that bytes alone take at least.
    reading: f64,
    /// Seconds that they take at least in `bf16`, if the rate of products in it is known.
    pub(super) bf16: Option<f64>,
    /// Seconds that the model of the GPU expects, if there is one.
    pub(super) expected: Option<f64>,
}

impl Kernel {
    /// Seconds that its layers take at least.
    pub(super) fn floor(&self) -> f64 {
        self.floor
    }

    /// Whether operations make the floor of any of its launches, or bytes that of all.
    fn bound(&self) -> &'static str {
        if self.floor > self.reading { "operations" } else { "bytes" }
    }

    pub(super) fn json(&self) -> Value {
        let share = if self.time > 0.0 { self.floor() / self.time } else { 0.0 };
        json!({
            "label": self.label, "class": self.class, "seconds": self.time,
            "floor_seconds": self.floor(), "floor_from": self.bound(), "share_of_floor": share,
            "bf16_floor_seconds": self.bf16, "expected_seconds": self.expected,
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
    let f32 = Rates { bytes: ceilings.copy, operations: ceilings.flops().0 };
    let bf16 = ceilings.bf16().map(|rate| Rates { bytes: 2.0 * ceilings.copy, operations: rate });
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for cost in costs(&program.devices[1], n) {
        let Some(launch) = cost.launch else { continue };
        let at = *places.entry(cost.label).or_insert_with(|| {
            kernels.push(Kernel {
                label: cost.label.to_owned(),
                class: launch.class.to_string(),
                time: median(times.remove(cost.label).unwrap_or_default()),
                bytes: 0.0,
                flops: 0.0,
                floor: 0.0,
                reading: 0.0,
                bf16: bf16.map(|_| 0.0),
                expected: ceilings.machine.map(|_| 0.0),
            });
            kernels.len() - 1
        });
        let kernel = &mut kernels[at];
        kernel.bytes += cost.work.bytes;
        kernel.flops += cost.work.operations;
        kernel.floor += cost.floor(f32);
        kernel.reading += cost.floor(Rates { operations: f64::INFINITY, ..f32 });
        if let (Some(sum), Some(rates)) = (&mut kernel.bf16, bf16) {
            *sum += cost.floor(rates);
        }
        if let (Some(sum), Some(machine)) = (&mut kernel.expected, ceilings.machine) {
            *sum += cost.seconds(machine);
        }
    }
    kernels
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
            let costs = costs(&program.devices[1], ROWS);
            let found: f64 = costs.iter().map(|cost| cost.work.bytes).sum();
            let share = found / (4 * size * ROWS) as f64;
            assert!((times..times + 0.01).contains(&share), "{op} of {size}: {share}");
        }
    }
}
