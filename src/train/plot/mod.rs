//! Curves of a training, drawn without a display or fonts of a system: an image `.png`, or a
//! drawing `.svg`.

mod chart;
mod font;
mod raster;
mod svg;

use std::path::Path;

use super::History;
use crate::format::{self, FileError};

/// Draws the loss and every metric over the epochs, of training and of validation, to a file `.png`
/// or `.svg`.
///
/// # Errors
/// If the name ends in neither, or the file cannot be written.
pub fn write(path: &Path, history: &History) -> Result<(), FileError> {
    let drawing = chart::draw(history);
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => format::write_text(path, &svg::text(&drawing)),
        Some("png") => {
            let bytes = raster::png(&drawing);
            let bytes = bytes.map_err(|e| FileError::content(path, e.to_string()))?;
            format::write_bytes(path, &bytes)
        }
        _ => Err(FileError::content(path, "curves are drawn to .png or .svg")),
    }
}

#[cfg(test)]
mod tests {
    use super::{chart, raster, svg, write};
    use crate::train::{Epoch, History, Logs};

    fn history(epochs: usize) -> History {
        let logs = |x: f64| Logs { rows: 1, loss: x, metrics: vec![("a<b".to_owned(), 1.0 - x)] };
        let epoch = |i: usize| {
            let loss = if i == 3 { f64::NAN } else { 1.0 / (i + 1) as f64 };
            Epoch {
                epoch: i as u64,
                training: logs(loss),
                validation: Some(logs(loss * 1.2)),
                ..Epoch::default()
            }
        };
        History { epochs: (0..epochs).map(epoch).collect() }
    }

    #[test]
    fn curves_are_drawn() {
        for epochs in [0, 1, 2, 7, 300] {
            let drawing = chart::draw(&history(epochs));
            let text = svg::text(&drawing);
            assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
            assert!(!text.contains("NaN") && !text.contains("a<b"));
            assert_eq!(text.contains("a&lt;b"), epochs > 0);
            let png = raster::png(&drawing).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut pixels).unwrap();
            assert_eq!((info.width, info.height), (720, if epochs > 0 { 600 } else { 300 }));
            let blue = pixels.chunks(3).filter(|p| *p == [31, 119, 180]).count();
            assert_eq!(blue > 20, epochs > 0, "{blue}");
        }
    }

    #[test]
    fn the_name_says_the_form() {
        let folder = tempfile::tempdir().unwrap();
        for (name, good) in [("a.png", true), ("a.svg", true), ("a.pdf", false), ("a", false)] {
            let path = folder.path().join(name);
            assert_eq!(write(&path, &history(3)).is_ok(), good);
            assert_eq!(path.exists(), good);
        }
    }
}
