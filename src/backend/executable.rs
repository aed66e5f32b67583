//! The interface of backends: programs are compiled, staged and run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::error::{CompileError, RunError};
use crate::error::Error;
use crate::ir::{self, Graph, Weights};
use crate::lower::{self, BindError, Bound, Kernels, Program};
use crate::types::{Device, Tensor};

/// A place where programs run.
///
/// Elsewhere: PJRT client (XLA); execution provider (ONNX).
pub trait Backend: Send + Sync {
    /// The kernels for which programs are lowered to run here.
    fn kernels(&self) -> &dyn Kernels;

    /// Readies a program to run, with the elements of its parameters on the devices that hold them.
    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError>;

    /// Readies a graph to run: verifies, lowers and compiles it.
    fn ready(&self, graph: &Graph, weights: &Weights) -> Result<Box<dyn Executable>, Error> {
        let verified = ir::verify(graph)?;
        let program = lower::lower(&verified, self.kernels())?;
        Ok(self.compile(program, weights)?)
    }
}

/// A program that is ready to run any number of times, with batches of any size.
///
/// Elsewhere: loaded executable (XLA); inference session (ONNX).
pub trait Executable: Send + Sync {
    /// The program.
    fn program(&self) -> &Program;

    /// What went wrong without harm when the program was prepared, as sentences: kernels that could
    /// not be kept on disk.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// The memory plan for a batch of `n` rows; plans of recent sizes are kept.
    fn bind(&self, n: i64) -> Result<Arc<Bound>, BindError>;

    /// Runs once. Inputs go by the program's names; they are checked before anything is computed.
    ///
    /// Where the program updates parameters, these hold the new elements when the run has
    /// succeeded, all of them; a run that fails leaves all as they were. Such runs happen one after
    /// the other.
    fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<RunOutput, RunError>;

    /// Begins to bring the inputs of a run to the devices, beside runs that compute, and does not
    /// wait for it. They are checked now; parameters are read when it runs.
    /// [`run_each`](super::run_each) does so for batch after batch.
    fn stage<'a>(
        &'a self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Box<dyn Staged + 'a>, RunError>;

    /// The elements that the parameters have now, of those that a device holds: a state between two
    /// runs.
    fn weights(&self) -> Result<Weights, RunError> {
        Err(RunError::Parameters(self.program().target.name))
    }

    /// Gives parameters other elements, between two runs: all those in `weights`, or none where one
    /// is wrong.
    fn set_weights(&self, weights: &Weights) -> Result<(), CompileError> {
        let _ = weights;
        Err(CompileError::Fixed(self.program().target.name))
    }
}

/// A batch whose inputs are on the devices or on their way; what it holds is given back when it is
/// dropped.
pub trait Staged: Send {
    /// Gives an input without axes another value than it was staged with: one that follows from
    /// runs before, as a learning rate does.
    ///
    /// # Errors
    /// If the program has no such input, or one of another type.
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError>;

    /// Runs it, like [`Executable::run`] with its inputs.
    fn run(self: Box<Self>) -> Result<RunOutput, RunError>;
}

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The most bytes that arenas, parameters and outputs may take together; more is refused before
    /// the run.
    pub max_memory: Option<u64>,
    /// An output that must be finite for the run to change parameters: if it is not, they stay as
    /// they were, and the outputs are given all the same.
    pub finite: Option<Arc<str>>,
    /// Counts the [steps](crate::lower::DeviceProgram::steps) that are done, of all devices.
    pub progress: Option<Arc<AtomicU64>>,
}

impl RunOptions {
    /// True if a run with these outputs may change parameters.
    pub(crate) fn may_update(&self, outputs: &[(Arc<str>, Tensor)]) -> bool {
        let asked = |(name, _): &&(Arc<str>, Tensor)| self.finite.as_ref() == Some(name);
        outputs.iter().filter(asked).all(|(_, tensor)| tensor.is_finite())
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct RunOutput {
    /// The batch size.
    pub n: i64,
    /// The outputs with their names, in the program's order. Those of GPUs lie in the pinned memory
    /// that they were copied to, which is free for other runs when they are dropped.
    pub outputs: Vec<(Arc<str>, Tensor)>,
    /// The statistics of each device, in the program's order.
    pub devices: Vec<DeviceStats>,
}

/// The statistics of one device in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStats {
    /// The device.
    pub device: Device,
    /// The rows of the replicas on it; `None` where it has no replica.
    pub rows: Option<i64>,
    /// Bytes of its arena; of all of them, where its threads take blocks of rows. Devices whose
    /// turns follow each other may share those, which each of them counts.
    pub planned: u64,
    /// The highest byte of its arena that a step touched, plus one; as often as it has arenas.
    pub used: u64,
    /// Bytes of the parameters that it holds.
    pub params: u64,
    /// Time spent on steps, without waiting for other devices; what a device does at the same time
    /// counts twice, and steps of one virtual device may be taken amid those of another.
    pub time: Duration,
}
