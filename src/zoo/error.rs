//! Why a model is not built.

use crate::ir::GraphError;
use crate::types::TensorError;

/// A model that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZooError {
    /// No model has this name.
    #[error("the zoo has no `{name}`; it has {}", .known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The options behind the name are none of this model's.
    #[error(
        "`{options}` are not options of `{name}`: they are `narrow=K` (layers of a K-th of the \
         features), `pixels=P` \
         (images of P by P) and `steps=S` (sequences of S), of those the model has, each once and \
         at least 1, at most \
         65535"
    )]
    Options {
        /// The model.
        name: &'static str,
        /// The options asked for.
        options: String,
    },
    /// A layer does not suit the one before it.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The elements of a parameter cannot be held.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
