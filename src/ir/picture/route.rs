//! Where lanes stand, and the ways of edges between the rows and around them.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{Band, Block, Blocks, Flow, Lane};
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
        let column = columns[&made.blocks[block].flow()];
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
    let places = Places { rows, made, boxes: &boxes, columns: &columns, heights: &heights };
    let wire = |edge: &(usize, usize)| {
        let square = tracks.get(edge).copied();
        let points = match square {
            Some((flow, track)) => places.around(edge.0, edge.1, columns[&flow].right, track),
            None => places.straight(edge.0, edge.1),
        };
        Wire { from: edge.0, to: edge.1, points, square: square.is_some() }
    };
    let wires = made.edges.iter().map(wire).collect();
    let grounds = grounds(rows, made, &columns, &heights, width, texts);
    Layout { boxes, grounds, wires, width, height: heights.end }
}

/// Where everything is but the edges.
struct Places<'a> {
    rows: &'a Ranked,
    made: &'a Blocks,
    boxes: &'a [Placed],
    columns: &'a BTreeMap<Flow, Column>,
    heights: &'a Heights,
}

impl Places<'_> {
    fn middle(&self, block: usize) -> f64 {
        self.boxes[block].rect.x + self.boxes[block].rect.w / 2.0
    }

    fn foot(&self, block: usize) -> f64 {
        self.boxes[block].rect.y + self.boxes[block].rect.h
    }

    /// The way of an edge between the boxes.
    fn straight(&self, from: usize, to: usize) -> Vec<(f64, f64)> {
        let (upper, lower) = self.made.ends(from, to);
        let mut points = vec![(self.middle(upper), self.foot(upper))];
        let column = self.columns[&self.made.blocks[lower].flow()];
        for (row, centre) in self.rows.wires.get(&(from, to)).into_iter().flatten() {
            let x = column.middle + centre;
            let top = self.heights.top[*row];
            points.extend([(x, top), (x, top + self.heights.height[*row])]);
        }
        points.push((self.middle(lower), self.boxes[lower].rect.y));
        points
    }

    /// The way of an edge on a track to the right of `right`.
    fn around(&self, from: usize, to: usize, right: f64, track: usize) -> Vec<(f64, f64)> {
        let x = right + SPACE + track as f64 * TRACK;
        // Lines across lanes are apart, too.
        let low = (track % 5) as f64 * 2.0 + GAP / 2.0 - 4.0;
        // Where a line begins or ends at a box, and where it turns.
        let below = |block: usize| {
            let row = self.rows.rank[block];
            (self.foot(block), self.heights.top[row] + self.heights.height[row] + low)
        };
        let above = |block: usize| {
            let top = self.boxes[block].rect.y;
            (top, top - GAP + low)
        };
        let is_up = |block: usize| self.made.blocks[block].up;
        let (start, out) = if is_up(from) { above(from) } else { below(from) };
        let (end, back) = if is_up(to) { below(to) } else { above(to) };
        let (first, last) = (self.middle(from), self.middle(to));
        vec![(first, start), (first, out), (x, out), (x, back), (last, back), (last, end)]
    }
}

/// Edges that share a track: those to one gradient, else each for itself.
struct Bus {
    flow: Flow,
    /// The rows that it passes.
    first: usize,
    last: usize,
    edges: Vec<(usize, usize)>,
}

/// The edges that go around the boxes, by the tracks that they need.
fn buses(rows: &Ranked, made: &Blocks) -> Vec<Bus> {
    let flows: BTreeSet<Flow> = made.blocks.iter().map(Block::flow).collect();
    let last = made.blocks.iter().map(Block::flow).max();
    let turns = made.blocks.iter().any(|block| block.up);
    let mut buses: BTreeMap<(Flow, usize, usize), Bus> = BTreeMap::new();
    for edge in &made.edges {
        let (upper, lower) = made.ends(edge.0, edge.1);
        let (from, to) = (&made.blocks[edge.0], &made.blocks[edge.1]);
        let is_far = rows.rank[lower] > rows.rank[upper] + 1 && !rows.wires.contains_key(edge);
        if from.up == to.up && !is_far {
            continue;
        }
        // What gradients take of the way down is between both.
        let between = Flow { lane: to.flow().lane, up: false };
        let across = Some(between).filter(|flow| to.up && !from.up && flows.contains(flow));
        let own = [across.unwrap_or(to.flow()), from.flow()];
        let flow = own.into_iter().find(|flow| flow.lane != Lane::All).or(last);
        let Some(flow) = flow else { continue };
        let (first, end) = (rows.rank[upper], rows.rank[lower]);
        let (first, end) = (first.min(end), end.max(first) + usize::from(to.up || from.up));
        let key = if turns { (flow, edge.1, 0) } else { (flow, edge.0, edge.1 + 1) };
        let bus = Bus { flow, first, last: end, edges: Vec::new() };
        let bus = buses.entry(key).or_insert(bus);
        (bus.first, bus.last) = (bus.first.min(first), bus.last.max(end));
        bus.edges.push(*edge);
    }
    let mut buses: Vec<Bus> = buses.into_values().collect();
    buses.sort_by_key(|bus| (bus.first, bus.last));
    buses
}

/// The flow and the track of each edge that goes around the boxes.
fn tracks(rows: &Ranked, made: &Blocks) -> BTreeMap<(usize, usize), (Flow, usize)> {
    let mut ends: BTreeMap<Flow, Vec<usize>> = BTreeMap::new();
    let mut tracks = BTreeMap::new();
    for bus in buses(rows, made) {
        let ends = ends.entry(bus.flow).or_default();
        let free = ends.iter().position(|end| *end <= bus.first);
        let track = match free {
            Some(track) => track,
            None if ends.len() < TRACKS => {
                ends.push(0);
                ends.len() - 1
            }
            // Where all are taken, edges share the last one.
            None => ends.len() - 1,
        };
        ends[track] = ends[track].max(bus.last);
        tracks.extend(bus.edges.into_iter().map(|edge| (edge, (bus.flow, track))));
    }
    tracks
}

/// The title of a column, and what is said of it.
fn label(flow: Flow, turns: bool, texts: &dyn Texts) -> (String, String) {
    let (title, detail) = texts.lane(flow.lane);
    let way = match (turns, flow.up) {
        (false, _) => "",
        (true, false) => " · forward ↓",
        (true, true) => " · gradients ↑",
    };
    (title + way, detail)
}

/// The lanes from left to right, and the width of the picture.
fn columns(
    rows: &Ranked,
    made: &Blocks,
    tracks: &BTreeMap<(usize, usize), (Flow, usize)>,
    texts: &dyn Texts,
) -> (BTreeMap<Flow, Column>, f64) {
    const ALL: Flow = Flow { lane: Lane::All, up: false };
    let turns = made.blocks.iter().any(|block| block.up);
    let mut extent: BTreeMap<Flow, (f64, f64)> = BTreeMap::new();
    for (at, block) in made.blocks.iter().enumerate() {
        let (from, to) = extent.entry(block.flow()).or_default();
        *from = from.min(rows.centre[at] - rows.sizes[at].0 / 2.0);
        *to = to.max(rows.centre[at] + rows.sizes[at].0 / 2.0);
    }
    for (edge, places) in &rows.wires {
        let (from, to) = extent.entry(made.blocks[edge.1].flow()).or_default();
        for (_, centre) in places {
            *from = from.min(centre - 4.0);
            *to = to.max(centre + 4.0);
        }
    }
    let mut columns = BTreeMap::new();
    let mut x = MARGIN;
    for (flow, (from, to)) in extent.iter().filter(|(flow, _)| **flow != ALL) {
        let (title, detail) = label(*flow, turns, texts);
        let label = glyphs::width(&title, TITLE).max(glyphs::width(&detail, DETAIL));
        let used = tracks.values().filter(|(of, _)| of == flow).map(|(_, track)| track + 1).max();
        // A lane without far edges has no tracks.
        let side = used.map_or(0.0, |used| used as f64 * TRACK);
        let inner = (to - from).max(label - side).max(80.0);
        let left = x + SPACE;
        let middle = left + (inner - (to - from)) / 2.0 - from;
        let end = left + inner + 2.0 * SPACE + side;
        columns.insert(*flow, Column { middle, right: left + inner, from: x, to: end });
        x = end + SPACE;
    }
    let (from, to) = extent.get(&ALL).copied().unwrap_or_default(); // No boxes, no extent.
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
    columns.insert(ALL, Column { middle, right: to, from, to });
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
    columns: &BTreeMap<Flow, Column>,
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
        let turns = columns.keys().any(|flow| flow.up);
        for (flow, column) in columns.iter().filter(|(flow, _)| flow.lane != Lane::All) {
            let rect = Rect { x: column.from, y, w: column.to - column.from, h };
            let (title, detail) = label(*flow, turns, texts);
            grounds.push(Ground { rect, title, detail });
        }
    }
    grounds
}
