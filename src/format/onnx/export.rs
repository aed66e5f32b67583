//! A model as an ONNX file, of operator set 21.
//!
//! Every operator becomes nodes that compute the same; one that ONNX does not have is an error that
//! names it. Inputs, outputs and parameters keep their names. Sizes that depend on the batch are
//! computed from the shape of an input.

use prost::Message;

use super::proto::{
    GraphProto, ModelProto, OperatorSetIdProto, TensorShapeProto, TypeProto, ValueInfoProto,
    tensor_shape_proto, type_proto,
};
use super::save::MOST;
use super::writer::{OPSET, Refused, Writer};
use super::{ops, tensor};
use crate::ir::{Graph, GraphError, NodeId, NodeKind, Weights};
use crate::op::Op;
use crate::types::{Diagnostic, Dim, TensorType};

/// The version of the file's form that has it.
const IR_VERSION: i64 = 10;

/// Why a model is not written as an ONNX file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A graph that is more than a model.
    #[error("the graph is {0}; only a model itself can be written as ONNX")]
    NoModel(&'static str),
    /// An operator that cannot be written.
    #[error("`{label}` ({op}) cannot be written as ONNX: {reason}")]
    Operator {
        /// The node's label.
        label: String,
        /// The operator.
        op: &'static str,
        /// Why.
        reason: String,
    },
    /// Two inputs, parameters or outputs have one name, which ONNX does not tell apart.
    #[error("`{0}` is the name of two inputs, parameters or outputs; in ONNX a name has one value")]
    Name(String),
    /// The elements of a parameter are not there.
    #[error("the parameter `{0}` has no elements")]
    NoWeights(String),
    /// More than a file of this form may have.
    #[error(
        "the model has {0} bytes, an ONNX file has at most 2 GiB; save its weights as \
         safetensors"
    )]
    TooLarge(u64),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An invariant of the writer is broken: a fault of fanwise.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Diagnostic for ExportError {
    fn code(&self) -> &'static str {
        "E0114"
    }
}

impl From<Refused> for ExportError {
    /// The error where no operator is written: only an invariant can be broken there.
    fn from(refused: Refused) -> Self {
        let (Refused::Internal(reason) | Refused::Lacking(reason)) = refused;
        Self::Internal(reason)
    }
}

/// The ONNX file that computes what a model does.
///
/// # Errors
/// If the graph is replicated or a training graph, has an operator that ONNX lacks, or is too
/// large.
pub fn export(graph: &Graph, weights: &Weights) -> Result<Vec<u8>, ExportError> {
    if graph.split().is_some() {
        return Err(ExportError::NoModel("replicated"));
    }
    if !graph.updates().is_empty() {
        return Err(ExportError::NoModel("a training graph"));
    }
    let bytes = weights.iter().fold(0u64, |sum, (_, t)| sum.saturating_add(t.byte_len() as u64));
    let too_large = |bytes: u64| Err(ExportError::TooLarge(bytes));
    if bytes > MOST as u64 {
        return too_large(bytes);
    }
    let mut writer = Writer::new(graph).map_err(ExportError::Name)?;
    for id in graph.order()? {
        match graph.node(id).kind() {
            NodeKind::Input => {}
            NodeKind::Param(param) => {
                let name = &graph.param(*param).name;
                let elements = weights.get(name);
                let elements = elements.ok_or_else(|| ExportError::NoWeights(name.to_string()))?;
                writer.param(id, elements)?;
            }
            NodeKind::Op(op) => operator(&mut writer, graph, id, op)?,
        }
    }
    writer.outputs()?;
    let inputs = graph.inputs().map(|v| declared(&graph.info(v).name, graph.ty(v))).collect();
    let outputs = graph.outputs().iter().map(|o| declared(&o.name, graph.ty(o.value))).collect();
    let Writer { nodes, initializers, .. } = writer;
    let whole = GraphProto {
        node: nodes,
        name: Some(graph.name().to_owned()),
        initializer: initializers,
        input: inputs,
        output: outputs,
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: Some(IR_VERSION),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(OPSET) }],
        producer_name: Some("fanwise".to_owned()),
        producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        graph: Some(whole),
        ..ModelProto::default()
    };
    let length = model.encoded_len();
    if length > MOST { too_large(length as u64) } else { Ok(model.encode_to_vec()) }
}

fn operator(
    writer: &mut Writer<'_>,
    graph: &Graph,
    id: NodeId,
    op: &Op,
) -> Result<(), ExportError> {
    writer.at(id);
    ops::export(writer, op).map_err(|refused| match refused {
        Refused::Lacking(reason) => {
            let label = graph.node(id).label().to_owned();
            ExportError::Operator { label, op: op.name(), reason }
        }
        Refused::Internal(_) => refused.into(),
    })
}

/// A value that a caller gives or takes.
fn declared(name: &str, ty: &TensorType) -> ValueInfoProto {
    let size = |dim: &Dim| {
        let value = match dim.as_const() {
            Some(size) => tensor_shape_proto::dimension::Value::DimValue(size),
            None => tensor_shape_proto::dimension::Value::DimParam(dim.to_string()),
        };
        tensor_shape_proto::Dimension { value: Some(value), denotation: None }
    };
    let shape = TensorShapeProto { dim: ty.shape.iter().map(size).collect() };
    let tensor =
        type_proto::Tensor { elem_type: Some(tensor::number(ty.dtype)), shape: Some(shape) };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..ValueInfoProto::default() }
}
