//! Mistakes with rows in several blocks.

use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value as Json, json};

use super::{is_slice, nodes, replace, result, sort, source, takes};

/// True of what puts gathered blocks together: a reshape of no replica.
fn is_whole_reshape(node: &Json) -> bool {
    node["op"] == "reshape" && node.get("replica").is_none()
}

/// The type of the value `name`.
fn ty(json: &Json, name: &Json) -> Option<Json> {
    let node = &json["nodes"][source(json, name)?];
    let mut result = node["results"].as_array()?.iter().find(|r| r["name"] == *name)?.clone();
    result.as_object_mut()?.remove("name");
    result.as_object_mut()?.remove("ints");
    Some(result)
}

/// A slice of one of two blocks takes the other one.
pub(super) fn other_block(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let batch = |n: &Json| {
        let (starts, ends) = (&n["attrs"]["starts"]["ints"], &n["attrs"]["ends"]["ints"]);
        is_slice(n) && starts.as_array().is_some_and(|s| s.len() == 1) && ends[0].is_string()
    };
    let all = json.clone();
    let node = nodes(json, rng, batch)?;
    let axis = usize::try_from(node["attrs"]["axes"]["ints"][0].as_u64()?).ok()?;
    let whole = ty(&all, &node["operands"][0]["value"])?["shape"][axis].clone();
    let block = node["results"][0]["shape"][axis].clone();
    let (from, to) =
        if node["attrs"]["starts"]["ints"][0] == 0 { (block, whole) } else { (0.into(), block) };
    node["attrs"]["starts"]["ints"][0] = from;
    node["attrs"]["ends"]["ints"][0] = to;
    Some(())
}

/// One replica's blocks are gathered in the reverse order.
pub(super) fn swap_blocks(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let apart = |n: &Json| {
        n["op"] == "reshape" && result(n).as_str().is_some_and(|n| n.contains(".blocks.r"))
    };
    let reshape = nodes(json, rng, apart)?.clone();
    let (blocks, turned) = (result(&reshape), json!("turned"));
    let mut reverse = reshape;
    reverse["op"] = "reverse".into();
    reverse["attrs"] = json!({ "axes": { "ints": [0] } });
    reverse["operands"] = json!([{ "value": blocks }]);
    reverse["results"][0]["name"] = turned.clone();
    for user in json["nodes"].as_array_mut()?.iter_mut().filter(|n| takes(n, &blocks)) {
        replace(user, &blocks, &turned);
    }
    json["nodes"].as_array_mut()?.push(reverse);
    sort(json)
}

/// The replicas' rows of a value in several blocks are joined without taking the blocks apart.
pub(super) fn blocks_as_one(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let whole = nodes(json, rng, is_whole_reshape)?.clone();
    let gather = source(json, &whole["operands"][0]["value"])?;
    let parts = json["nodes"][gather]["operands"].as_array()?.clone();
    for part in parts {
        let at = source(json, &part["value"])?;
        let mut reshape = json["nodes"][at].clone();
        if reshape["op"] == "copy" {
            reshape = json["nodes"][source(json, &reshape["operands"][0]["value"])?].clone();
        }
        let rows = reshape["operands"][0]["value"].clone();
        let ty = ty(json, &rows)?;
        let node = &mut json["nodes"][at];
        if node["op"] == "copy" {
            node["operands"][0]["value"] = rows;
        } else {
            // The replica is where rows are joined: the reshape leaves them as they are.
            node["attrs"]["shape"]["ints"] = ty["shape"].clone();
        }
        node["results"][0]["shape"] = ty["shape"].clone();
    }
    let shape = whole["results"][0]["shape"].clone();
    let batch = |d: &Json| d.as_str().is_some_and(|d| d.contains('N'));
    let axis = shape.as_array()?.iter().position(batch)?;
    let node = &mut json["nodes"][gather];
    node["attrs"]["axis"]["int"] = axis.into();
    node["results"][0]["shape"] = shape;
    Some(())
}

/// Gathered blocks are interleaved: the rows of all blocks for the first sample, then those for the
/// second.
pub(super) fn interleave(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let reshape = nodes(json, rng, is_whole_reshape)?;
    let mut turn = reshape.clone();
    reshape["operands"] = json!([{ "value": "interleaved" }]);
    turn["op"] = "transpose".into();
    turn["attrs"] = json!({ "perm": { "ints": [1, 0, 2] } });
    let mut ty = ty(json, &turn["operands"][0]["value"])?;
    ty["shape"].as_array_mut().filter(|s| s.len() == 3)?.swap(0, 1);
    ty["name"] = "interleaved".into();
    turn["results"] = json!([ty]);
    json["nodes"].as_array_mut()?.push(turn);
    sort(json)
}

/// What puts gathered blocks together takes those of another value.
pub(super) fn other_blocks(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let values = json["nodes"].as_array()?.iter().filter(|n| is_whole_reshape(n));
    let operands: Vec<Json> = values.map(|n| n["operands"][0]["value"].clone()).collect();
    let other = operands.choose(rng)?.clone();
    let wanted = ty(json, &other)?;
    let all = json.clone();
    let reshape = nodes(json, rng, |n| {
        is_whole_reshape(n) && ty(&all, &n["operands"][0]["value"]).is_some_and(|ty| ty == wanted)
    })?;
    reshape["operands"] = json!([{ "value": other }]);
    sort(json)
}
