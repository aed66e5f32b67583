//! Graphs that mix samples, or seem to: with which repairs they may be split, and that they then
//! compute what one device does. A line `; NAME: WITHOUT LOCAL` before each graph says what becomes
//! of it without repairs and with local ones: a code, or `ok`. With all repairs each is split.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fanwise::analysis::prove;
use fanwise::backend::{CPU, Executable, RunError, RunOptions};
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::BindError;
use fanwise::pass::{
    Action, BatchStatistics, Merge, PassError, Repair, RepairOptions, Replicate, repair, replicate,
};
use fanwise::types::{DType, Device, ShardRule, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::programs::{assert_near, assert_promised, executable, inputs};

/// One row of the table.
#[derive(Clone)]
struct Row {
    name: String,
    /// What becomes of the graph without repairs, and with local ones.
    expected: [String; 2],
    graph: Graph,
}

/// A row of the graph `text`, which lacks the first two lines.
fn row(name: &str, without: &str, local: &str, text: &str) -> Row {
    let text = format!("fanwise 1\nsymbol N >= 0\n{text}");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    verify(&graph).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    Row { name: name.to_owned(), expected: [without.to_owned(), local.to_owned()], graph }
}

/// The rows of a table.
fn rows(table: &str) -> Vec<Row> {
    let read = |part: &str| {
        let (head, graph) = part.split_once('\n').unwrap();
        let (name, expected) = head.split_once(": ").unwrap_or_else(|| panic!("{head}"));
        let (without, local) = expected.split_once(' ').unwrap_or_else(|| panic!("{head}"));
        row(name, without, local, graph)
    };
    table.strip_prefix("; ").unwrap().split("\n; ").map(read).collect()
}

/// The ways in which the batch is divided among `count` devices.
fn rules(count: u32) -> [ShardRule; 3] {
    let weights = (0..count).map(|i| i * 3 % 4).collect();
    [ShardRule::RemainderLast, ShardRule::Balanced, ShardRule::Weighted(weights)]
}

fn options(count: u32, rule: ShardRule, allowed: Repair) -> Replicate {
    let devices = (0..count).map(Device::gpu).collect();
    let merge = if rule == ShardRule::Balanced { Merge::Gpu } else { Merge::Cpu };
    Replicate { rule, merge, repair: allowed, ..Replicate::over(devices) }
}

/// The codes with which a graph is refused, or `ok`.
fn verdict(graph: &Graph, allowed: Repair) -> String {
    match replicate(graph, &options(3, ShardRule::Balanced, allowed)) {
        Ok(_) => "ok".to_owned(),
        Err(PassError::Refused(refused)) => {
            let mut codes: Vec<String> = refused.iter().map(|r| r.code.to_string()).collect();
            codes.dedup();
            codes.join("+")
        }
        Err(other) => panic!("{other}"),
    }
}

/// Replaces some numbers by those that many formulas get wrong.
fn spice(inputs: &mut BTreeMap<String, Tensor>, rng: &mut ChaCha8Rng) {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, 1e-40];
    for tensor in inputs.values_mut().filter(|t| t.dtype() == DType::F32) {
        let mut data: Vec<f32> = tensor.as_slice().to_vec();
        for x in &mut data {
            if rng.random_range(0..4) == 0 {
                *x = special[rng.random_range(0..special.len())];
            }
        }
        *tensor = Tensor::new(tensor.dims(), &data).unwrap();
    }
}

/// The inputs and the results of one device, for each batch size; an empty batch only where it is
/// not an error there.
fn expectations(row: &Row) -> Vec<(i64, BTreeMap<String, Tensor>, Vec<Tensor>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let one = executable(&row.graph, &Weights::default(), &CPU, 1);
    let at = |(n, special): (i64, bool)| {
        let mut inputs = inputs(&row.graph, n, &mut rng);
        if special {
            spice(&mut inputs, &mut rng);
        }
        match one.run(&inputs, &RunOptions::default()) {
            Ok(output) => Some((n, inputs, output.outputs.into_iter().map(|(_, t)| t).collect())),
            // Some operators take entries that a small batch has not.
            Err(RunError::Bind(BindError::TooFew { .. })) => None,
            Err(error) => {
                assert_eq!(n, 0, "on one device: {error}");
                None
            }
        }
    };
    let plain = [1, 2, 5, 7, 11, 0].map(|n| (n, false));
    plain.into_iter().chain([(2, true), (5, true), (9, true)]).filter_map(at).collect()
}

/// Checks that the graph is split, proved, and computes what one device does.
fn assert_same(row: &Row, allowed: Repair) {
    let template = repair(&row.graph, allowed).unwrap().into_graph();
    let expected = expectations(row);
    for (i, count) in [2, 3, 5].into_iter().enumerate() {
        // Three devices by every rule, the others by one.
        for (_, rule) in rules(count).into_iter().enumerate().filter(|(r, _)| i == 1 || *r == i) {
            let what = format!("{count} devices, {rule}, {allowed:?}");
            let graph = replicate(&row.graph, &options(count, rule, allowed)).unwrap();
            let verified = verify(&graph).unwrap_or_else(|e| panic!("{what}: {e}"));
            prove(&template, &verified).unwrap_or_else(|e| panic!("{what}: {e}"));
            let many = executable(&graph, &Weights::default(), &CPU, 2);
            for (n, inputs, expected) in &expected {
                let got = many.run(inputs, &RunOptions::default());
                let got = got.unwrap_or_else(|e| panic!("{what}, {n} rows: {e}"));
                let got: Vec<Tensor> = got.outputs.into_iter().map(|(_, t)| t).collect();
                assert_promised(&graph, expected, &got, &format!("{what}, {n} rows"));
            }
        }
    }
}

fn check(row: &Row) {
    for (allowed, expected) in [Repair::None, Repair::Local].into_iter().zip(&row.expected) {
        let found = verdict(&row.graph, allowed);
        assert_eq!(found, *expected, "with {allowed:?}");
        if found == "ok" {
            assert_same(row, allowed);
        }
    }
    assert_eq!(verdict(&row.graph, Repair::Comm), "ok");
    assert_same(row, Repair::Comm);
}

/// Checks every row, and reports all that fail.
fn assert_table(rows: &[Row]) {
    let failure = |row: &Row| {
        let payload = catch_unwind(AssertUnwindSafe(|| check(row))).err()?;
        let message = payload.downcast_ref::<String>().map_or("", String::as_str);
        Some(format!("{}: {message}", row.name))
    };
    let failed: Vec<String> = rows.iter().filter_map(failure).collect();
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), rows.len(), failed.join("\n"));
}

#[test]
fn normalisations_scans_and_orders_along_the_batch() {
    assert_table(&rows(include_str!("repairs/across.txt")));
}

#[test]
fn samples_moved_and_joined() {
    assert_table(&rows(include_str!("repairs/moved.txt")));
}

#[test]
fn rows_in_several_blocks() {
    assert_table(&rows(include_str!("repairs/blocks.txt")));
}

#[test]
fn samples_as_columns_of_products() {
    assert_table(&rows(include_str!("repairs/columns.txt")));
}

/// Every batch up to two rows more than twice the replicas, of which most then have few rows or
/// none.
fn on_one_to_eight_replicas(table: &str) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for row in rows(table).iter().filter(|row| row.expected[1] == "ok") {
        let one = executable(&row.graph, &Weights::default(), &CPU, 1);
        for count in 1..=8u32 {
            let rule = rules(count)[count as usize % 3].clone();
            let rule = if count == 1 { ShardRule::RemainderLast } else { rule };
            let graph = replicate(&row.graph, &options(count, rule, Repair::Local)).unwrap();
            let many = executable(&graph, &Weights::default(), &CPU, 2);
            for n in 0..=2 * i64::from(count) + 1 {
                let inputs = inputs(&row.graph, n, &mut rng);
                let [one, many] = [&one, &many].map(|run| {
                    let output = run.run(&inputs, &RunOptions::default());
                    let output = output.unwrap_or_else(|e| panic!("{}, {n} rows: {e}", row.name));
                    output.outputs.into_iter().map(|(_, t)| t).collect::<Vec<Tensor>>()
                });
                let what = format!("{}, {count} replicas, {n} rows", row.name);
                assert_promised(&graph, &one, &many, &what);
            }
        }
    }
}

#[test]
fn blocks_on_one_to_eight_replicas() {
    on_one_to_eight_replicas(include_str!("repairs/blocks.txt"));
}

#[test]
fn columns_on_one_to_eight_replicas() {
    on_one_to_eight_replicas(include_str!("repairs/columns.txt"));
}

#[test]
fn statistics_of_the_batch() {
    assert_table(&rows(include_str!("repairs/statistics.txt")));
}

#[test]
fn sizes_and_positions_of_the_batch() {
    assert_table(&rows(include_str!("repairs/sizes.txt")));
}

/// The reductions, and whether their parts over floats and over integers combine.
const REDUCTIONS: [(&str, bool, bool); 10] = [
    ("reduce_sum", true, true),
    ("reduce_mean", true, false),
    ("reduce_max", true, true),
    ("reduce_min", true, true),
    ("reduce_prod", true, true),
    ("reduce_l1", true, true),
    ("reduce_l2", true, false),
    ("reduce_log_sum", false, false),
    ("reduce_log_sum_exp", true, false),
    ("reduce_sum_square", true, true),
];

/// Reductions of `[N, 4]` over the samples, alone and with all else, and of `[2, N]`.
fn reductions(dtype: &str, keepdims: bool) -> Vec<Row> {
    let shapes = [
        ("[N,4]", "0", "[4]", "[1,4]"),
        ("[N,4]", "0, 1", "[]", "[1,1]"),
        ("[2,N]", "1", "[2]", "[2,1]"),
    ];
    let mut rows = Vec::new();
    for (op, floats, integers) in REDUCTIONS {
        for (from, axes, gone, kept) in shapes {
            let to = if keepdims { kept } else { gone };
            // Positive numbers, so that sums do not cancel.
            let cancels = dtype == "f32" && !["reduce_max", "reduce_min"].contains(&op);
            let positive = if cancels { "exp" } else { "identity" };
            let text = format!(
                "graph @g(%x: {dtype}{from}) -> (y: {dtype}{to}) {{\n\
                 %p : {dtype}{from} = {positive}(%x)\n\
                 %y : {dtype}{to} = {op}(%p) {{axes=[{axes}], keepdims={keepdims}}}\n\
                 return %y\n}}\n"
            );
            let combines = if dtype == "f32" { floats } else { integers };
            let expected = if combines { "ok" } else { "R0111" };
            let name = format!("{op} of {dtype}{from} over {axes}, keepdims={keepdims}");
            rows.push(row(&name, expected, expected, &text));
        }
    }
    rows
}

#[test]
fn reductions_of_floats_over_the_batch() {
    assert_table(&[reductions("f32", false), reductions("f32", true)].concat());
}

#[test]
fn reductions_of_integers_over_the_batch() {
    assert_table(&[reductions("i64", false), reductions("i64", true)].concat());
}

#[test]
fn positions_of_extremes_over_the_batch() {
    let mut rows = Vec::new();
    for (op, keepdims, last) in [("arg_max", false), ("arg_min", true)]
        .into_iter()
        .flat_map(|(op, k)| [(op, k, false), (op, k, true), (op, !k, true)])
    {
        // Integers of a small range have ties.
        for (dtype, from, axis, gone, kept) in [
            ("f32", "[N,4]", 0, "[4]", "[1,4]"),
            ("i64", "[N,4]", 0, "[4]", "[1,4]"),
            ("i64", "[2,N]", -1, "[2]", "[2,1]"),
            ("i64", "[N]", 0, "[]", "[1]"),
        ] {
            let to = if keepdims { kept } else { gone };
            let text = format!(
                "graph @g(%x: {dtype}{from}) -> (y: i64{to}) {{\n\
                 %y : i64{to} = {op}(%x) {{axis={axis}, keepdims={keepdims}, \
                 select_last_index={last}}}\n\
                 return %y\n}}\n"
            );
            let name = format!("{op} of {dtype}{from}, keepdims={keepdims}, last={last}");
            rows.push(row(&name, "R0106", "R0106", &text));
        }
    }
    assert_table(&rows);
}

/// A masked mean of all elements of `[N, 4]`.
const MASKED_MEAN: &str = "\
graph @g(%x: f32[N,4], %m: f32[N,4]) -> (y: f32[]) {
  %p : f32[N,4] = mul(%x, %m)
  %num : f32[] = reduce_sum(%p) {axes=[0, 1], keepdims=false}
  %den : f32[] = reduce_sum(%m) {axes=[0, 1], keepdims=false}
  %y : f32[] = div(%num, %den)
  return %y
}
";

#[test]
fn masked_means_are_not_means_of_means() {
    let row = row("masked mean", "R0111", "R0111", MASKED_MEAN);
    // The first device has the rows 0 to 1, the second the rows 2 to 4; they have 8 and 1 valid
    // elements.
    let x: Vec<f32> = (1u8..=20).map(f32::from).collect();
    let m: Vec<f32> = (0..20).map(|i| if i < 8 || i == 19 { 1.0 } else { 0.0 }).collect();
    let tensor = |rows: &[f32]| Tensor::new(&[rows.len() / 4, 4], rows).unwrap();
    let mean = |graph: &Graph, rows: std::ops::Range<usize>| {
        let of = |all: &[f32]| tensor(&all[rows.start * 4..rows.end * 4]);
        let inputs = BTreeMap::from([("x".to_owned(), of(&x)), ("m".to_owned(), of(&m))]);
        let run = executable(graph, &Weights::default(), &CPU, 2);
        run.run(&inputs, &RunOptions::default()).unwrap().outputs[0].1.to_f64()[0]
    };
    let graph = replicate(&row.graph, &options(2, ShardRule::RemainderLast, Repair::Comm)).unwrap();
    let one = mean(&row.graph, 0..5);
    assert!((one - 56.0 / 9.0).abs() < 1e-6, "{one}");
    assert!((mean(&graph, 0..5) - one).abs() < 1e-6);
    let of_means = (2.0 * mean(&row.graph, 0..2) + 3.0 * mean(&row.graph, 2..5)) / 5.0;
    assert!((of_means - one).abs() > 1.0, "{of_means} and {one}");
}

/// The graphs of a table whose operators have as many results as one device, on every small batch:
/// the bits of integers and of positions, one device and up to eight.
#[test]
fn scans_and_candidates_on_every_small_batch() {
    let graphs = [
        "graph @g(%x: i64[N,3]) -> (y: i64[N,3]) {
  %y : i64[N,3] = cumsum(%x) {axis=0, exclusive=EXCLUSIVE, reverse=REVERSE}
  return %y
}
",
        "graph @g(%x: i64[N,3]) -> (y: i64[N,3]) {
  %y : i64[N,3] = cumprod(%x) {axis=0, exclusive=EXCLUSIVE, reverse=REVERSE}
  return %y
}
",
        "graph @g(%x: i64[N,3]) -> (y: i64[2,3], i: i64[2,3]) {
  %y : i64[2,3], %i : i64[2,3] = top_k(%x) {axis=0, k=2, largest=REVERSE}
  return %y, %i
}
",
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for (text, variant) in graphs.iter().flat_map(|text| (0..4).map(move |v| (text, v))) {
        let text = text.replace("EXCLUSIVE", &(variant % 2 == 0).to_string());
        let row = row("small", "", "", &text.replace("REVERSE", &(variant < 2).to_string()));
        let one = executable(&row.graph, &Weights::default(), &CPU, 1);
        for count in 1..=8u32 {
            let rule = rules(count)[usize::try_from(count % 3).unwrap()].clone();
            let graph = replicate(&row.graph, &options(count, rule, Repair::Comm)).unwrap();
            let many = executable(&graph, &Weights::default(), &CPU, 2);
            for n in 0..=i64::from(2 * count + 1) {
                let inputs = inputs(&row.graph, n, &mut rng);
                let run = |on: &dyn Executable| on.run(&inputs, &RunOptions::default());
                match (run(&one), run(&many)) {
                    (Ok(one), Ok(many)) => assert_eq!(one.outputs, many.outputs, "{n} {graph}"),
                    (Err(one), Err(many)) => {
                        assert!(
                            n < 2 && one.to_string().contains("needs 2 or more entries"),
                            "{one}"
                        );
                        assert!(many.to_string().contains("needs 2 or more entries"), "{many}");
                    }
                    (one, many) => panic!("{n} rows: {one:?} {many:?}"),
                }
            }
        }
    }
}

/// Batch normalisation while training, of images.
const BATCH_NORM: &str = "\
graph @g(%x: f32[N,3,2], %scale: f32[3], %bias: f32[3], %mean: f32[3], %v: f32[3]) -> (y: \
f32[N,3,2], m: f32[3], s: f32[3]) {
  %y : f32[N,3,2], %m : f32[3], %s : f32[3] = batch_norm_train(%x, %scale, %bias, %mean, %v)
  return %y, %m, %s
}
";

/// The template with the statistics of so many groups of rows.
fn ghost(graph: &Graph, groups: u32, allowed: Repair) -> Graph {
    let statistics = BatchStatistics::Ghost(groups.try_into().unwrap());
    let options = RepairOptions { batch_norm: Some(statistics), ..RepairOptions::new(allowed) };
    repair(graph, options).unwrap().into_graph().into_owned()
}

fn outputs(executable: &dyn Executable, inputs: &BTreeMap<String, Tensor>) -> Vec<Tensor> {
    let output = executable.run(inputs, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    output.outputs.into_iter().map(|(_, t)| t).collect()
}

/// The outputs by the definition: each group as one batch.
fn by_groups(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    (n, groups): (usize, usize),
) -> [Vec<f64>; 3] {
    let one = executable(graph, &Weights::default(), &CPU, 1);
    let x = &inputs["x"];
    let (mut y, mut current) = (Vec::new(), [vec![0.0; 3], vec![0.0; 3]]);
    for group in 0..groups {
        let (from, to) = (group * n / groups, (group + 1) * n / groups);
        let rows = Tensor::new(&[to - from, 3, 2], &x.as_slice::<f32>()[from * 6..to * 6]).unwrap();
        // Where nothing stays, the running statistics are those of the rows.
        let none = Tensor::new(&[3], &[0f32; 3]).unwrap();
        let mut own = inputs.clone();
        own.extend([
            ("x".to_owned(), rows),
            ("mean".to_owned(), none.clone()),
            ("v".to_owned(), none),
        ]);
        let results = outputs(&one, &own);
        y.extend(results[0].to_f64());
        let share = f64::from(u32::try_from(to - from).unwrap())
            / f64::from(u32::try_from(n.max(1)).unwrap());
        for (sum, of) in current.iter_mut().zip(&results[1..]) {
            for (sum, of) in sum.iter_mut().zip(of.to_f64()) {
                // A tenth is taken of what is current.
                *sum += of * 10.0 * share;
            }
        }
    }
    let running = |old: &Tensor, current: &[f64]| {
        let both = old.to_f64().into_iter().zip(current);
        both.map(|(old, new)| if n == 0 { old } else { 0.9 * old + 0.1 * new }).collect()
    };
    let [mean, var] = &current;
    [y, running(&inputs["mean"], mean), running(&inputs["v"], var)]
}

#[test]
fn statistics_of_groups_are_those_of_any_number_of_devices() {
    let row = row("ghost", "", "", BATCH_NORM);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for groups in [1, 2, 3, 4, 8] {
        let template = ghost(&row.graph, groups, Repair::None);
        let one = executable(&template, &Weights::default(), &CPU, 1);
        for count in 1..=8u32 {
            let template = ghost(&row.graph, groups, Repair::Local);
            for rule in [ShardRule::Balanced, ShardRule::RemainderLast] {
                // Each replica has whole groups.
                let whole = rule == ShardRule::Balanced && groups.is_multiple_of(count);
                let what = format!("{groups} groups, {count} devices, {rule}");
                let options = options(count, rule, Repair::None);
                let graph =
                    replicate(&template, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
                let verified = verify(&graph).unwrap_or_else(|e| panic!("{what}: {e}"));
                prove(&template, &verified).unwrap_or_else(|e| panic!("{what}: {e}"));
                let many = executable(&graph, &Weights::default(), &CPU, 2);
                for n in 0..=i64::from(2 * count + 1) {
                    let mut inputs = inputs(&row.graph, n, &mut rng);
                    let v =
                        inputs["v"].as_slice::<f32>().iter().map(|x| x.abs()).collect::<Vec<_>>();
                    inputs.insert("v".to_owned(), Tensor::new(&[3], &v).unwrap());
                    let (one, many) = (outputs(&one, &inputs), outputs(&many, &inputs));
                    assert_promised(&graph, &one, &many, &format!("{what}, {n} rows"));
                    assert!(!whole || one == many, "{what}, {n} rows: in every bit");
                    let sizes = (usize::try_from(n).unwrap(), usize::try_from(groups).unwrap());
                    for (one, expected) in one.iter().zip(by_groups(&row.graph, &inputs, sizes)) {
                        let expected = Tensor::new(one.dims(), &expected).unwrap();
                        let one = Tensor::new(one.dims(), &one.to_f64()).unwrap();
                        assert_near(&[one], &[expected], &what);
                    }
                }
            }
        }
    }
}

#[test]
fn groups_are_of_rows_on_the_first_axis() {
    let options = |groups: &str| RepairOptions {
        batch_norm: Some(groups.parse().unwrap()),
        ..RepairOptions::new(Repair::Comm)
    };
    let row = row("ghost", "", "", BATCH_NORM);
    let repaired = repair(&row.graph, options("ghost:4")).unwrap();
    let (done, _) = (repaired.repairs().to_vec(), repaired.into_graph());
    assert_eq!(done[0].action, Action::GhostStatistics(4));
    assert!(done[0].to_string().contains("statistics of 4 groups of rows"), "{}", done[0]);
    let columns = BATCH_NORM.replace("[N,3,2]", "[2,3,N]");
    let columns = self::row("columns", "", "", &columns);
    let repaired = repair(&columns.graph, options("ghost:4")).unwrap();
    let (done, graph) = (repaired.repairs().to_vec(), repaired.into_graph());
    assert!(done.is_empty() && graph.to_string().contains("batch_norm_train"));
    let without = BATCH_NORM.replace("[N,3,2]", "[4,3,2]");
    let without = without
        .replace("@g(%x", "@g(%n: f32[N], %x")
        .replace("(y: f32[4,3,2]", "(n: f32[N], y: f32[4,3,2]");
    let without = without.replace("return %y", "return %n, %y");
    let without = self::row("without", "", "", &without);
    assert!(repair(&without.graph, options("ghost:4")).unwrap().repairs().is_empty());
}
