use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::{Escaped, FileError, OverBudget, Quoted};
use super::wire::WireError;
use crate::ir::GraphError;
use crate::op::OpError;
use crate::types::TensorError;

/// Why an ONNX model could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The bytes are no ONNX model.
    #[error("it is no ONNX model: {0}")]
    Malformed(WireError),
    /// The file holds no graph, or several.
    #[error("it is no ONNX model: {found} graphs where there must be one")]
    Graphs {
        /// How many it holds.
        found: usize,
    },
    /// The file is of a form of ONNX files that is not known.
    #[error(
        "its `ir_version` is {0}; forms 1 to 13 of ONNX files are read: \
         export the model for one of them"
    )]
    Version(i64),
    /// The model is written in a version of ONNX that is not supported.
    #[error("{place} uses opset {version}; opsets {oldest} to {newest} are supported")]
    Opset {
        /// The model, or a function of it.
        place: String,
        /// The version it uses.
        version: i64,
        /// The oldest that is supported.
        oldest: i64,
        /// The newest that is supported.
        newest: i64,
    },
    /// Operators that are not supported: all of them.
    #[error("{}", list_unsupported(.0))]
    Unsupported(Vec<UnsupportedOp>),
    /// Two nodes, inputs or initializers give a value of the same name.
    #[error("{} is given twice: {first}, and {second}", Quoted(.value))]
    Duplicate {
        /// The value's name.
        value: String,
        /// What gives it first, as a phrase.
        first: String,
        /// What gives it as well, as a phrase.
        second: String,
    },
    /// A value is used that nothing gives.
    #[error("{user} uses {}, which nothing gives", Quoted(.value))]
    Undefined {
        /// The value's name.
        value: String,
        /// What uses it, as a phrase.
        user: String,
    },
    /// An input, output or initializer has no name.
    #[error("{what} {position} has no name")]
    Unnamed {
        /// Which of them.
        what: String,
        /// Its position in the file.
        position: usize,
    },
    /// The nodes form a cycle.
    #[error("{node} depends on its own result{}", list_through(.through, *.more))]
    Cycle {
        /// One of its nodes, as a phrase.
        node: String,
        /// The others, against the flow, as phrases.
        through: Vec<String>,
        /// How many more there are.
        more: usize,
    },
    /// A call of a function of the model is not valid.
    #[error("{node} calls the function {}: {reason}", Quoted(.function))]
    Call {
        /// The calling node, as a phrase.
        node: String,
        /// The function.
        function: String,
        /// What is wrong.
        reason: String,
    },
    /// More nodes than are read.
    #[error("the model has more than {limit} nodes")]
    TooManyNodes {
        /// The number allowed.
        limit: usize,
    },
    /// A tensor of the file is not valid.
    #[error("tensor {}: {reason}", Quoted(.tensor))]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The tensors take more memory than is allowed.
    #[error(transparent)]
    Memory(#[from] OverBudget),
    /// An input's type is not supported, or an option does not suit it.
    #[error("input {}: {reason}", Quoted(.input))]
    Input {
        /// The input.
        input: String,
        /// What is wrong.
        reason: String,
    },
    /// Sizes of inputs that are neither constants nor the batch: all of them.
    #[error("{}", list_unbound(.0))]
    UnboundDims(Vec<UnboundDim>),
    /// An option names what the model does not have.
    #[error("{option}: {reason}")]
    Option {
        /// The option, as it is written on the command line.
        option: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Several sizes of the inputs may be the batch.
    #[error("{}", list_batches(.0))]
    Batches(Vec<BatchCandidate>),
    /// Only one size of the inputs may be the batch; the others must be bound.
    #[error("the batch is {}: {reason}\n{}", .batch.text(), list_unbound(.others))]
    OtherSizes {
        /// The size that is the batch.
        batch: BatchCandidate,
        /// Why it is the only one, as a clause.
        reason: &'static str,
        /// The other sizes.
        others: Vec<UnboundDim>,
    },
    /// A node is not valid, or not in a supported way.
    #[error("{node} ({}): {}", Escaped(.op), brief(.error))]
    Node {
        /// The node, as a phrase.
        node: String,
        /// Its operator.
        op: String,
        /// What is wrong.
        error: NodeError,
    },
    /// An invariant of the importer is broken: a fault of fanwise.
    #[error("internal error: {0}")]
    Internal(String),
}

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The operator does not suit its operands.
    #[error("{0}")]
    Op(Box<OpError>),
    /// A required operand is absent.
    #[error("operand {operand} is missing")]
    Missing {
        /// Its position.
        operand: usize,
    },
    /// An operand must be known before the run.
    #[error(
        "operand {operand} ({}) must be known before the run: a constant, or computed from \
         sizes",
        Quoted(.value)
    )]
    NotKnown {
        /// Its position.
        operand: usize,
        /// The value's name.
        value: String,
    },
    /// An attribute is absent, of another kind, or has a value that is not allowed.
    #[error("attribute {} {reason}", Quoted(.name))]
    Attribute {
        /// The attribute.
        name: String,
        /// What is wrong, as a clause after it.
        reason: String,
    },
    /// A valid use that is not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The batch size was freed, but a number in the graph may stand for it.
    #[error(
        "{literal} cannot be freed: {reason}; export the model with a dynamic batch, or import it \
         without --free-batch"
    )]
    Baked {
        /// The number, by its place.
        literal: String,
        /// Why it is not clear what it stands for.
        reason: String,
    },
    /// Types no longer agree once the batch size was freed.
    #[error(
        "{error}; the types agree at the batch size of the file, so a number in the graph \
         stands for the batch"
    )]
    Freed {
        /// What does not agree.
        error: Box<OpError>,
    },
    /// A tensor in an attribute is not valid.
    #[error("attribute {}: {reason}", Quoted(.name))]
    Tensor {
        /// The attribute.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The file does not say of which type a result is, and nothing else does.
    #[error("the type of its result {} is not known: {reason}", Quoted(.value))]
    Undeclared {
        /// The result.
        value: String,
        /// What is missing, as a sentence.
        reason: String,
    },
    /// Its tensors take more memory than is allowed.
    #[error(transparent)]
    Memory(#[from] OverBudget),
}

// The wire error is part of the text, and so no source.
impl From<WireError> for ImportError {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

impl NodeError {
    /// The error as it reads where the batch size was freed: sizes that no longer suit may stand
    /// for it.
    pub(super) fn after_freeing(self) -> Self {
        let speaks_of_sizes = |error: &OpError| {
            use OpError::{Attribute, Shape, SizesDiffer};
            matches!(error, SizesDiffer { .. } | Shape { .. } | Attribute { .. })
        };
        if let Self::Op(error) = self {
            return if speaks_of_sizes(&error) { Self::Freed { error } } else { Self::Op(error) };
        }
        self
    }
}

impl From<GraphError> for NodeError {
    fn from(error: GraphError) -> Self {
        if let GraphError::Op { error, .. } = error {
            return Self::Op(error);
        }
        Self::Unsupported(format!("a node where {error}"))
    }
}

impl From<OpError> for NodeError {
    fn from(error: OpError) -> Self {
        Self::Op(Box::new(error))
    }
}

impl From<TensorError> for NodeError {
    fn from(error: TensorError) -> Self {
        OpError::from(error).into()
    }
}

/// An operator that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOp {
    /// Its name, after its domain where that is not ONNX's own.
    pub op: String,
    /// The first nodes that use it, as phrases.
    pub nodes: Vec<String>,
    /// How many nodes use it.
    pub count: usize,
}

/// A size of an input that must be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnboundDim {
    /// Its name in the file, or `INPUT[AXIS]` where it has none.
    pub name: String,
    /// The input where it stands.
    pub input: String,
    /// The axis where it stands.
    pub axis: usize,
}

/// Sizes of inputs that are one and may be the batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCandidate {
    /// The sizes and where they stand; a size that the file does not leave open has no name.
    pub sizes: Vec<UnboundDim>,
}

impl BatchCandidate {
    /// The sizes that must be bound where another is the batch, each name once.
    pub fn open(&self) -> impl Iterator<Item = &UnboundDim> {
        let mut seen = BTreeSet::new();
        self.sizes.iter().filter(move |s| !s.name.is_empty() && seen.insert(s.name.as_str()))
    }

    /// The inputs that carry it, each with the first axis on which it stands.
    pub fn axes(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut seen = BTreeSet::new();
        let sizes = self.sizes.iter().map(|s| (s.input.as_str(), s.axis));
        sizes.filter(move |(input, _)| seen.insert(*input))
    }

    /// The sizes as an error names them: `users`, axis 0 of input `user`.
    fn text(&self) -> String {
        let named = self.open().filter(|s| !s.name.ends_with(']'));
        let named = named.map(|s| Quoted(&s.name).to_string());
        let places = self.sizes.iter();
        let places = places.map(|s| format!("axis {} of input {}", s.axis, Quoted(&s.input)));
        named.chain(places).take(LISTED).collect::<Vec<_>>().join(", ")
    }

    /// The options that say that these sizes are the batch.
    fn options(&self) -> String {
        let option = |(input, axis)| format!("--batch-axis {}={axis}", Escaped(input));
        self.axes().take(LISTED).map(option).collect::<Vec<_>>().join(" ")
    }
}

/// The bytes of what an operator says that an error shows.
const SAID: usize = 2000;

/// What is wrong with a node, the end of it left out where it lists very many numbers.
fn brief(error: &NodeError) -> String {
    let mut text = error.to_string();
    if text.len() > SAID {
        let more = text.len() - SAID;
        text.truncate(text.floor_char_boundary(SAID));
        let _ = write!(text, "… ({more} bytes more)");
    }
    text
}

/// The entries of a list that an error names; the rest are counted.
const LISTED: usize = 100;

/// Adds the line that counts the entries that a list of `count` leaves out.
fn count_rest(text: &mut String, count: usize) {
    if count > LISTED {
        let _ = write!(text, "\n  and {} more", count - LISTED);
    }
}

/// Names as errors show them; the rest of a long list is counted.
pub(super) fn list_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(LISTED);
    let shown: Vec<String> = names.take(LISTED).map(|name| Quoted(name).to_string()).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

fn list_through(through: &[String], more: usize) -> String {
    match (through, more) {
        ([], _) => String::new(),
        (through, 0) => format!(", by way of {}", through.join(", ")),
        (through, more) => format!(", by way of {} and {more} more", through.join(", ")),
    }
}

fn list_unsupported(ops: &[UnsupportedOp]) -> String {
    let mut text = String::from("operators that are not supported:");
    for UnsupportedOp { op, nodes, count } in ops.iter().take(LISTED) {
        let op = if op.is_empty() { "(no operator)" } else { op };
        let _ = write!(text, "\n  {}: {}", Escaped(op), nodes.join(", "));
        if *count > nodes.len() {
            let _ = write!(text, " and {} more", count - nodes.len());
        }
    }
    count_rest(&mut text, ops.len());
    if let Some((domain, name)) = ops.iter().find_map(|op| op.op.split_once("::")) {
        let (domain, name) = (Escaped(domain), Escaped(name));
        let _ = write!(
            text,
            "\nto rewrite a model with an operator of another framework, say what to assume of it: \
             --assume '{domain}.{name}=rowwise(0)'"
        );
    }
    text
}

fn list_unbound(dims: &[UnboundDim]) -> String {
    let mut text = String::from("sizes that are neither constants nor the batch must be bound:");
    for UnboundDim { name, input, axis } in dims.iter().take(LISTED) {
        let (input, hint) = (Quoted(input), Escaped(name));
        let name = Quoted(name);
        let _ = write!(text, "\n  {name}, axis {axis} of input {input}: try --dim {hint}=128");
    }
    count_rest(&mut text, dims.len());
    text
}

impl ImportError {
    /// The stable code: `E0102`, or that of the refusal where the batch cannot be told.
    pub fn code(&self) -> &'static str {
        let unclear = matches!(self, Self::Batches(_));
        if unclear { crate::types::Code::AmbiguousBatchAxis.name() } else { "E0102" }
    }
}

fn list_batches(candidates: &[BatchCandidate]) -> String {
    let mut text = String::from(
        "several sizes may be the batch, and nothing in the graph says which, or that they \
         are one:",
    );
    for candidate in candidates.iter().take(LISTED) {
        let _ = write!(text, "\n  {}: {}", candidate.text(), candidate.options());
    }
    count_rest(&mut text, candidates.len());
    text += "\nname the inputs that carry the batch (`--batch-axis`)";
    if let Some(open) = candidates.iter().rev().find_map(|c| c.open().next()) {
        let _ = write!(text, ", and bind what is not the batch: --dim {}=128", Escaped(&open.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{BatchCandidate, ImportError, UnboundDim, UnsupportedOp};

    #[test]
    fn lists_name_everything() {
        let ops = vec![
            UnsupportedOp {
                op: "LSTM".into(),
                nodes: vec!["node `a`".into(), "node 7".into()],
                count: 2,
            },
            UnsupportedOp { op: "com.x::Y".into(), nodes: vec!["node `b`".into()], count: 3 },
        ];
        let text = ImportError::Unsupported(ops).to_string();
        assert!(text.contains("\n  LSTM: node `a`, node 7\n  com.x::Y: node `b`"), "{text}");
        assert!(text.contains("Y: node `b` and 2 more\n"), "{text}");
        assert!(text.ends_with("--assume 'com.x.Y=rowwise(0)'"), "{text}");
        let dim = UnboundDim { name: "seq".into(), input: "x".into(), axis: 1 };
        let text = ImportError::UnboundDims(vec![dim]).to_string();
        assert!(text.ends_with("`seq`, axis 1 of input `x`: try --dim seq=128"), "{text}");
        let of = |name: &str| BatchCandidate {
            sizes: vec![UnboundDim { name: name.into(), input: format!("of_{name}"), axis: 1 }],
        };
        let text = ImportError::Batches(vec![of("p"), of("q")]).to_string();
        assert!(text.contains("\n  `p`, axis 1 of input `of_p`: --batch-axis of_p=1\n"), "{text}");
        assert!(text.ends_with("--dim q=128"), "{text}");
    }
}
