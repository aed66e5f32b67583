//! Reading the text form: [`parse`] gives back what was printed.
//!
//! A text is read once from left to right, without recursion. Nothing in it is trusted: offsets of
//! a split, types, and sizes of tensors are compared with what follows from the rest.

mod body;
mod scan;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use self::scan::{Fault, ScanResult, Scanner, unescape};
use self::value::Values;
use super::assemble::Assembly;
use super::excerpt::Excerpt;
use super::folded::{self, Broken};
use super::{ContentHash, Graph, Param, Placement, Source};
use crate::op::CustomOps;
use crate::types::{Device, Dim, MAX_SIZE, ShardRule, Split, TensorType};

/// Why a text is no graph, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The fault.
    pub message: String,
    /// A correction, if known.
    pub help: Option<String>,
    excerpt: Excerpt,
}

impl ParseError {
    fn new(text: &str, fault: Fault) -> Self {
        let start = text.floor_char_boundary(fault.at.start);
        let before = &text[..start];
        // The first line begins with the text.
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        let rest = &text[line_start..];
        let rest = rest.split_once('\n').map_or(rest, |(line, _)| line);
        let end = (fault.at.end.max(start) - line_start).min(rest.len());
        let excerpt = Excerpt::of(rest, start - line_start..end);
        Self { line, column, message: fault.message, help: fault.help, excerpt }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Line 0 would have one digit, too.
        let margin = self.line.checked_ilog10().map_or(1, |digits| digits as usize + 1).max(2);
        writeln!(f, "error: {}", self.message)?;
        writeln!(f, "{:margin$}--> {}:{}", "", self.line, self.column)?;
        self.excerpt.write(f, &self.line, margin)?;
        match &self.help {
            Some(help) => write!(f, "\n{:margin$} = help: {help}", ""),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ParseError {}

/// The line of a graph's text, from 1, on which the value `name` is defined.
pub(crate) fn line_of(text: &str, name: &str) -> Option<usize> {
    let mut scan = Scanner::new(text);
    loop {
        let at = scan.next();
        let c = text.get(at..)?.chars().next()?;
        // A value is defined where it is named first.
        if c == '%' && scan.eat("%") {
            if scan.name("a name").is_ok_and(|n| n == name) {
                return Some(text.get(..at)?.bytes().filter(|b| *b == b'\n').count() + 1);
            }
        } else if c != '"' || scan.string("a string").is_err() {
            scan.back(at + c.len_utf8());
        }
    }
}

/// Reads a graph. It is typed, but not checked further: [`verify`](super::verify) does that.
///
/// ```
/// let text = "fanwise 1
/// symbol N >= 0
/// graph @g(%x: f32[N,8]) -> (y: f32[N,8]) {
///   %y : f32[N,8] = relu(%x)
///   return %y
/// }
/// ";
/// let graph = fanwise::ir::parse(text)?;
/// assert_eq!(graph.to_string(), text);
/// # Ok::<(), fanwise::ir::ParseError>(())
/// ```
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    parse_with(text, &CustomOps::default())
}

/// As [`parse`]; the operators of a framework are those in `ops`.
pub fn parse_with(text: &str, ops: &CustomOps) -> Result<Graph, ParseError> {
    parse_within(text, ops, u64::MAX)
}

/// As [`parse_with`]; what a folded text becomes without folds takes at most `memory` bytes.
pub(crate) fn parse_within(text: &str, ops: &CustomOps, memory: u64) -> Result<Graph, ParseError> {
    let expanded = folded::expanded(text, memory).map_err(|Broken { line, message }| {
        let before = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let line = text[before..].lines().next().map_or(before, |line| before + line.len());
        ParseError::new(text, Fault::new(before..line, message))
    })?;
    let mut parser = Parser::new(&expanded.text, ops);
    match parser.file() {
        Ok(()) => Ok(parser.assembly.graph),
        Err(fault) => {
            let mut error = ParseError::new(&expanded.text, fault);
            let line = expanded.line(error.line);
            // An error at the end of a text has no line.
            if text.lines().nth(line - 1) != expanded.text.lines().nth(error.line - 1) {
                error.message += " (its line is shown without folds)";
            }
            Err(ParseError { line, ..error })
        }
    }
}

/// The rows that an error shows.
const SHOWN: usize = 8;

/// A text that is being read, and the graph as far as it was.
struct Parser<'a> {
    values: Values<'a>,
    ops: &'a CustomOps,
    assembly: Assembly,
    devices: BTreeSet<Device>,
    outputs: Vec<(Arc<str>, TensorType)>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, ops: &'a CustomOps) -> Self {
        Self {
            values: Values::new(text),
            ops,
            assembly: Assembly::new(),
            devices: BTreeSet::from([Device::HOST]),
            outputs: Vec::new(),
        }
    }

    fn file(&mut self) -> ScanResult<()> {
        self.version()?;
        while self.values.scan.eat_word("symbol") {
            self.symbol()?;
        }
        self.devices()?;
        if self.values.scan.eat_word("split") {
            self.split()?;
        }
        while self.values.scan.eat_word("param") {
            self.param()?;
        }
        self.signature()?;
        self.body()?;
        if self.values.scan.eat_word("loc") {
            self.locations()?;
        }
        match self.values.scan.peek() {
            None => Ok(()),
            Some(_) => Err(self.values.scan.expected("the end of the text")),
        }
    }

    fn version(&mut self) -> ScanResult<()> {
        let scan = &mut self.values.scan;
        scan.keyword("fanwise")?;
        let from = scan.next();
        let version: u64 = scan.number("a version")?;
        if version != 1 {
            let message = format!("this text has version {version}; version 1 can be read");
            return Err(Fault::new(scan.since(from), message));
        }
        scan.keyword("symbol")?;
        scan.keyword("N")?;
        scan.expect(">=")?;
        scan.expect("0")
    }

    /// `S1 = 128`: an open size, which is this number in the graph.
    fn symbol(&mut self) -> ScanResult<()> {
        let name = format!("S{}", self.values.symbols.len() + 1);
        self.values.scan.keyword(&name)?;
        self.values.scan.expect("=")?;
        let from = self.values.scan.next();
        let number: u64 = self.values.scan.number("a size")?;
        let size = i64::try_from(number).ok().filter(|size| *size <= MAX_SIZE);
        let Some(size) = size else {
            let message = format!("a size is at most {MAX_SIZE}");
            return Err(Fault::new(self.values.scan.since(from), message));
        };
        self.values.symbols.push(size);
        self.values.fits(self.values.symbols.len())
    }

    fn devices(&mut self) -> ScanResult<()> {
        if !self.values.scan.eat_word("device") {
            return Ok(());
        }
        loop {
            let device = self.values.device()?;
            self.devices.insert(device);
            if !self.values.scan.eat(",") {
                return Ok(());
            }
        }
    }

    /// A device that was declared.
    fn device(&mut self) -> ScanResult<Device> {
        let from = self.values.scan.next();
        let device = self.values.device()?;
        if self.devices.contains(&device) {
            return Ok(device);
        }
        let fault = Fault::new(self.values.scan.since(from), format!("{device} is not declared"));
        Err(fault.help(format!("a line `device cpu:0, {device}` before the graph declares it")))
    }

    fn split(&mut self) -> ScanResult<()> {
        let from = self.values.scan.next();
        self.values.split_name()?;
        self.values.scan.keyword("of")?;
        self.values.scan.keyword("N")?;
        self.values.scan.keyword("over")?;
        self.values.scan.expect("[")?;
        let mut devices = vec![self.device()?];
        while !self.values.scan.eat("]") {
            self.values.scan.expect(",")?;
            self.values.fits(devices.len())?;
            devices.push(self.device()?);
        }
        let head = self.values.scan.since(from);
        self.values.scan.keyword("rule")?;
        self.values.scan.expect("=")?;
        let rule = self.rule()?;
        self.values.scan.expect("{")?;
        let (mut rows, mut offsets) = (None, None);
        while !self.values.scan.eat("}") {
            let from = self.values.scan.next();
            let list = match self.values.scan.word() {
                "n" => &mut rows,
                "o" => &mut offsets,
                _ => {
                    self.values.scan.back(from);
                    return Err(self.values.scan.expected("`n = [rows]` or `o = [offsets]`"));
                }
            };
            self.values.scan.expect("=")?;
            let dims = self.values.dims()?;
            *list = Some((dims, self.values.scan.since(from)));
        }
        let Some((mut offsets, at)) = offsets else {
            return Err(Fault::new(head, "the split has no offsets `o = [0, …]`"));
        };
        offsets.push(Dim::n());
        let split = Split::with_offsets(devices, rule, offsets);
        let split = split.map_err(|e| Fault::new(at, e.to_string()))?;
        self.values.rows = (0..split.replicas()).filter_map(|i| split.rows(i)).collect();
        if let Some((rows, at)) = rows.filter(|(rows, _)| *rows != self.values.rows) {
            let shown = |rows: &[Dim]| match rows.get(..SHOWN) {
                Some(first) => format!("{first:?} and so on"),
                None => format!("{rows:?}"),
            };
            let message = format!("the rows {} do not follow from the offsets", shown(&rows));
            let help = format!("they are {}", shown(&self.values.rows));
            return Err(Fault::new(at, message).help(help));
        }
        self.assembly.graph.set_split(Some(split));
        Ok(())
    }

    fn rule(&mut self) -> ScanResult<ShardRule> {
        let from = self.values.scan.next();
        let text = self.values.scan.run(|c| c.is_ascii_alphanumeric() || "-:,".contains(c));
        text.parse().map_err(|e| Fault::new(self.values.scan.since(from), format!("{e}")))
    }

    /// A name behind `sigil`, and its position.
    fn name(&mut self, sigil: &str, what: &str) -> ScanResult<(Arc<str>, Range<usize>)> {
        let from = self.values.scan.next();
        if !self.values.scan.eat(sigil) {
            return Err(self.values.scan.expected(what));
        }
        let name = self.values.scan.name(what)?;
        Ok((name.into(), self.values.scan.since(from)))
    }

    fn param(&mut self) -> ScanResult<()> {
        let (name, at) = self.name("@", "a parameter such as `@w`")?;
        self.values.scan.expect(":")?;
        let ty = self.values.ty()?;
        self.values.scan.expect("=")?;
        let source = self.source()?;
        self.values.scan.keyword("blake3")?;
        self.values.scan.expect(":")?;
        let from = self.values.scan.next();
        let digits = self.values.scan.run(|c| c.is_ascii_alphanumeric());
        let hash: ContentHash = digits.parse().map_err(|()| {
            Fault::new(self.values.scan.since(from), "a hash has sixteen hexadecimal digits")
        })?;
        let placement = if self.values.scan.eat_word("share") {
            Placement::Shared(self.device()?)
        } else if self.values.scan.eat_word("mirror") {
            self.values.split_name()?;
            Placement::Mirrored
        } else {
            Placement::Shared(Device::HOST)
        };
        let param = Param { name, ty, source, hash, placement };
        self.assembly.param(param).map_err(|message| Fault::new(at, message))
    }

    /// A file and the name of a tensor in it, with `#` between them.
    fn source(&mut self) -> ScanResult<Source> {
        let (from, raw) = self.values.scan.quoted("a source such as `\"model.onnx#w\"`")?;
        let Some((file, key)) = raw.split_once('#') else {
            let fault = Fault::new(from..from + raw.len(), "a source has a `#` after the file");
            return Err(fault.help("write `\"model.onnx#w\"`"));
        };
        let key_at = from + file.len() + 1;
        Ok(Source { file: unescape(file, from)?.into(), key: unescape(key, key_at)?.into() })
    }

    fn signature(&mut self) -> ScanResult<()> {
        self.values.scan.keyword("graph")?;
        let (name, _) = self.name("@", "the graph's name, such as `@net`")?;
        self.assembly.graph.set_name(name);
        self.values.scan.expect("(")?;
        while !self.values.scan.eat(")") {
            let (name, at) = self.name("%", "an input such as `%x`")?;
            self.values.scan.expect(":")?;
            let ty = self.values.ty()?;
            self.assembly.input(name, ty).map_err(|message| Fault::new(at, message))?;
            if self.values.scan.peek() != Some(b')') {
                self.values.scan.expect(",")?;
            }
        }
        self.values.scan.expect("->")?;
        self.values.scan.expect("(")?;
        while !self.values.scan.eat(")") {
            let name = self.values.scan.name("the name of an output")?.into();
            self.values.scan.expect(":")?;
            self.outputs.push((name, self.values.ty()?));
            if self.values.scan.peek() != Some(b')') {
                self.values.scan.expect(",")?;
            }
        }
        self.values.scan.expect("{")
    }
}
