//! Random small graphs of all operators: one device against the reference evaluation, several
//! against one.

use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::random;
use crate::results::trial;
use crate::setup::{assert_bits, assert_close, expected, inputs, on_gpus, outputs, replicas};

/// Graphs that are tried, on the fake device and on a real one.
const GRAPHS: [u64; 2] = [60, 200];

/// Graphs of one test.
const TOGETHER: u64 = 4;

pub(crate) fn trials() -> Vec<Trial> {
    let count = GRAPHS[usize::from(!crate::setup::is_fake())];
    let some = |from: u64| {
        trial(format!("random_graphs_{from}"), move || (from..from + TOGETHER).for_each(check))
    };
    (0..count).step_by(usize::try_from(TOGETHER).unwrap()).map(some).collect()
}

fn check(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (graph, weights) = random::graph(seed, 3 + usize::try_from(seed % 10).unwrap());
    let one = on_gpus(&graph, &weights, 1, 1);
    let count = rng.random_range(2..=4);
    let split = replicas(&graph, count, seed);
    let many = on_gpus(&graph, &weights, count, seed);
    for n in [rng.random_range(1..8), 0, rng.random_range(1..8)] {
        let what = format!("random graph {seed}, {n} rows");
        let inputs = inputs(&graph, n, &mut rng);
        let wanted = expected(&graph, &weights, &inputs, false);
        let alone = outputs(&one, &inputs);
        assert_close(&alone, &wanted, 2e-4, &what);
        // First kernel by kernel, then captured, then replayed.
        for run in 0..3 {
            assert_eq!(outputs(&one, &inputs), alone, "{what}, run {run}");
            let found = outputs(&many, &inputs);
            assert_bits(&split, &found, &alone, &format!("{what} on {count}, run {run}"));
        }
    }
}
