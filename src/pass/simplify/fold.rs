use std::sync::Arc;

use smallvec::SmallVec;

use super::options::SimplifyOptions;
use crate::ir::{
    ContentHash, Graph, Node, NodeId, NodeKind, Param, ParamId, Placement, Source, Value, Weights,
};
use crate::op::{Formula, Op, Traits};
use crate::pass::PassError;
use crate::types::{Keys, Table, Tensor};

/// Integer results up to this number of elements become `constant`, so that their elements stay
/// known.
const SMALL: usize = 64;

/// Results up to this number of bytes may take more than the operands they are computed from.
const GROWTH: u64 = 1 << 16;

/// The elements that operators which look at each once may read and write, beyond eight times those
/// of the weights.
const READ: u64 = 1 << 24;

/// The products of elements that other operators may compute.
const PRODUCTS: u64 = 1 << 28;

/// Computes every operator that depends on constants and on parameters without an update only. The
/// result is a parameter of the same name, whose source is that of the model with the key
/// `folded:NAME`; it is written out with the graph, or computed again from the model. What would be
/// much larger than the operands, or takes long, is left to the run.
pub(super) fn run(
    graph: &mut Graph,
    weights: &mut Weights,
    options: SimplifyOptions,
) -> Result<(), PassError> {
    let file = graph.params().first().map_or_else(|| Arc::from(""), |p| p.source.file.clone());
    let held = weights.iter().fold(0u64, |sum, (_, t)| sum.saturating_add(t.len() as u64));
    let mut fold = Fold {
        known: Table::default(),
        variables: graph.updates().iter().map(|update| update.param).collect(),
        left: options.max_bytes,
        reads: held.saturating_mul(8).saturating_add(READ),
        products: PRODUCTS,
        file,
    };
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

/// True if the value is kept after a run, or the operand of an operator that stays.
fn needed(graph: &Graph, value: Value, known: &Table<Value, Tensor>) -> bool {
    let stays = |user: NodeId| !known.contains_key(&Value { node: user, output: 0 });
    graph.is_kept(value)
        || graph
            .users(value.node)
            .iter()
            .any(|(user, _, output)| *output == value.output && stays(*user))
}

struct Fold {
    /// The elements of folded values.
    known: Table<Value, Tensor>,
    /// The parameters whose elements are others in a later run.
    variables: Keys<ParamId>,
    /// The bytes that further results may take.
    left: u64,
    /// The elements that operators which look at each once may still read and write.
    reads: u64,
    /// The products that other operators may still compute.
    products: u64,
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
        if let Some(value) = op.known() {
            self.known.insert(Value { node: id, output: 0 }, value.clone());
            return None;
        }
        if bytes > self.left || !self.is_cheap(op, &operands, bytes) {
            return None;
        }
        let results = op.eval(&operands.iter().collect::<SmallVec<[&Tensor; 4]>>()).ok()?;
        self.left -= bytes;
        for (output, tensor) in (0u32..).zip(&results) {
            self.known.insert(Value { node: id, output }, tensor.clone());
        }
        Some(results)
    }

    /// True if an operator with results of so many bytes is worth its memory and time, which it
    /// takes then.
    fn is_cheap(&mut self, op: &Op, operands: &[Tensor], bytes: u64) -> bool {
        let taken = operands.iter().fold(0u64, |sum, t| sum.saturating_add(t.bytes().len() as u64));
        if bytes > taken.max(GROWTH) {
            return false;
        }
        // No element is narrower than a byte.
        let (read, most) = operands.iter().fold((bytes, 1), |(sum, most), t| {
            let len = t.len() as u64;
            (sum.saturating_add(len), len.max(most))
        });
        let once = op.is(Traits::ELEMENTWISE)
            || op.is(Traits::MOVES)
            || matches!(op, Op::BatchNorm(_) | Op::Gather(_) | Op::Pad(_));
        // Elsewhere an element of the result is a sum of at most as many products as an operand has
        // elements.
        let cost = if once { read } else { bytes.saturating_mul(most) };
        let left = if once { &mut self.reads } else { &mut self.products };
        let rest = left.checked_sub(cost);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }

    fn elements(&self, graph: &Graph, weights: &Weights, value: Value) -> Option<Tensor> {
        match graph.node(value.node).kind() {
            NodeKind::Param(id) if self.variables.contains(id) => None,
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
        let place = node.place();
        let name = graph.info(old).name.clone();
        let new = if !tensor.dtype().is_float() && tensor.len() <= SMALL {
            graph.beside(old.node, name).literal(tensor)?
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
