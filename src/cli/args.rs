//! Options that several commands share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Error;

use crate::backend;
use crate::ir::{self, Graph};
use crate::model::{self, LoadOptions, Model};
use crate::op::Assume;
use crate::pass::{
    self, AppliedRepair, BatchStatistics, Gpus, PassError, RepairOptions, Repaired, Replicate,
};
use crate::types::{Device, ShardRule};
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};

use crate::cli::{memory, ui};

/// How a result is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// The model, and what its file leaves open.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// An ONNX file, a graph written by `--emit`, or `zoo:NAME`
    model: String,
    /// Declare the axis of an input that carries the batch
    #[arg(long, value_name = "NAME=AXIS", value_parser = pair::<usize>)]
    batch_axis: Vec<(String, usize)>,
    /// Bind a named size of the model
    #[arg(long, value_name = "NAME=SIZE", value_parser = pair::<i64>)]
    dim: Vec<(String, i64)>,
    /// Turn a batch size that is baked into the inputs into N
    #[arg(long)]
    free_batch: bool,
    /// Take an operator of the model that is not known as the file declares it: rowwise(AXIS) says
    /// that each row of its results depends on the same row of its operands, none that nothing is
    /// known
    #[arg(long, value_name = "OP=rowwise(AXIS)", value_parser = assumption)]
    assume: Vec<(String, Assume)>,
    /// Take weights from this .safetensors or .npz file, by name, instead of those of the model; a
    /// graph written by `--emit` takes all of them from it, which must be those that it was made
    /// for
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// Take weights that are not those that a graph written by `--emit` was made for
    #[arg(long, requires = "params")]
    params_unchecked: bool,
    /// Refuse models and runs that need more memory: bytes, or with K, M, G; without it, what this
    /// process may have
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_memory: Option<u64>,
}

impl ModelArgs {
    /// The model as it was named.
    pub(crate) fn spec(&self) -> &str {
        &self.model
    }

    /// Reads the model and simplifies it; remarks go to standard error.
    pub(crate) fn load(&self) -> anyhow::Result<Model> {
        self.load_other(&self.model)
    }

    /// Reads a model that is to be trained: what inference has no use for stays.
    pub(crate) fn load_for_training(&self) -> anyhow::Result<Model> {
        Ok(noted(self.read(&self.model, true)?))
    }

    /// Reads another model with the same options.
    pub(crate) fn load_other(&self, model: &str) -> anyhow::Result<Model> {
        Ok(noted(self.read(model, false)?))
    }

    /// Reads the model where the options are those of another.
    pub(crate) fn load_graph(&self) -> anyhow::Result<Model> {
        self.read(&self.model, false)
    }

    fn read(&self, model: &str, for_training: bool) -> anyhow::Result<Model> {
        let options = LoadOptions {
            batch_axis: self.batch_axis.iter().cloned().collect::<BTreeMap<_, _>>(),
            dims: self.dim.iter().cloned().collect(),
            free_batch: self.free_batch,
            assume: self.assume.iter().cloned().collect(),
            params: self.params.clone(),
            params_unchecked: self.params_unchecked,
            for_training,
            max_memory: self.max_memory(),
            ..LoadOptions::default()
        };
        Ok(model::load(model, &options).map_err(Error::from)?)
    }

    /// The error with the places in the model's file.
    fn located(&self, mut error: PassError) -> Error {
        if let PassError::Refused(refused) = &mut error {
            model::locate(&self.model, refused);
        }
        error.into()
    }

    /// The memory that may be used: as given, or what the machine has for this process.
    pub(crate) fn max_memory(&self) -> u64 {
        self.max_memory.unwrap_or_else(|| memory::available(Path::new("/")))
    }
}

/// Tells what reading the model noticed.
fn noted(model: Model) -> Model {
    for note in &model.notes {
        ui::talk(&format!("note: {}", note.worded(ui::option)));
    }
    model
}

/// Over which devices the graph is replicated, and how.
#[derive(Args)]
pub(crate) struct ReplicateArgs {
    /// GPUs to use: a count, at least two ids, or `all`; without any, as many virtual devices on
    /// the CPU
    #[arg(long, value_name = "4|0,2,5|all", allow_hyphen_values = true)]
    gpus: Option<Gpus>,
    /// How the rows of the batch are divided
    #[arg(long, value_name = "RULE", default_value_t = ShardRule::RemainderLast,
        help = "How the rows are divided: remainder-last, balanced, ceil, or weighted:3,1 with a \
            weight for each GPU")]
    shards: ShardRule,
    /// Where the outputs are merged
    #[arg(long, value_enum, default_value = "cpu")]
    merge: MergeArg,
    /// Which devices hold the weights
    #[arg(long, value_enum, default_value = "template")]
    weights: WeightsArg,
    /// What may be done to a model that cannot be split as it is; by default comm in training,
    /// local elsewhere
    #[arg(long, value_enum)]
    repair: Option<RepairArg>,
    /// Whose statistics batch normalisation in training uses: `sync` those of the whole batch,
    /// combined over all replicas; `ghost:G` those of G groups of rows, which are another function
    /// of the batch, the same one for any number of devices; `local` each replica those of its own
    /// rows: other results for each number of devices
    #[arg(long, value_name = "local|sync|ghost:G")]
    batch_norm: Option<BatchStatistics>,
}

#[derive(Clone, Copy, ValueEnum)]
enum RepairArg {
    /// Nothing: it is refused
    None,
    /// What needs nothing of other replicas
    Local,
    /// Values are exchanged between replicas, too
    Comm,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MergeArg {
    /// On the host
    Cpu,
    /// On the first GPU
    Gpu,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WeightsArg {
    /// Where the model put them; GPUs copy them in each run
    Template,
    /// On the host; GPUs copy them in each run
    Cpu,
    /// On every GPU
    Mirrored,
}

/// What the devices of a graph will be.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The GPUs that there are; none where devices are virtual, or of another machine.
    pub(crate) found: usize,
    /// True if what runs on `gpu:0` shall be a GPU's.
    pub(crate) cuda: bool,
}

/// Says that devices are virtual ones.
fn tell_virtual(count: usize) {
    let why = if backend::gpu_count() == 0 { "no GPU found; " } else { "" };
    let devices =
        if count == 1 { "1 virtual device runs" } else { &format!("{count} virtual devices run") };
    ui::talk(&format!("note: {why}{devices} on the CPU"));
}

impl ReplicateArgs {
    /// Whether devices are asked for.
    pub(crate) const fn is_of_many(&self) -> bool {
        self.gpus.is_some()
    }

    /// The model with the repairs that are allowed.
    pub(crate) fn repaired<'a>(&self, template: &'a Graph) -> anyhow::Result<Repaired<'a>> {
        let new = RepairOptions::new(self.repair(pass::Repair::Local));
        let options = RepairOptions { batch_norm: self.batch_norm, ..new };
        Ok(pass::repair(template, options).map_err(Error::from)?)
    }

    /// What one device computes: the model itself, or with the statistics of groups of rows, if
    /// these are asked for.
    fn grouped<'a>(&self, template: &'a Graph) -> anyhow::Result<Cow<'a, Graph>> {
        match self.batch_norm {
            Some(BatchStatistics::Ghost(groups)) => {
                Ok(pass::grouped(template, groups).map_err(Error::from)?)
            }
            _ => Ok(Cow::Borrowed(template)),
        }
    }

    /// The graph to run: the template itself for one device, or its replicas, which are proved to
    /// compute the same.
    pub(crate) fn apply<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        place: Place,
    ) -> anyhow::Result<Replicated<'a>> {
        let Place { found, cuda } = place;
        let devices = match &self.gpus {
            None => {
                self.note_single(place);
                return self.single(model, template, place);
            }
            Some(gpus) => gpus.select(found).map_err(PassError::from).map_err(Error::from)?,
        };
        if devices.len() == 1 && template.split().is_none() && !cuda {
            return Ok(Replicated::whole(self.grouped(template)?));
        }
        if found == 0 && !cuda {
            tell_virtual(devices.len());
        }
        self.over(model, template, devices)
    }

    /// Says which options have no effect where no devices are asked for.
    fn note_single(&self, place: Place) {
        let moved = !place.cuda;
        let given = [
            ("--shards", self.divides()),
            ("--merge", moved && self.merge != MergeArg::Cpu),
            ("--weights", moved && self.weights != WeightsArg::Template),
            ("--repair", moved && self.repair.is_some()),
        ];
        ui::note_idle(&given, "without `--gpus`");
    }

    /// The graph on one device: the first GPU, or the host where there is none or the model may not
    /// be moved.
    pub(crate) fn single<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        place: Place,
    ) -> anyhow::Result<Replicated<'a>> {
        if !place.cuda || template.split().is_some() {
            return Ok(Replicated::whole(self.grouped(template)?));
        }
        let replicated = self.over(model, template, vec![Device::gpu(0)]);
        let Err(error) = &replicated else { return replicated };
        match error.downcast_ref::<Error>() {
            Some(Error::Pass(PassError::Refused(refused))) => {
                let first = refused.first().map_or(String::new(), ToString::to_string);
                ui::talk(&format!("note: the model runs on the host: {first}"));
                Ok(Replicated::whole(self.grouped(template)?))
            }
            _ => replicated,
        }
    }

    /// The graph on these devices.
    fn over<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        devices: Vec<Device>,
    ) -> anyhow::Result<Replicated<'a>> {
        let repaired = self.repaired(template)?;
        for repair in repaired.repairs() {
            ui::talk(&format!("note: {repair}"));
        }
        self.proved(model, repaired, devices)
    }

    /// The replicas that [`Self::apply`] gives, of a graph like one that it was given; nothing is
    /// told again.
    pub(crate) fn again<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        found: usize,
    ) -> anyhow::Result<Replicated<'a>> {
        let devices = match &self.gpus {
            Some(gpus) => gpus.select(found).map_err(PassError::from).map_err(Error::from)?,
            None => vec![Device::gpu(0)],
        };
        self.proved(model, self.repaired(template)?, devices)
    }

    /// The replicas of a repaired graph on these devices, proved.
    fn proved<'a>(
        &self,
        model: &ModelArgs,
        repaired: Repaired<'a>,
        devices: Vec<Device>,
    ) -> anyhow::Result<Replicated<'a>> {
        let options = self.over_devices(devices);
        let graph = repaired.replicate(&options).map_err(|error| model.located(error))?;
        repaired.prove(ir::verify(&graph).map_err(Error::from)?).map_err(Error::from)?;
        let repairs = repaired.repairs().to_vec();
        Ok(Replicated { template: repaired.into_graph(), repairs, graph: Cow::Owned(graph) })
    }
}

impl ReplicateArgs {
    /// How a graph is replicated over these devices.
    fn over_devices(&self, devices: Vec<Device>) -> Replicate {
        let merge = match self.merge {
            MergeArg::Cpu => pass::Merge::Cpu,
            MergeArg::Gpu => pass::Merge::Gpu,
        };
        let weights = match self.weights {
            WeightsArg::Template => pass::WeightPlacement::Template,
            WeightsArg::Cpu => pass::WeightPlacement::Cpu,
            WeightsArg::Mirrored => pass::WeightPlacement::Mirrored,
        };
        Replicate {
            devices,
            rule: self.shards.clone(),
            merge,
            weights,
            repair: self.repair(pass::Repair::Local),
        }
    }

    /// How a model is trained on the devices that are asked for; where none are, on the host alone,
    /// which is cut into shards as a device is if it is to be `invariant`.
    pub(crate) fn choice(
        &self,
        place: Place,
        invariant: bool,
    ) -> anyhow::Result<Option<Replicate>> {
        let devices = match &self.gpus {
            Some(gpus) => {
                let devices =
                    gpus.select(place.found).map_err(PassError::from).map_err(Error::from)?;
                if !place.cuda {
                    tell_virtual(devices.len());
                }
                devices
            }
            None if place.cuda || invariant => vec![Device::gpu(0)],
            None => {
                self.note_single(place);
                return Ok(None);
            }
        };
        let repair = self.repair(pass::Repair::Comm);
        Ok(Some(Replicate { repair, ..self.over_devices(devices) }))
    }

    /// What may be done to a model.
    fn repair(&self, usual: pass::Repair) -> pass::Repair {
        self.repair.map_or(usual, RepairArg::level)
    }

    /// Whether rows are divided in another way than by default.
    pub(crate) fn divides(&self) -> bool {
        self.shards != ShardRule::RemainderLast
    }

    /// Whose statistics batch normalisation takes.
    pub(crate) fn statistics(&self) -> Option<BatchStatistics> {
        self.batch_norm
    }
}

impl RepairArg {
    /// The level of the library.
    fn level(self) -> pass::Repair {
        match self {
            Self::None => pass::Repair::None,
            Self::Local => pass::Repair::Local,
            Self::Comm => pass::Repair::Comm,
        }
    }
}

/// A model's graph and its replicas.
pub(crate) struct Replicated<'a> {
    /// The graph that was replicated, after its repairs.
    pub(crate) template: Cow<'a, Graph>,
    /// The repairs.
    pub(crate) repairs: Vec<AppliedRepair>,
    /// What runs.
    pub(crate) graph: Cow<'a, Graph>,
}

impl<'a> Replicated<'a> {
    /// A graph that runs as it is.
    pub(crate) fn of_one(graph: &'a Graph) -> Self {
        Self::whole(Cow::Borrowed(graph))
    }

    fn whole(graph: Cow<'a, Graph>) -> Self {
        Self { template: graph.clone(), repairs: Vec::new(), graph }
    }
}

/// Reads `NAME=VALUE`.
fn pair<T: std::str::FromStr>(text: &str) -> anyhow::Result<(String, T)> {
    let (name, value) = text.rsplit_once('=').ok_or_else(|| anyhow!("write NAME=VALUE"))?;
    let value = value.parse().map_err(|_| anyhow!("`{value}` is no size or axis"))?;
    Ok((name.to_owned(), value))
}

/// Reads `OP=rowwise(AXIS)`.
fn assumption(text: &str) -> anyhow::Result<(String, Assume)> {
    let (name, value) = text.rsplit_once('=').ok_or_else(|| anyhow!("write OP=rowwise(AXIS)"))?;
    Ok((name.to_owned(), value.parse()?))
}

/// Reads a number of bytes: `4096`, `512M`, `8G`.
fn size(text: &str) -> anyhow::Result<u64> {
    let upper = text.to_ascii_uppercase();
    let digits = upper.trim_end_matches("IB").trim_end_matches('B');
    let (number, unit) = match digits.char_indices().next_back() {
        Some((at, 'K')) => (&digits[..at], 1u64 << 10),
        Some((at, 'M')) => (&digits[..at], 1 << 20),
        Some((at, 'G')) => (&digits[..at], 1 << 30),
        Some((at, 'T')) => (&digits[..at], 1 << 40),
        _ => (digits, 1),
    };
    let number: u64 = number.parse().with_context(|| format!("`{text}` is no size; write 8G"))?;
    match number.checked_mul(unit) {
        Some(bytes) => Ok(bytes),
        None => bail!("`{text}` is too large"),
    }
}
