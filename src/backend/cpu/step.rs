//! The steps of one device whose memory is the host's.

use std::sync::Mutex;

use bytemuck::PodCastError;
use rayon::ThreadPool;
use smallvec::SmallVec;

use super::elementwise::{self, Epilogue};
use super::kernel::{Kernel, Slices, Unsuited};
use super::lock;
use super::memory::{Block, DeviceMemory};
use crate::backend::RunError;
use crate::lower::{Action, BoundDevice, BufferId, DeviceProgram, Launch, Location, Space, Step};
use crate::op::{Op, OpError};
use crate::types::{DType, Device, Tensor};

/// For each step of a device its kernel; `None` where the step launches none or has nothing to compute.
#[derive(Debug)]
pub(in crate::backend) struct Kernels(Vec<Option<Kernel>>);

impl Kernels {
    /// The kernels of a device at a batch of `n` rows.
    pub(in crate::backend) fn new(device: &DeviceProgram, bound: &BoundDevice, n: i64) -> Self {
        let kernel = |(step, active): (&Step, &bool)| {
            let Action::Launch(launch) = &step.action else { return None };
            let empty = |b: &BufferId| bound.locations[b.index()].bytes == 0;
            let idle = !active || launch.results.iter().all(empty);
            (!idle).then(|| Kernel::new(launch, bound, n))
        };
        Self(device.steps.iter().zip(&bound.active).map(kernel).collect())
    }
}

/// Why a step ends the device's work.
#[derive(Debug)]
pub(in crate::backend) enum StepError {
    /// The operator failed.
    Op(&'static str, Box<OpError>),
    /// A fault of fanwise.
    Internal(String),
}

impl StepError {
    /// The error of a run, with the step's device and label.
    pub(in crate::backend) fn at(self, device: Device, label: &str) -> RunError {
        let label = label.to_owned();
        match self {
            Self::Op(op, error) => RunError::Op { device, label, op, error },
            Self::Internal(reason) => RunError::Internal { device, label, reason },
        }
    }
}

fn floats(bytes: Option<&[u8]>) -> Result<Option<&[f32]>, PodCastError> {
    bytes.map(bytemuck::try_cast_slice).transpose()
}

fn internal(reason: &str) -> StepError {
    StepError::Internal(reason.to_owned())
}

/// One more than the highest byte of the arena that a step touches.
pub(in crate::backend) fn highest(bound: &BoundDevice, step: &Step) -> u64 {
    let end = |b: &BufferId| {
        let at = &bound.locations[b.index()];
        if at.space == Space::Arena && at.bytes > 0 { at.offset + at.bytes } else { 0 }
    };
    let highest = match &step.action {
        Action::Launch(launch) => launch.operands.iter().chain(&launch.results).map(end).max(),
        Action::Copy { to, .. } => Some(end(to)),
        Action::Wait(_) | Action::Record(_) => None,
    };
    highest.unwrap_or(0) as u64
}

/// What the steps of one device work with.
#[derive(Clone, Copy)]
pub(in crate::backend) struct HostSteps<'a> {
    /// The device.
    pub(in crate::backend) program: &'a DeviceProgram,
    /// Where its buffers lie.
    pub(in crate::backend) bound: &'a BoundDevice,
    /// The tensors given to the run.
    pub(in crate::backend) inputs: &'a [&'a Tensor],
    /// The parameters that the device holds.
    pub(in crate::backend) params: &'a [Option<Tensor>],
    /// The threads that compute.
    pub(in crate::backend) pool: &'a ThreadPool,
}

impl<'a> HostSteps<'a> {
    /// Runs the launch at a position.
    pub(in crate::backend) fn launch<B: Block>(
        &self,
        kernels: &Kernels,
        step: usize,
        launch: &Launch,
        memory: &Mutex<DeviceMemory<B>>,
    ) -> Result<(), StepError> {
        match kernels.0.get(step).and_then(Option::as_ref) {
            Some(Kernel::Reference(op)) => self.evaluate(op, launch, memory),
            Some(kernel) => self.compute(kernel, launch, memory),
            None => Ok(()),
        }
    }

    /// Where a buffer lies.
    pub(in crate::backend) fn location(&self, buffer: BufferId) -> &'a Location {
        &self.bound.locations[buffer.index()]
    }

    /// The bytes of an input, or of a parameter that the device holds.
    pub(in crate::backend) fn external(&self, at: &Location) -> Option<(&'a Tensor, &'a [u8])> {
        let tensor = match at.space {
            Space::Input(i) => *self.inputs.get(i as usize)?,
            Space::Param(i) => self.params.get(i as usize)?.as_ref()?,
            Space::Output(_) | Space::Update(_) | Space::Arena => return None,
        };
        Some((tensor, tensor.bytes().get(at.offset..at.offset.checked_add(at.bytes)?)?))
    }

    /// Copies one buffer of the device into another.
    pub(in crate::backend) fn copy<B: Block>(
        &self,
        from: &Location,
        to: &Location,
        memory: &Mutex<DeviceMemory<B>>,
    ) -> Result<(), StepError> {
        let outside = || internal("a buffer lies outside its memory");
        let mut own = lock(memory);
        if let Some((_, bytes)) = self.external(from) {
            own.write(to).ok_or_else(outside)?.copy_from_slice(bytes);
            return Ok(());
        }
        let views = own.views(&[from], &[to], &|_| None).ok_or_else(outside)?;
        for (read, write) in views.reads.into_iter().zip(views.writes) {
            if let Some(read) = read {
                write.copy_from_slice(read);
            }
        }
        Ok(())
    }

    /// Runs a kernel where its operands and its results are.
    fn compute<B: Block>(
        &self,
        kernel: &Kernel,
        launch: &Launch,
        memory: &Mutex<DeviceMemory<B>>,
    ) -> Result<(), StepError> {
        let outside = || internal("the launch's memory is not divided as planned");
        let at = |b: &BufferId| self.location(*b);
        let reads: SmallVec<[&Location; 6]> = launch.operands.iter().map(at).collect();
        let writes: SmallVec<[&Location; 1]> = launch.results.iter().map(at).collect();
        let external = |at: &Location| self.external(at).map(|(_, bytes)| bytes);
        let mut own = lock(memory);
        let views = own.views(&reads, &writes, &external).ok_or_else(outside)?;
        let read: Result<SmallVec<[Option<&[f32]>; 6]>, _> =
            views.reads.into_iter().map(floats).collect();
        let read = read.map_err(|_| outside())?;
        let (operands, others) = read.split_at(launch.split_operands().0.len());
        let others: Option<SmallVec<[&[f32]; 4]>> = others.iter().copied().collect();
        let writes = views.writes.into_iter().map(bytemuck::try_cast_slice_mut);
        let results: Result<SmallVec<[&mut [f32]; 1]>, _> = writes.collect();
        let slices = Slices {
            operands: operands.into(),
            others: others.ok_or_else(outside)?,
            results: results.map_err(|_| outside())?,
        };
        let done = self.pool.install(|| kernel.run(&launch.chain, slices));
        done.map_err(|Unsuited| internal("the operands do not suit the kernel"))
    }

    /// Runs the reference evaluation on copies of the operands, and the chain on its result.
    fn evaluate<B: Block>(
        &self,
        op: &Op,
        launch: &Launch,
        memory: &Mutex<DeviceMemory<B>>,
    ) -> Result<(), StepError> {
        let dtype = |b: &BufferId| self.program.buffer(*b).ty.dtype;
        let mut operands = Vec::with_capacity(launch.operands.len());
        for buffer in &launch.operands {
            operands.push(self.tensor(dtype(buffer), self.location(*buffer), memory)?);
        }
        let (operands, others) = operands.split_at(launch.split_operands().0.len());
        let refs: Vec<&Tensor> = operands.iter().collect();
        let mut results = self
            .pool
            .install(|| op.eval(&refs))
            .map_err(|e| StepError::Op(op.name(), Box::new(e)))?;
        if results.len() != launch.results.len() {
            return Err(internal("the operator gives another number of results"));
        }
        for (buffer, result) in launch.results.iter().zip(&results) {
            let at = self.location(*buffer);
            if result.dtype() != dtype(buffer) || result.dims() != at.dims.as_slice() {
                let found = result.tensor_type();
                let wanted = format!("{}{:?}", dtype(buffer), at.dims);
                return Err(StepError::Internal(format!(
                    "{} gives {found}, not {wanted}",
                    op.name()
                )));
            }
        }
        if !launch.chain.is_empty() {
            let others: SmallVec<[&[f32]; 4]> = others.iter().map(Tensor::as_slice).collect();
            let unsuited = || internal("the operands do not suit the chain");
            let chain = Epilogue::new(&launch.chain, &others).ok_or_else(unsuited)?;
            let result = results.first_mut().ok_or_else(unsuited)?.as_mut_slice();
            self.pool.install(|| elementwise::in_place(result, &chain));
        }
        let mut own = lock(memory);
        for (buffer, result) in launch.results.iter().zip(&results) {
            let bytes = own.write(self.location(*buffer));
            bytes
                .ok_or_else(|| internal("a result lies outside its memory"))?
                .copy_from_slice(result.bytes());
        }
        Ok(())
    }

    /// A tensor with the contents of a buffer; inputs and parameters are shared, not copied.
    fn tensor<B: Block>(
        &self,
        dtype: DType,
        at: &Location,
        memory: &Mutex<DeviceMemory<B>>,
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
            let own = lock(memory);
            let bytes =
                own.read(at).ok_or_else(|| internal("an operand lies outside its memory"))?;
            Tensor::from_bytes(dtype, &at.dims, bytes)
        };
        tensor.map_err(|e| StepError::Internal(e.to_string()))
    }
}
