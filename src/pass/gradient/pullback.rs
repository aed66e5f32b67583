//! Gradients for a loss that the caller computes: of outputs, given the gradients of each.

use std::collections::BTreeSet;

use super::cse::cse_small;
use super::differentiate::pulled_back;
use super::error::TrainingError;
use super::mode::draws;
use super::recompute::Recompute;
use crate::ir::{Builder, Graph, NodeKind, Output, Value, Weights};
use crate::pass::simplify::remove_identities;
use crate::types::{DType, Shape, TensorType};

/// The input that has the number by which dropout and noise draw, where a graph has any.
const DRAW: &str = "draw";

/// A model in the modes that its layers state, where every dropout drops by the number in the input
/// `draw`. Its outputs are those of the model; with `wanted`, names of inputs and parameters, they
/// are the gradients of these, `NAME.gradient`, for the gradients of the outputs `of`, which are
/// inputs `OUTPUT.gradient`. A gradient that is 0 everywhere is no output.
///
/// # Errors
/// If an operator has no gradient, or a dropout applies to a value whose elements belong to no row.
pub fn pullback(
    model: &Graph,
    weights: &Weights,
    of: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
) -> Result<(Graph, Weights), TrainingError> {
    let mut b = Builder::over(model.clone(), weights.clone());
    let ops = || model.ids().filter_map(|id| model.node(id).op());
    if ops().any(|op| op.drawn(0).is_some()) {
        let draw = b.input(DRAW, TensorType::new(DType::I64, Shape::default()));
        draws(&mut b, draw)?;
    }
    if !wanted.is_empty() {
        gradients(&mut b, of, wanted)?;
        cse_small(&mut b)?;
    }
    let (mut graph, mut weights) = b.finish();
    remove_identities(&mut graph, true)?;
    graph.remove_unused();
    let used: BTreeSet<&str> = graph.params().iter().map(|p| &*p.name).collect();
    weights.retain(|name| used.contains(name));
    Ok((graph, weights))
}

/// Makes the gradients the outputs.
fn gradients(
    b: &mut Builder,
    of: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
) -> Result<(), TrainingError> {
    let outputs = b.take_outputs();
    let graph = b.graph();
    let params = graph.ids().filter_map(|node| match *graph.node(node).kind() {
        NodeKind::Param(id) => Some((graph.param(id).name.clone(), Value { node, output: 0 })),
        NodeKind::Input | NodeKind::Op(_) => None,
    });
    let inputs = graph.inputs().map(|value| (graph.info(value).name.clone(), value));
    let found: Vec<_> = inputs.chain(params).filter(|(name, _)| wanted.contains(&**name)).collect();
    let values: Vec<Value> = found.iter().map(|(_, value)| *value).collect();
    let seeds = |b: &mut Builder| {
        let given = outputs.iter().filter(|output| of.contains(&*output.name));
        let seed = |output: &Output| {
            let ty = b.graph().ty(output.value).clone();
            (output.value, b.input(&format!("{}.gradient", output.name), ty))
        };
        Ok(given.map(seed).collect())
    };
    let gradients = pulled_back(b, seeds, &values, Recompute::Nothing)?;
    for ((name, _), gradient) in found.iter().zip(gradients) {
        if let Some(gradient) = gradient {
            b.output(&format!("{name}.gradient"), gradient);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::pullback;
    use crate::ir::{Builder, Graph, Weights};
    use crate::op::{Binary, Dropout};
    use crate::types::Tensor;

    /// `y` is `x * w`, and `z` what a dropout leaves of it.
    fn model() -> (Graph, Weights) {
        let mut b = Builder::new("m");
        let x = b.input("x", "f32[N,2]".parse().unwrap());
        let factor = b.param("w", Tensor::new(&[2], &[2.0f32, 3.0]).unwrap());
        let unused = b.param("unused", Tensor::scalar(0.0f32));
        let y = b.op("y", Binary::Mul, &[x, factor]).unwrap();
        let dropped = b.op("z", Dropout { mask: false, rate: 0.5 }, &[y]).unwrap();
        for (name, value) in [("y", y), ("z", dropped), ("w", factor), ("unused", unused)] {
            b.output(name, value);
        }
        b.finish()
    }

    fn names(of: &[&str], wanted: &[&str]) -> (Vec<String>, Vec<String>, usize) {
        let set = |list: &[&str]| list.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let (model, weights) = model();
        let (graph, weights) = pullback(&model, &weights, &set(of), &set(wanted)).unwrap();
        assert_eq!(graph.params().len(), weights.len());
        let inputs = graph.inputs().map(|v| graph.info(v).name.to_string()).collect();
        let outputs = graph.outputs().iter().map(|o| o.name.to_string()).collect();
        (inputs, outputs, graph.params().len())
    }

    #[test]
    fn dropout_drops_by_an_input() {
        let (inputs, outputs, params) = names(&[], &[]);
        assert_eq!(inputs, ["x", "draw"]);
        assert_eq!(outputs, ["y", "z", "w", "unused"]);
        assert_eq!(params, 2);
    }

    #[test]
    fn gradients_are_the_outputs() {
        let (inputs, outputs, params) = names(&["y", "z"], &["x", "w", "unused"]);
        assert_eq!(inputs, ["x", "draw", "y.gradient", "z.gradient"]);
        // Nothing of what has a gradient depends on the other parameter.
        assert_eq!(outputs, ["x.gradient", "w.gradient"]);
        assert_eq!(params, 1);
        // The gradient of what is an output itself is given.
        let (inputs, outputs, _) = names(&["w"], &["w"]);
        assert_eq!(inputs, ["x", "draw", "w.gradient"]);
        assert_eq!(outputs, ["w.gradient"]);
    }
}
