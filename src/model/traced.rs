//! Models that a framework traced: their parameters are held by the framework.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::error::ModelError;
use crate::format::onnx::{ImportOptions, import_bytes};
use crate::ir::{Builder, Model, Value};
use crate::pass::{PassError, SimplifyOptions, simplify};
use crate::types::Tensor;

/// Reads the ONNX model in `data`, of which the inputs that `params` names are parameters with
/// these elements. Nothing is folded: parameters may get other elements.
///
/// # Errors
/// If the model cannot be imported, or a parameter has another type.
pub fn traced(
    data: Bytes,
    options: &ImportOptions,
    mut params: BTreeMap<String, Tensor>,
) -> Result<Model, ModelError> {
    let Model { graph, weights, notes, .. } = import_bytes(data, "", options)?;
    let mut b = Builder::over(graph, weights);
    let inputs: Vec<Value> = b.graph().inputs().collect();
    for input in inputs {
        if let Some(tensor) = params.remove(&*b.graph().info(input).name) {
            b.bound(input, tensor).map_err(PassError::from)?;
        }
    }
    let (mut graph, mut weights) = b.finish();
    graph.remove_unused();
    let options = SimplifyOptions { for_training: true, ..SimplifyOptions::default() };
    simplify(&mut graph, &mut weights, &options)?;
    Ok(Model { notes, ..Model::new(graph, weights) })
}
