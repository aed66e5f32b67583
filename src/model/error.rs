//! Why a model cannot be loaded or saved.

use std::path::Path;

use super::kind::{self, Kind};
#[cfg(feature = "keras")]
use crate::format::keras::KerasError;
use crate::format::onnx::{self, ImportError};
use crate::format::{FileError, said};
use crate::ir;
use crate::pass::PassError;
use crate::types::hint::with_hints;
use crate::types::{Diagnostic, Escaped, Hint, Quoted, Setting};
#[cfg(feature = "zoo")]
use crate::zoo::{self, ZooError};

/// What a model is.
const MODELS: &str = "name an ONNX or Keras file, a graph that fanwise wrote, or a built-in model, \
    `zoo:NAME`";

/// Why a model cannot be loaded or saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file cannot be read or written.
    #[error("{path}: {}", said(.error))]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The path is not a regular file.
    #[error("{0} is not a regular file")]
    NotAFile(String),
    /// The file, or the weights of a model of the zoo, are larger than the memory that may be used.
    #[error("{path} has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The ONNX file cannot be imported.
    #[error(transparent)]
    Onnx(#[from] ImportError),
    /// The Keras file cannot be read.
    #[cfg(feature = "keras")]
    #[error(transparent)]
    Keras(#[from] KerasError),
    /// There is no such model.
    #[cfg(feature = "zoo")]
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// There are no built-in models.
    #[cfg(not(feature = "zoo"))]
    #[error("`{0}`: this build has no built-in models (feature `zoo`)")]
    NoZoo(String),
    /// The file or folder is a model of another kind, or none.
    #[error("{} is {what}", Escaped(.path))]
    Foreign {
        /// The file.
        path: String,
        /// What it is.
        what: &'static str,
        /// What to do.
        way: &'static str,
        /// Whether it holds weights, which a model can be given.
        weights: bool,
    },
    /// The text is no graph.
    #[error("{path}: {error}")]
    Text {
        /// The file.
        path: String,
        /// Where and what.
        error: Box<ir::ParseError>,
    },
    /// The JSON is no graph.
    #[error("{path}: {error}")]
    Json {
        /// The file.
        path: String,
        /// Where and what.
        error: Box<ir::JsonError>,
    },
    /// The graph breaks an invariant.
    #[error("{path}: the graph is damaged\n{errors}")]
    Invalid {
        /// The file.
        path: String,
        /// Every invariant that is broken.
        errors: String,
    },
    /// A file of weights or a graph cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file that holds a parameter is not there.
    #[error("the weights of {} are in {}, which is not a file", Quoted(.param), Quoted(.file))]
    NoSource {
        /// The parameter.
        param: String,
        /// The file that the graph names.
        file: String,
    },
    /// The file does not hold a parameter.
    #[error("{} has no {}, the weights of {}", Escaped(.file), Quoted(.key), Quoted(.param))]
    Missing {
        /// The parameter.
        param: String,
        /// The file.
        file: String,
        /// The key looked for.
        key: String,
    },
    /// A file of weights in a form that is not read.
    #[error("{}: weights are read from .safetensors and .npz files", Escaped(.0))]
    ParamsForm(String),
    /// A file of weights that holds none.
    #[error("{} holds no tensor", Escaped(.0))]
    NoParams(String),
    /// A file of weights has a tensor that is no parameter of the model.
    #[error(
        "{} has a tensor {}, but the model has no such parameter",
        Escaped(.file),
        Quoted(.name)
    )]
    UnknownParam {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
    },
    /// The elements are not those that the graph was made for.
    #[error(
        "the weights of {} in {} are not those that the graph was made for: {what}",
        Quoted(.param), Escaped(.file)
    )]
    Changed {
        /// The parameter.
        param: String,
        /// The file.
        file: String,
        /// The difference.
        what: String,
        /// Whether their types are equal, so that they could be used.
        fits: bool,
    },
    /// The model cannot be written as an ONNX file.
    #[error(transparent)]
    Export(#[from] onnx::ExportError),
    /// The model is not a Keras file, so that none can be written.
    #[cfg(feature = "keras")]
    #[error("{} is no Keras file: only such a file can be saved with new weights", Escaped(.0))]
    NotKeras(String),
    /// Nothing says which model a graph was made from.
    #[error("the graph does not name the model that it was made from")]
    NoTemplate,
    /// Simplification failed: a bug in an operator.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// What to do where there is no file of this name.
fn missing(path: &str) -> Vec<Hint> {
    if path.contains("://") {
        return vec![Hint::advice("download it first, and name the file")];
    }
    let way = kind::of_name(Path::new(path)).map(|kind| kind.way);
    let others = [MODELS].into_iter().chain(way).map(Hint::advice);
    built_in(path).into_iter().chain(others).collect()
}

/// The built-in model that a name without `zoo:` means.
#[cfg(feature = "zoo")]
fn built_in(path: &str) -> Option<Hint> {
    let name = path.split(':').next()?;
    let is_known = zoo::names().any(|known| known.eq_ignore_ascii_case(name));
    is_known.then(|| Hint::advice(format!("to use the built-in model, name it `zoo:{path}`")))
}

/// None: this build has no built-in models.
#[cfg(not(feature = "zoo"))]
fn built_in(_: &str) -> Option<Hint> {
    None
}

impl ModelError {
    /// The error for a file or folder of another kind.
    pub(super) fn foreign(Kind { what, way, weights }: Kind, path: &Path) -> Self {
        Self::Foreign { path: path.display().to_string(), what, way, weights }
    }
}

impl Diagnostic for ModelError {
    fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::NotAFile(_) => "E0100",
            Self::TooLarge { .. } => "E0101",
            Self::Onnx(error) => error.code(),
            #[cfg(feature = "keras")]
            Self::Keras(error) => error.code(),
            #[cfg(feature = "zoo")]
            Self::Zoo(error) => error.code(),
            #[cfg(not(feature = "zoo"))]
            Self::NoZoo(_) => "E0103",
            Self::Foreign { .. } => "E0106",
            Self::Text { .. } => "E0104",
            Self::Json { .. } => "E0105",
            Self::Invalid { .. } => "E0201",
            Self::File(error) => error.code(),
            Self::ParamsForm(_) => "E0110",
            Self::NoSource { .. }
            | Self::Missing { .. }
            | Self::NoParams(_)
            | Self::UnknownParam { .. } => "E0111",
            Self::Changed { .. } => "E0112",
            #[cfg(feature = "keras")]
            Self::NotKeras(_) => "E0106",
            Self::NoTemplate => "E0113",
            Self::Export(error) => error.code(),
            Self::Pass(error) => error.code(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        let params = |advice| vec![Hint::set(Setting::Params, ["FILE"], advice)];
        match self {
            Self::TooLarge { .. } => {
                vec![Hint::turn_on(Setting::MaxMemory, "raise the memory limit")]
            }
            Self::Onnx(error) => error.hints(),
            #[cfg(feature = "keras")]
            Self::Keras(error) => error.hints(),
            #[cfg(feature = "zoo")]
            Self::Zoo(error) => error.hints(),
            #[cfg(not(feature = "zoo"))]
            Self::NoZoo(_) => Vec::new(),
            Self::File(error) => error.hints(),
            Self::Export(error) => error.hints(),
            Self::Pass(error) => error.hints(),
            Self::Foreign { way, weights, .. } => {
                let mut hints = vec![Hint::advice(*way)];
                if *weights {
                    hints.extend(params("to use its weights, name the model and this file"));
                }
                hints
            }
            Self::NoSource { .. } | Self::Missing { .. } => {
                params("name another file that holds the weights")
            }
            Self::Changed { fits: true, .. } => {
                vec![Hint::turn_on(Setting::ParamsUnchecked, "use them all the same")]
            }
            Self::NoTemplate => vec![Hint::set(Setting::Template, ["MODEL"], "name it")],
            #[cfg(feature = "keras")]
            Self::NotKeras(_) => vec![Hint::advice("save it as .fan or .onnx")],
            Self::Io { path, error } if error.kind() == std::io::ErrorKind::NotFound => {
                missing(path)
            }
            Self::NotAFile(_) => vec![Hint::advice(
                "name a file; a folder is a model if it has a checkpoint of a training",
            )],
            Self::UnknownParam { .. } => {
                vec![Hint::advice("name weights of this model, or rename the tensors")]
            }
            Self::Json { .. } => vec![Hint::advice("copy it again, or write it again")],
            Self::Io { .. }
            | Self::Text { .. }
            | Self::Invalid { .. }
            | Self::ParamsForm(_)
            | Self::NoParams(_)
            | Self::Changed { fits: false, .. } => Vec::new(),
        }
    }

    fn worded(&self, word: &dyn Fn(&Hint) -> String) -> String {
        if let Self::Pass(error) = self {
            return error.worded(word);
        }
        with_hints(self.to_string(), &self.hints(), word)
    }
}
