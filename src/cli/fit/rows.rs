//! Options of data, and what is made of their rows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;
use crate::ir::{Graph, Model};
use crate::pass::Training;
use crate::train::data::{
    self, Change, Column, Data, DataError, FolderOptions, Images, Layout, LoaderOptions, Names,
    OpenOptions, Source, Statistics, Step, TableOptions,
};
use anyhow::{Context, bail};
use clap::Args;

use super::images::{self, Augment, Normalize};
use crate::cli::args::{BatchArgs, FormatArgs};
use crate::cli::ui;
use crate::types::invariant::int;
use crate::types::{DType, Quoted};

/// The data and its batches.
#[derive(Args)]
pub(super) struct DataArgs {
    /// Dataset: .npz, .npy, .safetensors, .csv, CIFAR .bin, or a folder of images (required)
    ///
    /// Arrays are named like the inputs and outputs of the model; `x` and `y` stand for the only
    /// input and output. The optional arrays `sample_weight` and `sample_mask` weight rows or
    /// positions, and exclude some of them. A folder of images has one folder of PNG and JPEG files
    /// per class; an image, or a folder of images alone, has no classes. CIFAR is a .bin file or
    /// the folder of those files.
    #[arg(long, value_name = "DATA")]
    data: Option<PathBuf>,
    #[command(flatten)]
    batch: BatchArgs,
    /// Normalise images: `mean`, `channels` or `unit`
    ///
    /// `mean` subtracts the mean of each pixel. `channels` subtracts the mean of each channel and
    /// divides by its standard deviation. `unit` divides by 255.
    #[arg(long, value_name = "mean|channels|unit")]
    normalize: Option<Normalize>,
    /// Dataset from which normalisation statistics are computed
    /// [default for fit: `--data` without the validation rows]
    #[arg(long, value_name = "DATA", requires = "normalize")]
    normalize_by: Option<PathBuf>,
    /// Axis order of images, if their sizes leave it open
    #[arg(long, value_name = "channels-first|channels-last", value_parser = images::layout)]
    layout: Option<Layout>,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

/// The error where there are no data.
const DATA: &str = "`--data` is required: name an .npz, .npy, .safetensors or .csv file, or a \
    folder of images";

/// The data at a path. Images of a folder get the sizes that the model takes; names of classes have
/// their numbers in `classes`, or in the data where there are none.
pub(super) fn open(
    path: &Path,
    graph: &Graph,
    classes: &[String],
    limit: u64,
) -> anyhow::Result<Arc<dyn Source>> {
    let of_folder = |images| FolderOptions { classes: classes.to_vec(), ..images };
    let images = FolderOptions::of(graph).map(of_folder);
    let table = TableOptions { classes: classes.to_vec(), ..TableOptions::default() };
    let options = OpenOptions { table, images, max_memory: limit };
    let source = data::open(path, &options).map_err(Error::from)?;
    if path.is_dir() && !source.classes().is_empty() {
        note_left_out(path)?;
    }
    Ok(source)
}

/// Says which files beside the folders of classes are left out, if there are images among them.
fn note_left_out(folder: &Path) -> anyhow::Result<()> {
    const SHOWN: usize = 3;
    let all = data::left_out(folder).map_err(Error::from)?;
    let names = all.iter().filter_map(|file| file.file_name());
    let names = names.take(SHOWN).map(|name| Quoted(&name.to_string_lossy()).to_string());
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if !all.is_empty() {
        ui::note(format_args!(
            "{}: files beside the folders of classes are left out, {}{more}; put images into the \
             folder of their class",
            folder.display(),
            names.collect::<Vec<_>>().join(", ")
        ));
    }
    Ok(())
}

/// The model for the sizes of a row that these columns have.
pub(super) fn sized<'a>(model: &'a Model, columns: &[Column]) -> anyhow::Result<Cow<'a, Model>> {
    if model.open_sizes().next().is_none() {
        return Ok(Cow::Borrowed(model));
    }
    let graph = &model.graph;
    let inputs: Vec<&str> = graph.inputs().map(|input| &*graph.info(input).name).collect();
    let names = Names::of(columns, &inputs, &[]).map_err(Error::from)?;
    let column = |name: &String| columns.iter().find(|column| column.name == *name);
    let sizes = names.inputs.iter().filter_map(|(input, name)| {
        // The rows stand on the first axis.
        let sizes = std::iter::once(0).chain(column(name)?.dims.iter().copied());
        Some((input.clone(), sizes.collect()))
    });
    Ok(model.for_sizes(&sizes.collect())?)
}

/// Preprocessing of training images and of other images.
#[derive(Default)]
pub(super) struct Changes {
    training: Option<Arc<dyn Change>>,
    others: Option<Arc<dyn Change>>,
    /// The inputs that come as bytes, and what devices make of them.
    pub(super) bytes: BTreeMap<String, Images>,
}

impl Changes {
    /// Rows to train on.
    pub(super) fn training(&self, source: Arc<dyn Source>) -> Data {
        self.training.iter().cloned().fold(source.into(), Data::changed)
    }

    /// Other rows.
    pub(super) fn others(&self, source: Arc<dyn Source>) -> Data {
        self.others.iter().cloned().fold(source.into(), Data::changed)
    }
}

/// The inputs of `f32` whose columns have bytes in all data, which stay bytes on their way to a
/// device.
fn bytes(graph: &Graph, data: [&[Column]; 2]) -> anyhow::Result<BTreeMap<String, Images>> {
    let inputs: Vec<&str> = graph.inputs().map(|v| &*graph.info(v).name).collect();
    let given = data.into_iter().filter(|columns| !columns.is_empty());
    let named = given.map(|columns| Ok((columns, Names::of(columns, &inputs, &[])?)));
    let named = named.collect::<Result<Vec<_>, Error>>()?;
    let mut found = BTreeMap::new();
    for value in graph.inputs() {
        let input = &*graph.info(value).name;
        // Each may have a name of its own for the column.
        let columns = named.iter().map(|(columns, names)| {
            let name = names.inputs.get(input);
            columns.iter().find(|column| Some(&column.name) == name)
        });
        let columns: Option<Vec<&Column>> = columns.collect();
        let Some([column, ..]) = columns.as_deref() else { continue };
        let are_bytes = columns.iter().flatten().all(|column| column.dtype == DType::U8);
        if are_bytes && graph.ty(value).dtype == DType::F32 {
            let (layout, steps) = (Layout::default(), Vec::new());
            let images = Images { column: column.name.clone(), layout, result: layout, steps };
            found.insert(input.to_owned(), images);
        }
    }
    Ok(found)
}

impl DataArgs {
    /// The data, as [`open`].
    pub(super) fn open(
        &self,
        graph: &Graph,
        classes: &[String],
        limit: u64,
    ) -> anyhow::Result<Arc<dyn Source>> {
        let path = self.data.as_deref().context(DATA)?;
        if self.batch.batch == 0 {
            let reason = "a batch of 0 rows; give it at least 1";
            return Err(Error::from(DataError::Setting(reason.to_owned())).into());
        }
        open(path, graph, classes, limit)
    }

    /// The data as they were named.
    pub(super) fn name(&self) -> String {
        // Without a name nothing is opened.
        self.data.as_ref().map_or_else(String::new, |path| path.display().to_string())
    }

    /// The rows of a batch.
    pub(super) fn rows_of_batch(&self) -> usize {
        int(self.batch.batch)
    }

    /// How rows become batches, on so many threads, or one for each core.
    pub(super) fn batches(&self, threads: Option<usize>) -> LoaderOptions {
        LoaderOptions {
            batch: self.rows_of_batch(),
            threads: threads.unwrap_or(0),
            ..LoaderOptions::default()
        }
    }

    /// Preprocessing of images, given the dataset and the columns of another that validates.
    pub(super) fn images(
        &self,
        graph: &Graph,
        source: &dyn Source,
        other: &[Column],
        augment: Option<&Augment>,
        limit: u64,
    ) -> anyhow::Result<Changes> {
        let inputs: Vec<String> = graph.inputs().map(|v| graph.info(v).name.to_string()).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let names = Names::of(source.columns(), &inputs, &[]).map_err(Error::from)?;
        let mut bytes = bytes(graph, [source.columns(), other])?;
        let mut found = Vec::new();
        for value in graph.inputs() {
            let input = &*graph.info(value).name;
            let name = names.inputs.get(input);
            let column = source.columns().iter().find(|column| name == Some(&column.name));
            let Some((column, wanted)) = column.zip(Column::of("x", graph.ty(value))) else {
                continue;
            };
            if column.dims.len() == 3 && wanted.dims.len() == 3 {
                found.push((input, column, wanted.dims));
            }
        }
        let asked = augment.is_some() || self.normalize.is_some();
        let [(input, column, wanted)] = &found[..] else {
            self.check_idle(augment)?;
            return Ok(Changes { bytes, ..Changes::default() });
        };
        if !asked && self.layout.is_none() && column.has_sizes(wanted) {
            return Ok(Changes { bytes, ..Changes::default() });
        }
        let cut = augment.and_then(Augment::cut);
        let (from, to) = images::layouts(column, wanted, cut, self.layout)?;
        let before = self.normal(source, column, from, graph, limit)?;
        let steps = |more: Vec<Step>| Images {
            column: column.name.clone(),
            layout: from,
            result: to,
            steps: before.iter().cloned().chain(more).collect(),
        };
        let (own, others) = augment.map(|a| (a.training(), a.others())).unwrap_or_default();
        let (mut own, mut others) = (steps(own), steps(others));
        let parts = own.on_bytes(source.columns()).zip(others.on_bytes(source.columns()));
        match parts.filter(|_| bytes.contains_key(*input)) {
            Some(([moved, computed], [others_moved, _])) => {
                (own, others) = (moved, others_moved);
                bytes.insert((*input).to_owned(), computed);
            }
            None => drop(bytes.remove(*input)),
        }
        Ok(Changes { training: Some(Arc::new(own)), others: Some(Arc::new(others)), bytes })
    }

    /// Fails where images are to be changed and there are none.
    fn check_idle(&self, augment: Option<&Augment>) -> anyhow::Result<()> {
        let options = [
            ("`--augment`", augment.is_some()),
            ("`--normalize`", self.normalize.is_some()),
            ("`--layout`", self.layout.is_some()),
        ];
        let given = options.iter().filter(|(_, given)| *given).map(|(option, _)| *option);
        let given: Vec<&str> = given.collect();
        if given.is_empty() {
            return Ok(());
        }
        let verb = if given.len() == 1 { "requires" } else { "require" };
        bail!(
            "{} {verb} a model with exactly one image input, and rows of images for it; leave out \
             what changes images",
            given.join(" and ")
        )
    }

    /// Deterministic preprocessing, the same for all images.
    fn normal(
        &self,
        source: &dyn Source,
        column: &Column,
        layout: Layout,
        graph: &Graph,
        limit: u64,
    ) -> anyhow::Result<Option<Step>> {
        let Some(normalize) = self.normalize else { return Ok(None) };
        if normalize == Normalize::Unit {
            return Ok(Some(Step::Scale(1.0 / 255.0)));
        }
        let statistics = match &self.normalize_by {
            None => Statistics::of(source, &column.name),
            Some(path) => Statistics::of(&*open(path, graph, &[], limit)?, &column.name),
        };
        let statistics = statistics.map_err(Error::from)?;
        if normalize == Normalize::Mean {
            return Ok(Some(Step::Subtract(statistics.mean().map_err(Error::from)?)));
        }
        let (mean, deviation) = statistics.channels(layout).map_err(Error::from)?;
        Ok(Some(Step::Normalise { mean, deviation }))
    }

    /// Fails where the data have no labels for the only output with a loss.
    pub(super) fn check_labels(
        &self,
        training: &Training,
        source: &dyn Source,
    ) -> anyhow::Result<()> {
        let ([loss], Some(path)) = (&training.losses[..], &self.data) else { return Ok(()) };
        Ok(data::check_labels(path, source, &loss.output).map_err(Error::from)?)
    }

    /// Fails where the mean of other data than those to train on would be taken.
    pub(super) fn check_normal(&self) -> anyhow::Result<()> {
        match self.normalize {
            Some(Normalize::Mean | Normalize::Channels) if self.normalize_by.is_none() => bail!(
                "normalisation uses the statistics of the training data: name it with \
                 `--normalize-by DATA`"
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Column, DataArgs};
    use crate::cli::fit::images::Augment;
    use crate::ir::{Builder, Graph};
    use crate::op::Unary;
    use crate::train::data::{Arrays, Source as _};
    use crate::types::{DType, Tensor};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        data: DataArgs,
    }

    fn model() -> Graph {
        let mut b = Builder::new("model");
        let x = b.input("image", "f32[N,3,4,5]".parse().unwrap());
        let y = b.op("y", Unary::Relu, &[x]).unwrap();
        b.output("y", y);
        b.finish().0
    }

    /// The inputs that come as bytes for data of bytes, with these options and validation data.
    fn bytes(line: &[&str], augment: Option<&str>, other: &[Column]) -> Vec<(String, usize)> {
        let data = Line::parse_from([&["fit"], line].concat()).data;
        let pixels: Vec<u8> = (0..120).collect();
        let x = Tensor::new(&[2, 3, 4, 5], &pixels).unwrap();
        let source = Arrays::new([("x".to_owned(), x)]).unwrap();
        let augment: Option<Augment> = augment.map(|text| text.parse().unwrap());
        let made = data.images(&model(), &source, other, augment.as_ref(), 1 << 20).unwrap();
        assert_eq!(source.columns()[0].dtype, DType::U8);
        made.bytes.into_iter().map(|(name, images)| (name, images.steps.len())).collect()
    }

    #[test]
    fn bytes_stay_bytes_where_devices_can_make_the_numbers() {
        let column = |name: &str, dtype| [Column::new(name, dtype, &[3, 4, 5])];
        let with = |steps| vec![("image".to_owned(), steps)];
        assert_eq!(bytes(&[], None, &[]), with(0));
        assert_eq!(bytes(&["--normalize", "unit"], None, &[]), with(1));
        assert_eq!(bytes(&["--normalize", "channels"], Some("shift=0.2,flip"), &[]), with(1));
        assert_eq!(bytes(&[], None, &column("x", DType::U8)), with(0));
        assert_eq!(bytes(&[], None, &column("image", DType::U8)), with(0));
        // The mean of each pixel, an edge that is no byte, other data without bytes.
        let none = Vec::new();
        assert_eq!(bytes(&["--normalize", "mean"], None, &[]), none);
        assert_eq!(bytes(&["--normalize", "unit"], Some("shift=0.2,fill=0.5"), &[]), none);
        assert_eq!(bytes(&["--normalize", "unit"], None, &column("image", DType::F32)), none);
        assert_eq!(bytes(&[], None, &column("x", DType::F32)), none);
    }
}
