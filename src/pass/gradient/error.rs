//! Errors of differentiation and of training graphs.

use crate::ir::GraphError;
use crate::op::RuleError;
use crate::types::{Diagnostic, TensorError, TensorType};

/// The error of a differentiation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// The loss is not a floating-point scalar.
    #[error("the loss is {0}; it must be one float, without axes")]
    Loss(Box<TensorType>),
    /// An operator between the values and the loss has none.
    #[error("`{label}` ({op}) has no gradient: {error}")]
    Operator {
        /// The node's label.
        label: String,
        /// The operator.
        op: &'static str,
        /// Why.
        error: RuleError,
    },
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The error of a training graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// A loss names an output that does not exist or has a loss already, or there is no loss.
    #[error("the output `{output}` cannot have a loss; the outputs are {known}")]
    Output {
        /// The output asked for.
        output: String,
        /// The existing names.
        known: String,
    },
    /// A loss or an optimizer does not suit the model.
    #[error("{what}: {error}")]
    Rule {
        /// Its kind.
        what: String,
        /// Why.
        error: RuleError,
    },
    /// The model is replicated, or has variables already.
    #[error("the model is {0}; give the model itself")]
    NoModel(&'static str),
    /// A parameter to freeze or to train does not exist.
    #[error("there is no parameter `{name}` to {verb}; {known}")]
    NoParam {
        /// Its name.
        name: String,
        /// The parameters that there are, as a clause.
        known: String,
        /// The intended use.
        verb: &'static str,
    },
    /// A penalty names no trained parameter.
    #[error("no trained parameter `{pattern}` exists for a penalty; {known}")]
    NoPenalty {
        /// What names none.
        pattern: String,
        /// The trained parameters, as a clause.
        known: String,
    },
    /// A constraint names no trained parameter.
    #[error("no trained parameter `{pattern}` exists for a constraint; {known}")]
    NoConstraint {
        /// What names none.
        pattern: String,
        /// The trained parameters, as a clause.
        known: String,
    },
    /// There is nothing to train.
    #[error("the loss depends on no trained parameter{0}; train one at least")]
    Nothing(String),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// There is no gradient.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Diagnostic for TrainingError {
    fn code(&self) -> &'static str {
        "E0610"
    }
}
