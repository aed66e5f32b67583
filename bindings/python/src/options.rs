//! The settings of replication as Python writes them.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use fanwise::backend::cuda::{Cuda, CudaOptions, NvrtcSearch};
use fanwise::backend::{Backend, CompileError, Cpu, Executable};
use fanwise::internal::{Cache, Compiler, DEFAULT_LIMIT, driver, replicated};
use fanwise::ir::{Builder, Graph, Weights};
use fanwise::lower::{Kernels, Program};
use fanwise::pass::{BatchStatistics, Merge, Repair, Replicate, WeightPlacement};
use fanwise::train::Distribution;
use fanwise::types::{DType, Device, Dim, Shape, ShardRule, TensorType};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::detached::detached;
use crate::error::Raise as _;

/// Where and how a model is replicated.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    /// The numbers of the GPUs; none for one device, without replicas.
    devices: Option<Vec<u32>>,
    shards: String,
    merge: String,
    weights: String,
    repair: String,
    batch_norm: Option<String>,
    target: String,
    /// Folders that may have NVRTC, and that of compiled kernels.
    toolkits: Vec<PathBuf>,
    cache: Option<PathBuf>,
}

fn unknown(what: &str, value: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{what} cannot be `{value}`: write {known}"))
}

impl Options {
    /// The devices and what happens on them, with these repairs where none are named.
    pub(crate) fn replicate(&self, repair: Repair) -> PyResult<Option<Replicate>> {
        let Some(devices) = &self.devices else { return Ok(None) };
        let shards: Result<ShardRule, _> = self.shards.parse();
        Ok(Some(Replicate {
            devices: devices.iter().map(|id| Device::gpu(*id)).collect(),
            rule: shards.map_err(|e| PyValueError::new_err(e.to_string()))?,
            merge: match &*self.merge {
                "cpu" => Merge::Cpu,
                "gpu" => Merge::Gpu,
                other => return Err(unknown("merge", other, "cpu or gpu")),
            },
            weights: match &*self.weights {
                "template" => WeightPlacement::Template,
                "cpu" => WeightPlacement::Cpu,
                "mirrored" => WeightPlacement::Mirrored,
                other => return Err(unknown("weights", other, "template, cpu or mirrored")),
            },
            repair: match &*self.repair {
                "auto" => repair,
                "none" => Repair::None,
                "local" => Repair::Local,
                "comm" => Repair::Comm,
                other => return Err(unknown("repair", other, "auto, none, local or comm")),
            },
        }))
    }

    /// The statistics of batch normalisation.
    pub(crate) fn batch_norm(&self) -> PyResult<Option<BatchStatistics>> {
        let Some(text) = self.batch_norm.as_deref() else { return Ok(None) };
        let groups = || text.strip_prefix("ghost:")?.parse().ok();
        Ok(Some(match text {
            "sync" => BatchStatistics::Sync,
            "local" => BatchStatistics::Local,
            _ => match groups() {
                Some(groups) => BatchStatistics::Ghost(groups),
                None => return Err(unknown("batch_norm", text, "sync, local or ghost:GROUPS")),
            },
        }))
    }

    /// What happens on which devices, with what training repairs where nothing is named.
    fn place(&self, reproducible: bool) -> PyResult<Distribution> {
        Ok(Distribution {
            replicate: self.replicate(Repair::Comm)?,
            batch_norm: self.batch_norm()?,
            invariant: reproducible,
            ..Distribution::default()
        })
    }

    /// Readies a graph to run on the devices, as [`Self::place`] says.
    pub(crate) fn ready(
        &self,
        py: Python<'_>,
        graph: Graph,
        weights: Weights,
        reproducible: bool,
    ) -> PyResult<Arc<dyn Executable>> {
        let place = self.place(reproducible)?;
        let backend = self.backend(py)?;
        let executable = detached(py, move || {
            let graph = replicated(&graph, &place)?;
            backend.ready(&graph, &weights)
        })?;
        Ok(executable.into())
    }

    /// The backend that runs programs.
    pub(crate) fn backend(&self, py: Python<'_>) -> PyResult<Chosen> {
        // A machine that does not tell its cores has at least one.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        match &*self.target {
            "cpu" => Ok(Chosen(Box::new(Cpu::new(threads).raise(py)?))),
            "cuda" => {
                let (folder, candidates) = (None, self.toolkits.clone());
                let search = NvrtcSearch { folder, candidates, driver: driver().ok() };
                let cache = self.cache.as_ref().map(|folder| Cache::new(folder, DEFAULT_LIMIT));
                let compiler = Compiler::open(&search, cache, threads).raise(py)?;
                let options = CudaOptions::new(compiler, threads);
                Ok(Chosen(Box::new(Cuda::new(options).raise(py)?)))
            }
            other => Err(unknown("target", other, "auto, cpu or cuda")),
        }
    }
}

/// The backend that the options chose.
pub(crate) struct Chosen(Box<dyn Backend>);

impl Backend for Chosen {
    fn kernels(&self) -> &dyn Kernels {
        self.0.kernels()
    }

    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError> {
        self.0.compile(program, weights)
    }
}

/// Fails where no model could be replicated so: settings that are unknown, or do not fit together.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a dict")]
pub(crate) fn check_options(py: Python<'_>, options: Options, reproducible: bool) -> PyResult<()> {
    if !matches!(&*options.target, "cpu" | "cuda") {
        return Err(unknown("target", &options.target, "auto, cpu or cuda"));
    }
    let mut b = Builder::new("settings");
    let x = b.input("x", TensorType::new(DType::F32, Shape::from(&[Dim::n()][..])));
    b.output("y", x);
    let (graph, _) = b.finish();
    replicated(&graph, &options.place(reproducible)?).raise(py)?;
    Ok(())
}
