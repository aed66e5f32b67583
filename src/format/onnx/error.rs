use std::fmt::Write as _;

use super::super::{FileError, OverBudget};
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
    Malformed(#[from] WireError),
    /// The file holds no graph, or several.
    #[error("it is no ONNX model: {found} graphs where there must be one")]
    Graphs {
        /// How many it holds.
        found: usize,
    },
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
    #[error("`{value}` is given twice: {first}, and {second}")]
    Duplicate {
        /// The value's name.
        value: String,
        /// What gives it first, as a phrase.
        first: String,
        /// What gives it as well, as a phrase.
        second: String,
    },
    /// A value is used that nothing gives.
    #[error("{user} uses `{value}`, which nothing gives")]
    Undefined {
        /// The value's name.
        value: String,
        /// What uses it, as a phrase.
        user: String,
    },
    /// The nodes form a cycle.
    #[error("{node} depends on its own result")]
    Cycle {
        /// One of its nodes, as a phrase.
        node: String,
    },
    /// A call of a function of the model is not valid.
    #[error("{node} calls the function `{function}`: {reason}")]
    Call {
        /// The calling node, as a phrase.
        node: String,
        /// The function.
        function: String,
        /// What is wrong.
        reason: String,
    },
    /// More nodes than are read.
    #[error("the model has more than {limit} nodes once its functions are expanded")]
    TooManyNodes {
        /// The number allowed.
        limit: usize,
    },
    /// A tensor of the file is not valid.
    #[error("tensor `{tensor}`: {reason}")]
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
    #[error("input `{input}`: {reason}")]
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
    /// The leading sizes of the inputs are not all one.
    #[error("{}", list_batches(.0))]
    Batches(Vec<Vec<String>>),
    /// A node is not valid, or not in a supported way.
    #[error("{node} ({op}): {error}")]
    Node {
        /// The node, as a phrase.
        node: String,
        /// Its operator.
        op: String,
        /// What is wrong.
        error: NodeError,
    },
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
        "operand {operand} (`{value}`) must be known before the run: a constant, or computed from sizes"
    )]
    NotKnown {
        /// Its position.
        operand: usize,
        /// The value's name.
        value: String,
    },
    /// An attribute is absent, of another kind, or has a value that is not allowed.
    #[error("attribute `{name}` {reason}")]
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
        "{literal} cannot be freed: {reason}; export the model with a dynamic batch, or import it without --free-batch"
    )]
    Baked {
        /// The number, by its place.
        literal: String,
        /// Why it is not clear what it stands for.
        reason: String,
    },
    /// Types no longer agree once the batch size was freed.
    #[error(
        "{error}; the types agree at the batch size of the file, so a number in the graph stands for the batch"
    )]
    Freed {
        /// What does not agree.
        error: Box<OpError>,
    },
    /// A tensor in an attribute is not valid.
    #[error("attribute `{name}`: {reason}")]
    Tensor {
        /// The attribute.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Its tensors take more memory than is allowed.
    #[error(transparent)]
    Memory(#[from] OverBudget),
}

impl NodeError {
    /// The error as it reads where the batch size was freed: sizes that no longer suit may stand for it.
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
    /// The nodes that use it, as phrases.
    pub nodes: Vec<String>,
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

/// Nodes named for each unsupported operator; the rest are counted.
const NODES_NAMED: usize = 100;

fn list_unsupported(ops: &[UnsupportedOp]) -> String {
    let mut text = String::from("operators that are not supported:");
    for UnsupportedOp { op, nodes } in ops {
        let named = nodes.iter().take(NODES_NAMED).cloned().collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\n  {op}: {named}");
        if nodes.len() > NODES_NAMED {
            let _ = write!(text, " and {} more", nodes.len() - NODES_NAMED);
        }
    }
    text
}

fn list_unbound(dims: &[UnboundDim]) -> String {
    let mut text = String::from("sizes that are neither constants nor the batch must be bound:");
    for UnboundDim { name, input, axis } in dims {
        let _ = write!(text, "\n  `{name}`, axis {axis} of input `{input}`: try --dim {name}=128");
    }
    text
}

fn list_batches(classes: &[Vec<String>]) -> String {
    let mut text = String::from("the inputs have leading sizes that nothing equates:");
    for class in classes {
        let _ = write!(text, "\n  `{}`", class.join("`, `"));
    }
    let first = classes.first().and_then(|c| c.first()).map_or("NAME", String::as_str);
    let _ = write!(text, "\nname the inputs that carry the batch: --batch-axis {first}=0");
    text
}

#[cfg(test)]
mod tests {
    use super::{ImportError, UnboundDim, UnsupportedOp};

    #[test]
    fn lists_name_everything() {
        let ops = vec![
            UnsupportedOp { op: "LSTM".into(), nodes: vec!["node `a`".into(), "node 7".into()] },
            UnsupportedOp { op: "com.x::Y".into(), nodes: vec!["node `b`".into(); 102] },
        ];
        let text = ImportError::Unsupported(ops).to_string();
        assert!(text.contains("\n  LSTM: node `a`, node 7\n  com.x::Y: node `b`, "), "{text}");
        assert!(text.ends_with(" and 2 more"), "{text}");
        let dim = UnboundDim { name: "seq".into(), input: "x".into(), axis: 1 };
        let text = ImportError::UnboundDims(vec![dim]).to_string();
        assert!(text.ends_with("`seq`, axis 1 of input `x`: try --dim seq=128"), "{text}");
        let text = ImportError::Batches(vec![vec!["x".into()], vec!["y".into()]]).to_string();
        assert!(text.ends_with("--batch-axis x=0"), "{text}");
    }
}
