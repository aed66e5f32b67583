//! The backend: which GPUs, and how a program is prepared for them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::executor::CudaExecutable;
use super::health::Health;
use super::parts::{Bytes, HostParams, Parts};
use super::pinned::{Elements, NotStaged, STAGING, Staging, failed, not_pinned};
use super::plan::{Loaded, Params, planned};
use super::variables::{Prepared, prepare};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::compiler::compile::Compiler;
use crate::backend::cuda::driver::context::{self, Context, NOT_READY, WATCHDOG};
use crate::backend::cuda::driver::contexts::Contexts;
use crate::backend::cuda::driver::error::{ProbeError, Version, nvrtc_package};
use crate::backend::cuda::driver::memory::{Global, Pinned, PinnedPool};
use crate::backend::cuda::driver::module::{Function, Module};
use crate::backend::host::trace::Trace;
use crate::backend::{Backend, CUDA, CompileError, DriverError, Executable, params};
use crate::codegen::{self, Arch, Call, CodeFormat, Kernel};
use crate::ir::Weights;
use crate::lower::{self, Action, Program, Storage};
use crate::types::invariant::invariant;
use crate::types::{Device, Order, Tensor};

/// Options of the CUDA backend.
#[derive(Clone)]
pub struct CudaOptions {
    /// The GPUs, by their numbers; all where it is empty. `gpu:0` of a program is the first of
    /// them.
    pub devices: Vec<u32>,
    /// The logical GPUs that stand on them, dealt round; as many as there are GPUs where it is
    /// `None`. Only GPUs that a program uses are opened.
    pub logical: Option<u32>,
    /// The compiler of kernels.
    pub compiler: Compiler,
    /// The form of compiled kernels.
    pub form: CodeFormat,
    /// The time for which a device may make no progress; [`Duration::MAX`] is for ever.
    pub watchdog: Duration,
    /// The trace of runs. With it, work is launched piece by piece, not as graphs.
    pub trace: Option<Arc<Trace>>,
    /// The threads that compute what runs on the host.
    pub threads: usize,
    /// True if launches are captured in graphs.
    pub graphs: bool,
    /// The progress of kernel compilation.
    pub progress: Arc<CompileProgress>,
}

impl CudaOptions {
    /// All GPUs, cubins, graphs, a minute without progress.
    pub fn new(compiler: Compiler, threads: usize) -> Self {
        Self {
            devices: Vec::new(),
            logical: None,
            compiler,
            form: CodeFormat::Cubin,
            watchdog: WATCHDOG,
            trace: None,
            threads,
            graphs: true,
            progress: Arc::default(),
        }
    }
}

/// The number of compiled units of kernels, and of all.
#[derive(Debug, Default)]
pub struct CompileProgress {
    /// The finished ones.
    pub done: AtomicU64,
    /// All that are known of.
    pub total: AtomicU64,
}

/// A GPU that a program uses, and the architecture for which its kernels are compiled.
type Gpu = (Arc<Context>, Arch);

/// The kernels of each step of each device.
type Steps = Vec<Vec<Vec<Option<Loaded>>>>;

/// Kernels as functions of the GPUs with these numbers.
type Functions = BTreeMap<(u32, Arc<Kernel>), Arc<Function>>;

/// The CUDA backend: GPUs, or several logical ones on each. Several programs may be ready at the
/// same time.
pub struct Cuda {
    /// The GPU of each logical one.
    devices: Vec<(context::Gpu, Arch)>,
    contexts: Contexts,
    /// The version of CUDA that the driver is of.
    driver: Version,
    cpu: Cpu,
    options: CudaOptions,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Cuda {
    /// The backend on the GPUs of these options.
    pub fn new(options: CudaOptions) -> Result<Self, CompileError> {
        let driver = context::start()?;
        let broken = |error: DriverError| ProbeError::DriverFailed(error.to_string());
        let found = context::gpus().map_err(broken)?;
        let all = || (0..).zip(&found).map(|(ordinal, _)| ordinal).collect();
        let ordinals: Vec<u32> =
            if options.devices.is_empty() { all() } else { options.devices.clone() };
        let mut physical = Vec::with_capacity(ordinals.len());
        for ordinal in ordinals {
            let device = Device::gpu(ordinal);
            let missing = || no_device(device, &found);
            let gpu = found.get(ordinal as usize).ok_or_else(missing)?;
            let arch = gpu.arch().map_err(|e| failed(device, "its architecture", e))?;
            physical.push((*gpu, arch));
        }
        let logical = options.logical.map_or(physical.len(), |n| n as usize);
        let devices = physical.iter().copied().cycle();
        let devices = devices.take(if physical.is_empty() { 0 } else { logical }).collect();
        let cpu = Cpu::new(options.threads)?;
        Ok(Self { devices, contexts: Contexts::default(), driver, cpu, options })
    }

    /// The GPUs whose contexts are open, by their numbers: those that a program uses or used.
    pub fn opened(&self) -> Vec<u32> {
        self.contexts.ordinals()
    }

    /// What may be why a device does not load kernels, in words: the compiler is newer than the
    /// driver.
    fn hint(&self, form: CodeFormat) -> String {
        let version = self.options.compiler.nvrtc().version();
        let newer = match form {
            // Machine code is of a major version, text of a minor one.
            CodeFormat::Cubin => version.major > self.driver.major,
            CodeFormat::Ptx => version > self.driver,
        };
        if newer {
            let driver = self.driver;
            let install = format!(": `pip install {}`", nvrtc_package(Some(driver)));
            let install = if version.major > driver.major { &*install } else { "" };
            format!(
                " (of NVRTC {version}, which is newer than the driver's CUDA {driver}{install})"
            )
        } else {
            String::new()
        }
    }

    /// The number of logical GPUs.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Readies a program, like [`Backend::compile`].
    pub fn executable(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<CudaExecutable, CompileError> {
        let mut placed: Vec<Option<Gpu>> = vec![None];
        for device in program.devices.iter().skip(1).map(|d| d.device) {
            let found = self.devices.get(device.index as usize).filter(|_| device != Device::HOST);
            let (gpu, arch) = *found.ok_or_else(|| self.no_device(device))?;
            let context = self.contexts.open(gpu, self.options.watchdog);
            placed.push(Some((context.map_err(|e| failed(device, "the context", e))?, arch)));
        }
        let connected = self.contexts.connect(placed.iter().flatten().map(|(context, _)| context));
        let distrusted = connected.map_err(|(ordinal, error)| {
            let is = |p: &Option<Gpu>| p.as_ref().is_some_and(|(c, _)| c.ordinal() == ordinal);
            let d = invariant(placed.iter().position(is), "that a context is of a device");
            failed(program.devices[d].device, "access to a peer", error)
        })?;
        let (loaded, mut warnings) = self.load(&program, &placed)?;
        warnings.extend(distrusted.iter().map(ToString::to_string));
        let contexts: Vec<_> =
            placed.iter().map(|p| p.as_ref().map(|(context, _)| context.clone())).collect();
        let (context, device) = self.any(&program, &contexts)?;
        let pool = PinnedPool::new(context, device);
        let upload = Upload { program: &program, pool: &pool, limit: self.options.watchdog };
        let Uploaded { params, bytes: param_bytes } = upload.all(&contexts, weights)?;
        let Prepared { updates, commits } = prepare(&program, &contexts, &params)?;
        let host = params::of(&program, &program.devices[0], weights)?;
        let mut host_params = vec![None; program.params.len() + program.derived.len()];
        for (i, tensor) in &host {
            host_params[*i as usize] = Some(tensor.clone());
        }
        let pinned_params = pin(&program, &host, &pool)?;
        let held = HostParams { tensors: Arc::new(host_params), pinned: Arc::new(pinned_params) };
        let (program, contexts) = (Arc::new(program), Arc::new(contexts));
        let parts = Parts {
            health: Health::new(program.clone(), contexts.clone()),
            program,
            contexts,
            loaded,
            params,
            param_bytes,
            updates,
            commits,
            pool,
            staging_pool: Arc::default(),
            cpu: self.cpu.clone(),
            watchdog: self.options.watchdog,
            trace: self.options.trace.clone(),
            graphs: self.options.graphs,
            warnings,
        };
        CudaExecutable::new(parts, held, weights.clone())
    }

    /// The error of a device that is not there.
    fn no_device(&self, device: Device) -> CompileError {
        let gpus: Vec<_> = self.devices.iter().map(|(gpu, _)| *gpu).collect();
        no_device(device, &gpus)
    }

    /// The context in which memory of the host is taken, and whose it is: of the first GPU that a
    /// program uses, or where none takes part of the first there is.
    fn any(
        &self,
        program: &Program,
        contexts: &[Option<Arc<Context>>],
    ) -> Result<(Arc<Context>, Device), CompileError> {
        let mut used = program.devices.iter().zip(contexts);
        if let Some((device, first)) = used.find_map(|(d, c)| Some((d.device, c.as_ref()?))) {
            return Ok((first.clone(), device));
        }
        let device = Device::gpu(0);
        let first = self.devices.first().ok_or_else(|| self.no_device(device))?;
        let context = self.contexts.open(first.0, self.options.watchdog);
        Ok((context.map_err(|e| failed(device, "the context", e))?, device))
    }

    /// The kernel of each step of each device, compiled once for each architecture and loaded once
    /// on each GPU; and what went wrong without harm.
    fn load(
        &self,
        program: &Program,
        placed: &[Option<Gpu>],
    ) -> Result<(Steps, Vec<String>), CompileError> {
        let mut calls: Vec<Vec<Vec<Call>>> = Vec::with_capacity(placed.len());
        let mut wanted: BTreeMap<Arch, Vec<Arc<Kernel>>> = BTreeMap::new();
        for (device, place) in program.devices.iter().zip(placed) {
            let Some((_, arch)) = place else {
                calls.push(vec![Vec::new(); device.steps.len()]);
                continue;
            };
            let own = codegen::calls(device)?;
            let kernels = own.iter().flatten().map(|call| call.kernel.clone());
            wanted.entry(*arch).or_default().extend(kernels);
            calls.push(own);
        }
        let (functions, warnings) = self.compile(&wanted, program, placed)?;
        let load = |(calls, place): (Vec<Vec<Call>>, &Option<Gpu>)| {
            let ordinal = place.as_ref().map(|(context, _)| context.ordinal());
            let load = |call: Call| {
                let function = functions.get(&(ordinal?, call.kernel.clone()))?.clone();
                Some(Loaded { call, function })
            };
            calls.into_iter().map(|own| own.into_iter().map(load).collect()).collect()
        };
        Ok((calls.into_iter().zip(placed).map(load).collect(), warnings))
    }

    /// The kernels of each architecture as functions of the GPUs that use them; and what went wrong
    /// without harm.
    fn compile(
        &self,
        wanted: &BTreeMap<Arch, Vec<Arc<Kernel>>>,
        program: &Program,
        placed: &[Option<Gpu>],
    ) -> Result<(Functions, Vec<String>), CompileError> {
        let mut gpus: BTreeMap<u32, (Device, &Gpu)> = BTreeMap::new();
        for (device, place) in program.devices.iter().zip(placed) {
            if let Some(place) = place {
                gpus.entry(place.0.ordinal()).or_insert((device.device, place));
            }
        }
        let progress = &self.options.progress;
        let (mut functions, mut warnings) = (BTreeMap::new(), Vec::new());
        for (arch, kernels) in wanted {
            let units = codegen::units(kernels)?;
            progress.total.fetch_add(units.len() as u64, Ordering::Relaxed);
            let compiler = &self.options.compiler;
            let (nvrtc, wanted) = (compiler.nvrtc(), self.options.form);
            let (target, form) = nvrtc.for_driver(*arch, wanted, self.driver)?;
            if (wanted, form) == (CodeFormat::Ptx, CodeFormat::Cubin) {
                let (version, driver) = (nvrtc.version(), self.driver);
                warnings.push(format!(
                    "a driver for CUDA {driver} does not load the PTX of NVRTC {version}: {target} \
                     gets machine code"
                ));
            }
            let modules = compiler.compile(&units, target, form, &progress.done)?;
            let kept = |error| format!("compiled kernels could not be kept: {error}");
            let compiled = units.iter().zip(&modules.modules);
            warnings.extend(compiled.filter_map(|(unit, module)| module.warning(unit)));
            warnings.extend(modules.cache_error.map(kept).filter(|text| !warnings.contains(text)));
            for (device, (context, _)) in gpus.values().filter(|(_, (_, a))| a == arch) {
                for (unit, module) in units.iter().zip(&modules.modules) {
                    let names = || unit.entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>();
                    let what = || format!("the kernels {}{}", names().join(", "), self.hint(form));
                    let wrong = |e| failed(*device, &what(), e);
                    let code = Module::new(context, &module.compiled.image).map_err(wrong)?;
                    for entry in &unit.entries {
                        let (threads, shared) = (entry.kernel.threads, entry.kernel.shared);
                        let function =
                            code.function(&entry.name, threads, shared).map_err(wrong)?;
                        let key = (context.ordinal(), entry.kernel.clone());
                        functions.insert(key, Arc::new(function));
                    }
                }
            }
        }
        Ok((functions, warnings))
    }
}

impl Backend for Cuda {
    fn kernels(&self) -> &dyn lower::Kernels {
        &CUDA
    }

    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.executable(program, weights)?))
    }
}

/// The error of a device that is not one of these GPUs.
fn no_device(device: Device, gpus: &[context::Gpu]) -> CompileError {
    let is_divided = gpus.iter().any(|gpu| gpu.is_instance());
    CompileError::NoDevice { device, count: gpus.len(), is_divided }
}

/// The parameters in the memory of GPUs, and their bytes on each device.
struct Uploaded {
    params: Vec<Params>,
    bytes: Vec<u64>,
}

/// Uploads parameters to GPUs.
struct Upload<'a> {
    program: &'a Program,
    pool: &'a PinnedPool,
    /// The time for which a device may make no progress.
    limit: Duration,
}

/// A parameter on its way to a GPU.
struct Param<'a> {
    context: &'a Arc<Context>,
    device: Device,
    name: &'a str,
    elements: Elements<'a>,
    /// The bytes that the device is planned to hold from run to run.
    planned: u64,
}

impl Upload<'_> {
    /// Puts the parameters of each device in its GPU's memory, once for all logical devices on it.
    fn all(
        &self,
        contexts: &[Option<Arc<Context>>],
        weights: &Weights,
    ) -> Result<Uploaded, CompileError> {
        let mut all: BTreeMap<(u32, u32, Order), Arc<Global>> = BTreeMap::new();
        let (mut params, mut bytes) = (Vec::new(), Vec::new());
        for (device, context) in self.program.devices.iter().zip(contexts) {
            let tensors = params::of(self.program, device, weights)?;
            let Some(context) = context else {
                params.push(Params::new());
                bytes.push(tensors.values().map(|t| t.bytes().len() as u64).sum());
                continue;
            };
            let mut held = Params::new();
            let planned = planned(self.program, device);
            for buffer in &device.buffers {
                let Some(i) = params::held(self.program, buffer)? else { continue };
                let tensor = invariant(tensors.get(&i), "that a held parameter has its elements");
                let key = (context.ordinal(), i, buffer.order);
                if let Entry::Vacant(entry) = all.entry(key) {
                    let (device, name, order) = (device.device, &*buffer.name, buffer.order);
                    let elements = Elements { tensor, order };
                    let made = self.one(&Param { context, device, name, elements, planned });
                    if made.as_ref().is_err_and(is_late) {
                        // Whoever frees the others waits for the device, which may still be at this
                        // one.
                        std::mem::forget(all.clone());
                        made?;
                    } else {
                        entry.insert(made?);
                    }
                }
                held.insert((i, buffer.order), all[&key].clone());
            }
            bytes.push(held.values().map(|g| g.len() as u64).sum());
            params.push(held);
        }
        Ok(Uploaded { params, bytes })
    }

    /// Puts a parameter in the memory of a GPU.
    fn one(&self, param: &Param<'_>) -> Result<Arc<Global>, CompileError> {
        let Param { context, device, name, elements, planned } = *param;
        let what = || format!("the parameter `{name}`");
        let bytes = elements.tensor.bytes().len();
        let global = Global::new(context, bytes).map_err(|error| {
            if !error.is_out_of_memory() {
                return failed(device, &what(), error);
            }
            let (name, asked) = (name.to_owned(), bytes as u64);
            // For the message only: a driver that does not answer has no known free memory.
            let free = context.free_memory().unwrap_or(0);
            CompileError::OutOfMemory { device, name, asked, planned, free }
        })?;
        let global = Arc::new(global);
        if bytes > 0 {
            let staging = Staging::new(self.pool, bytes, [context]);
            let staging = staging.map_err(|error| match error {
                NotStaged::Stream(_, error) => failed(device, &what(), error),
                NotStaged::Pinned(error) => {
                    let asked = bytes.min(STAGING);
                    not_pinned(self.pool, Bytes { asked, planned: asked as u64 }, name, error)
                }
            })?;
            let written = staging.write(context, &global, elements, self.limit);
            written.map_err(|error| failed(device, &what(), error))?;
        }
        Ok(global)
    }
}

/// True where the device may still be at work.
fn is_late(error: &CompileError) -> bool {
    matches!(error, CompileError::Driver { error, .. } if error.code == NOT_READY)
}

/// The host's parameters from which GPUs copy, where they can.
fn pin(
    program: &Program,
    held: &BTreeMap<u32, Tensor>,
    pool: &PinnedPool,
) -> Result<BTreeMap<u32, Arc<Pinned>>, CompileError> {
    let host = &program.devices[0];
    let mut pinned = BTreeMap::new();
    let steps = program.devices.iter().skip(1).flat_map(|d| &d.steps);
    for step in steps {
        let Action::Copy { device: 0, from, .. } = step.action else { continue };
        let Storage::Param(i) = host.buffer(host.root(from)).storage else { continue };
        if let (false, Some(tensor)) = (pinned.contains_key(&i), held.get(&i)) {
            let bytes = Bytes { asked: tensor.bytes().len(), planned: planned(program, host) };
            let name = &program.params[i as usize].name;
            let taken = pool.take(bytes.asked);
            let mut block = taken.map_err(|error| not_pinned(pool, bytes, name, error))?;
            let is_filled = block.fill(tensor.bytes());
            invariant(is_filled.then_some(()), "that a block has the bytes that were asked for");
            pinned.insert(i, block.pinned().clone());
        }
    }
    Ok(pinned)
}
