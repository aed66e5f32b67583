//! Places for boxes: rows from top to bottom, lanes from left to right.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{Band, Block, Blocks, Flow, Role};
use super::shapes::{DETAIL, Layout, Ranked, SPACE, TITLE, Texts};
use super::training::RENEWAL;
use super::{glyphs, route};

/// The widest text of a box.
const TEXT: f64 = 190.0;
const PADDING: f64 = 8.0;
/// The widest row of a lane; more boxes go to further rows.
const ROW: f64 = 1100.0;
/// Edges over more rows go around the boxes.
const NEAR: usize = 5;

/// What stands in a row: a box, or an edge that passes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Block(usize),
    Pass(usize),
}

struct Rows<'a> {
    made: &'a Blocks,
    sizes: Vec<(f64, f64)>,
    /// The row of each box.
    rank: Vec<usize>,
    count: usize,
    /// The items of each row and lane, from left to right.
    items: BTreeMap<(usize, Flow), Vec<Item>>,
    /// The centres of boxes and of passing edges, from the middle of the lane.
    centre: Vec<f64>,
    passes: Vec<Pass>,
    /// What gives boxes their order before all else: of copies that the host takes, the first box
    /// that takes them, so that they stand as outputs do.
    goal: Vec<usize>,
}

struct Pass {
    edge: (usize, usize),
    row: usize,
    centre: f64,
    before: Item,
    after: Item,
}

/// Places the boxes.
pub(crate) fn layout(made: &Blocks, texts: &dyn Texts) -> Layout {
    let lines: Vec<Vec<String>> = made.blocks.iter().map(|block| shown(texts, block)).collect();
    let sizes = lines.iter().map(|lines| size(lines)).collect();
    let mut rows = Rows {
        made,
        sizes,
        rank: vec![0; made.blocks.len()],
        count: 0,
        items: BTreeMap::new(),
        centre: vec![0.0; made.blocks.len()],
        passes: Vec::new(),
        goal: goals(made),
    };
    rows.rank();
    rows.wrap();
    rows.fill();
    for down in [true, false, true, false, true] {
        rows.sweep(down);
    }
    route::finish(&rows.finished(), made, lines, texts)
}

/// The first box that takes a copy of the host; other boxes have no goal of their own.
fn goals(made: &Blocks) -> Vec<usize> {
    let mut goals = vec![0; made.blocks.len()];
    // The edges of a box are in the order of the boxes that they lead to.
    for (from, to) in made.edges.iter().rev() {
        if made.blocks[*from].band == Band::Returned {
            goals[*from] = *to;
        }
    }
    goals
}

/// The lines of a box, cut to fit.
fn shown(texts: &dyn Texts, block: &Block) -> Vec<String> {
    let lines = texts.lines(block).into_iter().enumerate();
    let size = |at| if at == 0 { TITLE } else { DETAIL };
    lines.map(|(at, line)| glyphs::fitted(&line, size(at), TEXT)).collect()
}

fn size(lines: &[String]) -> (f64, f64) {
    let widths = lines
        .iter()
        .enumerate()
        .map(|(at, line)| glyphs::width(line, if at == 0 { TITLE } else { DETAIL }));
    let below = lines.len().saturating_sub(1) as f64;
    (widths.fold(40.0, f64::max).ceil() + 2.0 * PADDING, 22.0 + 13.0 * below)
}

impl Rows<'_> {
    /// Gives every box a row below those it takes values of, and below the bands above; gradients
    /// get rows above those that they are computed from.
    fn rank(&mut self) {
        let before = self.made.before();
        let mut first = 0;
        for band in [Band::Given, Band::Divided, Band::Devices, Band::Returned, Band::Merged] {
            let of_band = |at: &usize| self.made.blocks[*at].band == band;
            let (up, own): (Vec<usize>, Vec<usize>) =
                (0..before.len()).filter(of_band).partition(|at| self.made.blocks[*at].up);
            self.rank_down(band, &own, &before, first);
            if !up.is_empty() {
                for at in &up {
                    self.rank[*at] = first;
                }
                self.rank_up(&up, &own);
            }
            // An empty band has no rows.
            first = own.iter().chain(&up).map(|at| self.rank[*at] + 1).max().unwrap_or(first);
        }
        let used: BTreeSet<usize> = self.rank.iter().copied().collect();
        let rows: BTreeMap<usize, usize> = used.into_iter().zip(0..).collect();
        self.rank.iter_mut().for_each(|row| *row = rows[row]);
        self.count = rows.len();
    }

    /// Rows for the boxes of a band whose values go down.
    fn rank_down(&mut self, band: Band, own: &[usize], before: &[Vec<usize>], first: usize) {
        let is_own = |at: usize| self.made.blocks[at].band == band && !self.made.blocks[at].up;
        let after = self.made.after();
        for at in own {
            let below = before[*at].iter().filter(|from| is_own(**from));
            // A box that takes nothing of its band is in the first row.
            self.rank[*at] = below.map(|from| self.rank[*from] + 1).max().unwrap_or(first);
        }
        // What takes nothing of its band is next to where it is used; beside gradients, all is.
        let turns = self.made.blocks.iter().any(|block| block.up);
        for at in own.iter().rev() {
            let is_first = before[*at].iter().all(|b| self.made.blocks[*b].band != band);
            let users = after[*at].iter().filter(|to| is_own(**to));
            if let (true, Some(row)) = (is_first || turns, users.map(|to| self.rank[*to]).min()) {
                self.rank[*at] = row.saturating_sub(1).max(self.rank[*at]);
            }
        }
    }

    /// Rows for gradients, and for what they are of, so that both are beside each other.
    fn rank_up(&mut self, up: &[usize], own: &[usize]) {
        let is_up = |at: usize| self.made.blocks[at].up;
        let of_band: BTreeSet<usize> = up.iter().chain(own).copied().collect();
        let edges = self
            .made
            .edges
            .iter()
            .filter(|(from, to)| of_band.contains(from) && of_band.contains(to));
        let (mut plain, mut back, mut across) = (Vec::new(), Vec::new(), Vec::new());
        for edge in edges {
            let (upper, lower) = self.made.ends(edge.0, edge.1);
            match (is_up(edge.0), is_up(edge.1)) {
                (false, false) => plain.push((upper, lower, 1)),
                (true, true) => back.push((upper, lower, 1)),
                (false, true) => across.push((upper, lower, 0)),
                (true, false) => {}
            }
        }
        // Of gradients the later edges are the upper ones.
        plain.extend(back.into_iter().rev());
        let pairs = self.pairs(up, own);
        let equal = pairs.iter().flat_map(|(one, other)| [(*one, *other, 0), (*other, *one, 0)]);
        let aligned = [plain.clone(), equal.collect()].concat();
        // Where pairs contradict each other, gradients are not above what they take.
        let found = apart(&self.rank, &aligned);
        let found = found.or_else(|| apart(&self.rank, &[plain, across].concat()));
        if let Some(found) = found {
            self.rank = found;
        }
        self.lower(up, own, &pairs);
    }

    /// Moves gradients of layers that are in no pair down to what they take, which is near their
    /// layer.
    fn lower(&mut self, up: &[usize], own: &[usize], pairs: &[(usize, usize)]) {
        let layers: BTreeSet<&String> =
            own.iter().flat_map(|at| &self.made.blocks[*at].names).collect();
        let fixed: BTreeSet<usize> = pairs.iter().map(|(_, up)| *up).collect();
        let before = self.made.before();
        for at in up.iter().filter(|at| !fixed.contains(at)) {
            let block = &self.made.blocks[*at];
            let is_of_layer = block.names.iter().any(|name| layers.contains(name));
            if block.role != Role::Compute || !is_of_layer {
                continue;
            }
            let below = before[*at].iter().filter(|from| self.made.blocks[**from].up);
            // What takes no gradient stays.
            let row = below.map(|from| self.rank[*from]).min().unwrap_or(0);
            self.rank[*at] = self.rank[*at].max(row.saturating_sub(1));
        }
    }

    /// The boxes of gradients with the boxes that they are of: those of one layer, if it has one of
    /// each.
    fn pairs(&self, up: &[usize], own: &[usize]) -> Vec<(usize, usize)> {
        let mut layers: BTreeMap<_, [Vec<usize>; 2]> = BTreeMap::new();
        for at in own.iter().chain(up) {
            let block = &self.made.blocks[*at];
            let is_layer = |name: &&String| block.role == Role::Compute && *name != RENEWAL;
            for name in block.names.iter().filter(is_layer) {
                let known = layers.entry((block.lane, name)).or_default();
                known[usize::from(block.up)].push(*at);
            }
        }
        let mut taken = BTreeSet::new();
        let mut pairs = Vec::new();
        for boxes in layers.values() {
            if let ([one], [other]) = (&boxes[0][..], &boxes[1][..])
                && !taken.contains(one)
                && !taken.contains(other)
            {
                taken.extend([*one, *other]);
                pairs.push((*one, *other));
            }
        }
        pairs
    }

    /// Makes several rows of those that are too wide.
    fn wrap(&mut self) {
        let mut used: BTreeMap<(usize, Flow), (f64, usize)> = BTreeMap::new();
        let mut part = vec![0; self.rank.len()];
        let mut parts = vec![1; self.count];
        for (at, part) in part.iter_mut().enumerate() {
            let row = self.rank[at];
            let (width, count) = used.entry((row, self.made.blocks[at].flow())).or_default();
            if *width + self.sizes[at].0 > ROW && *width > 0.0 {
                (*width, *count) = (0.0, *count + 1);
            }
            *width += self.sizes[at].0 + SPACE;
            *part = *count;
            parts[row] = parts[row].max(*count + 1);
        }
        let mut first = vec![0; self.count];
        let mut next = 0;
        for (row, count) in parts.iter().enumerate() {
            first[row] = next;
            next += count;
        }
        self.count = next;
        for (rank, part) in self.rank.iter_mut().zip(part) {
            *rank = first[*rank] + part;
        }
    }

    /// Puts boxes and the edges that pass into rows.
    fn fill(&mut self) {
        for at in 0..self.rank.len() {
            let key = (self.rank[at], self.made.blocks[at].flow());
            self.items.entry(key).or_default().push(Item::Block(at));
        }
        for edge in &self.made.edges {
            let (upper, lower) = self.made.ends(edge.0, edge.1);
            if !self.passes_rows(upper, lower) {
                continue;
            }
            let rows = self.rank[upper] + 1..self.rank[lower];
            let mut before = Item::Block(upper);
            for row in rows.clone() {
                let own = Item::Pass(self.passes.len());
                let last = row + 1 == rows.end;
                let next = Item::Pass(self.passes.len() + 1);
                let after = if last { Item::Block(lower) } else { next };
                self.passes.push(Pass { edge: *edge, row, centre: 0.0, before, after });
                self.items.entry((row, self.made.blocks[lower].flow())).or_default().push(own);
                before = own;
            }
        }
    }

    /// True for an edge over a few rows of one lane, which passes between the boxes.
    fn passes_rows(&self, upper: usize, lower: usize) -> bool {
        let (first, last) = (&self.made.blocks[upper], &self.made.blocks[lower]);
        let span = self.rank[lower].saturating_sub(self.rank[upper]);
        (2..=NEAR).contains(&span) && (first.band, first.flow()) == (last.band, last.flow())
    }

    fn width(&self, item: Item) -> f64 {
        match item {
            Item::Block(at) => self.sizes[at].0,
            Item::Pass(_) => 6.0,
        }
    }

    fn centre(&self, item: Item) -> f64 {
        match item {
            Item::Block(at) => self.centre[at],
            Item::Pass(at) => self.passes[at].centre,
        }
    }

    fn goal(&self, item: Item) -> usize {
        match item {
            Item::Block(at) => self.goal[at],
            Item::Pass(_) => 0,
        }
    }

    /// Orders every row by what its items are joined to above, or below, and moves them there.
    fn sweep(&mut self, down: bool) {
        let mut near: Vec<Vec<Item>> = vec![Vec::new(); self.rank.len()];
        for edge in &self.made.edges {
            let (upper, lower) = self.made.ends(edge.0, edge.1);
            let alike = self.made.blocks[upper].flow() == self.made.blocks[lower].flow();
            if alike && self.rank[lower] == self.rank[upper] + 1 {
                let (at, other) = if down { (lower, upper) } else { (upper, lower) };
                near[at].push(Item::Block(other));
            }
        }
        for (at, pass) in self.passes.iter().enumerate() {
            match (down, pass.before, pass.after) {
                (true, _, Item::Block(to)) => near[to].push(Item::Pass(at)),
                (false, Item::Block(from), _) => near[from].push(Item::Pass(at)),
                (true, _, Item::Pass(_)) | (false, Item::Pass(_), _) => {}
            }
        }
        let mut keys: Vec<_> = self.items.keys().copied().collect();
        if !down {
            keys.reverse();
        }
        for key in keys {
            let Some(items) = self.items.get(&key) else { continue };
            let mut wanted: Vec<(f64, Item)> = items
                .iter()
                .map(|item| {
                    let centre = match *item {
                        Item::Pass(at) if down => self.centre(self.passes[at].before),
                        Item::Pass(at) => self.centre(self.passes[at].after),
                        Item::Block(at) if near[at].is_empty() => self.centre[at],
                        Item::Block(at) => {
                            let sum: f64 = near[at].iter().map(|item| self.centre(*item)).sum();
                            sum / near[at].len() as f64
                        }
                    };
                    (centre, *item)
                })
                .collect();
            wanted.sort_by(|(left, one), (right, other)| {
                self.goal(*one).cmp(&self.goal(*other)).then(left.total_cmp(right))
            });
            let centres = self.spread(&wanted);
            for ((_, item), centre) in wanted.iter().zip(centres) {
                match *item {
                    Item::Block(at) => self.centre[at] = centre,
                    Item::Pass(at) => self.passes[at].centre = centre,
                }
            }
            self.items.insert(key, wanted.into_iter().map(|(_, item)| item).collect());
        }
    }

    /// Centres near the wanted ones, so far from each other that no items touch: items that would
    /// touch form a run, which is moved as one.
    fn spread(&self, wanted: &[(f64, Item)]) -> Vec<f64> {
        // Each run: its first item, the sum of where its left edge is wanted, its items, its width.
        let mut runs: Vec<(usize, f64, f64, f64)> = Vec::new();
        for (at, (centre, item)) in wanted.iter().enumerate() {
            let width = self.width(*item) + SPACE;
            let mut run = (at, centre - width / 2.0, 1.0, width);
            while let Some(last) = runs.last() {
                if last.1 / last.2 + last.3 <= run.1 / run.2 {
                    break;
                }
                // The left edge of a later item follows from that of the run.
                run = (last.0, last.1 + run.1 - last.3 * run.2, last.2 + run.2, last.3 + run.3);
                runs.pop();
            }
            runs.push(run);
        }
        let mut centres = Vec::with_capacity(wanted.len());
        for (at, run) in runs.iter().enumerate() {
            // The last run has all the rest.
            let end = runs.get(at + 1).map_or(wanted.len(), |next| next.0);
            let mut left = run.1 / run.2;
            for (_, item) in &wanted[run.0..end] {
                let width = self.width(*item) + SPACE;
                centres.push(left + width / 2.0);
                left += width;
            }
        }
        centres
    }

    /// What is needed to route the edges.
    fn finished(self) -> Ranked {
        let mut wires: BTreeMap<(usize, usize), Vec<(usize, f64)>> = BTreeMap::new();
        for pass in &self.passes {
            wires.entry(pass.edge).or_default().push((pass.row, pass.centre));
        }
        Ranked { sizes: self.sizes, rank: self.rank, count: self.count, centre: self.centre, wires }
    }
}

/// The most rounds in which rows are found.
const ROUNDS: usize = 400;

/// The first rows, none above those given, of which the second of two is so far below the first or
/// farther; none if that cannot be.
fn apart(rows: &[usize], distances: &[(usize, usize, usize)]) -> Option<Vec<usize>> {
    let mut rows = rows.to_vec();
    for _ in 0..ROUNDS {
        let mut is_done = true;
        for (upper, lower, distance) in distances {
            let least = rows[*upper] + distance;
            if rows[*lower] < least {
                (rows[*lower], is_done) = (least, false);
            }
        }
        if is_done {
            return Some(rows);
        }
    }
    None
}
