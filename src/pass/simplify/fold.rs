use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::SimplifyOptions;
use crate::ir::{
    ContentHash, Graph, Node, NodeId, NodeKind, Param, Placement, Source, Value, Weights,
};
use crate::op::{Constant, Op};
use crate::pass::PassError;
use crate::types::Tensor;

/// Integer results up to this number of elements become `constant`, so that their elements stay known.
const SMALL: usize = 64;

/// Computes every operator that depends on parameters and constants only. The result is a parameter of the same
/// name, whose source is that of the model with the key `folded:NAME`; it is written out with the graph, or
/// computed again from the model.
pub(super) fn run(
    graph: &mut Graph,
    weights: &mut Weights,
    options: SimplifyOptions,
) -> Result<(), PassError> {
    let file = graph.params().first().map_or_else(|| Arc::from(""), |p| p.source.file.clone());
    let mut fold = Fold { known: HashMap::new(), left: options.max_bytes, file };
    let mut folded: Vec<(NodeId, Vec<Tensor>)> = Vec::new();
    for id in graph.order()? {
        if let Some(results) = fold.visit(graph, weights, id) {
            folded.push((id, results));
        }
    }
    for (id, results) in folded {
        for (output, tensor) in (0u32..).zip(results) {
            let old = Value { node: id, output };
            if needed(graph, old, &fold.known) {
                fold.replace(graph, weights, old, tensor)?;
            }
        }
    }
    graph.remove_unused();
    Ok(())
}

/// True if the value is an output or the operand of an operator that stays.
fn needed(graph: &Graph, value: Value, known: &HashMap<Value, Tensor>) -> bool {
    let stays = |user: NodeId| !known.contains_key(&Value { node: user, output: 0 });
    graph.outputs().iter().any(|o| o.value == value)
        || graph
            .users(value.node)
            .iter()
            .any(|(user, _, output)| *output == value.output && stays(*user))
}

struct Fold {
    /// The elements of folded values.
    known: HashMap<Value, Tensor>,
    /// The bytes that further results may take.
    left: u64,
    /// The source of folded parameters.
    file: Arc<str>,
}

impl Fold {
    /// The results of a node all of whose operands are known, if they fit.
    fn visit(&mut self, graph: &Graph, weights: &Weights, id: NodeId) -> Option<Vec<Tensor>> {
        let node = graph.node(id);
        let op = node.op()?;
        let bytes = result_bytes(node)?;
        let operands = graph.operands(id);
        let operands = operands
            .iter()
            .map(|v| self.elements(graph, weights, *v))
            .collect::<Option<SmallVec<[Tensor; 4]>>>()?;
        if let Op::Constant(Constant { value }) = op {
            self.known.insert(Value { node: id, output: 0 }, value.clone());
            return None;
        }
        if bytes > self.left {
            return None;
        }
        let results = op.eval(&operands.iter().collect::<SmallVec<[&Tensor; 4]>>()).ok()?;
        self.left -= bytes;
        for (output, tensor) in (0u32..).zip(&results) {
            self.known.insert(Value { node: id, output }, tensor.clone());
        }
        Some(results)
    }

    fn elements(&self, graph: &Graph, weights: &Weights, value: Value) -> Option<Tensor> {
        match graph.node(value.node).kind() {
            NodeKind::Param(id) => weights.get(&graph.param(*id).name).cloned(),
            NodeKind::Op(_) => self.known.get(&value).cloned(),
            NodeKind::Input => None,
        }
    }

    fn replace(
        &self,
        graph: &mut Graph,
        weights: &mut Weights,
        old: Value,
        tensor: Tensor,
    ) -> Result<(), PassError> {
        let node = graph.node(old.node);
        let (place, origin) = (node.place(), node.origin().clone());
        let name = graph.info(old).name.clone();
        let new = if !tensor.dtype().is_float() && tensor.len() <= SMALL {
            let node = graph.add(Constant { value: tensor }.into(), &[], &[name], place, origin)?;
            Value { node, output: 0 }
        } else {
            let mut unique = name.to_string();
            while weights.get(&unique).is_some() {
                unique.push('_');
            }
            let param = graph.add_param(Param {
                name: unique.as_str().into(),
                ty: tensor.tensor_type(),
                source: Source { file: self.file.clone(), key: format!("folded:{name}").into() },
                hash: ContentHash::of(&tensor),
                placement: Placement::Shared(place.device),
            });
            weights.insert(unique.as_str(), tensor);
            graph.add_param_node(param, place.device)
        };
        graph.replace(old, new).map_err(PassError::from)
    }
}

/// The bytes of all results, where their sizes are constant.
fn result_bytes(node: &Node) -> Option<u64> {
    node.results()
        .iter()
        .try_fold(0u64, |sum, r| sum.checked_add(u64::try_from(r.ty.bytes().as_const()?).ok()?))
}
