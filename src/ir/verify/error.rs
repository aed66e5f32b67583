use std::fmt;

use super::super::excerpt::Excerpt;
use super::super::print::{LineParts, Writer};
use super::super::{Graph, NodeId, ParamId};

/// The rule that a graph breaks; the list is at the head of its module and in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// Names of values.
    V1 = 1,
    /// Types and known elements of results.
    V2,
    /// Cycles.
    V3,
    /// Devices of operands.
    V4,
    /// Numbers of replicas.
    V5,
    /// Devices of replicas.
    V6,
    /// Operands across replicas.
    V7,
    /// Names and types of parameters.
    V8,
    /// Devices of parameters.
    V9,
    /// Sizes of inputs.
    V10,
    /// Names and values of outputs.
    V11,
    /// Symbols.
    V12,
    /// Sizes of constants.
    V13,
    /// Updates of parameters.
    V14,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "V{}", *self as u8)
    }
}

/// A place where a graph breaks a rule. It is displayed on the printed line it concerns.
#[derive(Clone, Debug)]
pub struct VerifyError {
    /// The rule.
    pub rule: Rule,
    /// The fault.
    pub message: String,
    /// A correction, or a way to it.
    pub hint: String,
    /// The node it concerns; `None` if it concerns a parameter, an output or the graph.
    pub node: Option<NodeId>,
    place: String,
    excerpt: Excerpt,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.rule, self.message)?;
        writeln!(f, "  --> {}", self.place)?;
        self.excerpt.write(f, &"", 2)?;
        write!(f, "\n   = help: {}", self.hint)
    }
}

/// All places where a graph breaks a rule.
#[derive(Clone, Debug, Default)]
pub struct VerifyErrors(pub(super) Vec<VerifyError>);

impl VerifyErrors {
    /// The errors: those of the whole graph first, then those of each node in the order of ids.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, VerifyError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a VerifyErrors {
    type Item = &'a VerifyError;
    type IntoIter = std::slice::Iter<'a, VerifyError>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyErrors {}

/// The line of the text form that an error concerns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Op(NodeId),
    Param(ParamId),
    /// An update, by its position.
    Update(usize),
    Signature,
}

impl Line {
    /// A part of the line.
    pub(super) fn at(self, part: LinePart) -> ErrorLocation {
        ErrorLocation { line: self, part }
    }
}

/// The subject of an error.
#[derive(Clone, Copy)]
pub(super) struct ErrorLocation {
    /// The line.
    line: Line,
    /// The part of it.
    part: LinePart,
}

/// The part of that line.
#[derive(Clone, Copy)]
pub(super) enum LinePart {
    Whole,
    Operator,
    Attributes,
    /// A result of an operator, an output of a graph, the parameter of an update.
    Result(usize),
    /// An operand of an operator, an input of a graph, a value of an update.
    Operand(usize),
}

/// Collects errors. The line that several of them concern is printed once.
pub(super) struct Collector<'g> {
    graph: &'g Graph,
    writer: Option<(Line, Writer<'g>)>,
    errors: Vec<VerifyError>,
}

impl<'g> Collector<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, writer: None, errors: Vec::new() }
    }

    pub(super) fn finish(self) -> Vec<VerifyError> {
        self.errors
    }

    /// The number of errors so far.
    pub(super) fn count(&self) -> usize {
        self.errors.len()
    }

    pub(super) fn add(
        &mut self,
        rule: Rule,
        at: ErrorLocation,
        message: String,
        hint: impl Into<String>,
    ) {
        let ErrorLocation { line, part } = at;
        let writer = match self.writer.take() {
            Some((at, writer)) if at == line => writer,
            other => self.print(line, other.map(|(_, writer)| writer)),
        };
        let text = writer.out.trim_end();
        let parts = writer.parts.as_ref();
        let marked = parts.and_then(|p| match part {
            LinePart::Whole => None,
            LinePart::Operator => Some(p.op.clone()),
            LinePart::Attributes => Some(p.attrs.clone()),
            LinePart::Result(i) => p.results.get(i).cloned(),
            LinePart::Operand(i) => p.operands.get(i).cloned(),
        });
        let excerpt = Excerpt::of(text, marked.unwrap_or(0..text.len()));
        self.writer = Some((line, writer));
        let (node, place) = match line {
            Line::Op(id) => (Some(id), self.place(id)),
            Line::Param(id) => (None, format!("parameter `{}`", self.graph.param(id).name)),
            Line::Update(i) => {
                let param = self.graph.param(self.graph.updates()[i].param);
                (None, format!("update of parameter `{}`", param.name))
            }
            Line::Signature => (None, format!("graph `{}`", self.graph.name())),
        };
        self.errors.push(VerifyError { rule, message, hint: hint.into(), node, place, excerpt });
    }

    fn print(&self, line: Line, writer: Option<Writer<'g>>) -> Writer<'g> {
        let mut writer = writer.unwrap_or_else(|| Writer::new(self.graph));
        writer.out.clear();
        writer.parts = Some(LineParts::default());
        match line {
            Line::Op(id) => writer.op(id),
            Line::Param(id) => writer.param(self.graph.param(id), false),
            Line::Update(i) => writer.update(&self.graph.updates()[i]),
            Line::Signature => writer.signature(),
        }
        writer
    }

    fn place(&self, id: NodeId) -> String {
        let node = self.graph.node(id);
        let place = node.place();
        let replica = place.replica.map_or_else(String::new, |i| format!(", replica {i}"));
        format!("`{}` on {}{replica}", node.label(), place.device)
    }
}
