//! Options of augmentation and normalisation of images.

use std::str::FromStr;

use crate::train::data::{Column, Fill, Layout, Step};
use anyhow::{Context, bail};

use super::objective::amount;

/// Random augmentation of images.
#[derive(Clone)]
pub(super) struct Augment {
    steps: Vec<Step>,
    cut: Option<Cut>,
}

/// The sizes to which images are cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    height: usize,
    width: usize,
}

/// `8` or `8x6`: a height and a width.
fn sizes<T: FromStr + Copy>(text: &str) -> anyhow::Result<(T, T)> {
    let one = |text: &str| text.parse().ok().with_context(|| format!("`{text}` is not a size"));
    match text.split_once('x') {
        Some((height, width)) => Ok((one(height)?, one(width)?)),
        None => Ok((one(text)?, one(text)?)),
    }
}

fn fill(text: &str) -> anyhow::Result<Fill> {
    Ok(match text {
        "nearest" => Fill::Nearest,
        "reflect" => Fill::Reflect,
        "wrap" => Fill::Wrap,
        number => {
            let value = number.parse().ok().filter(|x: &f32| x.is_finite());
            Fill::Constant(value.context("expected nearest, reflect, wrap or a number")?)
        }
    })
}

impl FromStr for Augment {
    type Err = anyhow::Error;

    /// Reads `shift=0.1,flip`, `crop=28,pad=4,flip=vertical,fill=wrap`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (mut steps, mut cut, mut edge, mut pad) = (Vec::new(), None, Fill::Nearest, 0);
        for part in text.split(',') {
            if let Some(("fill", value)) = part.split_once('=') {
                edge = fill(value)?;
            } else if let Some(("pad", value)) = part.split_once('=') {
                pad = value
                    .parse()
                    .with_context(|| format!("`{value}` is not a number of pixels"))?;
            }
        }
        for part in text.split(',') {
            steps.push(match part.split_once('=').unwrap_or((part, "")) {
                ("shift", share) => {
                    let (height, width) = sizes(share)?;
                    Step::Shift { height, width, fill: edge }
                }
                ("flip", "" | "horizontal") => Step::FlipHorizontal,
                ("flip", "vertical") => Step::FlipVertical,
                ("crop", size) => {
                    let (height, width) = sizes(size)?;
                    cut = Some(Cut { height, width });
                    Step::RandomCrop { height, width, padding: pad, fill: edge }
                }
                ("fill" | "pad", _) => continue,
                _ => bail!(
                    "unknown augmentation `{part}`; there are shift=0.1, flip, flip=vertical, \
                     crop=28, pad=4 and fill=nearest"
                ),
            });
        }
        Ok(Self { steps, cut })
    }
}

/// Deterministic preprocessing, the same for all images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Normalize {
    /// The mean of every pixel to train on is subtracted.
    Mean,
    /// The mean of every channel is subtracted, and its deviation divides.
    Channels,
    /// 255 divides.
    Unit,
}

impl FromStr for Normalize {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "mean" => Self::Mean,
            "channels" => Self::Channels,
            "unit" => Self::Unit,
            _ => bail!("expected mean, channels or unit"),
        })
    }
}

/// Reads the order of axes of images.
pub(super) fn layout(text: &str) -> anyhow::Result<Layout> {
    Ok(match text {
        "channels-first" => Layout::ChannelsFirst,
        "channels-last" => Layout::ChannelsLast,
        _ => bail!("expected channels-first or channels-last"),
    })
}

/// Reads the weight of a class.
pub(super) fn class(text: &str) -> anyhow::Result<(i64, f64)> {
    let (class, weight) = text.split_once('=').with_context(|| {
        format!("`{text}` is no weight of a class; write CLASS=WEIGHT, as in `0=1,1=2.5`")
    })?;
    let class = class.parse().with_context(|| {
        format!("`{class}` is not a class index; number the classes from 0, as in `0=2.5`")
    })?;
    Ok((class, amount(weight)?))
}

impl Augment {
    /// The steps of images to train on.
    pub(super) fn training(&self) -> Vec<Step> {
        self.steps.clone()
    }

    /// The steps of other images, which have the same sizes and no chance.
    pub(super) fn others(&self) -> Vec<Step> {
        let step = |Cut { height, width }| Step::CentreCrop { height, width };
        self.cut.into_iter().map(step).collect()
    }

    /// The height and width that images get.
    pub(super) fn cut(&self) -> Option<Cut> {
        self.cut
    }
}

/// The orders of axes of images: of a column of the data, and that of the model, which takes
/// `wanted`.
pub(super) fn layouts(
    column: &Column,
    wanted: &[usize],
    cut: Option<Cut>,
    given: Option<Layout>,
) -> anyhow::Result<(Layout, Layout)> {
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    let [a, b, c] = column.dims[..] else {
        bail!("a row of `{}` is {}; images have 3 axes", column.name, column.row_type());
    };
    let few = |size: usize| matches!(size, 1 | 3 | 4);
    let sizes = |from| if from == first { (a, b, c) } else { (c, a, b) };
    let fits = |from: Layout, to: Layout| {
        let (channels, height, width) = sizes(from);
        let Cut { height, width } = cut.unwrap_or(Cut { height, width });
        to.dims(channels, height, width)[..] == *wanted
    };
    let guesses = match given {
        Some(layout) => vec![layout],
        None if few(a) && !few(c) => vec![first],
        None if few(c) && !few(a) => vec![last],
        None => [first, last].into_iter().filter(|l| fits(*l, first) != fits(*l, last)).collect(),
    };
    let [from] = guesses[..] else {
        bail!("the axis order of the images `{}` is ambiguous; use `--layout`", column.name);
    };
    // A change of axes only where there must be one.
    let to = [from, if from == first { last } else { first }].into_iter().find(|l| fits(from, *l));
    to.map(|to| (from, to)).with_context(|| {
        format!("images `{}`, {}, do not fit {wanted:?}", column.name, column.row_type())
    })
}

#[cfg(test)]
mod tests {
    use crate::train::data::{Column, Layout, Step};
    use crate::types::DType;

    use super::{Augment, Cut, layouts};

    #[test]
    fn augmentations_are_read() {
        let read = |text: &str| text.parse::<Augment>();
        let usual = read("shift=0.1,flip").unwrap();
        assert!(matches!(usual.training()[..], [Step::Shift { .. }, Step::FlipHorizontal]));
        assert!(usual.others().is_empty());
        let crop = read("crop=28x24,pad=2,fill=0,flip=vertical").unwrap();
        let [Step::RandomCrop { height: 28, width: 24, padding: 2, .. }, Step::FlipVertical] =
            crop.training()[..]
        else {
            panic!("{:?}", crop.training())
        };
        assert!(matches!(crop.others()[..], [Step::CentreCrop { height: 28, width: 24 }]));
        for wrong in ["", "turn", "shift", "crop=a", "flip=up", "fill=x,flip", "pad=-1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn axes_are_told_apart() {
        let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
        let found = |dims: &[usize], wanted: &[usize], cut, given| {
            layouts(&Column::new("x", DType::U8, dims), wanted, cut, given).ok()
        };
        assert_eq!(found(&[3, 32, 32], &[32, 32, 3], None, None), Some((first, last)));
        assert_eq!(found(&[3, 32, 32], &[3, 32, 32], None, None), Some((first, first)));
        let cut = Some(Cut { height: 28, width: 28 });
        assert_eq!(found(&[32, 32, 3], &[3, 28, 28], cut, None), Some((last, first)));
        assert_eq!(found(&[8, 8, 2], &[2, 8, 8], None, None), Some((last, first)));
        assert_eq!(found(&[8, 8, 2], &[8, 8, 2], None, Some(last)), Some((last, last)));
        assert_eq!(found(&[3, 3, 3], &[3, 3, 3], None, None), None);
        assert_eq!(found(&[3, 32, 32], &[31, 32, 3], None, None), None);
        assert_eq!(found(&[3, 32], &[3, 32], None, None), None);
    }
}
