//! Parameters that an exporter merged because their first elements are equal.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Model;
use crate::ir::{GraphError, NodeId, NodeKind, Param, ParamId, Source, Value};
use crate::op::{Op, Traits};
use crate::types::invariant::invariant;
use crate::types::{Device, Quoted};

/// The operand of a batch normalisation that is its running mean; the running variance is next.
const MEAN: usize = 3;

/// Names that a note lists.
const LISTED: usize = 3;

/// Makes parameters of their own of what only shares its first elements with another: of each
/// `identity` of a parameter, which is how exporters write merged initializers, and of each running
/// statistic that anything else takes too. A parameter that several operators take itself stays
/// one.
///
/// # Errors
/// If the graph cannot be changed so: a bug.
pub(super) fn untie(model: &mut Model) -> Result<(), GraphError> {
    let mut untied: Vec<Arc<str>> = Vec::new();
    for id in model.graph.order()? {
        let alias = matches!(model.graph.node(id).op(), Some(Op::Identity(_)));
        let of = model.graph.operands(id).first().and_then(|v| param(model, *v));
        if let (true, Some(of)) = (alias, of) {
            let value = Value { node: id, output: 0 };
            let name = model.graph.info(value).name.clone();
            let own = own(model, of, name.clone());
            let new = model.graph.add_param_node(own, Device::HOST);
            model.graph.replace(value, new)?;
            untied.push(name);
        }
    }
    while let Some((of, place, nodes)) = shared_statistic(model) {
        let what = if place == MEAN { "running_mean" } else { "running_var" };
        let first = *invariant(nodes.first(), "that a shared parameter has users");
        let label = model.graph.node(first).label();
        let name: Arc<str> = format!("{label}.{what}").into();
        let own = own(model, of, name.clone());
        let value = model.graph.add_param_node(own, Device::HOST);
        for id in nodes {
            let mut operands = model.graph.operands(id);
            operands[place] = value;
            retake(model, id, &operands)?;
        }
        model.graph.remove_unused();
        untied.push(name);
    }
    if !untied.is_empty() {
        let listed: Vec<String> =
            untied.iter().take(LISTED).map(|name| Quoted(name).to_string()).collect();
        let more = untied.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let text = format!(
            "the file merges parameters whose first elements are equal; {}{more} are trained as \
             separate parameters",
            listed.join(", ")
        );
        model.notes.push(text.into());
    }
    Ok(())
}

fn param(model: &Model, value: Value) -> Option<ParamId> {
    match model.graph.node(value.node).kind() {
        NodeKind::Param(param) => Some(*param),
        NodeKind::Input | NodeKind::Op(_) => None,
    }
}

/// A parameter with the elements of another.
fn own(model: &mut Model, of: ParamId, name: Arc<str>) -> ParamId {
    let param = model.graph.param(of).clone();
    if let Some(tensor) = model.weights.get(&param.name).cloned() {
        model.weights.insert(name.clone(), tensor);
    }
    // The file has no tensor of this name.
    let source = Source { key: name.clone(), ..param.source.clone() };
    model.graph.add_param(Param { name, source, ..param })
}

/// Makes an operator take these operands.
fn retake(model: &mut Model, id: NodeId, operands: &[Value]) -> Result<(), GraphError> {
    let node = model.graph.node(id);
    let NodeKind::Op(op) = node.kind() else { return Ok(()) };
    let op = op.clone();
    let (place, origin) = (node.place(), node.origin().clone());
    let results = node.results().iter().cloned().collect();
    let new = model.graph.add_typed(op, operands, results, place, origin);
    let results = model.graph.node(id).results().len();
    for output in (0u32..).take(results) {
        model.graph.replace(Value { node: id, output }, Value { node: new, output })?;
    }
    Ok(())
}

/// A parameter that is a running statistic and something else too, with the operators that take it
/// as one statistic. Those of a layer that is used several times take it at the same place, and
/// share it.
fn shared_statistic(model: &Model) -> Option<(ParamId, usize, Vec<NodeId>)> {
    let mut takers: BTreeMap<ParamId, BTreeMap<usize, Vec<NodeId>>> = BTreeMap::new();
    for id in model.graph.ids() {
        let op = model.graph.node(id).op();
        for (place, operand) in model.graph.operands(id).into_iter().enumerate() {
            // All that is no statistic is alike.
            // What a model moves itself it states as one.
            let running = op.is_some_and(|op| op.is_running(place) && !op.is(Traits::TRAINS));
            let place = if running { place } else { 0 };
            if let Some(of) = param(model, operand) {
                takers.entry(of).or_default().entry(place).or_default().push(id);
            }
        }
    }
    let mut shared = takers.into_iter().filter(|(_, places)| places.len() > 1);
    shared.find_map(|(of, mut places)| places.pop_last().map(|(place, ids)| (of, place, ids)))
}

#[cfg(test)]
mod tests {
    use super::untie;
    use crate::ir::{Builder, verify};
    use crate::model::Model;
    use crate::op::{BatchNormTrain, Binary, Identity};
    use crate::types::{DType, Dim, Note, Shape, Tensor, TensorType};

    fn ones(n: usize) -> Tensor {
        Tensor::new(&[n], &vec![1.0f32; n]).unwrap()
    }

    /// The parameters after untying, by name, and what is said of it.
    fn untied(shared: bool) -> (Vec<String>, Vec<String>) {
        let mut b = Builder::new("m");
        let shape: Shape = [Dim::n(), 3.into()].into_iter().collect();
        let x = b.input("x", TensorType::new(DType::F32, shape));
        let [gain, bias, mean, var] = ["gain", "bias", "mean", "var"].map(|n| b.param(n, ones(3)));
        let norm = || BatchNormTrain { epsilon: 1e-5, local: false, momentum: 0.9 };
        // As PyTorch's exporter merges initializers that are equal: `mean` is the bias, `var` the
        // gain.
        let (mean, var) = if shared {
            (mean, var)
        } else {
            (b.op("running_mean", Identity {}, &[bias]).unwrap(), gain)
        };
        let names = |layer: &str| ["y", "m", "v"].map(|n| format!("{layer}.{n}"));
        let mut h = x;
        for layer in ["first", "second"] {
            let names = names(layer);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            h = b.ops(&names, norm(), &[h, gain, bias, mean, var]).unwrap()[0];
        }
        let y = b.op("y", Binary::Add, &[h, bias]).unwrap();
        b.output("y", y);
        let (graph, weights) = b.finish();
        let mut model = Model::new(graph, weights);
        untie(&mut model).unwrap();
        model.graph.remove_unused();
        verify(&model.graph).unwrap();
        let mut names: Vec<String> =
            model.graph.params().iter().map(|p| p.name.to_string()).collect();
        names.sort();
        for name in &names {
            assert!(model.weights.get(name).is_some(), "{name}");
        }
        (names, model.notes.iter().map(Note::to_string).collect())
    }

    #[test]
    fn statistics_share_nothing_and_layers_that_are_used_twice_share_all() {
        let (names, notes) = untied(true);
        assert_eq!(names, ["bias", "gain", "mean", "var"]);
        assert!(notes.is_empty());
        let (names, notes) = untied(false);
        assert_eq!(names, ["bias", "first.y.running_var", "gain", "running_mean"]);
        assert!(notes[0].contains("`running_mean`, `first.y.running_var`"), "{notes:?}");
    }
}
