//! Why there is no model.

use crate::format::FileError;
use crate::format::onnx::{self, ImportError};
use crate::ir;
use crate::pass::PassError;
use crate::types::{Escaped, Quoted};
use crate::zoo::ZooError;

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The path is no regular file.
    #[error("{0} is no regular file")]
    NotAFile(String),
    /// The file, or the weights of a model of the zoo, are larger than the memory that may be used.
    #[error("{path} has {bytes} bytes; {limit} may be used (`--max-memory`)")]
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
    /// There is no such model.
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// The file or folder is a model of another kind, or none.
    #[error("{} is {what}; {way}", Escaped(.path))]
    Foreign {
        /// The file.
        path: String,
        /// What it is.
        what: &'static str,
        /// What to do.
        way: &'static str,
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
    #[error(
        "the weights of {} are in {}, which is no regular file; name another file with `--params \
         FILE`",
        Quoted(.param), Quoted(.file)
    )]
    NoSource {
        /// The parameter.
        param: String,
        /// The file that the graph names.
        file: String,
    },
    /// The file does not hold a parameter.
    #[error(
        "{} has no {}, the weights of {}; name another file with `--params FILE`",
        Escaped(.file), Quoted(.key), Quoted(.param)
    )]
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
        "{} has a tensor {}, and the model has no parameter of this name; `fanwise summary` lists \
         them",
        Escaped(.file), Quoted(.name)
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
    },
    /// The model cannot be written as an ONNX file.
    #[error(transparent)]
    Export(#[from] onnx::ExportError),
    /// Nothing says which model a graph was made from.
    #[error("the graph does not say which model it was made from; name it with `--template MODEL`")]
    NoTemplate,
    /// Simplification failed: a bug in an operator.
    #[error(transparent)]
    Pass(#[from] PassError),
}
