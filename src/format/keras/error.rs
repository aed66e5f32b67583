//! Why a Keras file is no model that can be run.

use std::fmt;

use crate::format::{FileError, OverBudget};
use crate::ir::GraphError;
use crate::op::OpError;
use crate::types::{Diagnostic, Hint, ParseValueError, Quoted, Setting, TensorError};

/// Why a Keras file is no model that can be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KerasError {
    /// The file cannot be read, is damaged, or is too large.
    #[error(transparent)]
    File(#[from] FileError),
    /// Layers that have no counterpart, or whose configuration is wrong.
    #[error("`{path}`: {}", Listed(.layers))]
    Layers {
        /// The file.
        path: String,
        /// The layers, in the order of the file.
        layers: Vec<LayerError>,
    },
    /// The file has an architecture and no weights.
    #[error("`{0}` describes a model without its weights")]
    NoWeights(String),
    /// The file has weights and no architecture.
    #[error("`{0}` holds weights without the architecture of the model")]
    NoArchitecture(String),
    /// The weights of the file are not those of the architecture.
    #[error("`{path}`: variable {}: {reason}", Quoted(.variable))]
    Weights {
        /// The file.
        path: String,
        /// The variable.
        variable: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Sizes of inputs that the file leaves open, and that need a number.
    #[error("`{path}`: the file leaves open {}", .sizes.join(", "))]
    Open {
        /// The file.
        path: String,
        /// The sizes, as `INPUT[AXIS]`.
        sizes: Vec<String>,
    },
}

impl KerasError {
    /// The layers that cannot be read, in the order of the file: their names and classes.
    pub fn layers(&self) -> impl Iterator<Item = (&str, &str)> {
        let layers = if let Self::Layers { layers, .. } = self { layers.as_slice() } else { &[] };
        layers.iter().map(|layer| (&*layer.layer, &*layer.class))
    }
}

/// A layer that cannot be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LayerError {
    /// Its name, with the names of the models around it.
    pub layer: String,
    /// Its class in Keras.
    pub class: String,
    /// What is wrong.
    pub reason: String,
    /// The way out, if one is known.
    way: Option<&'static str>,
}

/// The layers of an error, one in a line.
struct Listed<'a>(&'a [LayerError]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.0 {
            return write!(f, "{one}");
        }
        write!(f, "{} layers cannot be read", self.0.len())?;
        self.0.iter().try_for_each(|layer| write!(f, "\n  {layer}"))
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} ({}): {}", Quoted(&self.layer), Quoted(&self.class), self.reason)
    }
}

impl LayerError {
    /// The error of a layer.
    pub(super) fn new(layer: &str, class: &str, fault: Fault) -> Self {
        let Fault { reason, way } = fault;
        Self { layer: layer.to_owned(), class: class.to_owned(), reason, way }
    }
}

/// What is wrong with a layer, without its name.
#[derive(Debug)]
pub(super) struct Fault {
    reason: String,
    way: Option<&'static str>,
}

impl Fault {
    /// A fault without a known way out.
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), way: None }
    }

    /// A fault with a way out.
    pub(super) fn with_way(reason: impl Into<String>, way: &'static str) -> Self {
        Self { reason: reason.into(), way: Some(way) }
    }

    /// A field of the configuration that is wrong.
    pub(super) fn field(name: &str, reason: impl fmt::Display) -> Self {
        Self::new(format!("field {} {reason}", Quoted(name)))
    }
}

impl From<Fault> for ParseValueError {
    fn from(fault: Fault) -> Self {
        Self::new(fault.reason)
    }
}

impl From<OpError> for Fault {
    fn from(error: OpError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<GraphError> for Fault {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Op { op, error, .. } => Self::new(format!("{op}: {error}")),
            error => Self::new(error.to_string()),
        }
    }
}

impl From<TensorError> for Fault {
    fn from(error: TensorError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<OverBudget> for KerasError {
    fn from(error: OverBudget) -> Self {
        FileError::from(error).into()
    }
}

impl Diagnostic for KerasError {
    fn code(&self) -> &'static str {
        match self {
            Self::File(error) => error.code(),
            Self::Layers { .. } | Self::Open { .. } => "E0107",
            Self::NoArchitecture(_) => "E0106",
            Self::NoWeights(_) | Self::Weights { .. } => "E0111",
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::File(error) => error.hints(),
            Self::Layers { layers, .. } => {
                let mut ways: Vec<&'static str> = layers.iter().filter_map(|l| l.way).collect();
                ways.sort_unstable();
                ways.dedup();
                ways.into_iter().map(Hint::advice).collect()
            }
            Self::NoWeights(_) => {
                vec![Hint::set(Setting::Params, ["FILE"], "name the file of its weights")]
            }
            Self::NoArchitecture(_) => {
                let advice = "name the model's .keras file or its architecture as JSON, and this \
                    file of weights";
                vec![Hint::set(Setting::Params, ["FILE"], advice)]
            }
            Self::Open { sizes, .. } => {
                let sizes = sizes.iter().map(|size| format!("{size}=NUMBER"));
                vec![Hint::set(Setting::Dim, sizes, "give them numbers")]
            }
            Self::Weights { .. } => Vec::new(),
        }
    }
}
