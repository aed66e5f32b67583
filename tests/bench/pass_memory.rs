//! The memory that the `replicate` pass, verification and the proof take at their peak, besides the
//! template: by nodes and by replicas.

#![allow(clippy::print_stdout, reason = "it reports")]

mod towers;

use fanwise::analysis::prove;
use fanwise::ir::verify;
use fanwise::pass::{Replicate, replicate};
use peak_alloc::PeakAlloc;
use towers::{devices, synthetic};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn main() {
    let sizes = [(12_500, 8), (25_000, 8), (50_000, 8), (100_000, 8), (1_000_000, 4)];
    let replicas = [2, 4, 8, 16].map(|replicas| (25_000, replicas));
    for (nodes, replicas) in sizes.into_iter().chain(replicas) {
        let template = synthetic(nodes);
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let graph = replicate(&template, &Replicate::over(devices(replicas)));
        let graph = graph.expect("a row-wise graph");
        prove(&template, &verify(&graph).expect("a valid graph")).expect("a proof");
        let peak = MEMORY.peak_usage() - before;
        let each = peak / graph.len();
        println!("{nodes} nodes onto {replicas}: {} MiB, {each} bytes a node", peak >> 20);
    }
}
