//! Lookups by numbers that are computed from the number of the row, as exporters write attention
//! masks and `x[arange(N), index]`: simplification makes them lookups within the row where they
//! are, and the graph then splits; where they are not, results stay what they were.

use fanwise::ir::{Graph, Model, Weights, parse, verify};
use fanwise::pass::{SimplifyOptions, simplify};
use fanwise::types::Tensor;
use fanwise::{Error, Session};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::mutations::LOOKUPS;
use crate::proof::{Fates, assert_caught, mutate};

fn graph(body: &str) -> Graph {
    let text = format!("fanwise 1\nsymbol N >= 0\n{body}");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&graph).unwrap_or_else(|e| panic!("{e}\n{text}"));
    graph
}

fn simplified(graph: &Graph) -> Graph {
    let (mut simple, mut weights) = (graph.clone(), Weights::default());
    simplify(&mut simple, &mut weights, &SimplifyOptions::default()).unwrap();
    verify(&simple).unwrap_or_else(|e| panic!("{e}\n{simple}"));
    assert!(weights.is_empty(), "numbers of rows are no parameters");
    simple
}

fn session(graph: &Graph, gpus: Option<u32>) -> Result<Session, Error> {
    let builder = Session::builder(Model::new(graph.clone(), Weights::default()));
    gpus.map_or_else(
        || Session::new(Model::new(graph.clone(), Weights::default())),
        |gpus| builder.gpus(gpus).build(),
    )
}

/// The rows `rows` of `x: f32[N,a,b]`, each element with its own value, and for each an entry.
fn inputs(rows: usize, [a, b]: [usize; 2], rng: &mut ChaCha8Rng) -> [(&'static str, Tensor); 2] {
    let elements: Vec<f32> = (0u16..).take(rows * a * b).map(f32::from).collect();
    let entries: Vec<i64> =
        (0..rows).map(|_| rng.random_range(0..i64::try_from(a).unwrap())).collect();
    [
        ("x", Tensor::new(&[rows, a, b], &elements).unwrap()),
        ("entry", Tensor::new(&[rows], &entries).unwrap()),
    ]
}

/// Whether two sessions give the same for batches of `least` to 7 rows, or both an error.
fn agree(
    one: &Session,
    other: &Session,
    sizes: [usize; 2],
    least: usize,
    rng: &mut ChaCha8Rng,
) -> bool {
    (least..8).all(|rows| {
        let given = inputs(rows, sizes, rng);
        match (one.run(given.clone()), other.run(given)) {
            (Ok(expected), Ok(found)) => expected["y"] == found["y"],
            (expected, found) => expected.is_err() && found.is_err(),
        }
    })
}

/// Fails unless the graph gives, on one device and on several, what it gives without
/// simplification; `splits` says whether it may be split then.
fn check(body: &str, sizes: [usize; 2], splits: bool, rng: &mut ChaCha8Rng) {
    let original = graph(body);
    let simple = simplified(&original);
    let one = session(&original, None).unwrap();
    let others: Vec<Session> = match session(&simple, Some(2)) {
        Ok(two) if splits => {
            vec![session(&simple, None).unwrap(), two, session(&simple, Some(3)).unwrap()]
        }
        Err(_) if !splits => vec![session(&simple, None).unwrap()],
        Ok(_) => panic!("is split\n{simple}"),
        Err(error) => panic!("{error}\n{simple}"),
    };
    for other in &others {
        assert!(agree(&one, other, sizes, 0, rng), "{body}\n{simple}");
    }
}

/// The numbers `a*row + r` for the entries `r` of `rests`, written in one of several ways, as `%at`
/// of the type `i64[N,k]`.
fn numbers(a: i64, rests: &[i64], rng: &mut ChaCha8Rng) -> String {
    let k = rests.len();
    let listed = rests.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let constant = format!("  %rest : i64[{k}] = constant() {{value=i64[{k}] [{listed}]}}\n");
    let scalar = |name: &str, value: i64| {
        format!("  %{name} : i64[] = constant() {{value=i64[] [{value}]}}\n")
    };
    let range = "  %rows : i64[N] = range() {limit=N}\n\
        %column : i64[N,1] = unsqueeze(%rows) {axes=[1]}\n";
    let product = format!("{}  %first : i64[N,1] = mul(%column, %a)\n", scalar("a", a));
    match rng.random_range(0..4) {
        0 => format!("{range}{constant}{product}  %at : i64[N,{k}] = add(%first, %rest)\n"),
        // The multiples are a range themselves; the row is subtracted as often as it is too much.
        1 => format!(
            "  %rows : i64[N] = range() {{delta={}, limit={}*N}}\n\
                %one : i64[N] = range() {{limit=N}}\n\
             {constant}  %some : i64[N] = sub(%rows, %one)\n\
                 %first : i64[N,1] = reshape(%some) {{shape=[N, 1]}}\n  \
             %at : i64[N,{k}] = add(%rest, %first)\n",
            a + 1,
            a + 1
        ),
        // Twice the number, halved.
        2 => format!(
            "{range}{constant}{}{}  %first : i64[N,1] = mul(%column, %a)\n\
                %both : i64[N,{k}] = add(%first, %twice)\n  \
             %at : i64[N,{k}] = div(%both, %two)\n",
            scalar("a", 2 * a),
            scalar("two", 2)
        )
        .replace("%both :", &format!("%twice : i64[{k}] = add(%rest, %rest)\n  %both :")),
        // Repeated for each entry before anything is added, from the transposed.
        _ => format!(
            "{range}{constant}{product}  %turned : i64[1,N] = transpose(%first) {{perm=[1, 0]}}\n  \
             %wide : i64[{k},N] = expand(%turned) {{shape=[{k}, N]}}\n  \
             %back : i64[N,{k}] = transpose(%wide) {{perm=[1, 0]}}\n\
                 %at : i64[N,{k}] = add(%back, %rest)\n"
        ),
    }
}

#[test]
fn entries_of_the_own_row_are_looked_up_in_it() {
    let mut rng = ChaCha8Rng::seed_from_u64(21);
    for _ in 0..60 {
        let [a, b] = [rng.random_range(1..5usize), rng.random_range(1..4usize)];
        let own = i64::try_from(a).unwrap();
        let rests: Vec<i64> =
            (0..rng.random_range(1..6)).map(|_| rng.random_range(0..own)).collect();
        let (k, flat) = (rests.len(), format!("[{a}*N, {b}]").replace("[1*N", "[N"));
        let body = |at: &str, x: &str, gather: &str| {
            let ty = flat.replace(", ", ",");
            format!(
                "graph @g(%x: f32[N,{a},{b}], %entry: i64[N]) -> (y: f32[N,{k},{b}]) {{\n{at}  \
                 %flat : f32{ty} = reshape({x}) {{shape={flat}}}\n\
                     %y : f32[N,{k},{b}] = {gather}\n\
                     return %y\n}}\n"
            )
        };
        let good = numbers(own, &rests, &mut rng);
        check(&body(&good, "%x", "gather(%flat, %at)"), [a, b], true, &mut rng);
        // One entry too far, and another stride: they reach into other rows, or beyond the last.
        let mut far = rests.clone();
        far[0] = own;
        let far = numbers(own, &far, &mut rng);
        check(&body(&far, "%x", "gather(%flat, %at)"), [a, b], false, &mut rng);
        let steep = numbers(own + 1, &rests, &mut rng);
        check(&body(&steep, "%x", "gather(%flat, %at)"), [a, b], false, &mut rng);
        let mut back = rests.clone();
        back[0] = -1;
        let back = numbers(own, &back, &mut rng);
        check(&body(&back, "%x", "gather(%flat, %at)"), [a, b], false, &mut rng);
    }
}

#[test]
fn numbers_of_one_axis_belong_to_their_rows() {
    let mut rng = ChaCha8Rng::seed_from_u64(25);
    for _ in 0..30 {
        let [a, b] = [rng.random_range(1..5usize), rng.random_range(1..4usize)];
        let (own, k) = (i64::try_from(a).unwrap(), rng.random_range(1..5usize));
        let rests: Vec<i64> = (0..k).map(|_| rng.random_range(0..own)).collect();
        let body = |at: &str| {
            format!(
                "graph @g(%x: f32[N,{a},{b}], %entry: i64[N]) -> (y: f32[N,{k},{b}]) {{\n{at}  \
                 %all : i64[{k}*N] = reshape(%at) {{shape=[{k}*N]}}\n  \
                 %flat : f32[{a}*N,{b}] = reshape(%x) {{shape=[{a}*N, {b}]}}\n  \
                 %picked : f32[{k}*N,{b}] = gather(%flat, %all)\n  \
                 %y : f32[N,{k},{b}] = reshape(%picked) {{shape=[N, {k}, {b}]}}\n  return %y\n}}\n"
            )
            .replace("[1*N", "[N")
        };
        check(&body(&numbers(own, &rests, &mut rng)), [a, b], true, &mut rng);
        let mut far = rests.clone();
        far[k - 1] = own;
        check(&body(&numbers(own, &far, &mut rng)), [a, b], false, &mut rng);
        check(&body(&numbers(own + 1, &rests, &mut rng)), [a, b], false, &mut rng);
    }
}

/// The two best of each row's four entries, by the numbers of entries among those of all rows, as
/// detectors pick their queries.
#[test]
fn the_best_of_each_row_are_looked_up_in_it() {
    let mut rng = ChaCha8Rng::seed_from_u64(26);
    let body = |repeated: &str, lookup: &str| {
        format!(
            "graph @g(%x: f32[N,4,3], %entry: i64[N]) -> (y: f32[N,2,3]) {{\n  \
             %score : f32[N,4] = reduce_max(%x) {{axes=[2], keepdims=false}}\n  \
             %best : f32[N,2], %place : i64[N,2] = top_k(%score) {{axis=1, k=2}}\n  \
             %own : i64[2*N] = reshape(%place) {{shape=[2*N]}}\n  \
             %rows : i64[N] = range() {{limit=N}}\n{repeated}\
             {lookup}  %y : f32[N,2,3] = reshape(%picked) {{shape=[N, 2, 3]}}\n  return %y\n}}\n"
        )
    };
    let tiled = "  %column : i64[N,1] = unsqueeze(%rows) {axes=[1]}
  %twice : i64[N,2] = tile(%column) {repeats=[1, 2]}
  %row : i64[2*N] = reshape(%twice) {shape=[2*N]}
";
    let entry = |stride: i64| {
        format!(
            "  %stride : i64[] = constant() {{value=i64[] [{stride}]}}\n  \
             %first : i64[2*N] = mul(%row, %stride)\n  %at : i64[2*N] = add(%own, %first)\n  \
             %flat : f32[4*N,3] = reshape(%x) {{shape=[4*N, 3]}}\n  \
             %picked : f32[2*N,3] = gather(%flat, %at)\n"
        )
    };
    let coordinates = "  %r : i64[2*N,1] = unsqueeze(%row) {axes=[1]}
  %e : i64[2*N,1] = unsqueeze(%own) {axes=[1]}
  %at : i64[2*N,2] = concat(%r, %e) {axis=1}
  %picked : f32[2*N,3] = gather_nd(%x, %at)
";
    for lookup in [&entry(4), coordinates] {
        check(&body(tiled, lookup), [4, 3], true, &mut rng);
    }
    for stride in [3, 5] {
        check(&body(tiled, &entry(stride)), [4, 3], false, &mut rng);
    }
    // All rows once, and all rows again.
    let again = "  %twice : i64[2,N] = expand(%rows) {shape=[2, N]}
  %row : i64[2*N] = reshape(%twice) {shape=[2*N]}
";
    for lookup in [&entry(4), coordinates] {
        check(&body(again, lookup), [4, 3], false, &mut rng);
    }
}

#[test]
fn an_element_of_each_row_may_be_named_by_an_input() {
    let mut rng = ChaCha8Rng::seed_from_u64(22);
    let head = "graph @g(%x: f32[N,4,3], %entry: i64[N]) -> (y: f32[N,3]) {\n\
        %rows : i64[N] = range() {limit=N}\n";
    let coordinates = "  %a : i64[N,1] = unsqueeze(%rows) {axes=[1]}\n\
        %b : i64[N,1] = unsqueeze(%entry) {axes=[1]}\n";
    let by_row = format!(
        "{head}{coordinates}  %at : i64[N,2] = concat(%a, %b) {{axis=-1}}\n\
            %y : f32[N,3] = gather_nd(%x, %at)\n\
            return %y\n}}\n"
    );
    check(&by_row, [4, 3], true, &mut rng);
    // The other way around the rows are picked by the input.
    let by_input = by_row.replace("concat(%a, %b)", "concat(%b, %a)");
    check(&by_input, [4, 3], false, &mut rng);
    // The position of the largest element is below 4, an input may be anything.
    let flat = |entry: &str| {
        format!(
            "{head}  %four : i64[] = constant() {{value=i64[] [4]}}\n\
                %first : i64[N] = mul(%rows, %four)\n{entry}  \
             %at : i64[N] = add(%first, %own)\n\
                 %flat : f32[4*N,3] = reshape(%x) {{shape=[4*N, 3]}}\n  \
             %y : f32[N,3] = gather(%flat, %at)\n  return %y\n}}\n"
        )
    };
    let rest = "  %own : i64[N] = mod(%entry, %four)\n";
    check(&flat(rest), [4, 3], true, &mut rng);
    let largest = "  %score : f32[N,4] = reduce_max(%x) {axes=[2], keepdims=false}\n\
           %own : i64[N] = arg_max(%score) {axis=1, keepdims=false}\n";
    check(&flat(largest), [4, 3], true, &mut rng);
    let identity = "  %own : i64[N] = identity(%entry)\n";
    check(&flat(identity), [4, 3], false, &mut rng);
}

#[test]
fn updates_that_each_row_writes_are_its_own() {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let body = |row: &str, parts: &str, reduction: &str| {
        format!(
            "graph @g(%x: f32[N,4,3], %entry: i64[N]) -> (y: f32[N,4,3]) {{\n\
                %rows : i64[N] = range() {{limit=N}}\n{row}  \
             %a : i64[N,1,1] = reshape(%row) {{shape=[N, 1, 1]}}\n\
                %twice : i64[N,2,1] = expand(%a) {{shape=[N, 2, 1]}}\n\
                %b : i64[N,1,1] = reshape(%entry) {{shape=[N, 1, 1]}}\n\
                %zero : i64[] = constant() {{value=i64[] [0]}}\n\
                %c : i64[N,1,1] = mul(%b, %zero)\n\
                %own : i64[N,2,1] = concat(%b, %c) {{axis=1}}\n\
                %at : i64[N,2,2] = concat({parts}) {{axis=-1}}\n\
                %some : f32[N,2,3] = slice(%x) {{axes=[1], ends=[3], starts=[1], steps=[1]}}\n\
                %new : f32[N,2,3] = neg(%some)\n\
                %y : f32[N,4,3] = scatter_nd(%x, %at, %new){reduction}\n\
                return %y\n}}\n"
        )
    };
    let own = "  %row : i64[N] = identity(%rows)\n";
    for reduction in ["", " {reduction=add}", " {reduction=mul}", " {reduction=max}"] {
        check(&body(own, "%twice, %own", reduction), [4, 3], true, &mut rng);
    }
    // The entry names the row, the next row is written, or every second.
    check(&body(own, "%own, %twice", ""), [4, 3], false, &mut rng);
    let moved = |op: &str, by: i64| {
        format!(
            "  %by : i64[] = constant() {{value=i64[] [{by}]}}\n\
                %row : i64[N] = {op}(%rows, %by)\n"
        )
    };
    for wrong in [moved("add", 1), moved("sub", 1), moved("mul", 2)] {
        check(&body(&wrong, "%twice, %own", ""), [4, 3], false, &mut rng);
    }
}

/// Two entries of each row's four, and one that an input names; the numbers of the rows are results
/// too.
const LOOKED_UP: &str = "graph @g(%x: f32[N,4,3], %entry: i64[N]) -> (y: f32[N,2,3], z: f32[N,3], \
    n: i64[N]) {
  %rows : i64[N] = range() {limit=N}
  %four : i64[] = constant() {value=i64[] [4]}
  %first : i64[N] = mul(%rows, %four)
  %column : i64[N,1] = unsqueeze(%first) {axes=[1]}
  %rest : i64[2] = constant() {value=i64[2] [3, 1]}
  %at : i64[N,2] = add(%column, %rest)
  %flat : f32[4*N,3] = reshape(%x) {shape=[4*N, 3]}
  %y : f32[N,2,3] = gather(%flat, %at)
  %own : i64[N] = mod(%entry, %four)
  %named : i64[N] = add(%first, %own)
  %z : f32[N,3] = gather(%flat, %named)
  %n : i64[N] = add(%rows, %entry)
  return %y, %z, %n
}
";

#[test]
fn mutants_of_lookups_in_own_rows_are_refuted() {
    let (model, mut fates) = (simplified(&graph(LOOKED_UP)), Fates::new());
    for seed in 0..12 {
        mutate(LOOKUPS, (&model, &Weights::default()), seed, 40, &mut fates);
    }
    assert_caught(LOOKUPS, &fates);
}

/// A rewrite that takes another entry, another row, or entries another stride apart, would not pass
/// [`check`].
#[test]
fn wrong_rewrites_compute_something_else() {
    let mut rng = ChaCha8Rng::seed_from_u64(24);
    let original = graph(LOOKED_UP);
    let one = session(&original, None).unwrap();
    let right = simplified(&original).to_string();
    let line = |has: &str| {
        let found = right.lines().find(|line| line.contains(has));
        found.unwrap_or_else(|| panic!("no {has}\n{right}"))
    };
    let entries = line("i64[2] [3, 1]");
    let rows = line("%y.rows : f32[N,4,3] = reshape(%flat)");
    let last_first = "  %there : f32[N,4,3] = reshape(%flat) {shape=[N, 4, 3]}
  %y.rows : f32[N,4,3] = slice(%there) {axes=[0], ends=[-1], starts=[N-1], steps=[-1]}";
    let interleaved = "  %apart : f32[4,N,3] = reshape(%flat) {shape=[4, N, 3]}
  %y.rows : f32[N,4,3] = transpose(%apart) {perm=[1, 0, 2]}";
    let wrong = [
        (entries, entries.replace("[3, 1]", "[3, 2]")),
        (rows, last_first.to_owned()),
        (rows, interleaved.to_owned()),
    ];
    let mutants = wrong.map(|(line, other)| right.replacen(line, &other, 1));
    for (text, same) in [(&right, true)].into_iter().chain(mutants.iter().map(|m| (m, false))) {
        let other = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        verify(&other).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let other = session(&other, None).unwrap();
        // One row has no other.
        assert_eq!(agree(&one, &other, [4, 3], 2, &mut rng), same, "{text}");
    }
}
