//! Detection of parameters that are constants of the model rather than learned weights.
//!
//! A file holds tables and constants beside weights and does not say which is which. Their use with
//! values that depend on an input tells them apart:
//!
//! * a *table by position* is added to such a value and has an entry for each element of a sample:
//!   its size is not 1 on two axes or more, and on every axis on which the sample's is not. A bias
//!   leaves out some of them;
//! * a *rotary table* multiplies, its elements are in -1 to 1, and those of its first position are
//!   all 0 or all 1;
//! * a *mask* has two axes or more and holds nothing but 0 and 1, or 0 and numbers of -10000 and
//!   below;
//! * *frequencies* are taken the sine or cosine of, with nothing of the inputs;
//! * a *constant* is a number without axes, and what an input as given is shifted and scaled by,
//!   beginning with what is subtracted from it or divides it, or with a factor of a single element,
//!   and is used for nothing else; and a single element that is subtracted, divides, or is an
//!   exponent.

use std::collections::{BTreeMap, BTreeSet};

use super::inference::inference;
use crate::ir::{Graph, GraphError, NodeId, NodeKind, NodeMap, Value, Weights};
use crate::op::{Binary, Op, Traits, Unary};
use crate::types::{DType, Dim, Tensor};

/// The reason shown for a table by position.
const TABLE: &str = "it is a table of positional embeddings";
/// The reason shown for a rotary table.
const ROTARY: &str = "it is a rotary table";
/// The reason shown for a mask.
const MASK: &str = "it is a mask";
/// The reason shown for frequencies.
const FREQUENCIES: &str = "it holds frequencies";
/// The reason shown for a constant.
const CONSTANT: &str = "it is a non-trainable constant";

/// The parameters of a model that are not learned, by name, each with the reason.
pub fn fixed_parameters(
    model: &Graph,
    weights: &Weights,
) -> Result<BTreeMap<String, &'static str>, GraphError> {
    // In inference mode dropout and batch normalisation have one form, whatever the exporter wrote.
    let model = &inference(model)?;
    let order = model.order()?;
    let mut of_input = model.node_map(false);
    for id in &order {
        of_input[*id] = matches!(model.node(*id).kind(), NodeKind::Input)
            || model.operands(*id).iter().any(|v| of_input[v.node]);
    }
    let search = Search { model, weights, of_input };
    let mut found = search.scales(&order);
    for id in &order {
        let NodeKind::Param(param) = *model.node(*id).kind() else { continue };
        let param = model.param(param);
        if matches!(param.ty.dtype, DType::F32 | DType::F64)
            && let Some(what) = search.what(*id, &param.name)
        {
            found.entry(param.name.to_string()).or_insert(what);
        }
    }
    Ok(found)
}

/// The model under search, with its weights.
struct Search<'a> {
    model: &'a Graph,
    weights: &'a Weights,
    /// By index: whether a node's results depend on an input.
    of_input: NodeMap<bool>,
}

/// A use of a value by an operator on values that depend on an input.
struct InputUse {
    user: NodeId,
    slot: usize,
    value: Value,
}

impl Search<'_> {
    fn op(&self, node: NodeId) -> Option<&Op> {
        self.model.node(node).op()
    }

    /// The reason why a parameter is fixed, by its uses; `None` if it is learned.
    fn what(&self, param: NodeId, name: &str) -> Option<&'static str> {
        let sizes = self.sizes(Value { node: param, output: 0 });
        let (input_uses, waves) = self.input_uses(param);
        if sizes.is_empty() {
            return Some(CONSTANT);
        }
        if waves && input_uses.is_empty() {
            return Some(FREQUENCIES);
        }
        // A parameter counts as fixed only if every use says so: one use as a weight makes it
        // learned.
        let all =
            |is: &dyn Fn(&InputUse) -> bool| !input_uses.is_empty() && input_uses.iter().all(is);
        let elementwise = |m: &InputUse, with: &[Binary]| match self.op(m.user) {
            Some(Op::Binary(op)) => self.of_input[m.user] && with.contains(op),
            _ => false,
        };
        // Two axes at least: a bias has one, and may hold any numbers.
        if sizes.iter().filter(|size| **size != Dim::ONE).count() >= 2 {
            let sums = [Binary::Add, Binary::Sub];
            if all(&|m| elementwise(m, &sums) && self.covers(m)) {
                return Some(TABLE);
            }
            let elements = self.weights.get(name).map(Tensor::to_f64);
            let both = [Binary::Add, Binary::Sub, Binary::Mul];
            if all(&|m| elementwise(m, &both)) && elements.as_deref().is_some_and(masks) {
                return Some(MASK);
            }
            let turns = |e: &[f64]| rotary(e, &sizes);
            if all(&|m| elementwise(m, &[Binary::Mul])) && elements.as_deref().is_some_and(turns) {
                return Some(ROTARY);
            }
        }
        let single = self.weights.get(name).is_some_and(|t| t.len() == 1);
        let by = [Binary::Sub, Binary::Div, Binary::Pow];
        (single && all(&|m| elementwise(m, &by) && m.slot == 1)).then_some(CONSTANT)
    }

    /// The uses of a parameter with values that depend on an input, or by operators that turn it
    /// into something else; and whether a sine or cosine of it is taken before. A parameter is
    /// followed through views, concatenations, and sums and products with other parameters.
    fn input_uses(&self, param: NodeId) -> (Vec<InputUse>, bool) {
        let (mut input_uses, mut waves) = (Vec::new(), false);
        let (mut next, mut seen) = (vec![Value { node: param, output: 0 }], BTreeSet::new());
        while let Some(value) = next.pop() {
            if !seen.insert(value) {
                continue;
            }
            for (user, slot, output) in self.model.users(value.node) {
                let result = Value { node: user, output: 0 };
                match self.op(user) {
                    _ if output != value.output => {}
                    Some(_) if self.of_input[user] => {
                        input_uses.push(InputUse { user, slot, value });
                    }
                    Some(Op::Unary(Unary::Sin | Unary::Cos)) => waves = true,
                    Some(Op::Binary(Binary::Add | Binary::Mul)) => next.push(result),
                    Some(op) if op.joined().is_some() => next.push(result),
                    Some(op) if is_view(op, slot) => next.push(result),
                    // The result of any other operator is no longer the parameter itself.
                    _ => input_uses.push(InputUse { user, slot, value }),
                }
            }
        }
        (input_uses, waves)
    }

    /// The sizes of a value.
    fn sizes(&self, value: Value) -> Vec<Dim> {
        self.model.ty(value).shape.to_vec()
    }

    /// True if a value has an entry for each element of a sample that it is combined with.
    fn covers(&self, meeting: &InputUse) -> bool {
        let (own, whole) =
            (self.sizes(meeting.value), self.sizes(Value { node: meeting.user, output: 0 }));
        let missing = whole.len().saturating_sub(own.len());
        let own = (0..missing).map(|_| Dim::ONE).chain(own);
        let each = whole.iter().zip(own).filter(|(size, _)| !size.depends_on_batch());
        let axes: Vec<_> = each.filter(|(size, _)| **size != Dim::ONE).collect();
        axes.len() >= 2 && axes.iter().all(|(_, own)| *own != Dim::ONE)
    }

    /// The parameters that only shift and scale inputs: the normalisation of raw data.
    fn scales(&self, order: &[NodeId]) -> BTreeMap<String, &'static str> {
        let mut found = BTreeSet::new();
        // Views of raw inputs, and inputs that were shifted or scaled.
        let (mut raw, mut scaled) = (BTreeSet::new(), BTreeSet::new());
        for id in order {
            let result = Value { node: *id, output: 0 };
            if matches!(self.model.node(*id).kind(), NodeKind::Input) {
                raw.insert(result);
            }
            let Some(op) = self.op(*id) else { continue };
            let operands = self.model.operands(*id);
            let Some(first) = operands.first() else { continue };
            if is_view(op, 0) {
                for set in [&mut raw, &mut scaled] {
                    if set.contains(first) {
                        set.insert(result);
                    }
                }
            }
            let (Op::Binary(op), [a, b]) = (op, &operands[..]) else { continue };
            let (given, by, slot) = if self.of_input[a.node] { (a, b, 1) } else { (b, a, 0) };
            if self.of_input[by.node] {
                continue;
            }
            let single = || self.sizes(*by).iter().all(|size| *size == Dim::ONE);
            // Normalisation begins with `- mean`, `/ std`, or a scalar factor such as 1/255; any
            // factor would take the weights of an elementwise first layer for a scale.
            let begins = (matches!(op, Binary::Sub | Binary::Div) && slot == 1)
                || (*op == Binary::Mul && single());
            let goes_on = matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div);
            // A layer may broadcast an input against more entries than it has, as against the
            // centres of clusters: those are weights.
            let alike = self.sizes(*given) == self.sizes(result);
            if alike && ((raw.contains(given) && begins) || (scaled.contains(given) && goes_on)) {
                scaled.insert(result);
                self.params_of(*by, &mut found);
            }
        }
        // A parameter with another use as well is more than a scale of inputs.
        let only_there = |param: &NodeId| {
            let (mut next, mut seen) = (vec![*param], BTreeSet::new());
            while let Some(node) = next.pop() {
                for (user, ..) in self.model.users(node) {
                    if !self.of_input[user] {
                        next.extend(seen.insert(user).then_some(user));
                    } else if !scaled.contains(&Value { node: user, output: 0 }) {
                        return false;
                    }
                }
            }
            true
        };
        let named = |node: NodeId| match *self.model.node(node).kind() {
            NodeKind::Param(param) => Some(self.model.param(param).name.to_string()),
            NodeKind::Input | NodeKind::Op(_) => None,
        };
        let found = found.into_iter().filter(only_there).filter_map(named);
        found.map(|name| (name, CONSTANT)).collect()
    }

    /// Collects the parameters from which a value is computed elementwise.
    fn params_of(&self, value: Value, found: &mut BTreeSet<NodeId>) {
        let (mut next, mut seen) = (vec![value.node], BTreeSet::new());
        while let Some(node) = next.pop() {
            if !seen.insert(node) {
                continue;
            }
            match self.model.node(node).kind() {
                NodeKind::Param(_) => drop(found.insert(node)),
                NodeKind::Op(op) if is_view(op, 0) || op.is(Traits::ELEMENTWISE) => {
                    next.extend(self.model.operands(node).iter().map(|v| v.node));
                }
                NodeKind::Input | NodeKind::Op(_) => {}
            }
        }
    }
}

/// True if an operator's results are elements of its operand at `slot`, moved or converted.
fn is_view(op: &Op, slot: usize) -> bool {
    let moves = op.is(Traits::MOVES) && op.joined().is_none();
    slot == 0 && (moves || op.is(Traits::CONVERTS) || matches!(op, Op::Gather(_)))
}

/// True for elements that are all 0 or 1, or all 0 or at most -10000, with both present: factors
/// and summands of masks.
fn masks(elements: &[f64]) -> bool {
    let both = |other: &dyn Fn(f64) -> bool| {
        let is = |x: &f64| same(*x, 0.0) || other(*x);
        elements.iter().all(is)
            && elements.contains(&0.0)
            && elements.iter().any(|x| !same(*x, 0.0))
    };
    both(&|x| same(x, 1.0)) || both(&|x| x <= -1e4)
}

/// True for equal numbers, with -0 equal to 0.
fn same(a: f64, b: f64) -> bool {
    a.partial_cmp(&b) == Some(std::cmp::Ordering::Equal)
}

/// True for elements in -1 to 1 whose first row along the last axis larger than 1 is all 0 or all
/// 1: the sines or cosines of angles that begin at 0, as in rotary embeddings.
fn rotary(elements: &[f64], sizes: &[Dim]) -> bool {
    let width = sizes.iter().rfind(|size| **size != Dim::ONE).and_then(Dim::as_const);
    let Some(width) = width.and_then(|w| usize::try_from(w).ok()).filter(|w| *w > 0) else {
        return false;
    };
    // Without elements there is no first row.
    let first = elements.chunks_exact(width).next().unwrap_or_default();
    let begins = |with: f64| !first.is_empty() && first.iter().all(|x| same(*x, with));
    elements.iter().all(|x| x.abs() <= 1.0)
        && (begins(0.0) || begins(1.0))
        && elements.iter().any(|x| !same(*x, first[0]))
}
