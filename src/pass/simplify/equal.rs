//! Common subexpressions: operators of the same kind with the same attributes and operands.

use super::options::SimplifyOptions;
use crate::ir::{Graph, Value, Weights};
use crate::pass::PassError;
use crate::pass::alike::Alike;
use crate::types::invariant::int;

/// Replaces the results of an operator by those of an earlier one that computes the same.
///
/// Not for training, where the gradients of both would be added in another order.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    options: &SimplifyOptions,
) -> Result<(), PassError> {
    if options.for_training {
        return Ok(());
    }
    let mut alike = Alike::default();
    for id in graph.order()? {
        let Some(earlier) = alike.earlier(graph, id) else { continue };
        for output in 0..int(graph.node(id).results().len()) {
            graph.replace(Value { node: id, output }, Value { node: earlier, output })?;
        }
    }
    graph.remove_unused();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{SimplifyOptions, simplify};
    use crate::ir::{Builder, Graph, Weights, parse};
    use crate::op::{Binary, Constant};
    use crate::types::Tensor;

    fn ops(graph: &Graph) -> usize {
        graph.ids().filter(|id| graph.node(*id).op().is_some()).count()
    }

    /// The operators that are left of a graph that has this one twice.
    fn left(op: &str, without: &str, for_training: bool) -> usize {
        let mut graph = parse(&format!(
            "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N,4]) -> (a: f32[N,4], b: f32[N,4]) {{\n  \
             %a : f32[N,4] = {op}\n  %b : f32[N,4] = {op}\n  return %a, %b\n}}\n"
        ))
        .unwrap();
        let without = vec![without.to_owned()];
        let options = SimplifyOptions { for_training, without, ..SimplifyOptions::default() };
        simplify(&mut graph, &mut Weights::default(), &options).unwrap();
        ops(&graph)
    }

    #[test]
    fn what_differs_from_run_to_run_or_in_training_stays_apart() {
        assert_eq!(left("relu(%x)", "", false), 1);
        assert_eq!(left("relu(%x)", "", true), 2);
        assert_eq!(left("relu(%x)", "merge_equal", false), 2);
        assert_eq!(left("random_normal() {seed=7, shape=[N,4]}", "", false), 2);
        // Dropouts that stay may be trained.
        assert_eq!(left("dropout(%x) {rate=0.5}", "remove_identities", false), 2);
    }

    /// Operators without operands have only their attributes to be told by.
    #[test]
    fn thousands_of_constants_are_told_apart_by_number() {
        let mut build = Builder::new("g");
        let mut x = build.input("x", "f32[N,4]".parse().unwrap());
        for i in 0u16..20_000 {
            let value = Tensor::scalar(f32::from(i / 2 + 1));
            let c = build.op(&format!("c{i}"), Constant { value }, &[]).unwrap();
            x = build.op(&format!("x{i}"), Binary::Add, &[x, c]).unwrap();
        }
        build.output("y", x);
        let (mut graph, mut weights) = build.finish();
        simplify(&mut graph, &mut weights, &SimplifyOptions::default()).unwrap();
        assert_eq!(ops(&graph), 20_000 + 10_000);
    }
}
