//! A program on virtual devices, ready to run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::run::{Given, Prepared, Run};
use super::variables::{self, Variables};
use crate::backend::host::{Crew, DeviceMemory, lock, profile};
use crate::backend::{
    CompileError, DeviceStats, Executable, RunError, RunOptions, RunOutput, Staged, Trace, inputs,
};
use crate::ir::Weights;
use crate::lower::{BindError, Bound, Program};
use crate::types::{DType, Device, Tensor};

/// Plans of this many batch sizes are kept.
const KEPT_PLANS: usize = 16;

/// A program that is ready to run on virtual devices.
#[derive(Debug)]
pub struct CpuExecutable {
    program: Program,
    variables: Variables,
    crew: Arc<Crew>,
    plans: Mutex<VecDeque<Arc<Prepared>>>,
    /// The arenas of the last run, one for each device.
    arenas: Mutex<Option<Vec<Tensor>>>,
    trace: Option<Arc<Trace>>,
}

impl CpuExecutable {
    /// Of a program that runs on these threads.
    pub(super) fn new(
        program: Program,
        weights: &Weights,
        crew: Arc<Crew>,
    ) -> Result<Self, CompileError> {
        let variables = crew.enter(|| Variables::new(&program, weights))?;
        let (plans, arenas) = (Mutex::default(), Mutex::default());
        Ok(Self { program, variables, crew, plans, arenas, trace: None })
    }

    /// The same with a trace that its runs are added to.
    pub(super) fn traced(self, trace: Option<Arc<Trace>>) -> Self {
        Self { trace, ..self }
    }

    /// The program at this batch size with its kernels, which may hold tables as long as the
    /// results: they are made after the memory is found to suffice, beside that which the
    /// parameters take on each device.
    fn prepare(
        &self,
        n: i64,
        limit: Option<u64>,
        params: &[u64],
    ) -> Result<Arc<Prepared>, RunError> {
        let check = |bound: &Bound| {
            let arenas = bound.devices.iter().map(|device| device.planned as u64);
            let updates = self.program.devices.iter().zip(&bound.devices);
            let updates = updates.map(|(device, bound)| variables::update_bytes(device, bound));
            let held = arenas.chain(params.iter().copied()).chain(updates);
            inputs::check_memory(&self.program, n, held, limit)
        };
        let mut plans = lock(&self.plans);
        let known = plans.iter().position(|p| p.bound.n == n);
        let plan = if let Some(plan) = known.and_then(|at| plans.remove(at)) {
            check(&plan.bound)?;
            plan
        } else {
            // The plan itself is small; kernels and arenas are made after the check.
            let bound = self.program.bind(n)?;
            check(&bound)?;
            Arc::new(Prepared::new(&self.program, Arc::new(bound)))
        };
        // The most recently used is in front, so that the end is what is forgotten.
        plans.truncate(KEPT_PLANS - 1);
        plans.push_front(plan.clone());
        Ok(plan)
    }

    /// The memory of every device: the arenas of the last run where they suffice, new outputs,
    /// memory for updates.
    fn memories(
        &self,
        bound: &Bound,
        spares: Option<&mut Vec<Vec<Tensor>>>,
    ) -> Result<Vec<DeviceMemory>, RunError> {
        // Before the first run, and while another one uses what is kept, memory is taken anew.
        let mut spares = spares.map(std::mem::take).unwrap_or_default().into_iter();
        // None are kept: see above.
        let mut kept = lock(&self.arenas).take().unwrap_or_default().into_iter();
        let mut memories = Vec::with_capacity(bound.devices.len());
        for (program, device) in self.program.devices.iter().zip(&bound.devices) {
            let allocation = |error| RunError::Allocation { device: program.device, error };
            let arena = match kept.next().filter(|a| a.len() >= device.planned) {
                Some(arena) => arena,
                None => Tensor::zeros(DType::U8, &[device.planned]).map_err(allocation)?,
            };
            let mut outputs = Vec::new();
            // Outputs are new for each run, because the caller keeps them.
            if program.device == Device::HOST {
                for port in &self.program.outputs {
                    let dims = port.ty.shape.at(bound.n);
                    outputs.push(Tensor::zeros(port.ty.dtype, &dims).map_err(allocation)?);
                }
            }
            let updates =
                variables::tensors(&self.program, program, spares.next()).map_err(allocation)?;
            memories.push(DeviceMemory { arena, outputs, updates });
        }
        Ok(memories)
    }
}

/// A batch to come: its inputs are in the host's memory, where the devices read them.
struct Kept<'a> {
    executable: &'a CpuExecutable,
    inputs: BTreeMap<String, Tensor>,
    options: RunOptions,
}

impl Staged for Kept<'_> {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        inputs::scalar(&self.executable.program, name, value)?;
        self.inputs.insert(name.to_owned(), value.clone());
        Ok(())
    }

    fn run(self: Box<Self>) -> Result<RunOutput, RunError> {
        self.executable.run(&self.inputs, &self.options)
    }
}

impl Executable for CpuExecutable {
    fn program(&self) -> &Program {
        &self.program
    }

    fn bind(&self, n: i64) -> Result<Arc<Bound>, BindError> {
        let known = lock(&self.plans).iter().find(|p| p.bound.n == n).map(|p| p.bound.clone());
        known.map_or_else(|| Ok(Arc::new(self.program.bind(n)?)), Ok)
    }

    fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<RunOutput, RunError> {
        let (n, inputs) = inputs::check(&self.program, inputs)?;
        // The turn comes before the parameters are read: they must not change while the run has
        // them.
        let mut spares = self.variables.turn(&self.program);
        let held = self.variables.held();
        let param_bytes = self.variables.bytes();
        let prepared = self.prepare(n, options.max_memory, param_bytes)?;
        let bound = &prepared.bound;
        let memories = self.memories(bound, spares.as_deref_mut())?;
        let works = || profile::works(&self.program, n);
        let trace = self.trace.as_ref().map(|trace| trace.run(&self.program.name, works));
        let given = Given {
            program: &self.program,
            prepared: &prepared,
            inputs: &inputs,
            params: &held,
            crew: &self.crew,
            progress: options.progress.as_deref(),
            trace: trace.as_ref(),
        };
        let run = Run::new(given, memories);
        let done = run.all_devices();
        done.as_ref().err().into_iter().zip(&trace).for_each(|(error, trace)| trace.fail(error));
        let (mut arenas, mut outputs, mut updates) = (Vec::new(), Vec::new(), Vec::new());
        for memory in run.into_memories() {
            arenas.push(memory.arena);
            outputs.extend(memory.outputs);
            updates.push(memory.updates);
        }
        let names = self.program.outputs.iter().map(|p| p.name.clone());
        let outputs: Vec<(Arc<str>, Tensor)> = names.zip(outputs).collect();
        // The parameters are locked for writing below, which waits for all readers.
        drop(held);
        *lock(&self.arenas) = Some(arenas);
        if let Some(spares) = &mut spares {
            // After a failure some devices lack their updates: the parameters stay as they were.
            if done.is_ok() && options.may_update(&outputs) {
                self.variables.replace(&self.program, &mut updates);
            }
            **spares = updates;
        }
        let devices = done?.into_iter().enumerate().map(|(d, (used, time))| {
            let program = &self.program.devices[d];
            let rows = program.replicas.iter().filter_map(|r| bound.rows.get(*r as usize));
            DeviceStats {
                device: program.device,
                rows: (!program.replicas.is_empty()).then(|| rows.sum()),
                planned: bound.devices[d].planned as u64,
                used,
                params: param_bytes[d],
                time,
            }
        });
        Ok(RunOutput { n, devices: devices.collect(), outputs })
    }

    fn stage<'a>(
        &'a self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Box<dyn Staged + 'a>, RunError> {
        inputs::check(&self.program, inputs)?;
        Ok(Box::new(Kept { executable: self, inputs: inputs.clone(), options: options.clone() }))
    }

    fn weights(&self) -> Result<Weights, RunError> {
        let allocation = |error| RunError::Allocation { device: Device::HOST, error };
        self.crew.enter(|| self.variables.current(&self.program)).map_err(allocation)
    }

    fn set_weights(&self, weights: &Weights) -> Result<(), CompileError> {
        self.crew.enter(|| self.variables.set(&self.program, weights))
    }
}
