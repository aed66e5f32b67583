//! The models of the zoo: small ones everywhere, whole ones on a GPU.

use fanwise::zoo;
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::setup::{
    assert_bits, assert_close, expected, inputs, is_fake, on_gpus, outputs, replicas, small,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    for name in zoo::names() {
        trials.push(Trial::test(format!("small_{name}"), move || {
            check_small(name);
            Ok(())
        }));
        if !is_fake() {
            trials.push(Trial::test(format!("whole_{name}"), move || {
                check_whole(name);
                Ok(())
            }));
        }
    }
    trials
}

/// One to eight devices give the same bits, and what the CPU gives.
fn check_small(name: &str) {
    const ROWS: i64 = 9;
    let (graph, weights) = small(name);
    let inputs = inputs(&graph, ROWS, &mut ChaCha8Rng::seed_from_u64(7));
    let wanted = expected(&graph, &weights, &inputs, true);
    let alone = outputs(&on_gpus(&graph, &weights, 1, 1), &inputs);
    assert_close(&alone, &wanted, 1e-4, name);
    for (count, variant) in [(2, 0), (3, 1), (4, 2), (5, 3), (8, 4)] {
        let split = replicas(&graph, count, variant);
        let many = on_gpus(&graph, &weights, count, variant);
        for run in 0..2 {
            let what = format!("{name} on {count}, run {run}");
            assert_bits(&split, &outputs(&many, &inputs), &alone, &what);
        }
    }
}

/// The whole model on one device and on four.
fn check_whole(name: &str) {
    const ROWS: i64 = 6;
    let (graph, weights) = zoo::build(name).unwrap();
    let inputs = inputs(&graph, ROWS, &mut ChaCha8Rng::seed_from_u64(8));
    let wanted = expected(&graph, &weights, &inputs, true);
    let alone = outputs(&on_gpus(&graph, &weights, 1, 1), &inputs);
    assert_close(&alone, &wanted, 1e-3, name);
    for count in [2, 4, 8] {
        let split = replicas(&graph, count, 1);
        let many = on_gpus(&graph, &weights, count, 1);
        for run in 0..3 {
            let what = format!("{name} on {count}, run {run}");
            assert_bits(&split, &outputs(&many, &inputs), &alone, &what);
        }
    }
}
