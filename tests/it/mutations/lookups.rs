//! Mistakes in lookups that each replica makes in its own rows.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value as Json;

use super::{Mutation, by, is_slice, nodes, shift_own_rows};

/// All of them.
pub(crate) const LOOKUPS: &[Mutation] = &[
    by("P5", "a replica looks up the next entry", next_entry),
    by("P5", "a replica's rows are another stride apart", other_stride),
    by("V", "a replica's rows begin one row early", early_rows),
    by("P5", "own rows are those of another replica", shift_own_rows),
];

/// Adds 1 to a number of a constant of type `i64` with so many axes, in one replica.
fn add_one(json: &mut Json, rng: &mut ChaCha8Rng, rank: usize) -> Option<()> {
    let wanted = |n: &Json| {
        let tensor = &n["attrs"]["value"]["tensor"];
        let is_integer = n["op"] == "constant" && tensor["dtype"] == "i64";
        let dims = tensor["dims"].as_array().map(Vec::len);
        is_integer && n.get("replica").is_some() && dims == Some(rank)
    };
    let tensor = &mut nodes(json, rng, wanted)?["attrs"]["value"]["tensor"];
    // 16 digits for each number, the lowest byte first.
    let mut data = tensor["data"].as_str()?.to_owned();
    let at = 16 * rng.random_range(0..data.len() / 16);
    let low = u8::from_str_radix(data.get(at..at + 2)?, 16).ok()?;
    data.replace_range(at..at + 2, &format!("{:02x}", low.checked_add(1)?));
    tensor["data"] = data.into();
    Some(())
}

fn next_entry(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    add_one(json, rng, 1)
}

fn other_stride(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    add_one(json, rng, 0)
}

fn early_rows(json: &mut Json, rng: &mut ChaCha8Rng) -> Option<()> {
    let attrs =
        &mut nodes(json, rng, |n| is_slice(n) && n["attrs"]["starts"]["ints"][0] != 0)?["attrs"];
    for end in ["starts", "ends"] {
        let size = &mut attrs[end]["ints"][0];
        *size = format!("{}-1", size.as_str()?).into();
    }
    Some(())
}
