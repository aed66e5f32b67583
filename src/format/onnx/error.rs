use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use super::super::{Escaped, FileError, OverBudget, Quoted};
use super::wire::WireError;
use crate::ir::GraphError;
use crate::op::OpError;
use crate::types::{Setting, TensorError};

/// Why an ONNX model could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The bytes are not an ONNX model.
    #[error("{}not an ONNX model: byte {at}: {reason}", of_file(.file))]
    Malformed {
        /// The file; empty for bytes in memory.
        file: String,
        /// The position in the file.
        at: usize,
        /// The problem at that byte.
        reason: String,
    },
    /// The file holds no graph, or several.
    #[error("{}not an ONNX model: {found} graphs where one is expected", of_file(.file))]
    Graphs {
        /// The file; empty for bytes in memory.
        file: String,
        /// The number of graphs found.
        found: usize,
    },
    /// The file is of a form of ONNX files that is not known.
    #[error("`ir_version` {0} is not supported; versions 1 to 13 are")]
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
        /// The first definition, as a phrase.
        first: String,
        /// The second definition, as a phrase.
        second: String,
    },
    /// A value is used that nothing gives.
    #[error("{user} uses {}, which is not defined", Quoted(.value))]
    Undefined {
        /// The value's name.
        value: String,
        /// The user of the value, as a phrase.
        user: String,
    },
    /// An input, output or initializer has no name.
    #[error("{what} {position} has no name")]
    Unnamed {
        /// Its position.
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
        /// The number of further ones.
        more: usize,
    },
    /// A call of a function of the model is not valid.
    #[error("{node} calls the function {}: {reason}", Quoted(.function))]
    Call {
        /// The calling node, as a phrase.
        node: String,
        /// The function.
        function: String,
        /// The reason.
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
        /// The reason.
        reason: String,
    },
    /// The tensors take more memory than is allowed.
    #[error(transparent)]
    Memory(#[from] OverBudget),
    /// An input's type is not supported, or a setting does not suit it.
    #[error("input {}: {reason}", Quoted(.input))]
    Input {
        /// The input.
        input: String,
        /// The reason.
        reason: String,
        /// Whether a fixed size that could be freed causes the error.
        fixed: bool,
    },
    /// Sizes of inputs that are neither constants nor the batch: all of them.
    #[error("{}", list_unbound(.0))]
    UnboundDims(Vec<UnboundDim>),
    /// A setting does not suit the model.
    #[error("{} `{}`: {reason}", subject(*setting), Escaped(.value))]
    Setting {
        /// The setting.
        setting: Setting,
        /// Its value, or the part of it that is wrong.
        value: String,
        /// The reason.
        reason: String,
    },
    /// More sizes may be the batch than can be compared.
    #[error(
        "the inputs have {0} open sizes with different names; at most {MAX_OPEN_SIZES} are compared"
    )]
    OpenSizes(usize),
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
        /// The reason.
        error: NodeError,
    },
    /// An invariant of the importer is broken: a fault of fanwise.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ImportError {
    /// The error with the name of the file that is no model.
    pub(super) fn of_path(mut self, path: &Path) -> Self {
        if let Self::Malformed { file, .. } | Self::Graphs { file, .. } = &mut self {
            *file = path.display().to_string();
        }
        self
    }

    /// The inputs of one number each that decide a value which must be known.
    pub(crate) fn deciding(&self) -> Option<&[String]> {
        let Self::Node { error, .. } = self else { return None };
        let inputs = error.depends();
        error.is_decided().then_some(inputs)
    }

    /// The inputs that a value depends on which must be known.
    pub(crate) fn depends(&self) -> &[String] {
        if let Self::Node { error, .. } = self { error.depends() } else { &[] }
    }

    /// The node that is wrong, if it is one.
    pub(super) fn node(&self) -> Option<&str> {
        if let Self::Node { node, .. } = self { Some(node) } else { None }
    }
}

/// Error in a node.
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
         sizes{}",
        Quoted(.value), decided(.inputs, *.alone)
    )]
    NotKnown {
        /// Its position.
        operand: usize,
        /// The value's name.
        value: String,
        /// The inputs that it depends on.
        inputs: Vec<String>,
        /// Whether each of these is one number, and nothing else decides it.
        alone: bool,
    },
    /// What decides which body is run, or whether it is run again, is not known before the run.
    #[error("{what} must be known before the run, and depends on {on}")]
    Undecided {
        /// The value, as a phrase.
        what: String,
        /// What it depends on, as a list.
        on: Box<str>,
        /// The inputs among these.
        inputs: Vec<String>,
        /// Whether each of these is one number, and nothing else decides it.
        alone: bool,
    },
    /// An attribute is absent, of another kind, or has a value that is not allowed.
    #[error("attribute {} {reason}", Quoted(.name))]
    Attribute {
        /// The attribute.
        name: String,
        /// The reason, as a clause that follows the name.
        reason: String,
    },
    /// A valid use that is not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The batch size was freed, but a number in the graph may stand for it.
    #[error("{literal} cannot become symbolic: {reason}")]
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
        /// The contradiction.
        error: Box<OpError>,
    },
    /// A tensor in an attribute is not valid.
    #[error("attribute {}: {reason}", Quoted(.name))]
    Tensor {
        /// The attribute.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The file does not say of which type a result is, and nothing else does.
    #[error("the type of its result {} is not known: {reason}", Quoted(.value))]
    Undeclared {
        /// The result.
        value: String,
        /// The missing information, as a sentence.
        reason: String,
    },
    /// Its tensors take more memory than is allowed.
    #[error(transparent)]
    Memory(#[from] OverBudget),
}

impl From<WireError> for ImportError {
    fn from(WireError { at, reason }: WireError) -> Self {
        Self::Malformed { file: String::new(), at, reason }
    }
}

/// The beginning of an error that names its file.
fn of_file(file: &str) -> String {
    if file.is_empty() { String::new() } else { format!("{}: ", Quoted(file)) }
}

impl NodeError {
    /// The inputs that a value depends on which must be known.
    fn depends(&self) -> &[String] {
        if let Self::NotKnown { inputs, .. } | Self::Undecided { inputs, .. } = self {
            return inputs;
        }
        &[]
    }

    /// Whether these inputs decide it alone, each as one number.
    fn is_decided(&self) -> bool {
        matches!(self, Self::NotKnown { alone: true, .. } | Self::Undecided { alone: true, .. })
    }

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
    /// The number of nodes that use it.
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
    pub(crate) fn open(&self) -> impl Iterator<Item = &UnboundDim> {
        let mut seen = BTreeSet::new();
        self.sizes.iter().filter(move |s| !s.name.is_empty() && seen.insert(s.name.as_str()))
    }

    /// The inputs that carry it, each with the first axis on which it stands.
    pub(crate) fn axes(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut seen = BTreeSet::new();
        let sizes = self.sizes.iter().map(|s| (s.input.as_str(), s.axis));
        sizes.filter(move |(input, _)| seen.insert(*input))
    }

    /// The sizes as an error names them: `users`, axis 0 of input `user`.
    pub(crate) fn text(&self) -> String {
        let named = self.open().filter(|s| !s.name.ends_with(']'));
        let named = named.map(|s| Quoted(&s.name).to_string());
        let places = self.sizes.iter();
        let places = places.map(|s| format!("axis {} of input {}", s.axis, Quoted(&s.input)));
        named.chain(places).take(LISTED).collect::<Vec<_>>().join(", ")
    }
}

/// Sizes of different names of which the graph may prove that they are one: each takes a pass over
/// it.
pub(super) const MAX_OPEN_SIZES: usize = 64;

/// The bytes of what an operator says that an error shows.
const SAID: usize = 2000;

/// The text of a node error, truncated if it lists very many numbers.
fn brief(error: &NodeError) -> String {
    let mut text = error.to_string();
    if text.len() > SAID {
        let more = text.len() - SAID;
        text.truncate(text.floor_char_boundary(SAID));
        let _ = write!(text, "… ({more} bytes more)");
    }
    text
}

/// The clause that inputs decide a value, where they do so `alone`.
fn decided(inputs: &[String], alone: bool) -> String {
    let names = || list_names(inputs.iter().map(String::as_str));
    match inputs.len() {
        _ if !alone => String::new(),
        0 => String::new(),
        1 => format!("; input {} decides it", names()),
        _ => format!("; inputs {} decide it", names()),
    }
}

/// The entries of a list that an error names; the rest are counted.
pub(super) const LISTED: usize = 100;

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
    text
}

fn list_unbound(dims: &[UnboundDim]) -> String {
    let mut text = String::from("sizes that are neither constants nor the batch must be bound:");
    for UnboundDim { name, input, axis } in dims.iter().take(LISTED) {
        let _ = write!(text, "\n  {}, axis {axis} of input {}", Quoted(name), Quoted(input));
    }
    count_rest(&mut text, dims.len());
    text
}

/// The subject of a message about a setting.
fn subject(setting: Setting) -> &'static str {
    const SUBJECTS: [(Setting, &str); 4] = [
        (Setting::BatchAxis, "the batch axis of"),
        (Setting::Dim, "the size"),
        (Setting::Set, "the value of"),
        (Setting::Assume, "the split rule of"),
    ];
    let found = SUBJECTS.iter().find(|(own, _)| *own == setting);
    found.map_or(setting.path(), |(_, subject)| subject)
}

fn list_batches(candidates: &[BatchCandidate]) -> String {
    let mut text = String::from("the batch is ambiguous: it may be any of these sizes");
    for candidate in candidates.iter().take(LISTED) {
        let _ = write!(text, "\n  {}", candidate.text());
    }
    count_rest(&mut text, candidates.len());
    text
}

#[cfg(test)]
mod tests {
    use super::{BatchCandidate, ImportError, UnboundDim, UnsupportedOp};
    use crate::types::{Diagnostic, Hint};

    #[test]
    fn lists_name_everything() {
        let words =
            |error: &ImportError| error.hints().iter().map(Hint::to_string).collect::<Vec<_>>();
        let ops = vec![
            UnsupportedOp {
                op: "LSTM".into(),
                nodes: vec!["node `a`".into(), "node 7".into()],
                count: 2,
            },
            UnsupportedOp { op: "com.x::Y".into(), nodes: vec!["node `b`".into()], count: 3 },
        ];
        let error = ImportError::Unsupported(ops);
        let text = error.to_string();
        assert!(text.contains("\n  LSTM: node `a`, node 7\n  com.x::Y: node `b`"), "{text}");
        assert!(text.ends_with("Y: node `b` and 2 more"), "{text}");
        assert!(words(&error)[0].ends_with("(`LoadOptions::assume com.x.Y=rowwise(0)`)"));
        let dim = UnboundDim { name: "seq".into(), input: "x".into(), axis: 1 };
        let error = ImportError::UnboundDims(vec![dim]);
        assert!(error.to_string().ends_with("`seq`, axis 1 of input `x`"), "{error}");
        assert!(words(&error)[0].ends_with("(`LoadOptions::dims seq=128`)"));
        let of = |name: &str| BatchCandidate {
            sizes: vec![UnboundDim { name: name.into(), input: format!("of_{name}"), axis: 1 }],
        };
        let error = ImportError::Batches(vec![of("p"), of("q")]);
        assert!(error.to_string().contains("\n  `p`, axis 1 of input `of_p`\n"), "{error}");
        let hints = words(&error);
        let first =
            "if the batch is `p`, axis 1 of input `of_p` (`LoadOptions::batch_axis of_p=1`)";
        assert_eq!(hints[0], first);
        assert!(hints[2].ends_with("(`LoadOptions::dims q=128`)"), "{hints:?}");
    }
}
