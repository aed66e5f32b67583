//! Diagnostics of refused splits: each operator that forbids it, with reason, effect and help.

use std::collections::HashMap;
use std::fmt;

use super::repair::{AppliedRepair, Repair};
use crate::analysis::Refused;
use crate::ir::{Graph, NodeId, NodeKind, NodeMap, Value, operand_excerpt};
use crate::types::invariant::int;
use crate::types::{Code, Hint, Quoted, Setting, Split};

/// The diagnostic of one operator that forbids the split: code, location, reason, effect, help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRefused {
    /// The rule's code.
    pub code: Code,
    /// The node's label.
    pub label: String,
    /// The name of its first result.
    pub value: String,
    /// The operator's name, or `input`.
    pub op: String,
    /// The operator's effect on the batch.
    pub reason: String,
    /// The location: the graph and the operator's number in it, from 1; or the location in the
    /// model file, where a reader looked it up.
    pub place: String,
    /// The printed line of the operator with the operand marked that carries the batch; of an input
    /// its name and type.
    pub line: String,
    /// The values that carry the batch to the operator, from the input on, or from the operator
    /// that counts its rows.
    pub path: Vec<String>,
    /// The result that replicas would compute, in words.
    pub effect: String,
    /// The repairs that would help, in words; empty if none does.
    pub repairs: Vec<String>,
    /// The level of repairs that has to be allowed for them.
    pub allowing: Repair,
    /// Help that only this operator has.
    pub hint: Option<Hint>,
}

/// Maps refusals of a repaired graph to the graph that the user knows.
pub(super) struct Diagnostics<'g> {
    graph: &'g Graph,
    repaired: &'g Graph,
    /// The user's values by name. Repairs keep the names of values, but not ids.
    nodes: HashMap<&'g str, Value>,
    /// The number of each operator of the user's graph, from 1, by node.
    numbers: NodeMap<usize>,
    split: &'g Split,
    repairs: &'g [AppliedRepair],
}

impl<'g> Diagnostics<'g> {
    /// Diagnostics for refusals of `repaired`, the repaired form of `graph`. `repairs` are the
    /// repairs that the pass would make if all were allowed.
    pub(super) fn new(
        graph: &'g Graph,
        repaired: &'g Graph,
        split: &'g Split,
        repairs: &'g [AppliedRepair],
    ) -> Self {
        let mut nodes = HashMap::new();
        let mut numbers = graph.node_map(0);
        let mut number = 0;
        // A graph with a cycle has no order: its messages lack numbers, and its error is another.
        for id in graph.order().unwrap_or_default() {
            let results = (0u32..).zip(graph.node(id).results());
            nodes.extend(results.map(|(output, r)| (&*r.name, Value { node: id, output })));
            number += usize::from(graph.node(id).op().is_some());
            numbers[id] = number;
        }
        Self { graph, repaired, nodes, numbers, split, repairs }
    }

    /// The user's value of the same name.
    fn value(&self, value: Value) -> Option<Value> {
        self.nodes.get(&*self.repaired.info(value).name).copied()
    }

    /// The diagnostic of a refusal.
    pub(super) fn refusal(&self, refused: &Refused) -> SplitRefused {
        let own = self.value(Value { node: refused.node, output: 0 });
        let (graph, id): (&Graph, NodeId) =
            own.map_or((self.repaired, refused.node), |v| (self.graph, v.node));
        let node = graph.node(id);
        let (op, line) = match node.kind() {
            NodeKind::Input => ("input", None),
            NodeKind::Param(_) => ("param", None),
            NodeKind::Op(op) => {
                (op.name(), Some(operand_excerpt(graph, id, refused.refusal.operand)))
            }
        };
        let first = node.results().first();
        let result = || first.map_or_else(String::new, |r| format!("   | %{} : {}", r.name, r.ty));
        let step = |v: Value| {
            let input = matches!(self.graph.node(v.node).kind(), NodeKind::Input);
            let what = if input { "input " } else { "" };
            format!("{what}%{} : {}", self.graph.info(v).name, self.graph.ty(v))
        };
        let label = node.label();
        let place = match self.numbers.get(id).filter(|_| own.is_some()) {
            Some(number) if node.op().is_some() => format!("node {number} {}", Quoted(label)),
            _ => format!("{op} {}", Quoted(label)),
        };
        let repairs: Vec<&AppliedRepair> =
            self.repairs.iter().filter(|r| r.label == label).collect();
        SplitRefused {
            code: refused.refusal.code,
            label: label.to_owned(),
            value: first.map_or_else(String::new, |r| r.name.to_string()),
            op: op.to_owned(),
            reason: refused.refusal.reason.clone(),
            place: format!("graph {}: {place}", Quoted(graph.name())),
            line: line.unwrap_or_else(result),
            path: refused.path.iter().filter_map(|v| self.value(*v)).map(step).collect(),
            effect: effect(refused.refusal.code, self.split),
            // Without a repair that helps, the level is never shown.
            allowing: repairs.iter().map(|r| r.needs()).max().unwrap_or(Repair::Local),
            repairs: repairs.into_iter().map(AppliedRepair::what).collect(),
            hint: refused.refusal.hint.as_deref().cloned(),
        }
    }
}

/// The diagnostics of refused operators: the first 20 in full, then the number of the rest. `word`
/// renders their hints.
pub(super) fn render(refused: &[SplitRefused], word: &dyn Fn(&Hint) -> String) -> String {
    const LISTED: usize = 20;
    let mut shown: Vec<String> = refused.iter().take(LISTED).map(|r| r.worded(word)).collect();
    if refused.len() > LISTED {
        shown.push(format!("{} more operators forbid the split", refused.len() - LISTED));
    }
    shown.join("\n\n")
}

impl SplitRefused {
    /// The hints, the most likely one first.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general advice")]
    pub fn hints(&self) -> Vec<Hint> {
        let one = || Hint::set(Setting::Devices, ["1"], "run it on one device");
        let free = |advice| Hint::turn_on(Setting::FreeBatch, advice);
        let ways = match self.code {
            Code::NoBatchAxis => vec![
                Hint::set(Setting::BatchAxis, ["NAME=AXIS"], "name the batch axis of an input"),
                free("make a batch size symbolic that is fixed in the file"),
            ],
            Code::BakedBatch => vec![
                Hint::advice("export the model with a dynamic batch"),
                free("make the fixed batch size symbolic"),
            ],
            Code::GlobalIndex => {
                vec![one(), Hint::advice("compute the positions outside the model")]
            }
            Code::NoRule => vec![one()],
            _ => vec![one(), Hint::advice("export the model without this operator")],
        };
        self.repair_hint().into_iter().chain(self.hint.clone()).chain(ways).collect()
    }

    /// The repair that would help, if one does.
    fn repair_hint(&self) -> Option<Hint> {
        let level = match self.allowing {
            Repair::None | Repair::Local => "local",
            Repair::Comm => "comm",
        };
        let inserts = match self.repairs.as_slice() {
            [] => return None,
            [one] => one.clone(),
            [all @ .., last] => format!("{}, and {last}", all.join(", ")),
        };
        let advice = format!("allow a repair that inserts {inserts}");
        Some(Hint::set(Setting::Repair, [level], advice))
    }
}

/// The effect of a split on an example batch: 10 rows, or one for each replica if these are more.
#[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general effect")]
fn effect(code: Code, split: &Split) -> String {
    let batch = int::<i64>(split.replicas()).max(10);
    let rows =
        (0..split.replicas()).filter_map(|r| split.rows(r)).map(|d| d.eval(batch).to_string());
    // Eight counts show the shard rule; thousands of replicas would fill pages.
    let rows: Vec<String> = rows.take(8).collect();
    let more = if split.replicas() > rows.len() { ", …" } else { "" };
    let own = format!("{}{more} of {batch} rows", rows.join(", "));
    let does = match code {
        Code::BatchStatistics => "would take the statistics of its own rows",
        Code::AcrossSamples => "would begin and end at its own rows",
        Code::GlobalIndex => "would count from the first of its own rows",
        Code::Reorders => "would find other samples at the same places",
        Code::SampleBySample => "would miss the samples of the others",
        Code::NotPerSample => "would give a result of its own",
        Code::BakedBatch => "does not have the size that stands in the model",
        _ => "would compute something else than one device does",
    };
    format!("each of {} replicas, with {own}, {does}", split.replicas())
}

impl SplitRefused {
    /// The text of the diagnostic, its hints rendered by `word`.
    pub(super) fn worded(&self, word: &dyn Fn(&Hint) -> String) -> String {
        let Self { code, reason, .. } = self;
        let mut lines = if *code == Code::NoBatchAxis {
            vec![format!("error[{code}]: the model has no batch to split: {reason}")]
        } else {
            let label = Quoted(&self.label);
            let head = [
                format!("error[{code}]: {label} ({}) {reason}", self.op),
                format!("  --> {}", self.place),
                self.line.clone(),
            ];
            let effect = format!("   = effect: {}", self.effect);
            head.into_iter().chain(self.path_lines()).chain([effect]).collect()
        };
        lines.extend(self.hints().iter().map(|hint| format!("   = help: {}", word(hint))));
        lines.join("\n")
    }

    /// The lines of the path of the batch; the middle of a long path is left out.
    fn path_lines(&self) -> Vec<String> {
        let Some((first, rest)) = self.path.split_first() else { return Vec::new() };
        let hidden = rest.len().saturating_sub(4);
        let mut lines = vec![format!("   = batch: {first}")];
        if hidden > 0 {
            lines.push(format!("            … {hidden} values"));
        }
        lines.extend(rest[hidden..].iter().map(|step| format!("            -> {step}")));
        lines
    }
}

/// The diagnostic with hints in the terms of the library, not of the command line.
impl fmt::Display for SplitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(&Hint::to_string))
    }
}
