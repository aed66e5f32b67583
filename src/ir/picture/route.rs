//! Where lanes stand, and the ways of edges between the rows and around them.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{Band, Blocks, Lane};
use super::glyphs;
use super::shapes::{
    DETAIL, GAP, Ground, HEAD, Layout, MARGIN, Placed, Ranked, Rect, SPACE, TITLE, TRACK, TRACKS,
    Texts, Wire,
};

/// A lane: its middle, where its boxes end, and where its ground begins and ends.
#[derive(Clone, Copy)]
struct Column {
    middle: f64,
    right: f64,
    from: f64,
    to: f64,
}

/// The top of each row and its height.
struct Heights {
    top: Vec<f64>,
    height: Vec<f64>,
    end: f64,
}

/// Places lanes beside each other and rows below each other, and routes the edges.
pub(super) fn finish(
    rows: &Ranked,
    made: &Blocks,
    lines: Vec<Vec<String>>,
    texts: &dyn Texts,
) -> Layout {
    let tracks = tracks(rows, made);
    let (columns, width) = columns(rows, made, &tracks, texts);
    let heights = heights(rows, made);
    let at = |block: usize| {
        let (w, h) = rows.sizes[block];
        let column = columns[&made.blocks[block].lane];
        Rect {
            x: column.middle + rows.centre[block] - w / 2.0,
            y: heights.top[rows.rank[block]],
            w,
            h,
        }
    };
    let boxes: Vec<Placed> = lines
        .into_iter()
        .enumerate()
        .map(|(block, lines)| Placed { rect: at(block), lines, role: made.blocks[block].role })
        .collect();
    let wire = |edge: &(usize, usize)| {
        let (from, to) = (boxes[edge.0].rect, boxes[edge.1].rect);
        let start = (from.x + from.w / 2.0, from.y + from.h);
        let end = (to.x + to.w / 2.0, to.y);
        let mut points = vec![start];
        let square = tracks.get(edge).copied();
        if let Some((lane, track)) = square {
            let shift = track as f64 * TRACK;
            let x = columns[&lane].right + SPACE + shift;
            // Lines across lanes are apart, too.
            let low = (track % 5) as f64 * 2.0 + GAP / 2.0 - 4.0;
            let row = rows.rank[edge.0];
            let out = heights.top[row] + heights.height[row] + low;
            let back = end.1 - GAP + low;
            points.extend([(start.0, out), (x, out), (x, back), (end.0, back)]);
        }
        let column = columns[&made.blocks[edge.1].lane];
        for (row, centre) in rows.wires.get(edge).into_iter().flatten() {
            let x = column.middle + centre;
            let top = heights.top[*row];
            points.extend([(x, top), (x, top + heights.height[*row])]);
        }
        points.push(end);
        Wire { from: edge.0, to: edge.1, points, square: square.is_some() }
    };
    let wires = made.edges.iter().map(wire).collect();
    let grounds = grounds(rows, made, &columns, &heights, width, texts);
    Layout { boxes, grounds, wires, width, height: heights.end }
}

/// The lane and the track of each edge that goes around the boxes.
fn tracks(rows: &Ranked, made: &Blocks) -> BTreeMap<(usize, usize), (Lane, usize)> {
    let mut ends: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
    let mut tracks = BTreeMap::new();
    let last = made.blocks.iter().map(|block| block.lane).max();
    let mut far: Vec<_> = made
        .edges
        .iter()
        .filter(|edge| rows.rank[edge.1] > rows.rank[edge.0] + 1 && !rows.wires.contains_key(edge))
        .collect();
    far.sort_by_key(|edge| (rows.rank[edge.0], rows.rank[edge.1]));
    for edge in far {
        let lanes = [made.blocks[edge.1].lane, made.blocks[edge.0].lane];
        let lane = lanes.into_iter().find(|lane| *lane != Lane::All).or(last);
        let Some(lane) = lane else { continue };
        let ends = ends.entry(lane).or_default();
        let free = ends.iter().position(|end| *end <= rows.rank[edge.0]);
        let track = match free {
            Some(track) => track,
            None if ends.len() < TRACKS => {
                ends.push(0);
                ends.len() - 1
            }
            // Where all are taken, edges share the last one.
            None => ends.len() - 1,
        };
        ends[track] = ends[track].max(rows.rank[edge.1]);
        tracks.insert(*edge, (lane, track));
    }
    tracks
}

/// The lanes from left to right, and the width of the picture.
fn columns(
    rows: &Ranked,
    made: &Blocks,
    tracks: &BTreeMap<(usize, usize), (Lane, usize)>,
    texts: &dyn Texts,
) -> (BTreeMap<Lane, Column>, f64) {
    let mut extent: BTreeMap<Lane, (f64, f64)> = BTreeMap::new();
    for (at, block) in made.blocks.iter().enumerate() {
        let (from, to) = extent.entry(block.lane).or_default();
        *from = from.min(rows.centre[at] - rows.sizes[at].0 / 2.0);
        *to = to.max(rows.centre[at] + rows.sizes[at].0 / 2.0);
    }
    for (edge, places) in &rows.wires {
        let (from, to) = extent.entry(made.blocks[edge.1].lane).or_default();
        for (_, centre) in places {
            *from = from.min(centre - 4.0);
            *to = to.max(centre + 4.0);
        }
    }
    let mut columns = BTreeMap::new();
    let mut x = MARGIN;
    for (lane, (from, to)) in extent.iter().filter(|(lane, _)| **lane != Lane::All) {
        let (title, detail) = texts.lane(*lane);
        let label = glyphs::width(&title, TITLE).max(glyphs::width(&detail, DETAIL));
        let used = tracks.values().filter(|(of, _)| of == lane).map(|(_, track)| track + 1).max();
        // A lane without far edges has no tracks.
        let side = used.map_or(0.0, |used| used as f64 * TRACK);
        let inner = (to - from).max(label - side).max(80.0);
        let left = x + SPACE;
        let middle = left + (inner - (to - from)) / 2.0 - from;
        let end = left + inner + 2.0 * SPACE + side;
        columns.insert(*lane, Column { middle, right: left + inner, from: x, to: end });
        x = end + SPACE;
    }
    let (from, to) = extent.get(&Lane::All).copied().unwrap_or_default(); // No boxes, no extent.
    let label =
        glyphs::width(&texts.host(true), TITLE).max(glyphs::width(&texts.host(false), TITLE));
    let needed = (to - from + 2.0 * SPACE).max(label + 2.0 * SPACE);
    let shift = ((needed - (x - SPACE - MARGIN)) / 2.0).max(0.0);
    for column in columns.values_mut() {
        column.middle += shift;
        column.right += shift;
        column.from += shift;
        column.to += shift;
    }
    let inner = (x - SPACE - MARGIN).max(needed);
    let middle = MARGIN + inner / 2.0 - f64::midpoint(from, to);
    let (from, to) = (MARGIN, MARGIN + inner);
    columns.insert(Lane::All, Column { middle, right: to, from, to });
    (columns, inner + 2.0 * MARGIN)
}

/// The part of the picture that a band belongs to: above the devices, among them, below.
fn part(band: Band) -> usize {
    match band {
        Band::Given | Band::Divided => 0,
        Band::Devices => 1,
        Band::Returned | Band::Merged => 2,
    }
}

fn heights(rows: &Ranked, made: &Blocks) -> Heights {
    let mut height = vec![0.0f64; rows.count];
    let mut parts = vec![0; rows.count];
    for (at, rank) in rows.rank.iter().enumerate() {
        height[*rank] = height[*rank].max(rows.sizes[at].1);
        parts[*rank] = part(made.blocks[at].band);
    }
    let mut y = MARGIN;
    let mut last = None;
    let mut top = Vec::with_capacity(rows.count);
    for (height, part) in height.iter().zip(&parts) {
        if last != Some(*part) {
            y += HEAD + if last.is_some() { GAP } else { 0.0 };
            last = Some(*part);
        }
        top.push(y);
        y += height + GAP;
    }
    Heights { top, height, end: y + MARGIN }
}

fn grounds(
    rows: &Ranked,
    made: &Blocks,
    columns: &BTreeMap<Lane, Column>,
    heights: &Heights,
    width: f64,
    texts: &dyn Texts,
) -> Vec<Ground> {
    let ranks = |wanted: usize| -> BTreeSet<usize> {
        let own = (0..rows.rank.len()).filter(|at| part(made.blocks[*at].band) == wanted);
        own.map(|at| rows.rank[at]).collect()
    };
    let mut grounds = Vec::new();
    for which in 0..3 {
        let ranks = ranks(which);
        let (Some(first), Some(last)) = (ranks.first(), ranks.last()) else { continue };
        let y = heights.top[*first] - HEAD;
        let h = heights.top[*last] + heights.height[*last] + GAP / 2.0 - y;
        if which != 1 {
            let rect = Rect { x: MARGIN, y, w: width - 2.0 * MARGIN, h };
            let title = texts.host(which == 0);
            grounds.push(Ground { rect, title, detail: String::new() });
            continue;
        }
        for (lane, column) in columns.iter().filter(|(lane, _)| **lane != Lane::All) {
            let rect = Rect { x: column.from, y, w: column.to - column.from, h };
            let (title, detail) = texts.lane(*lane);
            grounds.push(Ground { rect, title, detail });
        }
    }
    grounds
}
