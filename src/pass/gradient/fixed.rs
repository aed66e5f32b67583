//! Parameters that are part of the formula, not of what is learned.
//!
//! A file holds tables and constants beside weights, and does not say which is which. What tells
//! them apart is where they meet values that depend on an input:
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
use crate::ir::{Graph, GraphError, NodeId, NodeKind, Value, Weights};
use crate::op::{Binary, Op, Traits, Unary};
use crate::types::{DType, Dim, Tensor};

/// What a table by position is called.
const TABLE: &str = "it is a table by position";
/// What a rotary table is called.
const ROTARY: &str = "it is a rotary table";
/// What a mask is called.
const MASK: &str = "it is a mask";
/// What frequencies are called.
const FREQUENCIES: &str = "it holds frequencies";
/// What a constant is called.
const CONSTANT: &str = "it is a constant of the formula";

/// The parameters of a model that are not learned, by name, and what they are.
pub fn fixed_parameters(
    model: &Graph,
    weights: &Weights,
) -> Result<BTreeMap<String, &'static str>, GraphError> {
    let model = &inference(model)?;
    let order = model.order()?;
    let mut of_input = vec![false; model.id_bound()];
    for id in &order {
        of_input[id.index()] = matches!(model.node(*id).kind(), NodeKind::Input)
            || model.operands(*id).iter().any(|v| of_input[v.node.index()]);
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

struct Search<'a> {
    model: &'a Graph,
    weights: &'a Weights,
    /// The nodes whose results depend on an input, by index.
    of_input: Vec<bool>,
}

/// Where a value meets one that depends on an input.
struct Meeting {
    user: NodeId,
    slot: usize,
    value: Value,
}

impl Search<'_> {
    fn op(&self, node: NodeId) -> Option<&Op> {
        self.model.node(node).op()
    }

    /// What a parameter is, by where it goes; `None` of one that is learned.
    fn what(&self, param: NodeId, name: &str) -> Option<&'static str> {
        let sizes = self.sizes(Value { node: param, output: 0 });
        let (meetings, waves) = self.meetings(param);
        if sizes.is_empty() {
            return Some(CONSTANT);
        }
        if waves && meetings.is_empty() {
            return Some(FREQUENCIES);
        }
        let all = |is: &dyn Fn(&Meeting) -> bool| !meetings.is_empty() && meetings.iter().all(is);
        let elementwise = |m: &Meeting, with: &[Binary]| match self.op(m.user) {
            Some(Op::Binary(op)) => self.of_input[m.user.index()] && with.contains(op),
            _ => false,
        };
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

    /// Where a parameter meets values that depend on an input, or operators that make something
    /// else of it; and whether it is taken the sine or cosine of before. It remains itself as a
    /// part, and in sums and products with others.
    fn meetings(&self, param: NodeId) -> (Vec<Meeting>, bool) {
        let (mut meetings, mut waves) = (Vec::new(), false);
        let (mut next, mut seen) = (vec![Value { node: param, output: 0 }], BTreeSet::new());
        while let Some(value) = next.pop() {
            if !seen.insert(value) {
                continue;
            }
            for (user, slot, output) in self.model.users(value.node) {
                let result = Value { node: user, output: 0 };
                match self.op(user) {
                    _ if output != value.output => {}
                    Some(_) if self.of_input[user.index()] => {
                        meetings.push(Meeting { user, slot, value });
                    }
                    Some(Op::Unary(Unary::Sin | Unary::Cos)) => waves = true,
                    Some(Op::Binary(Binary::Add | Binary::Mul)) => next.push(result),
                    Some(op) if op.joined().is_some() => next.push(result),
                    Some(op) if is_view(op, slot) => next.push(result),
                    // What is made of it by any other operator is not the parameter itself.
                    _ => meetings.push(Meeting { user, slot, value }),
                }
            }
        }
        (meetings, waves)
    }

    fn sizes(&self, value: Value) -> Vec<Dim> {
        self.model.ty(value).shape.to_vec()
    }

    /// Whether a value has an entry for each element of a sample that it meets.
    fn covers(&self, meeting: &Meeting) -> bool {
        let (own, whole) =
            (self.sizes(meeting.value), self.sizes(Value { node: meeting.user, output: 0 }));
        let missing = whole.len().saturating_sub(own.len());
        let own = (0..missing).map(|_| Dim::ONE).chain(own);
        let each = whole.iter().zip(own).filter(|(size, _)| !size.depends_on_batch());
        let axes: Vec<_> = each.filter(|(size, _)| **size != Dim::ONE).collect();
        axes.len() >= 2 && axes.iter().all(|(_, own)| *own != Dim::ONE)
    }

    /// The parameters by which inputs are shifted and scaled before anything is computed of them.
    fn scales(&self, order: &[NodeId]) -> BTreeMap<String, &'static str> {
        let mut found = BTreeSet::new();
        // Inputs as given, and what is shifted and scaled of them.
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
            let (given, by, slot) =
                if self.of_input[a.node.index()] { (a, b, 1) } else { (b, a, 0) };
            if self.of_input[by.node.index()] {
                continue;
            }
            let single = || self.sizes(*by).iter().all(|size| *size == Dim::ONE);
            let begins = (matches!(op, Binary::Sub | Binary::Div) && slot == 1)
                || (*op == Binary::Mul && single());
            let goes_on = matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div);
            // A layer may take differences to more than it is given: its centres are weights.
            let alike = self.sizes(*given) == self.sizes(result);
            if alike && ((raw.contains(given) && begins) || (scaled.contains(given) && goes_on)) {
                scaled.insert(result);
                self.params_of(*by, &mut found);
            }
        }
        // What is used elsewhere as well is more than a scale of inputs.
        let only_there = |param: &NodeId| {
            let (mut next, mut seen) = (vec![*param], BTreeSet::new());
            while let Some(node) = next.pop() {
                for (user, ..) in self.model.users(node) {
                    if !self.of_input[user.index()] {
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

    /// Notes the parameters that a value is computed of, element by element.
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

/// Whether an operator gives elements of its operand at this place, each as it is.
fn is_view(op: &Op, slot: usize) -> bool {
    let moves = op.is(Traits::MOVES) && op.joined().is_none();
    slot == 0 && (moves || op.is(Traits::CONVERTS) || matches!(op, Op::Gather(_)))
}

/// Whether there is nothing but 0 and 1, or 0 and very negative numbers, and both of them.
fn masks(elements: &[f64]) -> bool {
    let both = |other: &dyn Fn(f64) -> bool| {
        let is = |x: &f64| same(*x, 0.0) || other(*x);
        elements.iter().all(is)
            && elements.contains(&0.0)
            && elements.iter().any(|x| !same(*x, 0.0))
    };
    both(&|x| same(x, 1.0)) || both(&|x| x <= -1e4)
}

/// Whether these are the same number, bit by bit but for the sign of 0.
fn same(a: f64, b: f64) -> bool {
    a.partial_cmp(&b) == Some(std::cmp::Ordering::Equal)
}

/// Whether these are the cosines or the sines of angles that grow from 0 along the last but one
/// axis that is not of size 1.
fn rotary(elements: &[f64], sizes: &[Dim]) -> bool {
    let width = sizes.iter().rfind(|size| **size != Dim::ONE).and_then(Dim::as_const);
    let Some(width) = width.and_then(|w| usize::try_from(w).ok()).filter(|w| *w > 0) else {
        return false;
    };
    // Without elements there is no beginning.
    let first = elements.chunks_exact(width).next().unwrap_or_default();
    let begins = |with: f64| !first.is_empty() && first.iter().all(|x| same(*x, with));
    elements.iter().all(|x| x.abs() <= 1.0)
        && (begins(0.0) || begins(1.0))
        && elements.iter().any(|x| !same(*x, first[0]))
}
