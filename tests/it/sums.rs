//! Whether differences of outputs follow from the rounding of sums over the batch, and nothing
//! else.

use std::collections::BTreeMap;
use std::sync::Arc;

use fanwise::backend::{CPU, Executable, RunOptions};
use fanwise::internal::{Sums, Unexplained};
use fanwise::ir::{Graph, Weights, parse};
use fanwise::pass::{Repair, repair};
use fanwise::types::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::programs::{executable, options};

/// Means, products, scans and distributions over the batch, and what jumps behind them. Written as
/// a text, the product is summed in `f32` on one device.
const TEXT: &str = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4], %z: f32[N,4]) -> (above: f32[N,4], floor: f32[4], late: f32[4,4], whole: \
i64[], soft: f32[N,4], run: f32[N,4], share: f32[4], logs: f32[4]) {
  %m : f32[4] = reduce_mean(%x) {axes=[0], keepdims=false}
  %s : f32[N,4] = sub(%x, %m)
  %b : bool[N,4] = greater(%x, %m)
  %above : f32[N,4] = where(%b, %x, %s)
  %t : f32[4,N] = transpose(%x) {perm=[1, 0]}
  %p : f32[4,4] = matmul(%t, %z)
  %late : f32[4,4] = tanh(%p)
  %scaled : f32[4,4] = mul(%p, %p)
  %all : f32[] = reduce_sum(%scaled) {axes=[0, 1], keepdims=false}
  %whole : i64[] = cast(%all) {to=i64}
  %floor : f32[4] = floor(%m)
  %soft : f32[N,4] = softmax(%x) {axis=0}
  %run : f32[N,4] = cumsum(%x) {axis=0}
  %v : f32[4] = reduce_l2(%s) {axes=[0], keepdims=false}
  %share : f32[4] = div(%m, %v)
  %logs : f32[4] = reduce_log_sum_exp(%x) {axes=[0], keepdims=false}
  return %above, %floor, %late, %whole, %soft, %run, %share, %logs
}
";

type Inputs = BTreeMap<String, Tensor>;
type Outputs = Vec<(Arc<str>, Tensor)>;

fn run(graph: &Graph, inputs: &Inputs) -> Outputs {
    let executable = executable(graph, &Weights::default(), &CPU, 2);
    executable.run(inputs, &RunOptions::default()).unwrap().outputs
}

/// What is said of the replicas on `count` devices of the graph `theirs` and of `graph` on one.
fn judged(
    graph: &Graph,
    theirs: &Graph,
    count: u32,
    inputs: &Inputs,
    n: i64,
) -> Result<(), Unexplained> {
    let sums = |graph| {
        let repaired = repair(graph, Repair::Comm).unwrap().into_graph();
        Sums::find(graph, &repaired).unwrap()
    };
    let shown = sums(theirs).shown();
    let replicas = fanwise::pass::replicate(&shown, &options(count, 0, Repair::Comm)).unwrap();
    let shown = run(&replicas, inputs);
    let own = sums(graph);
    let cut = own.cut().unwrap();
    let given = inputs.iter().map(|(name, x)| (name.clone(), x.clone()));
    let cut = run(&cut, &given.chain(own.inputs(&shown)?).collect());
    own.judge(&shown, &cut, n)
}

fn inputs(n: usize, mean: f32, rng: &mut ChaCha8Rng) -> Inputs {
    let mut one = || {
        let data: Vec<f32> = (0..n * 4).map(|_| mean + rng.random_range(-1.0..1.0)).collect();
        Tensor::new(&[n, 4], &data).unwrap()
    };
    [("x".to_owned(), one()), ("z".to_owned(), one())].into()
}

#[test]
fn what_follows_from_rounded_sums_is_told_from_what_does_not() {
    let graph = parse(TEXT).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (n, mean) in [(0, 0.0), (1, 0.0), (7, 0.5), (1000, 128.0)] {
        let inputs = inputs(n, mean, &mut rng);
        let rows = i64::try_from(n).unwrap();
        for count in [1, 3, 8] {
            judged(&graph, &graph, count, &inputs, rows)
                .unwrap_or_else(|e| panic!("{n} rows: {e}"));
        }
        if n < 7 {
            continue;
        }
        for (from, to) in [
            ("reduce_mean(%x)", "reduce_sum(%x)"),
            ("matmul(%t, %z)", "matmul(%t, %x)"),
            ("reduce_l2(%s)", "reduce_l1(%s)"),
            ("softmax(%x)", "softmax(%z)"),
            ("cumsum(%x) {axis=0}", "cumsum(%x) {axis=0, reverse=true}"),
        ] {
            let theirs = parse(&TEXT.replace(from, to)).unwrap();
            let found = judged(&graph, &theirs, 3, &inputs, rows);
            assert!(matches!(found, Err(Unexplained::Sum { .. })), "{from}: {found:?}");
        }
        for (from, to) in [
            ("greater(%x, %m)", "less(%x, %m)"),
            ("tanh(%p)", "neg(%p)"),
            ("floor(%m)", "ceil(%m)"),
            ("cast(%all) {to=i64}", "dims() {scalar=true, values=[3]}"),
        ] {
            let theirs = parse(&TEXT.replace(from, to)).unwrap();
            let found = judged(&graph, &theirs, 3, &inputs, rows);
            assert!(matches!(found, Err(Unexplained::Output { .. })), "{from}: {found:?}");
        }
    }
}
