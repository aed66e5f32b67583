//! Why a model is not built.

use crate::ir::GraphError;
use crate::types::{Diagnostic, Hint, TensorError, closest};

/// The question whether another model was meant, if there is one of a name like this.
fn meant(name: &str, known: &[&'static str]) -> String {
    let near = closest(name, known.iter().copied());
    near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"))
}

/// A model that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZooError {
    /// No model has this name.
    #[error(
        "unknown built-in model `{name}`{}; the models are {}",
        meant(.name, .known),
        .known.join(", ")
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The options behind the name are not options of this model.
    #[error("`{options}` is not an option of `{name}`")]
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

impl Diagnostic for ZooError {
    fn code(&self) -> &'static str {
        "E0103"
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Unknown { .. } | Self::Graph(_) | Self::Tensor(_) => Vec::new(),
            Self::Options { .. } => vec![Hint::advice(
                "options are `narrow=K` (1/K of the features), `pixels=P` (images of P by P) \
                 and `steps=S` (sequences of S), where the model has them, each from 1 to 65535",
            )],
        }
    }
}
