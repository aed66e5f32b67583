//! Options that say how a graph is replicated, and the graphs that follow.

use std::borrow::Cow;
use std::collections::BTreeSet;

use clap::{Args, ValueEnum};

use crate::Error;
use crate::backend;
use crate::cli::args::{ModelArgs, StatisticsArgs};
use crate::cli::ui;
use crate::ir::{self, Graph, NodeId, NodeKind};
use crate::pass::{
    self, AppliedRepair, BatchStatistics, DeviceError, Gpus, PassError, RepairOptions, Repaired,
    Replicate,
};
use crate::types::{Device, ShardRule};

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
    /// Which devices hold the weights [default: mirrored on GPUs, otherwise template]
    #[arg(long, value_enum)]
    weights: Option<WeightsArg>,
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
    /// Where the model has them; copied to the GPUs, in training before each step
    Template,
    /// On the host; copied to the GPUs, in training before each step
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

impl AvailableDevices {
    /// The devices that are asked for. Where GPUs are too few, a note tells how they can be shared.
    fn select(self, gpus: &Gpus) -> anyhow::Result<Vec<Device>> {
        let devices = gpus.select(self.found);
        if let (Err(DeviceError::Absent { .. }), true) = (&devices, self.cuda) {
            ui::note(too_few(backend::cuda::first_instance()));
        }
        Ok(devices.map_err(PassError::from).map_err(Error::from)?)
    }
}

/// How GPUs that are too few can be shared; `instance` is one that is a part of a GPU.
fn too_few(instance: Option<u32>) -> String {
    let share = "`--logical N` lets N devices share the GPUs";
    match instance {
        None => share.to_owned(),
        Some(gpu) => format!(
            "gpu:{gpu} is an instance of a divided GPU (MIG), of which a process sees one; {share}"
        ),
    }
}

/// Notes that devices are virtual ones.
fn note_virtual(count: usize) {
    let why = if backend::gpu_count() == 0 { "no GPU found; " } else { "" };
    let devices =
        if count == 1 { "1 virtual device runs" } else { &format!("{count} virtual devices run") };
    ui::note(format_args!("{why}{devices} on the CPU"));
}

/// Notes the bytes of weights that the host sends to GPUs in each step of training, of a model of
/// which a step has these parameters `changed`. What no step changes stays on the GPUs.
pub(crate) fn note_sent<'a>(
    replicate: Option<&Replicate>,
    place: AvailableDevices,
    model: &Graph,
    changed: impl Iterator<Item = &'a str>,
) {
    let Some(replicate) = replicate.filter(|of| of.weights != pass::WeightPlacement::Mirrored)
    else {
        return;
    };
    if !place.cuda {
        return;
    }
    let changed: BTreeSet<&str> = changed.collect();
    let sizes = model.ids().filter_map(|id| {
        let NodeKind::Param(param) = *model.node(id).kind() else { return None };
        let param = model.param(param);
        let is_sent = changed.contains(&*param.name) && !is_running(model, id);
        is_sent.then(|| param.ty.bytes().as_const())?
    });
    let gpus: BTreeSet<Device> = replicate.devices.iter().copied().collect();
    let each = sizes.fold(0i64, i64::saturating_add).unsigned_abs();
    let bytes = each.saturating_mul(gpus.len() as u64);
    if bytes > 0 {
        ui::note(format_args!(
            "{} of weights go to the GPUs in each step; `--weights mirrored` keeps them there",
            ui::bytes(bytes)
        ));
    }
}

/// True of a running statistic: a step moves it where it lies, and no GPU reads it.
fn is_running(model: &Graph, param: NodeId) -> bool {
    model
        .users(param)
        .iter()
        .any(|(user, slot, _)| model.node(*user).op().is_some_and(|op| op.is_running(*slot)))
}

impl ReplicateArgs {
    /// Returns true if `--gpus` is given.
    pub(crate) const fn is_of_many(&self) -> bool {
        self.gpus.is_some()
    }

    /// The model with the repairs that are allowed, for any number of devices.
    pub(crate) fn repaired<'a>(&self, template: &'a Graph) -> anyhow::Result<Repaired<'a>> {
        Ok(ui::stage("repair", || pass::repair(template, self.repairs())).map_err(Error::from)?)
    }

    /// The repairs that are allowed.
    fn repairs(&self) -> RepairOptions {
        let new = RepairOptions::new(self.repair(pass::Repair::Local));
        RepairOptions { batch_norm: self.statistics.batch_norm, ..new }
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
            Some(gpus) => place.select(gpus)?,
        };
        if devices.len() == 1 && template.split().is_none() && !cuda {
            return Ok(Replicated::whole(self.grouped(template)?));
        }
        if found == 0 && !cuda {
            note_virtual(devices.len());
        }
        self.over(model, template, devices, cuda)
    }

    /// A graph over the devices of another one; its repairs are not told.
    pub(crate) fn apply_like<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        other: &Replicated<'_>,
        cuda: bool,
    ) -> anyhow::Result<Replicated<'a>> {
        match other.graph.split() {
            Some(split) => {
                let devices = split.devices().to_vec();
                self.proved(model, template, devices, cuda)
            }
            None => Ok(Replicated::whole(self.grouped(template)?)),
        }
    }

    /// Says on which devices graphs run, and which options have no effect there.
    pub(crate) fn note(&self, place: AvailableDevices) -> anyhow::Result<()> {
        match &self.gpus {
            None => self.note_single(place),
            Some(gpus) => {
                let devices = place.select(gpus)?;
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
            ("--weights", moved && self.weights.is_some_and(|of| of != WeightsArg::Template)),
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
        let replicated = self.over(model, template, vec![Device::gpu(0)], place.cuda);
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

    /// The graph on these devices. Its repairs are told, unless it is refused for what is left.
    fn over<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        devices: Vec<Device>,
        cuda: bool,
    ) -> anyhow::Result<Replicated<'a>> {
        let replicated = self.proved(model, template, devices, cuda)?;
        for repair in &replicated.repairs {
            ui::note(repair);
        }
        Ok(replicated)
    }

    /// The replicas that [`Self::apply`] gives, of a graph like one that it was given; nothing is
    /// told again.
    pub(crate) fn again<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        place: AvailableDevices,
    ) -> anyhow::Result<Replicated<'a>> {
        let devices = match &self.gpus {
            Some(gpus) => gpus.select(place.found).map_err(PassError::from).map_err(Error::from)?,
            None => vec![Device::gpu(0)],
        };
        self.proved(model, template, devices, place.cuda)
    }

    /// The replicas of a graph on these devices, repaired and proved.
    fn proved<'a>(
        &self,
        model: &ModelArgs,
        template: &'a Graph,
        devices: Vec<Device>,
        cuda: bool,
    ) -> anyhow::Result<Replicated<'a>> {
        let repaired = || pass::repair_for(template, devices.len(), self.repairs());
        let repaired = ui::stage("repair", repaired).map_err(Error::from)?;
        let options = self.over_devices(devices, cuda);
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
    fn over_devices(&self, devices: Vec<Device>, cuda: bool) -> Replicate {
        let merge = match self.merge {
            MergeArg::Cpu => pass::Merge::Cpu,
            MergeArg::Gpu => pass::Merge::Gpu,
        };
        let weights = match self.weights {
            Some(WeightsArg::Cpu) => pass::WeightPlacement::Cpu,
            Some(WeightsArg::Mirrored) => pass::WeightPlacement::Mirrored,
            None if cuda => pass::WeightPlacement::Mirrored,
            Some(WeightsArg::Template) | None => pass::WeightPlacement::Template,
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
        Ok(Some(Replicate { repair, ..self.over_devices(devices, place.cuda) }))
    }

    /// The replication of a training step on one device: none on the host.
    pub(crate) fn choice_of_one(&self, place: AvailableDevices) -> Option<Replicate> {
        let repair = self.repair(pass::Repair::Comm);
        let on_gpu = || self.over_devices(vec![Device::gpu(0)], true);
        place.cuda.then(|| Replicate { repair, ..on_gpu() })
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
