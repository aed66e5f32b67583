//! Where lanes stand, and the ways of edges between the rows and around them.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{Band, Block, Blocks, Flow, Lane};
use super::glyphs;
use super::shapes::{
    DETAIL, GAP, Ground, HEAD, INDENT, LABEL, Layout, MARGIN, Placed, Ranked, Rect, SPACE, TITLE,
    TRACK, TRACKS, Texts, Wire,
};

/// A lane: its middle, where its boxes end, where its ground begins and ends, and its label.
#[derive(Clone, Copy)]
struct Column {
    middle: f64,
    right: f64,
    from: f64,
    to: f64,
    /// Where its label ends.
    label: f64,
}

/// The top of each row and its height.
struct Heights {
    top: Vec<f64>,
    height: Vec<f64>,
    end: f64,
}

impl Heights {
    fn foot(&self, row: usize) -> f64 {
        self.top[row] + self.height[row]
    }
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
    let grounds = grounds(rows, made, &columns, &heights, width, texts);
    let mut places = Places {
        grounds: &grounds,
        rows,
        made,
        boxes: &boxes,
        columns: &columns,
        heights: &heights,
        doors: BTreeMap::new(),
    };
    places.doors = places.doors(&tracks);
    let wire = |edge: &(usize, usize)| {
        let square = tracks.get(edge).copied();
        let mut points = match square {
            Some((flow, track)) => places.around(edge.0, edge.1, columns[&flow].right, track),
            None => places.straight(edge.0, edge.1),
        };
        // The highest box of a row ends where the row does.
        points.dedup();
        Wire { from: edge.0, to: edge.1, points, square: square.is_some() }
    };
    let wires = made.edges.iter().map(wire).collect();
    Layout { boxes, grounds, wires, width, height: heights.end }
}

/// Where everything is but the edges.
struct Places<'a> {
    grounds: &'a [Ground],
    rows: &'a Ranked,
    made: &'a Blocks,
    boxes: &'a [Placed],
    columns: &'a BTreeMap<Flow, Column>,
    heights: &'a Heights,
    /// Where edges between the boxes come into a part of the picture, beside its label.
    doors: BTreeMap<(usize, usize), f64>,
}

impl Places<'_> {
    fn middle(&self, block: usize) -> f64 {
        self.boxes[block].rect.x + self.boxes[block].rect.w / 2.0
    }

    fn foot(&self, block: usize) -> f64 {
        self.boxes[block].rect.y + self.boxes[block].rect.h
    }

    /// The doors of edges that do not go around: above the box, or else right of the label.
    fn doors(
        &self,
        tracks: &BTreeMap<(usize, usize), (Flow, usize)>,
    ) -> BTreeMap<(usize, usize), f64> {
        let mut doors = BTreeMap::new();
        let mut beside: BTreeMap<(usize, Flow), Vec<(usize, usize)>> = BTreeMap::new();
        for edge in self.made.edges.iter().filter(|edge| !tracks.contains_key(edge)) {
            let (upper, lower) = self.made.ends(edge.0, edge.1);
            let [upper, lower] = [upper, lower].map(|block| &self.made.blocks[block]);
            if part(upper.band) != part(lower.band) {
                beside.entry((part(lower.band), lower.flow())).or_default().push(*edge);
            }
        }
        for ((part, flow), edges) in beside {
            let ground = if part == 1 { flow } else { ALL };
            let Column { label, right, .. } = self.columns[&ground];
            let x = |edge: &(usize, usize)| self.middle(self.made.ends(edge.0, edge.1).1);
            let (above, mut right_of): (Vec<_>, Vec<_>) =
                edges.into_iter().partition(|edge| x(edge) > label);
            doors.extend(above.iter().map(|edge| (*edge, x(edge))));
            right_of.sort_by(|one, other| x(one).total_cmp(&x(other)));
            let step = ((right + SPACE - label) / (right_of.len() + 1) as f64).min(TRACK);
            doors
                .extend((1..).zip(right_of).map(|(at, edge)| (edge, label + step * f64::from(at))));
        }
        doors
    }

    /// The way of an edge between the boxes: upright beside boxes and labels, bent between rows.
    /// It ends at the box that takes the value, which is the upper one of two gradients.
    fn straight(&self, from: usize, to: usize) -> Vec<(f64, f64)> {
        let (upper, lower) = self.made.ends(from, to);
        let start = self.middle(upper);
        let mut points =
            vec![(start, self.foot(upper)), (start, self.heights.foot(self.rows.rank[upper]))];
        let column = self.columns[&self.made.blocks[lower].flow()];
        for (row, centre) in self.rows.wires.get(&(from, to)).into_iter().flatten() {
            let x = column.middle + centre;
            points.extend([(x, self.heights.top[*row]), (x, self.heights.foot(*row))]);
        }
        let end = self.boxes[lower].rect.y;
        if let Some(x) = self.doors.get(&(from, to)) {
            points.extend([(*x, end - HEAD), (*x, end - HEAD + LABEL)]);
        }
        points.push((self.middle(lower), end));
        if upper != from {
            points.reverse();
        }
        points
    }

    /// Where an upright line passes that is wanted at `x`. Tracks are beside the boxes and labels
    /// of their lane; what comes from the host, or goes there, passes its boxes, too.
    fn beside(&self, mut x: f64, top: f64, foot: f64, ends: [usize; 2]) -> f64 {
        if ends.iter().all(|block| part(self.made.blocks[*block].band) == 1) {
            return x;
        }
        let labels = self.grounds.iter().flat_map(Ground::label).map(|(_, rect, _)| rect);
        let all = self.boxes.iter().map(|placed| placed.rect).chain(labels);
        let mut met: Vec<Rect> = all.filter(|r| r.y < foot && top < r.y + r.h).collect();
        met.sort_by(|one, other| one.x.total_cmp(&other.x));
        for rect in met {
            if rect.x - TRACK / 2.0 < x && x < rect.x + rect.w + TRACK / 2.0 {
                x = rect.x + rect.w + TRACK;
            }
        }
        x
    }

    /// The way of an edge on a track to the right of `right`.
    fn around(&self, from: usize, to: usize, right: f64, track: usize) -> Vec<(f64, f64)> {
        let x = right + SPACE + track as f64 * TRACK;
        // Lines across lanes are apart, too.
        let low = (track % 5) as f64 * 2.0 + GAP / 2.0 - 4.0;
        // Where a line begins or ends at a box, and where it turns.
        let below = |block: usize| {
            let row = self.rows.rank[block];
            (self.foot(block), self.heights.foot(row) + low)
        };
        let above = |block: usize| {
            let top = self.boxes[block].rect.y;
            (top, top - GAP + low)
        };
        let is_up = |block: usize| self.made.blocks[block].up;
        let (start, out) = if is_up(from) { above(from) } else { below(from) };
        let (end, back) = if is_up(to) { below(to) } else { above(to) };
        let (first, last) = (self.middle(from), self.middle(to));
        let x = self.beside(x, out.min(back), out.max(back), [from, to]);
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
    // The shortest come first and get the inner tracks, so that lines nest and do not cross.
    buses.sort_by_key(|bus| (bus.last - bus.first, bus.first));
    buses
}

/// The flow and the track of each edge that goes around the boxes.
fn tracks(rows: &Ranked, made: &Blocks) -> BTreeMap<(usize, usize), (Flow, usize)> {
    let mut taken: BTreeMap<Flow, Vec<Vec<(usize, usize)>>> = BTreeMap::new();
    let mut tracks = BTreeMap::new();
    for bus in buses(rows, made) {
        let taken = taken.entry(bus.flow).or_default();
        let is_free = |spans: &Vec<(usize, usize)>| {
            spans.iter().all(|(first, last)| *last <= bus.first || bus.last <= *first)
        };
        let track = match taken.iter().position(is_free) {
            Some(track) => track,
            None if taken.len() < TRACKS => {
                taken.push(Vec::new());
                taken.len() - 1
            }
            // Where all are taken, edges share the last one.
            None => taken.len() - 1,
        };
        taken[track].push((bus.first, bus.last));
        tracks.extend(bus.edges.into_iter().map(|edge| (edge, (bus.flow, track))));
    }
    tracks
}

/// What is across all lanes.
const ALL: Flow = Flow { lane: Lane::All, up: false };

/// The title of a column, and what is said of it. A lane that stands once has no way in its title.
fn label(flow: Flow, is_twice: bool, texts: &dyn Texts) -> (String, String) {
    let (title, detail) = texts.lane(flow.lane);
    let way = match (is_twice, flow.up) {
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
    let host =
        glyphs::width(&texts.host(true), TITLE).max(glyphs::width(&texts.host(false), TITLE));
    let mut columns = BTreeMap::new();
    let mut x = MARGIN;
    for (flow, (from, to)) in extent.iter().filter(|(flow, _)| **flow != ALL) {
        let is_twice = extent.contains_key(&Flow { up: !flow.up, ..*flow });
        let (title, detail) = label(*flow, is_twice, texts);
        let label = glyphs::width(&title, TITLE).max(glyphs::width(&detail, DETAIL));
        let used = tracks.values().filter(|(of, _)| of == flow).map(|(_, track)| track + 1).max();
        // A lane without far edges has no tracks.
        let side = used.map_or(0.0, |used| used as f64 * TRACK);
        let inner = (to - from).max(label).max(host);
        let left = x + SPACE;
        let middle = left + (inner - (to - from)) / 2.0 - from;
        let end = left + inner + 2.0 * SPACE + side;
        let label = x + INDENT + label + TRACK;
        columns.insert(*flow, Column { middle, right: left + inner, from: x, to: end, label });
        x = end + SPACE;
    }
    let (from, to) = extent.get(&ALL).copied().unwrap_or_default(); // No boxes, no extent.
    let needed = (to - from + 2.0 * SPACE).max(host + 2.0 * SPACE);
    let shift = ((needed - (x - SPACE - MARGIN)) / 2.0).max(0.0);
    for column in columns.values_mut() {
        column.middle += shift;
        column.right += shift;
        column.from += shift;
        column.to += shift;
        column.label += shift;
    }
    let inner = (x - SPACE - MARGIN).max(needed);
    let middle = MARGIN + inner / 2.0 - f64::midpoint(from, to);
    let (from, to) = (MARGIN, MARGIN + inner);
    let label = MARGIN + INDENT + host + TRACK;
    columns.insert(ALL, Column { middle, right: to, from, to, label });
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

/// The room above the first row of a part. No line comes to the first part from above.
fn head(part: usize) -> f64 {
    if part == 0 { LABEL } else { HEAD }
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
            y += head(*part) + if last.is_some() { GAP } else { 0.0 };
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
        let y = heights.top[*first] - head(which);
        let h = heights.foot(*last) + GAP / 2.0 - y;
        if which != 1 {
            let rect = Rect { x: MARGIN, y, w: width - 2.0 * MARGIN, h };
            let title = texts.host(which == 0);
            grounds.push(Ground { rect, title, detail: String::new() });
            continue;
        }
        for (flow, column) in columns.iter().filter(|(flow, _)| flow.lane != Lane::All) {
            let rect = Rect { x: column.from, y, w: column.to - column.from, h };
            let is_twice = columns.contains_key(&Flow { up: !flow.up, ..*flow });
            let (title, detail) = label(*flow, is_twice, texts);
            grounds.push(Ground { rect, title, detail });
        }
    }
    grounds
}
