//! The proof of replicated graphs: it holds for what the pass writes, and for no graph that
//! computes something else.

use std::collections::BTreeMap;
use std::ops::Range;

use fanwise::analysis::{ProofError, ProofRule, prove};
use fanwise::backend::CPU;
use fanwise::ir::{Graph, Label, Verified, Weights, from_json, parse, to_json, verify};
use fanwise::pass::{Merge, Repair, Replicate, repair, replicate};
use fanwise::types::Tensor;
use fanwise::zoo;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde_json::Value as Json;

use crate::mutations::{Apply, MUTATIONS, Mutation, shift_own_rows, shift_slice};
use crate::programs::{evaluate, executable, inputs, options, repaired_replicas, replicas, run};
use crate::random;

/// What became of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(crate) enum Fate {
    Unreadable,
    Invalid,
    Refuted(ProofRule),
    Proved,
}

impl Fate {
    /// The rule that is broken: of the proof, or `V` for those of every graph, which reading checks
    /// in part.
    fn rule(self) -> String {
        match self {
            Self::Unreadable | Self::Invalid => "V".to_owned(),
            Self::Refuted(rule) => rule.to_string(),
            Self::Proved => "none".to_owned(),
        }
    }
}

fn fate(template: &Graph, mutant: &str) -> (Fate, Option<Graph>) {
    let Ok(graph) = from_json(mutant) else { return (Fate::Unreadable, None) };
    let Ok(verified) = verify(&graph) else { return (Fate::Invalid, None) };
    let fate = match prove(template, &verified) {
        Ok(_) => Fate::Proved,
        Err(ProofError::Violations(list)) => Fate::Refuted(list[0].rule),
        Err(other) => panic!("{other:?}"),
    };
    (fate, Some(graph))
}

fn verified(graph: &Graph) -> Verified<'_> {
    verify(graph).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) type Fates = BTreeMap<(&'static str, Fate), usize>;

/// Mutates the replicas of a graph `times` times, and counts what becomes of each kind.
///
/// What is proved has to compute the same bits as the replicas that were mutated.
pub(crate) fn mutate(
    kinds: &[Mutation],
    (model, weights): (&Graph, &Weights),
    seed: u64,
    times: usize,
    fates: &mut Fates,
) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = rng.random_range(2..5);
    let template = repair(model, Repair::Comm).unwrap().into_graph();
    let replicated = repaired_replicas(model, (count, seed), Repair::Comm);
    prove(&template, &verified(&replicated)).unwrap_or_else(|e| panic!("{seed}: {e:?}"));
    let json: Json = serde_json::from_str(&to_json(&replicated)).unwrap();
    // Many mistakes have no place in most graphs.
    let (mut left, mut mutant) = (times, json.clone());
    for _ in 0..4 * times {
        if left == 0 {
            break;
        }
        if mutant != json {
            mutant = json.clone();
        }
        let mutation = kinds.choose(&mut rng).unwrap();
        if (mutation.apply)(&mut mutant, &mut rng).is_none() || mutant == json {
            continue;
        }
        left -= 1;
        let name = mutation.name;
        let (fate, graph) = fate(&template, &mutant.to_string());
        *fates.entry((name, fate)).or_default() += 1;
        let Some(graph) = graph.filter(|_| fate == Fate::Proved) else { continue };
        for n in [1, 2, 7] {
            let inputs = inputs(model, n, &mut rng);
            let [want, got] = [&replicated, &graph].map(|g| evaluate(g, weights, &inputs, n));
            let same = want.as_ref().ok() == got.as_ref().ok();
            assert!(same, "{name}, seed {seed}: proved, and computes something else\n{mutant}");
        }
    }
}

/// Fails unless the outputs are those of one device: in every bit, or where sums are reassociated
/// within 1e-6 of the largest value, and of 1 where all are smaller.
fn assert_agrees(replicated: &Graph, one: &[Tensor], many: &[Tensor], what: &str) {
    for (label, (one, many)) in replicated.labels().into_iter().zip(one.iter().zip(many)) {
        if label != Label::Reassociated {
            assert_eq!(one, many, "{what}: {label}");
            continue;
        }
        assert_eq!(one.tensor_type(), many.tensor_type(), "{what}");
        let (one, many) = (one.to_f64(), many.to_f64());
        let finite = one.iter().filter(|x| x.is_finite());
        let largest = finite.fold(1.0f64, |m, x| m.max(x.abs()));
        for (a, b) in one.iter().zip(&many) {
            let same = a.to_bits() == b.to_bits()
                || (a.is_nan() && b.is_nan())
                || (a - b).abs() <= 1e-6 * largest;
            assert!(same, "{what}: {a} and {b}, the largest is {largest}");
        }
    }
}

/// A random graph whose operators need all samples, on several devices: proved, and it computes
/// what one device does.
fn across(seed: u64) -> usize {
    let (model, weights) = random::across(seed, 4 + usize::try_from(seed % 12).unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = 1 + u32::try_from(seed % 5).unwrap();
    let repaired = repair(&model, Repair::Comm).unwrap();
    let (done, template) = (repaired.repairs().to_vec(), repaired.into_graph());
    let graph = repaired_replicas(&model, (count, seed / 5), Repair::Comm);
    prove(&template, &verified(&graph))
        .unwrap_or_else(|e| panic!("{seed}: {e}\n{template}\n{graph}"));
    let last = i64::from(2 * count + 1);
    for n in [0, 1, rng.random_range(2..=last), last] {
        let what = format!("graph {seed}, {n} rows, {count} replicas\n{model}\n{graph}");
        let inputs = inputs(&model, n, &mut rng);
        // Some operators have no result for an empty batch.
        let Ok(one) = evaluate(&model, &weights, &inputs, n) else { continue };
        let many = evaluate(&graph, &weights, &inputs, n).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_agrees(&graph, &one, &many, &what);
        if seed.is_multiple_of(4) {
            let [one, many] =
                [&model, &graph].map(|g| run(&executable(g, &weights, &CPU, 2), &inputs));
            assert_agrees(&graph, &one, &many, &format!("kernels, {what}"));
        }
    }
    done.len()
}

#[test]
fn what_is_repaired_computes_what_one_device_does() {
    let repaired = (0..300).filter(|seed| across(*seed) > 0).count();
    assert!(repaired > 200, "{repaired} graphs needed a repair");
}

/// Clones share operators that do not depend on the batch size.
#[test]
fn operators_know_whether_they_depend_on_the_batch_size() {
    let zoo = zoo::names().map(|name| zoo::build(name).unwrap().0);
    let random = (0..100).flat_map(|seed| [random::graph(seed, 12).0, random::across(seed, 12).0]);
    let mut counts = [0, 0];
    for graph in zoo.chain(random) {
        let repaired = repair(&graph, Repair::Comm).unwrap().into_graph();
        for op in repaired.ids().filter_map(|id| repaired.node(id).op()) {
            let mut part = op.clone();
            part.at_rows(&7.into());
            assert_eq!(part != *op, op.depends_on_batch(), "{op:?}");
            counts[usize::from(op.depends_on_batch())] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}

#[test]
fn what_the_pass_writes_is_proved() {
    for name in zoo::names() {
        let (template, _) = zoo::build(name).unwrap();
        for variant in 0..4 {
            let graph = replicas(&template, 2 + u32::try_from(variant % 4).unwrap(), variant);
            let proof =
                prove(&template, &verified(&graph)).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert!(
                proof.slices >= proof.replicas && proof.merges > 0 && proof.clones > 0,
                "{proof}"
            );
        }
        prove(&template, &verified(&template)).unwrap();
    }
}

/// Every kind was caught by the rule that it names.
pub(crate) fn assert_caught(kinds: &[Mutation], fates: &Fates) {
    let missed = |rule: &str, name: &str| {
        !fates.keys().any(|(kind, fate)| *kind == name && fate.rule() == rule)
    };
    let missed: Vec<_> = kinds.iter().filter(|m| missed(m.rule, m.name)).collect();
    let names: Vec<_> = missed.iter().map(|m| (m.name, m.rule)).collect();
    assert!(missed.is_empty(), "not caught by the rule they name: {names:?}\n{fates:#?}");
}

/// Extremes that are outputs and of which no replica needs the whole.
const EXTREMES: &str = "fanwise 1
symbol N >= 0
graph @extremes(%x: f32[N,4], %y: f32[N,4]) -> (a: f32[4], b: f32[4]) {
  %a : f32[4] = reduce_max(%x) {axes=[0], keepdims=false}
  %m : f32[4] = reduce_max(%y) {axes=[0], keepdims=false}
  %b : f32[4] = neg(%m)
  return %a, %b
}
";

/// That of `FANWISE_SEED`.
fn first_seed() -> u64 {
    // Without one each run has the same mutants.
    support::turn::seed().unwrap_or(0)
}

/// Mutants of this many random graphs, half of them with operators that need all samples, which
/// have more of them; `FANWISE_SEED` gives others.
fn mutants_of_random_graphs(graphs: u64, times: usize) -> Fates {
    let extremes = parse(EXTREMES).unwrap_or_else(|e| panic!("{e}"));
    let first = first_seed();
    each(first..first + graphs / 2, |seed, fates| {
        if seed < first + graphs / 10 {
            mutate(MUTATIONS, (&extremes, &Weights::default()), seed, 3 * times, fates);
        }
        let (graph, weights) = random::graph(seed, 12);
        mutate(MUTATIONS, (&graph, &weights), seed, times, fates);
        let (graph, weights) = random::across(seed, 12);
        mutate(MUTATIONS, (&graph, &weights), seed, 3 * times, fates);
    })
}

/// What becomes of the mutants of all seeds, on all cores.
fn each(seeds: Range<u64>, of_seed: impl Fn(u64, &mut Fates) + Sync) -> Fates {
    let fates = seeds.into_par_iter().fold(Fates::new, |mut fates, seed| {
        of_seed(seed, &mut fates);
        fates
    });
    fates.reduce(Fates::new, |mut all, other| {
        for (fate, count) in other {
            *all.entry(fate).or_default() += count;
        }
        all
    })
}

/// A graph whose replicas have parts, candidates, and what rows before theirs give.
const PARTS: &str = "fanwise 1
symbol N >= 0
graph @parts(%x: f32[N,4], %i: i64[N,4]) -> (m: f32[1,4], r: f32[4,1], y: f32[1,4], j: i64[1,4], \
c: i64[N,4], d: i64[N,4]) {
  %m : f32[1,4] = reduce_max(%x) {axes=[0], keepdims=true}
  %r : f32[4,1] = transpose(%m) {perm=[1, 0]}
  %y : f32[1,4], %j : i64[1,4] = top_k(%x) {axis=0, k=1}
  %c : i64[N,4] = cumsum(%i) {axis=0}
  %d : i64[N,4] = cumsum(%i) {axis=0, exclusive=true, reverse=true}
  return %m, %r, %y, %j, %c, %d
}
";

#[test]
fn no_mutant_that_computes_something_else_is_proved() {
    let mut fates = mutants_of_random_graphs(300, 3);
    let parts = parse(PARTS).unwrap_or_else(|e| panic!("{e}"));
    for seed in 0..12 {
        mutate(MUTATIONS, (&parts, &Weights::default()), seed, 60, &mut fates);
    }
    assert_caught(MUTATIONS, &fates);
}

#[test]
fn rows_of_another_replica_are_refuted() {
    let text = "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N,2]) -> (y: f32[N,2]) {\n  \
        %c : i64[N] = range() {limit=N}\n  %d : f32[N] = cast(%c) {to=f32}\n  \
        %n : f32[N,1] = reshape(%d) {shape=[N, 1]}\n  %y : f32[N,2] = add(%x, %n)\n  return \
        %y\n}\n";
    let model = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let template = repair(&model, Repair::Comm).unwrap().into_graph();
    let graph = repaired_replicas(&model, (4, 0), Repair::Comm);
    let json: Json = serde_json::from_str(&to_json(&graph)).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (shift, rule) in [(shift_slice as Apply, ProofRule::P4), (shift_own_rows, ProofRule::P5)] {
        let mutants = (0..40).filter_map(|_| {
            let mut mutant = json.clone();
            shift(&mut mutant, &mut rng).filter(|()| mutant != json)?;
            Some(fate(&template, &mutant.to_string()).0)
        });
        let fates: Vec<Fate> = mutants.collect();
        assert!(fates.contains(&Fate::Refuted(rule)), "{rule}: {fates:?}\n{graph}");
        assert!(!fates.contains(&Fate::Proved), "{fates:?}\n{graph}");
    }
}

/// Replicas that each join their own part alone, as if it were the whole.
#[test]
fn a_collective_inside_of_a_replica_is_refuted() {
    let text = "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f64[N,3]) -> (y: f64[N,3]) {\n  \
        %p : f64[3] = reduce_sum(%x) {axes=[0], keepdims=false}\n  \
        %y : f64[N,3] = add(%x, %p)\n  return %y\n}\n";
    let model = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let template = repair(&model, Repair::Comm).unwrap().into_graph();
    let how = Replicate { merge: Merge::Cpu, ..options(2, 0, Repair::Comm) };
    let graph = replicate(&model, &how).unwrap().to_string();
    let mutant = (0..2).fold(graph.clone(), |text, replica| {
        let alone = format!("all_reduce(%p.part.r{replica}) {{by=wide_sum, rows=[N]}}");
        let copied = format!("%p.part.all.r{replica}.d : f64[4,3] = ");
        text.replace(&format!("{copied}copy(%p.part.all)"), &format!("{copied}{alone}"))
    });
    assert_eq!(mutant.matches("rows=[N]").count(), 2, "{graph}");
    let mutant = parse(&mutant).unwrap_or_else(|e| panic!("{e}\n{mutant}"));
    assert_eq!(fate(&template, &to_json(&mutant)).0, Fate::Refuted(ProofRule::P5), "{mutant}");
}

/// A replica that draws the rows of another, or others than the template does.
#[test]
fn draws_of_other_rows_are_refuted() {
    let text = "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N,24]) -> (y: f32[N,24]) {\n  \
        %u : f32[N,24] = random_normal() {seed=7, shape=[N, 24]}\n  %a : f32[N,24] = add(%x, \
        %u)\n  \
        CONSTANTS  return %y\n}\n";
    // Two that differ in their last elements alone, behind what replicas do not draw whole.
    let ends = |last: f32| {
        let mut all = vec!["0.0".to_owned(); 23];
        all.push(format!("{last:?}"));
        all.join(", ")
    };
    let constants = format!(
        "%b : f32[24] = constant() {{value=f32[24] [{}]}}\n  %c : f32[24] = constant() \
         {{value=f32[24] [{}]}}\n  \
         %t : f32[N,24] = mul(%a, %b)\n  %y : f32[N,24] = add(%t, %c)\n",
        ends(1.0),
        ends(2.0)
    );
    let model = parse(&text.replace("CONSTANTS", &constants)).unwrap_or_else(|e| panic!("{e}"));
    // So many draws that what is behind them is looked up, among it two equal constants.
    let many: Vec<String> = (0..12)
        .map(|i| {
            let from = if i == 0 { "%a".to_owned() } else { format!("%s{}", i - 1) };
            format!(
                "%u{i} : f32[N,24] = random_uniform() {{seed={i}, shape=[N, 24]}}\n  \
                 %s{i} : f32[N,24] = add({from}, %u{i})\n  "
            )
        })
        .collect();
    let equal = constants.replace("2.0", "1.0").replace("mul(%a, %b)", "mul(%s11, %b)");
    let crowded = parse(&text.replace("CONSTANTS", &(many.concat() + &equal)));
    let crowded = crowded.unwrap_or_else(|e| panic!("{e}"));
    let replicas = repaired_replicas(&crowded, (3, 0), Repair::Comm);
    let whole = repair(&crowded, Repair::Comm).unwrap().into_graph();
    let verified = verify(&replicas).unwrap_or_else(|e| panic!("{e}"));
    assert!(prove(&whole, &verified).is_ok(), "{replicas}");
    let template = repair(&model, Repair::Comm).unwrap().into_graph();
    let graph = repaired_replicas(&model, (3, 0), Repair::Comm);
    let right = graph.to_string();
    let (first, whole) = ("first=", "whole=N");
    let begin = right.rfind(first).unwrap() + first.len();
    let end = begin + right[begin..].find(", seed").unwrap();
    let replaced = |from: &str, to: &str| right.replacen(from, to, 1);
    let others = [
        format!("{}0{}", &right[..begin], &right[end..]),
        replaced(whole, "whole=N + 1"),
        replaced("seed=7", "seed=8"),
    ];
    let proves = |text: &str| {
        let graph = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let verified = verify(&graph).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prove(&template, &verified).is_ok()
    };
    assert!(proves(&right), "{right}");
    for other in others {
        assert!(other != right && !proves(&other), "{other}");
    }
}

/// Mutants of every model of the zoo, fewer of those with many operators, from the first seed on;
/// returns how many there were.
fn mutants_of_the_zoo(nodes: usize) -> usize {
    let names: Vec<&str> = zoo::names().collect();
    let first = first_seed();
    let fates = each(first..first + 4 * names.len() as u64, |seed, fates| {
        let name = names[usize::try_from((seed - first) / 4).unwrap()];
        let (model, weights) = zoo::build(name).unwrap();
        let times = (nodes / model.len()).max(4);
        mutate(MUTATIONS, (&model, &weights), seed, times / 4, fates);
    });
    fates.values().sum()
}

#[test]
fn no_mutant_of_the_zoo_that_computes_something_else_is_proved() {
    let count = mutants_of_the_zoo(2_500);
    assert!(count > 300, "{count} mutants");
}

#[test]
#[ignore = "ten thousand mutants: cargo xtask full"]
fn thousands_of_mutants_that_compute_something_else_are_not_proved() {
    let fates = mutants_of_random_graphs(1_000, 8);
    assert_caught(MUTATIONS, &fates);
    let count = fates.values().sum::<usize>() + mutants_of_the_zoo(6_000);
    assert!(count >= 10_000, "{count} mutants");
}
