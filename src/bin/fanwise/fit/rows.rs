//! Options of data, and what is made of their rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use fanwise::Error;
use fanwise::ir::Graph;
use fanwise::pass::{Loss, OutputLoss};
use fanwise::train::data::{
    self, Categorical, Change, ClassWeights, Column, FolderOptions, Images, Integer, Layout,
    LoaderOptions, Names, OpenOptions, SAMPLE_WEIGHT, Source, Statistics, Step,
};

use super::images::{self, Augment, Normalize};
use crate::args::Format;

/// The data and its batches.
#[derive(Args)]
pub(super) struct DataArgs {
    /// .npz, .npy, .safetensors, .csv, CIFAR's .bin or its folder, a folder with a folder of PNG and JPEG files for
    /// each class: arrays named like the inputs and outputs of the model (`x` and `y` serve for the only ones),
    /// `sample_weight` where rows or places have weights, and `sample_mask` where some do not count
    #[arg(long, value_name = "DATA")]
    data: Option<PathBuf>,
    /// Rows of a batch
    #[arg(long, value_name = "ROWS", default_value_t = 32)]
    batch: usize,
    /// What is done to all images: `mean` subtracts the mean of every pixel, `channels` the mean of every channel and
    /// divides by its deviation, `unit` divides by 255
    #[arg(long, value_name = "mean|channels|unit")]
    normalize: Option<Normalize>,
    /// The data whose mean it is, those to train on; by default what `--data` names, without the rows that validate
    #[arg(long, value_name = "DATA", requires = "normalize")]
    normalize_by: Option<PathBuf>,
    /// The order of the axes of images, where their sizes do not say it
    #[arg(long, value_name = "channels-first|channels-last", value_parser = images::layout)]
    layout: Option<Layout>,
    /// Worker threads; by default one for each core
    #[arg(long, value_name = "T")]
    pub(super) threads: Option<usize>,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "text")]
    pub(super) format: Format,
}

/// The data at a path. Images of a folder get the sizes that the model takes.
pub(super) fn open(path: &Path, graph: &Graph, limit: u64) -> anyhow::Result<Arc<dyn Source>> {
    let images = of_folders(graph);
    let options = OpenOptions { images, max_memory: limit, ..OpenOptions::default() };
    Ok(data::open(path, &options).map_err(Error::from)?)
}

/// What the images of a folder become for a model with one input of images, in colours or grey.
fn of_folders(graph: &Graph) -> Option<FolderOptions> {
    let images: Vec<Vec<usize>> =
        graph.inputs().filter_map(|v| row(graph, v)).filter(|dims| dims.len() == 3).collect();
    let [dims] = images.as_slice() else { return None };
    let few = |size: usize| matches!(size, 1 | 3);
    let (layout, [channels, height, width]) = match dims[..] {
        [a, b, c] if few(a) => (Layout::ChannelsFirst, [a, b, c]),
        [a, b, c] if few(c) => (Layout::ChannelsLast, [c, a, b]),
        _ => return None,
    };
    Some(FolderOptions { channels, layout, ..FolderOptions::new(height, width) })
}

/// Changes of rows: of those to train on, and of others.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) training: Vec<Arc<dyn Change>>,
    pub(super) others: Vec<Arc<dyn Change>>,
}

impl Changes {
    fn both(&mut self, change: impl Change + Clone + 'static) {
        self.training.push(Arc::new(change.clone()));
        self.others.push(Arc::new(change));
    }
}

/// The sizes of a row of a value of a graph; none where they are not known.
fn row(graph: &Graph, value: fanwise::ir::Value) -> Option<Vec<usize>> {
    let sizes = graph.ty(value).shape.iter().skip(1).map(|d| usize::try_from(d.as_const()?).ok());
    sizes.collect()
}

/// Sizes that count.
fn long(dims: &[usize]) -> Vec<usize> {
    dims.iter().copied().filter(|size| *size != 1).collect()
}

impl DataArgs {
    /// The data.
    pub(super) fn open(&self, graph: &Graph, limit: u64) -> anyhow::Result<Arc<dyn Source>> {
        open(self.data.as_deref().context("give the data: `--data`")?, graph, limit)
    }

    /// Batches of rows in their order.
    pub(super) fn in_order(&self) -> LoaderOptions {
        LoaderOptions {
            batch: self.batch,
            threads: self.threads.unwrap_or(0),
            ..LoaderOptions::default()
        }
    }

    /// What is done to images with a source of data to train on.
    pub(super) fn images(
        &self,
        graph: &Graph,
        source: &dyn Source,
        augment: Option<&Augment>,
        limit: u64,
    ) -> anyhow::Result<Changes> {
        let inputs: Vec<String> = graph.inputs().map(|v| graph.info(v).name.to_string()).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let names = Names::of(source.columns(), &inputs, &[]).map_err(Error::from)?;
        let mut found = Vec::new();
        for value in graph.inputs() {
            let name = names.inputs.get(&*graph.info(value).name);
            let column = source.columns().iter().find(|column| name == Some(&column.name));
            let (Some(column), Some(wanted)) = (column, row(graph, value)) else { continue };
            if column.dims.len() == 3 && wanted.len() == 3 {
                found.push((column, wanted));
            }
        }
        let asked = augment.is_some() || self.normalize.is_some();
        let [(column, wanted)] = &found[..] else {
            if asked {
                bail!("`--augment` and `--normalize` are of models with one input of images");
            }
            return Ok(Changes::default());
        };
        if !asked && (column.dims == *wanted || long(&column.dims) == long(wanted)) {
            return Ok(Changes::default());
        }
        let cut = augment.and_then(Augment::cut);
        let (from, to) = images::layouts(column, wanted, cut, self.layout)?;
        let before = self.normal(source, column, from, (graph, limit))?;
        let steps = |more: Vec<Step>| Images {
            column: column.name.clone(),
            layout: from,
            result: to,
            steps: before.iter().cloned().chain(more).collect(),
        };
        let (own, others) = augment.map(|a| (a.training(), a.others())).unwrap_or_default();
        let (own, others) = (steps(own), steps(others));
        Ok(Changes { training: vec![Arc::new(own)], others: vec![Arc::new(others)] })
    }

    /// What is the same for all images.
    fn normal(
        &self,
        source: &dyn Source,
        column: &Column,
        layout: Layout,
        (graph, limit): (&Graph, u64),
    ) -> anyhow::Result<Option<Step>> {
        let Some(normalize) = self.normalize else { return Ok(None) };
        if normalize == Normalize::Unit {
            return Ok(Some(Step::Scale(1.0 / 255.0)));
        }
        let statistics = match &self.normalize_by {
            None => Statistics::of(source, &column.name),
            Some(path) => Statistics::of(&*open(path, graph, limit)?, &column.name),
        };
        let statistics = statistics.map_err(Error::from)?;
        if normalize == Normalize::Mean {
            return Ok(Some(Step::Subtract(statistics.mean().map_err(Error::from)?)));
        }
        let (mean, deviation) = statistics.channels(layout).map_err(Error::from)?;
        Ok(Some(Step::Normalise { mean, deviation }))
    }

    /// Fails where the mean of other data than those to train on would be taken.
    pub(super) fn check_normal(&self) -> anyhow::Result<()> {
        match self.normalize {
            Some(Normalize::Mean | Normalize::Channels) if self.normalize_by.is_none() => bail!(
                "the mean is that of the data to train on: name them with `--normalize-by DATA`"
            ),
            _ => Ok(()),
        }
    }
}

/// What is done to targets: classes become what losses take, and weigh rows.
pub(super) fn targets(
    changes: &mut Changes,
    graph: &Graph,
    losses: &[OutputLoss],
    columns: &[Column],
    weights: &BTreeMap<i64, f64>,
) -> anyhow::Result<()> {
    let outputs: Vec<&str> = losses.iter().map(|loss| &*loss.output).collect();
    let names = Names::of(columns, &[], &outputs).map_err(Error::from)?;
    if !weights.is_empty() {
        let [output] = outputs[..] else {
            bail!("`--class-weight` is of models with one output that has a loss");
        };
        let into = names.weights.get(output).cloned().unwrap_or_else(|| SAMPLE_WEIGHT.to_owned());
        let column = names.targets[output].clone();
        // Other rows than those to train on have the weights that the data give.
        let (others, weights) = (BTreeMap::new(), weights.clone());
        let weigh = |weights| ClassWeights { column: column.clone(), weights, into: into.clone() };
        changes.training.push(Arc::new(weigh(weights)));
        changes.others.push(Arc::new(weigh(others)));
    }
    for loss in losses {
        let name = &names.targets[&loss.output];
        let output = graph.outputs().iter().find(|output| *output.name == *loss.output);
        let column = columns.iter().find(|column| column.name == *name);
        let (Some(output), Some(column)) = (output, column) else { continue };
        let Some(dims) = row(graph, output.value) else { continue };
        let Some((classes, rest)) = dims.split_last() else { continue };
        let (numbers, ones) = (long(&column.dims) == long(rest), column.dims == dims);
        let column = name.clone();
        let takes_ones =
            matches!(loss.loss, Loss::CategoricalCrossentropy { .. } | Loss::CategoricalHinge);
        if takes_ones && numbers && *classes > 1 {
            let dtype = graph.ty(output.value).dtype;
            changes.both(Categorical { column, classes: *classes, dtype });
        } else if loss.loss.takes_classes() && ones && *classes > 1 {
            changes.both(Integer { column });
        }
    }
    Ok(())
}
