//! The backend: which GPUs, and how a program is readied for them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::executor::{CudaExecutable, Parts};
use super::plan::{Loaded, Params};
use super::trace::Trace;
use super::variables;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::compiler::compile::Compiler;
use crate::backend::cuda::driver::context::{self, Context, NOT_READY, WATCHDOG};
use crate::backend::cuda::driver::contexts::Contexts;
use crate::backend::cuda::driver::memory::{Global, HostBlock, Pinned, PinnedPool, free_memory};
use crate::backend::cuda::driver::module::{Function, Module};
use crate::backend::cuda::driver::probe::{ProbeError, Version, nvrtc_package};
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::{Backend, CompileError, DriverError, Executable, params};
use crate::codegen::{self, Arch, Call, Form, Kernel};
use crate::ir::Weights;
use crate::lower::{Action, DeviceProgram, Port, Program, Storage};
use crate::types::{Device, Order, Target, Tensor};

/// Bytes of parameters that are copied to a device at a time.
const STAGING: usize = 16 << 20;

/// How the CUDA backend works.
#[derive(Clone)]
pub struct CudaOptions {
    /// The GPUs, by their numbers; all where it is empty. `gpu:0` of a program is the first of them.
    pub devices: Vec<u32>,
    /// The logical GPUs that stand on them, dealt round; as many as there are GPUs where it is `None`. Only GPUs that a
    /// program uses are opened.
    pub logical: Option<u32>,
    /// What compiles kernels.
    pub compiler: Compiler,
    /// What they are compiled to.
    pub form: Form,
    /// How long a device may make no progress; [`Duration::MAX`] is for ever.
    pub watchdog: Duration,
    /// What runs are recorded in. Work is then launched piece by piece, not as graphs.
    pub trace: Option<Arc<Trace>>,
    /// The threads that compute what runs on the host.
    pub threads: usize,
    /// Whether launches are captured in graphs.
    pub graphs: bool,
    /// How far the compilation of kernels is.
    pub progress: Arc<CompileProgress>,
}

impl CudaOptions {
    /// All GPUs, cubins, graphs, [`WATCHDOG`] without progress.
    pub fn new(compiler: Compiler, threads: usize) -> Self {
        Self {
            devices: Vec::new(),
            logical: None,
            compiler,
            form: Form::Cubin,
            watchdog: WATCHDOG,
            trace: None,
            threads,
            graphs: true,
            progress: Arc::default(),
        }
    }
}

/// How many units of kernels are compiled, of how many.
#[derive(Debug, Default)]
pub struct CompileProgress {
    /// Those that are done.
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

/// The CUDA backend: GPUs, or several logical ones on each. Several programs may be ready at the same time.
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

fn failed(device: Device, what: &str, error: DriverError) -> CompileError {
    CompileError::Driver { device, what: what.to_owned(), error: Box::new(error) }
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
            let missing = CompileError::NoDevice { device, count: found.len() };
            let gpu = found.get(ordinal as usize).ok_or(missing)?;
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

    /// What may be why a device does not load kernels, in words: the compiler is newer than the driver.
    fn hint(&self, form: Form) -> String {
        let version = self.options.compiler.nvrtc().version();
        let newer = match form {
            // Machine code is of a major version, text of a minor one.
            Form::Cubin => version.major > self.driver.major,
            Form::Ptx => version > self.driver,
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
            let count = self.devices.len();
            let found = self.devices.get(device.index as usize).filter(|_| device != Device::HOST);
            let (gpu, arch) = *found.ok_or(CompileError::NoDevice { device, count })?;
            let context = self.contexts.open(gpu, self.options.watchdog);
            placed.push(Some((context.map_err(|e| failed(device, "the context", e))?, arch)));
        }
        self.contexts.connect(placed.iter().flatten().map(|(context, _)| context)).map_err(
            |(ordinal, error)| {
                let is = |p: &Option<Gpu>| p.as_ref().is_some_and(|(c, _)| c.ordinal() == ordinal);
                let d = placed.iter().position(is).unwrap_or(0);
                failed(program.devices[d].device, "access to a peer", error)
            },
        )?;
        let (loaded, warnings) = self.load(&program, &placed)?;
        let contexts: Vec<_> =
            placed.iter().map(|p| p.as_ref().map(|(context, _)| context.clone())).collect();
        let (context, device) = self.any(&program, &contexts)?;
        let pool = PinnedPool::new(context, device);
        let (params, param_bytes) =
            upload(&program, &contexts, weights, (&pool, self.options.watchdog))?;
        let (updates, commits) = variables::prepare(&program, &contexts, &params)?;
        let host = params::of(&program, &program.devices[0], weights)?;
        let mut host_params = vec![None; program.params.len()];
        for (i, tensor) in &host {
            host_params[*i as usize] = Some((*tensor).clone());
        }
        let pinned_params = pin(&program, &host, &pool)?;
        Ok(CudaExecutable::new(Parts {
            program: Arc::new(program),
            contexts: Arc::new(contexts),
            loaded,
            params,
            param_bytes,
            updates,
            commits,
            host_params: Arc::new(host_params),
            pinned_params: Arc::new(pinned_params),
            pool,
            intakes: Arc::default(),
            cpu: self.cpu.clone(),
            watchdog: self.options.watchdog,
            trace: self.options.trace.clone(),
            graphs: self.options.graphs,
            warnings,
            weights: weights.clone(),
        }))
    }

    /// The context in which memory of the host is taken, and whose it is: of the first GPU that a program uses, or where
    /// none takes part of the first there is.
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
        let first = self.devices.first().ok_or(CompileError::NoDevice { device, count: 0 })?;
        let context = self.contexts.open(first.0, self.options.watchdog);
        Ok((context.map_err(|e| failed(device, "the context", e))?, device))
    }

    /// The kernel of each step of each device, compiled once for each architecture and loaded once on each GPU; and what
    /// went wrong without harm.
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

    /// The kernels of each architecture as functions of the GPUs that use them; and what went wrong without harm.
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
            let (target, form) = compiler.nvrtc().for_device(*arch, self.options.form)?;
            let modules = compiler.compile(&units, target, form, &progress.done)?;
            let kept = |error| format!("compiled kernels could not be kept: {error}");
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
    fn target(&self) -> &Target {
        &Target::CUDA
    }

    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.executable(program, weights)?))
    }
}

/// Puts the parameters of each device in its GPU's memory, once for all logical devices on it; and their bytes.
fn upload(
    program: &Program,
    contexts: &[Option<Arc<Context>>],
    weights: &Weights,
    (pool, limit): (&PinnedPool, Duration),
) -> Result<(Vec<Params>, Vec<u64>), CompileError> {
    let mut all: BTreeMap<(u32, u32, Order), Arc<Global>> = BTreeMap::new();
    let (mut params, mut bytes) = (Vec::new(), Vec::new());
    for (device, context) in program.devices.iter().zip(contexts) {
        let tensors = params::of(program, device, weights)?;
        let Some(context) = context else {
            params.push(Params::new());
            bytes.push(tensors.values().map(|t| t.bytes().len() as u64).sum());
            continue;
        };
        let mut held = Params::new();
        let planned = planned(program, device);
        for buffer in &device.buffers {
            let held_here = match buffer.storage {
                Storage::Param(i) => Some(i),
                Storage::Update(i) => program.updates.get(i as usize).copied(),
                Storage::Input(_)
                | Storage::Output(_)
                | Storage::Arena
                | Storage::Part { .. }
                | Storage::Reuse { .. } => None,
            };
            let Some((i, tensor)) = held_here.and_then(|i| Some((i, tensors.get(&i)?))) else {
                continue;
            };
            let key = (context.ordinal(), i, buffer.order);
            let global = if let Some(global) = all.get(&key) {
                global.clone()
            } else {
                let place = (context, device.device, &*buffer.name);
                let made = upload_one(place, tensor, (buffer.order, planned), (pool, limit));
                if let Err(CompileError::Driver { error, .. }) = &made
                    && error.code == NOT_READY
                {
                    // Whoever frees the others waits for the device, which may still be at this one.
                    std::mem::forget(all.clone());
                }
                let global = made?;
                all.insert(key, global.clone());
                global
            };
            held.insert((i, buffer.order), global);
        }
        bytes.push(held.values().map(|g| g.len() as u64).sum());
        params.push(held);
    }
    Ok((params, bytes))
}

/// The bytes that a device holds from run to run: its parameters, in each order, and the new elements of those that runs
/// change.
pub(super) fn planned(program: &Program, device: &DeviceProgram) -> u64 {
    let mut seen = BTreeSet::new();
    let mut of = |kind: u8, i: u32, order: Order, port: Option<&Port>| {
        let bytes = port.and_then(|port| u64::try_from(port.ty.bytes().eval(0)).ok());
        bytes.filter(|_| seen.insert((kind, i, order))).unwrap_or(0)
    };
    let held = device.buffers.iter().map(|buffer| match buffer.storage {
        Storage::Param(i) => of(0, i, buffer.order, program.params.get(i as usize)),
        Storage::Update(i) => of(1, i, buffer.order, program.update(i)),
        Storage::Input(_)
        | Storage::Output(_)
        | Storage::Arena
        | Storage::Part { .. }
        | Storage::Reuse { .. } => 0,
    });
    held.sum()
}

/// A parameter in the memory of a GPU.
fn upload_one(
    (context, device, name): (&Arc<Context>, Device, &str),
    tensor: &Tensor,
    (order, planned): (Order, u64),
    (pool, limit): (&PinnedPool, Duration),
) -> Result<Arc<Global>, CompileError> {
    let bytes = tensor.bytes().len();
    let global = Global::new(context, bytes).map_err(|error| {
        if !error.is_out_of_memory() {
            return failed(device, &format!("the parameter `{name}`"), error);
        }
        let (name, asked) = (name.to_owned(), bytes as u64);
        let free = context.free_memory().unwrap_or(0);
        CompileError::OutOfMemory { device, name, asked, planned, free }
    })?;
    let global = Arc::new(global);
    if bytes > 0 {
        let staging = Staging::new(pool, bytes, [context]);
        let staging = staging.map_err(|error| match error {
            NotStaged::Stream(_, error) => {
                failed(device, &format!("the parameter `{name}`"), error)
            }
            NotStaged::Pinned(error) => {
                not_pinned(pool, name, (bytes.min(STAGING), bytes.min(STAGING) as u64), error)
            }
        })?;
        let written = staging.write(context, &global, (tensor, order), limit);
        written.map_err(|error| failed(device, &format!("the parameter `{name}`"), error))?;
    }
    Ok(global)
}

/// Through what elements are copied to the memory of GPUs: pinned memory, and a stream of each.
pub(super) struct Staging {
    block: HostBlock,
    streams: BTreeMap<u32, Stream>,
}

/// Why elements cannot be copied.
pub(super) enum NotStaged {
    /// The GPU of this number has no stream.
    Stream(u32, DriverError),
    /// There is no pinned memory.
    Pinned(DriverError),
}

impl Staging {
    /// For tensors of up to so many bytes, and the GPUs of these contexts.
    pub(super) fn new<'c>(
        pool: &PinnedPool,
        bytes: usize,
        contexts: impl IntoIterator<Item = &'c Arc<Context>>,
    ) -> Result<Self, NotStaged> {
        let mut streams = BTreeMap::new();
        for context in contexts {
            let ordinal = context.ordinal();
            if let Entry::Vacant(entry) = streams.entry(ordinal) {
                let stream = Stream::new(context);
                entry.insert(stream.map_err(|error| NotStaged::Stream(ordinal, error))?);
            }
        }
        let block = pool.take(bytes.min(STAGING)).map_err(NotStaged::Pinned)?;
        Ok(Self { block, streams })
    }

    /// Copies the elements of a tensor to the memory of a GPU, in an order, and gives itself back for the next.
    pub(super) fn write(
        mut self,
        context: &Context,
        global: &Arc<Global>,
        (tensor, order): (&Tensor, Order),
        limit: Duration,
    ) -> Result<Self, DriverError> {
        let turned;
        let data = match order {
            Order::RowMajor => tensor.bytes(),
            Order::ChannelsLast => {
                turned = channels_last(tensor.bytes(), tensor.dims(), tensor.dtype().bytes());
                &turned
            }
        };
        let Some(stream) = self.streams.get(&context.ordinal()) else { return Ok(self) };
        for (i, part) in data.chunks(STAGING).enumerate() {
            self.block.fill(part);
            let to = global.address() + (i * STAGING) as u64;
            stream.upload(self.block.pinned(), 0, to, part.len())?;
            if let Err(error) = finish(stream, limit) {
                if error.code == NOT_READY {
                    // The device may still be at it.
                    std::mem::forget((Arc::clone(global), self));
                }
                return Err(error);
            }
        }
        Ok(self)
    }
}

/// Waits until a stream is idle, but no longer than `limit`.
pub(super) fn finish(stream: &Stream, limit: Duration) -> Result<(), DriverError> {
    let begin = Instant::now();
    while !stream.is_idle()? {
        if begin.elapsed() > limit {
            let text = format!("the device made no progress for {limit:?}");
            let (call, name) = ("cuStreamQuery", "CUDA_ERROR_NOT_READY".to_owned());
            return Err(DriverError { call, code: NOT_READY, name, text });
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// The error of pinned memory for a parameter: the bytes asked for, and those planned.
pub(super) fn not_pinned(
    pool: &PinnedPool,
    name: &str,
    (asked, planned): (usize, u64),
    error: DriverError,
) -> CompileError {
    if !error.is_out_of_memory() {
        return failed(pool.device(), &format!("the parameter `{name}`"), error);
    }
    let device = Device::HOST;
    let (name, asked, free) = (name.to_owned(), asked as u64, free_memory());
    CompileError::OutOfMemory { device, name, asked, planned, free }
}

/// The host's parameters from which GPUs copy, where they can.
fn pin(
    program: &Program,
    held: &BTreeMap<u32, &Tensor>,
    pool: &PinnedPool,
) -> Result<BTreeMap<u32, Arc<Pinned>>, CompileError> {
    let host = &program.devices[0];
    let mut pinned = BTreeMap::new();
    let steps = program.devices.iter().skip(1).flat_map(|d| &d.steps);
    for step in steps {
        let Action::Copy { device: 0, from, .. } = step.action else { continue };
        let Storage::Param(i) = host.buffer(host.root(from)).storage else { continue };
        if let (false, Some(tensor)) = (pinned.contains_key(&i), held.get(&i)) {
            let bytes = tensor.bytes().len();
            let name = program.params.get(i as usize).map_or("", |port| &*port.name);
            let taken = pool.take(bytes);
            let planned = planned(program, host);
            let wrong = |error| not_pinned(pool, name, (bytes, planned), error);
            let mut block = taken.map_err(wrong)?;
            block.fill(tensor.bytes());
            pinned.insert(i, block.pinned().clone());
        }
    }
    Ok(pinned)
}

/// The elements of a tensor in the order [`Order::ChannelsLast`]: axis 1 varies fastest, then the axes behind it as
/// they were, axis 0 slowest. `size` is the bytes of an element.
fn channels_last(data: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let (Some(channels), Some(plane)) = (dims.get(1), dims.get(2..)) else { return data.to_vec() };
    let plane: usize = plane.iter().product();
    let mut turned = Vec::with_capacity(data.len());
    for sample in data.chunks_exact((channels * plane * size).max(1)) {
        for p in 0..plane {
            for c in 0..*channels {
                let at = (c * plane + p) * size;
                turned.extend_from_slice(&sample[at..at + size]);
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::channels_last;

    #[test]
    fn channels_vary_fastest() {
        // [2, 3, 2, 1]: samples of three channels of two places.
        let data: Vec<u8> = (0..12).collect();
        let turned = channels_last(&data, &[2, 3, 2, 1], 1);
        assert_eq!(turned, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        let wide: Vec<u8> = (0..12).collect();
        assert_eq!(channels_last(&wide, &[1, 2, 3], 2), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        assert_eq!(channels_last(&data, &[12], 1), data);
        assert!(channels_last(&[], &[0, 3, 2], 4).is_empty());
        assert!(channels_last(&[], &[2, 0, 2], 4).is_empty());
    }
}
