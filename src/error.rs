use crate::analysis::ProofError;
use crate::backend::CompileError;
use crate::backend::RunError;
#[cfg(feature = "cuda")]
use crate::backend::cuda::KernelError;
use crate::codegen::CodegenError;
use crate::format::FileError;
use crate::ir::GraphError;
use crate::ir::VerifyErrors;
use crate::lower::BindError;
use crate::lower::LowerError;
use crate::model::ModelError;
use crate::pass::{PassError, TrainingError};
use crate::train::data::DataError;
use crate::train::{CheckpointError, TrainError};
use crate::types::TensorError;

/// Any error of fanwise: the errors of its layers, each with a stable code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model could not be read or written.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of tensors could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A graph could not be changed as asked.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph breaks an invariant.
    #[error("the graph is damaged\n{0}")]
    Invalid(VerifyErrors),
    /// A pass did not give a graph.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A replicated graph does not compute what its template does.
    #[error("the replicas do not compute what the model does\n{0}")]
    Unproved(#[from] ProofError),
    /// A graph could not be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Memory could not be planned.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A launch has no kernel.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// Kernels could not be compiled.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Kernels(#[from] KernelError),
    /// A program could not be readied.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// There is no training graph of a model.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// There are no data to train on.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A training could not go on.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl From<VerifyErrors> for Error {
    fn from(errors: VerifyErrors) -> Self {
        Self::Invalid(errors)
    }
}

impl Error {
    /// The stable code: `E0100` to `E0199` for models and files, `E02…` for graphs, `E03…` for
    /// passes, `E04…` for lowering, `E05…` for running, `E06…` for training; a graph that may not
    /// be split has the `R…` code of the first operator that forbids it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Model(error) => model_code(error),
            Self::File(_) => "E0110",
            Self::Graph(_) => "E0200",
            Self::Invalid(_) => "E0201",
            Self::Pass(error) => pass_code(error),
            Self::Unproved(_) => "E0310",
            Self::Lower(_) => "E0400",
            Self::Bind(_) => "E0401",
            Self::Codegen(_) => "E0402",
            #[cfg(feature = "cuda")]
            Self::Kernels(_) => "E0503",
            Self::Compile(_) => "E0500",
            Self::Run(_) => "E0501",
            Self::Training(_) => "E0610",
            Self::Data(error) => data_code(error),
            Self::Train(error) => train_code(error),
            Self::Checkpoint(_) => "E0620",
            Self::Tensor(_) => "E0502",
        }
    }
}

fn train_code(error: &TrainError) -> &'static str {
    match error {
        TrainError::Shards(_)
        | TrainError::Local
        | TrainError::Foreign(_)
        | TrainError::Terms { .. }
        | TrainError::Number { .. } => "E0611",
        TrainError::Missing(_) | TrainError::Rows(_) => "E0612",
        TrainError::Watch(_) | TrainError::Diverged(_) | TrainError::Rate { .. } => "E0613",
    }
}

fn model_code(error: &ModelError) -> &'static str {
    match error {
        ModelError::Io { .. } | ModelError::NotAFile(_) => "E0100",
        ModelError::TooLarge { .. } => "E0101",
        ModelError::Onnx(error) => error.code(),
        ModelError::Zoo(_) => "E0103",
        ModelError::Foreign { .. } => "E0106",
        ModelError::Text { .. } => "E0104",
        ModelError::Json { .. } => "E0105",
        ModelError::Invalid { .. } => "E0201",
        ModelError::File(_) | ModelError::ParamsForm(_) => "E0110",
        ModelError::NoSource { .. }
        | ModelError::Missing { .. }
        | ModelError::NoParams(_)
        | ModelError::UnknownParam { .. } => "E0111",
        ModelError::Changed { .. } => "E0112",
        ModelError::NoTemplate => "E0113",
        ModelError::Export(_) => "E0114",
        ModelError::Pass(error) => pass_code(error),
    }
}

fn pass_code(error: &PassError) -> &'static str {
    match error {
        PassError::Device(_) => "E0300",
        PassError::Split(_) => "E0301",
        PassError::Refused(refused) => refused.first().map_or("E0302", |r| r.code.name()),
        PassError::AlreadyReplicated(_) => "E0303",
        PassError::LocalStatistics(_) | PassError::NoGroups(_) => "E0304",
        PassError::Graph(_) => "E0200",
    }
}

fn data_code(error: &DataError) -> &'static str {
    match error {
        DataError::File(_) => "E0110",
        DataError::Threads(_) => "E0500",
        DataError::Tensor(_) => "E0502",
        DataError::Columns(_) => "E0600",
        DataError::Row { .. } => "E0601",
        DataError::Setting(_) => "E0602",
        DataError::Source(_) | DataError::Panicked(_) => "E0603",
    }
}
