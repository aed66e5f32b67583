//! Sessions: a model with its settings, loaded on one or more devices.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::Error;
use crate::backend::{Backend, Cpu, Executable, RunError, RunOptions, RunOutput};
use crate::ir::{self, Graph, Model, Specialize, numbers};
use crate::lower::Program;
#[cfg(feature = "train")]
use crate::pass::Training;
use crate::pass::{
    self, AppliedRepair, BatchStatistics, Merge, Repair, RepairOptions, Replicate, WeightPlacement,
};
#[cfg(feature = "train")]
use crate::train::{Distribution, Trainer, TrainerOptions};
use crate::types::{Device, ShardRule, Tensor};

/// A model that is ready to run, on one device or replicated over several.
///
/// If the model has open sizes besides the batch, such as the length of a sequence, each run takes
/// them from its inputs. A graph is prepared at the first run with its sizes. The last eight graphs
/// are kept, or as many as take 256 MiB with their weights, up to 256. If the memory is limited,
/// those that take more than that together are not kept.
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
    stated: Arc<Ready>,
    /// The graphs for other open sizes, if the model has any.
    others: Option<Others>,
    options: RunOptions,
}

/// A prepared graph.
struct Ready {
    template: Graph,
    graph: Graph,
    repairs: Vec<AppliedRepair>,
    executable: Box<dyn Executable>,
}

/// The graphs for open sizes other than the stated ones.
struct Others {
    open: Arc<dyn Specialize>,
    setup: Setup,
    backend: Box<dyn Backend>,
    kept: Mutex<Kept<Arc<Ready>>>,
    /// The number of graphs prepared so far.
    readied: AtomicUsize,
}

/// What a session keeps for other sizes.
struct Kept<T> {
    /// Each with its sizes, and the bytes that it takes. What was used last stands at the end.
    all: Vec<(Vec<i64>, T, u64)>,
    /// The bytes that all may take; one that takes more is kept alone.
    limit: u64,
}

/// The graphs that are kept whatever they take within the limit: each may hold its weights on the
/// devices that use them.
const FEW: usize = 8;

/// The graphs that are kept at most. A cache of keys and values has another size at each step.
const MOST: usize = 256;

/// The bytes that more than [`FEW`] graphs may take together.
const BYTES: u64 = 256 << 20;

/// Settings of a [`Session`] or of a training, each with a default.
#[must_use]
pub struct SessionBuilder {
    model: Model,
    max_memory: Option<u64>,
    backend: Option<Box<dyn Backend>>,
    setup: Setup,
}

/// The settings of the pipeline from a model to a prepared graph.
struct Setup {
    /// `None` for one device, without replicas.
    devices: Option<Vec<Device>>,
    rule: ShardRule,
    merge: Merge,
    weights: WeightPlacement,
    repair: Option<Repair>,
    batch_norm: Option<BatchStatistics>,
}

impl Session {
    /// The settings of a session: one device, the host, until they are changed.
    pub fn builder(model: impl Into<Model>) -> SessionBuilder {
        let setup = Setup {
            devices: None,
            rule: ShardRule::default(),
            merge: Merge::default(),
            weights: WeightPlacement::default(),
            repair: None,
            batch_norm: None,
        };
        SessionBuilder { model: model.into(), max_memory: None, backend: None, setup }
    }

    /// Loads a model on one device.
    ///
    /// # Errors
    /// If the graph is damaged, or there is no memory for the weights.
    pub fn new(model: impl Into<Model>) -> Result<Self, Error> {
        Self::builder(model).build()
    }

    /// Runs a batch. Inputs are given by name; those that carry the batch have the same number of
    /// rows.
    ///
    /// # Errors
    /// If an input is missing or does not fit, the run fails, or no graph can be prepared for the
    /// sizes of these inputs.
    pub fn run<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<Outputs, Error> {
        // A map made of the pairs would keep the last of two tensors for one input without a word.
        let mut named = BTreeMap::new();
        for (name, tensor) in inputs {
            let name: String = name.into();
            if named.contains_key(&name) {
                return Err(RunError::InputTwice(name).into());
            }
            named.insert(name, tensor);
        }
        let Some(others) = &self.others else {
            return Ok(Outputs(self.stated.executable.run(&named, &self.options)?));
        };
        let sizes = numbers(&*others.open, &named);
        let other = others.find(&sizes)?;
        let ready = other.as_ref().unwrap_or(&self.stated);
        let output = ready.executable.run(&named, &self.options)?;
        if other.is_some() {
            let bytes = output.devices.iter().map(|device| device.planned + device.params).sum();
            others.kept().weigh(&sizes, bytes);
        }
        Ok(Outputs(output))
    }

    /// The number of graphs prepared so far: 1, plus 1 for each run with sizes that no kept graph
    /// has.
    pub fn readied(&self) -> usize {
        let others = self.others.as_ref();
        // Without open sizes there are no other graphs.
        1 + others.map_or(0, |others| others.readied.load(Ordering::Relaxed))
    }

    /// The repaired graph for one device. Open sizes here and in the next methods are the stated
    /// ones.
    pub fn template(&self) -> &Graph {
        &self.stated.template
    }

    /// The graph that runs: the replicas, or without replicas the template.
    pub fn graph(&self) -> &Graph {
        &self.stated.graph
    }

    /// The repairs that made the graph splittable.
    pub fn repairs(&self) -> &[AppliedRepair] {
        &self.stated.repairs
    }

    /// The program that runs.
    pub fn program(&self) -> &Program {
        self.stated.executable.program()
    }
}

impl Others {
    /// The graph for these sizes; `None` if it is the stated one. It is prepared without the lock,
    /// so runs with other sizes continue; two threads may prepare the same graph.
    fn find(&self, sizes: &[i64]) -> Result<Option<Arc<Ready>>, Error> {
        if sizes == self.open.stated() {
            return Ok(None);
        }
        if let Some(ready) = self.kept().find(sizes) {
            return Ok(Some(ready));
        }
        let ready = Arc::new(self.setup.ready(self.open.at(sizes)?, &*self.backend)?);
        self.readied.fetch_add(1, Ordering::Relaxed);
        self.kept().put(sizes, Arc::clone(&ready));
        Ok(Some(ready))
    }

    /// The list. A panic leaves at worst a shorter one.
    fn kept(&self) -> MutexGuard<'_, Kept<Arc<Ready>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Kept<T> {
    /// What is kept for these sizes, which is the last used now.
    fn find(&mut self, sizes: &[i64]) -> Option<T> {
        let at = self.all.iter().position(|(of, ..)| of == sizes)?;
        let found = self.all.remove(at);
        let of = found.1.clone();
        self.all.push(found);
        Some(of)
    }

    /// Keeps something for these sizes, of which is not known yet what it takes.
    fn put(&mut self, sizes: &[i64], of: T) {
        self.all.retain(|(own, ..)| own != sizes);
        self.all.push((sizes.to_vec(), of, 0));
        self.shrink();
    }

    /// Says what that for these sizes takes, if it is still kept.
    fn weigh(&mut self, sizes: &[i64], bytes: u64) {
        if let Some((.., own)) = self.all.iter_mut().find(|(of, ..)| of == sizes) {
            *own = bytes;
        }
        self.shrink();
    }

    /// Forgets what was used longest ago while all take too much.
    fn shrink(&mut self) {
        let mut bytes = self.all.iter().fold(0u64, |sum, (.., own)| sum.saturating_add(*own));
        let mut first = 0;
        let too_much = |left: usize, bytes: u64| {
            let many = left > FEW && (left > MOST || bytes > BYTES);
            many || (left > 1 && bytes > self.limit)
        };
        while too_much(self.all.len() - first, bytes) {
            bytes = bytes.saturating_sub(self.all[first].2);
            first += 1;
        }
        self.all.drain(..first);
    }
}

impl SessionBuilder {
    /// Replicates over `count` GPUs, from GPU 0 on. On the CPU backend they are virtual devices.
    pub fn gpus(self, count: u32) -> Self {
        self.devices((0..count).map(Device::gpu))
    }

    /// Replicates over these devices, in this order. On the CPU backend GPUs are virtual devices.
    pub fn devices(mut self, devices: impl IntoIterator<Item = Device>) -> Self {
        self.setup.devices = Some(devices.into_iter().collect());
        self
    }

    /// Sets the division of the rows; by default the last replica takes the remainder.
    pub fn shards(mut self, rule: ShardRule) -> Self {
        self.setup.rule = rule;
        self
    }

    /// Sets the device that merges outputs; by default the host.
    pub fn merge(mut self, merge: Merge) -> Self {
        self.setup.merge = merge;
        self
    }

    /// Sets the placement of the weights; by default that of the template.
    pub fn weights(mut self, weights: WeightPlacement) -> Self {
        self.setup.weights = weights;
        self
    }

    /// Allows these repairs; by default [`Repair::Local`] for inference and [`Repair::Comm`] for
    /// training, whose replicas sum gradients.
    pub fn repair(mut self, repair: Repair) -> Self {
        self.setup.repair = Some(repair);
        self
    }

    /// Sets the rows of batch normalisation statistics in train mode; by default the whole batch.
    pub fn batch_norm(mut self, statistics: BatchStatistics) -> Self {
        self.setup.batch_norm = Some(statistics);
        self
    }

    /// Limits the memory of a run, and that of the graphs kept for other sizes; larger runs are
    /// refused.
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// Sets the backend; by default the CPU with one thread per core.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backend = Some(Box::new(backend));
        self
    }

    /// Repairs, replicates, proves, lowers and loads the model.
    ///
    /// # Errors
    /// If the devices are invalid, the graph may not be split (the error lists every operator at
    /// fault), or memory for the weights is lacking.
    pub fn build(self) -> Result<Session, Error> {
        let Self { mut model, max_memory, backend, setup } = self;
        let backend = chosen(backend)?;
        let open = model.open.take();
        let stated = Arc::new(setup.ready(model, &*backend)?);
        let others = open.map(|open| {
            // Without a limit of its own it has that of the file.
            let limit = open.max_memory().min(max_memory.unwrap_or(u64::MAX));
            let kept = Mutex::new(Kept { all: Vec::new(), limit });
            Others { open, setup, backend, kept, readied: AtomicUsize::new(0) }
        });
        let options = RunOptions { max_memory, ..RunOptions::default() };
        Ok(Session { stated, others, options })
    }

    /// Prepares training on these devices. The model must have been loaded for training
    /// ([`LoadOptions`](crate::model::LoadOptions)).
    ///
    /// # Errors
    /// Those of [`build`](Self::build), and an operator without a gradient.
    #[cfg(feature = "train")]
    pub fn train(self, training: Training) -> Result<Trainer, Error> {
        let Self { model, max_memory, backend, setup } = self;
        let (replicate, batch_norm) = (setup.replicate(Repair::Comm), setup.batch_norm);
        let distribution =
            Distribution { replicate, batch_norm, max_memory, ..Distribution::default() };
        Trainer::new(model, &TrainerOptions { training, distribution }, &*chosen(backend)?)
    }
}

impl Setup {
    /// Repairs, replicates, proves, lowers and loads a model.
    fn ready(&self, model: Model, backend: &dyn Backend) -> Result<Ready, Error> {
        let Model { graph: template, weights, .. } = model;
        let Some(replicate) = self.replicate(Repair::Local) else {
            // Groups of rows are another function of the batch, on one device too.
            let template = match self.batch_norm {
                Some(BatchStatistics::Ghost(groups)) => {
                    pass::grouped(&template, groups)?.into_owned()
                }
                Some(BatchStatistics::Sync | BatchStatistics::Local) | None => template,
            };
            let executable = backend.ready(&template, &weights)?;
            let (graph, repairs) = (template.clone(), Vec::new());
            return Ok(Ready { template, graph, repairs, executable });
        };
        let new = RepairOptions::new(replicate.repair);
        let allowed = RepairOptions { batch_norm: self.batch_norm, ..new };
        let replicas = replicate.devices.len();
        let repaired = pass::repair_for(&template, replicas, allowed);
        let repaired = repaired.map_err(pass::PassError::from)?;
        let graph = repaired.replicate(&replicate)?;
        repaired.prove(ir::verify(&graph)?)?;
        let executable = backend.ready(&graph, &weights)?;
        let repairs = repaired.repairs().to_vec();
        let template = repaired.into_graph().into_owned();
        Ok(Ready { template, graph, repairs, executable })
    }

    /// The replication options, if any, with these default repairs.
    fn replicate(&self, repair: Repair) -> Option<Replicate> {
        self.devices.clone().map(|devices| Replicate {
            devices,
            rule: self.rule.clone(),
            merge: self.merge,
            weights: self.weights,
            repair: self.repair.unwrap_or(repair),
        })
    }
}

/// The given backend, or the CPU with one thread per core.
fn chosen(backend: Option<Box<dyn Backend>>) -> Result<Box<dyn Backend>, Error> {
    match backend {
        Some(backend) => Ok(backend),
        // A machine that does not tell its cores has at least one.
        None => Ok(Box::new(Cpu::new(thread::available_parallelism().map_or(1, usize::from))?)),
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

    /// The number of rows, and statistics of each device.
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

#[cfg(test)]
mod tests {
    use super::{BYTES, FEW, Kept, MOST};

    #[test]
    fn small_graphs_are_kept_and_of_large_ones_the_last_few() {
        let count = |limit: u64, bytes: u64| {
            let mut kept = Kept { all: Vec::new(), limit };
            for i in 0..1000i64 {
                kept.put(&[i], i);
                kept.weigh(&[i], bytes);
                // The first is used again and again.
                assert!(limit < u64::MAX || kept.find(&[0]) == Some(0));
            }
            assert_eq!(kept.find(&[999]), Some(999));
            assert_eq!(kept.find(&[1]), None);
            kept.all.len()
        };
        assert_eq!(count(u64::MAX, 1), MOST);
        assert_eq!(count(u64::MAX, BYTES / 20), 20);
        assert_eq!(count(u64::MAX, u64::MAX), FEW);
        assert_eq!(count(100, 1), 100);
        assert_eq!(count(100, 40), 2);
        assert_eq!(count(100, 101), 1);
    }
}
