//! Images in other sizes and numbers of channels.

use super::images::Extent;

/// The interpolation for images of another size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resize {
    /// Between the four pixels around a place, with the centres of the corner pixels where those of
    /// the image are stretched to; a smaller image leaves pixels out. This is `tf.image.resize`,
    /// which Keras uses.
    #[default]
    Bilinear,
    /// The pixel that a place falls into.
    Nearest,
}

/// Two places of an axis, and how near the second is: from 0 to 1.
struct Between(usize, usize, f32);

/// The positions of an axis of `to` pixels on one of `from` pixels.
fn places(from: usize, to: usize, resize: Resize) -> Vec<Between> {
    let scale = from as f32 / to as f32;
    let last = from.saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at least 0, and limited"
    )]
    let place = |at: usize| match resize {
        Resize::Bilinear => {
            let at = (at as f32 + 0.5) * scale - 0.5;
            let below = at.floor();
            let (low, high) = (below.max(0.0) as usize, at.ceil().max(0.0) as usize);
            Between(low.min(last), high.min(last), at - below)
        }
        Resize::Nearest => {
            let at = (((at as f32 + 0.5) * scale).floor() as usize).min(last);
            Between(at, at, 0.0)
        }
    };
    (0..to).map(place).collect()
}

/// An image, channels last, of the sizes `from` with the sizes `to`.
pub(super) fn resized(
    data: &[u8],
    channels: usize,
    from: Extent,
    to: Extent,
    resize: Resize,
) -> Vec<f32> {
    let (rows, columns) =
        (places(from.height, to.height, resize), places(from.width, to.width, resize));
    let width = from.width * channels;
    let mut made = Vec::with_capacity(to.height * to.width * channels);
    for Between(top, bottom, down) in &rows {
        let (top, bottom) = (&data[top * width..][..width], &data[bottom * width..][..width]);
        for Between(left, right, along) in &columns {
            for channel in 0..channels {
                let at = |row: &[u8], column: usize| f32::from(row[column * channels + channel]);
                let between = |row: &[u8]| {
                    let left = at(row, *left);
                    left + (at(row, *right) - left) * along
                };
                let (above, below) = (between(top), between(bottom));
                made.push(above + (below - above) * down);
            }
        }
    }
    made
}

/// Pixels of 1 or 3 channels with 1 or 3 channels. Grey is `(299 r + 587 g + 114 b) / 1000`,
/// rounded.
pub(super) fn with_channels(data: &[u8], from: usize, to: usize) -> Vec<u8> {
    match (from, to) {
        (1, 3) => data.iter().flat_map(|grey| [*grey; 3]).collect(),
        (3, 1) => data.chunks_exact(3).map(grey).collect(),
        _ => data.to_vec(),
    }
}

fn grey(pixel: &[u8]) -> u8 {
    let sum: u32 = pixel.iter().zip([299, 587, 114]).map(|(x, by)| u32::from(*x) * by).sum();
    u8::try_from((sum + 500) / 1000).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::images::Extent;
    use super::{Resize, resized, with_channels};

    fn of(height: usize, width: usize) -> Extent {
        Extent { height, width }
    }

    #[test]
    fn sizes_change_as_tensorflow_has_it() {
        let image: Vec<u8> = (0..12).map(|i| i * 20).collect();
        let floats: Vec<f32> = image.iter().map(|x| f32::from(*x)).collect();
        for resize in [Resize::Bilinear, Resize::Nearest] {
            assert_eq!(resized(&image, 3, of(2, 2), of(2, 2), resize), floats);
            assert_eq!(resized(&image, 1, of(3, 4), of(3, 4), resize), floats);
        }
        // One row of two pixels, to four and to one.
        let made = |to, resize| resized(&[0, 100], 1, of(1, 2), of(1, to), resize);
        assert_eq!(made(4, Resize::Bilinear), [0.0, 25.0, 75.0, 100.0]);
        assert_eq!(made(1, Resize::Bilinear), [50.0]);
        assert_eq!(made(4, Resize::Nearest), [0.0, 0.0, 100.0, 100.0]);
        assert_eq!(made(1, Resize::Nearest), [100.0]);
        // Columns of pixels are as rows are.
        let down = resized(&[0, 100], 1, of(2, 1), of(4, 2), Resize::Bilinear);
        assert_eq!(down, [0.0, 0.0, 25.0, 25.0, 75.0, 75.0, 100.0, 100.0]);
    }

    #[test]
    fn channels_are_made_of_each_other() {
        assert_eq!(with_channels(&[7, 9], 1, 3), [7, 7, 7, 9, 9, 9]);
        assert_eq!(
            with_channels(&[255, 255, 255, 255, 0, 0, 0, 255, 0, 0, 0, 255], 3, 1),
            [255, 76, 150, 29]
        );
        assert_eq!(with_channels(&[1, 2, 3], 3, 3), [1, 2, 3]);
    }
}
