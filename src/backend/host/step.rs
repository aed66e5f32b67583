//! The steps of one device whose memory is the host's.

use smallvec::SmallVec;

use super::crew::Crew;
use super::memory::{Block, DeviceMemory, Views};
use crate::backend::{RunError, params};
use crate::lower::{
    Action, BoundDevice, BufferId, Chain, DeviceProgram, Launch, Location, Space, Step,
};
use crate::op::{Op, OpError};
use crate::types::{DType, Device, Order, Tensor};

/// The code of a launch at one batch size, as the backend of the CPU chooses it.
pub(crate) trait Code {
    /// What gives the results.
    fn source(&self) -> Source<'_>;

    /// Computes the result, with the chain applied to it; for a source of kernels.
    fn run(&self, launch: &Launch, views: &mut Views<'_>) -> Result<(), Unsuited>;

    /// The operator, where the kernel may meet operands that it does not take.
    fn reference(&self) -> Option<&Op>;

    /// Applies a chain with these operands to the result of a reference evaluation.
    fn apply(chain: &Chain, others: &[&[f32]], result: &mut [f32]) -> Result<(), Unsuited>;
}

/// What gives the results of a launch.
pub(crate) enum Source<'a> {
    Kernel,
    /// The reference evaluation of an operator, with the batch size in the attributes.
    Reference(&'a Op),
    /// What it gives in every run.
    Kept(&'a [Tensor]),
}

/// Operands that do not suit a kernel. Where it has no reference that is a fault of whoever lowered
/// or prepared the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsuited;

/// Why a step ends the device's work.
#[derive(Debug)]
pub(crate) enum StepError {
    /// The operator failed.
    Op(&'static str, Box<OpError>),
    /// A fault of fanwise.
    Internal(String),
}

impl StepError {
    /// The error of a run, with the step's device and label.
    pub(crate) fn at(self, device: Device, label: &str) -> RunError {
        let label = label.to_owned();
        match self {
            Self::Op(op, error) => RunError::Op { device, label, op, error },
            Self::Internal(reason) => RunError::Internal { device, label, reason },
        }
    }
}

fn internal(reason: &str) -> StepError {
    StepError::Internal(reason.to_owned())
}

/// One more than the highest byte of the arena that the steps of a device touch.
pub(crate) fn touched(device: &DeviceProgram, bound: &BoundDevice) -> u64 {
    let active = device.steps.iter().zip(&bound.active).filter(|(_, active)| **active);
    // None: without steps nothing is touched.
    active.map(|(step, _)| highest(bound, step)).max().unwrap_or(0)
}

fn highest(bound: &BoundDevice, step: &Step) -> u64 {
    let end = |b: &BufferId| {
        let at = &bound.locations[*b];
        if at.space == Space::Arena && at.bytes > 0 { at.offset + at.bytes } else { 0 }
    };
    let highest = match &step.action {
        Action::Launch(launch) => launch.operands.iter().chain(&launch.results).map(end).max(),
        Action::Copy { to, .. } => Some(end(to)),
        Action::Wait(_) | Action::Record(_) => None,
    };
    // A step without buffers touches nothing.
    highest.unwrap_or(0) as u64
}

/// The state of the steps of one device.
#[derive(Clone, Copy)]
pub(crate) struct HostSteps<'a> {
    /// The device.
    pub(crate) program: &'a DeviceProgram,
    /// The location of its buffers.
    pub(crate) bound: &'a BoundDevice,
    /// The tensors given to the run.
    pub(crate) inputs: &'a [&'a Tensor],
    /// The parameters that the device holds.
    pub(crate) params: &'a [Option<Tensor>],
    /// The threads that compute.
    pub(crate) crew: &'a Crew,
}

impl<'a> HostSteps<'a> {
    /// Runs a launch with its code; without code there is nothing to compute.
    pub(crate) fn launch<C: Code + Sync, B: Block>(
        &self,
        code: Option<&C>,
        launch: &Launch,
        memory: &mut DeviceMemory<B>,
    ) -> Result<(), StepError> {
        let Some(code) = code else { return Ok(()) };
        match code.source() {
            Source::Kernel => match self.compute(code, launch, memory)? {
                Ok(()) => Ok(()),
                Err(Unsuited) => match code.reference() {
                    Some(op) => self.evaluate::<C, B>(op, launch, memory),
                    None => Err(internal("the operands do not suit the kernel")),
                },
            },
            Source::Reference(op) => self.evaluate::<C, B>(op, launch, memory),
            Source::Kept(results) => self.store(results, launch, memory),
        }
    }

    /// The location of a buffer.
    pub(crate) fn location(&self, buffer: BufferId) -> &'a Location {
        &self.bound.locations[buffer]
    }

    /// The bytes of an input, or of a parameter that the device holds.
    pub(crate) fn external(&self, at: &Location) -> Option<(&'a Tensor, &'a [u8])> {
        let tensor = match at.space {
            Space::Input(i) => *self.inputs.get(i as usize)?,
            Space::Param(i) => self.params.get(i as usize)?.as_ref()?,
            Space::Output(_) | Space::Update(_) | Space::Arena => return None,
        };
        Some((tensor, tensor.bytes().get(at.offset..at.offset.checked_add(at.bytes)?)?))
    }

    /// Copies one buffer of the device into another.
    pub(crate) fn copy<B: Block>(
        &self,
        from: BufferId,
        to: BufferId,
        memory: &mut DeviceMemory<B>,
    ) -> Result<(), StepError> {
        let outside = || internal("a buffer lies outside its memory");
        if let Some((_, bytes)) = self.external(self.location(from)) {
            memory.write(self.location(to)).ok_or_else(outside)?.copy_from_slice(bytes);
            return Ok(());
        }
        let mut views = Views::default();
        let divided = memory.views(&self.bound.locations, &[from], &[to], &|_| None, &mut views);
        divided.ok_or_else(outside)?;
        for (read, write) in views.reads.into_iter().zip(views.writes) {
            if let Some(read) = read {
                write.copy_from_slice(read);
            }
        }
        Ok(())
    }

    /// Runs a kernel where its operands and its results are.
    fn compute<C: Code + Sync, B: Block>(
        &self,
        code: &C,
        launch: &Launch,
        memory: &mut DeviceMemory<B>,
    ) -> Result<Result<(), Unsuited>, StepError> {
        let Launch { operands, results, .. } = launch;
        let mut views = Views::default();
        let external = |at: &Location| self.external(at).map(|(_, bytes)| bytes);
        let at = &self.bound.locations;
        let divided = memory.views(at, operands, results, &external, &mut views);
        divided.ok_or_else(|| internal("the launch's memory is not divided as planned"))?;
        Ok(self.crew.enter(|| code.run(launch, &mut views)))
    }

    /// Runs the reference evaluation on copies of the operands, and the chain on its result.
    fn evaluate<C: Code, B: Block>(
        &self,
        op: &Op,
        launch: &Launch,
        memory: &mut DeviceMemory<B>,
    ) -> Result<(), StepError> {
        let dtype = |b: &BufferId| self.program.buffer(*b).ty.dtype;
        let mut operands = Vec::with_capacity(launch.operands.len());
        for buffer in &launch.operands {
            let tensor = self.tensor(dtype(buffer), self.location(*buffer), memory)?;
            operands.push(match self.program.buffer(*buffer).order {
                Order::RowMajor => tensor,
                order @ (Order::ChannelsLast
                | Order::RowPanels
                | Order::GatePanels
                | Order::Heads) => {
                    let turned = Tensor::zeros(tensor.dtype(), tensor.dims());
                    let mut turned = turned.map_err(|e| StepError::Internal(e.to_string()))?;
                    self.crew.enter(|| params::read(order, &tensor, turned.bytes_mut()));
                    turned
                }
            });
        }
        let (operands, others) = operands.split_at(launch.split_operands().0.len());
        let refs: Vec<&Tensor> = operands.iter().collect();
        let mut results = self
            .crew
            .enter(|| op.eval(&refs))
            .map_err(|e| StepError::Op(op.name(), Box::new(e)))?;
        self.check(op, launch, &results)?;
        if !launch.chain.is_empty() {
            let others: SmallVec<[&[f32]; 4]> = others.iter().map(Tensor::as_slice).collect();
            let unsuited = || internal("the operands do not suit the chain");
            let result = results.first_mut().ok_or_else(unsuited)?.as_mut_slice();
            let applied = self.crew.enter(|| C::apply(&launch.chain, &others, result));
            applied.map_err(|Unsuited| unsuited())?;
        }
        self.store(&results, launch, memory)
    }

    /// Fails unless the results of an operator are those of the launch.
    fn check(&self, op: &Op, launch: &Launch, results: &[Tensor]) -> Result<(), StepError> {
        if results.len() != launch.results.len() {
            return Err(internal("the operator gives another number of results"));
        }
        for (buffer, result) in launch.results.iter().zip(results) {
            let (at, dtype) = (self.location(*buffer), self.program.buffer(*buffer).ty.dtype);
            if result.dtype() != dtype || result.dims() != at.dims.as_slice() {
                let found = result.tensor_type();
                let wanted = format!("{dtype}{:?}", at.dims);
                return Err(StepError::Internal(format!(
                    "{} gives {found}, not {wanted}",
                    op.name()
                )));
            }
        }
        Ok(())
    }

    /// Writes the results of a launch to where they belong.
    fn store<B: Block>(
        &self,
        results: &[Tensor],
        launch: &Launch,
        memory: &mut DeviceMemory<B>,
    ) -> Result<(), StepError> {
        for (buffer, result) in launch.results.iter().zip(results) {
            let bytes = memory.write(self.location(*buffer));
            let bytes = bytes.ok_or_else(|| internal("a result lies outside its memory"))?;
            let order = self.program.buffer(*buffer).order;
            self.crew.enter(|| params::write(order, result, bytes));
        }
        Ok(())
    }

    /// A tensor with the contents of a buffer; inputs and parameters are shared, not copied.
    fn tensor<B: Block>(
        &self,
        dtype: DType,
        at: &Location,
        memory: &mut DeviceMemory<B>,
    ) -> Result<Tensor, StepError> {
        if at.bytes == 0 {
            return Tensor::zeros(dtype, &at.dims).map_err(|e| StepError::Internal(e.to_string()));
        }
        let tensor = if let Some((tensor, bytes)) = self.external(at) {
            if bytes.len() == tensor.bytes().len() {
                tensor.clone().reshaped(&at.dims)
            } else {
                Tensor::from_bytes(dtype, &at.dims, bytes)
            }
        } else {
            let bytes = memory.read(at);
            let bytes = bytes.ok_or_else(|| internal("an operand lies outside its memory"))?;
            Tensor::from_bytes(dtype, &at.dims, bytes)
        };
        tensor.map_err(|e| StepError::Internal(e.to_string()))
    }
}
