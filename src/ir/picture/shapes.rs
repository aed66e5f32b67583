//! The parts of a picture with their places, before it is written in a language.

use std::collections::BTreeMap;

use super::blocks::{Block, Lane, Role};
use super::glyphs;

/// The name of a colour, the colour of an area, and that of its border.
pub(crate) type Look = (&'static str, &'static str, &'static str);

/// The font sizes of headings, of titles and of what is below them.
pub(super) const HEADING: f64 = 16.0;
pub(crate) const TITLE: f64 = 12.0;
pub(crate) const DETAIL: f64 = 10.0;
/// The distance between boxes of a row, and between rows.
pub(super) const SPACE: f64 = 14.0;
pub(super) const GAP: f64 = 30.0;
/// The room of a lane's label at its top, and what it is left of it.
pub(super) const LABEL: f64 = 34.0;
pub(super) const INDENT: f64 = 10.0;
/// The room above the first row of a lane: below the label lines may bend.
pub(super) const HEAD: f64 = LABEL + GAP;
/// The room around the lanes.
pub(super) const MARGIN: f64 = 16.0;
/// The distance of edges beside each other, and how many there are at most.
pub(super) const TRACK: f64 = 6.0;
pub(super) const TRACKS: usize = 12;

/// The size of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Heading,
    Title,
    Detail,
}

impl Class {
    pub(super) fn size(self) -> f64 {
        match self {
            Self::Heading => HEADING,
            Self::Title => TITLE,
            Self::Detail => DETAIL,
        }
    }

    /// The width of a text; a heading is bold.
    pub(super) fn width(self, text: &str) -> f64 {
        glyphs::width(text, self.size()) * self.weight()
    }

    /// A text that is at most so wide.
    pub(super) fn fitted(self, text: &str, limit: f64) -> String {
        glyphs::fitted(text, self.size(), limit / self.weight())
    }

    /// How much wider its letters are than others of their size.
    fn weight(self) -> f64 {
        match self {
            Self::Heading => 1.15,
            Self::Title | Self::Detail => 1.0,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Heading => "h",
            Self::Title => "t",
            Self::Detail => "d",
        }
    }
}

/// A rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rect {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) w: f64,
    pub(crate) h: f64,
}

/// A box with its lines of text, the first the title.
pub(crate) struct Placed {
    pub(crate) rect: Rect,
    pub(crate) lines: Vec<String>,
    pub(crate) role: Role,
}

/// The ground behind the boxes of a device or of the host.
pub(crate) struct Ground {
    pub(crate) rect: Rect,
    pub(crate) title: String,
    pub(crate) detail: String,
}

impl Ground {
    /// The lines of its label: where each is, and its font size.
    pub(crate) fn label(&self) -> impl Iterator<Item = (&str, Rect, f64)> {
        let lines = [(&*self.title, 16.0, TITLE), (&*self.detail, 29.0, DETAIL)];
        lines.into_iter().filter(|(text, ..)| !text.is_empty()).map(|(text, low, size)| {
            let y = self.rect.y + low - size;
            let (x, w) = (self.rect.x + INDENT, glyphs::width(text, size));
            (text, Rect { x, y, w, h: size + 3.0 }, size)
        })
    }
}

/// A line from box to box through these points; it bends where it is not `square`.
pub(crate) struct Wire {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) square: bool,
}

/// A part of a wire, from point to point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) from: (f64, f64),
    pub(crate) to: (f64, f64),
    /// The height of its middle, where it bends: then it leaves and arrives upright.
    pub(crate) bend: Option<f64>,
}

impl Wire {
    /// Its parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        self.points.windows(2).filter_map(|ends| {
            let [from, to] = *ends else { return None };
            let is_line = self.square || (from.0 - to.0).abs() < 0.5;
            Some(Part { from, to, bend: (!is_line).then(|| f64::midpoint(from.1, to.1)) })
        })
    }

    /// The head of its arrow: the left end, the tip and the right end. A wire arrives upright.
    pub(crate) fn head(&self) -> Option<[(f64, f64); 3]> {
        const LONG: f64 = 5.0;
        const WIDE: f64 = 3.0;
        let Part { from, to: (x, y), .. } = self.parts().last()?;
        let back = y - LONG * (y - from.1).signum();
        Some([(x - WIDE, back), (x, y), (x + WIDE, back)])
    }
}

/// A picture, before it is written in a language.
pub(crate) struct Layout {
    pub(crate) boxes: Vec<Placed>,
    pub(crate) grounds: Vec<Ground>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// The texts of a picture.
pub(crate) trait Texts {
    /// The lines of a box, the first its title.
    fn lines(&self, block: &Block) -> Vec<String>;
    /// The title of a lane, and what is said of it.
    fn lane(&self, lane: Lane) -> (String, String);
    /// The title of what stands above or below the devices.
    fn host(&self, above: bool) -> String;
}

/// Boxes in rows.
pub(super) struct Ranked {
    pub(super) sizes: Vec<(f64, f64)>,
    pub(super) rank: Vec<usize>,
    pub(super) count: usize,
    /// From the middle of the lane.
    pub(super) centre: Vec<f64>,
    /// The rows that near edges pass, and where.
    pub(super) wires: BTreeMap<(usize, usize), Vec<(usize, f64)>>,
}
