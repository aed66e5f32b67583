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
#[cfg(test)]
mod faults;
mod fold;
pub(crate) mod glyphs;
mod html;
mod layout;
mod parts;
mod route;
mod shapes;
mod svg;
mod titles;
mod training;

pub(crate) use self::blocks::Role;
use self::drawn::Picture;
#[cfg(test)]
pub(crate) use self::drawn::before_replication;
pub(crate) use self::drawn::{Claims, Level, title};
#[cfg(test)]
pub(crate) use self::faults::faults;
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
