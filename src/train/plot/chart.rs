//! Charts: panels with axes, curves and names, as lines and texts.

use crate::ir::picture::axis::{label, step, ticks};
use crate::ir::picture::glyphs::{fitted, width};
use crate::train::history::History;
use crate::train::monitor::Monitor;

/// Width and height of a panel, in pixels.
const PANEL: (f64, f64) = (720.0, 300.0);
/// The margins between the edges of a panel and its axes: left, right, top, bottom.
const EDGES: (f64, f64, f64, f64) = (80.0, 20.0, 40.0, 45.0);
/// The height of a line of the title.
const TITLE: f64 = 20.0;
/// The space above and below the title.
const AROUND: f64 = 8.0;
/// The space between an axis and its numbers.
const BESIDE: f64 = 8.0;
/// The size of the font.
pub(super) const FONT: f64 = 13.0;

/// Red, green and blue.
pub(super) type Colour = [u8; 3];

const INK: Colour = [60, 60, 60];
const GRID: Colour = [225, 225, 225];
const TRAINING: Colour = [31, 119, 180];
const VALIDATION: Colour = [255, 127, 14];

/// A place, in pixels from the left and from the top.
pub(super) type Coordinate = (f64, f64);

/// The anchor of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Something drawn.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mark {
    /// A line through places.
    Line { places: Vec<Coordinate>, colour: Colour, width: f64 },
    /// A text whose middle has the height of a place.
    Text { at: Coordinate, text: String, anchor: Anchor },
}

/// A drawing.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drawing {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) marks: Vec<Mark>,
}

/// A number of every epoch, with the name of what it is of.
struct Curve {
    name: &'static str,
    colour: Colour,
    /// Epochs from 1 with numbers that are finite, in pieces: one ends where an epoch has none.
    pieces: Vec<Vec<Coordinate>>,
}

/// Draws a history of what `of` names: a panel for the loss, and one for each metric.
pub(super) fn draw(of: &str, history: &History) -> Drawing {
    let first = history.epochs.first();
    let metrics = first.iter().flat_map(|e| e.training.metrics.iter().map(|(name, _)| &**name));
    let names: Vec<&str> = std::iter::once("loss").chain(metrics).collect();
    let title = match (&history.epochs[..], first) {
        ([.., last], Some(first)) if last.epoch > first.epoch => {
            format!("Loss and metrics of epochs {} to {}", first.epoch + 1, last.epoch + 1)
        }
        (_, Some(first)) => format!("Loss and metrics of epoch {}", first.epoch + 1),
        (_, None) => "Loss and metrics before the first epoch".to_owned(),
    };
    let mut top = AROUND;
    let mut marks = Vec::new();
    // Names of files may be long.
    for text in [fitted(of, FONT, PANEL.0 - 2.0 * AROUND), title] {
        let at = (PANEL.0 / 2.0, top + TITLE / 2.0);
        marks.push(Mark::Text { at, text, anchor: Anchor::Middle });
        top += TITLE;
    }
    for (i, name) in names.iter().enumerate() {
        let curves = [
            curve(history, name, "training", TRAINING),
            curve(history, &format!("val_{name}"), "validation", VALIDATION),
        ];
        panel(&mut marks, top + PANEL.1 * i as f64, name, &curves);
    }
    Drawing { width: PANEL.0, height: top + PANEL.1 * names.len() as f64, marks }
}

fn curve(history: &History, number: &str, name: &'static str, colour: Colour) -> Curve {
    let finite = |number: Option<f64>| number.filter(|x| x.is_finite());
    let all: Vec<(f64, Option<f64>)> = history
        .epochs
        .iter()
        .map(|epoch| (epoch.epoch as f64 + 1.0, finite(epoch.get(number))))
        .collect();
    let pieces = all.split(|(_, y)| y.is_none());
    let pieces = pieces.map(|piece| piece.iter().filter_map(|(x, y)| Some((*x, (*y)?))).collect());
    Curve { name, colour, pieces: pieces.filter(|piece: &Vec<_>| !piece.is_empty()).collect() }
}

/// The least and the largest of some numbers. Equal ones lie in the middle of a range whose length
/// `around` gives for their size.
fn range(values: impl Iterator<Item = f64>, around: impl Fn(f64) -> f64) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if low > high {
        return (0.0, 1.0);
    }
    let size = low.abs().max(high.abs());
    if high - low > 1e-9 * size {
        return (low, high);
    }
    let apart = around(size);
    (low - apart / 2.0, low + apart / 2.0)
}

/// The range that an axis shows, with ticks at its ends, and how far these are apart. It begins at
/// 0 where that is as near as the largest number is far from the least.
fn shown([low, high]: [f64; 2], count: f64) -> ((f64, f64), f64) {
    let low = if low > 0.0 && low < high / 2.0 { 0.0 } else { low };
    let up = step(high - low, count);
    (((low / up).floor() * up, (high / up).ceil() * up), up)
}

/// The axis of the numbers of a panel: that of a share is the whole from 0 to 1, so that a small
/// change looks small.
fn upright(title: &str, values: impl Iterator<Item = f64> + Clone) -> ((f64, f64), f64) {
    const TICKS: f64 = 6.0;
    // The part of its value that an axis shows around a series that is constant.
    const AROUND_ONE: f64 = 0.05;
    let around = |size: f64| if size < 1e-300 { 1.0 } else { AROUND_ONE * size };
    let (least, most) = range(values.clone(), around);
    let is_share = Monitor::new(title).more && values.into_iter().all(|x| (0.0..=1.0).contains(&x));
    shown(if is_share { [0.0, 1.0] } else { [least, most] }, TICKS)
}

/// Two strokes across an axis near its lower end, and what they mean.
fn interrupted(marks: &mut Vec<Mark>, (left, lower): Coordinate) {
    for up in [8.0, 13.0] {
        let places = vec![(left - 5.0, lower - up + 3.0), (left + 5.0, lower - up - 3.0)];
        marks.push(Mark::Line { places, colour: INK, width: 1.5 });
    }
    let text = "// the axis does not begin at 0".to_owned();
    marks.push(Mark::Text { at: (left, lower + 32.0), text, anchor: Anchor::Start });
}

/// Where an axis upwards is, whose labels have room to the left of it.
fn left_edge<'a>(labels: impl Iterator<Item = &'a str>) -> f64 {
    labels.map(|label| width(label, FONT) + BESIDE + AROUND).fold(EDGES.0, f64::max)
}

fn panel(marks: &mut Vec<Mark>, top: f64, title: &str, curves: &[Curve]) {
    let all = || curves.iter().flat_map(|curve| curve.pieces.iter().flatten());
    let x_range = range(all().map(|(x, _)| *x), |_| 1.0);
    let (y_range, up) = upright(title, all().map(|(_, y)| *y));
    let numbers: Vec<(f64, String)> =
        ticks(y_range.0, y_range.1, up).into_iter().map(|y| (y, label(y, up))).collect();
    let (left, right) = (left_edge(numbers.iter().map(|(_, label)| &**label)), PANEL.0 - EDGES.1);
    let (upper, lower) = (top + EDGES.2, top + PANEL.1 - EDGES.3);
    let part = |value: f64, (low, high): (f64, f64)| (value - low) / (high - low);
    let at_x = |x: f64| left + (right - left) * part(x, x_range);
    let at_y = |y: f64| lower - (lower - upper) * part(y, y_range);
    let text = |at, text: String, anchor| Mark::Text { at, text, anchor };
    let line = |from, to, colour| Mark::Line { places: vec![from, to], colour, width: 1.0 };
    let across = step(x_range.1 - x_range.0, 10.0).max(1.0);
    let mut epochs = ticks(x_range.0, x_range.1, across);
    // The first epoch has its number, too.
    if epochs.first().is_some_and(|first| first - x_range.0 > across / 2.0) {
        epochs.insert(0, x_range.0);
    }
    for x in epochs {
        marks.push(line((at_x(x), upper), (at_x(x), lower), GRID));
        marks.push(text((at_x(x), lower + 14.0), label(x, across), Anchor::Middle));
    }
    for (y, number) in numbers {
        marks.push(line((left, at_y(y)), (right, at_y(y)), GRID));
        marks.push(text((left - BESIDE, at_y(y)), number, Anchor::End));
    }
    marks.push(line((left, upper), (left, lower), INK));
    marks.push(line((left, lower), (right, lower), INK));
    marks.push(text(
        (f64::midpoint(left, right), lower + 32.0),
        "epoch".to_owned(),
        Anchor::Middle,
    ));
    if y_range.0 > 0.0 || y_range.1 < 0.0 {
        interrupted(marks, (left, lower));
    }
    let title_ends = legend(marks, (right, top + 20.0), curves);
    // The name of a metric may be long.
    let title = fitted(title, FONT, title_ends - left);
    marks.push(text((left, top + 20.0), title, Anchor::Start));
    for curve in curves {
        for piece in &curve.pieces {
            let mut places: Vec<Coordinate> =
                piece.iter().map(|(x, y)| (at_x(*x), at_y(*y))).collect();
            // One epoch alone has no length.
            if let [(x, y)] = places[..] {
                places = vec![((x - 5.0).max(left), y), ((x + 5.0).min(right), y)];
            }
            marks.push(Mark::Line { places, colour: curve.colour, width: 2.0 });
        }
    }
}

/// The names of curves beside pieces of their lines, up to a place on the right; how far to the
/// left they reach.
fn legend(marks: &mut Vec<Mark>, (mut right, y): Coordinate, curves: &[Curve]) -> f64 {
    for curve in curves.iter().rev().filter(|curve| !curve.pieces.is_empty()) {
        let text = curve.name.to_owned();
        marks.push(Mark::Text { at: (right, y), text, anchor: Anchor::End });
        right -= width(curve.name, FONT) + 26.0;
        let places = vec![(right, y), (right + 20.0, y)];
        marks.push(Mark::Line { places, colour: curve.colour, width: 2.0 });
        right -= 20.0;
    }
    right
}

#[cfg(test)]
mod tests {
    use super::{Mark, TRAINING, draw, range, upright};
    use crate::train::{Epoch, History, Logs};

    #[test]
    fn an_axis_has_a_length() {
        assert_eq!(range([].into_iter(), |_| 1.0), (0.0, 1.0));
        assert_eq!(range([3.0].into_iter(), |_| 1.0), (2.5, 3.5));
        assert_eq!(range([3.0, 3.5].into_iter(), |_| 1.0), (3.0, 3.5));
    }

    #[test]
    fn an_axis_of_a_constant_shows_what_is_near() {
        for (value, most) in [(2.4, 0.25), (0.0, 1.5), (-3e-7, 3e-8), (5e6, 5e5)] {
            let ((low, high), step) = upright("loss", [value; 3].into_iter());
            assert!(low < value && value < high && high - low <= most, "{low} {high}");
            assert!((2.5..=8.5).contains(&((high - low) / step)), "{low} {high} {step}");
        }
    }

    /// A history of these losses and accuracies.
    fn history(losses: &[f64], accuracies: &[f64]) -> History {
        let epochs = (0..).zip(losses.iter().zip(accuracies)).map(|(epoch, (loss, accuracy))| {
            let metrics = vec![("accuracy".to_owned(), *accuracy)];
            let training = Logs { rows: 1, loss: *loss, metrics };
            Epoch { epoch, training, ..Epoch::default() }
        });
        History { epochs: epochs.collect() }
    }

    fn texts(history: &History) -> Vec<String> {
        let marks = draw("m", history).marks.into_iter();
        let text = |mark| match mark {
            Mark::Text { text, .. } => Some(text),
            Mark::Line { .. } => None,
        };
        marks.filter_map(text).collect()
    }

    #[test]
    fn a_share_is_drawn_as_one_of_the_whole() {
        for name in ["accuracy", "val_accuracy", "head_top_5_accuracy", "auc_2"] {
            assert_eq!(upright(name, [0.075, 0.083].into_iter()).0, (0.0, 1.0), "{name}");
        }
        let (low, high) = upright("cosine_similarity", [-0.5, 0.5].into_iter()).0;
        assert!((low + 0.6).abs() < 1e-9 && (high - 0.6).abs() < 1e-9, "{low} {high}");
        let has_mark = |losses: &[f64]| {
            let texts = texts(&history(losses, &[0.9, 0.9]));
            let marks = texts.iter().filter(|text| text.starts_with("// "));
            marks.count()
        };
        // An axis of others that leaves 0 out says so.
        assert_eq!(
            [has_mark(&[2.0, 2.1]), has_mark(&[0.1, 2.1]), has_mark(&[-2.0, -1.5])],
            [1, 0, 1]
        );
    }

    #[test]
    fn an_epoch_without_a_number_ends_a_line() {
        let losses = [3.0, 2.0, f64::NAN, 1.0, f64::INFINITY, 0.5, 0.4];
        let drawn = draw("m", &history(&losses, &[0.5; 7])).marks;
        let lengths = |marks: &[Mark]| -> Vec<usize> {
            let line = |mark: &Mark| match mark {
                Mark::Line { places, colour: TRAINING, .. } => Some(places.len()),
                Mark::Line { .. } | Mark::Text { .. } => None,
            };
            marks.iter().filter_map(line).collect()
        };
        // The first line of a panel is that of its legend.
        assert_eq!(lengths(&drawn), [2, 2, 2, 2, 2, 7]);
    }
}
