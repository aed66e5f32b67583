//! Charts: panels one below the other, with axes and bars, placed before they are written.

use std::fmt::Write as _;

use super::axis::{self, Unit};
use super::glyphs;
use super::html::FRAME;
pub(crate) use super::shapes::Look;
use super::shapes::{Class, DETAIL, HEADING, Rect, TITLE};
use super::svg::{escaped, push};

/// Zooms and moves a chart in a page.
const SCRIPT: &str = include_str!("chart.js");

/// The room around everything, and between panels.
pub(super) const MARGIN: f64 = 16.0;
/// The room of a line of text.
const LINE: f64 = 16.0;
/// The room above the bars of a panel: its title, what is said of it, and its mark.
const HEAD: f64 = 3.0 * LINE;
/// The room below them: numbers, and what they count.
const FOOT: f64 = 2.0 * LINE;
/// The least width of a panel, in pixels.
pub(super) const LEAST: f64 = 640.0;
/// The height of a row.
const ROW: f64 = 24.0;
/// The height of a panel with an axis upwards.
const HEIGHT: f64 = 320.0;
/// The least size of a bar that has a label.
const LABELLED: (f64, f64) = (34.0, 13.0);
/// The least letters of a label that is not whole: of fewer no name is known.
const LETTERS: usize = 6;

/// A chart.
#[derive(Clone)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What it shows, a line each or more.
    pub(crate) notes: Vec<String>,
    /// The colours that have a meaning.
    pub(crate) legend: Vec<Look>,
    /// Pixels for one on the axes to the right.
    pub(crate) scale: f64,
    pub(crate) panels: Vec<Panel>,
}

/// A panel: bars over an axis to the right.
#[derive(Clone)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) detail: String,
    /// Where its axis to the right begins and ends, in its unit.
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// The least distance of the numbers on it.
    pub(crate) least: f64,
    /// What this axis counts.
    pub(crate) counts: String,
    pub(crate) upwards: Upwards,
    pub(crate) bars: Vec<Bar>,
    /// A place on the axis to the right, and what is there.
    pub(crate) mark: Option<(f64, String)>,
}

/// What a panel has from its bottom to its top.
#[derive(Clone)]
pub(crate) enum Upwards {
    /// A size from 0, in a unit.
    Size(f64, Unit),
    /// Rows of these names, the first at the top.
    Rows(Vec<String>),
}

/// A bar, in the numbers of the axes; its top is below its bottom in rows.
#[derive(Clone)]
pub(crate) struct Bar {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) label: String,
    /// What is told of it when it is pointed at.
    pub(crate) tells: String,
    pub(crate) look: Look,
}

/// A text with the room that it takes.
struct Text {
    rect: Rect,
    words: String,
    class: Class,
    anchor: &'static str,
}

/// A line upwards or to the right: a rectangle without a height or a width.
struct Line {
    rect: Rect,
    class: &'static str,
}

/// A bar in its place.
struct Placed {
    rect: Rect,
    label: Option<Text>,
    tells: String,
    look: Look,
}

/// A chart with everything in its place.
struct Drawn {
    width: f64,
    height: f64,
    texts: Vec<Text>,
    /// What the bars stand on.
    grounds: Vec<Rect>,
    /// The lines of the grid, below the bars.
    lines: Vec<Line>,
    /// The lines of marks, above them.
    marks: Vec<Line>,
    bars: Vec<Placed>,
    /// The places of the legend's colours.
    legend: Vec<(Rect, Look)>,
}

impl Chart {
    /// The chart as a file of SVG, which nothing zooms: wide panels go on below.
    pub(crate) fn to_svg(&self) -> String {
        self.continued().drawn().text()
    }

    /// The chart as a page of HTML that zooms, and needs nothing else.
    pub(crate) fn to_html(&self) -> String {
        let (title, svg) = (escaped(&self.title), self.drawn().text());
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>{title}</title>\n\
             <style>html,body{{height:100%;margin:0;overflow:hidden}}\
             body{{display:flex;flex-direction:column}}\
             svg{{width:100%;flex:1;min-height:0;cursor:grab}}\
             #map{{flex:none;height:96px;cursor:pointer;border-top:1px solid #d5dce6}}\
             #map text{{display:none}}\
             #seen{{fill:#3f4a5c;fill-opacity:.12;stroke:none}}\
             p{{flex:none;margin:0;padding:4px 16px;font:12px 'DejaVu Sans',Verdana,sans-serif;\
             color:#3f4a5c}}</style></head>\n\
             <body>\n{svg}<p>Point at a bar. Drag to move, turn the wheel to zoom, double-click to \
             go back.</p>\n<script>{FRAME}{SCRIPT}</script>\n</body></html>\n"
        )
    }

    /// The width of the panels, without what is to their left.
    fn inner(&self) -> f64 {
        let lengths = self.panels.iter().map(|panel| (panel.to - panel.from) * self.scale);
        lengths.fold(LEAST, f64::max)
    }

    /// The room to the left of the panels.
    pub(super) fn left(&self) -> f64 {
        self.panels.iter().map(Panel::left).fold(0.0, f64::max) + MARGIN + 6.0
    }

    fn drawn(&self) -> Drawn {
        let left = self.left();
        let width = left + self.inner() + 2.0 * MARGIN;
        let mut drawn = Drawn {
            width: width.ceil(),
            height: MARGIN,
            texts: Vec::new(),
            grounds: Vec::new(),
            lines: Vec::new(),
            marks: Vec::new(),
            bars: Vec::new(),
            legend: Vec::new(),
        };
        drawn.line(&self.title, Class::Heading);
        drawn.height += 4.0;
        let limit = drawn.width - 2.0 * MARGIN;
        for line in self.notes.iter().flat_map(|note| glyphs::wrapped(note, DETAIL, limit)) {
            drawn.line(&line, Class::Detail);
        }
        drawn.legend(&self.legend);
        for panel in &self.panels {
            drawn.panel(panel, left, self.scale);
        }
        drawn.height = (drawn.height + MARGIN).ceil();
        drawn
    }
}

impl Panel {
    /// The widest text to the left of its bars.
    fn left(&self) -> f64 {
        let texts: Vec<String> = match &self.upwards {
            Upwards::Size(most, unit) => {
                sizes(*most, *unit).into_iter().map(|(_, text)| text).collect()
            }
            Upwards::Rows(names) => names.clone(),
        };
        texts.iter().map(|text| glyphs::width(text, DETAIL)).fold(0.0, f64::max)
    }
}

/// The marks of a size with their texts.
fn sizes(most: f64, (name, of): Unit) -> Vec<(f64, String)> {
    let step = axis::step(most / of, 5.0);
    let ticks = axis::ticks(0.0, most / of, step).into_iter();
    ticks.map(|at| (at * of, format!("{} {name}", axis::label(at, step)))).collect()
}

impl Drawn {
    /// Adds a line of text over the whole width.
    fn line(&mut self, text: &str, class: Class) {
        let text = class.fitted(text, self.width - 2.0 * MARGIN);
        let rect = Rect { x: MARGIN, y: self.height, w: class.width(&text), h: class.size() + 3.0 };
        self.height += rect.h + 1.0;
        self.texts.push(Text { rect, words: text, class, anchor: "start" });
    }

    fn legend(&mut self, looks: &[Look]) {
        let mut x = MARGIN;
        let y = self.height + 2.0;
        for look in looks {
            let w = glyphs::width(look.0, DETAIL);
            self.legend.push((Rect { x, y, w: 12.0, h: 12.0 }, *look));
            let rect = Rect { x: x + 17.0, y, w, h: DETAIL + 2.0 };
            let text = look.0.to_owned();
            self.texts.push(Text { rect, words: text, class: Class::Detail, anchor: "start" });
            x += 17.0 + w + 14.0;
        }
        self.height += if looks.is_empty() { 0.0 } else { LINE };
    }

    fn panel(&mut self, panel: &Panel, left: f64, scale: f64) {
        let top = self.height + MARGIN + HEAD;
        let (height, most) = match &panel.upwards {
            Upwards::Size(most, _) => (HEIGHT, *most),
            Upwards::Rows(names) => (ROW * names.len() as f64, names.len() as f64),
        };
        let ground =
            Rect { x: left, y: top, w: ((panel.to - panel.from) * scale).max(40.0), h: height };
        self.head(panel, &ground);
        self.grounds.push(ground);
        let across = |x: f64| ground.x + (x - panel.from) * scale;
        let high = |y: f64| match &panel.upwards {
            Upwards::Size(..) => ground.y + ground.h - ground.h * y / most,
            Upwards::Rows(_) => ground.y + ground.h * y / most,
        };
        self.left(panel, &ground, &high);
        self.below(panel, &ground, &across);
        let mark = panel.mark.as_ref().map(|(at, _)| across(*at));
        for bar in &panel.bars {
            let (x, y) = (across(bar.from), high(bar.low).min(high(bar.high)));
            let (w, h) = (across(bar.to) - x, (high(bar.low) - high(bar.high)).abs());
            let rect = Rect { x, y, w, h };
            let (tells, look) = (bar.tells.clone(), bar.look);
            let label = label(&bar.label, &beside(&rect, mark));
            self.bars.push(Placed { rect, label, tells, look });
        }
        if let Some((at, text)) = &panel.mark {
            let x = across(*at);
            let rect = Rect { x, y: ground.y, w: 0.0, h: ground.h };
            self.marks.push(Line { rect, class: "m" });
            let text = glyphs::fitted(text, DETAIL, self.width - ground.x - MARGIN);
            let w = glyphs::width(&text, DETAIL);
            let most = (self.width - MARGIN - w).max(ground.x);
            let rect = Rect { x: x.min(most), y: ground.y - LINE, w, h: DETAIL + 2.0 };
            self.texts.push(Text { rect, words: text, class: Class::Detail, anchor: "start" });
        }
        self.height = ground.y + ground.h + FOOT;
    }

    /// The title of a panel, and what is said of it.
    fn head(&mut self, panel: &Panel, ground: &Rect) {
        let lines = [(Class::Title, &panel.title), (Class::Detail, &panel.detail)];
        for (at, (class, text)) in lines.into_iter().enumerate() {
            let text = class.fitted(text, self.width - ground.x - MARGIN);
            let rect = Rect {
                x: ground.x,
                y: ground.y - HEAD + LINE * at as f64,
                w: class.width(&text),
                h: class.size() + 2.0,
            };
            self.texts.push(Text { rect, words: text, class, anchor: "start" });
        }
    }

    /// What is to the left of the bars: sizes, or the names of rows.
    fn left(&mut self, panel: &Panel, ground: &Rect, high: &dyn Fn(f64) -> f64) {
        // Where a line of the grid is, and a text with its middle.
        let marks: Vec<(f64, f64, String)> = match &panel.upwards {
            Upwards::Size(most, unit) => {
                let sizes = sizes(*most, *unit).into_iter();
                sizes.map(|(at, text)| (high(at), high(at), text)).collect()
            }
            Upwards::Rows(names) => {
                let rows = names.iter().enumerate().map(|(at, name)| (at as f64, name.clone()));
                rows.map(|(at, name)| (high(at), high(at + 0.5), name)).collect()
            }
        };
        for (y, middle, text) in marks {
            let rect = Rect { x: ground.x, y, w: ground.w, h: 0.0 };
            self.lines.push(Line { rect, class: "l" });
            let w = glyphs::width(&text, DETAIL);
            let rect = Rect { x: ground.x - 6.0 - w, y: middle - 6.0, w, h: 12.0 };
            self.texts.push(Text { rect, words: text, class: Class::Detail, anchor: "end" });
        }
    }

    /// The numbers below the bars, and what they count.
    fn below(&mut self, panel: &Panel, ground: &Rect, across: &dyn Fn(f64) -> f64) {
        // Numbers are 70 pixels apart or more, which is wider than any of them.
        let step = axis::step(panel.to - panel.from, (ground.w / 70.0).clamp(1.0, 20.0));
        let step = step.max(panel.least);
        let y = ground.y + ground.h + 3.0;
        for at in axis::ticks(panel.from, panel.to, step) {
            let text = axis::label(at, step);
            let w = glyphs::width(&text, DETAIL);
            let rect = Rect { x: across(at) - w / 2.0, y, w, h: DETAIL + 2.0 };
            let line = Rect { x: across(at), y: ground.y, w: 0.0, h: ground.h };
            self.lines.push(Line { rect: line, class: "l" });
            self.texts.push(Text { rect, words: text, class: Class::Detail, anchor: "middle" });
        }
        let text = glyphs::fitted(&panel.counts, DETAIL, self.width - ground.x - MARGIN);
        let w = glyphs::width(&text, DETAIL);
        let rect = Rect { x: ground.x, y: y + LINE - 2.0, w, h: DETAIL + 2.0 };
        self.texts.push(Text { rect, words: text, class: Class::Detail, anchor: "start" });
    }

    fn text(&self) -> String {
        let (w, h) = (self.width, self.height);
        let mut out = String::new();
        push(
            &mut out,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
                 viewBox=\"0 0 {w} {h}\">"
            ),
        );
        push(&mut out, format_args!("<style>{}</style>", self.style()));
        push(&mut out, format_args!("<rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>"));
        for ground in &self.grounds {
            push(&mut out, format_args!("<rect class=\"g\" {}/>", Places(ground)));
        }
        self.lines.iter().for_each(|line| line.write(&mut out));
        for (rect, look) in &self.legend {
            push(&mut out, format_args!("<rect class=\"{}\" {} rx=\"3\"/>", look.0, Places(rect)));
        }
        for bar in &self.bars {
            let (tells, places) = (escaped(&bar.tells), Places(&bar.rect));
            push(
                &mut out,
                format_args!("<g><title>{tells}</title><rect class=\"{}\" {places}/>", bar.look.0),
            );
            if let Some(label) = &bar.label {
                label.write(&mut out);
            }
            out.push_str("</g>\n");
        }
        self.marks.iter().for_each(|line| line.write(&mut out));
        self.texts.iter().for_each(|text| text.write(&mut out));
        out.push_str("</svg>\n");
        out
    }

    /// The colours and fonts.
    fn style(&self) -> String {
        let mut out = format!(
            "text{{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#1a202c}}\
             .h{{font-size:{HEADING}px;font-weight:600}}.t{{font-size:{TITLE}px}}\
             .d{{font-size:{DETAIL}px;fill:#3f4a5c}}.g{{fill:#f6f8fb;stroke:#d5dce6}}\
             .l{{stroke:#e3e8ef;fill:none}}.m{{stroke:#cc3d3d;stroke-dasharray:4 3;fill:none}}"
        );
        let own = self.bars.iter().map(|bar| bar.look).chain(self.legend.iter().map(|(_, l)| *l));
        let mut looks: Vec<Look> = own.collect();
        looks.sort_unstable();
        looks.dedup();
        for (name, fill, stroke) in looks {
            // Writing to a `String` cannot fail.
            let _ = write!(out, ".{name}{{fill:{fill};stroke:{stroke};stroke-width:.5}}");
        }
        out
    }
}

/// The larger part of a bar that a mark does not cross.
fn beside(bar: &Rect, mark: Option<f64>) -> Rect {
    let Some(at) = mark.filter(|at| (bar.x..bar.x + bar.w).contains(at)) else { return *bar };
    let (left, right) = (at - bar.x, bar.x + bar.w - at);
    if left > right { Rect { w: left, ..*bar } } else { Rect { x: at, w: right, ..*bar } }
}

/// The label of a bar, if it has room for one that can be read.
fn label(text: &str, bar: &Rect) -> Option<Text> {
    if bar.w < LABELLED.0 || bar.h < LABELLED.1 {
        return None;
    }
    let whole = text.chars().count();
    let text = glyphs::fitted(text, DETAIL, bar.w - 6.0);
    let letters = text.chars().filter(|c| !matches!(c, '…' | ',' | ' ')).count();
    if letters < LETTERS && text.chars().count() < whole {
        return None;
    }
    let w = glyphs::width(&text, DETAIL);
    let y = bar.y + (bar.h - DETAIL - 2.0) / 2.0;
    let rect = Rect { x: bar.x + (bar.w - w) / 2.0, y, w, h: DETAIL + 2.0 };
    Some(Text { rect, words: text, class: Class::Detail, anchor: "middle" })
}

impl Line {
    fn write(&self, out: &mut String) {
        let (Rect { x, y, w, h }, class) = (self.rect, self.class);
        let (right, low) = (x + w, y + h);
        push(
            out,
            format_args!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}L{right:.1} {low:.1}\"/>"),
        );
    }
}

impl Text {
    fn write(&self, out: &mut String) {
        let Rect { x, y, w, .. } = self.rect;
        let x = match self.anchor {
            "end" => x + w,
            "middle" => x + w / 2.0,
            _ => x,
        };
        let (class, anchor, low) = (self.class.name(), self.anchor, y + 0.92 * self.class.size());
        let text = escaped(&self.words);
        push(
            out,
            format_args!(
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{low:.1}\" \
                 text-anchor=\"{anchor}\">{text}</text>"
            ),
        );
    }
}

/// A rectangle as attributes.
struct Places<'a>(&'a Rect);

impl std::fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rect { x, y, w, h } = self.0;
        write!(f, "x=\"{x:.2}\" y=\"{y:.2}\" width=\"{w:.2}\" height=\"{h:.2}\"")
    }
}

#[cfg(test)]
impl Chart {
    /// What is wrong with its places, in a page and in a file.
    pub(crate) fn faults(&self) -> Vec<String> {
        [self.drawn(), self.continued().drawn()].iter().flat_map(Drawn::faults).collect()
    }
}

#[cfg(test)]
impl Drawn {
    /// Bars that overlap or leave their panel, texts that overlap, leave their bar or the chart, or
    /// are crossed by a mark.
    fn faults(&self) -> Vec<String> {
        let drawn = self;
        let inside = |inner: &Rect, outer: &Rect| {
            inner.x >= outer.x - 0.01
                && inner.y >= outer.y - 0.01
                && inner.x + inner.w <= outer.x + outer.w + 0.01
                && inner.y + inner.h <= outer.y + outer.h + 0.01
        };
        let apart = |a: &Rect, b: &Rect| {
            a.x + a.w <= b.x + 0.01
                || b.x + b.w <= a.x + 0.01
                || a.y + a.h <= b.y + 0.01
                || b.y + b.h <= a.y + 0.01
        };
        let whole = Rect { x: 0.0, y: 0.0, w: drawn.width, h: drawn.height };
        let mut faults = Vec::new();
        for (at, text) in drawn.texts.iter().enumerate() {
            if !inside(&text.rect, &whole) {
                faults.push(format!("{} leaves the chart", text.words));
            }
            for other in drawn.texts[at + 1..].iter().filter(|o| !apart(&text.rect, &o.rect)) {
                faults.push(format!("{} and {} overlap", text.words, other.words));
            }
        }
        for (at, bar) in drawn.bars.iter().enumerate() {
            if !drawn.grounds.iter().any(|ground| inside(&bar.rect, ground)) {
                faults.push(format!("{} leaves its panel", bar.tells));
            }
            for other in drawn.bars[at + 1..].iter().filter(|o| !apart(&bar.rect, &o.rect)) {
                faults.push(format!("{} and {} overlap", bar.tells, other.tells));
            }
            let Some(label) = &bar.label else { continue };
            if !inside(&label.rect, &bar.rect) {
                faults.push(format!("the label of {} leaves its bar", bar.tells));
            }
            if drawn.marks.iter().any(|mark| !apart(&label.rect, &mark.rect)) {
                faults.push(format!("a mark crosses the label of {}", bar.tells));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::{DETAIL, LETTERS, Rect, glyphs, label};

    #[test]
    fn labels_are_whole_or_have_enough_letters() {
        let words = |text: &str, w: f64| {
            label(text, &Rect { x: 0.0, y: 0.0, w, h: 20.0 }).map(|label| label.words)
        };
        let wide = |text: &str| glyphs::width(text, DETAIL) + 6.0;
        assert_eq!(words("dense", wide("dense").max(34.0)).as_deref(), Some("dense"));
        assert_eq!(words("dense_1", 34.0), None);
        assert_eq!(words("conv2d_1", wide("conv2d_1")).as_deref(), Some("conv2d_1"));
        for at in 34..120 {
            let Some(cut) = words("batch_normalization_1", f64::from(at)) else { continue };
            assert!(cut.chars().filter(|c| *c != '…').count() >= LETTERS, "{cut}");
        }
    }
}
