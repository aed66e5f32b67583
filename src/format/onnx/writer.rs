//! Nodes, names and tensors of a file that is written.

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

use bytes::Bytes;

use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, NodeProto, TensorProto};
use super::tensor;
use crate::ir::{Graph, NodeId, NodeKind, Value};
use crate::op::converted;
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

/// The operator set of what is written.
pub(super) const OPSET: i64 = 21;

/// Why an operator is not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// ONNX has nothing for it: the reason, as a clause.
    Lacking(String),
    /// An invariant of the graph or the writer is broken.
    Internal(String),
}

/// Result of exporting an operator.
pub(super) type Written = Result<(), Refused>;

impl Refused {
    /// The operator set has nothing that computes it.
    pub(super) fn unknown() -> Self {
        Self::Lacking(format!("no operator of operator set {OPSET} computes it"))
    }
}

impl<T: Into<String>> From<T> for Refused {
    fn from(reason: T) -> Self {
        Self::Lacking(reason.into())
    }
}

/// An operator that ONNX has, or can be put together of those it has.
pub(super) trait Export {
    /// Writes it as the writer's present node.
    fn export(&self, w: &mut Writer<'_>) -> Written;
}

/// An attribute of a node.
pub(super) enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Floats(&'a [f32]),
    Text(&'a str),
    Texts(Vec<String>),
}

/// The value of an attribute.
macro_rules! attributes {
    ($($ty:ty: |$x:ident| $attribute:expr;)*) => {
        $(impl<'a> From<$ty> for Attribute<'a> {
            fn from($x: $ty) -> Self {
                $attribute
            }
        })*
    };
}

attributes! {
    i64: |x| Self::Int(x);
    bool: |x| Self::Int(x.into());
    DType: |x| Self::Int(tensor::number(x).into());
    f32: |x| Self::Float(x);
    &'a [i64]: |list| Self::Ints(list);
    &'a str: |text| Self::Text(text);
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
    /// Nothing but the names of inputs, parameters and outputs. A value that is an output has the
    /// name of the output.
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
            // Inputs and parameters keep their own names; an output of them gets a node of its own
            // later.
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
    pub(super) fn param(&mut self, id: NodeId, elements: &Tensor) -> Written {
        let name = self.name(Value { node: id, output: 0 })?;
        self.initializers.push(encoded(&name, elements)?);
        Ok(())
    }

    /// Goes to the next node of the graph.
    pub(super) fn at(&mut self, id: NodeId) {
        self.id = Some(id);
    }

    /// Writes the outputs whose values have another name.
    pub(super) fn outputs(&mut self) -> Written {
        for output in self.graph.outputs() {
            let name = self.name(output.value)?;
            if name != *output.name {
                self.push("Identity", vec![name], vec![output.name.to_string()], &[]);
            }
        }
        Ok(())
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

    /// The name of a value that is written already. An empty one would mean an absent operand.
    fn name(&self, value: Value) -> Result<String, Refused> {
        let name = self.names.get(&value).filter(|name| !name.is_empty()).cloned();
        name.ok_or_else(|| {
            let label = self.graph.node(value.node).label();
            Refused::Internal(format!("result {} of `{label}` has no name yet", value.output))
        })
    }

    fn node(&self) -> Result<NodeId, Refused> {
        self.id.ok_or_else(|| Refused::Internal("no node is being written".to_owned()))
    }

    /// The name of the present node's first result, with which its own values begin.
    fn base(&self) -> Result<&'g str, Refused> {
        // An external operator may have no results.
        Ok(self.graph.node(self.node()?).results().first().map_or("value", |r| &*r.name))
    }

    /// The operands of the present node.
    pub(super) fn operands(&self) -> Result<Vec<String>, Refused> {
        self.graph.operands(self.node()?).into_iter().map(|v| self.name(v)).collect()
    }

    /// The type of an operand of the present node.
    pub(super) fn ty(&self, operand: usize) -> Result<TensorType, Refused> {
        let value = self.graph.operands(self.node()?).get(operand).copied();
        let value = value.ok_or_else(|| format!("operand {operand} is missing"))?;
        Ok(self.graph.ty(value).clone())
    }

    /// The shape of an operand of the present node.
    pub(super) fn shape(&self, operand: usize) -> Result<Shape, Refused> {
        Ok(self.ty(operand)?.shape)
    }

    /// The names of the results of the present node.
    pub(super) fn results(&mut self) -> Result<Vec<String>, Refused> {
        let (id, graph) = (self.node()?, self.graph);
        let results = (0..).zip(graph.node(id).results());
        let names = results
            .map(|(output, info)| {
                let value = Value { node: id, output };
                if let Some(name) = self.names.get(&value) {
                    return name.clone();
                }
                let name = self.fresh(&info.name);
                self.names.insert(value, name.clone());
                name
            })
            .collect();
        Ok(names)
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
        // ONNX asks for names of nodes that are unique where they are given: values' names are.
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
    pub(super) fn done(
        &mut self,
        op: &str,
        operands: Vec<String>,
        attributes: Attributes<'_>,
    ) -> Written {
        let results = self.results()?;
        self.push(op, operands, results, attributes);
        Ok(())
    }

    /// Writes the present node as one node of the same operands.
    pub(super) fn same(&mut self, op: &str, attributes: Attributes<'_>) -> Written {
        self.with(op, [], attributes)
    }

    /// Writes the present node as one node of the same operands, and others behind them.
    pub(super) fn with<const K: usize>(
        &mut self,
        op: &str,
        more: [String; K],
        attributes: Attributes<'_>,
    ) -> Written {
        let mut operands = self.operands()?;
        operands.extend(more);
        self.done(op, operands, attributes)
    }

    /// Writes a node beside the present one.
    pub(super) fn emit(
        &mut self,
        op: &str,
        operands: &[&str],
        attributes: Attributes<'_>,
    ) -> Result<String, Refused> {
        let name = self.fresh(&format!("{}.{}", self.base()?, op.to_ascii_lowercase()));
        let operands = operands.iter().map(|o| (*o).to_owned()).collect();
        self.push(op, operands, vec![name.clone()], attributes);
        Ok(name)
    }

    /// A tensor of the file.
    pub(super) fn tensor(&mut self, elements: &Tensor) -> Result<String, Refused> {
        let name = self.fresh(&format!("{}.constant", self.base()?));
        self.initializers.push(encoded(&name, elements)?);
        Ok(name)
    }

    /// A vector of numbers.
    pub(super) fn ints(&mut self, numbers: &[i64]) -> Result<String, Refused> {
        let tensor = Tensor::new(&[numbers.len()], numbers).map_err(|e| e.to_string())?;
        self.tensor(&tensor)
    }

    /// One number of a type, without axes.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> Result<String, Refused> {
        // Rounded as the operators round their attributes.
        let one = converted(&Tensor::scalar(x), dtype).map_err(|e| e.to_string())?;
        self.tensor(&one)
    }

    /// A number that may depend on the batch, as a vector of one element.
    pub(super) fn size(&mut self, size: &Dim) -> Result<String, Refused> {
        self.sizes(std::slice::from_ref(size))
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
            _ => self.emit("Concat", &parts, &[("axis", Attribute::Int(0))]),
        }
    }

    /// A multiple of the number of rows plus a number, as a vector of one element.
    fn of_rows(&mut self, size: &Dim) -> Result<String, Refused> {
        let offset = size.eval(0);
        let factor = size.eval(1) - offset;
        if *size != Dim::n() * factor + offset {
            return Err(format!("the size {size} is not a multiple of N plus a number").into());
        }
        let mut name = self.rows()?;
        if factor != 1 {
            let factor = self.ints(&[factor])?;
            name = self.emit("Mul", &[&name, &factor], &[])?;
        }
        if offset != 0 {
            let offset = self.ints(&[offset])?;
            name = self.emit("Add", &[&name, &offset], &[])?;
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
        let (input, axis) = (self.name(input)?, long(axis)?);
        let ends = [("start", axis.into()), ("end", (axis + 1).into())];
        let rows = self.emit("Shape", &[&input], &ends)?;
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

/// A number of elements or of an axis as ONNX writes it.
pub(super) fn long(x: usize) -> Result<i64, Refused> {
    i64::try_from(x).map_err(|_| Refused::Internal(format!("{x} is not a size")))
}

/// The same of a list.
pub(super) fn longs(list: &[usize]) -> Result<Vec<i64>, Refused> {
    list.iter().map(|x| long(*x)).collect()
}

/// ONNX's name of an operator in a table of operators, whatever its attributes are.
pub(super) fn name<T>(rows: &[(&'static str, T)], op: &T) -> Result<&'static str, Refused> {
    let found = rows.iter().find(|(_, known)| discriminant(known) == discriminant(op));
    found.map(|(name, _)| *name).ok_or_else(Refused::unknown)
}

/// The word for a meaning in a table of words.
pub(super) fn word<T: PartialEq>(
    words: &[(&'static str, T)],
    meaning: &T,
) -> Result<Attribute<'static>, Refused> {
    let found = words.iter().find(|(_, known)| known == meaning);
    found.map(|(word, _)| Attribute::Text(word)).ok_or_else(Refused::unknown)
}

fn encoded(name: &str, elements: &Tensor) -> Result<TensorProto, Refused> {
    Ok(TensorProto {
        name: Some(name.to_owned()),
        dims: longs(elements.dims())?,
        data_type: Some(tensor::number(elements.dtype())),
        raw_data: Some(Bytes::copy_from_slice(elements.bytes())),
        ..TensorProto::default()
    })
}

#[cfg(test)]
mod tests {
    use super::{Refused, Writer, long};
    use crate::ir::Builder;
    use crate::op::Unary;
    use crate::types::{DType, Shape, TensorType};

    #[test]
    fn a_value_without_a_name_is_no_absent_operand() {
        let mut builder = Builder::new("g");
        let x = builder.input("x", TensorType::new(DType::F32, Shape::scalar()));
        let y = builder.op("y", Unary::Neg, &[x]).unwrap();
        let z = builder.op("z", Unary::Neg, &[y]).unwrap();
        let (graph, _) = builder.finish();
        let mut writer = Writer::new(&graph).unwrap();
        let internal = |text: &str| Refused::Internal(text.to_owned());
        assert_eq!(writer.same("Neg", &[]), Err(internal("no node is being written")));
        // Before `y` is.
        writer.at(z.node);
        assert_eq!(writer.same("Neg", &[]), Err(internal("result 0 of `y` has no name yet")));
        writer.at(y.node);
        writer.same("Neg", &[]).unwrap();
        writer.at(z.node);
        writer.same("Neg", &[]).unwrap();
        assert_eq!(writer.nodes[1].input, ["y"]);
        assert_eq!(long(usize::MAX), Err(internal("18446744073709551615 is not a size")));
    }
}
