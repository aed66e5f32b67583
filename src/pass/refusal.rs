//! The diagnostic of an operator that forbids the split.

use std::collections::HashMap;
use std::fmt;

use super::repair::{AppliedRepair, Repair};
use crate::analysis::Refused;
use crate::ir::{Graph, NodeId, NodeKind, Value, operand_excerpt};
use crate::types::invariant::int;
use crate::types::{Code, Hint, Quoted, Setting, Split};

/// One operator that forbids the split, as a diagnostic: code, what, where, why, ways out.
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
    /// What it does to the batch.
    pub reason: String,
    /// Where it stands: the graph, and its number among the graph's operators, from 1; where it was
    /// looked up in the file, its place there.
    pub place: String,
    /// The line of the operator, the operand marked that carries the batch; of an input its name
    /// and type.
    pub line: String,
    /// The values that carry the batch to it, from the input on, or from the operator that counts
    /// its rows.
    pub path: Vec<String>,
    /// What replicas would compute.
    pub effect: String,
    /// What repairs would do; empty where they would not help.
    pub repairs: Vec<String>,
    /// Which repairs have to be allowed for that.
    pub allowing: Repair,
    /// A way out that only this operator has.
    pub hint: Option<Hint>,
}

/// The graph that a user knows, in which what was found in its repaired form is told.
pub(super) struct Told<'g> {
    graph: &'g Graph,
    repaired: &'g Graph,
    /// The graph's nodes by the names of their results.
    nodes: HashMap<&'g str, Value>,
    /// The number of each operator of the graph, from 1, by node.
    numbers: Vec<usize>,
    split: &'g Split,
    repairs: &'g [AppliedRepair],
}

impl<'g> Told<'g> {
    /// Refusals of `repaired`, the repaired form of `graph`, which is to be split in this way;
    /// `repairs` are those that would be made if all were allowed.
    pub(super) fn new(
        graph: &'g Graph,
        repaired: &'g Graph,
        split: &'g Split,
        repairs: &'g [AppliedRepair],
    ) -> Self {
        let mut nodes = HashMap::new();
        let mut numbers = vec![0; graph.id_bound()];
        let mut number = 0;
        // A message says less of a graph that has no order, and another one refuses that.
        for id in graph.order().unwrap_or_default() {
            let results = (0u32..).zip(graph.node(id).results());
            nodes.extend(results.map(|(output, r)| (&*r.name, Value { node: id, output })));
            number += usize::from(graph.node(id).op().is_some());
            numbers[id.index()] = number;
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
        let place = match self.numbers.get(id.index()).filter(|_| own.is_some()) {
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
            // Where nothing helps, more repairs do not either.
            allowing: repairs.iter().map(|r| r.needs()).max().unwrap_or(Repair::Local),
            repairs: repairs.into_iter().map(AppliedRepair::what).collect(),
            hint: refused.refusal.hint.as_deref().cloned(),
        }
    }
}

/// The diagnostics of refused operators: the first of them, and how many more there are. `word`
/// puts their hints into words.
pub(super) fn render(refused: &[SplitRefused], word: &dyn Fn(&Hint) -> String) -> String {
    const LISTED: usize = 20;
    let mut shown: Vec<String> = refused.iter().take(LISTED).map(|r| r.worded(word)).collect();
    if refused.len() > LISTED {
        shown.push(format!("{} more operators forbid the split", refused.len() - LISTED));
    }
    shown.join("\n\n")
}

impl SplitRefused {
    /// The ways out, the most likely one first.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general advice")]
    pub(crate) fn hints(&self) -> Vec<Hint> {
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

/// What replicas would compute of a batch of 10 rows, or of as many as there are replicas.
#[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general effect")]
fn effect(code: Code, split: &Split) -> String {
    let batch = int::<i64>(split.replicas()).max(10);
    let rows =
        (0..split.replicas()).filter_map(|r| split.rows(r)).map(|d| d.eval(batch).to_string());
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
    /// The diagnostic, its hints put into words by `word`.
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

    /// The chain of values that carry the batch to the operator; a long one is shown by its ends.
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

/// In the library's words.
impl fmt::Display for SplitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(&Hint::to_string))
    }
}
