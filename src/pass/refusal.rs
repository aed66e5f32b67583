//! What a user is told of an operator that forbids the split.

use std::fmt;

use super::repair::Repaired;
use crate::analysis::Refused;
use crate::ir::{Graph, NodeKind, Value, operand_excerpt};
use crate::types::{Code, Split};

/// One operator that forbids the split, as a diagnostic: code, what, where, why, ways out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRefused {
    /// The rule's code.
    pub code: Code,
    /// The node's label.
    pub label: String,
    /// The operator's name, or `input`.
    pub op: String,
    /// What it does to the batch.
    pub reason: String,
    /// Where it stands: the graph, and its number among the graph's operators, from 1.
    pub place: String,
    /// The line of the operator, the operand marked that carries the batch; of an input its name and type.
    pub line: String,
    /// The values that carry the batch to it, from the input on.
    pub path: Vec<String>,
    /// What replicas would compute.
    pub effect: String,
    /// What `--repair=comm` would do; empty where it would not help.
    pub repairs: Vec<String>,
}

impl SplitRefused {
    /// The diagnostic of a refusal in `graph`, which is to be split in this way; `repairs` are those that would be
    /// made if all were allowed.
    pub fn new(graph: &Graph, refused: &Refused, split: &Split, repairs: &[Repaired]) -> Self {
        let node = graph.node(refused.node);
        let (op, line) = match node.kind() {
            NodeKind::Input => ("input", None),
            NodeKind::Param(_) => ("param", None),
            NodeKind::Op(op) => {
                (op.name(), Some(operand_excerpt(graph, refused.node, refused.refusal.operand)))
            }
        };
        let result = || {
            let of = node.results().first();
            of.map_or_else(String::new, |r| format!("   | %{} : {}", r.name, r.ty))
        };
        let ops = graph
            .order()
            .unwrap_or_default()
            .into_iter()
            .filter(|id| graph.node(*id).op().is_some());
        let number = ops.take_while(|id| *id != refused.node).count() + 1;
        let step = |v: &Value| format!("%{} : {}", graph.info(*v).name, graph.ty(*v));
        let own = |r: &&Repaired| r.label == node.label();
        Self {
            code: refused.refusal.code,
            label: node.label().to_owned(),
            op: op.to_owned(),
            reason: refused.refusal.reason.clone(),
            place: format!("graph `{}`: node {number} `{}`", graph.name(), node.label()),
            line: line.unwrap_or_else(result),
            path: refused.path.iter().map(step).collect(),
            effect: effect(refused.refusal.code, split),
            repairs: repairs.iter().filter(own).map(Repaired::what).collect(),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general advice")]
    fn help(&self) -> &'static str {
        match self.code {
            Code::NoBatchAxis => {
                "name the batch axis of an input (`--batch-axis NAME=AXIS`), or free a baked-in size with `--free-batch`"
            }
            Code::BakedBatch => {
                "export the model with a dynamic batch, or free the size that was baked in with `--free-batch`"
            }
            Code::GlobalIndex => "run it on one device, or take the positions outside the model",
            Code::NoRule => {
                "say what to assume of it (`--assume NAME=rowwise(0)`), or run it on one device (`--gpus 1`)"
            }
            _ => "run it on one device (`--gpus 1`), or export the model without this operator",
        }
    }
}

/// What replicas would compute of a batch of 10 rows, or of as many as there are replicas.
#[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general effect")]
fn effect(code: Code, split: &Split) -> String {
    let batch = i64::try_from(split.replicas()).unwrap_or(i64::MAX).max(10);
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

impl fmt::Display for SplitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code == Code::NoBatchAxis {
            writeln!(f, "error[{}]: the model has no batch to split: {}", self.code, self.reason)?;
            return write!(f, "  = help: {}", self.help());
        }
        writeln!(f, "error[{}]: `{}` ({}) {}", self.code, self.label, self.op, self.reason)?;
        writeln!(f, "  --> {}", self.place)?;
        writeln!(f, "{}", self.line)?;
        if let Some((first, rest)) = self.path.split_first() {
            writeln!(f, "   = batch: input {first}")?;
            // A long chain is shown by its ends.
            let hidden = rest.len().saturating_sub(4);
            if hidden > 0 {
                writeln!(f, "            … {hidden} values")?;
            }
            for step in &rest[hidden..] {
                writeln!(f, "            -> {step}")?;
            }
        }
        writeln!(f, "   = effect: {}", self.effect)?;
        for (i, repair) in self.repairs.iter().enumerate() {
            let lead = if i == 0 {
                "= help: `--repair=comm` inserts"
            } else {
                "                            and"
            };
            writeln!(f, "   {lead} {repair}")?;
        }
        writeln!(f, "   = help: {}", self.help())?;
        write!(f, "   = note: `fanwise explain {}` tells more", self.code)
    }
}
