//! Options that several commands share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Error;

use crate::backend;
use crate::ir::{self, Graph};
use crate::model::{self, FreeBatch, LoadOptions, Model};
use crate::op::Assume;
use crate::pass::{
    self, AppliedRepair, BatchStatistics, Gpus, PassError, RepairOptions, Repaired, Replicate,
};
use crate::types::{Device, Note, ShardRule, Tensor};
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};

use crate::cli::exec::InputArgs;
use crate::cli::{memory, report, ui};

/// Output format of a result.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs; errors are JSON, too
    Json,
}

/// How the result is printed.
#[derive(Args)]
pub(crate) struct FormatArgs {
    /// Output format
    #[arg(long, value_enum, default_value = "text", global = true)]
    pub(crate) format: Format,
}

/// The rows that are computed at once.
#[derive(Args)]
pub(crate) struct BatchArgs {
    /// Rows per batch
    #[arg(long, value_name = "ROWS", default_value_t = ROWS)]
    pub(crate) batch: u32,
}

/// The rows per batch where none are given.
const ROWS: u32 = 32;

impl BatchArgs {
    /// Returns true if the number is not the default.
    pub(crate) const fn is_given(&self) -> bool {
        self.batch != ROWS
    }
}

/// The statistics of batch normalisation.
#[derive(Args)]
pub(crate) struct StatisticsArgs {
    /// Rows from which batch normalisation in training computes its statistics
    ///
    /// `sync` uses the whole batch, across all replicas. `ghost:G` uses G groups of rows; this
    /// changes the result, identically for any number of devices. `local` uses the rows of each
    /// replica, so the result depends on the number of devices. By default the statistics of the
    /// whole batch are kept; a model for which that needs `--repair comm` is refused without it.
    #[arg(long, value_name = "local|sync|ghost:G")]
    pub(crate) batch_norm: Option<BatchStatistics>,
}

/// The model, and what its file leaves open.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// ONNX file, graph written by `compile --emit`, or `zoo:NAME`
    model: String,
    /// Declare which axis of an input is the batch
    #[arg(long, value_name = "INPUT=AXIS", value_parser = pair::<usize>)]
    batch_axis: Vec<(String, usize)>,
    /// Set a named size of the model
    #[arg(long, value_name = "NAME=SIZE", value_parser = pair::<i64>)]
    dim: Vec<(String, i64)>,
    /// Make a fixed batch size symbolic, or say why it cannot be
    ///
    /// The size of the first axis of the first input becomes `N`, as if the model had been exported
    /// with a dynamic batch. Without this option that happens where it is proved to be right, and
    /// the batch size stays fixed elsewhere.
    #[arg(long)]
    free_batch: bool,
    /// Accept an unknown operator as the file declares it
    ///
    /// `rowwise(AXIS)` asserts that each row of its results depends on the same row of its operands
    /// only. `none` asserts nothing: the operator needs the whole batch.
    #[arg(long, value_name = "OP=rowwise(AXIS)", value_parser = assumption)]
    assume: Vec<(String, Assume)>,
    /// Load weights by name from a .safetensors or .npz file
    ///
    /// They replace those of the model. A graph written by `--emit` needs the weights that it was
    /// made for, unless `--params-unchecked` is given.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// Skip the check that `--params` are the weights that the graph was made for
    #[arg(long, requires = "params")]
    params_unchecked: bool,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// The memory that models and runs may take.
#[derive(Args, Clone, Copy)]
pub(crate) struct MemoryArgs {
    /// Memory limit in bytes, or with the suffix K, M or G [default: memory of this process]
    ///
    /// Models and runs that need more are refused. By default the limit is the memory of the
    /// machine, or of the control group.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_memory: Option<u64>,
}

impl MemoryArgs {
    /// The memory that may be used: as given, or what the machine has for this process.
    pub(crate) fn limit(self) -> u64 {
        self.max_memory.unwrap_or_else(|| memory::available(Path::new("/")))
    }
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

    /// Reads the model for the sizes of the inputs that are given, if they are; both.
    pub(crate) fn load_with(
        &self,
        inputs: &InputArgs,
    ) -> anyhow::Result<(Model, Option<BTreeMap<String, Tensor>>)> {
        let model = self.read(&self.model, false)?;
        let stated = model.stated();
        let Some(given) = inputs.read(&model.graph, self.max_memory())? else {
            let model = noted(model);
            show(&stated);
            return Ok((model, None));
        };
        let model = ui::stage("load", || model.for_inputs(&given).map(Cow::into_owned))?;
        Ok((noted(model), Some(given)))
    }

    /// A model without options.
    pub(crate) fn of(model: &Path, memory: MemoryArgs) -> Self {
        Self {
            model: model.display().to_string(),
            batch_axis: Vec::new(),
            dim: Vec::new(),
            free_batch: false,
            assume: Vec::new(),
            params: None,
            params_unchecked: false,
            memory,
        }
    }

    /// Reads a model that is to be trained: what inference has no use for stays.
    pub(crate) fn load_for_training(&self) -> anyhow::Result<Model> {
        Ok(noted(self.read(&self.model, true)?))
    }

    /// Reads another model with the same options.
    pub(crate) fn load_other(&self, model: &str) -> anyhow::Result<Model> {
        let model = self.read(model, false)?;
        let stated = model.stated();
        let model = noted(model);
        show(&stated);
        Ok(model)
    }

    /// Reads the model where the options are those of another.
    pub(crate) fn load_graph(&self) -> anyhow::Result<Model> {
        self.read(&self.model, false)
    }

    fn read(&self, model: &str, for_training: bool) -> anyhow::Result<Model> {
        let options = LoadOptions {
            batch_axis: self.batch_axis.iter().cloned().collect::<BTreeMap<_, _>>(),
            dims: self.dim.iter().cloned().collect(),
            free_batch: if self.free_batch { FreeBatch::Always } else { FreeBatch::Proved },
            assume: self.assume.iter().cloned().collect(),
            params: self.params.clone(),
            params_unchecked: self.params_unchecked,
            for_training,
            max_memory: self.max_memory(),
            ..LoadOptions::default()
        };
        Ok(ui::stage("load", || model::load(model, &options)).map_err(Error::from)?)
    }

    /// The error with the places in the model's file.
    fn located(&self, mut error: PassError) -> Error {
        if let PassError::Refused(refused) = &mut error {
            model::locate(&self.model, refused);
        }
        error.into()
    }

    /// The memory that may be used.
    pub(crate) fn max_memory(&self) -> u64 {
        self.memory.limit()
    }
}

/// Tells what reading the model noticed.
fn noted(model: Model) -> Model {
    show(&model.notes);
    model
}

fn show(notes: &[Note]) {
    for note in notes {
        ui::note(note.worded(report::written));
    }
}

/// Over which devices the graph is replicated, and how.
#[derive(Args)]
pub(crate) struct ReplicateArgs {
    /// GPUs to use: a count, at least two ids, or `all`
    ///
    /// A count of 1 is the model itself on one device. On a machine without GPUs the devices are
    /// virtual and run on the CPU.
    #[arg(long, value_name = "4|0,2,5|all", allow_hyphen_values = true)]
    gpus: Option<Gpus>,
    /// How rows are divided among the devices
    ///
    /// `remainder-last`: equal shares, and the last device takes the remainder. `balanced`: shares
    /// differ by one row at most. `ceil`: shares are rounded up, and the last one is smaller.
    /// `weighted:3,1`: in proportion to one weight per device.
    #[arg(long, value_name = "RULE", default_value_t = ShardRule::RemainderLast)]
    shards: ShardRule,
    /// Where outputs are merged
    #[arg(long, value_enum, default_value = "cpu")]
    merge: MergeArg,
    /// Which devices hold the weights
    #[arg(long, value_enum, default_value = "template")]
    weights: WeightsArg,
    /// How a model that cannot be split as it is may be rewritten
    /// [default: comm in training, otherwise local]
    #[arg(long, value_enum)]
    repair: Option<RepairArg>,
    #[command(flatten)]
    statistics: StatisticsArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum RepairArg {
    /// Not at all; the model is refused
    None,
    /// Without communication between replicas
    Local,
    /// With collectives between replicas
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
    /// Where the model has them; copied to the GPUs in each run
    Template,
    /// On the host; copied to the GPUs in each run
    Cpu,
    /// On every GPU
    Mirrored,
}

/// Options of the devices of a graph.
#[derive(Clone, Copy)]
pub(crate) struct AvailableDevices {
    /// The GPUs that there are; none where devices are virtual, or of another machine.
    pub(crate) found: usize,
    /// True if what runs on `gpu:0` shall be a GPU's.
    pub(crate) cuda: bool,
}

/// Notes that devices are virtual ones.
fn note_virtual(count: usize) {
    let why = if backend::gpu_count() == 0 { "no GPU found; " } else { "" };
    let devices =
        if count == 1 { "1 virtual device runs" } else { &format!("{count} virtual devices run") };
    ui::note(format_args!("{why}{devices} on the CPU"));
}

impl ReplicateArgs {
    /// Returns true if `--gpus` is given.
    pub(crate) const fn is_of_many(&self) -> bool {
        self.gpus.is_some()
    }

    /// The model with the repairs that are allowed.
    pub(crate) fn repaired<'a>(&self, template: &'a Graph) -> anyhow::Result<Repaired<'a>> {
        let new = RepairOptions::new(self.repair(pass::Repair::Local));
        let options = RepairOptions { batch_norm: self.statistics.batch_norm, ..new };
        Ok(ui::stage("repair", || pass::repair(template, options)).map_err(Error::from)?)
    }

    /// The graph for one device: the model itself, or with ghost batch normalisation if requested.
    fn grouped<'a>(&self, template: &'a Graph) -> anyhow::Result<Cow<'a, Graph>> {
        match self.statistics.batch_norm {
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
        place: AvailableDevices,
    ) -> anyhow::Result<Replicated<'a>> {
        let AvailableDevices { found, cuda } = place;
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
            note_virtual(devices.len());
        }
        self.over(model, template, devices)
    }

    /// Says on which devices graphs run, and which options have no effect there.
    pub(crate) fn note(&self, place: AvailableDevices) -> anyhow::Result<()> {
        match &self.gpus {
            None => self.note_single(place),
            Some(gpus) => {
                let devices = gpus.select(place.found);
                let devices = devices.map_err(PassError::from).map_err(Error::from)?;
                if place.found == 0 && !place.cuda {
                    note_virtual(devices.len());
                }
            }
        }
        Ok(())
    }

    /// Says which options have no effect where no devices are asked for.
    fn note_single(&self, place: AvailableDevices) {
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
        place: AvailableDevices,
    ) -> anyhow::Result<Replicated<'a>> {
        if !place.cuda || template.split().is_some() {
            return Ok(Replicated::whole(self.grouped(template)?));
        }
        let replicated = self.over(model, template, vec![Device::gpu(0)]);
        let Err(error) = &replicated else { return replicated };
        match error.downcast_ref::<Error>() {
            Some(Error::Pass(PassError::Refused(refused))) => {
                let first = refused.first().map_or(String::new(), ToString::to_string);
                ui::note(format_args!("falling back to the host: {first}"));
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
            ui::note(repair);
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
        let replicate = || repaired.replicate(&options);
        let graph = ui::stage("replicate", replicate).map_err(|error| model.located(error))?;
        let verified = ir::verify(&graph).map_err(Error::from)?;
        ui::stage("prove", || repaired.prove(verified)).map_err(Error::from)?;
        let repairs = repaired.repairs().to_vec();
        Ok(Replicated { template: repaired.into_graph(), repairs, graph: Cow::Owned(graph) })
    }
}

impl ReplicateArgs {
    /// The options of `replicate` for these devices.
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

    /// The replication of a training step. Without `--gpus` it runs on the host alone, in shards if
    /// the result is to be `n-invariant`, because the shards determine the order of the sums.
    pub(crate) fn choice(
        &self,
        place: AvailableDevices,
        invariant: bool,
    ) -> anyhow::Result<Option<Replicate>> {
        let devices = match &self.gpus {
            Some(gpus) => {
                let devices =
                    gpus.select(place.found).map_err(PassError::from).map_err(Error::from)?;
                if !place.cuda {
                    note_virtual(devices.len());
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

    /// The options of repairs.
    fn repair(&self, usual: pass::Repair) -> pass::Repair {
        self.repair.map_or(usual, RepairArg::level)
    }

    /// Returns true if the shard rule is not the default.
    pub(crate) fn divides(&self) -> bool {
        self.shards != ShardRule::RemainderLast
    }

    /// Whose statistics batch normalisation takes.
    pub(crate) fn statistics(&self) -> Option<BatchStatistics> {
        self.statistics.batch_norm
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
    /// The backend.
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
    let (name, value) = text.rsplit_once('=').ok_or_else(|| anyhow!("expected NAME=VALUE"))?;
    let value = value.parse().map_err(|_| anyhow!("`{value}` is not a size or an axis"))?;
    Ok((name.to_owned(), value))
}

/// Reads `OP=rowwise(AXIS)`.
fn assumption(text: &str) -> anyhow::Result<(String, Assume)> {
    let (name, value) =
        text.rsplit_once('=').ok_or_else(|| anyhow!("expected OP=rowwise(AXIS)"))?;
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
    let number: u64 =
        number.parse().with_context(|| format!("`{text}` is not a size such as 8G"))?;
    match number.checked_mul(unit) {
        Some(bytes) => Ok(bytes),
        None => bail!("`{text}` is too large"),
    }
}
