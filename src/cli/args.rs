//! Options that several commands share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::backend::memory;
use crate::model::{self, FreeBatch, LoadOptions, Model};
use crate::op::Assume;
use crate::pass::{BatchStatistics, PassError, simplifications};
use crate::train::Checkpoint;
use crate::types::{DType, Note, Quoted, Tensor};
use anyhow::{Context, anyhow, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, Command, FromArgMatches, ValueEnum};

use crate::cli::exec::InputArgs;
use crate::cli::settle::{self, Settled};
use crate::cli::{kept, paths, report, ui};

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
    #[arg(long, value_name = "ROWS", default_value_t = ROWS, allow_negative_numbers = true)]
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
    /// ONNX or Keras file, graph written by `compile --emit`, checkpoint folder, or `zoo:NAME`
    #[arg(required = true)]
    model: Option<String>,
    #[command(flatten)]
    options: ModelOptions,
}

/// How models are read.
#[derive(Args, Clone, Default)]
pub(crate) struct ModelOptions {
    /// Declare which axis of an input is the batch
    #[arg(long, value_name = "INPUT=AXIS", value_parser = pair::<usize>)]
    batch_axis: Vec<(String, usize)>,
    /// Set a named size of the model
    #[arg(long, value_name = "NAME=SIZE", value_parser = pair::<i64>)]
    dim: Vec<(String, i64)>,
    /// Set an input to a constant: numbers, `true` or `false`
    ///
    /// The input is none any more, and its value may decide sizes and branches. Without this
    /// option the value of an input that decides them is taken from `--inputs`. Several numbers
    /// are separated by commas.
    #[arg(long, value_name = "INPUT=VALUE", value_parser = value, allow_hyphen_values = true)]
    set: Vec<(String, Tensor)>,
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
    /// Leave out a simplification that `fanwise passes` lists
    ///
    /// A graph in text or JSON form is not simplified in any case.
    #[arg(long, value_name = "PASS", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(simplifications()))]
    without_pass: Vec<String>,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// The memory that models and runs may take.
#[derive(Args, Clone, Copy, Default)]
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
        // Only a run that is resumed may lack one, until the checkpoint has said it.
        self.model.as_deref().unwrap_or_default()
    }

    /// The model as it was named, or the one that the checkpoint of that name is of.
    pub(crate) fn file(&self) -> anyhow::Result<String> {
        match kept::state(self.spec())? {
            Some(checkpoint) => {
                Ok(Self::of_checkpoint(self.spec(), &checkpoint)?.spec().to_owned())
            }
            None => Ok(self.spec().to_owned()),
        }
    }

    /// Whether it names a checkpoint.
    pub(crate) fn is_checkpoint(&self) -> anyhow::Result<bool> {
        Ok(kept::state(self.spec())?.is_some())
    }

    /// Fails for a checkpoint, which a training goes on from and does not begin with.
    pub(crate) fn check_untrained(&self) -> anyhow::Result<()> {
        let spec = self.spec();
        if self.is_checkpoint()? {
            let run = kept::run_of(Path::new(spec), self.max_memory());
            let run = run.map_or_else(|| spec.to_owned(), |run| run.display().to_string());
            bail!("{spec} is a checkpoint: `fanwise fit --resume {run}` goes on with its run");
        }
        Ok(())
    }

    /// The names of the classes that the checkpoint of that name tells apart, if it is one.
    pub(crate) fn classes(&self) -> anyhow::Result<Vec<String>> {
        let checkpoint = kept::state(self.spec())?;
        let classes = checkpoint.and_then(|mut kept| kept.settings.remove(kept::CLASSES));
        // Labels that are numbers have no names.
        Ok(classes.unwrap_or_default())
    }

    /// Reads the model and simplifies it; remarks go to standard error.
    pub(crate) fn load(&self) -> anyhow::Result<Model> {
        self.load_other(self.spec())
    }

    /// Reads the model for the inputs, if they are given, on one device or `of_many`; gives both.
    pub(crate) fn load_with(
        &self,
        inputs: &InputArgs,
        of_many: bool,
    ) -> anyhow::Result<(Model, Option<BTreeMap<String, Tensor>>)> {
        if !inputs.is_given() {
            return Ok((self.load()?, None));
        }
        let limit = self.max_memory();
        let read = |names: Vec<String>| inputs.read(&names, limit);
        if let Some(model) = self.trained(self.spec())? {
            let names = model.graph.inputs().map(|v| model.graph.info(v).name.to_string());
            let inputs = read(names.collect())?;
            let model = model.for_inputs(&inputs)?.into_owned();
            return Ok((noted(model), Some(inputs)));
        }
        let load = || settle::load(self.spec(), self.options(false), of_many, &read);
        let Settled { model, inputs, constants } = ui::stage("load", load)?;
        for name in constants {
            ui::note(format!(
                "input {} must be known before the run: it is a constant here",
                Quoted(&name)
            ));
        }
        Ok((noted(model), Some(inputs)))
    }

    /// A model without options.
    pub(crate) fn of(model: &Path, memory: MemoryArgs) -> Self {
        let options = ModelOptions { memory, ..ModelOptions::default() };
        Self::named(&model.display().to_string(), &options)
    }

    /// A model of this name.
    pub(crate) fn named(model: &str, options: &ModelOptions) -> Self {
        Self { model: Some(model.to_owned()), options: options.clone() }
    }

    /// Reads a model that is to be trained: what inference has no use for stays.
    pub(crate) fn load_for_training(&self) -> anyhow::Result<Model> {
        Ok(noted(self.read(self.spec(), true)?))
    }

    /// Reads another model with the same options.
    pub(crate) fn load_other(&self, model: &str) -> anyhow::Result<Model> {
        let model = decided(self.read(model, false)?)?;
        show(&model.stated());
        Ok(model)
    }

    /// Reads the model; that open sizes have numbers in it is for the caller to say.
    pub(crate) fn load_open(&self) -> anyhow::Result<Model> {
        let mut model = decided(self.read(self.spec(), false)?)?;
        if self.options.params_unchecked {
            // A graph that is written names these, and not those that it was made for.
            model.graph = model::with_weights(&model.graph, &model.weights);
        }
        Ok(model)
    }

    /// Reads the model where the options are those of another.
    pub(crate) fn load_graph(&self) -> anyhow::Result<Model> {
        self.read(self.spec(), false)
    }

    /// The model of a checkpoint, with the options that it was read with.
    fn of_checkpoint(spec: &str, checkpoint: &Checkpoint) -> anyhow::Result<Self> {
        let line = kept::line(spec, checkpoint)?;
        let wrong = || format!("the settings of the checkpoint in {spec} are damaged");
        let command = Self::augment_args(Command::new("fanwise"));
        let matches = command.try_get_matches_from(line).with_context(wrong)?;
        Self::from_arg_matches(&matches).with_context(wrong)
    }

    /// The model that a training has come to, if this names a checkpoint.
    fn trained(&self, model: &str) -> anyhow::Result<Option<Model>> {
        let Some(checkpoint) = kept::checkpoint(model, self.max_memory())? else {
            return Ok(None);
        };
        if self.options.params.is_some() {
            bail!(
                "`--params` excludes a checkpoint, {model}, which has weights of its own; leave it \
                 out"
            );
        }
        let mut own = Self::of_checkpoint(model, &checkpoint)?;
        own.options.add(&self.options);
        paths::check_kept(own.spec(), own.options.params.as_deref(), model)?;
        // As it was trained, so that it gives the numbers that the training told.
        let read = own.read_file(own.spec(), true);
        kept::trained(model, &checkpoint, read).map(Some)
    }

    fn read(&self, model: &str, for_training: bool) -> anyhow::Result<Model> {
        match self.trained(model)? {
            Some(model) => Ok(model),
            None => self.read_file(model, for_training),
        }
    }

    fn read_file(&self, model: &str, for_training: bool) -> anyhow::Result<Model> {
        let options = self.options(for_training);
        let read = ui::stage("load", || model::load(model, &options)).map_err(Error::from)?;
        paths::check_weights(model, &read.graph)?;
        Ok(read)
    }

    fn options(&self, for_training: bool) -> LoadOptions {
        LoadOptions { for_training, ..self.options.loaded() }
    }

    /// The error with the places in the model's file.
    pub(crate) fn located(&self, mut error: PassError) -> Error {
        if let PassError::Refused(refused) = &mut error {
            model::locate(self.spec(), refused);
        }
        error.into()
    }

    /// The memory that may be used.
    pub(crate) fn max_memory(&self) -> u64 {
        self.options.memory.limit()
    }
}

impl ModelOptions {
    /// True if the model is read as it is.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { batch_axis, dim, set, free_batch, assume, params, without_pass, .. } = self;
        batch_axis.is_empty()
            && without_pass.is_empty()
            && dim.is_empty()
            && set.is_empty()
            && assume.is_empty()
            && !free_batch
            && params.is_none()
    }

    /// Adds those of another command line.
    fn add(&mut self, other: &Self) {
        self.batch_axis.extend(other.batch_axis.iter().cloned());
        self.dim.extend(other.dim.iter().cloned());
        self.set.extend(other.set.iter().cloned());
        self.assume.extend(other.assume.iter().cloned());
        self.free_batch |= other.free_batch;
        self.without_pass.extend(other.without_pass.iter().cloned());
        self.memory = other.memory;
    }

    /// The options of the library.
    fn loaded(&self) -> LoadOptions {
        LoadOptions {
            batch_axis: self.batch_axis.iter().cloned().collect::<BTreeMap<_, _>>(),
            dims: self.dim.iter().cloned().collect(),
            set: self.set.iter().cloned().collect(),
            free_batch: if self.free_batch { FreeBatch::Always } else { FreeBatch::Proved },
            assume: self.assume.iter().cloned().collect(),
            params: self.params.clone(),
            params_unchecked: self.params_unchecked,
            without: self.without_pass.clone(),
            max_memory: self.memory.limit(),
            ..LoadOptions::default()
        }
    }
}

/// The model without inputs, which would say which of its branches is meant.
fn decided(model: Model) -> anyhow::Result<Model> {
    match model.undecided() {
        Some(error) => Err(error.into()),
        None => Ok(noted(model)),
    }
}

fn noted(model: Model) -> Model {
    show(&model.notes);
    model
}

/// Tells what reading a model noticed.
pub(crate) fn show(notes: &[Note]) {
    for note in notes {
        ui::note(note.worded(report::written));
    }
}

/// Reads `NAME=VALUE`.
fn pair<T: std::str::FromStr>(text: &str) -> anyhow::Result<(String, T)> {
    let (name, value) = text.rsplit_once('=').ok_or_else(|| anyhow!("expected NAME=VALUE"))?;
    let value = value.parse().map_err(|_| anyhow!("`{value}` is not a size or an axis"))?;
    Ok((name.to_owned(), value))
}

/// Reads `INPUT=VALUE`.
fn value(text: &str) -> anyhow::Result<(String, Tensor)> {
    let (name, value) = text.rsplit_once('=').ok_or_else(|| anyhow!("expected INPUT=VALUE"))?;
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    let dims = if words.len() == 1 { vec![] } else { vec![words.len()] };
    let truths = words.iter().map(|word| word.parse::<bool>().map(u8::from));
    let wrong = || anyhow!("`{value}` is not a number, `true`, `false` or a list of these");
    let tensor = if let Ok(truths) = truths.collect::<Result<Vec<u8>, _>>() {
        Tensor::new(&dims, &truths)?.reinterpreted(DType::Bool)
    } else if let Ok(whole) = words.iter().map(|w| w.parse()).collect::<Result<Vec<i64>, _>>() {
        Tensor::new(&dims, &whole)?
    } else {
        let numbers = words.iter().map(|word| word.parse());
        let numbers = numbers.collect::<Result<Vec<f64>, _>>().map_err(|_| wrong())?;
        Tensor::new(&dims, &numbers)?
    };
    Ok((name.to_owned(), tensor))
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
    let number: u64 = number
        .parse()
        .with_context(|| format!("`{text}` is not a size; write one such as `8G`"))?;
    match number.checked_mul(unit) {
        Some(bytes) => Ok(bytes),
        None => bail!("`{text}` is too large"),
    }
}
