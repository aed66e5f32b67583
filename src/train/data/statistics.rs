use rayon::prelude::*;

use super::column::{find, read_into, zeros};
use super::{DataError, Layout, Source};
use crate::op::element::Float;
use crate::types::{Quoted, Tensor};

/// The rows that are summed one after another; the sums of such blocks are added in their order.
const BLOCK: usize = 256;

/// The blocks that are summed at the same time.
const WAVE: usize = 16;

/// The mean and the variance of every element of a column over all rows, as of the pixels to train
/// on. They are summed in `f64` in an order that does not depend on the number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    dims: Vec<usize>,
    mean: Vec<f64>,
    variance: Vec<f64>,
}

/// The sums of the elements of some rows, and of their squares.
type Sums = (Vec<f64>, Vec<f64>);

fn add(into: &mut [f64], from: impl IntoIterator<Item = f64>) {
    into.iter_mut().zip(from).for_each(|(sum, x)| *sum += x);
}

impl Statistics {
    /// The statistics of a column of `source`.
    ///
    /// # Errors
    /// If there is no such column, there are no rows, or one cannot be read.
    pub fn of(source: &dyn Source, column: &str) -> Result<Self, DataError> {
        let (columns, rows) = (source.columns(), source.rows());
        let place = find(columns, column)?;
        let dims = columns[place].dims.clone();
        let elements = columns[place].elements().unwrap_or(0);
        if rows == 0 {
            return Err(DataError::Columns(format!("{} has no rows", Quoted(column))));
        }
        let block = |first: usize| -> Result<Sums, DataError> {
            let (mut sum, mut squares) = (vec![0.0; elements], vec![0.0; elements]);
            let mut row = zeros(columns)?;
            for number in first..rows.min(first + BLOCK) {
                read_into(columns, &mut row, |into| source.read(number, into))?;
                let values = row[place].to_f64();
                add(&mut squares, values.iter().map(|x| x * x));
                add(&mut sum, values);
            }
            Ok((sum, squares))
        };
        let (mut sum, mut squares) = (vec![0.0; elements], vec![0.0; elements]);
        let firsts: Vec<usize> = (0..rows).step_by(BLOCK).collect();
        for wave in firsts.chunks(WAVE) {
            let found: Vec<Result<Sums, DataError>> =
                wave.par_iter().map(|first| block(*first)).collect();
            for found in found {
                let (more, more_squares) = found?;
                add(&mut sum, more);
                add(&mut squares, more_squares);
            }
        }
        let count = rows as f64;
        let mean: Vec<f64> = sum.iter().map(|sum| sum / count).collect();
        let variance = squares.iter().zip(&mean);
        let variance = variance.map(|(square, mean)| (square / count - mean * mean).max(0.0));
        Ok(Self { dims, variance: variance.collect(), mean })
    }

    /// The mean of every element, `f32`.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn mean(&self) -> Result<Tensor, DataError> {
        let mean: Vec<f32> = self.mean.iter().map(|x| f32::of_f64(*x)).collect();
        Ok(Tensor::new(&self.dims, &mean)?)
    }

    /// The mean and the standard deviation of every channel of images, over all pixels of all rows.
    ///
    /// # Errors
    /// If a row is no image.
    pub(crate) fn channels(&self, layout: Layout) -> Result<(Vec<f32>, Vec<f32>), DataError> {
        let channels = match (layout, self.dims.as_slice()) {
            (Layout::ChannelsFirst, [channels, _, _])
            | (Layout::ChannelsLast, [_, _, channels]) => *channels,
            _ => return Err(DataError::Columns("a row is not an image with 3 axes".to_owned())),
        };
        let pixels = self.mean.len() / channels.max(1);
        let part = |values: &[f64], channel: usize| -> Vec<f64> {
            match layout {
                Layout::ChannelsFirst => values[channel * pixels..][..pixels].to_vec(),
                Layout::ChannelsLast => {
                    values.iter().skip(channel).step_by(channels).copied().collect()
                }
            }
        };
        let (mut means, mut deviations) = (Vec::new(), Vec::new());
        for channel in 0..channels {
            let (mean, variance) = (part(&self.mean, channel), part(&self.variance, channel));
            let count = pixels as f64;
            let all = mean.iter().sum::<f64>() / count;
            // The variance over all is the mean of the variances and the variance of the means.
            let between = mean.iter().map(|x| (x - all) * (x - all)).sum::<f64>();
            let variance = (variance.iter().sum::<f64>() + between) / count;
            means.push(f32::of_f64(all));
            deviations.push(f32::of_f64(variance.sqrt()));
        }
        Ok((means, deviations))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Arrays;
    use super::{Layout, Statistics};
    use crate::types::Tensor;

    #[test]
    fn means_and_deviations_are_those_of_all_rows() {
        // 1000 images of 2 channels, one row and 2 columns.
        let data: Vec<u8> = (0..4000u32).map(|i| u8::try_from(i * i % 251).unwrap()).collect();
        let x = Tensor::new(&[1000, 2, 1, 2], &data).unwrap();
        let source = Arrays::new([("x".to_owned(), x)]).unwrap();
        let found = Statistics::of(&source, "x").unwrap();
        assert_eq!(found, Statistics::of(&source, "x").unwrap());
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let values = |keep: &dyn Fn(usize) -> bool| -> Vec<f64> {
            let kept = data.iter().enumerate().filter(|(i, _)| keep(*i));
            kept.map(|(_, x)| f64::from(*x)).collect()
        };
        for (element, got) in found.mean().unwrap().to_f64().into_iter().enumerate() {
            assert!((got - mean(&values(&|i| i % 4 == element))).abs() < 1e-4);
        }
        for (layout, channel) in [
            (Layout::ChannelsFirst, &(|i: usize| i % 4 / 2) as &dyn Fn(usize) -> usize),
            (Layout::ChannelsLast, &|i| i % 2),
        ] {
            let (means, deviations) = found.channels(layout).unwrap();
            for c in 0..2 {
                let values = values(&|i| channel(i) == c);
                let all = mean(&values);
                let squares: Vec<f64> = values.iter().map(|x| (x - all) * (x - all)).collect();
                assert!((f64::from(means[c]) - all).abs() < 1e-4);
                assert!((f64::from(deviations[c]) - mean(&squares).sqrt()).abs() < 1e-4);
            }
        }
        assert!(Statistics::of(&source, "z").is_err());
    }
}
