//! Constant folding: operators on constants and on parameters without an update.

use std::sync::Arc;

use smallvec::SmallVec;

use super::options::SimplifyOptions;
use crate::ir::{
    ContentHash, Graph, Node, NodeId, NodeKind, Param, ParamId, Placement, Source, Value, Weights,
};
use crate::op::{Formula, Op, Traits};
use crate::pass::PassError;
use crate::types::{FastMap, FastSet, Tensor, subnormals};

/// Integer results up to this number of elements become a `constant` rather than a parameter, so
/// that inference still knows their elements: shapes and axes depend on them.
const SMALL: usize = 64;

/// Results up to this number of bytes may be larger than their operands. A broadcast or a tile
/// beyond it would trade a cheap operator for memory in every replica.
const GROWTH: u64 = 1 << 16;

/// The budget of elements for operators that read each element once, in addition to sixteen times
/// the elements of the weights: the time of folding stays in proportion to the model. Three moves
/// of a weight, as recurrent layers need them, take fifteen: the bytes of each result count.
const READ: u64 = 1 << 24;

/// The budget of multiplications for all other operators.
const PRODUCTS: u64 = 1 << 28;

/// Computes every operator that depends only on constants and on parameters without an update.
///
/// The result is a parameter of the same name. Its source is the model's with the key
/// `folded:NAME`: it is written out with the graph, or computed again from the model. Operators
/// whose results are much larger than their operands, or that take long, are left to the run.
pub(super) fn run(
    graph: &mut Graph,
    weights: &mut Weights,
    options: &SimplifyOptions,
) -> Result<(), PassError> {
    // Folding merges parameters into others, which training could then not update.
    if options.for_training {
        return Ok(());
    }
    // What is computed here has the bits of a run.
    let _kept = subnormals::kept();
    let file = graph.params().first().map_or_else(|| Arc::from(""), |p| p.source.file.clone());
    let held = weights.iter().fold(0u64, |sum, (_, t)| sum.saturating_add(t.len() as u64));
    let mut fold = Fold {
        known: FastMap::default(),
        variables: graph.updates().iter().map(|update| update.param).collect(),
        left: options.max_bytes,
        reads: held.saturating_mul(16).saturating_add(READ),
        products: PRODUCTS,
        file,
    };
    let mut folded: Vec<(NodeId, Vec<Tensor>)> = Vec::new();
    for id in graph.order()? {
        if let Some(results) = fold.visit(graph, weights, id) {
            folded.push((id, results));
        }
    }
    // Replacement waits until all is computed: only results that an operator outside the folded set
    // takes become parameters, not the steps between them.
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

/// True if the value is an output or an update, or an operand of an operator that is not folded.
fn needed(graph: &Graph, value: Value, known: &FastMap<Value, Tensor>) -> bool {
    let stays = |user: NodeId| !known.contains_key(&Value { node: user, output: 0 });
    graph.is_kept(value)
        || graph
            .users(value.node)
            .iter()
            .any(|(user, _, output)| *output == value.output && stays(*user))
}

/// State of folding: known elements and remaining budgets.
struct Fold {
    /// The elements of folded values.
    known: FastMap<Value, Tensor>,
    /// The parameters that updates change between runs.
    variables: FastSet<ParamId>,
    /// The remaining bytes for results.
    left: u64,
    /// The remaining elements for operators that read each once.
    reads: u64,
    /// The remaining multiplications for other operators.
    products: u64,
    /// The file named in the source of folded parameters.
    file: Arc<str>,
}

impl Fold {
    /// The results of a node whose operands are all known, within the budgets.
    fn visit(&mut self, graph: &Graph, weights: &Weights, id: NodeId) -> Option<Vec<Tensor>> {
        let node = graph.node(id);
        let op = node.op()?;
        let bytes = result_bytes(node)?;
        let operands = graph.operands(id);
        let operands = operands
            .iter()
            .map(|v| self.elements(graph, weights, *v))
            .collect::<Option<SmallVec<[Tensor; 4]>>>()?;
        // A constant is known, but replacing it by a parameter would gain nothing.
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

    /// True if an operator with results of `bytes` bytes is within the budgets; charges them.
    fn is_cheap(&mut self, op: &Op, operands: &[Tensor], bytes: u64) -> bool {
        let taken = operands.iter().fold(0u64, |sum, t| sum.saturating_add(t.byte_len() as u64));
        if bytes > taken.max(GROWTH) {
            return false;
        }
        // Elements have at least one byte, so that bytes bound the number of elements.
        let (read, most) = operands.iter().fold((bytes, 1), |(sum, most), t| {
            let len = t.len() as u64;
            (sum.saturating_add(len), len.max(most))
        });
        let once = Traits::ELEMENTWISE | Traits::MOVES | Traits::READS_ONCE;
        let once = op.traits().intersects(once);
        // An element of any other result is a sum of at most as many products as its largest
        // operand has elements.
        let cost = if once { read } else { bytes.saturating_mul(most) };
        let left = if once { &mut self.reads } else { &mut self.products };
        let rest = left.checked_sub(cost);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }

    /// The elements of a value, if they are known before the run.
    fn elements(&self, graph: &Graph, weights: &Weights, value: Value) -> Option<Tensor> {
        match graph.node(value.node).kind() {
            NodeKind::Param(id) if self.variables.contains(id) => None,
            NodeKind::Param(id) => weights.get(&graph.param(*id).name).cloned(),
            NodeKind::Op(_) => self.known.get(&value).cloned(),
            NodeKind::Input => None,
        }
    }

    /// Replaces a value by a constant or a new parameter with these elements.
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
                source: Source::folded(self.file.clone(), &name),
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
