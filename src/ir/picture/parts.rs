//! Panels that are too wide for a file, in parts below each other.

use super::chart::{Bar, Chart, LEAST, MARGIN, Panel};

/// About how wide a file is at most: wider ones are not read when they are seen whole.
const WIDEST: f64 = 2400.0;

impl Chart {
    /// The chart with panels of which none is wider than a file.
    pub(super) fn continued(&self) -> Self {
        let room = (WIDEST - self.left() - 2.0 * MARGIN).max(LEAST);
        let panels = self.panels.iter().flat_map(|panel| panel.parts(room / self.scale)).collect();
        let (title, notes, legend) = (self.title.clone(), self.notes.clone(), self.legend.clone());
        Self { title, notes, legend, scale: self.scale, panels }
    }
}

impl Panel {
    /// Its parts, about equally long, none of which has a longer axis.
    fn parts(&self, length: f64) -> Vec<Self> {
        // Where bars are in steps, none is cut that has one.
        let in_steps = |length: f64, round: fn(f64) -> f64| {
            if self.least > 0.0 { round(length / self.least) * self.least } else { length }
        };
        let whole = self.to - self.from;
        let most = in_steps(length, f64::floor).max(self.least);
        // Rounding makes no further part.
        let count = (whole / most - 0.001).ceil().max(1.0);
        let length = in_steps(whole / count, f64::ceil);
        let mut parts = Vec::new();
        let mut from = self.from;
        while self.to - from > 1.001 * length {
            parts.push(self.part(from, from + length));
            from += length;
        }
        parts.push(self.part(from, self.to));
        parts
    }

    /// What it has between two places of its axis.
    fn part(&self, from: f64, to: f64) -> Self {
        let own = self.bars.iter().filter(|bar| bar.from < to && from < bar.to);
        let bars =
            own.map(|bar| Bar { from: bar.from.max(from), to: bar.to.min(to), ..bar.clone() });
        let is_here = |at: f64| from <= at && (at < to || to >= self.to);
        let more = if from > self.from { ", continued" } else { "" };
        Self {
            title: format!("{}{more}", self.title),
            from,
            to,
            bars: bars.collect(),
            mark: self.mark.clone().filter(|(at, _)| is_here(*at)),
            detail: self.detail.clone(),
            counts: self.counts.clone(),
            upwards: self.upwards.clone(),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::picture::Role;
    use crate::ir::picture::chart::Upwards;

    /// A chart of so many steps, each a bar of 30 pixels, and one bar over all of them.
    fn chart(steps: u32) -> Chart {
        let bar = |from: u32, to: u32, row: f64| Bar {
            from: f64::from(from),
            to: f64::from(to),
            low: row,
            high: row + 1.0,
            label: format!("bar {from}"),
            tells: format!("from {from} to {to}"),
            look: Role::Compute.look(),
        };
        let bars = (0..steps).map(|at| bar(at, at + 1, 0.0)).chain([bar(0, steps, 1.0)]).collect();
        let panel = Panel {
            title: "all".to_owned(),
            detail: String::new(),
            from: 0.0,
            to: f64::from(steps),
            least: 1.0,
            counts: "steps".to_owned(),
            upwards: Upwards::Rows(vec!["one".to_owned(), "two".to_owned()]),
            bars,
            mark: Some((f64::from(steps), "the end".to_owned())),
        };
        let (title, notes) = ("a chart".to_owned(), vec!["Of many words, each short. ".repeat(9)]);
        Chart { title, notes, legend: Vec::new(), scale: 30.0, panels: vec![panel] }
    }

    fn width(svg: &str) -> f64 {
        let (_, rest) = svg.split_once(" width=\"").unwrap();
        rest.split_once('"').unwrap().0.parse().unwrap()
    }

    #[test]
    fn wide_panels_of_a_file_go_on_below() {
        let (short, long) = (chart(20), chart(200));
        assert_eq!((short.continued().panels.len(), long.continued().panels.len()), (1, 3));
        assert!(width(&long.to_svg()) <= WIDEST && width(&long.to_html()) > 6000.0);
        let panels = long.continued().panels;
        let titles: Vec<&str> = panels.iter().map(|panel| &*panel.title).collect();
        assert_eq!(titles, ["all", "all, continued", "all, continued"]);
        let marks: Vec<bool> = panels.iter().map(|panel| panel.mark.is_some()).collect();
        assert_eq!(marks, [false, false, true]);
        // Every step is in one part, and what is longer in each.
        let bars: Vec<&Bar> = panels.iter().flat_map(|panel| &panel.bars).collect();
        assert_eq!(bars.len(), 200 + panels.len());
        let whole: f64 = bars.iter().map(|bar| bar.to - bar.from).sum();
        assert!((whole - 400.0).abs() < 1e-9, "{whole}");
        // No part is so short that its numbers overlap.
        for steps in [0, 1, 20, 76, 77, 78, 79, 155, 200] {
            assert_eq!(chart(steps).faults(), [""; 0], "{steps} steps");
        }
    }

    #[test]
    fn notes_are_told_whole() {
        let svg = chart(20).to_svg();
        assert!(svg.matches(">Of many words").count() < 3 && !svg.contains('…'), "{svg}");
        assert_eq!(svg.matches("short.").count(), 9);
    }
}
