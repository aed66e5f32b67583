//! A program on virtual devices, ready to run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::blocks::Worked;
use super::place::Memory;
use super::run::{Given, Prepared, Run};
use super::variables::{self, Variables};
use crate::backend::host::{Crew, lock, profile};
use crate::backend::{
    CompileError, DeviceStats, Executable, RunError, RunOptions, RunOutput, Staged, Trace, inputs,
};
use crate::ir::Weights;
use crate::lower::{BindError, Bound, Port, Program};
use crate::types::{DType, Device, Tensor, TensorError};

/// Plans of this many batch sizes are kept.
const KEPT_PLANS: usize = 16;

/// How a batch of one size is run.
#[derive(Debug)]
struct Plan {
    /// All rows at once.
    bound: Arc<Bound>,
    prepared: Prepared,
}

/// A program that is ready to run on virtual devices.
#[derive(Debug)]
pub struct CpuExecutable {
    program: Program,
    variables: Variables,
    crew: Arc<Crew>,
    plans: Mutex<VecDeque<Arc<Plan>>>,
    /// The arenas of the last run.
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

    /// How a batch of this size is run. Its kernels may hold tables as long as the results: they
    /// are made after the memory is found to suffice, beside that which the parameters take on
    /// each device.
    fn prepare(&self, n: i64, limit: Option<u64>) -> Result<Arc<Plan>, RunError> {
        let check = |bound: &Bound, arenas: &mut dyn Iterator<Item = usize>| {
            let arenas = arenas.map(|bytes| bytes as u64);
            let updates = self.program.devices.iter().zip(&bound.devices);
            let updates = updates.map(|(device, bound)| variables::update_bytes(device, bound));
            let params = self.variables.bytes().iter().copied();
            let held = arenas.chain(params).chain(updates);
            inputs::check_memory(&self.program, n, held, limit)
        };
        let mut plans = lock(&self.plans);
        let known = plans.iter().position(|p| p.bound.n == n);
        let plan = if let Some(plan) = known.and_then(|at| plans.remove(at)) {
            check(&plan.bound, &mut of_all(&plan.bound))?;
            check(&plan.bound, &mut plan.prepared.arenas())?;
            plan
        } else {
            // The plan itself is small; kernels and arenas are made after the check.
            let bound = Arc::new(self.program.bind(n)?);
            check(&bound, &mut of_all(&bound))?;
            // A trace shows launches of all rows: their times are those of all threads.
            let (threads, in_blocks) = (self.crew.threads(), self.trace.is_none());
            let prepared = Prepared::new(&self.program, &bound, threads, in_blocks);
            check(&bound, &mut prepared.arenas())?;
            Arc::new(Plan { bound, prepared })
        };
        // The most recently used is in front, so that the end is what is forgotten.
        plans.truncate(KEPT_PLANS - 1);
        plans.push_front(plan.clone());
        Ok(plan)
    }

    /// Arenas of these sizes: those of the last run where they suffice.
    fn arenas(&self, sizes: impl Iterator<Item = usize>) -> Result<Vec<Tensor>, RunError> {
        // Before the first run, and while another one uses what is kept, memory is taken anew.
        let mut kept = lock(&self.arenas).take().unwrap_or_default().into_iter();
        let arena = |planned: usize| match kept.next().filter(|a| a.len() >= planned) {
            Some(arena) => Ok(arena),
            None => Tensor::zeros(DType::U8, &[planned]).map_err(no_memory),
        };
        sizes.map(arena).collect()
    }

    /// The outputs of a run of `n` rows, which the caller keeps.
    fn outputs(&self, n: i64) -> Result<Vec<Tensor>, RunError> {
        let ports = self.program.outputs.iter();
        let output = |port: &Port| Tensor::zeros(port.ty.dtype, &port.ty.shape.at(n));
        ports.map(output).collect::<Result<_, _>>().map_err(no_memory)
    }

    /// Tensors for the updates of each device: `spares`, where nothing else has their memory.
    fn updates(&self, spares: Option<&mut Vec<Vec<Tensor>>>) -> Result<Vec<Vec<Tensor>>, RunError> {
        // A run that updates nothing has no spares, nor has the first one that does.
        let mut spares = spares.map(std::mem::take).unwrap_or_default().into_iter();
        let devices = self.program.devices.iter();
        let updates = devices.map(|d| variables::tensors(&self.program, d, spares.next()));
        updates.collect::<Result<_, _>>().map_err(no_memory)
    }

    /// The statistics of a run, from what each device did.
    fn stats(&self, bound: &Bound, worked: Vec<Worked>) -> Vec<DeviceStats> {
        let devices = self.program.devices.iter().zip(self.variables.bytes()).zip(worked);
        let stats = devices.map(|((program, params), Worked { planned, used, time })| {
            let rows = program.replicas.iter().filter_map(|r| bound.rows.get(*r as usize));
            DeviceStats {
                device: program.device,
                rows: (!program.replicas.is_empty()).then(|| rows.sum()),
                planned,
                used,
                params: *params,
                time,
            }
        });
        stats.collect()
    }

    /// Runs all devices, in these arenas; `updates` are tensors for those of each device.
    fn devices(
        &self,
        given: Given<'_>,
        arenas: &mut [Tensor],
        outputs: &mut [Tensor],
        updates: &mut [Vec<Tensor>],
    ) -> Result<Vec<Worked>, RunError> {
        let mut outputs = Some(outputs);
        let mut arenas = arenas.iter_mut().map(Tensor::bytes_mut);
        let devices = self.program.devices.iter().zip(arenas.by_ref()).zip(updates);
        let memories = devices.map(|((device, arena), updates)| {
            let outputs = if device.device == Device::HOST { outputs.take() } else { None };
            Memory {
                arena,
                outputs: outputs.into_iter().flatten().map(Tensor::bytes_mut).collect(),
                updates: updates.iter_mut().map(Tensor::bytes_mut).collect(),
            }
        });
        let memories = memories.collect();
        Run::new(given, memories, arenas.collect()).all_devices()
    }
}

/// The bytes of the arenas of all rows.
fn of_all(bound: &Bound) -> impl Iterator<Item = usize> {
    bound.devices.iter().map(|device| device.planned)
}

fn no_memory(error: TensorError) -> RunError {
    RunError::Allocation { device: Device::HOST, error }
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
        let plan = self.prepare(n, options.max_memory)?;
        let bound = &plan.bound;
        let mut outputs = self.outputs(n)?;
        let mut updates = self.updates(spares.as_deref_mut())?;
        let works = || profile::works(&self.program, n);
        let trace = self.trace.as_ref().map(|trace| trace.run(&self.program.name, works));
        let given = Given {
            program: &self.program,
            prepared: &plan.prepared,
            inputs: &inputs,
            params: &held,
            crew: &self.crew,
            progress: options.progress.as_deref(),
            trace: trace.as_ref(),
        };
        let mut arenas = self.arenas(plan.prepared.arenas())?;
        let done = self.devices(given, &mut arenas, &mut outputs, &mut updates);
        done.as_ref().err().into_iter().zip(&trace).for_each(|(error, trace)| trace.fail(error));
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
        Ok(RunOutput { n, devices: self.stats(bound, done?), outputs })
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
        self.crew.enter(|| self.variables.current(&self.program)).map_err(no_memory)
    }

    fn set_weights(&self, weights: &Weights) -> Result<(), CompileError> {
        self.crew.enter(|| self.variables.set(&self.program, weights))
    }
}
