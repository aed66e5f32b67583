use std::time::Duration;

#[cfg(feature = "cuda")]
use super::cuda::{KernelError, ProbeError};
#[cfg(feature = "cuda")]
use crate::codegen::CodegenError;
use crate::lower::BindError;
use crate::op::OpError;
use crate::types::{DType, Device, Diagnostic, Hint, Quoted, Setting, TensorError, TensorType};

/// A call of a device's driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({code}), {text}")]
pub struct DriverError {
    /// The function called.
    pub call: &'static str,
    /// The code that it returned.
    pub code: u32,
    /// The code's name, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The description of the driver.
    pub text: String,
}

/// Why a program cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// A parameter has no elements.
    #[error("the parameter `{0}` has no elements")]
    MissingParam(String),
    /// A parameter's elements are of another type.
    #[error("the parameter `{name}` is {found}; it must be {expected}")]
    ParamType {
        /// The parameter.
        name: String,
        /// The type it is declared with.
        expected: Box<TensorType>,
        /// The type of the elements given.
        found: Box<TensorType>,
    },
    /// Elements are given for a parameter that the program does not have.
    #[error("there is no parameter {}", Quoted(.0))]
    UnknownParam(String),
    /// The program breaks an invariant: a fault of fanwise.
    #[error("internal error: {0}")]
    Internal(String),
    /// Parameters cannot be changed once the program is prepared.
    #[error("the parameters of a program for {0} cannot be changed")]
    Fixed(&'static str),
    /// A parameter could not be given to a device.
    #[error("the parameter `{name}` on {device}: {error}")]
    Param {
        /// The parameter.
        name: String,
        /// The device.
        device: Device,
        /// The operation that failed.
        error: TensorError,
    },
    /// The worker threads could not be started.
    #[error("the worker threads could not be started: {0}")]
    Threads(String),
    /// The program runs on a device that is not there.
    #[error("the program runs on {device}, but there {}{}", there(*count), divided(*is_divided))]
    NoDevice {
        /// The device.
        device: Device,
        /// The GPUs that there are.
        count: usize,
        /// True if one of them is an instance of a divided GPU (MIG), of which a process sees one.
        is_divided: bool,
    },
    /// A launch has no kernel.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// A library of CUDA cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Kernels could not be compiled.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Kernels(#[from] KernelError),
    /// An error of an earlier run has left a device unusable.
    #[error("the devices can no longer be used, since an earlier run failed: {0}")]
    Dead(Box<RunError>),
    /// A call of a device's driver failed.
    #[error("{what} on {device}: {error}")]
    Driver {
        /// The device.
        device: Device,
        /// The intended operation.
        what: String,
        /// The operation that failed.
        error: Box<DriverError>,
    },
    /// A device has too little memory for the parameters.
    #[error(
        "{device} has no memory for the parameter `{name}`: {asked} bytes are requested; all that \
         it holds between runs is planned to take {planned}, {free} are free"
    )]
    OutOfMemory {
        /// The device.
        device: Device,
        /// The parameter.
        name: String,
        /// Its bytes.
        asked: u64,
        /// The bytes of all parameters that the device holds, and of the new elements of those that
        /// runs change.
        planned: u64,
        /// The bytes that the device has free.
        free: u64,
    },
}

impl Diagnostic for CompileError {
    fn code(&self) -> &'static str {
        "E0500"
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NoDevice { .. } => {
                let advice = "share the GPUs among more logical devices";
                vec![Hint::set(Setting::LogicalDevices, ["N"], advice)]
            }
            #[cfg(feature = "cuda")]
            Self::Probe(error) => error.hints(),
            _ => Vec::new(),
        }
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An input is not given.
    #[error("the input `{name}` is missing; it is {ty}")]
    MissingInput {
        /// The input.
        name: String,
        /// Its type.
        ty: Box<TensorType>,
    },
    /// A tensor is given for an input that does not exist.
    #[error("there is no input {}; the inputs are {}", Quoted(.name), names(known))]
    UnknownInput {
        /// The name given.
        name: String,
        /// The inputs that exist.
        known: Vec<String>,
    },
    /// Two tensors are given for one input.
    #[error("the input {} is given twice", Quoted(.0))]
    InputTwice(String),
    /// An input has another element type.
    #[error("the input {} is {found}; it must be {expected}", Quoted(.name))]
    InputDType {
        /// The input.
        name: String,
        /// The element type it has in the graph.
        expected: DType,
        /// The element type given.
        found: DType,
    },
    /// An input has another shape, at any batch size.
    #[error("the input {} is {found}; it must be {expected}", Quoted(.name))]
    InputShape {
        /// The input.
        name: String,
        /// The type it has in the graph.
        expected: Box<TensorType>,
        /// The type given.
        found: Box<TensorType>,
    },
    /// Two inputs, or two axes of one, disagree about the batch size.
    #[error(
        "the inputs disagree about the batch: `{first}` has {rows} rows, `{second}` has {others}"
    )]
    BatchSizes {
        /// An input.
        first: String,
        /// Its rows.
        rows: i64,
        /// Another input.
        second: String,
        /// Its rows.
        others: i64,
    },
    /// The program has no memory plan for this batch size.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The inputs alone take more memory than allowed.
    #[error("inputs of {n} rows take {needed} bytes; the limit is {limit}")]
    InputMemory {
        /// The batch size.
        n: i64,
        /// Bytes of all inputs.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// More memory is needed than allowed.
    #[error("a batch of {n} rows needs {needed} bytes; the limit is {limit}")]
    Memory {
        /// The batch size.
        n: i64,
        /// Bytes of arenas, parameters and outputs.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The elements of the parameters cannot be read.
    #[error("the parameters of a program for {0} cannot be read")]
    Parameters(&'static str),
    /// Memory could not be had.
    #[error("{device}: {error}")]
    Allocation {
        /// The device.
        device: Device,
        /// The operation that failed.
        error: TensorError,
    },
    /// An operator failed.
    #[error("`{label}` ({op}) on {device}: {error}")]
    Op {
        /// The device.
        device: Device,
        /// The node's label.
        label: String,
        /// The operator.
        op: &'static str,
        /// The operation that failed.
        error: Box<OpError>,
    },
    /// A call of a device's driver failed, or work on the device that was begun before.
    #[error("`{label}` ({op}) on {device}: {error}{}", shared(beside))]
    Driver {
        /// The device.
        device: Device,
        /// The node's label; of several that were begun together the first and the last.
        label: String,
        /// The operator.
        op: &'static str,
        /// The operation that failed.
        error: Box<DriverError>,
        /// The other devices on the same GPU, where each of them is told of an error of any.
        beside: Vec<Device>,
    },
    /// A device has too little memory.
    #[error(
        "{device} has no memory for {asked} bytes: a batch of {n} rows is planned to take \
         {planned}, \
         {free} are free"
    )]
    OutOfMemory {
        /// The device.
        device: Device,
        /// The batch size.
        n: i64,
        /// The bytes asked for.
        asked: u64,
        /// The bytes that the plan of the batch takes on the device, with the parameters.
        planned: u64,
        /// The bytes that the device has free.
        free: u64,
    },
    /// The host has too little memory that GPUs reach.
    #[error(
        "{device} has no memory for {asked} bytes of {what}, which GPUs copy from and to: such \
         memory is planned to take {planned}, {free} are free"
    )]
    PinnedMemory {
        /// The host.
        device: Device,
        /// Its purpose.
        what: String,
        /// The bytes asked for.
        asked: u64,
        /// The bytes of all such memory of a run, or of what was asked for outside of one.
        planned: u64,
        /// The bytes that the host has free.
        free: u64,
    },
    /// An input with axes is to have other elements than it was staged with.
    #[error("the input `{0}` has axes: it cannot change after staging; stage the batch again")]
    Settled(String),
    /// A device makes no progress.
    #[error("{device} made no progress for {limit:?} at `{label}` ({op}); the run was aborted")]
    Stuck {
        /// The device.
        device: Device,
        /// The label of the step that it is at.
        label: String,
        /// The operator.
        op: &'static str,
        /// The time that it was waited for.
        limit: Duration,
    },
    /// An error of an earlier run has left a device unusable.
    #[error("the devices can no longer be used, since an earlier run failed: {0}")]
    Dead(Box<Self>),
    /// A step failed in a way that is a fault of fanwise.
    #[error("internal error on {device} in `{label}`: {reason}")]
    Internal {
        /// The device.
        device: Device,
        /// The label of the step.
        label: String,
        /// The description of the failure.
        reason: String,
    },
}

impl Diagnostic for RunError {
    fn code(&self) -> &'static str {
        "E0501"
    }

    fn hints(&self) -> Vec<Hint> {
        if matches!(self, Self::UnknownInput { .. }) {
            let advice =
                "leave it out: give one tensor for each input, under the name of the input";
            return vec![Hint::advice(advice)];
        }
        let limited = matches!(self, Self::InputMemory { .. } | Self::Memory { .. });
        let raise = || Hint::turn_on(Setting::MaxMemory, "raise the memory limit");
        if limited { vec![raise()] } else { Vec::new() }
    }
}

fn names(known: &[String]) -> String {
    if known.is_empty() {
        return "none".to_owned();
    }
    known.iter().map(|n| Quoted(n).to_string()).collect::<Vec<_>>().join(", ")
}

fn there(count: usize) -> String {
    if count == 1 { "is 1 GPU".to_owned() } else { format!("are {count} GPUs") }
}

fn divided(is_divided: bool) -> &'static str {
    if is_divided { ", an instance of a divided GPU (MIG): a process sees one of them" } else { "" }
}

fn shared(beside: &[Device]) -> String {
    if beside.is_empty() {
        return String::new();
    }
    let beside: Vec<String> = beside.iter().map(Device::to_string).collect();
    format!("; it shares the GPU with {}, whose work may be what failed", beside.join(", "))
}
