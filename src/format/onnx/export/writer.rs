//! Nodes, names and tensors of a file that is written.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::super::proto::attribute_proto::AttributeType;
use super::super::proto::{AttributeProto, NodeProto, TensorProto};
use super::super::tensor;
use super::Refused;
use crate::ir::{Graph, NodeId, NodeKind, Value};
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

/// An attribute of a node.
pub(super) enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Floats(&'a [f32]),
    Text(&'a str),
    Texts(Vec<String>),
}

/// The attributes of a node, by name.
pub(super) type Attributes<'a> = &'a [(&'a str, Attribute<'a>)];

/// A file as it grows, and the node of the graph that is being written.
pub(super) struct Writer<'g> {
    graph: &'g Graph,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) initializers: Vec<TensorProto>,
    /// The names of values of the graph.
    names: HashMap<Value, String>,
    used: HashSet<String>,
    /// The number of rows, once it is computed.
    rows: Option<String>,
    id: Option<NodeId>,
}

impl<'g> Writer<'g> {
    /// Nothing but the names of inputs, parameters and outputs. A value that is an output has the name of the output.
    ///
    /// # Errors
    /// If two of them have the same name: with that.
    pub(super) fn new(graph: &'g Graph) -> Result<Self, String> {
        let mut names = HashMap::new();
        let given = graph.ids().filter_map(|id| match *graph.node(id).kind() {
            NodeKind::Input => {
                Some((id, graph.info(Value { node: id, output: 0 }).name.to_string()))
            }
            NodeKind::Param(param) => Some((id, graph.param(param).name.to_string())),
            NodeKind::Op(_) => None,
        });
        let mut used = HashSet::new();
        // A parameter that is an output of its own name leaves the name to the output.
        let is_output = |value: Value, name: &str| {
            let param = matches!(graph.node(value.node).kind(), NodeKind::Param(_));
            param && graph.outputs().iter().any(|o| o.value == value && *o.name == *name)
        };
        let (shared, given): (Vec<_>, Vec<_>) = given
            .map(|(node, name)| (Value { node, output: 0 }, name))
            .partition(|(value, name)| is_output(*value, name));
        for (value, name) in given {
            if !used.insert(name.clone()) {
                return Err(name);
            }
            names.insert(value, name);
        }
        for output in graph.outputs() {
            let name = output.name.to_string();
            if names.get(&output.value) == Some(&name) {
                continue;
            }
            if !used.insert(name.clone()) {
                return Err(name);
            }
            if graph.node(output.value.node).op().is_some() {
                names.entry(output.value).or_insert(name);
            }
        }
        let (nodes, initializers) = (Vec::new(), Vec::new());
        let mut writer = Self { graph, nodes, initializers, names, used, rows: None, id: None };
        for (value, name) in shared {
            let own = writer.fresh(&name);
            writer.names.insert(value, own);
        }
        Ok(writer)
    }

    /// Writes the parameter that a node is.
    pub(super) fn param(&mut self, id: NodeId, elements: &Tensor) {
        let name = self.name(Value { node: id, output: 0 });
        self.initializers.push(encoded(&name, elements));
    }

    /// Goes to the next node of the graph.
    pub(super) fn at(&mut self, id: NodeId) {
        self.id = Some(id);
    }

    /// Writes the outputs whose values have another name.
    pub(super) fn outputs(&mut self, graph: &Graph) {
        for output in graph.outputs() {
            let name = self.name(output.value);
            if name != *output.name {
                self.push("Identity", vec![name], vec![output.name.to_string()], &[]);
            }
        }
    }

    /// A name that nothing else has.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 1u64;
        while !self.used.insert(name.clone()) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        name
    }

    fn name(&self, value: Value) -> String {
        self.names.get(&value).cloned().unwrap_or_default()
    }

    fn node(&self) -> NodeId {
        self.id.unwrap_or_else(|| unreachable!("a node is written"))
    }

    /// The operands of the present node.
    pub(super) fn operands(&self) -> Vec<String> {
        self.graph.operands(self.node()).into_iter().map(|v| self.name(v)).collect()
    }

    /// The type of an operand of the present node.
    pub(super) fn ty(&self, operand: usize) -> Result<TensorType, Refused> {
        let value = self.graph.operands(self.node()).get(operand).copied();
        let value = value.ok_or_else(|| format!("operand {operand} is missing"))?;
        Ok(self.graph.ty(value).clone())
    }

    /// The shape of an operand of the present node.
    pub(super) fn shape(&self, operand: usize) -> Result<Shape, Refused> {
        Ok(self.ty(operand)?.shape)
    }

    /// The names of the results of the present node.
    pub(super) fn results(&mut self) -> Vec<String> {
        let (id, graph) = (self.node(), self.graph);
        let results = (0..).zip(graph.node(id).results());
        results
            .map(|(output, info)| {
                let value = Value { node: id, output };
                if let Some(name) = self.names.get(&value) {
                    return name.clone();
                }
                let name = self.fresh(&info.name);
                self.names.insert(value, name.clone());
                name
            })
            .collect()
    }

    /// Writes a node with these results.
    pub(super) fn push(
        &mut self,
        op: &str,
        input: Vec<String>,
        output: Vec<String>,
        given: Attributes<'_>,
    ) {
        let attribute = given.iter().map(|(name, value)| attribute(name, value)).collect();
        let name = output.first().cloned();
        let op_type = Some(op.to_owned());
        self.nodes.push(NodeProto {
            input,
            output,
            name,
            op_type,
            attribute,
            ..NodeProto::default()
        });
    }

    /// Writes the present node as one node of these operands.
    #[expect(clippy::unnecessary_wraps, reason = "the last step of functions that may fail before")]
    pub(super) fn done(
        &mut self,
        op: &str,
        operands: Vec<String>,
        attributes: Attributes<'_>,
    ) -> Result<(), Refused> {
        let results = self.results();
        self.push(op, operands, results, attributes);
        Ok(())
    }

    /// Writes the present node as one node of the same operands.
    pub(super) fn same(&mut self, op: &str, attributes: Attributes<'_>) -> Result<(), Refused> {
        let operands = self.operands();
        self.done(op, operands, attributes)
    }

    /// Writes a node beside the present one.
    pub(super) fn emit(
        &mut self,
        op: &str,
        operands: &[&str],
        attributes: Attributes<'_>,
    ) -> String {
        let base = self.graph.node(self.node()).results().first().map_or("value", |r| &*r.name);
        let name = self.fresh(&format!("{base}.{}", op.to_ascii_lowercase()));
        let operands = operands.iter().map(|o| (*o).to_owned()).collect();
        self.push(op, operands, vec![name.clone()], attributes);
        name
    }

    /// A tensor of the file.
    pub(super) fn tensor(&mut self, elements: &Tensor) -> String {
        let base = self.id.map_or("constant", |id| {
            self.graph.node(id).results().first().map_or("value", |r| &*r.name)
        });
        let name = self.fresh(&format!("{base}.constant"));
        self.initializers.push(encoded(&name, elements));
        name
    }

    /// A vector of numbers.
    pub(super) fn ints(&mut self, numbers: &[i64]) -> Result<String, Refused> {
        let tensor = Tensor::new(&[numbers.len()], numbers).map_err(|e| e.to_string())?;
        Ok(self.tensor(&tensor))
    }

    /// One number of a type, without axes.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> Result<String, Refused> {
        let cast = crate::op::Cast { to: dtype };
        let one =
            crate::op::OpDef::eval(&cast, &[&Tensor::scalar(x)]).map_err(|e| e.to_string())?;
        let one = one.into_iter().next().ok_or("a cast gives nothing")?;
        Ok(self.tensor(&one))
    }

    /// A vector of numbers that may depend on the batch.
    pub(super) fn sizes(&mut self, sizes: &[Dim]) -> Result<String, Refused> {
        if let Some(numbers) = sizes.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() {
            return self.ints(&numbers);
        }
        let mut parts = Vec::new();
        for size in sizes {
            parts.push(match size.as_const() {
                Some(size) => self.ints(&[size])?,
                None => self.of_rows(size)?,
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            [one] => Ok(one.to_owned()),
            _ => Ok(self.emit("Concat", &parts, &[("axis", Attribute::Int(0))])),
        }
    }

    /// A multiple of the number of rows plus a number, as a vector of one element.
    fn of_rows(&mut self, size: &Dim) -> Result<String, Refused> {
        let offset = size.eval(0);
        let factor = size.eval(1) - offset;
        if *size != Dim::n() * factor + offset {
            return Err(format!("the size {size} is no multiple of N plus a number"));
        }
        let mut name = self.rows()?;
        if factor != 1 {
            let factor = self.ints(&[factor])?;
            name = self.emit("Mul", &[&name, &factor], &[]);
        }
        if offset != 0 {
            let offset = self.ints(&[offset])?;
            name = self.emit("Add", &[&name, &offset], &[]);
        }
        Ok(name)
    }

    /// The number of rows, as a vector of one element.
    fn rows(&mut self) -> Result<String, Refused> {
        if let Some(rows) = &self.rows {
            return Ok(rows.clone());
        }
        let mut inputs = self.graph.inputs();
        let (input, axis) = inputs
            .find_map(|v| Some((v, self.graph.ty(v).shape.iter().position(|d| *d == Dim::n())?)))
            .ok_or("no input has an axis of N")?;
        let (input, axis) = (self.name(input), i64::try_from(axis).map_err(|e| e.to_string())?);
        let ends = [("start", Attribute::Int(axis)), ("end", Attribute::Int(axis + 1))];
        let rows = self.emit("Shape", &[&input], &ends);
        self.rows = Some(rows.clone());
        Ok(rows)
    }
}

fn attribute(name: &str, value: &Attribute<'_>) -> AttributeProto {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let mut proto = AttributeProto { name: Some(name.to_owned()), ..AttributeProto::default() };
    let kind = match value {
        Attribute::Int(i) => {
            proto.i = Some(*i);
            AttributeType::Int
        }
        Attribute::Ints(ints) => {
            proto.ints = ints.to_vec();
            AttributeType::Ints
        }
        Attribute::Float(f) => {
            proto.f = Some(*f);
            AttributeType::Float
        }
        Attribute::Floats(floats) => {
            proto.floats = floats.to_vec();
            AttributeType::Floats
        }
        Attribute::Text(text) => {
            proto.s = Some(bytes(text));
            AttributeType::String
        }
        Attribute::Texts(texts) => {
            proto.strings = texts.iter().map(|t| bytes(t)).collect();
            AttributeType::Strings
        }
    };
    proto.r#type = Some(kind.into());
    proto
}

fn encoded(name: &str, elements: &Tensor) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: elements.dims().iter().filter_map(|d| i64::try_from(*d).ok()).collect(),
        data_type: Some(tensor::number(elements.dtype())),
        raw_data: Some(Bytes::copy_from_slice(elements.bytes())),
        ..TensorProto::default()
    }
}
