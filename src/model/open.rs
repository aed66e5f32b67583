//! The sizes of a file that are not the batch and stay open: lengths of sequences, heights, widths.

use std::path::Path;
use std::sync::Arc;

use super::options::{FreeBatch, LoadOptions, import_options};
use super::params::parameterised;
use super::{ModelError, batch};
use crate::Error;
use crate::analysis;
use crate::format::onnx::{self, ImportError, Reader, UnboundDim};
use crate::ir::{Model, OpenSize, Specialize};

/// The numbers that open sizes get where no inputs are given, tried in this order: steps of a
/// sequence, pixels of an image whose positions are embedded, samples of a sound, cells of a small
/// grid.
const STATED: [i64; 5] = [128, 224, 512, 16000, 7];

/// The models of an ONNX file whose batch is found.
#[derive(Debug)]
struct OpenFile {
    reader: Arc<Reader>,
    /// The options, with the batch declared and without the open sizes.
    options: LoadOptions,
    sizes: Vec<OpenSize>,
    stated: Vec<i64>,
}

impl Specialize for OpenFile {
    fn sizes(&self) -> &[OpenSize] {
        &self.sizes
    }

    fn stated(&self) -> &[i64] {
        &self.stated
    }

    fn at(&self, numbers: &[i64]) -> Result<Model, Error> {
        let mut options = self.options.clone();
        let names = self.sizes.iter().map(|size| size.name.clone());
        options.dims.extend(names.zip(numbers.iter().copied()));
        let model = self.reader.import(&import_options(&options)).map_err(ModelError::from)?;
        Ok(parameterised(model, &options)?)
    }
}

/// Reads an ONNX file. Sizes that it leaves open beside the batch get numbers, which each run may
/// choose again; for training they must be bound.
pub(super) fn read(path: &Path, options: &LoadOptions) -> Result<Model, ModelError> {
    match onnx::import(path, &import_options(options)) {
        Ok(model) => {
            let batch = batch::axis_of(&model.graph);
            let model = parameterised(model, options)?;
            // A batch that leads no input may be another size: steps, or a width.
            if batch == Some(0) || (batch.is_some() && batch::may_be_split(&model)) {
                return Ok(model);
            }
            Ok(freed(path, options).unwrap_or(model))
        }
        Err(error @ ImportError::Input { fixed: true, .. }) => {
            freed(path, options).ok_or_else(|| error.into())
        }
        Err(ImportError::Batches(candidates)) => {
            let found = match batch::choose(path, options, candidates) {
                Ok(found) => found,
                Err(error) => return freed(path, options).ok_or_else(|| error.into()),
            };
            if options.for_training {
                return Err(found.refusal().into());
            }
            let declared = LoadOptions { batch_axis: found.axes(), ..options.clone() };
            let mut model = state(path, &declared, &found.others)?;
            model.notes.insert(0, found.note());
            Ok(model)
        }
        Err(ImportError::UnboundDims(others)) if !options.for_training => {
            state(path, options, &others)
        }
        Err(error) => Err(error.into()),
    }
}

/// The model with a constant size of its inputs freed, if it may be split along this one: then each
/// row is computed from itself alone, so that a graph which is right for the file's number of rows
/// is right for every number. A freed graph that mixes rows may hold numbers that stand for the
/// batch, which types do not show.
fn freed(path: &Path, options: &LoadOptions) -> Option<Model> {
    if options.free_batch != FreeBatch::Proved {
        return None;
    }
    let options = LoadOptions { free_batch: FreeBatch::Always, ..options.clone() };
    let model = match onnx::import(path, &import_options(&options)) {
        Ok(model) => parameterised(model, &options).ok(),
        // An open size that is named as the batch is no length, even where nothing splits along it.
        Err(ImportError::UnboundDims(others))
            if !options.for_training && !others.iter().any(batch::has_its_name) =>
        {
            state(path, &options, &others).ok()
        }
        Err(_) => None,
    };
    model.filter(batch::may_be_split)
}

/// The model where `others` have the first of the [`STATED`] numbers for which its types agree and
/// no table of positions is too short.
fn state(path: &Path, options: &LoadOptions, others: &[UnboundDim]) -> Result<Model, ModelError> {
    let reader = Arc::new(Reader::open(path, options.max_memory)?);
    let (mut failed, mut too_long) = (None, None);
    // One number for all sizes: that of another is often the same, and types say where it is not.
    for number in STATED {
        // What is too long for a table is so at every greater length.
        if too_long.as_ref().is_some_and(|(long, _)| number >= *long) {
            continue;
        }
        match stated(&reader, options, others, number) {
            Ok(model) if analysis::may_look_beyond(&model.graph, &model.weights) => {
                too_long.get_or_insert((number, model)).0 = number;
            }
            Ok(model) => return Ok(model),
            Err(error @ ModelError::Onnx(_)) => drop(failed.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    match too_long {
        Some((_, model)) => Ok(model),
        None => Err(failed.unwrap_or_else(|| ImportError::UnboundDims(others.to_vec()).into())),
    }
}

/// The model where `others` have this number, or what their names compose of it.
fn stated(
    reader: &Arc<Reader>,
    options: &LoadOptions,
    others: &[UnboundDim],
    number: i64,
) -> Result<Model, ModelError> {
    let stated: Vec<i64> =
        others.iter().map(|size| composed(&size.name, others, number).unwrap_or(number)).collect();
    let mut bound = options.clone();
    bound.dims.extend(others.iter().map(|size| size.name.clone()).zip(stated.iter().copied()));
    let mut model = parameterised(reader.import(&import_options(&bound))?, &bound)?;
    let size = |UnboundDim { name, input, axis }: &UnboundDim| OpenSize {
        name: name.clone(),
        input: input.clone(),
        axis: *axis,
    };
    model.open = Some(Arc::new(OpenFile {
        reader: Arc::clone(reader),
        options: options.clone(),
        sizes: others.iter().map(size).collect(),
        stated,
    }));
    Ok(model)
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
