//! What is wrong with a picture, by its numbers.

use std::collections::BTreeMap;

use super::blocks::{Flow, Role};
use super::drawn::{Level, Picture, before_replication};
use super::glyphs;
use super::shapes::{DETAIL, Ground, Layout, Part, Rect, TITLE};
use super::svg::Head;
use super::titles::FEW;
use crate::ir::Graph;

/// The number of points of a bend that are looked at.
const POINTS: u32 = 16;

impl Rect {
    fn holds(&self, inner: &Self) -> bool {
        inner.x >= self.x
            && inner.y >= self.y
            && inner.x + inner.w <= self.x + self.w
            && inner.y + inner.h <= self.y + self.h
    }

    fn touches(&self, other: &Self) -> bool {
        self.x < other.x + other.w
            && other.x < self.x + self.w
            && self.y < other.y + other.h
            && other.y < self.y + self.h
    }
}

/// Boxes that touch or leave their lane, texts that leave their box, labels that leave their lane
/// or overlap a box or each other, a title or a legend that overlap or leave the file, and wires
/// that cross a box, a label, or the edge of the picture, or do not lead from the edge of the box
/// that gives the value to the edge of the box that takes it, or whose arrow does not point into
/// that box. By layer, also boxes of a lane that do not tell their layers apart.
pub(crate) fn faults(graph: &Graph, level: Level, folds: bool) -> Vec<String> {
    let picture = Picture::of(graph, level, folds);
    let layout = &picture.layout;
    let titles = match level {
        Level::Layers => of_titles(&picture),
        // Long names of values are cut.
        Level::Operators => Vec::new(),
    };
    let wires = [of_wires(layout), of_ends(layout), of_heads(layout)].concat();
    let texts = [of_labels(layout), of_head(&Head::of(&picture))].concat();
    [of_boxes(layout), of_grounds(layout), texts, wires, titles].concat()
}

fn of_titles(picture: &Picture<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen: BTreeMap<(Flow, &[String]), Vec<&str>> = BTreeMap::new();
    let boxes = picture.made.blocks.iter().zip(&picture.layout.boxes);
    for (block, placed) in boxes.filter(|(block, _)| block.role == Role::Compute) {
        let names: Vec<&str> = block.names.iter().map(|name| before_replication(name)).collect();
        let title = &placed.lines[..if names.len() > FEW { 1 } else { names.len() }];
        let first = seen.entry((block.flow(), title)).or_insert_with(|| names.clone());
        if *first != names {
            faults.push(format!("{title:?} stands for {first:?} and for {names:?}"));
        }
    }
    faults
}

fn whole(layout: &Layout) -> Rect {
    Rect { x: 0.0, y: 0.0, w: layout.width, h: layout.height }
}

fn of_boxes(layout: &Layout) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, placed) in layout.boxes.iter().enumerate() {
        for (line, text) in placed.lines.iter().enumerate() {
            let size = if line == 0 { TITLE } else { DETAIL };
            let low = 15.0 + 13.0 * line as f64;
            if glyphs::width(text, size) > placed.rect.w || low > placed.rect.h {
                faults.push(format!("{text} leaves its box"));
            }
        }
        if !layout.grounds.iter().any(|ground| ground.rect.holds(&placed.rect)) {
            faults.push(format!("{:?} leaves its lane", placed.lines));
        }
        for other in layout.boxes[at + 1..].iter().filter(|o| placed.rect.touches(&o.rect)) {
            faults.push(format!("{:?} and {:?} overlap", placed.lines, other.lines));
        }
    }
    faults
}

fn of_grounds(layout: &Layout) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, ground) in layout.grounds.iter().enumerate() {
        let leaves = |rect: &Rect| !ground.rect.holds(rect);
        if !whole(layout).holds(&ground.rect) || ground.label().any(|(_, rect, _)| leaves(&rect)) {
            faults.push(format!("{} leaves its lane", ground.title));
        }
        if layout.grounds[at + 1..].iter().any(|other| ground.rect.touches(&other.rect)) {
            faults.push(format!("{} overlaps", ground.title));
        }
    }
    faults
}

/// The labels of the lanes, a line each.
fn labels(layout: &Layout) -> Vec<(String, Rect)> {
    let labels = layout.grounds.iter().flat_map(Ground::label);
    labels.map(|(text, rect, _)| (text.to_owned(), rect)).collect()
}

fn boxes(layout: &Layout) -> impl Iterator<Item = (String, Rect)> {
    layout.boxes.iter().map(|placed| (placed.lines.join(", "), placed.rect))
}

/// Those of some texts that touch one behind them, or one of some others.
fn overlaps(texts: &[(String, Rect)], others: &[(String, Rect)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, (text, rect)) in texts.iter().enumerate() {
        // The lines of a label adjoin, and places are rounded.
        let own = smaller(*rect, 0.01);
        let behind = texts[at + 1..].iter().chain(others);
        let met = behind.filter(|(_, other)| own.touches(other));
        faults.extend(met.map(|(other, _)| format!("{text} and {other} overlap")));
    }
    faults
}

fn of_labels(layout: &Layout) -> Vec<String> {
    overlaps(&labels(layout), &boxes(layout).collect::<Vec<_>>())
}

fn of_head(head: &Head) -> Vec<String> {
    let parts = head.legend.iter().flat_map(|entry| {
        let (name, ..) = entry.role.look();
        [(format!("the colour of {name}"), entry.colour), (name.to_owned(), entry.name)]
    });
    let texts: Vec<_> = std::iter::once(head.title.clone()).chain(parts).collect();
    let leave = texts.iter().filter(|(_, rect)| !head.room().holds(rect));
    let leave = leave.map(|(text, _)| format!("{text} leaves the file"));
    leave.chain(overlaps(&texts, &[])).collect()
}

/// A rectangle that is so much smaller on each side.
fn smaller(Rect { x, y, w, h }: Rect, by: f64) -> Rect {
    Rect { x: x + by, y: y + by, w: w - 2.0 * by, h: h - 2.0 * by }
}

fn of_wires(layout: &Layout) -> Vec<String> {
    let mut faults = Vec::new();
    // Wires begin and end at the edge of a box.
    let boxes = boxes(layout).map(|(text, rect)| (text, smaller(rect, 1.0)));
    let obstacles: Vec<_> = boxes.chain(labels(layout)).collect();
    for wire in &layout.wires {
        let mut last = None;
        for part in wire.parts() {
            let count = if part.bend.is_none() { 1 } else { POINTS };
            for at in 0..count {
                let [t, next] = [at, at + 1].map(|at| f64::from(at) / f64::from(count));
                let (one, other) = (part.point(t), part.point(next));
                let rect = Rect {
                    x: one.0.min(other.0),
                    y: one.1.min(other.1),
                    w: (one.0 - other.0).abs(),
                    h: (one.1 - other.1).abs(),
                };
                let met = obstacles.iter().find(|(_, obstacle)| obstacle.touches(&rect));
                if let Some((text, _)) = met
                    && last != Some(text)
                {
                    let ends = [wire.from, wire.to].map(|at| layout.boxes[at].lines.join(", "));
                    faults.push(format!("the wire from {} to {} meets {text}", ends[0], ends[1]));
                    last = Some(text);
                }
                if !whole(layout).holds(&rect) {
                    faults.push(format!("the wire {} {} leaves the picture", wire.from, wire.to));
                }
            }
        }
    }
    faults
}

fn of_ends(layout: &Layout) -> Vec<String> {
    let mut faults = Vec::new();
    for wire in &layout.wires {
        let ends = [(wire.from, wire.points.first()), (wire.to, wire.points.last())];
        let meets = ends.map(|(at, point)| {
            let Rect { x, y, w, h } = layout.boxes[at].rect;
            point.is_some_and(|point| {
                let is_at = |edge: f64| (point.1 - edge).abs() < 0.5;
                x <= point.0 && point.0 <= x + w && (is_at(y) || is_at(y + h))
            })
        });
        if meets != [true, true] {
            let [from, to] = ends.map(|(at, _)| layout.boxes[at].lines.join(", "));
            faults.push(format!("the wire from {from} to {to} does not lead from box to box"));
        }
    }
    faults
}

fn of_heads(layout: &Layout) -> Vec<String> {
    let mut faults = Vec::new();
    for wire in &layout.wires {
        let Rect { y, h, .. } = layout.boxes[wire.to].rect;
        let is_outside = |barb: (f64, f64)| barb.1 < y || barb.1 > y + h;
        let last = wire.parts().last();
        let is_upright = last.is_some_and(|p| p.bend.is_some() || (p.from.0 - p.to.0).abs() < 0.5);
        let points = wire.head().is_some_and(|[left, tip, right]| {
            left.0 < tip.0 && tip.0 < right.0 && is_outside(left) && is_outside(right)
        });
        if !is_upright || !points {
            let ends = [wire.from, wire.to].map(|at| layout.boxes[at].lines.join(", "));
            faults.push(format!("the arrow from {} points past {}", ends[0], ends[1]));
        }
    }
    faults
}

impl Part {
    /// Its point at `t`, 0 at its beginning and 1 at its end.
    fn point(&self, t: f64) -> (f64, f64) {
        let ((x, y), (to_x, to_y)) = (self.from, self.to);
        let Some(middle) = self.bend else {
            return (x + (to_x - x) * t, y + (to_y - y) * t);
        };
        let cubic = |p: [f64; 4]| {
            let u = 1.0 - t;
            p[0] * u * u * u + 3.0 * p[1] * u * u * t + 3.0 * p[2] * u * t * t + p[3] * t * t * t
        };
        (cubic([x, x, to_x, to_x]), cubic([y, middle, middle, to_y]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::picture::shapes::{Placed, Wire};
    use crate::ir::picture::svg::Entry;

    /// A lane with two boxes beside each other, and this wire from the first to the second.
    fn with_wire(points: Vec<(f64, f64)>, square: bool) -> Layout {
        let placed = |x: f64, y: f64, name: &str| Placed {
            rect: Rect { x, y, w: 40.0, h: 22.0 },
            lines: vec![name.to_owned()],
            role: Role::Compute,
        };
        let whole = Rect { x: 0.0, y: 0.0, w: 400.0, h: 300.0 };
        let ground = Ground { rect: whole, title: "lane".to_owned(), detail: String::new() };
        Layout {
            boxes: vec![placed(100.0, 90.0, "one"), placed(300.0, 90.0, "two")],
            grounds: vec![ground],
            wires: vec![Wire { from: 0, to: 1, points, square }],
            width: 400.0,
            height: 300.0,
        }
    }

    /// A wire straight down, and one that bends, beside a box and a label.
    fn met(x: f64, square: bool) -> Vec<String> {
        let points = vec![(x, 0.0), (x + if square { 0.0 } else { 200.0 }, 200.0)];
        of_wires(&with_wire(points, square))
    }

    #[test]
    fn wires_that_lead_elsewhere_are_found() {
        let (one, two) = ((120.0, 112.0), (320.0, 90.0));
        let ways = |points: Vec<(f64, f64)>| of_ends(&with_wire(points, true)).len();
        assert_eq!(ways(vec![one, (200.0, 112.0), two]), 0);
        assert_eq!([vec![two, one], vec![one], vec![one, (320.0, 80.0)]].map(ways), [1, 1, 1]);
        assert_eq!([vec![], vec![(90.0, 112.0), two]].map(ways), [1, 1]);
    }

    #[test]
    fn arrows_that_point_past_their_box_are_found() {
        let (foot, low, top) = ((320.0, 112.0), (320.0, 140.0), (320.0, 90.0));
        let arrows = |points: Vec<(f64, f64)>| of_heads(&with_wire(points, true)).len();
        assert_eq!([vec![low, foot], vec![(320.0, 60.0), top]].map(arrows), [0, 0]);
        assert_eq!(of_heads(&with_wire(vec![(120.0, 140.0), foot], false)), [""; 0]);
        // A last part without a length has no direction.
        assert_eq!([vec![low, foot, foot], vec![(380.0, 112.0), foot]].map(arrows), [1, 1]);
    }

    #[test]
    fn wires_that_cross_are_found() {
        let crosses = |what: &str| vec![format!("the wire from one to two meets {what}")];
        assert_eq!(met(120.0, true), crosses("one"));
        assert_eq!(met(20.0, true), crosses("lane"));
        assert_eq!(met(200.0, true), [""; 0]);
        // In the middle it is between its ends.
        assert_eq!(met(20.0, false), [&crosses("lane")[..], &crosses("one")].concat());
        assert_eq!(met(130.0, false), [""; 0]);
        assert_eq!(met(500.0, true), ["the wire 0 1 leaves the picture"]);
    }

    #[test]
    fn labels_and_heads_that_overlap_are_found() {
        // The label of the lane is at its left, as high as two lines.
        let label_and_box = |x: f64, y: f64| {
            let mut layout = with_wire(Vec::new(), true);
            layout.boxes[0].rect = Rect { x, y, ..layout.boxes[0].rect };
            of_labels(&layout)
        };
        assert_eq!(label_and_box(10.0, 10.0), ["lane and one overlap"]);
        assert_eq!([label_and_box(100.0, 10.0), label_and_box(10.0, 34.0)], [[""; 0]; 2]);
        let mut layout = with_wire(Vec::new(), true);
        let (rect, title) = (layout.grounds[0].rect, layout.grounds[0].title.clone());
        layout.grounds.push(Ground { rect, title, detail: "all rows".to_owned() });
        assert_eq!(of_labels(&layout), ["lane and lane overlap"]);

        let rect = |x: f64, w: f64| Rect { x, y: 40.0, w, h: 14.0 };
        let head = |width: f64, x: f64| Head {
            width,
            title: ("title".to_owned(), Rect { x: 16.0, y: 12.0, w: 60.0, h: 20.0 }),
            legend: vec![Entry {
                role: Role::Input,
                colour: rect(16.0, 14.0),
                name: rect(x, 50.0),
            }],
        };
        assert_eq!(of_head(&head(100.0, 35.0)), [""; 0]);
        assert_eq!(of_head(&head(80.0, 35.0)), ["input leaves the file"]);
        assert_eq!(of_head(&head(60.0, 28.0)).len(), 3);
    }
}
