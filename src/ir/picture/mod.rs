//! Pictures of a graph: devices as lanes, inputs above, outputs below, equal replicas folded.
//!
//! [`fold`] finds the replicas that are equal, [`blocks`] decides what the boxes are, [`layout`]
//! and [`route`] place them, [`svg`] and [`html`] write the file. Graphviz places those of
//! [`dot`]. [`chart`] is for pictures of numbers: memory and time.

pub(crate) mod axis;
mod blocks;
pub(crate) mod chart;
pub(super) mod dot;
mod drawn;
mod fold;
pub(crate) mod glyphs;
mod html;
mod layout;
mod route;
mod shapes;
mod svg;
mod training;

pub(crate) use self::blocks::Role;
use self::drawn::Picture;
#[cfg(test)]
pub(crate) use self::drawn::before_replication;
pub(crate) use self::drawn::{Claims, Level};
pub(crate) use self::svg::escaped;
use super::Graph;

/// The graph as a file of SVG, its equal replicas folded.
pub(crate) fn to_svg(graph: &Graph, level: Level) -> String {
    let picture = Picture::of(graph, level, true);
    svg::file(&picture)
}

/// The graph as a page of HTML with a script of its own: both levels, folded and unfolded.
pub(crate) fn to_html(graph: &Graph, level: Level, claims: &Claims) -> String {
    html::page(graph, level, claims)
}

/// What is wrong with a picture: boxes that touch or leave their lane, texts that leave their box.
#[cfg(test)]
pub(crate) fn faults(graph: &Graph, level: Level, folds: bool) -> Vec<String> {
    let Picture { layout, .. } = Picture::of(graph, level, folds);
    let mut faults = Vec::new();
    let inside = |inner: &shapes::Rect, outer: &shapes::Rect| {
        inner.x >= outer.x
            && inner.y >= outer.y
            && inner.x + inner.w <= outer.x + outer.w
            && inner.y + inner.h <= outer.y + outer.h
    };
    let apart = |a: &shapes::Rect, b: &shapes::Rect| {
        a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y
    };
    let whole = shapes::Rect { x: 0.0, y: 0.0, w: layout.width, h: layout.height };
    for (at, placed) in layout.boxes.iter().enumerate() {
        for (line, text) in placed.lines.iter().enumerate() {
            let size = if line == 0 { shapes::TITLE } else { shapes::DETAIL };
            let low = 15.0 + 13.0 * line as f64;
            if glyphs::width(text, size) > placed.rect.w || low > placed.rect.h {
                faults.push(format!("{text} leaves its box"));
            }
        }
        if !layout.grounds.iter().any(|ground| inside(&placed.rect, &ground.rect)) {
            faults.push(format!("{:?} leaves its lane", placed.lines));
        }
        for other in layout.boxes[at + 1..].iter().filter(|o| !apart(&placed.rect, &o.rect)) {
            faults.push(format!("{:?} and {:?} overlap", placed.lines, other.lines));
        }
    }
    for (at, ground) in layout.grounds.iter().enumerate() {
        let label = glyphs::width(&ground.title, shapes::TITLE)
            .max(glyphs::width(&ground.detail, shapes::DETAIL));
        if label + 10.0 > ground.rect.w || !inside(&ground.rect, &whole) {
            faults.push(format!("{} leaves its lane", ground.title));
        }
        if layout.grounds[at + 1..].iter().any(|other| !apart(&ground.rect, &other.rect)) {
            faults.push(format!("{} overlaps", ground.title));
        }
    }
    faults
}
