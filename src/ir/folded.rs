//! The folded text form: what equal replicas have is written once, with the range of replicas that
//! have it. [`expanded`] gives back the text that [`folded`] was given, byte for byte.
//!
//! `repeat 0..8 {` stands before lines that are there for each number of the range, `} repeat`
//! behind them. In these lines `<i>` is the number, `<i+1>` the next one, and `<a|b|c>` has the
//! text for each number. `for 0..8` behind names repeats these.

use std::borrow::Cow;
use std::ops::Range;

use super::text::MAX_LIST;

/// The first line of a folded text, and of any other one.
const HEAD: &str = "fanwise 1 folded";
const PLAIN: &str = "fanwise 1";
/// The line behind what is repeated.
const END: &str = "  } repeat";
/// The most bytes of a text that is expanded, and its most lines.
const MOST: u64 = 1 << 28;
const MOST_LINES: u64 = 1 << 23;

/// What is wrong with a folded text, and where.
pub(super) struct Broken {
    /// The line, from 1.
    pub(super) line: usize,
    pub(super) message: String,
}

impl Broken {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// A text without folds, and the line from which each of its lines is.
pub(super) struct Expanded<'a> {
    pub(super) text: Cow<'a, str>,
    lines: Vec<usize>,
    /// The lines of the folded text.
    count: usize,
}

impl Expanded<'_> {
    /// The line of the folded text for a line of this one, both from 1. What is missing at the end
    /// of this text is missing at the end of that one.
    pub(super) fn line(&self, line: usize) -> usize {
        if matches!(self.text, Cow::Borrowed(_)) {
            return line;
        }
        let found = self.lines.get(line.saturating_sub(1)).copied();
        // The text ends behind its last line.
        found.unwrap_or(self.count)
    }
}

/// The folded form of a graph's text; the text itself where nothing repeats.
pub(crate) fn folded(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::with_capacity(text.len() / 2);
    let mut at = 0;
    let mut in_names = false;
    while at < lines.len() {
        in_names = (in_names || lines[at] == "loc {") && lines[at] != "}";
        if let Some((first, end)) = blocks(&lines, at) {
            let units = alike(&lines, at..end, first);
            at += (end - at) * units.len();
            if let [unit] = units[..] {
                for line in unit {
                    push(&mut out, line);
                }
                continue;
            }
            push(
                &mut out,
                &format!("  repeat {first}..{} {{", u64::from(first) + units.len() as u64),
            );
            for row in 0..units[0].len() {
                let of_each: Vec<&str> = units.iter().map(|unit| unit[row]).collect();
                push(&mut out, &template(&of_each, first));
            }
            push(&mut out, END);
            continue;
        }
        let names = Some(lines[at]).filter(|_| in_names).and_then(folded_names);
        push(&mut out, names.as_deref().unwrap_or(lines[at]));
        at += 1;
    }
    let out = out.replacen(PLAIN, HEAD, 1);
    // What cannot be read back, because a name has a mark of its own, stays as it is.
    let is_same = expanded(&out, u64::MAX).is_ok_and(|found| found.text == text);
    if is_same && out.len() < text.len() { out } else { text.to_owned() }
}

fn push(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// The replica of the block that begins at a line, and the line behind it.
fn block(lines: &[&str], at: usize) -> Option<(u32, usize)> {
    let rest = lines.get(at)?.strip_prefix("  on ")?;
    let (_, rest) = rest.split_once(" replica @dp[")?;
    let replica = rest.split_once(']')?.0.parse().ok()?;
    let length = lines[at..].iter().position(|line| *line == "  }")?;
    Some((replica, at + length + 1))
}

/// The blocks of one replica that begin at a line: the replica, and the line behind them.
fn blocks(lines: &[&str], at: usize) -> Option<(u32, usize)> {
    let (replica, mut end) = block(lines, at)?;
    while let Some((_, next)) = block(lines, end).filter(|(other, _)| *other == replica) {
        end = next;
    }
    Some((replica, end))
}

/// The lines of the replica `first`, and those of the next replicas as far as one unit can stand
/// for all of them. Each is compared with the first alone: the time is that of reading them once.
fn alike<'l, 't>(lines: &'l [&'t str], own: Range<usize>, first: u32) -> Vec<&'l [&'t str]> {
    let unit = &lines[own.clone()];
    let mut units = vec![unit];
    let mut start = own.end;
    let mut replica = first;
    while let Some((next, end)) = blocks(lines, start) {
        let other = &lines[start..end];
        let is_next = replica.checked_add(1) == Some(next) && other.len() == unit.len();
        if !is_next || !unit.iter().zip(other).all(|(one, other)| fit(one, other)) {
            break;
        }
        units.push(other);
        (start, replica) = (end, next);
    }
    units
}

/// True if one line can stand for both: words that are the same have no mark of their own where
/// one begins, and others have no marks.
fn fit(one: &str, other: &str) -> bool {
    let has_mark = |word: &str| word.contains(['<', '|', '>']);
    one.split(' ').count() == other.split(' ').count()
        && one.split(' ').zip(other.split(' ')).all(|(one, other)| {
            if one == other { !one.contains('<') } else { !has_mark(one) && !has_mark(other) }
        })
}

/// One line for several that fit, the first of which is of the replica `first`.
fn template(lines: &[&str], first: u32) -> String {
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    let word = |at: usize| {
        let of_each: Vec<&str> = words.iter().map(|own| own[at]).collect();
        if of_each.iter().all(|own| *own == of_each[0]) {
            return of_each[0].to_owned();
        }
        numbered(&of_each, first).unwrap_or_else(|| listed(&of_each))
    };
    let words: Vec<String> = (0..words[0].len()).map(word).collect();
    words.join(" ")
}

/// A word that has the number of the replica, or the next one, in places.
fn numbered(words: &[&str], first: u32) -> Option<String> {
    let parts: Vec<Vec<&str>> = words.iter().map(|word| parts(word)).collect();
    let mut out = String::new();
    for at in 0..parts[0].len() {
        let of_each: Option<Vec<&str>> = parts.iter().map(|own| own.get(at).copied()).collect();
        let of_each = of_each?;
        let is = |shift: u32| {
            (first..).zip(&of_each).all(|(i, own)| **own == i.saturating_add(shift).to_string())
        };
        let is_same = of_each.iter().all(|own| *own == of_each[0]);
        out.push_str(if is_same {
            of_each[0]
        } else if is(0) {
            "<i>"
        } else if is(1) {
            "<i+1>"
        } else {
            return None;
        });
    }
    parts.iter().all(|own| own.len() == parts[0].len()).then_some(out)
}

/// The numbers of a word, and what is between them.
fn parts(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let digits = c.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = &rest[end..];
    }
    parts
}

/// Words as one with a list, behind what they begin with and before what they end with.
fn listed(words: &[&str]) -> String {
    let alike = |one: &mut dyn Iterator<Item = char>, other: &mut dyn Iterator<Item = char>| {
        one.zip(other).take_while(|(one, other)| one == other).count()
    };
    let start = |word: &&str| alike(&mut words[0].chars(), &mut word.chars());
    let end = |word: &&str| alike(&mut words[0].chars().rev(), &mut word.chars().rev());
    // No words have nothing in common.
    let least = |counts: &mut dyn Iterator<Item = usize>| counts.min().unwrap_or(0);
    let start = least(&mut words.iter().map(start));
    let shortest = least(&mut words.iter().map(|word| word.chars().count()));
    let end = least(&mut words.iter().map(end)).min(shortest - start);
    let middle = |word: &str| -> String {
        let count = word.chars().count();
        word.chars().skip(start).take(count - start - end).collect()
    };
    let before: String = words[0].chars().take(start).collect();
    let after: String = words[0].chars().skip(words[0].chars().count() - end).collect();
    let middles: Vec<String> = words.iter().map(|word| middle(word)).collect();
    format!("{before}<{}>{after}", middles.join("|"))
}

/// A line of names and their origin, with the names of replicas once.
fn folded_names(line: &str) -> Option<String> {
    let (names, origin) = line.strip_prefix("  ")?.split_once(" = \"")?;
    let names: Vec<&str> = names.split(", ").collect();
    for each in 1..=names.len() / 2 {
        let units = names.chunks(each);
        if !names.len().is_multiple_of(each) {
            continue;
        }
        let count = u32::try_from(units.len()).ok()?;
        let name = |at: usize| {
            let of_each: Vec<&str> = names.iter().copied().skip(at).step_by(each).collect();
            let has_mark = of_each.iter().any(|name| name.contains(['<', '|', '>', '"']));
            numbered(&of_each, 0).filter(|name| !has_mark && name.contains("<i>"))
        };
        let folded: Option<Vec<String>> = (0..each).map(name).collect();
        if let Some(folded) = folded {
            return Some(format!("  {} for 0..{count} = \"{origin}", folded.join(", ")));
        }
    }
    None
}

/// The text without folds, which takes at most so many bytes of memory.
pub(super) fn expanded(text: &str, memory: u64) -> Result<Expanded<'_>, Broken> {
    let Some(rest) = text.strip_prefix(HEAD).filter(|rest| rest.starts_with(['\n', '\r'])) else {
        return Ok(Expanded { text: Cow::Borrowed(text), lines: Vec::new(), count: 0 });
    };
    let mut to = Out { text: PLAIN.to_owned(), lines: Vec::new(), memory };
    to.end("", 1)?;
    let mut lines = (1..).zip(rest.lines()).skip(1);
    let mut count = 1;
    while let Some((number, line)) = lines.next() {
        let range = line.strip_prefix("  repeat ").and_then(|rest| rest.strip_suffix(" {"));
        count = if let Some(range) = range {
            to.repetition(range, number, &mut lines)?
        } else if let Some((names, range, origin)) = repeated_names(line) {
            to.names(names, range, origin, number)?;
            number
        } else {
            to.end(line, number)?;
            number
        };
    }
    Ok(Expanded { text: Cow::Owned(to.text), lines: to.lines, count })
}

/// Names with the numbers for which they are repeated, and their origin.
fn repeated_names(line: &str) -> Option<(&str, Range<u32>, &str)> {
    let (names, origin) = line.strip_prefix("  %")?.split_once(" = \"")?;
    let (names, range) = names.rsplit_once(" for ")?;
    // The sign of a value belongs to the names.
    let names = &line["  ".len().."  %".len() + names.len()];
    Some((names, replicas(range)?, origin))
}

/// A range of replicas, which has a number.
fn replicas(text: &str) -> Option<Range<u32>> {
    let (first, end) = text.split_once("..")?;
    let range: Range<u32> = first.parse().ok()?..end.parse().ok()?;
    (!range.is_empty() && range.len() <= MAX_LIST).then_some(range)
}

/// A part of a line that is repeated.
enum Piece<'a> {
    Text(&'a str),
    /// The number of the replica, plus this one.
    Number(u32),
    List(Vec<&'a str>),
}

/// The parts of a line for so many replicas.
fn pieces(line: &str, replicas: usize, number: usize) -> Result<Vec<Piece<'_>>, Broken> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while let Some((before, mark)) = rest.split_once('<') {
        let (mark, after) = mark
            .split_once('>')
            .ok_or_else(|| Broken::new(number, "`<` without `>` in what is repeated"))?;
        pieces.push(Piece::Text(before));
        pieces.push(match mark {
            "i" => Piece::Number(0),
            "i+1" => Piece::Number(1),
            list => {
                let count = list.split('|').count();
                if count != replicas {
                    let message = format!("`<{mark}>` has {count} texts for {replicas} replicas");
                    return Err(Broken::new(number, message));
                }
                Piece::List(list.split('|').collect())
            }
        });
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

/// The bytes of a line for all numbers of a range. Their digits are those of its numbers, and those
/// of the next ones.
fn size(line: &[Piece<'_>], range: &Range<u32>, digits: [u64; 2]) -> u64 {
    let of_piece = |piece: &Piece<'_>| match piece {
        Piece::Text(text) => (text.len() * range.len()) as u64,
        Piece::Number(more) => digits[*more as usize],
        Piece::List(list) => list.iter().map(|text| text.len() as u64).sum(),
    };
    line.iter().map(of_piece).sum()
}

/// The digits of all numbers of a range, and of the next ones.
fn digits(range: &Range<u32>) -> [u64; 2] {
    let digits = |i: u32| {
        // 0 has a digit, too.
        u64::from(i.checked_ilog10().unwrap_or(0)) + 1
    };
    [0, 1].map(|more| range.clone().map(|i| digits(i.saturating_add(more))).sum())
}

/// The expanded text so far.
struct Out {
    text: String,
    lines: Vec<usize>,
    /// The bytes of memory that it may take.
    memory: u64,
}

impl Out {
    /// Adds the lines of a repetition for each number of its range; the number of the line that
    /// ends it.
    fn repetition<'t>(
        &mut self,
        range: &str,
        at: usize,
        lines: &mut impl Iterator<Item = (usize, &'t str)>,
    ) -> Result<usize, Broken> {
        let range =
            replicas(range).ok_or_else(|| Broken::new(at, "expected a range such as `0..8`"))?;
        let (count, digits) = (range.len() as u64, digits(&range));
        let mut unit = Vec::new();
        let mut bytes = 0;
        let end = loop {
            let (number, line) =
                lines.next().ok_or_else(|| Broken::new(at, "nothing ends this repetition"))?;
            if line == END {
                break number;
            }
            let line = pieces(line, range.len(), number)?;
            bytes += size(&line, &range, digits) + count;
            unit.push((number, line));
            self.has_room(bytes, unit.len() as u64 * count, number)?;
        };
        // Each turn adds a line: their number has a limit because that of lines has one.
        if unit.is_empty() {
            return Err(Broken::new(at, "this repetition has no lines"));
        }
        for (k, i) in range.enumerate() {
            for (number, line) in &unit {
                for piece in line {
                    self.piece(piece, k, i);
                }
                self.end("", *number)?;
            }
        }
        Ok(end)
    }

    /// Adds names for each number of a range, and their origin.
    fn names(
        &mut self,
        names: &str,
        range: Range<u32>,
        origin: &str,
        number: usize,
    ) -> Result<(), Broken> {
        let names = pieces(names, range.len(), number)?;
        let bytes = size(&names, &range, digits(&range)) + 2 * range.len() as u64;
        self.has_room(bytes, 1, number)?;
        for (k, i) in range.enumerate() {
            self.text.push_str(if k == 0 { "  " } else { ", " });
            for piece in &names {
                self.piece(piece, k, i);
            }
        }
        self.text.push_str(" = \"");
        self.end(origin, number)
    }

    /// Ends a line.
    fn end(&mut self, rest: &str, number: usize) -> Result<(), Broken> {
        self.has_room(rest.len() as u64 + 1, 1, number)?;
        push(&mut self.text, rest);
        self.lines.push(number);
        Ok(())
    }

    /// Fails if the text becomes too long with so many bytes and lines more.
    fn has_room(&self, bytes: u64, lines: u64, number: usize) -> Result<(), Broken> {
        let bytes = bytes.saturating_add(self.text.len() as u64);
        let lines = lines.saturating_add(self.lines.len() as u64);
        let numbers = lines.saturating_mul(size_of::<usize>() as u64);
        let limit = if bytes > MOST || lines > MOST_LINES {
            format!("{MOST} bytes or {MOST_LINES} lines, the limits of such a text")
        } else if bytes.saturating_add(numbers) > self.memory {
            format!("{} bytes with the numbers of its lines, the limit of memory", self.memory)
        } else {
            return Ok(());
        };
        Err(Broken::new(number, format!("without folds the text would have more than {limit}")))
    }

    /// Adds a part of a line for the `k`-th number `i` of a range.
    fn piece(&mut self, piece: &Piece<'_>, k: usize, i: u32) {
        match piece {
            Piece::Text(text) => self.text.push_str(text),
            Piece::Number(more) => self.text += &i.saturating_add(*more).to_string(),
            Piece::List(list) => self.text.push_str(list[k]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{expanded, folded};
    use crate::ir::Placement;
    use crate::ir::parse;
    use crate::ir::testing::{plain, replicated, variables};
    use crate::snap;

    #[test]
    fn folded_texts_read_back() {
        for placement in [Placement::Mirrored, Placement::Shared(crate::types::Device::HOST)] {
            let text = replicated(placement).to_string();
            let short = folded(&text);
            assert!(short.starts_with("fanwise 1 folded\n"), "{short}");
            assert!(expanded(&short, u64::MAX).is_ok_and(|found| found.text == text), "{short}");
            assert_eq!(parse(&short).unwrap().to_string(), text);
        }
        snap::assert("print", "folded", &folded(&replicated(Placement::Mirrored).to_string()));
        // What has no equal replicas stays as it is.
        for graph in [plain(), variables(Some(Placement::Mirrored))] {
            assert_eq!(parse(&folded(&graph.to_string())).unwrap().to_string(), graph.to_string());
        }
        assert_eq!(folded(&plain().to_string()), plain().to_string());
    }

    #[test]
    fn what_has_a_mark_ends_a_repetition() {
        let text = |marked: std::ops::Range<u32>| {
            let block = |i: u32| {
                let mark = if marked.contains(&i) { "<" } else { "" };
                let rows: String = (0..50)
                    .map(|row| format!("    %a{row}.r{i} : same\n"))
                    .collect::<Vec<_>>()
                    .concat();
                format!("  on gpu:{i} replica @dp[{i}] {{\n{rows}    %y{mark}.r{i}\n  }}\n")
            };
            let blocks: String = (0..2000).map(block).collect();
            format!("fanwise 1\n{blocks}")
        };
        for (marked, repeats) in [(0..0, "0..2000"), (1990..1999, "0..1990"), (0..3, "3..2000")] {
            let short = folded(&text(marked.clone()));
            assert!(short.contains(&format!("  repeat {repeats} {{")), "{marked:?}");
            assert!(short.len() < 120_000);
        }
        // No two have one unit; the time is still that of reading them.
        assert_eq!(folded(&text(0..2000)), text(0..2000));
    }

    #[test]
    fn broken_folds_are_told_with_their_lines() {
        for (text, line, says) in [
            ("  repeat 0.8 {\n", 2, "a range"),
            ("  repeat 8..8 {\n  } repeat\n", 2, "a range"),
            ("  repeat 0..4000000000 {\n  } repeat\n", 2, "a range"),
            ("  repeat 0..8 {\n  on gpu:<i> {\n", 2, "nothing ends"),
            ("  repeat 0..65536 {\n  } repeat\n", 2, "has no lines"),
            ("\n  repeat 0..2 {\n  <i\n  } repeat\n", 4, "`<` without `>`"),
            ("  repeat 0..2 {\n  <a|b|c>\n  } repeat\n", 3, "3 texts for 2"),
            ("symbol N >= 0\n  repeat 0..2 {\n\n  what\n  } repeat\n", 5, "expected"),
            ("symbol N >= 0\n  repeat 0..9 {\n\n  } repeat\n\n", 6, "expected"),
        ] {
            let error = parse(&format!("fanwise 1 folded\n{text}")).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.message.contains(says), "{error}");
        }
        for line in ["x".repeat(1 << 14), "<i>".repeat(1 << 14), "\n".repeat(128)] {
            let long = format!("fanwise 1 folded\n  repeat 0..65536 {{\n{line}\n  }} repeat\n");
            let error = parse(&long).unwrap_err();
            assert!(error.message.contains("more than 268435456 bytes or"), "{error}");
        }
    }

    #[test]
    fn an_expanded_text_takes_the_memory_that_it_may() {
        let text = replicated(Placement::Mirrored).to_string();
        let short = folded(&text);
        let memory = (text.len() + 8 * text.lines().count()) as u64;
        assert!(expanded(&short, memory).is_ok_and(|found| found.text == text));
        let error = expanded(&short, memory - 1).err().unwrap();
        assert!(error.message.contains(&format!("more than {} bytes", memory - 1)));
        let names = "fanwise 1 folded\n  %x.r<i>.r<i+1> for 8..12 = \"m\"\n";
        let names = expanded(names, 1 << 10).ok().unwrap();
        let all = "  %x.r8.r9, %x.r9.r10, %x.r10.r11, %x.r11.r12 = \"m\"\n";
        assert_eq!(names.text, format!("fanwise 1\n{all}"));
        // The sum is known before a line of a repetition is written.
        let line = "<i>-<i+1>-<a|bcd>";
        let pieces = super::pieces(line, 2, 1).ok().unwrap();
        assert_eq!(super::size(&pieces, &(8..10), super::digits(&(8..10))), 13);
    }
}
