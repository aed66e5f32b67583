//! Where a loss that is not finite began: the parameters, or the first node whose result is not
//! finite though its operands are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::stage::LOSS;
use crate::Error;
use crate::backend::{Backend as _, Cpu, RunOptions};
use crate::ir::{Builder, Graph, NodeId, NodeKind, Value, Weights};
use crate::op::Formula as _;
use crate::types::{DType, Quoted, Tensor};

/// The parameters that are named.
const NAMED: usize = 3;

/// A clause that says where the loss of a batch began not to be finite. There is none where the CPU
/// gives a finite loss, by another order of its sums, or has no memory for the batch.
///
/// The batch is computed again on the CPU with the parameters that it had, and of each value
/// between its inputs and the loss only whether it is finite is kept.
pub(super) fn of(
    graph: &Graph,
    weights: &Weights,
    inputs: &BTreeMap<String, Tensor>,
    max_memory: Option<u64>,
) -> Option<String> {
    let params = graph.updates().iter().map(|update| &graph.param(update.param).name);
    let wrong: Vec<String> = params
        .filter(|name| weights.get(name).is_some_and(|tensor| !tensor.is_finite()))
        .map(|name| Quoted(name).to_string())
        .collect();
    if !wrong.is_empty() {
        let more = wrong.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = wrong.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        return Some(format!(
            "it began in the step before, after which {named}{more} held infinities or NaN; try a \
             lower learning rate, or clipped gradients"
        ));
    }
    let found = began(graph, weights, inputs, max_memory).ok().flatten()?;
    let node = graph.node(found);
    let name = Quoted(node.label());
    let op = match node.kind() {
        NodeKind::Input => {
            return Some(format!(
                "it began in the data: {name} holds infinities or NaN; replace them by finite \
                 numbers"
            ));
        }
        NodeKind::Param(_) => {
            return Some(format!(
                "it began in the weights: {name} holds infinities or NaN and is not trained; \
                 replace it by finite numbers"
            ));
        }
        NodeKind::Op(op) => op.name(),
    };
    let place = match &node.origin().0 {
        Some(layer) => format!("in the layer {}, at its `{op}`", Quoted(layer)),
        None => format!("at {name}, a `{op}` of the loss"),
    };
    Some(format!(
        "it began {place}, whose result is not finite while its operands are; try a lower learning \
         rate, or clipped gradients, or normalise the data"
    ))
}

/// The first node on the way to the loss whose result is not finite though its operands are.
fn began(
    graph: &Graph,
    weights: &Weights,
    inputs: &BTreeMap<String, Tensor>,
    max_memory: Option<u64>,
) -> Result<Option<NodeId>, Error> {
    let loss = graph.outputs().iter().find(|output| &*output.name == LOSS);
    let Some(loss) = loss.map(|output| output.value) else { return Ok(None) };
    let needed = needed(graph, loss);
    let mut bare = graph.clone();
    bare.take_outputs();
    bare.take_updates();
    let mut b = Builder::over(bare, weights.clone());
    let mut probes: BTreeMap<Value, Arc<str>> = BTreeMap::new();
    for node in graph.order()?.into_iter().filter(|node| needed.contains(node)) {
        for output in (0u32..).take(graph.node(node).results().len()) {
            let value = Value { node, output };
            if let Some(name) = probe(&mut b, value)? {
                probes.insert(value, name);
            }
        }
    }
    let (mut probed, weights) = b.finish();
    probed.remove_unused();
    let run = Cpu::new(threads())?.ready(&probed, &weights)?;
    let given = inputs
        .iter()
        .filter(|(name, _)| run.program().inputs.iter().any(|port| *port.name == **name));
    let given = given.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    let options = RunOptions { max_memory, ..RunOptions::default() };
    let found = run.run(&given, &options)?.outputs;
    let is_finite = |value: &Value| {
        let name = probes.get(value);
        let tensor = found.iter().find(|(own, _)| Some(own) == name);
        tensor.is_none_or(|(_, tensor)| tensor.is_finite())
    };
    let begins = |node: &NodeId| {
        let results = (0u32..).take(graph.node(*node).results().len());
        let mut results = results.map(|output| Value { node: *node, output });
        results.any(|value| !is_finite(&value)) && graph.operands(*node).iter().all(is_finite)
    };
    Ok(graph.order()?.into_iter().filter(|node| needed.contains(node)).find(begins))
}

/// The nodes that a value depends on, and its own.
fn needed(graph: &Graph, value: Value) -> BTreeSet<NodeId> {
    let (mut all, mut stack) = (BTreeSet::new(), vec![value.node]);
    while let Some(node) = stack.pop() {
        if all.insert(node) {
            stack.extend(graph.operands(node).iter().map(|operand| operand.node));
        }
    }
    all
}

/// An output that is 0 where a float is finite, and NaN where it is not: the sum of its differences
/// from itself.
fn probe(b: &mut Builder, value: Value) -> Result<Option<Arc<str>>, Error> {
    let ty = b.graph().ty(value);
    if !matches!(ty.dtype, DType::F32 | DType::F64) {
        return Ok(None);
    }
    let mut probe = b.named("probe");
    let none = probe.sub(value, value)?;
    let sum = probe.total(none)?;
    let name = b.graph().info(sum).name.clone();
    b.output(&name, sum);
    Ok(Some(name))
}

/// The threads that compute: all cores, or one where their number is not known.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, Builder, LOSS, Tensor, of};
    use crate::op::Unary;

    #[test]
    fn a_cause_in_the_data_has_no_operator() {
        let mut b = Builder::new("m");
        let x = b.input("x", "f32[N,2]".parse().unwrap());
        let y = b.op("y", Unary::Relu, &[x]).unwrap();
        b.output(LOSS, y);
        let (graph, weights) = b.finish();
        let x = Tensor::new(&[1, 2], &[1.0f32, f32::NAN]).unwrap();
        let found = of(&graph, &weights, &BTreeMap::from([("x".to_owned(), x)]), None);
        let said = "it began in the data: `x` holds infinities or NaN; replace them by finite \
            numbers";
        assert_eq!(found.unwrap(), said);
    }
}
