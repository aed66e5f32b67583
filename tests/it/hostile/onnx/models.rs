//! Models made of the file's own messages.

use prost::Message;
use support::proto::attribute_proto::AttributeType;
use support::proto::tensor_proto::DataType;
use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use support::proto::type_proto::{Tensor, Value as Kind};
use support::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
};

use super::super::Case;

pub(in crate::it::hostile) fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|s| (*s).to_owned()).collect()
}

/// An input of `f32`: sizes are numbers, names, or `?`.
pub(in crate::it::hostile) fn value(name: &str, sizes: &[&str]) -> ValueInfoProto {
    typed(name, DataType::Float as i32, sizes)
}

pub(in crate::it::hostile) fn typed(name: &str, elem_type: i32, sizes: &[&str]) -> ValueInfoProto {
    let size = |s: &&str| match (*s, s.parse()) {
        ("?", _) => None,
        (_, Ok(number)) => Some(Size::DimValue(number)),
        (name, Err(_)) => Some(Size::DimParam(name.to_owned())),
    };
    let dim = |s: &&str| Dimension { value: size(s), denotation: None };
    let shape = Some(TensorShapeProto { dim: sizes.iter().map(dim).collect() });
    of_kind(name, Some(Kind::TensorType(Tensor { elem_type: Some(elem_type), shape })))
}

pub(in crate::it::hostile) fn of_kind(name: &str, value: Option<Kind>) -> ValueInfoProto {
    let ty = TypeProto { value, denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..Default::default() }
}

/// The input that most models have.
pub(in crate::it::hostile) fn x() -> Vec<ValueInfoProto> {
    vec![value("x", &["N", "4"])]
}

pub(in crate::it::hostile) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(format!("the_{}", outputs.first().unwrap_or(&"none"))),
        input: owned(inputs),
        output: owned(outputs),
        ..Default::default()
    }
}

/// The node with a further attribute.
pub(in crate::it::hostile) fn with(mut node: NodeProto, attribute: AttributeProto) -> NodeProto {
    node.attribute.push(attribute);
    node
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(kind as i32), ..Default::default() }
}

pub(in crate::it::hostile) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attribute(name, AttributeType::Int) }
}

pub(in crate::it::hostile) fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { ints: ints.to_vec(), ..attribute(name, AttributeType::Ints) }
}

pub(in crate::it::hostile) fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attribute(name, AttributeType::Float) }
}

pub(in crate::it::hostile) fn string(name: &str, s: &str) -> AttributeProto {
    AttributeProto {
        s: Some(s.as_bytes().to_vec().into()),
        ..attribute(name, AttributeType::String)
    }
}

pub(in crate::it::hostile) fn floats(name: &str, floats: &[f32]) -> AttributeProto {
    AttributeProto { floats: floats.to_vec(), ..attribute(name, AttributeType::Floats) }
}

pub(in crate::it::hostile) fn strings(name: &str, strings: &[&str]) -> AttributeProto {
    let strings = strings.iter().map(|s| s.as_bytes().to_vec().into()).collect();
    AttributeProto { strings, ..attribute(name, AttributeType::Strings) }
}

pub(in crate::it::hostile) fn body(name: &str, g: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(g), ..attribute(name, AttributeType::Graph) }
}

pub(in crate::it::hostile) fn tensor_attribute(name: &str, t: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(t), ..attribute(name, AttributeType::Tensor) }
}

pub(in crate::it::hostile) fn raw(
    name: &str,
    dtype: DataType,
    dims: &[i64],
    data: &[u8],
) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(dtype as i32),
        raw_data: Some(data.to_vec().into()),
        ..Default::default()
    }
}

/// Zeros of `f32`.
pub(in crate::it::hostile) fn zeros(name: &str, dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    raw(name, DataType::Float, dims, &vec![0; usize::try_from(4 * count).expect("a size")])
}

/// A vector of `i64`.
pub(in crate::it::hostile) fn vector(name: &str, data: &[i64]) -> TensorProto {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    raw(name, DataType::Int64, &[i64::try_from(data.len()).expect("a size")], &bytes)
}

/// A number of `i64`.
pub(in crate::it::hostile) fn number(name: &str, x: i64) -> TensorProto {
    raw(name, DataType::Int64, &[], &x.to_le_bytes())
}

/// A graph whose outputs are declared by name only.
pub(in crate::it::hostile) fn graph(
    input: Vec<ValueInfoProto>,
    initializer: Vec<TensorProto>,
    node: Vec<NodeProto>,
    outputs: &[&str],
) -> GraphProto {
    let output =
        |name: &&str| ValueInfoProto { name: Some((*name).to_owned()), ..Default::default() };
    GraphProto {
        name: Some("g".to_owned()),
        node,
        initializer,
        input,
        output: outputs.iter().map(output).collect(),
        ..Default::default()
    }
}

pub(in crate::it::hostile) fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

/// A model in opset 18.
pub(in crate::it::hostile) fn model(graph: GraphProto) -> ModelProto {
    let opset_import = vec![opset("", 18)];
    ModelProto { ir_version: Some(9), opset_import, graph: Some(graph), ..Default::default() }
}

pub(in crate::it::hostile) fn function(
    name: &str,
    inputs: &[&str],
    outputs: &[&str],
    nodes: Vec<NodeProto>,
) -> FunctionProto {
    FunctionProto {
        name: Some(name.to_owned()),
        domain: Some("own".to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        node: nodes,
        opset_import: vec![opset("", 18), opset("own", 1)],
        ..Default::default()
    }
}

pub(in crate::it::hostile) fn call(name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("own".to_owned()), ..node(name, inputs, outputs) }
}

/// A model of `x` and `y` whose nodes call functions.
pub(in crate::it::hostile) fn calling(
    functions: Vec<FunctionProto>,
    nodes: Vec<NodeProto>,
) -> ModelProto {
    let mut model = model(graph(x(), vec![], nodes, &["y"]));
    model.opset_import.push(opset("own", 1));
    model.functions = functions;
    model
}

pub(in crate::it::hostile) fn bytes(name: &str, bytes: Vec<u8>) -> Case {
    Case::new(name, "m.onnx", bytes)
}

/// The case of a model.
pub(in crate::it::hostile) fn case(name: &str, model: &ModelProto) -> Case {
    bytes(name, model.encode_to_vec())
}

/// The case of a graph with the input `x` and the output `y`.
pub(in crate::it::hostile) fn nodes(
    name: &str,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
) -> Case {
    case(name, &model(graph(x(), initializers, nodes, &["y"])))
}

/// The case of one node with the input `x` and the output `y`.
pub(in crate::it::hostile) fn one(name: &str, node: NodeProto) -> Case {
    nodes(name, vec![], vec![node])
}

/// The case of a model with these inputs, the first of which is given back.
pub(in crate::it::hostile) fn inputs(name: &str, inputs: Vec<ValueInfoProto>) -> Case {
    let first = inputs.first().and_then(|i| i.name.clone()).unwrap_or_default();
    case(name, &model(graph(inputs, vec![], vec![node("Identity", &[&first], &["y"])], &["y"])))
}
