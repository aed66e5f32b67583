//! Augmentation: what is drawn for an image, and what is the same for all.

use std::borrow::Cow;

use super::column::find;
use super::{Change, Column, DataError, Draws, RowKey};
use crate::op::converted;
use crate::types::{DType, Quoted, Tensor};

/// The sizes of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) height: usize,
    pub(super) width: usize,
}

/// The order of the axes of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Channels, height, width.
    #[default]
    ChannelsFirst,
    /// Height, width, channels.
    ChannelsLast,
}

impl Layout {
    /// The axes of an image of `height * width` pixels.
    pub(crate) fn dims(self, channels: usize, height: usize, width: usize) -> [usize; 3] {
        match self {
            Self::ChannelsFirst => [channels, height, width],
            Self::ChannelsLast => [height, width, channels],
        }
    }

    /// Channels, height and width of an image with these axes.
    fn sizes(self, [a, b, c]: [usize; 3]) -> Sizes {
        match self {
            Self::ChannelsFirst => Sizes { channels: a, height: b, width: c },
            Self::ChannelsLast => Sizes { channels: c, height: a, width: b },
        }
    }
}

/// The fill mode beyond the edge of an image, as in Keras.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fill {
    /// The nearest pixel of the edge: `aaaa|abcd|dddd`.
    #[default]
    Nearest,
    /// The image mirrored at its edge: `dcba|abcd|dcba`.
    Reflect,
    /// The other end of the image: `abcd|abcd|abcd`.
    Wrap,
    /// A number.
    Constant(f32),
}

impl Fill {
    /// The place inside `0..size` that stands for place `at`, if one does.
    fn place(self, at: i64, size: usize) -> Option<usize> {
        let size = i64::try_from(size).ok().filter(|size| *size > 0)?;
        let inside = match self {
            Self::Nearest => at.clamp(0, size - 1),
            Self::Wrap => at.rem_euclid(size),
            Self::Reflect => {
                let at = at.rem_euclid(2 * size);
                at.min(2 * size - 1 - at)
            }
            Self::Constant(_) => at,
        };
        usize::try_from(inside).ok().filter(|_| inside < size)
    }

    const fn value(self) -> f32 {
        match self {
            Self::Constant(value) => value,
            Self::Nearest | Self::Reflect | Self::Wrap => 0.0,
        }
    }
}

/// An augmentation step of an image. Random numbers are drawn in the order of the steps.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Moves the image by whole pixels: by `floor(t + 1/2)` with `t` drawn between `-height` and
    /// `height` times its height, then the same for its width; the pixel at `(y, x)` is that at
    /// `(y + down, x + right)` before.
    Shift {
        /// The largest share of the height, from 0 to 1.
        height: f32,
        /// The largest share of the width, from 0 to 1.
        width: f32,
        /// The fill mode at the edges.
        fill: Fill,
    },
    /// Exchanges left and right in one of two cases.
    FlipHorizontal,
    /// Exchanges top and bottom in one of two cases.
    FlipVertical,
    /// Takes a part of the image, all as likely, first down, then right.
    RandomCrop {
        /// The height of the part.
        height: usize,
        /// The width of the part.
        width: usize,
        /// The pixels that are added at each edge before.
        padding: usize,
        /// Their fill mode.
        fill: Fill,
    },
    /// Takes the part in the middle; of an odd rest the larger half is below and on the right.
    CentreCrop {
        /// The height of the part.
        height: usize,
        /// The width of the part.
        width: usize,
    },
    /// Multiplies every element by a number.
    Scale(f32),
    /// Subtracts a number for each element: a tensor with the axes that the image has at this step,
    /// in the order of the column, as the mean of the pixels to train on.
    Subtract(Tensor),
    /// Subtracts a mean for each channel and divides by a deviation for each.
    Normalise {
        /// The means.
        mean: Vec<f32>,
        /// The standard deviations, not 0.
        deviation: Vec<f32>,
    },
}

impl Step {
    /// True if pixels only move, and have no other values than before.
    fn moves(&self) -> bool {
        match self {
            Self::Shift { fill, .. } | Self::RandomCrop { fill, .. } => {
                !matches!(fill, Fill::Constant(_))
            }
            Self::FlipHorizontal | Self::FlipVertical | Self::CentreCrop { .. } => true,
            Self::Scale(_) | Self::Subtract(_) | Self::Normalise { .. } => false,
        }
    }

    /// True if the result of a pixel depends on its value and its channel alone.
    fn is_of_pixels(&self) -> bool {
        matches!(self, Self::Scale(_) | Self::Normalise { .. })
    }
}

/// Steps for the images of a column. The numbers are computed in `f32`, in which a column of
/// another type is brought first; the result is `f32`, but bytes (`u8`) where pixels only move.
#[derive(Clone, Debug)]
pub struct Images {
    /// The column.
    pub column: String,
    /// The order of its axes.
    pub layout: Layout,
    /// The order of the axes of the result.
    pub result: Layout,
    /// The steps, one after another.
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    channels: usize,
    height: usize,
    width: usize,
}

/// An image, channels first.
struct Image {
    sizes: Sizes,
    data: Vec<f32>,
}

impl Images {
    /// True if the column has bytes, and all steps leave them bytes.
    fn keeps_bytes(&self, column: &Column) -> bool {
        column.dtype == DType::U8 && self.steps.iter().all(Step::moves)
    }

    /// The same steps in two parts, where the column has bytes: those that move pixels, which stay
    /// bytes, and those that compute with each pixel, which a device can do. They may change
    /// places: a pixel that moves afterwards has been computed before.
    pub(crate) fn on_bytes(&self, before: &[Column]) -> Option<[Self; 2]> {
        let column = before.iter().find(|column| column.name == self.column)?;
        let (computed, moved): (Vec<_>, Vec<_>) =
            self.steps.iter().cloned().partition(Step::is_of_pixels);
        let part = |layout, steps| Self { layout, steps, ..self.clone() };
        let [moved, computed] = [part(self.layout, moved), part(self.result, computed)];
        moved.keeps_bytes(column).then_some([moved, computed])
    }

    fn sizes(&self, column: &Column) -> Result<Sizes, DataError> {
        let dims: Result<[usize; 3], _> = column.dims.as_slice().try_into();
        dims.map(|dims| self.layout.sizes(dims)).map_err(|_| {
            let (name, ty) = (Quoted(&self.column), column.row_type());
            DataError::Columns(format!("{name}, {ty} for a row, has no images: they have 3 axes"))
        })
    }
}

/// The sizes of an image after a step.
fn after(step: &Step, sizes: Sizes, layout: Layout) -> Result<Sizes, String> {
    let Sizes { channels, height: h, width: w } = sizes;
    match step {
        Step::Shift { height, width, .. } => {
            let fits = [height, width].into_iter().all(|share| (0.0..=1.0).contains(share));
            fits.then_some(sizes).ok_or_else(|| "a shift is a fraction from 0 to 1".to_owned())
        }
        Step::FlipHorizontal | Step::FlipVertical => Ok(sizes),
        Step::Scale(by) if by.is_finite() => Ok(sizes),
        Step::Scale(by) => Err(format!("a scale is a finite number, not {by}")),
        Step::RandomCrop { height, width, padding, .. } => {
            let padded = |size: usize| padding.checked_mul(2).and_then(|p| p.checked_add(size));
            let fits = |part: usize, size| part > 0 && padded(size).is_some_and(|s| part <= s);
            if fits(*height, h) && fits(*width, w) {
                return Ok(Sizes { channels, height: *height, width: *width });
            }
            Err(format!(
                "{h} by {w} pixels with {padding} more at each edge have no part of {height} by \
                 {width}"
            ))
        }
        Step::CentreCrop { height, width } => {
            if (1..=h).contains(height) && (1..=w).contains(width) {
                return Ok(Sizes { channels, height: *height, width: *width });
            }
            Err(format!("{h} by {w} pixels have no part of {height} by {width}"))
        }
        Step::Subtract(mean) => {
            let dims = layout.dims(channels, h, w);
            let fits = mean.dtype() == DType::F32 && mean.dims() == dims;
            let ty = mean.tensor_type();
            fits.then_some(sizes).ok_or_else(|| format!("{ty} is not a mean of images f32{dims:?}"))
        }
        Step::Normalise { mean, deviation } => {
            let finite = |x: &f32| x.is_finite();
            let numbers =
                mean.iter().all(finite) && deviation.iter().all(|x| finite(x) && *x != 0.0);
            if mean.len() == channels && deviation.len() == channels && numbers {
                return Ok(sizes);
            }
            Err(format!(
                "{channels} channels require as many means and deviations, all finite, and no \
                 deviation of 0"
            ))
        }
    }
}

impl Change for Images {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        let place = find(before, &self.column)?;
        let mut sizes = self.sizes(&before[place])?;
        for step in &self.steps {
            sizes = after(step, sizes, self.layout).map_err(|reason| {
                DataError::Setting(format!("images of {}: {reason}", Quoted(&self.column)))
            })?;
        }
        let mut columns = before.to_vec();
        if !self.keeps_bytes(&before[place]) {
            columns[place].dtype = DType::F32;
        }
        columns[place].dims = self.result.dims(sizes.channels, sizes.height, sizes.width).to_vec();
        Ok(columns)
    }

    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError> {
        let place = find(before, &self.column)?;
        let sizes = self.sizes(&before[place])?;
        let mut image = Image { sizes, data: planes(floats(&row[place])?, sizes, self.layout) };
        let mut draws = key.draws();
        for step in &self.steps {
            image.take(step, self.layout, &mut draws);
        }
        let Sizes { channels, height, width } = image.sizes;
        let dims = self.result.dims(channels, height, width);
        let data = match self.result {
            Layout::ChannelsFirst => image.data,
            Layout::ChannelsLast => image.pixels(),
        };
        row[place] = if self.keeps_bytes(&before[place]) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "each was a byte"
            )]
            let bytes: Vec<u8> = data.into_iter().map(|x| x as u8).collect();
            Tensor::new(&dims, &bytes)?
        } else {
            Tensor::new(&dims, &data)?
        };
        Ok(())
    }
}

/// The elements as `f32`.
fn floats(tensor: &Tensor) -> Result<Vec<f32>, DataError> {
    if tensor.dtype() == DType::U8 {
        return Ok(tensor.as_slice::<u8>().iter().map(|x| f32::from(*x)).collect());
    }
    let made = converted(tensor, DType::F32);
    Ok(made.map_err(|e| DataError::Columns(e.to_string()))?.as_slice::<f32>().to_vec())
}

/// The elements of an image, channels first.
fn planes(data: Vec<f32>, sizes: Sizes, layout: Layout) -> Vec<f32> {
    match layout {
        Layout::ChannelsFirst => data,
        Layout::ChannelsLast => turned(&data, sizes.channels),
    }
}

/// The rows of `width` elements as columns.
pub(super) fn turned(data: &[f32], width: usize) -> Vec<f32> {
    let column = |at: usize| data.iter().skip(at).step_by(width.max(1)).copied();
    (0..width).flat_map(column).collect()
}

impl Image {
    /// The elements, channels last.
    fn pixels(&self) -> Vec<f32> {
        turned(&self.data, self.sizes.height * self.sizes.width)
    }

    fn take(&mut self, step: &Step, layout: Layout, draws: &mut Draws) {
        let Sizes { channels, height, width } = self.sizes;
        match step {
            Step::Shift { height: down, width: right, fill } => {
                let down = pixels(draws, *down, height);
                let right = pixels(draws, *right, width);
                self.part(down, right, Extent { height, width }, *fill);
            }
            Step::FlipHorizontal => {
                if draws.flip() {
                    self.data.chunks_exact_mut(width).for_each(<[f32]>::reverse);
                }
            }
            Step::FlipVertical => {
                if draws.flip() {
                    self.flip_vertically();
                }
            }
            Step::RandomCrop { height: h, width: w, padding, fill } => {
                let mut start = |size: usize, part: usize| {
                    let places = (size + 2 * padding - part) as u64 + 1;
                    signed(draws.below(places)) - signed(*padding as u64)
                };
                let (down, right) = (start(height, *h), start(width, *w));
                self.part(down, right, Extent { height: *h, width: *w }, *fill);
            }
            Step::CentreCrop { height: h, width: w } => {
                let start = |size: usize, part: usize| signed(((size - part) / 2) as u64);
                let part = Extent { height: *h, width: *w };
                self.part(start(height, *h), start(width, *w), part, Fill::Nearest);
            }
            Step::Scale(by) => self.data.iter_mut().for_each(|x| *x *= by),
            Step::Subtract(mean) => {
                let mean: Cow<'_, [f32]> = match layout {
                    Layout::ChannelsFirst => mean.as_slice().into(),
                    Layout::ChannelsLast => turned(mean.as_slice(), channels).into(),
                };
                self.data.iter_mut().zip(&*mean).for_each(|(x, mean)| *x -= mean);
            }
            Step::Normalise { mean, deviation } => {
                let planes = self.data.chunks_exact_mut(height * width).take(channels);
                for ((plane, mean), deviation) in planes.zip(mean).zip(deviation) {
                    for x in plane {
                        *x = (*x - mean) / deviation;
                    }
                }
            }
        }
    }

    fn flip_vertically(&mut self) {
        let Sizes { height, width, .. } = self.sizes;
        for plane in self.data.chunks_exact_mut(height * width) {
            for y in 0..height / 2 {
                let (top, bottom) = plane.split_at_mut((height - 1 - y) * width);
                top[y * width..(y + 1) * width].swap_with_slice(&mut bottom[..width]);
            }
        }
    }

    /// Becomes the part of itself that begins `down` and `right` of its first pixel.
    fn part(&mut self, down: i64, right: i64, part: Extent, fill: Fill) {
        let Sizes { channels, height, width } = self.sizes;
        let places = |from: i64, part: usize, size: usize| -> Vec<Option<usize>> {
            (0..part).map(|at| fill.place(from.saturating_add(signed(at as u64)), size)).collect()
        };
        let (rows, columns) = (places(down, part.height, height), places(right, part.width, width));
        let mut data = Vec::with_capacity(channels * part.height * part.width);
        for plane in self.data.chunks_exact(height * width) {
            for row in &rows {
                let row = row.map(|row| &plane[row * width..(row + 1) * width]);
                let at = |place: &Option<usize>| row.zip(*place).map(|(row, place)| row[place]);
                data.extend(columns.iter().map(|place| at(place).unwrap_or_else(|| fill.value())));
            }
        }
        self.data = data;
        self.sizes = Sizes { channels, height: part.height, width: part.width };
    }
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A number of pixels up to the share `most` of `size`, in either direction.
fn pixels(draws: &mut Draws, most: f32, size: usize) -> i64 {
    let most = f64::from(most) * size as f64;
    #[expect(clippy::cast_possible_truncation, reason = "a part of a size")]
    let drawn = (draws.uniform(-most, most) + 0.5).floor() as i64;
    drawn
}

#[cfg(test)]
mod tests;
