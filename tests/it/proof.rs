//! The proof of replicated graphs: it holds for what the pass writes, and for no graph that computes something else.

use std::collections::BTreeMap;

use fanwise::analysis::{ProofError, ProofRule, prove};
use fanwise::ir::{Graph, Verified, Weights, from_json, to_json, verify};
use fanwise::zoo;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value as Json;

use crate::programs::{inputs, naive, replicas};
use crate::random;

/// One change to the JSON form of a replicated graph; `None` where the graph has no place for it.
type Mutation = fn(&mut Json, &mut ChaCha8Rng) -> Option<()>;

/// The mutations: what each breaks.
const MUTATIONS: &[(&str, Mutation)] = &[
    ("a slice takes the rows of another replica", shift_slice),
    ("a merge takes its parts in another order", swap_parts),
    ("a merge takes a part twice", double_part),
    ("a merge joins on another axis", merge_axis),
    ("an operand is another value", other_operand),
    ("two operands are exchanged", swap_operands),
    ("a weight is another weight", other_weight),
    ("the content of a weight is another", other_content),
    ("an operator is on another device", other_device),
    ("an operator belongs to another replica", other_replica),
    ("an operator is another operator", other_operator),
    ("an attribute is another in one replica", other_attribute),
    ("a transfer is missing", no_transfer),
    ("two outputs are exchanged", swap_outputs),
    ("the shards of the split are others", other_shards),
];

fn nodes<'j>(
    json: &'j mut Json,
    rng: &mut ChaCha8Rng,
    wanted: impl Fn(&Json) -> bool,
) -> Option<&'j mut Json> {
    let nodes = json["nodes"].as_array_mut()?;
    let places: Vec<usize> = (0..nodes.len()).filter(|i| wanted(&nodes[*i])).collect();
    nodes.get_mut(*places.choose(rng)?)
}

fn is_merge(node: &Json) -> bool {
    node.get("replica").is_none() && (node["op"] == "concat" || node["op"] == "first")
}

fn is_clone(node: &Json) -> bool {
    node.get("replica").is_some() && node["op"] != "copy"
}

fn shift_slice(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let offsets = json["split"]["offsets"].clone();
    let offsets = offsets.as_array()?;
    let node = nodes(json, rng, |n| n["op"] == "slice" && n.get("replica").is_some())?;
    let from = rng.random_range(0..offsets.len() - 1);
    let to = rng.random_range(from + 1..offsets.len());
    node["attrs"]["starts"]["ints"][0] = offsets[from].clone();
    node["attrs"]["ends"]["ints"][0] = offsets[to].clone();
    Some(())
}

fn exchange(list: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let list = list.as_array_mut().filter(|l| l.len() > 1)?;
    let (a, b) = (rng.random_range(0..list.len()), rng.random_range(0..list.len()));
    list.swap(a, b);
    Some(())
}

fn swap_parts(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_merge)?["operands"], rng)
}

fn double_part(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let parts = nodes(json, rng, is_merge)?["operands"].as_array_mut()?;
    let part = parts.choose(rng)?.clone();
    *parts.choose_mut(rng)? = part;
    Some(())
}

fn merge_axis(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let node = nodes(json, rng, |n| is_merge(n) && n["op"] == "concat")?;
    node["attrs"]["axis"]["int"] = rng.random_range(0..3).into();
    Some(())
}

/// The name and the type of every result and input, as a text each.
fn values(json: &Json) -> Vec<(Json, String)> {
    let of = |r: &Json| (r["name"].clone(), format!("{}{}", r["dtype"], r["shape"]));
    let inputs = json["inputs"].as_array().into_iter().flatten().map(of);
    let nodes = json["nodes"].as_array().into_iter().flatten();
    let results = nodes.flat_map(|n| n["results"].as_array().into_iter().flatten()).map(of);
    inputs.chain(results).collect()
}

fn other_operand(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let values = values(json);
    let node = nodes(json, rng, |n| n.get("replica").is_some())?;
    let operands = node["operands"].as_array_mut()?;
    let operand = operands.choose_mut(rng)?;
    let ty = &values.iter().find(|(name, _)| *name == operand["value"])?.1;
    let alike: Vec<&Json> = values.iter().filter(|v| v.1 == *ty).map(|v| &v.0).collect();
    operand["value"] = (*alike.choose(rng)?).clone();
    Some(())
}

fn swap_operands(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_clone)?["operands"], rng)
}

fn other_weight(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let params = json["params"].clone();
    let names: Vec<&Json> = params.as_array()?.iter().map(|p| &p["name"]).collect();
    let takes_param = |n: &Json| {
        n["operands"].as_array().is_some_and(|o| o.iter().any(|o| o.get("param").is_some()))
    };
    let node = nodes(json, rng, takes_param)?;
    let mut operands = node["operands"].as_array_mut()?.iter_mut();
    operands.find(|o| o.get("param").is_some())?["param"] = (*names.choose(rng)?).clone();
    Some(())
}

fn other_content(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    json["params"].as_array_mut()?.choose_mut(rng)?["blake3"] = "0123456789abcdef".into();
    Some(())
}

fn other_device(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let devices = json["split"]["devices"].clone();
    nodes(json, rng, is_clone)?["device"] = devices.as_array()?.choose(rng)?.clone();
    Some(())
}

fn other_replica(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let count = json["split"]["devices"].as_array()?.len();
    nodes(json, rng, |n| n.get("replica").is_some())?["replica"] =
        rng.random_range(0..count).into();
    Some(())
}

fn other_operator(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    const ALIKE: [&[&str]; 3] = [
        &["relu", "tanh", "sigmoid", "neg", "exp", "abs"],
        &["add", "sub", "mul", "min", "max"],
        &["reduce_sum", "reduce_max", "reduce_min", "reduce_mean"],
    ];
    let group = ALIKE.choose(rng)?;
    let node = nodes(json, rng, |n| is_clone(n) && group.iter().any(|op| n["op"] == *op))?;
    node["op"] = (*group.choose(rng)?).into();
    Some(())
}

fn other_attribute(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let node = nodes(json, rng, |n| is_clone(n) && n.get("attrs").is_some())?;
    let attrs = node["attrs"].as_object_mut()?;
    let names: Vec<String> = attrs.keys().cloned().collect();
    let attr = attrs.get_mut(names.choose(rng)?)?;
    if let Some(int) = attr.get_mut("int").filter(|i| i.is_number()) {
        *int = (int.as_i64()? + rng.random_range(-1..2)).into();
    } else if let Some(int) = attr.get_mut("ints").and_then(|i| i.as_array_mut()?.choose_mut(rng)) {
        *int = rng.random_range(0..4).into();
    } else if let Some(float) = attr.get_mut("float") {
        *float = "0.125".into();
    } else if let Some(flag) = attr.get_mut("bool") {
        *flag = (!flag.as_bool()?).into();
    }
    Some(())
}

fn no_transfer(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let copy = nodes(json, rng, |n| n["op"] == "copy")?.clone();
    let (from, to) = (&copy["operands"][0], &copy["results"][0]["name"]);
    let users = json["nodes"].as_array_mut()?.iter_mut();
    for operand in users.flat_map(|n| n["operands"].as_array_mut().into_iter().flatten()) {
        if operand.get("value") == Some(to) {
            *operand = from.clone();
        }
    }
    Some(())
}

fn swap_outputs(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let outputs = json["outputs"].as_array_mut().filter(|o| o.len() > 1)?;
    let (a, b) = (rng.random_range(0..outputs.len()), rng.random_range(0..outputs.len()));
    let value = outputs[a]["value"].take();
    outputs[a]["value"] = outputs[b]["value"].take();
    outputs[b]["value"] = value;
    Some(())
}

fn other_shards(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let offsets = json["split"]["offsets"].as_array_mut()?;
    let offset = offsets.choose(rng)?.clone();
    *offsets.choose_mut(rng)? = offset;
    Some(())
}

/// What became of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
enum Fate {
    Unreadable,
    Invalid,
    Refuted(ProofRule),
    Proved,
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

/// Mutates the replicas of a graph `times` times, and counts what becomes of each kind.
fn mutate(
    (template, weights): (&Graph, &Weights),
    seed: u64,
    times: usize,
    fates: &mut BTreeMap<(&'static str, Fate), usize>,
) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = rng.random_range(2..5);
    let replicated = replicas(template, count, seed);
    prove(template, &verified(&replicated)).unwrap_or_else(|e| panic!("{seed}: {e:?}"));
    let json: Json = serde_json::from_str(&to_json(&replicated)).unwrap();
    for _ in 0..times {
        let (name, mutation) = MUTATIONS.choose(&mut rng).unwrap();
        let mut mutant = json.clone();
        if mutation(&mut mutant, &mut rng).is_none() || mutant == json {
            continue;
        }
        let (fate, graph) = fate(template, &mutant.to_string());
        *fates.entry((*name, fate)).or_default() += 1;
        let Some(graph) = graph.filter(|_| fate == Fate::Proved) else { continue };
        for n in [1, 7] {
            let inputs = inputs(template, n, &mut rng);
            let (want, got) =
                (naive(template, weights, &inputs, n), naive(&graph, weights, &inputs, n));
            assert!(
                want == got,
                "{name}, seed {seed}: proved, and computes something else\n{mutant}"
            );
        }
    }
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

#[test]
fn no_mutant_that_computes_something_else_is_proved() {
    let mut fates = BTreeMap::new();
    for seed in 0..1000 {
        let (graph, weights) = random::graph(seed, 12);
        mutate((&graph, &weights), seed, 10, &mut fates);
    }
    for (name, ..) in MUTATIONS {
        let caught = fates.iter().filter(|((kind, fate), _)| kind == name && *fate != Fate::Proved);
        assert!(caught.count() > 0, "{name} is never caught");
    }
    for rule in [ProofRule::P3, ProofRule::P4, ProofRule::P5, ProofRule::P7, ProofRule::P8] {
        let refuted = fates.keys().any(|(_, fate)| *fate == Fate::Refuted(rule));
        assert!(refuted, "{rule} refutes no mutant");
    }
}
