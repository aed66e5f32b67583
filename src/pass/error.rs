use std::fmt;

use crate::analysis::Refused;
use crate::ir::{Graph, GraphError, NodeKind};
use crate::types::SplitError;

/// Why a pass did not give a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The devices asked for cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The rows cannot be divided as asked.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The graph may not be split along the batch.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"))]
    Refused(Vec<SplitRefused>),
    /// The graph is replicated already.
    #[error(
        "the graph is already replicated over {0} devices; give the graph before the pass (`--emit graph:input`), \
         or leave `--gpus` out to run it as it is"
    )]
    AlreadyReplicated(usize),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Why the devices asked for cannot be had: what was asked, what exists, what to try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A count that is no number of devices.
    #[error("`--gpus {0}` asks for {0} GPUs; ask for at least 1, or name ids as in `--gpus 0,1`")]
    NoDevice(i64),
    /// An id occurs twice.
    #[error("`--gpus {asked}` names GPU {id} twice; name each GPU once")]
    Duplicate {
        /// The ids asked for.
        asked: String,
        /// The repeated one.
        id: i64,
    },
    /// An id is negative.
    #[error("`--gpus {asked}` names GPU {id}; ids begin at 0")]
    Negative {
        /// The ids asked for.
        asked: String,
        /// The negative one.
        id: i64,
    },
    /// A list of fewer than two ids.
    #[error(
        "`--gpus {asked}` lists {count} of the at least 2 ids that a list has; write a bare number for a count"
    )]
    ShortList {
        /// The ids asked for.
        asked: String,
        /// How many there are.
        count: usize,
    },
    /// The machine has GPUs, but not those.
    #[error("`--gpus {asked}` needs {}; this machine has {}; try `--gpus {found}` or fewer", gpus(missing), count(*found))]
    Absent {
        /// What was asked for.
        asked: String,
        /// The ids that do not exist.
        missing: Vec<i64>,
        /// How many GPUs exist.
        found: usize,
    },
    /// All GPUs of a machine that has none.
    #[error(
        "`--gpus all` needs a GPU and this machine has none; `--gpus 4` runs 4 virtual devices on the CPU"
    )]
    AllOfNone,
    /// More replicas than can be told apart.
    #[error("`--gpus {0}` asks for more than {max} devices", max = super::replicate::MAX_DEVICES)]
    TooMany(i64),
}

fn gpus(ids: &[i64]) -> String {
    ids.iter().map(|id| format!("gpu:{id}")).collect::<Vec<_>>().join(", ")
}

fn count(found: usize) -> String {
    match found {
        1 => "1 GPU (gpu:0)".to_owned(),
        n => format!("{n} GPUs (gpu:0 to gpu:{})", n - 1),
    }
}

/// One operator that forbids the split, as a diagnostic: code, what, where, why, ways out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRefused {
    /// The rule's code.
    pub code: crate::types::Code,
    /// The node's label.
    pub label: String,
    /// The operator's name, or `input`.
    pub op: String,
    /// What it does to the batch.
    pub reason: String,
    /// The result's name and type.
    pub result: String,
    /// The values that carry the batch to it, from the input on.
    pub path: Vec<String>,
}

impl SplitRefused {
    /// The diagnostic of a refusal in `graph`.
    pub fn new(graph: &Graph, refused: &Refused) -> Self {
        let node = graph.node(refused.node);
        let op = match node.kind() {
            NodeKind::Input => "input",
            NodeKind::Param(_) => "param",
            NodeKind::Op(op) => op.name(),
        };
        let result =
            node.results().first().map_or_else(String::new, |r| format!("%{} : {}", r.name, r.ty));
        let step = |v: &crate::ir::Value| format!("%{} : {}", graph.info(*v).name, graph.ty(*v));
        Self {
            code: refused.refusal.code,
            label: node.label().to_owned(),
            op: op.to_owned(),
            reason: refused.refusal.reason.clone(),
            result,
            path: refused.path.iter().map(step).collect(),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most codes share the general advice")]
    fn help(&self) -> &'static str {
        use crate::types::Code;
        match self.code {
            Code::NoBatchAxis => {
                "name the batch axis of an input (`--batch-axis NAME=AXIS`), or free a baked-in size with `--free-batch`"
            }
            Code::BakedBatch => {
                "export the model with a dynamic batch, or free the size that was baked in with `--free-batch`"
            }
            Code::GlobalIndex => "run it on one device, or take the positions outside the model",
            _ => "run it on one device (`--gpus 1`), or export the model without this operator",
        }
    }
}

impl fmt::Display for SplitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code == crate::types::Code::NoBatchAxis {
            writeln!(f, "error[{}]: the model has no batch to split: {}", self.code, self.reason)?;
            return write!(f, "  = help: {}", self.help());
        }
        writeln!(f, "error[{}]: `{}` ({}) {}", self.code, self.label, self.op, self.reason)?;
        writeln!(f, "   | {} = {}", self.result, self.op)?;
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
        writeln!(
            f,
            "   = effect: a replica with its own rows only would compute something else than one device does"
        )?;
        write!(f, "   = help: {}", self.help())
    }
}
