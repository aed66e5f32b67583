//! Mistakes in the updates of parameters, and in what is written once for them.

use rand::Rng;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value as Json, json};

use super::{Mutation, exchange, is_reduction, nodes, values};

/// All of them.
pub(crate) const UPDATES: &[Mutation] = &[
    Mutation { name: "an update is missing", rule: "P12", apply: no_update },
    Mutation { name: "the updates are in another order", rule: "P12", apply: swap_updates },
    Mutation { name: "an update is of another parameter", rule: "P12", apply: other_parameter },
    Mutation { name: "two updates are exchanged", rule: "P12", apply: swap_values },
    Mutation { name: "an update is another value", rule: "P12", apply: other_value },
    Mutation { name: "a parameter keeps its value", rule: "P12", apply: old_value },
    Mutation { name: "an update takes a part of a sum", rule: "V", apply: part },
    Mutation { name: "devices exchange what they are to hold", rule: "V", apply: swap_devices },
    Mutation {
        name: "what is written once is another operator",
        rule: "P5",
        apply: other_operator,
    },
    Mutation { name: "what is written once takes another value", rule: "P5", apply: other_operand },
    Mutation { name: "what is written once exchanges operands", rule: "P5", apply: swap_operands },
];

fn update<'j>(json: &'j mut Json, rng: &mut ChaCha8Rng) -> Option<&'j mut Json> {
    json["updates"].as_array_mut()?.choose_mut(rng)
}

fn no_update(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let updates = json["updates"].as_array_mut()?;
    let at = rng.random_range(0..updates.len());
    updates.remove(at);
    Some(())
}

fn swap_updates(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut json["updates"], rng)
}

fn other_parameter(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let params = json["params"].clone();
    update(json, rng)?["param"] = params.as_array()?.choose(rng)?["name"].clone();
    Some(())
}

fn swap_values(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let updates = json["updates"].as_array_mut().filter(|u| u.len() > 1)?;
    let (a, b) = (rng.random_range(0..updates.len()), rng.random_range(0..updates.len()));
    let values = updates[a]["values"].take();
    updates[a]["values"] = updates[b]["values"].take();
    updates[b]["values"] = values;
    Some(())
}

fn other_value(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let values = values(json);
    let value = update(json, rng)?["values"].as_array_mut()?.choose_mut(rng)?;
    let ty = &values.iter().find(|(name, _)| value.get("value") == Some(name))?.1;
    let alike: Vec<&Json> = values.iter().filter(|v| v.1 == *ty).map(|v| &v.0).collect();
    value["value"] = (*alike.choose(rng)?).clone();
    Some(())
}

fn old_value(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let update = update(json, rng)?;
    let name = update["param"].clone();
    for value in update["values"].as_array_mut()? {
        *value = json!({ "param": name.clone() });
    }
    Some(())
}

fn part(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let parts = nodes(json, rng, is_reduction)?["operands"].clone();
    let part = parts.as_array()?.choose(rng)?.clone();
    *update(json, rng)?["values"].as_array_mut()?.choose_mut(rng)? = part;
    Some(())
}

fn swap_devices(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut update(json, rng)?["values"], rng)
}

/// True of an operator of no replica that merges and moves nothing.
fn is_once(node: &Json) -> bool {
    const OTHERS: [&str; 7] =
        ["copy", "first", "concat", "all_reduce", "all_gather", "merge_top_k", "exclusive_scan"];
    node.get("replica").is_none() && !OTHERS.iter().any(|op| node["op"] == *op)
}

fn other_operator(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    const ALIKE: [&[&str]; 2] = [&["tanh", "neg", "exp"], &["add", "sub", "mul", "div", "max"]];
    let group = ALIKE.choose(rng)?;
    let node = nodes(json, rng, |n| is_once(n) && group.iter().any(|op| n["op"] == *op))?;
    node["op"] = (*group.choose(rng)?).into();
    Some(())
}

fn other_operand(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let values = values(json);
    let node = nodes(json, rng, is_once)?;
    let operand = node["operands"].as_array_mut()?.choose_mut(rng)?;
    let ty = &values.iter().find(|(name, _)| operand.get("value") == Some(name))?.1;
    let alike: Vec<&Json> = values.iter().filter(|v| v.1 == *ty).map(|v| &v.0).collect();
    operand["value"] = (*alike.choose(rng)?).clone();
    Some(())
}

fn swap_operands(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    exchange(&mut nodes(json, rng, is_once)?["operands"], rng)
}
