use crate::analysis::ProofError;
#[cfg(feature = "lower")]
use crate::backend::CompileError;
#[cfg(feature = "lower")]
use crate::backend::RunError;
#[cfg(feature = "cuda")]
use crate::backend::cuda::KernelError;
#[cfg(feature = "cuda")]
use crate::codegen::CodegenError;
#[cfg(feature = "onnx")]
use crate::format::FileError;
use crate::ir::GraphError;
use crate::ir::VerifyErrors;
#[cfg(feature = "lower")]
use crate::lower::BindError;
#[cfg(feature = "lower")]
use crate::lower::LowerError;
#[cfg(feature = "onnx")]
use crate::model::ModelError;
use crate::pass::PassError;
#[cfg(feature = "gradients")]
use crate::pass::TrainingError;
#[cfg(feature = "train")]
use crate::train::data::DataError;
#[cfg(feature = "train")]
use crate::train::{CheckpointError, TrainError};
use crate::types::{Diagnostic, Hint, TensorError};
#[cfg(feature = "zoo")]
use crate::zoo::ZooError;

/// Any error of fanwise: the errors of its layers, each with a stable code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model could not be read or written.
    #[cfg(feature = "onnx")]
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The zoo has no model with this name.
    #[cfg(feature = "zoo")]
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// A file of tensors could not be read or written.
    #[cfg(feature = "onnx")]
    #[error(transparent)]
    File(#[from] FileError),
    /// A change of a graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph breaks an invariant.
    #[error("the graph is damaged\n{0}")]
    Invalid(VerifyErrors),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A replicated graph does not compute what its template does.
    #[error("the replicas do not compute what the model does\n{0}")]
    Unproved(#[from] ProofError),
    /// A graph could not be lowered.
    #[cfg(feature = "lower")]
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Memory could not be planned.
    #[cfg(feature = "lower")]
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A launch has no kernel.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// Kernels could not be compiled.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Kernels(#[from] KernelError),
    /// A program could not be loaded.
    #[cfg(feature = "lower")]
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A run failed.
    #[cfg(feature = "lower")]
    #[error(transparent)]
    Run(#[from] RunError),
    /// A model has no training graph.
    #[cfg(feature = "gradients")]
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// A dataset could not be read.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Data(#[from] DataError),
    /// A training step failed.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A checkpoint could not be written or read.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor could not be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl From<VerifyErrors> for Error {
    fn from(errors: VerifyErrors) -> Self {
        Self::Invalid(errors)
    }
}

impl Diagnostic for Error {
    /// The stable code: `E0100` to `E0199` for models and files, `E02…` for graphs, `E03…` for
    /// passes, `E04…` for lowering, `E05…` for running, `E06…` for training; a graph that may not
    /// be split has the `R…` code of the first operator that forbids it.
    fn code(&self) -> &'static str {
        self.diagnostic().map_or("E0201", Diagnostic::code)
    }

    /// Known remedies, the most likely one first.
    fn hints(&self) -> Vec<Hint> {
        self.diagnostic().map_or_else(Vec::new, Diagnostic::hints)
    }

    /// The whole diagnostic. `word` renders the hints with the names of your program; see
    /// [`Hint::worded`].
    fn worded(&self, word: &dyn Fn(&Hint) -> String) -> String {
        match self.diagnostic() {
            // These two say more than the error of the layer, which has no hints.
            // A failed proof is not a user error and has no hints.
            Some(error) if !matches!(self, Self::Unproved(_)) => error.worded(word),
            _ => self.to_string(),
        }
    }
}

impl Error {
    /// The error of a layer; `None` for a damaged graph, whose errors are a list.
    fn diagnostic(&self) -> Option<&dyn Diagnostic> {
        Some(match self {
            Self::Invalid(_) => return None,
            #[cfg(feature = "onnx")]
            Self::Model(error) => error,
            #[cfg(feature = "zoo")]
            Self::Zoo(error) => error,
            #[cfg(feature = "onnx")]
            Self::File(error) => error,
            Self::Graph(error) => error,
            Self::Pass(error) => error,
            Self::Unproved(error) => error,
            #[cfg(feature = "lower")]
            Self::Lower(error) => error,
            #[cfg(feature = "lower")]
            Self::Bind(error) => error,
            #[cfg(feature = "cuda")]
            Self::Codegen(error) => error,
            #[cfg(feature = "cuda")]
            Self::Kernels(error) => error,
            #[cfg(feature = "lower")]
            Self::Compile(error) => error,
            #[cfg(feature = "lower")]
            Self::Run(error) => error,
            #[cfg(feature = "gradients")]
            Self::Training(error) => error,
            #[cfg(feature = "train")]
            Self::Data(error) => error,
            #[cfg(feature = "train")]
            Self::Train(error) => error,
            #[cfg(feature = "train")]
            Self::Checkpoint(error) => error,
            Self::Tensor(error) => error,
        })
    }
}
