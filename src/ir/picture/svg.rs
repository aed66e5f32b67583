//! A picture in the language of SVG.

use std::fmt::Write as _;

use super::blocks::Role;
use super::drawn::Picture;
use super::shapes::{
    Class, DETAIL, Ground, HEADING, Layout, MARGIN, Part, Placed, Rect, TITLE, Wire,
};

/// The height of the title and the legend.
const TOP: f64 = 64.0;

/// A text that XML may have.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// What stands above the drawing of a file.
pub(super) struct Head {
    /// The whole width of the file.
    pub(super) width: f64,
    pub(super) title: (String, Rect),
    /// The roles that the picture has, with their colours and names.
    pub(super) legend: Vec<Entry>,
}

/// A role in a legend: the room of its colour, and that of its name.
pub(super) struct Entry {
    pub(super) role: Role,
    pub(super) colour: Rect,
    pub(super) name: Rect,
}

impl Head {
    pub(super) fn of(picture: &Picture<'_>) -> Self {
        let mut legend = Vec::new();
        let mut x = MARGIN;
        let used = |role: &Role| picture.made.blocks.iter().any(|block| block.role == *role);
        for role in Role::ALL.into_iter().filter(used) {
            let (colour, w) = (14.0, Class::Detail.width(role.look().0));
            legend.push(Entry {
                role,
                colour: Rect { x, y: 42.0, w: colour, h: colour },
                name: Rect { x: x + colour + 5.0, y: 53.0 - DETAIL, w, h: DETAIL + 3.0 },
            });
            x += colour + 5.0 + w + MARGIN;
        }
        let width = picture.layout.width.max(x);
        let title = Class::Heading.fitted(&picture.title(), width - 2.0 * MARGIN);
        let w = Class::Heading.width(&title);
        let room = Rect { x: MARGIN, y: 28.0 - HEADING, w, h: HEADING + 4.0 };
        Self { width, title: (title, room), legend }
    }

    /// The room that all of it may take.
    #[cfg(test)]
    pub(super) fn room(&self) -> Rect {
        Rect { x: 0.0, y: 0.0, w: self.width, h: TOP }
    }

    fn draw(&self, out: &mut String) {
        let (title, room) = (escaped(&self.title.0), &self.title.1);
        let (x, y) = (room.x, room.y + HEADING);
        push(out, format_args!("<text x=\"{x}\" y=\"{y}\" class=\"h\">{title}</text>"));
        for Entry { role, colour, name: place } in &self.legend {
            let (name, ..) = role.look();
            push(
                out,
                format_args!(
                    "<rect class=\"{name}\" x=\"{:.1}\" y=\"{}\" width=\"{}\" height=\"{}\" \
                     rx=\"3\"/><text class=\"d\" x=\"{:.1}\" y=\"{}\">{name}</text>",
                    colour.x,
                    colour.y,
                    colour.w,
                    colour.h,
                    place.x,
                    place.y + DETAIL
                ),
            );
        }
    }
}

/// A file of its own, with a title and a legend.
pub(super) fn file(picture: &Picture<'_>) -> String {
    let head = Head::of(picture);
    let (w, h) = (head.width.ceil(), (picture.layout.height + TOP).ceil());
    let mut out = String::new();
    push(
        &mut out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\">"
        ),
    );
    push(&mut out, format_args!("<style>{}</style>", style()));
    push(&mut out, format_args!("<rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>"));
    head.draw(&mut out);
    let shift = ((head.width - picture.layout.width) / 2.0).max(0.0);
    push(&mut out, format_args!("<g transform=\"translate({shift:.1} {TOP})\">"));
    out.push_str(&drawing(&picture.layout));
    out.push_str("</g>\n</svg>\n");
    out
}

/// The colours and fonts.
pub(super) fn style() -> String {
    let mut out = format!(
        "text{{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#1a202c}}\
         .h{{font-size:{HEADING}px;font-weight:600}}.t{{font-size:{TITLE}px}}\
         .d{{font-size:{DETAIL}px;fill:#5a6577}}.g{{fill:#f6f8fb;stroke:#d5dce6}}\
         .w{{fill:none;stroke:#8a96a8;stroke-width:1.2}}"
    );
    for role in Role::ALL {
        let (name, fill, stroke) = role.look();
        // Writing to a `String` cannot fail.
        let _ = write!(out, ".{name}{{fill:{fill};stroke:{stroke}}}");
    }
    out + ".b .output~text{fill:#ffffff}"
}

/// The lanes, lines and boxes.
pub(super) fn drawing(layout: &Layout) -> String {
    let mut out = String::new();
    for ground in &layout.grounds {
        let Rect { x, y, w, h } = ground.rect;
        push(
            &mut out,
            format_args!(
                "<rect class=\"g\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" \
                 rx=\"6\"/>"
            ),
        );
    }
    for wire in &layout.wires {
        draw_wire(&mut out, wire);
    }
    for ground in &layout.grounds {
        draw_label(&mut out, ground);
    }
    for (at, placed) in layout.boxes.iter().enumerate() {
        draw_box(&mut out, at, placed);
    }
    out
}

fn draw_label(out: &mut String, ground: &Ground) {
    for (text, Rect { x, y, .. }, size) in ground.label() {
        // The classes have the sizes.
        let class = if size >= TITLE { "t" } else { "d" };
        let (low, text) = (y + size, escaped(text));
        push(
            out,
            format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{low:.1}\">{text}</text>"),
        );
    }
}

fn draw_wire(out: &mut String, wire: &Wire) {
    let Some((x, y)) = wire.points.first() else { return };
    let mut path = format!("M{x:.1} {y:.1}");
    for Part { from, to: (x, y), bend } in wire.parts() {
        // Writing to a `String` cannot fail.
        let _ = match bend {
            None => write!(path, "L{x:.1} {y:.1}"),
            Some(middle) => {
                write!(path, "C{:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}", from.0)
            }
        };
    }
    if let Some([left, tip, right]) = wire.head() {
        let ends = [('M', left), ('L', tip), ('L', right)];
        path.extend(ends.map(|(to, (x, y))| format!("{to}{x:.1} {y:.1}")));
    }
    push(
        out,
        format_args!(
            "<path class=\"w\" data-f=\"{}\" data-t=\"{}\" d=\"{path}\"/>",
            wire.from, wire.to
        ),
    );
}

fn draw_box(out: &mut String, at: usize, placed: &Placed) {
    let Rect { x, y, w, h } = placed.rect;
    let (name, ..) = placed.role.look();
    let radius = match placed.role {
        Role::Input | Role::Output => 11.0,
        Role::Compute | Role::Slice | Role::Copy | Role::Collective | Role::Merge => 4.0,
    };
    push(
        out,
        format_args!(
            "<g class=\"b\" data-i=\"{at}\"><rect class=\"{name}\" x=\"{x:.1}\" y=\"{y:.1}\" \
         width=\"{w:.1}\" height=\"{h:.1}\" rx=\"{radius}\"/>"
        ),
    );
    for (line, text) in placed.lines.iter().enumerate() {
        let class = if line == 0 { "t" } else { "d" };
        let baseline = y + 15.0 + 13.0 * line as f64;
        push(
            out,
            format_args!(
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{baseline:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                x + w / 2.0,
                escaped(text)
            ),
        );
    }
    out.push_str("</g>\n");
}
