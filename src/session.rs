//! The front door: a model becomes a session, which runs it on as many devices as asked for.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;
use std::thread;

use crate::Error;
use crate::backend::{Backend, Cpu, Executable, RunOptions, RunOutput};
use crate::ir::{self, Graph, Model};
use crate::lower::Program;
#[cfg(feature = "train")]
use crate::pass::Training;
use crate::pass::{
    self, AppliedRepair, BatchStatistics, Merge, Repair, RepairOptions, Replicate, WeightPlacement,
};
#[cfg(feature = "train")]
use crate::train::{Place, Trainer, TrainerOptions};
use crate::types::{Device, ShardRule, Tensor};

/// A model that is ready to run, on one device or replicated over several.
///
/// ```
/// # #[cfg(feature = "zoo")]
/// # fn main() -> Result<(), fanwise::Error> {
/// use fanwise::types::{DType, Tensor};
/// use fanwise::{Session, zoo};
///
/// let session = Session::builder(zoo::build("mlp:narrow=32")?).gpus(3).build()?;
/// let rows = Tensor::zeros(DType::F32, &[7, 784])?;
/// let outputs = session.run([("image", rows)])?;
/// assert_eq!(outputs["predictions"].dims(), [7, 10]);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "zoo"))]
/// # fn main() {}
/// ```
///
/// Elsewhere: inference session (ONNX); compiled module (PyTorch); parallel model (Keras).
pub struct Session {
    template: Graph,
    graph: Graph,
    repairs: Vec<AppliedRepair>,
    executable: Box<dyn Executable>,
    options: RunOptions,
}

/// Settings of a [`Session`] or of a training, each with a default.
#[must_use]
pub struct SessionBuilder {
    model: Model,
    devices: Vec<Device>,
    rule: ShardRule,
    merge: Merge,
    weights: WeightPlacement,
    repair: Option<Repair>,
    batch_norm: Option<BatchStatistics>,
    max_memory: Option<u64>,
    backend: Option<Box<dyn Backend>>,
}

impl Session {
    /// The settings of a session: one device, the host, until they are changed.
    pub fn builder(model: impl Into<Model>) -> SessionBuilder {
        SessionBuilder {
            model: model.into(),
            devices: Vec::new(),
            rule: ShardRule::default(),
            merge: Merge::default(),
            weights: WeightPlacement::default(),
            repair: None,
            batch_norm: None,
            max_memory: None,
            backend: None,
        }
    }

    /// Loads a model on one device.
    ///
    /// # Errors
    /// If the graph is damaged, or there is no memory for the weights.
    pub fn new(model: impl Into<Model>) -> Result<Self, Error> {
        Self::builder(model).build()
    }

    /// Runs a batch: every input by name, those that carry the batch with the same number of rows.
    ///
    /// # Errors
    /// If an input is missing or does not fit, or the run fails.
    pub fn run<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<Outputs, Error> {
        let inputs: BTreeMap<String, Tensor> =
            inputs.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
        Ok(Outputs(self.executable.run(&inputs, &self.options)?))
    }

    /// The graph that one device computes, after its repairs.
    pub fn template(&self) -> &Graph {
        &self.template
    }

    /// The graph that runs: the replicas, or the template where there are none.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The repairs that made the graph splittable.
    pub fn repairs(&self) -> &[AppliedRepair] {
        &self.repairs
    }

    /// The program that runs.
    pub fn program(&self) -> &Program {
        self.executable.program()
    }
}

impl SessionBuilder {
    /// Replicates over `count` GPUs, from GPU 0 on. On the CPU backend they are virtual devices.
    pub fn gpus(self, count: u32) -> Self {
        self.devices((0..count).map(Device::gpu))
    }

    /// Replicates over these devices, in this order. On the CPU backend GPUs are virtual devices.
    pub fn devices(mut self, devices: impl IntoIterator<Item = Device>) -> Self {
        self.devices = devices.into_iter().collect();
        self
    }

    /// Divides the rows of the batch by this rule; by default the last replica takes the remainder.
    pub fn shards(mut self, rule: ShardRule) -> Self {
        self.rule = rule;
        self
    }

    /// Merges the outputs here; by default on the host.
    pub fn merge(mut self, merge: Merge) -> Self {
        self.merge = merge;
        self
    }

    /// Keeps the weights here; by default where the template has them.
    pub fn weights(mut self, weights: WeightPlacement) -> Self {
        self.weights = weights;
        self
    }

    /// Allows these repairs; by default [`Repair::Local`] for inference and [`Repair::Comm`] for
    /// training, whose replicas sum gradients.
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = Some(repair);
        self
    }

    /// Takes the statistics of batch normalisation in train mode over these rows; by default over
    /// the whole batch.
    pub fn batch_norm(mut self, statistics: BatchStatistics) -> Self {
        self.batch_norm = Some(statistics);
        self
    }

    /// Refuses runs that would take more than `bytes` of memory.
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// Runs on this backend; by default on the CPU, with a thread for each core.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backend = Some(Box::new(backend));
        self
    }

    /// Repairs, replicates, proves, lowers and loads the model.
    ///
    /// # Errors
    /// If the devices are wrong, the graph may not be split (every operator that forbids it), or
    /// there is no memory for the weights.
    pub fn build(mut self) -> Result<Session, Error> {
        let backend = self.take_backend()?;
        let replicate = self.replicate(Repair::Local);
        let Self { model: Model { graph: template, weights, .. }, .. } = self;
        let options = RunOptions { max_memory: self.max_memory, ..RunOptions::default() };
        let Some(replicate) = replicate else {
            let executable = backend.ready(&template, &weights)?;
            let (graph, repairs) = (template.clone(), Vec::new());
            return Ok(Session { template, graph, repairs, executable, options });
        };
        let new = RepairOptions::new(replicate.repair);
        let allowed = RepairOptions { batch_norm: self.batch_norm, ..new };
        let repaired = pass::repair(&template, allowed).map_err(pass::PassError::from)?;
        let graph = repaired.replicate(&replicate)?;
        repaired.prove(ir::verify(&graph)?)?;
        let executable = backend.ready(&graph, &weights)?;
        let repairs = repaired.repairs().to_vec();
        let template = repaired.into_graph().into_owned();
        Ok(Session { template, graph, repairs, executable, options })
    }

    /// Prepares the training of the model on these devices. The model must have been read for it
    /// ([`LoadOptions`](crate::model::LoadOptions)).
    ///
    /// # Errors
    /// As [`build`](Self::build); or if an operator has no gradient.
    #[cfg(feature = "train")]
    pub fn train(mut self, training: Training) -> Result<Trainer, Error> {
        let backend = self.take_backend()?;
        let replicate = self.replicate(Repair::Comm);
        let Self { batch_norm, max_memory, .. } = self;
        let place = Place { replicate, batch_norm, max_memory, ..Place::default() };
        Trainer::new(self.model, &TrainerOptions { training, place }, &*backend)
    }

    fn take_backend(&mut self) -> Result<Box<dyn Backend>, Error> {
        match self.backend.take() {
            Some(backend) => Ok(backend),
            // A machine that does not tell its cores has at least one.
            None => Ok(Box::new(Cpu::new(thread::available_parallelism().map_or(1, usize::from))?)),
        }
    }

    /// How the graph is replicated, if it is, with these repairs by default.
    fn replicate(&self, repair: Repair) -> Option<Replicate> {
        (!self.devices.is_empty()).then(|| Replicate {
            devices: self.devices.clone(),
            rule: self.rule.clone(),
            merge: self.merge,
            weights: self.weights,
            repair: self.repair.unwrap_or(repair),
        })
    }
}

/// The outputs of a run, by name.
#[derive(Clone, Debug)]
pub struct Outputs(RunOutput);

impl Outputs {
    /// The output of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find_map(|(own, tensor)| (own == name).then_some(tensor))
    }

    /// All outputs with their names, in the model's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.outputs.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// The number of rows, and what each device did.
    pub fn details(&self) -> &RunOutput {
        &self.0
    }
}

impl Index<&str> for Outputs {
    type Output = Tensor;

    /// # Panics
    /// If the model has no output of this name; [`get`](Outputs::get) does not.
    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("the model has no output `{name}`"))
    }
}

impl IntoIterator for Outputs {
    type Item = (Arc<str>, Tensor);
    type IntoIter = std::vec::IntoIter<(Arc<str>, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.outputs.into_iter()
    }
}
