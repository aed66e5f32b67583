//! The parts of an ONNX file: where its nodes, tensors and functions lie.

use std::collections::BTreeMap;
use std::mem::size_of;

use bytes::Bytes;
use prost::Message;
use smallvec::SmallVec;

use super::super::Quoted;
use super::ImportError;
use super::proto::tensor_proto::DataType;
use super::proto::{AttributeProto, StringStringEntryProto, TensorProto, ValueInfoProto};
use super::wire::{Content, Fields, Span, WireError, parts, text};

/// The memory that decoding one part may take beyond a multiple of the file's size.
const SPARE: usize = 16 << 20;

/// The opsets that are supported.
const OPSETS: std::ops::RangeInclusive<i64> = 6..=27;

/// The domain of operators of classical machine learning; that of ONNX itself is empty.
pub(super) const ML: &str = "ai.onnx.ml";

/// The versions of the operators of classical machine learning that are supported.
const ML_OPSETS: std::ops::RangeInclusive<i64> = 1..=5;

/// The functions of a model.
const MAX_FUNCTIONS: usize = 1 << 15;

/// A list that grows by doubling has up to three times its final bytes while it does.
const GROWTH: usize = 3;

/// The operator sets of a model or a function.
const MAX_OPSETS: usize = 1000;

/// The operands or results of a node.
const MAX_OPERANDS: usize = 1 << 16;

/// The versions of the operator sets that a graph or a function is written in, by domain.
pub(super) type Opsets = BTreeMap<String, i64>;

/// A model file, split into its parts.
pub(super) struct File {
    data: Bytes,
    pub(super) opsets: Opsets,
    pub(super) graph: Graph,
    pub(super) functions: Vec<Function>,
}

/// The parts of a graph.
pub(super) struct Graph {
    span: Span,
    pub(super) name: String,
    pub(super) nodes: Vec<Span>,
    pub(super) initializers: Vec<Span>,
    pub(super) inputs: Vec<Span>,
    pub(super) outputs: Vec<Span>,
}

/// A function of the model.
pub(super) struct Function {
    pub(super) span: Span,
    pub(super) domain: String,
    pub(super) name: String,
    pub(super) overload: String,
    /// The names of its inputs.
    pub(super) inputs: Vec<Span>,
    /// The names of its outputs.
    pub(super) outputs: Vec<Span>,
    /// The names of attributes that a call may give.
    pub(super) attributes: Vec<Span>,
    /// Attributes with the value they have where a call does not give them.
    pub(super) defaults: Vec<Span>,
    pub(super) nodes: Vec<Span>,
    pub(super) opsets: Opsets,
}

/// Connections of a node in the graph.
#[derive(Default)]
pub(super) struct Head<'a> {
    pub(super) inputs: SmallVec<[&'a str; 4]>,
    pub(super) outputs: SmallVec<[&'a str; 2]>,
    pub(super) name: &'a str,
    pub(super) op: &'a str,
    domain: &'a str,
    pub(super) overload: &'a str,
    /// Whether an attribute is a graph.
    pub(super) has_graph: bool,
}

impl<'a> Head<'a> {
    /// A node of ONNX's own operator `op`, and no more.
    pub(super) fn own(op: &'a str) -> Self {
        Self { op, ..Self::default() }
    }

    /// The operator's domain; that of ONNX itself is empty.
    pub(super) fn domain(&self) -> &str {
        domain(self.domain)
    }

    /// The operator's name, after its domain where that is not ONNX's own.
    pub(super) fn full_op(&self) -> String {
        match self.domain() {
            "" => self.op.to_owned(),
            domain => format!("{domain}.{}", self.op),
        }
    }
}

/// The domain by the name that is used here: the two names of ONNX's own are one.
fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// The newest form of ONNX files that is known, `IR_VERSION` of `proto/onnx.proto`.
const NEWEST: u64 = 13;

impl File {
    /// Finds the parts of the model that `data` holds.
    pub(super) fn new(data: Bytes) -> Result<Self, ImportError> {
        let whole = Span::new(0..data.len())?;
        // The version comes first: fields of a newer form may mean something else.
        for field in Fields::of(&data, whole) {
            let (1, Content::Number(version)) = field? else { continue };
            if !(1..=NEWEST).contains(&version) {
                return Err(ImportError::Version(version.cast_signed()));
            }
        }
        // A damaged or hostile file may repeat the field; protobuf would merge the two into one
        // graph.
        let graphs = parts(&data, whole, 7)?;
        let [graph] = graphs[..] else {
            let found = graphs.len();
            return Err(ImportError::Graphs { file: String::new(), found });
        };
        let functions = filled(&data, whole, 25, "a function")?;
        if let Some(more) = functions.get(MAX_FUNCTIONS) {
            return Err(malformed(
                *more,
                &format!("there are more than {MAX_FUNCTIONS} functions"),
            ));
        }
        let functions = functions.into_iter().map(|f| function(&data, f));
        Ok(Self {
            opsets: opsets(&data, whole, 8)?,
            graph: graph_parts(&data, graph)?,
            functions: functions.collect::<Result<_, _>>()?,
            data,
        })
    }

    /// The node's place in the graph.
    pub(super) fn head(&self, node: Span) -> Result<Head<'_>, WireError> {
        let mut head = Head::default();
        for field in Fields::of(&self.data, node) {
            let (number, Content::Part(part)) = field? else { continue };
            // Checked while they are collected, not after: an operand of a few bytes takes more in
            // memory.
            if head.inputs.len().max(head.outputs.len()) > MAX_OPERANDS {
                let reason = format!("a node has more than {MAX_OPERANDS} operands or results");
                return Err(WireError { at: part.range().start, reason });
            }
            // Field numbers of `NodeProto`; what is not read here, such as texts for people, is
            // skipped.
            match number {
                1 => head.inputs.push(text(&self.data, part)?),
                2 => head.outputs.push(text(&self.data, part)?),
                3 => head.name = text(&self.data, part)?,
                4 => head.op = text(&self.data, part)?,
                5 => head.has_graph |= self.has_graph(part)?,
                7 => head.domain = text(&self.data, part)?,
                8 => head.overload = text(&self.data, part)?,
                _ => {}
            }
        }
        Ok(head)
    }

    fn has_graph(&self, attribute: Span) -> Result<bool, WireError> {
        for field in Fields::of(&self.data, attribute) {
            // A graph, or a list of graphs: the fields `g` and `graphs` of `AttributeProto`.
            if matches!(field?, (6 | 11, Content::Part(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Decodes the attributes of a node that are no graphs, each with its place.
    pub(super) fn attributes(
        &self,
        node: Span,
    ) -> Result<Vec<(AttributeProto, Span)>, ImportError> {
        let (mut kept, mut found) = (0usize, Vec::new());
        for field in Fields::of(&self.data, node) {
            if let (5, Content::Part(attribute)) = field?
                && !self.has_graph(attribute)?
            {
                let bytes = self.attribute_bytes(attribute)?;
                check(&self.data, node, kept.saturating_add(bytes))?;
                let mut decoded: AttributeProto = decode(&self.data, attribute, 0)?;
                // Only one list grows at a time: tables of trees are lists of millions.
                decoded.ints.shrink_to_fit();
                decoded.floats.shrink_to_fit();
                decoded.strings.shrink_to_fit();
                kept = kept.saturating_add(bytes / GROWTH);
                found.push((decoded, attribute));
            }
        }
        Ok(found)
    }

    /// The attributes of a node, without decoding them.
    pub(super) fn attribute_spans(&self, node: Span) -> Result<Vec<Span>, WireError> {
        parts(&self.data, node, 5)
    }

    /// The attributes of a node that are graphs, by name; none where one is a list of them, or has
    /// several.
    pub(super) fn bodies(&self, node: Span) -> Result<Option<Vec<(&str, Span)>>, WireError> {
        let mut found = Vec::new();
        for attribute in parts(&self.data, node, 5)? {
            if self.has_graph(attribute)? {
                let [body] = parts(&self.data, attribute, 6)?[..] else { return Ok(None) };
                if !parts(&self.data, attribute, 11)?.is_empty() {
                    return Ok(None);
                }
                found.push((last_text(&self.data, attribute, 1)?, body));
            }
        }
        Ok(Some(found))
    }

    /// The parts of a graph inside an attribute.
    pub(super) fn graph(&self, span: Span) -> Result<Graph, ImportError> {
        graph_parts(&self.data, span)
    }

    /// The bytes of a node without the elements of its tensors and without its graphs: those are
    /// not copied where it is expanded several times.
    pub(super) fn light_bytes(&self, node: Span) -> Result<usize, WireError> {
        let mut bytes = node.len();
        for attribute in parts(&self.data, node, 5)? {
            for field in Fields::of(&self.data, attribute) {
                match field? {
                    (5, Content::Part(tensor)) => {
                        for raw in parts(&self.data, tensor, 9)? {
                            bytes -= raw.len();
                        }
                    }
                    (6 | 11, Content::Part(graph)) => bytes -= graph.len(),
                    _ => {}
                }
            }
        }
        Ok(bytes)
    }

    /// A bound of the memory that an attribute takes once it is decoded.
    fn attribute_bytes(&self, attribute: Span) -> Result<usize, WireError> {
        let mut bytes = GROWTH * size_of::<AttributeProto>();
        for field in Fields::of(&self.data, attribute) {
            bytes = bytes.saturating_add(match field? {
                (5 | 10, Content::Part(tensor)) => tensor_bytes(&self.data, tensor)?,
                // Texts.
                (1 | 4 | 13 | 21, Content::Part(part)) => part.len().saturating_add(64),
                (7, Content::Part(packed)) => packed.len().saturating_mul(GROWTH),
                // The last byte of a packed integer, and no other, has its highest bit clear.
                (8, Content::Part(packed)) => {
                    let ends = self.data[packed.range()].iter().filter(|b| **b < 0x80).count();
                    ends.saturating_mul(GROWTH * size_of::<i64>())
                }
                (9, Content::Part(_)) => GROWTH * size_of::<Bytes>(),
                (_, Content::Part(part)) => part.len().saturating_mul(64).saturating_add(192),
                _ => 24,
            });
        }
        Ok(bytes)
    }

    /// Decodes a tensor; its elements stay where they are.
    pub(super) fn tensor(&self, tensor: Span) -> Result<TensorProto, ImportError> {
        decode(&self.data, tensor, tensor_bytes(&self.data, tensor)?)
    }

    /// Decodes an attribute. The caller has seen that it is no graph.
    pub(super) fn attribute(&self, attribute: Span) -> Result<AttributeProto, ImportError> {
        if self.has_graph(attribute)? {
            return Err(malformed(attribute, "the attribute is a graph"));
        }
        decode(&self.data, attribute, self.attribute_bytes(attribute)?)
    }

    /// Decodes an input or output.
    pub(super) fn value(&self, value: Span) -> Result<ValueInfoProto, ImportError> {
        let mut bytes = size_of::<ValueInfoProto>();
        for field in Fields::of(&self.data, value) {
            bytes = bytes.saturating_add(match field? {
                (2, Content::Part(ty)) => self.type_bytes(ty)?,
                (1 | 3, Content::Part(text)) => text.len(),
                (_, Content::Part(part)) => part.len().saturating_mul(64).saturating_add(192),
                _ => 24,
            });
        }
        decode(&self.data, value, bytes)
    }

    /// A bound of the memory that a type takes once it is decoded: every byte of it at most 64, but
    /// for the names of a tensor's sizes.
    fn type_bytes(&self, ty: Span) -> Result<usize, WireError> {
        let mut names = 0;
        for tensor in parts(&self.data, ty, 1)? {
            for shape in parts(&self.data, tensor, 2)? {
                for dim in Fields::of(&self.data, shape) {
                    let (1, Content::Part(dim)) = dim? else { continue };
                    for name in Fields::of(&self.data, dim) {
                        if let (2, Content::Part(name)) = name? {
                            names += name.len();
                        }
                    }
                }
            }
        }
        Ok(ty.len().saturating_sub(names).saturating_mul(64).saturating_add(names))
    }

    /// The texts at these places.
    pub(super) fn texts(&self, spans: &[Span]) -> Result<Vec<&str>, WireError> {
        spans.iter().map(|s| text(&self.data, *s)).collect()
    }

    /// The values of the graph whose types the file declares: those inside it, then its outputs.
    pub(super) fn declared_values(&self) -> Result<Vec<Span>, WireError> {
        let mut inside = Vec::new();
        for field in Fields::of(&self.data, self.graph.span) {
            // An empty one says nothing, and a list of them would take many times the file's size.
            if let (13, Content::Part(value)) = field?
                && value.len() > 0
            {
                inside.push(value);
            }
        }
        inside.extend(&self.graph.outputs);
        Ok(inside)
    }

    /// Whether a tensor holds strings.
    pub(super) fn is_text(&self, tensor: Span) -> Result<bool, WireError> {
        let mut dtype = 0;
        for field in Fields::of(&self.data, tensor) {
            if let (2, Content::Number(number)) = field? {
                dtype = number;
            }
        }
        Ok(dtype == DataType::String as u64)
    }

    /// The names of initializers.
    pub(super) fn tensor_names(&self, tensors: &[Span]) -> Result<Vec<&str>, WireError> {
        tensors.iter().map(|tensor| self.tensor_name(*tensor)).collect()
    }

    /// The names of inputs or outputs.
    pub(super) fn value_names(&self, values: &[Span]) -> Result<Vec<&str>, WireError> {
        values.iter().map(|value| self.value_name(*value)).collect()
    }

    /// The name of an initializer, without decoding the rest.
    pub(super) fn tensor_name(&self, tensor: Span) -> Result<&str, WireError> {
        last_text(&self.data, tensor, 8)
    }

    /// The name of an input or output.
    pub(super) fn value_name(&self, value: Span) -> Result<&str, WireError> {
        last_text(&self.data, value, 1)
    }
}

/// Decodes a tensor that is all of a file; its elements stay where they are.
pub(super) fn lone_tensor(data: &Bytes) -> Result<TensorProto, ImportError> {
    let whole = Span::new(0..data.len())?;
    decode(data, whole, tensor_bytes(data, whole)?)
}

/// A bound of the memory that a tensor takes once it is decoded: its elements stay where they are.
fn tensor_bytes(data: &[u8], tensor: Span) -> Result<usize, WireError> {
    let mut bytes = 3 * size_of::<TensorProto>();
    for field in Fields::of(data, tensor) {
        bytes = bytes.saturating_add(match field? {
            (1, Content::Part(packed)) => packed.len().saturating_mul(24),
            (4..=7 | 9..=11, Content::Part(_)) => 3 * size_of::<Bytes>(),
            (_, Content::Part(part)) => {
                // An entry and its texts, or a text.
                3 * size_of::<StringStringEntryProto>() + part.len().saturating_mul(2)
            }
            _ => 24,
        });
    }
    Ok(bytes)
}

/// Fails if the part at `span` takes more than may be once it is decoded.
fn check(data: &[u8], span: Span, bytes: usize) -> Result<(), ImportError> {
    // In proportion to the file: a small file cannot ask for much memory.
    let limit = data.len().saturating_mul(4).saturating_add(SPARE);
    if bytes > limit {
        let reason = format!("decoded, the part would take up to {bytes} bytes of memory");
        return Err(malformed(span, &reason));
    }
    Ok(())
}

/// Decodes the part at `span`, which takes at most `bytes` bytes then.
fn decode<M: Message + Default>(data: &Bytes, span: Span, bytes: usize) -> Result<M, ImportError> {
    check(data, span, bytes)?;
    M::decode(data.slice(span.range()))
        .map_err(|e| malformed(span, &format!("the message is damaged: {e}")))
}

/// The version of ONNX's operators among `opsets`. Where there is none, only other domains are
/// used.
pub(super) fn opset(place: &str, opsets: &Opsets) -> Result<i64, ImportError> {
    if let Some(version) = opsets.get(ML).copied().filter(|v| !ML_OPSETS.contains(v)) {
        let (oldest, newest) = (*ML_OPSETS.start(), *ML_OPSETS.end());
        let place = format!("{place}, of the domain `{ML}`,");
        return Err(ImportError::Opset { place, version, oldest, newest });
    }
    let (oldest, newest) = (*OPSETS.start(), *OPSETS.end());
    match opsets.get("") {
        Some(version) if OPSETS.contains(version) => Ok(*version),
        None if opsets.keys().any(|d| !d.is_empty()) => Ok(newest),
        found => Err(ImportError::Opset {
            place: place.to_owned(),
            // A file without a version is of the time before there were versions.
            version: found.copied().unwrap_or(1),
            oldest,
            newest,
        }),
    }
}

fn malformed(span: Span, reason: &str) -> ImportError {
    WireError { at: span.range().start, reason: reason.to_owned() }.into()
}

/// The text that the field `number` holds; of several the last counts.
fn last_text(data: &[u8], span: Span, number: u64) -> Result<&str, WireError> {
    let mut found = "";
    for field in Fields::of(data, span) {
        if let (n, Content::Part(part)) = field?
            && n == number
        {
            found = text(data, part)?;
        }
    }
    Ok(found)
}

fn opsets(data: &[u8], span: Span, number: u64) -> Result<Opsets, WireError> {
    let mut opsets = Opsets::new();
    for field in Fields::of(data, span) {
        let (n, Content::Part(import)) = field? else { continue };
        if n != number {
            continue;
        }
        let mut version = 0;
        for field in Fields::of(data, import) {
            if let (2, Content::Number(v)) = field? {
                version = v.cast_signed();
            }
        }
        let name = domain(last_text(data, import, 1)?);
        let before = opsets.insert(name.to_owned(), version);
        let at = import.range().start;
        // Both names of ONNX's own domain may be given: alike, they do not contradict each other.
        if before.is_some_and(|before| before != version) {
            let reason = format!("the operator set {} has two versions", Quoted(name));
            return Err(WireError { at, reason });
        }
        if opsets.len() > MAX_OPSETS {
            let reason = format!("there are more than {MAX_OPSETS} operator sets");
            return Err(WireError { at, reason });
        }
    }
    Ok(opsets)
}

fn graph_parts(data: &[u8], span: Span) -> Result<Graph, ImportError> {
    let nodes = filled(data, span, 1, "a node")?;
    if let Some(sparse) = parts(data, span, 15)?.first() {
        let (at, reason) = (sparse.range().start, "sparse initializers are not supported");
        return Err(WireError { at, reason: reason.to_owned() }.into());
    }
    Ok(Graph {
        span,
        name: last_text(data, span, 2)?.to_owned(),
        nodes,
        initializers: filled(data, span, 5, "an initializer")?,
        inputs: filled(data, span, 11, "an input")?,
        outputs: filled(data, span, 12, "an output")?,
    })
}

/// The parts that the field `number` holds, each of which is `what`. None is empty: a list of empty
/// parts would take many times the file's size.
fn filled(data: &[u8], span: Span, number: u64, what: &str) -> Result<Vec<Span>, WireError> {
    for field in Fields::of(data, span) {
        if let (n, Content::Part(part)) = field?
            && n == number
            && part.len() == 0
        {
            let (at, reason) = (part.range().start, format!("{what} is empty"));
            return Err(WireError { at, reason });
        }
    }
    parts(data, span, number)
}

fn function(data: &[u8], span: Span) -> Result<Function, WireError> {
    Ok(Function {
        span,
        domain: domain(last_text(data, span, 10)?).to_owned(),
        name: last_text(data, span, 1)?.to_owned(),
        overload: last_text(data, span, 13)?.to_owned(),
        inputs: filled(data, span, 4, "the name of an input")?,
        outputs: filled(data, span, 5, "the name of an output")?,
        attributes: filled(data, span, 6, "the name of an attribute")?,
        defaults: filled(data, span, 11, "an attribute")?,
        nodes: filled(data, span, 7, "a node")?,
        opsets: opsets(data, span, 9)?,
    })
}
