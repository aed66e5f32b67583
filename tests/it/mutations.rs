//! Changes to the JSON form of a replicated graph, of which each breaks something.

mod blocks;
mod lookups;
mod updates;

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value as Json, json};

pub(crate) use lookups::LOOKUPS;
pub(crate) use updates::UPDATES;

use blocks::{blocks_as_one, interleave, other_block, other_blocks, swap_blocks};

/// One change to the JSON form of a replicated graph; `None` where the graph has no place for it.
pub(crate) type Apply = fn(&mut Json, &mut ChaCha8Rng) -> Option<()>;

/// A kind of mistake.
pub(crate) struct Mutation {
    /// What it breaks.
    pub(crate) name: &'static str,
    /// The rule that catches it, somewhere: of the proof, or `V` for those of every graph.
    pub(crate) rule: &'static str,
    pub(crate) apply: Apply,
}

/// A mistake of what `name` says, which `rule` catches.
const fn by(rule: &'static str, name: &'static str, apply: Apply) -> Mutation {
    Mutation { name, rule, apply }
}

/// All of them.
pub(crate) const MUTATIONS: &[Mutation] = &[
    by("V", "a slice takes the rows of another replica", shift_slice),
    by("V", "own rows are those of another replica", shift_own_rows),
    by("P7", "a merge takes its parts in another order", swap_parts),
    by("P7", "a merge takes a part twice", double_part),
    by("V", "a merge joins on another axis", merge_axis),
    by("P5", "an operand is another value", other_operand),
    by("P5", "two operands are exchanged", swap_operands),
    by("P5", "a weight is another weight", other_weight),
    by("P3", "the content of a weight is another", other_content),
    by("V", "an operator is on another device", other_device),
    by("V", "an operator belongs to another replica", other_replica),
    by("P5", "an operator is another operator", other_operator),
    by("P5", "an attribute is another in one replica", other_attribute),
    by("V", "a transfer is missing", no_transfer),
    by("V", "a transfer takes the part of another replica", other_part),
    by("P8", "two outputs are exchanged", swap_outputs),
    by("P1", "an output has another name", other_name),
    by("V", "the shards of the split are others", other_shards),
    by("P7", "a reduction takes its parts in another order", swap_reduced),
    by("P7", "a reduction takes a part twice", double_reduced),
    by("P7", "a reduction loses a part", lose_reduced),
    by("P9", "a reduction combines by another rule", other_rule),
    by("P9", "a reduction weighs by the rows of other replicas", other_weights),
    by("P9", "a mean of means", mean_of_means),
    by("P5", "a reduction is missing in one replica", lost_reduction),
    by("P7", "a reduction is applied to its result", doubled_reduction),
    by("V", "a reduction is early", early_reduction),
    by("P6", "a replica takes the whole for its part", whole_for_part),
    by("P7", "rows are gathered in another order", swap_gathered),
    by("V", "rows are gathered on another axis", gather_axis),
    by("V", "a replica takes a whole value for its rows", whole_for_rows),
    by("P7", "a scan takes its parts in another order", swap_scanned),
    by("P10", "a scan runs in the other direction", turn_scan),
    by("P10", "a scan combines by another rule", other_scan),
    by("P10", "a scan takes the rows of other replicas", scan_rows),
    by("P6", "a replica begins with what belongs to another", other_start),
    by("P7", "candidates are merged in another order", swap_candidates),
    by("P11", "candidates are ranked the other way", turn_candidates),
    by("V", "candidates count as those of other rows", candidates_of_others),
    by("P7", "a merge takes one part for the whole", first_for_all),
    by("P9", "a merge combines what has no parts", reduction_for_merge),
    by("P5", "a slice takes another block", other_block),
    by("P5", "the blocks of one replica are exchanged", swap_blocks),
    by("P7", "blocks are joined as if they were one", blocks_as_one),
    by("P5", "gathered blocks are interleaved", interleave),
    by("P8", "gathered blocks are those of another value", other_blocks),
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
    node.get("replica").is_none() && ["concat", "first"].iter().any(|op| node["op"] == *op)
}

fn is_clone(node: &Json) -> bool {
    node.get("replica").is_some() && node["op"] != "copy"
}

fn is_slice(node: &Json) -> bool {
    node["op"] == "slice" && node.get("replica").is_some()
}

fn is_reduction(node: &Json) -> bool {
    node["op"] == "all_reduce"
}

fn is_gather(node: &Json) -> bool {
    node["op"] == "all_gather"
}

/// The name of a node's only result.
fn result(node: &Json) -> Json {
    node["results"][0]["name"].clone()
}

/// True of a node that takes the value `name`.
fn takes(node: &Json, name: &Json) -> bool {
    let operands = node["operands"].as_array().into_iter().flatten();
    operands.clone().any(|o| o.get("value") == Some(name))
}

/// Puts the value `new` in place of `old` among the operands of a node.
fn replace(node: &mut Json, old: &Json, new: &Json) {
    for operand in node["operands"].as_array_mut().into_iter().flatten() {
        if operand.get("value") == Some(old) {
            operand["value"] = new.clone();
        }
    }
}

/// The place of the node that gives the value `name`.
fn source(json: &Json, name: &Json) -> Option<usize> {
    let nodes = json["nodes"].as_array()?;
    nodes
        .iter()
        .position(|n| n["results"].as_array().is_some_and(|r| r.iter().any(|r| r["name"] == *name)))
}

/// A change of the offsets of a slice to those of other rows.
fn shift(node: &mut Json, offsets: &Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let offsets = offsets.as_array()?;
    let from = rng.random_range(0..offsets.len() - 1);
    node["attrs"]["starts"]["ints"][0] = offsets[from].clone();
    node["attrs"]["ends"]["ints"][0] = offsets[from + 1].clone();
    Some(())
}

pub(crate) fn shift_slice(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let offsets = json["split"]["offsets"].clone();
    shift(nodes(json, rng, is_slice)?, &offsets, rng)
}

pub(crate) fn shift_own_rows(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let offsets = json["split"]["offsets"].clone();
    let own = |n: &Json| is_slice(n) && result(n).as_str().is_some_and(|n| n.contains(".own"));
    shift(nodes(json, rng, own)?, &offsets, rng)
}

fn other_part(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let count = json["split"]["devices"].as_array()?.len();
    let copy = nodes(json, rng, |n| n["op"] == "copy")?;
    let own = format!(".r{}", copy["replica"].as_u64()?);
    let other = format!(".r{}", rng.random_range(0..count));
    let name = copy["operands"][0]["value"].as_str()?.replace(&own, &other);
    copy["operands"][0]["value"] = name.into();
    Some(())
}

fn other_name(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    json["outputs"].as_array_mut()?.choose_mut(rng)?["name"] = "other".into();
    Some(())
}

fn swap_reduced(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_reduction)?["operands"], rng)
}

fn double_reduced(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let parts = nodes(json, rng, is_reduction)?["operands"].as_array_mut()?;
    let part = parts.choose(rng)?.clone();
    *parts.choose_mut(rng)? = part;
    Some(())
}

fn lose_reduced(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let node = nodes(json, rng, is_reduction)?;
    let parts = node["operands"].as_array_mut().filter(|p| p.len() > 1)?;
    let lost = rng.random_range(0..parts.len());
    parts.remove(lost);
    node["attrs"]["rows"]["ints"].as_array_mut()?.remove(lost);
    Some(())
}

fn other_rule(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let by = ["sum", "prod", "max", "min", "lse", "l2", "mean"].choose(rng)?;
    nodes(json, rng, is_reduction)?["attrs"]["by"]["name"] = (*by).into();
    Some(())
}

fn other_weights(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_reduction)?["attrs"]["rows"]["ints"], rng)
}

fn mean_of_means(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let attrs = &mut nodes(json, rng, is_reduction)?["attrs"];
    attrs["by"]["name"] = "mean".into();
    for rows in attrs["rows"]["ints"].as_array_mut()? {
        *rows = 1.into();
    }
    Some(())
}

/// In one replica what takes the result of a reduction takes the replica's own part instead.
fn lost_reduction(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let reduction = nodes(json, rng, is_reduction)?.clone();
    let whole = result(&reduction);
    let user = nodes(json, rng, |n| n.get("replica").is_some() && takes(n, &whole))?;
    let replica = usize::try_from(user["replica"].as_u64()?).ok()?;
    replace(user, &whole, &reduction["operands"][replica]["value"]);
    Some(())
}

/// The result of a reduction is reduced again, for one of those that take it.
fn doubled_reduction(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let reduction = nodes(json, rng, is_reduction)?.clone();
    let (whole, again) = (result(&reduction), json!("again"));
    let at = source(json, &whole)?;
    let mut new = reduction;
    new["results"][0]["name"] = again.clone();
    for part in new["operands"].as_array_mut()? {
        *part = json!({ "value": whole.clone() });
    }
    if let Some(user) = nodes(json, rng, |n| takes(n, &whole)) {
        replace(user, &whole, &again);
    } else {
        let mut outputs = json["outputs"].as_array_mut()?.iter_mut();
        outputs.find(|o| o["value"] == whole)?["value"] = again;
    }
    json["nodes"].as_array_mut()?.insert(at + 1, new);
    Some(())
}

/// What a replica reduces is reduced before the operator that gives it, and every replica computes
/// it for itself.
fn early_reduction(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let late = nodes(json, rng, is_reduction)?.clone();
    let late_at = source(json, &result(&late))?;
    let mut early = late.clone();
    early["results"][0]["name"] = "early".into();
    let mut operators = Vec::new();
    let operand = rng.random_range(0..2);
    for part in early["operands"].as_array_mut()? {
        let mut at = source(json, &part["value"])?;
        if json["nodes"][at]["op"] == "copy" {
            at = source(json, &json["nodes"][at]["operands"][0]["value"].clone())?;
        }
        *part = json["nodes"][at]["operands"].get(operand)?.clone();
        operators.push((at, part["value"].clone()));
    }
    let device = &late["device"];
    let list = json["nodes"].as_array_mut()?;
    let mut new = Vec::new();
    for (at, operand) in &operators {
        let mut copy = list[*at].clone();
        copy["op"] = "copy".into();
        copy.as_object_mut()?.remove("attrs");
        copy["results"] = late["results"].clone();
        let (up, down) = (json!(format!("early.up{at}")), json!(format!("early.down{at}")));
        let mut back = copy.clone();
        (copy["operands"], back["operands"]) =
            (json!([{ "value": operand }]), json!([{ "value": "early" }]));
        (copy["results"][0]["name"], back["results"][0]["name"]) = (up.clone(), down.clone());
        copy["device"] = device.clone();
        let same = list[*at]["device"] == *device;
        if !same {
            replace(&mut early, operand, &up);
            new.insert(0, copy);
            new.push(back);
        }
        let taken = if same { json!("early") } else { down };
        let mut clone = list[*at].clone();
        replace(&mut clone, operand, &taken);
        list[*at] = clone;
    }
    let ups = new.iter().filter(|n| n["device"] == *device).count();
    new.insert(ups, early);
    list[late_at]["op"] = "first".into();
    list[late_at].as_object_mut()?.remove("attrs");
    list.extend(new);
    sort(json)
}

/// Puts nodes behind those whose results they take; `None` where that cannot be.
fn sort(json: &mut Json) -> Option<()> {
    let inputs = json["inputs"].as_array()?.iter();
    let mut known: BTreeSet<String> = inputs.map(|i| i["name"].to_string()).collect();
    let mut left = std::mem::take(json["nodes"].as_array_mut()?);
    while !left.is_empty() {
        let ready = |n: &Json| {
            let operands = n["operands"].as_array().into_iter().flatten();
            operands.filter_map(|o| o.get("value")).all(|v| known.contains(&v.to_string()))
        };
        let node = left.remove(left.iter().position(ready)?);
        let results = node["results"].as_array()?.iter();
        known.extend(results.map(|r| r["name"].to_string()));
        json["nodes"].as_array_mut()?.push(node);
    }
    Some(())
}

/// An operator of one replica takes the whole of a value that parts are combined to, where it took
/// a part of one.
fn whole_for_part(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let values = values(json);
    let whole = result(nodes(json, rng, is_reduction)?);
    let ty = values.iter().find(|v| v.0 == whole)?.1.clone();
    let same = values.into_iter().filter(|v| v.1 == ty);
    let same: BTreeSet<String> = same.map(|v| v.0.to_string()).collect();
    let alike = |n: &Json| {
        let values = n["operands"].as_array()?.iter().filter_map(|o| o.get("value"));
        values.into_iter().find(|v| same.contains(&v.to_string())).cloned()
    };
    let user = nodes(json, rng, |n| is_clone(n) && alike(n).is_some())?;
    let part = alike(user)?;
    replace(user, &part, &json!("brought"));
    let (replica, device) = (user["replica"].clone(), user["device"].clone());
    let mut copy = json["nodes"][source(json, &whole)?].clone();
    copy["op"] = "copy".into();
    copy.as_object_mut()?.remove("attrs");
    copy["operands"] = json!([{ "value": whole }]);
    copy["results"][0]["name"] = "brought".into();
    (copy["replica"], copy["device"]) = (replica, device);
    json["nodes"].as_array_mut()?.push(copy);
    sort(json)
}

fn swap_gathered(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_gather)?["operands"], rng)
}

fn is_scan(node: &Json) -> bool {
    node["op"] == "exclusive_scan"
}

fn swap_scanned(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_scan)?["operands"], rng)
}

fn turn_scan(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let attrs = &mut nodes(json, rng, is_scan)?["attrs"];
    let turned = attrs.get("reverse").is_some();
    match attrs.as_object_mut()? {
        attrs if turned => attrs.remove("reverse").map(|_| ()),
        attrs => {
            attrs.insert("reverse".to_owned(), json!({ "bool": true }));
            Some(())
        }
    }
}

fn other_scan(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let by = ["sum", "prod", "max", "min"].choose(rng)?;
    nodes(json, rng, is_scan)?["attrs"]["by"]["name"] = (*by).into();
    Some(())
}

fn scan_rows(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_scan)?["attrs"]["rows"]["ints"], rng)
}

/// What takes one result of a scan takes another.
fn other_start(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let scan = nodes(json, rng, is_scan)?["results"].clone();
    let result = |rng: &mut ChaCha8Rng| Some(scan.as_array()?.choose(rng)?["name"].clone());
    let (old, new) = (result(rng)?, result(rng)?);
    replace(nodes(json, rng, |n| takes(n, &old))?, &old, &new);
    Some(())
}

fn ranks(node: &Json) -> bool {
    node["op"] == "merge_top_k"
}

fn swap_candidates(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let types = values(json);
    let operands = nodes(json, rng, ranks)?["operands"].as_array_mut()?;
    let ty = |o: &Json| types.iter().find(|(name, _)| *name == o["value"]).map(|(_, ty)| ty);
    let a = rng.random_range(0..operands.len());
    let alike = |b: &usize| *b != a && ty(&operands[*b]) == ty(&operands[a]);
    let alike: Vec<usize> = (0..operands.len()).filter(alike).collect();
    operands.swap(a, *alike.choose(rng)?);
    Some(())
}

fn turn_candidates(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let attrs = nodes(json, rng, ranks)?["attrs"].as_object_mut()?;
    if attrs.remove("largest").is_none() {
        attrs.insert("largest".to_owned(), json!({ "bool": false }));
    }
    Some(())
}

fn candidates_of_others(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, ranks)?["attrs"]["entries"]["ints"], rng)
}

fn gather_axis(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    nodes(json, rng, is_gather)?["attrs"]["axis"]["int"] = rng.random_range(0..3).into();
    Some(())
}

fn whole_for_rows(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let slice = nodes(json, rng, is_slice)?.clone();
    let rows = result(&slice);
    replace(nodes(json, rng, |n| takes(n, &rows))?, &rows, &slice["operands"][0]["value"]);
    Some(())
}

fn first_for_all(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let merge = nodes(json, rng, |n| is_reduction(n) || is_gather(n) || is_merge(n))?;
    merge["op"] = "first".into();
    merge.as_object_mut()?.remove("attrs");
    Some(())
}

fn reduction_for_merge(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let reduction = nodes(json, rng, is_reduction)?["attrs"].clone();
    let merge = nodes(json, rng, is_merge)?;
    merge["op"] = "all_reduce".into();
    merge["attrs"] = reduction;
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
