//! A drawing as pixels.

use super::chart::{Anchor, Colour, Drawing, Mark, Place};
use super::font;

/// The pixels of one pixel of the font.
const ZOOM: usize = 2;

/// Pixels in rows, each red, green and blue.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn whole(x: f64, most: usize) -> usize {
    x.clamp(0.0, most as f64) as usize
}

/// The file `.png` of a drawing.
///
/// # Errors
/// If it has no pixels.
pub(super) fn png(drawing: &Drawing) -> Result<Vec<u8>, png::EncodingError> {
    let (width, height) = (whole(drawing.width, 1 << 14), whole(drawing.height, 1 << 16));
    let mut canvas = Canvas { width, height, pixels: vec![255; width * height * 3] };
    for mark in &drawing.marks {
        match mark {
            Mark::Line { places, colour, width } => {
                for ends in places.windows(2) {
                    canvas.line((ends[0], ends[1]), *colour, *width);
                }
            }
            Mark::Text { at, text, anchor } => canvas.text(*at, text, *anchor),
        }
    }
    let mut file = Vec::new();
    let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let mut encoder = png::Encoder::new(&mut file, size(width), size(height));
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&canvas.pixels)?;
    Ok(file)
}

/// The distance of a place from the line between two.
fn distance((x, y): Place, ((ax, ay), (bx, by)): (Place, Place)) -> f64 {
    let (dx, dy) = (bx - ax, by - ay);
    let length = dx * dx + dy * dy;
    let along = if length > 0.0 { ((x - ax) * dx + (y - ay) * dy) / length } else { 0.0 };
    let along = along.clamp(0.0, 1.0);
    (x - ax - along * dx).hypot(y - ay - along * dy)
}

impl Canvas {
    /// Covers this part of a pixel.
    fn cover(&mut self, x: usize, y: usize, colour: Colour, part: f64) {
        if x >= self.width || y >= self.height {
            return;
        }
        let pixel = &mut self.pixels[(y * self.width + x) * 3..][..3];
        for (old, new) in pixel.iter_mut().zip(colour) {
            let mixed = f64::from(*old) + (f64::from(new) - f64::from(*old)) * part;
            *old = u8::try_from(whole(mixed.round(), 255)).unwrap_or(255);
        }
    }

    fn line(&mut self, ends: (Place, Place), colour: Colour, width: f64) {
        let reach = width / 2.0 + 1.0;
        let span = |a: f64, b: f64, most| {
            whole(a.min(b) - reach, most)..whole(a.max(b) + reach + 1.0, most)
        };
        let ((ax, ay), (bx, by)) = ends;
        for y in span(ay, by, self.height) {
            for x in span(ax, bx, self.width) {
                let middle = (x as f64 + 0.5, y as f64 + 0.5);
                let part = (width / 2.0 + 0.5 - distance(middle, ends)).clamp(0.0, 1.0);
                if part > 0.0 {
                    self.cover(x, y, colour, part);
                }
            }
        }
    }

    fn text(&mut self, (x, y): Place, text: &str, anchor: Anchor) {
        let glyph = (font::WIDTH + 1) * ZOOM;
        let width = (text.chars().count() * glyph) as f64;
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let top = whole(y - (font::HEIGHT * ZOOM) as f64 / 2.0, self.height);
        let left = whole(left, self.width);
        for (i, letter) in text.chars().enumerate() {
            for (column, bits) in font::columns(letter).into_iter().enumerate() {
                for row in (0..8).filter(|row| bits >> row & 1 == 1) {
                    for (dx, dy) in (0..ZOOM * ZOOM).map(|at| (at % ZOOM, at / ZOOM)) {
                        let across = left + i * glyph + column * ZOOM + dx;
                        self.cover(across, top + row * ZOOM + dy, [60, 60, 60], 1.0);
                    }
                }
            }
        }
    }
}
