//! Curves of a training, drawn as SVG without a display or fonts of a system.

mod chart;
mod svg;

use std::path::Path;

use super::History;
use crate::format::{self, FileError};

/// Draws the loss and every metric over the epochs, of training and of validation, to an SVG file.
/// `of` names the model and the data.
///
/// # Errors
/// If the name does not end in `.svg`, or the file cannot be written.
pub(crate) fn write(path: &Path, of: &str, history: &History) -> Result<(), FileError> {
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err(FileError::content(path, "curves are written as .svg"));
    }
    format::write_text(path, &svg::text(&chart::draw(of, history)))
}

#[cfg(test)]
mod tests {
    use super::chart::{Anchor, FONT, Mark};
    use super::{chart, svg, write};
    use crate::ir::picture::glyphs::width;
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
            let drawing = chart::draw("m.fan on d<e.npz", &history(epochs));
            let text = svg::text(&drawing);
            assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
            assert!(!text.contains("NaN") && !text.contains("a<b"));
            assert_eq!(text.contains("a&lt;b"), epochs > 0);
            assert!(text.contains(">Loss and metrics "), "{text}");
            assert!(text.contains(">m.fan on d&lt;e.npz</text>"), "{text}");
        }
    }

    #[test]
    fn texts_have_room() {
        let mut long = history(12);
        for epoch in &mut long.epochs {
            let logs = [Some(&mut epoch.training), epoch.validation.as_mut()];
            for logs in logs.into_iter().flatten() {
                logs.metrics[0].0 = "w".repeat(300);
                logs.loss *= 1e9;
            }
        }
        for history in [history(0), history(1), history(40), long] {
            let drawing = chart::draw(&"m".repeat(300), &history);
            let boxes: Vec<(f64, f64, f64, &str)> = drawing
                .marks
                .iter()
                .filter_map(|mark| {
                    let Mark::Text { at: (x, y), text, anchor } = mark else { return None };
                    let wide = width(text, FONT);
                    let left = match anchor {
                        Anchor::Start => *x,
                        Anchor::Middle => x - wide / 2.0,
                        Anchor::End => x - wide,
                    };
                    Some((left, left + wide, *y, &**text))
                })
                .collect();
            for (at, (left, right, y, text)) in boxes.iter().enumerate() {
                assert!(*left >= 0.0 && *right <= drawing.width, "{text} leaves the drawing");
                for (from, to, other, near) in &boxes[at + 1..] {
                    let apart = right <= from || to <= left || (y - other).abs() >= FONT;
                    assert!(apart, "{text} and {near} overlap");
                }
            }
        }
    }

    #[test]
    fn the_name_says_the_form() {
        let folder = tempfile::tempdir().unwrap();
        for (name, good) in [("a.svg", true), ("a.png", false), ("a", false)] {
            let path = folder.path().join(name);
            assert_eq!(write(&path, "", &history(3)).is_ok(), good);
            assert_eq!(path.exists(), good);
        }
    }
}
