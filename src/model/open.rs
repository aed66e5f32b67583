//! What a file leaves open beside the batch: sizes such as lengths, heights and widths, and inputs
//! of one number whose value decides sizes or branches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::options::{FreeBatch, LoadOptions, Reading, import_options};
use super::params::parameterised;
use super::{ModelError, batch};
use crate::Error;
use crate::analysis;
use crate::format::onnx::{ImportError, ImportOptions, Reader, UnboundDim};
use crate::ir::{self, Model, Open, Specialize};
use crate::op::converted;
use crate::types::{Dim, Note, Quoted, Tensor};

/// The numbers that open sizes get where no inputs are given, tried in this order: steps of a
/// sequence, pixels of an image whose positions are embedded, pixels of a line of text, samples of
/// a sound, cells of a small grid.
pub(super) const STATED: [i64; 6] = [128, 224, 512, 48, 16000, 7];

/// The numbers that deciding inputs get where no inputs are given. No run uses the graph for one of
/// them unless its inputs have it.
const STAND_INS: [i64; 6] = [1, 0, 2, 8, 128, 16000];

/// The models of an ONNX file whose batch is found.
#[derive(Debug)]
struct OpenFile {
    reader: Arc<Reader>,
    /// With the batch declared, and without what is open.
    reading: Reading,
    open: Vec<Open>,
    stated: Vec<i64>,
    /// The inputs that carry the batch, and on which axis; `None` where this is not said so simply.
    batch: Option<BTreeMap<String, usize>>,
}

impl Specialize for OpenFile {
    fn open(&self) -> &[Open] {
        &self.open
    }

    fn stated(&self) -> &[i64] {
        &self.stated
    }

    fn symbolic(&self, kept: &[bool]) -> Result<Model, Error> {
        let mut reading = self.reading_at(&self.stated)?;
        let mut symbols = BTreeMap::new();
        for (open, _) in self.open.iter().zip(kept).filter(|(_, kept)| **kept) {
            if let Open::Size { name, .. } = open {
                symbols.extend(reading.options.dims.remove_entry(name));
            }
        }
        // What is not said of the batch so simply is found by trial, for which sizes are numbers.
        if let Some(batch) = &self.batch {
            reading.options.batch_axis.clone_from(batch);
        } else {
            symbols.clear();
        }
        let options = ImportOptions { symbols, ..import_options(&reading.options) };
        let model = self.reader.import_for(&options, &reading.given);
        Ok(parameterised(model.map_err(ModelError::from)?, &reading.options)?)
    }

    fn at(&self, numbers: &[i64]) -> Result<Model, Error> {
        let reading = self.reading_at(numbers)?;
        let model = reading.import(&self.reader).map_err(ModelError::from)?;
        Ok(parameterised(model, &reading.options)?)
    }

    fn max_memory(&self) -> u64 {
        self.reading.options.max_memory
    }

    fn undecided(&self) -> Option<Error> {
        let decides = self.open.iter().any(|open| matches!(open, Open::Value { .. }));
        let read = || self.of_sizes(&self.stated).import(&self.reader).err();
        decides.then(read).flatten().map(|error| ModelError::from(error).into())
    }
}

impl OpenFile {
    /// What the file is read with where the open sizes have these numbers.
    fn of_sizes(&self, numbers: &[i64]) -> Reading {
        let mut reading = self.reading.clone();
        for (open, number) in self.open.iter().zip(numbers) {
            if let Open::Size { name, .. } = open {
                reading.options.dims.insert(name.clone(), *number);
            }
        }
        reading
    }

    /// What the file is read with where all that is open has these numbers.
    fn reading_at(&self, numbers: &[i64]) -> Result<Reading, Error> {
        let mut reading = self.of_sizes(numbers);
        for (open, number) in self.open.iter().zip(numbers) {
            if let Open::Value { input, ty } = open {
                reading.given.insert(input.clone(), ir::element(ty, *number)?);
            }
        }
        Ok(reading)
    }
}

/// A model with the numbers of its open sizes.
struct Read {
    model: Model,
    /// What it was read with, without what is open.
    reading: Reading,
    open: Vec<Open>,
    stated: Vec<i64>,
}

impl Read {
    /// A model whose sizes are all known.
    fn whole(model: Model, reading: &Reading) -> Self {
        Self { model, reading: reading.clone(), open: Vec::new(), stated: Vec::new() }
    }

    /// The model, which makes itself again for other numbers.
    fn finish(self, reader: &Arc<Reader>) -> Model {
        let Self { mut model, reading, open, stated } = self;
        if !open.is_empty() {
            let (reader, batch) = (Arc::clone(reader), batch::axes_of(&model.graph));
            model.open = Some(Arc::new(OpenFile { reader, reading, open, stated, batch }));
        }
        model
    }
}

/// Reads an ONNX file. Sizes that it leaves open beside the batch, and inputs whose value decides
/// sizes or branches, get numbers, which each run chooses again; for training they must be bound.
pub(super) fn read(path: &Path, options: &LoadOptions) -> Result<Model, ModelError> {
    let reader = &Arc::new(Reader::open(path, options.max_memory)?);
    let reading = Reading { options: options.clone(), given: BTreeMap::new() };
    match sized(reader, &reading) {
        Ok(read) => Ok(read.finish(reader)),
        Err(ModelError::Onnx(error)) if error.deciding().is_some() && !options.for_training => {
            decided(reader, &reading, error)
        }
        Err(error) => Err(error),
    }
}

/// The model where the inputs that decide have the first of the [`STAND_INS`] for which it can be
/// read; `error` names some of them.
fn decided(
    reader: &Arc<Reader>,
    reading: &Reading,
    error: ImportError,
) -> Result<Model, ModelError> {
    // Behind a value that one number decides, others may decide where it is another.
    let mut named: BTreeSet<String> = BTreeSet::new();
    let deciding = |error: &ImportError| error.deciding().map(<[String]>::to_vec);
    for number in STAND_INS {
        let mut tried = reading.clone();
        let mut found = deciding(&error);
        // An error that no input decides ends the search.
        while let Some(names) = found
            && names.iter().any(|name| !tried.given.contains_key(name))
        {
            named.extend(names);
            let stand_in = |name: &String| (name.clone(), Tensor::scalar(number));
            tried.given.extend(named.iter().map(stand_in));
            match sized(reader, &tried) {
                Ok(read) => match with_values(read, number) {
                    Some(read) => return Ok(read.finish(reader)),
                    None => break,
                },
                Err(ModelError::Onnx(error)) => found = deciding(&error),
                Err(error) => return Err(error),
            }
        }
    }
    Err(error.into())
}

/// The model where the inputs that decide are open; `None` if one has no single element whatever
/// the batch is, so that inputs of a run could differ from what stands in without being noticed.
fn with_values(mut read: Read, number: i64) -> Option<Read> {
    for (input, stand_in) in std::mem::take(&mut read.reading.given) {
        let graph = &read.model.graph;
        let mut inputs = graph.inputs();
        let found = inputs.find(|value| *graph.info(*value).name == *input);
        // What stands in for it was read in its type.
        let ty = graph.ty(found?).clone();
        if ty.shape.elements() != Dim::ONE {
            return None;
        }
        let value = converted(&stand_in, ty.dtype).ok()?;
        let shown = Quoted(&input).to_string();
        read.model.notes.push(Note::from(format!(
            "input {shown} decides what the graph computes: it is {number} here, and a session \
             takes it from the inputs of each run"
        )));
        read.stated.push(ir::number(&value));
        read.open.push(Open::Value { input, ty });
    }
    Some(read)
}

/// Reads an ONNX file, for the values of inputs that are given. Sizes that it leaves open beside
/// the batch get numbers.
fn sized(reader: &Reader, reading: &Reading) -> Result<Read, ModelError> {
    let options = &reading.options;
    match reading.import(reader) {
        Ok(model) => {
            let batch = batch::axis_of(&model.graph);
            let read = Read::whole(parameterised(model, options)?, reading);
            // A batch that leads no input may be another size: steps, or a width.
            if batch == Some(0) || (batch.is_some() && batch::may_be_split(&read.model)) {
                return Ok(read);
            }
            Ok(freed(reader, reading).unwrap_or(read))
        }
        // What an input decides is no matter of sizes.
        Err(error @ ImportError::Node { .. }) if error.deciding().is_some() => Err(error.into()),
        // Where the graph needs the number of its one open size, as a convolution does of a width,
        // the batch may be fixed beside it.
        Err(error @ (ImportError::Input { fixed: true, .. } | ImportError::Node { .. })) => {
            freed(reader, reading).ok_or_else(|| error.into())
        }
        Err(ImportError::Batches(candidates)) => {
            let found = match batch::choose(reader, reading, candidates) {
                Ok(found) => found,
                Err(error) => return freed(reader, reading).ok_or_else(|| error.into()),
            };
            if options.for_training {
                return Err(found.refusal().into());
            }
            let mut declared = reading.clone();
            declared.options.batch_axis = found.axes();
            let mut read = state(reader, &declared, &found.others)?;
            read.model.notes.insert(0, found.note());
            Ok(read)
        }
        Err(ImportError::UnboundDims(others)) if !options.for_training => {
            state(reader, reading, &others)
        }
        Err(error) => Err(error.into()),
    }
}

/// The model with a constant size of its inputs freed, if it may be split along this one: then each
/// row is computed from itself alone, so that a graph which is right for the file's number of rows
/// is right for every number. A freed graph that mixes rows may hold numbers that stand for the
/// batch, which types do not show.
fn freed(reader: &Reader, reading: &Reading) -> Option<Read> {
    if reading.options.free_batch != FreeBatch::Proved {
        return None;
    }
    let mut reading = reading.clone();
    reading.options.free_batch = FreeBatch::Always;
    let options = &reading.options;
    let read = match reading.import(reader) {
        Ok(model) => parameterised(model, options).ok().map(|model| Read::whole(model, &reading)),
        // An open size that is named as the batch is no length, even where nothing splits along it.
        Err(ImportError::UnboundDims(others))
            if !options.for_training && !others.iter().any(batch::has_its_name) =>
        {
            state(reader, &reading, &others).ok()
        }
        Err(_) => None,
    };
    read.filter(|read| batch::may_be_split(&read.model))
}

/// The model where `others` have the first of the [`STATED`] numbers for which its types agree and
/// no table of positions is too short.
fn state(reader: &Reader, reading: &Reading, others: &[UnboundDim]) -> Result<Read, ModelError> {
    let (mut failed, mut too_long) = (None, None);
    // One number for all sizes: that of another is often the same, and types say where it is not.
    for number in STATED {
        // What is too long for a table is so at every greater length.
        if too_long.as_ref().is_some_and(|(long, _)| number >= *long) {
            continue;
        }
        match stated(reader, reading, others, number) {
            Ok(read) if analysis::may_look_beyond(&read.model.graph, &read.model.weights) => {
                too_long.get_or_insert((number, read)).0 = number;
            }
            Ok(read) => return Ok(read),
            // Whatever the sizes are, this value must be known.
            Err(ModelError::Onnx(error)) if error.deciding().is_some() => {
                return Err(error.into());
            }
            Err(error @ ModelError::Onnx(_)) => drop(failed.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    match too_long {
        Some((_, read)) => Ok(read),
        None => Err(failed.unwrap_or_else(|| ImportError::UnboundDims(others.to_vec()).into())),
    }
}

/// The model where `others` have this number, or what their names compose of it.
fn stated(
    reader: &Reader,
    reading: &Reading,
    others: &[UnboundDim],
    number: i64,
) -> Result<Read, ModelError> {
    let stated: Vec<i64> =
        others.iter().map(|size| composed(&size.name, others, number).unwrap_or(number)).collect();
    let mut bound = reading.clone();
    let sizes = others.iter().map(|size| size.name.clone()).zip(stated.iter().copied());
    bound.options.dims.extend(sizes);
    let model = parameterised(bound.import(reader)?, &bound.options)?;
    let size = |UnboundDim { name, input, axis }: &UnboundDim| Open::Size {
        name: name.clone(),
        input: input.clone(),
        axis: *axis,
    };
    let open = others.iter().map(size).collect();
    Ok(Read { model, reading: reading.clone(), open, stated })
}

/// The number of a size whose name composes those of others, such as `past_length + length`, where
/// each of these is `number`; `None` for a name that does not.
fn composed(name: &str, others: &[UnboundDim], number: i64) -> Option<i64> {
    let factor = |text: &str| match text.trim().parse::<i64>() {
        Ok(constant) => Some(constant),
        Err(_) => others.iter().any(|size| size.name == text.trim()).then_some(number),
    };
    let product = |text: &str| text.split('*').try_fold(1i64, |p, t| p.checked_mul(factor(t)?));
    name.split('+').try_fold(0i64, |sum, term| sum.checked_add(product(term)?))
}

#[cfg(test)]
mod tests {
    use super::composed;
    use crate::format::onnx::UnboundDim;

    #[test]
    fn names_that_compose_others_follow_them() {
        let open =
            |name: &str| UnboundDim { name: name.to_owned(), input: "x".to_owned(), axis: 1 };
        let others = [open("past"), open("length"), open("past + length")];
        for (name, expected) in [
            ("past + length", Some(16)),
            ("past+1", Some(9)),
            ("2*length + past", Some(24)),
            ("past + steps", None),
            ("x[1]", None),
            ("9223372036854775807 + past", None),
            ("past + ", None),
        ] {
            assert_eq!(composed(name, &others, 8), expected, "{name}");
        }
    }
}
