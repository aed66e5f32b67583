//! Reports in plain text: the claims of a graph, and the effects of a split.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::repair::AppliedRepair;
use crate::analysis::{ClaimMap, claims_over, survey};
use crate::ir::{self, Graph, GraphError, NodeId, NodeKind, Placement, Update, Value};
use crate::op::Op;
use crate::types::{Claim, Dim, Split};

/// The claim of every value, one on a line, with the reasons of refusals.
pub fn claims_text(graph: &Graph) -> Result<String, GraphError> {
    let map = survey(graph)?;
    let mut lines = Vec::new();
    for id in map.order() {
        for value in values(graph, *id) {
            let info = graph.info(value);
            lines.push((format!("%{} : {}", info.name, info.ty), map.get(value).to_string(), *id));
        }
    }
    // An empty table has no width.
    // One long type must not push every claim off the screen: columns are at most 60 wide.
    let width = lines.iter().map(|(value, ..)| value.chars().count()).max().unwrap_or(0).min(60);
    // An empty table has no width.
    let claims = lines.iter().map(|(_, claim, _)| claim.len()).max().unwrap_or(0);
    let mut text: String = ir::declared(graph.symbols()).map(|line| line + "\n").collect();
    for (value, claim, id) in lines {
        let refused = map.refused().iter().find(|r| r.node == id);
        let reason = refused.map(|r| format!("  {}: {}", r.refusal.code, r.refusal.reason));
        // What is not refused has no reason.
        let reason = reason.unwrap_or_default();
        let claim = if reason.is_empty() { claim } else { format!("{claim:claims$}") };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{value:width$}  {claim}{reason}");
    }
    Ok(text)
}

/// The claim of every value, by its name.
pub(crate) fn claims_by_name(graph: &Graph) -> Result<HashMap<String, String>, GraphError> {
    let map = survey(graph)?;
    let of = map.order().iter().flat_map(|id| values(graph, *id));
    Ok(of.map(|value| (graph.info(value).name.to_string(), map.get(value).to_string())).collect())
}

/// All results of a node.
fn values(graph: &Graph, id: NodeId) -> impl Iterator<Item = Value> + '_ {
    let results = graph.node(id).results().len();
    (0u32..).take(results).map(move |output| Value { node: id, output })
}

/// A report on a split: sharded and whole values, repairs, exchanged bytes, labels of outputs.
///
/// `template` is the graph after its repairs `done`, `graph` its replicas.
pub fn report(
    template: &Graph,
    done: &[AppliedRepair],
    graph: &Graph,
) -> Result<String, GraphError> {
    let whole = match graph.split() {
        Some(split) if split.replicas() == 1 => claims_over(template, 1).ok(),
        _ => None,
    };
    let map = whole.map_or_else(|| survey(template), Ok)?;
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        for (i, line) in lines.iter().enumerate() {
            let title = if i == 0 { title } else { "" };
            let _ = writeln!(text, "{title:12}{line}");
        }
    };
    section(
        "devices",
        vec![graph.split().map_or_else(|| "1; nothing is split".to_owned(), devices)],
    );
    section("sizes", ir::declared(template.symbols()).collect());
    section("inputs", template.inputs().map(|v| input(template, &map, v)).collect());
    section("values", vec![counts(template, &map)]);
    section("repairs", if done.is_empty() { vec!["none".to_owned()] } else { repairs(done) });
    let (labels, jumps) = (graph.labels(), template.jumps());
    let outputs = template.outputs().iter().enumerate();
    let outputs = outputs.map(|(i, o)| {
        let claim = map.get(o.value);
        let how = gathered(template, o.value).unwrap_or_else(|| merged(claim));
        let label = labels.get(i).map_or_else(String::new, |label| format!(" ({label})"));
        let jump = jumps.get(i).copied().flatten();
        let jump = jump.map_or_else(String::new, |id| jumps_at(template, id));
        format!("{}: {how}{label}{jump}", o.name)
    });
    section("outputs", outputs.collect());
    section("bytes", moved(template, &map, done, graph));
    section("updates", graph.updates().iter().map(|update| updated(graph, update)).collect());
    Ok(text)
}

/// The bytes of weights, and the bytes that a run transfers, as formulas of `N`.
fn moved(template: &Graph, map: &ClaimMap, done: &[AppliedRepair], graph: &Graph) -> Vec<String> {
    let all = |values: &mut dyn Iterator<Item = Value>| {
        values.fold(Dim::ZERO, |sum, value| sum + template.ty(value).bytes())
    };
    let weights = graph.params().iter().fold(Dim::ZERO, |sum, param| sum + param.ty.bytes());
    let mirrored = graph.params().iter().any(|param| param.placement == Placement::Mirrored);
    let how = match (graph.split(), mirrored) {
        (None, _) => "",
        (_, true) => ", held by every device",
        (_, false) => ", held once and copied to the devices in each run",
    };
    let rows = all(&mut template.inputs().filter(|v| map.get(*v).shard().is_some()));
    let out = all(&mut template.outputs().iter().map(|output| output.value));
    let mut lines = vec![
        format!("{weights} of weights{how}"),
        format!("{rows} of rows to the devices, {out} of outputs from them"),
    ];
    let exchanged = done.iter().fold(Dim::ZERO, |sum, repair| sum + repair.bytes.clone());
    if exchanged != Dim::ZERO {
        lines.push(format!("{exchanged} of each replica between them, for repairs"));
    }
    lines
}

/// The suffix that names the operator at which an output is discontinuous.
fn jumps_at(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    // Only operators jump, so that inputs and parameters need no name here.
    let name = node.op().map_or("", |op| op.name());
    format!(": `{}` ({name}) may jump where combined floats differ by a rounding", node.label())
}

/// The line of an updated parameter and the devices that hold it.
fn updated(graph: &Graph, update: &Update) -> String {
    let homes: Vec<String> = graph.homes(update.param).iter().map(ToString::to_string).collect();
    format!("{}: held by {}", graph.param(update.param).name, homes.join(", "))
}

/// The line of the devices: their number, the rows of each, and the shard rule.
fn devices(split: &Split) -> String {
    let rows = (0..split.replicas()).filter_map(|r| split.rows(r)).map(|d| d.to_string());
    let rows: Vec<String> = rows.collect();
    format!("{}, rows {} ({})", split.replicas(), rows.join(", "), split.rule())
}

/// The line of an input: the axis it is split on, or that it is whole.
fn input(template: &Graph, map: &ClaimMap, value: Value) -> String {
    let info = template.info(value);
    match map.get(value) {
        Claim::Shard(s) => format!("{}: split on axis {}", info.name, s.axis),
        Claim::Invariant | Claim::Partial(_) | Claim::Own | Claim::Mixed => {
            format!("{}: whole on every replica", info.name)
        }
    }
}

/// The number of values by kind of claim.
fn counts(template: &Graph, map: &ClaimMap) -> String {
    let mut counts = [0usize; 4];
    for id in map.order() {
        if matches!(template.node(*id).kind(), NodeKind::Op(_)) {
            for value in values(template, *id) {
                counts[match map.get(value) {
                    Claim::Shard(_) => 0,
                    Claim::Invariant => 1,
                    Claim::Partial(_) | Claim::Own => 2,
                    Claim::Mixed => 3,
                }] += 1;
            }
        }
    }
    let [rows, whole, partial, mixed] = counts;
    let params = template.params().len();
    let mut text = format!(
        "{rows} with rows, computed for its own rows by each replica; {whole} whole on every \
         replica, \
         besides {params} parameters"
    );
    if partial > 0 {
        let _ = write!(text, "; {partial} partial, of which each replica has a part");
    }
    if mixed > 0 {
        let _ = write!(text, "; {mixed} mixed");
    }
    text
}

fn repairs(done: &[AppliedRepair]) -> Vec<String> {
    done.iter().map(ToString::to_string).collect()
}

/// The merge of an output whose rows the graph itself gathers; `None` for other outputs.
fn gathered(template: &Graph, value: Value) -> Option<String> {
    let op = |v: Value| template.node(v.node).op();
    let of = template.operands(value.node).first().copied()?;
    if matches!(op(value), Some(Op::AllGather(_))) {
        return Some("rows of all replicas, gathered".to_owned());
    }
    let blocks =
        matches!(op(value), Some(Op::Reshape(_))) && matches!(op(of), Some(Op::AllGather(_)));
    blocks.then(|| "rows in blocks, concatenated block by block".to_owned())
}

/// The merge of an output with this claim.
fn merged(claim: Claim) -> String {
    match claim {
        Claim::Shard(s) => format!("rows, concatenated on axis {}", s.axis),
        Claim::Partial(by) => {
            format!("parts, combined once by {} in the order of the replicas", by.name())
        }
        Claim::Invariant => "the same on every replica, taken once".to_owned(),
        Claim::Own | Claim::Mixed => "not known".to_owned(),
    }
}
