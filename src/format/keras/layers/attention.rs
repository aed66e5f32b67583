//! Attention of sequences to sequences.

use super::activation::{masked_softmax, single};
use super::core::{einsum_product, rows};
use super::entry::layers;
use super::reshaping::tiled;
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Dropout, Einsum, Formula};
use crate::types::DType;
use crate::types::invariant::int as narrow;

layers! {
    "MultiHeadAttention" Kept => multi_head;
    "GroupedQueryAttention" Kept => grouped_query;
    "Attention" Own => |at, args| plain(at, args, false);
    "AdditiveAttention" Own => |at, args| plain(at, args, true);
}

/// The tensors of an attention, and their masks.
struct Operands {
    query: Tensor,
    value: Tensor,
    key: Tensor,
    /// The steps that count: of the query, of the values, and of keys that are not the values.
    masks: [Option<Value>; 3],
    /// How far from each other steps may be that see each other, and one more.
    window: Option<i64>,
    /// Whether steps see only those before them.
    is_causal: bool,
    /// The pairs of steps that the call allows.
    allowed: Option<Value>,
}

impl Operands {
    fn read(at: &mut At<'_, '_>, args: &Args<'_>, is_grouped: bool) -> Read<Self> {
        let missing = || Fault::new("it is called without a query or a value");
        let query = args.opt_tensor(0, "query")?.ok_or_else(missing)?;
        let value = args.opt_tensor(1, "value")?.ok_or_else(missing)?;
        let key = args.opt_tensor(2, "key")?;
        let window = at.config.opt_int("sliding_window")?;
        if window.is_some_and(|window| window <= 0) {
            return Err(Fault::field("sliding_window", "is not above 0"));
        }
        let mut masks = [query.mask, value.mask, key.and_then(|key| key.mask)];
        for (i, name) in ["query_mask", "value_mask", "key_mask"].into_iter().enumerate() {
            let Some(given) = args.opt_tensor(3 + i, name)? else { continue };
            // Keras takes the query's own mask in any case, but for grouped heads.
            if i > 0 || is_grouped {
                masks[i] = Some(truth(at, given)?);
            }
        }
        let allowed = args.opt_tensor(6, "attention_mask")?;
        let allowed = allowed.map(|mask| truth(at, mask)).transpose()?;
        let is_causal = is_set(args, 9, "use_causal_mask")?;
        // Without keys the values are the keys.
        let key = key.unwrap_or(value);
        Ok(Self { query, value, key, masks, window, is_causal, allowed })
    }

    /// Which steps of the values each step of the queries sees: `[N, 1…, steps, steps]`.
    fn mask(&self, at: &mut At<'_, '_>) -> Read<Option<Value>> {
        let mut all = self.allowed;
        for (mask, axis) in self.masks.into_iter().zip([-1, -2, -2]) {
            let Some(mask) = mask else { continue };
            let mask = at.unsqueeze(mask, vec![axis])?;
            all = Some(both(at, all, mask)?);
        }
        if self.is_causal || self.window.is_some() {
            let (query, value) = (self.query, self.value);
            let (query, value) = (at.natural(query)?, at.natural(value)?);
            let steps = [at.extent(query, 1)?, at.extent(value, 1)?];
            if self.is_causal {
                let mask = causal(at, steps)?;
                all = Some(both(at, all, mask)?);
            }
            if let Some(window) = self.window {
                let mask = near(at, steps, window)?;
                all = Some(both(at, all, mask)?);
            }
        }
        Ok(all)
    }
}

/// A truth value that a call gives as a constant.
fn is_set(args: &Args<'_>, position: usize, name: &str) -> Read<bool> {
    let value = args.constant(position, name)?;
    Ok(value.is_some_and(|value| value == serde_json::Value::Bool(true)))
}

fn both(at: &mut At<'_, '_>, all: Option<Value>, mask: Value) -> Read<Value> {
    match all {
        Some(all) => at.and(all, mask),
        None => Ok(mask),
    }
}

/// A mask that a call gives, as truth values.
fn truth(at: &mut At<'_, '_>, mask: Tensor) -> Read<Value> {
    let mask = at.natural(mask)?;
    at.cast(mask, DType::Bool)
}

/// The numbers of steps, along a column and along a row.
fn step_numbers(at: &mut At<'_, '_>, [queries, values]: [i64; 2]) -> Read<(Value, Value)> {
    let rows = at.count_to(queries.into(), DType::I64)?;
    let columns = at.count_to(values.into(), DType::I64)?;
    Ok((at.unsqueeze(rows, vec![1])?, columns))
}

/// For each pair of steps whether they are less than `window` apart.
fn near(at: &mut At<'_, '_>, steps: [i64; 2], window: i64) -> Read<Value> {
    let (rows, columns) = step_numbers(at, steps)?;
    let apart = at.sub(rows, columns)?;
    let apart = at.abs(apart)?;
    let window = at.number(apart, window as f64)?;
    let mask = at.less(apart, window)?;
    at.unsqueeze(mask, vec![0])
}

/// For each pair of steps whether the second one is not later than the first one.
pub(super) fn causal(at: &mut At<'_, '_>, steps: [i64; 2]) -> Read<Value> {
    let (rows, columns) = step_numbers(at, steps)?;
    let mask = at.greater_or_equal(rows, columns)?;
    at.unsqueeze(mask, vec![0])
}

/// What a layer of several heads is given.
struct Heads {
    dropout: f64,
    /// The shape of the result's last axes, if it is not that of the query.
    output: Option<Vec<i64>>,
    has_bias: bool,
    /// The factor of the products.
    scale: f64,
    /// Whether several heads of queries share one of keys.
    is_grouped: bool,
    /// The size of heads by which the result is gated.
    gate: Option<i64>,
    /// The axes of steps, of which each one sees each other one.
    axes: Vec<usize>,
}

/// The attribute of a layer that a projection is: gates and those of grouped heads are private.
fn attribute(heads: &Heads, name: &str) -> String {
    let is_private = heads.is_grouped || name == "gate";
    format!("{}{name}_dense", if is_private { "_" } else { "" })
}

/// The projection of a sequence to heads, as a part of the layer.
fn project(
    at: &mut At<'_, '_>,
    name: &str,
    x: Value,
    sizes: [i64; 2],
    heads: &Heads,
) -> Read<Value> {
    let rank = at.rank(x);
    let axes: String = ('a'..='s').take(rank - 1).collect();
    let equation = format!("{axes}x,xyz->{axes}yz");
    let sizes = sizes.map(Some);
    let bias = heads.has_bias.then_some("yz");
    at.part(&attribute(heads, name), name, |at| einsum_product(at, x, &equation, &sizes, bias))
}

/// The factors of the result of heads, if they have any.
fn gate(at: &mut At<'_, '_>, query: Value, count: i64, heads: &Heads) -> Read<Option<Value>> {
    let Some(size) = heads.gate else { return Ok(None) };
    let gate = project(at, "gate", query, [count, size], heads)?;
    at.sigmoid(gate).map(Some)
}

/// The result of heads, `[…, heads, size]`, as features of the result.
fn joined(at: &mut At<'_, '_>, x: Value, heads: &Heads, features: i64) -> Read<Value> {
    let rank = at.rank(x);
    let output = heads.output.clone().unwrap_or_else(|| vec![features]);
    let axes: String = ('a'..='m').take(rank - 2).collect();
    let labels: String = ('n'..='w').take(output.len()).collect();
    let equation = format!("{axes}yz,yz{labels}->{axes}{labels}");
    let sizes: Vec<Option<i64>> = output.into_iter().map(Some).collect();
    let bias = heads.has_bias.then_some(labels.as_str());
    at.part(&attribute(heads, "output"), "attention_output", |at| {
        einsum_product(at, x, &equation, &sizes, bias)
    })
}

/// The weighted sums of the values, and the weights.
struct Attended {
    result: Value,
    scores: Value,
}

/// The equations of the products of queries and keys, and of weights and values: the labels of an
/// operand `[N, steps…, heads, size]` are small, those of steps of the keys large.
fn equations(rank: usize, axes: &[usize]) -> [String; 2] {
    let query: Vec<char> = ('a'..='z').take(rank).collect();
    let is_step = |i: &usize| axes.contains(i);
    let other = |i: usize| if is_step(&i) { query[i].to_ascii_uppercase() } else { query[i] };
    let key: String = (0..rank).map(other).collect();
    let kept = (0..rank.saturating_sub(1)).filter(|i| !is_step(i)).map(|i| query[i]);
    let steps = axes.iter().map(|i| query[*i]).chain(axes.iter().map(|i| other(*i)));
    let scores: String = kept.chain(steps).collect();
    let query: String = query.iter().collect();
    [format!("{query},{key}->{scores}"), format!("{scores},{key}->{query}")]
}

fn attend(
    at: &mut At<'_, '_>,
    operands: [Value; 3],
    mask: Option<Value>,
    heads: &Heads,
    zeroes: bool,
) -> Read<Attended> {
    let [query, key, value] = operands;
    let [products, sums] = equations(at.rank(query), &heads.axes);
    let query = at.scale(query, heads.scale)?;
    let scores = at.op(Einsum { equation: products }, &[query, key])?;
    // Heads stand behind the batch; a mask of the call may have them, too.
    let (rank, count) = (at.rank(scores), heads.axes.len());
    let behind = -1 - 2 * narrow::<i64>(count);
    let mut mask = mask;
    while let Some(own) = mask.filter(|mask| at.rank(*mask) < rank) {
        mask = Some(at.unsqueeze(own, vec![behind])?);
    }
    let over: Vec<usize> = (rank - count..rank).collect();
    let scores = if zeroes || mask.is_none() {
        masked_softmax(at, scores, mask, &over)?
    } else {
        low_softmax(at, scores, mask)?
    };
    let mut weights = scores;
    if heads.dropout > 0.0 {
        weights = at.op(Dropout { mask: false, rate: single(heads.dropout) }, &[scores])?;
    }
    Ok(Attended { result: at.op(Einsum { equation: sums }, &[weights, value])?, scores })
}

/// The softmax over the last axis. Where nothing is seen, all is seen alike.
pub(super) fn low_softmax(at: &mut At<'_, '_>, scores: Value, mask: Option<Value>) -> Read<Value> {
    let Some(mask) = mask else { return at.softmax(scores, -1) };
    let low = if at.ty_of(scores) == DType::F16 { -32_752.0 } else { f64::from(f32::MIN) * 0.7 };
    let low = at.number(scores, low)?;
    let scores = at.choose(mask, scores, low)?;
    at.softmax(scores, -1)
}

fn multi_head<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let count = at.config.count("num_heads")?;
    let size = at.config.count("key_dim")?;
    // Without a size of their own the values have that of the keys.
    let value_size = at.config.opt_int("value_dim")?.unwrap_or(size);
    let heads = Heads {
        dropout: at.config.number("dropout", 0.0)?,
        output: at.config.one_or_more("output_shape")?,
        has_bias: at.config.flag("use_bias", true)?,
        scale: 1.0 / (size as f64).sqrt(),
        is_grouped: false,
        gate: at.config.flag("use_gate", false)?.then_some(value_size),
        axes: Vec::new(),
    };
    at.config.ignore(&["flash_attention", "query_shape", "key_shape", "value_shape"]);
    let operands = Operands::read(at, args, false)?;
    let (query, key, value) =
        (at.floats(operands.query)?, at.floats(operands.key)?, at.floats(operands.value)?);
    if at.rank(query) < 3 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(query))));
    }
    let axes = step_axes(at, query)?;
    let heads = Heads { axes, ..heads };
    let features = at.extent(query, at.rank(query) - 1)?;
    let input = query;
    let query = project(at, "query", query, [count, size], &heads)?;
    let key = project(at, "key", key, [count, size], &heads)?;
    let gate = gate(at, input, count, &heads)?;
    let value = project(at, "value", value, [count, value_size], &heads)?;
    ended(at, args, &operands, &Projected { all: [query, key, value], gate, features }, &heads)
}

/// The axes of steps of a query: those between the batch and the features, or those that the
/// configuration names.
fn step_axes(at: &At<'_, '_>, query: Value) -> Read<Vec<usize>> {
    let rank = at.rank(query);
    let Some(given) = at.config.one_or_more("attention_axes")? else {
        return Ok((1..rank - 1).collect());
    };
    let axes = given.iter().map(|axis| at.axis(query, *axis)).collect::<Read<Vec<usize>>>()?;
    let are_steps = axes.iter().all(|axis| (1..rank - 1).contains(axis));
    let are_own = (1..axes.len()).all(|i| !axes[..i].contains(&axes[i]));
    if axes.is_empty() || !are_steps || !are_own {
        return Err(Fault::field("attention_axes", format!("is {given:?}")));
    }
    Ok(axes)
}

/// Projected operands.
struct Projected {
    /// The query, the key and the value.
    all: [Value; 3],
    gate: Option<Value>,
    /// The features of the query.
    features: i64,
}

/// The attention of projected operands, and what the call wants of it.
fn ended<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    operands: &Operands,
    projected: &Projected,
    heads: &Heads,
) -> Read<Arg<'c>> {
    let wants_scores = is_set(args, 7, "return_attention_scores")?;
    let mask = operands.mask(at)?;
    // Keras has two ways, which differ where a step sees nothing.
    let zeroes = heads.dropout > 0.0 || wants_scores || at.rank(projected.all[0]) != 4;
    let Attended { mut result, scores } = attend(at, projected.all, mask, heads, zeroes)?;
    if let Some(gate) = projected.gate {
        result = at.mul(result, gate)?;
    }
    let y = joined(at, result, heads, projected.features)?;
    if wants_scores {
        return Ok(Arg::List(vec![y.into(), scores.into()]));
    }
    Ok(y.into())
}

fn grouped_query<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let size = at.config.count("head_dim")?;
    let queries = at.config.count("num_query_heads")?;
    let keys = at.config.count("num_key_value_heads")?;
    let heads = Heads {
        dropout: at.config.number("dropout", 0.0)?,
        output: None,
        has_bias: at.config.flag("use_bias", true)?,
        scale: 1.0 / (size as f64).sqrt(),
        is_grouped: true,
        gate: at.config.flag("use_gate", false)?.then_some(size),
        axes: vec![1],
    };
    at.config.ignore(&["flash_attention"]);
    let operands = Operands::read(at, args, true)?;
    let (query, key, value) =
        (at.floats(operands.query)?, at.floats(operands.key)?, at.floats(operands.value)?);
    let (features, input) = (at.extent(query, 2)?, query);
    let query = project(at, "query", query, [queries, size], &heads)?;
    let key = project(at, "key", key, [keys, size], &heads)?;
    let gate = gate(at, input, queries, &heads)?;
    let value = project(at, "value", value, [keys, size], &heads)?;
    let (key, value) = (shared_heads(at, key, queries)?, shared_heads(at, value, queries)?);
    ended(at, args, &operands, &Projected { all: [query, key, value], gate, features }, &heads)
}

/// Keys or values `[N, T, heads, size]` with a copy of each head for each of the queries' heads
/// that share it.
pub(super) fn shared_heads(at: &mut At<'_, '_>, x: Value, queries: i64) -> Read<Value> {
    let [steps, own, size] = [at.extent(x, 1)?, at.extent(x, 2)?, at.extent(x, 3)?];
    if own == 0 || queries % own != 0 {
        return Err(Fault::new(format!("{queries} heads of queries share {own} heads of keys")));
    }
    if own == queries {
        return Ok(x);
    }
    let apart = at.unsqueeze(x, vec![3])?;
    let all = tiled(at, apart, &[1, 1, 1, queries / own, 1])?;
    rows(at, all, &[steps, queries, size])
}

/// The attention of `[query, value]` or `[query, value, key]`, without heads.
fn plain<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_additive: bool) -> Read<Arg<'c>> {
    let dropout = at.config.number("dropout", 0.0)?;
    let has_scale = at.config.flag("use_scale", is_additive)?;
    let mode = if is_additive {
        at.config.ignore(&["score_mode"]);
        "additive"
    } else {
        at.config.text("score_mode", "dot")?
    };
    let tensors = args.first()?.tensors();
    let (query, value, key) = match tensors[..] {
        [query, value] => (query, value, value),
        [query, value, key] => (query, value, key),
        _ => return Err(Fault::new(format!("it is called with {} tensors", tensors.len()))),
    };
    let is_causal = is_set(args, 4, "use_causal_mask")?;
    let wants_scores = is_set(args, 3, "return_attention_scores")?;
    let own_mask = query.mask;
    let [query_mask, mut mask] = plain_masks(at, args, [query, value])?;
    let (query, value, key) = (at.floats(query)?, at.floats(value)?, at.floats(key)?);
    let mut scores = scores(at, [query, key], has_scale, mode)?;
    if let Some(own) = mask {
        mask = Some(at.unsqueeze(own, vec![1])?);
    }
    if is_causal {
        let steps = [at.extent(query, 1)?, at.extent(value, 1)?];
        let own = causal(at, steps)?;
        mask = Some(both(at, mask, own)?);
    }
    if let Some(mask) = mask {
        let most = if at.ty_of(scores) == DType::F16 { 65_504.0 } else { 1.0e9 };
        let low = at.shift(scores, -most)?;
        scores = at.choose(mask, scores, low)?;
    }
    let scores = at.softmax(scores, -1)?;
    let weights = if dropout > 0.0 {
        at.op(Dropout { mask: false, rate: single(dropout) }, &[scores])?
    } else {
        scores
    };
    let mut y = at.matmul(weights, value)?;
    if let Some(mask) = query_mask {
        let rows = at.unsqueeze(mask, vec![2])?;
        y = at.only(rows, y)?;
    }
    let y = Tensor { value: y, is_first: false, mask: own_mask };
    if wants_scores { Ok(Arg::List(vec![y.into(), scores.into()])) } else { Ok(y.into()) }
}

/// The masks of a query and its values: those of the call, or their own.
fn plain_masks(
    at: &mut At<'_, '_>,
    args: &Args<'_>,
    tensors: [Tensor; 2],
) -> Read<[Option<Value>; 2]> {
    let own = tensors.map(|tensor| tensor.mask);
    let Some(given) = args.opt(1, "mask") else { return Ok(own) };
    let Arg::List(given) = given else { return Err(Fault::new("argument `mask` is no list")) };
    let mut masks = [None, None];
    for (mask, given) in masks.iter_mut().zip(given) {
        if let Arg::Tensor(given) = given {
            *mask = Some(truth(at, *given)?);
        }
    }
    Ok(masks)
}

/// The scores of each pair of steps.
fn scores(
    at: &mut At<'_, '_>,
    [query, key]: [Value; 2],
    has_scale: bool,
    mode: &str,
) -> Read<Value> {
    let is_additive = mode == "additive";
    let features = if is_additive { vec![at.extent(query, 2)?] } else { Vec::new() };
    let scale = if has_scale { Some(at.weight("scale", &features)?) } else { None };
    match mode {
        "dot" => {
            let keys = at.transposed(key)?;
            let scores = at.matmul(query, keys)?;
            scale.map_or(Ok(scores), |scale| at.mul(scores, scale))
        }
        "additive" | "concat" => sums(at, [query, key], scale, is_additive),
        mode => Err(Fault::field("score_mode", format!("is `{mode}`"))),
    }
}

/// Scores that are sums over the features of a function of the sum of both.
fn sums(
    at: &mut At<'_, '_>,
    [query, key]: [Value; 2],
    scale: Option<Value>,
    is_additive: bool,
) -> Read<Value> {
    let query = at.unsqueeze(query, vec![2])?;
    let key = at.unsqueeze(key, vec![1])?;
    let mut sum = at.add(query, key)?;
    if let Some(scale) = scale.filter(|_| !is_additive) {
        sum = at.mul(sum, scale)?;
    }
    let mut terms = at.tanh(sum)?;
    if let Some(scale) = scale.filter(|_| is_additive) {
        terms = at.mul(terms, scale)?;
    }
    let scores = at.reduce_sum(terms, vec![3], false)?;
    if is_additive {
        return Ok(scores);
    }
    let weight = at.weight("concat_score_weight", &[])?;
    at.mul(scores, weight)
}
