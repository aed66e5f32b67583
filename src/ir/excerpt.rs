use std::fmt;
use std::ops::Range;

use super::print::{LineParts, Writer};
use super::{Graph, NodeId};
use crate::types::is_unseen;

/// The line of an operator, and marks under one of its operands, or under its name: two lines
/// without margin.
pub(crate) fn operand_excerpt(graph: &Graph, node: NodeId, operand: usize) -> String {
    struct Shown(Excerpt);
    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, &"", 2)
        }
    }
    let mut writer = Writer::new(graph);
    writer.parts = Some(LineParts::default());
    writer.op(node);
    let marked = writer.parts.as_ref().map(|p| p.operands.get(operand).unwrap_or(&p.op).clone());
    let text = writer.out.trim_end();
    Shown(Excerpt::of(text, marked.unwrap_or(0..text.len()))).to_string()
}

/// At most so many characters of a line are shown to each side of what is marked.
const AROUND: usize = 60;

/// A line as far as it is shown in an error, and the characters of it that are marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    line: String,
    marks: Range<usize>,
}

impl Excerpt {
    /// The part of `line` around the bytes `marked`.
    pub(super) fn of(line: &str, marked: Range<usize>) -> Self {
        // A fault may end within a character of several bytes: marks then stand at its beginning.
        let (before, rest) = line.split_at(line.floor_char_boundary(marked.start));
        let (marked, after) =
            rest.split_at(rest.floor_char_boundary(marked.end.saturating_sub(before.len())));
        let mut out = String::new();
        let mut start = before.char_indices().rev().take(AROUND + 1);
        let from = match start.nth(AROUND) {
            Some((at, c)) => at + c.len_utf8(),
            None => 0,
        };
        if from > 0 {
            out.push('…');
        }
        out.push_str(&before[from..]);
        let from = out.chars().count();
        out.extend(marked.chars().take(AROUND));
        let to = out.chars().count().max(from + 1);
        let mut after = marked.chars().skip(AROUND).chain(after.chars());
        out.extend(after.by_ref().take(AROUND));
        if after.next().is_some() {
            out.push('…');
        }
        // One column for each character, and nothing that a terminal obeys.
        let line =
            out.chars().map(|c| if c.is_control() || is_unseen(c) { ' ' } else { c }).collect();
        Self { line, marks: from..to }
    }

    /// Writes the line and the marks under it, each behind its margin.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        number: &dyn fmt::Display,
        margin: usize,
    ) -> fmt::Result {
        let Self { line, marks } = self;
        writeln!(f, "{number:>margin$} | {line}")?;
        write!(
            f,
            "{:margin$} | {:from$}{:^<marks$}",
            "",
            "",
            "",
            from = marks.start,
            marks = marks.len()
        )
    }
}
