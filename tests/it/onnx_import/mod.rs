//! Small models made of the file's own messages.

mod batch;
mod control;
mod damage;
mod foreign;
mod functions;
mod graphs;
mod lengths;
mod random;
mod settled;
mod sizes;
mod tensors;

use prost::Message;

use fanwise::format::onnx::{ImportError, ImportOptions, import_bytes};
use fanwise::ir::Model;
use fanwise::types::{Diagnostic as _, Hint};
use support::proto::attribute_proto::AttributeType;
use support::proto::tensor_proto::DataType;
use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use support::proto::type_proto::{Tensor as TensorKind, Value as Kind};
use support::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto,
};

/// What the importer noted.
fn notes(model: &Model) -> Vec<String> {
    model.notes.iter().map(ToString::to_string).collect()
}

/// An input or output of `f32`: sizes are numbers, names, or `?`.
fn value(name: &str, sizes: &[&str]) -> ValueInfoProto {
    typed(name, DataType::Float, sizes)
}

fn typed(name: &str, dtype: DataType, sizes: &[&str]) -> ValueInfoProto {
    let size = |s: &&str| match (*s, s.parse()) {
        ("?", _) => None,
        (_, Ok(number)) => Some(Size::DimValue(number)),
        (name, Err(_)) => Some(Size::DimParam(name.to_owned())),
    };
    let dim = |s: &&str| Dimension { value: size(s), denotation: None };
    let shape = Some(TensorShapeProto { dim: sizes.iter().map(dim).collect() });
    let tensor = TensorKind { elem_type: Some(dtype as i32), shape };
    let ty = TypeProto { value: Some(Kind::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..ValueInfoProto::default() }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(format!("the_{}", outputs.first().unwrap_or(&"none"))),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    }
}

/// Nodes as `results = operator operands; …`, where `-` is one that is left out.
fn nodes_of(text: &str) -> Vec<NodeProto> {
    let read = |line: &str| {
        let (results, rest) = line.split_once(" = ").unwrap();
        let (op, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        node(op, &words(operands), &words(results))
    };
    text.split("; ").map(read).collect()
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().map(|word| word.trim_matches('-')).collect()
}

/// The node with a further attribute.
fn with(mut node: NodeProto, attribute: AttributeProto) -> NodeProto {
    node.attribute.push(attribute);
    node
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(i),
        ..AttributeProto::default()
    }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Float as i32),
        f: Some(f),
        ..AttributeProto::default()
    }
}

fn floats(name: &str, dims: &[i64], data: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(DataType::Float as i32),
        raw_data: Some(data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    }
}

fn zeros(name: &str, dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    floats(name, dims, &vec![0.0; usize::try_from(count).unwrap()])
}

fn ints(name: &str, data: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: vec![i64::try_from(data.len()).unwrap()],
        data_type: Some(DataType::Int64 as i32),
        raw_data: Some(data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    }
}

/// A graph whose outputs are declared by name only.
fn graph(
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    outputs: &[&str],
) -> GraphProto {
    let output = |name: &&str| ValueInfoProto {
        name: Some((*name).to_owned()),
        ..ValueInfoProto::default()
    };
    GraphProto {
        name: Some("g".to_owned()),
        node: nodes,
        initializer: initializers,
        input: inputs,
        output: outputs.iter().map(output).collect(),
        ..GraphProto::default()
    }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

/// A model in opset 18.
fn model(graph: GraphProto) -> ModelProto {
    let opset_import = vec![opset("", 18)];
    ModelProto { ir_version: Some(9), opset_import, graph: Some(graph), ..ModelProto::default() }
}

fn load_with(model: &ModelProto, options: &ImportOptions) -> Result<Model, ImportError> {
    import_bytes(model.encode_to_vec().into(), "m.onnx", options)
}

fn load(model: &ModelProto) -> Result<Model, ImportError> {
    load_with(model, &ImportOptions::default())
}

fn freed() -> ImportOptions {
    ImportOptions { free_batch: true, ..ImportOptions::default() }
}

/// The types of the outputs.
fn outputs(model: &Model) -> String {
    let types = model.graph.outputs().iter().map(|o| model.graph.ty(o.value).to_string());
    types.collect::<Vec<_>>().join(" ")
}

/// The operators in order, without constants.
fn operators(model: &Model) -> String {
    let order = model.graph.order().unwrap();
    let names = order.into_iter().filter_map(|n| model.graph.node(n).op().map(|op| op.name()));
    names.filter(|n| *n != "constant").collect::<Vec<_>>().join(" ")
}

/// The text of the error.
#[track_caller]
fn refusal(result: Result<Model, ImportError>) -> String {
    match result {
        Ok(model) => panic!("imported as {}", outputs(&model)),
        Err(error) => told(&error),
    }
}

/// The error with its hints, in the library's words.
fn told(error: &ImportError) -> String {
    error.worded(&Hint::to_string)
}
